"""Attention rollout against its definition, token by token."""

import pytest
import torch
from torch import Tensor

import pointvit
from pointvit.compare import attention_rollout


def weights(layers: int, batch: int, heads: int, tokens: int) -> list[Tensor]:
    return [torch.randn(batch, heads, tokens, tokens).mul(2).softmax(dim=-1) for _ in range(layers)]


def by_paths(layers: list[Tensor]) -> Tensor:
    """The share of input j in output i: the sum over every path through the layers, one by one."""
    *before, last = layers
    tokens = len(last)
    result = torch.zeros(tokens, tokens)
    earlier = by_paths(before) if before else torch.eye(tokens)
    for out in range(tokens):
        for source in range(tokens):
            for through in range(tokens):
                step = 0.5 * last[out, through] + 0.5 * (out == through)
                result[out, source] += step * earlier[through, source]
    return result


@pytest.mark.parametrize(("layers", "batch", "heads", "tokens"), [(1, 1, 1, 2), (3, 2, 4, 5), (2, 3, 1, 1)])
def test_is_the_sum_over_all_paths(layers, batch, heads, tokens):
    given = weights(layers, batch, heads, tokens)
    found = attention_rollout(given)
    for b in range(batch):
        torch.testing.assert_close(found[b], by_paths([w[b].mean(0) for w in given]), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.sum(-1), torch.ones(batch, tokens))


def test_the_first_layer_comes_first():
    """Token 0 reads 1 in the first layer and token 2 reads 0 in the second: then 2 is made of 1."""
    first, second = torch.eye(3), torch.eye(3)
    first[0], second[2] = torch.tensor([0.0, 1, 0]), torch.tensor([1.0, 0, 0])
    found = attention_rollout([first[None, None], second[None, None]])[0]
    assert found[2].tolist() == [0.25, 0.25, 0.5]
    assert attention_rollout([second[None, None], first[None, None]])[0, 2].tolist() == [0.5, 0.0, 0.5]


def test_half_precision_is_computed_in_float32():
    given = weights(12, 1, 3, 65)
    found = attention_rollout([w.bfloat16() for w in given])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 65))
    torch.testing.assert_close(found, attention_rollout(given), atol=1e-2, rtol=0)


def test_a_models_weights(randomise):
    model = pointvit.create_model("pointvit_tiny", depth=2, num_groups=8, group_size=4).eval()
    with torch.inference_mode():
        found = attention_rollout(randomise(model).attention_weights(torch.randn(2, 32, 3)))
    assert found.shape == (2, 9, 9)
    assert float(found.min()) > 0
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 9))


@pytest.mark.parametrize(
    "given",
    [
        [],
        [torch.ones(1, 4, 4)],
        [torch.ones(1, 1, 4, 5)],
        [torch.ones(1, 1, 4, 4), torch.ones(1, 1, 5, 5)],
        [torch.ones(1, 1, 4, 4), torch.ones(2, 1, 4, 4)],
    ],
)
def test_other_shapes_are_refused(given):
    with pytest.raises(ValueError, match="attention rollout needs"):
        attention_rollout(given)
