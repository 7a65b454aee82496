"""Objects that can be drawn, each a function from random numbers to coloured parts.

Coordinates are in [-1, 1], x to the right and y down. Every call gives a different object: proportions, the
number of petals or windows, and poses vary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Random = np.random.Generator


class Role(IntEnum):
    """Which colour of the palette a part takes."""

    MAIN = 0
    SECOND = 1
    DETAIL = 2


@dataclass(frozen=True)
class Part:
    """A filled outline, or a line if ``closed=False``."""

    points: Points
    role: Role = Role.MAIN
    closed: bool = True


def _polygon(*corners: tuple[float, float], role: Role = Role.MAIN) -> Part:
    return Part(np.array(corners, dtype=float), role)


def _line(*corners: tuple[float, float], role: Role = Role.DETAIL) -> Part:
    return Part(np.array(corners, dtype=float), role, closed=False)


def _box(left: float, top: float, right: float, bottom: float, role: Role = Role.MAIN) -> Part:
    return _polygon((left, top), (right, top), (right, bottom), (left, bottom), role=role)


def _arc(x: float, y: float, rx: float, ry: float, start: float = 0, stop: float = 360) -> Points:
    """Points on an ellipse; angles in degrees, clockwise from the right."""
    angles = np.radians(np.linspace(start, stop, 28))
    return np.stack([x + rx * np.cos(angles), y + ry * np.sin(angles)], axis=1)


def _ellipse(x: float, y: float, rx: float, ry: float, role: Role = Role.MAIN) -> Part:
    return Part(_arc(x, y, rx, ry), role)


def _ring(points: int, outer: float, inner: float, turn: float = 0.0) -> Points:
    """Corners of a star."""
    angles = np.pi * np.arange(2 * points) / points - np.pi / 2 + turn
    radii = np.where(np.arange(2 * points) % 2 == 0, outer, inner)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def _apple(rng: Random) -> list[Part]:
    t = np.linspace(0, 2 * np.pi, 40)
    radius = 0.72 + 0.1 * np.cos(2 * t) - 0.16 * np.exp(-(((t - 1.5 * np.pi) / 0.35) ** 2))
    body = np.stack([radius * np.cos(t), 0.15 + 0.95 * radius * np.sin(t)], axis=1)
    lean = rng.uniform(-0.15, 0.15)
    return [
        Part(body),
        _line((0, -0.35), (lean, -0.85), role=Role.DETAIL),
        Part(_arc(lean + 0.25, -0.7, 0.25, 0.13), Role.SECOND),
    ]


def _bird(rng: Random) -> list[Part]:
    lift = rng.uniform(-0.35, 0.15)
    return [
        _polygon((-0.5, 0.1), (-0.95, -0.15), (-0.95, 0.3), role=Role.SECOND),
        _ellipse(-0.05, 0.15, 0.58, 0.38),
        _ellipse(0.48, -0.25, 0.28, 0.27),
        _polygon((0.72, -0.32), (1.0, -0.2), (0.72, -0.12), role=Role.DETAIL),
        _polygon((0.2, 0.05), (-0.15, 0.25), (-0.55, lift - 0.25), (-0.2, lift - 0.1), role=Role.SECOND),
        _line((-0.05, 0.5), (-0.05, 0.85)),
        _line((0.15, 0.5), (0.15, 0.85)),
        _ellipse(0.55, -0.3, 0.06, 0.06, Role.DETAIL),
    ]


def _boat(rng: Random) -> list[Part]:
    mast, sail = rng.uniform(-0.1, 0.15), rng.uniform(-0.95, -0.75)
    parts = [
        _polygon((-0.9, 0.35), (0.9, 0.35), (0.55, 0.8), (-0.6, 0.8)),
        _line((mast, 0.35), (mast, sail - 0.05)),
        _polygon((mast + 0.06, sail), (mast + 0.75, 0.2), (mast + 0.06, 0.2), role=Role.SECOND),
    ]
    if rng.random() < 0.6:
        parts.append(
            _polygon((mast - 0.06, sail + 0.2), (mast - 0.55, 0.2), (mast - 0.06, 0.2), role=Role.SECOND)
        )
    return parts


def _bottle(rng: Random) -> list[Part]:
    width, neck = rng.uniform(0.3, 0.42), rng.uniform(0.1, 0.16)
    shoulder = rng.uniform(-0.4, -0.15)
    body = [(-width, 0.95), (-width, shoulder + 0.2), (-neck, shoulder - 0.1), (-neck, -0.8)]
    return [
        _polygon(*body, *[(-x, y) for x, y in reversed(body)]),
        _box(-neck - 0.04, -0.98, neck + 0.04, -0.8, Role.DETAIL),
        _box(-width, 0.2, width, 0.65, Role.SECOND),
    ]


def _butterfly(rng: Random) -> list[Part]:
    spread, low = rng.uniform(0.42, 0.52), rng.uniform(0.3, 0.4)
    parts = []
    for side in (-1, 1):
        parts += [
            _ellipse(side * spread, -0.35, 0.45, 0.48),
            _ellipse(side * (spread - 0.08), 0.42, low, 0.38, Role.SECOND),
            _ellipse(side * spread, -0.35, 0.18, 0.2, Role.SECOND),
            _line((0, -0.5), (side * 0.2, -0.95)),
        ]
    return [*parts, _ellipse(0, 0.05, 0.1, 0.6, Role.DETAIL)]


def _cactus(rng: Random) -> list[Part]:
    left, right = rng.uniform(-0.2, 0.2, 2)

    def arm(side: int, y: float) -> list[Part]:
        return [
            _box(min(0, side * 0.6), y, max(0, side * 0.6), y + 0.22),
            _box(side * 0.6 - 0.13, y - 0.4, side * 0.6 + 0.13, y + 0.2),
            _ellipse(side * 0.6, y - 0.4, 0.13, 0.13),
        ]

    return [
        *arm(-1, left),
        *arm(1, right - 0.1),
        _box(-0.2, -0.75, 0.2, 0.6),
        _ellipse(0, -0.75, 0.2, 0.2),
        _polygon((-0.45, 0.55), (0.45, 0.55), (0.32, 0.98), (-0.32, 0.98), role=Role.SECOND),
    ]


def _car(rng: Random) -> list[Part]:
    roof, front = rng.uniform(-0.5, -0.3), rng.uniform(0.4, 0.6)
    return [
        _polygon((-0.6, 0.0), (-0.4, roof), (0.25, roof), (front, 0.0)),
        _polygon((-0.45, -0.03), (-0.32, roof + 0.1), (-0.1, roof + 0.1), (-0.1, -0.03), role=Role.SECOND),
        _polygon((0.0, -0.03), (0.0, roof + 0.1), (0.2, roof + 0.1), (0.38, -0.03), role=Role.SECOND),
        _box(-0.95, 0.0, 0.95, 0.42),
        _ellipse(-0.52, 0.45, 0.22, 0.22, Role.DETAIL),
        _ellipse(0.52, 0.45, 0.22, 0.22, Role.DETAIL),
    ]


def _cat(rng: Random) -> list[Part]:
    ear, eye = rng.uniform(-0.98, -0.8), rng.uniform(0.08, 0.13)
    parts = [
        _polygon((-0.68, -0.15), (-0.62, ear), (-0.12, -0.5)),
        _polygon((0.68, -0.15), (0.62, ear), (0.12, -0.5)),
        _ellipse(0, 0.15, 0.75, 0.68),
        _ellipse(-0.3, 0.0, eye, eye * 1.2, Role.SECOND),
        _ellipse(0.3, 0.0, eye, eye * 1.2, Role.SECOND),
        _polygon((-0.1, 0.25), (0.1, 0.25), (0, 0.37), role=Role.DETAIL),
    ]
    for side in (-1, 1):
        parts += [_line((side * 0.2, 0.4), (side * 0.9, y)) for y in (0.3, 0.55)]
    return parts


def _chair(rng: Random) -> list[Part]:
    seat, back = rng.uniform(0.05, 0.25), rng.uniform(-0.95, -0.75)
    return [
        _box(-0.55, back, -0.35, 0.95),
        _box(-0.55, seat, 0.6, seat + 0.2, Role.SECOND),
        _box(0.42, seat + 0.2, 0.6, 0.95),
        _box(-0.35, back + 0.1, -0.22, seat, Role.SECOND),
    ]


def _cup(rng: Random) -> list[Part]:
    foot, top = rng.uniform(0.35, 0.5), rng.uniform(-0.55, -0.35)
    return [
        Part(_arc(0.55, 0.1, 0.36, 0.32, -100, 100), Role.MAIN, closed=False),
        _polygon((-0.65, top), (0.55, top), (foot - 0.05, 0.75), (-foot - 0.05, 0.75)),
        _ellipse(-0.05, top, 0.6, 0.13, Role.SECOND),
    ]


def _fish(rng: Random) -> list[Part]:
    tall, tail = rng.uniform(0.35, 0.5), rng.uniform(0.3, 0.45)
    return [
        _polygon((0.4, 0), (0.95, -tail), (0.85, 0), (0.95, tail), role=Role.SECOND),
        _polygon((-0.3, -tall * 0.8), (0.15, -tall - 0.25), (0.25, -tall * 0.5), role=Role.SECOND),
        _ellipse(-0.15, 0, 0.72, tall),
        _ellipse(-0.55, -0.1, 0.08, 0.08, Role.DETAIL),
        Part(_arc(-0.55, 0, 0.3, tall * 0.8, -60, 60), Role.DETAIL, closed=False),
    ]


def _flower(rng: Random) -> list[Part]:
    petals, turn = int(rng.integers(5, 8)), rng.uniform(0, 1)
    parts = [
        _line((0, 0), (rng.uniform(-0.1, 0.1), 0.98), role=Role.SECOND),
        Part(_arc(0.22, 0.65, 0.24, 0.11), Role.SECOND),
    ]
    angles = 2 * np.pi * (np.arange(petals) + turn) / petals
    parts += [_ellipse(0.4 * np.cos(a), -0.3 + 0.4 * np.sin(a), 0.26, 0.26) for a in angles]
    return [*parts, _ellipse(0, -0.3, 0.2, 0.2, Role.DETAIL)]


def _hat(rng: Random) -> list[Part]:
    crown, top = rng.uniform(0.38, 0.5), rng.uniform(-0.75, -0.5)
    return [
        _polygon((-crown, 0.4), (-crown * 0.9, top), (crown * 0.9, top), (crown, 0.4)),
        _ellipse(0, 0.45, 0.95, 0.2),
        _box(-crown, 0.15, crown, 0.36, Role.SECOND),
    ]


def _heart(rng: Random) -> list[Part]:
    t = np.linspace(0, 2 * np.pi, 40)
    x = 16 * np.sin(t) ** 3
    y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
    heart = np.stack([x / 18, y / 18], axis=1)
    shine = _ellipse(-0.4, -0.35, 0.14, 0.1, Role.SECOND)
    return [Part(heart), shine] if rng.random() < 0.6 else [Part(heart)]


def _house(rng: Random) -> list[Part]:
    eaves, door = rng.uniform(-0.25, 0.05), rng.uniform(-0.35, 0.2)
    parts = [
        _box(-0.7, eaves, 0.7, 0.85),
        _polygon((-0.92, eaves), (0, rng.uniform(-0.98, -0.8)), (0.92, eaves), role=Role.SECOND),
        _box(door, 0.35, door + 0.3, 0.85, Role.DETAIL),
        _box(door - 0.3, eaves + 0.15, door - 0.05, eaves + 0.4, Role.DETAIL),
    ]
    if rng.random() < 0.5:
        parts.insert(0, _box(0.35, -0.85, 0.55, eaves, Role.DETAIL))
    return parts


def _key(rng: Random) -> list[Part]:
    bow, teeth = rng.uniform(0.3, 0.4), int(rng.integers(2, 4))
    parts = [
        _box(-0.2, -0.1, 0.95, 0.1),
        _ellipse(-0.5, 0, bow, bow),
        _ellipse(-0.5, 0, bow * 0.5, bow * 0.5, Role.DETAIL),
    ]
    for index in range(teeth):
        x = 0.82 - 0.25 * index
        parts.append(_box(x - 0.07, 0.05, x + 0.07, 0.4))
    return parts


def _lamp(rng: Random) -> list[Part]:
    top, bottom = rng.uniform(0.2, 0.35), rng.uniform(0.6, 0.75)
    return [
        _box(-0.07, -0.1, 0.07, 0.8, Role.DETAIL),
        _polygon((-top, -0.9), (top, -0.9), (bottom, -0.05), (-bottom, -0.05)),
        _ellipse(0, 0.85, 0.45, 0.12, Role.SECOND),
    ]


def _moon(rng: Random) -> list[Part]:
    bite = rng.uniform(0.35, 0.55)
    outer, inner = _arc(0, 0, 0.9, 0.9, 60, 300), _arc(bite, 0, 0.72, 0.76, 270, 90)
    crescent = [Part(np.concatenate([outer, inner]))]
    if rng.random() < 0.4:
        crescent.append(_ellipse(-0.55, 0.1, 0.1, 0.1, Role.SECOND))
    return crescent


def _mushroom(rng: Random) -> list[Part]:
    cap, stem = rng.uniform(0.65, 0.85), rng.uniform(0.2, 0.3)
    parts = [
        _polygon((-stem, 0.0), (stem, 0.0), (stem + 0.08, 0.9), (-stem - 0.08, 0.9), role=Role.SECOND),
        Part(_arc(0, 0.1, 0.9, cap, 180, 360)),
    ]
    for x, y in ((-0.45, -0.15), (0.05, -0.4), (0.48, -0.12)):
        parts.append(_ellipse(x, y, 0.13, 0.11, Role.SECOND))
    return parts


def _rocket(rng: Random) -> list[Part]:
    width, flame = rng.uniform(0.26, 0.36), rng.uniform(0.75, 0.98)
    return [
        _polygon((-0.15, 0.5), (0.15, 0.5), (0, flame), role=Role.DETAIL),
        _polygon((-width, 0.1), (-0.7, 0.65), (-width, 0.5), role=Role.SECOND),
        _polygon((width, 0.1), (0.7, 0.65), (width, 0.5), role=Role.SECOND),
        _box(-width, -0.4, width, 0.55),
        _polygon((-width, -0.4), (0, -0.98), (width, -0.4), role=Role.SECOND),
        _ellipse(0, -0.1, 0.14, 0.14, Role.DETAIL),
    ]


def _snowman(rng: Random) -> list[Part]:
    head = rng.uniform(0.25, 0.32)
    parts = [
        _ellipse(0, 0.5, 0.48, 0.45),
        _ellipse(0, -0.15, 0.36, 0.34),
        _ellipse(0, -0.62, head, head),
        _polygon((0, -0.62), (0.4, -0.55), (0, -0.52), role=Role.SECOND),
        _line((-0.3, -0.15), (-0.85, -0.4)),
        _line((0.3, -0.15), (0.85, -0.4)),
        _ellipse(0, -0.1, 0.05, 0.05, Role.DETAIL),
        _ellipse(0, 0.45, 0.06, 0.06, Role.DETAIL),
    ]
    if rng.random() < 0.5:
        parts.append(_box(-0.22, -0.98, 0.22, -0.8, Role.DETAIL))
    return parts


def _star(rng: Random) -> list[Part]:
    return [Part(_ring(5, 0.95, rng.uniform(0.36, 0.5)))]


def _tree(rng: Random) -> list[Part]:
    trunk = _box(-0.14, 0.2, 0.14, 0.95, Role.SECOND)
    if rng.random() < 0.4:  # a fir
        levels = [(-0.95, -0.3, 0.42), (-0.6, 0.1, 0.58), (-0.25, 0.5, 0.72)]
        return [trunk, *(_polygon((0, top), (w, low), (-w, low)) for top, low, w in levels)]
    crown = [(-0.35, -0.1, 0.42), (0.35, -0.1, 0.42), (0, -0.5, rng.uniform(0.38, 0.48))]
    return [trunk, *(_ellipse(x, y, r, r) for x, y, r in crown)]


def _umbrella(rng: Random) -> list[Part]:
    rise = rng.uniform(0.75, 0.95)
    hook = _arc(0.16, 0.72, 0.16, 0.2, 180, 20)
    edge = [_arc(x, 0.0, 0.3, 0.12, 360, 180) for x in (0.6, 0.0, -0.6)]
    return [
        _line((0, 0), (0, 0.72)),
        Part(hook, Role.DETAIL, closed=False),
        Part(np.concatenate([_arc(0, 0, 0.9, rise, 180, 360), *edge])),
        _polygon((0, -rise), (0.3, 0), (-0.3, 0), role=Role.SECOND),
    ]


# by the names of their functions, in the order of the classes
OBJECTS: dict[str, Callable[[Random], list[Part]]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        *(_apple, _bird, _boat, _bottle, _butterfly, _cactus),
        *(_car, _cat, _chair, _cup, _fish, _flower),
        *(_hat, _heart, _house, _key, _lamp, _moon),
        *(_mushroom, _rocket, _snowman, _star, _tree, _umbrella),
    )
}


def random_object(name: str, rng: Random) -> list[Part]:
    """An object of that name with random size, position, rotation and shear."""
    turn = np.radians(rng.normal(0, 12))
    stretch = rng.uniform(0.85, 1.15)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    shear = np.array([[1.0, rng.normal(0, 0.12)], [0.0, 1.0]])
    mirror = np.diag([rng.choice([-1.0, 1.0]), 1.0])
    scale = rng.uniform(0.55, 0.9) * np.diag([stretch, 1 / stretch])
    transform = rotation @ shear @ scale @ mirror
    shift = rng.uniform(-1, 1, 2) * (0.95 - np.abs(np.diag(scale)).max())
    return [Part(p.points @ transform.T + shift, p.role, p.closed) for p in OBJECTS[name](rng)]


def outlines(parts: Sequence[Part]) -> list[Points]:
    """The lines that a pen would follow; a closed one returns to its start."""
    return [np.concatenate([p.points, p.points[:1]]) if p.closed else p.points for p in parts]
