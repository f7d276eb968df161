"""FISTA with restart: the solver for every model without a compiled kernel.

Runs in float64 and in tiles. The momentum of a row restarts when the objective begins to increase
(the gradient test of O'Donoghue and Candes), and a row leaves the batch once it is certified.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..certificates import Certificate, is_met, round_codes
from .solution import Problem, Result, Solver, fits_all

#: the number of rows that are iterated together
TILE = 1024
#: the step of the first certificate, and the factor from one to the next
FIRST_CHECK, CHECK_GROWTH = 16, 1.3


def _run(problem: Problem) -> Result:
    model = problem.model.to(torch.float64)
    certificate = Certificate(model.normalised)
    tiles, most = [], 0
    for start in range(0, len(problem.x), TILE):
        rows = slice(start, start + TILE)
        x = problem.x[rows]
        mask = None if problem.mask is None else problem.mask[rows]
        init = None if problem.init is None else model.to_normalised(problem.init[rows].double())
        z, count = _solve_tile(certificate, x.double(), mask, init, problem.tol, problem.max_iter)
        objective, gap = certificate.evaluate(x.double(), z, mask)
        tiles.append(round_codes(model, x, model.from_normalised(z), objective, gap, mask))
        most = max(most, count)
    codes, objective, gap = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    return Result(codes, most, objective, gap)


def _solve_tile(
    certificate: Certificate,
    x: Tensor,
    mask: Tensor | None,
    init: Tensor | None,
    tol: float,
    max_iter: int,
) -> tuple[Tensor, int]:
    model = certificate.model
    solved = x.new_zeros(len(x), model.code_size) if init is None else init.clone()
    active = torch.arange(len(x), device=x.device)
    z = y = solved.clone()
    t = x.new_ones(len(x), 1)
    step = 1 / model.step_constant
    thresholds = model.nonsmooth.thresholds(step)
    check = min(FIRST_CHECK, max_iter)
    # rounding the codes to the dtype of the data costs a little of the certified accuracy
    tol = 0.9 * tol
    for count in range(1, max_iter + 1):
        new = model.nonsmooth.shrink(y - step * model.gradient(x, y, mask), thresholds)
        change = new - z
        climbing = ((y - new) * change).sum(dim=-1, keepdim=True) > 0
        t = torch.where(climbing, 1.0, t)
        following = (1 + (1 + 4 * t * t).sqrt()) / 2
        y = new + (t - 1) / following * change
        z, t = new, following
        if count < check:
            continue
        check = min(int(check * CHECK_GROWTH) + 1, max_iter)
        objective, gap = certificate.evaluate(x, z, mask)
        open_rows = ~is_met(gap, objective, tol, x.dtype)
        if count == max_iter or not bool(open_rows.any()):
            solved[active] = z
            return solved, count
        if int(open_rows.sum()) <= 0.9 * len(z):
            solved[active] = z
            active, x, z, y, t = (part[open_rows] for part in (active, x, z, y, t))
            mask = None if mask is None else mask[open_rows]
    return solved, max_iter


RESTART = Solver("restart", _run, fits_all, max_iter=20_000, masks=True)
