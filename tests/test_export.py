"""Exported files give the model's answers, on clouds and images that they were not made with."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

import pointvit
from pointvit.cli import main

GROUPS, SIZE, CLASSES = 8, 4, ["chair", "lamp", "sofa", "table", "vase"]
ROOT = Path(__file__).parent.parent


def make_points(randomise, **settings) -> pointvit.ViT:
    small = {"depth": 2, "embed_dim": 48, "num_heads": 3, "width": 32, "num_classes": len(CLASSES)}
    sizes = {"num_groups": GROUPS, "group_size": SIZE}
    model = pointvit.create_model("pointvit_tiny", **{**small, **sizes, **settings})
    model.meta.class_names, model.meta.num_points, model.meta.up_axis = CLASSES, 64, "y"
    model.meta.source = {"file": "vit.npz", "sha256": "0123abcd", "format": "google"}
    return randomise(model).eval()


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def clouds(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, 3, generator=torch.Generator().manual_seed(1000 + seed))


def modes(model: pointvit.ViT) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.fixture(scope="module")
def model(randomise) -> pointvit.ViT:
    return make_points(randomise)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def whole(model, folder) -> Path:
    """With everything at random in training mode but the tokenizer, which is frozen."""
    model.train()
    model.tokenizer.eval()
    before = modes(model)
    report = pointvit.export(model, folder / "whole.onnx", tokens=True)
    assert modes(model) == before
    model.eval()
    assert report.files == (folder / "whole.onnx",)
    assert report.difference is not None
    assert report.difference <= 1e-5 * report.largest
    assert f"max |difference| {report.difference:.2g}" in str(report)
    return folder / "whole.onnx"


@torch.no_grad()
@pytest.mark.parametrize(
    ("batch", "points"),
    [(5, 64), (1, 64), (2, 1024), (5, 1024), (5, 1500), (2, 4097), (2, 6), (5, 3), (2, 1)],
)
def test_logits_of_other_clouds(model, whole, batch, points):
    """At every size, also below the groups (8) and neighbours (4) that a cloud is asked for."""
    x = clouds(batch, points, seed=points)
    logits, tokens = session(whole).run(["logits", "tokens"], {"points": x.numpy()})
    expected = model(x)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(tokens, model.forward_features(x), rtol=0, atol=1e-4)
    if batch > 1 and points > 3:
        assert (expected[0] - expected[1]).abs().max() > 1e-2, "clouds whose logits tell nothing"


@torch.no_grad()
def test_ties_and_duplicates(model, whole):
    """Points on a grid are full of equal distances, and the ones that win decide the tokens."""
    grid = torch.randint(-2, 3, (5, 200, 3), generator=torch.Generator().manual_seed(0)).float()
    far = clouds(2, 100).add(1000.0)
    for x in (grid, torch.cat([clouds(2, 40)] * 3, dim=1), torch.ones(1, 64, 3), far):
        (logits,) = session(whole).run(["logits"], {"points": x.numpy()})
        np.testing.assert_allclose(logits, model(x), rtol=0, atol=1e-4)


def test_what_is_in_the_file(whole):
    run = session(whole)
    (given,) = run.get_inputs()
    assert (given.name, given.shape) == ("points", ["batch", "num_points", 3])
    assert [(output.name, output.shape) for output in run.get_outputs()] == [
        ("logits", ["batch", 5]),
        ("tokens", ["batch", 1 + GROUPS, 48]),
    ]
    meta = run.get_modelmeta().custom_metadata_map
    assert json.loads(meta.pop("class_names")) == CLASSES
    assert json.loads(meta.pop("model"))["tokenizer"]["num_groups"] == GROUPS
    assert meta == {
        "pointvit": pointvit.__version__,
        "modality": "points",
        "up_axis": "y",
        "num_points": "64",
        "normalization": "unit_sphere",
        "source": "vit.npz",
        "source_sha256": "0123abcd",
    }
    proto = onnx.load(whole)
    onnx.checker.check_model(proto, full_check=True)
    assert {(entry.domain, entry.version) for entry in proto.opset_import} == {("", 18)}
    operators = Counter(node.op_type for node in proto.graph.node)
    assert operators["Loop"] == 1, "sampling is a loop, not G copies of a step"
    assert operators["Conv"] == 0, "linear layers as such, whatever is fastest on this processor"
    assert str(ROOT).encode() not in whole.read_bytes()


@torch.no_grad()
def test_split_and_int8(model, folder):
    report = pointvit.export(model, folder / "two.onnx", split=True, int8=True)
    front, rest = report.files
    assert [file.name for file in report.files] == ["two.tokenizer.onnx", "two.trunk.onnx"]
    assert report.difference is not None
    assert report.difference <= 1e-5 * report.largest
    x = clouds(20, 64)
    tokens, positions = session(front).run(["tokens", "positions"], {"points": x.numpy()})
    np.testing.assert_allclose(tokens, model.tokenizer(x).x, rtol=0, atol=1e-4)
    (logits,) = session(rest).run(["logits"], {"tokens": tokens, "positions": positions})
    expected = model(x)
    error = np.abs(logits - expected.numpy()).max()
    assert 0 < error < 0.1 * expected.abs().max()
    operators = Counter(node.op_type for node in onnx.load(rest).graph.node)
    assert operators["MatMulInteger"] == 2 * 4, "qkv, proj, fc1 and fc2 of two blocks"
    for file in report.files:
        assert json.loads(session(file).get_modelmeta().custom_metadata_map["class_names"]) == CLASSES
    assert not any("MatMulInteger" in node.op_type for node in onnx.load(front).graph.node)


@torch.no_grad()
def test_fixed_sizes_and_settings_of_other_models(randomise, folder):
    """A cloud smaller than its groups, normals, positions at every block, Point-MAE's and CLIP's details."""
    settings = {
        "depth": 1,
        "in_chans": 6,
        "pos_mode": "every_block",
        "token_dim": 24,
        "num_reg_tokens": 2,
        "global_pool": "map",
        "activation": "quick_gelu",
        "layer_scale": 0.1,
    }
    model = make_points(randomise, **settings)
    pointvit.export(model, folder / "fixed.onnx", num_points=7, batch_size=2)
    run = session(folder / "fixed.onnx")
    assert run.get_inputs()[0].shape == [2, 7, 6]
    x = torch.randn(2, 7, 6)
    np.testing.assert_allclose(run.run(None, {"points": x.numpy()})[0], model(x), rtol=0, atol=1e-4)
    with pytest.raises(Exception, match="Got: 8 Expected: 7"):
        run.run(None, {"points": np.zeros((2, 8, 6), np.float32)})


@torch.no_grad()
def test_image_encoder(randomise, folder):
    settings = {"depth": 1, "img_size": 32, "num_classes": 3, "embed_dim": 48, "global_pool": "mean"}
    image = randomise(pointvit.create_model("vit_tiny_patch16_224", **settings)).eval()
    image.meta.image_mean = (0.5, 0.4, 0.3)
    pointvit.export(image, folder / "image.onnx", split=True)
    front, rest = (session(folder / f"image.{part}.onnx") for part in ("tokenizer", "trunk"))
    meta = front.get_modelmeta().custom_metadata_map
    assert json.loads(meta["image_mean"]) == [0.5, 0.4, 0.3]
    assert "up_axis" not in meta
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 32, 32)
        tokens, positions = front.run(["tokens", "positions"], {"images": x.numpy()})
        (logits,) = rest.run(["logits"], {"tokens": tokens, "positions": positions})
        np.testing.assert_allclose(logits, image(x), rtol=0, atol=1e-4)


@torch.no_grad()
def test_program_runs_with_torch_alone(randomise, folder):
    model = make_points(randomise, depth=1)
    report = pointvit.export(model, folder / "program.pt2", "torch.export")
    assert report.inputs == f"points (any batch, {SIZE} points or more, 3)"
    for batch, points in ((1, 64), (2, 1024), (5, 5)):
        np.save(folder / f"points-{batch}.npy", clouds(batch, points).numpy())
    code = """
import sys, json, numpy as np, torch
files = {"pointvit.json": ""}
run = torch.export.load("program.pt2", extra_files=files).module()
print(json.dumps([run(torch.from_numpy(np.load(f"points-{b}.npy")))[0].tolist() for b in (1, 2, 5)]))
print(json.loads(files["pointvit.json"])["class_names"])
try:
    run(torch.zeros(1, 3, 3))
except AssertionError as error:
    print(error)
assert "pointvit" not in sys.modules
"""
    command = [sys.executable, "-W", "ignore", "-I", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    answers, names, refused = done.stdout.splitlines()
    for batch, answer in zip((1, 2, 5), json.loads(answers), strict=True):
        x = torch.from_numpy(np.load(folder / f"points-{batch}.npy"))
        np.testing.assert_allclose(answer, model(x), rtol=0, atol=1e-4)
    assert json.loads(names) == CLASSES
    assert refused.endswith(">= 4")
    assert str(ROOT).encode() not in (folder / "program.pt2").read_bytes()


def test_documented_code_runs_without_torch(randomise, folder, monkeypatch):
    """The blocks of docs/export.md: one exports, the other is all that a program needs to use the file."""
    model = make_points(randomise, depth=1)
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    export, use = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    pointvit.save(model, folder / "runs" / "chairs" / "model")
    np.savetxt(folder / "chair.xyz", clouds(60).numpy())
    monkeypatch.chdir(folder)
    exec(compile(export, "docs/export.md", "exec"), {})
    command = [sys.executable, "-c", f"import sys; sys.modules['torch'] = None\n{use}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    name, probability = done.stdout.split()
    expected = model.predict("chair.xyz", top=1, up="z")[0]
    assert name == expected[0]
    assert float(probability) == pytest.approx(expected[1], abs=2e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "coreml"}, "unknown export target 'coreml'"),
        ({"path": "x.pt2"}, "x.pt2: a file for onnx ends in .onnx"),
        ({"path": "x.pt2", "target": "torch.export", "int8": True}, "int8 are for ONNX files"),
        ({"num_points": 0}, "num_points must be a whole number of at least 1"),
        ({"batch_size": 2.0}, "batch_size must be a whole number of at least 1"),
        ({"path": "file/x.onnx"}, "file is a file, expected a folder"),
        ({"path": "folder.onnx"}, "folder.onnx: is a folder"),
    ],
)
def test_refused_in_one_sentence(model, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder.onnx").mkdir()
    with pytest.raises((ValueError, OSError), match=re.escape(message)):
        pointvit.export(model, **{"path": "x.onnx", **options})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.onnx"]


def test_models_that_cannot_be_exported(model, tmp_path):
    image = {"depth": 1, "img_size": 32, "embed_dim": 48}
    with torch.device("meta"):
        on_meta = pointvit.create_model("vit_tiny_patch16_224", **image)
    half = pointvit.create_model("vit_tiny_patch16_224", **image).to(torch.bfloat16)
    pair = pointvit.create_pair("vit_tiny_patch16_224", **image)
    for wrong, options, message in (
        (on_meta, {}, "on the meta device"),
        (half, {}, "the model has torch.bfloat16; call model.float"),
        (pair, {}, "export one of them, pair.points or pair.image"),
        (pair.image, {"num_points": 64}, "this model encodes images"),
        (model.trunk, {}, "got Trunk"),
    ):
        with pytest.raises(ValueError, match=message):
            pointvit.export(wrong, tmp_path / "x.onnx", **options)
    assert not any(tmp_path.iterdir())


def test_missing_packages_are_named(model, tmp_path, monkeypatch):
    for name, options in (("onnxscript", {}), ("onnxruntime", {"int8": True})):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=rf"{name}: pip install 'pointvit\[export\]'"):
                pointvit.export(model, tmp_path / "x.onnx", **options)


def test_without_a_runtime_the_report_says_so(tmp_path, monkeypatch):
    image = pointvit.create_model("vit_tiny_patch16_224", depth=1, img_size=32, embed_dim=48)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    report = pointvit.export(image, tmp_path / "x.onnx")
    assert report.files[0].is_file()
    assert "not compared with the model: onnxruntime is not installed" in str(report)


def test_wrong_answers_are_not_written(randomise, tmp_path, monkeypatch):
    """A file whose answers differ is not kept, and the one that was there before is."""
    image = randomise(pointvit.create_model("vit_tiny_patch16_224", depth=1, img_size=32, embed_dim=48))
    file = tmp_path / "x.pt2"
    file.write_text("from before", encoding="utf-8")
    image.trunk.norm.register_forward_hook(
        lambda module, args, out: out if torch.compiler.is_compiling() else out + 0.1
    )
    with pytest.raises(ValueError, match=r"x.pt2: not written, as its answers differ from .* by 0\.\d+"):
        pointvit.export(image, file, "torch.export")
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt2"]
    assert file.read_text(encoding="utf-8") == "from before"
    assert image.training


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair = pointvit.create_pair("vit_tiny_patch16_224", depth=1, img_size=32, embed_dim=48, num_classes=3)
    pointvit.save(pair, "pair")
    options = ["--to", "torch.export", "--encoder", "image", "--batch", "2"]
    assert main(["export", "pair", *options]) == 0
    shown = capsys.readouterr().out
    assert "model.pt2 (" in shown
    assert "images (batches of 2, 3, 32, 32)" in shown
    assert "max |difference|" in shown
    for wrong, message in (
        (["--batch", "few"], "--batch must be dynamic or a whole number of at least 1, got few"),
        (["--points", "0"], "--points must be dynamic"),
        (["--to", "torch.export", "--split"], "split and int8 are for ONNX files"),
    ):
        assert main(["export", "pair", *wrong]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert len(err.splitlines()) == 1
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "onnx", None)
        assert main(["export", "pair"]) == 2
        assert "needs onnx: pip install" in capsys.readouterr().err
