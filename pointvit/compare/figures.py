"""The figures of a comparison: what each layer of the encoders does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pointvit.compare.panels import Drawn, Places, array, freeze, grid, line, number, whole_numbers
from pointvit.compare.study import Numbers
from pointvit.compare.subjects import LABELS
from pointvit.plots import COLORS, new_figure
from pointvit.report import Cell

LOOKS = {
    # colour, marker, line: of the modality, of before and after, of the control
    "image": (COLORS[0], "o", "-"),
    "points": (COLORS[1], "s", "-"),
    "image_after": (COLORS[5], "^", "-"),
    "points_before": (COLORS[4], "D", "-"),
    "image_random": (COLORS[0], "x", ":"),
    "points_random": (COLORS[1], "+", ":"),
}

LEGEND = 0.28
"""Height of a legend, of what is drawn below it."""


def heat_maps(entry: Numbers) -> Drawn:
    """Measured, permuted and random, side by side on one scale."""
    rows, columns = entry["rows"], entry["columns"]
    shown = [("measured", entry["cka"]), ("permuted pairs", entry["permuted_mean"])]
    shown += [("random weights", entry["random"])] if entry["random"] is not None else []
    figure = new_figure(3.1 * len(shown) + 0.7, 3.5)
    axes = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
    drawn = None
    for place, (name, matrix) in zip(axes, shown, strict=True):
        values = np.array(matrix, dtype=float)
        drawn = place.imshow(values, cmap="viridis", vmin=0, vmax=1, origin="lower")
        place.set_title(name, fontsize=10)
        place.set_xlabel(f"layer: {LABELS[columns]}", fontsize=8)
        for ticks in (place.set_xticks, place.set_yticks):
            ticks(range(0, len(values), 2))
        place.tick_params(labelsize=8)
    axes[0].set_ylabel(f"layer: {LABELS[rows]}", fontsize=8)
    assert drawn is not None
    figure.colorbar(drawn, ax=list(axes), shrink=0.8, label="linear CKA", extend="min")
    freeze(figure)
    texts = [[_cell_text(entry, i, j) for j in range(len(entry["cka"][0]))] for i in range(len(entry["cka"]))]
    title = "itself" if rows == columns else LABELS[columns]
    return Drawn(
        name=f"cka_{rows}_{columns}",
        title=f"{LABELS[rows].capitalize()} and {title}",
        figure=figure,
        alt=f"Heat maps of the CKA of every layer of the {LABELS[rows]} (rows) with every layer of "
        f"{'itself' if rows == columns else 'the ' + LABELS[columns]} (columns), "
        f"{', '.join(n for n, _ in shown)}.",
        caption=f"Unbiased linear CKA over {entry['objects']} objects, layer 0 to {len(texts) - 1}. "
        "Permuted: the objects of one side in another order, mean of 100 draws.",
        header=["layers", "CKA", "permuted", "permuted spread", "random weights"],
        rows=[
            [
                f"{i} and {j}",
                *(number(entry[part][i][j]) for part in ("cka", "permuted_mean", "permuted_std")),
                None if entry["random"] is None else number(entry["random"][i][j]),
            ]
            for i in range(len(texts))
            for j in range(len(texts[0]))
        ],
        panels=[grid(figure, place, texts) for place in axes],
    )


def same_depth(curves: Sequence[Numbers]) -> Drawn:
    """Each comparison across encoders along its diagonal, with both controls."""
    figure = new_figure(3.6 * len(curves) + 0.4, 3.5)
    axes = np.atleast_1d(figure.subplots(1, len(curves), sharey=True))
    panels: list[Places] = []
    rows: list[list[Cell]] = []
    for place, curve in zip(axes, curves, strict=True):
        xs = np.arange(len(curve["cka"]))
        cka, mean, spread = (array(curve[name]) for name in ("cka", "permuted_mean", "permuted_std"))
        color, marker, _ = LOOKS[curve["columns"]]
        place.plot(xs, cka, color=color, marker=marker, label="measured")
        place.fill_between(xs, mean - 2 * spread, mean + 2 * spread, color="0.6", alpha=0.4, linewidth=0)
        place.plot(xs, mean, color="0.35", linestyle="--", label="permuted pairs ± 2 spreads")
        if curve["random"] is not None:
            place.plot(
                xs, array(curve["random"]), color="0.1", linestyle=":", marker="x", label="random weights"
            )
        place.set_title(f"{LABELS[curve['rows']]}\nand {LABELS[curve['columns']]}", fontsize=9)
        place.set_xlabel("layer")
        whole_numbers(place)
        place.grid(alpha=0.3)
        place.legend(fontsize=7, loc="upper right")
        texts = []
        for layer in range(len(xs)):
            random = None if curve["random"] is None else curve["random"][layer]
            values = [curve[name][layer] for name in ("cka", "permuted_mean", "permuted_std")]
            rows.append([_pair(curve), layer, *map(number, [*values, random])])
            texts.append(f"{_pair(curve)}, layer {layer}: {_measured(values, random)}")
        panels.append((place, xs, texts))
    axes[0].set_ylabel("linear CKA at the same depth")
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(top=high + LEGEND * (high - low))
    freeze(figure)
    return Drawn(
        "same_depth",
        "Same depth",
        figure,
        "Lines of CKA at the same depth over the layers, with permuted pairs and random weights.",
        f"The diagonals of the maps below, over {curves[0]['objects']} objects. What lies within the grey "
        "band is chance; what lies no higher than the dotted line, any untrained network does as well.",
        ["encoders", "layer", "CKA", "permuted", "permuted spread", "random weights"],
        rows,
        [line(figure, *panel) for panel in panels],
    )


def by_head(found: Numbers, what: str) -> Drawn:
    """``distance`` or ``entropy`` of every head, images on the left and clouds on the right."""
    words = {"distance": "mean attention distance", "entropy": "attention entropy"}[what]
    figure = new_figure(9, 3.7)
    left, right = figure.subplots(1, 2)
    panels: list[Places] = []
    rows: list[list[Cell]] = []
    for place, names, title in (
        (left, ("image", "image_after"), "images"),
        (right, ("points_before", "points"), "clouds"),
    ):
        own = [name for name in names if name in found]
        unit = found[own[0]]["unit"] if what == "distance" else "nats"
        texts: list[str] = [""] * len(found[own[0]][what])
        for name in own:
            color, marker, _ = LOOKS[name]
            values = np.array(found[name][what])
            xs = np.arange(1, len(values) + 1) + (0.12 if name == own[-1] else -0.12) * (len(own) > 1)
            place.plot(
                xs.repeat(values.shape[1]),
                values.ravel(),
                marker,
                color=color,
                alpha=0.45,
                markersize=4,
                mew=0,
            )
            place.plot(xs, values.mean(1), color=color, marker=marker, label=f"{LABELS[name]}, mean of heads")
            for layer, heads in enumerate(values.tolist()):
                spread = found[name][f"{what}_std"][layer]
                rows += [
                    [LABELS[name], layer + 1, head + 1, number(value), number(spread[head])]
                    for head, value in enumerate(heads)
                ]
                texts[layer] += (
                    f"{'; ' if texts[layer] else ''}{LABELS[name]}: mean {np.mean(heads):.3g} {unit}, heads "
                    f"from {min(heads):.3g} to {max(heads):.3g}"
                )
        even = found[own[0]][f"uniform_{what}"]
        place.axhline(
            even, color="0.35", linestyle="--", linewidth=1, label=f"even attention ({even:.3g} {unit})"
        )
        place.set_ylim(bottom=0)
        place.set_title(title, fontsize=10)
        place.set_xlabel("layer")
        whole_numbers(place)
        place.set_ylabel(f"{words} ({'object ' if unit == 'radii' else ''}{unit})")
        place.grid(alpha=0.3)
        place.legend(fontsize=7, loc="lower right")
        said = [
            f"layer {i}, {title}: {text}; even {even:.3g} {unit}" for i, text in enumerate(texts, start=1)
        ]
        panels.append((place, np.arange(1, len(texts) + 1), said))
    freeze(figure)
    return Drawn(
        f"attention_{what}",
        words.capitalize(),
        figure,
        f"The {words} of every head over the layers, of images on the left and of clouds on the right.",
        "Small marks are heads, the line is their mean, the dashed line is attending to everything alike. "
        "Class and register tokens are left out; means over objects.",
        ["encoder", "layer", "head", words, "spread over objects"],
        rows,
        [line(figure, *panel) for panel in panels],
    )


def probe_curves(probes: Numbers) -> Drawn:
    """Linear probe and nearest neighbours over the layers."""
    figure = new_figure(9, 3.9)
    axes = figure.subplots(1, 2, sharey=True)
    panels: list[Places] = []
    rows: list[list[Cell]] = []
    for place, kind, title in zip(
        axes, ("linear", "knn"), ("linear probe", "5 nearest neighbours"), strict=True
    ):
        texts: list[str] = []
        for name, each in probes.items():
            values = [100 * layer[kind]["accuracy"] for layer in each["layers"]]
            color, marker, style = LOOKS[name]
            place.plot(values, color=color, marker=marker, linestyle=style, label=LABELS[name])
            texts = texts or ["" for _ in values]
            texts = [f"{t}; {LABELS[name]} {v:.1f}%" for t, v in zip(texts, values, strict=True)]
        chance = 100 * probes["image"]["linear"]["chance"]
        place.axhline(chance, color="0.35", linestyle="--", linewidth=1, label="largest class")
        place.set_title(title, fontsize=10)
        place.set_xlabel("layer")
        whole_numbers(place)
        place.grid(alpha=0.3)
        said = [f"{title}, layer {i}{text.replace(';', ':', 1)}" for i, text in enumerate(texts)]
        panels.append((place, np.arange(len(texts)), said))
    for name, each in probes.items():
        for layer in [*each["layers"], {"layer": "head's input", **each}]:
            accuracy = [layer[kind]["accuracy"] for kind in ("linear", "knn")]
            rows.append([LABELS[name], layer["layer"], *(f"{100 * value:.1f}" for value in accuracy)])
    axes[0].set_ylabel("overall accuracy (%)")
    axes[0].set_ylim(bottom=0)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)
    freeze(figure)
    test = probes["image"]["linear"]
    return Drawn(
        "probes",
        "Classes, layer by layer",
        figure,
        "Accuracy of linear probes and nearest neighbours over the layers, for each encoder.",
        f"Fitted to {test['num_train']} objects, tested on {test['num_test']} others. Features are the "
        "mean of patches (over all views) or groups. The image encoder's line is the baseline from views.",
        ["encoder", "layer", "linear probe (%)", "nearest neighbours (%)"],
        rows,
        [line(figure, *panel) for panel in panels],
    )


def layer_lines(tokens: Numbers) -> Drawn:
    """Norm, effective rank and outliers of the tokens."""
    parts = {"norm": "mean norm", "effective_rank": "effective rank", "outliers": "outlier tokens (%)"}
    figure = new_figure(10, 3.4)
    axes = figure.subplots(1, len(parts))
    panels: list[Places] = []
    for place, (part, title) in zip(axes, parts.items(), strict=True):
        scale = 100 if part == "outliers" else 1
        texts: list[str] = []
        for name, each in tokens.items():
            values = scale * array(each[part])
            color, marker, style = LOOKS[name]
            place.plot(values, color=color, marker=marker, linestyle=style, markersize=4, label=LABELS[name])
            texts = texts or ["" for _ in values]
            texts = [f"{t}; {LABELS[name]} {v:.3g}" for t, v in zip(texts, values, strict=True)]
        place.set_title(title, fontsize=10)
        place.set_xlabel("layer")
        whole_numbers(place)
        place.set_ylim(bottom=0)
        place.grid(alpha=0.3)
        said = [f"{title}, layer {i}{text.replace(';', ':', 1)}" for i, text in enumerate(texts)]
        panels.append((place, np.arange(len(texts)), said))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=7)
    freeze(figure)
    header = [
        "encoder",
        "layer",
        "mean norm",
        "longest",
        "mean of channels",
        "effective rank",
        "outliers (%)",
    ]
    return Drawn(
        "tokens",
        "Norm, rank and outliers",
        figure,
        "Norm, effective rank and share of outliers of the tokens over the layers.",
        "Patches or groups before the final norm. Effective rank is how many directions they fill; outliers "
        "are longer than three times the object's median token.",
        header,
        [
            [
                LABELS[name],
                layer,
                *(number(each[part][layer]) for part in ("norm", "max_norm", "mean", "effective_rank")),
                f"{100 * each['outliers'][layer]:.2f}",
            ]
            for name, each in tokens.items()
            for layer in range(len(each["norm"]))
        ],
        [line(figure, *panel) for panel in panels],
    )


def _measured(values: Sequence[float | None], random: float | None) -> str:
    cka, mean, spread = map(number, values)
    said = f"CKA {cka}, permuted {mean} ± {spread}"
    return said if random is None else f"{said}, random weights {number(random)}"


def _cell_text(entry: Numbers, i: int, j: int) -> str:
    values = [entry[name][i][j] for name in ("cka", "permuted_mean", "permuted_std")]
    random = None if entry["random"] is None else entry["random"][i][j]
    rows, columns = LABELS[entry["rows"]], LABELS[entry["columns"]]
    return f"{rows} layer {i}, {columns} layer {j}: {_measured(values, random)}"


def _pair(curve: Numbers) -> str:
    return f"{LABELS[curve['rows']]} and {LABELS[curve['columns']]}"
