"""What ``pointvit transfer`` is asked for: its options beside a config as ``pointvit fit`` takes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from jsonargparse import ArgumentError, Namespace
from pytorch_lightning.cli import LightningArgumentParser

from pointvit import __version__
from pointvit.config import near
from pointvit.data.module import PointCloudDataModule
from pointvit.training.cli import add_groups, sentences, trainer_defaults, usage
from pointvit.training.grid import options as given
from pointvit.training.grid.cells import Plan
from pointvit.training.grid.runner import CellClassifier
from pointvit.training.initial import INITS
from pointvit.training.transfer import TRANSFER_MODES, resolve

# What differs from cell to cell, or changes no number.
FREE = {
    "model": ("init", "transfer", "lr", "seed", "votes"),
    "data": ("shapes_per_class", "train_fraction", "num_workers", "resident"),
    "trainer": (
        "default_root_dir",
        "logger",
        "enable_progress_bar",
        "enable_model_summary",
        "enable_checkpointing",
        "log_every_n_steps",
        "check_val_every_n_epoch",
    ),
}
# Options of the trainer that would cut a cell short, with the value that is off; and those that may not be 0.
CUTS = {"fast_dev_run": False, "max_time": None, "overfit_batches": 0}
LIMITS = ("limit_train_batches", "limit_val_batches", "limit_test_batches")
OPTIONS: tuple[tuple[str, Any, Any, str], ...] = (
    ("modes", str | None, None, f"transfer modes, with commas: {', '.join(TRANSFER_MODES)}; default full"),
    (
        "init",
        str | None,
        None,
        f"initial states, with commas: {', '.join(INITS)}, or one of --start; default "
        "pretrained,scratch,shuffled",
    ),
    ("arms", str | None, None, "single arms instead: init:mode or init:mode@SIZE, with commas"),
    (
        "shapes-per-class",
        str,
        "10",
        "sizes of the training set, with commas: 5, a share with its sign, or all",
    ),
    ("seeds", int, 3, "seeds 0 to N - 1"),
    ("start", list[str], [], "NAME=FOLDER: a further initial state, a saved point encoder (can be repeated)"),
    ("aligned", str | None, None, "FOLDER of `pointvit align`: short for --start aligned=FOLDER"),
    ("rates", str | None, None, "learning rates that each arm tries with seed 0; validation chooses"),
    (
        "rate",
        list[str],
        [],
        "INIT:MODE=RATE: the learning rate of one arm, or several for it to try (can be repeated)",
    ),
    ("search-shapes", str | None, None, "the size at which rates are tried; default each arm's smallest"),
    ("set", list[str], [], "INIT:MODE/KEY=VALUE: a setting of one arm, as .../model.trunk_lr_scale=1"),
    ("compare", str | None, None, "pairs of arms to compare beside those against scratch: ARM/ARM"),
    ("intervals", bool, True, "false: accept a single seed, which has no interval"),
    ("cells", str | None, None, "i/n: run every n-th cell from the i-th, for an array of jobs"),
    ("keep", bool, False, "keep the checkpoints of finished cells"),
    ("report-only", bool, False, "train nothing; write the page from what is done"),
    ("output", Path, Path("runs/transfer"), "folder of the grid"),
)


def make_parser() -> LightningArgumentParser:
    parser = LightningArgumentParser(
        prog="pointvit transfer",
        usage=usage("transfer", "--config FILE [options of the grid]"),
        description="Trains a model from several initial states, in several transfer modes, on training sets "
        "of several sizes, with several seeds, and says whether the image weights helped. What is done is "
        "not done again.",
        exit_on_error=False,
    )
    parser.add_argument("--config", action="config", help="as for `pointvit fit`: model, data and trainer")
    for name, kind, default, words in OPTIONS:
        action = {"action": "append"} if kind == list[str] else {"type": kind}
        parser.add_argument(f"--{name}", default=default, help=words, **action)
    # What a config of `pointvit fit` has beside the three groups.
    parser.add_argument("--ema_decay", type=float | None, default=None, help="as for `pointvit fit`")
    for name in ("seed_everything", "ckpt_path", "weights_only", "optimizer", "lr_scheduler"):
        parser.add_argument(
            f"--{name}", type=Any, default=None, help="not used: cells have seeds of their own"
        )
    kinds = {"model": CellClassifier, "data": PointCloudDataModule, "trainer": pl.Trainer}
    add_groups(parser, kinds, trainer_defaults())
    return parser


def parsed(parser: LightningArgumentParser, args: Sequence[str]) -> Namespace:
    with sentences():
        options: Namespace = parser.parse_args(list(args))
    if not options.config:
        raise ValueError("transfer needs --config, a config as `pointvit fit` takes it")
    if options.trainer.max_steps != -1 or (options.trainer.max_epochs or 0) < 1:
        raise ValueError("transfer gives every arm the same epochs: set trainer.max_epochs, not max_steps")
    if options.optimizer is not None or options.lr_scheduler is not None:
        raise ValueError(
            "transfer trains with AdamW and its own schedule: leave optimizer and lr_scheduler out"
        )
    if "EarlyStopping" in str(options.trainer.callbacks):
        raise ValueError("transfer gives every arm the same epochs: leave EarlyStopping out")
    cut = [name for name, off in CUTS.items() if options.trainer[name] not in (off, None)]
    cut += [name for name in LIMITS if options.trainer[name] == 0]
    if cut:
        raise ValueError(
            f"transfer trains, validates and tests every cell to its end; leave trainer.{cut[0]} out, got "
            f"{options.trainer[cut[0]]}"
        )
    if options.data.few_shot is not None:
        raise ValueError(
            "data.few_shot chooses the training shapes, which --shapes-per-class does; leave it out"
        )
    options.data.shapes_per_class = options.data.train_fraction = None
    return options


def make_plan(options: Namespace, starts: Mapping[str, str]) -> Plan:
    sizes = given.sizes(options.shapes_per_class)
    arms = given.arms(options.init, options.modes, options.arms, sizes, [*INITS, *starts])
    for arm in arms:
        if arm.init not in ("scratch", *starts) and options.model.pretrained is None:
            raise ValueError(f"{arm.name} needs an image checkpoint: give --model.pretrained FILE")
    known = {option for arm in arms for option in TRANSFER_MODES[resolve(arm.mode, {})[0]].options}
    for option in options.model.transfer_options or {}:
        if option not in known:
            hint = near(option, known) if known else "they have none"
            raise ValueError(f"no mode of this grid has the transfer option {option!r}; {hint}")
    if options.search_shapes is not None:
        size = given.search_size(options.search_shapes)
        arms = tuple(replace(arm, search_size=size) for arm in arms)
    return Plan(
        arms,
        given.seeds(options.seeds, options.intervals),
        given.rates(options.rates),
        given.given_rates(options.rate, arms),
        options.model.lr,
    )


def arm_settings(
    parser: LightningArgumentParser, options: Namespace, plan: Plan
) -> dict[str, dict[str, Any]]:
    """By an arm's name, the settings that ``--set`` gives it, checked as those of a config are."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in given.of_arms("--set", options.set, plan.arms, "/"):
        key, equals, value = text.partition("=")
        group, _, setting = key.partition(".")
        if not equals or group != "model" or not setting or setting in FREE["model"]:
            raise ValueError(
                f"--set {name}/{text}: expected KEY=VALUE with a key such as model.trunk_lr_scale"
            )
        first, nested, rest = setting.partition(".")
        value = f"{{{rest}: {value}}}" if nested else value
        try:
            new = parser.parse_string(f"{group}: {{{first}: {value}}}", defaults=False)[group][first]
        except ArgumentError as error:
            raise ValueError(f"--set {name}/{text}: {' '.join(str(error).split())}") from error
        own, key = found.setdefault(name, {}), f"{group}.{first}"
        own[key] = {**(own.get(key, options[key]) or {}), **new} if nested else new
    return found


def trainings(options: Namespace) -> Namespace:
    """The part of the options that is a config of `pointvit fit`."""
    return Namespace({name: options[name] for name in ("model", "data", "trainer", "ema_decay")})


def common_config(parser: LightningArgumentParser, options: Namespace) -> dict[str, Any]:
    """What all cells share, as JSON has it: a grid goes on only with the same."""
    config: dict[str, Any] = json.loads(parser.dump(trainings(options), format="json"))
    for group, names in FREE.items():
        config[group] = {name: value for name, value in config[group].items() if name not in names}
    pretrained = options.model.pretrained
    if pretrained is not None and Path(pretrained).exists():
        config["model"]["pretrained"] = digest(Path(pretrained))
    return {"version": __version__, **config}


def digest(path: Path) -> str:
    """Of a file's bytes, or of those of all files in a folder: where it lies makes no difference."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()[:16]
