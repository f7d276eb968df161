"""Compiled element-wise parts of dense layers: one pass over a tile between two matrix products.

Each row is processed in several short loops while it is in the first-level cache. In loops over
many arrays the compiler cannot prove that they do not overlap, and does not vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._numba import Array, compiler, expanded

_compiled = compiler(allocates=True)


@_compiled
def prepare(x: Array, tiny: Any, out: Array) -> Any:
    """Copy signals to float32, numbers below `tiny` as zeros; return whether all are finite."""
    doubt = np.float32(0)
    for row in range(len(x)):
        for i in range(x.shape[1]):
            value = np.float32(x[row, i])
            out[row, i] = np.float32(0) if abs(value) < tiny else value  # NaN stays NaN
            doubt += abs(value)
    return np.isfinite(doubt)


@expanded
def shrink(v: Array, soft: Array, negative: Array) -> None:
    """Soft-threshold a row in place; values below zero are multiplied by `negative`, 0 or 1."""
    zero = np.float32(0)
    for i in range(len(v)):
        v[i] = max(v[i] - soft[i], zero) + negative[i] * min(v[i] + soft[i], zero)


@expanded
def shrink_groups(v: Array, runs: Array, thresholds: Array, factors: Array) -> None:
    """``v_r <- v_r max(0, 1 - t_r/||v_r||)`` for the groups r of a row, level by level, in place.

    `runs` (levels, k, 3) are the groups as runs of adjacent coefficients (begin, end, group), since
    loops over slices are vectorised, `thresholds` (levels, r) those of the groups; `factors` (r,)
    is scratch memory.
    """
    for level in range(len(runs)):
        for r in range(thresholds.shape[1]):
            factors[r] = 0
        for k in range(runs.shape[1]):
            part, squares = v[runs[level, k, 0] : runs[level, k, 1]], np.float32(0)
            for i in range(len(part)):
                squares += part[i] * part[i]
            factors[runs[level, k, 2]] += squares
        for r in range(thresholds.shape[1]):
            norm, threshold = np.sqrt(factors[r]), thresholds[level, r]
            factors[r] = 1 - threshold / norm if norm > threshold else np.float32(0)
        for k in range(runs.shape[1]):
            part = v[runs[level, k, 0] : runs[level, k, 1]]
            factor = factors[runs[level, k, 2]]
            for i in range(len(part)):
                part[i] *= factor


@_compiled
def first(
    signal: Array, e: Any, soft: Array, negative: Array, runs: Array, thresholds: Array, z: Array
) -> None:
    """``z = shrink(e x W')``, the first layer, which starts from zero."""
    zero, e = np.float32(0), np.float32(e)
    factors = np.empty(thresholds.shape[1], np.float32)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            v = e * signal[row, i]
            z[row, i] = max(v - soft[i], zero) + negative[i] * min(v + soft[i], zero)
        shrink_groups(z[row], runs, thresholds, factors)


@_compiled
def plain(
    v: Array, signal: Array, e: Any, soft: Array, negative: Array, runs: Array, thresholds: Array,
    z: Array,
) -> None:  # fmt: skip
    """``z = shrink(v + e x W')``."""
    zero, e = np.float32(0), np.float32(e)
    factors = np.empty(thresholds.shape[1], np.float32)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            value = v[row, i] + e * signal[row, i]
            z[row, i] = max(value - soft[i], zero) + negative[i] * min(value + soft[i], zero)
        shrink_groups(z[row], runs, thresholds, factors)


@_compiled
def two_step(
    v: Array, signal: Array, e: Any, d: Any, soft: Array, negative: Array, runs: Array,
    thresholds: Array, previous: Array, z: Array, ratio: Any, point: Array,
) -> None:  # fmt: skip
    """``z_new = shrink(v + e x W' + d z')`` and the next ``point = z_new + ratio z``.

    `previous` holds z' on entry and z_new on return; z is the code before the layer.
    """
    e, d, ratio = np.float32(e), np.float32(d), np.float32(ratio)
    factors = np.empty(thresholds.shape[1], np.float32)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            previous[row, i] = v[row, i] + e * signal[row, i] + d * previous[row, i]
        shrink(previous[row], soft, negative)
        shrink_groups(previous[row], runs, thresholds, factors)
        for i in range(z.shape[1]):
            point[row, i] = previous[row, i] + ratio * z[row, i]


@_compiled
def last(
    v: Array, signal: Array, e: Any, d: Any, soft: Array, negative: Array, runs: Array,
    thresholds: Array, previous: Array, codes: Array,
) -> None:  # fmt: skip
    """``codes = shrink(v + e x W' + d z')``, the last layer."""
    zero, e, d = np.float32(0), np.float32(e), np.float32(d)
    factors = np.empty(thresholds.shape[1], np.float32)
    for row in range(len(codes)):
        for i in range(codes.shape[1]):
            value = v[row, i] + e * signal[row, i] + d * previous[row, i]
            codes[row, i] = max(value - soft[i], zero) + negative[i] * min(value + soft[i], zero)
        shrink_groups(codes[row], runs, thresholds, factors)


@_compiled
def residual(x: Array, e: Any, decoded: Array, out: Array) -> None:
    """``out = e x - p V``, given ``decoded = p V``."""
    e = np.float32(e)
    for row in range(len(x)):
        for i in range(x.shape[1]):
            out[row, i] = e * x[row, i] - decoded[row, i]


@_compiled
def two_step_residual(
    v: Array, a1: Any, a2: Any, decay: Array, soft: Array, negative: Array, runs: Array,
    thresholds: Array, previous: Array, z: Array, c1: Any, c2: Any, point: Array,
) -> None:  # fmt: skip
    """``z_new = shrink(v + a1 z + a2 z' - decay p)``, and the next ``p = c1 z_new + c2 z``.

    `previous` holds z' on entry and z_new on return, `point` the old and the new p.
    """
    a1, a2, c1, c2 = np.float32(a1), np.float32(a2), np.float32(c1), np.float32(c2)
    factors = np.empty(thresholds.shape[1], np.float32)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            previous[row, i] = v[row, i] + a1 * z[row, i] + a2 * previous[row, i]
        for i in range(z.shape[1]):
            previous[row, i] -= decay[i] * point[row, i]
        shrink(previous[row], soft, negative)
        shrink_groups(previous[row], runs, thresholds, factors)
        for i in range(z.shape[1]):
            point[row, i] = c1 * previous[row, i] + c2 * z[row, i]


@_compiled
def mixed_point(z: Array, c1: Any, previous: Array, c2: Any, point: Array) -> None:
    """``point = c1 z + c2 z'``."""
    c1, c2 = np.float32(c1), np.float32(c2)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            point[row, i] = c1 * z[row, i] + c2 * previous[row, i]


@_compiled
def finished(z: Array, units: Array, codes: Array) -> None:
    """``codes = z units``; z and `codes` may be the same array."""
    for row in range(len(z)):
        for i in range(z.shape[1]):
            codes[row, i] = z[row, i] * units[i]
