"""Random subsets of the rows of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def sample_rows(rows: int, most: int, seed: int = 0, exclude: Array | Sequence[int] = ()) -> Array:
    """Draw at most `most` row numbers without replacement, in ascending order.

    Rows in `exclude`, such as those held out for validation, are never drawn.
    """
    excluded = np.unique(np.asarray(exclude, dtype=np.int64))
    allowed = rows - len(excluded)
    drawn: Array = np.arange(allowed)
    if allowed > most:
        drawn = np.sort(np.random.default_rng(seed).choice(allowed, most, replace=False))
    return skip_rows(drawn, excluded)


def skip_rows(numbers: Array, excluded: Array) -> Array:
    """Return the rows that have the given numbers among those not excluded (in ascending order)."""
    # the k-th row that is not excluded is k plus the number of excluded rows before it
    shifted = excluded - np.arange(len(excluded))
    return np.asarray(numbers + np.searchsorted(shifted, numbers, side="right"))
