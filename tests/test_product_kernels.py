"""Compiled products, dictionary sweeps and block descent, called directly, on all instruction sets.

The solvers that use them are tested elsewhere; here are sizes and types that they never pass.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from pursuit import _native

SETS = [n for n in _native.kernels.instruction_sets() if find_spec(f"pursuit._native.{n}")]
DTYPES = [np.float32, np.float64]
Array = np.ndarray[Any, Any]


@pytest.fixture(params=SETS)
def kernels(request: pytest.FixtureRequest) -> Any:
    return import_module(f"pursuit._native.{request.param}")


def normal(*shape: int, dtype: Any = np.float64, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 2, 5, 11, 12, 13, 19])
@pytest.mark.parametrize("q", [0, 1, 4, 7, 16, 33])
@pytest.mark.parametrize("m", [0, 1, 8, 21])
def test_correlate_is_the_product(kernels: Any, n: int, q: int, m: int, dtype: Any) -> None:
    x, atoms = normal(n, m, dtype=dtype), normal(q, m, dtype=dtype, seed=1)
    out = np.full((n, q), np.nan, dtype)
    kernels.correlate(x, atoms, out)
    accuracy = 16 * (m + 1) * np.finfo(dtype).eps
    np.testing.assert_allclose(out, x @ atoms.T, rtol=accuracy, atol=accuracy)


def sweep(atoms: Array, A: Array, B: Array, ridge: Array, ball: Array, nonnegative: Array) -> Array:
    """The sweep by its formula."""
    atoms = atoms.copy()
    for j in range(len(atoms)):
        slope = B[j] - A[j] @ atoms - ridge[j] * atoms[j]
        value = atoms[j] + slope / (A[j, j] + ridge[j])
        value = np.maximum(value, 0) if nonnegative[j] else value
        norm = np.linalg.norm(value)
        atoms[j] = value / norm if ball[j] and norm > 1 else value
    return atoms


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (5, 3), (6, 16), (7, 21), (40, 33), (90, 1500)])
def test_a_sweep_follows_its_formula(kernels: Any, shape: tuple[int, int], dtype: Any) -> None:
    q, m = shape
    codes = normal(3 * q + 1, q) / np.sqrt(3 * q + 1)
    exact = normal(q, m), codes.T @ codes, normal(q, m, seed=1), np.abs(normal(q))
    ball, nonnegative = np.arange(q) % 2 == 0, np.arange(q) % 3 == 0
    expected = sweep(*exact, ball, nonnegative)
    atoms, A, B, ridge = (np.ascontiguousarray(array, dtype) for array in exact)
    kernels.dictionary_sweep(atoms, A, B, ridge, ball, nonnegative, 0.0, 1)
    accuracy = 1e-3 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(atoms, expected, rtol=accuracy, atol=accuracy)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sweep_keeps_atoms_without_energy(kernels: Any, dtype: Any) -> None:
    """Also those whose energy is so small that its reciprocal is infinite."""
    atoms = normal(3, 4, dtype=dtype)
    before = atoms.copy()
    A = np.diag(np.array([0, np.finfo(dtype).smallest_subnormal, 1], dtype))
    none = np.zeros(3, bool)
    B = np.zeros((3, 4), dtype)
    kernels.dictionary_sweep(atoms, A, B, np.zeros(3, dtype), none, none, 0.0, 2)
    np.testing.assert_array_equal(atoms[:2], before[:2])
    np.testing.assert_array_equal(atoms[2], 0)


def products(dtype: Any = np.float64) -> dict[str, Any]:
    n, m, k, p, s = 7, 2100, 3, 3, 4
    return {
        "x": normal(n, m, dtype=dtype),
        "left": normal(n, k, dtype=dtype),
        "right": normal(k, m, dtype=dtype),
        "vectors": normal(p, m, dtype=dtype, seed=1),
        "basis": normal(n, s, dtype=dtype),
        "lower": -0.5,
        "upper": 0.7,
        "by_row": np.empty(0, dtype),
        "by_column": np.empty(0, dtype),
        "along_rows": np.zeros((n, p), dtype),
        "along_columns": np.zeros((s, m), dtype),
    }


def descent(n: int = 5) -> dict[str, Any]:
    """A HiLasso problem with blocks of several sizes, one of them empty."""
    starts = np.array([0, 1, 1, 9, 21, 40])
    atoms = normal(40, 25)
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    x = normal(n, 25, seed=1)
    gram = atoms @ atoms.T
    blocks = [gram[a:b, a:b] for a, b in pairwise(starts)]
    return {
        "x": x,
        "c": x @ atoms.T,
        "energy": np.square(x).sum(axis=1),
        "atoms": atoms,
        "gram": gram,
        "ridge": np.zeros(40),
        "starts": starts,
        "w": np.full(40, 0.1),
        "v": np.full(5, 0.3),
        "constants": np.array([np.trace(block) for block in blocks]),
        "nonnegative": False,
        "tol": 1e-9,
        "max_iter": 1000,
        "rounding": 1e-14,
        "single": False,
        "codes": np.zeros((n, 40)),
        "objective": np.zeros(n),
        "gap": np.zeros(n),
        "iterations": np.zeros(n, np.int64),
    }


@pytest.mark.parametrize("nonnegative", [False, True])
def test_block_descent_decreases_the_objective_to_its_bound(
    kernels: Any, nonnegative: bool
) -> None:
    given = descent() | {"nonnegative": nonnegative}
    kernels.block_coordinate(**given)
    z, groups = given["codes"], np.split(given["codes"], given["starts"][1:-1], axis=1)
    quadratic = ((z @ given["gram"]) * z).sum(axis=1) / 2 - (z * given["c"]).sum(axis=1)
    penalty = 0.1 * np.abs(z).sum(axis=1) + sum(0.3 * np.linalg.norm(g, axis=1) for g in groups)
    expected = quadratic + given["energy"] / 2 + penalty
    np.testing.assert_allclose(given["objective"], expected, rtol=1e-12)
    assert (given["gap"] <= 1e-9 * given["objective"]).all()
    assert z.any(axis=1).all()
    assert not (nonnegative and (z < 0).any())


@pytest.mark.skipif(len(SETS) < 2, reason="only one instruction set")
@pytest.mark.parametrize("name", ["truncated_products", "block_coordinate"])
def test_instruction_sets_agree(name: str) -> None:
    results = []
    for module in (import_module(f"pursuit._native.{name}") for name in SETS):
        given = products() if name == "truncated_products" else descent()
        returned = getattr(module, name)(**given)
        arrays = [value for value in given.values() if isinstance(value, np.ndarray)]
        results.append([*arrays, np.array(returned, float)])
    for first, *others in zip(*results, strict=True):
        for other in others:
            np.testing.assert_allclose(first, other, rtol=1e-9, atol=1e-9)


def test_no_rows(kernels: Any) -> None:
    kernels.block_coordinate(**descent(0))


CASES: dict[str, Any] = {"truncated_products": products, "block_coordinate": descent}


@pytest.mark.parametrize(
    ("name", "argument"),
    [(name, key) for name, make in CASES.items() for key, value in make().items()
     if isinstance(value, np.ndarray)],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(kernels: Any, name: str, argument: str) -> None:
    given, value = CASES[name](), CASES[name]()[argument]
    longer = np.zeros(tuple(size + 1 for size in value.shape), value.dtype)
    with pytest.raises(ValueError, match="the kernel needs"):
        getattr(kernels, name)(**given | {argument: longer})
    for other in (value.astype(np.float16), value[..., None]):
        with pytest.raises(TypeError):
            getattr(kernels, name)(**given | {argument: other})


@pytest.mark.parametrize(
    "starts", [[1, 1, 1, 9, 21, 40], [0, 9, 1, 9, 21, 40], [0, 1, 1, 9, 21, 41]]
)
def test_blocks_that_do_not_cover_the_coefficients_are_refused(
    kernels: Any, starts: list[int]
) -> None:
    with pytest.raises(ValueError, match="from 0 to q"):
        kernels.block_coordinate(**descent() | {"starts": np.array(starts)})
