"""What :mod:`pointvit.input_doctor` finds, in words: of one cloud, of many, and before predicting."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pointvit.data.io import PointCloud, printable
from pointvit.input_doctor import (
    DENSITY,
    FEWEST,
    FLAT,
    MANY_DUPLICATES,
    MOSTLY_OUTWARD,
    SUSPECT,
    Findings,
    duplicate_points,
    isolated_points,
    radius_of,
    singular_shares,
)

EXAMPLES = 3
"""So many files are named of those that have something in common."""
FLATNESS = {"flat": "in a plane", "straight": "on a line", "a single place": "in one place"}
WITHOUT = "--fix NEW.ply writes the file without"
ANY_AXIS = (
    "Predicting tries y and z and takes the one that the model is surer of (--up auto). If you know which "
    "axis of your files points up, say it: --up y or --up z."
)


@dataclass(frozen=True)
class Kind:
    """One way in which a cloud can be unusual."""

    said: Callable[[Findings, int | None], str]
    """``(findings, points in training or None)`` -> what one cloud has of it, or nothing."""
    many: str
    """Of several files: "3 files have ..."."""
    advice: str


def _not_finite(found: Findings, wanted: int | None) -> str:
    count = found.num_dropped
    return f"{counted(count, 'point')} {'is' if count == 1 else 'are'} NaN or infinite" if count else ""


def _far(found: Findings, wanted: int | None) -> str:
    return _far_off(found.num_outliers, found.rest) if found.num_outliers else ""


def _repeated(found: Findings, wanted: int | None) -> str:
    many = found.num_duplicates > MANY_DUPLICATES * found.num_points
    return _repeats(found.num_duplicates, found.num_points) if many else ""


def _flat(found: Findings, wanted: int | None) -> str:
    known = found.num_points >= FEWEST and found.shape in FLATNESS
    return f"all points lie {FLATNESS[found.shape]}" if known else ""


def _inward(found: Findings, wanted: int | None) -> str:
    share = found.outward
    return (
        f"{1 - share:.0%} of the normals point inwards"
        if share is not None and share < MOSTLY_OUTWARD
        else ""
    )


def _few(found: Findings, wanted: int | None) -> str:
    if found.num_points >= FEWEST or _sparse(found, wanted):  # which says it too
        return ""
    return f"there {'is' if found.num_points == 1 else 'are'} only {counted(found.num_points, 'point')}"


def _sparse(found: Findings, wanted: int | None) -> str:
    few = wanted is not None and DENSITY * found.num_points < wanted
    return f"{counted(found.num_points, 'point')}, where the model was trained on {wanted:,}" if few else ""


def _lying(found: Findings, wanted: int | None) -> str:
    return "x looks vertical, so that the object lies on its side" if found.up.axis == "x" else ""


KINDS = (
    Kind(_far, "points far off, which make the object small", WITHOUT),
    Kind(_repeated, "points that repeat others", WITHOUT),
    Kind(_not_finite, "points that are NaN or infinite", "predicting leaves them out"),
    Kind(_flat, "all points in a plane, on a line or in one place", "look whether a dimension was lost"),
    Kind(_inward, "normals that point inwards", "turn them round, if the model uses normals"),
    Kind(_few, f"fewer than {FEWEST} points", "look whether the file was cut short"),
    Kind(_sparse, "far fewer points than the model was trained on", "the answer may be wrong"),
    Kind(
        _lying,
        "x as the likely vertical axis, so that the object lies on its side",
        "turn the file until y or z points up, as --up knows no other",
    ),
)


def unusual(found: Findings, wanted: int | None) -> dict[Kind, str]:
    """Of each kind that a cloud has, what is to be said; empty for an ordinary one.

    Args:
        wanted: points of the clouds that the model was trained on; None if unknown, or without a model.
    """
    said = {kind: kind.said(found, wanted) for kind in KINDS}
    return {kind: text for kind, text in said.items() if text}


def about_one(name: str, found: Findings, wanted: int | None) -> list[str]:
    """Lines on one cloud: what is unusual, and what to do about it."""
    said = unusual(found, wanted)
    if not said:
        return [f"{printable(name)}: nothing unusual."]
    things = "1 thing is" if len(said) == 1 else f"{len(said)} things are"
    return [
        f"{printable(name)}: {things} unusual.",
        *(f"- {text}: {kind.advice}." for kind, text in said.items()),
    ]


def about_many(
    clouds: Mapping[str, Findings], unreadable: int, wanted: int | None, up_axis: str | None
) -> list[str]:
    """Lines on several clouds, as few for many as for two.

    Args:
        clouds: findings by the names of the files, of which there is at least one.
        unreadable: how many further files could not be read.
        wanted, up_axis: of the clouds that the model was trained on; None without a model.
    """
    groups: dict[Kind, list[str]] = {kind: [] for kind in KINDS}
    for name, found in clouds.items():
        for kind in unusual(found, wanted):
            groups[kind].append(name)
    odd = {name: None for names in groups.values() for name in names}
    counts = {"as usual": len(clouds) - len(odd), "unusual": len(odd), "not readable": unreadable}
    parts = [f"{count:,} {what}" for what, count in counts.items() if count]
    told = "nothing unusual" if not odd and not unreadable else ", ".join(parts)
    lines = [f"{counted(len(clouds) + unreadable, 'file')}: {told}."]
    for kind, names in groups.items():
        if names:
            have = f"{counted(len(names), 'file')} {'has' if len(names) == 1 else 'have'}"
            lines.append(f"- {have} {kind.many} ({examples(names)}): {kind.advice}.")
    sizes = [found.num_points for found in clouds.values()]
    points = f"{min(sizes):,}" if min(sizes) == max(sizes) else f"{min(sizes):,} to {max(sizes):,}"
    trained = "" if wanted is None else f"; the model was trained on {wanted:,}"
    axes = Counter(found.up.axis for found in clouds.values())
    words = {"z": "z", "y": "y", "x": "x", "unsure": "not clear"}
    likely = [f"{word} in {axes[axis]:,}" for axis, word in words.items() if axes[axis]]
    own = "" if up_axis is None else f"; the model's clouds are {up_axis} up"
    example = shlex.quote(next(iter(odd), next(iter(clouds))))
    return [
        *lines,
        f"Points: {points}{trained}.",
        f"Vertical axis, by the looks of each file: {', '.join(likely)}{own}. {ANY_AXIS}",
        f"More about one of them: pointvit doctor {printable(example)}",
    ]


def about_unreadable(errors: Sequence[tuple[str, Exception]]) -> list[str]:
    """``[(file, error), ...]`` -> a line for each reason, with the first of the files that share it."""
    groups: dict[str, list[tuple[str, Exception]]] = {}
    for name, error in errors:
        shown = printable(str(Path(name))) if name else ""  # as messages begin
        groups.setdefault(str(error).removeprefix(shown).lstrip(": "), []).append((name, error))
    return [
        str(same[0][1])
        if len(same) == 1
        else f"{len(same):,} files cannot be read ({examples([name for name, _ in same])}): {reason}"
        for reason, same in groups.items()
    ]


def treatment(
    found: Findings, wanted: int | None, up_axis: str | None, normalization: str = "unit_sphere"
) -> list[str]:
    """What predicting does with such a cloud.

    Args:
        wanted, up_axis: of the clouds that the model was trained on; None without a model.
    """
    done = []
    if wanted is not None and found.num_points > wanted:
        done.append(f"thinned at random from {found.num_points:,} to {wanted:,} points, as in training")
    if normalization == "unit_sphere":
        scale = f"divided by its radius of {found.radius:.4g}" if found.radius > 0 else "left at size 0"
        done.append(f"moved to its mean and {scale}")
    axis = found.up.axis
    auto = "--up auto, the default, tries y and z and takes the one the model is surer of"
    if axis == "unsure":
        done.append(f"{auto}; if you know which axis points up, say --up y or --up z")
    elif axis != "x":
        turned = "" if up_axis in (None, axis) else f", which turns it to {up_axis} up as in training"
        done.append(f"say --up {axis}{turned}; {auto}")
    return done


def remarks(cloud: PointCloud, wanted: int | None) -> list[str]:
    """What a user should know before a cloud is classified; cheap, and empty for an ordinary cloud.

    Args:
        cloud: what the model sees.
        wanted: points of the clouds that it was trained on; None if unknown.
    """
    points, found = cloud.points.astype(np.float64), []
    count = len(points)
    if cloud.num_dropped:
        found.append(f"points that are NaN or infinite were left out: {cloud.num_dropped}")
    if wanted is not None and DENSITY * count < wanted:
        found.append(f"has {counted(count, 'point')}, the model was trained on {wanted:,}")
    repeated = int(duplicate_points(points).sum())
    if repeated > MANY_DUPLICATES * count:
        found.append(_repeats(repeated, count))
    distances = np.linalg.norm(points - np.median(points, axis=0), axis=1)
    suspect = distances.max() > SUSPECT * np.median(distances)
    far = isolated_points(points) if suspect else np.zeros(count, dtype=np.bool_)
    if count >= FEWEST and singular_shares(points[~far])[2] < FLAT:
        found.append("the points lie in a plane, on a line or in one place")
    if far.any():
        found.append(_far_off(int(far.sum()), radius_of(points[~far]) / radius_of(points)))
    return found


def counted(count: int, what: str) -> str:
    """``(1024, "point")`` -> ``1,024 points``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def examples(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - EXAMPLES:,} more" if len(names) > EXAMPLES else ""
    return ", ".join(map(printable, names[:EXAMPLES])) + more


def _far_off(count: int, share: float) -> str:
    lie, them = ("lies", "it") if count == 1 else ("lie", "them")
    percent = f"{share:.0%}" if share >= 0.005 else "less than 1%"
    radius = f"the radius would be {percent} of what it is"
    return f"{counted(count, 'point')} {lie} far off; without {them} {radius}"


def _repeats(count: int, of: int) -> str:
    return f"{count:,} of {counted(of, 'point')} {'repeats another' if count == 1 else 'repeat others'}"
