"""Tensors of an image encoder's front end, resampled to another grid, patch size or number of channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from pointvit.checkpoints.checkpoint import Checkpoint
from pointvit.checkpoints.files import CheckpointError
from pointvit.checkpoints.sources.source import width_of
from pointvit.positions import resample_grid, sincos_2d
from pointvit.tokenizers import ImageTokenizerConfig

KERNEL, POSITIONS = "tokenizer.proj.weight", "tokenizer.pos_embed"
PREFIX = ("tokenizer.cls_pos", "tokenizer.dist_pos")


TABLE = "tokenizer.pos_embed.table"
"""The position table of a point encoder that samples it (``pos_embed=projected``)."""


def front_end(checkpoint: Checkpoint, wanted: ImageTokenizerConfig) -> tuple[dict[str, Tensor], list[str]]:
    """The checkpoint's tensors with its front end as ``wanted`` has it; and the names of what was resampled.

    The position table is split into the rows of the class token, the distillation token and the patches.
    """
    tensors, resampled = _split_positions(checkpoint, wanted.grid, wanted.pos_resample)
    kernel = tensors.get(KERNEL)
    if kernel is not None and wanted.stem is None and kernel.ndim == 4:
        tensors[KERNEL] = resample_channels(resample_patches(kernel, wanted.patch_size), wanted.in_chans)
        if tensors[KERNEL].shape != kernel.shape:
            resampled.append(KERNEL)
    return tensors, resampled


def projected(checkpoint: Checkpoint, grid: tuple[int, int]) -> tuple[dict[str, Tensor], list[str]]:
    """As :func:`front_end`, for a point encoder whose table of projected positions has this ``grid``.

    Raises:
        CheckpointError: if the checkpoint has no table of positions.
    """
    tensors, resampled = _split_positions(checkpoint, grid, "antialias")
    if POSITIONS not in tensors:
        raise CheckpointError(
            f"{checkpoint.path}: has no table of 2D positions, which pos_embed=projected samples; use mlp or "
            "fourier"
        )
    return {TABLE: tensors.pop(POSITIONS), **tensors}, [TABLE for _ in resampled]


def _split_positions(
    checkpoint: Checkpoint, wanted: tuple[int, int], method: str
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors with the table of patch positions on the ``wanted`` grid, and other tokens' rows apart."""
    tensors = dict(checkpoint.tensors)
    if "pos_embed" not in tensors:
        if checkpoint.settings.get("pos_embed") == "sincos_2d":  # fixed: such files need not hold them
            tensors[POSITIONS] = sincos_2d(wanted, width_of(tensors))
        return tensors, []
    table = tensors.pop("pos_embed")
    count, grid = checkpoint.position_layout()
    tensors |= {name: table[:, i : i + 1] for i, name in enumerate(PREFIX[:count])}
    tensors[POSITIONS] = table[:, count:]
    if grid == wanted:
        return tensors, []
    method = checkpoint.settings.get("pos_resample", method)
    tensors[POSITIONS] = resample_grid(tensors[POSITIONS].float(), grid, wanted, method)
    return tensors, [POSITIONS]


def resample_patches(kernel: Tensor, size: tuple[int, int]) -> Tensor:
    """``(D, C, h, w) -> (D, C, h', w')``: a patch projection for patches of another size.

    Pseudo-inverse resizing (FlexiViT, Beyer et al. 2023, eq. 3): of all kernels the one whose tokens of
    resized patches come closest to the old tokens of the old patches. Enlarging keeps them, up to rounding.
    Patches are resized bicubically with antialiasing, as timm does. The same size returns the input itself.
    """
    old = (kernel.shape[2], kernel.shape[3])
    if old == size:
        return kernel
    basis = rearrange(torch.eye(old[0] * old[1], device=kernel.device), "n (h w) -> n 1 h w", h=old[0])
    resize = F.interpolate(basis, size=size, mode="bicubic", antialias=True, align_corners=False)
    inverse = torch.linalg.pinv(rearrange(resize, "n 1 h w -> n (h w)"))  # of the transposed resizing
    resampled = rearrange(kernel.float(), "d c h w -> d c (h w)") @ inverse.T
    return rearrange(resampled, "d c (h w) -> d c h w", h=size[0]).to(kernel.dtype)


def resample_channels(kernel: Tensor, channels: int) -> Tensor:
    """``(D, C, h, w) -> (D, C', h, w)``: a patch projection for images of another number of channels.

    One channel gets the sum. More repeat the old ones, scaled by C / C', with what is left of the sum spread
    over all, so that an image whose channels are alike keeps its tokens. The same number returns the input.
    """
    old = kernel.shape[1]
    if old == channels:
        return kernel
    total = kernel.float().sum(dim=1, keepdim=True)
    repeated = kernel.float()[:, torch.arange(channels, device=kernel.device) % old] * (old / channels)
    rest = total - repeated.sum(dim=1, keepdim=True)
    return (repeated + rest / channels).to(kernel.dtype)
