"""Steps: the parameters of the layers, and their initial values.

The initial values are those of the algorithm, so that an untrained encoder is the algorithm. From
fewest to most parameters: `Scalars` (``step="model"``), `Coupled` (W and scalars), `Free` (W and H,
the paper's form).

With momentum a layer has the two-step form of `forms`, which starts as FISTA. Without it,
``a1 = 1`` and ``c1 = e`` is the layer's step size; the paper's form (free, no momentum, one
threshold vector for all layers) has no scalars at all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..penalties import Penalty
from .forms import Stack, coupling
from .trainable import Kind, as_parameter


@dataclass(frozen=True, eq=False)
class Setting:
    """The options that the parameters of the layers depend on.

    `penalty` has no quadratic part, and `rates` are the initial step sizes of the layers in units
    of 1/constants. `momentum` means the two-step form, which starts as FISTA if `accelerated` and
    else as a plain step. `gram` layers multiply by the matrix of the quadratic; others use the
    residual. With `identity` the code ends in an identity block, whose atoms are not stored.
    """

    penalty: Penalty
    rates: tuple[float, ...]
    momentum: bool
    accelerated: bool
    tied: bool
    gram: bool
    identity: bool

    @property
    def depth(self) -> int:
        return len(self.rates)

    @property
    def start_rates(self) -> Tensor:
        return torch.tensor(self.rates, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The smooth part of the normalised model: atoms, step constants, diagonal added to Q."""

    atoms: Tensor
    constants: Tensor
    curvature: Tensor | None

    @property
    def decay(self) -> Tensor | None:
        return None if self.curvature is None else self.curvature / self.constants

    @property
    def weight(self) -> Tensor:
        """``D / constants``: the W of the algorithm."""
        return self.atoms / self.constants[: len(self.atoms), None]

    @property
    def outlier_step(self) -> Tensor:
        """1/constants of the identity block."""
        return 1 / self.constants[len(self.atoms) :]


class LayerParameters(nn.Module):
    """The base: the scalars of all layers. `start` gives the initial values."""

    #: whether the coupling follows from W and the dictionary
    coupled = True

    def __init__(self, setting: Setting, start: Quadratic) -> None:
        super().__init__()
        self.setting = setting
        self.mixing: nn.Parameter | None
        if setting.momentum:
            betas = _fista(setting.depth) if setting.accelerated else [0.0] * setting.depth
            mixing = _two_step(setting.rates, betas)
        elif self._has_rates():
            mixing = setting.start_rates
        else:
            mixing = None
        mixing = None if mixing is None else nn.Parameter(mixing.to(start.atoms))
        self.register_parameter("mixing", mixing)

    def _has_rates(self) -> bool:
        """Whether each layer without momentum has a step size."""
        return True

    def kinds(self, atom_norm: float) -> dict[str, Kind]:
        """What each parameter is; the unit of matrices is `atom_norm`, a mean over the atoms."""
        return {} if self.mixing is None else {"mixing": Kind("scalar")}

    def project_(self) -> None:
        """Set thresholds that an update has made negative to zero."""
        with torch.no_grad():
            for parameter in self._threshold_parameters():
                parameter.clamp_(min=0)

    def stack(self, now: Quadratic) -> Stack:
        """Return the layers on the quadratic of the current dictionary."""
        weight, matrix = self._matrices(now)
        gram, coupled, depth = self.setting.gram, self.coupled, self.setting.depth
        step = None if gram else self._outlier_step(now)
        decay = None if gram and not coupled else now.decay
        thresholds = self._thresholds(now)
        return Stack(gram, coupled, weight, matrix, step, decay, self.mixing, thresholds, depth)

    @abstractmethod
    def _matrices(self, now: Quadratic) -> tuple[Tensor, Tensor]:
        """The weights and the other matrices of `Stack`."""

    @abstractmethod
    def _outlier_step(self, now: Quadratic) -> Tensor | None:
        """The outlier steps of `Stack`, for layers in the residual form."""

    @abstractmethod
    def _thresholds(self, now: Quadratic) -> tuple[Tensor, ...]:
        """The thresholds of `Stack`."""

    @abstractmethod
    def _threshold_parameters(self) -> list[nn.Parameter]:
        """The parameters that must not become negative."""


class _Weighted(LayerParameters):
    """W is learned, and a threshold for each coefficient or group."""

    def __init__(self, setting: Setting, start: Quadratic) -> None:
        super().__init__(setting, start)
        rates = setting.start_rates.to(start.atoms)
        natural = setting.penalty.thresholds(1 / start.constants)
        shared = self.mixing is None and setting.tied
        self.thresholds = nn.ParameterList(
            nn.Parameter(t.to(start.atoms).clone()[None])
            if shared
            else nn.Parameter(rates.view(-1, *[1] * t.ndim) * t.to(start.atoms))
            for t in natural
        )
        if setting.identity and not setting.gram:
            self.outlier_step = self._stack(start.outlier_step)
        else:
            self.register_parameter("outlier_step", None)

    def kinds(self, atom_norm: float) -> dict[str, Kind]:
        kinds = super().kinds(atom_norm) | {"weight": Kind("matrix", 1 / atom_norm)}
        kinds |= {f"thresholds.{n}": Kind("threshold") for n in range(len(self.thresholds))}
        return kinds if self.outlier_step is None else kinds | {"outlier_step": Kind("diagonal")}

    def _stack(self, tensor: Tensor) -> nn.Parameter:
        """A copy for all layers or one for each, along a new first dimension."""
        copies = 1 if self.setting.tied else self.setting.depth
        return as_parameter(tensor.expand(copies, *tensor.shape))

    def _thresholds(self, now: Quadratic) -> tuple[Tensor, ...]:
        return tuple(self.thresholds)

    def _threshold_parameters(self) -> list[nn.Parameter]:
        return list(self.thresholds)

    def _outlier_step(self, now: Quadratic) -> Tensor | None:
        return self.outlier_step


class Free(_Weighted):
    """W and H are learned independently, as in the paper (W and V in the residual form).

    Initially ``W = D / alpha, H = I - D D' / alpha``. Untied, each layer has another H.
    """

    coupled = False

    def __init__(self, setting: Setting, start: Quadratic) -> None:
        super().__init__(setting, start)
        self.weight = as_parameter(start.weight)
        products = 1 if setting.tied else max(1, setting.depth - 1)
        matrix = start.atoms
        if setting.gram:
            matrix = coupling(start.weight, start.atoms, start.decay)
        self.coupling = as_parameter(matrix.expand(products, *matrix.shape))

    def kinds(self, atom_norm: float) -> dict[str, Kind]:
        unit = 1.0 if self.setting.gram else atom_norm
        return super().kinds(atom_norm) | {"coupling": Kind("matrix", unit)}

    def _has_rates(self) -> bool:
        return any(rate != 1 for rate in self.setting.rates)

    def _matrices(self, now: Quadratic) -> tuple[Tensor, Tensor]:
        return self.weight[None], self.coupling


class Coupled(_Weighted):
    """W is learned; the coupling follows from it and the dictionary: ``v = z + (x - z D) W'``."""

    def __init__(self, setting: Setting, start: Quadratic) -> None:
        super().__init__(setting, start)
        self.weight = self._stack(start.weight)

    def _matrices(self, now: Quadratic) -> tuple[Tensor, Tensor]:
        return self.weight, now.atoms[None]


class Scalars(LayerParameters):
    """Only mixing scalars and a factor of the thresholds are learned; ``W = D / alpha``."""

    def __init__(self, setting: Setting, start: Quadratic) -> None:
        super().__init__(setting, start)
        self.factors = nn.Parameter(setting.start_rates.to(start.atoms))

    def kinds(self, atom_norm: float) -> dict[str, Kind]:
        return super().kinds(atom_norm) | {"factors": Kind("scalar")}

    def _matrices(self, now: Quadratic) -> tuple[Tensor, Tensor]:
        return now.weight[None], now.atoms[None]

    def _outlier_step(self, now: Quadratic) -> Tensor | None:
        return now.outlier_step[None] if self.setting.identity else None

    def _thresholds(self, now: Quadratic) -> tuple[Tensor, ...]:
        factors = self.factors.clamp_min(0)
        natural = (t.to(factors) for t in self.setting.penalty.thresholds(1 / now.constants))
        return tuple(factors.view(-1, *[1] * t.ndim) * t for t in natural)

    def _threshold_parameters(self) -> list[nn.Parameter]:
        return [self.factors]


STEPS: dict[str, type[LayerParameters]] = {"free": Free, "coupled": Coupled, "model": Scalars}


def _two_step(rates: Sequence[float], betas: Sequence[float]) -> Tensor:
    """The rows (a1, a2, c1, c2, e): a step from ``z + beta (z - z')``."""
    rows = [
        [1 + beta, -beta, rate * (1 + beta), -rate * beta, rate]
        for rate, beta in zip(rates, betas, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _fista(depth: int) -> list[float]:
    """The extrapolation beta of each FISTA step."""
    betas, t = [0.0], 1.0
    while len(betas) < depth:
        t, before = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
        betas.append((before - 1) / t)
    return betas
