"""Exact codes of robust PCA and robust NMF: without the outliers, a Huber problem in the scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .._native import kernels
from ..certificates import rounding_unit
from ..models import SparseModel
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, run

#: a fraction of ||D0||^2 below which lam_star is too small for the inverse by the smaller side
CANCELLING = 1e-9
#: the kernels take rows of a multiple of this length: the longest vector of any processor
PADDED = 16


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
    """Estimate whether `newton` is faster than `huber_fista` on a model that fits both.

    In units of one pair of passes over D0, 2 q m multiplications, a Newton step costs about
    1 + q/16 + q^2/(3m): the passes, the masked Gram matrix (its first sum and the updates), the
    factorisation. Four steps are typical. FISTA takes about 6 sqrt(k) steps of one unit for robust
    NMF, where k = (||D0||^2 + lam_star)/(smallest eigenvalue of the Gram matrix + lam_star), and 15
    for robust PCA, where the metric D0 D0' + lam_star I makes k irrelevant (7 to 30: more if most
    features are outliers). Fitted to a gap of 1e-6 at q 5 to 200, m 64 to 2049, k 2 to 10^4; on
    72 other models it chose the slower method 18 times, and never lost more than a factor of 1.4.
    """
    robust = _robust(model)
    assert robust is not None
    d0 = as_array(model.dictionary).astype(np.float64)
    q, m = d0.shape
    fista_steps = 15.0
    if robust.nonnegative:
        # the Gram matrix of the smaller side has the same eigenvalues, apart from zeros
        eigenvalues = np.maximum(np.linalg.eigvalsh(d0 @ d0.T if q <= m else d0.T @ d0), 0.0)
        smallest = eigenvalues[0] if q <= m else 0.0
        condition = (eigenvalues[-1] + robust.lam_star) / (smallest + robust.lam_star)
        fista_steps = 6 * float(condition) ** 0.5
    return bool(4 * (1 + q / 16 + q * q / (3 * m)) < fista_steps)


class _Kernel:
    """A compiled solver with the constants of one model."""

    def __init__(self, name: str, model: SparseModel, tol: float, max_iter: int) -> None:
        robust = _robust(model)
        assert robust is not None
        self.solve = getattr(kernels, name)
        self.constants = _dictionary(as_array(model.dictionary), robust.lam_star)
        self.constants |= robust._asdict() | {"tol": tol, "max_iter": max_iter}
        self.constants["rounding"] = rounding_unit(model)

    def __call__(self, problem: Problem) -> Result:
        return run(self.solve_tile, problem)

    def solve_tile(self, x: Array, rows: Rows) -> None:
        self.solve(x, **self.constants, **rows._asdict())


def _dictionary(d0: Array, lam_star: float) -> dict[str, Any]:
    """What the kernels read of D0 (q, m): copies in both precisions, and products.

    Rows are padded with zeros to a multiple of `PADDED`.
    """
    exact = d0.astype(np.float64)
    gram = exact @ exact.T
    ridge, norm = _ridge_inverse(exact, gram, lam_star)
    # Smaller numbers are below the rounding of float32, and their subnormal products are slow.
    floor = 1e-10 * np.max(np.abs(exact), initial=0.0)
    single = np.where(np.abs(exact) > floor, exact, 0.0).astype(np.float32)
    return {
        "atoms": _padded(exact),
        "features": _padded(exact.T),
        "single_atoms": _padded(single),
        "single_features": _padded(single.T),
        "gram": _padded(gram),
        "ridge": _padded(ridge),
        "step_constant": norm + lam_star,
    }


def _ridge_inverse(d0: Array, gram: Array, lam_star: float) -> tuple[Array, float]:
    """``(D0 D0' + lam_star I)^-1`` and ``||D0||^2``, by the eigenvalues of the smaller side.

    With ``D0' D0 = V diag(e) V'`` and ``W = D0 V`` the inverse is
    ``(I - W diag(1/(e + lam_star)) W') / lam_star``; that cancels if lam_star is much smaller than
    e, and the larger side is used then as well.
    """
    if len(d0) > d0.shape[1]:
        eigenvalues, vectors = np.linalg.eigh(d0.T @ d0)
        norm = max(float(eigenvalues[-1]), 0.0)
        if lam_star > CANCELLING * norm:
            image = d0 @ vectors
            inverse = (image / (-lam_star * (np.maximum(eigenvalues, 0.0) + lam_star))) @ image.T
            np.einsum("ii->i", inverse)[:] += 1 / lam_star
            return inverse, norm
    eigenvalues, vectors = np.linalg.eigh(gram)
    eigenvalues = np.maximum(eigenvalues, 0.0)
    return (vectors / (eigenvalues + lam_star)) @ vectors.T, float(eigenvalues[-1])


def _padded(values: Array) -> Array:
    """Copy with more columns of zeros; it begins at a cache line, which is faster."""
    rows, columns = values.shape
    width = -(-columns // PADDED) * PADDED
    memory = np.zeros(rows * width + 64 // values.itemsize, values.dtype)
    first = -memory.ctypes.data % 64 // values.itemsize
    copy = memory[first : first + rows * width].reshape(rows, width)
    copy[:, :columns] = values
    return copy


def _prepare_newton(model: SparseModel, tol: float, max_iter: int) -> _Kernel:
    return _Kernel("huber_newton", model, tol, max_iter)


def _prepare_fista(model: SparseModel, tol: float, max_iter: int) -> _Kernel:
    return _Kernel("huber_fista", model, tol, max_iter)


def _run_newton(problem: Problem) -> Result:
    return _prepare_newton(problem.model, problem.tol, problem.max_iter)(problem)


def _run_fista(problem: Problem) -> Result:
    return _prepare_fista(problem.model, problem.tol, problem.max_iter)(problem)


NEWTON = Solver("newton", _run_newton, _misfit, max_iter=200, prepare=_prepare_newton)
HUBER_FISTA = Solver("huber_fista", _run_fista, _misfit, max_iter=10_000, prepare=_prepare_fista)
