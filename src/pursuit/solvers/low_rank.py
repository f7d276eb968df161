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
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._native import kernels
from .._threads import equal_parts, work_through
from ..progress import Callback, Progress

Array = np.ndarray[Any, Any]
Result = TypeVar("Result")

#: number of entries in a tile of rows; a tile and its products stay in the cache
TILE = 65_536
#: 1/quantile of |z| at 1/2, for a standard normal z, and for one that is trimmed at 3
MAD_TO_SIGMA, TRIMMED_TO_SIGMA = 1.4826, 1.488
#: the ratio of the quantiles 0.5 and 0.2 of |z|, for a standard normal z
GAUSSIAN_RATIO = 2.662
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
#: directions explain outliers if their energy is in fewer entries than the longer side has, such as
#: some entries of a few rows, and than this fraction of all entries; Gaussian directions have 1/9
CONCENTRATED = 1 / 27
#: the noise level is sampled at this number of entries, and those of rows and columns at this
ENTRIES, LINES = 10_000, 50
#: the noise level has settled if it falls by less than SETTLED; it falls slowly above SLOW
SETTLED, SLOW = 0.01, 0.8
#: the subspace iterations before the first fit, and the most iterations of `robust_fit`
POWER_STEPS, ROUNDS = 3, 100

#: tangent steps pay if the data have this many times the entries of the singular vectors
TANGENT = 8
#: sigma is doubtful with a larger share of outliers, or more peaked residuals: in random mixtures
#: beyond these limits it was often several times too large
MOST_OUTLIERS, MOST_PEAKED = 0.35, 1.2
#: fewer entries than this are not worth another thread
FEWEST_ENTRIES = 100_000


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
    """A low-rank fit of most entries of a matrix.

    Attributes
    ----------
    factors
        The low-rank matrix.
    sigma
        The standard deviation of the noise.
    outliers
        The share of the entries that are outliers.
    peakedness
        The ratio of two quantiles of the residuals that are no outliers, 1 for Gaussian noise.
    """

    factors: Factors
    sigma: float
    outliers: float
    peakedness: float

    @property
    def is_doubtful(self) -> bool:
        """Whether there are too many outliers, or residuals of several sizes, to trust sigma."""
        return self.outliers > MOST_OUTLIERS or self.peakedness > MOST_PEAKED


class Truncation(NamedTuple):
    """What happens to residuals: they are clipped, or rejected.

    Without limits they are clipped to [lower, upper]. With limits they become zero where they
    exceed the limit of their row and that of their column. Missing entries become zero.
    """

    lower: float = -math.inf
    upper: float = math.inf
    by_row: Tensor | None = None
    by_column: Tensor | None = None

    @classmethod
    def clip(cls, limit: float) -> Truncation:
        """Truncation to ``[-limit, limit]``."""
        return cls(-limit, limit)


#: truncation that only sets missing entries to zero
OBSERVED = Truncation()


class Size(NamedTuple):
    """``||T||_F^2`` of residuals that were truncated, and the sum of what clipping has removed."""

    energy: float
    removed: float


class Products(NamedTuple):
    """``T V`` (n, p) and ``U' T`` (s, m) for truncated residuals T; and their `Size`."""

    along_rows: Tensor
    along_columns: Tensor
    size: Size


class Residuals:
    """Residuals ``X - left right'`` of data, computed tile by tile.

    Entries of X that are NaN were not observed.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x.contiguous()
        self.missing = bool(torch.isnan(x.sum()))

    def tiles(self, left: Tensor, right: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield rows and their residuals, which are overwritten by the next ones."""
        transposed = right.T.contiguous()
        length = max(8, TILE // self.x.shape[1])
        buffer = torch.empty((min(length, len(self.x)), self.x.shape[1]), dtype=self.x.dtype)
        for start in range(0, len(self.x), length):
            rows = slice(start, min(start + length, len(self.x)))
            tile = buffer[: rows.stop - start]
            torch.addmm(self.x[rows], left[rows], transposed, alpha=-1, out=tile)
            yield rows, tile

    def products(
        self,
        at: tuple[Tensor, Tensor],
        truncation: Truncation,
        vectors: Tensor | None = None,
        basis: Tensor | None = None,
    ) -> Products:
        """Multiply truncated residuals by `vectors` V (m, p) and, transposed, by `basis` U (n, s).

        `at` are the factors left (n, k) and right (m, k).
        """
        x, dtype = self.x.numpy(), self.x.numpy().dtype
        n, m = x.shape
        none = np.empty(0, dtype)
        left, right = _array(at[0]), _array(at[1].T)
        v = np.empty((0, m), dtype) if vectors is None else _array(vectors.T)
        u = np.empty((n, 0), dtype) if basis is None else _array(basis)
        limits = truncation.by_row, truncation.by_column
        by_row, by_column = (none if limit is None else _array(limit) for limit in limits)
        along_rows = np.zeros((n, len(v)), dtype)

        def work(rows: slice) -> tuple[tuple[float, float], Array]:
            along_columns = np.zeros((u.shape[1], m), dtype)
            size = kernels.truncated_products(
                x[rows], left[rows], right, v, u[rows], truncation.lower, truncation.upper,
                by_row[rows], by_column, along_rows[rows], along_columns,
            )  # fmt: skip
            return size, along_columns

        parts = on_threads(work, n, x.size)
        size = Size(*(sum(values) for values in zip(*(part[0] for part in parts), strict=True)))
        total = parts[0][1]
        for _, part in parts[1:]:
            total += part
        return Products(torch.from_numpy(along_rows), torch.from_numpy(total), size)


def on_threads(work: Callable[[slice], Result], rows: int, entries: int) -> list[Result]:
    """Call `work` with equal parts of the rows, on as many threads as torch uses."""
    threads = max(1, min(torch.get_num_threads(), entries // FEWEST_ENTRIES, rows))
    parts = equal_parts(rows, threads)
    results: dict[int, Result] = {}

    def run(part: slice) -> None:
        results[part.start] = work(part)

    work_through(parts, lambda: run, threads)
    return [results[part.start] for part in parts]


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.numpy())


class Singular(NamedTuple):
    """Left singular vectors (n, k), singular values (k,) and right singular vectors (m, k)."""

    left: Tensor
    values: Tensor
    right: Tensor


def step(
    residuals: Residuals, at: tuple[Tensor, Tensor], last: Singular, truncation: Truncation
) -> tuple[Singular, Size]:
    """Update the singular value decomposition of ``M = L + T(X - L)`` from the last one.

    A tangent step computes the residuals once, but needs decompositions of twice the size.
    """
    n, m = residuals.x.shape
    if n * m >= TANGENT * (n + m) * last.left.shape[1]:
        return tangent_step(residuals, at, last, truncation)
    return power_step(residuals, at, last.right, truncation)


def power_step(
    residuals: Residuals, at: tuple[Tensor, Tensor], vectors: Tensor, truncation: Truncation
) -> tuple[Singular, Size]:
    """Approximate the singular value decomposition of ``M = L + T(X - L)``.

    This is one step of subspace iteration from `vectors` (m, k), for which the residuals are
    computed twice.
    """
    left, right = at
    image = residuals.products(at, truncation, vectors=vectors).along_rows
    image += left @ (right.T @ vectors)
    basis = torch.linalg.qr(image)[0]
    _, product, size = residuals.products(at, truncation, basis=basis)
    product += (basis.T @ left) @ right.T
    orthonormal, triangle = torch.linalg.qr(product.T)
    u, values, v = torch.linalg.svd(triangle.T, full_matrices=False)
    return Singular(basis @ u, values, orthonormal @ v.T), size


def tangent_step(
    residuals: Residuals, at: tuple[Tensor, Tensor], last: Singular, truncation: Truncation
) -> tuple[Singular, Size]:
    """Update a singular value decomposition of ``M = L + T(X - L)``.

    With the last singular vectors U and V, M is replaced by ``U U'M + M V V' - U U'M V V'``, its
    projection onto the tangent space of the matrices of low rank, for which one computation of the
    residuals suffices (Cai, Cai and Wei 2019). Its error is of second order in the change of the
    singular vectors.
    """
    left, right = at
    u, k = last.left, last.left.shape[1]
    along_rows, along_columns, size = residuals.products(at, truncation, last.right, u)
    along_rows += left @ (right.T @ last.right)
    along_columns += (u.T @ left) @ right.T
    core = u.T @ along_rows
    q, r = _beyond(u, along_rows - u @ core)
    p, s = _beyond(last.right, along_columns.T - last.right @ core.T)
    blocks = [torch.cat([core, s.T], dim=1), torch.cat([r, r.new_zeros(len(r), len(s))], dim=1)]
    a, values, b = torch.linalg.svd(torch.cat(blocks))
    left = u @ a[:k, :k] + q @ a[k:, :k]
    return Singular(left, values[:k], last.right @ b[:k, :k].T + p @ b[:k, k:].T), size


def _beyond(basis: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """A QR decomposition of vectors that are orthogonal to a basis, up to rounding."""
    vectors -= basis @ (basis.T @ vectors)
    q, r = torch.linalg.qr(vectors)
    if float((basis.T @ q).abs().max()) > torch.finfo(q.dtype).eps ** 0.75:
        # some are zero, so that their directions are arbitrary
        k = basis.shape[1]
        q = torch.linalg.qr(torch.cat([basis, q], dim=1))[0][:, k:]
        r = q.T @ vectors
    return q, r


def robust_fit(x: Tensor, rank: int, seed: int = 0, callback: Callback | None = None) -> RobustFit:
    """Fit a low-rank matrix to most entries of x, and measure the noise of these entries.

    Parameters
    ----------
    x
        The data, shape (n, m), in any scale. NaN means not observed.
    rank
        The largest rank of the fit, at most ``min(n, m)``.
    seed
        Seeds the entries at which the noise level is sampled.
    callback
        A function that is called with a `Progress` after each iteration; a true return value ends
        the iteration.

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
    the same without them, or if their energy is in few entries; then they explain
    outliers.
    """
    began = time.perf_counter()
    n, m = x.shape
    width = min(rank + 5, n, m)
    residuals = Residuals(x)
    entries, lines = _Entries(x, seed), _Lines(x, seed)
    unit = entries.unit
    generator = torch.Generator().manual_seed(seed)
    right = torch.linalg.qr(torch.randn(m, width, generator=generator, dtype=x.dtype))[0]
    left = torch.zeros((n, width), dtype=x.dtype)
    if unit == 0:
        return RobustFit(Factors(left[:, :rank], right[:, :rank]), 0.0, 0.0, 1.0)
    truncation = lines.limits(left, right, FIRST_LIMIT * unit, FIRST_LIMIT / BAD_LINE)
    for _ in range(POWER_STEPS):
        singular, size = power_step(residuals, (left, right), right, truncation)
        right = singular.right
    least = unit * (1e-9 if x.dtype == torch.float64 else 1e-6)
    edge = ABOVE_NOISE * (math.sqrt(n) + math.sqrt(m)) / math.sqrt(n * m)
    # at first L is zero, and what is left besides the directions counts as noise
    noise = max(size.energy - float(singular.values[:rank].square().sum()), 0.0)
    sigma, share, most, patience, calm, kept = math.inf, 0.0, rank, 1.0, 0, 0
    for count in range(ROUNDS):
        at = left[:, :kept], right[:, :kept]
        singular, size = step(residuals, at, singular, truncation)
        noise = size.energy if count > 0 else noise
        # an outlier is a matrix of rank 1, too: with its energy in one entry
        u, values, v = singular
        entries_used = 1 / (u.pow(4).sum(dim=0) * v.pow(4).sum(dim=0))
        concentrated = entries_used < min(max(n, m), CONCENTRATED * n * m)
        order = concentrated.int().argsort(stable=True)
        singular = Singular(u[:, order], values[order], v[:, order])
        spread = int((~concentrated).sum())
        large = singular.values[:spread] > edge * math.sqrt(noise)
        kept = min(int(large.sum()), most)
        left, right = singular.left * singular.values, singular.right
        kept, level, share, far = entries.choose(left, right, kept)
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
        if callback is not None:
            detail, seconds = f"noise level {sigma:.2g}", time.perf_counter() - began
            if callback(Progress("robust fit", count + 1, ROUNDS, seconds=seconds, detail=detail)):
                break
        if sigma < least or calm == 2:
            break
        truncation = lines.limits(left, right, multiple * sigma, multiple)
    freedom = math.sqrt(n * m / max((n - kept) * (m - kept), 1))
    factors = Factors(left[:, :rank], right[:, :rank])
    peakedness = _peakedness(entries.residuals(*factors)[0], OUTLIER * sigma)
    return RobustFit(factors, sigma * freedom, share, peakedness)


def _peakedness(residuals: Tensor, limit: float) -> float:
    """The ratio of the quantiles 0.5 and 0.2 of the residuals below a limit, 1 for a Gaussian."""
    sizes = np.sort(residuals.abs().numpy())
    inside = sizes[: np.searchsorted(sizes, limit, side="right")]
    if len(inside) == 0 or inside[-1] == 0:
        return 1.0
    low = float(inside[len(inside) // 5])
    return float(inside[len(inside) // 2]) / low / GAUSSIAN_RATIO if low > 0 else math.inf


def robust_deviation(x: Tensor, left: Tensor, right: Tensor) -> float:
    """Estimate the standard deviation of ``X - left right'`` without outliers, at some entries."""
    return _level(_Entries(x, seed=0).residuals(left, right)[0]).sigma


class _Entries:
    """Entries at which residuals are measured: all of a small matrix, some of a large one."""

    def __init__(self, x: Tensor, seed: int) -> None:
        n, m = x.shape
        if n * m <= ENTRIES:
            places = torch.arange(n * m)
        else:
            generator = torch.Generator().manual_seed(seed)
            places = torch.randint(n * m, (ENTRIES,), generator=generator)
        rows, columns = places // m, places % m
        observed = ~torch.isnan(x[rows, columns])
        self.rows, self.columns = rows[observed], columns[observed]
        self.values = x[self.rows, self.columns]
        sizes = self.values.abs()
        #: the size of the entries: robust, unless more than half of them are zero
        self.unit = 0.0
        if len(sizes):
            self.unit = MAD_TO_SIGMA * float(sizes.median()) or float(sizes.mean())

    def residuals(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The residuals of ``left right'``, and the rows of both factors from which they follow."""
        a, b = left.index_select(0, self.rows), right.index_select(0, self.columns)
        return self.values - (a * b).sum(dim=1), a, b

    def choose(self, left: Tensor, right: Tensor, kept: int) -> tuple[int, float, float, float]:
        """Choose the number of directions.

        Returns
        -------
        tuple
            The number, at most `kept`; the noise level with it; and the shares of the residuals
            above 3 and above 6 noise levels.
        """
        residuals, a, b = self.residuals(left[:, :kept], right[:, :kept])
        chosen = best = _level(residuals)
        while kept > 1:
            residuals += a[:, kept - 1] * b[:, kept - 1]
            without = _level(residuals)
            if without.sigma > LOWERS_NOISE * best.sigma:
                break
            kept, chosen = kept - 1, without
        return kept, chosen.sigma, chosen.outliers, chosen.far


class _Lines:
    """Some entries of each row and of each column, which tell how well it fits."""

    def __init__(self, x: Tensor, seed: int) -> None:
        n, m = x.shape
        generator = torch.Generator().manual_seed(seed)
        self.some_rows = torch.randperm(n, generator=generator)[:LINES]
        self.some_columns = torch.randperm(m, generator=generator)[:LINES]
        self.by_row, self.by_column = x[:, self.some_columns], x[self.some_rows]

    def limits(self, left: Tensor, right: Tensor, limit: float, multiple: float) -> Truncation:
        """Reject residuals beyond limits that follow from each row and column, at least `limit`."""
        factor = BAD_LINE * multiple * LOW_TO_SIGMA
        by_row = _low_quantile((self.by_row - left @ right[self.some_columns].T).abs_(), 1)
        by_column = _low_quantile((self.by_column - left[self.some_rows] @ right.T).abs_(), 0)
        rows, columns = (v.mul_(factor).clamp_min_(limit) for v in (by_row, by_column))
        return Truncation(by_row=rows, by_column=columns)


def _low_quantile(values: Tensor, dim: int) -> Tensor:
    """The quantile LOW of values that are not NaN; 0 if there are none."""
    if bool(torch.isnan(values).any()):
        return values.nanquantile(LOW, dim=dim).nan_to_num_(nan=0.0)
    count = values.shape[dim]
    place = int(LOW * (count - 1))
    return torch.from_numpy(np.partition(values.numpy(), place, axis=dim).take(place, axis=dim))


class _Level(NamedTuple):
    sigma: float
    outliers: float
    far: float


def _level(residuals: Tensor) -> _Level:
    """The standard deviation of residuals without outliers, and the shares above 3 and 6 of it."""
    ordered = np.sort(residuals.abs().numpy())  # much quicker than torch's
    count = len(ordered)
    if count == 0:
        return _Level(0.0, 0.0, 0.0)
    sigma = MAD_TO_SIGMA * float(ordered[(count - 1) // 2])
    inside = count
    for _ in range(10):
        inside = int(np.searchsorted(ordered, OUTLIER * sigma, side="right"))
        smaller = TRIMMED_TO_SIGMA * float(ordered[max(inside - 1, 0) // 2])
        if smaller >= 0.999 * sigma:
            break
        sigma = smaller
    far = count - int(np.searchsorted(ordered, 2 * OUTLIER * sigma, side="right"))
    return _Level(sigma, 1 - inside / count, far / count)
