"""The convolutional encoder: layers of convolutions for atoms that slide along one or two axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._registry import arguments_of
from ..models import SparseModel
from ..operators import Convolution
from ..operators.convolution import as_plane
from ..penalties import Penalty, Stacked
from ..penalties.base import checked_stages, is_single
from ..runtime.convolution import MOST_KEPT, Sides, numbers_kept
from .encoder import Encoder
from .trainable import Kind, Role

if TYPE_CHECKING:
    from ..runtime.convolution import ConvolutionProgram

#: the factor of the learning rates of what starts at zero and adds to the signal of all layers
CAREFUL = 0.3
#: the most entries of a kernel
MOST_WEIGHTS = 2**24


class ConvolutionalEncoder(Encoder):
    """T layers ``z_new = shrink(b + H_k * z, t_k)`` with ``b = W * x``, all products convolutions.

    The model has a `pursuit.operators.Convolution` as its operator and a separable penalty with
    one weight for each atom. Untrained and with the default options it is `layers` steps of ista.
    Weights depend neither on the position nor, along the first axis, on the size of a signal:
    `resized` gives the same encoder for signals of another shape.

    A causal encoder is for streams. The first axis of a signal is time, its entries are frames,
    and an atom covers one frame; codes of a frame depend on this frame and on earlier ones, through
    the options below, which are learned from a start at zero.

    Parameters
    ----------
    model
        The model whose codes are approximated.
    layers
        T, the number of layers.
    tied
        Whether all layers share H and the thresholds.
    reach
        How many neighbours on either side H couples, one number for each axis; for the first axis
        of a causal encoder the number of earlier frames. By default all whose atoms overlap, as
        in ista, and no earlier frames.
    dilation
        The distance of these neighbours in each of the T - 1 layers with a product: one number,
        or one for each layer, or for each layer one for each axis.
    causal
        Whether the first of two axes is time.
    window
        The number of frames that W covers, the last of them the current one.
    averages
        Decays between 0 and 1; for each one W also covers the running mean of the signal.
    memory
        A number of layers after which a running mean of the codes, with a learned decay for each
        atom, is added to b through a learned matrix; None for no memory.
    positional
        Whether b has a learned offset for each atom at each position along the second axis;
        otherwise one for each atom.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> from pursuit.operators import Convolution
    >>> operator = Convolution(torch.tensor([[1.0, 2.0]]), shape=(4,))
    >>> model = pu.models.SparseModel(operator, pu.penalties.L1(0.1))
    >>> encoder = pu.ConvolutionalEncoder(model, layers=3)
    >>> x = torch.tensor([[0.0, 1.0, 2.0, 0.0]])
    >>> bool(torch.allclose(encoder(x), pu.solve(model, x, "ista", tol=0, max_iter=3).codes))
    True
    """

    def __init__(
        self,
        model: SparseModel,
        layers: int = 5,
        tied: bool = True,
        reach: int | Sequence[int] | None = None,
        dilation: int | Sequence[Any] = 1,
        causal: bool = False,
        window: int = 1,
        averages: Sequence[float] = (),
        memory: int | None = None,
        positional: bool = False,
    ) -> None:
        self.check(model, layers)
        operator = _convolution(model)
        _check_causal(operator, layers, causal, window, averages, memory)
        super().__init__(model, layers, layers)
        self.tied, self.causal, self.window = tied, causal, window
        self.averages = tuple(map(float, averages))
        self.memory, self.positional = memory, positional
        self._penalty = model.nonsmooth
        exact = _as_four(operator.lags()) / model.step_constant
        self.dilation = _dilations(dilation, layers - 1, len(operator.shape))
        if tied and len(set(self.dilation)) > 1:
            raise ValueError("layers with different dilations need tied=False")
        self.reach = _reach(reach, exact, len(operator.shape), causal)
        atoms, channels = len(operator.dictionary), operator.channels
        self._require_near(as_plane(operator.positions), atoms)
        alpha = model.step_constant
        kernels = operator.dictionary.detach().reshape(atoms, channels, *as_plane(operator.kernel))
        _require_few("window", atoms, channels * (1 + len(averages)), window, kernels.shape[3])
        weight = kernels.new_zeros(
            atoms, channels * (1 + len(averages)), window if causal else kernels.shape[2],
            kernels.shape[3],
        )  # fmt: skip
        weight[:, :channels, -kernels.shape[2] :] = kernels / alpha
        self.weight = nn.Parameter(weight)
        exact = self._identity(exact) - exact
        if model.curvature is not None:
            ridge = self._per_atom(model.curvature, "ridge").to(exact) / alpha
            exact = exact - self._identity(exact) * ridge[:, None, None, None]
        distinct = [] if layers == 1 else self.dilation[:1] if tied else self.dilation
        self.couplings = nn.ParameterList(self._coupling(exact, steps) for steps in distinct)
        side = as_plane(operator.positions)[1] if positional else 1
        self.offset = nn.Parameter(weight.new_zeros(atoms, 1, side))
        self._sign: Tensor | None
        self._stages = _stages(self._penalty, model.code_size)
        self.register_buffer("_sign", self._one_sided(model), persistent=False)
        steps = torch.full((model.code_size,), 1 / alpha, dtype=torch.float64)
        natural = self._penalty.thresholds(steps)
        self._all_one_sided = self._sign is not None and bool(self._sign.all())
        each = [
            self._stage(stage, t).to(weight) for stage, t in zip(self._stages, natural, strict=True)
        ]
        if self._sign is not None:  # soft thresholds that follow each other add up
            each = [torch.stack([*each, weight.new_zeros(atoms)]).sum(0)]
        copies = 1 if tied else layers
        self.thresholds = nn.ParameterList(
            nn.Parameter(row.expand(copies, -1).clone()) for row in each
        )
        self.recall = None if memory is None else nn.Parameter(weight.new_zeros(atoms, atoms))
        # decays are learned through a logistic function; at first from 0.73 to 0.98
        logits = None if memory is None else torch.linspace(1.0, 4.0, atoms).to(weight)
        self.logits = None if logits is None else nn.Parameter(logits)

    def _require_near(self, positions: Sides, atoms: int) -> None:
        """Check that what layers read around the positions is not much more than the positions."""
        first, second = (1 if self.causal else 2) * self.reach[0], 2 * self.reach[1]
        around = [(d0 * first, d1 * second) for d0, d1 in self.dilation]
        own = self.layers * atoms * math.prod(positions)
        if numbers_kept(positions, atoms, around) > max(MOST_KEPT, 9 * own):
            raise ValueError(
                f"dilation and reach must not lead far beyond {positions[0]} x {positions[1]} "
                f"positions, got {self.dilation} and {self.reach}"
            )

    # ---- what it is -------------------------------------------------------------------------

    @property
    def operator(self) -> Convolution:
        """The operator of the model, on the encoder's dictionary."""
        return _convolution(self.model)

    @property
    def config(self) -> dict[str, Any]:
        plain = {name: value for name, value in arguments_of(self).items() if name != "model"}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}

    @property
    def multiplications(self) -> int:
        operator = _convolution(self._template)
        positions = math.prod(operator.positions)
        matrices = [self.weight, *self._couplings, *([] if self.recall is None else [self.recall])]
        return int(positions * sum(matrix.numel() for matrix in matrices))

    @property
    def decays(self) -> Tensor | None:
        """The decay of the memory of each atom, between 0 and 1; None without memory."""
        return None if self.logits is None else torch.sigmoid(self.logits)

    def resized(self, shape: Sequence[int]) -> ConvolutionalEncoder:
        """Return a copy of the encoder for signals of another shape."""
        operator = _convolution(self._template)
        along = as_plane(tuple(shape))[1], as_plane(operator.shape)[1]
        if self.positional and along[0] != along[1]:
            raise ValueError(
                f"a positional encoder keeps the side {along[1]} of the second axis, got {along[0]}"
            )
        changes: dict[str, Any] = {"dictionary": operator.resized(shape)}
        if "penalty" in self._template.config:
            sizes = math.prod(operator.positions), math.prod(changes["dictionary"].positions)
            changes["penalty"] = _resized_penalty(self._template.penalty, *sizes)
        model = self._template.replace(**changes)
        new = type(self)(model, **self.config)
        new.load_state_dict(self.state_dict())
        new.regime, new.minimises_objective = self.regime, self.minimises_objective
        return new

    def kinds(self) -> dict[str, Kind]:
        norm = float(self._valid_model().coordinate_constants.mean().sqrt())
        kinds = {"dictionary": Kind("dictionary"), "weight": Kind("matrix", 1 / norm)}
        kinds |= {f"couplings.{n}": Kind("matrix") for n in range(len(self.couplings))}
        kinds["offset"] = Kind("diagonal")
        for number, thresholds in enumerate(self.thresholds):
            # a threshold of zero cannot change in proportion to its size
            role: Role = "threshold" if bool((thresholds > 0).any()) else "diagonal"
            kinds[f"thresholds.{number}"] = Kind(role)
        if self.recall is not None:
            kinds |= {"recall": Kind("matrix", CAREFUL), "logits": Kind("scalar", CAREFUL)}
        return kinds

    def project_(self) -> None:
        with torch.no_grad():
            for thresholds in self.thresholds:
                thresholds.clamp_(min=0)

    def program(self) -> ConvolutionProgram:
        from ..runtime.convolution import ConvolutionProgram

        operator = _convolution(self._template)
        shape, kernel, stride = map(as_plane, (operator.shape, operator.kernel, operator.stride))
        if self._sign is None:
            raise TypeError(
                f"the shrinkage of {type(self._penalty).__name__} is not a soft threshold, so the "
                "encoder runs in torch only"
            )
        soft = self.thresholds[0].clamp_min(0).expand(self.layers, -1)
        negative = (~self._sign).float()
        couplings = [_array(matrix) for matrix in self.couplings]
        program = ConvolutionProgram(
            shape=shape, channels=operator.channels, kernel=kernel, stride=stride,
            dilation=self._spread,
            causal=self.causal, averages=self.averages, weight=_array(self.weight),
            offset=_array(self.offset),
            couplings=tuple(couplings * (self.layers - 1) if self.tied else couplings),
            coupling_dilations=self.dilation, soft=_array(soft), negative=_array(negative),
            memory=self.memory, recall=None if self.recall is None else _array(self.recall),
            decays=None if self.decays is None else _array(self.decays),
            dictionary=_array(self.operator.dictionary),
            parts=operator.parts,
        )  # fmt: skip
        return replace(program, info=self._program_info(program.form))

    # ---- the layers -------------------------------------------------------------------------

    @property
    def _couplings(self) -> list[Tensor]:
        """H of all layers but the first."""
        given = list(self.couplings)
        return given * (self.layers - 1) if self.tied else given

    @property
    def _spread(self) -> tuple[int, int]:
        """The dilation of W; an atom of one frame has none along the frames."""
        first, second = as_plane(_convolution(self._template).dilation)
        return (1 if self.causal else first), second

    def _ready(self) -> _Ready:
        couplings = self._couplings
        rows = [t.clamp_min(0).expand(self.layers, -1) for t in self.thresholds]
        if self._sign is not None:
            return _Ready(couplings, [(row,) for row in rows[0]])
        pairs = list(zip(self._stages, rows, strict=True))
        thresholds = [
            tuple(self._expanded(stage, row[number]) for stage, row in pairs)
            for number in range(self.layers)
        ]
        return _Ready(couplings, thresholds)

    def _run(self, layers: _Ready, x: Tensor) -> Iterator[Tensor]:
        operator = _convolution(self._template)
        u = x.reshape(-1, operator.channels, *as_plane(operator.shape))
        if self.averages:
            decays = u.new_tensor(self.averages)
            means = [_running_mean(u, decay.expand(u.shape[1])) for decay in decays]
            u = torch.cat([u, *means], dim=1)
        if self.causal:
            u = F.pad(u, (0, 0, self.window - 1, 0))
        u = u.contiguous(memory_format=torch.channels_last)  # convolutions are quicker
        stride = as_plane(operator.stride)
        b = F.conv2d(u, self.weight, stride=stride, dilation=self._spread) + self.offset
        z = self._shrunk(b, layers.thresholds[0])
        yield z.flatten(1)
        for number in range(1, self.layers):
            if number == self.memory:
                assert self.recall is not None
                assert self.logits is not None
                mean = _running_mean(z, torch.sigmoid(self.logits))
                b = b + F.conv2d(mean, self.recall[..., None, None])
            matrix, steps = layers.couplings[number - 1], self.dilation[number - 1]
            before = [d * (k - 1) for d, k in zip(steps, matrix.shape[2:], strict=True)]
            after = [total // 2 for total in before]
            if self.causal:
                after[0] = 0
            sides = (before[1] - after[1], after[1], before[0] - after[0], after[0])
            z = b + F.conv2d(F.pad(z, sides), matrix, dilation=steps)
            z = self._shrunk(z, layers.thresholds[number])
            yield z.flatten(1)

    def _shrunk(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        if self._sign is None:
            return self._penalty.shrink(v.flatten(1), thresholds).view_as(v)
        # the same in place of the maps, whatever their layout in memory
        (total,) = thresholds
        total = total[:, None, None]
        if self._all_one_sided:
            return (v - total).clamp_min(0)
        lowest = torch.where(self._sign[:, None, None], -torch.inf, -total)
        return v - torch.maximum(torch.minimum(v, total), lowest)

    # ---- the start --------------------------------------------------------------------------

    def _identity(self, like: Tensor) -> Tensor:
        """The kernel of the identity, with as many lags as `like`."""
        kernel = torch.zeros_like(like)
        kernel[:, :, like.shape[2] // 2, like.shape[3] // 2] = torch.eye(len(like)).to(like)
        return kernel

    def _coupling(self, exact: Tensor, steps: tuple[int, int]) -> nn.Parameter:
        """The part of ista's H that the reach and the dilation of a layer allow."""
        centre = exact.shape[2] // 2, exact.shape[3] // 2
        taps = [range(-r, r + 1) for r in self.reach]
        if self.causal:
            taps[0] = range(-self.reach[0], 1)
        _require_few("reach", *exact.shape[:2], len(taps[0]), len(taps[1]))
        start = exact.new_zeros(*exact.shape[:2], len(taps[0]), len(taps[1]))
        # along each axis the taps that fall on a lag of ista, with this lag
        pairs = (
            [(k, middle + step * tap) for k, tap in enumerate(each) if 0 <= middle + step * tap < n]
            for each, middle, step, n in zip(taps, centre, steps, exact.shape[2:], strict=True)
        )
        for (i, first), (j, second) in product(*pairs):
            start[:, :, i, j] = exact[:, :, first, second]
        return nn.Parameter(start)

    def _one_sided(self, model: SparseModel) -> Tensor | None:
        """Which atoms have one-sided soft thresholds; None for a shrinkage of another kind."""
        try:
            checked_stages(self._penalty, model.code_size)
        except TypeError:
            return None
        sign = self._penalty.sign_constraint(model.code_size)
        if sign is None:
            return torch.zeros(len(self.weight), dtype=torch.bool, device=model.device)
        return self._per_atom(sign, "the sign").to(model.device)

    def _per_atom(self, values: Tensor, what: str) -> Tensor:
        """One value for each atom, from one for each coefficient."""
        maps = values.expand(self._template.code_size).reshape(len(self.weight), -1)
        if bool((maps != maps[:, :1]).any()):
            raise ValueError(
                f"{what} differs between the positions of an atom; a convolutional encoder needs "
                "one weight for each atom"
            )
        return maps[:, 0]

    def _stage(self, stage: Tensor | None, threshold: Tensor) -> Tensor:
        """The thresholds of a stage, one for each atom, zero where it has none."""
        full = threshold
        if stage is not None:
            full = threshold.new_zeros(self._template.code_size)
            full[stage] = threshold
        return self._per_atom(full, "the weight of the penalty")

    def _expanded(self, stage: Tensor | None, atoms: Tensor) -> Tensor:
        """The thresholds of a stage as the penalty takes them, from one for each atom."""
        count = self._template.code_size // len(self.weight)
        full = atoms[:, None].expand(-1, count).flatten()
        return full if stage is None else full[stage]


@dataclass(frozen=True, eq=False)
class _Ready:
    """The couplings of all layers but the first, and the thresholds of all layers."""

    couplings: list[Tensor]
    thresholds: list[tuple[Tensor, ...]]


def _convolution(model: SparseModel) -> Convolution:
    if not isinstance(model.operator, Convolution):
        raise TypeError(
            "a ConvolutionalEncoder needs a model on a pursuit.operators.Convolution, got "
            f"{type(model).__name__} on {type(model.operator).__name__}"
        )
    return model.operator


def _check_causal(
    operator: Convolution,
    layers: int,
    causal: bool,
    window: int,
    averages: Sequence[float],
    memory: int | None,
) -> None:
    if not (isinstance(window, int) and window >= 1):
        raise ValueError(f"window must be a whole number of frames, at least 1, got {window}")
    if not (isinstance(averages, Sequence) and all(0 < decay < 1 for decay in averages)):
        raise ValueError(f"averages must be a list of decays between 0 and 1, got {averages}")
    if memory is not None and not (isinstance(memory, int) and 1 <= memory < layers):
        raise ValueError(f"memory must be from 1 to layers - 1 = {layers - 1}, got {memory}")
    if not causal:
        if window > 1 or averages or memory is not None:
            raise ValueError("window, averages and memory look at the past: they need causal=True")
        return
    if len(operator.shape) != 2 or operator.kernel[0] != 1 or operator.stride[0] != 1:
        raise ValueError(
            "causal=True needs signals with two axes, the first of them time, and atoms of one "
            f"frame with stride 1 along it, got shape {operator.shape}, kernel {operator.kernel}, "
            f"stride {operator.stride}"
        )


def _require_few(name: str, *sides: int) -> None:
    """Raise a ValueError if a kernel of weights would be too large."""
    if math.prod(sides) > MOST_WEIGHTS:
        shape = " x ".join(map(str, sides))
        raise ValueError(
            f"{name} is too large: {shape} weights, at most {MOST_WEIGHTS} are allowed"
        )


def _reach(
    reach: int | Sequence[int] | None, exact: Tensor, axes: int, causal: bool
) -> tuple[int, int]:
    """How many neighbours H couples along both axes of the plane."""
    if reach is None:
        return exact.shape[2] // 2, exact.shape[3] // 2
    given = list(reach) if isinstance(reach, Sequence) else [reach] * axes
    if len(given) == 2 > axes and given[0] == 0:
        given = given[1:]  # as the plane of one axis states it
    if len(given) != axes or not all(type(r) is int and r >= 0 for r in given):
        raise ValueError(f"reach must be {axes} whole number(s), not negative, got {reach}")
    return (0, given[0]) if axes == 1 else (given[0], given[1])


def _dilations(dilation: Any, count: int, axes: int) -> tuple[tuple[int, int], ...]:
    """The dilation of each coupling along both axes of the plane."""
    each = list(dilation) if isinstance(dilation, Sequence) else [dilation] * count
    if len(each) != count:
        raise ValueError(
            f"dilation must be one number or one for each of the {count} layers with a product, "
            f"got {len(each)}"
        )
    pairs = []
    for entry in each:
        pair = tuple(entry) if isinstance(entry, Sequence) else (entry, entry)
        if len(pair) != 2 or not all(type(d) is int and d >= 1 for d in pair):
            raise ValueError(f"dilation must be positive whole numbers, got {entry!r}")
        pairs.append((1 if axes == 1 else pair[0], pair[1]))
    return tuple(pairs)


def _resized_penalty(penalty: Penalty, old: int, new: int) -> Penalty:
    """The penalty with the same weights of atoms that have another number of positions."""
    changed: dict[str, Any] = {}
    for name, value in penalty.config.items():
        if isinstance(value, Tensor) and value.ndim == 1:
            changed[name] = value[::old].repeat_interleave(new)
        elif isinstance(value, Penalty):
            changed[name] = _resized_penalty(value, old, new)
    if isinstance(penalty, Stacked):
        changed["parts"] = [
            (_resized_penalty(part, old, new), size // old * new) for part, size in penalty.parts
        ]
    return type(penalty)(**{**penalty.config, **changed}) if changed else penalty


def _stages(penalty: Any, size: int) -> list[Tensor | None]:
    """For each threshold tensor the coefficients that it shrinks; None for all of them in order."""
    stages: list[Tensor | None] = []
    for labels in penalty.stages(size):
        if not is_single(labels):
            raise TypeError(
                f"a ConvolutionalEncoder needs a separable penalty, {type(penalty).__name__} "
                "shrinks groups of coefficients"
            )
        used = (labels >= 0).nonzero().flatten()
        order = used[labels[used].argsort()]
        stages.append(None if torch.equal(order, torch.arange(size)) else order)
    return stages


def _as_four(lags: Tensor) -> Tensor:
    """A kernel of lags along one axis as one on a plane."""
    return lags[:, :, None] if lags.ndim == 3 else lags


def _running_mean(maps: Tensor, decay: Tensor) -> Tensor:
    """``sum_{s<=t} d^(t-s) v_s / sum_{s<=t} d^(t-s)`` along the first axis, a decay a channel."""
    frames = torch.arange(maps.shape[2], device=maps.device)
    age = frames[:, None] - frames
    weights = torch.where(age >= 0, decay[:, None, None] ** age.clamp_min(0), 0.0)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    return torch.einsum("cts,ncsp->nctp", weights, maps)


def _array(tensor: Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), np.float32)
