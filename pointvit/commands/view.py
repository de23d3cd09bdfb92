"""``pointvit view FILE``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import ArgumentParser
from rich.text import Text

from pointvit.commands.console import console

if TYPE_CHECKING:
    from pointvit.model import Pair, ViT


def run(args: list[str]) -> int:
    from pointvit.data.io import READERS
    from pointvit.viewer import COLORINGS, Look, make_scene, write_image, write_page
    from pointvit.viewer.desktop import show_window
    from pointvit.viewer.output import PAGES, PICTURES, checked_name

    parser = ArgumentParser(
        prog="pointvit view",
        description="Shows a point cloud or mesh, its point groups, and with a model what it attends to: as "
        "a web page in one file that needs no network, as a picture, or in a window.",
    )
    parser.add_argument("file", help=" ".join(READERS))
    parser.add_argument("--model", help="a saved model folder, a training checkpoint (.ckpt), or owner/name")
    parser.add_argument("--output", help="page to write; by default the file's name, .html, in this folder")
    parser.add_argument(
        "--image", help="picture to write instead, or beside --output: .png, or .gif that turns"
    )
    parser.add_argument("--desktop", action="store_true", help="open Open3D's window instead")
    parser.add_argument("--up", default="auto", choices=["auto", "y", "z"], help="vertical axis of the file")
    parser.add_argument("--color", choices=list(COLORINGS), help="what colours show first")
    parser.add_argument("--layer", type=int, help="attention of this layer, from 1; by default the last")
    parser.add_argument("--head", type=int, help="attention of this head, from 1; by default their mean")
    parser.add_argument("--group", type=int, help="group that is picked first, from 1")
    parser.add_argument("--channel", type=int, default=1, help="channel of the tokens, from 1")
    options = parser.parse_args(args)

    # What cannot be written is said before a model is loaded.
    for name, endings in (("output", PAGES), ("image", PICTURES)):
        if options[name] is not None:
            checked_name(options[name], endings)
    look = Look(options.color, options.layer, options.head, options.group, options.channel)
    page = options.output
    if page is None and options.image is None and not options.desktop:
        page = Path(options.file).with_suffix(".html").name
    try:
        scene = make_scene(options.file, _model(options.model), options.up)
    except ImportError as error:  # a file format that needs a package
        raise ValueError(str(error)) from error
    written = []
    if page is not None:
        written.append(write_page(scene, path=page, look=look))
    if options.image is not None:
        written.append(write_image(scene, path=options.image, look=look))
    for path in written:
        console().print(Text(f"{path} ({path.stat().st_size / 1e6:.2f} MB)"))
    if options.desktop:
        show_window(scene, look)
    return 0


def _model(path: str | None) -> ViT | Pair | None:
    from pointvit.checkpoints import load

    return None if path is None else load(path)
