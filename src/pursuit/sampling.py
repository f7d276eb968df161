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
    """Return the rows with the given numbers among those that are not excluded.

    `excluded` is in ascending order. The k-th row that is not excluded is k plus the number of
    excluded rows before it.
    """
    shifted = excluded - np.arange(len(excluded))
    rows: Array = numbers + np.searchsorted(shifted, numbers, side="right")
    return rows
