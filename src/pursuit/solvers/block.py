"""Exact codes of the group Lasso and HiLasso on the Gram matrix, block by block."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..models import SparseModel
from ..penalties import TreeL2
from .coordinate import gram_misfit
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, correlations, for_each_tile

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
    for_each_tile(partial(kernel.solve_tile, as_array(problem.x), rows), len(problem.x))
    return rows.result()


class _Kernel:
    """The compiled solver with what it needs of one problem."""

    def __init__(self, problem: Problem) -> None:
        model = problem.model.to(torch.float64)
        self.tol, self.max_iter = problem.tol, problem.max_iter
        blocks = model.blocks
        # the kernel wants the coefficients of a block side by side
        order = torch.tensor([i for block in blocks for i in block])
        atoms = model.dictionary[order]
        gram = atoms @ atoms.T
        if model.curvature is not None:
            gram = gram + torch.diag(model.curvature[order])
        w, v = _weights(model, blocks)
        self.order, self.atoms = as_array(order), as_array(atoms)
        self.gram, self.starts = as_array(gram), np.cumsum([0, *map(len, blocks)])
        self.w, self.v = as_array(w[order]), as_array(v)
        self.constants = as_array(model.block_constants)
        self.nonnegative = model.penalty.sign_constraint(model.code_size) is not None

    def solve_tile(self, x: Array, rows: Rows, tile: slice) -> None:
        rows = rows.part(tile)
        signals = x[tile].astype(np.float64)
        c, energy = correlations(signals, self.atoms), np.square(signals).sum(axis=1)
        codes = rows.codes[:, self.order].astype(np.float64)
        # rounding the codes costs a little of what was certified
        self._solve(c, energy, codes, rows, 0.9 * self.tol, self.max_iter)
        rows.gap[:] += 16 * np.finfo(np.float64).eps * rows.objective  # as `certify` does
        rows.codes[:, self.order] = codes
        if x.dtype == np.float32:
            # the dual point of the exact codes serves the rounded ones, see `round_codes`
            stored = rows.codes[:, self.order].astype(np.float64)
            rounded = Rows(*(np.empty_like(array) for array in rows))
            self._solve(c, energy, stored, rounded, 0.0, 0)
            rows.gap[:] += np.maximum(rounded.objective - rows.objective, 0.0)
            rows.objective[:] = rounded.objective

    def _solve(
        self, c: Array, energy: Array, codes: Array, rows: Rows, tol: float, max_iter: int
    ) -> None:
        """Run the kernel; without iterations it evaluates the codes."""
        from .block_kernels import block_coordinate

        block_coordinate(
            c,
            energy,
            self.gram,
            self.starts,
            self.w,
            self.v,
            self.constants,
            self.nonnegative,
            codes,
            rows.objective,
            rows.gap,
            rows.iterations,
            tol,
            max_iter,
        )


def _weights(model: SparseModel, blocks: list[list[int]]) -> tuple[Tensor, Tensor]:
    """The weights of the single coefficients (q,) and of the blocks."""
    penalty = model.nonsmooth
    assert isinstance(penalty, TreeL2)
    w = torch.zeros(model.code_size, dtype=torch.float64)
    v = torch.zeros(len(blocks), dtype=torch.float64)
    for level in penalty.levels:
        weights = level.lam.expand(len(level.groups))
        for group, weight in zip(level.groups, weights, strict=True):
            if level.singletons:
                w[group[0]] += weight
            else:
                v[model.block_labels[group[0]]] += weight
    return w, v


BLOCK_COORDINATE = Solver("block_coordinate", _run, _misfit, max_iter=10_000)
