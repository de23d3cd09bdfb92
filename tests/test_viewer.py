"""The viewer: what it shows is what the model computed, and its page is driven in a browser."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.image import imread

import pointvit
from pointvit.cli import main
from pointvit.compare import attention_rollout
from pointvit.data import PointCloud
from pointvit.ops import group
from pointvit.viewer import COLORINGS, Look, image, make_scene, scene, write_image, write_page
from pointvit.viewer.desktop import show_window
from pointvit.viewer.looks import checked, coloring, group_values

POINTS, GROUPS, SIZE, LAYERS, HEADS = 400, 16, 8, 2, 3
MARKUP = "</script><img src=x onerror=alert(1)>"


def small(randomise, name: str = "pointvit_tiny", **settings):
    sizes = {"depth": LAYERS, "num_groups": GROUPS, "group_size": SIZE} if "pointvit" in name else {}
    model = pointvit.create_model(name, **{"num_classes": 3, **sizes, **settings})
    return randomise(model).eval()


@pytest.fixture
def model(randomise):
    encoder = small(randomise)
    encoder.meta.class_names = ["chair", MARKUP, "table & lamp"]
    encoder.meta.num_points = 300
    return encoder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A bowl with normals and colours, far from the origin."""
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(POINTS, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    normals[:, 2] = -abs(normals[:, 2])
    path = tmp_path / "a <b>bowl & co.npz"
    points = normals * [3, 2, 1] + [100, 200, 300]
    np.savez(path, points=points, normals=normals, colors=rng.random((POINTS, 3)))
    return path


def test_groups_and_attention_are_the_models(model, file):
    found = make_scene(file, model, "z")
    seen = pointvit.inference.into_frame(model, pointvit.inference.load_cloud(model, file), "z")[None]
    neighborhoods, centers = model.tokenizer.group(seen)
    members = torch.from_numpy(found.groups.members)[None]
    assert torch.equal(group(seen, members) - centers[:, :, None], neighborhoods)
    with torch.inference_mode():
        weights = model.attention_weights(seen)
        assert model.predict(file, up="z") == found.classes
    assert found.attention.source == "the class token"
    torch.testing.assert_close(torch.from_numpy(found.attention.by_head), torch.cat(weights)[:, :, 0, 1:])
    mean = torch.cat(weights).mean(1)[:, 1:, 1:]
    torch.testing.assert_close(torch.from_numpy(found.attention.pairs), mean)
    torch.testing.assert_close(
        torch.from_numpy(found.attention.rollout), attention_rollout(weights)[0, 0, 1:]
    )
    assert len(found.cloud.points) == found.total == 300


def test_groups_are_nearest_centres_in_the_files_unit(model, file):
    found = make_scene(file, model)
    points, groups = found.cloud.points.astype(float), found.groups
    centers = points[groups.centers]
    distance = np.linalg.norm(points[:, None] - centers, axis=2)
    assert (distance.argmin(axis=1) == groups.nearest).all()
    assert (groups.nearest[groups.centers] == np.arange(GROUPS)).all()
    for i in range(1, GROUPS):
        nearest = np.linalg.norm(centers[i] - centers[:i], axis=1).min()
        assert groups.spacing[i] == pytest.approx(nearest, rel=1e-4)


def test_the_model_is_left_as_it_was(model, file):
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    make_scene(file, model)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("settings", [{"num_classes": 0}, {"num_reg_tokens": 4}])
def test_encoders_without_a_head_or_with_registers(randomise, file, settings):
    found = make_scene(file, small(randomise, **settings))
    assert found.attention.by_head.shape == (LAYERS, HEADS, GROUPS)
    assert (found.classes is None) == (settings.get("num_classes") == 0)


def test_without_a_class_token_all_groups_attend(randomise, file):
    encoder = small(randomise, class_token=False, global_pool="mean", head="linear")
    attention = make_scene(file, encoder).attention
    assert attention.source == "all groups, on average"
    np.testing.assert_allclose(attention.by_head.mean(1), attention.pairs.mean(1), rtol=1e-5)
    np.testing.assert_allclose(attention.rollout, attention.rollout_pairs.mean(0), rtol=1e-5)
    np.testing.assert_allclose(attention.by_head.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("given", ["array", "tensor", "cloud"])
def test_arrays_show_what_the_file_shows(model, file, given):
    from_file = make_scene(file, model, "z")
    cloud = pointvit.data.read_points(file)
    as_array = cloud.points.astype(np.float64)
    sources = {"array": as_array, "tensor": torch.from_numpy(as_array), "cloud": cloud}
    found = make_scene(sources[given], model, "z")
    assert (found.groups.members == from_file.groups.members).all()
    np.testing.assert_allclose(
        found.cloud.points + found.cloud.offset, from_file.cloud.points + from_file.cloud.offset, rtol=1e-6
    )
    np.testing.assert_allclose(found.attention.rollout, from_file.attention.rollout, rtol=1e-3)


def test_large_clouds_are_thinned_around_their_groups(model, file, monkeypatch):
    model.meta.num_points = None
    whole = make_scene(file, model)
    monkeypatch.setattr(scene, "DRAWN", 350)
    found = make_scene(file, model)
    assert (found.attention.rollout == whole.attention.rollout).all(), "the model still sees every point"
    assert (len(found.cloud.points), found.total) == (350, POINTS)
    for name in ("centers", "members"):
        before, after = (getattr(s.groups, name) for s in (whole, found))
        assert (whole.cloud.points[before] == found.cloud.points[after]).all()
        assert (whole.groups.nearest[before] == found.groups.nearest[after]).all()
    assert found.cloud.normals.shape == found.cloud.colors.shape == (350, 3)


def test_near_groups_differ_in_colour(model, file):
    found = make_scene(file, model)
    colors = pointvit.viewer.looks.group_colors(found)
    centers = found.cloud.points[found.groups.centers]
    distance = np.linalg.norm(centers[:, None] - centers, axis=2) + 1e9 * np.eye(GROUPS)
    assert (colors[distance.argmin(axis=1)] != colors).all()


@pytest.mark.parametrize("color", COLORINGS)
def test_every_colouring(model, file, color):
    found = make_scene(file, model)
    shown = coloring(found, checked(found, Look(color, channel=2)))
    assert (shown.values is None) != (shown.rgb is None)
    assert len(shown.rgb if shown.values is None else shown.values) == len(found.cloud.points)


@pytest.mark.parametrize(
    ("look", "words"),
    [
        (Look("attention", layer=LAYERS + 1), "no layer 3"),
        (Look("attention", head=0), "no head 0"),
        (Look(group=GROUPS + 1), "no group 17"),
        (Look("channel", channel=193), "no channel 193"),
        (Look("hue"), "color must be one of"),
    ],
)
def test_looks_beyond_the_model(model, file, look, words):
    with pytest.raises(ValueError, match=words):
        checked(make_scene(file, model), look)


def test_a_picture_needs_no_display(model, file, tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    found = make_scene(file, model)
    pictures = {}
    for look in (Look("height"), Look("groups"), Look("attention", group=3)):
        path = write_image(found, path=tmp_path / f"{look.color}.png", look=look)
        pictures[look.color] = imread(path)
    assert all(picture.shape == (600, 600, 4) for picture in pictures.values())
    assert (pictures["height"] != pictures["groups"]).any()
    assert (pictures["groups"] != pictures["attention"]).any()


def test_an_animation_turns(file, tmp_path, monkeypatch):
    pillow = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "FRAMES", 4)
    path = write_image(file, path=tmp_path / "turn.gif", look=Look("order"))
    with pillow.open(path) as animation:
        assert animation.n_frames == 4
        frames = []
        for frame in range(4):
            animation.seek(frame)
            frames.append(np.asarray(animation.convert("RGB")))
    assert all((a != b).any() for a, b in itertools.pairwise(frames))


def test_the_command_writes_a_page_and_a_picture(model, file, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    saved = str(pointvit.save(model, tmp_path / "model"))
    assert main(["view", str(file)]) == 0
    assert [path.name for path in folder.iterdir()] == [file.with_suffix(".html").name]
    assert main(["view", str(file), "--model", saved, "--image", "x.png", "--group", "2"]) == 0
    assert main(["view", str(file), "--model", saved, "--output", "deep/x.html", "--color", "channel"]) == 0
    assert (folder / "x.png").exists()
    assert (folder / "deep/x.html").exists()
    assert "x.html" in capsys.readouterr().out


BAD = {
    "no such file": (["nowhere.npz"], "there is no such file"),
    "no point file": (["notes.md"], "unknown extension"),
    "damaged": (["damaged.npz"], "damaged.npz"),
    "no such model": (["cloud.xyz", "--model", "no_such_model"], "no_such_model"),
    "a model of images": (["cloud.xyz", "--model", "images"], "encodes images"),
    "normals that are not there": (["cloud.xyz", "--model", "normals"], "trained with normals"),
    "other channels": (["cloud.xyz", "--model", "nine"], "takes 9 channels"),
    "another ending": (["cloud.xyz", "--output", "cloud.xyz"], "ending in .html"),
    "a picture's ending": (["cloud.xyz", "--image", "x.jpg"], "ending in .png"),
    "a folder": (["cloud.xyz", "--output", "folder.html"], "is a folder"),
    "a file for a folder": (
        ["cloud.xyz", "--output", "notes.md/x.html"],
        "notes.md/x.html: cannot be written",
    ),
    "attention without a model": (["cloud.xyz", "--color", "attention"], "attention needs a model"),
    "a layer without a model": (["cloud.xyz", "--layer", "2"], "no layer 2"),
}


@pytest.mark.parametrize(("args", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(args, words, randomise, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savetxt("cloud.xyz", np.random.default_rng(0).normal(size=(40, 3)))
    Path("notes.md").write_text("no points")
    Path("damaged.npz").write_bytes(b"PK\x03\x04 cut short")
    Path("folder.html").mkdir()
    images = "vit_tiny_patch16_224"
    settings = {"images": {"name": images, "depth": 1}, "normals": {"in_chans": 6}, "nine": {"in_chans": 9}}
    for name in settings.keys() & set(args):
        pointvit.save(small(randomise, **settings[name]), name)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["view", *args]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1
    assert "Traceback" not in error
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "cloud",
    [
        np.zeros((0, 3)),
        np.zeros((4, 2)),
        np.full((4, 3), np.nan),
        np.array([["a"] * 3]),
        PointCloud(np.zeros((0, 3), "f4")),
        PointCloud(np.full((2, 3), np.inf, "f4")),
    ],
)
def test_bad_clouds(cloud, tmp_path):
    with pytest.raises(ValueError, match="cloud"):
        write_page(cloud, path=tmp_path / "x.html")
    assert not list(tmp_path.iterdir())


def test_a_model_of_nan_is_refused(model, file, tmp_path):
    model.reset_classifier(0)
    with torch.no_grad():
        model.trunk.blocks[0].attn.qkv.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="are not numbers"):
        write_page(file, model, tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("cloud", [np.zeros((1, 3)), np.ones((5, 3)), np.eye(3)[:2] * [1, 0, 0] + 7.7e6])
def test_a_single_place_and_few_points(model, cloud, tmp_path):
    for encoder in (None, model):
        write_page(cloud, encoder, tmp_path / "x.html")
        write_image(cloud, encoder, tmp_path / "x.png")


def test_the_window_needs_a_display(file, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["view", str(file), "--desktop"]) == 2
    with pytest.raises(ValueError, match="needs a display"):
        show_window(make_scene(file), Look())


@pytest.mark.parametrize("opens", [True, False])
def test_the_window_shows_points_and_colours(file, monkeypatch, opens):
    """A stand-in for Open3D, since a window needs a display."""
    calls = []
    window = SimpleNamespace(
        create_window=lambda name: calls.append(name) or opens,
        add_geometry=lambda cloud: calls.append(cloud),
        run=lambda: calls.append("run"),
        destroy_window=lambda: calls.append("closed"),
    )
    stand_in = SimpleNamespace(
        geometry=SimpleNamespace(PointCloud=lambda points: SimpleNamespace(points=points)),
        utility=SimpleNamespace(Vector3dVector=lambda values: values),
        visualization=SimpleNamespace(Visualizer=lambda: window),
    )
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setitem(sys.modules, "open3d", stand_in)
    found = make_scene(file)
    if not opens:
        with pytest.raises(ValueError, match="could not open a window"):
            show_window(found, Look())
        return
    show_window(found, Look("colors"))
    assert calls[0] == file.name
    assert (calls[1].points == found.cloud.points).all()
    np.testing.assert_allclose(calls[1].colors, found.cloud.colors)
    assert calls[2:] == ["run", "closed"]


# ---- in a browser ------------------------------------------------------------------------------------------


def text(page, name: str) -> str:
    return page.locator(f"#{name}").inner_text()


def percents(words: str) -> list[float]:
    return [float(number) / 100 for number in re.findall(r"([\d.]+)%", words)]


def settled(page):
    """After the next frame has been drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def pixels(page) -> str:
    settled(page)
    return page.evaluate("() => document.getElementById('canvas').toDataURL()")


def test_page_on_a_desktop(model, file, tmp_path, visit):
    found = make_scene(file, model)
    page = visit(write_page(found, path=tmp_path / "page.html"))
    assert page.title() == text(page, "name") == file.name, "markup in a name is text"
    assert page.locator("img, b").count() == 0
    shown = page.locator("#classes li").all_inner_texts()
    for row, (name, probability) in zip(shown, found.classes, strict=True):
        assert name in row
        assert f"{100 * probability:.1f}%" in row
    facts = text(page, "facts")
    assert "300 points" in facts
    assert f"{GROUPS} groups of {SIZE}" in facts

    before = pixels(page)
    view = text(page, "camera")
    box = page.locator("#canvas").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 330, steps=3)
    page.mouse.up()
    assert pixels(page) != before
    assert text(page, "camera") != view
    page.mouse.wheel(0, -200)
    settled(page)
    assert float(text(page, "camera").split()[-1]) > 1
    page.click("#reset")
    assert pixels(page) == before, "back where it was"

    for layer in (1, 2):
        page.locator("#layer").fill(str(layer))
        for head in (0, 1, HEADS):
            page.select_option("#head", str(head))
            label, values = group_values(found, checked(found, Look("attention", layer, head or None)))
            assert text(page, "legend-label").lower() == label.lower()
            ends = percents(text(page, "legend-low") + text(page, "legend-high"))
            assert ends == pytest.approx([values.min(), values.max()], rel=0.01)
            best = int(re.search(r"group (\d+)", text(page, "attention-text"))[1]) - 1
            assert values[best] == pytest.approx(values.max(), rel=0.01)
    page.select_option("#color", "rollout")
    rollout = found.attention.rollout
    ends = percents(text(page, "legend-low") + text(page, "legend-high"))
    assert ends == pytest.approx([rollout.min(), rollout.max()], rel=0.01)
    page.select_option("#color", "channel")
    page.locator("#channel").fill("7")
    page.locator("#channel").blur()
    ends = [float(text(page, f"legend-{end}")) for end in ("low", "high")]
    assert ends == pytest.approx([found.tokens[:, 6].min(), found.tokens[:, 6].max()], rel=1e-3)
    page.select_option("#color", "height")
    axis = "xyz".index(found.up)
    heights = found.cloud.points[:, axis] + found.cloud.offset[axis]
    ends = [float(text(page, f"legend-{end}")) for end in ("low", "high")]
    assert ends == pytest.approx([heights.min(), heights.max()], abs=0.06), "in the file's own coordinates"
    pictures = {color: page.select_option("#color", color) and pixels(page) for color in COLORINGS}
    assert len(set(pictures.values())) == len(COLORINGS), "each colouring looks different"
    page.screenshot(path=tmp_path / "desktop.png")


def test_picking_a_group_and_stepping(model, file, tmp_path, visit):
    found = make_scene(file, model)
    groups = found.groups
    page = visit(write_page(found, path=tmp_path / "page.html"))
    page.select_option("#group", "5")
    settled(page)
    words = text(page, "group-text")
    assert f"Group 5 of {GROUPS}: {SIZE} points" in words
    center = found.cloud.points[groups.centers[4]] + found.cloud.offset
    printed = [float(number) for number in re.search(r"at \((.*?)\)", words)[1].split(", ")]
    assert printed == pytest.approx(center.tolist(), abs=0.06)
    centers = found.cloud.points[groups.centers]
    nearest = np.linalg.norm(centers - centers[4], axis=1).argsort()[1:6] + 1
    assert [int(n) for n in page.locator("#neighbours button").all_inner_texts()] == nearest.tolist()
    row = found.attention.pairs[-1, 4]
    listed = [text.replace("\n", " ") for text in page.locator("#attends li").all_inner_texts()]
    numbers = [int(re.search(r"Group (\d+)", words)[1]) - 1 for words in listed]
    shares = [percents(words)[0] for words in listed]
    assert shares == pytest.approx(np.sort(row)[::-1][:5].tolist(), rel=0.01)
    assert shares == pytest.approx(row[numbers].tolist(), rel=0.01)
    page.select_option("#source", "group")
    assert text(page, "legend-label") == "Attention rollout from group 5"
    page.select_option("#color", "attention")
    assert text(page, "legend-label") == f"Attention of group 5, layer {LAYERS}, mean of heads"
    assert page.locator("#head").is_disabled()

    page.locator("#neighbours button").first.click()
    assert page.locator("#group").input_value() == str(nearest[0])
    page.locator("#canvas").focus()
    page.keyboard.press("Escape")
    assert "No group is picked" in text(page, "group-text")
    page.keyboard.press("n")
    page.keyboard.press("n")
    assert page.locator("#group").input_value() == "2"
    camera = text(page, "camera")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("+")
    settled(page)
    assert text(page, "camera") != camera
    page.keyboard.press("0")
    page.keyboard.press("Escape")

    # A click on a point picks the group whose centre is nearest to it; beside the cloud it lets go.
    box = page.locator("#canvas").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.click(*middle)
    picked = int(page.locator("#group").input_value())
    assert 1 <= picked <= GROUPS
    page.mouse.click(box["x"] + 5, box["y"] + 150)
    assert page.locator("#group").input_value() == "0"

    whole = pixels(page)
    page.locator("#step").fill("4")
    assert pixels(page) != whole, "points outside the first groups are faint"
    assert text(page, "step-count") == f"4 of {GROUPS}"
    words = text(page, "step-text")
    assert float(re.search(r"([\d.]+) from the nearest", words)[1]) == pytest.approx(
        groups.spacing[3], rel=1e-3
    )
    covered = len(np.unique(groups.members[:4])) / len(found.cloud.points)
    assert percents(words)[-1] == pytest.approx(covered, abs=0.006)
    page.click("#forward")
    assert text(page, "step-count") == f"5 of {GROUPS}"
    page.click("#play")
    assert page.locator("#play").get_attribute("aria-pressed") == "true"
    page.locator("#step-count", has_text=re.compile("[789] of")).wait_for()
    page.click("#play")
    assert text(page, "play") == "Play"


def test_right_is_right_and_the_cloud_follows_the_hand(tmp_path, visit):
    """Six clusters on the axes, seen from the front: +x is on the right, +z on top, -y towards the viewer."""
    axes = np.concatenate([np.eye(3), -np.eye(3)]).repeat(20, axis=0)
    cloud = axes + 0.01 * np.random.default_rng(0).normal(size=axes.shape)
    page = visit(write_page(cloud, path=tmp_path / "page.html", up="z"))
    page.locator("#canvas").focus()
    for key, times in (("ArrowRight", 5), ("ArrowUp", 3)):
        for _ in range(times):
            page.keyboard.press(key)
    settled(page)
    assert text(page, "camera").startswith("turned 357°, tilted 3°")

    def picked_at(right: float, up: float) -> list[float]:
        settled(page)
        page.mouse.click(430 + 325 * right, 398 - 325 * up)
        return [
            float(number) for number in re.search(r"at \((.*?)\)", text(page, "group-text"))[1].split(", ")
        ]

    assert picked_at(1, 0) == pytest.approx([1, 0, 0], abs=0.1)
    assert picked_at(-1, 0) == pytest.approx([-1, 0, 0], abs=0.1)
    assert picked_at(0, 1) == pytest.approx([0, 0, 1], abs=0.1)
    assert picked_at(0, 0) == pytest.approx([0, -1, 0], abs=0.1)
    page.mouse.move(430, 200)
    page.mouse.down()
    page.mouse.move(630, 200, steps=4)
    page.mouse.up()
    assert picked_at(1, 0) == pytest.approx([0, -1, 0], abs=0.1), "the front went right, as the hand did"


def test_page_on_a_phone(file, tmp_path, visit):
    """Without a model: no empty sections, nothing wider than the screen; the cloud stays in sight."""
    path = write_page(file, path=tmp_path / "page.html")
    page = visit(path, 390, 844, has_touch=True, is_mobile=True, color_scheme="dark", device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert (
        not page.locator("#attention-section, #classes-section, #channel-row").locator("visible=true").count()
    )
    options = page.locator("#color option").evaluate_all("all => all.map(o => o.value)")
    assert options == ["height", "normals", "colors", "groups", "order"]
    box = page.locator("#canvas").bounding_box()
    assert box["width"] == 390
    page.touchscreen.tap(195, box["height"] / 2)
    assert page.locator("#group").input_value() != "0"
    page.select_option("#color", "groups")
    page.locator("#keys").scroll_into_view_if_needed()
    assert page.locator("#canvas").bounding_box()["y"] == 0
    for button in page.locator("button:visible").all():
        assert button.bounding_box()["height"] >= 40, "large enough for a finger"
    page.screenshot(path=tmp_path / "phone.png")


FOCUSED = """() => {
  const element = document.activeElement, style = getComputedStyle(element);
  const outlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  const named = Boolean(element.ariaLabel || element.labels?.length || element.textContent.trim());
  return [element === document.body ? 'body' : element.id || element.textContent, outlined, named];
}"""


def test_every_control_has_a_name_and_shows_its_focus(model, file, tmp_path, visit):
    page = visit(write_page(file, model, tmp_path / "page.html", look=Look(group=2)))
    assert page.locator("h1").count() == 1
    page.locator("body").focus()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outlined, named = page.evaluate(FOCUSED)
        if name == "body":
            break
        reached.add(name)
        assert outlined, f"{name} does not show its focus"
        assert named, f"{name} has no name"
    wanted = {"canvas", "reset", "color", "source", "layer", "step", "play", "group"}
    assert wanted <= reached


def test_the_page_asks_for_nothing_outside_itself(model, file, tmp_path):
    page = write_page(file, model, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|\bfetch\(|XMLHttpRequest|\bimport\b", page)
    assert page.count("</script>") == 2
    assert MARKUP not in page
