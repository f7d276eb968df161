"""Correlations of a tile with the atoms, computed on the calling thread.

BLAS is not used here when it has several threads: they spin for milliseconds after a call, on the
cores that the other tiles need.
"""

from __future__ import annotations

from .._numba import Array, compiled


@compiled
def correlate(x: Array, atoms: Array, out: Array) -> None:
    """``out = x atoms'`` in the dtype of `out`; four signals by two atoms at a time."""
    n, m = x.shape
    q = atoms.shape[0]
    zero = out.dtype.type(0)
    for first in range(0, n - n % 4, 4):
        for j in range(0, q - q % 2, 2):
            a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
            for i in range(m):
                d, e = atoms[j, i], atoms[j + 1, i]
                x0, x1, x2, x3 = x[first, i], x[first + 1, i], x[first + 2, i], x[first + 3, i]
                a0 += x0 * d
                a1 += x1 * d
                a2 += x2 * d
                a3 += x3 * d
                b0 += x0 * e
                b1 += x1 * e
                b2 += x2 * e
                b3 += x3 * e
            out[first, j], out[first, j + 1] = a0, b0
            out[first + 1, j], out[first + 1, j + 1] = a1, b1
            out[first + 2, j], out[first + 2, j + 1] = a2, b2
            out[first + 3, j], out[first + 3, j + 1] = a3, b3
        if q % 2 == 1:
            for row in range(first, first + 4):
                _one(x, atoms, out, row, q - 1)
    for row in range(n - n % 4, n):
        for j in range(q):
            _one(x, atoms, out, row, j)


@compiled
def _one(x: Array, atoms: Array, out: Array, row: int, atom: int) -> None:
    value = out.dtype.type(0)
    for i in range(x.shape[1]):
        value += x[row, i] * atoms[atom, i]
    out[row, atom] = value
