"""Exact codes of the group Lasso and HiLasso on the Gram matrix, block by block."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..models import SparseModel
from ..penalties import TreeL2
from .coordinate import Array, gram_misfit
from .solution import Problem, Result, Solver
from .tiles import as_array, for_each_tile, stretches

__all__ = ["BLOCK_COORDINATE"]


def _misfit(model: SparseModel) -> str | None:
    penalty = model.nonsmooth
    if not isinstance(penalty, TreeL2):
        return "groups (GroupL2, or TreeL2 with single coefficients as leaves)"
    if len(penalty.levels) > 2 or (len(penalty.levels) == 2 and not penalty.levels[0].singletons):
        return "one level of groups, with at most single coefficients below it"
    return gram_misfit(model)


def _run(problem: Problem) -> Result:
    from .block_kernels import block_coordinate

    model, x = problem.model, problem.x
    blocks = model.blocks
    # the kernel wants the coefficients of a block side by side
    order = torch.tensor([i for block in blocks for i in block])
    starts = np.cumsum([0, *map(len, blocks)])
    w, v = _weights(model, blocks)
    atoms = model.dictionary.double()[order]
    gram = atoms @ atoms.T
    if model.curvature is not None:
        gram = gram + torch.diag(model.curvature[order])
    shared = (
        as_array(gram),
        starts,
        as_array(w[order]),
        as_array(v),
        as_array(model.block_constants),
        model.penalty.nonnegative(model.code_size) is not None,
    )
    codes = torch.empty(len(x), model.code_size, dtype=x.dtype)
    objective, gap = np.empty(len(x)), np.empty(len(x))
    iterations = np.empty(len(x), np.int64)
    for stretch in stretches(len(x)):
        signals = x[stretch].double()
        correlations = as_array(signals @ atoms.T)
        energy = as_array(signals.square().sum(dim=1))
        part = torch.zeros(len(signals), model.code_size, dtype=x.dtype)
        if problem.init is not None:
            part = problem.init[stretch][:, order].contiguous()
        outputs = [part.numpy(), *(result[stretch] for result in (objective, gap, iterations))]

        def work(
            tile: slice,
            correlations: Array = correlations,
            energy: Array = energy,
            outputs: list[Array] = outputs,
        ) -> None:
            block_coordinate(
                correlations[tile],
                energy[tile],
                *shared,
                *(output[tile] for output in outputs),
                problem.tol,
                problem.max_iter,
            )

        for_each_tile(work, len(correlations))
        codes[stretch, order] = part
    return Result(codes, int(iterations.max()), torch.from_numpy(objective), torch.from_numpy(gap))


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
