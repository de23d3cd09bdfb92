from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch

import pointvit
from pointvit.checkpoints.files import read_torch
from pointvit.cli import main
from pointvit.data.module import PointCloudDataModule
from pointvit.training.averaging import AveragedWeights
from pointvit.training.callbacks import callbacks
from pointvit.training.classifier import PointClassifier

DECAY = 0.9
SETTINGS = {"embed_dim": 24, "depth": 2, "num_groups": 8, "group_size": 8, "width": 16, "drop_rate": 0.1}


class Recorder(pl.Callback):
    """By hand: the weights after every step, their average, and what validation saw."""

    def __init__(self) -> None:
        self.average: dict[str, torch.Tensor] = {}
        self.steps = 0
        self.validated: dict[str, torch.Tensor] = {}
        self.current: dict[str, torch.Tensor] = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.current = {name: t.clone() for name, t in pl_module.model.state_dict().items()}
        keep = min(DECAY, (1 + self.steps) / (10 + self.steps)) if self.steps else 0.0
        for name, tensor in self.current.items():
            if tensor.is_floating_point():
                before = self.average.get(name, torch.zeros_like(tensor))
                self.average[name] = keep * before + (1 - keep) * tensor
        self.steps += 1

    def on_validation_end(self, trainer, pl_module) -> None:
        # Behind the swap back: what is seen here goes on training.
        for name, tensor in pl_module.model.state_dict().items():
            assert torch.equal(tensor, self.current[name])

    def on_validation_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0) -> None:
        self.validated = {name: t.clone() for name, t in pl_module.model.state_dict().items()}


def test_what_is_validated_kept_and_saved_is_the_average(clouds, tmp_path):
    data = PointCloudDataModule("modelnet40", str(clouds), 64, batch_size=8, val_fraction=0.25)
    module = PointClassifier("pointvit_tiny", settings=SETTINGS, lr=2e-3)
    recorder = Recorder()
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        default_root_dir=str(tmp_path),
        logger=pl.loggers.CSVLogger(tmp_path),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=[recorder, *callbacks(progress=False, ema_decay=DECAY)],
    )
    trainer.fit(module, data)
    assert recorder.steps == 8
    run = Path(trainer.log_dir)
    last = read_torch(run / "checkpoints" / "last.ckpt")
    kept = {name.removeprefix("model."): tensor for name, tensor in last["state_dict"].items()}
    norms = [name for name in recorder.average if "running" in name]
    assert norms, "the statistics of batch norms are averaged as well"
    for name, expected in recorder.average.items():
        for found in (kept[name], recorder.validated[name], module.model.state_dict()[name]):
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        weights = last["current_model_state"][f"model.{name}"]
        assert torch.equal(weights, recorder.current[name])
    assert any(not torch.equal(kept[name], recorder.current[name]) for name in recorder.average)
    best = read_torch(run / "checkpoints" / "best.ckpt")
    model = pointvit.load(run / "model").state_dict()
    assert all(torch.equal(best["state_dict"][f"model.{name}"], tensor) for name, tensor in model.items())
    assert "averaging_state" in best


def test_frozen_weights_average_to_themselves():
    weights = torch.randn(50)
    average = weights.clone()
    averaging = AveragedWeights(0.999)
    for step in range(1, 30):
        averaging._average([average], [weights], torch.tensor(step))
    assert torch.equal(average, weights)


@pytest.mark.parametrize("decay", [0.0, 1.0, 2.0])
def test_wrong_decay(decay):
    with pytest.raises(ValueError, match=r"ema_decay must lie in \(0, 1\)"):
        AveragedWeights(decay)


def test_a_resume_must_average_as_before(options, tmp_path, capsys):
    folders = {}
    for name, more in (("plain", []), ("averaged", ["--ema_decay", "0.9"])):
        folders[name] = tmp_path / name
        root = ["--trainer.default_root_dir", str(folders[name]), "--trainer.max_epochs", "1"]
        assert main(["fit", *options, *root, *more]) == 0
    last = {name: folder / "version_0" / "checkpoints" / "last.ckpt" for name, folder in folders.items()}
    capsys.readouterr()
    assert main(["fit", *options, "--ckpt_path", str(last["averaged"])]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"pointvit: {last['averaged']}: was trained with averaged weights; give the same ema_decay to go on"
    )
    assert main(["fit", *options, "--ema_decay=0.9", "--ckpt_path", str(last["plain"])]) == 2
    assert "was trained without averaged weights; leave ema_decay out" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    best = str(folders["averaged"] / "version_0" / "checkpoints" / "best.ckpt")
    assert main(["test", *options, "--ema_decay", "0.9", "--ckpt_path", best]) == 0
