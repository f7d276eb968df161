"""Compiled layers of two-block models, ``x ~ s D0 + o``, one frame at a time.

A layer computes the residual: it decodes the non-zero scores, subtracts, and correlates with W.
The vectors of a frame stay in the first-level cache, the two matrices in the second.
"""

from __future__ import annotations

import numpy as np

from .._numba import Array, compiler

_compiled = compiler(allocates=True)


@_compiled
def encode(
    x: Array, weights: Array, weight_of: Array, atoms: Array, atoms_of: Array,
    outlier_steps: Array, step_of: Array, decay: Array, mix: Array, soft: Array, negative: Array,
    units: Array, codes: Array, work: Array,
) -> None:  # fmt: skip
    """Encode frames x (n, m); `codes` (n, q + m) receives the result.

    The distinct W and V (k, q, m) and w (k, m) come with the index of the one that each layer uses,
    (T,). `mix` (T, 5) holds a1, a2, c1, c2, e of each layer, `soft` (T, q + m) its thresholds. For
    each coefficient, `decay` is what the quadratic penalty adds to the diagonal of G, `negative` 1
    where codes may be negative, `units` the factor of the final code. `work` (5, q + m) is scratch.
    """
    q, m = weights.shape[1:]
    size = q + m
    zero = np.float32(0)
    z, previous, point, v, residual = work[0], work[1], work[2], work[3], work[4][:m]
    for row in range(len(x)):
        for i in range(size):
            z[i] = previous[i] = zero
        for t in range(len(mix)):
            a1, a2, c1, c2, e = mix[t, 0], mix[t, 1], mix[t, 2], mix[t, 3], mix[t, 4]
            if t == 0:
                for i in range(m):
                    residual[i] = e * x[row, i]
            else:
                for i in range(size):
                    point[i] = c1 * z[i] + c2 * previous[i]
                for i in range(m):
                    residual[i] = e * x[row, i] - point[q + i]
                _decode(point, atoms[atoms_of[t]], residual)
            _correlate(weights[weight_of[t]], residual, v)
            step = outlier_steps[step_of[t]]
            for i in range(m):
                v[q + i] = step[i] * residual[i]
            if t > 0:
                for i in range(size):
                    v[i] += a1 * z[i] + a2 * previous[i] - decay[i] * point[i]
            for i in range(size):
                above, below = max(v[i] - soft[t, i], zero), min(v[i] + soft[t, i], zero)
                previous[i] = above + negative[i] * below
            z, previous = previous, z
        for i in range(size):
            codes[row, i] = units[i] * z[i]


@_compiled
def _decode(point: Array, atoms: Array, residual: Array) -> None:
    """``residual -= s V`` over the non-zero scores, four at a time."""
    q, m = atoms.shape
    j = np.zeros(4, np.int64)
    count = 0
    for k in range(q):
        if point[k] != 0:
            j[count] = k
            count += 1
            if count == 4:
                p0, p1, p2, p3 = point[j[0]], point[j[1]], point[j[2]], point[j[3]]
                d0, d1, d2, d3 = atoms[j[0]], atoms[j[1]], atoms[j[2]], atoms[j[3]]
                for i in range(m):
                    residual[i] -= p0 * d0[i] + p1 * d1[i] + p2 * d2[i] + p3 * d3[i]
                count = 0
    for k in range(count):
        p0, d0 = point[j[k]], atoms[j[k]]
        for i in range(m):
            residual[i] -= p0 * d0[i]


@_compiled
def _correlate(weight: Array, residual: Array, v: Array) -> None:
    """``v = W residual``, four rows at a time."""
    q, m = weight.shape
    for k in range(0, q - q % 4, 4):
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        s0 = s1 = s2 = s3 = np.float32(0)
        for i in range(m):
            r = residual[i]
            s0 += w0[i] * r
            s1 += w1[i] * r
            s2 += w2[i] * r
            s3 += w3[i] * r
        v[k], v[k + 1], v[k + 2], v[k + 3] = s0, s1, s2, s3
    for k in range(q - q % 4, q):
        s0 = np.float32(0)
        for i in range(m):
            s0 += weight[k, i] * residual[i]
        v[k] = s0
