"""What measurements accept as features and labels."""

import numpy as np
import pytest
import torch

from pointvit.compare.samples import Standard, as_labels, as_samples


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_features_of_any_kind_become_float64_without_a_gradient(dtype):
    values = torch.tensor([[1, 2], [3, 4]], dtype=dtype)
    if dtype.is_floating_point:
        values.requires_grad_()
    found = as_samples(values, "x")
    assert found.dtype == torch.float64
    assert not found.requires_grad
    assert found.tolist() == [[1, 2], [3, 4]]
    assert as_samples(np.array([[1.5, 2.5]]), "x").tolist() == [[1.5, 2.5]]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (torch.zeros(3), r"x must have shape \(N, D\).*got \(3,\)"),
        (torch.zeros(3, 0), r"x must have shape"),
        (torch.zeros(3, 2, 2), r"x must have shape"),
        (torch.zeros(1, 2), "x: this measure needs at least 2 objects, got 1"),
        (torch.tensor([[0.0], [np.nan], [np.inf]]), "2 of 3 objects are NaN or infinite, the first in row 1"),
    ],
)
def test_other_features_are_refused(features, message):
    with pytest.raises(ValueError, match=message):
        as_samples(features, "x", fewest=2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(2, dtype=torch.int64), "y must be 3 whole numbers"),
        (torch.zeros(3), "y must be 3 whole numbers.*float32"),
        (torch.zeros(3, 1, dtype=torch.int64), r"\(3, 1\)"),
        (torch.tensor([0, -1, 2]), "classes from 0 on, got -1"),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        as_labels(labels, 3, "y")


def test_labels_of_a_byte_each_become_int64():
    assert as_labels(np.array([1, 0, 255], dtype=np.uint8), 3, "y").tolist() == [1, 0, 255]


def test_channels_are_standardised_and_constant_ones_become_zero():
    x = torch.randn(50, 3, dtype=torch.float64) * torch.tensor([1e-6, 1.0, 1e6]) + 5
    x[:, 1] = 0.1
    found = Standard.of(x)(x)
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(found.square().mean(dim=0), torch.tensor([1.0, 0.0, 1.0]).double())
    # Other objects are brought to the scale of the first ones.
    other = Standard.of(x)(x[:1] + x.std(dim=0, correction=0))
    torch.testing.assert_close(other[0, 2], found[0, 2] + 1)
