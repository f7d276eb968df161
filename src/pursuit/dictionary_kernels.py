"""Compiled sweeps of the dictionary update."""

from __future__ import annotations

import numpy as np

from ._numba import SUMS, Array, compiler

#: atoms that are updated between two products with all atoms
BLOCK = 32

_compiled = compiler(SUMS, allocates=True)


@_compiled
def sweep(
    atoms: Array, A: Array, B: Array, ridge: Array, ball: Array, nonnegative: Array,
    smallest: float, sweeps: int,
) -> None:  # fmt: skip
    """``d_j <- P(d_j + (B_j - A_j D - r_j d_j)/(A_jj + r_j))`` for every atom in turn, in place.

    P is the projection onto the constraints of each atom: ridge, ball and nonnegative, (q,). Atoms
    with ``A_jj <= smallest`` are not changed. atoms (q, m), A (q, q) and B (q, m) share one dtype.
    """
    q, m = atoms.shape
    slopes = np.empty((min(BLOCK, q), m), atoms.dtype)
    change = np.empty(m, atoms.dtype)
    for _ in range(sweeps):
        for start in range(0, q, BLOCK):
            stop = min(start + BLOCK, q)
            _slopes(A[start:stop], B[start:stop], atoms, slopes)
            for j in range(start, stop):
                if A[j, j] <= smallest:
                    continue
                _update(
                    atoms[j], slopes[j - start], change, A[j, j], ridge[j], ball[j], nonnegative[j]
                )
                # the slopes of the block's remaining atoms depend on this one
                for k in range(j + 1, stop):
                    weight = A[k, j]
                    for i in range(m):
                        slopes[k - start, i] -= weight * change[i]


@_compiled
def _update(
    atom: Array, slope: Array, change: Array, curvature: float, ridge: float, ball: bool,
    nonnegative: bool,
) -> None:  # fmt: skip
    """Update one atom from its row of ``B - A D``, and write by how much it changed."""
    square = 0.0
    for i in range(len(atom)):
        value = atom[i] + (slope[i] - ridge * atom[i]) / (curvature + ridge)
        if nonnegative and value < 0:
            value = 0.0
        change[i] = value
        square += value * value
    factor = 1 / np.sqrt(square) if ball and square > 1 else 1.0
    for i in range(len(atom)):
        value = factor * change[i]
        change[i] = value - atom[i]
        atom[i] = value


@_compiled
def _slopes(A: Array, B: Array, atoms: Array, out: Array) -> None:
    """``out = B - A D``, two rows and four atoms at a time to save loads and stores."""
    n, m = B.shape
    q = len(atoms)
    for j in range(0, n, 2):
        other = min(j + 1, n - 1)  # an odd last row is computed twice
        for i in range(m):
            out[j, i] = B[j, i]
            out[other, i] = B[other, i]
        for k in range(0, q - q % 4, 4):
            a0, a1, a2, a3 = A[j, k], A[j, k + 1], A[j, k + 2], A[j, k + 3]
            b0, b1, b2, b3 = A[other, k], A[other, k + 1], A[other, k + 2], A[other, k + 3]
            d0, d1, d2, d3 = atoms[k], atoms[k + 1], atoms[k + 2], atoms[k + 3]
            if j != other:
                for i in range(m):
                    out[j, i] -= a0 * d0[i] + a1 * d1[i] + a2 * d2[i] + a3 * d3[i]
                    out[other, i] -= b0 * d0[i] + b1 * d1[i] + b2 * d2[i] + b3 * d3[i]
            else:
                for i in range(m):
                    out[j, i] -= a0 * d0[i] + a1 * d1[i] + a2 * d2[i] + a3 * d3[i]
        for k in range(q - q % 4, q):
            for i in range(m):
                out[j, i] -= A[j, k] * atoms[k, i]
            if j != other:
                for i in range(m):
                    out[other, i] -= A[other, k] * atoms[k, i]
