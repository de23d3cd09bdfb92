"""``pointvit transfer`` with real trainings: what a cell does, what a kill leaves, what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

import pointvit
from pointvit.cli import main
from pointvit.training.classifier import PointClassifier
from pointvit.training.grid.runner import CellClassifier, CellRunner, Watch

SMALL = ["--shapes-per-class", "4", "--seeds", "2"]


@pytest.fixture(autouse=True)
def _small(options: list[str]) -> None:
    """Four epochs in Lightning's default precision, with a head that needs no batch statistics."""
    file = Path(options[1])
    config = yaml.safe_load(file.read_text())
    config["model"]["settings"]["head"] = "linear"
    config["trainer"]["max_epochs"] = 4
    file.write_text(yaml.safe_dump(config))


@pytest.fixture
def image(tmp_path: Path) -> list[str]:
    """The option of an image checkpoint that the small model's trunk fits."""
    model = pointvit.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2, num_classes=0)
    pointvit.save_checkpoint(model, tmp_path / "image.safetensors")
    return ["--model.pretrained", str(tmp_path / "image.safetensors")]


@pytest.fixture
def transfer(options: list[str], tmp_path: Path) -> Callable[..., int]:
    def run(*more: str, output: str = "out") -> int:
        return main(["transfer", *options, *SMALL, "--output", str(tmp_path / output), *more])

    return run


@pytest.fixture
def failing(transfer, tmp_path, capsys):
    """Runs a command that must fail with one sentence, the result, and leave nothing behind."""

    def run(*more: str) -> str:
        before = set(tmp_path.iterdir())
        capsys.readouterr()
        assert transfer(*more) == 2
        error = capsys.readouterr().err.splitlines()
        assert [line for line in error if line.startswith("pointvit: ")] == error[-1:]
        assert "Traceback" not in "".join(error)
        assert set(tmp_path.iterdir()) == before
        return error[-1].removeprefix("pointvit: ")

    return run


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_grid_end_to_end(transfer, image, tmp_path, monkeypatch, capsys):
    read, tested = [], []
    original = CellClassifier.build

    def build(self, data, stage, checkpoint=None):
        original(self, data, stage, checkpoint)
        (read if stage == "fit" else tested).append((self, data))

    monkeypatch.setattr(CellClassifier, "build", build)
    monkeypatch.setattr(CellRunner, "check", lambda self, arms: None)
    options = ["--arms", "pretrained:full@4,scratch:full@4,pretrained:norm@8", "--shapes-per-class", "4,8"]
    options += ["--rates", "2e-3,4e-3", "--rate", "pretrained:norm=1e-2", "--trainer.max_epochs", "2"]
    options += [*image, "--set", "scratch:full/model.trunk_lr_scale=0.5"]
    assert transfer(*options) == 0
    lines = rows(tmp_path / "out")
    searches = [line for line in lines if line["search"] == "True"]
    assert [line["init"] for line in searches] == ["pretrained", "pretrained", "scratch", "scratch"]
    assert all(line["test_oa"] == "" for line in searches)
    finals = [line for line in lines if line["search"] == "False"]
    assert len(finals) == len(tested) == 6
    assert len(read) == 4 + 6 - 2, "the first cell of an arm is the search's training"
    assert {line["lr"] for line in finals if line["mode"] == "norm"} == {"0.01"}
    for line in lines:
        assert int(line["train_shapes"]) == 4 * int(line["shapes_per_class"])
        assert (int(line["trainable"]) < int(line["total"])) == (line["mode"] == "norm")

    # All arms of a seed see the same shapes, and seeds differ; validation is always the same.
    seen: dict[tuple[int, int], set[tuple[str, ...]]] = {}
    validation = read[0][1].dataset("val").names
    for module, data in read:
        assert data.seed == module.hparams["seed"]
        names = data.dataset("train").names
        seen.setdefault((len(names), data.seed), set()).add(tuple(names))
        assert data.dataset("val").names == validation
        assert not set(names) & set(validation)
        assert module.hparams["trunk_lr_scale"] == (0.5 if module.hparams["init"] == "scratch" else 1.0)
    assert {len(names) for names in seen.values()} == {1}
    assert len(set.union(*seen.values())) == 4
    assert len({id(data.dataset("test").points) for _, data in tested}) == 1, "read once"
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Did the image weights help? Pretrained × full against scratch × full with 4 shapes" in page
    assert not list((tmp_path / "out" / "checkpoints").iterdir())

    before = (tmp_path / "out" / "results.csv").read_bytes()
    capsys.readouterr()
    assert transfer(*options) == 0
    assert len(read) == 8, "nothing is trained again"
    assert (tmp_path / "out" / "results.csv").read_bytes() == before
    answer, where = capsys.readouterr().out.splitlines()
    assert answer.startswith("Did the image weights help?")
    assert where.startswith(f"Results: {tmp_path / 'out' / 'index.html'}")


def test_a_killed_training_goes_on_and_ends_the_same(transfer, tmp_path, monkeypatch):
    arm = ["--arms", "scratch:full", "--trainer.max_epochs", "12", "--seeds", "1", "--intervals", "false"]
    assert transfer(*arm, output="whole") == 0
    steps = []
    original = PointClassifier.on_train_batch_start

    def fails(self, batch, batch_idx):
        steps.append(self.current_epoch)
        if self.current_epoch == 5 and len(steps) < 20:
            raise OSError("pulled the plug")
        original(self, batch, batch_idx)

    monkeypatch.setattr(PointClassifier, "on_train_batch_start", fails)
    assert transfer(*arm) == 2
    (left,) = (tmp_path / "out" / "checkpoints").iterdir()
    assert {file.name for file in left.iterdir()} == {"best.ckpt", "last.ckpt"}
    steps[:] = [0] * 20
    assert transfer(*arm) == 0
    assert steps[20] == 4, "after the last epoch that was validated"
    whole, resumed = rows(tmp_path / "whole"), rows(tmp_path / "out")
    for line in (*whole, *resumed):
        assert float(line.pop("seconds")) > 0
    assert whole == resumed
    data = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "out")]
    whole_curve, resumed_curve = (part["cells"][0]["curve"] for part in data)
    assert whole_curve == resumed_curve
    assert [epoch for epoch, _ in whole_curve] == [2, 4, 6, 8, 10, 12]


def test_the_best_epoch_is_tested_and_the_last_is_validated(transfer, tmp_path, monkeypatch):
    epochs = []
    original = Watch.on_train_epoch_end

    def watched(self, trainer, module):
        original(self, trainer, module)
        epochs.append({name: value.clone() for name, value in module.model.state_dict().items()})

    monkeypatch.setattr(Watch, "on_train_epoch_end", watched)
    arm = ["--arms", "scratch:full", "--seeds", "1", "--intervals", "false", "--keep", "true"]
    assert transfer(*arm, "--trainer.max_epochs", "11") == 0
    (cell,) = json.loads((tmp_path / "out" / "results.json").read_text())["cells"]
    assert [epoch for epoch, _ in cell["curve"]] == [2, 4, 6, 8, 10, 11]
    assert cell["val_best"] == max(value for _, value in cell["curve"])
    assert cell["val_last"] == cell["curve"][-1][1]
    assert dict(cell["curve"])[cell["best_epoch"]] == cell["val_best"]
    (best,) = (tmp_path / "out" / "checkpoints").glob("*/best.ckpt")
    state = torch.load(best, weights_only=True)["state_dict"]
    wanted = epochs[cell["best_epoch"] - 1]
    assert all(torch.equal(state[f"model.{name}"], value) for name, value in wanted.items())


def test_a_start_of_ones_own_and_an_option_of_one_mode(transfer, tmp_path, options):
    encoder = pointvit.create_model(
        "pointvit_tiny", embed_dim=24, depth=2, num_groups=8, group_size=8, width=16, num_classes=0
    )
    pointvit.save(encoder, tmp_path / "own")
    arms = ["--arms", "own:lora,own:norm,scratch:norm", "--start", f"own={tmp_path / 'own'}"]
    ranks = ["--model.transfer_options", "{rank: 2}", "--trainer.max_epochs", "1"]
    assert transfer(*arms, *ranks, "--compare", "own:lora/own:norm") == 0
    data = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(row["arm"], row["against"]) for row in data["differences"]] == [
        ("own:lora", "own:norm"),
        ("own:norm", "scratch:norm"),
    ]
    assert "Own × lora against own × norm" in data["answer"]


def test_processes_of_an_array_share_the_work(transfer, tmp_path, capsys):
    arms = ["--arms", "scratch:full,scratch:norm", "--trainer.max_epochs", "1", "--rates", "1e-3,2e-3"]
    assert transfer(*arms, "--cells", "1/2") == 3
    assert "the learning rate of scratch:full, scratch:norm is still searched for" in capsys.readouterr().out
    assert not (tmp_path / "out" / "index.html").exists()
    assert transfer(*arms, "--cells", "2/2") == 3
    assert transfer(*arms, "--report-only", "true") == 0
    assert "cells of this grid are not done yet" in (tmp_path / "out" / "index.html").read_text()
    assert transfer(*arms, "--cells", "1/2") == 0
    assert "not done yet" not in (tmp_path / "out" / "index.html").read_text()


def test_a_rate_that_diverges_loses(transfer, tmp_path):
    wild = ["--trainer.gradient_clip_val", "null", "--rates", "1e-3,1e30", "--arms", "scratch:full"]
    assert transfer(*wild) == 0
    good, bad, *finals = rows(tmp_path / "out")
    assert (bad["val_best"], bad["best_epoch"]) == ("0.0", "0")
    assert float(good["val_best"]) > 0
    assert {line["lr"] for line in finals} == {"0.001"}


# Bad input


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--modes", "fulll"], "unknown transfer mode 'fulll'; did you mean full"),
        (["--init", "scrach"], "unknown initial state 'scrach'; did you mean scratch"),
        (
            ["--init", "scratch,shuffled"],
            "shuffled:full needs an image checkpoint: give --model.pretrained FILE",
        ),
        (["--seeds", "1"], "an interval needs at least 2 seeds, got --seeds 1"),
        (["--cells", "3/2"], "--cells must be i/n with 1 <= i <= n"),
        (["--rate", "own:full=1"], "--rate own:full=1: begins with no arm of this grid"),
        (["--aligned", "nowhere", "--init", "aligned"], "nowhere: no such file or folder"),
        (["--set", "scratch:full/model.lr=1"], "expected KEY=VALUE with a key such as model.trunk_lr_scale"),
        (["--set", "scratch:full/model.speed=1"], "speed"),
        (["--set", "scratch:full/data.num_points=8"], "expected KEY=VALUE with a key such as model."),
        (["--model.transfer_options", "{rank: 3}"], "no mode of this grid has the transfer option 'rank'"),
        (["--modes", "blocks=9"], "transfer mode blocks=9 asks for more blocks than the trunk's 2"),
        (["--model.transfer_options", "{tokenizer: true}"], "option 'tokenizer'; they have none"),
        (["--trainer.limit_val_batches", "0"], "leave trainer.limit_val_batches out, got 0"),
        (["--trainer.limit_test_batches", "0"], "leave trainer.limit_test_batches out, got 0"),
        (["--trainer.fast_dev_run", "true"], "leave trainer.fast_dev_run out, got True"),
        (["--trainer.max_time", "00:00:01:00"], "leave trainer.max_time out"),
        (["--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "x"], "EarlyStopping out"),
        (["--trainer.strategy", "ddpp"], "invalid strategy name"),
        (["--trainer.devices", "0"], "Trainer"),
        (["--ema_decay", "1"], "ema_decay must lie in (0, 1), got 1.0"),
        (["--model.settings.num_classes", "9"], "num_classes is 4 here, got 9"),
        (["--report-only", "true"], "holds no grid yet; run the command without --report-only"),
        (["--trainer.max_steps", "5"], "set trainer.max_epochs, not max_steps"),
        (["--data.root", "nowhere"], "nowhere: no such folder"),
        (["--model.model", "pointvit_tin"], "did you mean pointvit_tiny"),
        (["--model.lr", "fast"], "model.lr"),
        (["--nonsense", "1"], "nonsense"),
    ],
)
def test_wrong_options(failing, more, said):
    init = [] if "--init" in more else ["--init", "scratch"]
    assert said in failing(*init, *more)


def test_no_config(capsys):
    assert main(["transfer", "--seeds", "2"]) == 2
    assert "transfer needs --config, a config as `pointvit fit` takes it" in capsys.readouterr().err


def test_a_folder_of_another_config(transfer, tmp_path, capsys):
    assert transfer("--init", "scratch", "--seeds", "2") == 0
    assert transfer("--init", "scratch", "--trainer.max_epochs", "7") == 2
    said = capsys.readouterr().err
    assert (
        f"{tmp_path / 'out'}: holds a grid of another config (trainer.max_epochs was 4, now it is 7)" in said
    )


def test_a_start_that_is_of_images(failing, tmp_path):
    image = pointvit.create_model("vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2, num_classes=0)
    folder = pointvit.save(image, tmp_path / "image")
    said = failing("--init", "aligned,scratch", "--aligned", str(folder))
    assert said.startswith(f"{folder}: the start aligned is an image encoder, expected a point encoder")


def test_no_cell_to_report_on(transfer, tmp_path, capsys):
    arm = ["--init", "scratch", "--trainer.max_epochs", "1", "--cells", "2/2"]
    assert transfer(*arm) == 3
    (cell,) = (tmp_path / "out" / "cells").iterdir()
    cell.unlink()
    assert transfer(*arm, "--report-only", "true") == 2
    assert "no cell of this grid is done" in capsys.readouterr().err


def test_classes_with_fewer_shapes_are_named_once(transfer, capsys, caplog):
    few = ["--init", "scratch", "--trainer.max_epochs", "1", "--shapes-per-class", "2,50"]
    assert transfer(*few) == 0
    (record,) = (record for record in caplog.records if "shapes-per-class" in record.getMessage())
    assert "4 of 4 classes have fewer than 50 training shapes and give all they have" in record.getMessage()


def test_the_config_that_a_training_saved(transfer, options, tmp_path):
    assert main(["fit", *options, "--trainer.max_epochs", "1"]) == 0
    saved = ["--config", str(tmp_path / "runs" / "version_0" / "config.yaml")]
    assert main(["transfer", *saved, *SMALL, "--init", "scratch", "--output", str(tmp_path / "out")]) == 0
