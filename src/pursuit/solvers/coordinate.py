"""Exact Lasso codes on the Gram matrix: weighted, non-negative and elastic forms as well."""

from __future__ import annotations

from functools import partial

import numpy as np
from torch import Tensor

from ..models import SparseModel
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, correlations, for_each_tile

__all__ = ["COORDINATE", "gram_misfit"]

#: beyond this many coefficients the Gram matrix itself is the burden
LARGEST = 8192


def gram_misfit(model: SparseModel) -> str | None:
    """What a solver on the Gram matrix lacks, or None."""
    if model.operator.identity_size > 0:
        return "a dictionary without an identity block"
    if model.code_size > LARGEST:
        return f"at most {LARGEST} coefficients"
    if model.device.type != "cpu":
        return "a model on the CPU"
    sign = model.penalty.sign_constraint(model.code_size)
    if sign is not None and not bool(sign.all()):
        return "one sign constraint for all coefficients"
    if not bool(model.nonsmooth.penalised(model.code_size).all()):
        return "a positive weight on every coefficient"
    return None


def _misfit(model: SparseModel) -> str | None:
    if not model.separable or model.nonsmooth.weights(model.code_size) is None:
        return "a penalty that is a weighted sum of absolute values"
    return gram_misfit(model)


def _weights(model: SparseModel) -> Tensor:
    weights = model.nonsmooth.weights(model.code_size)
    assert weights is not None
    return weights


def _run(problem: Problem) -> Result:
    kernel = _Kernel(problem)
    rows = Rows.of(problem)
    for_each_tile(partial(kernel.solve_tile, as_array(problem.x), rows), len(problem.x))
    return rows.result()


class _Kernel:
    """The compiled search with what it needs of one problem."""

    def __init__(self, problem: Problem) -> None:
        model = problem.model
        size = model.code_size
        self.warm = problem.init is not None
        self.tol, self.max_iter = problem.tol, problem.max_iter
        self.nonnegative = model.penalty.sign_constraint(size) is not None
        self.lam = as_array(_weights(model))
        self.ridge = np.zeros(size) if model.curvature is None else as_array(model.curvature)
        self.atoms = as_array(model.dictionary)
        exact = model.dictionary.detach().double()
        self.exact_atoms = as_array(exact)
        self.gram = as_array(exact @ exact.T)
        np.einsum("ii->i", self.gram)[:] += self.ridge
        self.grams = {
            np.dtype(t): self.gram.astype(t, copy=False) for t in (np.float32, np.float64)
        }

    def solve_tile(self, x: Array, rows: Rows, tile: slice) -> None:
        """Solve some rows; where single precision does not certify them, go on in double."""
        x, rows = x[tile], rows.part(tile)
        self._search(x, correlations(x, self.atoms), rows, self.warm)
        if x.dtype == np.float64:
            return
        left = np.flatnonzero(~(rows.gap <= self.tol * rows.objective))
        if len(left) > 0:
            part = Rows(*(array[left] for array in rows))
            exact = correlations(x[left].astype(np.float64), self.exact_atoms)
            self._search(x[left], exact, part, True)
            for array, better in zip(rows, part, strict=True):
                array[left] = better

    def _search(self, x: Array, c: Array, rows: Rows, warm: bool) -> None:
        from .coordinate_kernels import active_set

        dtype = c.dtype
        excess = np.empty(len(self.lam) + 1, dtype)
        bits = excess.view(np.int32 if dtype == np.float32 else np.int64)
        active_set(
            x, c, self.grams[dtype], self.atoms, self.gram, self.lam, self.ridge,
            self.nonnegative, rows.codes, rows.objective, rows.gap, rows.iterations, excess, bits,
            warm, self.tol, self.max_iter,
        )  # fmt: skip


COORDINATE = Solver("coordinate", _run, _misfit, max_iter=10_000)
