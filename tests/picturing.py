"""Pictures of one thing under known transformations, by a formula and not by interpolation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Pose(NamedTuple):
    """Where a window must look: pixels to the right and down, degrees clockwise, and a scale."""

    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0
    scale: float = 1.0


#: their means are those of no movement
POSES = (
    Pose(1.5, -1.0, 2.0, 1.02),
    Pose(-2.0, 0.5, -3.0, 0.98),
    Pose(0.5, 2.0, 1.0, 1.01),
    Pose(-1.0, -2.0, 1.5, 0.99),
    Pose(2.5, 1.0, -2.0, 1.0),
    Pose(-1.5, -0.5, 0.5, 1.0),
)


def scene(right: Array, down: Array, seed: int = 0) -> Array:
    """A smooth picture of blobs; positions are in pixels from its middle."""
    rng = np.random.default_rng(seed)
    values = np.full(right.shape, 0.3)
    for _ in range(40):
        x, y = rng.uniform(-40, 40, 2)
        width, height = rng.uniform(2.5, 6.0), rng.uniform(-0.3, 0.4)
        values += height * np.exp(-((right - x) ** 2 + (down - y) ** 2) / (2 * width**2))
    return np.clip(values, 0.02, 0.98)


def picture(
    pose: Pose, size: tuple[int, int] = (48, 56), enlarged: int = 1, seed: int = 0
) -> Array:
    """The scene, moved so that a window at `pose` shows it as it is; lengths are enlarged."""
    down, right = np.meshgrid(
        *((np.arange(side) - (side - 1) / 2) / enlarged for side in size), indexing="ij"
    )
    turn = np.deg2rad(pose.angle)
    right, down = right - pose.x, down - pose.y
    return scene(
        (np.cos(turn) * right + np.sin(turn) * down) / pose.scale,
        (np.cos(turn) * down - np.sin(turn) * right) / pose.scale,
    )


def covered(values: Array, seed: int) -> Array:
    """A picture of which a square is white."""
    rng = np.random.default_rng(seed)
    side = min(values.shape) // 6
    top, left = (rng.integers(length // 4, 3 * length // 4 - side) for length in values.shape)
    result = values.copy()
    result[top : top + side, left : left + side] = 1.0
    return result
