"""Exact codes of NMF: non-negative least squares by the Lasso's active sets.

The quickest kernel needs a positive weight on every coefficient. It is given one of 1e-12 for
signals of unit norm, in float64. What it finds is certified for the problem without a weight, and
rows that are not optimal enough (dictionaries close to singular) go on by FISTA, unless what is
missing is a matter of rounding.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..certificates import Certificate, is_met, round_codes
from ..models import NMF, SparseModel
from ..penalties import L1, Elastic, Penalty
from .coordinate import COORDINATE, gram_misfit
from .restart import RESTART
from .solution import Problem, Result, Solver

__all__ = ["NONNEGATIVE"]

#: the weight, for signals and atoms of unit norm
WEIGHT = 1e-12
#: gaps below this part of the objective at zero are the weight's and rounding's
ROUNDING = 1e-11


def _run(problem: Problem) -> Result:
    model, x = problem.model.to(torch.float64), problem.x.double()
    norms = x.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    init = None if problem.init is None else problem.init.double() / norms
    own = replace(problem, model=_weighted(model), x=x / norms, init=init)
    found = COORDINATE.run(own)
    codes, iterations = found.codes * norms, found.iterations
    certificate = Certificate(model)
    objective, gap = certificate.evaluate(x, codes)
    left = ~is_met(gap, objective, problem.tol, problem.x.dtype)
    left &= gap > ROUNDING * norms[:, 0].square() / 2
    if bool(left.any()):
        rest = RESTART.run(replace(problem, model=model, x=x[left], init=codes[left]))
        assert rest.objective is not None
        assert rest.gap is not None
        codes[left], objective[left], gap[left] = rest.codes, rest.objective, rest.gap
        iterations += rest.iterations
    codes, objective, gap = round_codes(model, problem.x, codes, objective, gap)
    return Result(codes, iterations, objective, gap)


def _weighted(model: SparseModel) -> SparseModel:
    size = float(model.dictionary.norm(dim=1).max())
    penalty: Penalty = L1(WEIGHT * size, nonnegative=True)
    if model.curvature is not None:
        penalty = Elastic(penalty, model.curvature)
    return SparseModel(model.dictionary, penalty)


def _misfit(model: SparseModel) -> str | None:
    if not isinstance(model, NMF):
        return "non-negative codes without a weight (NMF)"
    return gram_misfit(_weighted(model))


NONNEGATIVE = Solver("nonnegative", _run, _misfit, max_iter=10_000)
