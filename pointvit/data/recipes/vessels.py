"""Vessels: bottle, bowl, cup, vase."""

import numpy as np

from pointvit.data.primitives import (
    Rng,
    Triangles,
    cylinder,
    ellipsoid,
    handle,
    revolve,
    smooth_curve,
    tube,
    turn,
)


def bottle(g: Rng) -> list[Triangles]:
    """Body, shoulder, neck and cap, round or square."""
    radius, neck = g.uniform(0.15, 0.32), g.uniform(0.04, 0.11)
    shoulder, start = g.uniform(0.45, 0.75), g.uniform(0.72, 0.9)
    waist = radius * g.uniform(0.75, 1.05)
    knots = [
        (radius * 0.9, 0),
        (radius, 0.05),
        (waist, shoulder * 0.5),
        (radius, shoulder),
        (neck, start),
        (neck, 1),
    ]
    sides = int(g.choice([24, 24, 24, 4, 6]))
    parts = [revolve(smooth_curve(knots), sides=sides), cylinder(radius * 0.9, 0.01, sides=sides)]
    if g.random() < 0.6:
        parts.append(cylinder(neck * g.uniform(1.05, 1.5), g.uniform(0.05, 0.15), (0, 0, 0.95), sides=14))
    if g.random() < 0.15:
        parts.append(handle(radius * 0.8, shoulder, start, 0.12))
    return parts


def bowl(g: Rng) -> list[Triangles]:
    """Open dish, round or polygonal, perhaps on a foot."""
    depth, base, wall = g.uniform(0.25, 0.9), g.uniform(0.15, 0.6), g.uniform(0.02, 0.1)
    belly = g.uniform(0.55, 1.05)
    outer = smooth_curve([(base, 0), (base + (1 - base) * belly * 0.8, depth * 0.4), (1, depth)])
    inner = (outer * [1, 1 - wall] + [-wall, wall * depth])[::-1]
    sides = int(g.choice([28, 28, 28, 4, 6, 8]))
    profile = np.concatenate([[(0, 0)], outer, np.maximum(inner, 0), [(0, wall * depth)]])
    parts = [revolve(profile, sides=sides)]
    if g.random() < 0.4:
        foot = g.uniform(0.08, 0.3)
        parts.append(
            cylinder(base * g.uniform(0.6, 1.2), foot, (0, 0, -foot), top=g.uniform(0.5, 1), sides=sides)
        )
    return parts


def cup(g: Rng) -> list[Triangles]:
    """Open vessel about as high as wide: mug, tumbler, tea cup on a saucer, or stemmed glass."""
    bottom, top, belly = g.uniform(0.25, 0.45), g.uniform(0.35, 0.55), g.uniform(-0.04, 0.12)
    outer = smooth_curve([(bottom, 0), ((bottom + top) / 2 + belly, g.uniform(0.4, 0.6)), (top, 1)])
    profile = np.concatenate([[(0, 0)], outer, (outer * [0.92, 0.95] + [0, 0.05])[::-1], [(0, 0.05)]])
    parts = [revolve(profile)]
    kind = g.integers(8)
    if kind < 5:
        low, high = g.uniform(0.1, 0.3), g.uniform(0.65, 0.92)
        parts.append(handle((bottom + top) / 2, low, high, g.uniform(0.2, 0.4)))
    if kind in (0, 1):
        parts.append(cylinder(0.5, 0.05, (0, 0, -0.06), top=g.uniform(1.2, 1.6)))
    if kind == 7:
        stem = g.uniform(0.3, 0.8)
        parts += [
            cylinder(0.05, stem, (0, 0, -stem), sides=10),
            cylinder(g.uniform(0.3, 0.45), 0.04, (0, 0, -stem)),
        ]
    return parts


def vase(g: Rng) -> list[Triangles]:
    """Tall open vessel with a free profile, round, polygonal or twisted, perhaps with handles or stems."""
    radii = g.uniform(0.12, 0.4, size=int(g.integers(3, 6)))
    radii[-1] = g.uniform(0.1, 0.35)
    outer = smooth_curve(np.stack([radii, np.linspace(0, 1, len(radii))], 1))
    outer[:, 0] = np.maximum(outer[:, 0], 0.05)
    sides = int(g.choice([24, 24, 24, 5, 8]))
    parts = [revolve(outer, sides=sides, twist=g.uniform(0, 1.5)), cylinder(radii[0], 0.02, sides=sides)]
    if g.random() < 0.25:
        ear = handle(radii.mean(), g.uniform(0.3, 0.5), g.uniform(0.7, 0.9), 0.2)
        parts += [ear, turn(ear, "z", 180)]
    if g.random() < 0.2:
        tips = g.normal(0, 0.2, size=(4, 2))
        parts += [tube([(0, 0, 0.6), (x, y, 1.4)], 0.012, sides=4) for x, y in tips]
        parts += [ellipsoid((0.07, 0.07, 0.05), (x, y, 1.4)) for x, y in tips]
    return parts
