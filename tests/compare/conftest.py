"""A small comparison, made once: an image encoder, a point encoder on a moved trunk, and clouds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pointvit
from pointvit.cli import main
from pointvit.data.hdf5 import write_hdf5_split
from pointvit.model import ViT
from pointvit.variants import create_pair

CLASSES = ["ball", "plate <b>", "rod", "slab"]
SCALES = np.array([(1, 1, 1), (1, 1, 0.3), (0.3, 0.3, 1), (1, 0.5, 0.5)])
IMAGE = {"depth": 2, "embed_dim": 48, "num_heads": 3, "img_size": 32, "patch_size": 8, "num_classes": 0}
OBJECTS = 24


def small_image(**settings) -> ViT:
    return pointvit.create_model("vit_tiny_patch16_224", **{**IMAGE, **settings})


@pytest.fixture(scope="session")
def solids(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy solids in ModelNet40's layout: 10 shapes of each class to train, 7 to test."""
    root = tmp_path_factory.mktemp("solids")
    rng = np.random.default_rng(0)
    for split, count in (("train", 10), ("test", 7)):
        labels = np.arange(len(CLASSES)).repeat(count)
        stretch = SCALES[labels] * rng.uniform(0.6, 1.6, size=(len(labels), 3))
        points = rng.normal(size=(len(labels), 64, 3))
        points = points / np.linalg.norm(points, axis=2, keepdims=True) * stretch[:, None]
        points -= points.mean(axis=1, keepdims=True)
        points /= np.linalg.norm(points, axis=2).max(axis=1)[:, None, None]
        names = [f"{CLASSES[label]}_{split}_{i}" for i, label in enumerate(labels)]
        write_hdf5_split(root, split, points, labels, names, CLASSES)
    return root


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory, randomise) -> SimpleNamespace:
    """Saved: ``image``, ``points`` (its trunk moved), ``normals`` (of 6 channels), ``pair`` and ``wide``."""
    folder = tmp_path_factory.mktemp("encoders")
    torch.manual_seed(1)
    image = randomise(small_image())
    pair = create_pair("auto", pointvit.save(image, folder / "image"), 0, num_groups=8, group_size=8)
    config = pair.points.config.override({"width": 16})
    points = ViT(config)
    points.load_state_dict(
        {**randomise(ViT(config), 3).state_dict(), **_moved(pair.image.trunk.state_dict())}
    )
    pointvit.save(points, folder / "points")
    pointvit.save(pointvit.model.Pair(pair.image, randomise(ViT(config), 4)), folder / "pair")
    pointvit.save(randomise(small_image(embed_dim=24)), folder / "wide")
    pointvit.save(randomise(ViT(config.override({"in_chans": 6}))), folder / "normals")
    names = ("image", "points", "pair", "wide", "normals")
    return SimpleNamespace(**{name: folder / name for name in names})


def _moved(trunk: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        f"trunk.{name}": value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in trunk.items()
    }


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory, encoders, solids) -> SimpleNamespace:
    """What ``pointvit compare IMAGE POINTS`` wrote: ``folder``, ``numbers`` (results.json) and ``args``."""
    folder = tmp_path_factory.mktemp("compared")
    args = [
        "compare",
        str(encoders.image),
        str(encoders.points),
        "--data",
        "modelnet40",
        "--root",
        str(solids),
    ]
    args += ["--split", "test", "--objects", str(OBJECTS), "--num-points", "64", "--output", str(folder)]
    assert main(args) == 0
    numbers = json.loads((folder / "results.json").read_text())
    return SimpleNamespace(folder=folder, numbers=numbers, args=args)
