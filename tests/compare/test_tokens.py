"""Token statistics against the same numbers computed from all tokens at once."""

import math
import pickle

import pytest
import torch
from torch import Tensor

from pointvit.compare import Layer, TokenStatistics, effective_rank


def layer(index: int, tokens: Tensor, num_prefix: int = 1) -> Layer:
    prefix = torch.full((tokens.shape[0], num_prefix, tokens.shape[2]), 1e4)
    return Layer(
        index, torch.cat([prefix, tokens], dim=1), None, torch.zeros(1, tokens.shape[1], 2), num_prefix
    )


def test_equals_all_at_once():
    tokens = torch.randn(2, 12, 20, 6) * torch.tensor([3.0, 1, 1, 0.5, 0.1, 0.1]) + 40
    statistics = TokenStatistics()
    for batch in tokens.split([5, 1, 6], dim=1):
        for index in (0, 1):
            statistics.observe(layer(index, batch[index], num_prefix=3))
    found = statistics.result()
    norms = tokens.norm(dim=-1)
    torch.testing.assert_close(found.norm.mean.float(), norms.mean(dim=(1, 2)))
    torch.testing.assert_close(found.norm.std.float(), norms.mean(dim=2).std(dim=1), rtol=1e-4, atol=0)
    torch.testing.assert_close(found.max_norm.float(), norms.amax(dim=(1, 2)))
    torch.testing.assert_close(found.mean.mean.float(), tokens.mean(dim=(1, 2, 3)))
    for index in (0, 1):
        expected = effective_rank(tokens[index].double().reshape(-1, 6).T.cov())
        assert float(found.effective_rank[index]) == pytest.approx(expected, rel=1e-5)
    assert found.norm.count == 12


def test_effective_rank_counts_directions():
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert effective_rank(torch.diag(torch.tensor([2.0, 2, 2, 0, 0]))) == pytest.approx(3)
    assert effective_rank(torch.ones(5, 5)) == pytest.approx(1)
    assert math.isnan(effective_rank(torch.zeros(5, 5)))
    shares = torch.tensor([0.5, 0.25, 0.25])
    assert effective_rank(torch.diag(4 * shares)) == pytest.approx(2**1.5)


def test_planted_outliers_are_counted():
    tokens = torch.nn.functional.normalize(torch.randn(4, 50, 8), dim=-1)
    tokens[1, 7] *= 3.1
    tokens[1, 9] *= 2.9
    tokens[3, :5] *= 100
    statistics = TokenStatistics()
    statistics.observe(layer(0, tokens))
    assert float(statistics.result().outliers.mean[0]) == pytest.approx(6 / 200)
    assert float(statistics.result().max_norm[0]) == pytest.approx(100, rel=1e-5)
    strict = TokenStatistics(outlier_factor=10)
    strict.observe(layer(0, tokens))
    assert float(strict.result().outliers.mean[0]) == pytest.approx(5 / 200)


def test_memory_does_not_grow_with_the_objects():
    statistics, sizes = TokenStatistics(), []
    for _ in range(5):
        for _ in range(10):
            statistics.observe(layer(0, torch.randn(5, 9, 6)))
        sizes.append(len(pickle.dumps(statistics)))
    assert max(sizes) - min(sizes) < 64, "counters become a byte longer, nothing else"


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="outlier_factor must be more than 1"):
        TokenStatistics(outlier_factor=1.0)
    with pytest.raises(ValueError, match="no object has been measured"):
        TokenStatistics().result()
