"""Exact codes of NMF: non-negative least squares by the Lasso's active sets.

The fastest kernel needs a positive weight on every coefficient. It gets a weight of 1e-12, for
signals of unit norm, in float64, and its codes are certified for the problem without a weight. Rows
that miss the tolerance (such as sums of atoms, whose objective is zero) are solved again on their
support without the weight; if they still miss it (dictionaries close to singular), by Lawson and
Hanson's algorithm, which needs no Gram matrix.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..certificates import Certificate, is_met, round_codes
from ..models import SparseModel
from ..operators.matrices import without_zero_atoms
from ..penalties import L1, Elastic, Penalty
from .coordinate import COORDINATE, gram_misfit
from .solution import Problem, Result, Solver
from .tiles import as_array

#: the weight, for signals and atoms of unit norm
WEIGHT = 1e-12
#: gaps below this fraction of the objective at zero are due to the weight and to rounding
ROUNDING = 1e-11
#: the largest number of entries in a batch of linear systems
MOST_NUMBERS = 2**24


def _run(problem: Problem) -> Result:
    model = problem.model.to(torch.float64)
    # by NumPy, since threads of torch would spin on the cores that the active sets need
    signals = as_array(problem.x).astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", signals, signals))[:, None]
    lengths = np.maximum(lengths, np.finfo(np.float64).tiny)
    x, norms, units = map(torch.from_numpy, (signals, lengths, signals / lengths))
    init = None if problem.init is None else problem.init.double() / norms
    # an active set takes a few rounds per atom; further rounds only fight rounding
    rounds = min(problem.max_iter, 3 * model.code_size + 50)
    weighted = replace(problem, model=_weighted(model), x=units, init=init, max_iter=rounds)
    lasso = COORDINATE.run(weighted)
    codes = lasso.codes * norms
    certificate = Certificate(model)
    objective, gap = certificate.evaluate(x, codes)
    missed = ~is_met(gap, objective, problem.tol, problem.x.dtype)
    if bool(missed.any()):
        codes[missed] = _on_support(model, x[missed], codes[missed])
        objective[missed], gap[missed] = certificate.evaluate(x[missed], codes[missed])
    missed = ~is_met(gap, objective, problem.tol, problem.x.dtype)
    missed &= gap > ROUNDING * norms[:, 0].square() / 2
    if bool(missed.any()):
        codes[missed] = _without_gram_matrix(model, x[missed], codes[missed])
        objective[missed], gap[missed] = certificate.evaluate(x[missed], codes[missed])
    codes, objective, gap = round_codes(model, problem.x, codes, objective, gap)
    return Result(codes, lasso.iterations, objective, gap)


def _on_support(model: SparseModel, x: Tensor, codes: Tensor) -> Tensor:
    """Least squares on the support of each row, where it is non-negative and better."""
    gram = model.Q
    size, result = len(gram), codes.clone()
    rows = max(1, MOST_NUMBERS // size**2)
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        support = (codes[part] > 0).double()
        systems = gram * support[:, :, None] * support[:, None]
        systems = systems + torch.diag_embed(1 - support)
        solved, info = torch.linalg.solve_ex(systems, support * (x[part] @ model.dictionary.T))
        feasible = (info == 0) & (solved >= 0).all(dim=1)
        solved = torch.where(feasible[:, None], solved, codes[part])
        better = model.objective(x[part], solved) <= model.objective(x[part], codes[part])
        result[part] = torch.where(better[:, None], solved, codes[part])
    return result


def _without_gram_matrix(model: SparseModel, x: Tensor, codes: Tensor) -> Tensor:
    """Non-negative least squares of (x, 0) by the columns (D_i, sqrt(ridge_i) e_i), where better.

    Their condition number is the root of that of the Gram matrix.
    """
    from scipy.optimize import nnls

    columns = model.dictionary.numpy().T
    if model.curvature is not None:
        columns = np.concatenate([columns, np.diag(model.curvature.sqrt().numpy())])
    sides = np.zeros((len(x), len(columns)))
    sides[:, : x.shape[1]] = x.numpy()
    solved = codes.clone()
    for row, side in zip(solved, sides, strict=True):
        with suppress(RuntimeError):  # too many iterations
            row.copy_(torch.from_numpy(nnls(columns, side)[0]))
    better = model.objective(x, solved) < model.objective(x, codes)
    return torch.where(better[:, None], solved, codes)


def _weighted(model: SparseModel) -> SparseModel:
    """Return the model with a negligible weight on every coefficient, a large one on zero atoms."""
    size = float(model.dictionary.norm(dim=1).max()) or 1.0
    atoms = without_zero_atoms(model.dictionary)
    unused = (atoms != model.dictionary).any(dim=1)
    penalty: Penalty = L1(torch.where(unused, size, WEIGHT * size), nonnegative=True)
    if model.curvature is not None:
        penalty = Elastic(penalty, model.curvature)
    return SparseModel(atoms, penalty)


def _misfit(model: SparseModel) -> str | None:
    sign = model.penalty.sign_constraint(model.code_size)
    weighted = model.nonsmooth.penalised(model.code_size)
    if sign is None or not bool(sign.all()) or bool(weighted.any()):
        return "non-negative codes without a weight (NMF)"
    return gram_misfit(model)


NONNEGATIVE = Solver("nonnegative", _run, _misfit, max_iter=10_000)
