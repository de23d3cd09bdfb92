"""The options of a grid as text: arms, sizes, learning rates, shares. Errors are one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence

from pointvit.config import near
from pointvit.training.grid.cells import Arm, Size, in_order, size_name
from pointvit.training.grid.contrasts import Pair
from pointvit.training.initial import INITS
from pointvit.training.transfer import resolve

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def sizes(text: str) -> tuple[Size, ...]:
    """``"5,10%,all"`` -> sizes of the training set."""
    return tuple(
        dict.fromkeys(_size("--shapes-per-class", part) for part in _parts("--shapes-per-class", text))
    )


def search_size(text: str) -> Size:
    """``"10"`` -> the one size at which learning rates are tried."""
    return _size("--search-shapes", text)


def seeds(count: int, intervals: bool) -> int:
    """The number of seeds, at least 2 if intervals are wanted."""
    if count < 1:
        raise ValueError(f"--seeds must be at least 1, got {count}")
    if count < 2 and intervals:
        raise ValueError(
            "an interval needs at least 2 seeds, got --seeds 1; give more, or --intervals false to go without"
        )
    return count


def rates(text: str | None, option: str = "--rates") -> tuple[float, ...]:
    """``"1e-4,1e-3"`` -> learning rates to try."""
    return (
        tuple(dict.fromkeys(_rate(option, part) for part in _parts(option, text))) if text is not None else ()
    )


def starts(named: Sequence[str], aligned: str | None) -> dict[str, str]:
    """``["own=FOLDER"]`` -> further initial states by name."""
    given = [*named, *([] if aligned is None else [f"aligned={aligned}"])]
    found: dict[str, str] = {}
    for text in given:
        name, _, folder = text.partition("=")
        if not folder or not _NAME.fullmatch(name):
            raise ValueError(f"--start must be NAME=FOLDER, its name letters, digits, - and _; got {text!r}")
        if name in INITS or name in found:
            raise ValueError(f"--start {text}: {name} is an initial state already; choose another name")
        found[name] = folder
    return found


def arms(
    inits: str | None, modes: str | None, pairs: str | None, all_sizes: tuple[Size, ...], known: Iterable[str]
) -> tuple[Arm, ...]:
    """All combinations of initial states and modes, or the pairs ``init:mode`` or ``init:mode@10``.

    An arm with ``@`` has that size alone, which must be one of the sizes of the grid.
    """
    if pairs is not None and (inits is not None or modes is not None):
        raise ValueError(
            "--arms lists the arms one by one, --init and --modes combine them; give one or the other"
        )
    if pairs is None:
        of = [
            (init, mode)
            for mode in _parts("--modes", "full" if modes is None else modes)
            for init in _parts("--init", "pretrained,scratch,shuffled" if inits is None else inits)
        ]
        chosen: dict[tuple[str, str], list[Size]] = {names: list(all_sizes) for names in of}
    else:
        chosen = {}
        for text in _parts("--arms", pairs):
            name, at, size = text.partition("@")
            chosen.setdefault(arm_name("--arms", name), []).extend(
                [_size("--arms", size)] if at else all_sizes
            )
    for init, mode in chosen:
        if init not in known:
            raise ValueError(
                f"unknown initial state {init!r}; {near(init, known)}; --start NAME=FOLDER adds one"
            )
        resolve(mode, {})
    for (init, mode), own in chosen.items():
        outside = [size for size in own if size not in all_sizes]
        if outside:
            raise ValueError(
                f"--arms {init}:{mode}@{size_name(outside[0])}: this size is not in --shapes-per-class"
            )
    ordered = {names: tuple(sorted(set(own), key=in_order)) for names, own in chosen.items()}
    return tuple(Arm(init, mode, own, own[0]) for (init, mode), own in ordered.items())


def of_arms(option: str, texts: Sequence[str], arms: Collection[Arm], mark: str) -> list[tuple[str, str]]:
    """``["pretrained:full=1e-4"]`` -> (arm's name, what stands behind ``mark``), for arms of the grid."""
    names = sorted((arm.name for arm in arms), key=len, reverse=True)
    found = []
    for text in texts:
        # The name of a mode may have the mark in it: blocks=2.
        name = next((name for name in names if text.startswith(name + mark)), None)
        if name is None:
            raise ValueError(f"{option} {text}: begins with no arm of this grid; {near(text, names)}")
        found.append((name, text[len(name) + len(mark) :]))
    return found


def given_rates(texts: Sequence[str], arms: Collection[Arm]) -> dict[str, tuple[float, ...]]:
    """``["pretrained:full=1e-4,1e-3"]`` -> learning rates of single arms."""
    found: dict[str, tuple[float, ...]] = {}
    for name, value in of_arms("--rate", texts, arms, "="):
        if name in found:
            raise ValueError(
                f"--rate {name} is given twice; give the rates to try with commas: {name}=1e-4,1e-3"
            )
        found[name] = rates(value, "--rate")
    return found


def compared(text: str | None, arms: Collection[Arm]) -> list[Pair]:
    """``"aligned:full/pretrained:full"`` -> pairs of arms to compare."""
    pairs, names = [], {arm.name for arm in arms}
    for part in _parts("--compare", text) if text is not None else []:
        first, slash, second = part.partition("/")
        if not slash:
            raise ValueError(f"--compare must be ARM/ARM, such as aligned:full/scratch:full; got {part!r}")
        for name in (first, second):
            if name not in names:
                raise ValueError(f"--compare {name}: is no arm of this grid; {near(name, names)}")
        if first == second:
            raise ValueError(f"--compare {part}: is one arm twice; name the one that it is compared with")
        pairs.append((arm_name("--compare", first), arm_name("--compare", second)))
    return pairs


def share(text: str | None) -> tuple[int, int]:
    """``"2/10"`` -> (1, 10): the second of ten processes."""
    if text is None:
        return 0, 1
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"--cells must be i/n with 1 <= i <= n, such as 3/10; got {text}")
    return int(number) - 1, int(count)


def arm_name(option: str, text: str) -> tuple[str, str]:
    """``"pretrained:full"`` -> its parts."""
    init, colon, mode = text.partition(":")
    if not (init and colon and mode):
        raise ValueError(f"{option}: an arm is INIT:MODE, such as pretrained:full; got {text!r}")
    return init, mode


def _parts(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"{option} must be a list with commas and no empty part, got {text!r}")
    return list(dict.fromkeys(parts))


def _size(option: str, text: str) -> Size:
    if text == "all":
        return None
    digits = text.removesuffix("%")
    number = float(digits) if re.fullmatch(r"\d+(\.\d+)?", digits) else math.nan
    if text.endswith("%") and 0 < number <= 100:
        return number / 100
    if digits == text and number >= 1 and number == int(number):
        return int(number)
    raise ValueError(
        f"{option}: a size is a whole number of at least 1, a share such as 10%, or all; got {text!r}"
    )


def _rate(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{option}: a learning rate is a positive number, got {text!r}")
    return value
