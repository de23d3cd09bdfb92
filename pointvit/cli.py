"""The ``pointvit`` command."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "fit": "train a point classifier: pointvit fit --config configs/x.yaml",
    "validate": "score a checkpoint on the held-out part of the training split",
    "test": "score a checkpoint on the test split",
    "transfer": "say whether image weights help your clouds: pointvit transfer --config configs/x.yaml",
    "align": "teach a point encoder, without labels, what an image encoder sees",
    "compare": "look at the same objects as images and as points: pointvit compare IMAGE [POINTS]",
    "robustness": "measure models on corrupted clouds: pointvit robustness MODEL --root DATA",
    "predict": "name the class of files: pointvit predict MODEL FILE...",
    "convert": "write a checkpoint in another layout: pointvit convert IN OUT --to SOURCE",
    "inspect": "say what is in a checkpoint, whether it is trained, and what it can initialise",
    "view": "look at a cloud, its groups and a model's attention: pointvit view FILE --model MODEL",
    "export": "write a model as an ONNX file or a program of torch: pointvit export MODEL --to onnx",
    "demo": "the whole idea in a few minutes, on data made here",
    "doctor": "say what is installed and works; with files, what is unusual about them",
}
LIGHTNING = ("fit", "validate", "test")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args and args[0] in ("-V", "--version"):
        from pointvit import __version__

        print(f"pointvit {__version__}")
        return 0
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0 if args else 2
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        from pointvit.config import near

        return _fail(f"unknown command {command!r}; {near(command, COMMANDS)}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            # The name of a file need not be in the terminal's encoding.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(command, rest)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read the output (head, less) has seen enough. Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, FloatingPointError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return _fail("interrupted")


def _run(command: str, args: list[str]) -> int:
    if command in LIGHTNING:
        from pointvit.training.cli import run_lightning

        run_lightning([command, *args])
        return 0
    status: int = importlib.import_module(f"pointvit.commands.{command}").run(args)
    return status


def _usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return f"usage: pointvit COMMAND ...\n\n{rows}\n\nEach command has its own --help."


def _fail(message: str) -> int:
    print(f"pointvit: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
