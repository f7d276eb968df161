"""Exact codes with a bound on the iterations, and how far other codes are from the optimum."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._checks import as_signals
from ..models import SparseModel
from .restart import RESTART
from .solution import Problem, Result, Solver
from .solve import choose

#: relative gap of codes that count as exact
EXACT = 1e-6
#: relative gap of codes from which a dictionary is learned
ROUGH = 1e-3
#: the most iterations of the general solver, for tolerances of at least `ROUGH` and smaller ones
ROUGH_ITERATIONS, MOST_ITERATIONS = 200, 2000
#: the optimum counts as at least this fraction of the objective of zero codes
LEAST_OBJECTIVE = 1e-3


def exact_codes(model: SparseModel, x: Tensor, tol: float = EXACT) -> Tensor:
    """Return the codes that solve the model, with a limit on the iterations of slow solvers.

    Models that have a specialised solver are solved to the relative gap `tol`. All others are
    solved by FISTA with restart, in at most 2000 iterations, or 200 if `tol` is 1e-3 or more.
    """
    return Coder(model, tol)(x)


class Coder:
    """`exact_codes` of one model, which computes once what does not depend on the signals.

    That pays where signals come one by one. The model must not change.
    """

    def __init__(self, model: SparseModel, tol: float = EXACT) -> None:
        self.model, self.tol = model, tol
        self._prepared: dict[torch.dtype, tuple[SparseModel, Callable[[Problem], Result]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_prepared": {}}  # it can be computed again

    def __call__(self, x: Tensor) -> Tensor:
        """Return the codes of signals, shape (n, q)."""
        signals, _ = as_signals(x, self.model.features, self.model.device, None)
        signals = signals.detach()
        if signals.dtype not in self._prepared:
            self._prepared[signals.dtype] = self._prepare(signals.dtype)
        model, run = self._prepared[signals.dtype]
        with torch.no_grad():
            return run(Problem(model, signals, None, None, self.tol, self._most)).codes

    @cached_property
    def _solver(self) -> Solver:
        return choose(self.model)

    @property
    def _most(self) -> int:
        if self._solver is not RESTART:
            return self._solver.max_iter
        return ROUGH_ITERATIONS if self.tol >= ROUGH else MOST_ITERATIONS

    def _prepare(self, dtype: torch.dtype) -> tuple[SparseModel, Callable[[Problem], Result]]:
        model, prepare = self.model.to(dtype), self._solver.prepare
        run = self._solver.run if prepare is None else prepare(model, self.tol, self._most)
        return model, run


def mean_excess(model: SparseModel, x: Tensor, codes: Tensor) -> float:
    """Return ``mean(F - F*) / mean(F*)``, F* the optimum; inf if the codes are not finite.

    The denominator is at least a thousandth of the mean objective of zero codes, so that the excess
    is also defined for data that the model explains completely. Everything is computed in float64.
    """
    x, codes = x.double(), codes.double()
    model = model.to(torch.float64)
    best = model.objective(x, exact_codes(model, x)).mean()
    zero = x.square().sum(dim=1).mean() / 2
    reached = model.objective(x, codes).mean()
    unit = torch.maximum(best, LEAST_OBJECTIVE * zero).clamp_min(torch.finfo(torch.float64).tiny)
    excess = float((reached - best) / unit)
    return max(excess, 0.0) if math.isfinite(excess) else math.inf
