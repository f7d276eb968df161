"""Exact codes with a bound on the iterations, and how far other codes are from the optimum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..models import SparseModel
from .restart import RESTART
from .solve import choose, solve

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
    solver = choose(model)
    most = None
    if solver is RESTART:
        most = ROUGH_ITERATIONS if tol >= ROUGH else MOST_ITERATIONS
    return solve(model, x, solver.name, tol=tol, max_iter=most).codes


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
