"""Exact codes of NMF: non-negative least squares by the Lasso's active sets.

The quickest kernel needs a positive weight on every coefficient. It is given one of 1e-12 for
signals of unit norm, in float64. What it finds is certified for the problem without a weight. Rows
that are not optimal enough, such as sums of atoms, whose objective is zero, are solved once more on
their support without it; those that are still not (dictionaries close to singular) go on by FISTA,
unless what is missing is a matter of rounding.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..certificates import Certificate, is_met, round_codes
from ..models import SparseModel
from ..penalties import L1, Elastic, Penalty
from .coordinate import COORDINATE, gram_misfit
from .restart import RESTART
from .solution import Problem, Result, Solver

__all__ = ["NONNEGATIVE"]

#: the weight, for signals and atoms of unit norm
WEIGHT = 1e-12
#: gaps below this part of the objective at zero are the weight's and rounding's
ROUNDING = 1e-11
#: numbers that the systems of a batch hold at most
MOST_NUMBERS = 2**24


def _run(problem: Problem) -> Result:
    model, x = problem.model.to(torch.float64), problem.x.double()
    norms = x.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    init = None if problem.init is None else problem.init.double() / norms
    # an active set takes a few rounds an atom; more are spent on rounding
    rounds = min(problem.max_iter, 3 * model.code_size + 50)
    own = replace(problem, model=_weighted(model), x=x / norms, init=init, max_iter=rounds)
    found = COORDINATE.run(own)
    codes, iterations = found.codes * norms, found.iterations
    certificate = Certificate(model)
    objective, gap = certificate.evaluate(x, codes)
    left = ~is_met(gap, objective, problem.tol, problem.x.dtype)
    if bool(left.any()):
        codes[left] = _on_support(model, x[left], codes[left])
        objective[left], gap[left] = certificate.evaluate(x[left], codes[left])
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


def _on_support(model: SparseModel, x: Tensor, codes: Tensor) -> Tensor:
    """Least squares on the support of each row, where that is better and not negative."""
    gram = model.Q
    size, result = len(gram), codes.clone()
    rows = max(1, MOST_NUMBERS // size**2)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        support = (codes[part] > 0).double()
        systems = gram * support[:, :, None] * support[:, None]
        systems = systems + torch.diag_embed(1 - support)
        found, info = torch.linalg.solve_ex(systems, support * (x[part] @ model.dictionary.T))
        better = (info == 0) & (found >= 0).all(dim=1)
        found = torch.where(better[:, None], found, codes[part])
        better = model.objective(x[part], found) <= model.objective(x[part], codes[part])
        result[part] = torch.where(better[:, None], found, codes[part])
    return result


def _weighted(model: SparseModel) -> SparseModel:
    size = float(model.dictionary.norm(dim=1).max())
    penalty: Penalty = L1(WEIGHT * size, nonnegative=True)
    if model.curvature is not None:
        penalty = Elastic(penalty, model.curvature)
    return SparseModel(model.dictionary, penalty)


def _misfit(model: SparseModel) -> str | None:
    sign = model.penalty.sign_constraint(model.code_size)
    if (
        sign is None
        or not bool(sign.all())
        or bool(model.nonsmooth.penalised(model.code_size).any())
    ):
        return "non-negative codes without a weight (NMF)"
    return gram_misfit(_weighted(model))


NONNEGATIVE = Solver("nonnegative", _run, _misfit, max_iter=10_000)
