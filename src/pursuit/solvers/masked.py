"""Signals with missing entries: the exact solvers, for all rows that lack the same entries at once.

A missing entry counts as zero in the signal and in every atom, which leaves the objective as it is.
So these rows are a problem without a mask, with a dictionary of their own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..models import SparseModel
from .solution import Problem, Result, Solver


def mask_misfit(model: SparseModel) -> str | None:
    """What a model lacks for a mask on its atoms, or None."""
    if any(t.ndim != 2 or t.shape[1] != model.features for t in model.dictionaries.values()):
        return "a dictionary of matrices"
    return None


def solve_masked(problem: Problem, solver: Solver) -> Result:
    """Solve rows with a mask by a solver that takes none."""
    if problem.mask is None:
        return solver.run(problem)
    codes = problem.x.new_zeros(len(problem.x), problem.model.code_size)
    objective, gap = torch.empty(2, len(codes), dtype=torch.float64)
    most = 0
    patterns, numbers = torch.unique(problem.mask, dim=0, return_inverse=True)
    together = torch.split(torch.argsort(numbers, stable=True), numbers.bincount().tolist())
    for seen, rows in zip(patterns, together, strict=True):
        found = solver.run(_observed(problem, seen, rows))
        codes[rows], objective[rows], gap[rows] = found.codes, found.objective, found.gap
        most = max(most, found.iterations)
    return Result(codes, most, objective, gap)


def _observed(problem: Problem, seen: Tensor, rows: Tensor) -> Problem:
    """The problem of rows that all lack the same entries."""
    model = problem.model
    atoms = {name: tensor * seen for name, tensor in model.dictionaries.items()}
    init = None if problem.init is None else problem.init[rows]
    x = problem.x[rows] * seen
    return replace(problem, model=model.rebind(atoms), x=x, mask=None, init=init)
