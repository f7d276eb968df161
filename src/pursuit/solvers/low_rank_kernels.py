"""Compiled products with truncated residuals, for `low_rank`."""

from __future__ import annotations

import numpy as np

from .._numba import FAST, Array, compiler

#: columns of a tile: its parts of all factors stay in the second-level cache
COLUMNS = 2048
#: rows that share the loads of the factors
ROWS = 4

_compiled = compiler(FAST, allocates=True)


@_compiled
def products(
    x: Array, left: Array, right: Array, vectors: Array, basis: Array,
    lower: float, upper: float, by_row: Array, by_column: Array,
    along_rows: Array, along_columns: Array,
) -> tuple[float, float]:  # fmt: skip
    """Add ``T V'`` to `along_rows` and ``U' T`` to `along_columns`, T the truncated residuals.

    The residuals are ``R = X - left right``. Without limits by row and column (empty arrays) T
    clips them to [lower, upper]. With limits T is zero where they exceed both of their limits. NaN
    becomes zero. Shapes: x (n, m), left (n, k), right (k, m), vectors V (p, m), basis U (n, s),
    along_rows (n, p), along_columns (s, m), by_row (n,), by_column (m,). Returns ``||T||_F^2`` and,
    if residuals are clipped, ``sum |R - T|`` over the entries that are not NaN, else 0.
    """
    n, m = x.shape
    rejects = len(by_row) > 0
    tile = np.empty((ROWS, min(COLUMNS, m)), x.dtype)
    energy = excess = 0.0
    for start in range(0, m, COLUMNS):
        stop = min(start + COLUMNS, m)
        for row in range(0, n, ROWS):
            rows = min(ROWS, n - row)
            _residuals(x, left, right, row, rows, start, stop, tile)
            for i in range(rows):
                values = tile[i, : stop - start]
                if rejects:
                    energy += _reject(values, by_row[row + i], by_column[start:stop])
                else:
                    square, removed = _clip(values, lower, upper)
                    energy += square
                    excess += removed
            if rows == ROWS:
                _times_four(tile, vectors, row, start, stop, along_rows)
                _transposed_times_four(tile, basis, row, start, stop, along_columns)
            else:
                for i in range(rows):
                    _times(tile[i], vectors, row + i, start, stop, along_rows)
                    _transposed_times(tile[i], basis, row + i, start, stop, along_columns)
    return energy, excess


@_compiled
def _residuals(
    x: Array, left: Array, right: Array, row: int, rows: int, start: int, stop: int, out: Array
) -> None:
    """``out = X - left right`` for some rows and columns, four factors at a time."""
    k, length = left.shape[1], stop - start
    for i in range(rows):
        target, source, a = out[i, :length], x[row + i, start:stop], left[row + i]
        first = k % 4
        if first == 0:
            target[:] = source
        elif first == 1:
            a0, r0 = a[0], right[0, start:stop]
            for j in range(length):
                target[j] = source[j] - a0 * r0[j]
        else:
            a0, r0, a1, r1 = a[0], right[0, start:stop], a[1], right[1, start:stop]
            for j in range(length):
                target[j] = source[j] - a0 * r0[j] - a1 * r1[j]
            if first == 3:
                a2, r2 = a[2], right[2, start:stop]
                for j in range(length):
                    target[j] -= a2 * r2[j]
        for p in range(first, k, 4):
            a0, a1, a2, a3 = a[p], a[p + 1], a[p + 2], a[p + 3]
            r0, r1 = right[p, start:stop], right[p + 1, start:stop]
            r2, r3 = right[p + 2, start:stop], right[p + 3, start:stop]
            for j in range(length):
                target[j] -= a0 * r0[j] + a1 * r1[j] + a2 * r2[j] + a3 * r3[j]


@_compiled
def _clip(values: Array, lower: float, upper: float) -> tuple[float, float]:
    low, high = values.dtype.type(lower), values.dtype.type(upper)
    square = removed = zero = values.dtype.type(0)
    for j in range(len(values)):
        given = values[j] if values[j] == values[j] else zero
        value = given if given > low else low
        value = value if value < high else high
        values[j] = value
        square += value * value
        removed += abs(given - value)
    return float(square), float(removed)


@_compiled
def _reject(values: Array, limit: float, limits: Array) -> float:
    zero = values.dtype.type(0)
    square = zero
    for j in range(len(values)):
        value, size = values[j], abs(values[j])
        most = limits[j] if limits[j] > limit else limit
        value = value if size <= most else zero
        values[j] = value
        square += value * value
    return float(square)


@_compiled
def _times_four(tile: Array, vectors: Array, row: int, start: int, stop: int, out: Array) -> None:
    """Add the products of four rows with all vectors, two vectors at a time."""
    length = stop - start
    t0, t1, t2, t3 = tile[0, :length], tile[1, :length], tile[2, :length], tile[3, :length]
    for p in range(0, len(vectors) - 1, 2):
        v, w = vectors[p, start:stop], vectors[p + 1, start:stop]
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = tile.dtype.type(0)
        for j in range(length):
            a0 += t0[j] * v[j]
            a1 += t1[j] * v[j]
            a2 += t2[j] * v[j]
            a3 += t3[j] * v[j]
            b0 += t0[j] * w[j]
            b1 += t1[j] * w[j]
            b2 += t2[j] * w[j]
            b3 += t3[j] * w[j]
        out[row, p] += a0
        out[row + 1, p] += a1
        out[row + 2, p] += a2
        out[row + 3, p] += a3
        out[row, p + 1] += b0
        out[row + 1, p + 1] += b1
        out[row + 2, p + 1] += b2
        out[row + 3, p + 1] += b3
    if len(vectors) % 2 == 1:
        for i in range(4):
            _times(tile[i], vectors[-1:], row + i, start, stop, out[:, -1:])


@_compiled
def _times(values: Array, vectors: Array, row: int, start: int, stop: int, out: Array) -> None:
    for p in range(len(vectors)):
        v = vectors[p, start:stop]
        total = values.dtype.type(0)
        for j in range(stop - start):
            total += values[j] * v[j]
        out[row, p] += total


@_compiled
def _transposed_times_four(
    tile: Array, basis: Array, row: int, start: int, stop: int, out: Array
) -> None:
    """Add the products of all columns with four rows of the basis, two of its columns at a time."""
    length, size = stop - start, basis.shape[1]
    t0, t1, t2, t3 = tile[0, :length], tile[1, :length], tile[2, :length], tile[3, :length]
    for p in range(0, size - 1, 2):
        a0, a1, a2, a3 = basis[row, p], basis[row + 1, p], basis[row + 2, p], basis[row + 3, p]
        q = p + 1
        b0, b1, b2, b3 = basis[row, q], basis[row + 1, q], basis[row + 2, q], basis[row + 3, q]
        target, other = out[p, start:stop], out[q, start:stop]
        for j in range(length):
            target[j] += a0 * t0[j] + a1 * t1[j] + a2 * t2[j] + a3 * t3[j]
            other[j] += b0 * t0[j] + b1 * t1[j] + b2 * t2[j] + b3 * t3[j]
    if size % 2 == 1:
        for i in range(4):
            _transposed_times(tile[i], basis[:, size - 1 :], row + i, start, stop, out[size - 1 :])


@_compiled
def _transposed_times(
    values: Array, basis: Array, row: int, start: int, stop: int, out: Array
) -> None:
    for p in range(basis.shape[1]):
        weight, target = basis[row, p], out[p, start:stop]
        for j in range(stop - start):
            target[j] += weight * values[j]
