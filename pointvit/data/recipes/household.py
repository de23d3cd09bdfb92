"""What stands about a house: guitar, lamp, laptop, monitor, stairs."""

import numpy as np

from pointvit.data.primitives import (
    Rng,
    Triangles,
    box,
    cylinder,
    ellipsoid,
    move,
    prism,
    revolve,
    sheet,
    smooth_curve,
    tube,
    turn,
)


def guitar(g: Rng) -> list[Triangles]:
    """Two-lobed body, neck and head, standing on its end."""
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    waist, upper = g.uniform(0.1, 0.17), g.uniform(0.02, 0.1)
    reach = (
        0.36 - waist * np.cos(2 * angle) - upper * np.sin(angle) + g.uniform(-0.04, 0.04) * np.sin(3 * angle)
    )
    if g.random() < 0.35:
        horn = g.uniform(0.1, 0.25)
        reach += horn * (
            np.exp(-(((angle - 0.9) / 0.3) ** 2)) + g.uniform(0, 1) * np.exp(-(((angle - 2.2) / 0.3) ** 2))
        )
    outline = np.stack(
        [reach * np.cos(angle) * g.uniform(0.7, 0.9), reach * np.sin(angle) * g.uniform(1.0, 1.4)], 1
    )
    depth, neck, head = g.uniform(0.05, 0.22), g.uniform(0.6, 1.0), g.uniform(0.15, 0.3)
    top, front = outline[:, 1].max(), -depth / 2
    parts = [prism(outline, depth)]
    parts.append(box((0.08, 0.05, neck + 0.2), (0, front, top - 0.2), top=(0.75, 1)))
    parts.append(
        box(
            (0.12, 0.04, head),
            (0, front, top + neck),
            top=(g.uniform(0.7, 1.5), 1),
            lean=(0, g.uniform(0, 0.08)),
        )
    )
    parts += [
        box((0.05, 0.02, 0.02), (x, front, top + neck + z * head))
        for x in (-0.1, 0.1)
        for z in (0.2, 0.5, 0.8)
    ]
    parts.append(box((0.2, 0.03, 0.04), (0, front, outline[:, 1].min() * 0.5)))
    return parts


def lamp(g: Rng) -> list[Triangles]:
    """Base, pole and shade: table, floor or jointed desk lamp."""
    base, height, wide = g.uniform(0.12, 0.3), g.uniform(0.5, 1.6), g.uniform(0.15, 0.4)
    parts = [cylinder(base, g.uniform(0.02, 0.12), top=g.uniform(0.4, 1), sides=int(g.choice([4, 20])))]
    tall, ratio = g.uniform(0.15, 0.45), g.uniform(0.2, 1.0)
    shade = revolve([(wide, 0), (wide * ratio, tall)], sides=int(g.choice([20, 20, 20, 4, 6])))
    if g.random() < 0.25:
        shade = ellipsoid((wide, wide, wide * g.uniform(0.6, 1.1)), (0, 0, wide * 0.6))
    style = g.integers(3)
    if style == 0:
        parts += [
            tube([(0, 0, 0), (0, 0, height)], g.uniform(0.015, 0.04)),
            move(shade, (0, 0, height - tall / 2)),
        ]
    elif style == 1:
        belly = smooth_curve(
            [(0.06, 0), (g.uniform(0.08, 0.25), height * 0.25), (0.05, height * 0.6), (0.03, height * 0.8)]
        )
        parts += [revolve(belly, sides=16), move(shade, (0, 0, height * 0.75))]
    else:
        elbow, end = (-g.uniform(0.1, 0.5), 0, height * 0.6), (g.uniform(0.1, 0.5), 0, height)
        joints = np.array([(0, 0, 0), elbow, end])
        parts.append(tube(joints if g.random() < 0.5 else smooth_curve(joints), 0.025))
        parts.append(turn(shade - [0, 0, tall], "y", -g.uniform(0, 60)) + np.array(end))
    return parts


def laptop(g: Rng) -> list[Triangles]:
    """Flat base with keys and a screen hinged at its rear edge."""
    width, depth, thick = g.uniform(1.1, 1.6), g.uniform(0.75, 1.05), g.uniform(0.03, 0.1)
    lid = move(box((width, depth * g.uniform(0.85, 1.1), thick * 0.6), (0, 0, 0)), (0, -depth / 2, 0))
    parts = [box((width, depth, thick), top=(1, g.uniform(0.95, 1)))]
    parts.append(move(turn(lid, "x", -g.uniform(60, 145)), (0, depth / 2, thick)))
    parts.append(box((width * 0.3, depth * 0.25, 0.01), (0, -depth * 0.3, thick)))
    rows = int(g.integers(2, 6))
    parts += [
        box((width * 0.85, 0.3 * depth / rows, 0.02), (0, (0.4 * i / rows) * depth, thick))
        for i in range(rows)
    ]
    return parts


def monitor(g: Rng) -> list[Triangles]:
    """Flat, curved or tube screen on a foot."""
    width, height, thick, rise = (
        g.uniform(0.8, 1.6),
        g.uniform(0.55, 0.95),
        g.uniform(0.03, 0.12),
        g.uniform(0.05, 0.4),
    )
    style = g.integers(4)
    if style < 2:
        parts = [box((width, thick, height), (0, 0, rise))]
    elif style == 2:
        x, bend = np.linspace(-0.5, 0.5, 9) * width, g.uniform(0.2, 0.7)
        front = np.stack([x, -bend * x**2, np.full(9, rise)], 1)
        parts = [sheet([front, move(front, (0, 0, height))]), sheet([front, move(front, (0, thick, 0))])]
        parts.append(sheet([move(front, (0, thick, 0)), move(front, (0, thick, height))]))
    else:
        tube_depth = g.uniform(0.3, 0.8)
        back = turn(box((width, height, tube_depth), top=(0.5, 0.5)), "x", -90)
        parts = [box((width, 0.1, height), (0, 0, rise)), move(back, (0, 0.05, rise + height / 2))]
    if g.random() < 0.25:
        parts += [box((0.05, 0.4, 0.03), (x * width, 0, 0)) for x in (-0.35, 0.35)]
        parts += [box((0.04, 0.04, rise), (x * width, 0, 0)) for x in (-0.35, 0.35)]
    else:
        parts.append(box((g.uniform(0.06, 0.3), 0.05, rise + height * 0.4), (0, thick, 0)))
        spread = g.uniform(0.2, 0.4)
        round_foot = g.random() < 0.5
        parts.append(cylinder(spread, 0.03) if round_foot else box((2 * spread, spread * 1.2, 0.03)))
    if g.random() < 0.2:
        parts += [box((0.12, 0.15, height * 0.8), (x * width, 0, rise)) for x in (-0.58, 0.58)]
    return parts


def stairs(g: Rng) -> list[Triangles]:
    """Straight or winding flight, solid or open, perhaps with a handrail."""
    steps, width, run, rise = (
        int(g.integers(4, 15)),
        g.uniform(0.6, 1.6),
        g.uniform(0.2, 0.34),
        g.uniform(0.14, 0.26),
    )
    solid, turning = g.random() < 0.5, g.random() < 0.3
    sweep = g.uniform(90, 300) / steps if turning else 0.0
    inner = width * g.uniform(0.6, 0.8)
    parts = []
    for i in range(steps):
        height = (i + 1) * rise if solid else 0.05
        tread = box(
            (width, run * 1.1, height),
            (inner if turning else 0, 0 if turning else i * run, (i + 1) * rise - height),
        )
        parts.append(turn(tread, "z", sweep * i))
    if turning and not solid:
        parts.append(cylinder(0.08, steps * rise + 0.8))
    if not turning and not solid:
        ends = np.array([(0, -run / 2, 0), (0, (steps - 0.5) * run, steps * rise)])
        parts += [
            sheet([move(ends, (x * width, 0, 0)), move(ends, (x * width, 0, -rise))]) for x in (-0.5, 0.5)
        ]
    if not turning and g.random() < 0.5:
        ends = np.array([(0, 0, rise + 0.8), (0, (steps - 1) * run, steps * rise + 0.8)])
        for x in (-0.5, 0.5) if g.random() < 0.6 else (0.5,):
            parts.append(tube(move(ends, (x * width, 0, 0)), 0.03))
            posts = [(x * width, i * run, (i + 1) * rise) for i in range(0, steps, 2)]
            parts += [tube([post, (post[0], post[1], post[2] + 0.8)], 0.02, sides=4) for post in posts]
    return parts
