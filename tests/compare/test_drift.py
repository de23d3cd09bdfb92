"""Drift of trunks whose change is planted."""

import math

import pytest
import torch

import pointvit
from pointvit.compare import drift_by_group, image_encoder_on, output_drift, record, weight_drift
from pointvit.model import ViT

TRUNK = {"depth": 2, "embed_dim": 48, "num_heads": 3}
IMAGE = {"img_size": 32, "patch_size": 16, "num_classes": 0, **TRUNK}


@pytest.fixture
def pair(randomise) -> pointvit.Pair:
    model = pointvit.create_pair(
        "vit_tiny_patch16_224",
        img_size=32,
        num_classes=4,
        num_groups=8,
        group_size=4,
        layer_scale=0.1,
        num_reg_tokens=2,
        **TRUNK,
    )
    return randomise(model).eval()


def copy_of(model: ViT) -> ViT:
    twin = ViT(model.config)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def test_a_state_beside_itself_has_not_moved(pair):
    rows = weight_drift(pair, copy_of(pair.points))
    assert {row.relative for row in rows} == {0.0}
    assert [row.cosine for row in rows] == pytest.approx([1.0] * len(rows))
    assert [row.name for row in rows][:2] == ["cls_token", "reg_tokens"]
    assert [row.name for row in rows][2:] == list(pair.trunk.state_dict())


def test_a_scaled_tensor_a_turned_one_and_nothing_else(pair):
    tuned = copy_of(pair.points)
    with torch.no_grad():
        tuned.trunk.blocks[1].attn.qkv.weight.mul_(1.5)
        tuned.cls_token.neg_()
        tuned.trunk.norm.bias.zero_()
    rows = {row.name: row for row in weight_drift(pair.image, tuned)}
    scaled = rows["blocks.1.attn.qkv.weight"]
    assert (scaled.relative, scaled.cosine) == pytest.approx((0.5, 1.0))
    assert scaled.after == pytest.approx(1.5 * scaled.before)
    assert scaled.difference == pytest.approx(0.5 * scaled.before)
    assert (rows["cls_token"].relative, rows["cls_token"].cosine) == pytest.approx((2.0, -1.0))
    assert (rows["norm.bias"].relative, rows["norm.bias"].cosine) == (pytest.approx(1.0), None)
    moved = {"blocks.1.attn.qkv.weight", "cls_token", "norm.bias"}
    assert {name for name, row in rows.items() if row.relative != 0} == moved


def test_groups_are_what_all_their_tensors_are_together(pair):
    tuned = copy_of(pair.points)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    groups = drift_by_group(weight_drift(pair, tuned))
    assert [row.name for row in groups] == ["tokens", "blocks.0", "blocks.1", "norm"]
    a, b = (torch.cat([p.flatten() for p in m.trunk.blocks[1].state_dict().values()]) for m in (pair, tuned))
    row = groups[2]
    assert row.relative == pytest.approx(float((b - a).norm() / a.norm()), rel=1e-5)
    assert row.cosine == pytest.approx(float(torch.cosine_similarity(a, b, dim=0)), rel=1e-5)


def test_from_zero_there_is_no_relative_change(pair):
    before = copy_of(pair.points)
    with torch.no_grad():
        before.trunk.norm.bias.zero_()
    row = {row.name: row for row in weight_drift(before, pair)}["norm.bias"]
    assert (row.relative, row.cosine, row.before) == (None, None, 0.0)
    assert row.difference == row.after > 0


def test_checkpoints_and_models_may_be_mixed(pair, tmp_path):
    pointvit.save(pair.points, tmp_path / "points")
    pointvit.save_checkpoint(pair.image, tmp_path / "image.safetensors", source="timm")
    rows = weight_drift(tmp_path / "image.safetensors", tmp_path / "points")
    assert rows == weight_drift(pair, pair)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"depth": 3}, r"blocks\.2\.norm1\.weight is absent in the first and of shape \(48,\) in the second"),
        ({"embed_dim": 96}, r"cls_token is of shape \(1, 1, 48\) in the first and of shape \(1, 1, 96\)"),
        ({"layer_scale": 0.1}, r"blocks\.0\.ls1\.gamma is absent in the first"),
        (
            {"class_token": False, "global_pool": "mean"},
            r"cls_token is .* in the first and absent in the second",
        ),
    ],
)
def test_other_trunks_are_refused_by_their_first_difference(other, message):
    first = pointvit.create_model("vit_tiny_patch16_224", **IMAGE)
    second = pointvit.create_model("vit_tiny_patch16_224", **{**IMAGE, **other})
    with pytest.raises(ValueError, match=message):
        weight_drift(first, second)


def test_the_image_encoder_on_a_tuned_trunk_computes_what_its_parts_do(pair, randomise):
    tuned = randomise(copy_of(pair.points), seed=1)
    encoder = image_encoder_on(pair.image, tuned)
    assert all(a is b for a, b in zip(encoder.trunk.parameters(), tuned.trunk.parameters(), strict=True))
    images = torch.randn(2, 3, 32, 32)
    expected = copy_of(pair.image)
    expected.trunk.load_state_dict(tuned.trunk.state_dict())
    with torch.no_grad():
        expected.cls_token.copy_(tuned.cls_token)
        expected.reg_tokens.copy_(tuned.reg_tokens)
        torch.testing.assert_close(encoder(images), expected(images))
        assert not torch.allclose(encoder(images), pair.image(images))
        untuned = image_encoder_on(pair.image, pair.points)
        torch.testing.assert_close(untuned(images), pair.image(images))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 3}, "depth is 2 in the image encoder and 3 in the point encoder"),
        ({"norm_eps": 1e-5}, "norm_eps is 1e-06 in the image encoder and 1e-05"),
        ({"activation": "quick_gelu"}, "activation is gelu in the image encoder and quick_gelu"),
        ({"layer_scale": 1.0}, "layer_scale is False in the image encoder and True"),
        ({"num_reg_tokens": 1}, "reg_tokens is absent in the first"),
    ],
)
def test_a_trunk_that_would_compute_something_else_is_refused(settings, message):
    image = pointvit.create_model("vit_tiny_patch16_224", **IMAGE)
    points = pointvit.create_model("pointvit_tiny", **{**TRUNK, **settings})
    with pytest.raises(ValueError, match=message):
        image_encoder_on(image, points)


def test_rates_of_training_make_no_difference():
    image = pointvit.create_model("vit_tiny_patch16_224", **IMAGE)
    points = pointvit.create_model("pointvit_tiny", drop_path_rate=0.3, **TRUNK).train()
    assert not any(module.training for module in image_encoder_on(image, points).modules())


def test_two_encoders_of_points_are_refused(pair):
    with pytest.raises(ValueError, match="got one of points in the place of the image one"):
        image_encoder_on(pair.points, pair.points)


def test_outputs_beside_themselves_are_alike_and_others_less(pair, randomise):
    clouds = torch.randn(40, 32, 3)
    tuned = copy_of(pair.points)
    with torch.no_grad():
        for parameter in tuned.trunk.blocks[1].parameters():
            parameter.add_(torch.randn_like(parameter))
    same = output_drift(pair.points, copy_of(pair.points), clouds.split(7), batch_size=20)
    assert [row.layer for row in same] == [0, 1, 2]
    assert [row.cka for row in same] == pytest.approx([1.0] * 3)
    assert all(abs(row.permuted_mean) < 0.3 and row.permuted_std > 0 for row in same)
    moved = output_drift(pair.points, tuned, clouds.split(7), batch_size=20)
    assert [row.cka for row in moved[:2]] == pytest.approx([1.0] * 2)
    assert moved[2].cka < 0.95
    # The class token that the first block meets is the same for all objects.
    assert math.isnan(output_drift(pair.points, tuned, [clouds], "cls", batch_size=20)[0].cka)


def test_output_drift_is_cka_of_the_recorded_layers(pair, randomise):
    tuned = randomise(copy_of(pair.points), seed=1)
    clouds = torch.randn(24, 32, 3)
    rows = output_drift(pair.points, tuned, clouds.split(10), batch_size=24)
    features = [record(encoder, clouds) for encoder in (pair.points, tuned)]
    from pointvit.compare import cka

    for row, a, b in zip(rows, *features, strict=True):
        assert row.cka == pytest.approx(cka(a, b), abs=1e-6)


def test_output_drift_of_other_encoders_is_refused(pair):
    with pytest.raises(ValueError, match="one of image with 2 blocks and one of points with 2"):
        output_drift(pair.image, pair.points, [])
    with pytest.raises(ValueError, match="at least 4 objects"):
        output_drift(pair.points, pair.points, [torch.randn(3, 32, 3)])
