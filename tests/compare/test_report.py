"""The comparison's files: their numbers are those of the measurements, their words those of the numbers."""

from __future__ import annotations

import copy
import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pointvit
from pointvit.cli import main
from pointvit.commands.compare import _views
from pointvit.compare import (
    AttentionStatistics,
    MinibatchCKA,
    SimilarityByDistance,
    Views,
    image_baseline,
    record,
    weight_drift,
)
from pointvit.compare.objects import Request, choose_objects, views_for
from pointvit.compare.recording import record_objects
from pointvit.compare.report import rows
from pointvit.compare.study import _retrieval
from pointvit.compare.subjects import LABELS, find_subjects
from pointvit.compare.words import above_controls, layers, paragraphs
from pointvit.views import normalize_images, render_points

from .conftest import CLASSES, OBJECTS, small_image

VIEWS = Views(1, 32)


@pytest.fixture(scope="module")
def given(encoders, solids):
    subjects = find_subjects(encoders.image, encoders.points)
    request = Request("modelnet40", str(solids), "test", OBJECTS, 64)
    return subjects, *choose_objects(request)


def entry(numbers, rows, columns):
    return next(each for each in numbers["cka"] if (each["rows"], each["columns"]) == (rows, columns))


def test_similarity_and_attention_are_those_of_the_encoders(compared, given):
    subjects, _, objects = given
    clouds = objects.batch(0, OBJECTS)
    images = normalize_images(render_points(clouds, 1, 32, VIEWS.mode)[:, 0], subjects.image)
    features = {}
    for name, encoder in subjects.encoders.items():
        statistics = AttentionStatistics()
        seen = images if encoder.config.modality == "image" else clouds
        features[name] = record(encoder, seen, statistics)
        if name in compared.numbers["attention"]:
            found = compared.numbers["attention"][name]
            summary = statistics.result()
            np.testing.assert_allclose(found["distance"], summary.distance.mean, rtol=1e-5)
            np.testing.assert_allclose(found["entropy"], summary.entropy.mean, rtol=1e-5)
            np.testing.assert_allclose(found["distance_std"], summary.distance.std, rtol=1e-3)
    for each in compared.numbers["cka"]:
        expected = MinibatchCKA()
        expected.update(features[each["rows"]], features[each["columns"]])
        np.testing.assert_allclose(each["cka"], expected.result().cka, atol=1e-4)
        np.testing.assert_allclose(each["permuted_mean"], expected.result().permuted_mean, atol=1e-4)
    control = MinibatchCKA()
    control.update(features["image_random"], features["points_random"])
    found = entry(compared.numbers, "image", "points")["random"]
    np.testing.assert_allclose(found, control.result().cka, atol=1e-4)
    same = next(each for each in compared.numbers["same_depth"] if each["columns"] == "points_before")
    assert same["cka"] == np.diagonal(entry(compared.numbers, "image", "points_before")["cka"]).tolist()


def test_attending_to_everything_alike_is_the_mean_distance(compared):
    grid = torch.cartesian_prod(torch.arange(4) + 0.5, torch.arange(4) + 0.5) * 8
    expected = torch.cdist(grid, grid).mean()
    assert compared.numbers["attention"]["image"]["uniform_distance"] == pytest.approx(
        float(expected), rel=1e-5
    )
    assert compared.numbers["attention"]["image"]["uniform_entropy"] == pytest.approx(np.log(16))


def test_the_image_side_is_the_baseline_from_views(compared, given):
    subjects, fit, objects = given
    for name in ("image", "image_after"):
        expected = image_baseline(subjects.encoders[name], fit.data, objects.data, VIEWS)
        found = compared.numbers["probes"][name]
        assert found["linear"] == pytest.approx(expected.linear._asdict())
        assert found["knn"]["accuracy"] == pytest.approx(expected.knn.accuracy)
    assert found["linear"]["num_test"] == OBJECTS


def test_drift_is_that_of_the_files(compared, encoders):
    expected = {row.name: row.relative for row in weight_drift(encoders.image, encoders.points)}
    found = {row["name"]: row["relative"] for row in compared.numbers["drift"]["tensors"]}
    assert found == pytest.approx(expected)


def test_the_csv_has_every_number(compared):
    with (compared.folder / "results.csv").open(newline="") as file:
        found = [(r["measure"], r["index"], r["second_index"], r["value"]) for r in csv.DictReader(file)]
    numbers = {key: compared.numbers[key] for key in ("cka", "attention", "probes", "retrieval", "drift")}
    expected = [tuple("" if v is None else str(v) for v in row) for row in rows(numbers)]
    assert len(expected) > 500
    assert set(expected) <= set(found)


def test_the_page_shows_the_same_numbers(compared):
    text = (compared.folder / "index.html").read_text()
    tables = {
        caption: re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", body)
        for caption, body in re.findall(r"<caption[^>]*>(.*?)</caption>(.*?)</table>", text, re.S)
    }
    found = entry(compared.numbers, "image", "points")
    cells = tables["Image encoder and point encoder: the numbers"][5:]
    for i, row in enumerate(np.array(cells).reshape(-1, 5)):
        a, b = divmod(i, len(found["cka"][0]))
        assert row[0] == f"{a} and {b}"
        numbers = [found[name][a][b] for name in ("cka", "permuted_mean", "permuted_std", "random")]
        assert row[1:].tolist() == [f"{number:.3f}" for number in numbers]
    for name, each in compared.numbers["probes"].items():
        assert LABELS[name] in tables["Classes, layer by layer: the numbers"]
        accuracy = f"{100 * each['layers'][-1]['linear']['accuracy']:.1f}"
        assert accuracy in tables["Classes, layer by layer: the numbers"]
    for words in compared.numbers["words"]:
        assert words.replace("'", "&#x27;") in text
    assert "pointvit compare" in text
    assert "pointvit 0" in text
    assert "<b>" not in text.replace("<body>", "")


def test_every_figure_is_there_in_both_forms(compared):
    names = {path.stem for path in (compared.folder / "figures").iterdir()}
    assert {"same_depth", "cka_image_points", "attention_distance", "attention_entropy", "probes"} <= names
    assert {
        "retrieval",
        "drift",
        "positions_2d",
        "positions_3d",
        "filters",
        "mini_pointnet",
        "tokens",
    } <= names
    for name in names:
        assert (compared.folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (compared.folder / "figures" / f"{name}.svg").read_text()
        assert f'id="{name}"' in (compared.folder / "index.html").read_text()
    assert (compared.folder / "index.html").stat().st_size < 15e6
    assert {path.name for path in compared.folder.iterdir()} == {
        "figures",
        "index.html",
        "results.csv",
        "results.json",
    }


def test_only_features_grow_with_the_objects(given):
    subjects, _, objects = given
    sizes = []
    for count in (12, OBJECTS):
        some = copy.copy(objects)
        object.__setattr__(some, "data", objects.data.subset(range(count)))
        found = record_objects(subjects, some, VIEWS, True, lambda done: None, SimilarityByDistance())
        kept = sum(
            each.numel() for recording in found.values() for each in (*recording.layers, recording.final)
        )
        rest = sum(
            r.attention.distance.mean.numel() + r.tokens.norm.mean.numel() for r in found.values() if r.tokens
        )
        sizes.append((kept / count, rest))
    assert sizes[0] == sizes[1]


def test_features_are_the_mean_of_the_views(given):
    subjects, _, objects = given
    some = copy.copy(objects)
    object.__setattr__(some, "data", objects.data.subset(range(5)))
    two = Views(2, 32)
    found = record_objects(subjects, some, two, False, lambda done: None)["image"].layers[1]
    images = normalize_images(some.render(0, 5, two), subjects.image)
    each = [record(subjects.image, images[:, view])[1] for view in range(2)]
    torch.testing.assert_close(found, (each[0] + each[1]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("image", "untuned"), ("pair", "pair")])
def test_other_subjects(encoders, name, kind):
    subjects = find_subjects(encoders.__dict__[name])
    assert subjects.kind == kind
    assert list(subjects.encoders) == ["image", "points", "image_random", "points_random"]
    assert subjects.points.trunk is subjects.image.trunk
    assert subjects.encoders["points_random"].trunk is subjects.encoders["image_random"].trunk
    again = find_subjects(encoders.__dict__[name])
    for side in subjects.encoders:
        for first, second in zip(
            subjects.encoders[side].parameters(), again.encoders[side].parameters(), strict=True
        ):
            assert torch.equal(first, second)


def test_objects_are_even_over_the_classes_and_in_random_order(solids):
    request = Request("modelnet40", str(solids), "test", 20, 64)
    fit, objects = choose_objects(request)
    assert objects.data.labels.bincount().tolist() == [5] * 4
    assert fit.data.labels.bincount().tolist() == [5] * 4
    assert objects.data.labels.tolist() != sorted(objects.data.labels.tolist())
    assert all("_test_" in name for name in objects.data.names)
    assert all("_train_" in name for name in fit.data.names)
    assert choose_objects(request)[1].data.names == objects.data.names
    other = choose_objects(Request("modelnet40", str(solids), "test", 20, 64, seed=1))[1]
    assert other.data.names != objects.data.names


def write_folder(root: Path, count: int, faces: bool) -> Path:
    """Boxes of two classes, as meshes or as clouds of their corners and more."""
    rng = np.random.default_rng(0)
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    corners = np.array(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")).reshape(3, -1).T
    for i in range(count):
        path = root / ("flat", "long")[i % 2] / f"box_{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = np.array([(1, 1, 0.2), (0.2, 0.2, 1)])[i % 2] * rng.uniform(0.8, 1.2, size=3)
        if faces:
            lines = [f"v {x} {y} {z}" for x, y, z in corners * size]
            lines += ["f " + " ".join(str(n + 1) for n in quad) for quad in quads]
            path.with_suffix(".obj").write_text("\n".join(lines))
        else:
            np.savetxt(path.with_suffix(".xyz"), rng.random((80, 3)) * size)
    return root


def test_a_folder_without_splits_and_its_meshes(tmp_path):
    pytest.importorskip("open3d")
    meshes = write_folder(tmp_path / "meshes", 24, faces=True)
    request = Request("folder", str(meshes), objects=12, num_points=1024, meshes=meshes)
    fit, objects = choose_objects(request)
    assert not set(fit.data.names) & set(objects.data.names)
    views = views_for(Views(2, 64, "depth"), objects.data)
    drawn = objects.render(0, 3, views)[:, :, 0] > 0
    splats = render_points(objects.batch(0, 3), 2, 64, "depth")[:, :, 0] > 0
    assert (drawn & splats).sum() / (drawn | splats).sum() > 0.8
    for path, name in zip(objects.meshes, objects.data.names, strict=True):
        assert path == meshes / name


@pytest.mark.slow
def test_meshes_of_one_class_through_an_untuned_encoder(encoders, tmp_path, capsys):
    pytest.importorskip("open3d")
    meshes = write_folder(tmp_path / "meshes", 48, faces=True)
    for path in (meshes / "flat").iterdir():
        path.unlink()
    (meshes / "flat").rmdir()
    args = [
        "--data",
        "folder",
        "--root",
        str(meshes),
        "--meshes",
        str(meshes),
        "--objects",
        "12",
        "--views",
        "2",
    ]
    assert main(["compare", str(encoders.image), *args, "--output", str(tmp_path / "out")]) == 0
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (numbers["kind"], numbers["probes"], numbers["drift"]) == ("untuned", None, None)
    assert "at least two classes" in numbers["skipped"]["probes"]
    assert numbers["objects"]["views_of"] == "meshes"
    said = capsys.readouterr().out
    assert "Nothing can be said of classes" in said
    page = (tmp_path / "out" / "index.html").read_text()
    assert "What is not here" in page
    assert "What tuning changed" not in page


# ---- words -------------------------------------------------------------------------------------------------


def changed(numbers, **values):
    return {**copy.deepcopy(numbers), **values}


def curve(cka, random, spread=0.02):
    count = len(cka)
    flat = {"permuted_mean": [0.0] * count, "permuted_std": [spread] * count}
    return {"rows": "image", "columns": "points", "cka": cka, "random": random, "objects": 24, **flat} | {
        "random_permuted_std": [spread] * count
    }


@pytest.mark.parametrize(
    ("cka", "random", "said"),
    [
        ([0.30, 0.50, 0.60], [0.28, 0.25, 0.25], "Layers 1 to 2 lie above both controls"),
        ([0.30, 0.50, 0.60], [0.28, 0.25, 0.25], "the most in layer 2 (0.60 against 0.25)"),
        ([0.30, 0.30, 0.30], [0.30, 0.30, 0.30], "none lies above the control of random weights"),
        ([0.01, 0.02, 0.03], [0.0, 0.0, 0.0], "nothing can be shown"),
        ([None, 0.5, 0.03], [None, 0.1, 0.0], "Layer 1 lies above both controls"),
    ],
)
def test_words_about_depth(compared, cka, random, said):
    numbers = changed(compared.numbers, same_depth=[curve(cka, random)], kind="pair")
    assert said in paragraphs(numbers)[0]


def test_which_layers_exceed_the_controls():
    assert above_controls(curve([0.05, 0.3, 0.039], [0.0, 0.25, 0.0])) == ([0, 1], [])
    assert above_controls(curve([0.07, 0.3, 0.039], [0.0, 0.2, 0.0])) == ([0, 1], [0, 1])
    assert layers([1, 2, 3, 7]) == "1 to 3 and 7"
    assert layers([0, 2, 5, 6]) == "0, 2 and 5 to 6"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(0.8, 0.5, "it lost 30.0 points"), (0.5, 0.8, "it gained 30.0"), (0.8, 0.79, "none can be shown")],
)
def test_words_about_the_image_probe(compared, before, after, said):
    numbers = copy.deepcopy(compared.numbers)
    for name, share in (("image", before), ("image_after", after)):
        numbers["probes"][name]["linear"] |= {"accuracy": share, "num_test": 400}
    assert any(said in text for text in paragraphs(numbers))


def test_words_about_the_objects(compared):
    assert (
        "24 objects of 4 classes (modelnet40, test split), 6 a class, each in 1"
        in paragraphs(compared.numbers)[-1]
    )
    other = changed(compared.numbers, objects={**compared.numbers["objects"], "fewest": 2, "classes": 1})
    assert "of one class (modelnet40, test split), from 2 to 6 a class" in paragraphs(other)[-1]


def test_words_where_positions_and_layers_say_nothing(compared):
    numbers = copy.deepcopy(compared.numbers)
    numbers["positions"] = {"image": {**numbers["positions"]["image"], "neighbours": None}, "points": None}
    before = next(each for each in numbers["same_depth"] if each["columns"] == "points_before")
    before["cka"] = [None] * len(before["cka"])
    said = paragraphs(numbers)
    assert not any("position embeddings" in text for text in said)
    numbers["drift"]["groups"] = [{**row, "relative": None} for row in numbers["drift"]["groups"]]
    assert any("all of the image encoder's trunk is zero" in text for text in paragraphs(numbers))
    above = numbers["same_depth"][0]
    above["cka"] = [0.9] * len(above["cka"])
    assert paragraphs(numbers)[0].endswith("Before tuning no layer told the objects apart.")


def test_recall_is_never_among_all(compared, given):
    assert compared.numbers["retrieval"]["ks"] == [1, 5, 10]
    subjects, fit, objects = given
    few = copy.copy(objects)
    object.__setattr__(few, "data", objects.data.subset(range(10)))
    found = [record_objects(subjects, each, VIEWS, False, lambda done: None) for each in (fit, few)]
    assert _retrieval(*found, 0, lambda *told: None)["ks"] == [1, 5]


def test_words_where_a_measure_does_not_exist(compared):
    numbers = changed(compared.numbers, probes=None, skipped={"probes": "all objects are of class 0"})
    said = " ".join(paragraphs(numbers))
    assert "Nothing can be said of classes: all objects are of class 0." in said


# ---- bad input ---------------------------------------------------------------------------------------------

BAD = {
    "trunks of other shapes": (["{wide}", "{points}"], "embed_dim is 24 in the image encoder and 48"),
    "a point model first": (["{points}"], "encodes points, and the first file must hold an image encoder"),
    "an image model second": (
        ["{image}", "{image}"],
        "encodes images, and the second file must hold a point",
    ),
    "no such file": (["nowhere.npz"], "nowhere.npz"),
    "too few objects": (["{image}", "--objects", "9"], "--objects must be at least 10"),
    "a part of a patch": (["{image}", "--view-size", "30"], "multiple of the encoder's patches, 8 x 8"),
    "too large a view": (["{image}", "--view-size", "100000"], "the size of the views must be at most 400"),
    "no view": (["{image}", "--views", "0"], "--views must be at least 1"),
    "no common objects": (["{image}", "--meshes", "meshes"], "no objects in common"),
    "a mesh view of clouds": (["{image}", "--meshes", "clouds"], "has 24 point files and no mesh"),
    "no such meshes": (["{image}", "--meshes", "nowhere"], "There is no folder nowhere"),
    "no such data": (["{image}", "--data", "modelnet41"], "data.name must be one of"),
    "a file for a folder": (["{image}", "--output", "notes.md/out"], "notes.md is a file"),
    "a folder for the page": (["{image}", "--output", "taken"], "index.html: is a folder, expected a file"),
    "a file for the figures": (["{image}", "--output", "full"], "figures: is a file, expected a folder"),
    "no such device": (["{image}", "--device", "warp"], "--device warp cannot be used"),
    "a device without numbers": (["{image}", "--device", "meta"], "--device meta cannot be used"),
    "no points": (["{image}", "--num-points", "0"], "num_points must be at least 1, got 0"),
    "a negative seed": (["{image}", "--seed", "-1"], "--seed must lie between 0 and"),
    "a seed too large": (["{image}", "--seed", str(2**70)], "--seed must lie between 0 and"),
    "no such rig": (["{image}", "--rig", "spiral"], "invalid choice: 'spiral'"),
    "not a number": (["{image}", "--objects", "many"], "Got value: many"),
    "normals that are not there": (
        ["{image}", "{normals}", "--data", "folder", "--root", "clouds"],
        "the point encoder takes normals, and folder has xyz alone",
    ),
    "too few in a folder": (["{image}", "--data", "folder", "--root", "few"], "at least 10; add objects"),
}


@pytest.mark.parametrize(("args", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    args, words, encoders, solids, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("no results")
    write_folder(tmp_path / "meshes", 4, faces=True)
    write_folder(tmp_path / "clouds", 24, faces=False)
    write_folder(tmp_path / "few", 8, faces=False)
    Path("taken/index.html").mkdir(parents=True)
    Path("full").mkdir()
    Path("full/figures").write_text("no figures")
    before = sorted(tmp_path.rglob("*"))
    given = [arg.format(**encoders.__dict__) for arg in args]
    options = ["--data", "modelnet40", "--root", str(solids), "--split", "test", "--num-points", "64"]
    assert main(["compare", *options, *given]) == 2
    error = capsys.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1
    assert "--split test" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_small_held_out_part_points_to_the_test_split(encoders, solids, capsys):
    options = ["--data", "modelnet40", "--root", str(solids), "--num-points", "64"]
    assert main(["compare", str(encoders.image), *options]) == 2
    error = capsys.readouterr().err.strip()
    assert error.endswith(
        "has 4 objects to compare, and the measures need at least 10; add objects, or "
        "compare those of --split test"
    )


def test_views_fit_the_patches_by_default(encoders, tmp_path):
    odd = pointvit.save(small_image(img_size=300, patch_size=10), tmp_path / "odd")
    for path, size in ((encoders.image, 32), (odd, 220)):
        options = SimpleNamespace(views=1, view_size=None, rig="circle", mode="depth", perspective=False)
        assert _views(options, find_subjects(path)).size == size


def test_results_are_strict_json(compared):
    text = (compared.folder / "results.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in results.json"))
    assert compared.numbers["command"] == ["pointvit", *compared.args]
    assert compared.numbers["kind"] == "tuned"
    assert compared.numbers["objects"]["classes"] == len(CLASSES)
    assert any(name.startswith("pointvit ") for name in compared.numbers["versions"])
    assert pointvit.__version__ in " ".join(compared.numbers["versions"])
