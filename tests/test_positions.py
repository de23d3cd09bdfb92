"""Position embeddings: values by their formulas, resampling against timm's."""

import math

import pytest
import torch
from timm.layers import RotaryEmbeddingCat, apply_rot_embed_cat, resample_abs_pos_embed
from torch import Tensor, nn

from pointvit.positions import (
    POSITIONS_3D,
    FourierPositions,
    Learned2d,
    PointPositions,
    ProjectedPositions,
    resample_grid,
    rope_2d,
    sincos_2d,
    square_grid,
)
from pointvit.tokenizers import PointTokenizer, PointTokenizerConfig
from pointvit.trunk import rotate


def table(rows: int, dim: int = 8) -> Tensor:
    return torch.randn(1, rows, dim, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("grid", "dim"), [((2, 3), 4), ((3, 2), 8), ((14, 14), 192)])
def test_sincos_by_its_formula(grid: tuple[int, int], dim: int) -> None:
    quarter = dim // 4
    got = sincos_2d(grid, dim)
    assert got.shape == (1, grid[0] * grid[1], dim)
    assert got.dtype == torch.float32
    for row in range(grid[0]):
        for col in range(grid[1]):
            omega = [10_000 ** -(i / max(1, quarter - 1)) for i in range(quarter)]
            parts = [[f(at * w) for w in omega] for at in (col, row) for f in (math.sin, math.cos)]
            expected = torch.tensor(parts).flatten()
            torch.testing.assert_close(got[0, row * grid[1] + col], expected, rtol=0, atol=1e-6)


def test_sincos_refuses_a_width_without_quarters() -> None:
    with pytest.raises(ValueError, match="multiple of 4, got 6"):
        sincos_2d((2, 2), 6)


@pytest.mark.parametrize("new", [(20, 16), (7, 7), (1, 1), (14, 28)])
def test_resampling_equals_timm(new: tuple[int, int]) -> None:
    pos = table(196)
    expected = resample_abs_pos_embed(pos, list(new), old_size=[14, 14], num_prefix_tokens=0)
    torch.testing.assert_close(resample_grid(pos, (14, 14), new), expected, rtol=1e-6, atol=1e-6)


def test_resampling_knows_rows_from_columns() -> None:
    """The same number of rows on another grid is still resampled; a vertical gradient stays vertical."""
    rows = torch.arange(4.0)[:, None].expand(4, 9).reshape(1, 36, 1)
    turned = resample_grid(rows, (4, 9), (9, 4))
    assert not torch.equal(turned, rows)
    image = turned.view(9, 4)
    assert bool((image.diff(dim=0) > 0).all())
    torch.testing.assert_close(image, image[:, :1].expand(9, 4))


def test_resampling_to_the_same_grid_is_the_table_itself() -> None:
    pos = table(6)
    assert resample_grid(pos, (2, 3), (2, 3)) is pos


def test_resampling_keeps_constants_and_precision() -> None:
    pos = torch.full((1, 16, 4), 0.37, dtype=torch.float16)
    resampled = resample_grid(pos, (4, 4), (7, 5))
    assert resampled.dtype == torch.float16
    torch.testing.assert_close(resampled, torch.full((1, 35, 4), 0.37, dtype=torch.float16))


def test_resampling_refuses_another_number_of_rows() -> None:
    with pytest.raises(ValueError, match="expected 2x3 = 6 position rows, got 7"):
        resample_grid(table(7), (2, 3), (4, 4))


def test_square_grid() -> None:
    assert square_grid(1369, "x") == (37, 37)
    with pytest.raises(ValueError, match=r"file\.npz: 195 position rows are not a square grid"):
        square_grid(195, "file.npz")


def test_learned_2d_adds_nothing_across_the_axes() -> None:
    pos = Learned2d((3, 5), 8)
    values = pos()
    assert values.shape == (1, 15, 8)
    for row in range(3):
        for col in range(5):
            assert torch.equal(values[0, row * 5 + col], torch.cat([pos.cols[col], pos.rows[row]]))
    values.sum().backward()
    assert bool((pos.rows.grad == 5).all())
    assert bool((pos.cols.grad == 3).all())
    with pytest.raises(ValueError, match="an even width, got 7"):
        Learned2d((3, 5), 7)


def test_point_positions_are_point_berts() -> None:
    layers = list(PointPositions(96))
    assert [type(layer) for layer in layers] == [nn.Linear, nn.GELU, nn.Linear]
    assert [tuple(p.shape) for p in PointPositions(96).parameters()] == [(128, 3), (128,), (96, 128), (96,)]
    assert PointPositions(96)(torch.rand(2, 7, 3)).shape == (2, 7, 96)


@pytest.mark.parametrize("grid", [(16, 16), (4, 4), (24, 24), (6, 5), (1, 9)])
@pytest.mark.parametrize("dim", [8, 64, 88])
def test_rotary_positions_equal_timm(grid: tuple[int, int], dim: int) -> None:
    """timm has the sines first."""
    theirs = RotaryEmbeddingCat(dim, in_pixels=False, ref_feat_shape=[16, 16]).get_embed(list(grid))
    ours = rope_2d(grid, dim)
    assert ours.shape == (1, grid[0] * grid[1], 2 * dim)
    torch.testing.assert_close(ours[0], theirs.roll(dim, dims=1), rtol=0, atol=1e-6)

    x = torch.randn(2, 3, 2 + grid[0] * grid[1], dim, generator=torch.Generator().manual_seed(1))
    turned = rotate(x, ours)
    assert torch.equal(turned[:, :, :2], x[:, :, :2])  # class token and register have no position
    expected = apply_rot_embed_cat(x[:, :, 2:], ours[0].roll(dim, dims=1))
    torch.testing.assert_close(turned[:, :, 2:], expected, rtol=0, atol=1e-6)


def test_rotary_positions_are_rotations_by_the_difference() -> None:
    """Lengths stay, and a query and a key on the reference grid see only how far apart they are."""
    x, rope = torch.randn(1, 1, 2, 64, generator=torch.Generator().manual_seed(1)), rope_2d((16, 16), 64)

    def product(first: int, second: int) -> Tensor:
        q, k = rotate(x, rope[:, [first, second]])[0, 0]
        return q @ k

    torch.testing.assert_close(rotate(x, rope[:, [5, 77]]).norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(product(0, 35), product(100, 135), rtol=1e-4, atol=1e-4)
    assert (product(0, 35) - product(0, 36)).abs() > 1e-3


def test_fourier_positions_by_their_formula() -> None:
    layer, center = FourierPositions(8), [0.3, -0.7, 0.55]
    features = []
    for c in center:
        angles = [math.pi * c * 2**k for k in range(6)]
        features += [*map(math.sin, angles), *map(math.cos, angles)]
    expected = layer.weight @ torch.tensor(features) + layer.bias
    torch.testing.assert_close(layer(torch.tensor([[center]]))[0, 0], expected, rtol=1e-5, atol=1e-5)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]


def test_projected_positions_are_the_mean_of_three_places_in_the_table() -> None:
    """Where a patch's middle is hit, its row alone; between two, half of both; outside, the border's."""
    layer = ProjectedPositions((2, 4), 5)
    rows = layer.table.detach()[0].view(2, 4, 5)
    at = torch.tensor([[[-0.75, 0.25, 0.5], [0.0, 0.25, 0.5], [9.0, -9.0, -9.0]]])
    with torch.no_grad():
        first, between, outside = layer(at)[0]
    # Columns by x, y, x from left to right; rows by z, z, y from top to bottom.
    torch.testing.assert_close(first, (rows[0, 0] + rows[0, 2] + (rows[0, 0] * 0.75 + rows[1, 0] * 0.25)) / 3)
    middle = (rows[0, 1] + rows[0, 2]) / 2
    lower = (rows[1, 1] + rows[1, 2]) / 2
    torch.testing.assert_close(between, (middle + rows[0, 2] + (middle * 0.75 + lower * 0.25)) / 3)
    torch.testing.assert_close(outside, (rows[1, 3] + rows[1, 0] + rows[1, 3]) / 3)


def test_every_row_of_the_table_learns() -> None:
    layer = ProjectedPositions((3, 3), 4)
    layer(torch.rand(2, 200, 3) * 2 - 1).square().sum().backward()
    assert bool((layer.table.grad != 0).all())


@pytest.mark.parametrize("kind", POSITIONS_3D)
def test_positions_of_a_point_encoder(kind: str) -> None:
    config = PointTokenizerConfig(6, 4, width=16, pos_embed=kind, pos_grid=(3, 5))
    tokenizer = PointTokenizer(config, 24)
    tokens = tokenizer(torch.rand(2, 32, 3))
    assert tokens.pos is not None
    assert tokens.pos.shape == (2, 6, 24)
    torch.testing.assert_close(tokens.pos, tokenizer.pos_embed(tokens.centers))
    sizes = {name: tuple(p.shape) for name, p in tokenizer.pos_embed.named_parameters()}
    expected = {
        "mlp": {"0.weight": (128, 3), "0.bias": (128,), "2.weight": (24, 128), "2.bias": (24,)},
        "fourier": {"weight": (24, 36), "bias": (24,)},
        "projected": {"table": (1, 15, 24)},
    }
    assert sizes == expected[kind]


def test_unknown_positions_of_points_are_refused() -> None:
    with pytest.raises(ValueError, match="pos_embed must be one of mlp, fourier, projected, got 'learned'"):
        PointTokenizerConfig(pos_embed="learned")
    with pytest.raises(ValueError, match=r"pos_grid must be at least one row and column, got \(0, 3\)"):
        PointTokenizerConfig(pos_grid=(0, 3))
