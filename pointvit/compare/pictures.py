"""More figures of a comparison: retrieval, drift, positions, and what the first layers respond to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure

from pointvit.compare.figures import LOOKS
from pointvit.compare.filters import channel_responses, most_varied_channels, offset_grid, principal_filters
from pointvit.compare.panels import Drawn, Places, array, freeze, line, number
from pointvit.compare.positions import position_similarity
from pointvit.compare.study import Numbers
from pointvit.compare.subjects import LABELS
from pointvit.model import ViT
from pointvit.plots import COLORS, new_figure
from pointvit.report import Cell
from pointvit.tokenizers import ImageTokenizerConfig

WAYS = {
    "cosine": ("features as they are", "^", "-"),
    "mapped": ("behind a fitted linear map", "o", "-"),
    "permuted": ("map fitted to permuted pairs", "x", ":"),
}
MAPS = 7
"""Maps of position similarity along each side, as in the ViT paper."""
FILTERS, CHANNELS = 28, 12
STEPS = 15


def recall(found: Numbers) -> Drawn:
    """Recall of the own cloud over the number of clouds looked at."""
    ks = found["ks"]
    figure = new_figure(4.2 * len(found["gallery"]) + 0.4, 3.5)
    axes = np.atleast_1d(figure.subplots(1, len(found["gallery"]), sharey=True))
    panels: list[Places] = []
    rows: list[list[Cell]] = []
    for place, (name, ways) in zip(axes, found["gallery"].items(), strict=True):
        texts = [f"{LABELS[name]}, among the first {k}:" for k in ks]
        for way, values in ways.items():
            label, marker, style = WAYS[way]
            shares = [100 * values[f"recall@{k}"] for k in ks]
            place.plot(
                range(len(ks)), shares, color=LOOKS[name][0], marker=marker, linestyle=style, label=label
            )
            texts = [f"{text} {label} {share:.1f}%," for text, share in zip(texts, shares, strict=True)]
            rows.append([LABELS[name], label, *(f"{share:.1f}" for share in shares)])
        chance = [100 * ways["mapped"][f"chance@{k}"] for k in ks]
        place.plot(range(len(ks)), chance, color="0.35", linestyle="--", label="chance")
        rows.append([LABELS[name], "chance", *(f"{share:.1f}" for share in chance)])
        place.set_xticks(range(len(ks)), [str(k) for k in ks])
        place.set_xlabel("clouds looked at")
        place.set_title(f"views find the clouds of the\n{LABELS[name]}", fontsize=9)
        place.set_ylim(bottom=0)
        place.grid(alpha=0.3)
        place.legend(fontsize=7)
        texts = [f"{text} chance {share:.1f}%" for text, share in zip(texts, chance, strict=True)]
        panels.append((place, list(range(len(ks))), texts))
    axes[0].set_ylabel("own cloud found (%)")
    freeze(figure)
    return Drawn(
        "retrieval",
        "Recall",
        figure,
        "Share of views that find their own cloud among the first 1, 5 and 10, with chance.",
        f"{found['objects']} views search among as many clouds, by the cosine of the features of the last "
        "layer. The linear maps are fitted to other objects.",
        ["clouds of", "how", *(f"recall@{k} (%)" for k in ks)],
        rows,
        [line(figure, *panel) for panel in panels],
    )


def drift(found: Numbers) -> Drawn:
    """How far each tensor and each block of the trunk has moved."""
    groups = [row for row in found["groups"] if row["relative"] is not None]
    names = [row["name"] for row in groups]
    figure = new_figure(9, 3.6)
    axes = figure.add_subplot()
    for row in found["tensors"]:
        if row["relative"] is not None and row["group"] in names:
            is_norm = "norm" in row["name"] or row["name"].endswith("gamma")
            axes.plot(
                names.index(row["group"]),
                row["relative"],
                "D" if is_norm else "o",
                color=COLORS[4] if is_norm else COLORS[5],
                markersize=4,
            )
    moved = [row["relative"] for row in groups]
    axes.plot(range(len(names)), moved, color=COLORS[0], marker="s", label="all of a block together")
    axes.plot([], [], "o", color=COLORS[5], markersize=4, label="tensors")
    axes.plot([], [], "D", color=COLORS[4], markersize=4, label="norms and scales")
    axes.set_xticks(range(len(names)), [name.replace("blocks.", "") for name in names])
    axes.set_xlabel("block of the trunk")
    axes.set_ylabel("|after − before| / |before|")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    freeze(figure)
    texts = [
        f"{row['name']}: moved by {number(row['relative'])} of its length, cosine {number(row['cosine'])}"
        for row in groups
    ]
    rows: list[list[Cell]] = [
        [row["name"], number(row["relative"]), number(row["cosine"]), number(row["before"])]
        for row in [*groups, *found["tensors"]]
    ]
    return Drawn(
        "drift",
        "Weights of the trunk",
        figure,
        "How far the weights of each block have moved from the image encoder's to the point encoder's.",
        "Euclidean length of the difference, relative to that before; blocks count from 0 as in the files.",
        ["block or tensor", "relative change", "cosine", "length before"],
        rows,
        [line(figure, axes, list(range(len(names))), texts)],
    )


def positions_2d(image: ViT, grid: Numbers) -> Drawn:
    """Cosine of one patch's position with all others', for patches all over the grid."""
    maps = position_similarity(image, centered=True).cpu().numpy()
    height, width = maps.shape[:2]
    at_y, at_x = (np.linspace(0, n - 1, min(MAPS, n)).round().astype(int) for n in (height, width))
    figure = new_figure(5.6, 5.2 * len(at_y) / len(at_x))
    axes = figure.subplots(len(at_y), len(at_x), squeeze=False)
    for row, y in enumerate(at_y):
        for column, x in enumerate(at_x):
            drawn = axes[row, column].imshow(maps[y, x], cmap="viridis", vmin=-1, vmax=1)
            axes[row, column].set_xticks([])
            axes[row, column].set_yticks([])
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="cosine, mean taken out")
    freeze(figure)
    return Drawn(
        "positions_2d",
        "Positions of patches",
        figure,
        "A grid of maps: similarity of one patch's position embedding with those of all patches.",
        f"Each map is of one patch of the {height} x {width}; where it is bright, positions are alike "
        "(figure 7, centre, of the ViT paper). Far: at least half the diagonal apart. Line advantage: how "
        "much more alike patches of one row or column are than others as far apart. Rows and columns: the "
        "share of the variance that a term for the row and one for the column explain; by chance: that share "
        "for random numbers.",
        ["measure", "value"],
        [[name.replace("_", " "), number(value)] for name, value in grid.items()],
    )


def positions_3d(curve: Numbers) -> Drawn:
    """The similarity of two groups' positions over their distance."""
    edges = array(curve["edges"])
    middle, values = (edges[1:] + edges[:-1]) / 2, array(curve["similarity"])
    figure = new_figure(5.6, 3.5)
    axes = figure.add_subplot()
    axes.plot(middle, values, color=COLORS[1], marker="s")
    axes.axhline(0, color="0.35", linewidth=1)
    axes.set_xlabel("distance of two groups' centres (object radii)")
    axes.set_ylabel("cosine of their positions")
    axes.grid(alpha=0.3)
    freeze(figure)
    correlation = curve["rank_correlation"]
    texts = [
        f"distance {m:.2f} radii: cosine {number(v)} over {p:,} pairs"
        for m, v, p in zip(middle, curve["similarity"], curve["pairs"], strict=True)
    ]
    rows: list[list[Cell]] = [
        [f"{m:.2f}", number(v), p]
        for m, v, p in zip(middle, curve["similarity"], curve["pairs"], strict=True)
    ]
    return Drawn(
        "positions_3d",
        "Positions of groups",
        figure,
        "Cosine of the position embeddings of two groups over the distance of their centres.",
        f"Their mean within an object taken out. Rank correlation within an object {correlation['mean']:.3f} "
        f"± {correlation['std']:.3f}, mean and spread over objects.",
        ["distance (radii)", "cosine", "pairs"],
        rows,
        [line(figure, axes, middle.tolist(), texts)],
    )


def filters(image: ViT) -> tuple[Drawn, Numbers]:
    """The first principal components of the patch embedding's filters.

    Raises:
        ValueError: for an encoder whose patches are not embedded straight from colours.
    """
    patch = image.config.tokenizer
    assert isinstance(patch, ImageTokenizerConfig)
    weights = patch.in_chans * math.prod(patch.patch_size)
    num = min(FILTERS, image.embed_dim, weights)
    found = principal_filters(image, num)
    shares = found.explained.tolist()
    figure = _small_multiples(
        [picture.numpy() for picture in found.images], [f"{100 * share:.0f}%" for share in shares], 7
    )
    drawn = Drawn(
        "filters",
        "Filters of the patch embedding",
        figure,
        f"The first {num} principal components of the patch-embedding filters, as small colour pictures.",
        "Grey is no weight; above each is its share of the variance (the ViT paper's figure 7, left).",
        ["component", "share of variance (%)"],
        [[i, f"{100 * share:.2f}"] for i, share in enumerate(shares, start=1)],
    )
    return drawn, {"explained": shares}


def channels(points: ViT, radius: float) -> tuple[Drawn, Numbers]:
    """What single channels of the mini-PointNet say to one point beside the centre of its group.

    Args:
        radius: of a group, in the clouds' unit.
    """
    offsets = offset_grid(radius, STEPS)
    responses = channel_responses(points, offsets).float().cpu()
    chosen = most_varied_channels(responses, min(CHANNELS, responses.shape[1]))
    favourite = offsets[responses[:, chosen].argmax(dim=0)]
    up = "xyz".index(points.meta.up_axis)
    side = [axis for axis in (0, 1, 2) if axis != up]
    slices = [_slice(responses[:, channel], offsets, side[0], up) for channel in chosen.tolist()]
    figure = _small_multiples(slices, [f"channel {channel}" for channel in chosen.tolist()], 6)
    rows: list[list[Cell]] = [
        [channel, *(f"{value:.3f}" for value in place)]
        for channel, place in zip(chosen.tolist(), favourite.tolist(), strict=True)
    ]
    drawn = Drawn(
        "mini_pointnet",
        "Channels of the mini-PointNet",
        figure,
        "Responses of channels of the mini-PointNet to one point at each place beside the centre.",
        f"The {len(slices)} channels that tell offsets apart the most. Each disc is the upright plane "
        f"through the centre of a group, x to the right and {points.meta.up_axis} up, {radius:.2f} radii to "
        "each side; bright is a large response, each on its own scale. The table has where it is largest.",
        ["channel", "favourite x (radii)", "y", "z"],
        rows,
    )
    return drawn, {"radius": radius, "channels": chosen.tolist(), "favourite": favourite.tolist()}


def _slice(values: torch.Tensor, offsets: torch.Tensor, right: int, up: int) -> np.ndarray:
    """``(M,), (M, 3) -> (steps, steps)``: the plane where the third axis is 0; NaN beyond the radius."""
    depth = 3 - right - up
    step = 2 * float(offsets.max()) / (STEPS - 1)
    index = (offsets / step).round().int() + STEPS // 2
    plane = np.full((STEPS, STEPS), math.nan)
    rows = index[:, depth] == STEPS // 2
    plane[STEPS - 1 - index[rows, up].numpy(), index[rows, right].numpy()] = values[rows].numpy()
    return plane


def _small_multiples(images: Sequence[np.ndarray], titles: Sequence[str], columns: int) -> Figure:
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    figure = new_figure(1.1 * columns, 1.3 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place in axes:
        place.set_axis_off()
    for place, image, title in zip(axes, images, titles, strict=False):
        place.imshow(image, cmap="viridis")
        place.set_title(title, fontsize=7)
    freeze(figure)
    return figure
