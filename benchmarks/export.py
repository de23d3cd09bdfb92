"""Exported files beside the model they were made from: python benchmarks/export.py [--model FOLDER]

Without a model, with random weights: sizes of the files, milliseconds in torch and in onnxruntime, in float32
and int8, all in turn in one run, and the largest difference of a logit. Writes
benchmarks/results/export.json.

With a saved model and its data set (--data modelnet40 --root FOLDER), also overall and mean class accuracy of
all three on the test split; printed, not written.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import interleaved_seconds, made_clouds, surroundings, write
from torch import Tensor
from torchmetrics.functional import accuracy

import pointvit
from pointvit.data import PointCloudDataModule
from pointvit.data.transforms import swap_up_axis
from pointvit.export import onnx_files

MODELS = {"pointvit_tiny": 9, "pointvit_small": 5}
"""Model -> how often it is run."""
BATCHES = (1, 16)
Run = Callable[[Tensor], Tensor]


@torch.inference_mode()
def compared(model: pointvit.ViT, clouds: Tensor, batches: tuple[int, ...], repeats: int) -> dict[str, Any]:
    """Sizes, times and differences of a model and its two files."""
    with tempfile.TemporaryDirectory() as folder:
        runs, sizes = _exported(model, Path(folder))
    expected = model(clouds)
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    rows: dict[str, Any] = {"bytes": {"weights": weights, **sizes}, "batches": []}
    for batch in batches:
        few = clouds[:batch]
        named = {"torch": model, **runs}
        seconds = interleaved_seconds(
            {name: lambda run=run, few=few: run(few) for name, run in named.items()}, repeats
        )
        rows["batches"].append(
            {
                "batch": batch,
                "milliseconds": {name: 1e3 * value for name, value in seconds.items()},
                "times_as_fast_as_torch": {name: seconds["torch"] / seconds[name] for name in runs},
            }
        )
    rows["largest_logit"] = expected.abs().max().item()
    rows["largest_difference"] = {
        name: (run(clouds) - expected).abs().max().item() for name, run in runs.items()
    }
    return rows


@torch.inference_mode()
def accuracies(model: pointvit.ViT, points: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """Overall and mean class accuracy in torch, onnxruntime, and onnxruntime with int8, in percent."""
    with tempfile.TemporaryDirectory() as folder:
        runs, _ = _exported(model, Path(folder))
    classes, found = model.num_classes, {}
    for name, run in {"torch": model, **runs}.items():
        answers = torch.cat([run(part).argmax(dim=1) for part in points.split(32)])
        kinds = {"overall": "micro", "mean_class": "macro"}
        found[name] = {
            kind: 100 * accuracy(answers, labels, "multiclass", num_classes=classes, average=average).item()
            for kind, average in kinds.items()
        }
    return found


def _exported(model: pointvit.ViT, folder: Path) -> tuple[dict[str, Run], dict[str, int]]:
    runs, sizes = {}, {}
    for name, int8 in (("onnxruntime", False), ("onnxruntime int8", True)):
        report = pointvit.export(model, folder / f"{int8}.onnx", int8=int8)
        runs[name], sizes[name] = onnx_files.opened(report.files), report.files[0].stat().st_size
    return runs, sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one small model; writes nothing")
    parser.add_argument("--model", help="a saved model folder, or a training checkpoint")
    parser.add_argument("--data", default="modelnet40", help="its data set, as in training")
    parser.add_argument("--root", help="the data set's folder")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.model is not None:
        model = pointvit.load(options.model)
        assert isinstance(model, pointvit.ViT)
        size = model.meta.num_points or 1024
        test = PointCloudDataModule(options.data, options.root, size).dataset("test")
        assert model.meta.class_names == test.class_names, "the model knows other classes"
        points = swap_up_axis(test.points, test.up_axis, model.meta.up_axis)
        print(compared(model, points[:16], BATCHES, repeats=5))
        print(accuracies(model, points, test.labels))
        return
    rows = []
    for name, repeats in {"pointvit_tiny": 1}.items() if options.quick else MODELS.items():
        model = pointvit.create_model(name, **({"depth": 1} if options.quick else {})).eval()
        row = compared(model, made_clouds(max(BATCHES), 1024)[0], BATCHES, repeats)
        rows.append({"model": name, **row})
        print(rows[-1], flush=True)
    if not options.quick:
        packages = ["onnx", "onnxscript", "onnxruntime"]
        write("export", {**surroundings(packages), "points": 1024, "rows": rows})


if __name__ == "__main__":
    main()
