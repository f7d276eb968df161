"""Executors: three ways to run a program.

`Dense` multiplies tiles of signals by matrices (BLAS), with one compiled pass between two products.
`Sparse` runs one signal at a time, at a cost that follows the coefficients that change; it is the
only one for layers that update a part of the code. `Fused` runs the layers of two-block models
frame by frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from .program import Program, stacked

Array = np.ndarray[Any, Any]

#: smaller numbers count as zero: products of denormal numbers are a hundred times slower
TINY = 1e-30
#: entries of the code matrix of a tile of dense layers: enough rows for the products
TILE_NUMBERS = 3 * 2**16
#: rows of a tile of the other executors
TILE_ROWS = 256
#: operations of one core per microsecond, for estimates: multiplications in a product of matrices
#: and in rows of G; numbers that a layer passes over in a tile and in a single vector
PRODUCTS, ROWS, TILED, SINGLE = 45e3, 9e3, 5e3, 1.1e3
#: overhead of a layer over a single vector, in microseconds
CALLS = 0.08


class Executor(ABC):
    """Runs a program on tiles of rows."""

    name: str

    def __init__(self, program: Program) -> None:
        self.program = program
        self.soft = np.stack([layer.soft for layer in program.layers])
        self.mix = np.array([layer.mix for layer in program.layers], np.float32)
        self.runs = _padded([_runs(labels) for labels in program.labels], (3,), np.int64)
        self.groups = np.stack([_padded(layer.groups, (), np.float32) for layer in program.layers])
        self.units = np.ones(program.size, np.float32) if program.units is None else program.units
        self.decay = np.zeros(program.size, np.float32) if program.decay is None else program.decay

    @classmethod
    @abstractmethod
    def misfit(cls, program: Program) -> str | None:
        """What a program lacks for this executor, or None if it fits."""

    @classmethod
    @abstractmethod
    def estimate(cls, program: Program, changes: Sequence[float], rows: int) -> float:
        """Estimate the microseconds per row, given the number of `changes` of each layer."""

    @property
    @abstractmethod
    def tile(self) -> int:
        """The largest number of rows in a tile."""

    @abstractmethod
    def scratch(self, rows: int) -> Any:
        """Allocate the memory for tiles of up to `rows` rows."""

    @abstractmethod
    def run(self, x: Array, codes: Array, scratch: Any) -> None:
        """Encode a tile of prepared signals."""


class Dense(Executor):
    """Tiles with BLAS, by G or by the residual, whichever takes fewer products.

    With ``r = c2/c1`` a layer with G is ``v = e x W' + (z + r z')(a1 I - c1 G') + (a2 - a1 r) z'``.
    """

    name = "dense"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.residual = _prefers_residual(program)
        weights = [layer.weight for layer in program.layers] if self.residual else program.weights()
        distinct = {id(weight): weight for weight in weights}
        transposed = {key: np.ascontiguousarray(weight.T) for key, weight in distinct.items()}
        self.weights = [transposed[id(weight)] for weight in weights]
        if self.residual:
            return
        self.products: list[Array] = []
        self.ratios: list[float] = []
        self.lags: list[float] = []
        for layer, gram in zip(program.layers, program.grams(), strict=True):
            a1, a2, c1, c2, _ = layer.mix
            # without a product with z the scalars cannot be multiplied into it
            ratio = c2 / c1 if c1 != 0 else 0.0
            matrix = a1 * np.eye(program.size) - c1 * gram.T.astype(np.float64)
            self.products.append(np.ascontiguousarray(matrix, np.float32))
            self.ratios.append(ratio)
            self.lags.append(a2 - a1 * ratio)
        if not program.momentum:
            # tied layers with the same scalars share one matrix
            seen: dict[bytes, Array] = {}
            self.products = [seen.setdefault(m.tobytes(), m) for m in self.products]

    @classmethod
    def misfit(cls, program: Program) -> str | None:
        if program.partial:
            return "layers that take over the whole code"
        if any(layer.mix[2] == 0 and layer.mix[3] != 0 for layer in program.layers[1:]):
            return "a product with z wherever there is one with z'"
        if program.identity:
            return "no identity block"
        return None

    @classmethod
    def estimate(cls, program: Program, changes: Sequence[float], rows: int) -> float:
        q, m, depth = program.size, program.features, len(program.layers)
        product = min(q * q, 2 * q * m) if _prefers_residual(program) else q * q
        passes = (depth * (1.5 if program.momentum else 1.0)) * q / TILED
        arithmetic = (q * m + (depth - 1) * product) / PRODUCTS
        # few rows do not fill the processor, and each call costs
        return (arithmetic + passes) * (1 + 8 / rows) + 3 * depth / rows

    @property
    def tile(self) -> int:
        return max(16, min(768, TILE_NUMBERS // self.program.size))

    def scratch(self, rows: int) -> tuple[Array, ...]:
        q, m = self.program.size, self.program.features
        widths = [q, q, q, q, q] + ([m, m] if self.residual else [])
        return tuple(np.empty((rows, width), np.float32) for width in widths)

    def run(self, x: Array, codes: Array, scratch: tuple[Array, ...]) -> None:
        from .dense_kernels import finished

        part = tuple(array[: len(x)] for array in scratch)
        if self.residual:
            finished(self._through_residual(x, part), self.units, codes)
        else:
            self._through_gram(x, part, codes)

    def _through_gram(self, x: Array, scratch: tuple[Array, ...], codes: Array) -> None:
        from . import dense_kernels as kernels

        program, layers = self.program, self.program.layers
        signal, v, z, previous, point = scratch
        np.matmul(x, self.weights[0], out=signal)
        kernels.first(signal, layers[0].mix[4], *self._shrinkage(0), z)
        previous.fill(0)
        at = z
        for t in range(1, len(layers)):
            if self.weights[t] is not self.weights[t - 1]:
                np.matmul(x, self.weights[t], out=signal)
            np.matmul(at, self.products[t], out=v)
            e, lag, shrinkage = layers[t].mix[4], self.lags[t], self._shrinkage(t)
            if t + 1 == len(layers):
                if program.momentum:
                    kernels.last(v, signal, e, lag, *shrinkage, previous, codes)
                else:
                    kernels.plain(v, signal, e, *shrinkage, codes)
                if program.units is not None:
                    kernels.finished(codes, self.units, codes)
                return
            if not program.momentum:
                kernels.plain(v, signal, e, *shrinkage, z)
                continue
            ratio = self.ratios[t + 1]
            kernels.two_step(v, signal, e, lag, *shrinkage, previous, z, ratio, point)
            z, previous, at = previous, z, point
        kernels.finished(z, self.units, codes)

    def _through_residual(self, x: Array, scratch: tuple[Array, ...]) -> Array:
        from . import dense_kernels as kernels

        layers = self.program.layers
        _, v, z, previous, point, decoded, residual = scratch
        np.matmul(x, self.weights[0], out=v)
        kernels.first(v, layers[0].mix[4], *self._shrinkage(0), z)
        previous.fill(0)
        if len(layers) > 1:
            kernels.mixed_point(z, layers[1].mix[2], previous, layers[1].mix[3], point)
        for t in range(1, len(layers)):
            a1, a2, _, _, e = layers[t].mix
            c1, c2 = layers[t + 1].mix[2:4] if t + 1 < len(layers) else (0.0, 0.0)
            np.matmul(point, _given(layers[t].atoms), out=decoded)
            kernels.residual(x, e, decoded, residual)
            np.matmul(residual, self.weights[t], out=v)
            kernels.two_step_residual(
                v, a1, a2, self.decay, *self._shrinkage(t), previous, z, c1, c2, point
            )
            z, previous = previous, z
        return z

    def _shrinkage(self, t: int) -> tuple[Array, Array, Array, Array]:
        """The arguments of the kernels for the shrinkage of a layer."""
        return self.soft[t], self.program.negative, self.runs, self.groups[t]


class Sparse(Executor):
    """One signal at a time, rows of G only for the coefficients that change."""

    name = "sparse"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        weights, self.signal_of = stacked(program.weights())
        self.weights = [np.ascontiguousarray(weight.T) for weight in weights]
        grams, self.gram_of = stacked(program.grams())
        self.grams = np.ascontiguousarray(grams.transpose(0, 2, 1))
        self.widths = np.array([layer.width for layer in program.layers])
        blocks = program.blocks
        self.blocks = np.zeros(program.size, np.int64) if blocks is None else blocks
        self.changes, self.rows = np.zeros(len(program.layers), np.int64), 0

    @classmethod
    def misfit(cls, program: Program) -> str | None:
        return None

    @classmethod
    def estimate(cls, program: Program, changes: Sequence[float], rows: int) -> float:
        q, m, depth = program.size, program.features, len(program.layers)
        products = q * m / (PRODUCTS if rows >= 16 else ROWS)
        searched = sum(layer.width != q for layer in program.layers)
        passes = (depth + 0.7 * searched) * q / SINGLE
        return products + passes + CALLS * depth + sum(changes[:-1]) * q / ROWS + 4 / rows

    @property
    def tile(self) -> int:
        return TILE_ROWS

    def scratch(self, rows: int) -> tuple[Array, ...]:
        q = self.program.size
        signals = np.empty((len(self.weights), rows, q), np.float32)
        return signals, np.empty((7, q + 16), np.float32), np.empty(q + 16, np.int64)

    def run(self, x: Array, codes: Array, scratch: tuple[Array, ...]) -> None:
        from .sparse_kernels import encode

        signals, vectors, chosen = scratch[0][:, : len(x)], scratch[1], scratch[2]
        for weight, signal in zip(self.weights, signals, strict=True):
            np.matmul(x, weight, out=signal)
        program = self.program
        encode(
            signals,
            self.signal_of,
            self.grams,
            self.gram_of,
            self.mix,
            self.soft,
            program.negative,
            self.runs,
            self.groups,
            self.widths,
            self.blocks,
            program.constants,
            self.units,
            codes,
            self.changes,
            vectors,
            chosen,
        )
        self.rows += len(x)

    def measured(self) -> list[float]:
        """The number of coefficients that each layer changed, averaged over all rows so far."""
        return [float(count) / max(self.rows, 1) for count in self.changes]


class Fused(Executor):
    """Two-block layers, frame by frame, everything in the cache."""

    name = "fused"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        layers = program.layers
        self.weights, self.weight_of = stacked([layer.weight for layer in layers])
        self.atoms, self.atoms_of = stacked([_given(layer.atoms) for layer in layers])
        self.steps, self.step_of = stacked([_given(layer.outlier_step) for layer in layers])

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
        q, depth = program.size - program.features, len(program.layers)
        return depth * (2 * q * program.features / (2 * ROWS) + program.size / SINGLE) / 2

    @property
    def tile(self) -> int:
        return TILE_ROWS

    def scratch(self, rows: int) -> Array:
        return np.empty((5, self.program.size), np.float32)

    def run(self, x: Array, codes: Array, scratch: Array) -> None:
        from .fused_kernels import encode

        encode(
            x,
            self.weights,
            self.weight_of,
            self.atoms,
            self.atoms_of,
            self.steps,
            self.step_of,
            self.decay,
            self.mix,
            self.soft,
            self.program.negative,
            self.units,
            codes,
            scratch,
        )


#: in order of preference
EXECUTORS: dict[str, type[Executor]] = {kind.name: kind for kind in (Fused, Dense, Sparse)}


def _prefers_residual(program: Program) -> bool:
    """Whether the residual takes fewer products than G."""
    given = all(layer.atoms is not None for layer in program.layers)
    return given and 2 * program.features < program.size


def _padded(arrays: Sequence[Array], shape: tuple[int, ...], dtype: Any) -> Array:
    """Arrays of several lengths, with entries of a shape, as one array, padded with zeros."""
    result = np.zeros((len(arrays), max(map(len, arrays), default=0), *shape), dtype)
    for row, array in zip(result, arrays, strict=True):
        row[: len(array)] = array
    return result


def _runs(labels: Array) -> Array:
    """Runs of adjacent coefficients of the same group as rows (begin, end, group)."""
    begins = np.flatnonzero(np.diff(labels, prepend=-2))
    runs = np.stack([begins, np.append(begins[1:], len(labels)), labels[begins]], axis=1)
    return runs[runs[:, 2] >= 0]


def _given(array: Array | None) -> Array:
    assert array is not None
    return array
