"""What is looked at: objects of a data set, chosen evenly over its classes, and the pictures of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pointvit.compare.multiview import Views
from pointvit.data.dataset import DataError, PointCloudDataset, split_by_class
from pointvit.data.folder import PointCloudFolder, class_folders
from pointvit.data.meshes import mesh_files, read_mesh
from pointvit.data.module import DATASETS, PointCloudDataModule
from pointvit.data.transforms import NormalizeUnitSphere
from pointvit.views import Cameras, render_meshes, render_points

FEWEST = 10
"""Objects below which nothing can be said: a map between modalities is fitted to so many."""
FIT_PER_CLASS = 5
"""Objects of each class that probes are fitted to at least, where there are so many."""


@dataclass(frozen=True)
class Request:
    """Which data, and how much of it."""

    name: str = "shapes"
    """As ``data.name`` of ``pointvit fit``."""
    root: str | None = None
    split: str = "val"
    """``val``, the held-out part of the training split, or ``test``."""
    objects: int = 400
    num_points: int = 1024
    normals: bool = False
    up_axis: str | None = None
    meshes: Path | None = None
    """Folder of meshes of the same objects, for the views."""
    seed: int = 0


@dataclass(frozen=True)
class Objects:
    """Clouds in the unit sphere, in random order, and where there are, their meshes."""

    data: PointCloudDataset
    meshes: tuple[Path, ...] | None = None

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, start: int, stop: int) -> Tensor:
        """``-> (B, P, C)`` in the unit sphere, in the data's own axes."""
        return NormalizeUnitSphere()(self.data.points[start:stop])

    def render(self, start: int, stop: int, views: Views) -> Tensor:
        """``-> (B, V, 3, H, W)`` in [0, 1]."""
        settings = views.num_views, views.size, views.mode
        if self.meshes is None:
            return render_points(
                self.batch(start, stop),
                *settings,
                up_axis=views.up_axis,
                rig=views.rig,
                perspective=views.perspective,
            )
        meshes = [read_mesh(path).in_unit_sphere() for path in self.meshes[start:stop]]
        pairs = [(torch.from_numpy(each.vertices), torch.from_numpy(each.faces)) for each in meshes]
        return render_meshes(pairs, *settings, views.up_axis, views.rig, views.perspective)


def cameras(views: Views) -> Cameras:
    """The cameras that made the pictures."""
    return Cameras.from_rig(views.num_views, views.size, views.up_axis, views.rig, views.perspective)


def choose_objects(request: Request) -> tuple[Objects, Objects]:
    """Objects of the training part, to fit probes and maps to, and others to look at.

    Raises:
        ValueError: for fewer than 10 objects, or none of which there is a mesh.
        DataError, FileNotFoundError: for data that cannot be read.
    """
    if request.objects < FEWEST:
        raise ValueError(
            f"--objects must be at least {FEWEST}, for the measures to exist, got {request.objects}"
        )
    train, held = _splits(request)
    found = [_with_meshes(each, request) for each in (train, held)]
    held_out = request.split == "val" and not _is_halved(request)
    hints = "", ", or compare those of --split test" if held_out else ""
    for part, objects, hint in zip(("to fit probes to", "to compare"), found, hints, strict=True):
        if len(objects) < FEWEST:
            raise DataError(
                f"the data has {len(objects)} objects {part}, and the measures need at least {FEWEST}; add "
                f"objects{hint}"
            )
    fit, study = found
    classes = len(study.data.labels.unique())
    known = set(fit.data.labels.tolist())
    unknown = next((label for label in study.data.labels.tolist() if label not in known), None)
    if unknown is not None:
        raise DataError(
            f"class {study.data.class_names[unknown]} has objects to compare and none to fit probes to; "
            "add some to the training split"
        )
    return (
        _balanced(fit, max(request.objects, FIT_PER_CLASS * classes), request.seed + 1),
        _balanced(study, request.objects, request.seed),
    )


def _splits(request: Request) -> tuple[PointCloudDataset, PointCloudDataset]:
    if request.normals and request.name in DATASETS and not request.name.startswith("modelnet"):
        raise ValueError(
            f"the point encoder takes normals, and {request.name} has xyz alone; compare it on modelnet40 or "
            "modelnet10, or take an encoder of 3 channels"
        )
    if _is_halved(request):
        assert request.root is not None
        up_axis = request.up_axis or "z"
        data = PointCloudFolder(request.root, request.num_points, None, seed=request.seed, up_axis=up_axis)
        fit, study = split_by_class(data.labels, 0.5, request.seed)
        return data.subset(fit), data.subset(study)
    module = PointCloudDataModule(
        request.name,
        request.root,
        request.num_points,
        normals=request.normals,
        up_axis=request.up_axis,
    )
    return module.dataset("train"), module.dataset(request.split)


def _is_halved(request: Request) -> bool:
    """Whether the data is a folder without splits of its own."""
    if request.name != "folder" or request.root is None or not Path(request.root).is_dir():
        return False  # the module says what is wrong with it
    try:
        class_folders(Path(request.root), "train")
    except FileNotFoundError:
        return True
    return False


def _balanced(objects: Objects, count: int, seed: int) -> Objects:
    """As many of each class as there are, or can be, in random order."""
    labels = objects.data.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    rank, seen = torch.zeros(len(labels)), [0] * (int(labels.max()) + 1)
    for i in order.tolist():
        rank[i] = seen[int(labels[i])]
        seen[int(labels[i])] += 1
    chosen = order[rank[order].sort(stable=True).indices][:count]
    mixed = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))
    return _subset(objects, chosen[mixed].tolist())


def _subset(objects: Objects, rows: Sequence[int]) -> Objects:
    meshes = None if objects.meshes is None else tuple(objects.meshes[i] for i in rows)
    return Objects(objects.data.subset(rows), meshes)


def _with_meshes(data: PointCloudDataset, request: Request) -> Objects:
    """The objects that have a mesh of their name, the ending apart, in the folder of meshes."""
    if request.meshes is None:
        return Objects(data)
    root = request.meshes
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}; expected the meshes of the objects in it.")
    by_path = {path.relative_to(root).with_suffix("").as_posix(): path for path in mesh_files(root)}
    by_stem: dict[str, Path | None] = {}
    for path in by_path.values():
        by_stem[path.stem] = None if path.stem in by_stem else path  # one name, one object
    names = [Path(name).with_suffix("") for name in data.names]
    found = [by_path.get(name.as_posix()) or by_stem.get(name.name) for name in names]
    rows = [i for i, path in enumerate(found) if path is not None]
    if not rows:
        raise ValueError(
            f"the data and {root} have no objects in common: names without their ending must be the same, "
            f"such as {names[0]}, and the meshes are called {', '.join(list(by_path)[:2])}, ..."
        )
    return Objects(data.subset(rows), tuple(path for path in found if path is not None))


def views_for(views: Views, data: PointCloudDataset) -> Views:
    """The same views of clouds with this vertical axis."""
    up_axis: dict[str, Views] = {axis: replace(views, up_axis=axis) for axis in ("y", "z")}
    return up_axis[data.up_axis]
