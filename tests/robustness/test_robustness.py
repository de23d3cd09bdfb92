"""From a model and a data set to results: right, once, whatever the batches, the class order, the axis."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import pointvit
from pointvit.cli import main
from pointvit.data.corruptions import BENCHMARKS, made, public_frame
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.hdf5 import write_hdf5_split
from pointvit.data.transforms import NormalizeUnitSphere
from pointvit.model import ViT
from pointvit.robustness import Condition, Contestant, Done, Generated, Settings, conditions, evaluate
from pointvit.robustness.evaluation import predicted
from pointvit.robustness.sources import balanced

NAMES = ["chair", "lamp", "table"]
JITTER = Condition("modelnet-c", "jitter", 2)


@pytest.fixture
def model(randomise) -> ViT:
    made = pointvit.create_model("pointvit_tiny", num_classes=3, depth=1, num_groups=4, group_size=4)
    randomise(made)
    made.meta.class_names, made.meta.num_points = list(NAMES), 32
    return made.eval()


@pytest.fixture
def dataset() -> PointCloudDataset:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(30, 64, 3, generator=generator) * (0.5 + torch.rand(30, 1, 3, generator=generator))
    return PointCloudDataset(points, torch.arange(30) % 3, NAMES, [str(i) for i in range(30)])


@pytest.fixture
def root(dataset: PointCloudDataset, tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_hdf5_split(folder, "test", dataset.points.numpy(), dataset.labels.numpy(), dataset.names, NAMES)
    return folder


def nothing(condition, rows, new) -> None:
    pass


def measure(model: ViT, data: PointCloudDataset, folder: Path, wanted=(JITTER,), **settings):
    source = Generated(data, num_points=32)
    sources = dict.fromkeys(BENCHMARKS, source)
    contestant = Contestant.of("model", model)
    return evaluate(
        [contestant], sources, list(wanted), Settings(**settings), Done(folder / "done.json"), nothing
    )


def test_accuracy_is_that_of_the_model_on_the_corrupted_clouds(model, dataset, tmp_path):
    [row] = measure(model, dataset, tmp_path)
    # Step by step: unit sphere, the public frame, the corruption, the model's frame.
    clouds = public_frame(NormalizeUnitSphere()(dataset.points), "z")
    clouds = public_frame(made("modelnet-c", "jitter", 2, clouds, 32), "z")
    with torch.inference_mode():
        right = model(clouds).argmax(dim=1) == dataset.labels
    assert row.overall_accuracy == pytest.approx(right.float().mean().item())
    per_class = [right[dataset.labels == label].float().mean().item() for label in range(3)]
    assert row.mean_class_accuracy == pytest.approx(np.mean(per_class))
    assert (row.clouds, row.points, row.level, row.made_by) == (30, 32, 0.02, "ours")


def test_batches_change_nothing(model, dataset):
    points = torch.randn(30, 40, 3)
    one, seven, all_ = (predicted(model, points, Settings(batch_size=size)) for size in (1, 7, 64))
    assert torch.equal(one, seven)
    assert torch.equal(one, all_)
    assert one.shape == (30,)


def test_classes_are_matched_by_name(model, dataset, tmp_path):
    wanted = conditions(["modelnet-c"], ["jitter", "scale"])
    before = measure(model, dataset, tmp_path / "a", wanted)
    order = [2, 0, 1]
    with torch.no_grad():
        last = [m for m in model.head.modules() if isinstance(m, torch.nn.Linear)][-1]
        last.weight.copy_(last.weight[order])
        last.bias.copy_(last.bias[order])
    model.meta.class_names = [NAMES[i] for i in order]
    assert measure(model, dataset, tmp_path / "b", wanted) == before


def test_other_classes_are_refused_before_anything_is_measured(model, dataset, tmp_path):
    model.meta.class_names = ["chair", "lamp", "sofa"]
    with pytest.raises(ValueError, match=r"model: was trained on 3 .* 2 are not in both \(sofa, table\)"):
        measure(model, dataset, tmp_path)
    assert not (tmp_path / "done.json").exists()


def test_a_model_without_class_names_is_taken_in_the_datas_order(model, dataset, tmp_path):
    before = measure(model, dataset, tmp_path / "a")
    model.meta.class_names = None
    assert measure(model, dataset, tmp_path / "b") == before


def test_the_axis_of_model_and_data_may_differ(model, dataset, tmp_path):
    before = measure(model, dataset, tmp_path / "a", [Condition("modelnet40-c", "shear", 3)])
    turned = PointCloudDataset(public_frame(dataset.points, "z"), dataset.labels, NAMES, dataset.names, "y")
    assert measure(model, turned, tmp_path / "b", [Condition("modelnet40-c", "shear", 3)]) == before


def test_normalising_brings_clouds_into_the_unit_sphere(model):
    points = torch.randn(8, 40, 3) * 5 + 2
    once = predicted(model, NormalizeUnitSphere()(points), Settings())
    assert torch.equal(predicted(model, points, Settings(normalize=True)), once)
    model.meta.normalization = "none"
    assert torch.equal(
        predicted(model, points, Settings(normalize=True)), predicted(model, points, Settings())
    )


def watched(monkeypatch) -> list[Condition]:
    """The sets that are asked for from now on."""
    calls, read = [], Generated.read
    monkeypatch.setattr(Generated, "read", lambda self, each: calls.append(each) or read(self, each))
    return calls


def test_what_is_done_is_not_done_again(model, dataset, tmp_path, monkeypatch):
    wanted = conditions(["modelnet-c", "sweeps"], ["jitter", "outliers"], [1, 2])
    assert [(each.corruption, each.severity) for each in wanted[:4]] == [
        ("clean", 0),
        ("jitter", 1),
        ("jitter", 2),
        ("outliers", 1),
    ]
    assert len(wanted) == 10, "severities are of the public benchmarks; a sweep keeps its seven values"
    first = measure(model, dataset, tmp_path, wanted[:3])
    calls = watched(monkeypatch)
    rows = measure(model, dataset, tmp_path, wanted)
    assert calls == wanted[3:]
    assert rows[:3] == first
    calls.clear()
    assert measure(model, dataset, tmp_path, wanted) == rows
    assert calls == []
    with torch.no_grad():
        model.trunk.blocks[0].attn.proj.bias.add_(1e-3)
    measure(model, dataset, tmp_path, wanted[:1])
    assert calls == wanted[:1], "another model has results of its own"


def test_clean_clouds_are_measured_once_for_all_benchmarks(model, dataset, tmp_path, monkeypatch):
    calls = watched(monkeypatch)
    measure(model, dataset, tmp_path, conditions(["modelnet40-c", "modelnet-c"], ["shear", "scale"], [1]))
    assert [each.corruption for each in calls] == ["clean", "shear", "scale"]


def test_a_choice_of_clouds_takes_from_the_classes_in_turn():
    labels = torch.tensor([0] * 50 + [1] * 5 + [2] * 20)
    chosen = balanced(labels, 24, seed=0)
    assert torch.bincount(labels[chosen]).tolist() in ([10, 5, 9], [9, 5, 10])
    assert (np.diff(chosen) > 0).all()
    assert np.array_equal(chosen, balanced(labels, 24, seed=0))
    assert not np.array_equal(chosen, balanced(labels, 24, seed=1))
    assert len(balanced(labels, None, 0)) == len(balanced(labels, 500, 0)) == 75


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((["modelnet-d"],), "unknown benchmark 'modelnet-d'; did you mean modelnet-c"),
        ((["modelnet-c"], ["jiter"]), "unknown corruption 'jiter' of modelnet-c; did you mean jitter"),
        ((["modelnet-c"], ["shear"]), "unknown corruption 'shear' of modelnet-c"),
        ((["modelnet-c"], None, [0]), "severities are 1 to 5, got 0"),
    ],
)
def test_unknown_sets(given, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        conditions(*given)


def test_models_that_cannot_be_measured(randomise):
    image = pointvit.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=3)
    with pytest.raises(ValueError, match="x: expected a point classifier"):
        Contestant.of("x", image)
    normals = pointvit.create_model("pointvit_tiny", depth=1, num_classes=3, in_chans=6)
    with pytest.raises(ValueError, match="x: takes 6 channels"):
        Contestant.of("x", normals)


def test_finished_results_that_cannot_be_read(tmp_path):
    for text in ("{", "[]", '{"a": 1}'):
        (tmp_path / "done.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=r"done\.json"):
            Done(tmp_path / "done.json")


@pytest.fixture
def saved(model: ViT, tmp_path: Path) -> Path:
    return pointvit.save(model, tmp_path / "one" / "model")


SMALL = ["--num-points", "32", "--severities", "5", "--precision", "float32"]


def test_the_command_from_end_to_end(saved, model, root, tmp_path, capsys, monkeypatch):
    with torch.no_grad():
        model.trunk.blocks[0].attn.proj.bias.add_(0.1)
    other = pointvit.save(model, tmp_path / "two" / "model")
    out = tmp_path / "out"
    args = ["robustness", str(saved), f"<mixed>={other}", "--root", str(root), *SMALL, "--output", str(out)]
    assert main(args) == 0
    shown = capsys.readouterr()
    assert {file.name for file in out.iterdir()} == {
        "done.json",
        "index.html",
        "results.csv",
        "results.json",
        *(f"{name}.{ending}" for name in BENCHMARKS for ending in ("png", "svg")),
    }
    with (out / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = json.loads((out / "results.json").read_text(encoding="utf-8"))
    sets = 2 + (15 + 7) + sum(len(c.levels) for c in BENCHMARKS["sweeps"].corruptions.values())
    assert len(rows) == len(found["rows"]) == 2 * sets
    assert [row["model"] for row in rows[:2]] == ["model", "<mixed>"]
    assert [float(row["overall_accuracy"]) for row in rows] == [
        row["overall_accuracy"] for row in found["rows"]
    ]
    page = (out / "index.html").read_text(encoding="utf-8")
    assert "<mixed>" not in page
    assert "&lt;mixed&gt;" in page
    for summary in found["summaries"]:
        score = summary["score"]
        text = f"{score:.3f}" if summary["benchmark"] == "modelnet-c" else f"{100 * score:.1f}"
        assert f"{text} ({summary['sets']} of {summary['of']} sets)" in page
        assert text in shown.out
    assert "PCT + WOLFMix" in page
    assert "published" in page
    assert "0.574" in shown.out
    monkeypatch.setattr("pointvit.robustness.evaluation.score", None)
    before = (out / "results.json").read_text(encoding="utf-8")
    assert main(args) == 0, "everything is there"
    assert (out / "results.json").read_text(encoding="utf-8") == before


def test_our_sets_as_files_give_the_same_results(saved, root, tmp_path, capsys):
    few = [*SMALL, "--corruptions", "shear,add_local", "--benchmark", "modelnet40-c,modelnet-c"]
    files = tmp_path / "sets"
    assert main(["robustness", "--root", str(root), *few, "--write", str(files)]) == 0
    assert sorted(file.name for file in (files / "modelnet40_c").iterdir()) == [
        "data_original.npy",
        "data_shear_5.npy",
        "label.npy",
        "made_by_pointvit.json",
    ]
    results = []
    for source in (["--root", str(root)], ["--public", str(files)]):
        out = tmp_path / f"out{len(results)}"
        assert main(["robustness", str(saved), *source, *few, "--output", str(out)]) == 0
        found = json.loads((out / "results.json").read_text(encoding="utf-8"))
        results.append(found["rows"])
    assert results[0] == results[1], "made_by included: they are named as ours"
    assert "Files that were made here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["{model}"], "--root DATA .* or --public FOLDER is needed"),
        (["--root", "{root}"], "name a model to measure, or --write FOLDER"),
        (["{model}", "--root", "{root}", "--benchmark", "modelnet-40c"], "did you mean modelnet40-c"),
        (["{model}", "--root", "{root}", "--severities", "1,x"], "--severities must be whole numbers .* 'x'"),
        (["{model}", "--root", "{root}", "--severities", ""], "--severities must be a list .* no empty part"),
        (["{model}", "--root", "{root}", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["{model}", "--root", "{root}", "--limit", "x"], "Expected a <class 'int'>. Got value: x"),
        (["{model}", "--root", "{root}", "--seed", "-1"], "--seed must be at least 0, got -1"),
        (["{model}", "--root", "{root}", "--precision", "half"], "invalid choice: 'half'"),
        (["={model}", "--root", "{root}"], "a model is PATH or NAME=PATH, got '=.*'"),
        (["{model}", "--root", "nowhere"], "nowhere: no such folder"),
        (["{model}", "--public", "nowhere"], "nowhere: no such folder; data/README.md"),
        (["{model}", "--public", "{root}"], "77 of 77 files of ModelNet40-C are missing"),
        (["{model}", "{model}", "--root", "{root}"], "two models are called"),
        (["nothing", "--root", "{root}"], "nothing"),
        (
            ["{model}", "--root", "{root}", "--num-points", "32", "--device", "tpu9"],
            "--device tpu9 cannot be used",
        ),
        (["{model}", "--root", "{root}", "--data", "modelnet4"], "data.name must be one of"),
        (
            ["--root", "{root}", "--write", "{root}", "--benchmark", "sweeps"],
            "--write is for sets of ModelNet40-C",
        ),
    ],
)
def test_bad_requests_get_one_sentence(args, sentence, saved, root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["robustness", *(arg.format(model=saved, root=root) for arg in args)]) == 2
    said = capsys.readouterr().err.strip()
    assert re.search(sentence, said)
    assert len(said.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_the_page_in_a_browser(saved, root, tmp_path, visit):
    out = tmp_path / "out"
    few = [*SMALL, "--corruptions", "shear,add_local,outliers"]
    assert main(["robustness", str(saved), "--root", str(root), *few, "--output", str(out)]) == 0
    page = visit(out / "index.html", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("h2").count() == 5
    with (out / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["benchmark"] == "modelnet40-c"]
    table = page.locator("table", has_text="Overall accuracy on every set").first
    shown = [cells.split("\t") for cells in table.locator("tbody").inner_text().splitlines() if "\t" in cells]
    assert [row[-1] for row in shown] == [f"{float(row['overall_accuracy']):.2%}" for row in rows]


@pytest.mark.parametrize("result", [{"clouds": 3}, {"same": "x", "clouds": 3}, 3])
def test_damaged_results_are_refused(result, tmp_path):
    (tmp_path / "done.json").write_text(json.dumps({"key": result}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"done\.json: holds no finished measurements"):
        Done(tmp_path / "done.json")
