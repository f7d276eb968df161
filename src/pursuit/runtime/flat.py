"""Programs in one buffer, for the library in `native/standalone`, which needs no Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

MAGIC = b"PURSUIT1"
#: the numbers of the executors in the buffer
KINDS = {"dense": 0, "fused": 0, "sparse": 1, "convolution": 2}
#: the types of arrays in the buffer; 0 stands for one that is missing
TYPES = {np.dtype(np.float32): 1, np.dtype(np.int64): 2, np.dtype(np.float64): 3}


def flat(arrays: Mapping[str, Any], executor: str) -> bytes:
    """Return the arrays of an executor, which are in its order, as `pursuit_load` reads them.

    The numbers are those of this machine; all supported ones store the lowest byte first.
    """
    parts = [MAGIC, np.int64(KINDS[executor]).tobytes()]
    for array in arrays.values():
        if array is None:
            parts.append(np.zeros(5, np.int64).tobytes())
            continue
        sizes = [*array.shape, *(3 - array.ndim) * [0]]
        parts.append(np.array([TYPES[array.dtype], array.ndim, *sizes], np.int64).tobytes())
        numbers = array.tobytes()
        parts.append(numbers + bytes(-len(numbers) % 8))
    return b"".join(parts)
