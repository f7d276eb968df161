"""All layers of an encoder as one operation of autograd, with a compiled forward and backward pass.

In eager torch a layer is a dozen calls, most of which take longer to start than to run. The
operation here computes the same codes and gradients on the CPU, for penalties whose shrinkage is
described by `Penalty.stages`. Eager torch remains for everything else, and for gradients of
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._checks import is_eager
from .._native import kernels
from ..penalties import Penalty
from ..penalties.base import checked_stages, is_single
from ..runtime.threads import work_through
from .forms import Stack

#: the fewest rows for which another thread is started
ROWS_PER_THREAD = 64
#: the kernels of each dtype
LAYERS = {torch.float32: kernels.LayersFloat32, torch.float64: kernels.LayersFloat64}

Eager = Callable[[Stack, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Shrinkage:
    """The shrinkage of a penalty as the kernel takes it.

    Attributes
    ----------
    labels
        For each stage the column of each coefficient's threshold, if those of all stages are side
        by side, and -1 for none; shape (stages, q).
    grouped
        Whether a stage shrinks groups, shape (stages,).
    nonnegative
        Which coefficients must not be negative, shape (q,).
    counts
        The number of thresholds of each stage.
    """

    labels: np.ndarray[Any, Any]
    grouped: np.ndarray[Any, Any]
    nonnegative: np.ndarray[Any, Any]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, penalty: Penalty, size: int) -> Shrinkage | None:
        """Return the shrinkage of a penalty, or None if it cannot be described this way."""
        try:
            stages = [labels.numpy() for labels in checked_stages(penalty, size)]
        except TypeError:
            return None
        sign = penalty.sign_constraint(size)
        counts = [int(labels.max()) + 1 for labels in stages]
        columns = np.full((len(stages), size), -1, np.int32)
        in_group = np.zeros(size, bool)
        for number, labels in enumerate(stages):
            used = labels >= 0
            columns[number, used] = labels[used] + sum(counts[:number])
            if not is_single(labels):
                in_group |= used
            elif (in_group & used).any():
                return None  # single coefficients are shrunk before the groups that contain them
        grouped = np.array([not is_single(labels) for labels in stages], np.uint8)
        nonnegative = np.zeros(size, np.uint8) if sign is None else sign.numpy().astype(np.uint8)
        return cls(columns, grouped, nonnegative, tuple(counts))

    def joined(self, thresholds: tuple[Tensor, ...]) -> Tensor | None:
        """Return the thresholds of all stages side by side, None if their shapes do not fit."""
        if any(t.shape[1:] != (count,) for t, count in zip(thresholds, self.counts, strict=True)):
            return None
        if len({len(t) for t in thresholds}) > 1:
            return None
        return thresholds[0] if len(thresholds) == 1 else torch.cat(thresholds, dim=1)

    def split(self, thresholds: Tensor) -> tuple[Tensor, ...]:
        """The inverse of `joined`."""
        return thresholds.split(self.counts, dim=1) if self.counts else ()


def fused(stack: Stack, shrinkage: Shrinkage, x: Tensor, eager: Eager) -> Tensor | None:
    """Return the normalised codes of rows after the last layer, or None if this needs eager torch.

    `eager` computes the same from a stack and rows; gradients of gradients are taken through it.
    """
    if not (_is_plain(x) and stack.weight.dtype == x.dtype):
        return None
    if stack.decay is not None and stack.decay.requires_grad:
        return None
    thresholds = x.new_zeros(1, 0) if not stack.thresholds else shrinkage.joined(stack.thresholds)
    if thresholds is None:
        return None
    inputs = (x, stack.weight, stack.matrix, stack.outlier_step, stack.mixing, thresholds)
    return _Fused.apply(stack, shrinkage, eager, *inputs)  # type: ignore[no-any-return, no-untyped-call]


def _is_plain(x: Tensor) -> bool:
    """Whether x is in the memory of the CPU, and nothing but gradients is recorded."""
    return (
        type(x) in (Tensor, nn.Parameter)
        and x.device.type == "cpu"
        and x.dtype in LAYERS
        and is_eager()
        and not torch.is_autocast_enabled("cpu")
        and torch.autograd.forward_ad._current_level < 0
    )


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stack: Stack,
        shrinkage: Shrinkage,
        eager: Eager,
        x: Tensor,
        weight: Tensor,
        matrix: Tensor,
        outlier_step: Tensor | None,
        mixing: Tensor | None,
        thresholds: Tensor,
    ) -> Tensor:
        codes = x.new_empty(len(x), len(shrinkage.nonnegative))
        mix = _five_scalars(mixing, stack.depth, x)
        arrays = [_array(t) for t in (weight, matrix, outlier_step, stack.decay, mix, thresholds)]
        described = shrinkage.labels, shrinkage.grouped, shrinkage.nonnegative
        ctx.parts = _parts(len(x))
        layers = LAYERS[x.dtype]
        ctx.layers = {part.start: layers(stack.gram, *arrays, *described) for part in ctx.parts}
        signals, to = _array(x), codes.numpy()

        def encode(part: slice) -> None:
            ctx.layers[part.start].forward(signals[part], to[part], True)

        work_through(ctx.parts, lambda: encode, len(ctx.parts))
        ctx.stack, ctx.shrinkage, ctx.eager = stack, shrinkage, eager
        ctx.save_for_backward(x, weight, matrix, outlier_step, mixing, thresholds, codes)
        return codes

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *inputs, codes = ctx.saved_tensors
        needed = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return None, None, None, *_eagerly(ctx, inputs, needed, gradient)
        x, mixing = inputs[0], inputs[4]
        signals, reached, slopes = _array(x), _array(codes), _array(gradient)
        like = list(inputs)
        if mixing is not None:
            like[4] = mixing if mixing.ndim == 2 else mixing[:, None].expand(-1, 5)
        gradients = {
            part.start: [
                None if t is None or not need else torch.zeros(t.shape, dtype=t.dtype)
                for t, need in zip(like[1:], needed[1:], strict=True)
            ]
            for part in ctx.parts
        }
        gx = torch.zeros(x.shape, dtype=x.dtype) if needed[0] else None

        def collect(part: slice) -> None:
            arrays = [_array(t) for t in gradients[part.start]]
            to_x = None if gx is None else gx.numpy()[part]
            layers = ctx.layers[part.start]
            layers.backward(signals[part], reached[part], slopes[part], to_x, *arrays)

        work_through(ctx.parts, lambda: collect, len(ctx.parts))
        first, *others = gradients.values()
        for other in others:  # in the order of the rows, whichever thread was first
            for total, part in zip(first, other, strict=True):
                if total is not None:
                    total += part
        if mixing is not None and mixing.ndim == 1 and first[3] is not None:
            first[3] = first[3][:, 2] + first[3][:, 4]
        return None, None, None, gx, *first


def _eagerly(
    ctx: Any, inputs: list[Tensor | None], needed: tuple[bool, ...], gradient: Tensor
) -> list[Tensor | None]:
    """The gradients through eager torch, so that they have gradients themselves."""
    # views, so that what is given twice is not counted twice
    x, weight, matrix, step, mixing, thresholds = (
        None if t is None else t.view_as(t) for t in inputs
    )
    stack = ctx.stack
    assert x is not None and weight is not None and matrix is not None and thresholds is not None
    stages = ctx.shrinkage.split(thresholds)
    again = Stack(stack.gram, weight, matrix, step, stack.decay, mixing, stages, stack.depth)
    codes = ctx.eager(again, x)
    every = (x, weight, matrix, step, mixing, thresholds)
    chosen = [t for t, need in zip(every, needed, strict=True) if need and t is not None]
    found = iter(torch.autograd.grad(codes, chosen, gradient, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _five_scalars(mixing: Tensor | None, depth: int, like: Tensor) -> Tensor:
    """The scalars of each layer in the order of `Mix`."""
    if mixing is not None and mixing.ndim == 2:
        return mixing
    scalars = like.new_zeros(depth, 5)
    scalars[:, 0] = 1
    scalars[:, 2::2] = 1 if mixing is None else mixing.detach()[:, None]
    return scalars


def _parts(rows: int) -> list[slice]:
    """Divide rows evenly among the threads of torch."""
    count = max(1, min(torch.get_num_threads(), rows // ROWS_PER_THREAD))
    bounds = [rows * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().contiguous().numpy()
