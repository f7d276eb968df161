"""Bootstrap intervals of means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def bootstrap(
    values: Any,
    groups: Sequence[str] | None = None,
    draws: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> list[float]:
    """Percentile interval of the mean of some values, by drawing them with replacement.

    For the paired comparison of two methods the values are their differences, clip by clip.

    Parameters
    ----------
    values : array of shape (n,)
    groups : sequence of n names or None, default=None
        Whole groups are drawn instead of single values, for values that are alike within a group.
    draws, seed
        The number of draws, and the seed of their generator.
    level : float, default=0.95
        The probability that the interval has.

    Examples
    --------
    >>> bootstrap([1.0, 2.0, 3.0, 4.0])
    [1.5, 3.5]
    """
    values = np.asarray(values, np.float64)
    labels = np.arange(len(values)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums, counts = np.bincount(labels, values), np.bincount(labels)
    drawn = np.random.default_rng(seed).integers(len(sums), size=(draws, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    bounds: list[float] = np.quantile(means, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return bounds
