"""Random calls of every kernel, with extreme shapes and numbers: none may crash or hang.

``python tests/fuzz_kernels.py --calls 1000000`` runs that many calls of each kernel; with the
sanitized module (``make sanitize``) any access outside an array ends the process. What a kernel
computes for such numbers is not judged here, only that it returns, and that it leaves the memory
around its arrays alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pursuit._native import instruction_set, kernels

Array = np.ndarray[Any, Any]
#: the number of items before and after every array, which no kernel may change
MARGIN = 3


class Draw:
    """Random arguments of a call; remembers the memory around the arrays."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._around: list[tuple[Array, Array]] = []
        #: a call draws its numbers from one kind, or mixes all kinds
        self.kind = rng.integers(8)

    def size(self, largest: int = 40, smallest: int = 0) -> int:
        """Often 0, 1 or a power of two, rarely large."""
        kind = self.rng.integers(6)
        if kind == 0:
            return smallest + int(self.rng.integers(2))
        if kind == 1:
            return max(smallest, min(largest, 1 << int(self.rng.integers(7))))
        if kind == 2:
            return int(self.rng.integers(smallest, 4 * largest))
        return int(self.rng.integers(smallest, largest))

    def flag(self) -> bool:
        return bool(self.rng.integers(2))

    def array(self, *shape: int, dtype: Any = np.float64, positive: bool = False) -> Array:
        """Numbers of all sizes, zeros, subnormal and huge ones, seldom NaN and infinities."""
        values = self.rng.standard_normal(shape)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            if self.kind == 1:
                values = values * 10.0 ** self.rng.integers(-40, 40, shape)
            elif self.kind == 2:
                values = values * 1e-310
            elif self.kind == 3:
                values = np.where(self.rng.random(shape) < 0.5, 0.0, values)
            elif self.kind == 4:
                values = np.full(shape, values.flat[0] if values.size else 0.0)
            elif self.kind == 5:
                extremes = np.array([np.nan, np.inf, -np.inf, 1e300, -1e-300, 0.0])
                chosen = extremes[self.rng.integers(len(extremes), size=shape)]
                values = np.where(self.rng.random(shape) < 0.05, chosen, values)
            values = np.abs(values) if positive else values
            return self.keep(values.astype(dtype))

    def integers(self, low: int, high: int, *shape: int) -> Array:
        return self.keep(self.rng.integers(low, max(high, low + 1), shape))

    def out(self, *shape: int, dtype: Any = np.float64) -> Array:
        return self.keep(np.zeros(shape, dtype))

    def keep(self, values: Array) -> Array:
        """A copy in the middle of larger memory, at an address that is no multiple of a vector."""
        memory = np.zeros(values.size + 2 * MARGIN, values.dtype)
        memory[:MARGIN] = memory[values.size + MARGIN :] = 77
        middle = memory[MARGIN : MARGIN + values.size].reshape(values.shape)
        middle[...] = values
        self._around.append((memory, middle))
        return middle

    def check(self) -> None:
        """Raise an error if a kernel has written outside its arrays."""
        for memory, middle in self._around:
            edges = np.concatenate([memory[:MARGIN], memory[middle.size + MARGIN :]])
            assert (edges == 77).all(), "a kernel wrote outside an array"


def active_set(draw: Draw) -> dict[str, Any]:
    n, m, q = draw.size(6), draw.size(20), draw.size()
    search, stored = [(np.float32, np.float32), (np.float64, np.float32), (np.float64, np.float64)][
        int(draw.rng.integers(3))
    ]
    atoms = draw.array(q, m, dtype=stored)
    ridge = draw.array(q, positive=True) if draw.flag() else np.zeros(q)
    with np.errstate(all="ignore"):
        gram = draw.keep(atoms.astype(float) @ atoms.astype(float).T + np.diag(ridge))
        x = draw.array(n, m, dtype=stored)
        c = draw.keep((x.astype(float) @ atoms.astype(float).T).astype(search))
        lam = draw.keep(draw.array(q, positive=True) + 1e-300)
        single = draw.keep(gram.astype(search))
    return {
        "x": x, "c": c, "gram": single, "exact_gram": gram, "atoms": atoms, "lam": lam,
        "ridge": draw.keep(ridge), "nonnegative": draw.flag(),
        "tol": float(10.0 ** draw.rng.integers(-12, 1)), "max_iter": int(draw.rng.integers(30)),
        "rounding": 1e-15, "warm": draw.flag(), "codes": draw.array(n, q, dtype=stored),
        "objective": draw.out(n), "gap": draw.out(n), "iterations": draw.out(n, dtype=np.int64),
    }  # fmt: skip


#: every kernel, by a function that draws the arguments of a call
KERNELS: dict[str, Callable[[Draw], dict[str, Any]]] = {"active_set": active_set}


def fuzz(name: str, calls: int, seed: int = 0) -> None:
    """Call a kernel many times."""
    kernel, arguments = getattr(kernels, name), KERNELS[name]
    for number in range(calls):
        draw = Draw(np.random.default_rng([seed, number]))
        try:
            kernel(**arguments(draw))
            draw.check()
        except Exception as error:
            raise AssertionError(f"call {number} of {name}, seed {seed}: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(KERNELS), help="one kernel")
    options = parser.parse_args()
    for name in [options.only] if options.only else sorted(KERNELS):
        start = time.perf_counter()
        fuzz(name, options.calls, options.seed)
        seconds = time.perf_counter() - start
        print(f"{name}: {options.calls} calls of the {instruction_set} module, {seconds:.0f} s")


if __name__ == "__main__":
    main()
