"""Running mean and spread against the same numbers all at once."""

import pytest
import torch

from pointvit.compare.moments import LayerMoments, Moments


def test_batches_of_any_size_give_the_numbers_of_all_at_once():
    values = torch.randn(40, 3, 2, dtype=torch.float64) * 1e-3 + 1e4
    moments = Moments()
    for part in (*values.split([1, 7, 0, 30, 2]),):
        moments.update(part)
    found = moments.result()
    assert found.count == 40
    torch.testing.assert_close(found.mean, values.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(found.std, values.std(0), rtol=1e-8, atol=0)


def test_one_object_has_no_spread_and_none_is_refused():
    moments = Moments()
    with pytest.raises(ValueError, match="no object has been measured"):
        moments.result()
    moments.update(torch.tensor([[2.0, 3.0]]))
    assert moments.result().std.tolist() == [0.0, 0.0]


def test_layers_come_in_order():
    moments = LayerMoments()
    with pytest.raises(ValueError, match="no object has been measured"):
        moments.result()
    for layer in (2, 0, 1):
        moments.update(layer, torch.full((3, 4), float(layer)))
    found = moments.result()
    assert found.mean[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert found.mean.shape == found.std.shape == (3, 4)
    assert found.count == 3
