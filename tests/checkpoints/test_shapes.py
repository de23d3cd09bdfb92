"""Shapes without numbers: the same as PyTorch's own, without what PyTorch imports for them."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from pointvit.checkpoints.shapes import ShapesAlone


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_joined_shapes_are_those_of_numbers(dim: int) -> None:
    parts = [torch.ones(2, 3, 4, dtype=torch.float16) for _ in range(3)]
    with ShapesAlone():
        joined = torch.cat([part.to("meta") for part in parts], dim=dim)
        assert torch.equal(torch.cat(parts, dim=dim), torch.cat(parts, dim))
    assert (joined.shape, joined.dtype, joined.is_meta) == (torch.cat(parts, dim).shape, torch.float16, True)


def test_shapes_that_do_not_fit() -> None:
    parts = [torch.ones(2, 3, device="meta"), torch.ones(2, 4, device="meta")]
    with ShapesAlone():
        assert torch.cat(parts, dim=1).shape == (2, 7)
        with pytest.raises(ValueError, match=r"shapes that cannot be joined: \(2, 3\), \(2, 4\)"):
            torch.cat(parts)


def test_numbers_are_filled_as_ever() -> None:
    with ShapesAlone():
        assert nn.init.ones_(torch.zeros(2)).sum() == 2
        assert torch.zeros(2).add_(3).sum() == 6
        assert nn.init.trunc_normal_(torch.empty(2, device="meta")).is_meta


def test_a_model_of_shapes_imports_little() -> None:
    code = (
        "import sys, torch, pointvit; from pointvit.checkpoints.shapes import ShapesAlone\n"
        "with torch.device('meta'), ShapesAlone():\n"
        "    model = pointvit.create_model('vit_tiny_patch16_224', depth=1)\n"
        "    torch.cat([model.cls_token, model.cls_token])\n"
        "print(all(p.is_meta for p in model.parameters()), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
