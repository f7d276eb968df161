"""The nodes and constants of an ONNX graph under construction; see `onnx`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .checks import Array

#: sums are scaled by their first factor that is at least this fraction of the largest
SMALLEST = 1e-3
#: the lower end of a one-sided threshold
LOWEST = float(np.finfo(np.float32).min)
#: a factor for all coefficients, or one for each
Factor = float | Array
Term = tuple[Factor, str]


class _Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]
    name: str
    attributes: dict[str, Any]


class Nodes:
    """The nodes and constants of a graph; equal nodes and equal constants are merged."""

    def __init__(self) -> None:
        self.all: list[_Node] = []
        self.constants: dict[str, Array] = {}
        self.scope = ""  # the prefix of the names of new nodes
        self._known: dict[tuple[Any, ...], _Node] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The output of a node with one output."""
        return self.several(1, operator, *inputs, **attributes)[0]

    def several(self, count: int, operator: str, *inputs: str, **attributes: Any) -> list[str]:
        """The outputs of a node with `count` outputs."""
        key = (operator, inputs, tuple(sorted(attributes.items())))
        if key not in self._known:
            name = f"{self.scope}/{operator}_{len(self.all)}"
            outputs = [name] if count == 1 else [f"{name}:{number}" for number in range(count)]
            self._known[key] = _Node(operator, list(inputs), outputs, name, attributes)
            self.all.append(self._known[key])
        return self._known[key].outputs

    def rename(self, value: str, name: str) -> None:
        for node in self.all:
            for names in (node.inputs, node.outputs):
                names[:] = [name if old == value else old for old in names]

    def constant(self, array: Array, name: str) -> str:
        """The name of an array, stored as int64 or float32."""
        array = np.ascontiguousarray(array, np.int64 if array.dtype.kind == "i" else np.float32)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = f"{name}_{len(self.constants)}"
            self.constants[self._names[key]] = array
        return self._names[key]

    def number(self, value: float) -> str:
        return self.constant(np.array([value]), "number")

    def scaled(self, value: str, factor: Factor) -> str:
        if isinstance(factor, float):
            return value if factor == 1 else self("Mul", value, self.number(factor))
        return self("Mul", value, self.constant(factor, "factors"))

    def total(self, terms: Sequence[Term]) -> tuple[str, float]:
        """A value and a number whose product is the sum of the terms; the number may be 0."""
        present = [(factor, value) for factor, value in terms if np.any(factor)]
        if not present:
            return terms[0][1], 0.0
        scale = _common(present)
        total = ""
        for factor, value in present:
            factor = factor / scale
            if not total:
                total = self.scaled(value, factor)
            elif isinstance(factor, float) and factor == -1:
                total = self("Sub", total, value)
            else:
                total = self("Add", total, self.scaled(value, factor))
        return total, scale

    def product(
        self,
        rows: str,
        matrix: Array,
        name: str,
        *,
        alpha: float = 1.0,
        plus: str | None = None,
        beta: float = 1.0,
        transposed: bool = True,
    ) -> str:
        """``alpha rows matrix' + beta plus``; the matrix is not transposed unless `transposed`."""
        inputs = [rows, self.constant(matrix, name)]
        attributes: dict[str, Any] = {"transB": int(transposed), "alpha": alpha}
        if plus is not None and beta != 0:
            inputs.append(plus)
            attributes["beta"] = beta
        return self("Gemm", *inputs, **attributes)

    def shrunk(self, v: str, soft: Array, signed: Array) -> str:
        """``v - min(max(v, -t), t)``; where `signed` is false, the threshold has no lower end."""
        if not signed.any():
            return self("Relu", self("Sub", v, self.constant(soft, "soft")) if soft.any() else v)
        if signed.all() and not soft.any():
            return v
        lowest = self.constant(np.where(signed, -soft, LOWEST), "lowest")
        within = self("Min", self("Max", v, lowest), self.constant(soft, "soft"))
        return self("Sub", v, within)

    def split(self, value: str, sizes: Sequence[int]) -> list[str]:
        parts = self.constant(np.array(sizes), "sizes")
        return self.several(len(sizes), "Split", value, parts, axis=1)


def _common(terms: Sequence[Term]) -> float:
    """The first factor that is not much smaller than the others; 1 if some are vectors."""
    sizes = [abs(factor) for factor, _ in terms if isinstance(factor, float)]
    if len(sizes) < len(terms):
        return 1.0
    first = next(n for n, size in enumerate(sizes) if size >= SMALLEST * max(sizes))
    return float(terms[first][0])
