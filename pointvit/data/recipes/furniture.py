"""Furniture: bed, bench, bookshelf, chair, desk, night stand, sofa, stool, table."""

import numpy as np

from pointvit.data.primitives import (
    Rng,
    Triangles,
    box,
    corners,
    drawers,
    ellipsoid,
    legs,
    move,
    pedestal,
    sheet,
    slab,
    slats,
    tube,
    turn,
)


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
