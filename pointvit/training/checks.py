"""Whether a checkpoint of a training goes with the data and the options at hand."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pointvit.checkpoints.files import read_torch
from pointvit.data.dataset import PointCloudDataset
from pointvit.data.module import PointCloudDataModule
from pointvit.model import ViT
from pointvit.training.transfer import resolve

logger = logging.getLogger(__name__)


def check_fit(
    model: ViT, data: PointCloudDataModule, dataset: PointCloudDataset, checkpoint: str | Path
) -> None:
    """Refuses data of other classes or channels than the checkpoint; warns of another density or axis."""
    meta = model.meta
    check_classes(meta.class_names or [], dataset.class_names, str(checkpoint))
    trained, given = model.config.tokenizer.in_chans, dataset.points.shape[2]
    if trained != given:
        raise ValueError(
            f"{checkpoint}: was trained on clouds of {trained} channels, the data has {given}; "
            "set data.normals as in its training"
        )
    for what, before, now in (
        ("points per cloud", meta.num_points, data.num_points),
        ("the up axis", meta.up_axis, dataset.up_axis),
    ):
        if before is not None and before != now:
            logger.warning("%s: %s was %s in training, now it is %s", checkpoint, what, before, now)


def settings_of(checkpoint: Path, module: type, command: str) -> dict[str, Any]:
    """The settings that a checkpoint's module was made with.

    Raises:
        ValueError: if it is of another class than ``module``, and so not of this command, or of no training.
    """
    content = read_torch(checkpoint)
    known = content.get("hyper_parameters", {}) if isinstance(content, dict) else None
    if not isinstance(known, dict):
        raise ValueError(f"{checkpoint}: expected a checkpoint of pointvit's training; it has no settings")
    saved = {name: value for name, value in known.items() if not name.startswith("_")}  # Lightning's own
    if foreign := sorted(saved.keys() - inspect.signature(module).parameters.keys()):
        raise ValueError(
            f"{checkpoint}: was not made by `pointvit {command}`, as it has the setting model.{foreign[0]}; "
            "to start from what another command made, give its folder as --model.pretrained"
        )
    return saved


def check_resumed(
    checkpoint: str | Path,
    saved: Mapping[str, Any],
    given: Mapping[str, Any],
    module: type,
    kept: Collection[str] | None = None,
) -> None:
    """Refuses to go on with another transfer mode, and warns of all else that is asked for in vain.

    Args:
        checkpoint: of the training that goes on.
        saved: its settings, which win over what is given.
        given: settings of the module; those that are as by default are not asked for.
        module: the class that they are of.
        kept: names of the settings that the checkpoint keeps; all by default.
    """
    defaults = {name: of.default for name, of in inspect.signature(module).parameters.items()}
    asked = {name: value for name, value in given.items() if value != defaults[name]}
    if asked.keys() & {"transfer", "transfer_options"}:
        check_transfer(checkpoint, given["transfer"], given["transfer_options"] or {})
    names = saved.keys() if kept is None else saved.keys() & set(kept)
    vain = [
        f"model.{name}={value} (it was {saved[name]})"
        for name, value in asked.items()
        if name in names and value != saved[name]
    ]
    if vain:
        logger.warning("%s: goes on as it began; not used: %s", checkpoint, ", ".join(vain))


def check_transfer(checkpoint: str | Path, mode: str, options: dict[str, Any]) -> None:
    """Refuses to go on with another transfer mode: the optimizer in the checkpoint holds other parameters."""
    saved = read_torch(Path(checkpoint)).get("hyper_parameters", {})
    before = resolve(saved.get("transfer", "full"), saved.get("transfer_options") or {})
    if before != resolve(mode, options):
        name, chosen = before
        asked = "".join(f", {option}={value}" for option, value in chosen.items())
        raise ValueError(
            f"{checkpoint}: was trained with model.transfer={name}{asked}, asked for is {mode}; resume with "
            "the mode and options of its training"
        )


def check_record(checkpoint: str | Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuses to go on with another teacher, other views or other losses than an alignment began with."""
    for name, value in now.items():
        if before.get(name) != value:
            raise ValueError(
                f"{checkpoint}: was made with {name} {before.get(name)}, asked for is {value}; go on with "
                "the settings that it began with"
            )


def check_clouds(checkpoint: str | Path, clouds: str) -> None:
    """Refuses to go on with other training clouds, by their hash, than an alignment began with."""
    # Checkpoints of earlier versions say nothing of their clouds.
    if read_torch(Path(checkpoint)).get("learnt_from", clouds) != clouds:
        raise ValueError(
            f"{checkpoint}: was made from other clouds than data.root and the other settings of data give; "
            "go on with those that it began with"
        )


def check_settings(settings: Mapping[str, Any], fixed: Mapping[str, int]) -> None:
    """Raises ValueError if a setting of the model contradicts what data and task make of it."""
    for name, value in fixed.items():
        if settings[name] != value:
            raise ValueError(f"model.settings: {name} is {value} here, got {settings[name]}; leave it out")


def check_classes(trained: list[str], given: list[str], checkpoint: str) -> None:
    if trained != given:
        other = (
            [name for name in trained if name not in given],
            [name for name in given if name not in trained],
        )
        told = " and ".join(
            f"{_short(names)} {where}"
            for names, where in zip(other, ("only there", "only here"), strict=True)
            if names
        )
        raise ValueError(
            f"{checkpoint}: was trained on the classes {_short(trained)}, the data has {_short(given)} "
            f"({told or 'in another order'}); use the data set it was made for"
        )


def _short(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown}, ... ({len(names)})" if len(names) > 3 else shown
