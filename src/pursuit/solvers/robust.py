"""Exact codes of robust PCA and robust NMF: the outliers eliminated, a Huber problem is left."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..models import RobustNMF, RobustPCA, SparseModel
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, for_each_tile

__all__ = ["HUBER_FISTA", "NEWTON", "prefers_newton"]


def _misfit(model: SparseModel) -> str | None:
    if not isinstance(model, RobustPCA):
        return "the dictionary (D0, I) of RobustPCA or RobustNMF"
    if model.lam_star <= 0:
        return "a positive lam_star"
    if model.device.type != "cpu":
        return "a model on the CPU"
    return None


def prefers_newton(model: SparseModel) -> bool:
    """Whether Newton's method is the quicker of the two on this model."""
    from .robust_kernels import prefer_newton

    if not isinstance(model, RobustPCA) or _misfit(model) is not None:
        return False
    atoms = as_array(model.dictionary).astype(np.float64)
    nonnegative = isinstance(model, RobustNMF)
    return bool(prefer_newton(atoms @ atoms.T, model.lam_star, model.features, nonnegative))


def _run(name: str, problem: Problem) -> Result:
    kernel = _Kernel(name, problem)
    rows = Rows.of(problem)
    for_each_tile(partial(kernel.solve_tile, as_array(problem.x), rows), len(problem.x))
    return rows.result()


class _Kernel:
    """A compiled solver with what it needs of one problem."""

    def __init__(self, name: str, problem: Problem) -> None:
        from . import robust_kernels

        model = problem.model
        assert isinstance(model, RobustPCA)
        self.solve = robust_kernels.newton if name == "newton" else robust_kernels.fista
        self.tables = robust_kernels.tables(as_array(model.dictionary), model.lam_star)
        self.lam = as_array(model.outlier_weights)
        self.nonnegative = isinstance(model, RobustNMF)
        self.atoms = model.atoms
        self.tol, self.max_iter = problem.tol, problem.max_iter

    def solve_tile(self, x: Array, rows: Rows, tile: slice) -> None:
        x, rows = x[tile], rows.part(tile)
        scores = np.ascontiguousarray(rows.codes[:, : self.atoms])
        outliers = np.empty_like(x)
        self.solve(
            x,
            self.tables,
            self.lam,
            self.nonnegative,
            scores,
            outliers,
            rows.objective,
            rows.gap,
            rows.iterations,
            self.tol,
            self.max_iter,
        )
        rows.gap[:] += 16 * np.finfo(np.float64).eps * rows.objective  # as `certify` does
        rows.codes[:, : self.atoms] = scores
        rows.codes[:, self.atoms :] = outliers


NEWTON = Solver("newton", partial(_run, "newton"), _misfit, max_iter=200)
HUBER_FISTA = Solver("huber_fista", partial(_run, "huber_fista"), _misfit, max_iter=10_000)
