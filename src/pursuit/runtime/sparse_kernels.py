"""Compiled layers, one signal at a time, that do work only where the code changes.

``u = z G'`` is kept along with z and renewed by the rows of the coefficients that changed, so a
layer costs as many rows of G as coefficients change, and a few passes over vectors of length q.
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
def encode(
    signals: Array,
    signal_of: Array,
    grams: Array,
    gram_of: Array,
    mix: Array,
    soft: Array,
    negative: Array,
    labels: Array,
    groups: Array,
    widths: Array,
    blocks: Array,
    constants: Array,
    units: Array,
    codes: Array,
    changes: Array,
    vectors: Array,
    chosen: Array,
) -> None:
    """Encode rows, given their products with the weights.

    Parameters
    ----------
    signals, signal_of
        ``x W'`` for each distinct W, shape (k, n, q), and which of them a layer uses, (T,).
    grams, gram_of
        The distinct G', shape (k, q, q), row j what z_j adds to u, and which a layer uses, (T,).
    mix, soft, groups
        For each layer a1, a2, c1, c2, e, (T, 5); thresholds (T, q); those of groups (levels, T, r).
    negative, labels
        1 where codes may be negative, (q,); the group of each coefficient, (levels, q), -1 none.
    widths, blocks, constants
        How many coefficients a layer takes over, 0 for one block, (T,); block and step constant
        of each coefficient, (q,).
    units
        What the code is multiplied by in the end, (q,).
    codes
        Room for the result, (n, q).
    changes
        Counts, for each layer, how many coefficients changed in all rows, (T,).
    vectors, chosen
        Room for the vectors of a row, (7, q), and for the numbers of coefficients, (q + 4,).
    """
    n, q = codes.shape
    depth = len(mix)
    z, previous, candidate = vectors[0], vectors[1], vectors[2]
    u, u_previous, sizes, norms = vectors[3], vectors[4], vectors[5], vectors[6]
    bits = sizes.view(np.int32)
    for row in range(n):
        for i in range(q):
            z[i] = previous[i] = u[i] = u_previous[i] = np.float32(0)
        for t in range(depth):
            if t > 0 and gram_of[t] != gram_of[t - 1]:
                _product(z, grams[gram_of[t]], u)
                _product(previous, grams[gram_of[t]], u_previous)
            _candidate(
                mix[t], signals[signal_of[t], row], z, previous, u, u_previous,
                soft[t], negative, candidate,
            )  # fmt: skip
            for level in range(len(labels)):
                _shrink_groups(candidate, labels[level], groups[level, t], norms)
            if widths[t] == 0:
                count = _block(candidate, z, blocks, constants, norms, chosen)
            elif widths[t] == q:
                count = _changed(candidate, z, chosen)
            else:
                count = _largest(candidate, z, widths[t], sizes, bits, chosen)
            changes[t] += count
            if t == depth - 1:
                for k in range(count):
                    z[chosen[k]] = candidate[chosen[k]]
            else:
                for i in range(q):
                    previous[i] = z[i]
                    u_previous[i] = u[i]
                _take_over(candidate, z, u, grams[gram_of[t]], chosen, count)
        for i in range(q):
            codes[row, i] = units[i] * z[i]


@_inlined
def _candidate(
    mix: Array,
    signal: Array,
    z: Array,
    previous: Array,
    u: Array,
    u_previous: Array,
    soft: Array,
    negative: Array,
    candidate: Array,
) -> None:
    """``shrink(a1 z + a2 z' + e x W' - c1 u - c2 u')`` but for the groups."""
    a1, a2, c1, c2, e = mix[0], mix[1], mix[2], mix[3], mix[4]
    zero = np.float32(0)
    if a2 == 0 and c2 == 0:
        for i in range(len(z)):
            v = a1 * z[i] + e * signal[i] - c1 * u[i]
            above, below = max(v - soft[i], zero), min(v + soft[i], zero)
            candidate[i] = above + negative[i] * below
    else:
        for i in range(len(z)):
            v = a1 * z[i] + a2 * previous[i] + e * signal[i] - c1 * u[i] - c2 * u_previous[i]
            above, below = max(v - soft[i], zero), min(v + soft[i], zero)
            candidate[i] = above + negative[i] * below


@_compiled
def _shrink_groups(v: Array, labels: Array, thresholds: Array, norms: Array) -> None:
    """``v_r max(0, 1 - t_r/||v_r||)`` for the groups of one level."""
    for r in range(len(thresholds)):
        norms[r] = 0
    for i in range(len(v)):
        if labels[i] >= 0:
            norms[labels[i]] += v[i] * v[i]
    for r in range(len(thresholds)):
        norm = np.sqrt(norms[r])
        norms[r] = 1 - thresholds[r] / norm if norm > thresholds[r] else np.float32(0)
    for i in range(len(v)):
        if labels[i] >= 0:
            v[i] *= norms[labels[i]]


@_inlined
def _changed(candidate: Array, z: Array, chosen: Array) -> int:
    """The numbers of the coefficients that would change; how many there are."""
    count = 0
    for i in range(len(z)):
        chosen[count] = i
        count += candidate[i] != z[i]
    return count


@_inlined
def _largest(
    candidate: Array, z: Array, width: int, sizes: Array, bits: Array, chosen: Array
) -> int:
    """The numbers of the coefficients that would change most; how many there are.

    The bound that just `width` changes exceed is found by bisection on the bits of the numbers,
    which for positive floats are in their order: counting is what processors do at full width.
    """
    q = len(z)
    high = np.int32(0)
    for i in range(q):
        sizes[i] = abs(candidate[i] - z[i])
    for i in range(q):
        high = max(high, bits[i])
    low = np.int32(-1)  # more than `width` exceed low, at most so many exceed high
    bound = max(high - np.int32(2 << 23), np.int32(0))  # a quarter of the largest
    above = 0
    for i in range(q):
        above += bits[i] > bound
    while above != width:
        if above > width:
            low = bound
        else:
            high = bound
        if high - low <= 1:
            bound = high
            break
        bound = low + (high - low) // np.int32(2)
        above = 0
        for i in range(q):
            above += bits[i] > bound
    count = 0
    for i in range(q):
        chosen[count] = i
        count += bits[i] > bound
    if count < width and bound > 0:  # those that are just as large, in their order
        for i in range(q):
            if bits[i] == bound and count < width:
                chosen[count] = i
                count += 1
    return count


@_compiled
def _block(
    candidate: Array, z: Array, blocks: Array, constants: Array, gains: Array, chosen: Array
) -> int:
    """The numbers of the coefficients of the block that gains most."""
    for r in range(len(gains)):
        gains[r] = 0
    for i in range(len(z)):
        change = candidate[i] - z[i]
        gains[blocks[i]] += constants[i] * change * change
    best = 0
    for r in range(1, len(gains)):
        if gains[r] > gains[best]:
            best = r
    count = 0
    for i in range(len(z)):
        if blocks[i] == best:
            chosen[count] = i
            count += 1
    return count


@_inlined
def _take_over(
    candidate: Array, z: Array, u: Array, gram: Array, chosen: Array, count: int
) -> None:
    """Change the chosen coefficients of z, and u with them; four rows at a time."""
    q = len(z)
    for k in range(count, count + 4):
        chosen[k] = 0  # a row that is there, for the last few
    for k in range(0, count, 4):
        j0, j1, j2, j3 = chosen[k], chosen[k + 1], chosen[k + 2], chosen[k + 3]
        d0 = candidate[j0] - z[j0]
        d1 = candidate[j1] - z[j1] if k + 1 < count else np.float32(0)
        d2 = candidate[j2] - z[j2] if k + 2 < count else np.float32(0)
        d3 = candidate[j3] - z[j3] if k + 3 < count else np.float32(0)
        g0, g1, g2, g3 = gram[j0], gram[j1], gram[j2], gram[j3]
        for i in range(q):
            u[i] += d0 * g0[i] + d1 * g1[i] + d2 * g2[i] + d3 * g3[i]
    for k in range(count):
        z[chosen[k]] = candidate[chosen[k]]


@_compiled
def _product(z: Array, gram: Array, u: Array) -> None:
    """``u = z G'`` over the coefficients that are not zero."""
    for i in range(len(u)):
        u[i] = 0
    for j in range(len(z)):
        if z[j] != 0:
            for i in range(len(u)):
                u[i] += z[j] * gram[j, i]
