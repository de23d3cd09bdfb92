"""One pass of an encoder, shown layer by layer, against the model's own methods."""

import pytest
import torch
from torch import Tensor

import pointvit
from pointvit.compare import (
    AttentionStatistics,
    Layer,
    TokenStatistics,
    in_radii,
    record,
    with_random_weights,
)
from pointvit.model import ViT

TRUNK = {"embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 0}


class Keeper:
    """An observer that keeps everything."""

    def __init__(self, needs_weights: bool = True) -> None:
        self.needs_weights, self.layers = needs_weights, []

    def observe(self, layer: Layer) -> None:
        self.layers.append(layer)


def image_encoder(randomise, **settings) -> ViT:
    return randomise(pointvit.create_model("vit_tiny_patch16_224", img_size=32, **TRUNK, **settings)).eval()


def point_encoder(randomise, **settings) -> ViT:
    made = pointvit.create_model(
        "pointvit_tiny", num_groups=8, group_size=4, head="linear", **{**TRUNK, **settings}
    )
    return randomise(made).eval()


@pytest.fixture(params=["image", "registers", "points", "points, positions in every block"])
def encoder_and_batch(request, randomise) -> tuple[ViT, Tensor]:
    if request.param == "image":
        return image_encoder(randomise), torch.randn(3, 3, 32, 48)
    if request.param == "registers":
        return image_encoder(randomise, num_reg_tokens=2), torch.randn(3, 3, 32, 48)
    mode = "once" if request.param == "points" else "every_block"
    return point_encoder(randomise, pos_mode=mode), torch.randn(3, 40, 3)


def test_layers_are_the_models_own(encoder_and_batch):
    encoder, x = encoder_and_batch
    keeper, prefix = Keeper(), encoder.num_prefix_tokens
    features = record(encoder, x, keeper)
    blocks, weights = encoder.forward_intermediates(x), encoder.attention_weights(x)
    assert [layer.index for layer in keeper.layers] == [0, 1, 2, 3]
    assert keeper.layers[0].weights is None
    for layer, tokens, attention in zip(keeper.layers[1:], blocks, weights, strict=True):
        torch.testing.assert_close(layer.tokens, tokens, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(layer.weights, attention, rtol=1e-5, atol=1e-6)
        assert layer.num_prefix == prefix
    for found, layer in zip(features, keeper.layers, strict=True):
        torch.testing.assert_close(found, layer.tokens[:, prefix:].mean(1))
    # Layer 0 is what the first block meets: one block applied to it is layer 1 (but for positions).
    if encoder.config.pos_mode == "once":
        first = encoder.trunk.blocks[0](keeper.layers[0].tokens)
        torch.testing.assert_close(first, keeper.layers[1].tokens, rtol=1e-5, atol=1e-5)
    for found, layer in zip(record(encoder, x, state="cls"), keeper.layers, strict=True):
        torch.testing.assert_close(found, layer.tokens[:, 0], rtol=1e-5, atol=1e-5)


def test_weights_are_made_only_where_they_are_needed(randomise):
    encoder, x, keeper = image_encoder(randomise), torch.randn(2, 3, 32, 32), Keeper(needs_weights=False)
    record(encoder, x, keeper)
    assert all(layer.weights is None for layer in keeper.layers)
    record(encoder, x, keeper, Keeper())
    assert [layer.weights is None for layer in keeper.layers[4:]] == [True, False, False, False]


def test_positions_are_pixels_or_radii(randomise):
    keeper = Keeper()
    record(image_encoder(randomise), torch.randn(2, 3, 32, 48), keeper)
    assert keeper.layers[0].positions[0, :4].tolist() == [[8, 8], [24, 8], [40, 8], [8, 24]]
    encoder, cloud, keeper = point_encoder(randomise), torch.randn(2, 40, 3), Keeper()
    record(encoder, 5 * cloud + 7, keeper)
    centers = encoder.tokenizer.group(5 * cloud + 7)[1]
    torch.testing.assert_close(keeper.layers[2].positions, in_radii(centers, 5 * cloud + 7))
    assert keeper.layers[0].positions.norm(dim=-1).amax() == pytest.approx(1.0, abs=1e-5)


def test_padding_is_never_seen(randomise):
    encoder, cloud, keeper, padded = point_encoder(randomise), torch.randn(1, 40, 3), Keeper(), Keeper()
    whole = record(encoder, cloud, keeper)
    filled = torch.cat([cloud, torch.full((1, 24, 3), 99.0)], dim=1)
    cut = record(encoder, filled, padded, lengths=torch.tensor([40]))
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(keeper.layers[0].positions, padded.layers[0].positions)


def test_the_encoder_is_left_as_it_was(randomise):
    encoder = point_encoder(randomise, drop_rate=0.5, drop_path_rate=0.5)
    encoder.train()
    encoder.trunk.eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    x = torch.randn(2, 40, 3)
    for a, b in zip(record(encoder, x), record(encoder, x), strict=True):
        assert torch.equal(a, b)
    assert encoder.training
    assert not encoder.trunk.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_radii():
    cloud = torch.randn(2, 50, 3)
    unit = cloud - cloud.mean(1, keepdim=True)
    unit = unit / unit.norm(dim=-1).amax(1)[:, None, None]
    torch.testing.assert_close(in_radii(cloud, cloud), unit)
    torch.testing.assert_close(in_radii(30 * cloud - 4, 30 * cloud - 4), unit, atol=1e-5, rtol=1e-5)
    assert in_radii(torch.ones(1, 2, 3), torch.ones(1, 5, 3)).abs().max() == 0


def test_broken_tokens_and_states_are_refused(randomise):
    encoder = image_encoder(randomise)
    x = torch.randn(2, 3, 32, 32)
    with pytest.raises(ValueError, match="state must be one of mean, cls, got 'max'"):
        record(encoder, x, state="max")
    with pytest.raises(ValueError, match="needs a class token"):
        record(image_encoder(randomise, class_token=False, global_pool="mean"), x, state="cls")
    with torch.no_grad():
        encoder.trunk.blocks[1].mlp.fc2.bias[3] = torch.nan
    with pytest.raises(ValueError, match="tokens of layer 2 are not finite"):
        record(encoder, x)


def test_random_weights_are_new_and_the_same_for_a_seed():
    pair = pointvit.create_pair("vit_tiny_patch16_224", img_size=32, embed_dim=48, depth=2, num_heads=3)
    pair.train()
    state = torch.get_rng_state()
    first, again, other = (with_random_weights(pair, seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.image.trunk is first.points.trunk
    assert first.training
    assert first.points.config == pair.points.config
    weight = "image.trunk.blocks.1.attn.qkv.weight"
    values = [model.state_dict()[weight] for model in (first, again, other, pair)]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    assert not torch.equal(values[0], values[3])
    alone = with_random_weights(pair.points)
    assert alone.state_dict().keys() == pair.points.state_dict().keys()


def test_one_pass_feeds_several_measurements(randomise):
    encoder = image_encoder(randomise)
    attention, tokens = AttentionStatistics(), TokenStatistics()
    for _ in range(3):
        record(encoder, torch.randn(2, 3, 32, 32), attention, tokens)
    assert attention.result().distance.mean.shape == (3, 3)
    assert tokens.result().norm.mean.shape == (4,)
    assert attention.result().distance.count == tokens.result().norm.count == 6
