import re

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

import pointvit
from pointvit.data.module import PointCloudDataModule
from pointvit.data.transforms import Compose
from pointvit.training import steps as module_steps
from pointvit.training.callbacks import callbacks
from pointvit.training.classifier import PointClassifier
from pointvit.training.cli import quiet

SETTINGS = {"embed_dim": 24, "depth": 2, "num_groups": 8, "group_size": 8, "width": 16, "drop_rate": 0.2}


@pytest.fixture(autouse=True)
def _quiet():
    with quiet():
        yield


@pytest.fixture
def data(clouds) -> PointCloudDataModule:
    return PointCloudDataModule(
        "modelnet40", root=str(clouds), num_points=64, batch_size=8, val_fraction=0.25
    )


def trainer(tmp_path, **options) -> pl.Trainer:
    defaults = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "use_distributed_sampler": False,
        "default_root_dir": tmp_path,
    }
    return pl.Trainer(**{**defaults, **options})


def test_model_takes_classes_channels_and_metadata_from_the_data(data):
    module = PointClassifier(settings={**SETTINGS, "num_groups": 4})
    module.build(data, "fit")
    assert module.model.num_classes == 4
    assert module.model.config.tokenizer.num_groups == 4
    assert module.model.meta.class_names == ["ball", "plate", "rod", "slab"]
    assert (module.model.meta.num_points, module.model.meta.up_axis) == (64, "z")
    assert module.model.training


def test_training_lowers_the_loss_and_learns(data, tmp_path):
    settings = {**SETTINGS, "drop_rate": 0.0, "drop_path_rate": 0.0, "head": "linear"}
    module = PointClassifier(settings=settings, lr=2e-3)
    fit = trainer(tmp_path, max_epochs=20)
    fit.fit(module, data)
    assert float(fit.callback_metrics["train/loss_epoch"]) < 1.0
    [scores] = fit.test(module, data, verbose=False)
    assert scores["test/oa"] > 0.6
    assert module.scores is not None
    assert module.scores.confusion.sum() == 20


def test_scores_do_not_depend_on_the_batch_size(data, tmp_path, monkeypatch):
    # A function of each cloud alone, that spreads them over the classes.
    monkeypatch.setattr(PointClassifier, "forward", lambda self, points: (1e3 * points[:, :4, 0]).frac())

    def score(size: int) -> tuple[dict[str, float], list[list[int]]]:
        data.batch_size = size
        module = PointClassifier(settings=SETTINGS)
        [scores] = trainer(tmp_path).test(module, data, verbose=False)
        assert module.scores is not None
        return dict(scores), module.scores.confusion.tolist()

    every = [score(size) for size in (1, 7, 32)]
    assert every[0] == every[1] == every[2]
    confusion = every[0][1]
    assert [sum(row) for row in confusion] == [5, 5, 5, 5]
    assert sum(any(column) for column in zip(*confusion, strict=True)) > 2


def test_model_scores_each_cloud_the_same_in_any_batch(data, randomise):
    module = PointClassifier(settings=SETTINGS)
    module.build(data, "test")
    randomise(module.model).eval()
    points = data.dataset("test").points
    with torch.no_grad():
        whole = module(points)
        for size in (1, 7):
            torch.testing.assert_close(
                torch.cat([module(part) for part in points.split(size)]), whole, rtol=0, atol=1e-5
            )


def first_batches(data: PointCloudDataModule, tmp_path, **options) -> list[Tensor]:
    """The augmented points of the first six training batches."""
    seen: list[Tensor] = []

    class Look(PointClassifier):
        def training_step(self, batch, batch_idx: int) -> Tensor:
            seen.append(batch[0].clone())
            return super().training_step(batch, batch_idx)

    trainer(tmp_path, max_steps=6, max_epochs=-1, **options).fit(Look(settings=SETTINGS), data)
    return seen[:6]


def test_augmentation_depends_on_seed_and_batch_alone(clouds, tmp_path):
    def run(seed: int = 0, **options) -> list[Tensor]:
        torch.manual_seed(torch.seed())  # Whatever else draws numbers does not matter.
        data = PointCloudDataModule("modelnet40", str(clouds), 64, batch_size=8, val_fraction=0.25, seed=seed)
        return first_batches(data, tmp_path, **options)

    one = run()
    assert all(torch.equal(a, b) for a, b in zip(one, run(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(one, run(accumulate_grad_batches=2), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, run(seed=1), strict=True))


def test_every_batch_is_augmented_differently_also_between_steps(data, tmp_path, monkeypatch):
    draws: list[int] = []
    monkeypatch.setattr(
        Compose, "apply", lambda self, points, generator: draws.append(generator.initial_seed()) or points
    )
    first_batches(data, tmp_path, accumulate_grad_batches=3)
    assert len(draws) >= 6
    assert len(set(draws)) == len(draws)


def test_validation_and_test_batches_are_not_augmented(data, tmp_path, monkeypatch):
    seen: list[Tensor] = []

    def validation_step(self: PointClassifier, batch, batch_idx: int) -> None:
        seen.append(batch[0])
        self.confusion.update(batch[1], batch[1])

    monkeypatch.setattr(PointClassifier, "validation_step", validation_step)
    trainer(tmp_path, max_epochs=1).fit(PointClassifier(settings=SETTINGS), data)
    assert torch.equal(torch.cat(seen), data.dataset("val").points)


def test_loss_that_is_not_finite_names_the_batch(data, tmp_path, monkeypatch):
    forward = PointClassifier.forward

    def poisoned(self: PointClassifier, points: Tensor) -> Tensor:
        bad = self.current_epoch == 1 and self.trainer.fit_loop.total_batch_idx == 6
        return forward(self, points) * (float("nan") if bad else 1.0)

    monkeypatch.setattr(PointClassifier, "forward", poisoned)
    with pytest.raises(FloatingPointError, match=re.escape("became nan at epoch 1, batch 2 (step 6)")):
        trainer(tmp_path, log_every_n_steps=1000).fit(PointClassifier(settings=SETTINGS), data)


def test_losses_that_are_looked_at_together_name_the_first_bad_batch(data, tmp_path, monkeypatch):
    """As on a GPU, where every look would wait for the device."""
    monkeypatch.setattr(module_steps, "_reading_waits", lambda loss: True)
    forward, steps = PointClassifier.forward, []

    def poisoned(self: PointClassifier, points: Tensor) -> Tensor:
        steps.append(self.trainer.fit_loop.total_batch_idx)
        return forward(self, points) * (float("inf") if steps[-1] in (5, 6) else 1.0)

    monkeypatch.setattr(PointClassifier, "forward", poisoned)
    with pytest.raises(FloatingPointError, match=re.escape("at epoch 1, batch 1 (step 5)")):
        trainer(tmp_path).fit(PointClassifier(settings=SETTINGS), data)
    assert steps[-1] == 7, "looked at when the epoch ended"
    steps.clear()
    monkeypatch.setattr(module_steps, "_LOSSES_AT_A_TIME", 2)
    with pytest.raises(FloatingPointError, match=re.escape("at epoch 1, batch 1 (step 5)")):
        trainer(tmp_path).fit(PointClassifier(settings=SETTINGS), data)
    assert steps[-1] == 5


def test_data_on_the_device_gives_the_same_training(clouds, tmp_path):
    weights, scores = [], []
    for resident in (False, True):
        torch.manual_seed(0)
        held = PointCloudDataModule(
            "modelnet40", root=str(clouds), num_points=64, batch_size=8, val_fraction=0.25, resident=resident
        )
        module, fit = PointClassifier(settings=SETTINGS), trainer(tmp_path)
        fit.fit(module, held)
        scores.append(fit.test(module, held, verbose=False))
        weights.append(module.model.state_dict())
        batch = next(iter(held.train_dataloader()))
        assert isinstance(batch, Tensor) == resident
    assert scores[0] == scores[1]
    for name, value in weights[0].items():
        assert torch.equal(weights[1][name], value), name


def test_blocks_computed_again_learn_the_same(data, tmp_path):
    weights = []
    for again in (False, True):
        torch.manual_seed(0)
        module = PointClassifier(settings={**SETTINGS, "drop_path_rate": 0.3}, grad_checkpointing=again)
        trainer(tmp_path).fit(module, data)
        assert module.model.trunk.grad_checkpointing == again
        weights.append(module.model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_compiled_model_learns_and_is_saved_as_any_other(data, tmp_path):
    module = PointClassifier(settings={**SETTINGS, "drop_rate": 0.0}, compile=True)
    fit = trainer(tmp_path, max_epochs=2)
    fit.fit(module, data)
    plain = PointClassifier(settings={**SETTINGS, "drop_rate": 0.0})
    plain.build(data, "fit")
    assert module.model.state_dict().keys() == plain.model.state_dict().keys()
    assert fit.callback_metrics["train/loss"].isfinite()


def test_python_use_saves_and_scores_the_best_checkpoint(data, tmp_path):
    module = PointClassifier(settings=SETTINGS)
    fit = trainer(
        tmp_path,
        enable_checkpointing=True,
        logger=True,
        callbacks=callbacks(progress=False),
        log_every_n_steps=1,
    )
    fit.fit(module, data)
    [scores] = fit.test(ckpt_path="best", datamodule=data, verbose=False)
    assert set(scores) == {"test/oa", "test/macc"}
    model = pointvit.load(tmp_path / "lightning_logs" / "version_0" / "model")
    assert model.meta.class_names == module.class_names


def test_checkpoint_of_other_classes_is_refused_by_the_trainer_too(data, tmp_path, write_clouds):
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(PointClassifier(settings=SETTINGS), data)
    fit.save_checkpoint(tmp_path / "a.ckpt", weights_only=False)
    root = write_clouds(tmp_path / "other", ["ball", "cone", "rod", "slab"])
    other = PointCloudDataModule("modelnet40", str(root), 64)
    with pytest.raises(ValueError, match="was trained on the classes ball, plate, rod"):
        trainer(tmp_path).test(PointClassifier(settings=SETTINGS), other, ckpt_path=tmp_path / "a.ckpt")


def test_other_data_modules_are_refused(tmp_path):
    with pytest.raises(TypeError, match="PointCloudDataModule"):
        trainer(tmp_path).test(PointClassifier(settings=SETTINGS), pl.LightningDataModule())


def test_batch_of_one_is_only_for_heads_without_batch_norm(data):
    data.batch_size = 1
    with pytest.raises(ValueError, match="head: linear"):
        PointClassifier(settings=SETTINGS).build(data, "fit")
    PointClassifier(settings={**SETTINGS, "head": "linear"}).build(data, "fit")
    PointClassifier(settings=SETTINGS).build(data, "validate")
