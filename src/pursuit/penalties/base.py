"""The base of all penalties, and the defaults that follow from value, thresholds and shrink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from .._registry import Registered, arguments_of
from .._words import one_line
from .shrinkage import group_norms, shrink_groups

StepSize = float | Tensor

#: a step size at which every penalised coefficient is shrunk to zero
ENORMOUS = 1e200
#: bisection steps of a gauge, enough for float64
BISECTIONS = 60


class Penalty(Registered, ABC):
    """Base class: a new penalty implements `value`, `thresholds` and `shrink`.

    The other members have defaults that are derived from these three; a class overrides them where
    a closed form is quicker. A class with a quadratic part overrides `curvature` and `nonsmooth`.

    The dual description of a penalty is the set ``C = {u : u'z <= g(z) for all z}``, whose support
    function is ``g``.
    """

    @abstractmethod
    def value(self, codes: Tensor) -> Tensor:
        """Return ``psi(z)`` of each row, shape (n,); inf where a constraint is violated."""

    @abstractmethod
    def thresholds(self, step: StepSize) -> tuple[Tensor, ...]:
        """Return the thresholds of ``prox_{step psi}``, one tensor for each stage of `shrink`."""

    @abstractmethod
    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        """Return ``v`` shrunk by the given thresholds.

        It must not divide by a norm that can be zero, which would make its gradient NaN.
        """

    def prox(self, v: Tensor, step: StepSize) -> Tensor:
        """Return ``argmin_u 1/2 ||u - v||^2 + step psi(u)``, row by row."""
        return self.shrink(v, self.thresholds(step))

    def check(self, size: int) -> None:
        """Raise a ValueError if the penalty does not fit codes with `size` coefficients."""
        return

    def curvature(self, size: int) -> Tensor | None:
        """Return the diagonal ``c`` of the quadratic part, shape (size,), or None if it is 0."""
        return None

    @property
    def nonsmooth(self) -> Penalty:
        """The penalty without its quadratic part."""
        return self

    def sign_constraint(self, size: int, device: torch.device | None = None) -> Tensor | None:
        """Return which coefficients must not be negative, shape (size,), or None if none.

        By default those that a proximal step of size zero, a projection, moves from -1 to 0.
        """
        signed = self.prox(-torch.ones(size, dtype=torch.float64), 0.0) == 0
        return signed.to(device) if bool(signed.any()) else None

    def penalised(self, size: int) -> Tensor:
        """Return which coefficients ``g`` depends on, shape (size,), boolean.

        By default those that a proximal step of enormous size moves away from 1.
        """
        ones = torch.ones(size, dtype=torch.float64)
        return self.nonsmooth.prox(ones, ENORMOUS) != ones

    def gauge(self, u: Tensor) -> Tensor:
        """Return ``inf {t >= 0 : u in t C}`` of each row over the penalised coefficients.

        For a norm this is the dual norm; where z >= 0 only positive entries of u count. By default
        it is found by bisection on t, because ``u in t C`` if and only if
        ``prox_{t g}(u) = 0`` (Moreau); the result is an upper bound.
        """
        u = u * self.penalised(u.shape[-1]).to(u)
        upper = u.abs().amax(dim=-1)
        for _ in range(2 * BISECTIONS):
            outside = ~self._contains(u, upper)
            if not bool(outside.any()):
                break
            upper = torch.where(outside, 8 * upper, upper)
        return self._bisect_gauge(u, torch.where(outside, torch.inf, upper))

    def _bisect_gauge(self, u: Tensor, upper: Tensor) -> Tensor:
        """Return the gauge, given an upper bound t with u in t C."""
        while True:
            smaller = self._contains(u, upper / 8) & (upper > 0) & torch.isfinite(upper)
            if not bool(smaller.any()):
                break
            upper = torch.where(smaller, upper / 8, upper)
        lower = upper / 8
        for _ in range(BISECTIONS):
            middle = (lower + upper) / 2
            inside = self._contains(u, middle)
            upper = torch.where(inside, middle, upper)
            lower = torch.where(inside, lower, middle)
        return upper

    def _contains(self, u: Tensor, t: Tensor) -> Tensor:
        """Return whether u is in t C: ``prox_{t g}(u)`` is 0 if and only if ``prox_g(u/t)`` is."""
        scaled = u / t.clamp_min(torch.finfo(u.dtype).tiny).unsqueeze(-1)
        return (self.shrink(scaled, self.thresholds(1.0)) == 0).all(dim=-1)

    def stages(self, size: int) -> list[Tensor]:
        """Return the shrinkage as plain data, for encoders that run without torch.

        A shrinkage in stages first sets negative entries to zero where there is a sign
        constraint, and then for each threshold tensor t, in order, shrinks groups of coefficients:
        ``v_r <- v_r max(0, 1 - t_r / ||v_r||)``.

        The list holds for each threshold tensor the number r of the group of each coefficient,
        shape (size,), -1 for coefficients that it does not shrink. By default every coefficient is
        a group. `checked_stages` compares the stages with `shrink`.
        """
        return [torch.arange(size) for _ in self.thresholds(1.0)]

    def weights(self, size: int) -> Tensor | None:
        """Return w, shape (size,), if ``g(z) = sum_i w_i |z_i|``, else None."""
        if not all(is_single(labels) for labels in self.stages(size)):
            return None
        try:
            stages = checked_stages(self, size)
        except TypeError:
            return None
        total = torch.zeros(size, dtype=torch.float64)
        for labels, threshold in zip(stages, self.thresholds(1.0), strict=True):
            used = labels >= 0
            total[used] += threshold.to(total).expand(int(labels.max()) + 1)[labels[used]]
        return total

    def blocks(self, size: int) -> list[list[int]]:
        """Return the coefficients that the penalty ties together, as disjoint blocks covering all.

        By default single coefficients if the shrinkage acts on each of them alone, else one block.
        """
        if _is_separable(self, size):
            return [[i] for i in range(size)]
        return [list(range(size))]

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments, read from the attributes of the same names."""
        return arguments_of(self)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={_short(value)}" for key, value in self.config.items())
        return f"{type(self).__name__}({arguments})"


def checked_stages(penalty: Penalty, size: int) -> list[Tensor]:
    """Return the stages of a penalty, or raise a TypeError if its shrinkage is a different one."""
    name = type(penalty).__name__
    unit = penalty.thresholds(1.0)
    stages = penalty.stages(size)
    if len(stages) != len(unit):
        raise TypeError(
            f"{name} has {len(stages)} stages, but {len(unit)} thresholds; its method `stages` "
            "must give one for each"
        )
    generator = torch.Generator().manual_seed(size)
    v = torch.randn(8, size, generator=generator, dtype=torch.float64)
    v = v * torch.logspace(-1, 1, len(v), dtype=torch.float64)[:, None]
    thresholds = tuple(torch.rand(t.shape, generator=generator, dtype=torch.float64) for t in unit)
    sign = penalty.sign_constraint(size)
    described = v if sign is None else torch.where(sign, v.clamp_min(0), v)
    fits = all(t.numel() in (1, int(s.max()) + 1) for t, s in zip(thresholds, stages, strict=True))
    for labels, threshold in zip(stages, thresholds, strict=True) if fits else ():
        count = int(labels.max()) + 1
        labels = torch.where(labels < 0, count, labels)
        norms = group_norms(described, labels, count + 1)[..., :-1]
        described = shrink_groups(described, labels, norms, threshold.expand(count))
    if not fits or not torch.allclose(
        described, penalty.shrink(v, thresholds), rtol=1e-9, atol=1e-9
    ):
        raise TypeError(
            f"the shrinkage of {name} is not the one that its method `stages` describes, so "
            "encoders with it run in torch only; define `stages` if it can be written that way"
        )
    return stages


def as_step(step: StepSize, weights: Tensor) -> Tensor:
    """Return a step size as a tensor; a number gets the double precision of the weights."""
    if isinstance(step, Tensor):
        return step
    return torch.as_tensor(step, dtype=weights.dtype, device=weights.device)


def _is_separable(penalty: Penalty, size: int) -> bool:
    """Return whether the shrinkage of each coefficient depends on no other, by random trials.

    Any two coefficients differ in some bit of their numbers, so changing those that have the bit,
    and then those that do not, exposes every dependence.
    """
    generator = torch.Generator().manual_seed(size)
    unit = penalty.thresholds(1.0)
    largest = max((float(t.abs().max()) for t in unit), default=0.0) or 1.0
    spread = largest * torch.logspace(-1, 2, 16, dtype=torch.float64)[:, None]
    before, after = (
        spread * torch.randn(16, size, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    shrunk = penalty.shrink(before, unit)
    for bit in range((size - 1).bit_length()):
        has_bit = (torch.arange(size) >> bit) & 1 == 1
        for changed in (has_bit, ~has_bit):
            other = penalty.shrink(torch.where(changed, after, before), unit)
            if not torch.equal(other[:, ~changed], shrunk[:, ~changed]):
                return False
    return True


def is_single(labels: Any) -> bool:
    """Return whether the groups of a stage, a tensor or an array, are single coefficients."""
    used = labels[labels >= 0].tolist()
    return len(set(used)) == len(used)


def _short(value: Any) -> str:
    return one_line(repr(value.tolist() if isinstance(value, Tensor) else value), 60)
