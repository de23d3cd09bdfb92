import csv
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

import pointvit
from pointvit.checkpoints import card
from pointvit.checkpoints.files import read_torch
from pointvit.cli import main
from pointvit.data import PointCloudDataModule, Shapes
from pointvit.data.transforms import RandomJitter, RandomScaleTranslate
from pointvit.training.agreement import PairScores, contrastive_loss, cosine_loss, smooth_l1_loss
from pointvit.training.alignment import AlignmentData, PointAligner
from pointvit.training.cli import quiet
from pointvit.training.targets import TargetStore

CONFIGS = Path(__file__).parents[2] / "configs"
SETTINGS = {"num_groups": 8, "group_size": 8, "width": 16, "patch_drop_rate": 0.25, "drop_path_rate": 0.2}


@pytest.fixture(autouse=True)
def _quiet():
    with quiet():
        yield


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, randomise) -> Path:
    model = pointvit.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2, num_classes=0, layer_scale=1e-5
    )
    return pointvit.save(randomise(model), tmp_path_factory.mktemp("teacher") / "teacher")


@pytest.fixture
def data(clouds) -> AlignmentData:
    return AlignmentData("modelnet40", root=str(clouds), num_points=64, batch_size=8, val_fraction=0.25)


@pytest.fixture
def aligner(teacher, tmp_path) -> Callable[..., PointAligner]:
    def make(**options) -> PointAligner:
        defaults = {"settings": SETTINGS, "view_size": 32, "cache": str(tmp_path / "targets"), "lr": 2e-3}
        return PointAligner(str(teacher), **{**defaults, **options})

    return make


def trainer(tmp_path: Path, **options) -> pl.Trainer:
    defaults = {
        "max_epochs": 1,
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


# Losses and scores


def test_losses_equal_the_plain_formulas():
    predicted, given = torch.randn(5, 7), torch.randn(5, 7)
    cosines = [[float(p @ g / (p.norm() * g.norm())) for g in given] for p in predicted]
    own = torch.tensor([cosines[i][i] for i in range(5)])
    torch.testing.assert_close(cosine_loss(predicted, given), 1 - own)
    powers = (torch.tensor(cosines) / 0.1).exp()
    by_row, by_column = (-(powers.diagonal() / powers.sum(dim=dim)).log().mean() for dim in (1, 0))
    torch.testing.assert_close(contrastive_loss(predicted, given, 0.1), (by_row + by_column) / 2)
    apart = (predicted - given).abs()
    huber = torch.where(apart < 1, apart.square() / 2, apart - 0.5).mean(dim=1)
    torch.testing.assert_close(smooth_l1_loss(predicted, given), huber)


def test_contrastive_loss_keeps_its_digits_under_autocast():
    predicted, given = torch.randn(6, 16), torch.randn(6, 16)
    alone = contrastive_loss(predicted, given, 0.02)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(contrastive_loss(predicted, given, 0.02), alone)


def test_scores_over_batches_are_those_of_all_pairs():
    predicted, given = torch.randn(9, 3), torch.randn(9, 3)
    given[:4] = predicted[:4] + 0.1 * torch.randn(4, 3)
    scores = PairScores()
    for rows in torch.arange(9).split(4):
        scores.update(predicted[rows], given[rows])
    found = scores.compute()
    cosines = torch.tensor([[float(F.cosine_similarity(p, g, dim=0)) for g in given] for p in predicted])
    assert found["cosine"] == pytest.approx(float(cosines.diagonal().mean()), abs=1e-6)
    others = cosines[~torch.eye(9, dtype=torch.bool)]
    assert found["cosine_shuffled"] == pytest.approx(float(others.mean()), abs=1e-6)
    assert found["retrieval"] == pytest.approx(
        float((cosines.argmax(dim=1) == torch.arange(9)).float().mean())
    )
    assert 0 < found["retrieval"] < 1


# What learns, and from what


def test_alignment_raises_the_held_out_cosine_above_shuffled_pairs(aligner, tmp_path):
    Shapes(tmp_path, num_points=256, shapes_per_class=20)
    [root] = tmp_path.glob("v*_train_20x256_*")
    data = AlignmentData("modelnet40", str(root), 256, batch_size=16, val_fraction=0.1, augment=[])
    settings = {"num_groups": 16, "group_size": 8, "width": 32}
    module, fit = aligner(patch=0.5, settings=settings, lr=5e-3), trainer(tmp_path, max_epochs=4)
    [before] = fit.validate(module, data, verbose=False)
    fit.fit(module, data)
    after = {name: float(value) for name, value in fit.callback_metrics.items()}
    assert after["val/cosine"] > before["val/cosine"] + 0.2
    assert after["val/cosine"] > after["val/cosine_shuffled"] + 0.2
    assert after["val/patch_loss"] < before["val/patch_loss"] - 0.2
    assert after["val/retrieval"] > before["val/retrieval"]
    parts = sum(w * after[f"val/{n}_loss"] for n, w in (("cosine", 1), ("contrastive", 1), ("patch", 0.5)))
    assert after["val/loss"] == pytest.approx(parts, abs=1e-5)


def test_only_the_student_learns(aligner, data, tmp_path):
    module = aligner(patch=0.5)
    module.build(data, "fit")
    frozen = module._store.teacher.model
    before = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    student = {name: tensor.clone() for name, tensor in module.model.named_parameters()}
    trainer(tmp_path).fit(module, data)
    assert all(torch.equal(before[name], tensor) for name, tensor in frozen.state_dict().items())
    assert not any(name.startswith("_store") for name in module.state_dict())
    assert all(p.grad is None and not p.requires_grad for p in frozen.parameters())
    same = [name for name, p in module.model.named_parameters() if torch.equal(student[name], p)]
    assert same == ["tokenizer.embed.first.0.bias"], "which the batch norm behind it takes away"


@pytest.mark.parametrize(
    ("weights", "heads"),
    [
        ({"cosine": 0, "contrastive": 0, "patch": 1}, {"patches"}),
        ({"cosine": 0, "contrastive": 2}, {"objects"}),
        ({"cosine": 1, "contrastive": 0, "patch": 1, "patch_loss": "smooth_l1"}, {"objects", "patches"}),
    ],
)
def test_each_loss_can_be_left_out(aligner, data, tmp_path, weights, heads):
    module, fit = aligner(**weights), trainer(tmp_path)
    fit.fit(module, data)
    assert set(module.heads) == heads
    metrics = {name: float(value) for name, value in fit.callback_metrics.items()}
    defaults = {"cosine": 1, "contrastive": 1, "patch": 0}
    parts = [w * metrics.get(f"val/{n}_loss", 0) for n, w in {**defaults, **weights}.items() if w in (1, 2)]
    assert metrics["val/loss"] == pytest.approx(sum(parts), abs=1e-5)
    assert ("val/retrieval" in metrics) == ("objects" in heads)


@pytest.mark.parametrize("transform", [RandomScaleTranslate(), RandomJitter()])
def test_augmentation_leaves_targets_at_the_points_that_were_rendered(aligner, data, tmp_path, transform):
    """The targets of an augmented batch are those of the same points before it."""
    module = aligner(patch=1.0)
    trainer(tmp_path).fit(module, data)
    rows = torch.tensor([3, 0, 5])
    clouds = data.dataset("train").points[rows]
    points = transform(clouds)
    assert not torch.equal(points, clouds)
    tokens = module.model.train().tokenizer(points)
    chosen = torch.stack([torch.tensor([(p == c).all(dim=1).nonzero()[0, 0] for c in centers])
                          for p, centers in zip(points, tokens.centers, strict=True)])  # fmt: skip
    given, shown = module._targets["train"].at_points(rows, chosen)
    assert module._patch_scale is not None
    predicted = torch.randn(given.shape)
    pairs = cosine_loss(predicted, module._patch_scale(given))
    found = module._patch_loss(predicted, points, rows, tokens.centers, module._targets["train"])
    torch.testing.assert_close(found, pairs[shown].mean())


def test_batches_hold_rows_of_the_split_and_no_labels(aligner, data, tmp_path):
    seen: list[tuple[Tensor, Tensor]] = []

    class Look(PointAligner):
        def validation_step(self, batch, batch_idx: int) -> None:
            seen.append(batch)
            super().validation_step(batch, batch_idx)

    module = Look(**{**aligner().hparams})
    data.dataset("train").labels.fill_(0)
    trainer(tmp_path).fit(module, data)
    points, rows = (torch.cat(parts) for parts in zip(*seen, strict=True))
    assert torch.equal(rows, torch.arange(len(data.dataset("val"))))
    assert torch.equal(points, data.dataset("val").points)


def test_the_test_split_is_never_read(aligner, data, tmp_path, monkeypatch):
    read = AlignmentData._read
    splits: list[str] = []
    monkeypatch.setattr(AlignmentData, "_read", lambda self, split: splits.append(split) or read(self, split))
    trainer(tmp_path).fit(aligner(), data)
    assert splits == ["train"]


def test_targets_are_computed_in_the_first_run_alone(aligner, data, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="pointvit"):
        trainer(tmp_path).fit(aligner(), data)
        assert "clouds a second" in caplog.text
        caplog.clear()
        trainer(tmp_path).fit(aligner(student_init="scratch", lr=1e-3), data)
        assert "found in" in caplog.text
        assert "clouds a second" not in caplog.text
        trainer(tmp_path).fit(aligner(teacher_init="scratch"), data)
        assert "clouds a second" in caplog.text
    assert len(list((tmp_path / "targets").iterdir())) == 2


# The two controls


def test_scratch_student_and_teacher_have_other_weights_and_the_same_architecture(aligner, data, teacher):
    image = pointvit.load(teacher)
    qkv = "trunk.blocks.1.attn.qkv.weight"
    made = {}
    for which in ({}, {"student_init": "scratch"}, {"teacher_init": "scratch"}):
        torch.manual_seed(3)
        module = aligner(**which)
        module.build(data, "fit")
        made[tuple(which)] = module
    plain, scratch, random_teacher = made.values()
    assert torch.equal(plain.model.state_dict()[qkv], image.state_dict()[qkv])
    assert not torch.equal(scratch.model.state_dict()[qkv], image.state_dict()[qkv])
    assert torch.equal(random_teacher.model.state_dict()[qkv], image.state_dict()[qkv])
    tokenizer = "tokenizer.embed.first.0.weight"
    assert torch.equal(scratch.model.state_dict()[tokenizer], plain.model.state_dict()[tokenizer])
    teachers = [module._store.teacher.model for module in (plain, scratch, random_teacher)]
    assert torch.equal(teachers[1].state_dict()["tokenizer.proj.weight"], image.tokenizer.proj.weight)
    changed = [n for n, t in teachers[2].state_dict().items() if not torch.equal(t, image.state_dict()[n])]
    assert {"tokenizer.proj.weight", "tokenizer.pos_embed", qkv, "cls_token"} <= set(changed)
    # As small as it begins, LayerScale would leave the class token the same for every picture.
    assert float(teachers[2].trunk.blocks[0].ls1.gamma.mean()) == 1.0
    assert plain._store.folder == scratch._store.folder != random_teacher._store.folder


def test_a_student_of_another_width_learns_through_the_projection(aligner, data, tmp_path):
    settings = {**SETTINGS, "embed_dim": 48, "depth": 1, "num_heads": 2}
    module = aligner(model="pointvit_tiny", student_init="scratch", settings=settings, patch=1.0)
    trainer(tmp_path).fit(module, data)
    assert module.heads["patches"].weight.shape == (24, 48)
    assert module.heads["objects"].weight.shape == (24, 96)


# The command


@pytest.fixture
def command(teacher, clouds, tmp_path) -> list[str]:
    config = {
        "model": {
            "settings": SETTINGS,
            "view_size": 32,
            "patch": 0.5,
            "lr": 2e-3,
            "cache": str(tmp_path / "targets"),
        },
        "data": {"name": "modelnet40", "num_points": 64, "batch_size": 8, "val_fraction": 0.25},
        "trainer": {
            "max_epochs": 2,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "default_root_dir": str(tmp_path / "runs"),
        },
    }
    file = tmp_path / "align.yaml"
    file.write_text(yaml.safe_dump(config))
    options = ["--config", str(file), "--teacher", str(teacher), "--data.root", str(clouds)]
    return ["align", *options, "--output", str(tmp_path / "aligned")]


def test_the_command_ends_with_an_encoder_that_fit_starts_from(command, clouds, teacher, tmp_path, capsys):
    assert main(command) == 0
    run = tmp_path / "runs" / "version_0"
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert yaml.safe_load((run / "config.yaml").read_text())["teacher"] == str(teacher)
    folder = tmp_path / "aligned"
    assert f"pointvit fit --model.model auto --model.pretrained {folder}" in capsys.readouterr().err
    encoder = pointvit.load(folder)
    best = read_torch(run / "checkpoints" / "best.ckpt")["state_dict"]
    assert all(torch.equal(best[f"model.{name}"], t) for name, t in encoder.state_dict().items())
    assert (encoder.num_classes, encoder.meta.num_points, encoder.meta.up_axis) == (0, 64, "z")
    source = encoder.meta.source
    assert source["aligned_to"] == source["file"] == "model.safetensors"
    assert (source["teacher_init"], source["student_init"], source["patch"]) == (
        "pretrained",
        "pretrained",
        "0.5",
    )
    assert "aligned to `model.safetensors`" in (folder / card.CARD).read_text()
    assert encoder.forward_features(torch.randn(2, 64, 3)).shape == (2, 9, 24)

    start = pointvit.create_model("auto", pretrained=folder, num_classes=40, head="linear")
    assert all(torch.equal(start.state_dict()[name], t) for name, t in encoder.state_dict().items())
    assert start(torch.randn(2, 64, 3)).shape == (2, 40)
    fit = [
        "fit",
        "--model.model",
        "auto",
        "--model.pretrained",
        str(folder),
        "--model.settings",
        "{head: linear}",
    ]
    rest = ["--data.name", "modelnet40", "--data.root", str(clouds), "--data.num_points", "64"]
    more = [
        "--trainer.max_epochs",
        "1",
        "--trainer.accelerator",
        "cpu",
        "--trainer.enable_progress_bar",
        "false",
    ]
    where = ["--trainer.default_root_dir", str(tmp_path / "fit"), "--data.batch_size", "8"]
    assert main([*fit, *rest, *more, *where]) == 0
    tuned = pointvit.load(tmp_path / "fit" / "version_0" / "model")
    assert tuned.meta.class_names == ["ball", "plate", "rod", "slab"]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("align_*.yaml")), ids=lambda path: path.stem)
def test_config_aligns(path, teacher, clouds, tmp_path):
    small = {
        "teacher": teacher,
        "output": tmp_path / "aligned",
        "data.root": clouds,
        "data.num_points": 64,
        "data.batch_size": 8,
        "model.view_size": 32,
        "model.cache": tmp_path / "targets",
        "trainer.precision": "32-true",
        "trainer.accelerator": "cpu",
        "trainer.fast_dev_run": 2,
        "trainer.enable_progress_bar": "false",
    }
    options = [f"--{name}={value}" for name, value in small.items()]
    assert main(["align", "--config", str(path), *options]) == 0
    assert not (tmp_path / "aligned").exists(), "fast_dev_run keeps nothing"


def test_a_scratch_student_records_no_checkpoint_of_its_own(command, tmp_path):
    assert main([*command, "--model.student_init", "scratch", "--trainer.max_epochs", "1"]) == 0
    source = pointvit.load(tmp_path / "aligned").meta.source
    assert "file" not in source
    assert (source["student_init"], source["aligned_to"]) == ("scratch", "model.safetensors")
    assert "no checkpoint is recorded; aligned to" in (tmp_path / "aligned" / card.CARD).read_text()


def test_a_resumed_alignment_equals_the_uninterrupted_one(command, tmp_path, monkeypatch, capsys):
    handler = signal.getsignal(signal.SIGINT)
    assert main([*command, "--trainer.default_root_dir", str(tmp_path / "whole")]) == 0
    start = PointAligner.on_train_batch_start

    def interrupted(self: PointAligner, batch, batch_idx: int) -> None:
        if self.trainer.fit_loop.total_batch_idx == 6:  # four batches an epoch
            raise KeyboardInterrupt
        start(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(PointAligner, "on_train_batch_start", interrupted)
        assert main(command) == 2
    signal.signal(signal.SIGINT, handler)
    last = re.search(r"continue with --ckpt_path (.*last\.ckpt)", capsys.readouterr().err)
    assert last is not None
    assert main([*command, "--ckpt_path", last[1]]) == 0
    runs = (tmp_path / "whole" / "version_0", tmp_path / "runs" / "version_1")
    a, b = (read_torch(run / "checkpoints" / "last.ckpt")["state_dict"] for run in runs)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    scores = []
    for run in runs:
        with (run / "metrics.csv").open() as file:
            scores.append([row["val/cosine"] for row in csv.DictReader(file) if row["val/cosine"]][-1])
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_two_processes_share_targets_and_count_every_cloud_once(command, tmp_path):
    two = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--trainer.max_epochs", "1"]
    subprocess.run([sys.executable, "-m", "pointvit.cli", *command, *two], check=True, cwd=tmp_path)
    with (tmp_path / "runs" / "version_0" / "metrics.csv").open() as file:
        [retrieval] = [float(row["val/retrieval"]) for row in csv.DictReader(file) if row["val/retrieval"]]
    assert round(12 * retrieval, 6) % 1 == 0, "a share of the 12 held-out clouds"
    assert len(list((tmp_path / "targets").iterdir())) == 1
    assert pointvit.load(tmp_path / "aligned").num_classes == 0


# Bad input


@pytest.fixture
def failing(command, tmp_path, capsys) -> Callable[..., str]:
    def run(*more: str) -> str:
        before = set(tmp_path.iterdir())
        capsys.readouterr()
        assert main([*command, *more]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        said = [line for line in error.splitlines() if line.startswith("pointvit: ")]
        assert said == error.splitlines()[-1:], error
        assert set(tmp_path.iterdir()) == before
        return said[0].removeprefix("pointvit: ")

    return run


def test_bad_input_is_said_in_one_sentence_before_anything_is_written(failing, tmp_path):
    points = pointvit.create_model("pointvit_tiny", embed_dim=24, depth=1, num_classes=0)
    folder = pointvit.save(points, tmp_path / "points")
    said = failing("--teacher", str(folder))
    assert said.startswith(f"{folder}: a teacher encodes images")
    assert "no such file" in failing("--teacher", str(tmp_path / "none.safetensors"))
    assert "num_views of at least 1, got 0" in failing("--model.num_views", "0")
    assert "multiple of the encoder's patches, 16 x 16 pixels, got 40" in failing("--model.view_size", "40")
    assert "model.view_size must be at most 800" in failing("--model.view_size", "100000")
    assert "one must be positive" in failing("--model.cosine=0", "--model.contrastive=0", "--model.patch=0")
    assert "did you mean scratch" in failing("--model.student_init", "scrach")
    assert "unknown model.teacher_init" in failing("--model.teacher_init", "shuffled")
    assert "model.temperature must be positive" in failing("--model.temperature", "0")
    (tmp_path / "empty").mkdir()
    assert "expected train_files.txt" in failing("--data.root", str(tmp_path / "empty"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "is not a saved model; choose another folder" in failing("--output", str(tmp_path / "mine"))
    assert "num_group" in failing("--model.settings", "{num_group: 3}")
    assert "in_chans is 3 here, got 6" in failing("--model.settings", "{in_chans: 6}")
    assert "num_classes is 0 here, got 4" in failing("--model.settings", "{num_classes: 4}")
    named = failing("--model.model", "vit_tiny_patch16_224", "--model.student_init", "scratch",
                    "--model.settings", "{depth: 1}")  # fmt: skip
    assert "no point encoder" in named


def test_teacher_and_output_must_be_given(command, capsys):
    for name in ("--teacher", "--output"):
        place = command.index(name)
        assert main([*command[:place], *command[place + 2 :]]) == 2
        assert name.removeprefix("--") in capsys.readouterr().err.splitlines()[-1]


def test_what_could_not_be_saved_is_not_trained(failing, tmp_path):
    (tmp_path / "file").touch()
    assert "is a file, expected a folder to write to" in failing(
        "--output", str(tmp_path / "file" / "aligned")
    )


def test_an_encoder_that_took_no_step_is_not_saved(command, tmp_path, capsys):
    assert main([*command, "--trainer.max_epochs", "0"]) == 2
    assert "no step was taken, so nothing is aligned" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "aligned").exists()


def test_damaged_targets_are_named(command, failing, tmp_path):
    assert main([*command, "--trainer.max_epochs", "1"]) == 0
    (folder,) = (tmp_path / "targets").iterdir()
    np.save(folder / "objects.npy", np.load(folder / "objects.npy")[:3])
    assert failing() == f"{folder}: targets that cannot be read; delete the folder"
    (folder / "made_from.json").unlink()
    assert failing() == f"{folder}: targets that do not say what they are of; delete the folder"


def test_going_on_says_what_is_asked_for_in_vain(command, tmp_path, capsys):
    assert main([*command, "--trainer.max_epochs", "1"]) == 0
    last = str(tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt")
    assert main([*command, "--ckpt_path", last, "--model.lr", "0.5"]) == 0
    assert f"{last}: goes on as it began; not used: model.lr=0.5" in capsys.readouterr().err


def test_going_on_with_other_settings_is_refused(command, failing, tmp_path):
    assert main([*command, "--trainer.max_epochs", "1"]) == 0
    last = str(tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt")
    said = failing("--ckpt_path", last, "--model.patch", "0.25")
    assert said.startswith(f"{last}: was made with patch 0.5, asked for is 0.25")
    said = failing("--ckpt_path", str(last), "--data.up_axis", "y")
    assert said.startswith(f"{last}: was made with up_axis z, asked for is y")
    torch.save([1], tmp_path / "list.ckpt")
    said = failing("--ckpt_path", str(tmp_path / "list.ckpt"))
    assert said.endswith("list.ckpt: expected a checkpoint of pointvit's training; it has no settings")


def test_going_on_with_other_clouds_is_refused(command, failing, tmp_path, write_clouds):
    assert main([*command, "--trainer.max_epochs", "1"]) == 0
    last = tmp_path / "runs" / "version_0" / "checkpoints" / "last.ckpt"
    other = write_clouds(tmp_path / "other", ["ball", "plate", "rod", "slab", "cone"])
    for option, value in (("root", str(other)), ("shapes_per_class", "3"), ("val_fraction", "0.5")):
        said = failing("--ckpt_path", str(last), f"--data.{option}", value)
        assert said.startswith(f"{last}: was made from other clouds than data.root")
    checkpoint = torch.load(last, weights_only=True)
    del checkpoint["learnt_from"]
    torch.save(checkpoint, last)
    assert main([*command, "--data.shapes_per_class", "3", "--ckpt_path", str(last)]) == 0


def test_a_mixing_augmentation_is_refused(aligner, data):
    data.mix = object()
    with pytest.raises(ValueError, match="data\\.mix makes clouds"):
        aligner().build(data, "fit")


def test_other_data_modules_are_refused(aligner, clouds, tmp_path):
    labelled = PointCloudDataModule("modelnet40", root=str(clouds), num_points=64)
    with pytest.raises(TypeError, match="AlignmentData"):
        trainer(tmp_path).fit(aligner(), labelled)


def test_a_store_of_other_clouds_has_its_own_folder(aligner, data):
    module = aligner()
    module.build(data, "fit")
    store = module._store
    assert store.clouds.shape == (48, 64, 3)
    fewer = TargetStore(Path("x"), store.teacher, {}, store.clouds[:9], patches=False)
    assert fewer.folder.name != store.folder.name
