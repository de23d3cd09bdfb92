"""What the numbers say in plain words, and when they say nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pointvit.compare.study import Numbers
from pointvit.compare.subjects import KINDS

SURE = 2.0
"""Standard deviations of chance that a difference has to exceed before it is called one."""


def paragraphs(numbers: Numbers) -> list[str]:
    """One paragraph a question; the first is the page's lead."""
    said = [_depth(numbers), _probe(numbers), _tuning(numbers), _retrieval(numbers), _attention(numbers)]
    said += [_positions(numbers), _about(numbers)]
    return [each for each in said if each]


def above_controls(curve: Numbers) -> tuple[list[int], list[int]]:
    """Layers whose CKA exceeds chance, and of those the ones that exceed random weights too."""
    above_chance, above_both = [], []
    for layer, value in enumerate(curve["cka"]):
        mean, spread = curve["permuted_mean"][layer], curve["permuted_std"][layer]
        if None in (value, mean, spread) or value <= mean + SURE * spread:
            continue
        above_chance.append(layer)
        if curve["random"] is not None:
            random, noise = curve["random"][layer], curve["random_permuted_std"][layer]
            if None not in (random, noise) and value > random + SURE * math.hypot(spread, noise):
                above_both.append(layer)
    return above_chance, above_both


def layers(found: Sequence[int]) -> str:
    """``[1, 2, 3, 7] -> "1 to 3 and 7"``."""
    runs: list[list[int]] = []
    for layer in found:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    said = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _depth(numbers: Numbers) -> str:
    curve = _curve(numbers, "points")
    chance, both = above_controls(curve)
    count = len(curve["cka"])
    values = [value for value in curve["cka"] if value is not None]
    if not values:
        return "Nothing can be said of similarity: no layer tells the objects apart."
    what = "Image and point encoder at the same depth (linear CKA, the same objects seen both ways):"
    mean = f"mean CKA {sum(values) / len(values):.2f}"
    control = [value for value in curve["random"] or [] if value is not None]
    random = f", with random weights {sum(control) / len(control):.2f}" if control else ""
    if not chance:
        return (
            f"{what} nothing can be shown, {mean}{random}: no layer lies above pairs that were permuted. "
            "More objects narrow the control."
        )
    if not both:
        return (
            f"{what} {mean}{random}. {_layer_words(chance)} above permuted pairs, so both see the same "
            "objects; none lies above the control of random weights, so nothing of it can be put down to "
            "training."
        )
    best = max(both, key=lambda layer: curve["cka"][layer] - curve["random"][layer])
    text = (
        f"{what} {mean}{random}. {_layer_words(both)} above both controls, permuted pairs and random "
        f"weights, the most in layer {best} ({curve['cka'][best]:.2f} against {curve['random'][best]:.2f})."
    )
    rest = [layer for layer in range(count) if layer not in both]
    return text + (f" {_layer_words(rest, 'does not', 'do not')}." if rest else "") + _before(numbers)


def _before(numbers: Numbers) -> str:
    if numbers["kind"] != "tuned":
        return ""
    values = [value for value in _curve(numbers, "points_before")["cka"] if value is not None]
    if not values:
        return " Before tuning no layer told the objects apart."
    _, both = above_controls(_curve(numbers, "points_before"))
    where = f"{_layer_words(both).lower()} above both controls" if both else "no layer above both controls"
    return f" Before tuning the mean was {sum(values) / len(values):.2f}, {where}."


def _layer_words(found: Sequence[int], one: str = "lies", many: str = "lie") -> str:
    return f"Layer {found[0]} {one}" if len(found) == 1 else f"Layers {layers(found)} {many}"


def _probe(numbers: Numbers) -> str:
    probes = numbers["probes"]
    if probes is None:
        return f"Nothing can be said of classes: {numbers['skipped']['probes']}."
    image, points = (probes[name]["linear"] for name in ("image", "points"))
    random = [probes[f"{name}_random"]["linear"]["accuracy"] for name in ("image", "points")]
    return (
        f"A linear probe reads the class from the frozen image encoder's views for "
        f"{_percent(image['accuracy'])} of {image['num_test']} objects, and from the point encoder's clouds "
        f"for {_percent(points['accuracy'])} (fitted to {image['num_train']} other objects; random weights "
        f"{_percent(random[0])} and {_percent(random[1])}; always the largest class "
        f"{_percent(image['chance'])}). {_compared(image, points, 'the image side', 'the point side')} Layer "
        f"by layer, the image encoder's patches are best in {_best(probes['image'])}, the point encoder's "
        f"groups in {_best(probes['points'])}."
    )


def _best(probe: Numbers) -> str:
    best = max(probe["layers"], key=lambda layer: layer["linear"]["accuracy"])
    return f"layer {best['layer']} ({_percent(best['linear']['accuracy'])})"


def _tuning(numbers: Numbers) -> str:
    probes, drift = numbers["probes"], numbers["drift"]
    if drift is None:
        return ""
    blocks = [row for row in drift["groups"] if row["relative"] is not None]
    if not blocks:
        return "Nothing can be said of what tuning changed: all of the image encoder's trunk is zero."
    far = max(blocks, key=lambda row: row["relative"])
    if far["relative"] > 0:
        text = (
            f"The point encoder's trunk has moved by {_moved(blocks):.3f} of its length, the most in "
            f"{_group(far['name'])} ({far['relative']:.3f}). "
        )
    else:
        text = "The point encoder's trunk is the image encoder's, number by number. "
    if probes is None:
        return text
    before, after, random = (probes[name]["linear"] for name in ("image", "image_after", "image_random"))
    change = after["accuracy"] - before["accuracy"]
    noise = SURE * math.sqrt(_variance(before) + _variance(after))
    text += (
        f"Does it still see images? The image probe is {_percent(before['accuracy'])} before and "
        f"{_percent(after['accuracy'])} after tuning, {_percent(random['accuracy'])} with random weights: "
    )
    if abs(change) <= noise:
        return text + (
            f"a change of {100 * change:+.1f} points, no more than {before['num_test']} objects vary by "
            f"chance (± {100 * noise:.1f}), so none can be shown."
        )
    kept = "it gained" if change > 0 else "it lost"
    return text + f"{kept} {abs(100 * change):.1f} points, more than chance (± {100 * noise:.1f})."


def _moved(groups: Sequence[Numbers]) -> float:
    """All groups together."""
    after, before = (math.hypot(*(row[part] for row in groups)) for part in ("difference", "before"))
    return after / before


def _group(name: str) -> str:
    if name == "tokens":
        return "the class and register tokens"
    return f"block {name.removeprefix('blocks.')}, counted from 0" if name.startswith("blocks.") else name


def _retrieval(numbers: Numbers) -> str:
    found = numbers["retrieval"]
    if found is None:
        return f"Nothing can be said of retrieval: {numbers['skipped']['retrieval']}."
    k = found["ks"][-1]
    own = found["gallery"]["points"]
    name, chance = f"recall@{k}", own["mapped"][f"chance@{k}"]
    plain = f"{_percent(own['cosine'][name])} as the features are, " if "cosine" in own else ""
    spread = math.sqrt(chance * (1 - chance) / found["objects"])
    shown = own["mapped"][name] > max(chance, own["permuted"][name]) + SURE * spread
    verdict = (
        "so that a linear map carries one into the other in part"
        if shown
        else "so that no common content can be shown"
    )
    return (
        f"A view finds its own cloud among the first {k} of {found['objects']} in {plain}"
        f"{_percent(own['mapped'][name])} behind linear maps fitted to other objects, against "
        f"{_percent(own['permuted'][name])} for maps fitted to permuted pairs and {_percent(chance)} by "
        f"chance, {verdict}."
    )


def _attention(numbers: Numbers) -> str:
    found = numbers["attention"]
    said = []
    for name, what in (("image", "patches"), ("points", "groups")):
        each = found[name]
        first, last = (_mean(each["distance"][layer]) for layer in (0, -1))
        uniform = each["uniform_distance"]
        lowest, highest = min(each["distance"][0]), max(each["distance"][0])
        said.append(
            f"among {what} {_length(first, each)} in layer 1 (heads from {_length(lowest, each)} to "
            f"{_length(highest, each)}) and {_length(last, each)} in the last, where even attention would "
            f"reach {_length(uniform, each)}"
        )
    text = f"Mean attention distance: {'; '.join(said)}."
    moved = []
    for before, after, what in (
        ("image", "image_after", "of images"),
        ("points_before", "points", "of clouds"),
    ):
        if before in found and after in found:
            pairs = zip(found[before]["distance"], found[after]["distance"], strict=True)
            shifts = [_mean(b) - _mean(a) for a, b in pairs]
            far = max(range(len(shifts)), key=lambda layer: abs(shifts[layer]))
            unit, size = found[before]["unit"], _mean([abs(shift) for shift in shifts])
            digits = 1 if unit == "px" else 3
            moved.append(
                f"{what} by {size:.{digits}f} {unit} a layer on average, the most in layer {far + 1} "
                f"({shifts[far]:+.{digits}f} {unit})"
            )
    return text + (f" Tuning moved that {' and '.join(moved)}." if moved else "")


def _positions(numbers: Numbers) -> str:
    grid, curve = numbers["positions"]["image"], numbers["positions"]["points"]
    said = []
    if grid is not None and None not in grid.values():
        said.append(
            f"in 2D, cosine {grid['neighbours']:.2f} between neighbours and {grid['far']:.2f} between "
            f"patches far apart, rank correlation with distance {grid['rank_correlation']:.2f}"
        )
    if curve is not None:
        said.append(
            f"in 3D, rank correlation with distance {curve['rank_correlation']['mean']:.2f} within an object"
        )
    return f"Similarity of position embeddings, their mean taken out: {'; '.join(said)}." if said else ""


def _about(numbers: Numbers) -> str:
    objects = numbers.get("objects")
    if objects is None:
        return ""
    fewest, most = objects["fewest"], objects["most"]
    classes = "one class" if objects["classes"] == 1 else f"{objects['classes']} classes"
    each = f"{most} a class" if fewest == most else f"from {fewest} to {most} a class"
    return (
        f"Compared are {objects['study']} objects of {classes} ({objects['data']}, {objects['split']}), "
        f"{each}, each in {objects['views']} rendered {'view' if objects['views'] == 1 else 'views'} and as "
        f"{objects['points']} points. The point side is {KINDS[numbers['kind']]}."
    )


def _curve(numbers: Numbers, columns: str) -> Numbers:
    found: Numbers = next(
        each for each in numbers["same_depth"] if (each["rows"], each["columns"]) == ("image", columns)
    )
    return found


def _compared(first: Numbers, second: Numbers, a: str, b: str) -> str:
    difference = first["accuracy"] - second["accuracy"]
    noise = SURE * math.sqrt(_variance(first) + _variance(second))
    if abs(difference) <= noise:
        return (
            f"A difference between the two cannot be shown with so many objects (± {100 * noise:.1f} points)."
        )
    return (
        f"The better one is {a if difference > 0 else b}, by more than chance (± {100 * noise:.1f} points)."
    )


def _variance(probe: Numbers) -> float:
    share: float = probe["accuracy"]
    return share * (1 - share) / float(probe["num_test"])


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _length(value: float, each: Numbers) -> str:
    return f"{value:.0f} px" if each["unit"] == "px" else f"{value:.2f} radii"


def _mean(values: Sequence[Any]) -> float:
    return float(sum(values) / len(values))
