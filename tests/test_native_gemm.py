"""The compiled product of matrices, against NumPy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from pursuit._native import kernels

EPS = {np.float32: np.finfo(np.float32).eps, np.float64: np.finfo(np.float64).eps}
#: sizes around those of a tile (6 x 16 or 6 x 8) and of a block (256)
SIZES = [0, 1, 2, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64, 95, 97, 130, 255, 257, 300, 520]


def matrix(rng, rows, columns, dtype, gap):
    """A random matrix whose rows lie `gap` numbers apart."""
    return rng.standard_normal((rows, columns + gap)).astype(dtype)[:, :columns]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
def test_product_equals_numpys(dtype, transpose_a, transpose_b):
    """The error of a sum of k products is at most k eps times the sum of their absolute values."""
    rng = np.random.default_rng(0)
    for case in range(60):
        n, k, q = rng.choice(SIZES, 3)
        gaps = rng.integers(0, 4, 3)
        a = matrix(rng, *((k, n) if transpose_a else (n, k)), dtype, gaps[0])
        b = matrix(rng, *((q, k) if transpose_b else (k, q)), dtype, gaps[1])
        wide = rng.standard_normal((n, q + gaps[2])).astype(dtype)
        outside, c = wide[:, q:].copy(), wide[:, :q]
        alpha, beta = rng.choice([0.0, 1.0, -0.7], 2)
        left, right = (
            (a.T if transpose_a else a).astype(float),
            (b.T if transpose_b else b).astype(float),
        )
        expected = alpha * (left @ right) + beta * c.astype(float)
        size = abs(alpha) * (abs(left) @ abs(right)) + abs(beta * c)
        kernels.gemm(a, b, c, alpha, beta, transpose_a, transpose_b)
        assert (abs(c - expected) <= (k + 3) * EPS[dtype] * size).all(), (case, n, k, q)
        assert (wide[:, q:] == outside).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_overwritten_is_not_read(dtype):
    for depth in (0, 3, 300):
        c = np.full((7, 19), np.nan, dtype)
        kernels.gemm(np.ones((7, depth), dtype), np.ones((depth, 19), dtype), c)
        assert (c == depth).all()


def test_nan_and_infinity_stay_in_their_rows_and_columns():
    a, b, c = np.ones((13, 40)), np.ones((40, 21)), np.empty((13, 21))
    a[7, 3], b[5, 20] = np.nan, np.inf
    kernels.gemm(a, b, c)
    assert np.isnan(c[7]).all()
    assert np.isposinf(np.delete(c[:, 20], 7)).all()
    assert (np.delete(c, 7, axis=0)[:, :20] == 40).all()


def test_a_row_does_not_depend_on_the_number_of_rows():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((50, 70), (70, 33)))
    whole = np.empty((50, 33), np.float32)
    kernels.gemm(a, b, whole)
    for count in range(1, 50):
        part = np.empty((count, 33), np.float32)
        kernels.gemm(a[:count], b, part)
        assert (part == whole[:count]).all()


def test_arrays_that_do_not_fit_are_refused():
    a, b, c = np.ones((3, 4)), np.ones((4, 5)), np.ones((3, 5))
    with pytest.raises(ValueError, match="inner sizes"):
        kernels.gemm(a, a, c)
    with pytest.raises(ValueError, match="shape of the product"):
        kernels.gemm(a, b, np.ones((5, 3)))
    with pytest.raises(ValueError, match="adjacent"):
        kernels.gemm(a, b[:, ::2], np.ones((3, 3)))
    with pytest.raises(TypeError):
        kernels.gemm(a.astype(np.float32), b, c)
