"""Exact codes of the group Lasso and HiLasso on the Gram matrix, block by block."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .._native import kernels
from ..certificates import rounding_unit
from ..models import SparseModel
from ..operators.base import gram_matrix
from ..penalties import TreeL2
from .coordinate import gram_misfit, weight_misfit
from .solution import Problem, Result, Solver
from .tiles import Array, Rows, as_array, correlations, run


def _misfit(model: SparseModel) -> str | None:
    penalty = model.nonsmooth
    if not isinstance(penalty, TreeL2):
        return "groups (GroupL2, or TreeL2 with single coefficients as leaves)"
    if len(penalty.levels) > 2 or (len(penalty.levels) == 2 and not penalty.levels[0].singletons):
        return "one level of groups, with at most single coefficients below it"
    return gram_misfit(model) or weight_misfit(model)


class _Kernel:
    """The compiled solver with the constants of one problem."""

    def __init__(self, problem: Problem) -> None:
        model = problem.model.to(torch.float64)
        blocks = model.blocks
        # the kernel expects the coefficients of a block to be adjacent
        order = torch.tensor([i for block in blocks for i in block])
        # not by indexing, after which a thread of torch would spin on a core that the tiles need
        atoms = model.dictionary.index_select(0, order)
        none = torch.zeros(len(atoms), dtype=torch.float64)
        ridge = none if model.curvature is None else model.curvature[order]
        w, v = _weights(model, blocks)
        self.order, self.atoms = as_array(order), as_array(atoms)
        self.problem = {
            "atoms": self.atoms,
            "gram": as_array(gram_matrix(atoms) + torch.diag(ridge)),
            "ridge": as_array(ridge),
            "starts": np.cumsum([0, *map(len, blocks)], dtype=np.int64),
            "w": as_array(w[order]),
            "v": as_array(v),
            "constants": as_array(model.block_constants),
            "nonnegative": model.penalty.sign_constraint(model.code_size) is not None,
            # rounding the codes costs a little of the certified accuracy
            "tol": 0.9 * problem.tol,
            "max_iter": problem.max_iter,
            "rounding": rounding_unit(model),
            "single": problem.x.dtype == torch.float32,
        }

    def solve_tile(self, x: Array, rows: Rows) -> None:
        signals = x.astype(np.float64)
        c, energy = correlations(signals, self.atoms), np.square(signals).sum(axis=1)
        codes = rows.codes[:, self.order].astype(np.float64, order="C")
        kernels.block_coordinate(
            signals, c, energy, **self.problem, **rows._replace(codes=codes)._asdict()
        )
        rows.codes[:, self.order] = codes


def _weights(model: SparseModel, blocks: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Weights of the single coefficients, (q,), and of the blocks, (R,)."""
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


def _run(problem: Problem) -> Result:
    return run(_Kernel(problem).solve_tile, problem)


BLOCK_COORDINATE = Solver("block_coordinate", _run, _misfit, max_iter=10_000)
