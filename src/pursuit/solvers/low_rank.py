"""Low-rank matrices for data with outliers, noise and missing entries.

`robust_fit` finds a low-rank matrix near most entries of the data, and the noise level, whatever
the size of the outliers. It is the start of principal component pursuit and of the estimators.

Both iterate ``L <- best low-rank approximation of L + T(X - L)``, where T truncates the residual:
entries beyond a limit count as outliers. Products with ``T(X - L)`` are computed tile by tile, so
an iteration needs no second matrix of the size of X. Singular vectors follow from one step of
subspace iteration, which starts from those of the previous iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

#: number of entries in a tile of rows; a tile and its products stay in the cache
TILE = 65_536
#: 1/quantile of |z| at 1/2, for a standard normal z, and for one that is trimmed at 3
MAD_TO_SIGMA, TRIMMED_TO_SIGMA = 1.4826, 1.488
#: residuals above this multiple of the noise level are outliers
OUTLIER = 3.0
#: the limit while the fit still improves: at most MOST noise levels, and so few that outliers below
#: the limit add less than REMAINDER noise levels to the fit
MOST, REMAINDER = 12.0, 0.6
#: the quantile that measures rows and columns, where by chance more than half of the sampled
#: entries may be outliers; and the inverse of that quantile of |z|, for a standard normal z
LOW, LOW_TO_SIGMA = 0.3, 2.595
#: rows and columns fit badly if that quantile is larger than that of noise by 1/BAD_LINE
BAD_LINE = 0.4
#: the first limit, in units of the size of the entries
FIRST_LIMIT = 4.0
#: singular values count if they exceed those of the residual by this factor,
#: and directions count if they lower the noise level by this factor
ABOVE_NOISE, LOWERS_NOISE = 1.3, 1.03
#: directions with a larger part of their energy in a single entry explain an outlier
CONCENTRATED = 0.25
#: the noise level is sampled at this number of entries, and those of rows and columns at this
ENTRIES, LINES = 10_000, 50
#: the noise level has settled if it falls by less than SETTLED; it falls slowly above SLOW
SETTLED, SLOW = 0.01, 0.8
#: the subspace iterations before the first fit, and the most iterations of `robust_fit`
POWER_STEPS, ROUNDS = 3, 100

Truncate = Callable[[Tensor, slice], None]


class Factors(NamedTuple):
    """A low-rank matrix ``left @ right.T``.

    The columns of `right` are orthonormal. Those of `left` are orthogonal, and their norms, the
    singular values, do not increase.
    """

    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Factors:
        """Return the factors of ``left @ right.T``, for any matrices of a few columns."""
        basis, triangle = torch.linalg.qr(left)
        other, lower = torch.linalg.qr(right)
        u, values, v = torch.linalg.svd(triangle @ lower.T, full_matrices=False)
        return cls(basis @ u * values, other @ v.T)

    @property
    def values(self) -> Tensor:
        """The singular values."""
        norms: Tensor = self.left.norm(dim=0)
        return norms

    def product(self) -> Tensor:
        """The matrix."""
        return self.left @ self.right.T


class RobustFit(NamedTuple):
    """A low-rank fit, the standard deviation of the noise, and the share of outliers."""

    factors: Factors
    sigma: float
    outliers: float


class Residuals:
    """Products with truncated residuals ``T(X - left right')``, tile by tile.

    Entries of X that are NaN were not observed; their truncated residuals are 0.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        self.rows = max(8, TILE // x.shape[1])
        self.missing = bool(torch.isnan(x.sum()))
        self._tile = torch.empty((min(self.rows, len(x)), x.shape[1]), dtype=x.dtype)

    def tiles(self, left: Tensor, right: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows and their residuals, which are overwritten by the next ones."""
        transposed = right.T.contiguous()
        for start in range(0, len(self.x), self.rows):
            rows = slice(start, min(start + self.rows, len(self.x)))
            tile = self._tile[: rows.stop - start]
            torch.addmm(self.x[rows], left[rows], transposed, alpha=-1, out=tile)
            yield rows, tile

    def times(self, left: Tensor, right: Tensor, truncate: Truncate, vectors: Tensor) -> Tensor:
        """Compute ``T(X - left right') vectors``, shape (n, k)."""
        result = torch.empty((len(self.x), vectors.shape[1]), dtype=self.x.dtype)
        for rows, tile in self.tiles(left, right):
            truncate(tile, rows)
            torch.mm(tile, vectors, out=result[rows])
        return result

    def transposed_times(
        self, left: Tensor, right: Tensor, truncate: Truncate, vectors: Tensor
    ) -> tuple[Tensor, float]:
        """Compute ``vectors' T(X - left right')``, shape (k, m), and the squared norm of T."""
        result = torch.zeros((vectors.shape[1], self.x.shape[1]), dtype=self.x.dtype)
        energy = 0.0
        for rows, tile in self.tiles(left, right):
            truncate(tile, rows)
            result.addmm_(vectors[rows].T, tile)
            energy += float(torch.linalg.vector_norm(tile)) ** 2
        return result, energy

    def clipped(self, limit: float) -> Truncate:
        """Truncation to ``[-limit, limit]``."""

        def clip(tile: Tensor, _: slice) -> None:
            tile.clamp_(-limit, limit)
            if self.missing:
                tile.nan_to_num_(nan=0.0)

        return clip


def approximate(
    residuals: Residuals,
    at: tuple[Tensor, Tensor],
    vectors: Tensor,
    truncate: Truncate,
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Approximate the singular value decomposition of ``L + T(X - L)``.

    Parameters
    ----------
    residuals
        The data X.
    at
        The factors of L.
    vectors
        A basis from which one step of subspace iteration starts, shape (m, k).
    truncate
        T.

    Returns
    -------
    tuple
        Left singular vectors (n, k), singular values (k,), right singular vectors (m, k), and the
        squared norm of ``T(X - L)``.
    """
    left, right = at
    image = residuals.times(left, right, truncate, vectors)
    image += left @ (right.T @ vectors)
    basis = torch.linalg.qr(image)[0]
    product, energy = residuals.transposed_times(left, right, truncate, basis)
    product += (basis.T @ left) @ right.T
    orthonormal, triangle = torch.linalg.qr(product.T)
    u, values, v = torch.linalg.svd(triangle.T, full_matrices=False)
    return basis @ u, values, orthonormal @ v.T, energy


def robust_fit(x: Tensor, rank: int, seed: int = 0) -> RobustFit:
    """Fit a low-rank matrix to most entries of x, and measure the noise of these entries.

    Parameters
    ----------
    x
        The data, shape (n, m), in any scale. NaN means not observed.
    rank
        The largest rank of the fit, at most ``min(n, m)``.
    seed
        Seeds the entries at which the noise level is sampled.

    Returns
    -------
    RobustFit
        The factors, the noise level sigma and the share of outliers.

    Notes
    -----
    Entries whose residual exceeds a limit are outliers and replaced by their fitted values; the
    limit is a multiple of sigma, which follows from the median absolute residual of the other
    entries. A large multiple is better while the residuals still contain parts of the low-rank
    matrix, which are not spread evenly; it falls to 3 when sigma falls no more. Rows and columns
    that fit badly have larger limits, for otherwise all of their entries could become outliers for
    good. The first limits follow from the sizes of the entries of each row and column.

    Singular vectors are dropped if they are no longer than those of noise, if the noise level is
    the same without them, or if most of their energy is in a single entry; then they explain
    outliers.
    """
    n, m = x.shape
    size = min(rank + 5, n, m)
    residuals = Residuals(x)
    sample = _Sample(x, seed)
    unit = sample.unit
    generator = torch.Generator().manual_seed(seed)
    right = torch.linalg.qr(torch.randn(m, size, generator=generator, dtype=x.dtype))[0]
    left = torch.zeros((n, size), dtype=x.dtype)
    if unit == 0:
        return RobustFit(Factors(left[:, :rank], right[:, :rank]), 0.0, 0.0)
    limits = sample.limits(left, right, FIRST_LIMIT * unit, FIRST_LIMIT / BAD_LINE)
    truncate = _rejecting(*limits)
    for _ in range(POWER_STEPS):
        _, values, right, energy = approximate(residuals, (left, right), right, truncate)
    least = unit * (1e-9 if x.dtype == torch.float64 else 1e-6)
    edge = ABOVE_NOISE * (math.sqrt(n) + math.sqrt(m)) / math.sqrt(n * m)
    # at first L is zero, and what is left besides the directions counts as noise
    noise = max(energy - float(values[:rank].square().sum()), 0.0)
    sigma, share, most, patience, calm = math.inf, 0.0, rank, 1.0, 0
    for count in range(ROUNDS):
        basis, values, right, energy = approximate(residuals, (left, right), right, truncate)
        noise = energy if count > 0 else noise
        # an outlier is a matrix of rank 1, too: with its energy in one entry
        peaks = basis.abs().amax(dim=0) * right.abs().amax(dim=0)
        order = (peaks.square() > CONCENTRATED).int().argsort(stable=True)
        basis, values, right = basis[:, order], values[order], right[:, order]
        spread = int((peaks.square() <= CONCENTRATED).sum())
        large = values[:spread] > edge * math.sqrt(noise)
        kept = min(int(large.sum()), most)
        left = basis * values
        kept, level, share, far = sample.choose(left, right, kept)
        left[:, kept:] = 0.0
        slow = level > SLOW * sigma
        settled = level >= (1 - SETTLED) * sigma
        sigma = level
        # no new directions while the residuals still change: they would explain outliers
        most = rank if slow else max(kept, 1)
        patience *= 0.5 if slow else 1.0
        unspread = math.sqrt(max(far, 0.01) * max(kept, 1) / min(n, m))
        multiple = max(OUTLIER, patience * min(MOST, REMAINDER / unspread))
        calm = calm + 1 if settled and multiple == OUTLIER else 0
        if sigma < least or calm == 2:
            break
        truncate = _rejecting(*sample.limits(left, right, multiple * sigma, multiple))
    freedom = math.sqrt(n * m / max((n - kept) * (m - kept), 1))
    return RobustFit(Factors(left[:, :rank], right[:, :rank]), sigma * freedom, share)


def robust_deviation(residuals: Tensor) -> float:
    """Estimate the standard deviation of residuals without outliers and missing entries."""
    return _level(_Sample(residuals, seed=0).values).sigma


def _rejecting(by_row: Tensor, by_column: Tensor) -> Truncate:
    """Truncation to zero beyond the larger limit of an entry's row and column, and at NaN."""

    def reject(tile: Tensor, rows: slice) -> None:
        limits = torch.maximum(by_row[rows, None], by_column)
        tile.masked_fill_(~(tile.abs() <= limits), 0.0)

    return reject


class _Sample:
    """Entries at which residuals are measured: some of all, some of each row and each column."""

    def __init__(self, x: Tensor, seed: int) -> None:
        n, m = x.shape
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(n, (ENTRIES,), generator=generator)
        columns = torch.randint(m, (ENTRIES,), generator=generator)
        observed = ~torch.isnan(x[rows, columns])
        self.rows, self.columns = rows[observed], columns[observed]
        self.values = x[self.rows, self.columns]
        self.some_rows = torch.randperm(n, generator=generator)[:LINES]
        self.some_columns = torch.randperm(m, generator=generator)[:LINES]
        self.by_row, self.by_column = x[:, self.some_columns], x[self.some_rows]
        sizes = self.values.abs()
        #: the size of the entries: robust, unless more than half of them are zero
        self.unit = 0.0
        if len(sizes):
            self.unit = MAD_TO_SIGMA * float(sizes.median()) or float(sizes.mean())

    def choose(self, left: Tensor, right: Tensor, kept: int) -> tuple[int, float, float, float]:
        """Choose the number of directions.

        Returns
        -------
        tuple
            The number, at most `kept`; the noise level with it; and the shares of the residuals
            above 3 and above 6 noise levels.
        """
        residuals = self.values
        levels = [_level(residuals)]
        for k in range(kept):
            residuals = residuals - left[self.rows, k] * right[self.columns, k]
            levels.append(_level(residuals))
        best = levels[kept]
        while kept > 1 and levels[kept - 1].sigma <= LOWERS_NOISE * best.sigma:
            kept -= 1
        chosen = levels[kept]
        return kept, chosen.sigma, chosen.outliers, chosen.far

    def limits(
        self, left: Tensor, right: Tensor, limit: float, multiple: float
    ) -> tuple[Tensor, Tensor]:
        """Limits of residuals for each row and each column, at least `limit`."""
        factor = BAD_LINE * multiple * LOW_TO_SIGMA
        by_row = (self.by_row - left @ right[self.some_columns].T).abs().nanquantile(LOW, dim=1)
        by_column = (self.by_column - left[self.some_rows] @ right.T).abs().nanquantile(LOW, dim=0)
        rows, columns = (factor * v.nan_to_num_(nan=0.0) for v in (by_row, by_column))
        return rows.clamp_min_(limit), columns.clamp_min_(limit)


class _Level(NamedTuple):
    sigma: float
    outliers: float
    far: float


def _level(residuals: Tensor) -> _Level:
    """The standard deviation of residuals without outliers, and the shares above 3 and 6 of it."""
    ordered = residuals.abs().sort()[0]
    count = len(ordered)
    if count == 0:
        return _Level(0.0, 0.0, 0.0)
    sigma = MAD_TO_SIGMA * float(ordered[(count - 1) // 2])
    inside = count
    for _ in range(10):
        inside = int(torch.searchsorted(ordered, OUTLIER * sigma, right=True))
        smaller = TRIMMED_TO_SIGMA * float(ordered[max(inside - 1, 0) // 2])
        if smaller >= 0.999 * sigma:
            break
        sigma = smaller
    far = count - int(torch.searchsorted(ordered, 2 * OUTLIER * sigma, right=True))
    return _Level(sigma, 1 - inside / count, far / count)
