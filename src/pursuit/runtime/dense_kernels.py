"""Compiled element-wise parts of dense layers: one pass over a tile between two matrix products.

A row is gone through in several short loops, while it is in the first-level cache: in loops with
many arrays the compiler gives up proving that they do not overlap, and does one number at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]

_FAST = {"reassoc", "contract", "arcp", "nsz"}
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST)
_inlined = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FAST, inline="always")


@_compiled
def prepare(x: Array, tiny: Any, out: Array) -> Any:
    """Copy signals as float32, with numbers below `tiny` as zeros; whether all are finite."""
    doubt = np.float32(0)
    for row in range(len(x)):
        for i in range(x.shape[1]):
            value = np.float32(x[row, i])
            out[row, i] = np.float32(0) if abs(value) < tiny else value  # NaN stays NaN
            doubt += abs(value)
    return np.isfinite(doubt)


@_compiled
def first(signal: Array, e: Any, soft: Array, negative: Array, z: Array) -> None:
    """``z = shrink(e x W')``, the layer that starts from zero."""
    zero, e = np.float32(0), np.float32(e)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            v = e * signal[row, i]
            z[row, i] = max(v - soft[i], zero) + negative[i] * min(v + soft[i], zero)


@_inlined
def _shrink(v: Array, soft: Array, negative: Array) -> None:
    """Soft thresholds of a row, in place."""
    zero = np.float32(0)
    for i in range(len(v)):
        v[i] = max(v[i] - soft[i], zero) + negative[i] * min(v[i] + soft[i], zero)


@_compiled
def plain(v: Array, signal: Array, e: Any, soft: Array, negative: Array, z: Array) -> None:
    """``z = shrink(v + e x W')``."""
    zero, e = np.float32(0), np.float32(e)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            value = v[row, i] + e * signal[row, i]
            z[row, i] = max(value - soft[i], zero) + negative[i] * min(value + soft[i], zero)


@_compiled
def two_step(
    v: Array,
    signal: Array,
    e: Any,
    d: Any,
    soft: Array,
    negative: Array,
    previous: Array,
    z: Array,
    ratio: Any,
    point: Array,
) -> None:
    """``z_new = shrink(v + e x W' + d z')``, written over z', and the next ``z_new + ratio z``.

    previous holds z' and receives z_new; z is the code before the layer.
    """
    e, d, ratio = np.float32(e), np.float32(d), np.float32(ratio)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            previous[row, i] = v[row, i] + e * signal[row, i] + d * previous[row, i]
        _shrink(previous[row], soft, negative)
        for i in range(z.shape[1]):
            point[row, i] = previous[row, i] + ratio * z[row, i]


@_compiled
def last(
    v: Array,
    signal: Array,
    e: Any,
    d: Any,
    soft: Array,
    negative: Array,
    previous: Array,
    codes: Array,
) -> None:
    """``codes = shrink(v + e x W' + d z')``, the last layer."""
    zero, e, d = np.float32(0), np.float32(e), np.float32(d)
    for row in range(len(codes)):
        for i in range(codes.shape[1]):
            value = v[row, i] + e * signal[row, i] + d * previous[row, i]
            codes[row, i] = max(value - soft[i], zero) + negative[i] * min(value + soft[i], zero)


@_compiled
def residual(x: Array, e: Any, decoded: Array, out: Array) -> None:
    """``e x - p V``."""
    e = np.float32(e)
    for row in range(len(x)):
        for i in range(x.shape[1]):
            out[row, i] = e * x[row, i] - decoded[row, i]


@_compiled
def two_step_residual(
    v: Array,
    a1: Any,
    a2: Any,
    decay: Array,
    soft: Array,
    negative: Array,
    previous: Array,
    z: Array,
    c1: Any,
    c2: Any,
    point: Array,
) -> None:
    """``z_new = shrink(v + a1 z + a2 z' - decay p)``, written over z'.

    point holds p and receives the next one, ``c1 z_new + c2 z``.
    """
    a1, a2, c1, c2 = np.float32(a1), np.float32(a2), np.float32(c1), np.float32(c2)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            previous[row, i] = v[row, i] + a1 * z[row, i] + a2 * previous[row, i]
        for i in range(z.shape[1]):
            previous[row, i] -= decay[i] * point[row, i]
        _shrink(previous[row], soft, negative)
        for i in range(z.shape[1]):
            point[row, i] = c1 * previous[row, i] + c2 * z[row, i]


@_compiled
def mixed_point(z: Array, c1: Any, previous: Array, c2: Any, point: Array) -> None:
    """``c1 z + c2 z'``."""
    c1, c2 = np.float32(c1), np.float32(c2)
    for row in range(len(z)):
        for i in range(z.shape[1]):
            point[row, i] = c1 * z[row, i] + c2 * previous[row, i]


@_compiled
def shrink_groups(z: Array, labels: Array, thresholds: Array) -> None:
    """``z_r max(0, 1 - t_r/||z_r||)`` in each row, for the groups of one level."""
    factors = np.empty(len(thresholds), np.float32)
    for row in range(len(z)):
        for r in range(len(thresholds)):
            factors[r] = 0
        for i in range(z.shape[1]):
            if labels[i] >= 0:
                factors[labels[i]] += z[row, i] * z[row, i]
        for r in range(len(thresholds)):
            norm = np.sqrt(factors[r])
            factors[r] = 1 - thresholds[r] / norm if norm > thresholds[r] else np.float32(0)
        for i in range(z.shape[1]):
            if labels[i] >= 0:
                z[row, i] *= factors[labels[i]]


@_compiled
def finished(z: Array, units: Array, codes: Array) -> None:
    """``codes = z units``; z may be the codes themselves."""
    for row in range(len(z)):
        for i in range(z.shape[1]):
            codes[row, i] = z[row, i] * units[i]
