"""A data set that takes seconds to train on, and the options for it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from pointvit.data.hdf5 import write_hdf5_split

CLASSES = ["ball", "plate", "rod", "slab"]
SCALES = np.array([(1, 1, 1), (1, 1, 0.3), (0.3, 0.3, 1), (1, 0.5, 0.5)])


def _write(root: Path, classes: list[str] = CLASSES, num_points: int = 64) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 5)):
        labels = np.arange(len(classes)).repeat(count)
        stretch = SCALES[labels % len(SCALES)] * rng.uniform(0.6, 1.6, size=(len(labels), 3))
        points = rng.normal(size=(len(labels), num_points, 3)) * stretch[:, None]
        points /= np.linalg.norm(points, axis=2).max(axis=1)[:, None, None]
        write_hdf5_split(root, split, points, labels, [f"{split}_{i}" for i in range(len(labels))], classes)
    return root


@pytest.fixture(scope="session")
def write_clouds() -> Callable[..., Path]:
    """The function ``write_clouds(root, classes=[ball, plate, rod, slab], num_points=64) -> root``.

    It writes noisy blobs in ModelNet40's layout: 12 shapes of each class to train, 5 to test.
    """
    return _write


@pytest.fixture(scope="session")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("clouds"))


@pytest.fixture
def options(clouds: Path, tmp_path: Path) -> list[str]:
    """Command-line options of a small model with dropout and drop path on; runs go to ``tmp_path/runs``."""
    config = {
        "model": {
            "model": "pointvit_tiny",
            "settings": {
                "embed_dim": 24,
                "depth": 2,
                "num_groups": 8,
                "group_size": 8,
                "width": 16,
                "drop_rate": 0.1,
                "drop_path_rate": 0.3,
            },
            "lr": 2e-3,
        },
        "data": {
            "name": "modelnet40",
            "root": str(clouds),
            "num_points": 64,
            "batch_size": 8,
            "val_fraction": 0.25,
        },
        "trainer": {
            "max_epochs": 3,
            "accelerator": "cpu",
            "enable_progress_bar": False,
            "default_root_dir": str(tmp_path / "runs"),
        },
    }
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    return ["--config", str(file)]
