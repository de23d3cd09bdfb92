"""Filters and channels with planted answers."""

import pickle

import pytest
import torch

import pointvit
from pointvit.compare import (
    TopGroups,
    channel_responses,
    favourite_offsets,
    most_varied_channels,
    offset_grid,
    principal_filters,
)
from pointvit.model import ViT

SMALL = {"embed_dim": 48, "depth": 1, "num_heads": 3, "num_classes": 0}


def image_encoder(**settings) -> ViT:
    return pointvit.create_model("vit_tiny_patch16_224", img_size=32, patch_size=(4, 8), **SMALL, **settings)


def point_encoder(randomise, **settings) -> ViT:
    settings = {"num_groups": 6, "group_size": 4, "head": "linear", **SMALL, **settings}
    return randomise(pointvit.create_model("pointvit_tiny", **settings)).eval()


def test_planted_components_are_found():
    """Filters that are mixtures of two patterns about a common one: two components, those patterns."""
    patterns = torch.linalg.qr(torch.randn(96, 2)).Q.T
    mix = torch.linalg.qr(torch.randn(48, 3) - 0.0).Q
    mix = torch.linalg.qr(mix - mix.mean(0)).Q[:, :2] * torch.tensor([3.0, 1.0])
    model = image_encoder()
    with torch.no_grad():
        model.tokenizer.proj.weight.copy_((mix @ patterns + torch.randn(96)).reshape(48, 3, 4, 8))
    found = principal_filters(model, num=3)
    assert found.images.shape == (3, 4, 8, 3)
    assert found.explained.tolist() == pytest.approx([0.9, 0.1, 0.0], abs=1e-5)
    for image, pattern in zip(found.images, patterns, strict=False):
        pattern = pattern / pattern[pattern.abs().argmax()]
        expected = (pattern.reshape(3, 4, 8).permute(1, 2, 0) + 1) / 2
        torch.testing.assert_close(image, expected, atol=1e-4, rtol=0)
        assert float(image.max()) == 1.0
        assert float(image.min()) >= 0.0


def test_grey_filters_are_shown_in_grey():
    images = principal_filters(image_encoder(in_chans=1), num=5).images
    assert images.shape == (5, 4, 8, 3)
    assert torch.equal(images[..., 0], images[..., 2])


def test_offsets_fill_a_ball():
    grid = offset_grid(0.5, steps=5)
    assert float(grid.norm(dim=1).max()) == pytest.approx(0.5)
    assert len(grid) == len(grid.unique(dim=0)) == 33
    assert (grid == 0).all(dim=1).sum() == 1


def test_responses_are_tokens_of_groups_of_two(randomise):
    model = point_encoder(randomise, in_chans=6, token_dim=32)
    offsets = offset_grid(0.3, steps=3)
    found = channel_responses(model.train(), offsets)
    assert model.tokenizer.embed.training
    model.eval()
    groups = torch.zeros(1, len(offsets), 2, 6)
    groups[0, :, 1, :3] = offsets
    tokenizer = model.tokenizer
    alone = tokenizer.reduce(tokenizer.embed(torch.zeros(1, 1, 1, 6)))[0]
    expected = tokenizer.reduce(tokenizer.embed(groups))[0] - alone
    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)
    assert found.shape == (len(offsets), 48)
    assert found[(offsets == 0).all(dim=1)].abs().max() < 1e-5


def test_a_planted_channel_prefers_its_direction(randomise):
    """With layers that pass x on, the channels that see it respond most to the point farthest along x."""
    model = point_encoder(randomise)
    embed = model.tokenizer.embed
    with torch.no_grad():
        for part in embed.parameters():
            part.zero_()
        for norm in (embed.first[1], embed.second[1]):
            norm.weight.fill_(1.0)
            norm.running_mean.zero_()
            norm.running_var.fill_(1.0)
        embed.first[0].weight[0, 0] = 1.0
        embed.first[3].weight[0, 0] = 1.0
        embed.second[0].weight[0, 256] = 1.0  # behind the 256 channels of the group's maximum
        embed.second[3].weight[5, 0] = 1.0
    offsets = offset_grid(0.4, steps=9)
    responses = channel_responses(model, offsets)
    assert most_varied_channels(responses, 1).tolist() == [5]
    torch.testing.assert_close(favourite_offsets(responses, offsets)[5], torch.tensor([0.4, 0, 0]))


def test_top_groups_are_the_largest_of_all(randomise):
    model, channels = point_encoder(randomise, in_chans=6), torch.tensor([3, 40])
    clouds = torch.randn(7, 30, 6)
    found = TopGroups(model, channels, count=5)
    for part in clouds.split([1, 4, 2]):
        found.update(part)
    groups, centers = model.tokenizer.group(clouds)
    with torch.no_grad():
        values = model.tokenizer(clouds).x[..., channels]
    for row in range(2):
        best = values[..., row].flatten().topk(5)
        torch.testing.assert_close(found.scores[row], best.values, rtol=1e-5, atol=1e-5)
        assert torch.equal(found.objects[row], best.indices // 6)
        assert torch.equal(found.groups[row], groups.flatten(0, 1)[best.indices])
        assert torch.equal(found.centers[row], centers.flatten(0, 1)[best.indices])
    assert found.seen == 7


def test_top_groups_take_constant_memory(randomise):
    model = point_encoder(randomise)
    found, sizes = TopGroups(model, torch.tensor([0, 1]), count=5), []
    for _ in range(4):
        found.update(torch.randn(5, 20, 3))
        sizes.append(len(pickle.dumps(found)))
    assert max(sizes) - min(sizes) < 64, "counters become a byte longer, nothing else"


def test_misuse_is_refused(randomise):
    image, points = image_encoder(), point_encoder(randomise)
    with pytest.raises(ValueError, match="a point encoder has no patch filters"):
        principal_filters(points)
    with pytest.raises(ValueError, match="this encoder has 4 channels"):
        principal_filters(image_encoder(in_chans=4))
    with pytest.raises(ValueError, match=r"num must lie in \[1, 48\]"):
        principal_filters(image, num=49)
    for use in (
        lambda: channel_responses(image, torch.zeros(1, 3)),
        lambda: TopGroups(image, torch.tensor([0])),
    ):
        with pytest.raises(ValueError, match="an image encoder has no mini-PointNet"):
            use()
    with pytest.raises(ValueError, match=r"offsets must have shape \(M, 3\)"):
        channel_responses(points, torch.zeros(3))
    with pytest.raises(ValueError, match=r"channels \(num,\) in \[0, 48\)"):
        TopGroups(points, torch.tensor([48]))
    with pytest.raises(ValueError, match="expected num in"):
        most_varied_channels(torch.zeros(4, 8), 9)
    with pytest.raises(ValueError, match="radius > 0"):
        offset_grid(0.0)
