"""All layers of an encoder as one operation of autograd, with a compiled forward and backward pass.

In eager torch a layer is a dozen calls, most of which take longer to start than to run. The
operation here computes the same codes and gradients on the CPU, for penalties whose shrinkage is
described by `Penalty.stages`. Eager torch remains for everything else, and for gradients of
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._checks import is_eager
from .._native import kernels
from .._threads import equal_parts, work_through
from ..penalties import Penalty
from ..penalties.base import checked_stages, is_single
from ..penalties.shrinkage import group_norms
from .forms import Stack

#: multiplications of the forward pass for which another thread is started, about half a millisecond
#: with the backward pass: starting a thread and filling its cache takes a tenth
WORTH_A_THREAD = 8_000_000
#: the kernels of each dtype
LAYERS = {torch.float32: kernels.LayersFloat32, torch.float64: kernels.LayersFloat64}
TYPES = {torch.float32: np.float32, torch.float64: np.float64}
#: the place of the scalars among the tensors of a stack
MIXING = 3

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
        return torch.split(thresholds, list(self.counts), dim=1) if self.counts else ()


@dataclass(frozen=True, eq=False)
class Objective:
    """The penalty of a model as the kernel takes it.

    Attributes
    ----------
    lam
        The weight of each threshold's group, in the order of `Shrinkage.labels`.
    ridge
        The weights of the quadratic penalty, shape (q,), or None.
    """

    lam: Tensor
    ridge: Tensor | None

    @cached_property
    def arrays(self) -> dict[torch.dtype, tuple[Any, Any]]:
        """`lam` and `ridge` as arrays of each dtype."""
        lam, ridge = self.lam.numpy(), None if self.ridge is None else self.ridge.cpu().numpy()
        return {
            dtype: (lam.astype(kind), None if ridge is None else ridge.astype(kind))
            for dtype, kind in TYPES.items()
        }

    @classmethod
    def of(cls, penalty: Penalty, size: int, shrinkage: Shrinkage) -> Objective | None:
        """Return the description of a penalty, or None if its value is a different one."""
        units = penalty.nonsmooth.thresholds(1.0)
        lam = [t.double().expand(c) for t, c in zip(units, shrinkage.counts, strict=True)]
        ridge = penalty.curvature(size)
        described = cls(torch.cat(lam) if lam else torch.zeros(0, dtype=torch.float64), ridge)
        generator = torch.Generator().manual_seed(size)
        codes = torch.randn(8, size, generator=generator, dtype=torch.float64)
        codes = torch.where(torch.from_numpy(shrinkage.nonnegative) > 0, codes.abs(), codes)
        expected = penalty.value(codes)
        value = torch.zeros(8, dtype=torch.float64)
        for labels in torch.from_numpy(shrinkage.labels).long():
            norms = group_norms(
                codes, labels.where(labels >= 0, len(described.lam)), len(described.lam) + 1
            )
            value += norms[:, :-1] @ described.lam
        if ridge is not None:
            value += codes.square() @ ridge.double().cpu() / 2
        return described if torch.allclose(value, expected, rtol=1e-9, atol=1e-9) else None


def fused_loss(
    stack: Stack,
    shrinkage: Shrinkage,
    objective: Objective,
    atoms: Tensor,
    units: Tensor | None,
    x: Tensor,
    plain: int,
    weight: float,
    targets: Tensor | None = None,
) -> tuple[float, Callable[[], None]] | None:
    """Return the loss, and a function that adds the gradients of ``loss + weight guard``.

    The loss is the mean objective of the first `plain` rows of x, or with `targets` the mean square
    distance of their normalised codes to these; the guard is that of `pursuit.guard` over the other
    rows. `atoms` and `units` are those of the normalised model. Returns None if this needs eager
    torch. There are no gradients of gradients, nor of x.
    """
    inputs = _inputs(stack, shrinkage, x)
    if inputs is None:
        return None
    tensors = (*inputs, atoms)
    learns = torch.is_grad_enabled()
    needed = [learns and t is not None and t.requires_grad for t in tensors]
    layers = _layers(stack, shrinkage, *inputs)
    factors = 1 / max(plain, 1), weight / max(len(x) - plain, 1)
    given = (_array(atoms), *objective.arrays[x.dtype], _array(units))
    parts, signals, compared = _parts(stack, len(x)), _array(x), _array(targets)
    gradients = [_zeros(tensors, needed) for _ in parts]
    sums = [0.0] * len(parts)

    def learn(part: slice) -> None:
        count = min(max(plain - part.start, 0), part.stop - part.start)
        k = parts.index(part)
        goal = None if compared is None else compared[part.start : part.start + count]
        sums[k], _ = layers.learn(
            signals[part], count, *factors, *given, goal, learns, *gradients[k]
        )

    work_through(parts, lambda: learn, len(parts))

    def backward() -> None:
        summed = _summed(gradients, stack.mixing)
        pairs = [
            (t, g) for t, g in zip(tensors, summed, strict=True) if t is not None and g is not None
        ]
        for tensor, gradient in pairs:
            if tensor.is_leaf:
                tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
        derived = [pair for pair in pairs if not pair[0].is_leaf]
        if derived:
            torch.autograd.backward([t for t, _ in derived], [g for _, g in derived])

    return sum(sums) * factors[0], backward


def fused(stack: Stack, shrinkage: Shrinkage, x: Tensor, eager: Eager) -> Tensor | None:
    """Return the normalised codes of rows after the last layer, or None if this needs eager torch.

    `eager` computes the same from a stack and rows; gradients of gradients are taken through it.
    """
    inputs = _inputs(stack, shrinkage, x)
    if inputs is None:
        return None
    settings = stack, shrinkage, eager, torch.is_grad_enabled()
    return _Fused.apply(settings, x, *inputs)  # type: ignore[no-any-return, no-untyped-call]


Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor]


def _inputs(stack: Stack, shrinkage: Shrinkage, x: Tensor) -> Inputs | None:
    """What is differentiated besides x, or None if this needs eager torch."""
    if not (is_plain(x) and stack.weight.dtype == x.dtype):
        return None
    if stack.decay is not None and stack.decay.requires_grad:
        return None
    thresholds = x.new_zeros(1, 0) if not stack.thresholds else shrinkage.joined(stack.thresholds)
    if thresholds is None:
        return None
    return stack.weight, stack.matrix, stack.outlier_step, stack.mixing, thresholds


def is_plain(x: Tensor) -> bool:
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
        settings: Any,
        x: Tensor,
        weight: Tensor,
        matrix: Tensor,
        outlier_step: Tensor | None,
        mixing: Tensor | None,
        thresholds: Tensor,
    ) -> Tensor:
        stack, shrinkage, eager, learns = settings
        codes = x.new_empty(len(x), len(shrinkage.nonnegative))
        ctx.parts = _parts(stack, len(x))
        tensors = weight, matrix, outlier_step, mixing, thresholds
        ctx.layers = {part.start: _layers(stack, shrinkage, *tensors) for part in ctx.parts}
        signals, to = _array(x), codes.numpy()

        def encode(part: slice) -> None:
            ctx.layers[part.start].forward(signals[part], to[part], learns)

        work_through(ctx.parts, lambda: encode, len(ctx.parts))
        ctx.stack, ctx.shrinkage, ctx.eager = stack, shrinkage, eager
        ctx.save_for_backward(x, weight, matrix, outlier_step, mixing, thresholds, codes)
        return codes

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, codes = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *_eagerly(ctx, inputs, needed, gradient)
        x, mixing = inputs[0], inputs[4]
        signals, reached, slopes = _array(x), _array(codes), _array(gradient)
        gradients = {part.start: _zeros(inputs[1:], needed[1:]) for part in ctx.parts}
        gx = torch.zeros(x.shape, dtype=x.dtype) if needed[0] else None

        def collect(part: slice) -> None:
            to_x = None if gx is None else gx.numpy()[part]
            layers = ctx.layers[part.start]
            layers.backward(
                signals[part], reached[part], slopes[part], to_x, *gradients[part.start]
            )

        work_through(ctx.parts, lambda: collect, len(ctx.parts))
        return None, gx, *_summed(list(gradients.values()), mixing)


def _layers(
    stack: Stack,
    shrinkage: Shrinkage,
    weight: Tensor,
    matrix: Tensor,
    outlier_step: Tensor | None,
    mixing: Tensor | None,
    thresholds: Tensor,
) -> Any:
    """The layers as the kernel takes them."""
    mix = _five_scalars(mixing, stack.depth, weight)
    arrays = [_array(t) for t in (weight, matrix, outlier_step, stack.decay, mix, thresholds)]
    described = shrinkage.labels, shrinkage.grouped, shrinkage.nonnegative
    return LAYERS[weight.dtype](stack.gram, stack.coupled, *arrays, *described)


def _zeros(tensors: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Any]:
    """Arrays for the gradients that are needed; those of the scalars have five columns."""
    arrays: list[Any] = []
    for number, (tensor, need) in enumerate(zip(tensors, needed, strict=True)):
        if tensor is None or not need:
            arrays.append(None)
        else:
            shape = (len(tensor), 5) if number == MIXING else tuple(tensor.shape)
            arrays.append(np.zeros(shape, TYPES[tensor.dtype]))
    return arrays


def _summed(parts: Sequence[list[Any]], mixing: Tensor | None) -> list[Tensor | None]:
    """The sum of the gradients of all parts, in their order, whichever thread was first."""
    first, *others = parts
    for other in others:
        for total, part in zip(first, other, strict=True):
            if total is not None:
                total += part
    if mixing is not None and mixing.ndim == 1 and first[MIXING] is not None:
        first[MIXING] = first[MIXING][:, 2] + first[MIXING][:, 4]
    return [None if total is None else torch.from_numpy(total) for total in first]


def _eagerly(
    ctx: Any, inputs: list[Tensor | None], needed: tuple[bool, ...], gradient: Tensor
) -> list[Tensor | None]:
    """The gradients through eager torch, so that they have gradients themselves."""
    # views, so that what is given twice is not counted twice
    x, weight, matrix, step, mixing, thresholds = (
        None if t is None else t.view_as(t) for t in inputs
    )
    stack = ctx.stack
    assert x is not None
    assert weight is not None
    assert matrix is not None
    assert thresholds is not None
    stages = ctx.shrinkage.split(thresholds)
    again = replace(
        stack, weight=weight, matrix=matrix, outlier_step=step, mixing=mixing, thresholds=stages
    )
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


def _parts(stack: Stack, rows: int) -> list[slice]:
    """Divide rows evenly among as many threads of torch as are worth starting."""
    size, features = stack.weight.shape[1:]
    layer = size * (size if stack.gram else 2 * features)
    each = size * features + (stack.depth - 1) * layer
    most = min(rows, rows * each // WORTH_A_THREAD)
    return equal_parts(rows, max(1, min(torch.get_num_threads(), most)))


def _array(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().contiguous().numpy()
