import csv
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from pytorch_lightning.callbacks import LearningRateMonitor, ModelCheckpoint, RichProgressBar

import pointvit
from pointvit.cli import main
from pointvit.training.classifier import PointClassifier
from pointvit.training.cli import PointVitCLI, quiet

CLASSES = ["ball", "plate", "rod", "slab"]
Failing = Callable[..., str]


@pytest.fixture
def failing(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Failing:
    """Runs a command that must fail with status 2 and one sentence, the result, and leave nothing behind."""

    def run(command: str, *more: str, defaults: bool = True) -> str:
        before = set(tmp_path.iterdir())
        capsys.readouterr()
        assert main([command, *(options if defaults else []), *more]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        said = [line for line in error.splitlines() if line.startswith("pointvit: ")]
        assert said == error.splitlines()[-1:], error
        assert set(tmp_path.iterdir()) == before
        return said[0].removeprefix("pointvit: ")

    return run


@pytest.fixture
def trained(options: list[str], tmp_path: Path) -> Path:
    assert main(["fit", *options, "--trainer.max_epochs", "1"]) == 0
    return tmp_path / "runs" / "version_0"


def test_fit_writes_checkpoints_model_logs_and_config(trained):
    assert {path.name for path in (trained / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    config = yaml.safe_load((trained / "config.yaml").read_text())
    assert config["model"]["settings"]["depth"] == 2
    assert config["data"]["augment"] is None
    with (trained / "metrics.csv").open() as file:
        assert any(row["val/oa"] for row in csv.DictReader(file))
    model = pointvit.load(trained / "model")
    assert model.meta.class_names == CLASSES
    assert model.meta.num_points == 64
    assert not model.training


def test_fit_says_what_is_trained_and_what_was_loaded(options, tmp_path, capsys):
    image = pointvit.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2, num_classes=0)
    pointvit.save_checkpoint(image, tmp_path / "image.safetensors")
    more = ["--trainer.max_epochs", "1", "--model.pretrained", str(tmp_path / "image.safetensors")]
    assert main(["fit", *options, *more]) == 0
    error = capsys.readouterr().err
    assert "image.safetensors (timm), 100.0% of the trunk" in error
    model = pointvit.load(tmp_path / "runs" / "version_0" / "model")
    count = f"{sum(p.numel() for p in model.parameters()):,}"
    assert f"pointvit_tiny: {count} parameters, {count} trained" in error
    assert "litlogger" not in error


def test_saved_config_trains_again(trained, tmp_path):
    again = tmp_path / "again"
    config = str(trained / "config.yaml")
    assert main(["fit", "--config", config, "--trainer.default_root_dir", str(again)]) == 0
    a, b = (pointvit.load(run / "model").state_dict() for run in (trained, again / "version_0"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_test_scores_the_test_split_of_the_best_checkpoint(options, trained, capsys):
    best = str(trained / "checkpoints" / "best.ckpt")
    assert main(["test", *options, "--ckpt_path", best]) == 0
    scores = json.loads((trained.parent / "version_1" / "test" / "metrics.json").read_text())
    assert not (trained.parent / "version_1" / "checkpoints").exists()
    assert scores["shapes"] == 20
    assert scores["classes"] == 4
    shown = re.search(r"test/oa\D*([\d.]+)", capsys.readouterr().out)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(scores["overall_accuracy"])
    assert main(["validate", *options, "--ckpt_path", best]) == 0


def test_augmentation_is_written_as_class_paths(options, tmp_path):
    config = tmp_path / "augment.yaml"
    config.write_text(
        "data:\n"
        "  augment:\n"
        "  - class_path: pointvit.data.transforms.RandomRotate\n"
        "    init_args: {axis: z, degrees: 90}\n"
        "  - class_path: pointvit.data.transforms.RandomJitter\n"
    )
    assert main(["fit", *options, "--config", str(config), "--trainer.max_epochs", "1"]) == 0
    saved = yaml.safe_load((tmp_path / "runs" / "version_0" / "config.yaml").read_text())["data"]["augment"]
    assert [entry["class_path"].rpartition(".")[2] for entry in saved] == ["RandomRotate", "RandomJitter"]
    assert saved[0]["init_args"] == {"axis": "z", "degrees": 90.0}


@pytest.mark.parametrize(
    ("switch", "kind"),
    [
        ("enable_progress_bar", RichProgressBar),
        ("enable_checkpointing", ModelCheckpoint),
        ("logger", LearningRateMonitor),
    ],
)
def test_switching_something_off_takes_its_callback_along(options, monkeypatch, switch, kind):
    seen = []
    monkeypatch.setattr(PointVitCLI, "before_fit", lambda self: seen.append(self.trainer.callbacks))
    monkeypatch.setattr(PointVitCLI, "fit", lambda self, **kwargs: None, raising=False)
    on = ["--trainer.enable_progress_bar", "true"]
    for value in ("true", "false"):
        assert main(["fit", *options, *on, f"--trainer.{switch}", value]) == 0
    with_it, without_it = seen
    assert any(isinstance(callback, kind) for callback in with_it)
    assert not any(isinstance(callback, kind) for callback in without_it)


def test_fast_dev_run_writes_nothing(options, tmp_path):
    assert main(["fit", *options, "--trainer.fast_dev_run", "true"]) == 0
    assert not list((tmp_path / "runs").glob("**/*.ckpt"))


def test_without_a_logger_there_is_no_config_to_be_in_the_way(options, tmp_path):
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
            assert main(["fit", *options, "--trainer.logger=false", "--trainer.max_epochs=1"]) == 0
    assert {file.name for file in (tmp_path / "runs").iterdir()} == {"checkpoints", "model"}


def test_epochs_without_validation_choose_no_checkpoint(options, tmp_path):
    sparse = ["--trainer.check_val_every_n_epoch", "2", "--trainer.max_epochs", "3"]
    assert main(["fit", *options, *sparse]) == 0
    folder = tmp_path / "runs" / "version_0" / "checkpoints"
    epochs = {
        name: torch.load(folder / f"{name}.ckpt", weights_only=True)["epoch"] for name in ("best", "last")
    }
    assert epochs == {"best": 1, "last": 2}


def test_going_on_says_what_is_asked_for_in_vain(options, trained, capsys):
    last = str(trained / "checkpoints" / "last.ckpt")
    capsys.readouterr()
    assert main(["fit", *options, "--ckpt_path", last]) == 0
    assert "not used" not in capsys.readouterr().err
    other = ["--model.lr", "0.5", "--model.layer_decay", "0.5"]
    assert main(["fit", *options, *other, "--ckpt_path", last]) == 0
    vain = "model.lr=0.5 (it was 0.002), model.layer_decay=0.5 (it was 1.0)"
    assert f"{last}: goes on as it began; not used: {vain}" in capsys.readouterr().err.splitlines()


def test_only_third_party_chatter_is_filtered():
    with quiet():
        with pytest.warns(UserWarning, match="of our own"):
            warnings.warn("of our own", stacklevel=1)
        warnings.warn("The number of training batches (3) is smaller than the logging interval", stacklevel=1)
    source = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    assert not source.filters


# Bad input


def test_missing_data_root(failing, tmp_path):
    said = failing("fit", "--data.root", str(tmp_path / "nowhere"))
    assert said.startswith(f"{tmp_path / 'nowhere'}: no such folder")


def test_data_root_left_out(failing):
    assert "data.root" in failing("fit", "--data.name", "modelnet40", defaults=False)


def test_empty_folder(failing, tmp_path):
    (tmp_path / "empty").mkdir()
    said = failing("fit", "--data.root", str(tmp_path / "empty"))
    assert "expected train_files.txt with HDF5 files" in said
    assert "found none of them" in said
    said = failing("fit", "--data.name", "folder", "--data.root", str(tmp_path / "empty"))
    assert str(tmp_path / "empty") in said


def test_truncated_hdf5(failing, tmp_path, write_clouds):
    file = write_clouds(tmp_path / "cut") / "ply_data_train0.h5"
    file.write_bytes(file.read_bytes()[:3000])
    said = failing("fit", "--data.root", str(tmp_path / "cut"))
    assert said.startswith(f"{file}: not a readable HDF5 file")


def test_labels_outside_the_class_list(failing, tmp_path, write_clouds):
    root = write_clouds(tmp_path / "labels")
    (root / "shape_names.txt").write_text("\n".join(CLASSES[:3]))
    said = failing("fit", "--data.root", str(root))
    assert "ply_data_train0.h5: labels run from 0 to 3, but the class list has 3 names (0 to 2)" in said


def test_nan_in_a_cloud(failing, tmp_path, write_clouds):
    root = write_clouds(tmp_path / "nan")
    with h5py.File(root / "ply_data_train0.h5", "r+") as file:
        file["data"][7, 3, 1] = np.nan
    said = failing("fit", "--data.root", str(root))
    assert "ply_data_train0.h5: 1 of 48 clouds hold NaN or infinite coordinates (rows 7)" in said


def test_unknown_model_and_setting(failing):
    assert "did you mean pointvit_small" in failing("fit", "--model.model", "pointvit_smal")
    assert "'num_group'" in failing("fit", "--model.settings", "{num_group: 3}")
    image = failing("fit", "--model.model", "vit_tiny_patch16_224", "--model.settings", "{depth: 1}")
    assert "model.model=vit_tiny_patch16_224 takes images" in image


def test_unknown_key(failing, tmp_path):
    (tmp_path / "bad.yaml").write_text("model:\n  learning_rate: 3\n")
    assert "model.learning_rate" in failing("fit", "--config", str(tmp_path / "bad.yaml"))
    assert "--model.learning_rate" in failing("fit", "--model.learning_rate", "3")


def test_config_that_is_not_there_or_broken(failing, tmp_path):
    said = failing("fit", "--config", str(tmp_path / "no.yaml"), defaults=False)
    assert "does not exist" in said
    assert "no.yaml" in said
    (tmp_path / "broken.yaml").write_text("model: [\n")
    assert "config" in failing("fit", "--config", str(tmp_path / "broken.yaml"), defaults=False)


def test_checkpoint_of_other_classes(failing, options, trained, tmp_path, write_clouds):
    other = write_clouds(tmp_path / "other", ["ball", "plate", "rod", "cone"])
    best = str(trained / "checkpoints" / "best.ckpt")
    for command in ("test", "validate", "fit"):
        said = failing(command, "--data.root", str(other), "--ckpt_path", best)
        assert said.startswith(f"{best}: was trained on the classes ball, plate, rod, ... (4)")


def test_the_classes_that_differ_are_named(options, failing, trained, tmp_path, write_clouds):
    best = str(trained / "checkpoints" / "best.ckpt")
    for classes, told in (
        (["ball", "plate", "rod", "cone"], "slab only there and cone only here"),
        (["ball", "plate", "slab", "rod"], "in another order"),
    ):
        root = write_clouds(tmp_path / classes[-1], classes)
        said = failing("test", "--data.root", str(root), "--ckpt_path", best)
        assert f"({told}); use the data set it was made for" in said


def test_going_on_in_another_mode(failing, trained):
    said = failing(
        "fit", "--model.transfer", "lora", "--ckpt_path", str(trained / "checkpoints" / "last.ckpt")
    )
    assert "was trained with model.transfer=full, asked for is lora" in said


def test_checkpoint_of_another_command(failing, trained):
    file = trained / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(file, weights_only=True)
    checkpoint["hyper_parameters"]["teacher"] = "x"
    torch.save(checkpoint, file)
    for command in ("fit", "test"):
        said = failing(command, "--ckpt_path", str(file))
        assert said.startswith(f"{file}: was not made by `pointvit fit`, as it has the setting model.teacher")


def test_what_follows_from_the_data_is_no_setting(failing):
    assert failing("fit", "--model.settings.num_classes", "7") == (
        "model.settings: num_classes is 4 here, got 7; leave it out"
    )
    assert "in_chans is 3 here, got 6" in failing("fit", "--model.settings.in_chans", "6")


def test_what_a_class_says_of_its_options_is_all_that_is_said(failing):
    said = failing("fit", "--data.mix", "pointvit.data.mixing.RSMix", "--data.mix.beta", "0")
    assert said == "beta must be positive, got 0.0"


def test_checkpoint_of_another_density_warns(options, trained, tmp_path, capsys):
    best = str(trained / "checkpoints" / "best.ckpt")
    assert main(["test", *options, "--data.num_points", "32", "--ckpt_path", best]) == 0
    assert "points per cloud was 64 in training, now it is 32" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["test", "validate"])
def test_scoring_without_a_checkpoint(failing, command):
    assert failing(command).startswith(f"{command} needs a checkpoint, such as --ckpt_path")


def test_checkpoint_that_is_not_there_or_not_ours(failing, tmp_path):
    assert "no such file" in failing("test", "--ckpt_path", str(tmp_path / "no.ckpt"))
    assert "is a folder" in failing("test", "--ckpt_path", str(tmp_path))
    (tmp_path / "junk.ckpt").write_bytes(b"junk")
    assert str(tmp_path / "junk.ckpt") in failing("fit", "--ckpt_path", str(tmp_path / "junk.ckpt"))
    torch.save({"state_dict": {"weight": torch.ones(2)}}, tmp_path / "foreign.ckpt")
    said = failing("test", "--ckpt_path", str(tmp_path / "foreign.ckpt"))
    assert "expected a checkpoint of pointvit's training" in said
    torch.save([1], tmp_path / "list.ckpt")
    said = failing("fit", "--ckpt_path", str(tmp_path / "list.ckpt"))
    assert said.endswith("list.ckpt: expected a checkpoint of pointvit's training; it has no settings")


def test_pretrained_file_is_missing(failing, tmp_path):
    said = failing("fit", "--model.pretrained", str(tmp_path / "no.safetensors"))
    assert said.startswith(f"{tmp_path / 'no.safetensors'}: no such file")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("data.num_points", "65", "stores 64 points a shape"),
        ("data.num_points", "0", "data.num_points must be at least 1, got 0"),
        ("data.batch_size", "0", "data.batch_size must be at least 1, got 0"),
        ("data.batch_size", "1", "data.batch_size=1 gives the head's batch norm no statistics"),
        ("data.val_fraction", "1.5", "data.val_fraction must lie between 0 and 1, got 1.5"),
        ("data.shapes_per_class", "0", "data.shapes_per_class must be at least 1, got 0"),
        ("data.seed", "-1", "data.seed must not be negative, got -1"),
        ("data.num_workers", "-1", "data.num_workers must not be negative"),
        ("data.name", "modelnet41", "data.name must be one of modelnet40, modelnet10"),
        ("data.normals", "true", "expected the arrays data, label, normal"),
        ("model.lr", "0", "model.lr must be positive"),
        ("model.trunk_lr_scale", "-1", "model.lr must be positive and weight_decay"),
        ("model.lr", "fast", "model.lr"),
        ("model.label_smoothing", "1", "model.label_smoothing must lie in [0, 1), got 1.0"),
        ("trainer.devices", "0", "0"),
    ],
)
def test_option_out_of_range(failing, option, value, said):
    assert said in failing("fit", f"--{option}", value)


def test_loss_that_is_not_finite_stops_training(options, capsys):
    wild = ["--model.lr=1e30", "--trainer.gradient_clip_val=null", "--trainer.log_every_n_steps=1000"]
    assert main(["fit", *options, *wild]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("pointvit: the loss became ")
    assert "batch" in said
    assert "lower model.lr" in said


def test_interrupted_before_the_first_checkpoint(options, monkeypatch, capsys):
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(PointClassifier, "on_train_batch_start", interrupt)
    try:
        assert main(["fit", *options]) == 2
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err.splitlines()[-1] == "pointvit: interrupted; before the first checkpoint"


@pytest.mark.slow
def test_interrupt_of_a_process_and_no_warning_on_its_error_stream(options, tmp_path):
    long = ["--trainer.max_epochs", "500", "--data.batch_size", "2"]
    command = [sys.executable, "-m", "pointvit.cli", "fit", *options, *long]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    last = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    while not last.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert error.splitlines()[-1] == f"pointvit: interrupted; continue with --ckpt_path {last}"
    assert "Warning" not in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_two_processes_train_and_score_like_one(options, tmp_path):
    """DDP over gloo: every test shape is counted once, and a single process scores the checkpoint alike."""
    python = [sys.executable, "-m", "pointvit.cli"]
    ddp = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    fit = [*python, "fit", *options, *ddp, "--trainer.max_epochs", "1"]
    done = subprocess.run(fit, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    best = ["--ckpt_path", str(tmp_path / "runs" / "version_0" / "checkpoints" / "best.ckpt")]
    for more in (ddp, []):
        done = subprocess.run([*python, "test", *options, *best, *more], env=environment, timeout=300)
        assert done.returncode == 0
    two, one = (
        json.loads((tmp_path / "runs" / f"version_{n}" / "test" / "metrics.json").read_text()) for n in (1, 2)
    )
    assert two == one
    assert one["shapes"] == 20
