"""Programs: a trained encoder as plain arrays, in one normal form, without torch.

Every layer of every encoder is, in the coordinates of the normalised model,

    v = a1 z + a2 z' + e x W' - (c1 z + c2 z') G',        y = shrink(v),

after which y replaces the code, all of it or where it changes most; z and z' are the codes after
the last layer and after the one before it. G is given as a matrix, or in the form of the residual
as ``G = W V' + diag(decay)``, where with an identity block the last rows of W and V are diag(w) and
I. The shrinkage is a soft threshold for each coefficient, one-sided where codes must not be
negative, and then a shrinkage of whole groups, level by level. The last code is multiplied by
`units`.

`Encoder.program` derives a program from an encoder; files store its `arrays`, from which
`from_arrays` restores it. Every program is checked when it is created: the kernels rely on every
index, length, dtype and sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..fields import shown
from .checks import require, require_range, require_values
from .convolution import CONVOLUTION, ConvolutionProgram

Array = np.ndarray[Any, Any]
Mix = tuple[float, float, float, float, float]

#: the memory of a layer besides the last code, and how the result is read out; files state it, so
#: that a memory of v, or a linear read-out, can be added
FORM = {"memory": "code", "readout": "diagonal"}
#: arrays of a program that layers can share, and the attribute of `Layer` that each belongs to
SHARED = {"weights": "weight", "grams": "gram", "atoms": "atoms", "outlier_steps": "outlier_step"}


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer; matrices that layers share are one and the same object."""

    mix: Mix  # a1, a2, c1, c2, e
    weight: Array  # W, (rows, m); rows is q, or q - m with an identity block
    gram: Array | None  # G, (q, q), or None for the residual form
    atoms: Array | None  # V of the residual form, (rows, m)
    outlier_step: Array | None  # w of the residual form with an identity block, (m,)
    soft: Array  # the threshold of each coefficient, (q,)
    groups: tuple[Array, ...]  # the thresholds of the groups of each level
    width: int  # number of coefficients that are replaced; 0 for the block that gains most


@dataclass(frozen=True, eq=False)
class Program:
    """All layers, and what they have in common."""

    layers: tuple[Layer, ...]
    dictionary: Array  # the atoms for decoding, (rows, m), without an identity block
    negative: Array  # 1 where a coefficient may be negative, else 0, (q,)
    constants: Array  # the step constant of each coefficient, (q,)
    decay: Array | None = None  # diagonal of the quadratic penalty in the residual form, (q,)
    units: Array | None = None  # factors of the last code, (q,)
    labels: tuple[Array, ...] = ()  # per level the group of each coefficient, -1 for none, (q,)
    blocks: Array | None = None  # the block of each coefficient, for layers of width 0, (q,)
    info: Mapping[str, Any] = field(default_factory=dict)  # a description of the encoder

    def __post_init__(self) -> None:
        _check(self)

    @property
    def features(self) -> int:
        """m, the width of a signal."""
        return int(self.dictionary.shape[1])

    @property
    def size(self) -> int:
        """q, the number of coefficients of a code."""
        return len(self.negative)

    @property
    def depth(self) -> int:
        """T, the number of layers."""
        return len(self.layers)

    @property
    def identity(self) -> bool:
        """Whether the residual form has an identity block."""
        return self.layers[0].outlier_step is not None

    @property
    def momentum(self) -> bool:
        """Whether some layer uses the code before the last."""
        return any(layer.mix[1] != 0 or layer.mix[3] != 0 for layer in self.layers)

    @property
    def partial(self) -> bool:
        """Whether some layers change only a part of the code."""
        return any(layer.width != self.size for layer in self.layers)

    def grams(self) -> list[Array]:
        """Return G of each layer, computed where it is not given; shared where its parts are."""
        known: dict[tuple[int, ...], Array] = {}
        grams = []
        for layer in self.layers:
            if layer.gram is not None:
                grams.append(layer.gram)
                continue
            key = (id(layer.weight), id(layer.atoms), id(layer.outlier_step))
            if key not in known:
                known[key] = self._gram(layer)
            grams.append(known[key])
        return grams

    def weights(self) -> list[Array]:
        """Return W of each layer, the rows of the identity block included, shape (q, m)."""
        known: dict[tuple[int, int], Array] = {}
        weights = []
        for layer in self.layers:
            key = (id(layer.weight), id(layer.outlier_step))
            if key not in known:
                known[key] = _full(layer.weight, layer.outlier_step)
            weights.append(known[key])
        return weights

    def arrays(self) -> dict[str, Array]:
        """Return everything that `from_arrays` needs, by name."""
        layers = self.layers
        arrays: dict[str, Array] = {
            "mix": np.array([layer.mix for layer in layers], np.float64),
            "soft": np.stack([layer.soft for layer in layers]),
            "widths": np.array([layer.width for layer in layers], np.int64),
            "dictionary": self.dictionary,
            "negative": self.negative,
            "constants": self.constants,
        }
        for number, labels in enumerate(self.labels):
            arrays[f"labels.{number}"] = labels
            arrays[f"groups.{number}"] = np.stack([layer.groups[number] for layer in layers])
        for name, attribute in SHARED.items():
            values = [getattr(layer, attribute) for layer in layers]
            if values[0] is not None:
                arrays[name], arrays[f"{name}.of"] = stacked(values)
        for name in ("decay", "units", "blocks"):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        return arrays

    def _gram(self, layer: Layer) -> Array:
        assert layer.atoms is not None
        weight = _full(layer.weight, layer.outlier_step).astype(np.float64)
        ones = None if layer.outlier_step is None else np.ones(self.features)
        gram = weight @ _full(layer.atoms, ones).astype(np.float64).T
        if self.decay is not None:
            gram[np.diag_indices(self.size)] += self.decay
        return gram.astype(np.float32)


def from_arrays(
    arrays: Mapping[str, Array], info: Mapping[str, Any]
) -> Program | ConvolutionProgram:
    """Return the program with the arrays of `Program.arrays` and a description of the encoder.

    A field that is missing, superfluous or invalid raises a ValueError that names it.
    """
    form = info.get("program")
    if isinstance(form, Mapping) and form.get("form") == CONVOLUTION:
        return ConvolutionProgram.from_arrays(arrays, info)
    if form != FORM:
        raise ValueError(f"program must be {FORM} or of form {CONVOLUTION!r}, got {shown(form)}")
    rest = dict(arrays)

    def take(name: str) -> Array:
        if name not in rest:
            raise ValueError(f"{name} is missing")
        return rest.pop(name)

    mix = require(take("mix"), "mix", np.float64, (None, 5))
    depth = len(mix)
    soft = require(take("soft"), "soft", np.float32, (depth, None))
    widths = require(take("widths"), "widths", np.int64, (depth,))
    labels: list[Array] = []
    groups: list[Array] = []
    while f"labels.{len(labels)}" in rest:
        name = f"groups.{len(labels)}"
        labels.append(take(f"labels.{len(labels)}"))
        groups.append(require(take(name), name, np.float32, (depth, None)))
    shared: dict[str, Sequence[Array | None]] = {}
    for name, attribute in SHARED.items():
        shared[attribute] = [None] * depth
        if name in rest or name == "weights":
            array = take(name)
            stack = list(array) if array.ndim > 1 else []
            chosen = require(take(f"{name}.of"), f"{name}.of", np.int64, (depth,))
            require_range(chosen, f"{name}.of", 0, len(stack))
            shared[attribute] = [stack[number] for number in chosen]
    layers = tuple(
        Layer(
            mix=tuple(mix[t].tolist()),
            soft=soft[t],
            groups=tuple(level[t] for level in groups),
            width=int(widths[t]),
            **{attribute: values[t] for attribute, values in shared.items()},  # type: ignore[arg-type]
        )
        for t in range(depth)
    )
    dictionary, negative, constants = map(take, ("dictionary", "negative", "constants"))
    decay, units, blocks = (rest.pop(name, None) for name in ("decay", "units", "blocks"))
    program = Program(
        layers, dictionary, negative, constants, decay, units, tuple(labels), blocks, info
    )
    if rest:
        raise ValueError(f"{min(rest)} is not part of a program")
    return program


def stacked(arrays: Sequence[Array]) -> tuple[Array, Array]:
    """Return the distinct arrays as one, and the index of each in it."""
    numbers: dict[int, int] = {}
    distinct: list[Array] = []
    for array in arrays:
        if id(array) not in numbers:
            numbers[id(array)] = len(distinct)
            distinct.append(array)
    return np.stack(distinct), np.array([numbers[id(array)] for array in arrays], np.int64)


def _full(matrix: Array, diagonal: Array | None) -> Array:
    return matrix if diagonal is None else np.concatenate([matrix, np.diag(diagonal)])


def _check(program: Program) -> None:
    """Raise a ValueError that names the invalid field."""
    if len(program.layers) == 0:
        raise ValueError("a program must have at least one layer")
    require(program.dictionary, "dictionary", np.float32, (None, None))
    rows, features = program.dictionary.shape
    require(program.negative, "negative", np.float32, (None,))
    size = program.size
    if rows not in (size, size - features) or rows < 1 or features < 1:
        raise ValueError(
            f"dictionary has shape {program.dictionary.shape}, which does not fit codes of {size}"
        )
    require_values(program.negative, "negative", lambda a: (a == 0) | (a == 1), "0 or 1")
    require(program.constants, "constants", np.float32, (size,))
    require_values(program.constants, "constants", lambda a: a > 0, "positive")
    for name in ("decay", "units"):
        if getattr(program, name) is not None:
            require(getattr(program, name), name, np.float32, (size,))
    if program.blocks is not None:
        require(program.blocks, "blocks", np.int64, (size,))
        require_range(program.blocks, "blocks", 0, size)
    for number, labels in enumerate(program.labels):
        require(labels, f"labels.{number}", np.int64, (size,))
    _check_forms(program, rows)
    for layer in program.layers:
        _check_layer(program, layer)


def _check_forms(program: Program, rows: int) -> None:
    """Check that all layers have the same form, with matrices of the same shapes."""
    size, features, identity = program.size, program.features, program.identity
    checked: set[int] = set()
    dense = program.layers[0].gram is not None
    if identity and (dense or rows == size):
        raise ValueError("outlier_steps are for the residual form with an identity block")
    height = size - features if identity else size
    shapes: dict[str, tuple[int, ...] | None] = {
        "weights": (height, features),
        "grams": (size, size) if dense else None,
        "atoms": None if dense else (height, features),
        "outlier_steps": (features,) if identity else None,
    }
    for layer in program.layers:
        for name, attribute in SHARED.items():
            value, shape = getattr(layer, attribute), shapes[name]
            if (value is None) != (shape is None):
                raise ValueError(f"{name} must be given for all layers or for none")
            if value is not None and shape is not None and id(value) not in checked:
                require(value, name, np.float32, shape)
                checked.add(id(value))


def _check_layer(program: Program, layer: Layer) -> None:
    size = program.size
    if len(layer.mix) != 5 or not np.isfinite(layer.mix).all():
        raise ValueError(f"mix must be five finite numbers a layer, got {layer.mix}")
    require(layer.soft, "soft", np.float32, (size,))
    require_values(layer.soft, "soft", lambda a: a >= 0, "non-negative")
    if len(layer.groups) != len(program.labels):
        raise ValueError(f"groups has {len(layer.groups)} levels, labels {len(program.labels)}")
    for number, (thresholds, labels) in enumerate(zip(layer.groups, program.labels, strict=True)):
        require(thresholds, f"groups.{number}", np.float32, (None,))
        require_values(thresholds, f"groups.{number}", lambda a: a >= 0, "non-negative")
        require_range(labels, f"labels.{number}", -1, len(thresholds))
    if not 0 <= layer.width <= size:
        raise ValueError(f"widths must lie between 0 and {size}, got {layer.width}")
    if layer.width == 0 and program.blocks is None:
        raise ValueError("blocks is missing, although a layer takes over one block")
