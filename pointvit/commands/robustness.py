"""``pointvit robustness MODEL...``"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pointvit.commands.console import console

if TYPE_CHECKING:
    from pointvit.data import PointCloudDataset
    from pointvit.robustness import Condition, Contestant, Done, Row, Settings, Summary
    from pointvit.robustness.sources import Source


def run(args: list[str]) -> int:
    from pointvit.data.corruptions import BENCHMARKS, NUM_POINTS

    parser = ArgumentParser(
        prog="pointvit robustness",
        description="Measures classifiers on the corruptions of ModelNet40-C and ModelNet-C, from their "
        "public files or made here from a test split, and on sweeps over points, angles and outliers. "
        "Finished sets are kept in the output folder and not measured again.",
        exit_on_error=False,
    )
    parser.add_argument(
        "models",
        nargs="*",
        default=[],  # without one it is shown as required
        help="saved model folders or training checkpoints (.ckpt), or NAME=PATH for a name in the tables",
    )
    parser.add_argument("--root", help="the data set whose test split is corrupted")
    parser.add_argument(
        "--data",
        default="modelnet40",
        help="what is in --root: modelnet40, modelnet10, scanobjectnn, shapes or folder, as data.name of "
        "pointvit fit",
    )
    parser.add_argument("--up-axis", choices=["y", "z"], help="of --root, where it is not the usual one")
    parser.add_argument("--public", type=Path, help="folder with the public files, see data/README.md")
    parser.add_argument("--benchmark", default=",".join(BENCHMARKS), help="which to measure, with commas")
    parser.add_argument("--corruptions", help="only these, with commas")
    parser.add_argument("--severities", help="only these of 1 to 5, with commas")
    parser.add_argument("--limit", type=int, help="so many clouds, as evenly from the classes as can be")
    parser.add_argument(
        "--num-points", type=int, default=NUM_POINTS, help="points that corruptions start from"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="clouds at a time")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument(
        "--normalize",
        action="store_true",
        help="bring each corrupted cloud into the unit sphere, as predict does; the benchmarks do not",
    )
    parser.add_argument("--output", type=Path, default=Path("runs/robustness"), help="folder for the results")
    parser.add_argument("--write", type=Path, help="also write our corrupted sets in the public layout here")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions and of --limit")
    try:
        options = parser.parse_args(args)
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from error
    _check(options)

    from pointvit.robustness import conditions, find_sources

    names = [
        None if options[key] is None else _listed(key, options[key]) for key in ("corruptions", "severities")
    ]
    severities = None if names[1] is None else [_whole("severities", value) for value in names[1]]
    wanted = conditions(_listed("benchmark", options.benchmark), names[0], severities)
    if not wanted:
        raise ValueError("--benchmark, --corruptions and --severities leave nothing to measure")
    if options.write is not None:
        _check_write(options.write, wanted)
    contestants = _contestants(options.models)
    given = options.root is not None or options.data == "shapes"
    sources = find_sources(
        wanted,
        options.public,
        (lambda: _test_split(options)) if given else None,
        options.num_points,
        options.seed,
        options.limit,
    )
    if options.write is not None:
        _write(options.write, wanted, sources)
    if contestants:
        _measure(options, contestants, sources, wanted, ["pointvit", "robustness", *args])
    return 0


def _check(options: Namespace) -> None:
    """Raises ValueError for what can be told from the options alone."""
    if not options.models and options.write is None:
        raise ValueError("name a model to measure, or --write FOLDER to make the corrupted sets alone")
    if options.root is None and options.public is None and options.data != "shapes":
        raise ValueError("--root DATA (to corrupt its test split) or --public FOLDER is needed")
    for name, least in {"limit": 1, "num_points": 8, "batch_size": 1, "seed": 0}.items():
        if options[name] is not None and options[name] < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {options[name]}")
    if options.public is not None and not options.public.is_dir():
        raise FileNotFoundError(f"{options.public}: no such folder; data/README.md says what belongs there")


def _listed(option: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError(f"--{option} must be a list with commas and no empty part, got {text!r}")
    return parts


def _whole(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"--{name} must be whole numbers with commas, got {text!r}")
    return int(text)


def _contestants(given: Sequence[str]) -> list[Contestant]:
    """The models under names that tell them apart."""
    from pointvit.checkpoints import load
    from pointvit.model import Pair
    from pointvit.robustness import Contestant

    named = {text: text.partition("=")[::2] for text in given if "=" in text and not Path(text).exists()}
    short = _short_names([text for text in given if text not in named])
    paths: dict[str, str] = {}
    for text in given:
        name, path = named.get(text, (short.get(text, text), text))
        if not (name and path):
            raise ValueError(f"a model is PATH or NAME=PATH, got {text!r}")
        if name in paths:
            raise ValueError(f"two models are called {name!r}; name them apart with NAME=PATH")
        paths[name] = path
    found = []
    for name, path in paths.items():
        model = load(path)
        found.append(Contestant.of(name, model.points if isinstance(model, Pair) else model))
    return found


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """Path -> its end, as long as it takes for no two of them to be the same."""
    parts = [Path(path).parts for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return dict(zip(paths, names, strict=True))
    return {path: path for path in paths}


def _test_split(options: Namespace) -> PointCloudDataset:
    """With twice as many points as corruptions start from, where they are stored."""
    from pointvit.data import DataError, PointCloudDataModule

    def read(num_points: int) -> PointCloudDataset:
        module = PointCloudDataModule(options.data, options.root, num_points, up_axis=options.up_axis)
        return module.dataset("test")

    try:
        return read(2 * options.num_points)
    except DataError:
        return read(options.num_points)


def _check_write(folder: Path, wanted: Sequence[Condition]) -> None:
    """Refuses, before anything is read or made, what could not be written."""
    from pointvit.data.corruptions import BENCHMARKS
    from pointvit.robustness.results import check_writable

    benchmarks = [
        name for name in dict.fromkeys(each.benchmark for each in wanted) if BENCHMARKS[name].folder
    ]
    if not benchmarks:
        raise ValueError("--write is for sets of ModelNet40-C and ModelNet-C; there are none among these")
    for benchmark in benchmarks:
        check_writable(benchmark, folder)


def _write(folder: Path, wanted: Sequence[Condition], sources: dict[str, Source]) -> None:
    """The sets that are made here, as files."""
    from pointvit.data.corruptions import BENCHMARKS
    from pointvit.robustness import Generated
    from pointvit.robustness.results import write_set

    made = {
        name for name, source in sources.items() if BENCHMARKS[name].folder and isinstance(source, Generated)
    }
    sets = [each for each in wanted if each.benchmark in made]
    with _bar("writing", len(sets)) as advance:
        for each in sets:
            points, labels = sources[each.benchmark].read(each)
            write_set(folder, each, points.numpy(), labels.numpy(), sources[each.benchmark].class_names)
            advance()
    print(f"{len(sets)} sets written to {folder}")


def _measure(
    options: Namespace,
    contestants: Sequence[Contestant],
    sources: dict[str, Source],
    wanted: Sequence[Condition],
    command: Sequence[str],
) -> None:
    from pointvit.checkpoints.writing import new_file
    from pointvit.robustness import Done, evaluate, summarise
    from pointvit.robustness.page import save_page
    from pointvit.robustness.pictures import draw
    from pointvit.robustness.results import save_results

    settings = _settings(options)
    done = Done(options.output / "done.json")
    notes = _notes(contestants, sources, wanted, settings, done)
    with _bar("measuring", len(wanted)) as advance:
        rows = evaluate(contestants, sources, wanted, settings, done, _progress(len(wanted), advance))
    summaries = summarise(rows)
    about = {"command": list(command), "settings": asdict(settings), "notes": notes}
    save_results(options.output, rows, summaries, about)
    for benchmark in dict.fromkeys(row.benchmark for row in rows):
        drawn = draw(benchmark, rows, summaries)
        for ending in (".png", ".svg"):
            with new_file(options.output / f"{benchmark}{ending}") as temporary:
                drawn.savefig(temporary, dpi=120)
    page = save_page(options.output / "index.html", rows, summaries, notes, command)
    for note in notes:
        print(note)
    _print(rows, summaries)
    print(f"{page} and results.csv, results.json and pictures beside it")


def _settings(options: Namespace) -> Settings:
    import torch

    from pointvit.diagnosis import fast_bf16, usable_device
    from pointvit.robustness import Settings

    device = usable_device(options.device)
    precision = options.precision
    if precision == "auto":
        precision = "bfloat16" if fast_bf16(torch.device(device).type) else "float32"
    return Settings(options.batch_size, precision, device, options.normalize)


def _notes(
    contestants: Sequence[Contestant],
    sources: dict[str, Source],
    wanted: Sequence[Condition],
    settings: Settings,
    done: Done,
) -> list[str]:
    """Sentences on how it is measured, for the terminal and the page."""
    from pointvit.data.corruptions import BENCHMARKS
    from pointvit.robustness.evaluation import agreement

    titles: dict[str, list[str]] = {}
    for benchmark, source in sources.items():
        titles.setdefault(source.described(), []).append(BENCHMARKS[benchmark].title)
    said = [f"{', '.join(names)}: {described}" for described, names in titles.items()]
    own = "each cloud is brought into the unit sphere first" if settings.normalize else "clouds as they are"
    said.append(f"Models see {own}, on {settings.device}, with matrix products in {settings.precision}.")
    for one in contestants:
        if one.model.meta.class_names is None:
            said.append(f"{one.name} does not know its classes; they are taken to be in the data's order.")
        if settings.precision != "float32":
            source = sources[wanted[0].benchmark]
            same = agreement(one, source, wanted[0], settings, done)
            said.append(
                f"{one.name}: {same['same']} of {same['clouds']} clouds get the same class as in float32."
            )
    return said


def _progress(total: int, advance: Callable[[], None]) -> Callable[[Condition, Sequence[Row], bool], None]:
    """Where there is no terminal for a bar, a line for each set that was measured."""
    count, start = 0, time.monotonic()
    quiet = Console(stderr=True).is_terminal

    def tell(condition: Condition, rows: Sequence[Row], new: bool) -> None:
        nonlocal count
        count += 1
        advance()
        if new and not quiet:
            shown = ", ".join(f"{row.model} {row.overall_accuracy:.2%}" for row in rows)
            where = f"{condition.benchmark} {condition.corruption} {condition.severity}"
            minutes = (time.monotonic() - start) / 60
            print(f"{count}/{total} {where}: {shown} ({minutes:.1f} min)", file=sys.stderr, flush=True)

    return tell


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    terminal = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _print(rows: Sequence[Row], summaries: Sequence[Summary]) -> None:
    from pointvit.data.corruptions import BENCHMARKS
    from pointvit.robustness.page import compared

    for benchmark in dict.fromkeys(each.benchmark for each in summaries):
        own = [each for each in summaries if each.benchmark == benchmark]
        header, cells = compared(benchmark, own)
        table = Table(BENCHMARKS[benchmark].title, *(str(row[0]) for row in cells), box=None)
        for i, name in enumerate(header[1:], start=1):
            shown = ["–" if row[i] is None else str(row[i]) for row in cells]
            table.add_row(name, *map(Text, shown))
        console().print(table)
    sweeps = [row for row in rows if row.benchmark == "sweeps"]
    models = list(dict.fromkeys(row.model for row in sweeps))
    if sweeps:
        table = Table("sweep", "level", *models, box=None)
        for name, level in dict.fromkeys((row.corruption, row.level) for row in sweeps):
            own_rows = [row for row in sweeps if (row.corruption, row.level) == (name, level)]
            table.add_row(name, f"{level:g}", *(f"{row.overall_accuracy:.2%}" for row in own_rows))
        console().print(table)
