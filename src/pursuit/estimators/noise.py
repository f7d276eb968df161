"""The noise level of data with outliers, and the weights of penalties that follow from it."""

from __future__ import annotations

import math

import numpy as np
from sklearn.utils.extmath import randomized_svd

from ..sampling import Array, sample_rows

#: 1.4826 median|r| is the standard deviation of Gaussian noise r
MAD_TO_SIGMA = 1.4826
#: the noise is at least this fraction of the size of a typical entry
LEAST_NOISE = 0.01
#: number of rows on which noise is measured and from which initial dictionaries are computed
MEASURED_ROWS = 2000
#: the most rounds of fitting and removing outliers; an outlier is larger than OUTLIER sigma
ROUNDS, OUTLIER = 50, 3.0
#: matrices whose smaller side is larger than this are fitted by a randomised decomposition
LARGE = 400


def clean(x: Array, rank: int, seed: int = 0) -> tuple[Array, float]:
    """Remove outliers and estimate the standard deviation sigma of the noise.

    A principal component fit of rank k to the centred rows alternates with replacing the entries
    whose residual r exceeds 3 sigma by their fitted values, where
    ``sigma = 1.4826 median|r| sqrt(n m / ((n - k)(m - k)))`` over the other entries. The first fit
    is to the data clipped to three deviations around the median of each column. k is at most half
    of the smaller side of x, and only a random sample of 2000 rows is used and returned, in
    float64. The sigma returned is at least 1 % of the size of a typical entry.
    """
    rows: Array = np.asarray(x)[sample_rows(len(x), MEASURED_ROWS, seed)].astype(np.float64)
    least = LEAST_NOISE * _typical_size(rows)
    n, m = rows.shape
    k = min(rank, min(n, m) // 2)
    centre = np.median(rows, axis=0)
    spread = OUTLIER * MAD_TO_SIGMA * np.median(np.abs(rows - centre), axis=0)
    cleaned = np.where(spread > 0, np.clip(rows, centre - spread, centre + spread), rows)
    usual = np.ones(rows.shape, dtype=bool)
    sigma = 0.0
    for _ in range(ROUNDS):
        mean = cleaned.mean(axis=0)
        fit = mean + _low_rank(cleaned - mean, k, seed)
        residual = np.abs(rows - fit)
        before, sigma = sigma, MAD_TO_SIGMA * float(np.median(residual[usual]))
        sigma *= math.sqrt(n * m / ((n - k) * (m - k)))
        if sigma == 0:
            return rows, least
        usual = residual <= OUTLIER * sigma
        cleaned = np.where(usual, rows, fit)
        if abs(sigma - before) <= 1e-3 * sigma:
            break
    return cleaned, max(sigma, least)


def noise_level(x: Array, rank: int, seed: int = 0) -> float:
    """Return the standard deviation of the noise, estimated by `clean`."""
    return clean(x, rank, seed)[1]


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
    if isinstance(value, str):
        if value == "auto":
            return None
        raise ValueError(f"{name} must be 'auto' or a number, got {value!r}")
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be 'auto' or non-negative and finite, got {value}")
    return number


def _typical_size(rows: Array) -> float:
    """The median norm of the rows, minus the column medians, divided by ``sqrt(m)``.

    If that is 0 nothing is subtracted, and if it is still 0 the size is 1.
    """
    for values in (rows - np.median(rows, axis=0), rows):
        size = float(np.median(np.linalg.norm(values, axis=1))) / math.sqrt(rows.shape[1])
        if size > 0:
            return size
    return 1.0


def _low_rank(x: Array, rank: int, seed: int) -> Array:
    """The best approximation of a given rank."""
    if rank == 0:
        return np.zeros_like(x)
    if min(x.shape) <= LARGE or rank > min(x.shape) // 4:
        # eigenvectors of the smaller Gram matrix take much less time than a decomposition of x
        if x.shape[1] <= x.shape[0]:
            vectors = np.linalg.eigh(x.T @ x)[1][:, -rank:]
            return np.asarray(x @ vectors @ vectors.T)
        vectors = np.linalg.eigh(x @ x.T)[1][:, -rank:]
        return np.asarray(vectors @ (vectors.T @ x))
    left, values, right = randomized_svd(x, rank, n_iter=2, random_state=seed)
    return np.asarray((left * values) @ right)
