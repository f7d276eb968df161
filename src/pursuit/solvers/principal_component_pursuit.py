"""Principal component pursuit: the convex nuclear-norm problem behind the factored robust models.

It splits one matrix and cannot code new rows; the estimator `RobustPCA` can.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from .._checks import ArrayLike, as_count, as_float_matrix, as_number
from ..progress import Callback, Progress
from .low_rank import Factors, Residuals, Singular, Truncation, step

#: singular vectors computed beyond those in use, so that new ones can enter
SPARE = 5
#: the relative change of the low-rank part at which the first certificate is computed, and the
#: fewest iterations between two of them
FIRST_CHECK, BETWEEN = 1e-3, 5
#: if a rank is given, the iteration also ends if the objective changes in WINDOW iterations by less
#: than the tolerance where the rank limits L, and by less than STILL times it elsewhere
WINDOW, STILL = 10, 0.01
#: matrices whose smaller side is larger than this have their norm computed by Lanczos steps
LARGE = 500
#: the relative residual of Lanczos vectors; the relative error of the norm is about its square
LANCZOS = 1e-4


class LowRankSplit(NamedTuple):
    """A matrix as low rank plus outliers plus a small residual."""

    low_rank: Tensor
    outliers: Tensor


class Pursuit(NamedTuple):
    """The result of `pursue`.

    Attributes
    ----------
    factors
        The low-rank part.
    objective, gap
        The objective, and an upper bound of its distance to the optimum of the convex problem.
    norm
        The spectral norm of the residual ``X - L - O``, at most lam_star at the optimum.
    iterations, converged
        The number of iterations, and whether they sufficed.
    history
        The objective in the course of the iteration, approximately; the last entry is exact.
    """

    factors: Factors
    objective: float
    gap: float
    norm: float
    iterations: int
    converged: bool
    history: Sequence[float]


def principal_component_pursuit(
    x: ArrayLike, lam_star: float, lam: float, tol: float = 1e-6, max_iter: int = 5000
) -> LowRankSplit:
    """``min 1/2 ||X - L - O||_F^2 + lam_star ||L||_* + lam ||O||_1`` over L and O.

    Parameters
    ----------
    x
        A matrix with samples as rows, shape (n, m).
    lam_star
        The weight of the nuclear norm.
    lam
        The weight of the outliers, often ``lam_star / sqrt(max(n, m))``.
    tol
        Stop when the gap is at most this fraction of the objective.
    max_iter
        The largest number of steps, at least 1. A warning is issued if they do not suffice.

    Returns
    -------
    LowRankSplit
        ``low_rank, outliers``, each of the shape of x.

    Notes
    -----
    With O eliminated, ``O = soft(X - L, lam)``, the data term becomes the Huber function, whose
    gradient has the Lipschitz constant 1. FISTA with restart minimises over L; its proximal step
    soft-thresholds the singular values by lam_star, which one step of subspace iteration
    approximates. The gap is that of `certify_low_rank`.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> x = torch.ones(6, 5)
    >>> x[0, 0] = 10.0
    >>> low_rank, outliers = pu.principal_component_pursuit(x, lam_star=0.5, lam=0.2)
    >>> int(torch.linalg.matrix_rank(low_rank)), outliers.nonzero().tolist()
    (1, [[0, 0]])
    """
    matrix = as_float_matrix(x, "x", "features").detach()
    star, weight, tolerance = map(as_number, (lam_star, lam, tol), ("lam_star", "lam", "tol"))
    max_iter = as_count(max_iter, "max_iter")
    signals = matrix.double()
    solved = pursue(signals, star, weight, tol=tolerance, max_iter=max_iter)
    if not solved.converged:
        warnings.warn(
            f"principal_component_pursuit stopped after {solved.iterations} steps with a gap of "
            f"{solved.gap:.2g}; raise max_iter or tol",
            stacklevel=2,
        )
    low = solved.factors.product()
    residual = signals - low
    outliers = residual - residual.clamp(-weight, weight)
    return LowRankSplit(low.to(matrix.dtype), outliers.to(matrix.dtype))


def pursue(
    x: Tensor,
    lam_star: float,
    lam: float,
    *,
    rank: int | None = None,
    start: Factors | None = None,
    tol: float = 1e-6,
    max_iter: int = 5000,
    callback: Callback | None = None,
) -> Pursuit:
    """Solve the problem of `principal_component_pursuit` for the factors of L.

    Parameters
    ----------
    x
        The data, shape (n, m); NaN means not observed.
    lam_star, lam
        The weights of the nuclear norm and of the outliers.
    rank
        The largest rank of L. If the solution has a larger one, the result minimises the
        objective locally among the matrices of this rank, and its gap shows that.
    start
        An initial L.
    tol
        Stop when the gap is at most this fraction of the objective. If `rank` limits L, stop when
        the objective has changed by less than this fraction in ten iterations. If a rank is
        given that does not limit L, stop also when it has changed by less than a hundredth of it:
        with weights far below the data the gap decreases very slowly.
    max_iter, callback
        The largest number of iterations, and a function that is called with a `Progress` after
        each; a true return value ends the iteration.
    """
    n, m = x.shape
    smaller = min(n, m)
    most = smaller if rank is None else min(rank, smaller)
    residuals = Residuals(x)
    clip = Truncation.clip(lam)
    factors = _start(x, start, min(most, 0 if start is None else start.left.shape[1]))
    width = min(factors.right.shape[1] + SPARE, most + SPARE, smaller)
    singular = _extended(_normalised(factors), width)
    at: tuple[Tensor, Tensor] = factors
    t, weight, check, due = 1.0, 0.0, max(FIRST_CHECK, tol), 1
    nuclear = last = float(factors.values.sum())
    history: list[float] = []
    began, converged, count, state = time.perf_counter(), False, 0, None
    for count in range(1, max_iter + 1):
        singular, size = step(residuals, at, singular, clip)
        # of the point from which the step starts; the nuclear norm is extrapolated as well
        smooth = size.energy / 2 + lam * size.removed
        history.append(smooth + lam_star * (nuclear + weight * (nuclear - last)))
        values = (singular.values - lam_star).clamp_min(0)
        active = int((values > 0).sum())
        limited = active >= most < smaller
        kept = min(active, most)
        new = Factors(singular.left[:, :kept] * values[:kept], singular.right[:, :kept])
        square, product = float(new.values.square().sum()), _inner(new, factors)
        change = _distance(new, factors, square, product)
        if _inner(at, new) - _inner(at, factors) > square - product:
            t = 1.0
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        weight = (t - 1) / following
        at = new
        if weight > 0:
            at = (
                torch.cat([(1 + weight) * new.left, -weight * factors.left], dim=1),
                torch.cat([new.right, factors.right], dim=1),
            )
        last, nuclear = nuclear, float(values[:kept].sum())
        factors, t, state = new, following, None
        if active == len(values) < min(smaller, most + SPARE):
            singular = _extended(singular, min(2 * active, smaller, most + SPARE))
        elif not limited and change <= check and count >= due:
            state = _state(residuals, factors, lam_star, lam)
            converged = state.gap <= tol * state.objective
            if check < 1e-15:
                break
            check, due = min(0.1 * check, 0.3 * change), count + BETWEEN
        if rank is not None and count > WINDOW:
            recent = history[-1 - WINDOW :]
            least = (tol if limited else STILL * tol) * recent[-1]
            converged = converged or max(recent) - min(recent) <= least
        if converged:
            break
        if callback is not None:
            seconds = time.perf_counter() - began
            detail = f"relative change {change:.1e}, rank {kept}"
            if callback(Progress("low rank", count, max_iter, seconds=seconds, detail=detail)):
                break
    if state is None:
        state = _state(residuals, factors, lam_star, lam)
        converged = converged or state.gap <= tol * state.objective
    history.append(state.objective)
    return Pursuit(factors, state.objective, state.gap, state.norm, count, converged, history)


class _State(NamedTuple):
    objective: float
    gap: float
    norm: float


def _state(residuals: Residuals, factors: Factors, lam_star: float, lam: float) -> _State:
    """Compute the objective and the gap.

    With the clipped residual C and ``theta = min(1, lam_star/||C||_2)`` the dual point is
    ``theta C``. Since ``<O, C> = lam ||O||_1``, the gap is ``(1 - theta)^2/2 ||C||_F^2 + lam_star
    ||L||_* - theta <L, C> + (1 - theta) lam ||O||_1``, in which nothing cancels at the optimum.
    """
    clipped = torch.empty_like(residuals.x)
    outliers = 0.0
    for rows, tile in residuals.tiles(*factors):
        torch.clamp(tile, -lam, lam, out=clipped[rows])
        outliers += float((tile - clipped[rows]).abs().nansum(dtype=torch.float64))
    if residuals.missing:
        clipped.nan_to_num_(nan=0.0)
    norm = _spectral_norm(clipped)
    square = float(torch.linalg.vector_norm(clipped)) ** 2
    nuclear = float(factors.values.sum())
    product = float(((clipped @ factors.right) * factors.left).sum())
    theta = 1.0 if norm <= lam_star else lam_star / norm
    objective = square / 2 + lam_star * nuclear + lam * outliers
    gap = (1 - theta) ** 2 / 2 * square + (1 - theta) * lam * outliers
    return _State(objective, gap + max(lam_star * nuclear - theta * product, 0.0), norm)


def _spectral_norm(matrix: Tensor) -> float:
    if min(matrix.shape) > LARGE:
        options = {"return_singular_vectors": False, "random_state": 0, "tol": LANCZOS}
        return float(svds(matrix.numpy(), k=1, **options)[0])
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return math.sqrt(max(float(torch.linalg.eigvalsh(gram.double())[-1]), 0.0))


def _start(x: Tensor, start: Factors | None, kept: int) -> Factors:
    if start is None:
        return Factors(x.new_zeros((x.shape[0], 0)), x.new_zeros((x.shape[1], 0)))
    used = int((start.values[:kept] > 0).sum())
    return Factors(start.left[:, :used].to(x.dtype), start.right[:, :used].to(x.dtype))


def _normalised(factors: Factors) -> Singular:
    values = factors.values
    return Singular(factors.left / values, values, factors.right)


def _extended(singular: Singular, size: int) -> Singular:
    """Add random singular vectors, up to `size`, to given ones."""
    generator = torch.Generator().manual_seed(0)
    left, right = (_completed(v, size, generator) for v in (singular.left, singular.right))
    values = torch.cat([singular.values, singular.values.new_zeros(size - len(singular.values))])
    return Singular(left, values, right)


def _completed(basis: Tensor, size: int, generator: torch.Generator) -> Tensor:
    m, given = basis.shape
    random = torch.randn((m, size - given), generator=generator, dtype=basis.dtype)
    orthonormal: Tensor = torch.linalg.qr(torch.cat([basis, random], dim=1))[0]
    return orthonormal


def _inner(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> float:
    """The inner product of two matrices that are given by factors."""
    return float(((one[0].T @ other[0]) * (one[1].T @ other[1])).sum())


def _distance(new: Factors, old: Factors, size: float, product: float) -> float:
    """The relative distance of two low-rank matrices, given ``||new||_F^2`` and ``<new, old>``."""
    square = size - 2 * product + float(old.values.square().sum())
    if size == 0:
        return 0.0 if square == 0 else math.inf
    # the difference of almost equal numbers: below rounding it is computed from the factors
    if square > 1e-8 * size:
        return math.sqrt(square / size)
    left = torch.cat([new.left, -old.left], dim=1)
    right = torch.linalg.qr(torch.cat([new.right, old.right], dim=1))[1]
    return float(torch.linalg.matrix_norm(left @ right.T)) / math.sqrt(size)
