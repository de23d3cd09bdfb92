"""Arrays -> `Geometry`: NumPy and HDF5 files.

Only the array that is wanted is read, and its size is held against the file's before anything is allocated.
"""

import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any, Protocol

import h5py
import numpy as np
from numpy.lib import format as npy

from pointvit.data.geometry import Geometry, check_plausible, from_columns

POINT_ARRAYS = ("points", "xyz", "pos", "data", "arr_0")
SIDE_ARRAYS = ("normals", "colors")
MOST_COLUMNS = 9


class StoredArray(Protocol):
    """Shape and type of an array, and its first columns once they are wanted."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, key: Any) -> Any: ...


def read_npy(path: Path) -> Geometry:
    """One (P, 3 or more) array; `from_columns` says what the columns are."""
    with path.open("rb") as file:
        shape, dtype = _npy_header(file)
        if file.tell() + prod(shape) * dtype.itemsize > path.stat().st_size:
            raise ValueError(f"{path}: the header promises {shape} {dtype}, but the file is cut short.")
        file.seek(0)
        return _from_arrays(path, {"array": np.load(file, allow_pickle=False)})


def read_npz(path: Path) -> Geometry:
    """Of an archive the (P, 3 or more) array that fits or is named as in `POINT_ARRAYS`.

    Arrays `normals` and `colors` beside it are taken along.
    """
    with zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        return _from_arrays(path, {info.filename[:-4]: _Member(path, archive, info) for info in members})


def read_hdf5(path: Path) -> Geometry:
    """An HDF5 file with one (P, 3 or more) data set at its root, chosen as in `read_npz`."""
    with h5py.File(path) as file:
        return _from_arrays(path, {name: file[name] for name in file if _is_stored_here(file, name)})


class _Member:
    """One array of an archive, read when it is asked for."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._path, self._archive, self._info = path, archive, info
        with archive.open(info) as file:
            self.shape, self.dtype = _npy_header(file)
            promised = file.tell() + prod(self.shape) * self.dtype.itemsize
        if promised != info.file_size:
            raise ValueError(
                f"{path}: its array {info.filename} {self.shape} {self.dtype} needs {promised} bytes and has "
                f"{info.file_size}."
            )

    def __getitem__(self, key: Any) -> Any:
        check_plausible(self._path, prod(self.shape))
        with self._archive.open(self._info) as file:
            return npy.read_array(file, allow_pickle=False)[key]


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(file)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if min(shape, default=0) < 0:
        raise ValueError(f"expected an array's shape, found {shape}")
    return shape, dtype


def _is_stored_here(file: h5py.File, name: str) -> bool:
    """Whether it is a data set whose numbers lie in this file: a link may name any other."""
    link = file.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink) or file.get(name, getclass=True) is not h5py.Dataset:
        return False
    item = file[name]
    return not item.is_virtual and not item.external


def _from_arrays(path: Path, arrays: Mapping[str, StoredArray]) -> Geometry:
    def fits(name: str) -> bool:
        array = arrays[name]
        return len(array.shape or ()) == 2 and array.shape[1] >= 3 and array.dtype.kind in "fiu"

    fitting = [name for name in arrays if fits(name)]
    chosen = [name for name in POINT_ARRAYS if name in fitting][:1] or [
        name for name in fitting if name not in SIDE_ARRAYS
    ]
    if len(chosen) != 1:
        held = [f"{name} {array.shape} {array.dtype}" for name, array in list(arrays.items())[:8]]
        raise ValueError(
            f"{path}: expected one numeric array of shape (P, 3 or more) or its name 'points', found "
            f"{', '.join(held) or 'nothing'}."
        )
    geometry = from_columns(_columns(path, arrays[chosen[0]]))
    for name in SIDE_ARRAYS:
        if name in fitting and arrays[name].shape == geometry.points.shape:
            setattr(geometry, name, _columns(path, arrays[name]))
    return geometry


def _columns(path: Path, array: StoredArray) -> np.ndarray:
    """(P, C) -> (P, at most 9)."""
    rows, columns = array.shape
    check_plausible(path, rows * min(columns, MOST_COLUMNS))
    chunks = getattr(array, "chunks", None)
    if chunks is not None:
        check_plausible(path, prod(chunks))
    return np.asarray(array[:, :MOST_COLUMNS])
