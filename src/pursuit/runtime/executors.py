"""Executors: three ways to run a program, each of them compiled.

`Dense` runs all layers of a block of signals by products of matrices. `Fused` does so for two-block
models, whose identity block needs no product. `Sparse` runs one signal at a time, at a cost that
follows the coefficients that change; it is the only one for layers that update a part of the code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._native import kernels
from .program import Layer, Program, stacked

Array = np.ndarray[Any, Any]

#: smaller numbers count as zero: products of denormal numbers are a hundred times slower
TINY = 1e-30
#: rows of a tile, the work that a thread takes at once
TILE_ROWS = 512
#: operations of one core per microsecond, for estimates: multiplications in a product of matrices
#: and in rows of G; numbers that a layer passes over in a tile and in a single vector
PRODUCTS, ROWS, TILED, SINGLE = 45e3, 12e3, 5e3, 1.1e3
#: overhead of a layer over a single vector, and of a call, in microseconds
LAYER, CALL = 0.08, 3.0
#: columns that a product computes together
PANEL = 16
#: how much longer a product takes for one row, which does not fill the processor
ALONE = 1.5


class Executor(ABC):
    """Runs a program on tiles of rows."""

    name: str

    #: the compiled class
    kind: Any = kernels.Dense

    def __init__(self, program: Program) -> None:
        self.program = program
        self.native = self.kind(kernels.Program(**self.arrays()))

    @classmethod
    @abstractmethod
    def misfit(cls, program: Program) -> str | None:
        """What a program lacks for this executor, or None if it fits."""

    @classmethod
    @abstractmethod
    def estimate(cls, program: Program, changes: Sequence[float], rows: int) -> float:
        """Estimate the microseconds per row, given the number of `changes` of each layer."""

    @abstractmethod
    def arrays(self) -> dict[str, Array | None]:
        """Return the arrays that the compiled executor is made from, by name and in order."""

    def scratch(self, rows: int) -> Array:
        """Allocate the memory for tiles of up to `rows` rows."""
        return np.empty(self.native.scratch(rows), np.float32)

    def run(self, x: Array, codes: Array, scratch: Array) -> bool:
        """Encode a tile of signals, float32 or float64; return whether all are finite."""
        finite: bool = self.native.encode(x, TINY, codes, scratch)
        return finite


class Dense(Executor):
    """Blocks of signals, by G or by the residual, whichever takes fewer products."""

    name = "dense"

    @classmethod
    def misfit(cls, program: Program) -> str | None:
        if program.partial:
            return "layers that take over the whole code"
        if program.identity:
            return "no identity block"
        return None

    @classmethod
    def estimate(cls, program: Program, changes: Sequence[float], rows: int) -> float:
        q, m, depth = program.size, program.features, len(program.layers)
        product = min(q * q, 2 * q * m) if _prefers_residual(program) else q * q
        passes = (depth * (1.5 if program.momentum else 1.0)) * q / TILED
        arithmetic = (q * m + (depth - 1) * product) / PRODUCTS
        return (arithmetic + passes) * (1 + ALONE / rows) + CALL / rows

    def arrays(self) -> dict[str, Array | None]:
        program = self.program
        return _residual_form(program) if _prefers_residual(program) else _gram_form(program)


class Fused(Executor):
    """Blocks of signals through the layers of two-block models."""

    name = "fused"

    @classmethod
    def misfit(cls, program: Program) -> str | None:
        if not program.identity:
            return "an identity block"
        if program.partial:
            return "layers that take over the whole code"
        if program.labels:
            return "a penalty that is a sum over single coefficients"
        return None

    @classmethod
    def estimate(cls, program: Program, changes: Sequence[float], rows: int) -> float:
        q, m, depth = program.size - program.features, program.features, len(program.layers)
        whole = -(-q // PANEL) * PANEL
        layer = 2 * whole * m / PRODUCTS + program.size / SINGLE
        return depth * layer * (1 + ALONE / 2 / rows) + CALL / rows

    def arrays(self) -> dict[str, Array | None]:
        return _residual_form(self.program)


class Sparse(Executor):
    """One signal at a time, rows of G only for the coefficients that change."""

    name = "sparse"
    kind = kernels.Sparse

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.changes, self.rows = np.zeros(program.depth, np.int64), 0

    @classmethod
    def misfit(cls, program: Program) -> str | None:
        return None

    @classmethod
    def estimate(cls, program: Program, changes: Sequence[float], rows: int) -> float:
        q, m, depth = program.size, program.features, len(program.layers)
        products = q * m / (PRODUCTS if rows >= 16 else ROWS)
        searched = sum(layer.width != q for layer in program.layers)
        passes = (depth + 0.7 * searched) * q / SINGLE
        return products + passes + LAYER * depth + sum(changes[:-1]) * q / ROWS + CALL / rows

    def arrays(self) -> dict[str, Array | None]:
        return _gram_form(self.program)

    def run(self, x: Array, codes: Array, scratch: Array) -> bool:
        finite: bool = self.native.encode(x, TINY, codes, scratch, self.changes)
        self.rows += len(x)
        return finite

    def measured(self) -> list[float]:
        """The number of coefficients that each layer changed, averaged over all rows so far."""
        return [float(count) / max(self.rows, 1) for count in self.changes]


#: in order of preference
EXECUTORS: dict[str, type[Executor]] = {kind.name: kind for kind in (Fused, Dense, Sparse)}


def _prefers_residual(program: Program) -> bool:
    """Whether the residual takes fewer products than G."""
    given = all(layer.atoms is not None for layer in program.layers)
    return given and 2 * program.features < program.size


def _gram_form(program: Program) -> dict[str, Array | None]:
    """The arrays with G of each layer."""
    return _arrays(program, weights=program.weights(), grams=program.grams())


def _residual_form(program: Program) -> dict[str, Array | None]:
    """The arrays with V, and w of an identity block, of each layer."""
    return _arrays(
        program,
        weights=[layer.weight for layer in program.layers],
        atoms=[_given(layer.atoms) for layer in program.layers],
        steps=[_given(layer.outlier_step)[None] for layer in program.layers]
        if program.identity
        else None,
    )


def _arrays(
    program: Program,
    weights: Sequence[Array],
    grams: Sequence[Array] | None = None,
    atoms: Sequence[Array] | None = None,
    steps: Sequence[Array] | None = None,
) -> dict[str, Array | None]:
    size, layers = program.size, program.layers
    matrices: dict[str, Array | None] = {}
    for name, index, arrays in (
        ("weights", "weight_of", weights),
        ("grams", "gram_of", grams),
        ("atoms", "atoms_of", atoms),
        ("steps", "step_of", steps),
    ):
        matrices[name], matrices[index] = (None, None) if arrays is None else stacked(arrays)
    return matrices | {
        "mix": np.array([layer.mix for layer in layers], np.float32),
        "soft": np.stack([layer.soft for layer in layers]),
        "negative": program.negative,
        "decay": np.zeros(size, np.float32) if program.decay is None else program.decay,
        "units": np.ones(size, np.float32) if program.units is None else program.units,
        "runs": _runs(program.labels),
        "thresholds": np.stack([_thresholds(layer) for layer in layers]),
        "widths": np.array([layer.width for layer in layers], np.int64),
        "blocks": np.zeros(size, np.int64) if program.blocks is None else program.blocks,
        "constants": program.constants,
    }


def _thresholds(layer: Layer) -> Array:
    """The thresholds of the groups, one row a level, filled up with zeros."""
    table = np.zeros((len(layer.groups), max(map(len, layer.groups), default=0)), np.float32)
    for row, thresholds in zip(table, layer.groups, strict=True):
        row[: len(thresholds)] = thresholds
    return table


def _runs(levels: Sequence[Array]) -> Array:
    """Runs of adjacent coefficients of the same group as rows (level, begin, end, group)."""
    runs = [np.empty((0, 4), np.int64)]
    for level, labels in enumerate(levels):
        begins = np.flatnonzero(np.diff(labels, prepend=-2))
        ends = np.append(begins[1:], len(labels))
        part = np.stack([np.full_like(begins, level), begins, ends, labels[begins]], axis=1)
        runs.append(part[part[:, 3] >= 0])
    return np.concatenate(runs)


def _given(array: Array | None) -> Array:
    assert array is not None
    return array
