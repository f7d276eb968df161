"""ONNX: an encoder as a graph that any ONNX runtime can run, written from its program.

One layer of the program becomes a handful of nodes: products with the scalars as their factors, a
shrinkage, and the choice of the coefficients if a layer changes only a part of the code. The `onnx`
package is needed only here, torch only if the encoder is a torch module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import __version__
from ..files import write_whole
from .compiled import Compiled, CompiledBank, load
from .program import Array, Layer, Program

if TYPE_CHECKING:
    import onnx

#: the oldest version of the operators that has all that are used here
OLDEST_OPSET = 13
#: sums are scaled by their first factor that is at least this fraction of the largest
SMALLEST = 1e-3
#: the smallest norm to divide by
TINY = float(np.finfo(np.float32).tiny)
#: the lower end of a one-sided threshold
LOWEST = float(np.finfo(np.float32).min)
#: entries of a program's description that the file's metadata contains
DESCRIPTION = ("type", "arguments", "model", "regime", "provenance")
#: a factor for all coefficients, or one for each
Factor = float | Array
Term = tuple[Factor, str]


def export_onnx(encoder: Any, path: str | os.PathLike[str], opset: int = 17) -> None:
    """Write an encoder to an ONNX file.

    The graph has one input "x", float32 of shape (batch, m), and one output "codes", float32 of
    shape (batch, q), with any number of rows. Unlike the encoder, a graph does not raise an error
    for signals with NaN. The metadata describe the encoder, as JSON under "pursuit".

    Parameters
    ----------
    encoder
        An encoder, its program, or the path of a file that `save` has written.
    path
        Usually ``*.onnx``. An existing file is replaced once the new one is complete.
    opset
        The version of ONNX's operators, 13 or newer; older runtimes need older versions.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> encoder = pu.ProximalEncoder(pu.models.Lasso(torch.eye(2), lam=1.0), layers=3)
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     pu.export_onnx(encoder, f"{folder}/lasso.onnx")
    """
    folder = Path(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to write {Path(path).name} to")
    write_whole(path, graph(_program(encoder), opset).SerializeToString())


def graph(program: Program, opset: int = 17) -> onnx.ModelProto:
    """Return the checked ONNX model of a program."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError(
            "exporting needs the package onnx; install with pip install 'pursuit[onnx]'"
        ) from error
    from onnx import helper, numpy_helper

    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise ValueError(f"opset must be {OLDEST_OPSET} to {newest}, got {opset}")
    nodes = _Nodes()
    nodes.rename(_encode(nodes, program), "codes")
    float32 = onnx.TensorProto.FLOAT
    made = [
        helper.make_node(node.operator, node.inputs, node.outputs, node.name, **node.attributes)
        for node in nodes.all
    ]
    whole = helper.make_graph(
        made,
        "encoder",
        [helper.make_tensor_value_info("x", float32, ["batch", program.features])],
        [helper.make_tensor_value_info("codes", float32, ["batch", program.size])],
        initializer=[numpy_helper.from_array(a, name) for name, a in nodes.constants.items()],
        doc_string=_summary(program),
    )
    versions = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        whole,
        opset_imports=versions,
        # not the newest, which runtimes of the same age as the operators could not read
        ir_version=helper.find_min_ir_version_for(versions),
        producer_name="pursuit",
        producer_version=__version__,
    )
    helper.set_model_props(model, {"pursuit": json.dumps(_description(program))})
    onnx.checker.check_model(model, full_check=True)
    return model


def _program(encoder: Any) -> Program:
    if isinstance(encoder, Program):
        return encoder
    if isinstance(encoder, str | os.PathLike):
        encoder = load(encoder)
    if isinstance(encoder, CompiledBank) or hasattr(encoder, "programs"):
        raise TypeError("a bank of encoders has no graph; export its encoders one by one")
    if isinstance(encoder, Compiled):
        return encoder.program
    if not callable(getattr(encoder, "program", None)):
        raise TypeError(
            "an encoder, its program or the path of its file can be exported, "
            f"got {type(encoder).__name__}"
        )
    program: Program = encoder.program()
    return program


def _description(program: Program) -> dict[str, Any]:
    known = {key: program.info[key] for key in DESCRIPTION if key in program.info}
    if known.get("provenance") is None:
        known.pop("provenance", None)
    return {"format": "pursuit", **known, "features": program.features, "size": program.size}


def _summary(program: Program) -> str:
    kind = program.info.get("type", "An encoder")
    model: Mapping[str, Any] = program.info.get("model") or {}
    of = f" for {model['type']}" if "type" in model else ""
    return (
        f"{kind}{of}: signals (batch, {program.features}) to codes (batch, {program.size}) "
        f"by {len(program.layers)} layers"
    )


# ---- layers ---------------------------------------------------------------------------------


def _encode(nodes: _Nodes, program: Program) -> str:
    """The codes of the signals "x", in the units of the model."""
    z: str | None = None
    previous: str | None = None
    for number, layer in enumerate(program.layers):
        nodes.scope = f"layer{number + 1}"
        linear = _residual_step if layer.gram is None else _gram_step
        y = _shrunk(nodes, program, layer, linear(nodes, program, layer, z, previous))
        previous, z = z, _chosen(nodes, program, layer, z, y)
    assert z is not None
    nodes.scope = "codes"
    return z if program.units is None else nodes("Mul", z, nodes.constant(program.units, "units"))


def _gram_step(
    nodes: _Nodes, program: Program, layer: Layer, z: str | None, previous: str | None
) -> str:
    """``v = e x W' + (a1 - c1) z + (a2 - c2) z' + (c1 z + c2 z') H'`` with ``H = I - G``."""
    assert layer.gram is not None
    a1, a2, c1, c2, e = layer.mix
    signal = nodes.product("x", layer.weight, "weight")
    if z is None:
        return nodes.scaled(signal, e)
    base, beta = nodes.total([(e, signal), *_codes(a1 - c1, z, a2 - c2, previous)])
    point, alpha = nodes.total(_codes(c1, z, c2, previous))
    if alpha == 0:
        return nodes.scaled(base, beta)
    coupling = np.eye(len(layer.gram), dtype=np.float32) - layer.gram
    return nodes.product(point, coupling, "coupling", alpha=alpha, plus=base, beta=beta)


def _residual_step(
    nodes: _Nodes, program: Program, layer: Layer, z: str | None, previous: str | None
) -> str:
    """``v = a1 z + a2 z' + (e x - p V) W' - decay p`` with ``p = c1 z + c2 z'``."""
    a1, a2, c1, c2, _ = layer.mix
    residual, scale = _residual(nodes, layer, z, previous)
    carried: list[Term] = []
    if z is not None:
        decay: Factor = 0.0 if program.decay is None else program.decay
        carried = _codes(a1 - c1 * decay, z, a2 - c2 * decay, previous)
    if layer.outlier_step is None:
        base, beta = nodes.total(carried) if carried else (None, 0.0)
        return nodes.product(residual, layer.weight, "weight", alpha=scale, plus=base, beta=beta)
    scores = nodes.product(residual, layer.weight, "weight", alpha=scale)
    step = nodes.constant(scale * layer.outlier_step, "outlier_step")
    moves = nodes("Concat", scores, nodes("Mul", residual, step), axis=1)
    return nodes.scaled(*nodes.total([(1.0, moves), *carried]))


def _residual(
    nodes: _Nodes, layer: Layer, z: str | None, previous: str | None
) -> tuple[str, float]:
    """``e x - (c1 z + c2 z') V``, as a value and its factor."""
    _, _, c1, c2, e = layer.mix
    if z is None:
        return "x", e
    point, alpha = nodes.total(_codes(c1, z, c2, previous))
    if alpha == 0:
        return "x", e
    assert layer.atoms is not None
    base, beta = "x", e
    if layer.outlier_step is not None:
        # the last rows of V are the identity, which adds the outliers of the code
        point, outliers = nodes.split(point, layer.atoms.shape)
        base, beta = nodes.total([(e, "x"), (-alpha, outliers)])
    residual = nodes.product(
        point, layer.atoms, "atoms", alpha=-alpha, plus=base, beta=beta, transposed=False
    )
    return residual, 1.0


def _codes(now: Factor, z: str, before: Factor, previous: str | None) -> list[Term]:
    """The terms of the last code and of the one before it, which is absent at first."""
    return [(now, z)] if previous is None else [(now, z), (before, previous)]


def _shrunk(nodes: _Nodes, program: Program, layer: Layer, v: str) -> str:
    """Soft thresholds ``v - min(max(v, -t), t)``, then those of groups.

    Where codes must not be negative, the threshold has no lower end.
    """
    signed = program.negative != 0
    if not signed.any():
        above = nodes("Sub", v, nodes.constant(layer.soft, "soft")) if layer.soft.any() else v
        v = nodes("Relu", above)
    elif layer.soft.any() or not signed.all():
        lowest = nodes.constant(np.where(signed, -layer.soft, LOWEST), "lowest")
        within = nodes("Min", nodes("Max", v, lowest), nodes.constant(layer.soft, "soft"))
        v = nodes("Sub", v, within)
    for labels, thresholds in zip(program.labels, layer.groups, strict=True):
        v = _shrunk_groups(nodes, v, labels, thresholds)
    return v


def _shrunk_groups(nodes: _Nodes, v: str, labels: Array, thresholds: Array) -> str:
    """``v_r max(0, 1 - t_r/||v_r||)``; coefficients in no group form one with threshold 0."""
    count = len(thresholds)
    rest = labels < 0
    if rest.any():
        labels, thresholds = np.where(rest, count, labels), np.append(thresholds, 0)
    members = np.eye(len(thresholds))[labels]
    squares = nodes("MatMul", nodes("Mul", v, v), nodes.constant(members, "members"))
    norms = nodes("Max", nodes("Sqrt", squares), nodes.number(TINY))
    parts = nodes("Div", nodes.constant(thresholds, "thresholds"), norms)
    factors = nodes("Relu", nodes("Sub", nodes.number(1.0), parts))
    return nodes("Mul", v, nodes("MatMul", factors, nodes.constant(members.T, "groups")))


def _chosen(nodes: _Nodes, program: Program, layer: Layer, z: str | None, y: str) -> str:
    """The code after a layer: y, or z with the largest changes of y; None means zeros."""
    if layer.width == program.size:
        return y
    change = y if z is None else nodes("Sub", y, z)
    if layer.width > 0:
        start = nodes("Sub", y, y) if z is None else z
        return _top(nodes, change, start, y, layer.width)
    assert program.blocks is not None
    start = nodes.number(0.0) if z is None else z
    return _best_block(nodes, change, start, y, program.blocks, program.constants)


def _top(nodes: _Nodes, change: str, start: str, y: str, width: int) -> str:
    """y in the coefficients that change most, the start elsewhere."""
    count = nodes.constant(np.array([width]), "width")
    _, most = nodes.several(2, "TopK", nodes("Abs", change), count, axis=1, largest=1, sorted=0)
    taken = nodes("GatherElements", y, most, axis=1)
    return nodes("ScatterElements", start, most, taken, axis=1)


def _best_block(
    nodes: _Nodes, change: str, start: str, y: str, blocks: Array, constants: Array
) -> str:
    """y in the block with the largest ``sum_i L_i change_i^2``, the start elsewhere."""
    members = np.eye(int(blocks.max()) + 1)[blocks] * constants[:, None]
    gains = nodes("MatMul", nodes("Mul", change, change), nodes.constant(members, "gains"))
    best = nodes("ArgMax", gains, axis=1, keepdims=1)
    inside = nodes("Equal", nodes.constant(blocks, "blocks"), best)
    return nodes("Where", inside, y, start)


# ---- nodes ----------------------------------------------------------------------------------


class _Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]
    name: str
    attributes: dict[str, Any]


class _Nodes:
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
