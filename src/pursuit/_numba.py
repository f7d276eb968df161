"""Compiler settings and types shared by all kernels, the files `*_kernels.py`.

Only kernels import this module, and kernels are imported by the functions that call them, so that
``import pursuit`` does not load numba.

Compiled code is kept on disk next to the sources (``cache=True``). Numba compiles a function anew
when *its* file changes, but not when a function or a constant that it takes from another file
does. After a change of this module, or of a kernel that another file imports, delete the cached
files: ``find src -name '*.nb[ic]' -delete``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]

Function = TypeVar("Function", bound=Callable[..., Any])

#: sums may be reordered and products fused with them
SUMS = frozenset({"reassoc", "contract"})
#: the same, with reciprocals for divisions and no signed zeros; NaN and infinity keep their meaning
FAST = SUMS | {"arcp", "nsz"}
#: the same, for kernels whose callers exclude NaN, so that maxima are vectorised
FINITE = FAST | {"nnan"}


def compiler(
    flags: frozenset[str] = FAST, *, allocates: bool = False, **options: Any
) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function, which then runs without the interpreter's lock.

    `flags` are LLVM's fast-math flags. Without `allocates`, a function cannot create arrays, and
    does not count references to them: that takes up to a third of the time of a kernel that works
    on small arrays in named tuples.
    """
    options |= {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": allocates}
    decorator: Callable[[Function], Function] = njit(fastmath=set(flags), **options)
    return decorator


#: for ordinary functions
compiled = compiler()
#: for functions so short that passing arrays to them takes longer: the optimiser inlines them
inlined = compiler(forceinline=True)
#: for functions that take functions as arguments: numba inlines them before it infers types
expanded = compiler(inline="always")
