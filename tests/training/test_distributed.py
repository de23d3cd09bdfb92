"""Two processes with gloo on the CPU train to what one process with the double batch trains to."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import yaml

from pointvit.checkpoints.files import read_torch
from pointvit.cli import main
from pointvit.data.module import PointCloudDataModule
from pointvit.training.classifier import PointClassifier

PLUGIN = '''
import pytorch_lightning as pl
from torch import nn

class NormsAtRest(pl.Callback):
    """Batch norms use what they know and learn no statistics, as those of a batch depend on its size."""

    def on_train_start(self, trainer, pl_module):
        for module in pl_module.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
                module.train = lambda mode=True, module=module: module  # also after validation
'''


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        return [float(row["val/loss"]) for row in csv.DictReader(file) if row.get("val/loss")]


@pytest.fixture
def plain(options, tmp_path, monkeypatch) -> list[str]:
    """Options without what is drawn for each process: augmentation, dropout, and statistics of a batch."""
    (tmp_path / "norms_at_rest.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    settings = yaml.safe_load(Path(options[1]).read_text())["model"]["settings"]
    settings.update(drop_rate=0.0, drop_path_rate=0.0, patch_drop_rate=0.0, head="linear")
    config = tmp_path / "plain.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "model": {"settings": settings},
                "data": {"augment": []},
                "trainer": {"callbacks": [{"class_path": "norms_at_rest.NormsAtRest"}], "max_epochs": 2},
            }
        )
    )
    return [*options, "--config", str(config)]


def test_two_processes_train_like_one_with_the_double_batch(plain, tmp_path):
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    python = [sys.executable, "-W", "error", "-m", "pointvit.cli", "fit", *plain]
    ddp = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--data.batch_size", "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*python, *ddp, "--trainer.default_root_dir", str(two)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for folder, size in ((one, "8"), (other, "4")):
        assert (
            main(["fit", *plain, "--data.batch_size", size, "--trainer.default_root_dir", str(folder)]) == 0
        )

    a, b = (read_torch(run / "version_0" / "checkpoints" / "last.ckpt") for run in (one, two))
    assert a["global_step"] == b["global_step"] == 8
    for name, weights in a["state_dict"].items():
        torch.testing.assert_close(b["state_dict"][name], weights, atol=2e-5, rtol=1e-4)
    assert losses(two / "version_0") == pytest.approx(losses(one / "version_0"), rel=1e-5)
    assert losses(other / "version_0") != pytest.approx(losses(one / "version_0"), rel=1e-3)


def test_decay_does_not_depend_on_shapes_that_sharding_flattens(clouds):
    data = PointCloudDataModule("modelnet40", str(clouds), 64, val_fraction=0.25)
    module = PointClassifier(
        "pointvit_tiny", settings={"embed_dim": 24, "depth": 1, "width": 16, "num_heads": 2}
    )
    module.build(data, "fit")
    names = {id(parameter): name for name, parameter in module.model.named_parameters()}

    def decayed() -> set[str]:
        return {
            names[id(p)]
            for group in module.parameter_groups()
            if group["weight_decay"]
            for p in group["params"]
        }

    whole = decayed()
    assert "trunk.blocks.0.attn.qkv.weight" in whole
    for parameter in module.model.parameters():
        parameter.data = parameter.data.flatten()
    assert decayed() == whole


def test_sharded_gradients_are_clipped_by_their_owner(monkeypatch):
    class Sharded:
        clipped: ClassVar[list[float]] = []

        def clip_grad_norm_(self, value: float) -> None:
            self.clipped.append(value)

    module, clipped = PointClassifier(), []
    module.trainer = SimpleNamespace(strategy=SimpleNamespace(model=Sharded()))
    monkeypatch.setattr(PointClassifier, "clip_gradients", lambda self, *args: clipped.append(args[1]))
    module.configure_gradient_clipping(None, 0.5, None)
    assert (clipped, Sharded.clipped) == ([0.5], [])
    monkeypatch.setattr("pointvit.training.steps.FullyShardedDataParallel", Sharded)
    module.configure_gradient_clipping(None, 0.5, None)
    module.configure_gradient_clipping(None, None, None)
    assert (clipped, Sharded.clipped) == ([0.5, None], [0.5])


def test_sharding_says_that_it_needs_a_gpu(options, tmp_path, capsys):
    assert main(["fit", *options, "--trainer.strategy", "fsdp"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("pointvit: ")
    assert "requires a GPU accelerator" in said
    assert not (tmp_path / "runs").exists()
