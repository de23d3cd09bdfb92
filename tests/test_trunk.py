"""The encoder: attention in all its forms, stochastic depth, the two ways of adding positions."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pointvit import trunk as trunk_module
from pointvit.layers import LayerScale
from pointvit.trunk import Attention, Block, Trunk, TrunkConfig

Randomise = Callable[..., nn.Module]
CONFIG = TrunkConfig(embed_dim=48, depth=3, num_heads=3)


def tokens(batch: int = 2, length: int = 17, dim: int = 48) -> Tensor:
    return torch.randn(batch, length, dim, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_attention_equals_torch_multihead_attention(bias: bool, randomise: Randomise) -> None:
    ours = randomise(Attention(replace(CONFIG, qkv_bias=bias)))
    theirs = nn.MultiheadAttention(48, 3, batch_first=True)
    theirs.in_proj_weight.copy_(ours.qkv.weight)
    theirs.in_proj_bias.copy_(ours.qkv.bias if bias else torch.zeros(144))
    theirs.out_proj.load_state_dict(ours.proj.state_dict())
    x = tokens()
    expected, expected_weights = theirs(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(ours(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.forward_with_weights(x)[1], expected_weights, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("length", [1, 17, 96, 97, 513])
@torch.no_grad()
def test_every_path_of_attention_gives_the_same(
    length: int, dtype: torch.dtype, tolerance: float, randomise: Randomise, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, x = randomise(Attention(CONFIG)).to(dtype), tokens(length=length).to(dtype)
    chosen = attention(x)
    with_weights, weights = attention.forward_with_weights(x)
    monkeypatch.setattr(trunk_module, "_plain_is_faster", lambda q: False)
    fused = attention(x)
    assert fused.dtype == dtype
    for output in (chosen, with_weights):
        torch.testing.assert_close(output, fused, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(weights.float().sum(-1), torch.ones(2, 3, length), rtol=0, atol=tolerance)


def test_gradients_of_the_plain_and_the_fused_path_are_equal(
    randomise: Randomise, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = randomise(Attention(CONFIG))
    gradients = []
    for plain in (True, False):
        monkeypatch.setattr(trunk_module, "_plain_is_faster", lambda q, plain=plain: plain)
        gradients.append(
            torch.autograd.grad(attention(tokens()).square().sum(), list(attention.parameters()))
        )
    for plain, fused in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, fused, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_attention_weights_belong_to_the_forward_pass(randomise: Randomise) -> None:
    trunk = randomise(Trunk(replace(CONFIG, norm_pre=True, layer_scale=0.1))).eval()
    x, pos = tokens(), tokens(batch=1)
    weights = trunk.attention_weights(x, pos)
    assert [w.shape for w in weights] == [(2, 3, 17, 17)] * 3
    inputs = [trunk.norm_pre(x), *trunk.forward_intermediates(x, pos)]
    for block, before, after, w in zip(trunk.blocks, inputs, inputs[1:], weights, strict=False):
        torch.testing.assert_close(w.sum(-1), torch.ones(2, 3, 17))
        assert bool((w >= 0).all())
        output, again = block.forward_with_weights(before + pos)
        torch.testing.assert_close(again, w, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(output, after, rtol=1e-5, atol=1e-5)


def test_block_is_pre_norm_with_layer_scale(randomise: Randomise) -> None:
    block, x = randomise(Block(replace(CONFIG, layer_scale=0.1), 0.0)).eval(), tokens()
    y = x + block.ls1.gamma * block.attn(block.norm1(x))
    expected = y + block.ls2.gamma * block.mlp(block.norm2(y))
    torch.testing.assert_close(block(x), expected)
    assert isinstance(block.ls1, LayerScale)
    assert isinstance(Block(CONFIG, 0.0).ls1, nn.Identity)


@torch.no_grad()
def test_positions_at_every_block_equal_a_plain_loop(randomise: Randomise) -> None:
    trunk, x, pos = randomise(Trunk(CONFIG)).eval(), tokens(), tokens(batch=1) + 0.5
    expected = x
    for block in trunk.blocks:
        expected = block(expected + pos)
    expected = trunk.norm(expected)
    assert torch.equal(trunk(x, pos), expected)
    assert not torch.allclose(trunk(x + pos), expected, atol=1e-2), "adding once is something else"
    torch.testing.assert_close(trunk(x, torch.zeros(1, 17, 48)), trunk(x))


@torch.no_grad()
def test_intermediates(randomise: Randomise) -> None:
    trunk, x, pos = randomise(Trunk(CONFIG)).eval(), tokens(), tokens(batch=1)
    first, second, third = trunk.forward_intermediates(x, pos)
    assert torch.equal(trunk.norm(third), trunk(x, pos))
    assert torch.equal(second, trunk.blocks[1](first + pos))
    chosen = trunk.forward_intermediates(x, pos, indices=[-1, 0, 0], norm=True)
    for got, expected in zip(chosen, (third, first, first), strict=True):
        assert torch.equal(got, trunk.norm(expected))
    assert trunk.forward_intermediates(x, indices=[]) == []
    for index in (3, -4):
        with pytest.raises(IndexError, match=rf"block index must lie in \[-3, 2\] for 3 blocks, got {index}"):
            trunk.forward_intermediates(x, indices=[index])


def test_drop_path_grows_linearly_with_depth_and_is_off_in_eval() -> None:
    trunk = Trunk(replace(CONFIG, drop_path_rate=0.2))
    assert [block.drop_path1.rate for block in trunk.blocks] == pytest.approx([0, 0.1, 0.2])
    assert [block.drop_path2.rate for block in trunk.blocks] == pytest.approx([0, 0.1, 0.2])
    assert [
        block.drop_path1.rate for block in Trunk(replace(CONFIG, depth=1, drop_path_rate=0.2)).blocks
    ] == [0]


@pytest.mark.parametrize("rate", ["drop_rate", "attn_drop_rate", "drop_path_rate"])
@pytest.mark.parametrize("length", [17, 97])
def test_dropout_acts_in_training_only(rate: str, length: int, randomise: Randomise) -> None:
    trunk, x = randomise(Trunk(replace(CONFIG, **{rate: 0.5}))), tokens(length=length)
    plain = Trunk(CONFIG)
    plain.load_state_dict(trunk.state_dict())
    assert not torch.equal(trunk(x), trunk(x))
    assert torch.equal(trunk.eval()(x), plain(x))


def test_norms_where_the_configuration_has_them() -> None:
    names = {name for name, _ in Trunk(CONFIG).named_parameters()}
    clip = {name for name, _ in Trunk(replace(CONFIG, norm_pre=True, final_norm=False)).named_parameters()}
    assert names - clip == {"norm.weight", "norm.bias"}
    assert clip - names == {"norm_pre.weight", "norm_pre.bias"}
    eps = {
        m.eps
        for m in Trunk(replace(CONFIG, norm_pre=True, norm_eps=1e-5)).modules()
        if isinstance(m, nn.LayerNorm)
    }
    assert eps == {1e-5}


def test_parameter_names_of_a_block() -> None:
    names = [name for name, _ in Block(replace(CONFIG, layer_scale=1e-5), 0.0).named_parameters()]
    assert names == [
        *(
            "norm1.weight",
            "norm1.bias",
            "attn.qkv.weight",
            "attn.qkv.bias",
            "attn.proj.weight",
            "attn.proj.bias",
        ),
        *("ls1.gamma", "norm2.weight", "norm2.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight"),
        *("mlp.fc2.bias", "ls2.gamma"),
    ]


def test_a_hidden_width_survives_its_ratio() -> None:
    """15/88 * 88 is 14.999... in floating point."""
    config = TrunkConfig(embed_dim=88, num_heads=2, depth=1, mlp_ratio=15 / 88)
    assert Trunk(config).blocks[0].mlp.fc1.out_features == 15


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embed_dim": 50}, "embed_dim must be a multiple of num_heads, got embed_dim=50 and num_heads=12"),
        ({"norm_eps": 0.0}, r"norm_eps must lie in \(0, 1\), got 0.0"),
        ({"norm_eps": float("nan")}, r"norm_eps must lie in \(0, 1\), got nan"),
        ({"norm_eps": float("inf")}, r"norm_eps must lie in \(0, 1\), got inf"),
        ({"mlp_ratio": 1e308}, r"mlp_ratio must be a finite number, got 1e\+308"),
        ({"mlp_ratio": float("nan")}, "mlp_ratio must be a finite number, got nan"),
        ({"activation": "relu"}, "activation must be one of gelu, gelu_tanh, quick_gelu, got 'relu'"),
        ({"drop_path_rate": 1.0}, r"drop_path_rate must lie in \[0, 1\), got 1.0"),
        ({"attn_drop_rate": -0.1}, r"attn_drop_rate must lie in \[0, 1\), got -0.1"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrunkConfig(**settings)
