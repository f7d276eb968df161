"""Exact Lasso codes on the Gram matrix: weighted, non-negative and elastic forms as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..models import RobustPCA, SparseModel
from .solution import Problem, Result, Solver
from .tiles import as_array, for_each_tile, stretches

__all__ = ["COORDINATE", "gram_misfit"]

Array = np.ndarray[Any, Any]

#: beyond this many coefficients the Gram matrix itself is the burden
LARGEST = 8192


def gram_misfit(model: SparseModel) -> str | None:
    """What a solver on the Gram matrix lacks, or None."""
    if isinstance(model, RobustPCA):
        return "a dictionary without an identity block"
    if model.code_size > LARGEST:
        return f"at most {LARGEST} coefficients"
    if model.device.type != "cpu":
        return "a model on the CPU"
    sign = model.penalty.nonnegative(model.code_size)
    if sign is not None and not bool(sign.all()):
        return "one sign constraint for all coefficients"
    if not bool(model.nonsmooth.penalised(model.code_size).all()):
        return "a positive weight on every coefficient"
    return None


def _misfit(model: SparseModel) -> str | None:
    if not model.nonsmooth.separable:
        return "a penalty that is a sum over single coefficients"
    return gram_misfit(model)


def _run(problem: Problem) -> Result:
    model, x = problem.model, problem.x
    size = model.code_size
    # of a penalty that is a sum over coefficients, the value at a unit vector is its weight
    lam = as_array(model.nonsmooth.value(torch.eye(size, dtype=torch.float64)))
    ridge = np.zeros(size) if model.curvature is None else as_array(model.curvature)
    kernel = _Kernel(
        atoms=as_array(model.dictionary),
        lam=lam,
        ridge=ridge,
        nonnegative=model.penalty.nonnegative(size) is not None,
        tol=problem.tol,
        max_iter=problem.max_iter,
    )
    warm = problem.init is not None
    codes = x.new_zeros(len(x), size) if problem.init is None else problem.init.clone()
    objective, gap = np.empty(len(x)), np.empty(len(x))
    iterations = np.empty(len(x), np.int64)
    results = codes.numpy(), objective, gap, iterations
    transposed = model.dictionary.T
    for stretch in stretches(len(x)):
        signals = as_array(x[stretch])
        correlations = as_array(x[stretch] @ transposed)
        outputs = [result[stretch] for result in results]

        def work(
            tile: slice,
            signals: Array = signals,
            correlations: Array = correlations,
            outputs: list[Array] = outputs,
        ) -> None:
            part = [output[tile] for output in outputs]
            kernel.search(signals[tile], correlations[tile], part, warm)
            if signals.dtype == np.float32:
                kernel.finish_in_double(signals[tile], part)

        for_each_tile(work, len(signals))
    return Result(codes, int(iterations.max()), torch.from_numpy(objective), torch.from_numpy(gap))


class _Kernel:
    """The compiled search with what it needs of one model."""

    def __init__(
        self, atoms: Array, lam: Array, ridge: Array, nonnegative: bool, tol: float, max_iter: int
    ) -> None:
        self.atoms, self.lam, self.ridge = atoms, lam, ridge
        self.nonnegative, self.tol, self.max_iter = nonnegative, tol, max_iter
        exact = atoms.astype(np.float64)
        self.gram = exact @ exact.T + np.diag(ridge)
        self.grams = {np.dtype(t): self.gram.astype(t) for t in (np.float32, np.float64)}

    def search(self, x: Array, correlations: Array, outputs: list[Array], warm: bool) -> None:
        """Solve rows in the precision of their correlations; `outputs` are written."""
        from .coordinate_kernels import active_set

        dtype = correlations.dtype
        excess = np.empty(len(self.lam) + 1, dtype)
        bits = excess.view(np.int32 if dtype == np.float32 else np.int64)
        active_set(
            x, correlations, self.grams[dtype], self.atoms, self.gram, self.lam, self.ridge,
            self.nonnegative, *outputs, excess, bits, warm, self.tol, self.max_iter,
        )  # fmt: skip

    def finish_in_double(self, x: Array, outputs: list[Array]) -> None:
        """Go on in double precision where single did not suffice to certify the tolerance."""
        _, objective, gap, _ = outputs
        left = np.flatnonzero(~(gap <= self.tol * objective))
        if len(left) == 0:
            return
        part = [output[left] for output in outputs]
        correlations = x[left].astype(np.float64) @ self.atoms.T.astype(np.float64)
        self.search(x[left], correlations, part, warm=True)
        for output, better in zip(outputs, part, strict=True):
            output[left] = better


COORDINATE = Solver("coordinate", _run, _misfit, max_iter=10_000)
