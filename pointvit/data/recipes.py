"""Recipes of the synthetic shapes: `rng -> triangle soups`, one for each of twenty ModelNet40 categories.

Everything that may differ between two shapes of a category comes from the generator. z is up; only
proportions count, since every shape is scaled to one size afterwards.
"""

from collections.abc import Callable

import numpy as np

from pointvit.data.primitives import (
    Triangles,
    box,
    corners,
    cylinder,
    drawers,
    ellipsoid,
    handle,
    legs,
    move,
    pedestal,
    prism,
    revolve,
    sheet,
    slab,
    slats,
    smooth_curve,
    tube,
    turn,
)

Rng = np.random.Generator


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


def bed(g: Rng) -> list[Triangles]:
    """Mattress on a frame, headboard, perhaps a footboard, pillows, posts."""
    width, length, height = g.uniform(0.8, 2.0), g.uniform(1.8, 2.2), g.uniform(0.2, 0.5)
    mattress, head = g.uniform(0.1, 0.3), g.uniform(0.2, 0.8)
    parts = [box((width, length, mattress), (0, 0, height))]
    if g.random() < 0.5:
        parts += legs(g, width, length, height)
    else:
        parts.append(box((width * 0.97, length * 0.97, height)))
    parts.append(box((width * g.uniform(1, 1.2), 0.06, height + mattress + head), (0, length / 2, 0)))
    if g.random() < 0.5:
        parts.append(box((width, 0.06, height + mattress + head * g.uniform(0, 0.7)), (0, -length / 2, 0)))
    pillows = 1 if width < 1.2 else 2
    for i in range(pillows if g.random() < 0.8 else 0):
        x = (i + 0.5) / pillows * width - width / 2
        parts.append(
            ellipsoid((0.4 * width / pillows, 0.22, 0.1), (x, length * 0.38, height + mattress + 0.05))
        )
    if g.random() < 0.2:
        parts += [tube([(x, y, 0), (x, y, 1.9)], 0.03) for x, y in corners(width, length)]
    return parts


def bench(g: Rng) -> list[Triangles]:
    """Long seat of planks or one slab on legs or side panels, with or without a back."""
    width, depth, height = g.uniform(1.1, 2.4), g.uniform(0.3, 0.55), g.uniform(0.35, 0.5)
    parts = [move(slats(int(g.integers(1, 6)), width, depth, 0.04, g), (0, 0, height))]
    support = g.integers(3)
    if support == 0:
        parts += legs(g, width * 0.95, depth, height)
    else:
        count = 2 if support == 1 else 3
        parts += [
            box((0.06, depth * 0.9, height), (x, 0, 0)) for x in np.linspace(-0.42, 0.42, count) * width
        ]
    if g.random() < 0.5:
        back = slats(int(g.integers(1, 5)), width, g.uniform(0.25, 0.5), 0.03, g)
        parts.append(move(turn(back, "x", g.uniform(70, 90)), (0, depth / 2, height + 0.3)))
        parts += [box((0.05, 0.05, 0.5), (x * width, depth / 2, height)) for x in (-0.45, 0.45)]
    if g.random() < 0.35:
        parts += [box((0.05, depth, 0.05), (x * width, 0, height + 0.2)) for x in (-0.48, 0.48)]
        parts += [box((0.05, 0.05, 0.2), (x * width, -depth / 2, height)) for x in (-0.48, 0.48)]
    return parts


def bookshelf(g: Rng) -> list[Triangles]:
    """Case with shelves, dividers and some books."""
    width, depth, height = g.uniform(0.5, 1.6), g.uniform(0.25, 0.45), g.uniform(0.8, 2.1)
    rows, columns = int(g.integers(2, 7)), int(g.integers(1, 4))
    levels = np.linspace(g.uniform(0, 0.1), height, rows + 1)
    parts = [box((width, depth, 0.03), (0, 0, z)) for z in levels]
    parts += [box((0.03, depth, height), (x * width, 0, 0)) for x in (-0.5, 0.5)]
    parts += [
        box((0.03, depth, height), (x * width, 0, 0)) for x in np.linspace(-0.5, 0.5, columns + 1)[1:-1]
    ]
    if g.random() < 0.6:
        parts.append(box((width, 0.02, height), (0, depth / 2, 0)))
    filled = g.uniform(0, 0.7)
    for z in levels[:-1]:
        for column in range(columns if g.random() < filled else 0):
            row = width / columns * g.uniform(0.3, 0.9)
            x = (column / columns - 0.5) * width + row / 2
            parts.append(box((row, depth * 0.7, height / rows * g.uniform(0.5, 0.85)), (x, 0, z)))
    return parts


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


def chair(g: Rng) -> list[Triangles]:
    """Seat for one with a back: legs or swivel base, solid, slatted or curved back, perhaps arms."""
    width, depth, height = g.uniform(0.4, 0.65), g.uniform(0.4, 0.65), g.uniform(0.35, 0.6)
    thick, rise, lean = g.uniform(0.03, 0.15), g.uniform(0.25, 0.8), g.uniform(0, 0.18)
    parts = [move(slab(g, width, depth, thick), (0, 0, height))]
    parts += pedestal(g, width, height) if g.random() < 0.25 else legs(g, width, depth, height)
    top, y = height + thick, depth / 2
    style = g.integers(4)
    if style == 0:
        parts.append(box((width, 0.05, rise), (0, y, top), top=(g.uniform(0.6, 1.1), 1), lean=(0, lean)))
    elif style == 1:
        back = slats(int(g.integers(2, 6)), width, rise, 0.03, g)
        parts.append(move(turn(back, "x", 90 - 60 * lean), (0, y + lean / 2, top + rise / 2)))
    elif style == 2:
        parts += [
            box((0.03, 0.03, rise), (x, y, top), lean=(0, lean)) for x in np.linspace(-0.45, 0.45, 5) * width
        ]
        parts.append(box((width, 0.04, 0.1), (0, y + lean, top + rise - 0.1)))
    else:
        angle = np.linspace(0, np.pi, 13)
        arc = np.stack([np.cos(angle) * width / 2, y * (np.sin(angle) * 1.4 - 0.4), 0 * angle], 1)
        parts.append(
            sheet(np.stack([move(arc, (0, 0, top)), move(arc * [1, 1 + lean, 1], (0, 0, top + rise))]))
        )
    if g.random() < 0.4:
        arm = g.uniform(0.15, 0.28)
        parts += [box((0.05, depth, 0.04), (x * width, 0, top + arm)) for x in (-0.52, 0.52)]
        parts += [box((0.05, 0.05, arm), (x * width, -depth * 0.4, top)) for x in (-0.52, 0.52)]
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


def desk(g: Rng) -> list[Triangles]:
    """Work top on drawers, panels or legs, perhaps with a hutch or a side wing."""
    width, depth, height = g.uniform(1.0, 1.9), g.uniform(0.5, 0.9), g.uniform(0.65, 0.8)
    parts = [box((width, depth, g.uniform(0.03, 0.07)), (0, 0, height))]
    if g.random() < 0.25:
        parts += legs(g, width, depth, height)
    for side in (-1, 1):
        if g.random() < 0.5:
            pedestal_width = width * g.uniform(0.2, 0.35)
            x = side * (width - pedestal_width) / 2
            parts.append(box((pedestal_width, depth * 0.9, height * g.uniform(0.5, 1.0)), (x, 0, 0)))
            rows = int(g.integers(1, 5))
            parts.append(move(drawers(rows, pedestal_width, height), (x, -depth * 0.45, 0)))
        else:
            parts.append(box((0.04, depth * 0.9, height), (side * width * 0.47, 0, 0)))
    if g.random() < 0.6:
        drop = g.uniform(0.3, 1) * height
        parts.append(box((width * 0.94, 0.03, drop), (0, depth * 0.42, height - drop)))
    if g.random() < 0.3:
        rise = g.uniform(0.25, 0.6)
        parts += [box((0.03, 0.25, rise), (x * width, depth / 2 - 0.13, height)) for x in (-0.48, 0, 0.48)]
        parts.append(box((width, 0.25, 0.03), (0, depth / 2 - 0.13, height + rise)))
    if g.random() < 0.25:
        wing, side = g.uniform(0.4, 0.9), g.choice([-1, 1])
        parts.append(box((0.45, wing, 0.04), (side * (width / 2 - 0.22), -(depth + wing) / 2, height)))
        parts.append(box((0.45, 0.04, height), (side * (width / 2 - 0.22), -depth / 2 - wing, 0)))
    return parts


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


def night_stand(g: Rng) -> list[Triangles]:
    """Small cabinet with drawers or an open shelf, on a plinth or short legs."""
    width, depth, height, lift = (
        g.uniform(0.4, 0.7),
        g.uniform(0.35, 0.55),
        g.uniform(0.35, 0.7),
        g.uniform(0, 0.35),
    )
    over = g.uniform(1.0, 1.15)
    parts = [box((width * over, depth * over, 0.04), (0, 0, lift + height))]
    if lift > 0.05:
        parts += legs(g, width, depth, lift)
    if g.random() < 0.6:
        parts.append(box((width, depth, height), (0, 0, lift)))
        parts.append(move(drawers(int(g.integers(1, 4)), width, height), (0, -depth / 2, lift)))
    else:
        parts += [box((0.03, depth, height), (x * width, 0, lift)) for x in (-0.48, 0.48)]
        parts.append(box((width, 0.02, height), (0, depth * 0.48, lift)))
        parts += [box((width, depth, 0.03), (0, 0, lift + z * height)) for z in (0, g.uniform(0.4, 0.7))]
    return parts


def sofa(g: Rng) -> list[Triangles]:
    """Upholstered seat for one to four with arms, back, cushions, perhaps a chaise."""
    seats = int(g.integers(1, 5))
    width, depth, height = 0.4 + 0.55 * seats * g.uniform(0.8, 1.1), g.uniform(0.7, 1.0), g.uniform(0.3, 0.5)
    lift, rise, arm = g.uniform(0, 0.15), g.uniform(0.25, 0.6), g.uniform(0.08, 0.28)
    parts = [box((width, depth, height), (0, 0, lift))]
    parts.append(
        box(
            (width, g.uniform(0.12, 0.3), rise), (0, depth * 0.4, lift + height), lean=(0, g.uniform(0, 0.15))
        )
    )
    arm_rise = rise * g.uniform(0.2, 1.0)
    for side in (-1, 1):
        if g.random() < 0.9:
            x, top = side * (width + arm) / 2, lift + height + arm_rise
            parts.append(box((arm, depth, height + arm_rise), (x, 0, lift)))
            if arm > 0.18:
                parts.append(tube([(x, -depth / 2, top), (x, depth / 2, top)], arm * 0.6))
    pitch = width / seats
    for i in range(seats if g.random() < 0.7 else 0):
        x = (i + 0.5) * pitch - width / 2
        parts.append(
            box((pitch * 0.94, depth * 0.75, 0.12), (x, -depth * 0.1, lift + height), top=(0.92, 0.92))
        )
        parts.append(
            box(
                (pitch * 0.9, 0.15, rise),
                (x, depth * 0.2, lift + height + 0.1),
                top=(0.9, 0.7),
                lean=(0, 0.1),
            )
        )
    if seats > 1 and g.random() < 0.3:
        x = g.choice([-1, 1]) * (width - pitch) / 2
        parts.append(box((pitch, g.uniform(0.4, 0.9), height), (x, -depth * 0.7, lift)))
    return [*parts, *(legs(g, width, depth, lift) if lift > 0.05 else [])]


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


def stool(g: Rng) -> list[Triangles]:
    """Backless seat for one on legs or a pedestal, from foot stool to bar stool."""
    width, height = g.uniform(0.3, 0.5), g.uniform(0.3, 0.9)
    parts = [move(slab(g, width, width * g.uniform(0.8, 1.0), g.uniform(0.03, 0.15)), (0, 0, height))]
    parts += pedestal(g, width, height) if g.random() < 0.3 else legs(g, width * 0.85, width * 0.85, height)
    if g.random() < 0.4:
        angle, low = np.linspace(0, 2 * np.pi, 17), g.uniform(0.2, 0.5) * height
        ring = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1) * width * 0.5
        parts.append(tube(move(ring, (0, 0, low)), 0.015, sides=6))
    if g.random() < 0.12:
        parts.append(box((width, 0.03, g.uniform(0.08, 0.15)), (0, width / 2, height)))
    return parts


def table(g: Rng) -> list[Triangles]:
    """Plain top on legs, a pedestal or trestles; coffee, dining or side table, perhaps with a lower shelf."""
    width, depth, height = g.uniform(0.6, 2.0), g.uniform(0.5, 1.0), g.uniform(0.3, 0.95)
    parts = [move(slab(g, width, depth, g.uniform(0.02, 0.1)), (0, 0, height))]
    style = g.random()
    if style < 0.25:
        parts += pedestal(g, min(width, depth), height)
    elif style < 0.4:
        parts += [
            box((0.06, depth * 0.8, height), (x * width, 0, 0), top=(1, g.uniform(0.3, 1)))
            for x in (-0.4, 0.4)
        ]
    else:
        parts += legs(g, width * 0.9, depth * 0.9, height)
    if g.random() < 0.3:
        parts.append(box((width * 0.8, depth * 0.8, 0.03), (0, 0, g.uniform(0.15, 0.5) * height)))
    if g.random() < 0.4:
        parts.append(box((width * 0.8, depth * 0.8, 0.1), (0, 0, height - 0.1)))
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


RECIPES: dict[str, Callable[[Rng], list[Triangles]]] = {
    recipe.__name__: recipe
    for recipe in (
        airplane, bed, bench, bookshelf, bottle, bowl, car, chair, cup, desk,
        guitar, lamp, laptop, monitor, night_stand, sofa, stairs, stool, table, vase,
    )
}  # fmt: skip
