"""The noise level of data with outliers, and the weights of penalties that follow from it."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..sampling import sample_rows
from ..solvers.low_rank import robust_fit

#: the noise of sparse models is at least this fraction of the size of a typical entry
LEAST_NOISE = 0.01
#: number of rows on which the noise of sparse models is measured
MEASURED_ROWS = 2000
#: the noise of robust models is at least this fraction of the size of a typical entry
LEAST_ROBUST_NOISE = {torch.float64: 1e-8, torch.float32: 1e-5}


def noise_level(x: Tensor, rank: int, seed: int = 0) -> float:
    """Estimate the noise level of a sparse model with `rank` atoms.

    This is the sigma of `robust_fit`, with a rank of at most half of the smaller side of x, on at
    most 2000 random rows, of which the medians are subtracted: what they leave of the mean is one
    more direction. It is at least 1 % of the size of a typical entry.
    """
    rows = x[torch.from_numpy(sample_rows(len(x), MEASURED_ROWS, seed))]
    most = min(rank + 1, min(rows.shape) // 2)
    sigma = robust_fit(_centred(rows), most, seed).sigma if most > 0 else 0.0
    return max(sigma, LEAST_NOISE * _typical_size(rows))


def least_robust_noise(x: Tensor) -> float:
    """The smallest noise level of robust models: what the precision of the data allows."""
    return LEAST_ROBUST_NOISE.get(x.dtype, 1e-5) * _typical_size(x)


def robust_weights(sigma: float, rows: int, features: int) -> tuple[float, float]:
    """Return ``lam = sqrt(2) sigma`` and ``lam_star = sqrt(2 max(n, m)) sigma``."""
    return math.sqrt(2) * sigma, math.sqrt(2 * max(rows, features)) * sigma


def lasso_weight(sigma: float, atoms: int) -> float:
    """Return ``sigma sqrt(2 log q)``, but at least sigma.

    This is about the largest correlation of noise with q atoms of unit norm.
    """
    return sigma * max(1.0, math.sqrt(2 * math.log(atoms)))


def group_weight(sigma: float, sizes: list[int]) -> float:
    """Return ``sigma (sqrt(g) + sqrt(2 log R))`` for R groups of g atoms on average.

    This is about the largest norm of the correlations of noise with a group of orthonormal atoms.
    """
    return sigma * (math.sqrt(np.mean(sizes)) + math.sqrt(2 * math.log(len(sizes))))


def as_weight_or_auto(value: float | str, name: str) -> float | None:
    """Check a weight; return it as a number, or None for "auto"."""
    if isinstance(value, str) and value == "auto":
        return None
    return require_number(value, name, "'auto'")


def require_number(value: Any, name: str, other: str | None = None) -> float:
    """Return a finite non-negative number; `other` names what else is allowed, for errors."""
    allowed = "" if other is None else f"{other} or "
    if isinstance(value, str):
        raise ValueError(f"{name} must be {allowed}a number, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {allowed}a number, got {type(value).__name__}")
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be {allowed}non-negative and finite, got {value}")
    return number


def medians(rows: Tensor) -> Tensor:
    """The medians of the columns, without missing entries; 0 where all are missing."""
    if bool(torch.isnan(rows.sum())):
        return rows.nanmedian(dim=0)[0].nan_to_num_(nan=0.0)
    columns = np.ascontiguousarray(rows.numpy().T)
    middle = (columns.shape[1] - 1) // 2
    columns.partition(middle, axis=1)
    return torch.from_numpy(columns[:, middle].copy())


def _centred(rows: Tensor) -> Tensor:
    return rows - medians(rows)


def _typical_size(x: Tensor) -> float:
    """The median norm of some rows, minus the column medians, divided by ``sqrt(m)``.

    If that is 0 nothing is subtracted, and if it is still 0 the size is 1. Of wide data some
    columns are used.
    """
    n, m = x.shape
    rows = x[torch.from_numpy(sample_rows(n, MEASURED_ROWS // 10))]
    rows = rows[:, torch.from_numpy(sample_rows(m, MEASURED_ROWS))]
    for values in (_centred(rows), rows):
        size = float(values.nan_to_num(nan=0.0).norm(dim=1).median()) / math.sqrt(rows.shape[1])
        if size > 0:
            return size
    return 1.0
