"""Lowering: from the layers of an encoder, ready to run in torch, to a program of plain arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..penalties import Penalty
from ..penalties.base import checked_stages, is_single
from ..runtime import program as runtime
from ..runtime.program import Program
from .forms import Form, Gram, Layer

Array = np.ndarray[Any, Any]


def lower(
    layers: Sequence[Layer],
    penalty: Penalty,
    *,
    dictionary: Tensor,
    constants: Tensor,
    units: Tensor | None,
    widths: Sequence[int],
    blocks: Tensor | None,
    info: Mapping[str, Any],
) -> Program:
    """Return the program of layers in float64 whose scalars are numbers; see `Program`."""
    size = len(constants)
    stages = [labels.numpy() for labels in checked_stages(penalty, size)]
    sign = penalty.sign_constraint(size)
    arrays = _Arrays()
    decay = None if isinstance(layers[0].form, Gram) else layers[0].form.decay
    lowered = []
    for layer, width in zip(layers, widths, strict=True):
        soft, groups = _thresholds(stages, layer.thresholds, size)
        a1, a2, c1, c2, e = (0.0 if scalar is None else float(scalar) for scalar in layer.mix)
        matrices, mix = _matrices(layer.form, arrays), (a1, a2, c1, c2, e)
        lowered.append(runtime.Layer(mix=mix, soft=soft, groups=groups, width=width, **matrices))
    return Program(
        layers=tuple(lowered),
        dictionary=arrays.of(dictionary),
        negative=np.ones(size, np.float32) if sign is None else _single((~sign).double()),
        constants=_single(constants),
        decay=None if decay is None else _single(decay),
        units=None if units is None else _single(units),
        labels=tuple(labels for labels in stages if not is_single(labels)),
        blocks=None if blocks is None else np.ascontiguousarray(blocks.numpy(), np.int64),
        info=info,
    )


def _matrices(form: Form, arrays: _Arrays) -> dict[str, Any]:
    matrices = {"weight": arrays.of(form.weight), "gram": None, "atoms": None, "outlier_step": None}
    if isinstance(form, Gram):
        gram = arrays.of(form.coupling, lambda h: torch.eye(len(h), dtype=h.dtype) - h)
        return {**matrices, "gram": gram}
    step = None if form.outlier_step is None else arrays.of(form.outlier_step)
    return {**matrices, "atoms": arrays.of(form.atoms), "outlier_step": step}


def _thresholds(
    stages: Sequence[Array], thresholds: Sequence[Tensor], size: int
) -> tuple[Array, tuple[Array, ...]]:
    """Soft thresholds, and those of groups.

    Stages of single coefficients are moved to the front, where two soft thresholds in a row add
    up. That is right because a coefficient is never shrunk alone after a group that contains it.
    """
    soft = np.zeros(size)
    groups: list[Array] = []
    grouped = np.zeros(size, bool)
    for labels, threshold in zip(stages, thresholds, strict=True):
        used = labels >= 0
        values = threshold.expand(int(labels.max()) + 1).numpy()
        if is_single(labels):
            if (grouped & used).any():
                raise TypeError(
                    "the penalty shrinks single coefficients after a group that contains them; "
                    "only the order from the smallest groups to the largest can be compiled"
                )
            soft[used] += values[labels[used]]
        else:
            grouped |= used
            groups.append(np.ascontiguousarray(values, np.float32))
    return soft.astype(np.float32), tuple(groups)


class _Arrays:
    """Tensors as float32 arrays; what layers share becomes one array."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, torch.Size], tuple[Tensor, Array]] = {}

    def of(self, tensor: Tensor, change: Any = None) -> Array:
        key = (tensor.data_ptr(), tensor.shape)
        if key not in self._known:
            # the tensor is kept, so that its address is not used again
            self._known[key] = tensor, _single(tensor if change is None else change(tensor))
        return self._known[key][1]


def _single(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.numpy(), np.float32)
