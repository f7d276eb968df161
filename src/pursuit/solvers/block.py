"""Exact codes of the group Lasso and HiLasso on the Gram matrix, block by block."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..certificates import round_codes
from ..models import SparseModel
from ..penalties import TreeL2
from .coordinate import gram_misfit
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, for_each_tile, stretches

__all__ = ["BLOCK_COORDINATE"]


def _misfit(model: SparseModel) -> str | None:
    penalty = model.nonsmooth
    if not isinstance(penalty, TreeL2):
        return "groups (GroupL2, or TreeL2 with single coefficients as leaves)"
    if len(penalty.levels) > 2 or (len(penalty.levels) == 2 and not penalty.levels[0].singletons):
        return "one level of groups, with at most single coefficients below it"
    return gram_misfit(model)


def _run(problem: Problem) -> Result:
    kernel = _Kernel(problem)
    rows = Rows.of(problem)
    for stretch in stretches(len(problem.x)):
        x = problem.x[stretch]
        correlations = as_array(x.double() @ kernel.atoms.T)
        work = partial(kernel.solve_tile, x, correlations, rows.part(stretch))
        for_each_tile(work, len(x))
    return rows.result()


class _Kernel:
    """The compiled solver with what it needs of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.model = problem.model.to(torch.float64)
        self.tol, self.max_iter = problem.tol, problem.max_iter
        self.nonnegative = self.model.penalty.nonnegative(self.model.code_size) is not None
        blocks = self.model.blocks
        # the kernel wants the coefficients of a block side by side
        self.order = torch.tensor([i for block in blocks for i in block])
        self.starts = np.cumsum([0, *map(len, blocks)])
        self.atoms = self.model.dictionary[self.order]
        gram = self.atoms @ self.atoms.T
        if self.model.curvature is not None:
            gram = gram + torch.diag(self.model.curvature[self.order])
        self.gram = as_array(gram)
        w, v = _weights(self.model, blocks)
        self.w, self.v = as_array(w[self.order]), as_array(v)
        self.constants = as_array(self.model.block_constants)

    def solve_tile(self, x: Tensor, correlations: Array, rows: Rows, tile: slice) -> None:
        from .block_kernels import block_coordinate

        x, rows = x[tile], rows.part(tile)
        codes = torch.from_numpy(rows.codes)[:, self.order].double().contiguous()
        objective, gap = torch.from_numpy(rows.objective), torch.from_numpy(rows.gap)
        block_coordinate(
            correlations[tile],
            as_array(x.double().square().sum(dim=1)),
            self.gram,
            self.starts,
            self.w,
            self.v,
            self.constants,
            self.nonnegative,
            codes.numpy(),
            rows.objective,
            rows.gap,
            rows.iterations,
            0.9 * self.tol,  # rounding the codes costs a little of what was certified
            self.max_iter,
        )
        gap += 16 * torch.finfo(torch.float64).eps * objective
        codes[:, self.order] = codes.clone()
        stored = round_codes(self.model, x, codes, objective, gap)
        for array, value in zip(rows, stored, strict=False):
            array[:] = value.numpy()


def _weights(model: SparseModel, blocks: list[list[int]]) -> tuple[Tensor, Tensor]:
    """The weights of the single coefficients (q,) and of the blocks."""
    penalty = model.nonsmooth
    assert isinstance(penalty, TreeL2)
    w = torch.zeros(model.code_size, dtype=torch.float64)
    v = torch.zeros(len(blocks), dtype=torch.float64)
    for level in penalty.levels:
        weights = level.weights.expand(len(level.groups))
        for group, weight in zip(level.groups, weights, strict=True):
            if level.singletons:
                w[group[0]] += weight
            else:
                v[model.block_labels[group[0]]] += weight
    return w, v


BLOCK_COORDINATE = Solver("block_coordinate", _run, _misfit, max_iter=10_000)
