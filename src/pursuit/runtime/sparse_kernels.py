"""Compiled layers, one signal at a time, whose cost follows the coefficients that change.

``u = z G'`` is updated by the rows of the coefficients that changed, so a layer reads one row of G'
per changed coefficient and makes a few passes over vectors of length q.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._numba import Array, compiler, expanded
from .dense_kernels import shrink, shrink_groups

_compiled = compiler(allocates=True)


@_compiled
def encode(
    signals: Array, signal_of: Array, grams: Array, gram_of: Array, mix: Array, soft: Array,
    negative: Array, runs: Array, groups: Array, widths: Array, blocks: Array, constants: Array,
    units: Array, codes: Array, changes: Array, vectors: Array, chosen: Array,
) -> None:  # fmt: skip
    """Encode rows from their products with the weights; `codes` (n, q) receives the result.

    `signals` (k, n, q) are ``x W'`` for each distinct W, `grams` (k, q, q) the distinct G', whose
    row j is what z_j adds to u; `signal_of` and `gram_of` (T,) say which of them a layer uses.
    `mix` (T, 5) holds a1, a2, c1, c2, e of each layer, `soft` (T, q) and `groups` (T, levels, r)
    its thresholds, `widths` (T,) the number of coefficients that it changes, 0 for one block. For
    each coefficient, `negative` is 1 where it may be negative, `blocks` and `constants` are its
    block and its step constant, `units` is the factor of the final code. `runs` are as in
    `shrink_groups`. `changes` (T,) counts the coefficients that the layers changed in all rows.
    `vectors` (7, q + 16) and `chosen` (q + 16,) are scratch memory.
    """
    n, q = codes.shape
    depth = len(mix)
    z, previous, candidate = vectors[0, :q], vectors[1, :q], vectors[2, :q]
    u, u_previous, sizes, norms = vectors[3, :q], vectors[4, :q], vectors[5], vectors[6]
    bits = sizes.view(np.int32)
    for row in range(n):
        for i in range(q):
            z[i] = previous[i] = u[i] = u_previous[i] = np.float32(0)
        for t in range(depth):
            if t > 0 and gram_of[t] != gram_of[t - 1]:
                _product(z, grams[gram_of[t]], u)
                _product(previous, grams[gram_of[t]], u_previous)
            _candidate(mix[t], signals[signal_of[t], row], z, previous, u, u_previous, candidate)
            shrink(candidate, soft[t], negative)
            shrink_groups(candidate, runs, groups[t], norms)
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


@expanded
def _candidate(
    mix: Array, signal: Array, z: Array, previous: Array, u: Array, u_previous: Array,
    candidate: Array,
) -> None:  # fmt: skip
    """``candidate = a1 z + a2 z' + e x W' - c1 u - c2 u'``, in loops over few arrays each."""
    a1, a2, c1, c2, e = mix[0], mix[1], mix[2], mix[3], mix[4]
    for i in range(len(z)):
        candidate[i] = a1 * z[i] + e * signal[i] - c1 * u[i]
    if a2 != 0 or c2 != 0:
        for i in range(len(z)):
            candidate[i] += a2 * previous[i] - c2 * u_previous[i]


@expanded
def _changed(candidate: Array, z: Array, chosen: Array) -> int:
    """List the coefficients that would change; return their number."""
    count = 0
    for i in range(len(z)):
        chosen[count] = i
        count += candidate[i] != z[i]
    return count


@expanded
def _largest(
    candidate: Array, z: Array, width: int, sizes: Array, bits: Array, chosen: Array
) -> int:
    """List the `width` coefficients that would change most; return their number."""
    count = 0
    for i in range(len(z)):
        size = abs(candidate[i] - z[i])
        chosen[count] = i
        sizes[count] = size
        count += size > 0
    if count <= width:
        return count
    padded = (count + 15) // 16 * 16  # a whole number of vectors
    for k in range(count, padded):
        sizes[k] = np.float32(0)
    bound, ties = _bound(bits[:padded], count, width)
    kept = 0
    for k in range(count):
        taken = bits[k] > bound
        if ties > 0 and bits[k] == bound:
            taken = True
            ties -= 1
        chosen[kept] = chosen[k]
        kept += taken
    return kept


@_compiled
def _bound(bits: Array, count: int, width: int) -> tuple[Any, int]:
    """Find a bound that at most `width` numbers exceed, and how many equal to it complete them.

    `count` numbers are positive. The bits of such floats are ordered as the floats, and are roughly
    their logarithms. Counting the numbers above a bound is vectorised, and the next bound is
    interpolated linearly between the counts.
    """
    high = np.int32(0)
    for k in range(len(bits)):
        high = max(high, bits[k])
    low, above_low, above_high = np.int32(0), count, 0  # more than `width` exceed low
    bound = max(high - np.int32(1 << 24), np.int32(1))  # a quarter of the largest
    tries = 0
    while high - low > 1:
        above = 0
        for k in range(len(bits)):
            above += bits[k] > bound
        if above == width:
            return bound, 0
        if above > width:
            low, above_low = bound, above
        else:
            high, above_high = bound, above
        tries += 1
        if low == 0:
            bound = max(high - np.int32(1 << 24), np.int32(1))
        elif tries % 4 == 0:  # bisection guarantees an end
            bound = low + (high - low) // 2
        else:
            part = (above_low - width + 0.5) / (above_low - above_high + 1)
            bound = low + max(np.int32(1), np.int32((high - low) * part))
    return high, width - above_high


@_compiled
def _block(
    candidate: Array, z: Array, blocks: Array, constants: Array, gains: Array, chosen: Array
) -> int:
    """List the coefficients of the block with the largest gain; return their number."""
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


@expanded
def _take_over(
    candidate: Array, z: Array, u: Array, gram: Array, chosen: Array, count: int
) -> None:
    """Change the chosen coefficients of z and update u, four rows at a time."""
    q = len(z)
    for k in range(count, count + 4):
        chosen[k] = 0  # a valid row, for the remainder
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
    """``u = z G'`` over the non-zero coefficients."""
    for i in range(len(u)):
        u[i] = 0
    for j in range(len(z)):
        if z[j] != 0:
            for i in range(len(u)):
                u[i] += z[j] * gram[j, i]
