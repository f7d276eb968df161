"""Random calls of every kernel, with extreme shapes and numbers: none may crash or hang.

``python tests/fuzz_kernels.py --calls 1000000`` runs that many calls of each kernel; with the
sanitized module (``make sanitize``) any access outside an array ends the process. What a kernel
computes for such numbers is not judged here, only that it returns, and that it leaves the memory
around its arrays alone.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pursuit._native import instruction_set, kernels

Array = np.ndarray[Any, Any]
#: the number of items before and after every array, which no kernel may change
MARGIN = 3
#: the numbers that arrays are made of; drawing new ones for each would take most of the time
NUMBERS = np.random.default_rng(0).standard_normal(1 << 18)


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
        count = math.prod(shape)
        first = int(self.rng.integers(len(NUMBERS) - count))
        values = NUMBERS[first : first + count].reshape(shape)
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

    def dtype(self) -> type:
        return np.float32 if self.flag() else np.float64

    def tolerance(self) -> float:
        return float(10.0 ** self.rng.integers(-12, 1))

    def rows(self, n: int, size: int, dtype: type) -> dict[str, Array]:
        """What solvers write: codes, which hold a start, objectives, gaps, iterations."""
        codes, iterations = self.array(n, size, dtype=dtype), self.out(n, dtype=np.int64)
        return {
            "codes": codes, "objective": self.out(n), "gap": self.out(n), "iterations": iterations
        }  # fmt: skip

    def keep(self, values: Array, dtype: type | None = None) -> Array:
        """A copy in the middle of larger memory, at an address that is no multiple of a vector."""
        values = values if dtype is None else values.astype(dtype)
        memory = np.zeros(values.size + 2 * MARGIN, values.dtype)
        memory[:MARGIN] = memory[values.size + MARGIN :] = 1
        middle = memory[MARGIN : MARGIN + values.size].reshape(values.shape)
        middle[...] = values
        self._around.append((memory, middle))
        return middle

    def check(self) -> None:
        """Raise an error if a kernel has written outside its arrays."""
        for memory, middle in self._around:
            edges = np.concatenate([memory[:MARGIN], memory[middle.size + MARGIN :]])
            assert (edges == 1).all(), "a kernel wrote outside an array"


def product(a: Array, b: Array) -> Array:
    """a b in float64."""
    result: Array = a.astype(np.float64) @ b.astype(np.float64)
    return result


def active_set(draw: Draw) -> None:
    n, m, q = draw.size(6), draw.size(20), draw.size()
    search, stored = [(np.float32, np.float32), (np.float64, np.float32), (np.float64, np.float64)][
        int(draw.rng.integers(3))
    ]
    atoms = draw.array(q, m, dtype=stored)
    ridge = draw.array(q, positive=True) if draw.flag() else np.zeros(q)
    gram = draw.keep(product(atoms, atoms.T) + np.diag(ridge))
    x = draw.array(n, m, dtype=stored)
    kernels.active_set(
        x=x, c=draw.keep(product(x, atoms.T), search), gram=draw.keep(gram, search),
        exact_gram=gram, atoms=atoms, lam=draw.keep(draw.array(q, positive=True) + 1e-300),
        ridge=draw.keep(ridge), nonnegative=draw.flag(), tol=draw.tolerance(),
        max_iter=int(draw.rng.integers(30)), rounding=1e-15, warm=draw.flag(),
        **draw.rows(n, q, stored),
    )  # fmt: skip


def block_coordinate(draw: Draw) -> None:
    n, m, q = draw.size(4), draw.size(20), draw.size()
    atoms, x = draw.array(q, m), draw.array(n, m)
    edges = np.sort(draw.rng.integers(0, q + 1, int(draw.rng.integers(6))))
    starts = draw.keep(np.concatenate([[0], edges, [q]]).astype(np.int64))
    blocks = len(starts) - 1
    ridge = draw.array(q, positive=True) if draw.flag() else np.zeros(q)
    kernels.block_coordinate(
        x=x, c=draw.keep(product(x, atoms.T)), energy=draw.keep(np.square(x).sum(axis=1)),
        atoms=atoms, gram=draw.keep(product(atoms, atoms.T) + np.diag(ridge)),
        ridge=draw.keep(ridge), starts=starts, w=draw.array(q, positive=True),
        v=draw.array(blocks, positive=True), constants=draw.array(blocks, positive=True),
        nonnegative=draw.flag(), tol=draw.tolerance(), max_iter=int(draw.rng.integers(20)),
        rounding=1e-14, single=draw.flag(), **draw.rows(n, q, np.float64),
    )  # fmt: skip


def gemm(draw: Draw) -> None:
    m, n, k = draw.size(), draw.size(), draw.size()
    dtype, left, right = draw.dtype(), draw.flag(), draw.flag()
    a = draw.array(*((k, m) if left else (m, k)), dtype=dtype)
    b = draw.array(*((n, k) if right else (k, n)), dtype=dtype)
    scale = [0.0, 1.0, -0.5][int(draw.rng.integers(3))]
    c = draw.array(m, n, dtype=dtype)
    kernels.gemm(a, b, c, alpha=scale, beta=scale, transpose_a=left, transpose_b=right)


def correlate(draw: Draw) -> None:
    n, m, q, dtype = draw.size(), draw.size(), draw.size(), draw.dtype()
    x, atoms = draw.array(n, m, dtype=dtype), draw.array(q, m, dtype=dtype)
    kernels.correlate(x, atoms, draw.out(n, q, dtype=dtype))


def dictionary_sweep(draw: Draw) -> None:
    q, m, dtype = draw.size(), draw.size(), draw.dtype()
    kernels.dictionary_sweep(
        draw.array(q, m, dtype=dtype), draw.array(q, q, dtype=dtype), draw.array(q, m, dtype=dtype),
        draw.array(q, dtype=dtype, positive=True), draw.keep(draw.rng.random(q) < 0.5),
        draw.keep(draw.rng.random(q) < 0.5), smallest=1e-10, sweeps=int(draw.rng.integers(4)),
    )  # fmt: skip


def truncated_products(draw: Draw) -> None:
    n, m, dtype = draw.size(), draw.size(), draw.dtype()
    k, p, s = draw.size(8), draw.size(8), draw.size(8)
    limits = (n, m) if draw.flag() else (0, 0)
    kernels.truncated_products(
        draw.array(n, m, dtype=dtype), draw.array(n, k, dtype=dtype), draw.array(k, m, dtype=dtype),
        draw.array(p, m, dtype=dtype), draw.array(n, s, dtype=dtype), -0.5, 1.0,
        draw.array(limits[0], dtype=dtype, positive=True),
        draw.array(limits[1], dtype=dtype, positive=True),
        draw.out(n, p, dtype=dtype), draw.out(s, m, dtype=dtype),
    )  # fmt: skip


def huber(draw: Draw, name: str) -> None:
    n, m, q, dtype = draw.size(4), draw.size(30), draw.size(20), draw.dtype()
    lam_star = float(10.0 ** draw.rng.integers(-8, 8))
    d0 = draw.array(q, m)
    gram = product(d0, d0.T)

    def padded(values: Array, dtype: type = np.float64) -> Array:
        full = np.zeros((len(values), -(-values.shape[1] // 16) * 16))
        full[:, : values.shape[1]] = values
        return draw.keep(full, dtype)

    getattr(kernels, name)(
        draw.array(n, m, dtype=dtype), atoms=padded(d0), features=padded(d0.T),
        single_atoms=padded(d0, np.float32), single_features=padded(d0.T, np.float32),
        gram=padded(gram), ridge=padded(draw.array(q, q)), lam_star=lam_star,
        lam=draw.keep(draw.array(m, positive=True) + 1e-300), nonnegative=draw.flag(),
        step_constant=float(np.abs(np.nan_to_num(gram)).sum()) + lam_star,
        tol=draw.tolerance(), max_iter=int(draw.rng.integers(20)), rounding=1e-14,
        **draw.rows(n, q + m, dtype),
    )  # fmt: skip


def program(draw: Draw, identity: bool, grams: bool, partial: bool) -> tuple[Any, int, int, int]:
    """A random program of few layers, its features, the size of its code and its depth."""
    depth, m, q = 1 + draw.size(3), 1 + draw.size(20), 1 + draw.size(20)
    size = q + m if identity else q
    levels = 0 if identity else int(draw.rng.integers(3))
    groups = 1 + int(draw.rng.integers(size))
    runs = [np.empty((0, 4), np.int64)]
    for level in range(levels):
        edges = np.unique(draw.rng.integers(0, size + 1, 6))
        spans = np.stack([np.full(len(edges) - 1, level), edges[:-1], edges[1:]], axis=1)
        labels = draw.rng.integers(groups, size=(len(spans), 1))
        runs.append(np.concatenate([spans, labels], axis=1))

    def stack(name: str, rows: int, columns: int) -> dict[str, Array]:
        count = 1 + int(draw.rng.integers(2))
        matrices = draw.array(count, rows, columns, dtype=np.float32)
        return {name: matrices, f"{name.rstrip('s')}_of": draw.integers(0, count, depth)}

    matrices: dict[str, Any] = dict.fromkeys(
        ("grams", "gram_of", "atoms", "atoms_of", "steps", "step_of")
    )
    matrices |= stack("weights", q, m)
    if grams:
        matrices |= stack("grams", size, size)
    else:
        atoms = stack("atoms", q, m)
        matrices |= {"atoms": atoms["atoms"], "atoms_of": atoms["atom_of"]}
    if identity:
        matrices |= stack("steps", 1, m)
    return (
        kernels.Program(
            **matrices,
            mix=draw.array(depth, 5, dtype=np.float32),
            soft=draw.array(depth, size, dtype=np.float32, positive=True),
            negative=draw.keep(draw.rng.random(size) < 0.5, np.float32),
            decay=draw.array(size, dtype=np.float32),
            units=draw.array(size, dtype=np.float32),
            runs=draw.keep(np.concatenate(runs)),
            thresholds=draw.array(depth, levels, groups, dtype=np.float32, positive=True),
            widths=draw.integers(0, size + 1, depth)
            if partial
            else draw.integers(size, size, depth),
            blocks=draw.keep(np.sort(draw.rng.integers(0, size, size))),
            constants=draw.array(size, dtype=np.float32, positive=True),
        ),
        m,
        size,
        depth,
    )


def dense(draw: Draw) -> None:
    identity = draw.flag()
    arrays, m, size, _ = program(draw, identity, grams=not identity and draw.flag(), partial=False)
    executor, n = kernels.Dense(arrays), draw.size()
    del arrays
    x, codes = draw.array(n, m, dtype=draw.dtype()), draw.out(n, size, dtype=np.float32)
    executor.encode(x, 1e-30, codes, draw.out(executor.scratch(n), dtype=np.float32))


def sparse(draw: Draw) -> None:
    arrays, m, size, depth = program(draw, identity=False, grams=True, partial=True)
    executor, n = kernels.Sparse(arrays), draw.size()
    del arrays
    x, codes = draw.array(n, m, dtype=draw.dtype()), draw.out(n, size, dtype=np.float32)
    scratch = draw.out(executor.scratch(n), dtype=np.float32)
    executor.encode(x, 1e-30, codes, scratch, draw.out(depth, dtype=np.int64))


def convolution(draw: Draw) -> None:
    """Planes, or a stream of several signals in blocks of random sizes."""
    rng, causal, depth, atoms = draw.rng, draw.flag(), 1 + draw.size(4), 1 + draw.size(10)
    channels, averages = 1 + int(rng.integers(3)), int(rng.integers(3)) if causal else 0
    memory = int(rng.integers(depth)) if causal else 0
    taps, stride, dilation = rng.integers(1, 5, 2), rng.integers(1, 5, 2), rng.integers(1, 5, 2)
    if causal:
        stride[0] = dilation[0] = 1
    shape = dilation * (taps - 1) + 1 + [draw.size(6), draw.size(20)]
    positions = (shape - dilation * (taps - 1) - 1) // stride + 1
    if causal:
        positions[0] = shape[0]
    distinct = int(rng.integers(1, depth)) if depth > 1 else 0
    across = 2 * rng.integers(0, 2, (distinct, 2)) + 1
    across[:, 0] += int(rng.integers(3)) if causal else 0
    size = int(across.prod(axis=1).sum()) * atoms**2
    dtype: Any = {"dtype": np.float32}
    layers = kernels.ConvolutionLayers(
        form=np.array([*shape, channels, *stride, *dilation, causal, memory]),
        averages=draw.keep(rng.random(averages)),
        weight=draw.array(atoms, channels * (1 + averages), int(taps.prod()), **dtype),
        taps=taps,
        offset=draw.array(atoms, int(positions[1]) if draw.flag() else 1, **dtype),
        couplings=draw.array(size, **dtype),
        coupling_taps=draw.keep(across),
        coupling_of=draw.integers(0, distinct, depth - 1),
        coupling_dilations=draw.integers(1, 12, depth - 1, 2),
        soft=draw.array(depth, atoms, positive=True, **dtype),
        negative=draw.keep(rng.random(atoms) < 0.5, np.float32),
        recall=draw.array(atoms, atoms, **dtype) if memory else None,
        decays=draw.keep(rng.random(atoms), np.float32) if memory else None,
    )
    engines = [kernels.ConvolutionEngine(layers) for _ in range(1 + int(rng.integers(3)))]
    del layers
    if causal and draw.flag():
        frame, code = channels * int(shape[1]), atoms * int(positions[1])
        for _ in range(1 + draw.size(6)):
            n = draw.size(10)
            x = draw.array(n, len(engines), frame, **dtype)
            codes = draw.out(n, len(engines), code, **dtype)
            for number, engine in enumerate(engines):
                engine.push(x, codes, number)
    else:
        n = draw.size(4)
        x = draw.array(n, channels * int(shape.prod()), **dtype)
        engines[0].encode(x, draw.out(n, atoms * int(positions.prod()), **dtype))


def adam(draw: Draw) -> None:
    sizes, dtype = [draw.size() for _ in range(draw.size(4))], draw.dtype()
    arrays = [[draw.array(size, dtype=dtype) for size in sizes] for _ in range(3)]
    squares = [draw.array(size, dtype=dtype, positive=True) for size in sizes]
    rates = [float(draw.rng.random()) for _ in sizes]
    counts = [int(draw.rng.integers(1, 10)) for _ in sizes]
    kernels.adam(*arrays, squares, rates, counts, *draw.rng.random(2).tolist())


def layers(draw: Draw, name: str, dtype: type) -> None:
    """The codes of random layers, and all gradients."""
    gram, coupled, identity = draw.flag(), draw.flag(), draw.flag()
    identity, square = identity and not gram, gram and not coupled
    depth, m, q = 1 + draw.size(3), 1 + draw.size(12), 1 + draw.size(12)
    size, stages, columns = q + m if identity else q, draw.size(3), 1 + draw.size(5)

    def several(*shape: int) -> Array:
        return draw.array(depth if draw.flag() else 1, *shape, dtype=dtype)

    weight, thresholds = several(q, m), np.abs(several(columns))
    count = 1 if gram and coupled else [1, depth, max(depth - 1, 1)][int(draw.rng.integers(3))]
    matrix = draw.array(count, *((size, size) if square else (q, m)), dtype=dtype)
    step = several(m) if identity else None
    labels = draw.rng.integers(-1, columns, (stages, size)).astype(np.int32)
    native = getattr(kernels, name)(
        gram=gram, coupled=coupled, weight=weight, matrix=matrix, outlier_step=step,
        decay=draw.array(size, dtype=dtype) if draw.flag() and not square else None,
        mixing=draw.array(depth, 5, dtype=dtype), thresholds=thresholds, labels=draw.keep(labels),
        grouped=draw.keep((draw.rng.random(stages) < 0.5).astype(np.uint8)),
        nonnegative=draw.keep((draw.rng.random(size) < 0.5).astype(np.uint8)),
    )  # fmt: skip
    n = draw.size()
    x, codes = draw.array(n, m, dtype=dtype), draw.out(n, size, dtype=dtype)
    gradients = {
        "gweight": draw.out(*weight.shape, dtype=dtype),
        "gmatrix": draw.out(*matrix.shape, dtype=dtype) if draw.flag() else None,
        "gstep": draw.out(*step.shape, dtype=dtype) if step is not None else None,
        "gmixing": draw.out(depth, 5, dtype=dtype),
        "gthresholds": draw.out(*thresholds.shape, dtype=dtype),
    }
    if draw.flag():
        native.forward(x, codes, keep=True)
        gx = draw.out(n, m, dtype=dtype) if draw.flag() else None
        native.backward(x, codes, draw.array(n, size, dtype=dtype), gx, **gradients)
        return
    atoms = draw.array(q, m, dtype=dtype)
    plain = int(draw.rng.integers(n + 1))
    native.learn(
        x, plain=plain, weight=1.0, guard_weight=0.5, atoms=atoms,
        lam=draw.array(columns, dtype=dtype, positive=True),
        ridge=draw.array(size, dtype=dtype, positive=True) if draw.flag() else None,
        units=draw.array(size, dtype=dtype) if draw.flag() else None,
        targets=draw.array(plain, size, dtype=dtype) if draw.flag() else None,
        learns=draw.flag(), gatoms=draw.out(q, m, dtype=dtype), **gradients,
    )  # fmt: skip


#: every kernel, by a function that calls it with random arguments
KERNELS: dict[str, Callable[[Draw], None]] = {
    "active_set": active_set,
    "adam": adam,
    "block_coordinate": block_coordinate,
    "ConvolutionEngine": convolution,
    "correlate": correlate,
    "Dense": dense,
    "dictionary_sweep": dictionary_sweep,
    "gemm": gemm,
    "huber_fista": lambda draw: huber(draw, "huber_fista"),
    "huber_newton": lambda draw: huber(draw, "huber_newton"),
    "LayersFloat32": lambda draw: layers(draw, "LayersFloat32", np.float32),
    "LayersFloat64": lambda draw: layers(draw, "LayersFloat64", np.float64),
    "Sparse": sparse,
    "truncated_products": truncated_products,
}


def fuzz(name: str, calls: int, seed: int = 0) -> None:
    """Call a kernel many times."""
    call = KERNELS[name]
    for number in range(calls):
        key = np.array([seed, number], np.uint64)
        draw = Draw(np.random.Generator(np.random.Philox(key=key)))
        try:
            with np.errstate(all="ignore"):
                call(draw)
            draw.check()
        except Exception as error:
            raise AssertionError(f"call {number} of {name}, seed {seed}: {error}") from error


def calls(rng: np.random.Generator) -> None:
    """A hundred calls of one kernel."""
    fuzz(sorted(KERNELS)[rng.integers(len(KERNELS))], 100, int(rng.integers(1 << 32)))


#: what `fuzz.py` runs
ATTACKS = {"calls": calls}


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
