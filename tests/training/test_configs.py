"""Every config trains: two steps of a shallow model on clouds made here."""

import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from pointvit.cli import COMMANDS, main

FOLDER = Path(__file__).parents[2] / "configs"
CONFIGS = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.yaml"))]
TRAININGS = [
    pytest.param(p, id=p.stem) for p in sorted(FOLDER.glob("*.yaml")) if "pointvit fit " in p.read_text()
]
SMALL = {
    "model.settings.depth": 1,
    "model.settings.embed_dim": 24,
    "model.settings.num_heads": 2,
    "model.settings.num_groups": 8,
    "model.pretrained": "null",
    "data.num_points": 64,
    "data.batch_size": 4,
    "trainer.precision": "32-true",
    "trainer.accelerator": "cpu",
    "trainer.fast_dev_run": 2,
    "trainer.enable_progress_bar": "false",
}
FEW_SHOT = {"data.few_shot.way": 2, "data.few_shot.shot": 4, "data.few_shot.queries": 2}


@pytest.fixture
def data_folder(clouds: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The function ``data_folder(text of a config) -> root`` of a small data set in the layout it reads."""

    def make(text: str) -> Path:
        if "name: scanobjectnn" not in text:
            return clouds
        rng = np.random.default_rng(0)
        path = tmp_path / "h5_files" / "main_split" / "training_objectdataset_augmentedrot_scale75.h5"
        path.parent.mkdir(parents=True)
        with h5py.File(path, "w") as file:
            file["data"] = rng.normal(size=(60, 64, 3))
            file["label"] = np.arange(60) % 15
        return tmp_path / "h5_files"

    return make


@pytest.mark.parametrize("path", CONFIGS)
def test_the_comment_on_top_has_command_cost_and_result(path: Path):
    comment = "".join(line for line in path.read_text().splitlines(keepends=True) if line.startswith("#"))
    assert path.read_text().startswith(comment)
    command = re.search(r"pointvit (\w+) .*--config configs/(\w+)\.yaml", comment)
    assert command is not None
    assert command[1] in COMMANDS
    assert command[2] == path.stem
    assert re.search(r"^# Cost: .*\.$", comment, flags=re.MULTILINE)
    assert re.search(r"^# Result: ", comment, flags=re.MULTILINE)


@pytest.mark.parametrize("path", TRAININGS)
def test_config_trains(path: Path, data_folder, tmp_path: Path):
    text = path.read_text()
    options = {**SMALL, "data.root": data_folder(text), "trainer.default_root_dir": tmp_path / "runs"}
    options |= FEW_SHOT if "few_shot:" in text else {}
    assert (
        main(["fit", "--config", str(path), *(f"--{name}={value}" for name, value in options.items())]) == 0
    )
