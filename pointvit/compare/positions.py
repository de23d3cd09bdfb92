"""What position embeddings have learned of the space they stand for, in 2D and in 3D."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from pointvit.compare.moments import Moments, Spread
from pointvit.model import ViT
from pointvit.tokenizers import ImageTokenizer


def position_similarity(model: ViT, centers: Tensor | None = None, centered: bool = False) -> Tensor:
    """``ViT -> (h, w, h, w)``, or for points ``ViT, (B, G, 3) -> (B, G, G)``: cosines of position embeddings.

    Entry [r, c] is the map of patch (r, c) in the centre of the ViT paper's figure 7.

    Args:
        model: an image encoder; or a point encoder, whose positions are a function of the groups' centres.
        centers: centres in the frame that the point encoder was trained in.
        centered: without the embeddings' mean (over the grid, or over each object's groups), which they share
            and which hides how they differ.

    Raises:
        ValueError: for a model without position embeddings, and for centres with a table or none without.
    """
    if isinstance(model.tokenizer, ImageTokenizer):
        if centers is not None:
            raise ValueError("an image encoder has a table of positions: centers is for point encoders")
        rows = rearrange(position_table(model), "h w d -> 1 (h w) d")
        h = model.tokenizer.config.grid[0]
        return rearrange(_cosines(rows, centered)[0], "(h w) (y x) -> h w y x", h=h, y=h)
    if centers is None or centers.ndim != 3 or centers.shape[2] != 3:
        raise ValueError(
            "the positions of a point encoder depend on the groups: pass centers of shape (B, G, 3), such as "
            f"model.tokenizer.group(points)[1]; got {None if centers is None else tuple(centers.shape)}"
        )
    with torch.no_grad():
        like = next(model.tokenizer.pos_embed.parameters())
        return _cosines(model.tokenizer.pos_embed(centers.to(like.device, like.dtype)), centered)


def position_table(model: ViT) -> Tensor:
    """``ViT -> (h, w, D)``: the position embeddings of an image encoder's patches, in float32.

    Raises:
        ValueError: for a point encoder, or an image encoder that has none.
    """
    if not isinstance(model.tokenizer, ImageTokenizer):
        raise ValueError("a point encoder has no table of positions: they are a function of the centres")
    table = model.tokenizer.pos_embed
    if table is None:
        raise ValueError(
            "this image encoder has no position embeddings (pos_embed='none'), so they cannot be compared"
        )
    table = table() if isinstance(table, nn.Module) else table
    return rearrange(table.detach().float(), "1 (h w) d -> h w d", h=model.tokenizer.config.grid[0])


def _cosines(rows: Tensor, centered: bool) -> Tensor:
    """``(B, N, D) -> (B, N, N)``."""
    rows = rows.float()
    rows = F.normalize(rows - rows.mean(dim=1, keepdim=True) if centered else rows, dim=-1)
    return rows @ rows.mT


class GridStructure(NamedTuple):
    """A table of 2D positions in numbers; cosines are those of the centred table."""

    neighbours: float
    """Mean cosine of patches side by side or one above the other."""
    far: float
    """Mean cosine of patches at least half the grid's diagonal apart."""
    rank_correlation: float
    """Spearman's, of cosine and distance over all pairs; -1 if similarity only ever falls with distance."""
    line_advantage: float
    """How much more alike patches of one row or column are than others as far apart (two patches or more)."""
    rows_and_columns: float
    """Share of the table's variance that a term for the row and one for the column explain together."""
    by_chance: float
    """That share for a table of random numbers."""


def grid_structure(table: Tensor) -> GridStructure:
    """``(h, w, D) -> GridStructure``, see :func:`position_table`.

    Raises:
        ValueError: for a grid of fewer than 3 rows or columns.
    """
    if table.ndim != 3 or min(table.shape[:2]) < 3:
        raise ValueError(
            "the structure of a grid needs positions (h, w, D) with at least 3 rows and columns, got "
            f"{tuple(table.shape)}"
        )
    table = table.double()
    h, w = table.shape[:2]
    place = torch.cartesian_prod(torch.arange(h), torch.arange(w))
    first, second = torch.triu_indices(h * w, h * w, offset=1)
    apart = (place[first] - place[second]).double()
    distance, on_line = apart.norm(dim=1), (apart == 0).any(dim=1)
    flat = rearrange(table, "h w d -> (h w) d")
    flat = F.normalize(flat - flat.mean(dim=0), dim=1)
    cosine = (flat @ flat.T)[first, second]
    return GridStructure(
        neighbours=float(cosine[distance == 1].mean()),
        far=float(cosine[distance >= math.hypot(h, w) / 2].mean()),
        rank_correlation=rank_correlation(distance, cosine),
        line_advantage=_line_advantage(cosine, distance, on_line),
        rows_and_columns=_additive_share(table),
        by_chance=(h + w - 2) / (h * w - 1),
    )


def _line_advantage(cosine: Tensor, distance: Tensor, on_line: Tensor) -> float:
    """The mean over distances, rounded to whole patches, at which there are pairs of both kinds."""
    rounded, found = distance.round(), []
    for step in range(2, int(rounded.max()) + 1):
        on, off = (cosine[(rounded == step) & kind] for kind in (on_line, ~on_line))
        if len(on) and len(off):
            found.append(float(on.mean() - off.mean()))
    return sum(found) / len(found)


def _additive_share(table: Tensor) -> float:
    """R^2 of a two-way analysis of variance without interaction."""
    centred = table - table.mean(dim=(0, 1))
    rows, cols = centred.mean(dim=1, keepdim=True), centred.mean(dim=0, keepdim=True)
    total = centred.square().sum()
    return float((rows + cols).expand_as(table).square().sum() / total) if total > 0 else math.nan


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """``(N,), (N,) -> float``: Spearman's; equal numbers share a mean rank. NaN if one side is constant."""
    first, second = (_ranks(v) for v in (x, y))
    scale = first.norm() * second.norm()
    return float(first @ second / scale) if scale > 0 else math.nan


def _ranks(x: Tensor) -> Tensor:
    """``(N,) -> (N,)``: ranks less their mean."""
    from scipy.stats import rankdata

    ranks = torch.from_numpy(rankdata(x.double().cpu().numpy()))
    return ranks - ranks.mean()


class DistanceCurve(NamedTuple):
    """Similarity of positions against their distance, over many objects."""

    rank_correlation: Spread
    """Spearman's within each object, over its pairs; mean and spread over objects."""
    edges: Tensor
    """(bins + 1,) of distance."""
    similarity: Tensor
    """(bins,) mean over the pairs of all objects; NaN where there is none."""
    pairs: Tensor
    """(bins,) how many pairs there were."""


class SimilarityByDistance:
    """How similarity falls with distance over a data set, in constant memory: figure 7 in 3D."""

    def __init__(self, reach: float = 2.0, bins: int = 20) -> None:
        """``reach``: the distance at which the curve ends; two radii are an object's diameter."""
        if reach <= 0 or bins < 1:
            raise ValueError(f"the curve needs reach > 0 and bins >= 1, got {reach} and {bins}")
        self.reach, self.bins = reach, bins
        self._correlation = Moments()
        self._sum, self._pairs = torch.zeros(bins, dtype=torch.float64), torch.zeros(bins, dtype=torch.int64)

    def update(self, similarity: Tensor, positions: Tensor) -> None:
        """``(B, N, N), (B, N, 2|3)``, such as :func:`position_similarity` and centres in object radii.

        Objects whose pairs all have one distance, or one similarity, have no rank correlation and count in
        the curve alone.

        Raises:
            ValueError: for shapes that do not match.
        """
        if similarity.ndim != 3 or similarity.shape[1:] != (positions.shape[1],) * 2 or positions.ndim != 3:
            raise ValueError(
                f"similarity (B, N, N) and positions (B, N, 2|3) must match, got {tuple(similarity.shape)} "
                f"and {tuple(positions.shape)}"
            )
        first, second = torch.triu_indices(positions.shape[1], positions.shape[1], offset=1)
        places = positions.detach().cpu().double()
        distance = (places[:, first] - places[:, second]).norm(dim=-1)
        values = similarity.detach().cpu().double()[:, first, second]
        which = (distance / self.reach * self.bins).long()
        kept = which < self.bins
        self._sum.index_add_(0, which[kept], values[kept])
        self._pairs += which[kept].bincount(minlength=self.bins)
        found = torch.tensor([rank_correlation(d, v) for d, v in zip(distance, values, strict=True)])
        self._correlation.update(found[found.isfinite()])

    def result(self) -> DistanceCurve:
        return DistanceCurve(
            self._correlation.result(),
            torch.linspace(0, self.reach, self.bins + 1),
            self._sum / self._pairs,
            self._pairs.clone(),
        )
