"""Vehicles: airplane, car."""

import numpy as np

from pointvit.data.primitives import (
    Rng,
    Triangles,
    box,
    cylinder,
    move,
    revolve,
    smooth_curve,
    turn,
)


def airplane(g: Rng) -> list[Triangles]:
    """Fuselage along x, swept wings, tail, jets or a propeller."""
    radius, span, chord, sweep = (
        g.uniform(0.05, 0.11),
        g.uniform(0.5, 1.1),
        g.uniform(0.15, 0.45),
        g.uniform(0, 0.5),
    )
    nose, tail = g.uniform(0.03, 0.25), g.uniform(0.15, 0.5)
    profile = smooth_curve([(0, -1), (radius * 0.4, -0.97), (radius, tail - 1), (radius, 1 - nose), (0, 1)])
    parts = [turn(revolve(np.maximum(profile, [0, -1]), sides=12), "y", 90)]
    at, height, rise = g.uniform(-0.2, 0.3), g.choice([-0.7, 0, 0.8]) * radius, g.uniform(0, 15)
    taper = g.uniform(0.15, 0.7)
    jets = int(g.integers(0, 3))
    for side in (-1, 1):
        wing = box((chord, 0.03, span), top=(taper, 0.5), lean=(-sweep, 0))
        parts.append(move(turn(wing, "x", -side * (90 - rise)), (at, 0, height)))
        fin = box((0.2, 0.02, span * 0.35), top=(0.6, 1), lean=(-0.12, 0))
        parts.append(move(turn(fin, "x", -side * 85), (-0.85, 0, radius * 0.3)))
        for jet in range(jets):
            along = (0.3 + 0.25 * jet) * span
            pod = turn(cylinder(radius * 0.5, 0.25, (0, 0, -0.05), top=0.8, sides=10), "y", 90)
            parts.append(move(pod, (at - sweep * along / span, side * along, height - radius * 0.5)))
    if jets == 0:
        parts.append(box((0.02, 0.04, g.uniform(0.2, 0.5)), (1.0, 0, -0.15)))
    return [*parts, box((0.25, 0.02, g.uniform(0.2, 0.4)), (-0.85, 0, 0), top=(0.5, 1), lean=(-0.12, 0))]


def car(g: Rng) -> list[Triangles]:
    """Body along x, cabin, four wheels; saloon, hatchback, van or pickup by the cabin's place and length."""
    length, width, body = 2.0, g.uniform(0.7, 1.0), g.uniform(0.25, 0.5)
    wheel, cabin = g.uniform(0.16, 0.28), g.uniform(0.25, 0.5)
    lower = turn(box((body, width, length), (0, 0, -length / 2), top=(g.uniform(0.6, 1), 0.95)), "y", 90)
    size = g.uniform(0.5, 1.75)
    at = g.uniform(-1, 1) * (length - size) / 2 * 0.8
    slope = (g.uniform(0.5, 0.95), g.uniform(0.75, 0.98))
    parts = [
        move(lower, (0, 0, wheel + body / 2)),
        box((size, width * 0.95, cabin), (at, 0, wheel + body), slope),
    ]
    for x in (-g.uniform(0.55, 0.75), g.uniform(0.55, 0.75)):
        for side in (-1, 1):
            disc = turn(cylinder(wheel, 0.14, (0, 0, -0.07), sides=16), "x", 90)
            parts.append(move(disc, (x, side * width * 0.48, wheel)))
    if g.random() < 0.25:
        parts.append(box((0.15, width, 0.03), (-0.95, 0, wheel + body + g.uniform(0.05, 0.25))))
    if g.random() < 0.4:
        parts += [box((0.08, 0.14, 0.1), (at + size * 0.4, y * width, wheel + body)) for y in (-0.55, 0.55)]
    return parts
