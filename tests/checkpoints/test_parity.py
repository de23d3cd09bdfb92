"""Every kind of public checkpoint against its own implementation, all parameters random; and damaged files.

A file whose query and key are swapped, or which lacks a tensor, has a kernel transposed or is evaluated with
another LayerNorm eps must break parity or be refused: otherwise parity would show nothing.
"""

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import parity
from parity import Row, Tensors, rewrite
from pointvit import create_model, load_checkpoint
from pointvit.checkpoints import SOURCES, CheckpointError

ROWS: list[Row] = [
    row
    for module in pkgutil.iter_modules(parity.__path__)
    for row in importlib.import_module(f"parity.{module.name}").ROWS
]


@pytest.fixture(params=ROWS, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Row:
    return request.param


@pytest.fixture
def theirs(row: Row, randomise: Callable) -> nn.Module:
    return randomise(row.build()).eval()


@pytest.fixture
def path(row: Row, theirs: nn.Module, tmp_path: Path) -> Path:
    return row.write(theirs, tmp_path)


def example(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def worst_error(row: Row, ours: nn.Module, theirs: nn.Module, shape: tuple[int, ...]) -> float:
    x, theirs = example(shape), row.at(theirs, shape)
    with torch.no_grad():
        errors = [error(row.ours(ours, x), row.features(theirs, x))]
        if row.logits is not None:
            errors.append(error(ours(x), row.logits(theirs, x)))
    return max(errors)


def test_every_source_has_a_row() -> None:
    assert {row.source for row in ROWS} == set(SOURCES) - {"pointvit"}


def test_features_and_logits_equal_the_public_implementation(row: Row, theirs: nn.Module, path: Path) -> None:
    ours = create_model("auto", pretrained=path, **row.settings).eval()
    for shape in row.inputs:
        assert worst_error(row, ours, theirs, shape) <= row.tolerance, shape


def test_nothing_is_left_unexplained(row: Row, path: Path) -> None:
    model = create_model("auto", pretrained=path, **row.settings)
    report = load_checkpoint(model, path)
    assert report.source == row.source
    assert not report.missing
    assert not report.unexpected
    assert report.coverage > 0.99
    tensors = parity.read(path)
    assert all(tensors[name].isfinite().all() for name in tensors if tensors[name].is_floating_point())
    in_file = sum(t.numel() for t in tensors.values())
    explained = report.num_parameters({*report.loaded, *report.set_aside})
    assert explained + 2 * model.embed_dim * model.config.trunk.depth >= in_file  # a bias may be left unsaid


def swapped(row: Row) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        if len(row.query_key) == 2:
            query, key = row.query_key
            return {**tensors, query: tensors[key], key: tensors[query]}
        (fused,) = row.query_key
        query, key, value = tensors[fused].chunk(3)
        return {**tensors, fused: torch.cat([key, query, value])}

    return change


def without(row: Row) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if name != row.dropped}


def transposed(row: Row) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, row.kernel: tensors[row.kernel].mT.contiguous()}


MUTATIONS = {
    "query and key swapped": swapped,
    "a tensor dropped": without,
    "a kernel transposed": transposed,
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_damaged_file_is_noticed(mutation: str, row: Row, theirs: nn.Module, path: Path) -> None:
    before = parity.read(path)
    rewrite(path, MUTATIONS[mutation](row))
    after = parity.read(path)
    assert any(name not in after or not torch.equal(before[name], after[name]) for name in before)
    try:
        ours = create_model("auto", pretrained=path, **row.settings).eval()
    except CheckpointError:
        return
    assert worst_error(row, ours, theirs, row.inputs[0]) > 10 * row.tolerance


def test_another_eps_is_noticed(row: Row, theirs: nn.Module, path: Path) -> None:
    ours = create_model("auto", pretrained=path, **row.settings).eval()
    other = 100 * max(ours.config.trunk.norm_eps, 1e-5)
    ours = create_model("auto", pretrained=path, norm_eps=other, **row.settings).eval()
    assert worst_error(row, ours, theirs, row.inputs[0]) > 10 * row.tolerance
