import csv
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pointvit
from pointvit.checkpoints.files import read_torch
from pointvit.cli import main
from pointvit.training.callbacks import BestCheckpoint
from pointvit.training.classifier import PointClassifier


def same(a: Any, b: Any) -> bool:
    """Whether two trees of containers are equal, tensors bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def validation(run: Path) -> list[tuple[str, str, str, str]]:
    """The validation rows of a run's log, as written."""
    with (run / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/oa")]
    return [(row["epoch"], row["val/loss"], row["val/oa"], row["val/macc"]) for row in rows]


def interrupt_at(monkeypatch: pytest.MonkeyPatch, batch: int, error: type[BaseException]) -> None:
    """Raises an error at the start of a batch, counted from 0 over all epochs, the first time it comes."""
    original = PointClassifier.on_train_batch_start

    def interrupted(self: PointClassifier, data: Any, batch_idx: int) -> None:
        if self.trainer.fit_loop.total_batch_idx == batch:
            raise error("stopped by the test")
        original(self, data, batch_idx)

    monkeypatch.setattr(PointClassifier, "on_train_batch_start", interrupted)


def assert_same_end(whole: Path, resumed: Path, epochs: int, epochs_before: int) -> None:
    for name in ("last.ckpt", "best.ckpt"):
        a, b = (read_torch(run / "checkpoints" / name) for run in (whole, resumed))
        averaging = {"current_model_state", "averaging_state"} & a.keys()
        parts = ["state_dict", "optimizer_states", "lr_schedulers", "epoch", "global_step", "pointvit"]
        for part in (*parts, *averaging):
            assert same(a[part], b[part]), (name, part)
    states = [read_torch(run / "checkpoints" / "last.ckpt")["callbacks"] for run in (whole, resumed)]
    [best_a], [best_b] = (
        [state["best_model_score"] for key, state in both.items() if key.startswith("ModelCheckpoint")]
        for both in states
    )
    assert torch.equal(best_a, best_b)
    assert len(validation(whole)) == epochs
    assert validation(resumed) == validation(whole)[epochs_before:]
    models = [pointvit.load(run / "model").state_dict() for run in (whole, resumed)]
    assert same(*models)


@pytest.fixture
def restore_sigint() -> Any:
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)  # Lightning ignores it from the first Ctrl-C on.


@pytest.mark.parametrize(
    "more",
    [
        ["--trainer.accumulate_grad_batches=1"],
        ["--trainer.accumulate_grad_batches=2"],
        ["--model.transfer=lora", "--model.layer_decay=0.5"],
        ["--model.transfer=head"],
        ["--ema_decay=0.9", "--data.mix=pointvit.data.mixing.RSMix", "--model.label_smoothing=0.1"],
    ],
    ids=lambda more: more[0],
)
def test_resumed_run_equals_the_uninterrupted_one(
    options, tmp_path, monkeypatch, capsys, restore_sigint, more
):
    fit = ["fit", *options, *more]
    whole, killed, resumed = (tmp_path / name for name in ("whole", "killed", "resumed"))
    assert main([*fit, "--trainer.default_root_dir", str(whole)]) == 0

    with monkeypatch.context() as patch:
        interrupt_at(patch, batch=6, error=KeyboardInterrupt)  # Four batches an epoch.
        assert main([*fit, "--trainer.default_root_dir", str(killed)]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    last = re.fullmatch(r"pointvit: interrupted; continue with --ckpt_path (.*last\.ckpt)", message)
    assert last is not None, message
    assert not (killed / "version_0" / "model").exists()

    assert main([*fit, "--trainer.default_root_dir", str(resumed), "--ckpt_path", last[1]]) == 0
    assert_same_end(whole / "version_0", resumed / "version_0", epochs=3, epochs_before=1)

    scores = []
    for run in (whole, resumed):
        best = str(run / "version_0" / "checkpoints" / "best.ckpt")
        assert main(["test", *options, "--trainer.default_root_dir", str(run), "--ckpt_path", best]) == 0
        scores.append((run / "version_1" / "test" / "metrics.json").read_text())
    assert scores[0] == scores[1]


def test_resume_would_differ_without_dropout(options, tmp_path, monkeypatch, restore_sigint):
    """The comparison above can fail: a training that goes on in eval mode ends elsewhere."""
    fit, whole, resumed = ["fit", *options], tmp_path / "whole", tmp_path / "resumed"
    assert main([*fit, "--trainer.default_root_dir", str(whole), "--trainer.max_epochs=2"]) == 0
    monkeypatch.setattr(PointClassifier, "on_train_batch_start", lambda self, batch, batch_idx: None)
    assert main([*fit, "--trainer.default_root_dir", str(resumed), "--trainer.max_epochs=2"]) == 0
    a, b = (read_torch(run / "version_0/checkpoints/last.ckpt")["state_dict"] for run in (whole, resumed))
    assert not same(a, b)


def test_last_checkpoint_is_there_after_every_epoch(options, tmp_path, monkeypatch):
    seen = []
    original = PointClassifier.on_train_epoch_start

    def look(self: PointClassifier) -> None:
        last = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
        seen.append(read_torch(last)["epoch"] if last.exists() else None)
        original(self)

    monkeypatch.setattr(PointClassifier, "on_train_epoch_start", look)
    assert main(["fit", *options]) == 0
    assert seen == [None, 0, 1]


def fixed_scores(monkeypatch: pytest.MonkeyPatch, scores: list[float]) -> None:
    def report(self: PointClassifier) -> None:
        self.confusion.reset()
        self.log("val/oa", scores[self.current_epoch])

    monkeypatch.setattr(PointClassifier, "on_validation_epoch_end", report)


@pytest.mark.parametrize(("third", "best_epoch"), [(0.6, 0), (0.95, 2)])
def test_best_checkpoint_is_kept_across_a_resume(
    options, tmp_path, monkeypatch, restore_sigint, third, best_epoch
):
    fixed_scores(monkeypatch, [0.9, 0.5, third])
    with monkeypatch.context() as patch:
        interrupt_at(patch, batch=9, error=KeyboardInterrupt)
        assert main(["fit", *options]) == 2
    # The folder may be moved, or named from elsewhere, before the run goes on.
    moved = tmp_path / "runs" / "moved"
    (tmp_path / "runs" / "version_0").rename(moved)
    assert main(["fit", *options, "--ckpt_path", str(moved / "checkpoints" / "last.ckpt")]) == 0
    run = tmp_path / "runs" / "version_0"
    assert read_torch(run / "checkpoints" / "best.ckpt")["epoch"] == best_epoch
    weights = read_torch(run / "checkpoints" / "best.ckpt")["state_dict"]
    model = {f"model.{name}": tensor for name, tensor in pointvit.load(run / "model").state_dict().items()}
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.items())
    assert read_torch(moved / "checkpoints" / "best.ckpt")["epoch"] == 0, "the old run stays as it was"


def test_resume_without_the_best_checkpoint_says_so(options, tmp_path, monkeypatch, capsys, restore_sigint):
    with monkeypatch.context() as patch:
        interrupt_at(patch, batch=5, error=KeyboardInterrupt)
        assert main(["fit", *options]) == 2
    folder = tmp_path / "runs" / "version_0" / "checkpoints"
    (folder / "best.ckpt").unlink()
    capsys.readouterr()
    assert main(["fit", *options, "--ckpt_path", str(folder / "last.ckpt")]) == 0
    assert "best.ckpt is not there, so the best score so far is not known" in capsys.readouterr().err
    assert (tmp_path / "runs" / "version_1" / "checkpoints" / "best.ckpt").exists()


def test_checkpoints_of_lightnings_own_callback_are_understood():
    from pytorch_lightning.callbacks import ModelCheckpoint

    plain = ModelCheckpoint(monitor="val/oa", mode="max", save_last=True, save_on_train_epoch_end=True)
    assert BestCheckpoint().state_key == plain.state_key


@pytest.mark.slow
def test_killed_process_resumes(options, tmp_path):
    more = ["--data.batch_size", "2", "--trainer.max_epochs", "4"]
    fit = [sys.executable, "-W", "error", "-m", "pointvit.cli", "fit", *options, *more]
    subprocess.run([*fit, "--trainer.default_root_dir", str(tmp_path / "whole")], check=True)

    killed = tmp_path / "killed"
    last = killed / "version_0" / "checkpoints" / "last.ckpt"
    process = subprocess.Popen([*fit, "--trainer.default_root_dir", str(killed)])
    try:
        while not last.exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(0.1)  # Into the second epoch.
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    done = read_torch(last)["epoch"] + 1
    assert done < 4

    resumed = tmp_path / "resumed"
    resume = ["--trainer.default_root_dir", str(resumed), "--ckpt_path", str(last)]
    subprocess.run([*fit, *resume], check=True)
    assert_same_end(tmp_path / "whole" / "version_0", resumed / "version_0", epochs=4, epochs_before=done)
