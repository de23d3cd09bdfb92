"""The complete encoder: what must not change its logits, gradients, heads, and pairs that share a trunk."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pointvit
from pointvit.config import POSITION_MODES, ViTConfig
from pointvit.model import Metadata, Pair, ViT
from pointvit.pooling import HEADS, POOLS
from pointvit.tokenizers import POSITIONS_2D, ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

Randomise = Callable[..., nn.Module]
TRUNK = TrunkConfig(embed_dim=48, depth=2, num_heads=3)
IMAGE = ViTConfig(TRUNK, ImageTokenizerConfig((32, 48), (16, 16)), num_classes=5)
POINTS = ViTConfig(
    TRUNK, PointTokenizerConfig(8, 4, width=16), num_classes=5, global_pool="cls+max", head="point_mae"
)
KINDS = pytest.mark.parametrize("config", [IMAGE, POINTS], ids=["image", "points"])


def example(config: ViTConfig, batch: int = 2, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if config.modality == "image":
        return torch.randn(batch, config.tokenizer.in_chans, *config.tokenizer.img_size, generator=generator)
    return torch.rand(batch, 40, config.tokenizer.in_chans, generator=generator)


def pooling(kind: str) -> dict[str, Any]:
    """The settings with which a model can have this pool."""
    return {"global_pool": kind, **({"num_reg_tokens": 1} if "dist" in kind else {})}


def built(config: ViTConfig, randomise: Randomise, **settings: Any) -> ViT:
    return randomise(ViT(config.override(settings))).eval()


@KINDS
@torch.no_grad()
def test_shapes_and_parts(config: ViTConfig, randomise: Randomise) -> None:
    model, x = built(config, randomise, num_reg_tokens=3), example(config)
    patches = 6 if config.modality == "image" else 8
    tokens = model.forward_features(x)
    assert tokens.shape == (2, 1 + 3 + patches, 48)
    assert (model.embed_dim, model.num_classes, model.num_prefix_tokens) == (48, 5, 4)
    representation = model.forward_head(tokens, pre_logits=True)
    assert representation.shape == (2, model.pool.features)
    assert torch.equal(model(x), model.head(representation))
    assert torch.equal(built(config, randomise, num_reg_tokens=3, num_classes=0)(x), representation)


@KINDS
@torch.no_grad()
def test_batching_and_repetition_change_nothing(config: ViTConfig, randomise: Randomise) -> None:
    model = built(
        config, randomise, drop_rate=0.5, drop_path_rate=0.5, attn_drop_rate=0.5, head_drop_rate=0.5
    )
    x = example(config, batch=4)
    logits = model(x)
    assert torch.equal(model(x), logits)
    for row in range(4):
        torch.testing.assert_close(model(x[row : row + 1]), logits[row : row + 1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pos_mode", POSITION_MODES)
@pytest.mark.parametrize("pool", POOLS)
@torch.no_grad()
def test_permuting_the_points_changes_no_logit(pos_mode: str, pool: str, randomise: Randomise) -> None:
    """As long as sampling starts at the same point, which is the first."""
    model = built(POINTS, randomise, pos_mode=pos_mode, **pooling(pool))
    x = example(POINTS)
    order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(39)])
    torch.testing.assert_close(model(x[:, order]), model(x), rtol=0, atol=1e-4)
    assert not torch.allclose(model(x.flip(1)), model(x), atol=1e-4), "another start is another sample"


@torch.no_grad()
def test_a_padded_row_equals_its_single_run(randomise: Randomise) -> None:
    model, x, lengths = built(POINTS, randomise), example(POINTS, batch=3), torch.tensor([40, 17, 3])
    for row, n in zip(x, lengths.tolist(), strict=True):
        row[n:] = torch.nan
    logits, tokens = model(x, lengths), model.forward_features(x, lengths)
    weights, (last,) = (
        model.attention_weights(x, lengths),
        model.forward_intermediates(x, [-1], lengths=lengths),
    )
    for row, n in enumerate(lengths.tolist()):
        single = x[row : row + 1, :n]
        torch.testing.assert_close(logits[row : row + 1], model(single), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            tokens[row : row + 1], model.forward_features(single), rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(
            weights[1][row : row + 1], model.attention_weights(single)[1], rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(
            last[row : row + 1], model.forward_intermediates(single, [-1])[0], rtol=1e-5, atol=1e-5
        )


VARIATIONS: list[dict[str, Any]] = [
    *(pooling(pool) for pool in POOLS),
    *({"head": head} for head in HEADS),
    *({"pos_mode": mode} for mode in POSITION_MODES),
    {"class_token": False, "global_pool": "mean"},
    {"num_reg_tokens": 4, "fc_norm": True, "representation_size": 12},
    {"layer_scale": 1e-5, "norm_pre": True, "qkv_bias": False, "activation": "quick_gelu"},
    {"final_norm": False, "fc_norm": True},
    {"swiglu": True, "attn_norm": True, "mlp_norm": True},
]


@pytest.mark.parametrize("settings", VARIATIONS, ids=str)
@KINDS
def test_every_trainable_parameter_gets_a_gradient(
    config: ViTConfig, settings: dict[str, Any], randomise: Randomise
) -> None:
    model = built(config, randomise, **settings)
    model(example(config)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name
        assert bool(parameter.grad.isfinite().all()), name


@pytest.mark.parametrize("kind", POSITIONS_2D)
def test_positions_of_images_get_gradients_where_they_are_learned(kind: str, randomise: Randomise) -> None:
    model = built(IMAGE, randomise, pos_embed=kind)
    model(example(IMAGE)).square().sum().backward()
    assert all(bool(p.grad.any()) for p in model.parameters())
    learned = {name for name, _ in model.named_parameters() if "pos" in name}
    assert len(learned) == {"learned": 2, "learned_2d": 3, "sincos_2d": 1, "none": 0}[kind]


@KINDS
@torch.no_grad()
def test_forward_is_eq_1_to_4(config: ViTConfig, randomise: Randomise) -> None:
    """Class token and registers in front, positions on all but the registers, encoder, pool, head."""
    model, x = built(config, randomise, num_reg_tokens=2, global_pool="cls", head="linear"), example(config)
    tokens = model.tokenizer(x)
    cls = (model.cls_token + model.tokenizer.cls_pos).expand(2, -1, -1)
    z = torch.cat([cls, model.reg_tokens.expand(2, -1, -1), tokens.x + tokens.pos], dim=1)
    for block in model.trunk.blocks:
        z = z + block.attn(block.norm1(z))
        z = z + block.mlp(block.norm2(z))
    torch.testing.assert_close(model(x), model.head(model.trunk.norm(z)[:, 0]), rtol=1e-5, atol=1e-5)


@KINDS
@torch.no_grad()
def test_positions_at_every_block(config: ViTConfig, randomise: Randomise) -> None:
    model, x = built(config, randomise, pos_mode="every_block", num_reg_tokens=2), example(config)
    tokens = model.tokenizer(x)
    z = torch.cat([model.cls_token.expand(2, -1, -1), model.reg_tokens.expand(2, -1, -1), tokens.x], dim=1)
    pos = torch.zeros_like(z)
    pos[:, :1], pos[:, 3:] = model.tokenizer.cls_pos, tokens.pos
    for block in model.trunk.blocks:
        z = block(z + pos)
    torch.testing.assert_close(model.forward_features(x), model.trunk.norm(z), rtol=1e-5, atol=1e-5)
    once = built(config, randomise, pos_mode="once", num_reg_tokens=2)
    once.load_state_dict(model.state_dict())
    assert not torch.allclose(once(x), model(x), atol=1e-2)


@KINDS
@torch.no_grad()
def test_attention_weights_and_intermediates(config: ViTConfig, randomise: Randomise) -> None:
    model, x = built(config, randomise), example(config)
    weights = model.attention_weights(x)
    count = model.forward_features(x).shape[1]
    assert [w.shape for w in weights] == [(2, 3, count, count)] * 2
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(2, 3, count))
    first, last = model.forward_intermediates(x)
    block = model.trunk.blocks[1]
    torch.testing.assert_close(block.forward_with_weights(first)[1], weights[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(block.forward_with_weights(first)[0], last, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.forward_intermediates(x, [1], norm=True)[0], model.forward_features(x))


def test_the_pre_training_head_has_a_tanh_layer(randomise: Randomise) -> None:
    model, x = built(IMAGE, randomise, representation_size=12), example(IMAGE)
    tokens = model.forward_features(x)
    expected = torch.tanh(model.pre_logits[0](tokens[:, 0]))
    torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), expected)
    torch.testing.assert_close(model(x), model.head(expected))


@pytest.mark.parametrize("pool", POOLS)
@KINDS
def test_a_new_head_keeps_all_before_it(config: ViTConfig, pool: str, randomise: Randomise) -> None:
    model, x = (
        built(config, randomise, fc_norm=True, representation_size=12, **pooling(pool)),
        example(config),
    )
    before = {n: p.clone() for n, p in model.state_dict().items() if not n.startswith("head.")}
    representation = model.forward_head(model.forward_features(x), pre_logits=True)
    model.reset_classifier(7)
    assert model.num_classes == 7
    assert model(x).shape == (2, 7)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    model.reset_classifier(0)
    assert torch.equal(model(x), representation)
    assert not any(module.training for module in model.modules()), "a model in eval mode stays in it"


@pytest.mark.parametrize("new", POOLS)
@pytest.mark.parametrize("old", POOLS)
@torch.no_grad()
def test_a_new_pool_has_norm_and_head_of_its_width(old: str, new: str, randomise: Randomise) -> None:
    model = built(POINTS, randomise, fc_norm=True, **{**pooling(new), **pooling(old)})
    norm, width = model.fc_norm, model.pool.features
    model.reset_classifier(3, global_pool=new)
    assert model.config.global_pool == model.pool.kind == new
    assert model.fc_norm.normalized_shape == (model.pool.features,)
    assert (model.fc_norm is norm) == (model.pool.features == width)
    assert model(example(POINTS)).shape == (2, 3)
    rebuilt = ViT(model.config).eval()
    rebuilt.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(rebuilt(example(POINTS)), model(example(POINTS)))


def test_a_new_head_follows_precision_and_mode(randomise: Randomise) -> None:
    model = built(POINTS, randomise).bfloat16().train()
    model.tokenizer.eval()
    model.reset_classifier(3, global_pool="map")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.head.training
    assert not model.tokenizer.training, "a frozen tokenizer stays frozen"
    assert model.eval()(example(POINTS)).dtype == torch.bfloat16


def test_a_refused_head_changes_nothing(randomise: Randomise) -> None:
    model = built(POINTS, randomise, class_token=False, global_pool="max")
    before = model.config, model(example(POINTS))
    with pytest.raises(ValueError, match="needs a class token"):
        model.reset_classifier(3, global_pool="cls")
    with pytest.raises(ValueError, match="must not be negative"):
        model.reset_classifier(-1)
    assert model.config == before[0]
    assert torch.equal(model(example(POINTS)), before[1])


@pytest.mark.parametrize(
    ("config", "x", "message"),
    [
        (IMAGE, torch.zeros(1, 3, 33, 48), r"images must have shape \(B, 3, H, W\) .*, got \(1, 3, 33, 48\)"),
        (IMAGE, torch.zeros(1, 40, 3), r"images must have shape .*, got \(1, 40, 3\)"),
        (POINTS, torch.zeros(1, 40, 6), r"points must have shape \(B, P, 3\) with P >= 1, got \(1, 40, 6\)"),
        (POINTS, torch.zeros(1, 3, 32, 48), r"points must have shape .*, got \(1, 3, 32, 48\)"),
    ],
)
def test_input_that_does_not_fit(config: ViTConfig, x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViT(config)(x)


@pytest.mark.parametrize("behaviour", [{"lengths": torch.tensor([0, 5])}, {"lengths": torch.tensor([5, 41])}])
def test_lengths_out_of_range(behaviour: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"lengths must lie in \[1, 40\]"):
        ViT(POINTS)(example(POINTS), **behaviour)


@pytest.mark.parametrize("points", [1, 5, 100_000])
@torch.no_grad()
def test_any_number_of_points(points: int) -> None:
    model = pointvit.create_model("pointvit_tiny").eval()
    cloud = torch.rand(1, points, 3, generator=torch.Generator().manual_seed(0))
    assert bool(model(cloud).isfinite().all())
    assert bool(model(torch.zeros_like(cloud)).isfinite().all()), "all points equal"


@torch.no_grad()
def test_half_precision_is_close(randomise: Randomise) -> None:
    for config in (IMAGE, POINTS):
        model, x = built(config, randomise), example(config)
        expected = model(x)
        half = model.bfloat16()(x.bfloat16() if config is IMAGE else x)
        assert half.dtype == torch.bfloat16
        assert ((half.float() - expected).abs().max() / expected.abs().max()).item() < 0.1


def test_meta_device() -> None:
    with torch.device("meta"):
        models = [ViT(config) for config in (IMAGE, POINTS, IMAGE.override({"pos_embed": "sincos_2d"}))]
    assert {t.device.type for m in models for t in [*m.parameters(), *m.buffers()]} == {"meta"}


def test_settings_survive_json() -> None:
    import json

    for config in (IMAGE, POINTS, IMAGE.override({"stem": (1, 1), "layer_scale": 1e-5})):
        assert ViTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(
        ValueError, match="unknown key 'embed_dims' in a saved TrunkConfig; did you mean embed_dim"
    ):
        ViTConfig.from_dict({"modality": "image", "trunk": {"embed_dims": 3}})
    with pytest.raises(ValueError, match="modality must be image or points, got None"):
        ViTConfig.from_dict({})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pos_mode": "twice"}, "pos_mode must be one of once, every_block, got 'twice'"),
        ({"num_classes": -1}, "must not be negative"),
        ({"num_reg_tokens": -1}, "must not be negative"),
        (
            {"num_group": 4},
            "unknown model setting 'num_group' for an encoder of points; did you mean num_groups",
        ),
        ({"img_size": 224}, "unknown model setting 'img_size' for an encoder of points"),
        ({"trunk": TRUNK}, "unknown model setting 'trunk'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        POINTS.override(settings)


def test_metadata_belongs_to_one_model() -> None:
    one, other = ViT(POINTS), ViT(POINTS)
    one.meta.source["file"] = "x"
    assert other.meta == Metadata()


def pair(**settings: Any) -> Pair:
    small = {"num_classes": 5, "num_groups": 8, "group_size": 4, "depth": 2, "img_size": 32}
    return pointvit.create_pair("vit_tiny_patch16_224", **small, **settings)


def test_a_pair_shares_parameters() -> None:
    both = pair(num_reg_tokens=2)
    assert both.trunk is both.image.trunk is both.points.trunk
    assert both.image.cls_token is both.points.cls_token
    assert both.image.reg_tokens is both.points.reg_tokens
    shared = {id(p) for p in both.image.parameters()} & {id(p) for p in both.points.parameters()}
    trunk = {id(p) for p in both.trunk.parameters()}
    assert shared == trunk | {id(both.image.cls_token), id(both.image.reg_tokens)}
    assert len(list(both.parameters())) == len({id(p) for p in both.parameters()})
    assert both.points.config.trunk == both.image.config.trunk


def test_a_step_on_one_is_seen_by_the_other(randomise: Randomise) -> None:
    both = randomise(pair()).eval()
    image, cloud = torch.randn(2, 3, 32, 32), torch.rand(2, 40, 3)
    before = both.image(image)
    both.points(cloud).square().mean().backward()
    torch.optim.SGD(both.points.parameters(), lr=0.1).step()
    assert not torch.allclose(both.image(image), before, atol=1e-4)
    assert both.trunk.blocks[0].mlp.fc1.weight.grad is not None
    assert both.image.tokenizer.proj.weight.grad is None


@pytest.mark.parametrize(
    "settings",
    [
        {"class_token": False, "global_pool": "mean"},
        {"fc_norm": True, "final_norm": False, "global_pool": "mean"},
    ],
)
def test_pairs_of_other_kinds_run(settings: dict[str, Any]) -> None:
    both = pair(**settings).eval()
    assert both.image(torch.randn(2, 3, 32, 32)).shape == both.points(torch.rand(2, 40, 3)).shape == (2, 5)
    normalised = both.points.config.trunk.final_norm or both.points.config.fc_norm
    assert normalised, "the features of a pre-norm trunk are normalised somewhere"


def test_encoders_that_cannot_share() -> None:
    image = ViT(IMAGE)
    with pytest.raises(
        ValueError, match="a pair shares one trunk, and the two configurations describe different ones"
    ):
        Pair(image, ViT(replace(POINTS, trunk=replace(TRUNK, norm_eps=1e-5))))
    with pytest.raises(ValueError, match="a pair shares its class and register tokens"):
        Pair(image, ViT(replace(POINTS, class_token=False, global_pool="max")))
    with pytest.raises(ValueError, match="a pair shares its class and register tokens"):
        Pair(image, ViT(replace(POINTS, num_reg_tokens=1)))
