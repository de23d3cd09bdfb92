"""The benchmarks run, at tiny sizes, and the page of figures says what their results say."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pointvit.data.hdf5 import write_hdf5_split

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = [
    "tokenizer",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("image_encoder", "training", "compiled", "views")
    ),
]
# What a rented GPU machine need not have.
HIDDEN = (
    "jsonargparse",
    "matplotlib",
    "open3d",
    "pytorch3d",
    "sklearn",
    "tensorboard",
    "timm",
    "torchvision",
    "transformers",
)
WITHOUT = """
import runpy, sys
script, hidden, *sys.argv[1:] = sys.argv[1:]
sys.modules.update(dict.fromkeys(hidden.split(",")))
sys.path.insert(0, script.rsplit("/", 1)[0])
runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", BENCHMARKS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_the_results_say(tables: ModuleType) -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.rendered(page) == page, "run python benchmarks/tables.py"


def test_every_table_stands_on_the_page_once(tables: ModuleType) -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    assert sorted(re.findall(r"<!-- table (\S+) -->", page)) == sorted(tables.TABLES)


def results() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (BENCHMARKS / "results").iterdir()}


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs_and_quick_writes_nothing(script: str) -> None:
    before = results()
    command = [sys.executable, str(BENCHMARKS / f"{script}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert results() == before


def gpu(out: Path, *options: str, hidden: tuple[str, ...] = HIDDEN) -> dict:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", WITHOUT, str(BENCHMARKS / "gpu.py"), ",".join(hidden)]
    done = subprocess.run(
        [*command, str(out), "--quick", *options], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    (file,) = out.iterdir()
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_gpu_script_runs_with_few_packages(tmp_path: Path) -> None:
    result = gpu(tmp_path / "out", hidden=(*HIDDEN, "h5py", "pytorch_lightning", "rich", "torchmetrics"))
    parts = {name: part for name, part in result.items() if name not in ("machine", "versions")}
    assert list(parts) == ["parity", "operators", "encoders", "epochs", "compiled_epochs"]
    for name, part in parts.items():
        assert part["rows"], name
        assert "note" not in part, part["note"]
    assert {row["same"] for row in parts["parity"]["rows"]} == {1.0}
    assert {"torch", "triton", "numpy", "buckets"} <= {row["backend"] for row in parts["parity"]["rows"]}


@pytest.mark.slow
def test_the_gpu_script_leaves_out_what_there_is_no_time_for(tmp_path: Path) -> None:
    result = gpu(tmp_path / "out", "--minutes", "0")
    assert result["epochs"] == {"rows": [], "note": "the time was over"}


@pytest.mark.slow
def test_the_gpu_script_trains_in_full(tmp_path: Path) -> None:
    names = [f"class_{i}" for i in range(40)]
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        points, labels = torch.rand(80, 1024, 3).numpy(), torch.arange(80).numpy() % 40
        write_hdf5_split(tmp_path / "data", split, points, labels, [str(i) for i in range(80)], names)
    # Torchmetrics tells what is installed from the packages' metadata, from which nothing can be hidden.
    result = gpu(tmp_path / "out", "--full", str(tmp_path / "data"), hidden=("pytorch3d", "timm"))
    (row,) = result["full"]["rows"]
    assert row["epochs"] == 1
    assert 0 <= row["mean_class_accuracy"] <= 1
