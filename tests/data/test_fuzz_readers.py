"""Any change to a file gives points or one sentence, never anything else."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from point_file_writers import WRITERS
from pointvit.data.io import READERS, read_points

# Where it hurts: bounds of integers, signs, separators, what is no number.
PIECES = [
    b"\0",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x80",
    b"-1",
    b"1e999",
    b"nan",
    b"9" * 20,
    b",",
    b";",
    b"\n",
    b"#",
    b'"',
]
# Derandomised: a run of the tests does not hang on luck.
QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


NUMBERS = st.floats(-1e30, 1e30) | st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 7_691_239.55])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("whole")
    for name, write in WRITERS.items():
        write(root / name)
    return {name: (root / name).read_bytes() for name in WRITERS}


@st.composite
def changes(draw) -> list[tuple[float, int, bytes]]:
    """Places as a share of the file, numbers of bytes taken out there, and what comes in for them."""
    piece = st.one_of(st.sampled_from(PIECES), st.binary(max_size=6))
    return draw(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8), piece), max_size=5))


def changed(data: bytes, edits: list[tuple[float, int, bytes]], end: float) -> bytes:
    for share, taken, piece in edits:
        # Squared: headers are short, and most of what can go wrong is in them.
        place = int(share**2 * len(data))
        data = data[:place] + piece + data[place + taken :]
    return data[: int(end * len(data))]


def check(path: Path) -> None:
    cloud, message = None, ""
    try:
        cloud = read_points(path, 100)
    except ValueError as error:
        message = str(error)
    if cloud is None:
        assert str(path) in message
        assert message.isprintable()
    else:
        assert 1 <= len(cloud.points) <= 100
        assert cloud.points.dtype == np.float32
        for part in (cloud.points, cloud.normals, cloud.colors):
            if part is not None:
                assert part.shape == cloud.points.shape
                assert np.isfinite(part).all()
        assert np.isfinite(cloud.offset).all()
        assert cloud.colors is None or (cloud.colors.min() >= 0 and cloud.colors.max() <= 1)


@pytest.mark.parametrize("name", WRITERS)
@QUICK
@given(edits=changes(), end=st.just(1.0) | st.floats(0, 1))
def test_changed_file(tmp_path, whole, name, edits, end):
    (tmp_path / name).write_bytes(changed(whole[name], edits, end))
    check(tmp_path / name)


@pytest.mark.parametrize("suffix", READERS)
@QUICK
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_any_content(tmp_path, suffix, content):
    (tmp_path / f"a{suffix}").write_bytes(content)
    check(tmp_path / f"a{suffix}")


@QUICK
@given(
    rows=st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=9),
    mark=st.sampled_from([" ", "\t", ",", ";", ", ", "  "]),
    names=st.booleans(),
)
def test_a_table_gives_its_finite_rows(tmp_path, rows, mark, names):
    lines = [mark.join("xyz")] if names else []
    lines += [mark.join(map(repr, row)) for row in rows]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    finite = [row for row in rows if np.abs(row).max() <= 1e30]
    if finite:
        cloud = read_points(tmp_path / "a.txt")
        assert cloud.num_dropped == len(rows) - len(finite)
        largest = np.abs(finite).max() + 1e-37  # below, float32 has zero
        np.testing.assert_allclose(cloud.points + cloud.offset, finite, rtol=0, atol=1e-7 * largest)
    else:
        with pytest.raises(ValueError, match="NaN or infinite"):
            read_points(tmp_path / "a.txt")
