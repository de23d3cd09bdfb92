"""The README's code runs, and what it names exists."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import pointvit
from pointvit.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(page, code, id=f"{page.name}-{i}")
    for page in PAGES
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL))
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A folder with the files that the snippets name, made here."""
    folder = tmp_path_factory.mktemp("readme")
    image = pointvit.create_model("vit_small_patch14_dinov2", img_size=112)
    pointvit.save_checkpoint(image, folder / "any_2d_vit.safetensors", source="timm")
    points = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    rows = "\n".join(" ".join(map(str, row)) for row in points)
    (folder / "chair.off").write_text(
        f"OFF4 4 0\n{rows}\n3 0 1 2\n3 0 1 3\n3 0 2 3\n3 1 2 3\n", encoding="utf-8"
    )
    model = pointvit.create_model("pointvit_tiny", num_classes=3, depth=1)
    model.meta.class_names, model.meta.num_points = ["chair", "lamp", "table"], 1024
    pointvit.save(model, folder / "runs" / "chairs" / "model")
    return folder


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_snippet_runs(page: Path, code: str, workspace: Path, monkeypatch):
    monkeypatch.chdir(workspace)
    exec(compile(code, page.name, "exec"), {})


def test_there_are_snippets():
    assert len(SNIPPETS) >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_exist(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} names {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_configs_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    for line in re.findall(r"^pointvit .*$", text.replace("\\\n", " "), flags=re.MULTILINE):
        words = shlex.split(line)
        assert words[1] in COMMANDS, line
    for config in re.findall(r"configs/\w+\.yaml", text):
        assert (ROOT / config).is_file(), config


def test_nothing_is_left_to_fill_in():
    for page in PAGES:
        assert not re.search(r"[A-Z]+_TABLE|TODO|XXX", page.read_text(encoding="utf-8")), page.name
