"""Compiled sweeps of the dictionary update."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]

_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})


@_compiled
def sweep(
    atoms: Array,
    A: Array,
    B: Array,
    ridge: Array,
    ball: Array,
    nonnegative: Array,
    smallest: float,
    sweeps: int,
) -> None:
    """Renew every atom in turn, in place: ``d_j <- P(d_j + (B_j - A_j D - r_j d_j)/(A_jj + r_j))``.

    atoms (q, m), A (q, q) and B (q, m) have one dtype; ridge, ball and nonnegative (q,) say what
    each atom must obey. Atoms with ``A_jj <= smallest`` are not touched.
    """
    q, m = atoms.shape
    step = np.empty(m, atoms.dtype)
    for _ in range(sweeps):
        for j in range(q):
            curvature = A[j, j]
            if curvature <= smallest:
                continue
            for i in range(m):
                step[i] = B[j, i]
            for k in range(q):
                weight = A[j, k]
                if weight != 0:
                    for i in range(m):
                        step[i] -= weight * atoms[k, i]
            total = curvature + ridge[j]
            square = 0.0
            for i in range(m):
                value = atoms[j, i] + (step[i] - ridge[j] * atoms[j, i]) / total
                if nonnegative[j] and value < 0:
                    value = 0.0
                atoms[j, i] = value
                square += value * value
            if ball[j] and square > 1:
                factor = 1 / np.sqrt(square)
                for i in range(m):
                    atoms[j, i] *= factor
