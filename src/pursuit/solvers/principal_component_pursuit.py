"""Principal component pursuit: the convex nuclear-norm problem behind the factored robust models.

A reference with a singular value decomposition per step. It splits one matrix and cannot code new
rows.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from .._checks import ArrayLike, as_float_matrix, as_number
from ..certificates import certify_low_rank

#: the number of steps between two evaluations of the certificate
CHECK_EVERY = 10


class LowRankSplit(NamedTuple):
    """A matrix as low rank plus outliers plus a small residual."""

    low_rank: Tensor
    outliers: Tensor


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
    soft-thresholds the singular values by lam_star. `certify_low_rank` computes the gap.

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
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter}")
    signals = matrix.double()
    low = y = torch.zeros_like(signals)
    t = 1.0
    for count in range(1, max_iter + 1):
        new = _shrink_singular_values(y + (signals - y).clamp(-weight, weight), star)
        if float(((y - new) * (new - low)).sum()) > 0:
            t = 1.0
        following = (1 + (1 + 4 * t * t) ** 0.5) / 2
        y = new + (t - 1) / following * (new - low)
        low, t = new, following
        if count % CHECK_EVERY == 0 or count == max_iter:
            outliers = _outliers(signals, low, weight)
            gap = certify_low_rank(signals, low, outliers, star, weight)
            if gap <= tolerance * _objective(signals, low, outliers, star, weight):
                break
    else:
        warnings.warn(
            f"principal_component_pursuit stopped after {max_iter} steps with a gap of {gap:.2g}; "
            "raise max_iter or tol",
            stacklevel=2,
        )
    return LowRankSplit(low.to(matrix.dtype), outliers.to(matrix.dtype))


def _outliers(x: Tensor, low: Tensor, lam: float) -> Tensor:
    residual = x - low
    return residual - residual.clamp(-lam, lam)


def _objective(x: Tensor, low: Tensor, outliers: Tensor, lam_star: float, lam: float) -> float:
    data = float((x - low - outliers).square().sum()) / 2
    nuclear = float(torch.linalg.matrix_norm(low, "nuc"))
    return data + lam_star * nuclear + lam * float(outliers.abs().sum())


def _shrink_singular_values(matrix: Tensor, threshold: float) -> Tensor:
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = (s - threshold).clamp_min(0)
    rank = int((s > 0).sum())
    shrunk: Tensor = (u[:, :rank] * s[:rank]) @ v[:rank]
    return shrunk
