"""ONNX: an encoder as a graph that any ONNX runtime can run, written from its program.

One layer of the program becomes a handful of nodes: products with the scalars as their factors, a
shrinkage, and the choice of the coefficients if a layer changes only a part of the code. The `onnx`
package is needed only here, torch only if the encoder is a torch module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..files import write_whole
from . import onnx_convolution
from .checks import Array
from .compiled import Compiled, CompiledBank, load
from .convolution import CompiledConvolution, ConvolutionProgram
from .onnx_nodes import Factor, Nodes, Term
from .program import Layer, Program

if TYPE_CHECKING:
    import onnx

#: the oldest version of the operators that has all that are used here
OLDEST_OPSET = 13
#: the smallest norm to divide by
TINY = float(np.finfo(np.float32).tiny)
#: entries of a program's description that the file's metadata contains
DESCRIPTION = ("type", "arguments", "model", "regime", "provenance")


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


def graph(program: Program | ConvolutionProgram, opset: int = 17) -> onnx.ModelProto:
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
    nodes = Nodes()
    if isinstance(program, ConvolutionProgram):
        codes = onnx_convolution.encode(nodes, program)
    else:
        codes = _encode(nodes, program)
    nodes.rename(codes, "codes")
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


def _program(encoder: Any) -> Program | ConvolutionProgram:
    if isinstance(encoder, Program | ConvolutionProgram):
        return encoder
    if isinstance(encoder, str | os.PathLike):
        encoder = load(encoder)
    if isinstance(encoder, CompiledBank) or hasattr(encoder, "programs"):
        raise TypeError("a bank of encoders has no graph; export its encoders one by one")
    if isinstance(encoder, Compiled | CompiledConvolution):
        return encoder.program
    if not callable(getattr(encoder, "program", None)):
        raise TypeError(
            "an encoder, its program or the path of its file can be exported, "
            f"got {type(encoder).__name__}"
        )
    program: Program | ConvolutionProgram = encoder.program()
    return program


def _description(program: Program | ConvolutionProgram) -> dict[str, Any]:
    known = {key: program.info[key] for key in DESCRIPTION if key in program.info}
    if known.get("provenance") is None:
        known.pop("provenance", None)
    return {"format": "pursuit", **known, "features": program.features, "size": program.size}


def _summary(program: Program | ConvolutionProgram) -> str:
    kind = program.info.get("type", "An encoder")
    model: Mapping[str, Any] = program.info.get("model") or {}
    of = f" for {model['type']}" if "type" in model else ""
    return (
        f"{kind}{of}: signals (batch, {program.features}) to codes (batch, {program.size}) "
        f"by {program.depth} layers"
    )


# ---- layers ---------------------------------------------------------------------------------


def _encode(nodes: Nodes, program: Program) -> str:
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
    nodes: Nodes, program: Program, layer: Layer, z: str | None, previous: str | None
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
    nodes: Nodes, program: Program, layer: Layer, z: str | None, previous: str | None
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


def _residual(nodes: Nodes, layer: Layer, z: str | None, previous: str | None) -> tuple[str, float]:
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


def _shrunk(nodes: Nodes, program: Program, layer: Layer, v: str) -> str:
    """Soft thresholds, then those of groups."""
    v = nodes.shrunk(v, layer.soft, program.negative != 0)
    for labels, thresholds in zip(program.labels, layer.groups, strict=True):
        v = _shrunk_groups(nodes, v, labels, thresholds)
    return v


def _shrunk_groups(nodes: Nodes, v: str, labels: Array, thresholds: Array) -> str:
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


def _chosen(nodes: Nodes, program: Program, layer: Layer, z: str | None, y: str) -> str:
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


def _top(nodes: Nodes, change: str, start: str, y: str, width: int) -> str:
    """y in the coefficients that change most, the start elsewhere."""
    count = nodes.constant(np.array([width]), "width")
    _, most = nodes.several(2, "TopK", nodes("Abs", change), count, axis=1, largest=1, sorted=0)
    taken = nodes("GatherElements", y, most, axis=1)
    return nodes("ScatterElements", start, most, taken, axis=1)


def _best_block(
    nodes: Nodes, change: str, start: str, y: str, blocks: Array, constants: Array
) -> str:
    """y in the block with the largest ``sum_i L_i change_i^2``, the start elsewhere."""
    members = np.eye(int(blocks.max()) + 1)[blocks] * constants[:, None]
    gains = nodes("MatMul", nodes("Mul", change, change), nodes.constant(members, "gains"))
    best = nodes("ArgMax", gains, axis=1, keepdims=1)
    inside = nodes("Equal", nodes.constant(blocks, "blocks"), best)
    return nodes("Where", inside, y, start)
