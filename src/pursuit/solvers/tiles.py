"""Running a compiled kernel over the rows of a batch, tile by tile, on several threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .solution import Problem, Result

__all__ = ["Array", "Rows", "as_array", "correlations", "for_each_tile"]

Array = np.ndarray[Any, Any]

#: rows that one thread works on at a time: a tile and its scratch stay in the cache
TILE = 512


def as_array(tensor: Tensor) -> Array:
    """A tensor as a contiguous array, without a copy where none is needed."""
    return np.ascontiguousarray(tensor.detach().cpu().numpy())


class Rows(NamedTuple):
    """What a kernel writes for some rows; `codes` holds the start before it runs."""

    codes: Array
    objective: Array
    gap: Array
    iterations: Array

    @classmethod
    def of(cls, problem: Problem) -> Rows:
        """Room for the whole batch, with the user's start or zero."""
        n, size = len(problem.x), problem.model.code_size
        codes = problem.x.new_zeros(n, size) if problem.init is None else problem.init.clone()
        return cls(as_array(codes), np.empty(n), np.empty(n), np.empty(n, np.int64))

    def part(self, rows: slice) -> Rows:
        return Rows(*(array[rows] for array in self))

    def result(self) -> Result:
        return Result(
            codes=torch.from_numpy(self.codes),
            iterations=int(self.iterations.max()),
            objective=torch.from_numpy(self.objective),
            gap=torch.from_numpy(self.gap),
        )


def correlations(x: Array, atoms: Array) -> Array:
    """``x atoms'`` on this thread alone: by BLAS if it has no other threads, else compiled."""
    if torch.get_num_threads() == 1:
        return (torch.from_numpy(x) @ torch.from_numpy(atoms).T).numpy()
    from .product_kernels import correlate

    out = np.empty((len(x), len(atoms)), x.dtype)
    correlate(x, atoms, out)
    return out


def for_each_tile(work: Callable[[slice], None], rows: int) -> None:
    """Call `work` with every tile of the rows, on as many threads as torch uses.

    The kernels release the interpreter's lock. They are threaded from here, not by numba, so
    that torch's setting holds for them too and no second pool competes for the cores.
    """
    length = min(TILE, -(-rows // torch.get_num_threads()))  # a small batch is shared out too
    tiles = [slice(start, min(start + length, rows)) for start in range(0, rows, length)]
    threads = min(torch.get_num_threads(), len(tiles))
    if threads == 1:
        for tile in tiles:
            work(tile)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, tiles):
            pass
