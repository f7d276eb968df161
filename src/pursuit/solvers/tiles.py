"""Running a compiled kernel over the rows of a batch, tile by tile, on several threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._native import kernels
from .._threads import work_through
from .solution import Problem, Result

Array = np.ndarray[Any, Any]

#: rows that one thread solves at a time, so that a tile and its scratch memory stay in the cache
TILE = 512


class Rows(NamedTuple):
    """What a kernel writes for some rows; `codes` holds the start on entry."""

    codes: Array
    objective: Array
    gap: Array
    iterations: Array

    def take(self, rows: slice | Array) -> Rows:
        """Return some of the rows: views of a slice, copies of rows given by their indices."""
        return Rows(*(array[rows] for array in self))


def run(solve_tile: Callable[[Array, Rows], None], problem: Problem) -> Result:
    """Solve all rows by a function of the signals of a tile and the rows that it writes."""
    x, n = as_array(problem.x), len(problem.x)
    size, start = problem.model.code_size, problem.init
    codes = np.zeros((n, size), x.dtype) if start is None else as_array(start).copy()
    rows = Rows(codes, np.empty(n), np.empty(n), np.empty(n, np.int64))
    _for_each_tile(lambda tile: solve_tile(x[tile], rows.take(tile)), n)
    solved, objective, gap = (torch.from_numpy(array) for array in rows[:3])
    return Result(solved, int(rows.iterations.max()), objective, gap)


def _for_each_tile(work: Callable[[slice], None], rows: int) -> None:
    """Call `work` with every tile of the rows, on as many threads as torch uses.

    The kernels release the interpreter's lock. They are threaded here, so that torch's setting
    applies to them and no second pool competes for the cores.
    """
    length = min(TILE, -(-rows // torch.get_num_threads()))  # small batches use all threads too
    tiles = [slice(start, min(start + length, rows)) for start in range(0, rows, length)]
    work_through(tiles, lambda: work, min(torch.get_num_threads(), len(tiles)))


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as a contiguous array, without a copy where none is needed."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy in another dtype; by NumPy, since threads of torch would spin on the cores."""
    copy = torch.empty(tensor.shape, dtype=dtype)
    copy.numpy()[...] = as_array(tensor)
    return copy


def correlations(x: Array, atoms: Array) -> Array:
    """``x atoms'`` on the calling thread.

    Threads of BLAS would spin for milliseconds after a call, on the cores that other tiles need.
    The result begins at a cache line, as memory of torch does and memory of NumPy does not.
    """
    out = torch.from_numpy(x).new_empty(len(x), len(atoms)).numpy()
    kernels.correlate(x, atoms, out)
    return out
