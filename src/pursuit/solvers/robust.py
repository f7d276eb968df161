"""Exact codes of robust PCA and robust NMF: the outliers eliminated, a Huber problem is left."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from ..models import SparseModel
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, for_each_tile

__all__ = ["HUBER_FISTA", "NEWTON", "prefers_newton"]


def _misfit(model: SparseModel) -> str | None:
    if model.operator.identity_size == 0:
        return "the dictionary (D0, I) of RobustPCA or RobustNMF"
    if _robust(model) is None:
        return "a positive ridge on the scores, absolute values of the outliers, and one sign"
    if model.device.type != "cpu":
        return "a model on the CPU"
    return None


class _Robust(NamedTuple):
    """The weights of a robust model: lam_star, those of the outliers, and the sign."""

    lam_star: float
    lam: Array
    nonnegative: bool


def _robust(model: SparseModel) -> _Robust | None:
    """The weights, None if the penalty is of another kind."""
    count, size = len(model.dictionary), model.code_size
    weights, curvature = model.nonsmooth.weights(size), model.curvature
    sign = model.penalty.sign_constraint(size)
    if weights is None or curvature is None or not (sign is None or bool(sign.all())):
        return None
    ridge = curvature[:count]
    if bool(weights[:count].any()) or bool(curvature[count:].any()):
        return None
    if not float(ridge[0]) > 0 or bool((ridge != ridge[0]).any()):
        return None
    return _Robust(float(ridge[0]), as_array(weights[count:]), sign is not None)


def prefers_newton(model: SparseModel) -> bool:
    """Whether Newton's method is the quicker of the two on this model."""
    robust = None if _misfit(model) is not None else _robust(model)
    if robust is None:
        return False
    from .robust_kernels import prefer_newton

    atoms = as_array(model.dictionary).astype(np.float64)
    gram = atoms @ atoms.T
    return bool(prefer_newton(gram, robust.lam_star, model.features, robust.nonnegative))


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
        robust = _robust(model)
        assert robust is not None
        self.solve = robust_kernels.newton if name == "newton" else robust_kernels.fista
        self.tables = robust_kernels.tables(as_array(model.dictionary), robust.lam_star)
        self.lam = robust.lam
        self.nonnegative = robust.nonnegative
        self.atoms = len(model.dictionary)
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
