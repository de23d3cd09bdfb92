"""The image-side classifier: a tiny encoder on views of solids that differ in their outline."""

import math
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch

import pointvit
from pointvit.compare import (
    MultiViewClassifier,
    Views,
    image_baseline,
    image_probe_drift,
    render_for,
    view_features,
)
from pointvit.compare.multiview_training import MultiViewTraining
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.hdf5 import write_hdf5_split
from pointvit.data.module import PointCloudDataModule
from pointvit.model import ViT
from pointvit.training.cli import quiet
from pointvit.views import render_points

CLASSES = ["ball", "plate", "rod"]
STRETCH = torch.tensor([[0.9, 0.9, 0.9], [0.9, 0.9, 0.1], [0.1, 0.1, 0.9]])
SETTINGS = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 32, "patch_size": 8}
VIEWS = Views(num_views=2, size=32)


def solids(per_class: int, seed: int = 0) -> PointCloudDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(CLASSES)).repeat(per_class)
    points = torch.randn(len(labels), 128, 3, generator=generator)
    points = points / points.norm(dim=2, keepdim=True) * STRETCH[labels][:, None]
    points = points * (0.8 + 0.2 * torch.rand(len(labels), 1, 3, generator=generator))
    return PointCloudDataset(points, labels, CLASSES, [f"solid_{i}" for i in range(len(labels))])


@pytest.fixture
def encoder(randomise) -> ViT:
    model = pointvit.create_model("vit_tiny_patch16_224", num_classes=0, **SETTINGS)
    return randomise(model).eval()


def test_views_have_the_colours_that_the_encoder_expects(encoder):
    encoder.meta.image_mean, encoder.meta.image_std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    points = solids(1).points
    found = render_for(encoder, points, replace(VIEWS, mode="normal", rig="circle"))
    plain = render_points(points, 2, 32, "normal")
    for channel, (mean, std) in enumerate(((0.1, 0.5), (0.2, 1.0), (0.3, 2.0))):
        torch.testing.assert_close(found[:, :, channel], (plain[:, :, channel] - mean) / std)


def test_every_setting_of_the_views_arrives(encoder):
    points = solids(1).points
    settings = {"mode": "depth", "rig": "ten", "perspective": True, "up_axis": "y"}
    encoder.meta.image_mean, encoder.meta.image_std = (0.0,) * 3, (1.0,) * 3
    found = render_for(encoder, points, Views(10, 48, **settings))
    assert torch.equal(found, render_points(points, 10, 48, **settings))


@pytest.mark.parametrize("chunk", [2, 5, 64])
def test_features_are_those_of_single_images_in_any_chunks(encoder, monkeypatch, chunk):
    monkeypatch.setattr("pointvit.compare.multiview.BATCH_IMAGES", chunk)
    points, done = solids(3).points, []
    found = view_features(encoder, points, VIEWS, pool=None, progress=done.append)
    assert found.shape == (9, 2, 48)
    assert done[-1] == 9
    assert done == sorted(set(done))
    images = render_for(encoder, points, VIEWS)
    with torch.no_grad():
        for cloud, row in zip(images, found, strict=True):
            torch.testing.assert_close(row, encoder(cloud), atol=1e-5, rtol=1e-5)
    for pool, expected in (("mean", found.mean(1)), ("max", found.amax(1))):
        torch.testing.assert_close(view_features(encoder, points, VIEWS, pool), expected)


def test_features_are_what_the_head_is_applied_to_and_the_mode_is_kept(encoder):
    encoder.reset_classifier(3, "cls+mean")
    encoder.train()
    found = view_features(encoder, solids(1).points, VIEWS)
    assert found.shape == (3, 96)
    assert found.dtype == torch.float32
    assert encoder.training
    assert not found.requires_grad
    torch.nn.Linear(96, 2)(found).sum().backward()  # usable in training


def test_solids_are_told_apart_by_a_random_encoder_and_shuffled_ones_are_not(encoder):
    train, test = solids(8), solids(6, seed=1)
    done: list[int] = []
    found = image_baseline(encoder, train, test, VIEWS, k=3, progress=done.append)
    assert found.linear.accuracy > 0.9
    assert found.knn.accuracy > 0.9
    assert (found.linear.num_train, found.linear.num_test) == (24, 18)
    assert (found.views, found.pool) == (VIEWS, "mean")
    assert done[-1] == 42
    assert done == sorted(done)
    mixed = train.subset(range(24))
    mixed.labels = train.labels[torch.randperm(24, generator=torch.Generator().manual_seed(3))]
    assert image_baseline(encoder, mixed, test, VIEWS).linear.accuracy < 0.8


def test_the_image_probe_before_and_after_tuning(encoder, randomise):
    train, test = solids(5), solids(5, seed=1)
    tuned = pointvit.create_model(
        "pointvit_tiny", depth=2, embed_dim=48, num_heads=3, num_groups=4, group_size=4
    )
    with torch.no_grad():
        for parameter in tuned.trunk.parameters():
            parameter.zero_()
        tuned.cls_token.fill_(0.3)
    done: list[int] = []
    found = image_probe_drift(encoder, tuned, train, test, VIEWS, k=3, progress=done.append)
    assert found["before"] == image_baseline(encoder, train, test, VIEWS, k=3)
    # A trunk of zeros gives one answer to all images.
    assert found["after"].linear.accuracy == pytest.approx(1 / 3)
    assert list(found) == ["before", "after", "random"]
    assert done == sorted(done)
    assert done[-1] == 90


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_the_classifier_is_the_head_on_pooled_views(encoder, pool):
    encoder.reset_classifier(3)
    model = MultiViewClassifier(encoder, VIEWS, pool).eval()
    points = solids(2).points
    features = view_features(encoder, points, VIEWS, pool)
    with torch.no_grad():
        torch.testing.assert_close(model(points), encoder.head(features), atol=1e-5, rtol=1e-5)
    assert {id(p) for p in model.parameters()} == {id(p) for p in encoder.parameters()}
    model(points).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.head.parameters())
    assert encoder.trunk.blocks[0].attn.qkv.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda e: view_features(e, solids(1).points, Views(2, 30)),
            "multiple of the encoder's patches, 8 x 8",
        ),
        (
            lambda e: view_features(e, solids(1).points, VIEWS, "median"),
            "pool must be one of mean, max, got 'median'",
        ),
        (
            lambda e: view_features(e, solids(1).points[:, :, :2], VIEWS),
            r"expected points of shape \(B, P, 3\)",
        ),
        (lambda e: view_features(e, solids(1).points, Views(0, 32)), "num_views of at least 1, got 0"),
        (lambda e: view_features(e, solids(1).points[:0], VIEWS), "there are no clouds to look at"),
        (lambda e: MultiViewClassifier(e, VIEWS), "a classifier needs a head"),
        (
            lambda e: image_baseline(e, solids(2), solids(2), replace(VIEWS, up_axis="y")),
            r"pass Views\(up_axis='z'\)",
        ),
        (
            lambda e: image_baseline(e, solids(1), solids(2), VIEWS),
            "at least two training objects of every class",
        ),
    ],
)
def test_bad_input_is_one_sentence(encoder, call, message):
    with pytest.raises(ValueError, match=message):
        call(encoder)


def test_a_point_encoder_data_of_other_classes_and_broken_weights_are_refused(encoder):
    points = pointvit.create_model("pointvit_tiny", depth=1, embed_dim=48)
    with pytest.raises(
        ValueError, match="an encoder of images with three channels, got one of points with 3"
    ):
        view_features(points, solids(1).points, VIEWS)
    other = solids(2)
    other.class_names = ["ball", "plate", "cone"]
    with pytest.raises(ValueError, match="different classes"):
        image_baseline(encoder, solids(2), other, VIEWS)
    encoder.trunk.norm.weight.data[3] = math.nan
    with pytest.raises(ValueError, match="clouds 0 to 2: the encoder's features are not finite"):
        view_features(encoder, solids(1).points, VIEWS)


@pytest.fixture
def data(tmp_path) -> PointCloudDataModule:
    for split, count in (("train", 12), ("test", 4)):
        found = solids(count, seed=count)
        write_hdf5_split(tmp_path, split, found.points.numpy(), found.labels.numpy(), found.names, CLASSES)
    return PointCloudDataModule(
        "modelnet40", root=str(tmp_path), num_points=128, batch_size=9, val_fraction=0.25, augment=[]
    )


def test_fine_tuning_learns_and_its_checkpoint_is_an_image_model(data, tmp_path):
    module = MultiViewTraining(
        "vit_tiny_patch16_224",
        settings={**SETTINGS, "global_pool": "mean"},
        num_views=2,
        size=32,
        lr=2e-3,
        trunk_lr_scale=1.0,
    )
    with quiet():
        trainer = pl.Trainer(
            max_epochs=20,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            default_root_dir=tmp_path,
        )
        before = [p.detach().clone() for p in _built(module, data).trunk.parameters()]
        trainer.fit(module, data)
        trainer.save_checkpoint(tmp_path / "tuned.ckpt")
        [metrics] = trainer.test(module, data, verbose=False)
    assert metrics["test/oa"] > 0.8
    assert all(not torch.equal(a, b) for a, b in zip(before, module.model.trunk.parameters(), strict=True))
    saved = pointvit.load(tmp_path / "tuned.ckpt")
    assert (saved.config.modality, saved.meta.class_names) == ("image", CLASSES)
    classifier = MultiViewClassifier(saved, module.views)
    found = data.dataset("test")
    with torch.no_grad():
        right = (classifier(found.points).argmax(1) == found.labels).float().mean()
    assert float(right) == pytest.approx(metrics["test/oa"])
    assert module.hparams["num_views"] == 2


def _built(module: MultiViewTraining, data: PointCloudDataModule) -> ViT:
    module.build(data, "fit")
    return module.model


def test_bad_settings_of_a_fine_tuning_are_refused_before_it_starts(data):
    with pytest.raises(ValueError, match="pool must be one of mean, max"):
        MultiViewTraining("vit_tiny_patch16_224", pool="median")
    with pytest.raises(ValueError, match="multiple of the encoder's patches"):
        MultiViewTraining("vit_tiny_patch16_224", settings=SETTINGS, size=30).build(data, "fit")
    with pytest.raises(ValueError, match="an encoder of images"):
        MultiViewTraining("pointvit_tiny").build(data, "fit")


def test_real_weights_see_the_classes_of_real_clouds(data_root):
    """Four classes, five shapes each, two small views: well above chance."""
    data = PointCloudDataModule("modelnet40", root=str(data_root / "modelnet40"), shapes_per_class=5)
    train, test = (data.dataset(split) for split in ("train", "val"))
    few = [torch.isin(d.labels, torch.tensor([0, 8, 17, 37])) for d in (train, test)]
    train, test = train.subset(few[0].numpy()), test.subset(few[1].numpy())
    balanced = torch.cat([torch.nonzero(test.labels == label)[:4] for label in test.labels.unique()])
    encoder = pointvit.create_model("auto", data_root / "weights" / "dinov2_vits14_hf_fp16.safetensors")
    views, test = Views(num_views=2, size=56), test.subset(balanced.flatten().numpy())
    found = image_baseline(encoder, train, test, views).linear
    assert found.accuracy > 2 * found.chance
