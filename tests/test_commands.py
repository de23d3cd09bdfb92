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


def predicted(capsys, *args: str) -> list[dict]:
    assert main(["predict", *args, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_predict_in_batches_of_any_size_says_the_same(saved, files, tmp_path, capsys):
    for i, count in enumerate((5, 32, 50, 5, 12, 33)):
        np.save(tmp_path / f"other {i}.npy", np.random.default_rng(i).normal(size=(count, 3)))
    one, many = (predicted(capsys, str(saved), str(tmp_path), "--batch-size", size) for size in ("1", "64"))
    assert [row["file"] for row in one] == sorted(
        [*files, *(str(tmp_path / f"other {i}.npy") for i in range(6))]
    )
    for alone, together in zip(one, many, strict=True):
        assert (alone["file"], alone["up"]) == (together["file"], together["up"])
        assert [name for name, _ in alone["classes"]] == [name for name, _ in together["classes"]]
        np.testing.assert_allclose(
            [p for _, p in alone["classes"]], [p for _, p in together["classes"]], atol=1.01e-6, rtol=0
        )


def test_predict_folders_and_patterns_in_the_order_of_the_names(saved, files, tmp_path, capsys):
    named = [files[2], str(tmp_path / "*1.xyz"), str(tmp_path)]
    assert [row["file"] for row in predicted(capsys, str(saved), *named)] == [files[2], files[1], *files]
    (tmp_path / "empty").mkdir()
    assert main(["predict", str(saved), str(tmp_path / "empty"), files[0]]) == 3
    assert "the folder holds no file ending in" in capsys.readouterr().err


def test_predict_standard_input(saved, files, monkeypatch, capsys):
    [expected] = predicted(capsys, str(saved), files[0])
    data = io.TextIOWrapper(io.BytesIO(Path(files[0]).read_bytes()))
    monkeypatch.setattr(sys, "stdin", data)
    [row] = predicted(capsys, str(saved), "-", "--input-format", "xyz")
    assert (row["file"], row["classes"]) == ("-", expected["classes"])
    assert main(["predict", str(saved), "-"]) == 2
    assert "give its format" in capsys.readouterr().err


@pytest.mark.parametrize("style", ["table", "csv", "json"])
def test_predict_to_a_file_and_again(saved, files, tmp_path, style, capsys):
    output = tmp_path / "answers.csv"
    command = ["predict", str(saved), str(tmp_path), "--format", style, "--output", str(output)]
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    first = output.read_bytes()
    assert all(Path(file).name in first.decode() for file in files)
    assert main(command) == 0, "the table lies in the folder, and is none of its clouds"
    assert output.read_bytes() == first
    assert main(["predict", str(saved), "nowhere.ply", "--output", str(output)]) == 2
    assert output.read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["answers.csv", "model", *(Path(file).name for file in files)]
    )


def test_predict_saves_what_the_head_is_applied_to(saved, files, tmp_path, capsys):
    rows = predicted(capsys, str(saved), *files, "--embeddings", str(tmp_path / "e.npz"))
    stored = np.load(tmp_path / "e.npz", allow_pickle=False)
    model = pointvit.load(saved)
    assert stored["names"].tolist() == files
    assert stored["up"].tolist() == [row["up"] for row in rows]
    assert stored["embeddings"].shape == (3, model.pool.features)
    with torch.inference_mode():
        again = model.eval().head(torch.from_numpy(stored["embeddings"])).softmax(dim=1).numpy()
    np.testing.assert_allclose(again, stored["probabilities"], atol=1e-6)
    best = stored["classes"][stored["probabilities"].argmax(axis=1)]
    assert best.tolist() == [row["classes"][0][0] for row in rows]
    assert main(["predict", str(saved), files[0], "--embeddings", str(tmp_path / "e.txt")]) == 2
    assert "ending in .npz" in capsys.readouterr().err


def test_predict_options_are_checked_before_the_work(files, tmp_path, capsys):
    for options, message in (
        (["--output", str(tmp_path)], "is a folder, expected the name of a file"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
    ):
        assert main(["predict", "no_such_model", files[0], *options]) == 2
        assert message in capsys.readouterr().err


def test_doctor_finds_what_is_planted_and_fixes_it(saved, tmp_path, capsys):
    good = np.random.default_rng(0).normal(size=(300, 3))
    good /= np.linalg.norm(good, axis=1, keepdims=True)
    bad = np.concatenate([good, good[:49], [[40, 0, 0], [np.nan, 0, 0]]])
    np.savetxt(tmp_path / "bad.xyz", bad)
    fixed = tmp_path / "fixed.ply"
    assert main(["doctor", str(tmp_path / "bad.xyz"), "--model", str(saved), "--fix", str(fixed)]) == 0
    shown, warned = capsys.readouterr()
    assert warned == "", "what is unusual is said once"
    first, *lines = shown.splitlines()
    assert first == f"{tmp_path / 'bad.xyz'}: 3 things are unusual."
    assert [line[: line.index(":")] for line in lines[:3]] == [
        "- 1 point lies far off; without it the radius would be 3% of what it is",
        "- 49 of 350 points repeat others",
        "- 1 point is NaN or infinite",
    ]
    rows = {line[:12].strip(): line[12:].strip() for line in lines}
    assert (rows["points"], rows["trained on"]) == ("350", "32 points, z up")
    assert "thinned at random from 350 to 32 points" in shown
    np.testing.assert_allclose(pointvit.data.read_points(fixed).points, good, atol=1e-6)
    assert main(["doctor", str(fixed)]) == 0
    assert capsys.readouterr().out.startswith(f"{fixed}: nothing unusual.\n")


def test_doctor_sums_up_a_folder(saved, files, tmp_path, capsys):
    for name in ("cut 1.xyz", "cut 2.xyz"):
        (tmp_path / name).touch()
    assert main(["doctor", *files, str(tmp_path / "cut*"), "nowhere.ply", "--model", str(saved)]) == 3
    shown, errors = capsys.readouterr()
    assert shown.splitlines()[0] == "6 files: 3 as usual, 3 not readable."
    assert "Points: 40; the model was trained on 32." in shown
    assert len(errors.splitlines()) == 2
    assert errors.startswith(f"pointvit: 2 files cannot be read ({tmp_path / 'cut 1.xyz'}, ")
    assert main(["doctor", str(tmp_path / "cut*")]) == 2
    assert capsys.readouterr().out == ""
    assert main(["doctor", "no 1.ply", "no 2.ply", "no 1.ply"]) == 2
    assert (
        capsys.readouterr().err
        == "pointvit: 2 files cannot be read (no 1.ply, no 2.ply): there is no such file.\n"
    )
    assert main(["doctor", files[0], str(tmp_path / "cloud 0*"), files[0]]) == 0
    assert capsys.readouterr().out.startswith(f"{files[0]}: nothing unusual.\n"), "one file, named thrice"


def test_doctor_shows_the_shape_of_clouds_in_any_unit(tmp_path, capsys):
    np.save(tmp_path / "a.npy", 5e6 * np.random.default_rng(0).normal(size=(300, 3)))
    assert main(["doctor", str(tmp_path / "a.npy")]) == 0
    assert "solid, singular values 1, 0.9" in capsys.readouterr().out


def test_doctor_with_files_it_cannot_use(saved, files, image, tmp_path, capsys):
    assert main(["doctor", files[0], "nowhere.ply"]) == 3
    assert main(["doctor", "nowhere.ply"]) == 2
    capsys.readouterr()
    for options, message in (
        (["--fix", "x.ply"], "need a file"),
        ([files[0], "--fix", str(tmp_path / "x.las")], "ending in .ply or .xyz or .npy"),
        ([files[0], "--fix", f"{tmp_path}/./{Path(files[0]).name}"], "itself; name another file"),
        ([files[0], files[1], "--fix", str(tmp_path / "x.ply")], "writes one file, and 2 are given"),
        ([files[0], "--model", "no_such_model"], "no_such_model"),
    ):
        assert main(["doctor", *options]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert len(err.splitlines()) == 1
    assert not list(tmp_path.glob("x.*"))


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
    assert "used in pre-training only: mask_token, 192 numbers" in shown
    assert "pos_resample antialias; others will take bicubic" in shown
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
