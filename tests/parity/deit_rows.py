"""DeiT's official files, for which timm has the same models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from parity import Row, Tensors
from parity.timm_rows import resampled, tiny, write_repository, write_torch

DISTILLED, THIRD = "deit_tiny_distilled_patch16_224", "deit3_small_patch16_224"


def official(state: Tensors) -> dict[str, Tensors]:
    """LayerScale as DeiT III's code names it."""
    return {
        "model": {
            n.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): t for n, t in state.items()
        }
    }


def deit(row: Row) -> Row:
    return replace(row, source="deit", write=partial(write_torch, wrap=official), at=resampled)


ROWS = [
    deit(tiny("DeiT distilled", DISTILLED)),
    replace(deit(tiny("DeiT distilled without heads", DISTILLED, num_classes=0)), logits=None),
    replace(tiny("timm DeiT distilled with config.json", DISTILLED, source="deit"), write=write_repository),
    deit(tiny("DeiT III", THIRD)),
    deit(tiny("DeiT III without head", THIRD, num_classes=0)),
]
