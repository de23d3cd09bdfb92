import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "docs" / "images" / "views.py"


@pytest.mark.slow
def test_the_pages_picture_is_made_anew(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "views.png")], check=True)
    assert (tmp_path / "views.png").stat().st_size < 150_000
    with Image.open(tmp_path / "views.png") as made, Image.open(SCRIPT.with_name("views.png")) as shown:
        assert made.size == shown.size
