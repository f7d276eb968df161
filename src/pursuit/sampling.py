"""Random subsets of the rows of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["sample_rows"]

Array = np.ndarray[Any, Any]


def sample_rows(rows: int, most: int, seed: int = 0, exclude: Array | Sequence[int] = ()) -> Array:
    """Draw row numbers without replacement.

    Parameters
    ----------
    rows
        The number of rows to draw from.
    most
        The largest number of rows to draw; if there are not more, all of them are returned.
    seed
        Seeds the random numbers.
    exclude
        Row numbers that are never drawn, such as those held out for validation.

    Returns
    -------
    ndarray
        Row numbers in ascending order.

    Examples
    --------
    >>> sample_rows(4, 10, exclude=[1]).tolist()
    [0, 2, 3]
    """
    excluded = np.unique(np.asarray(exclude, dtype=np.int64))
    allowed = rows - len(excluded)
    drawn: Array = np.arange(allowed)
    if allowed > most:
        drawn = np.sort(np.random.default_rng(seed).choice(allowed, most, replace=False))
    # the k-th allowed row is k plus the number of excluded rows before it
    shifted = excluded - np.arange(len(excluded))
    result: Array = drawn + np.searchsorted(shifted, drawn, side="right")
    return result
