"""``pointvit compare IMAGE [POINTS]``"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from pointvit.compare.multiview import Views
    from pointvit.compare.objects import Request
    from pointvit.compare.study import Told
    from pointvit.compare.subjects import Subjects
    from pointvit.model import ViT

SIZE = 224
"""Pixels of a view, unless the image encoder was made for fewer or its patches do not fit in."""
SEEDS = 2**32


def run(args: list[str]) -> int:
    parser = ArgumentParser(
        prog="pointvit compare",
        description="Looks at objects as images and as points, through an image and a point encoder on one "
        "kind of trunk, and writes a page on what the two do alike, layer by layer. Without a point model, "
        "the point encoder is an untuned one on the image encoder's trunk.",
        exit_on_error=False,
    )
    parser.add_argument("image", help="a 2D checkpoint (any source), a saved image encoder, or a saved pair")
    parser.add_argument(
        "points", nargs="?", help="a saved point encoder or pair, or a training checkpoint (.ckpt)"
    )
    parser.add_argument(
        "--data",
        default="shapes",
        help="modelnet40, modelnet10, scanobjectnn, shapes or folder, as data.name of pointvit fit",
    )
    parser.add_argument("--root", help="the data set's folder; only shapes needs none")
    parser.add_argument(
        "--split", default="val", choices=["val", "test"], help="val: held out of the training split"
    )
    parser.add_argument(
        "--objects", type=int, default=400, help="how many, as evenly from the classes as can be"
    )
    parser.add_argument(
        "--num-points", type=int, help="of a cloud; by default as many as the model was trained on"
    )
    parser.add_argument("--up-axis", choices=["y", "z"], help="of the data, where it is not the usual one")
    parser.add_argument("--views", type=int, default=1, help="views of each object; features are their mean")
    parser.add_argument(
        "--view-size", type=int, help="pixels to a side; default 224, or what the encoder takes"
    )
    parser.add_argument("--mode", default="normal", choices=["depth", "shaded", "normal"])
    parser.add_argument("--rig", default="circle", choices=["circle", "ten", "dodecahedron"])
    parser.add_argument("--perspective", action="store_true", help="views from nearby, not by parallel rays")
    parser.add_argument(
        "--meshes", type=Path, help="folder of meshes of the same names, to draw the views from"
    )
    parser.add_argument("--activation", help="of the image checkpoint, where its layout does not tell")
    parser.add_argument(
        "--output", type=Path, default=Path("runs/compare"), help="folder for page and numbers"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    parser.add_argument("--seed", type=int, default=0)
    try:
        options = parser.parse_args(args)
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from error

    from pointvit.compare.report import check_folder, compare, described, prepare, write
    from pointvit.compare.subjects import find_subjects
    from pointvit.diagnosis import usable_device

    if not 0 <= options.seed < SEEDS:
        raise ValueError(f"--seed must lie between 0 and {SEEDS - 1}, got {options.seed}")
    check_folder(options.output)
    device = usable_device(options.device)
    started = time.monotonic()
    subjects = find_subjects(options.image, options.points, options.activation, options.seed)
    views, request = _views(options, subjects), _request(options, subjects.points)
    fit, objects, views = prepare(subjects, request, views)
    subjects = _with_axis(subjects, objects.data.up_axis).to(device)
    with _bars() as told:
        found = compare(subjects, fit, objects, views, request, told)
        settings = {**described(subjects, request, views), "device": device}
        page = write(options.output, found, ["pointvit", "compare", *args], settings, told)
    for text in found.words:
        print(text)
    minutes = (time.monotonic() - started) / 60
    size = page.stat().st_size / 1e6
    print(f"{page} ({size:.1f} MB), results.json, results.csv and figures/; {minutes:.1f} min")
    return 0


def _views(options: Namespace, subjects: Subjects) -> Views:
    from pointvit.compare.multiview import Views

    if options.views < 1:
        raise ValueError(f"--views must be at least 1, got {options.views}")
    size = options.view_size
    if size is None:
        size, patch = min(SIZE, *subjects.patches.img_size), math.lcm(*subjects.patches.patch_size)
        size -= size % patch
    num_views = options.views
    if options.rig != "circle" and num_views == 1:
        from pointvit.views import camera_rotations

        num_views = len(camera_rotations(None, options.rig))
    return Views(num_views, size, options.mode, options.rig, options.perspective)


def _request(options: Namespace, points: ViT) -> Request:
    from pointvit.compare.objects import Request

    channels = points.config.tokenizer.in_chans
    if channels not in (3, 6):
        raise ValueError(
            f"the point encoder takes {channels} channels; expected 3 (x, y, z) or 6 (with normals)"
        )
    return Request(
        name=options.data,
        root=options.root,
        split=options.split,
        objects=options.objects,
        num_points=points.meta.num_points or 1024 if options.num_points is None else options.num_points,
        normals=channels == 6,
        up_axis=options.up_axis,
        meshes=options.meshes,
        seed=options.seed,
    )


def _with_axis(subjects: Subjects, up_axis: str) -> Subjects:
    """An untuned encoder has no axis of its own, and takes the data's."""
    if subjects.kind == "untuned":
        for encoder in subjects.of("points").values():
            encoder.meta.up_axis = up_axis
    return subjects


@contextmanager
def _bars() -> Iterator[Told]:
    """A bar for each kind of work; where there is no terminal, a line at its end."""
    terminal = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    started, tasks = time.monotonic(), {}
    with Progress(*columns, console=terminal, disable=not terminal.is_terminal) as bars:

        def told(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)
            if done == total and not terminal.is_terminal:
                print(
                    f"{what}: {total} ({(time.monotonic() - started) / 60:.1f} min)",
                    file=sys.stderr,
                    flush=True,
                )

        yield told
