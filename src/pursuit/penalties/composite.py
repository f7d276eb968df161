"""Penalties made of others: with a ridge added, or one for each part of the code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from .._checks import ArrayLike, as_weight
from .base import Penalty, StepSize, as_step, checked_stages
from .separable import NonNegative, Zero


class Elastic(Penalty):
    """``psi(z) = penalty(z) + ridge/2 ||z||^2``: a penalty with a ridge on the same coefficients.

    ``prox_{step psi}(v) = prox_{k step penalty}(k v)`` with ``k = 1/(1 + step ridge)``.

    Parameters
    ----------
    penalty
        The penalty that the ridge is added to.
    ridge
        The weight of the ridge, one number or one per coefficient. It must be the same for all
        coefficients that the penalty ties together.
    """

    def __init__(self, penalty: Penalty, ridge: ArrayLike) -> None:
        self.penalty = penalty
        self.ridge = as_weight(ridge, "ridge")

    def check(self, size: int) -> None:
        self.penalty.check(size)
        if self.ridge.ndim == 0:
            return
        count = len(self.ridge)
        if count != size:
            raise ValueError(f"ridge has {count} weights, but there are {size} coefficients")
        for block in self.penalty.blocks(size):
            if not bool((self.ridge[block] == self.ridge[block[0]]).all()):
                raise ValueError(
                    f"ridge differs within the block {block} that the penalty ties together; "
                    "give its coefficients one weight"
                )

    def value(self, codes: Tensor) -> Tensor:
        ridge = (codes.square() * self.ridge.to(codes)).sum(dim=-1) / 2
        return self.penalty.value(codes) + ridge

    def thresholds(self, step: StepSize) -> tuple[Tensor, ...]:
        step = as_step(step, self.ridge)
        factor = 1 / (1 + step * self.ridge.to(step.device))
        return (factor, *self.penalty.thresholds(step * factor))

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return self.penalty.shrink(v * thresholds[0].to(v), thresholds[1:])

    def curvature(self, size: int) -> Tensor | None:
        inner = self.penalty.curvature(size)
        return self.ridge.expand(size) if inner is None else self.ridge.expand(size) + inner

    @property
    def nonsmooth(self) -> Penalty:
        return self.penalty.nonsmooth

    def gauge(self, u: Tensor) -> Tensor:
        return self.penalty.gauge(u)

    def blocks(self, size: int) -> list[list[int]]:
        return self.penalty.blocks(size)


class Ridge(Elastic):
    """``psi(z) = ridge/2 ||z||^2``, with ``z >= 0`` if `nonnegative`.

    Shrinkage ``v / (1 + step ridge)``.

    Parameters
    ----------
    ridge
        The weight, one number or one per coefficient.
    nonnegative
        Whether codes must not be negative.
    """

    def __init__(self, ridge: ArrayLike, nonnegative: bool = False) -> None:
        super().__init__(NonNegative() if nonnegative else Zero(), ridge)
        self.nonnegative = nonnegative


class Stacked(Penalty):
    """``psi(z) = sum_k psi_k(z_k)``: a penalty for each of several consecutive parts of the code.

    Parameters
    ----------
    parts
        ``[(penalty, size), ...]``, in the order of the coefficients.

    Examples
    --------
    >>> import torch
    >>> from pursuit.penalties import L1
    >>> Stacked([(NonNegative(), 1), (L1(1.0), 2)]).value(torch.tensor([[5.0, 1.0, -2.0]]))
    tensor([3.])
    """

    def __init__(self, parts: Sequence[tuple[Penalty, int]]) -> None:
        if len(parts) == 0:
            raise ValueError("parts is empty; give at least one (penalty, size) pair")
        for penalty, size in parts:
            if size < 1:
                raise ValueError(f"the size of a part must be at least 1, got {size}")
            penalty.check(size)
        self.parts = [(penalty, int(size)) for penalty, size in parts]

    def check(self, size: int) -> None:
        if size != sum(self.sizes):
            raise ValueError(
                f"the stacked penalties cover {sum(self.sizes)} coefficients, but there are {size}"
            )

    def value(self, codes: Tensor) -> Tensor:
        self.check(codes.shape[-1])
        values = [p.value(c) for (p, _), c in zip(self.parts, self._split(codes), strict=True)]
        return torch.stack(values).sum(dim=0)

    def thresholds(self, step: StepSize) -> tuple[Tensor, ...]:
        steps: list[StepSize] = [step] * len(self.parts)
        if isinstance(step, Tensor) and step.ndim > 0:
            steps = list(self._split(step))
        return tuple(
            threshold
            for (penalty, _), part in zip(self.parts, steps, strict=True)
            for threshold in penalty.thresholds(part)
        )

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        rest, shrunk = iter(thresholds), []
        for (penalty, _), part, count in zip(self.parts, self._split(v), self._counts, strict=True):
            shrunk.append(penalty.shrink(part, tuple(islice(rest, count))))
        return torch.cat(shrunk, dim=-1)

    def curvature(self, size: int) -> Tensor | None:
        return self._join([p.curvature(s) for p, s in self.parts])

    @property
    def nonsmooth(self) -> Penalty:
        if all(penalty.nonsmooth is penalty for penalty, _ in self.parts):
            return self
        return Stacked([(penalty.nonsmooth, size) for penalty, size in self.parts])

    def penalised(self, size: int) -> Tensor:
        return torch.cat([penalty.penalised(part) for penalty, part in self.parts])

    def gauge(self, u: Tensor) -> Tensor:
        gauges = [p.gauge(part) for (p, _), part in zip(self.parts, self._split(u), strict=True)]
        return torch.stack(gauges).amax(dim=0)

    def stages(self, size: int) -> list[Tensor]:
        stages = []
        for first, penalty, part in self._places():
            for labels in checked_stages(penalty, part):
                padded = torch.full((size,), -1)
                padded[first : first + part] = labels
                stages.append(padded)
        return stages

    def weights(self, size: int) -> Tensor | None:
        weights = [penalty.weights(part) for penalty, part in self.parts]
        if any(part is None for part in weights):
            return None
        return self._join(weights)

    def blocks(self, size: int) -> list[list[int]]:
        return [
            [first + i for i in block]
            for first, penalty, part in self._places()
            for block in penalty.blocks(part)
        ]

    @property
    def sizes(self) -> list[int]:
        """The number of coefficients of each part."""
        return [size for _, size in self.parts]

    @cached_property
    def _counts(self) -> list[int]:
        return [len(penalty.thresholds(1.0)) for penalty, _ in self.parts]

    def _places(self) -> list[tuple[int, Penalty, int]]:
        """Return the first coefficient, the penalty and the size of each part."""
        firsts = [sum(self.sizes[:number]) for number in range(len(self.parts))]
        return [(first, *part) for first, part in zip(firsts, self.parts, strict=True)]

    def _split(self, codes: Tensor) -> tuple[Tensor, ...]:
        return torch.split(codes, self.sizes, dim=-1)

    def _join(self, parts: Sequence[Tensor | None]) -> Tensor | None:
        """Join vectors of the parts; None means zeros, and is returned if all are None."""
        like = next((part for part in parts if part is not None), None)
        if like is None:
            return None
        pairs = zip(parts, self.sizes, strict=True)
        return torch.cat([like.new_zeros(size) if p is None else p for p, size in pairs])
