"""Solids whose views are known: a slow ray caster for boxes and a sphere, its cameras written out by hand."""

import itertools

import torch
from torch import Tensor

FILL, DISTANCE, FAR = 0.9, 3.0, 0.2
# (right, up, towards the viewer) of the views of a z-up solid, in the order of the rig `ten`.
X, Y, Z = torch.eye(3, dtype=torch.float64)
VIEWS = ((X, Z, -Y), (Y, Z, X), (-X, Z, Y), (-Y, Z, -X), (X, Y, Z), (X, -Y, -Z))
# Coordinates of the z-up solid in the frame of another vertical axis.
OTHER_UP = {"z": (X, Y, Z), "y": (X, Z, -Y), "x": (Z, X, Y)}
# (lower corner, upper corner) of boxes; the L has a foot towards +x and a peg towards -y: no two views agree.
CUBE = (((-0.5, -0.5, -0.5), (0.5, 0.5, 0.5)),)
LETTER_L = (
    ((-0.5, -0.15, -0.6), (-0.2, 0.15, 0.6)),
    ((-0.2, -0.15, -0.6), (0.4, 0.15, -0.3)),
    ((-0.5, -0.55, 0.3), (-0.2, -0.15, 0.6)),
)
SPHERE = 0.7
SOLIDS = {"cube": CUBE, "letter_l": LETTER_L, "sphere": SPHERE}


def reference(solid, size: int, perspective: bool) -> Tensor:
    """-> (6, H, W): the depth images of the first six views of `ten`, 0 where nothing is hit."""
    middle = (2 * (torch.arange(size, dtype=torch.float64) + 0.5) / size - 1) / FILL
    up, right = torch.meshgrid(-middle, middle, indexing="ij")
    images = []
    for axes in VIEWS:
        frame = torch.stack(axes)
        zero, one = torch.zeros_like(up), torch.ones_like(up)
        if perspective:
            focal = (DISTANCE**2 - 1) ** 0.5
            origins = torch.stack([zero, zero, DISTANCE * one], -1) @ frame
            directions = torch.stack([right / focal, up / focal, -one], -1) @ frame
        else:
            origins = torch.stack([right, up, DISTANCE * one], -1) @ frame
            directions = torch.stack([zero, zero, -one], -1) @ frame
        depth = DISTANCE - hit(solid, origins, directions)
        images.append(torch.where(depth.isfinite(), FAR + (1 - FAR) * (depth + 1) / 2, 0.0))
    return torch.stack(images).float()


def hit(solid, origins: Tensor, directions: Tensor) -> Tensor:
    """(H, W, 3) twice -> (H, W): the distance to the first hit, infinite without one."""
    if isinstance(solid, float):
        a, b = (directions**2).sum(-1), (origins * directions).sum(-1)
        inside = b**2 - a * ((origins**2).sum(-1) - solid**2)
        return torch.where(inside >= 0, (-b - inside.clamp(min=0).sqrt()) / a, torch.inf)
    nearest = torch.full(origins.shape[:2], torch.inf, dtype=torch.float64)
    for low, high in solid:
        ends = torch.stack([(torch.tensor(end) - origins) / directions for end in (low, high)])
        enter, leave = ends.amin(0).amax(-1), ends.amax(0).amin(-1)
        nearest = torch.where((enter <= leave) & (enter < nearest), enter, nearest)
    return nearest


def mesh(solid) -> tuple[Tensor, Tensor]:
    """-> vertices (N, 3) and faces (F, 3), wound outwards."""
    if isinstance(solid, float):
        return fine_sphere(solid)
    vertices, faces = [], []
    quads = torch.tensor([[0, 2, 6, 4], [1, 5, 7, 3], [0, 4, 5, 1], [2, 3, 7, 6], [0, 1, 3, 2], [4, 6, 7, 5]])
    for i, box in enumerate(solid):
        # Corner 4z + 2y + x.
        vertices += [[box[x][0], box[y][1], box[z][2]] for z, y, x in itertools.product((0, 1), repeat=3)]
        faces += [quads[:, [0, 1, 2]] + 8 * i, quads[:, [0, 2, 3]] + 8 * i]
    return torch.tensor(vertices), torch.cat(faces)


def fine_sphere(radius: float, rings: int = 48) -> tuple[Tensor, Tensor]:
    polar = torch.linspace(0, torch.pi, rings + 1)[:, None].expand(-1, 2 * rings)
    around = torch.arange(2 * rings).expand(rings + 1, -1) * torch.pi / rings
    vertices = torch.stack([polar.sin() * around.cos(), polar.sin() * around.sin(), polar.cos()], -1)
    index = torch.arange(vertices[..., 0].numel()).view(rings + 1, 2 * rings)
    a, b = index[:-1], index[1:]
    c, d = b.roll(-1, 1), a.roll(-1, 1)
    faces = torch.cat([torch.stack([a, b, c], -1).view(-1, 3), torch.stack([a, c, d], -1).view(-1, 3)])
    return radius * vertices.reshape(-1, 3), faces


def cloud(solid, count: int = 8192) -> Tensor:
    """-> (count, 6): points uniform by area, and outward normals."""
    vertices, faces = mesh(solid)
    a, b, c = vertices[faces].unbind(1)
    normal = torch.linalg.cross(b - a, c - a)
    generator = torch.Generator().manual_seed(0)
    chosen = torch.multinomial(normal.norm(dim=1), count, replacement=True, generator=generator)
    root, along = torch.rand(2, count, 1, generator=generator)
    root = root.sqrt()
    points = (1 - root) * a[chosen] + root * (1 - along) * b[chosen] + root * along * c[chosen]
    return torch.cat([points, torch.nn.functional.normalize(normal[chosen], dim=1)], 1)


def turned(vectors: Tensor, up_axis: str) -> Tensor:
    """(N, 3) of a z-up solid -> (N, 3) with another vertical axis."""
    return vectors @ torch.stack(OTHER_UP[up_axis]).float().T


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """(..., H, W) twice -> (...): intersection over union of what is not background."""
    a, b = a > 0, b > 0
    return (a & b).sum((-2, -1)) / (a | b).sum((-2, -1))
