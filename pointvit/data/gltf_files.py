"""glTF 2.0 and GLB -> `Geometry`: triangles and points of the scene, where its nodes put them.

The format: Khronos, glTF 2.0 Specification. It is parsed here and not by trimesh, which takes numbers that
are missing (sparse, Draco) for zeros, rounds colours to bytes and follows any URI. Only the file, and buffers
in its folder, are read; materials and textures are passed over. Messages lack the file's name: `read_points`
adds it.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from pointvit.data.geometry import Array, Geometry, check_indices, check_plausible

COMPONENTS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
HARMLESS = re.compile(r"KHR_(materials|texture|lights|mesh_quantization|xmp)|EXT_texture")
POINTS, TRIANGLES, STRIP, FAN = 0, 4, 5, 6
JSON_CHUNK, BIN_CHUNK = 0x4E4F534A, 0x004E4942
LARGEST_JSON = 2**28


@dataclass
class Part:
    """One primitive in the scene's frame."""

    points: Array
    triangles: NDArray[np.int64] | None
    normals: Array | None
    colors: NDArray[Any] | None


@dataclass
class Document:
    """The JSON of a file, and its buffers as they are asked for."""

    path: Path
    content: dict[str, Any]
    binary: bytes | None
    buffers: dict[int, bytes] = field(default_factory=dict)

    def item(self, kind: str, index: Any) -> dict[str, Any]:
        """`content[kind][index]`; a missing one, or -1, is damage."""
        items = self.content.get(kind, [])
        if type(index) is not int or not 0 <= index < len(items):
            raise ValueError(f"it names number {index!r} of {len(items)} {kind}")
        found = items[index]
        if not isinstance(found, dict):
            raise ValueError(f"number {index} of its {kind} is no description")
        return found


def read_gltf(path: Path) -> Geometry:
    """`.glb` and `.gltf`: the triangles of the scene, or its points where there are no triangles.

    Lines are passed over. Colours are kept where every primitive has them, normals those of points.
    """
    document = _open(path)
    required = document.content.get("extensionsRequired", [])
    if unknown := [name for name in required if not HARMLESS.match(name)]:
        raise ValueError(f"it needs {', '.join(unknown)[:80]}; export it without")
    parts = _parts(document)
    meshes = [part for part in parts if part.triangles is not None]
    return _join(path, meshes or parts)


def _open(path: Path) -> Document:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] != b"glTF":
            if size > LARGEST_JSON:
                raise ValueError(f"its {size:,} bytes are no JSON")
            file.seek(0)
            return Document(path, _json(file.read()), None)
        version, length = (int(number) for number in np.frombuffer(head[4:].ljust(8, b"\0"), "<u4"))
        if version != 2 or length != size:
            raise ValueError(f"expected version 2 and {length} bytes, found version {version} and {size}")
        chunks: dict[int, bytes] = {}
        while len(head := file.read(8)) == 8:
            count, kind = (int(number) for number in np.frombuffer(head, "<u4"))
            if count > size - file.tell() or (kind == JSON_CHUNK and count > LARGEST_JSON):
                raise ValueError(f"it has a chunk of {count} bytes, more than are there")
            chunks.setdefault(kind, file.read(count))
    return Document(path, _json(chunks.get(JSON_CHUNK, b"")), chunks.get(BIN_CHUNK))


def _json(text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its JSON is damaged ({str(error)[:80]})") from None
    if not isinstance(content, dict) or str(content.get("asset", {}).get("version", ""))[:2] != "2.":
        raise ValueError("expected JSON with the asset's version 2.0")
    return content


def _parts(document: Document) -> list[Part]:
    """The primitives of each node of the scene; nodes form a tree."""
    content = document.content
    nodes = content.get("nodes", [])
    if content.get("scenes"):
        roots = document.item("scenes", content.get("scene", 0)).get("nodes", [])
    else:
        below = {child for node in nodes for child in node.get("children", [])}
        roots = [index for index in range(len(nodes)) if index not in below]
    waiting, seen = [(index, np.eye(4)) for index in roots], set[int]()
    parts, numbers = list[Part](), 0
    while waiting:
        index, frame = waiting.pop()
        node = document.item("nodes", index)
        if index in seen:
            raise ValueError(f"node {index} hangs in two places or below itself; nodes must form a tree")
        seen.add(index)
        frame = frame @ _frame(node)
        waiting += [(child, frame) for child in node.get("children", [])]
        if "mesh" in node:
            for primitive in document.item("meshes", node["mesh"])["primitives"]:
                part = _part(document, primitive, frame)
                parts += [] if part is None else [part]
                # A mesh may stand in the scene any number of times.
                numbers += 0 if part is None else 3 * len(part.points) + 3 * len(_triangles_of(part))
                check_plausible(document.path, numbers, _stored(document))
    return parts


def _frame(node: dict[str, Any]) -> Array:
    """The node's matrix, or translation x rotation x scale, (4, 4)."""
    if "matrix" in node:
        return _floats(node["matrix"], 16).reshape(4, 4).T
    frame = np.eye(4)
    x, y, z, w = _floats(node.get("rotation", [0, 0, 0, 1]), 4)
    frame[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    frame[:3, :3] *= _floats(node.get("scale", [1, 1, 1]), 3)
    frame[:3, 3] = _floats(node.get("translation", [0, 0, 0]), 3)
    return frame


def _floats(values: Any, count: int) -> Array:
    numbers = isinstance(values, list) and all(type(value) in (int, float) for value in values)
    if not numbers or len(values) != count:
        raise ValueError(f"a node has {str(values)[:40]!r} where {count} numbers belong")
    return np.array([float(value) for value in values])


def _part(document: Document, primitive: dict[str, Any], frame: Array) -> Part | None:
    mode = primitive.get("mode", TRIANGLES)
    if mode not in (POINTS, TRIANGLES, STRIP, FAN):
        return None
    attributes = primitive["attributes"]
    points = _accessor(document, attributes["POSITION"], 3)
    triangles = None
    if mode != POINTS:
        corners = (
            _accessor(document, primitive["indices"], 1, whole=True)[:, 0].astype(np.int64)
            if "indices" in primitive
            else np.arange(len(points))
        )
        triangles = _triangles(corners, mode)
        check_indices(document.path, triangles, len(points))
    turn = frame[:3, :3]
    with np.errstate(all="ignore"):
        mirrored = np.linalg.det(turn) < 0
        points = points @ turn.T + frame[:3, 3]
    if triangles is not None and mirrored:
        triangles = triangles[:, ::-1]
    normals = None
    if mode == POINTS and "NORMAL" in attributes:
        normals = _turned(_accessor(document, attributes["NORMAL"], 3), turn)
    colors = _accessor(document, attributes["COLOR_0"], 3) if "COLOR_0" in attributes else None
    if any(each is not None and len(each) != len(points) for each in (normals, colors)):
        raise ValueError("a primitive has another number of normals or colours than of points")
    return Part(points, triangles, normals, colors)


def _triangles(corners: NDArray[np.int64], mode: int) -> NDArray[np.int64]:
    if mode == TRIANGLES:
        if len(corners) % 3:
            raise ValueError(f"{len(corners)} corners make no whole number of triangles")
        return corners.reshape(-1, 3)
    if mode == FAN:
        return np.stack([np.broadcast_to(corners[:1], len(corners[2:])), corners[1:-1], corners[2:]], axis=1)
    strip = np.stack([corners[:-2], corners[1:-1], corners[2:]], axis=1)
    strip[1::2] = strip[1::2, [1, 0, 2]]
    return strip


def _turned(normals: Array, turn: Array) -> Array:
    """Normals under the inverse transpose, of unit length; zero where there is no such thing."""
    # The cofactors are the inverse transpose but for a factor, and exist for every matrix.
    cofactors = np.stack([np.cross(turn[1], turn[2]), np.cross(turn[2], turn[0]), np.cross(turn[0], turn[1])])
    turned = normals @ cofactors.T * (np.sign(np.linalg.det(turn)) or 1)
    lengths = np.linalg.norm(turned, axis=1, keepdims=True)
    return np.divide(turned, lengths, out=np.zeros_like(turned), where=lengths > 0)


def _accessor(document: Document, index: Any, width: int, whole: bool = False) -> NDArray[Any]:
    """The accessor's first `width` numbers of each element: (count, width), float64, or whole as stored."""
    accessor = document.item("accessors", index)
    if "sparse" in accessor or "bufferView" not in accessor:
        raise ValueError(f"accessor {index} is sparse or compressed; export it without")
    view = document.item("bufferViews", accessor["bufferView"])
    kind = np.dtype(COMPONENTS[accessor["componentType"]])
    columns = WIDTHS[accessor["type"]]
    size = columns * kind.itemsize
    count, first, offset, length = (
        holder.get(key, 0)
        for holder, key in (
            (accessor, "count"), (accessor, "byteOffset"), (view, "byteOffset"), (view, "byteLength")
        )
    )  # fmt: skip
    stride = view.get("byteStride", size)
    if not all(type(number) is int and number >= 0 for number in (count, first, offset, length, stride)):
        raise ValueError(f"accessor {index} has a count or place that is none")
    data = _buffer(document, view["buffer"])
    end = first + (count - 1) * stride + size
    if stride < size or offset + length > len(data) or (count and end > length):
        raise ValueError(
            f"accessor {index} reaches beyond its buffer of {len(data)} bytes; the file is cut short"
        )
    if columns < width or (whole and kind.kind != "u"):
        raise ValueError(f"accessor {index} is {accessor['type']} of type {kind}, which does not fit its use")
    array = np.ndarray((count, columns), kind, data, offset + first, (stride, kind.itemsize))[:, :width]
    if whole:
        return array
    top = np.iinfo(kind).max if accessor.get("normalized") and kind.kind in "iu" else 1
    return np.maximum(array.astype(np.float64) / top, -np.inf if top == 1 else -1)


def _buffer(document: Document, index: Any) -> bytes:
    buffer = document.item("buffers", index)
    if index not in document.buffers:
        length = buffer["byteLength"]
        data = _bytes(document, buffer.get("uri"), index)
        if type(length) is not int or not 0 <= length <= len(data):
            raise ValueError(f"buffer {index} claims {str(length)[:40]} bytes and has {len(data)}")
        document.buffers[index] = data[:length]
    return document.buffers[index]


def _bytes(document: Document, uri: Any, index: int) -> bytes:
    if uri is None and index == 0 and document.binary is not None:
        return document.binary
    if not isinstance(uri, str):
        raise ValueError(f"buffer {index} is not in the file and has no name")
    if uri.startswith("data:"):
        head, _, text = uri.partition(",")
        if not head.endswith(";base64"):
            raise ValueError(f"buffer {index} is data of another kind than base64")
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            raise ValueError(f"buffer {index} is damaged base64") from None
    name = unquote(uri)
    folder = document.path.parent.resolve()
    file = (folder / name).resolve() if name.isprintable() else folder
    if not file.is_relative_to(folder) or ":" in name:
        raise ValueError(f"buffer {index} is to be read from {uri[:60]!r}, not in the file's folder")
    if not file.is_file():
        raise ValueError(f"its buffer {uri[:60]!r} is not a file beside it; copy them together")
    claimed = document.item("buffers", index)["byteLength"]
    with file.open("rb") as source:
        return source.read(min(claimed, file.stat().st_size) if type(claimed) is int and claimed >= 0 else 0)


def _stored(document: Document) -> int:
    return document.path.stat().st_size + sum(map(len, document.buffers.values()))


def _triangles_of(part: Part) -> NDArray[np.int64]:
    return np.empty((0, 3), dtype=np.int64) if part.triangles is None else part.triangles


def _join(path: Path, parts: list[Part]) -> Geometry:
    if not parts:
        raise ValueError(f"{path}: expected triangles or points in the scene, found none.")
    starts = np.cumsum([0, *(len(part.points) for part in parts[:-1])])
    triangles = np.concatenate(
        [_triangles_of(part) + start for part, start in zip(parts, starts, strict=True)]
    )
    normals = [part.normals for part in parts if part.normals is not None]
    colors = [part.colors for part in parts if part.colors is not None]
    return Geometry(
        points=np.concatenate([part.points for part in parts]),
        triangles=triangles if len(triangles) else None,
        normals=np.concatenate(normals) if len(normals) == len(parts) else None,
        colors=np.concatenate(colors) if len(colors) == len(parts) else None,
    )
