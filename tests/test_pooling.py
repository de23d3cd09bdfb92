"""Pools and heads."""

from collections.abc import Callable

import pytest
import torch
from timm.layers import AttentionPoolLatent
from torch import Tensor, nn

from pointvit.pooling import HEADS, POOLS, AttentionPool, Pool, make_head
from pointvit.trunk import TrunkConfig

Randomise = Callable[..., nn.Module]
TRUNK = TrunkConfig(embed_dim=24, num_heads=3)


def tokens() -> Tensor:
    return torch.randn(2, 9, 24, generator=torch.Generator().manual_seed(0))


def test_pools_by_their_definitions() -> None:
    """One class and two register tokens stand before six others."""
    x = tokens()
    cls, largest, mean = x[:, 0], x[:, 3:].max(dim=1).values, x[:, 3:].sum(dim=1) / 6
    expected = {
        "cls": cls,
        "mean": mean,
        "max": largest,
        "cls+max": torch.cat([cls, largest], dim=1),
        "cls+mean": torch.cat([cls, mean], dim=1),
        "cls+dist": x[:, :2].flatten(1),
        "cls+max+mean": torch.cat([cls, largest, mean], dim=1),
    }
    assert {*expected, "map"} == set(POOLS)
    for kind, value in expected.items():
        pool = Pool(kind, TRUNK, num_prefix=3, has_cls=True)
        torch.testing.assert_close(pool(x), value)
        assert pool.features == value.shape[1]
        assert not list(pool.parameters())


def test_no_class_token_to_pool() -> None:
    x = tokens()
    torch.testing.assert_close(Pool("mean", TRUNK, num_prefix=0, has_cls=False)(x), x.mean(dim=1))
    for kind in ("cls", "cls+max"):
        with pytest.raises(ValueError, match="needs a class token, and this model has none"):
            Pool(kind, TRUNK, num_prefix=0, has_cls=False)
    with pytest.raises(ValueError, match=r"global_pool='cls.dist' needs a distillation token"):
        Pool("cls+dist", TRUNK, num_prefix=1, has_cls=True)


@torch.no_grad()
def test_attention_pool_equals_timm(randomise: Randomise) -> None:
    theirs = randomise(AttentionPoolLatent(24, num_heads=3, mlp_ratio=4, norm_layer=nn.LayerNorm))
    ours = AttentionPool(TrunkConfig(embed_dim=24, num_heads=3, norm_eps=1e-5))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    torch.testing.assert_close(ours(tokens()), theirs(tokens()), rtol=1e-5, atol=1e-5)
    pool = Pool("map", TRUNK, num_prefix=0, has_cls=False)
    assert (pool.features, pool(tokens()).shape) == (24, (2, 24))


PARAMETERS = {
    "linear": 48 * 5 + 5,
    "projection": 48 * 5,
    "distilled": 48 * 5 + 5 + 5,
    "point_bert": 48 * 256 + 256 + 256 * 5 + 5,
    "point_mae": 48 * 256 + 256 + 512 + 256 * 256 + 256 + 512 + 256 * 5 + 5,
    "pix4point": 48 * 256 + 512 + 256 * 256 + 512 + 256 * 5 + 5,
}


@pytest.mark.parametrize(("kind", "parameters"), PARAMETERS.items())
def test_heads(kind: str, parameters: int) -> None:
    head = make_head(kind, 48, 5)
    assert sum(p.numel() for p in head.parameters()) == parameters
    assert head(torch.randn(2, 48)).shape == (2, 5)
    assert head.eval()(torch.randn(1, 48)).shape == (1, 5)
    assert isinstance(make_head(kind, 48, 0), nn.Identity)


def test_every_head_has_a_row() -> None:
    assert set(HEADS) == set(PARAMETERS)


def test_the_distilled_head_is_the_mean_of_two() -> None:
    head, x = make_head("distilled", 48, 5), torch.randn(2, 48)
    of_cls, of_dist = head.cls(x[:, :24]), head.dist(x[:, 24:])
    torch.testing.assert_close(head(x), of_cls.lerp(of_dist, 0.5))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"global_pool must be one of cls, mean, .*, got 'avg'"):
        Pool("avg", TRUNK, num_prefix=1, has_cls=True)
    with pytest.raises(ValueError, match=r"head must be one of linear, .*, got 'mlp'"):
        make_head("mlp", 48, 5)
