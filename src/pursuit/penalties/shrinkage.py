"""Formulas that several penalties share: soft thresholds, group norms, sign constraints."""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import is_eager


def infinite_where_negative(value: Tensor, codes: Tensor) -> Tensor:
    return torch.where((codes < 0).any(dim=-1), torch.inf, value)


def group_norms(v: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the norm of each group, with gradient 0 where it is 0."""
    squares = v.new_zeros((*v.shape[:-1], count)).index_add(-1, labels, v.square())
    positive = squares > 0
    # sqrt has an infinite slope at 0, which would turn a zero gradient into NaN
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)


def shrink_groups(v: Tensor, labels: Tensor, norms: Tensor, thresholds: Tensor) -> Tensor:
    """Return ``v_r max(0, 1 - t_r / ||v_r||)``; the last label means "in no group"."""
    norms = norms.clamp_min(torch.finfo(v.dtype).tiny)
    factors = (1 - thresholds / norms).clamp_min(0)
    factors = torch.cat([factors, torch.ones_like(factors[..., :1])], dim=-1)
    return v * factors[..., labels]


def soft(v: Tensor, threshold: Tensor, nonnegative: bool = False) -> Tensor:
    """Return ``sign(v) max(|v| - t, 0)``, or ``max(v - t, 0)`` if non-negative."""
    if nonnegative:
        return (v - threshold).clamp_min(0)
    clipped = v.clamp(-threshold, threshold)
    if torch.is_grad_enabled() or not is_eager():
        return v - clipped
    return torch.sub(v, clipped, out=clipped)  # reuses memory that is in the cache


def largest_ratio(magnitude: Tensor, weights: Tensor) -> Tensor:
    """Return ``max_i magnitude_i / w_i`` over the positive weights, 0 if there are none."""
    ratio = torch.where(weights > 0, magnitude / torch.where(weights > 0, weights, 1.0), 0.0)
    return ratio.amax(dim=-1)
