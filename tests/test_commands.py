"""The commands beside training, run as a user runs them."""

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import pointvit
from pointvit.cli import COMMANDS, main


@pytest.fixture
def saved(tmp_path: Path, randomise) -> Path:
    model = pointvit.create_model("pointvit_tiny", num_classes=3, depth=1, num_groups=4, group_size=4)
    randomise(model)
    model.meta.class_names, model.meta.num_points = ["chair", "lamp", "table"], 32
    return pointvit.save(model, tmp_path / "model")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"cloud {i}.xyz" for i in range(3)]
    for i, path in enumerate(paths):
        np.savetxt(path, np.random.default_rng(i).normal(size=(40, 3)))
    return [str(path) for path in paths]


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert main([]) == 2


def test_version(capsys):
    assert main(["--version"]) == 0
    assert pointvit.__version__ in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage" in capsys.readouterr().out.lower()


def test_unknown_command_names_near_ones(capsys):
    assert main(["predcit"]) == 2
    assert "did you mean predict" in capsys.readouterr().err


def test_predict_table(saved, files, capsys):
    assert main(["predict", str(saved), *files]) == 0
    shown = capsys.readouterr().out
    assert all(Path(file).name in shown for file in files)


def test_predict_json_and_csv_agree(saved, files, capsys):
    assert main(["predict", str(saved), *files, "--format", "json", "--top", "2"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["file"] for row in rows] == files
    assert all(len(row["classes"]) == 2 and row["up"] in ("y", "z") for row in rows)
    assert main(["predict", str(saved), *files, "--format", "csv", "--top", "2"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["class"] for row in table] == [name for row in rows for name, _ in row["classes"]]


def test_bad_files_are_named_and_the_good_ones_done(saved, files, tmp_path, capsys):
    (tmp_path / "empty.off").touch()
    assert (
        main(
            ["predict", str(saved), files[0], str(tmp_path / "empty.off"), "nowhere.ply", "--format", "json"]
        )
        == 3
    )
    out, err = capsys.readouterr()
    assert [row["file"] for row in json.loads(out)] == [files[0]]
    assert "empty.off" in err
    assert "nowhere.ply" in err
    assert len(err.strip().splitlines()) == 2, "one sentence each"


def test_nothing_readable_is_a_failure(saved, capsys):
    assert main(["predict", str(saved), "nowhere.ply"]) == 2


def test_missing_model(files, capsys):
    assert main(["predict", "no_such_model", files[0]]) == 2
    err = capsys.readouterr().err
    assert "no_such_model" in err
    assert len(err.strip().splitlines()) == 1


def test_doctor_reports_back_ends_and_devices(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("torch", "cuda", "back end torch", "back end pytorch3d", "clouds of 1,024 points a second"):
        assert word in shown


def test_demo_end_to_end(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["demo", "--epochs", "1", "--shapes-per-class", "3", "--output", str(tmp_path / "demo")]) == 0
    shown = capsys.readouterr().out
    assert "synthetic" in shown
    assert "2D ViT" in shown
    for picture in ("views.png", "curves.png", "demo.png"):
        assert (tmp_path / "demo" / picture).stat().st_size > 5000
    image = pointvit.create_model("auto", pretrained=tmp_path / "demo" / "image_vit.safetensors")
    points = pointvit.load(tmp_path / "demo" / "from_2d" / "version_0" / "model")
    assert image.config.trunk.embed_dim == points.config.trunk.embed_dim
    assert points.meta.source["file"] == "image_vit.safetensors"
    assert pointvit.load(tmp_path / "demo" / "from_scratch" / "version_0" / "model").meta.source == {}


def test_import_is_light():
    """`import pointvit` must not pull in what only training or reading files needs."""
    heavy = ("pytorch_lightning", "open3d", "matplotlib", "h5py")
    code = f"import sys, pointvit; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_look_like_markup_are_shown_as_they_are(saved, files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["[red]x[reset].xyz", ":smile:.xyz", "[bold].xyz"]
    for name in names:
        Path(name).write_bytes(Path(files[0]).read_bytes())
    model = pointvit.load(saved)
    model.meta.class_names = ["[b]chair", "[i]lamp", "[u]table"]
    pointvit.save(model, saved)
    assert main(["predict", str(saved), *names]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*names, *model.meta.class_names))


def test_a_wrong_option_is_told_once(saved, files, capsys):
    assert main(["predict", str(saved), *files, "--top", "0"]) == 2
    assert capsys.readouterr().err.splitlines() == ["pointvit: top must be at least 1, got 0"]


def test_weights_of_another_kind_as_model(files, tmp_path, capsys):
    image = pointvit.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    path = pointvit.save_checkpoint(image, tmp_path / "image.safetensors")
    for model, said in ((path, "expected the folder of a saved model"), (tmp_path / "no", "no such folder")):
        assert main(["predict", str(model), files[0]]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert str(model) in err


def test_demo_options_are_checked_before_anything_is_made(tmp_path, capsys):
    for option in ("--epochs", "--shapes-per-class"):
        assert main(["demo", option, "0", "--output", str(tmp_path / "demo")]) == 2
        assert f"{option} must be at least 1, got 0" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


def test_a_reader_that_stops_early_is_no_error(saved, files):
    """As ``pointvit predict ... | head -1``; also a name that the output's encoding does not have."""
    odd = Path(files[0]).with_name("tür.xyz")
    odd.write_bytes(Path(files[0]).read_bytes())
    command = [sys.executable, "-m", "pointvit.cli", "predict", str(saved), str(odd), "--format", "csv"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert rb"t\xfcr.xyz" in done.stdout
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def image(tmp_path: Path, randomise) -> Path:
    model = pointvit.create_model("vit_tiny_patch16_224", depth=2, img_size=64, num_classes=5)
    return pointvit.save_checkpoint(randomise(model), tmp_path / "[b]image.safetensors")


def test_convert_says_what_it_did_and_both_files_are_one_model(image, tmp_path, capsys):
    out = tmp_path / "vit.npz"
    assert main(["convert", str(image), str(out), "--to", "google"]) == 0
    shown = capsys.readouterr().out
    assert f"{image} (timm)" in shown
    assert f"{out} (google)" in shown
    ours, theirs = (pointvit.create_model("auto", pretrained=path).state_dict() for path in (image, out))
    assert f"{sum(tensor.numel() for tensor in ours.values()):,} numbers" in shown
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())


def test_convert_names_what_is_set_aside_and_takes_what_is_left_open(image, tmp_path, capsys):
    bare = tmp_path / "bare.safetensors"
    save_file({**load_file(image), "mask_token": torch.ones(1, 192)}, bare)
    options = ["--to", "huggingface", "--from", "timm", "--activation", "quick_gelu", "--norm-eps", "1e-3"]
    assert main(["convert", str(bare), str(tmp_path / "hf"), *options, "--num-heads", "6"]) == 0
    shown = capsys.readouterr().out
    assert "mask_token, 192 numbers: used in pre-training only" in shown
    trunk = pointvit.create_model("auto", pretrained=tmp_path / "hf").config.trunk
    assert (trunk.activation, trunk.norm_eps, trunk.num_heads) == ("quick_gelu", 1e-3, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere.npz", "out.npz", "--to", "google"], "nowhere.npz: no such file or folder"),
        (["{image}", "{image}", "--to", "timm"], "would replace the file it is made from"),
        (["{image}", "out.pth", "--to", "timm"], "a timm checkpoint is written as .safetensors"),
        (["{image}", "out.safetensors", "--to", "timm", "--num-heads", "5"], "multiple of num_heads"),
        (["{image}", "out.safetensors", "--to", "timm", "--from", "google"], "expected a google checkpoint"),
    ],
)
def test_convert_refuses_in_one_line(image, tmp_path, monkeypatch, capsys, options, message):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *(option.format(image=image) for option in options)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [image.name]


def test_inspect_as_table_and_as_json(image, capsys):
    assert main(["inspect", str(image), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["architecture"]["width"], found["architecture"]["depth"]) == (
        "timm",
        192,
        2,
    )
    assert found["sha256"] == hashlib.sha256(image.read_bytes()).hexdigest()
    assert found["positions"]["word"] == "like random"
    assert main(["inspect", str(image)]) == 0
    shown = capsys.readouterr().out
    for fact in (str(image), found["sha256"], f"{found['numbers']:,} numbers", "like random (structure"):
        assert fact in shown


def test_inspect_refuses_in_one_line(files, capsys):
    assert main(["inspect", files[0]]) == 2
    err = capsys.readouterr().err
    assert "expected a file ending in .safetensors" in err
    assert len(err.splitlines()) == 1
