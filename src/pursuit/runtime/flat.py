"""Programs in one buffer, for the library in `native/standalone`, which needs no Python."""

from __future__ import annotations

import numpy as np

from .executors import Executor

MAGIC = b"PURSUIT1"
#: the types of arrays in the buffer; 0 stands for one that is missing
TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 2}


def flat(executor: Executor) -> bytes:
    """Return the program of an executor as `pursuit_load` reads it.

    The numbers are those of this machine; all supported ones store the lowest byte first.
    """
    parts = [MAGIC, np.int64(executor.name == "sparse").tobytes()]
    for array in executor.arrays().values():
        if array is None:
            parts.append(np.zeros(5, np.int64).tobytes())
            continue
        sizes = [*array.shape, *(3 - array.ndim) * [0]]
        parts.append(np.array([TYPES[array.dtype], array.ndim, *sizes], np.int64).tobytes())
        numbers = array.tobytes()
        parts.append(numbers + bytes(-len(numbers) % 8))
    return b"".join(parts)
