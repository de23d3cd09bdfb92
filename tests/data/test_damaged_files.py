"""Damaged and hostile files: one sentence that names the file, in little time and memory.

All are read in one other process, so that a crash, a hang or a full memory fails the test and not the run.
"""

import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from point_file_writers import WRITERS

SECONDS = 5
MEGABYTES = 1024
# Reads each file of standard input and says how it went; a signal ends it where a file takes too long.
READER = f"""
import json, re, resource, signal, sys, warnings
from pathlib import Path
from pointvit.data.io import read_points
import laspy, lazrs
warnings.simplefilter("error")
def megabytes(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024
resource.setrlimit(resource.RLIMIT_AS, ((megabytes("VmSize") + {MEGABYTES}) * 2**20, -1))
for line in sys.stdin:
    path = json.loads(line)
    signal.alarm({SECONDS})
    try:
        answer = ["read", len(read_points(path).points)]
    except Exception as error:
        answer = [type(error).__name__, str(error)]
    signal.alarm(0)
    print(json.dumps([*answer, megabytes("VmHWM")]), flush=True)
"""
# Rows of text: without the last line there is one too few, where a number of rows is given.
ROWS = ("ascii.ply", "ascii.pcd", ".off", "ascii.stl", ".pts")
NO_NUMBER_OF_ROWS = (".obj", ".xyz", ".txt", ".csv")
XYZ = "property float x\nproperty float y\nproperty float z\n"
FACES = "element face {}\nproperty list uint int vertex_indices\n"
HUGE = 10**15
PICKLE = b"cos\nsystem\n(S'true'\ntR.".ljust(72)


def ply(body: bytes, vertices: int = 3, faces: str = "", kind: str = "binary_little_endian") -> bytes:
    return f"ply\nformat {kind} 1.0\nelement vertex {vertices}\n{XYZ}{faces}end_header\n".encode() + body


def pcd(body: bytes, points: object = 3, data: str = "binary", count: object = 1) -> bytes:
    head = f"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 {count}\nPOINTS {points}\nDATA {data}\n"
    return head.encode() + body


def gltf(**changes: object) -> bytes:
    """One triangle, with entries of the description replaced."""
    data = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], "<f4").tobytes()
    uri = "data:application/octet-stream;base64,AAAAAAAAAAAAAAAAAACAPwAAAAAAAAAAAAAAAAAAgD8AAAAA"
    content = {
        "asset": {"version": "2.0"},
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
        "accessors": [{"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"}],
        "bufferViews": [{"buffer": 0, "byteLength": len(data)}],
        "buffers": [{"byteLength": len(data), "uri": uri}],
    }
    return json.dumps(content | changes).encode()


def accessor(**changes: object) -> dict[str, object]:
    known = {"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"}
    return {"accessors": [known | changes]}


def buffer(**changes: object) -> dict[str, object]:
    return {"buffers": [{"byteLength": 36} | changes]}


def npy(shape: object, dtype: str = "<f4", body: bytes = b"") -> bytes:
    head = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + body


def zipped(path: Path, member: bytes, zeros: int = 0) -> None:
    import zipfile

    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("points.npy", member + bytes(zeros))


def hdf5_never_written(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("points", (10**12, 3), "f4", chunks=(1000, 3), compression="gzip")


def hdf5_packed_zeros(path: Path) -> None:
    packed = zlib.compress(bytes(4 * 3 * 10**6))
    with h5py.File(path, "w") as file:
        points = file.create_dataset("points", (200 * 10**6, 3), "f4", chunks=(10**6, 3), compression="gzip")
        for row in range(0, len(points), 10**6):
            points.id.write_direct_chunk((row, 0), packed)


def hdf5_large_chunk(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("points", (9, 3), "f4", chunks=(10**8, 3), maxshape=(None, 3), compression="gzip")


def hdf5_external_link(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["points"] = h5py.ExternalLink("/etc/passwd", "/points")


def hdf5_cycle(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["points"] = h5py.SoftLink("/xyz")
        file["xyz"] = h5py.SoftLink("/points")


def hdf5_external_numbers(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("points", (3, 3), "u1", external=[("/etc/passwd", 0, 9)])


def hdf5_virtual(path: Path) -> None:
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout((10**9, 3), "f4")
        layout[:] = h5py.VirtualSource(str(path), "points", (10**9, 3))
        file.create_virtual_dataset("points", layout)


def las(changes: dict[int, bytes], kind: str = "cloud.las") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        WRITERS[kind](path)
        data = bytearray(path.read_bytes())
        for place, value in changes.items():
            data[place : place + len(value)] = value
        path.write_bytes(data)

    return write


def sparse(head: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(head)
        os.truncate(path, 3 * 2**30)

    return write


def loop(path: Path) -> None:
    path.symlink_to(path)


NODES = [{"children": [1]}, {"children": [2]}, {"children": [0]}]
DAG = [{"children": [1, 1]}, {"children": [2, 2]}, {"mesh": 0}]
MANY = [{"mesh": 0} for _ in range(20_000)]
WIDE = {"nodes": MANY, "scenes": [{"nodes": list(range(len(MANY)))}]}
TRIANGLE = "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n"
MADE: dict[str, bytes | Callable[[Path], None]] = {
    "counts_huge.off": b"OFF\n999999999999 999999999999 0\n0 0 0\n",
    "counts_beyond_int64.off": b"OFF\n99999999999999999999 1 0\n0 0 0\n",
    "face_huge.off": (TRIANGLE + "999999999 0 1 2\n").encode(),
    "face_outside.off": (TRIANGLE + "3 0 1 99999999999\n").encode(),
    "face_negative.off": (TRIANGLE + "3 0 1 -1\n").encode(),
    "index_huge.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 99999999999999999999999\n",
    "index_digits.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 " + b"9" * 10_000 + b"\n",
    "index_negative.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf -1 -2 -9\n",
    "line_long.obj": b"v 0 0 " + b"0" * 2**21 + b"\n",
    "count_huge.ply": ply(bytes(36), HUGE),
    "count_digits.ply": ply(bytes(36), int("9" * 30)),
    "count_wrong.ply": ply(bytes(36), 4),
    "count_negative.ply": ply(bytes(36), -3),
    "count_ascii.ply": ply(b"0 0 0\n", HUGE, kind="ascii"),
    "element_empty.ply": ply(b"", 3).replace(b"element v", b"element x 999999999999\nelement v"),
    "faces_huge.ply": ply(bytes(40), 3, FACES.format(HUGE)),
    "list_huge.ply": ply(bytes(36) + struct.pack("<I3i", 2**32 - 1, 0, 1, 2), 3, FACES.format(1)),
    "list_second.ply": ply(bytes(36) + struct.pack("<IiI3i", 1, 0, 2**31, 0, 1, 2), 3, FACES.format(2)),
    "face_outside.ply": ply(bytes(36) + struct.pack("<I3i", 3, 0, 1, 3), 3, FACES.format(1)),
    "list_float.ply": ply(bytes(36), 3, FACES.format(1).replace("uint", "float")),
    "header_endless.ply": b"ply\n" + b"comment x\n" * 200_000,
    "vertex_twice.ply": ply(bytes(72), 3, f"element vertex 3\n{XYZ}"),
    "count_huge.pcd": pcd(bytes(36), HUGE),
    "count_wrong.pcd": pcd(bytes(36), 4),
    "count_digits.pcd": pcd(bytes(36), "9" * 40),
    "field_huge.pcd": pcd(bytes(36), 3, count=999_999),
    "field_beyond.pcd": pcd(bytes(36), 3, count="9" * 30),
    "text_wide.pcd": pcd(b"0 0 0\n", 1, "ascii", count=999_999),
    "packed_huge.pcd": pcd(struct.pack("<II", 2**32 - 1, 36), 3, "binary_compressed"),
    "unpacked_huge.pcd": pcd(struct.pack("<II", 9, 12 * 10**8) + bytes(9), 10**8, "binary_compressed"),
    "packed_wrong.pcd": pcd(struct.pack("<II", 9, 36) + b"\xe0\xff\xff" * 3, 3, "binary_compressed"),
    "packed_outside.pcd": pcd(struct.pack("<II", 4, 36) + b"\x00\x01\x3f\xff", 3, "binary_compressed"),
    "data_unknown.pcd": pcd(bytes(36), 3, "zip"),
    "count_huge.stl": bytes(80) + struct.pack("<I", 2**32 - 1) + bytes(50),
    "count_zero.stl": bytes(84),
    "facet_short.stl": b"solid a\nfacet normal 0 0 1\nvertex 0 0 0\nvertex 1 0 0\nendfacet\nendsolid a\n",
    "shape_huge.npy": npy((HUGE, 3)),
    "shape_beyond.npy": npy((10**30, 3)),
    "shape_negative.npy": npy((-5, 3)),
    "shape_text.npy": npy("()"),
    "header_deep.npy": b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000,
    "object.npy": npy((3, 3), "|O", PICKLE),
    "no_numbers.npy": npy((0, 3)),
    "bomb.npz": lambda path: zipped(path, npy((17 * 10**6, 3), "|u1"), 17 * 3 * 10**6),
    "claim_huge.npz": lambda path: zipped(path, npy((HUGE, 3))),
    "claim_wrong.npz": lambda path: zipped(path, npy((4, 3)), 36),
    "object.npz": lambda path: zipped(path, npy((3, 3), "|O", PICKLE)),
    "bomb.h5": hdf5_never_written,
    "zeros.h5": hdf5_packed_zeros,
    "chunk.h5": hdf5_large_chunk,
    "external.h5": hdf5_external_link,
    "cycle.h5": hdf5_cycle,
    "external_numbers.h5": hdf5_external_numbers,
    "virtual.h5": hdf5_virtual,
    "count_huge.las": las({247: struct.pack("<Q", HUGE)}),
    "count_wrong.las": las({247: struct.pack("<Q", 51)}),
    "vlrs_huge.las": las({100: b"\xff\xff\xff\xff"}),
    "start_huge.las": las({96: b"\xff\xff\xff\xff"}),
    "row_zero.las": las({105: b"\0\0"}),
    "row_wrong.las": las({105: b"\x15\0"}),
    "format.las": las({104: b"\x3f"}),
    "version.las": las({25: b"\x09"}),
    "evlrs_huge.las": las({235: struct.pack("<QI", 400, 2**32 - 1)}),
    "scale_nan.las": las({131: struct.pack("<3d", *[np.nan] * 3)}),
    "count_huge.laz": las({247: struct.pack("<Q", HUGE)}, "cloud.laz"),
    "count_bomb.laz": las({247: struct.pack("<Q", 10**8)}, "cloud.laz"),
    "count_wrong.laz": las({247: struct.pack("<Q", 10**5)}, "cloud.laz"),
    "chunks_huge.laz": las({475: struct.pack("<q", 480)}, "cloud.laz"),
    "chunks_outside.laz": las({475: struct.pack("<q", 2**40)}, "cloud.laz"),
    "nodes_cyclic.gltf": gltf(nodes=NODES),
    "nodes_twice.gltf": gltf(nodes=DAG),
    "node_outside.gltf": gltf(nodes=[{"children": [7]}]),
    "node_negative.gltf": gltf(nodes=[{"mesh": -1}]),
    "scale_text.gltf": gltf(nodes=[{"mesh": 0, "scale": ["1", 1, 1]}]),
    "move_infinite.gltf": gltf(nodes=[{"mesh": 0, "translation": [1e999, 0, 0]}]),
    "move_digits.gltf": gltf(nodes=[{"mesh": 0, "translation": [10**400, 0, 0]}]),
    "count_huge.gltf": gltf(**accessor(count=HUGE)),
    "count_negative.gltf": gltf(**accessor(count=-3)),
    "count_text.gltf": gltf(**accessor(count="3")),
    "count_missing.gltf": gltf(**accessor(count=0)),
    "offset_huge.gltf": gltf(**accessor(byteOffset=HUGE)),
    "sparse.gltf": gltf(**accessor(sparse={"count": HUGE})),
    "kind_unknown.gltf": gltf(**accessor(componentType=9)),
    "shape_unknown.gltf": gltf(**accessor(type="VEC9")),
    "stride_zero.gltf": gltf(
        **accessor(count=10**9), bufferViews=[{"buffer": 0, "byteLength": 36, "byteStride": 0}]
    ),
    "view_huge.gltf": gltf(bufferViews=[{"buffer": 0, "byteLength": HUGE}]),
    "buffer_claim.gltf": gltf(**buffer(byteLength=HUGE, uri="data:;base64,AAAA")),
    "buffer_large.gltf": gltf(**buffer(byteLength=36, uri="data:;base64," + "A" * 8_000_001)),
    "buffer_damaged.gltf": gltf(**buffer(uri="data:;base64,A*=")),
    "buffer_plain.gltf": gltf(**buffer(uri="data:,abc")),
    "buffer_missing.gltf": gltf(**buffer(uri="nowhere.bin")),
    "buffer_device.gltf": gltf(**buffer(uri="/dev/zero")),
    "buffer_outside.gltf": gltf(**buffer(uri="../../../../../../etc/passwd")),
    "buffer_escaped.gltf": gltf(**buffer(uri="%2e%2e/%2e%2e/etc/passwd")),
    "buffer_web.gltf": gltf(**buffer(uri="http://localhost:1/a.bin")),
    "buffer_itself.gltf": gltf(**buffer(byteLength=HUGE, uri="buffer_itself.gltf")),
    "buffer_folder.gltf": gltf(**buffer(uri=".")),
    "buffer_nul.gltf": gltf(**buffer(uri="a\0b")),
    "buffer_none.gltf": gltf(**buffer()),
    "draco.gltf": gltf(extensionsRequired=["KHR_draco_mesh_compression"]),
    "version.gltf": gltf(asset={"version": "1.0"}),
    "deep.gltf": b"[" * 200_000,
    "list.gltf": b"[1, 2]",
    "meshes_text.gltf": gltf(meshes="abc"),
    "scene_empty.gltf": gltf(scenes=[{}]),
    "copies.gltf": gltf(**WIDE, **accessor(count=3000, type="SCALAR", componentType=5121)),
    "chunk_huge.glb": b"glTF" + struct.pack("<IIII", 2, 32, 2**32 - 1, 0x4E4F534A) + bytes(12),
    "length.glb": b"glTF" + struct.pack("<II", 2, 2**31),
    "decimal_commas.csv": b"1,5;2,5;3,5\n2,5;3,5;4,5\n",
    "decimal_commas.txt": b"1,5\t2,5\t3,5\n",
    "utf16.txt": "1 2 3\n".encode("utf-16"),
    "line_long.txt": b"1 2 3 " + b"7" * 2**21,
    "empty_cell.csv": b"x,y,z\n1,,3\n",
    "infinite.xyz": b"inf inf inf\nnan nan nan\n1e999 0 0\n",
    "count_wrong.pts": b"9\n1 2 3\n4 5 6\n",
    "count_short.pts": b"1\n1 2 3\n4 5 6\n",
    "count_huge.pts": f"{HUGE}\n1 2 3\n".encode(),
    "folder.ply": lambda path: path.mkdir(),
    "pipe.ply": lambda path: os.mkfifo(path),
    "pipe.txt": lambda path: os.mkfifo(path),
    "loop.off": loop,
    "dangling.off": lambda path: path.symlink_to("nowhere.off"),
    "device.txt": lambda path: path.symlink_to("/dev/zero"),
    "photo.ply": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)),
    "photo.txt": b"\xff\xd8\xff\xe0" + bytes(range(1, 256)) * 9,
    "page.obj": b"<!DOCTYPE html><html>404</html>\n",
    "page.las": b"<!DOCTYPE html><html>404</html>\n" * 20,
    "noending": b"1 2 3\n",
    "a\nb\x1b[31m.off": b"damaged",
    "a'\"<b>&%s{0}$(id).ply": b"damaged",
    os.fsdecode(b"\xff\xfe.pcd"): b"damaged",
    "\u202egnp.stl": b"damaged",
    "-.npy": b"damaged",
}  # fmt: skip
ODD_PATHS = ["a" * 300 + ".off", "a\0b.off", "x/" * 200 + "a.off", "", "."]
HEADS = {
    ".off": TRIANGLE.encode(),
    ".obj": b"v 0 0 0\n",
    ".ply": ply(bytes(36), 4, kind="ascii"),
    ".stl": b"solid a\n",
    ".pcd": pcd(b"", 3, "ascii"),
    ".glb": b"glTF" + struct.pack("<IIII", 2, 3 * 2**30, 2**31, 0x4E4F534A),
    ".gltf": b"{",
    ".las": b"LASF",
    ".laz": b"LASF",
    ".xyz": b"1 2 3\n",
    ".pts": b"",
    ".txt": b"1 2 3\n4 5 6\n",
    ".csv": b"x,y,z\n1,2,3\n",
    ".npy": npy((3, 3), "|O"),
    ".npz": b"PK\x03\x04",
    ".h5": b"\x89HDF\r\n\x1a\n",
}
SPARSE = {f"sparse{suffix}": sparse(head) for suffix, head in HEADS.items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, tuple[str, str | int]]:
    """Name of each file -> `("read", number of points)` or the kind and text of what was raised."""
    root = tmp_path_factory.mktemp("damaged")
    paths = [str(root / name) for name in (*MADE, *SPARSE)]
    for name, content in (MADE | SPARSE).items():
        content(root / name) if callable(content) else (root / name).write_bytes(content)
    for name, write in WRITERS.items():
        write(root / name)
        paths += _damage(root / name)
    paths += [path if path in ("", ".") else str(root / path) for path in ODD_PATHS]
    return dict(zip([path.removeprefix(f"{root}/") for path in paths], _read_all(paths), strict=True))


def _damage(whole: Path) -> list[str]:
    """Beside the file: copies cut at five places, and copies with one to five bytes changed."""
    data, rng = whole.read_bytes(), np.random.default_rng(zlib.crc32(whole.name.encode()))
    end = data.rstrip().rfind(b"\n") if whole.name.endswith(ROWS) else len(data) - 1
    copies = {f"cut{size}": data[:size] for size in (0, 3, len(data) // 10, len(data) // 2, end)}
    for number in range(3):
        changed = np.frombuffer(data, np.uint8).copy()
        changed[rng.integers(0, min(len(data), 10 ** (number + 2)), 1 + 2 * number)] ^= np.uint8(1 << number)
        copies[f"changed{number}"] = changed.tobytes()
    files = []
    for kind, content in copies.items():
        file = whole.with_name(f"{kind}_{whole.name}")
        file.write_bytes(content)
        files.append(str(file))
    return files


def _read_all(paths: list[str]) -> list[tuple[str, str | int]]:
    """What the reading process says of each; it is started again behind a file that ends it."""
    root = Path(__file__).parents[2]
    found: list[tuple[str, str | int]] = []
    while len(found) < len(paths):
        todo = "".join(json.dumps(path) + "\n" for path in paths[len(found) :])
        done = subprocess.run(
            [sys.executable, "-c", READER], input=todo, capture_output=True, text=True, cwd=root
        )
        for line in done.stdout.splitlines():
            kind, text, megabytes = json.loads(line)
            found.append(("memory", megabytes) if megabytes > MEGABYTES else (kind, text))
        if done.returncode:
            found.append(("ended", f"{done.returncode}: {done.stderr[-300:]}"))
    return found


def test_there_are_enough(outcomes):
    assert len(outcomes) > 400


def test_each_is_refused_with_one_sentence_that_names_the_file(outcomes):
    wrong = {}
    for name, (kind, text) in outcomes.items():
        shown = name if name.isprintable() else ascii(name)[1:-1]
        sentence = isinstance(text, str) and shown in text and text.isprintable() and len(text) < 1000
        if kind not in ("ValueError", "FileNotFoundError") or not sentence or "more memory" in text:
            wrong[name] = kind, text
    # What is left of these is a file again, or one whose numbers differ.
    may_be_read = {
        name
        for name in wrong
        if name.startswith("changed") or (name.startswith("cut") and name.endswith(NO_NUMBER_OF_ROWS))
    }
    allowed = {name for name in may_be_read if wrong[name][0] == "read"} | READABLE
    assert {name: wrong[name] for name in wrong.keys() - allowed} == {}


# Odd, but nothing is wrong with them.
READABLE = {"buffer_large.gltf"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("decimal_commas.csv", "decimal commas"),
        ("decimal_commas.txt", "decimal commas"),
        ("pipe.ply", "a pipe or a device"),
        ("device.txt", "a pipe or a device"),
        ("folder.ply", "a folder"),
        ("bomb.npz", "claim to hold 51,000,000 numbers"),
        ("bomb.h5", "claim to hold 3,000,000,000,000 numbers"),
        ("zeros.h5", "claim to hold 600,000,000 numbers"),
        ("chunk.h5", "claim to hold 300,000,000 numbers"),
        ("external.h5", "found nothing"),
        ("external_numbers.h5", "found nothing"),
        ("virtual.h5", "found nothing"),
        ("nodes_cyclic.gltf", "must form a tree"),
        ("nodes_twice.gltf", "must form a tree"),
        ("buffer_outside.gltf", "not in the file's folder"),
        ("buffer_escaped.gltf", "not in the file's folder"),
        ("buffer_device.gltf", "not in the file's folder"),
        ("buffer_web.gltf", "not in the file's folder"),
        ("draco.gltf", "export it without"),
        ("object.npy", "allow_pickle"),
        ("infinite.xyz", "all 3 points are NaN or infinite"),
        ("count_huge.laz", "claim to hold"),
        ("sparse.xyz", "line 2"),
    ],
)
def test_the_sentence_says_what_is_wrong(outcomes, name, says):
    assert says in outcomes[name][1]
