import pytest
import torch

import pointvit
from pointvit.config import CLIP, IMAGENET
from pointvit.views import normalize_images


def images() -> torch.Tensor:
    return torch.rand(2, 5, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def by_hand(mean, std) -> torch.Tensor:
    return torch.stack([(images()[:, :, c] - mean[c]) / std[c] for c in range(3)], 2)


def test_names_numbers_and_models_give_what_is_written_out():
    torch.testing.assert_close(normalize_images(images(), "imagenet"), by_hand(*IMAGENET))
    torch.testing.assert_close(normalize_images(images(), "clip"), by_hand(*CLIP))
    torch.testing.assert_close(normalize_images(images(), "unit"), 2 * images() - 1)
    own = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    torch.testing.assert_close(normalize_images(images(), *own), by_hand(*own))


def test_a_checkpoints_own_statistics_are_taken():
    model = pointvit.create_model("vit_small_patch14_dinov2", img_size=28, depth=1)
    model.meta.image_mean, model.meta.image_std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    expected = by_hand((0.4, 0.5, 0.6), (0.1, 0.2, 0.3))
    torch.testing.assert_close(normalize_images(images(), model), expected)
    pair = pointvit.create_pair("vit_small_patch14_dinov2", img_size=28, depth=1)
    pair.image.meta.image_mean, pair.image.meta.image_std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    torch.testing.assert_close(normalize_images(images(), pair), expected)
    with pytest.raises(ValueError, match="point encoder"):
        normalize_images(images(), pair.points)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((255 * torch.ones(3, 4, 4), "imagenet"), "divide bytes by 255"),
        ((torch.full((3, 4, 4), torch.nan), "imagenet"), r"in \[0, 1\]"),
        ((torch.ones(3, 4, 4, dtype=torch.uint8), "imagenet"), "floating point"),
        ((torch.ones(4, 4, 3), "imagenet"), r"\(\.\.\., 3, H, W\)"),
        ((torch.ones(3, 4, 4), "imagenett"), "did you mean imagenet"),
        ((torch.ones(3, 4, 4), "clip", (1.0, 1.0, 1.0)), "std goes with a mean"),
        ((torch.ones(3, 4, 4), (0.5, 0.5, 0.5)), "positive std"),
        ((torch.ones(3, 4, 4), (0.5, 0.5, 0.5), (1.0, 1.0, 0.0)), "positive std"),
        ((torch.ones(3, 4, 4), (0.5,), (1.0,)), "3 channels"),
    ],
)
def test_what_cannot_be_normalised_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        normalize_images(*arguments)
