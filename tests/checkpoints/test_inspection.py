"""What headers and the position table say, against what the whole file says."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import parity
from parity import Row
from pointvit import ViT, create_model, list_models, save, save_checkpoint
from pointvit.checkpoints import Checkpoint, archives
from pointvit.checkpoints.files import open_weights
from pointvit.checkpoints.inspection import inspect, is_sine_cosine, structure_of
from pointvit.checkpoints.shapes import ShapesAlone
from pointvit.config import ViTConfig
from pointvit.positions import sincos_2d
from pointvit.tokenizers import ImageTokenizerConfig, PointTokenizerConfig
from pointvit.trunk import TrunkConfig

IMAGE = ViTConfig(TrunkConfig(96, 2, 3), ImageTokenizerConfig((64, 48), (8, 8)), num_classes=5)
SMALL = ViTConfig(TrunkConfig(192, 12, 3), ImageTokenizerConfig((64, 64), (16, 16)), num_classes=0)


@pytest.fixture
def path(tmp_path: Path, randomise: Callable) -> Path:
    return save_checkpoint(randomise(ViT(IMAGE)), tmp_path / "image.safetensors", "timm")


@pytest.mark.parametrize("row", parity.sampled_rows())
def test_headers_say_what_the_whole_file_says(
    row: Row, tmp_path: Path, randomise: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "SMALL", 1000)  # as these models are small throughout
    path = row.write(randomise(row.build()).eval(), tmp_path)
    whole = Checkpoint.open(path)
    with ShapesAlone():
        headers = Checkpoint.from_file(open_weights(path, headers_only=True))
    assert headers.source is whole.source
    assert headers.encoder_config(row.settings) == whole.encoder_config(row.settings)
    assert (headers.set_aside, headers.sizes, headers.sha256) == (whole.set_aside, whole.sizes, whole.sha256)
    assert headers.tensors.keys() == whole.tensors.keys()
    for name, tensor in whole.tensors.items():
        assert (headers.tensors[name].shape, headers.tensors[name].dtype) == (tensor.shape, tensor.dtype)
    assert all(headers.tensors[name].is_meta for name in headers.tensors if name.endswith("fc1.weight"))
    if "pos_embed" in whole.tensors:
        assert torch.equal(headers.tensors["pos_embed"], whole.tensors["pos_embed"])
    inspect(path)


def test_what_is_said(path: Path) -> None:
    found, state = inspect(path), ViT(IMAGE).state_dict()
    assert (found.file, found.source, found.dtypes) == (str(path), "timm", ("float32",))
    assert (found.size, found.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    assert found.tensors == len(state) - 1  # the class token's position is a row of the table
    assert found.numbers == sum(tensor.numel() for tensor in state.values())
    assert found.left_open == ()
    expected = {
        "modality": "image", "width": 96, "depth": 2, "heads": 3, "image_size": (64, 48), "registers": 0,
        "patch_size": (8, 8), "channels": 3, "mlp": "gelu, 4 x width", "head": "linear, 5 classes",
    }  # fmt: skip
    assert found.architecture.items() >= expected.items()
    shown = dict(found.rows())
    assert (shown["image size"], shown["layer scale"], shown["stem"]) == ("64 x 48", "no", "none")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["sha256"] == found.sha256


def test_what_the_file_leaves_open(path: Path, tmp_path: Path) -> None:
    tensors = load_file(path) | {"mask_token": torch.ones(1, 96), "decoder_embed.weight": torch.ones(4, 96)}
    tensors["pos_embed"] = torch.randn(1, 50, 96)
    save_file(tensors, tmp_path / "bare.safetensors")
    found = inspect(tmp_path / "bare.safetensors")
    assert found.left_open == ("num_heads",)
    assert ("left open", "num_heads; give it when loading or converting") in found.rows()
    assert sum(found.set_aside.values()) == 5 * 96


def test_every_named_model_takes_the_file(tmp_path: Path, randomise: Callable) -> None:
    path = save_checkpoint(randomise(ViT(SMALL)), tmp_path / "tiny.safetensors", "timm")
    named = inspect(path).initialises
    assert {"vit_tiny_patch16_224", "pointvit_tiny"} <= set(named)
    for name in list_models("tiny"):
        if name in named:
            assert create_model(name, pretrained=path).meta.source["file"] == path.name
        else:
            with pytest.raises(ValueError, match=r"stem|patch"):
                create_model(name, pretrained=path)
    assert all("tiny" in name for name in named)


def test_other_heads_initialise_nothing(tmp_path: Path) -> None:
    path = save_checkpoint(ViT(SMALL.override({"num_heads": 6})), tmp_path / "six.safetensors", "timm")
    assert inspect(path).initialises == ()
    assert dict(inspect(path).rows())["initialises"] == "none of the named models; use 'auto'"


def test_points_and_saved_folders(tmp_path: Path, randomise: Callable) -> None:
    points = replace(SMALL, tokenizer=PointTokenizerConfig(8, 4), global_pool="cls+max", head="point_mae")
    found = inspect(save(randomise(ViT(points)), tmp_path / "saved"))
    assert (found.architecture["modality"], found.positions.word) == ("points", "no position table")
    assert "pointvit_tiny" in found.initialises


# Whether a table is trained.


def smooth(grid: tuple[int, int], dim: int, noise: float = 0.1) -> Tensor:
    """A table as training leaves it: waves over the grid, some noise, and a mean that says nothing."""
    rows, cols = torch.meshgrid(*(torch.linspace(0, 1, n) for n in grid), indexing="ij")
    waves = torch.stack([rows.flatten(), cols.flatten(), torch.ones(rows.numel())], dim=1) @ torch.randn(
        3, dim
    )
    return 5 * torch.randn(dim) + torch.sin(3 * waves) + noise * torch.randn(rows.numel(), dim)


def slow_structure(table: Tensor, grid: tuple[int, int]) -> float:
    """The definition, pair by pair."""
    centred = table.double() - table.double().mean(dim=0)
    height, width = grid

    def alike(one: tuple[int, int], other: tuple[int, int]) -> float:
        a, b = (centred[(r % height) * width + c % width] for r, c in (one, other))
        return (a @ b / a.norm() / b.norm()).item()

    places = [(r, c) for r in range(height) for c in range(width)]
    near = [alike((r, c), (r + 1, c)) for r, c in places if r + 1 < height]
    near += [alike((r, c), (r, c + 1)) for r, c in places if c + 1 < width]
    far = [alike((r, c), (r + height // 2, c + width // 2)) for r, c in places]
    return sum(near) / len(near) - sum(far) / len(far)


@pytest.mark.parametrize("grid", [(4, 4), (5, 7), (1, 9), (2, 4)])
def test_structure_is_its_definition(grid: tuple[int, int]) -> None:
    table = smooth(grid, 16)
    assert structure_of(table, grid) == pytest.approx(slow_structure(table, grid), abs=1e-9)


def words(path: Path, table: Tensor) -> str:
    tensors = load_file(path)
    save_file({**tensors, "pos_embed": table.contiguous()}, path)
    return inspect(path).positions.word


def with_class_row(table: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, table.shape[1]), table])[None]


@pytest.mark.parametrize(
    ("table", "word"),
    [
        (lambda: smooth((8, 8), 96), "trained"),
        (lambda: smooth((8, 8), 96).half().float() * 1e-3, "trained"),
        (lambda: smooth((8, 8), 96)[torch.randperm(64)], "like random"),
        (lambda: 0.02 * torch.randn(64, 96), "like random"),
        (lambda: 0.02 * torch.randn(64, 96) + 3, "like random"),
        (lambda: torch.zeros(64, 96), "like random"),
        (lambda: sincos_2d((8, 8), 96)[0], "fixed sine-cosine"),
        (lambda: sincos_2d((8, 8), 96)[0, :, torch.randperm(96)], "fixed sine-cosine"),
        (lambda: sincos_2d((8, 8), 96)[0] + 0.3 * torch.randn(64, 96), "trained"),
        (lambda: torch.randn(9, 96), "too few rows to tell"),
    ],
)
def test_the_word_follows_from_the_table(table: Callable, word: str, path: Path) -> None:
    assert words(path, with_class_row(table())) == word


def test_untrained_tables_are_not_taken_for_trained_ones() -> None:
    """Over many seeds the number of a random table stays within what its shuffled rows give."""
    numbers = torch.tensor([structure_of(torch.randn(196, 192), (14, 14)) for _ in range(100)])
    assert numbers.abs().max() < 5 * numbers.std()
    assert structure_of(smooth((14, 14), 192), (14, 14)) > 20 * numbers.std()


def test_the_control_is_seeded_and_near_zero(path: Path) -> None:
    words(path, with_class_row(smooth((8, 8), 96)))
    one, other = inspect(path).positions, inspect(path).positions
    assert one == other
    assert abs(one.control) < 3 * one.spread
    assert one.structure > one.control + 10 * one.spread


def test_sines_and_cosines_in_half_precision() -> None:
    table = sincos_2d((14, 14), 384)[0]
    assert is_sine_cosine(table.half())
    assert is_sine_cosine(table.bfloat16())
    assert not is_sine_cosine(table * 1.05)
    assert not is_sine_cosine(torch.randn(196, 384) * math.sqrt(0.5))


def test_real_weights_are_trained(data_root: Path) -> None:
    found = inspect(data_root / "weights" / "dinov2_vits14_hf_fp16.safetensors")
    assert (found.source, found.positions.word, found.dtypes) == ("huggingface", "trained", ("float16",))
    assert "vit_small_patch14_dinov2" in found.initialises


def test_positions_that_are_no_numbers(path: Path, refused: Callable) -> None:
    with refused(path, "positions hold NaN or infinite numbers"):
        words(path, torch.full((1, 65, 96), torch.nan))
