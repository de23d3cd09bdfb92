"""The convolutional stem of the hybrid vision transformers, such as R50+ViT-B/16.

A ViT can take its tokens from the feature map of a ResNet instead of from raw patches (Dosovitskiy et al.
2021, "An Image is Worth 16x16 Words", section 3.1, "Hybrid Architecture"). The ResNet follows Big Transfer
(Kolesnikov et al. 2020, "Big Transfer (BiT)"): batch normalisation gives way to group normalisation (Wu & He
2018) and weight standardisation (Qiao et al. 2019), so that no image depends on the rest of its batch. Unlike
in BiT, a block normalises after its convolutions, not before them.

Parameter names are timm's below `patch_embed.backbone.`; `google_stem_name` gives those of Google's `.npz`.
"""

import re
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT_CHANNELS = 64
STAGE_CHANNELS = (256, 512, 1024, 2048)
EXPANSION = 4  # a block's output is this many times as wide as its 3x3 convolution


def pad_same(x: Tensor, kernel_size: int, stride: int, value: float = 0.0) -> Tensor:
    """(B,C,H,W) -> (B,C,H+h,W+w), such that sliding a window over it gives ceil(H/stride) by ceil(W/stride).

    This is TensorFlow's "SAME": the amount depends on the input's size, and an odd row or column goes to the
    bottom or right, where symmetric padding would shift every window by one pixel.
    """
    h, w = (max((-(-size // stride) - 1) * stride + kernel_size - size, 0) for size in x.shape[-2:])
    return F.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2), value=value)


class StdConv2d(nn.Conv2d):
    """(B,C_in,H,W) -> (B,C_out,ceil(H/stride),ceil(W/stride)), a convolution of standardised filters.

    Weight standardisation (Qiao et al. 2019): whatever is stored, a filter is applied with zero mean and unit
    (biased) variance over its input channels, height and width.
    """

    eps = 1e-8

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, bias=False)

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        # Over one filter, standardising is layer normalisation without a gain.
        weight = F.layer_norm(self.weight, self.weight.shape[1:], eps=self.eps)
        return F.conv2d(pad_same(x, self.kernel_size[0], self.stride[0]), weight, stride=self.stride)


class MaxPool(nn.Module):
    """(B,C,H,W) -> (B,C,ceil(H/2),ceil(W/2)), the maximum of 3x3 windows two pixels apart."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.max_pool2d(pad_same(x, 3, 2, value=-torch.inf), kernel_size=3, stride=2)


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation in 32 groups (Wu & He 2018)."""
    return nn.GroupNorm(32, channels)


class Bottleneck(nn.Module):
    """(B,C_in,H,W) -> (B,C_out,ceil(H/stride),ceil(W/stride)): 1x1, strided 3x3 and 1x1, plus a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, project: bool = False) -> None:
        super().__init__()
        width = out_channels // EXPANSION
        self.downsample: nn.Module = nn.Identity()
        if project:
            conv = StdConv2d(in_channels, out_channels, 1, stride)
            self.downsample = nn.Sequential(OrderedDict(conv=conv, norm=group_norm(out_channels)))
        self.conv1 = StdConv2d(in_channels, width, 1)
        self.norm1 = group_norm(width)
        self.conv2 = StdConv2d(width, width, 3, stride)
        self.norm2 = group_norm(width)
        self.conv3 = StdConv2d(width, out_channels, 1)
        self.norm3 = group_norm(out_channels)
        # A new block starts as its shortcut alone, as in Google's hybrid.
        nn.init.zeros_(self.norm3.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(y + self.downsample(x))


def stage(in_channels: int, out_channels: int, depth: int, stride: int) -> nn.Sequential:
    """(B,C_in,H,W) -> (B,C_out,ceil(H/stride),ceil(W/stride)): blocks; the first changes the shape."""
    first = Bottleneck(in_channels, out_channels, stride, project=True)
    rest = [Bottleneck(out_channels, out_channels) for _ in range(depth - 1)]
    return nn.Sequential(OrderedDict(blocks=nn.Sequential(first, *rest)))


class ResNetV2Stem(nn.Sequential):
    """(B,in_chans,H,W) -> (B,out_channels,ceil(H/stride),ceil(W/stride)), non-negative features of an image.

    `layers` counts the blocks of each stage: (3, 4, 9) for R50+ViT-B/16, (3, 4, 6, 3) for R50+ViT-L/32,
    (2, 2, 2, 2) for R26+ViT-S/32, and () for R+ViT-Ti/16, which has only the 7x7 convolution and its pooling.
    As in timm, that convolution is named `stem.conv` where stages follow and `conv` where none do.

    Raises ValueError where there are more than four stages or a stage has no block.
    """

    def __init__(self, layers: tuple[int, ...], in_chans: int = 3) -> None:
        if len(layers) > len(STAGE_CHANNELS) or any(depth < 1 for depth in layers):
            raise ValueError(
                f"layers must give up to {len(STAGE_CHANNELS)} stages at least one block each, "
                f"such as (3, 4, 9); got {tuple(layers)}"
            )
        conv = StdConv2d(in_chans, ROOT_CHANNELS, 7, stride=2)
        modules: OrderedDict[str, nn.Module] = OrderedDict(
            conv=conv, norm=group_norm(ROOT_CHANNELS), act=nn.ReLU(), pool=MaxPool()
        )
        # The pooling has halved the resolution already, so the first stage keeps it.
        strides = [1, 2, 2, 2][: len(layers)]
        widths = [ROOT_CHANNELS, *STAGE_CHANNELS][: len(layers) + 1]
        if layers:
            stages = nn.Sequential(*map(stage, widths[:-1], widths[1:], layers, strides))
            modules = OrderedDict(stem=nn.Sequential(modules), stages=stages)
        super().__init__(modules)
        self.out_channels = widths[-1]
        self.stride = 4 * 2 ** strides.count(2)


_GOOGLE_ROOT = {
    "conv.weight": "conv_root/kernel",
    "norm.weight": "gn_root/scale",
    "norm.bias": "gn_root/bias",
}
_GOOGLE_UNIT = {
    "downsample.conv.weight": "conv_proj/kernel",
    "downsample.norm.weight": "gn_proj/scale",
    "downsample.norm.bias": "gn_proj/bias",
    **{f"conv{i}.weight": f"conv{i}/kernel" for i in (1, 2, 3)},
    **{f"norm{i}.weight": f"gn{i}/scale" for i in (1, 2, 3)},
    **{f"norm{i}.bias": f"gn{i}/bias" for i in (1, 2, 3)},
}
_TIMM_ROOT = {google: timm for timm, google in _GOOGLE_ROOT.items()}
_TIMM_UNIT = {google: timm for timm, google in _GOOGLE_UNIT.items()}


def google_stem_name(timm_name: str) -> str:
    """Name in a stem's state dict -> name in Google's `.npz`.

    `stages.0.blocks.1.norm2.weight` is `block1/unit2/gn2/scale` there. This concerns names alone: kernels are
    (H,W,in,out) in the file and (out,in,H,W) in the state dict.
    Raises ValueError for a name that no stem has.
    """
    unit = re.fullmatch(r"stages\.(\d+)\.blocks\.(\d+)\.(.+)", timm_name)
    if unit and unit[3] in _GOOGLE_UNIT:
        return f"block{int(unit[1]) + 1}/unit{int(unit[2]) + 1}/{_GOOGLE_UNIT[unit[3]]}"
    leaf = timm_name.removeprefix("stem.")
    if leaf in _GOOGLE_ROOT:
        return _GOOGLE_ROOT[leaf]
    raise ValueError(
        "expected a parameter of a ResNetV2Stem, such as 'stages.0.blocks.0.conv1.weight' "
        f"(without 'patch_embed.backbone.' before it); got {timm_name!r}"
    )


def timm_stem_name(google_name: str, stages: bool = True) -> str:
    """Name in Google's `.npz` -> name in a stem's state dict, the inverse of `google_stem_name`.

    `stages=False` names the parameters of a stem without stages, `ResNetV2Stem(())`.
    Raises ValueError for a name that no such stem has.
    """
    unit = re.fullmatch(r"block([1-9]\d*)/unit([1-9]\d*)/(.+)", google_name)
    if stages and unit and unit[3] in _TIMM_UNIT:
        return f"stages.{int(unit[1]) - 1}.blocks.{int(unit[2]) - 1}.{_TIMM_UNIT[unit[3]]}"
    if google_name in _TIMM_ROOT:
        return ("stem." if stages else "") + _TIMM_ROOT[google_name]
    example = "'block1/unit1/conv1/kernel'" if stages else "'conv_root/kernel' (this stem has no stages)"
    raise ValueError(f"expected a stem array of a hybrid .npz, such as {example}; got {google_name!r}")
