"""Programs: a trained encoder as plain arrays, in one normal form, without torch.

Every layer of every encoder is, in the coordinates of the normalised model,

    v = a1 z + a2 z' + e x W' - (c1 z + c2 z') G',        y = shrink(v),

after which the code takes over y, all of it or where it changes most. G is given as a matrix, or
in the form of the residual as ``G = W V' + diag(decay)``, where with an identity block W and V
continue as diag(w) and I. The shrinkage is a soft threshold for each coefficient, one-sided where
codes must not be negative, and then a shrinkage of whole groups, level by level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Layer", "Program", "lower"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer; matrices that layers share are one and the same object.

    Attributes
    ----------
    mix
        a1, a2, c1, c2, e.
    weight
        W, shape (rows, m); rows is q, or q - m with an identity block.
    gram
        G, shape (q, q), or None for the residual form.
    atoms, outlier_step
        V, shape (rows, m), and w, shape (m,), of the residual form.
    decay
        The diagonal that the quadratic penalty adds in the residual form, shape (q,), or None.
    soft
        The threshold of each coefficient, shape (q,).
    groups
        The thresholds of the groups of each level.
    width
        How many coefficients are taken over, those that change most; 0: the block that gains most.
    """

    mix: tuple[float, float, float, float, float]
    weight: Array
    gram: Array | None
    atoms: Array | None
    outlier_step: Array | None
    decay: Array | None
    soft: Array
    groups: tuple[Array, ...]
    width: int


@dataclass(frozen=True, eq=False)
class Program:
    """All layers, and what they have in common.

    Attributes
    ----------
    features, size
        m and q.
    layers
        The layers, in order.
    dictionary
        The atoms that codes decode with, shape (rows, m); an identity block is not among them.
    units
        What the last code is multiplied by, shape (q,), or None.
    negative
        1 where a coefficient may be negative, else 0, shape (q,).
    labels
        For each level of groups the group of each coefficient, -1 for none, shape (q,).
    blocks, constants
        For layers of width 0: the block of each coefficient and its step constant.
    info
        What the file said about itself.
    """

    features: int
    size: int
    layers: tuple[Layer, ...]
    dictionary: Array
    units: Array | None
    negative: Array
    labels: tuple[Array, ...]
    blocks: Array | None
    constants: Array
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> bool:
        return self.layers[0].outlier_step is not None

    @property
    def momentum(self) -> bool:
        return any(layer.mix[1] != 0 or layer.mix[3] != 0 for layer in self.layers)

    @property
    def partial(self) -> bool:
        """Whether some layers take over only a part of the code."""
        return any(layer.width != self.size for layer in self.layers)

    def grams(self) -> list[Array]:
        """G of each layer, formed where it is not given; shared where its parts are."""
        known: dict[tuple[int, ...], Array] = {}
        grams = []
        for layer in self.layers:
            if layer.gram is not None:
                grams.append(layer.gram)
                continue
            key = (id(layer.weight), id(layer.atoms), id(layer.outlier_step))
            if key not in known:
                known[key] = self._formed(layer)
            grams.append(known[key])
        return grams

    def weights(self) -> list[Array]:
        """W of each layer with the rows of the identity block written out, shape (q, m)."""
        known: dict[tuple[int, int], Array] = {}
        weights = []
        for layer in self.layers:
            key = (id(layer.weight), id(layer.outlier_step))
            if key not in known:
                known[key] = _full(layer.weight, layer.outlier_step)
            weights.append(known[key])
        return weights

    def _formed(self, layer: Layer) -> Array:
        assert layer.atoms is not None
        weight = _full(layer.weight, layer.outlier_step).astype(np.float64)
        ones = None if layer.outlier_step is None else np.ones(self.features)
        gram = weight @ _full(layer.atoms, ones).astype(np.float64).T
        if layer.decay is not None:
            gram[np.diag_indices(self.size)] += layer.decay
        return gram.astype(np.float32)


def _full(matrix: Array, diagonal: Array | None) -> Array:
    return matrix if diagonal is None else np.concatenate([matrix, np.diag(diagonal)])


def lower(info: Mapping[str, Any], arrays: Mapping[str, Array], prefix: str = "") -> Program:
    """The program of an encoder from what its file holds: the description and the state."""
    needed = info["runtime"]
    state = {
        name.removeprefix(prefix): array.astype(np.float64)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
    units = state.get("units")
    atoms = np.concatenate([state[name] for name in needed["dictionaries"]])
    dictionary, features = _single(atoms), atoms.shape[1]
    if units is not None:
        atoms = atoms * units[: len(atoms), None]
    dense = info["arguments"]["structure"] == "dense"
    if dense and needed["identity"]:
        atoms = np.concatenate([atoms, np.eye(features)])
    size = len(needed["nonnegative"])
    widths = [0 if width is None else int(width) for width in needed["widths"]]
    step = _Step(info["arguments"], state, atoms, len(widths))
    forms = step.dense_forms() if dense else step.residual_forms(needed["identity"])
    stages = [
        (np.array(stage["labels"], np.int64), np.array(stage["weights"], np.float64))
        for stage in needed["stages"]
    ]
    layers = []
    thresholds = step.thresholds(stages)
    for form, mix, own, width in zip(forms, step.mixes(), thresholds, widths, strict=True):
        soft, groups = _sorted_thresholds(stages, own, size)
        layers.append(Layer(mix=mix, soft=soft, groups=groups, width=width, **form))
    blocks = needed["blocks"]
    return Program(
        features=features,
        size=size,
        layers=tuple(layers),
        dictionary=dictionary,
        units=None if units is None else _single(units),
        negative=_single(1.0 - np.array(needed["nonnegative"], np.float64)),
        labels=tuple(labels for labels, _ in stages if not _is_single(labels)),
        blocks=None if blocks is None else np.array(blocks, np.int64),
        constants=_single(state["constants"]),
        info=info,
    )


class _Step:
    """The learned part of an encoder, by the names of its state."""

    def __init__(
        self, arguments: Mapping[str, Any], state: Mapping[str, Array], atoms: Array, depth: int
    ) -> None:
        self.kind, self.momentum = arguments["step"], arguments["momentum"]
        self.state, self.atoms, self.depth = state, atoms, depth
        self.constants = state["constants"]
        curvature = state.get("curvature")
        self.decay = None if curvature is None else curvature / self.constants

    def mixes(self) -> list[tuple[float, float, float, float, float]]:
        mixing = self.state.get("step.mixing")
        if mixing is None:
            return [(1.0, 0.0, 1.0, 0.0, 1.0)] * self.depth
        if self.momentum:
            a = [[float(value) for value in row] for row in mixing]
            return [(row[0], row[1], row[2], row[3], row[4]) for row in a]
        return [(1.0, 0.0, float(rate), 0.0, float(rate)) for rate in mixing]

    def thresholds(self, stages: Sequence[tuple[Array, Array]]) -> list[list[Array]]:
        """For each layer the thresholds of each stage."""
        if self.kind == "model":
            natural = [
                weights / self.constants[[int(np.argmax(labels == r)) for r in range(len(weights))]]
                for labels, weights in stages
            ]
            factors = np.maximum(self.state["step.factors"], 0)
            return [[factor * t for t in natural] for factor in factors]
        learned = [
            _repeat(np.maximum(self.state[f"step.thresholds.{number}"], 0), self.depth)
            for number in range(len(stages))
        ]
        return [[rows[number] for rows in learned] for number in range(self.depth)]

    def weights(self) -> list[Array]:
        if self.kind == "model":
            return [_single(self.atoms / self.constants[: len(self.atoms), None])] * self.depth
        weight = self.state["step.weight"]
        if self.kind == "free":
            return [_single(weight)] * self.depth
        return _repeat([_single(one) for one in weight], self.depth)

    def dense_forms(self) -> list[dict[str, Any]]:
        weights = self.weights()
        if self.kind == "free":
            identity = np.eye(len(self.constants))
            stack = [_single(identity - one) for one in self.state["step.coupling"]]
            grams = [stack[0], *_repeat(stack, self.depth - 1)]
        else:
            known: dict[int, Array] = {}
            for weight in weights:
                if id(weight) not in known:
                    known[id(weight)] = _single(self._gram(weight))
            grams = [known[id(weight)] for weight in weights]
        empty = {"atoms": None, "outlier_step": None, "decay": None}
        return [{"weight": w, "gram": g, **empty} for w, g in zip(weights, grams, strict=True)]

    def _gram(self, weight: Array) -> Array:
        gram = weight.astype(np.float64) @ self.atoms.T
        if self.decay is not None:
            gram[np.diag_indices(len(gram))] += self.decay
        return gram

    def residual_forms(self, identity: bool) -> list[dict[str, Any]]:
        if self.kind == "free":
            stack = [_single(one) for one in self.state["step.coupling"]]
            atoms = [stack[0], *_repeat(stack, self.depth - 1)]
        else:
            atoms = [_single(self.atoms)] * self.depth
        steps: list[Array | None] = [None] * self.depth
        if identity and self.kind == "model":
            steps = [_single(1 / self.constants[len(self.atoms) :])] * self.depth
        elif identity:
            stack = [_single(one) for one in self.state["step.outlier_step"]]
            steps = list(_repeat(stack, self.depth))
        decay = None if self.decay is None else _single(self.decay)
        return [
            {"weight": w, "gram": None, "atoms": v, "outlier_step": o, "decay": decay}
            for w, v, o in zip(self.weights(), atoms, steps, strict=True)
        ]


def _sorted_thresholds(
    stages: Sequence[tuple[Array, Array]], thresholds: Sequence[Array], size: int
) -> tuple[Array, tuple[Array, ...]]:
    """Soft thresholds and those of groups.

    Stages of single coefficients may all come first, because a single one is never shrunk after a
    group that contains it; and two soft thresholds in a row add up.
    """
    soft = np.zeros(size)
    groups = []
    for (labels, _), own in zip(stages, thresholds, strict=True):
        if _is_single(labels):
            used = labels >= 0
            soft[used] += own[labels[used]]
        else:
            groups.append(_single(own))
    return _single(soft), tuple(groups)


def _is_single(labels: Array) -> bool:
    used = labels[labels >= 0]
    return len(np.unique(used)) == len(used)


def _repeat(stack: Any, count: int) -> list[Any]:
    """The entries of a stack, or its only one as often as asked."""
    return [stack[0]] * count if len(stack) == 1 else list(stack)


def _single(array: Array) -> Array:
    return np.ascontiguousarray(array, np.float32)
