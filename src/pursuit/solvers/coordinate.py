"""Exact Lasso codes on the Gram matrix, also weighted, non-negative and with a ridge."""

from __future__ import annotations

import numpy as np
import torch

from .._native import kernels
from ..certificates import rounding_unit
from ..models import SparseModel
from ..operators.base import gram_matrix
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, converted, correlations, run

#: the largest number of coefficients for which a Gram matrix is built
LARGEST = 8192


def gram_misfit(model: SparseModel) -> str | None:
    """What a model lacks for a solver on the Gram matrix, or None."""
    if model.operator.identity_size > 0:
        return "a dictionary without an identity block"
    if model.code_size > LARGEST or not model.operator.is_small:
        return f"a stored dictionary of at most {LARGEST} atoms"
    if model.device.type != "cpu":
        return "a model on the CPU"
    sign = model.penalty.sign_constraint(model.code_size)
    if sign is not None and not bool(sign.all()):
        return "one sign constraint for all coefficients"
    return None


def weight_misfit(model: SparseModel) -> str | None:
    """What a model lacks for a solver that needs a weight on every coefficient, or None."""
    if not bool(model.nonsmooth.penalised(model.code_size).all()):
        return "a positive weight on every coefficient"
    return None


def _misfit(model: SparseModel) -> str | None:
    if not model.separable or model.nonsmooth.weights(model.code_size) is None:
        return "a penalty that is a weighted sum of absolute values"
    return gram_misfit(model) or weight_misfit(model)


class _Kernel:
    """The compiled search with the constants of one problem."""

    def __init__(self, problem: Problem) -> None:
        model, size = problem.model, problem.model.code_size
        self.warm, self.tol, self.max_iter = problem.init is not None, problem.tol, problem.max_iter
        self.rounding = rounding_unit(model)
        exact = converted(model.dictionary.detach(), torch.float64)
        self.atoms, self.exact_atoms = as_array(model.dictionary), as_array(exact)
        gram, self.ridge = gram_matrix(exact), np.zeros(size)
        if model.curvature is not None:
            self.ridge = as_array(model.curvature)
            gram.diagonal().add_(model.curvature)
        # made by torch, both begin at a cache line, which is worth a tenth of the time
        self.gram = as_array(gram)
        narrow = as_array(converted(gram, torch.float32))
        self.grams = {narrow.dtype: narrow, self.gram.dtype: self.gram}
        weights = model.nonsmooth.weights(size)
        assert weights is not None
        self.lam = as_array(weights)
        self.nonnegative = model.penalty.sign_constraint(size) is not None

    def solve_tile(self, x: Array, rows: Rows) -> None:
        """Solve some rows; repeat in double precision those that single does not certify."""
        if self.nonnegative:  # the kernel keeps the signs of the start
            np.maximum(rows.codes, 0, out=rows.codes)
        self._search(x, correlations(x, self.atoms), rows, self.warm)
        if x.dtype == np.float64:
            return
        missed = np.flatnonzero(~(rows.gap <= self.tol * rows.objective))
        if len(missed) > 0:
            part = rows.take(missed)
            part.codes[~np.isfinite(part.codes)] = 0  # after an overflow in single precision
            exact = correlations(x[missed].astype(np.float64), self.exact_atoms)
            self._search(x[missed], exact, part, True)
            for array, better in zip(rows, part, strict=True):
                array[missed] = better

    def _search(self, x: Array, c: Array, rows: Rows, warm: bool) -> None:
        """Search in the dtype of the correlations."""
        kernels.active_set(
            x, c, self.grams[c.dtype], self.gram, self.atoms, self.lam, self.ridge,
            nonnegative=self.nonnegative, tol=self.tol, max_iter=self.max_iter,
            rounding=self.rounding, warm=warm, **rows._asdict(),
        )  # fmt: skip


def _run(problem: Problem) -> Result:
    return run(_Kernel(problem).solve_tile, problem)


COORDINATE = Solver("coordinate", _run, _misfit, max_iter=10_000)
