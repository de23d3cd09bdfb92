"""Every tensor of a public file, left out in turn: none may be missed, but for those a file may lack."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import parity
from parity import Row
from pointvit import create_model
from pointvit.checkpoints import SOURCES, CheckpointError

ROWS: dict[str, Row] = {}
for parameter in parity.sampled_rows():
    (candidate,) = parameter.values
    ROWS.setdefault(candidate.source, candidate)

MAY_LACK = {
    # Source: beginnings of the names in its first row's file that another sound file has not.
    "big_vision": ("params/pos_embedding",),  # fixed sine-cosine positions, which are not stored
    "dinov2": ("mask_token",),  # of pre-training
    "huggingface": ("pooler.",),  # of BERT-style heads, which a ViTModel may be built without
    "openclip": (  # the text tower and numbers beside the image tower
        *("transformer.", "token_embedding.", "positional_embedding", "ln_final.", "text_projection"),
        *("logit_scale", "context_length", "vocab_size"),
    ),
    "uni3d": (  # the image model's own front end and head, and the temperature of training
        *("point_encoder.visual.cls_token", "point_encoder.visual.pos_embed"),
        *("point_encoder.visual.patch_embed.", "point_encoder.visual.head.", "logit_scale"),
    ),
}
BLOCK = re.compile(r"((?:blocks|layers?)\.|encoderblock_|encoder_layer_)[1-9]\d*(?=[./])")
"""The number of a block other than the first."""


def test_the_tables_name_sources_and_tensors(tmp_path: Path) -> None:
    assert ROWS.keys() == SOURCES.keys() - {"pointvit"}
    for source, lacking in MAY_LACK.items():
        (folder := tmp_path / source).mkdir()
        names = parity.read(ROWS[source].write(ROWS[source].build(), folder))
        for start in lacking:
            assert any(name.startswith(start) for name in names), (source, start)


def one_of_each(names: list[str]) -> list[str]:
    """The names without those that differ from an earlier one in the number of a block alone.

    The first block stays beside another: the architecture is read from it, the others are compared with it.
    """
    return list({BLOCK.sub(r"\1N", name): name for name in names}.values())


@pytest.mark.parametrize("source", ROWS)
def test_a_tensor_that_is_missing_is_noticed(source: str, tmp_path: Path, randomise: Callable) -> None:
    row = ROWS[source]
    path = row.write(randomise(row.build()), tmp_path)
    create_model("auto", pretrained=path, **row.settings)
    tensors = parity.read(path)
    may_lack = MAY_LACK.get(source, ())
    needed = [name for name in one_of_each(list(tensors)) if not name.startswith(may_lack)]
    assert len(needed) > 25
    missed, unnamed = [], []
    for dropped in needed:
        kept = {name: tensor for name, tensor in tensors.items() if name != dropped}
        parity.rewrite(path, lambda _, kept=kept: kept)
        try:
            create_model("auto", pretrained=path, **row.settings)
        except CheckpointError as error:
            unnamed += [] if str(tmp_path) in str(error) else [dropped]
        else:
            missed.append(dropped)
    assert (missed, unnamed) == ([], [])
