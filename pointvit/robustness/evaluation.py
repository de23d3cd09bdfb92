"""Models on sets of corrupted clouds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pointvit import __version__
from pointvit.checkpoints.saving import described
from pointvit.config import near
from pointvit.data.corruptions import BENCHMARKS, CLEAN, public_frame
from pointvit.data.transforms import NormalizeUnitSphere
from pointvit.model import ViT
from pointvit.robustness.results import Done
from pointvit.robustness.scores import Row
from pointvit.robustness.sources import Condition, Source
from pointvit.training.metrics import Scores

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
COMPARED = 128
"""Clouds on which the precision is compared with float32."""


@dataclass(frozen=True)
class Contestant:
    """A classifier under the name it has in the tables."""

    name: str
    model: ViT
    fingerprint: str

    @classmethod
    def of(cls, name: str, model: ViT) -> Contestant:
        """Raises ValueError unless the model classifies clouds of x, y, z alone."""
        if model.config.modality != "points" or model.num_classes == 0:
            raise ValueError(f"{name}: expected a point classifier; it encodes images or has no head")
        if model.config.tokenizer.in_chans != 3:
            raise ValueError(
                f"{name}: takes {model.config.tokenizer.in_chans} channels, corrupted clouds have 3 (x, y, z)"
            )
        digest = hashlib.sha256(described(model).encode())
        for tensor in model.state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return cls(name, model, digest.hexdigest())


@dataclass(frozen=True)
class Settings:
    """How the models run.

    Attributes:
        batch_size: clouds at a time.
        precision: ``float32``, or ``bfloat16`` for matrix products; neighbours are found in float32 always.
        device: a device of torch.
        normalize: bring each corrupted cloud into the unit sphere if the model's clouds were in training, as
            ``predict`` does. The benchmarks give clouds as they are.
    """

    batch_size: int = 32
    precision: str = "float32"
    device: str = "cpu"
    normalize: bool = False


def conditions(
    benchmarks: Sequence[str],
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
) -> list[Condition]:
    """The sets of these benchmarks, clean first; or those of some corruptions, and of some severities.

    Severities choose among those of the two public benchmarks; sweeps keep all their values.

    Raises:
        ValueError: for an unknown name, with near matches, or a severity that there is not.
    """
    for name in benchmarks:
        if name not in BENCHMARKS:
            raise ValueError(f"unknown benchmark {name!r}; {near(name, BENCHMARKS)}")
    known = {name for benchmark in benchmarks for name in BENCHMARKS[benchmark].corruptions}
    for name in corruptions or ():
        if name not in known:
            raise ValueError(f"unknown corruption {name!r} of {', '.join(benchmarks)}; {near(name, known)}")
    for severity in severities or ():
        if severity not in range(1, 6):
            raise ValueError(f"severities are 1 to 5, got {severity}")
    found = []
    for benchmark in benchmarks:
        sets = [
            Condition(benchmark, name, severity)
            for name in BENCHMARKS[benchmark].corruptions
            if corruptions is None or name in corruptions
            for severity in BENCHMARKS[benchmark].severities(name)
            if severities is None or benchmark == "sweeps" or severity in severities
        ]
        # A sweep has the clean clouds among its values, or none that would be asked for.
        clean = [] if benchmark == "sweeps" else [Condition(benchmark, CLEAN, 0)]
        found += clean + sets if sets else []
    return found


def evaluate(
    contestants: Sequence[Contestant],
    sources: Mapping[str, Source],
    wanted: Sequence[Condition],
    settings: Settings,
    done: Done,
    progress: Callable[[Condition, Sequence[Row], bool], None],
) -> list[Row]:
    """Every model on every set, which all see with the same clouds.

    Args:
        sources: by benchmark.
        done: what was measured before is taken from there, and what is measured is added.
        progress: called after each set with its rows, and whether they were measured just now.

    Raises:
        ValueError: for a model of other classes than the clouds have, before anything is measured.
        DataError: for a public file that is not what it should be.
    """
    maps = {
        (one.name, benchmark): class_map(one, source.class_names)
        for benchmark, source in sources.items()
        for one in contestants
    }
    rows: list[Row] = []
    for condition in wanted:
        source = sources[condition.benchmark]
        keys = [_key(one, source, condition, settings) for one in contestants]
        missing = [i for i, key in enumerate(keys) if key not in done]
        if missing:
            points, labels = source.read(condition)
            for i in missing:
                one = contestants[i]
                scores = score(one.model, points, maps[one.name, condition.benchmark][labels], settings)
                done.add(keys[i], _result(points, scores))
        own = [
            _row(one, source, condition, done.get(key)) for one, key in zip(contestants, keys, strict=True)
        ]
        rows += own
        progress(condition, own, bool(missing))
    return rows


def class_map(one: Contestant, class_names: Sequence[str]) -> Tensor:
    """``(K,)`` int64: the model's index of each of the data's classes, matched by name.

    A model that does not know its classes' names is taken to have them in the data's order.

    Raises:
        ValueError: if the classes are not the same.
    """
    trained = one.model.meta.class_names
    if trained is None and one.model.num_classes == len(class_names):
        return torch.arange(len(class_names))
    trained = trained or [f"class {i}" for i in range(one.model.num_classes)]
    if set(trained) != set(class_names):
        other = sorted(set(trained) ^ set(class_names))
        raise ValueError(
            f"{one.name}: was trained on {len(trained)} classes, the clouds have {len(class_names)}, and "
            f"{len(other)} are not in both ({', '.join(other[:3])}{', ...' if len(other) > 3 else ''}); "
            "use the data set it was made for"
        )
    return torch.tensor([trained.index(name) for name in class_names])


def score(model: ViT, points: Tensor, labels: Tensor, settings: Settings) -> Scores:
    """``(N, P, 3), (N,) -> Scores``: clouds in the frame of the public files, labels in the model's order."""
    found = predicted(model, points, settings)
    counts = torch.bincount(labels * model.num_classes + found, minlength=model.num_classes**2)
    return Scores.of(counts.view(model.num_classes, model.num_classes))


@torch.inference_mode()
def predicted(model: ViT, points: Tensor, settings: Settings) -> Tensor:
    """``(N, P, 3) -> (N,)`` int64 on the CPU: the most probable class of each cloud."""
    model.eval().to(settings.device)
    dtype = PRECISIONS[settings.precision]
    parts = []
    for chunk in points.split(settings.batch_size):
        clouds = public_frame(chunk.to(settings.device), model.meta.up_axis)
        if settings.normalize and model.meta.normalization == "unit_sphere":
            clouds = NormalizeUnitSphere()(clouds)
        kind = torch.device(settings.device).type
        with torch.autocast(kind, torch.bfloat16, enabled=dtype != torch.float32):
            logits = model(clouds).float()
        if not bool(logits.isfinite().all()):
            raise ValueError(
                "the model's answers are not numbers; its weights are beyond what its precision holds"
            )
        parts.append(logits.argmax(dim=1).cpu())
    return torch.cat(parts)


def agreement(
    one: Contestant, source: Source, condition: Condition, settings: Settings, done: Done
) -> dict[str, int]:
    """How many of the first clean clouds get the same class in ``settings.precision`` and in float32."""
    key = _key(one, source, condition, settings) + " agreement"
    if key not in done:
        points, _ = source.read(condition)
        plain = Settings(settings.batch_size, "float32", settings.device, settings.normalize)
        first, second = (predicted(one.model, points[:COMPARED], each) for each in (settings, plain))
        done.add(key, {"same": int((first == second).sum()), "clouds": len(first)})
    return {name: int(value) for name, value in done.get(key).items()}


def _key(one: Contestant, source: Source, condition: Condition, settings: Settings) -> str:
    # Clean clouds are the same for every benchmark that is made from them.
    benchmark = "" if condition.corruption == CLEAN else condition.benchmark
    what = (benchmark, condition.corruption, condition.severity, source.made_by)
    how = (settings.precision, settings.normalize, __version__)
    text = repr((one.fingerprint, what, source.fingerprint(condition), how))
    return hashlib.sha256(text.encode()).hexdigest()


def _result(points: Tensor, scores: Scores) -> dict[str, float]:
    return {
        "clouds": len(points),
        "points": points.shape[1],
        "overall_accuracy": scores.overall_accuracy,
        "mean_class_accuracy": scores.mean_class_accuracy,
    }


def _row(one: Contestant, source: Source, condition: Condition, result: Mapping[str, float]) -> Row:
    return Row(
        model=one.name,
        benchmark=condition.benchmark,
        corruption=condition.corruption,
        severity=condition.severity,
        level=condition.level,
        made_by=source.made_by,
        clouds=int(result["clouds"]),
        points=int(result["points"]),
        overall_accuracy=result["overall_accuracy"],
        mean_class_accuracy=result["mean_class_accuracy"],
    )
