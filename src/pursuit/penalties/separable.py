"""Penalties that are sums over single coefficients."""

from __future__ import annotations

from torch import Tensor

from .._checks import ArrayLike, as_weight
from .base import Penalty, StepSize, as_step
from .shrinkage import infinite_where_negative, largest_ratio, soft


class Zero(Penalty):
    """``psi(z) = 0``: no penalty, no shrinkage; C = {0}."""

    def value(self, codes: Tensor) -> Tensor:
        return codes.new_zeros(codes.shape[:-1])

    def thresholds(self, step: StepSize) -> tuple[Tensor, ...]:
        return ()

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return v

    def gauge(self, u: Tensor) -> Tensor:
        return u.new_zeros(u.shape[:-1])


class NonNegative(Zero):
    """``psi(z) = 0 if z >= 0 else inf``; shrinkage ``max(v, 0)``; C = {u <= 0}."""

    def value(self, codes: Tensor) -> Tensor:
        return infinite_where_negative(codes.new_zeros(codes.shape[:-1]), codes)

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return v.clamp_min(0)


class L1(Penalty):
    """``psi(z) = sum_i lam_i |z_i|``, with ``z >= 0`` if `nonnegative`.

    Shrinkage ``sign(v) max(|v| - t, 0)``, or ``max(v - t, 0)``, with ``t = step lam``.
    C = {|u_i| <= lam_i}, or {u_i <= lam_i}.

    Parameters
    ----------
    lam
        One weight for all coefficients, or one for each.
    nonnegative
        Whether codes must not be negative.

    Examples
    --------
    >>> import torch
    >>> L1(1.0).prox(torch.tensor([[3.0, -0.5, -2.0]]), step=0.5)
    tensor([[ 2.5000,  0.0000, -1.5000]])
    """

    def __init__(self, lam: ArrayLike, nonnegative: bool = False) -> None:
        self.lam = as_weight(lam, "lam")
        self.nonnegative = nonnegative

    def check(self, size: int) -> None:
        if self.lam.ndim == 1 and len(self.lam) != size:
            raise ValueError(
                f"lam has {len(self.lam)} weights, but there are {size} coefficients; "
                "give one weight for all or one for each"
            )

    def value(self, codes: Tensor) -> Tensor:
        value = (codes.abs() * self.lam.to(codes)).sum(dim=-1)
        return infinite_where_negative(value, codes) if self.nonnegative else value

    def thresholds(self, step: StepSize) -> tuple[Tensor, ...]:
        step = as_step(step, self.lam)
        return (self.lam.to(step.device) * step,)

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return soft(v, thresholds[0].to(v), self.nonnegative)

    def gauge(self, u: Tensor) -> Tensor:
        magnitude = u.clamp_min(0) if self.nonnegative else u.abs()
        return largest_ratio(magnitude, self.lam.to(u))

    def weights(self, size: int) -> Tensor | None:
        return self.lam.expand(size)

    def blocks(self, size: int) -> list[list[int]]:
        return [[i] for i in range(size)]
