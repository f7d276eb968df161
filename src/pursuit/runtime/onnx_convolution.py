"""The ONNX graph of a convolutional program: Conv nodes with thresholds between them.

Running means over the S0 frames of a signal are products with a constant lower triangular matrix.
"""

from __future__ import annotations

import numpy as np

from .checks import Array
from .convolution import ConvolutionProgram, Sides
from .onnx_nodes import Nodes


def encode(nodes: Nodes, program: ConvolutionProgram) -> str:
    """The codes of the signals "x"."""
    nodes.scope = "layer1"
    # a zero stands for the number of signals
    sides = np.array([0, program.channels, *program.shape])
    u = nodes("Reshape", "x", nodes.constant(sides, "planes"))
    frames = program.shape[0]
    means = [
        _mean(nodes, u, triangular(np.array([decay]), frames), program.shape)
        for decay in program.averages
    ]
    if means:
        u = nodes("Concat", u, *means, axis=1)
    b = _signal(nodes, program, u)
    z = _shrunk(nodes, program, 0, b)
    for number in range(1, program.depth):
        nodes.scope = f"layer{number + 1}"
        if number == program.memory:
            assert program.recall is not None
            assert program.decays is not None
            mean = _mean(nodes, z, triangular(program.decays, frames), program.positions)
            recall = nodes.constant(program.recall[:, :, None, None], "recall")
            b = nodes("Add", b, nodes("Conv", mean, recall))
        v = nodes("Add", b, _coupled(nodes, program, number - 1, z))
        z = _shrunk(nodes, program, number, v)
    nodes.scope = "codes"
    return nodes("Reshape", z, nodes.constant(np.array([0, program.size]), "rows"))


def triangular(decays: Array, frames: int) -> Array:
    """The matrices of running means, ``d^(t-s) / sum_{r<=t} d^(t-r)`` for s <= t."""
    lags = np.subtract.outer(np.arange(frames), np.arange(frames))
    powers = decays.astype(np.float64)[:, None, None] ** np.maximum(lags, 0)
    weights: Array = np.where(lags < 0, 0.0, powers)
    weights /= weights.sum(axis=2, keepdims=True)
    return weights


def _mean(nodes: Nodes, v: str, matrices: Array, sides: Sides) -> str:
    """The products of one matrix for each channel, or one for all, with planes of these sides.

    The signals are moved beside the last axis, since a product cannot be repeated for no signals.
    """
    first = nodes("Transpose", v, perm=(1, 2, 0, 3))
    shape = nodes.constant(np.array([0, 0, -1]), "columns")
    means = nodes("MatMul", nodes.constant(matrices, "mean"), nodes("Reshape", first, shape))
    shape = nodes.constant(np.array([0, 0, -1, sides[1]]), "planes")
    return nodes("Transpose", nodes("Reshape", means, shape), perm=(2, 0, 1, 3))


def _signal(nodes: Nodes, program: ConvolutionProgram, u: str) -> str:
    """``W * u + offset``; what is causal covers frames before the first, which are zero."""
    past = program.weight.shape[2] - 1 if program.causal else 0
    b = nodes(
        "Conv",
        u,
        nodes.constant(program.weight, "weight"),
        strides=program.stride,
        dilations=program.dilation,
        pads=(past, 0, 0, 0),
    )
    return nodes("Add", b, nodes.constant(program.offset, "offset"))


def _coupled(nodes: Nodes, program: ConvolutionProgram, number: int, z: str) -> str:
    """``H * z``, with zeros around z so that the number of positions stays the same."""
    kernel, steps = program.couplings[number], program.coupling_dilations[number]
    frames, side = (d * (taps - 1) for d, taps in zip(steps, kernel.shape[2:], strict=True))
    above, below = (frames, 0) if program.causal else (frames // 2, frames // 2)
    pads = (above, side // 2, below, side // 2)
    return nodes("Conv", z, nodes.constant(kernel, "coupling"), dilations=steps, pads=pads)


def _shrunk(nodes: Nodes, program: ConvolutionProgram, number: int, v: str) -> str:
    soft = program.soft[number][:, None, None]
    return nodes.shrunk(v, soft, program.negative[:, None, None] != 0)
