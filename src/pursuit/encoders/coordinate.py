"""Greedy encoders over coefficients: a layer changes only those that would change most."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._checks import require_choice
from ..models import SparseModel
from .stepped import SteppedEncoder


class Greedy(SteppedEncoder):
    """The base of encoders whose layers take over a part of the candidate.

    `rates` are the initial step sizes of the greedy layers, in units of 1/constants. With
    ``final="prox"`` a full proximal step follows, with ``final="partial"`` none. `options` are the
    step, momentum, tied and form of `Encoder`.
    """

    def __init__(
        self, model: SparseModel, layers: int, rates: Sequence[float], final: str, *options: Any
    ) -> None:
        require_choice(final, ("prox", "partial"), "final")
        super().__init__(model, layers, [*rates, *[1.0] * (final == "prox")], *options)
        self._final = final

    @property
    def final(self) -> str:
        """Whether a full proximal step ends the encoder ("prox") or not ("partial")."""
        return self._final

    @property
    def config(self) -> dict[str, Any]:
        return {**super().config, "final": self._final}

    def _choose(self, number: int, z: Tensor | None, candidate: Tensor) -> Tensor:
        if number >= self.layers:
            return candidate
        return self._take_over(number, torch.zeros_like(candidate) if z is None else z, candidate)

    @abstractmethod
    def _take_over(self, number: int, z: Tensor, candidate: Tensor) -> Tensor:
        """Return z with a part of the candidate, in the given greedy layer."""


class CoordinateEncoder(Greedy):
    """T greedy coordinate steps with learnable matrices, scalars and thresholds.

    A layer computes the candidate ``y`` of a proximal step with a constant for each coefficient,
    ``L_i = Q_ii``, and takes it over in the k coefficients where ``|y - z|`` is largest. The
    choice is constant for the gradient. Untrained, with one coordinate per layer and
    ``final="partial"``, it is `layers` steps of greedy.

    Where the penalty ties coefficients together, those of one block share the largest of their
    constants; `BlockCoordinateEncoder` then takes them over together.

    Parameters
    ----------
    layers
        T, the number of greedy layers.
    coordinates
        The number of coefficients that a layer changes, one number or one for each layer. Layers
        with k > 1 start with a smaller step, ``1/sqrt(k)``, but not below that of a full proximal
        step.
    model, step, momentum, tied, form
        As for `ProximalEncoder`; the default is the paper's form.
    final
        "prox" adds one full proximal step at the end, which trained encoders need; "partial"
        does not, so the code has at most as many non-zeros as coordinates were changed.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> model = pu.models.Lasso(torch.eye(3), lam=1.0)
    >>> encoder = pu.CoordinateEncoder(model, layers=2, final="partial")
    >>> encoder(torch.tensor([[3.0, 5.0, -2.0]])).tolist()
    [[2.0, 4.0, 0.0]]
    """

    def __init__(
        self,
        model: SparseModel,
        layers: int = 7,
        coordinates: int | Sequence[int] = 1,
        step: str = "free",
        momentum: bool = False,
        final: str = "prox",
        tied: bool = True,
        form: str = "auto",
    ) -> None:
        self.check(model, layers)
        schedule = _schedule(coordinates, layers, model.code_size)
        inner = model.normalised
        constants = self._start_constants(inner)
        rates = [_rate(inner, constants, k) for k in schedule]
        super().__init__(model, layers, rates, final, step, momentum, tied, form)
        self._coordinates = schedule

    @staticmethod
    def _start_constants(inner: SparseModel) -> Tensor:
        constants, labels = inner.coordinate_constants, inner.block_labels
        largest = constants.new_zeros(len(inner.blocks))
        return largest.scatter_reduce(0, labels, constants, "amax")[labels]

    @property
    def coordinates(self) -> tuple[int, ...]:
        """The number of coefficients that each layer changes."""
        return self._coordinates

    @property
    def config(self) -> dict[str, Any]:
        return {**super().config, "coordinates": list(self._coordinates)}

    def _changed(self, number: int) -> int:
        return self._coordinates[number] if number < self.layers else self._template.code_size

    def _take_over(self, number: int, z: Tensor, candidate: Tensor) -> Tensor:
        k = self._coordinates[number]
        if k == candidate.shape[-1]:
            return candidate
        chosen = (candidate - z).detach().abs().topk(k, dim=-1, sorted=False).indices
        return z.scatter(-1, chosen, candidate.gather(-1, chosen))


def _schedule(coordinates: int | Sequence[int], layers: int, size: int) -> tuple[int, ...]:
    widths = [coordinates] * layers if isinstance(coordinates, int) else list(coordinates)
    if len(widths) != layers:
        raise ValueError(
            f"coordinates has {len(widths)} entries, but there are {layers} layers; "
            "give one number for all or one for each"
        )
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int):
            raise TypeError(f"coordinates must be integers, got {type(width).__name__}")
        if not 1 <= width <= size:
            raise ValueError(
                f"a layer can change 1 to {size} coefficients (all of them), got {width}"
            )
    return tuple(widths)


def _rate(model: SparseModel, constants: Tensor, k: int) -> float:
    """The initial step size of a layer that changes k coefficients, in units of 1/constants.

    One coefficient takes its full step, all take 1/alpha, which never ascends. In between,
    ``1/sqrt(k)`` is a good start: the size that overlapping atoms leave on average.
    """
    full = float(constants.min()) / model.step_constant
    return full if k == model.code_size else max(k**-0.5, full)
