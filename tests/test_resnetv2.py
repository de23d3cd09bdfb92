"""The hybrid stem against timm's, in features, in names and through Google's `.npz` files."""

import math
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from timm.layers import HybridEmbed, StdConv2dSame
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from pointvit.resnetv2 import ResNetV2Stem, google_stem_name, timm_stem_name

# timm's model, its blocks per stage, and the channels, stride and number of parameters of the stem.
HYBRIDS = [
    ("vit_tiny_r_s16_p8_224", (), 64, 4, 9_536),
    ("vit_small_r26_s32_224", (2, 2, 2, 2), 2048, 32, 13_946_176),
    ("vit_base_r50_s16_224", (3, 4, 9), 1024, 16, 11_894_848),
    ("vit_large_r50_s32_224", (3, 4, 6, 3), 2048, 32, 23_508_032),
]
SMALL = (2, 2)
LAYERS = [SMALL, *(layers for _, layers, *_ in HYBRIDS)]
TRUNK = {"img_size": 64, "depth": 1, "embed_dim": 16, "num_heads": 2, "num_classes": 0}


def timm_small(in_chans: int = 3) -> VisionTransformer:
    """timm's hybrid on a smaller stem than those it has names for, with the same options."""
    backbone = ResNetV2(
        SMALL,
        in_chans=in_chans,
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=partial(StdConv2dSame, eps=1e-8),
    )
    embed_layer = partial(HybridEmbed, backbone=backbone)
    return VisionTransformer(patch_size=1, in_chans=in_chans, embed_layer=embed_layer, **TRUNK)


@cache
def small_backbone() -> nn.Module:
    backbone = timm_small().patch_embed.backbone
    randomise(backbone, seed=0)
    return backbone


def randomise(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)


def image(height: int, width: int, channels: int = 3) -> Tensor:
    return torch.randn(1, channels, height, width, generator=torch.Generator().manual_seed(1))


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize(("name", "layers", "channels", "stride", "parameters"), HYBRIDS)
@torch.no_grad()
def test_features_equal_timm(
    name: str, layers: tuple[int, ...], channels: int, stride: int, parameters: int
) -> None:
    backbone = timm.create_model(name, **TRUNK).patch_embed.backbone
    randomise(backbone, seed=0)
    stem = ResNetV2Stem(layers)
    stem.load_state_dict(backbone.state_dict(), strict=True)

    assert (stem.out_channels, stem.stride) == (channels, stride)
    assert sum(p.numel() for p in stem.parameters()) == parameters
    for height, width in [(224, 224), (320, 256), (225, 161)]:
        x = image(height, width)
        features, expected = stem(x), backbone(x)
        assert features.shape == (1, channels, math.ceil(height / stride), math.ceil(width / stride))
        assert relative_error(features, expected) < 1e-5


def test_epsilons_equal_timm() -> None:
    """On filters and an image small enough for both epsilons, of the filters and of the groups, to matter."""
    backbone = timm_small().patch_embed.backbone
    randomise(backbone, seed=0)
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.mul_(1e-4 if parameter.ndim == 4 else 1)
    stem = ResNetV2Stem(SMALL)
    stem.load_state_dict(backbone.state_dict(), strict=True)
    x = 1e-4 * image(64, 64)
    assert relative_error(stem(x), backbone(x)) < 1e-5


def test_other_channel_counts() -> None:
    backbone = timm_small(in_chans=5).patch_embed.backbone
    randomise(backbone, seed=2)
    stem = ResNetV2Stem(SMALL, in_chans=5)
    x = image(65, 64, channels=5)
    stem.load_state_dict(backbone.state_dict(), strict=True)
    assert relative_error(stem(x), backbone(x)) < 1e-5


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("stem.norm.weight", "stem.norm.bias"),
        ("stages.0.blocks.0.conv2.weight", "stages.0.blocks.1.conv2.weight"),
        ("stages.0.blocks.0.norm3.weight", "stages.0.blocks.0.downsample.norm.weight"),
        ("stages.1.blocks.1.norm1.weight", "stages.1.blocks.1.norm2.weight"),
        ("stages.1.blocks.0.conv3.weight", "stages.1.blocks.1.conv3.weight"),
    ],
)
def test_swapped_tensors_break_parity(first: str, second: str) -> None:
    backbone = small_backbone()
    state = dict(backbone.state_dict())
    state[first], state[second] = state[second], state[first]
    stem = ResNetV2Stem(SMALL)
    stem.load_state_dict(state, strict=True)
    assert relative_error(stem(image(64, 64)), backbone(image(64, 64))) > 1e-2


def test_gradients_equal_timm() -> None:
    backbone = small_backbone()
    stem = ResNetV2Stem(SMALL)
    stem.load_state_dict(backbone.state_dict(), strict=True)
    names = [name for name, _ in stem.named_parameters()]
    weights = torch.randn(1, 512, 9, 8, generator=torch.Generator().manual_seed(3))
    ours = torch.autograd.grad((stem(image(65, 64)) * weights).sum(), stem.parameters())
    theirs = torch.autograd.grad((backbone(image(65, 64)) * weights).sum(), backbone.parameters())
    for name, one, other in zip(names, ours, theirs, strict=True):
        assert one.abs().max() > 0, name
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * other.abs().max().item(), msg=name)


def test_features_do_not_depend_on_the_scale_of_a_filter_or_on_the_batch() -> None:
    stem = ResNetV2Stem((1,))
    randomise(stem, seed=4)
    x = torch.cat([image(64, 48), image(64, 48).flip(-1)])
    before = stem(x)
    torch.testing.assert_close(stem(x[1:]), before[1:], rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        stem.get_submodule("stages.0.blocks.0.conv2").weight.mul_(3).add_(0.5)
    torch.testing.assert_close(stem(x), before, rtol=1e-4, atol=1e-4)


def test_new_residual_branches_start_at_zero_as_in_timm() -> None:
    fresh = timm_small().patch_embed.backbone.state_dict()
    for name, value in ResNetV2Stem(SMALL).state_dict().items():
        assert bool(value.any()) == bool(fresh[name].any()), name


@pytest.mark.parametrize("layers", [(3, 0, 9), (1, 1, 1, 1, 1), (-1,)])
def test_impossible_layers_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="layers must give up to 4 stages"):
        ResNetV2Stem(layers)


@pytest.mark.parametrize(
    ("timm_name", "google_name"),
    [
        ("stem.conv.weight", "conv_root/kernel"),
        ("stem.norm.weight", "gn_root/scale"),
        ("stem.norm.bias", "gn_root/bias"),
        ("stages.0.blocks.1.conv2.weight", "block1/unit2/conv2/kernel"),
        ("stages.2.blocks.10.norm1.weight", "block3/unit11/gn1/scale"),
        ("stages.1.blocks.0.norm3.bias", "block2/unit1/gn3/bias"),
        ("stages.0.blocks.0.downsample.conv.weight", "block1/unit1/conv_proj/kernel"),
        ("stages.3.blocks.0.downsample.norm.bias", "block4/unit1/gn_proj/bias"),
    ],
)
def test_google_names(timm_name: str, google_name: str) -> None:
    assert google_stem_name(timm_name) == google_name
    assert timm_stem_name(google_name) == timm_name


@pytest.mark.parametrize("layers", LAYERS)
def test_google_names_and_back_is_the_identity(layers: tuple[int, ...]) -> None:
    names = list(ResNetV2Stem(layers).state_dict())
    google = [google_stem_name(name) for name in names]
    assert len(set(google)) == len(names)
    assert [timm_stem_name(name, stages=bool(layers)) for name in google] == names


@pytest.mark.parametrize(
    "name",
    [
        "patch_embed.backbone.stem.conv.weight",
        "stem.conv.bias",
        "stages.0.blocks.0.conv4.weight",
        "stages.0.conv1.weight",
        "",
    ],
)
def test_unknown_timm_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a parameter of a ResNetV2Stem"):
        google_stem_name(name)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("block0/unit1/conv1/kernel", True),
        ("block1/unit1/conv1/kernel", False),
        ("conv_root/bias", True),
        ("cls", True),
    ],
)
def test_unknown_google_names_are_refused(name: str, stages: bool) -> None:
    with pytest.raises(ValueError, match=r"expected a stem array of a hybrid \.npz"):
        timm_stem_name(name, stages)


def google_trunk(model: nn.Module, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random arrays for all that timm wants to find beside the stem in the file of a model with one block."""
    width, heads = model.embed_dim, model.blocks[0].attn.num_heads
    hidden = model.blocks[0].mlp.fc1.out_features
    block = "Transformer/encoderblock_0/"
    attention = f"{block}MultiHeadDotProductAttention_1/"
    shapes = {
        "embedding/kernel": (*model.patch_embed.patch_size, model.patch_embed.proj.in_channels, width),
        "embedding/bias": (width,),
        "cls": (1, 1, width),
        "Transformer/posembed_input/pos_embedding": tuple(model.pos_embed.shape),
        **{f"{attention}{part}/kernel": (width, heads, width // heads) for part in ("query", "key", "value")},
        **{f"{attention}{part}/bias": (heads, width // heads) for part in ("query", "key", "value")},
        f"{attention}out/kernel": (heads, width // heads, width),
        f"{attention}out/bias": (width,),
        f"{block}MlpBlock_3/Dense_0/kernel": (width, hidden),
        f"{block}MlpBlock_3/Dense_0/bias": (hidden,),
        f"{block}MlpBlock_3/Dense_1/kernel": (hidden, width),
        f"{block}MlpBlock_3/Dense_1/bias": (width,),
    }
    for norm in ("LayerNorm_0", "LayerNorm_2"):
        shapes |= {f"{block}{norm}/scale": (width,), f"{block}{norm}/bias": (width,)}
    shapes |= {"Transformer/encoder_norm/scale": (width,), "Transformer/encoder_norm/bias": (width,)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def load_through_google(
    stem: ResNetV2Stem, model: VisionTransformer, path: Path, rename: dict[str, str]
) -> nn.Module:
    """The stem of timm's `model`, which has read this stem's tensors, some renamed, from a Google file."""
    arrays = google_trunk(model, np.random.default_rng(6))
    for key, value in stem.state_dict().items():
        google = google_stem_name(key)
        arrays[rename.get(google, google)] = (value.permute(2, 3, 1, 0) if value.ndim == 4 else value).numpy()
    np.savez(path, **arrays)
    model.load_pretrained(str(path))
    return model.patch_embed.backbone


@pytest.mark.parametrize("layers", [(), SMALL])
def test_a_google_file_means_the_same_to_timm(layers: tuple[int, ...], tmp_path: Path) -> None:
    stem = ResNetV2Stem(layers)
    randomise(stem, seed=5)
    model = timm_small() if layers else timm.create_model("vit_tiny_r_s16_p8_224", **TRUNK)
    theirs = load_through_google(stem, model, tmp_path / "hybrid.npz", rename={})
    expected = theirs.state_dict()
    assert list(expected) == list(stem.state_dict())
    for key, value in stem.state_dict().items():
        assert torch.equal(value, expected[key]), key
    assert relative_error(stem(image(65, 64)), theirs(image(65, 64))) < 1e-5


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("gn_root/scale", "gn_root/bias"),
        ("block1/unit1/gn1/scale", "block1/unit1/gn2/scale"),
        ("block1/unit1/conv3/kernel", "block1/unit1/conv_proj/kernel"),
    ],
)
def test_a_google_file_with_two_arrays_swapped_means_something_else(
    first: str, second: str, tmp_path: Path
) -> None:
    stem = ResNetV2Stem(SMALL)
    randomise(stem, seed=5)
    rename = {first: second, second: first}
    theirs = load_through_google(stem, timm_small(), tmp_path / "hybrid.npz", rename)
    assert relative_error(stem(image(65, 64)), theirs(image(65, 64))) > 1e-2
