"""The page in a browser: a patch and a group light up each other, and figures say their numbers."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
import torch

from pointvit.compare.multiview import Views
from pointvit.compare.objects import Request, choose_objects
from pointvit.compare.report import _shown
from pointvit.compare.scenes import NEAR, scenes
from pointvit.compare.subjects import find_subjects
from pointvit.ops import farthest_point_sample
from pointvit.views import Cameras, normalize_images

from .conftest import OBJECTS

GRID = 4


@pytest.fixture(scope="module")
def first(encoders, solids):
    """The encoders, the first object on the page, and both encoders' attention on it."""
    subjects = find_subjects(encoders.image, encoders.points)
    _, objects = choose_objects(Request("modelnet40", str(solids), "test", OBJECTS, 64))
    assert _shown(objects)[0] == 0
    picture = objects.render(0, 1, Views(1, 32))[0]
    with torch.inference_mode():
        image = subjects.image.attention_weights(normalize_images(picture, subjects.image))
        points = subjects.points.attention_weights(objects.batch(0, 1))
    return subjects, objects, torch.cat(image), torch.cat(points)


def words(page) -> str:
    return page.locator("#objects-words").inner_text()


def shares(text: str, kind: str) -> list[tuple[str, float]]:
    """What is said to get most: names and shares."""
    side = text.split("On the cloud")[0 if kind == "patch" else 1]
    found = re.findall(kind + r" ((?:row \d+, column \d+)|\d+) \(([\d.e-]+)%\)", side)
    return [(name, float(share) / 100) for name, share in found]


def chosen(page, canvas: str) -> int:
    return int(page.locator(f"#objects-{canvas}").get_attribute("data-chosen"))


def until(page, happened) -> None:
    """The page's own policy forbids the strings of JavaScript that playwright would wait with."""
    for _ in range(100):
        if happened():
            return
        page.wait_for_timeout(50)
    pytest.fail("the page did not get there within five seconds")


def wait_for(page, canvas: str, number: int) -> None:
    page.wait_for_selector(f'#objects-{canvas}[data-chosen="{number}"]')


def click_patch(page, patch: int, tap: bool = False) -> None:
    view = page.locator("#objects-view")
    view.scroll_into_view_if_needed()
    box = view.bounding_box()
    place = [
        box[o] + ((n + 0.5) / GRID) * box[s]
        for o, n, s in (("x", patch % GRID, "width"), ("y", patch // GRID, "height"))
    ]
    (page.touchscreen.tap if tap else page.mouse.click)(*place)


def name_of(patch: int) -> str:
    return f"row {patch // GRID + 1}, column {patch % GRID + 1}"


def check(found: list[tuple[str, float]], expected: np.ndarray, names: list[str]) -> None:
    """The three largest, in order, with their shares as far as 31 levels tell."""
    assert len(found) == 3
    assert found[0][1] == pytest.approx(expected.max(), rel=0.06)
    for name, share in found:
        assert share == pytest.approx(expected[names.index(name)], rel=0.12, abs=2e-3)


@pytest.mark.parametrize("phone", [False, True])
def test_a_patch_and_a_group_light_up_each_other(compared, first, visit, phone, tmp_path):
    subjects, objects, image, points = first
    settings = {"is_mobile": True, "has_touch": True} if phone else {}
    page = visit(compared.folder / "index.html", *((390, 844) if phone else (1200, 900)), **settings)
    assert page.evaluate("document.documentElement.scrollWidth") <= (390 if phone else 1200)
    scene = scenes(subjects, objects, [0], Views(1, 32))["objects"][0]
    patch = next(p for p in scene["image"]["asking"] if scene["groupOf"][p] >= 0)
    group = scene["groupOf"][patch]

    click_patch(page, patch, tap=phone)
    wait_for(page, "view", patch)
    assert chosen(page, "cloud") == group
    names = [name_of(p) for p in range(GRID**2)]
    check(shares(words(page), "patch"), image[-1, :, 1 + patch, 1:].mean(0).numpy(), names)
    numbers = [str(g + 1) for g in range(8)]
    check(shares(words(page), "group"), points[-1, :, 1 + group, 1:].mean(0).numpy(), numbers)
    assert page.locator("#objects-patch").input_value() == str(patch)

    page.select_option("#objects-head", "2")
    page.locator("#objects-layer").fill("0")
    until(page, lambda: "layer 1, head 2" in words(page))
    check(shares(words(page), "patch"), image[0, 1, 1 + patch, 1:].numpy(), names)

    other = next(
        g
        for g in range(8)
        if scene["patchOf"][g] in scene["image"]["asking"] and scene["patchOf"][g] != patch
    )
    page.select_option("#objects-group", str(other))
    wait_for(page, "cloud", other)
    assert chosen(page, "view") == scene["patchOf"][other]
    check(shares(words(page), "group"), points[0, 1, 1 + other, 1:].numpy(), numbers)
    hidden = not scene["visible"][other]
    assert ("on the far side" in words(page)) == hidden

    page.select_option("#objects-show", "rollout")
    until(page, lambda: "rollout" in words(page))
    assert page.locator("#objects-layer").is_disabled()
    page.screenshot(path=tmp_path / "page.png", full_page=True)


def test_a_group_is_chosen_on_the_cloud(compared, first, visit):
    subjects, objects, _, _ = first
    page = visit(compared.folder / "index.html", 1200, 900)
    cloud = page.locator("#objects-cloud")
    cloud.scroll_into_view_if_needed()
    page.wait_for_selector("#objects-cloud[data-chosen]")
    before = cloud.evaluate("(canvas) => canvas.toDataURL()")
    box = cloud.bounding_box()
    places = itertools.product((0.5, 0.45, 0.55, 0.4, 0.6), repeat=2)
    for across, down in places:  # until there is a point
        page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
        page.wait_for_timeout(200)
        if chosen(page, "cloud") >= 0:
            break
    scene = scenes(subjects, objects, [0], Views(1, 32))["objects"][0]
    group = chosen(page, "cloud")
    assert group >= 0
    expected = scene["patchOf"][group]
    assert chosen(page, "view") == (expected if expected in scene["image"]["asking"] else -1)
    assert cloud.evaluate("(canvas) => canvas.toDataURL()") != before


def test_the_keyboard_alone(compared, first, visit):
    subjects, objects, _, _ = first
    scene = scenes(subjects, objects, [0], Views(1, 32))["objects"][0]
    page = visit(compared.folder / "index.html", 1200, 900)
    page.locator("#objects-view").focus()
    page.keyboard.press("ArrowRight")
    asking = scene["image"]["asking"]
    wait_for(page, "view", asking[len(asking) // 2])
    page.keyboard.press("Escape")
    wait_for(page, "view", -1)
    page.locator("#objects-cloud").focus()
    page.keyboard.press("n")
    wait_for(page, "cloud", 0)
    page.keyboard.press("p")
    wait_for(page, "cloud", 7)
    scrolled = page.evaluate("scrollY")
    page.mouse.move(*(page.locator("#objects-cloud").bounding_box()[k] + 100 for k in ("x", "y")))
    page.mouse.wheel(0, 200)
    until(page, lambda: page.evaluate("scrollY") > scrolled)


def test_figures_say_their_numbers(compared, visit):
    page = visit(compared.folder / "index.html", 1200, 900)
    found = next(e for e in compared.numbers["cka"] if (e["rows"], e["columns"]) == ("image", "points"))
    figure = page.locator("#cka_image_points")
    stage = figure.locator(".wide").first
    stage.focus()
    page.keyboard.press("ArrowRight")
    said = figure.locator("output")
    assert f"layer 0, point encoder layer 0: CKA {found['cka'][0][0]:.3f}" in said.inner_text()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert f"image encoder layer 1, point encoder layer 1: CKA {found['cka'][1][1]:.3f}" in said.inner_text()
    assert f"random weights {found['random'][1][1]:.3f}" in said.inner_text()
    mark = figure.locator(".mark").bounding_box()
    x, y = (mark[o] + mark[s] / 2 for o, s in (("x", "width"), ("y", "height")))
    page.mouse.move(x + mark["width"], y)
    assert f"image encoder layer 1, point encoder layer 2: CKA {found['cka'][1][2]:.3f}" in said.inner_text()
    curve = compared.numbers["attention"]["image"]["distance"]
    lines = page.locator("#attention_distance")
    lines.locator(".wide").first.focus()
    page.keyboard.press("ArrowRight")
    assert f"image encoder: mean {np.mean(curve[0]):.3g} px" in lines.locator("output").inner_text()
    summary = figure.locator("summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert figure.get_by_role("table").is_visible()


def test_links_are_the_projection_of_the_centres(first):
    subjects, objects, _, _ = first
    cameras = Cameras.from_rig(1, 32)
    for row in range(4):
        scene = scenes(subjects, objects, [row], Views(1, 32))["objects"][0]
        cloud = objects.batch(row, row + 1)
        centers = cloud[:, farthest_point_sample(cloud, 8)[0]]
        pixels = cameras.project(centers)[0][0, 0]
        patches = (pixels / 8).floor().long()
        assert scene["patchOf"] == (patches[:, 1] * GRID + patches[:, 0]).tolist()
        for patch, group in enumerate(scene["groupOf"]):
            middle = torch.tensor([patch % GRID + 0.5, patch // GRID + 0.5])
            apart = (pixels / 8 - middle).norm(dim=1)
            seen = torch.tensor(scene["visible"], dtype=torch.bool)
            near = apart.masked_fill(~seen, torch.inf)
            assert group == (int(near.argmin()) if near.min() <= NEAR else -1)


def test_attention_gets_coarser_and_then_layers_go(first, monkeypatch):
    subjects, objects, _, _ = first
    whole = scenes(subjects, objects, [0, 1], Views(1, 32))
    assert (whole["layers"], whole["levels"]) == ([1, 2], 31)
    size = len(json.dumps([[o[k]["layers"] for k in ("image", "points")] for o in whole["objects"]]))
    monkeypatch.setattr("pointvit.compare.scenes.BUDGET", size * 0.62)
    fewer = scenes(subjects, objects, [0, 1], Views(1, 32))
    assert (fewer["layers"], fewer["levels"]) in (([2], 31), ([2], 15), ([1, 2], 15))
    assert fewer["layers"] != whole["layers"] or fewer["levels"] != whole["levels"]
