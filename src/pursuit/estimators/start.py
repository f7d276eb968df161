"""Where learning starts: weights that follow from the noise, and an initial dictionary.

``learn_in_batch(x, *start_robust(x, 8)[:2])`` does what `RobustPCA` does in `fit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import require_choice
from ..dictionary import draw
from ..models import NMF, GroupLasso, HiLasso, Lasso, RobustNMF, RobustPCA, SparseModel
from ..nonnegative_factors import nonnegative_parts, nonnegative_start
from ..operators import without_zero_atoms
from ..penalties import Penalty
from ..solvers.low_rank import Factors, RobustFit, robust_fit
from . import noise
from .noise import as_weight_or_auto

__all__ = ["Start", "start_nmf", "start_robust", "start_sparse"]

#: initial atoms of robust models have at least this fraction of the largest singular value
LEAST_VALUE = 0.01


class Start(NamedTuple):
    """Where learning starts.

    Attributes
    ----------
    model
        The model, with its weights and an initial dictionary.
    init
        Initial codes or an initial low-rank part for `learn_in_batch`, or None.
    sigma
        The noise level, or None where it was not measured.
    """

    model: Any
    init: Tensor | Factors | None
    sigma: float | None


def start_sparse(
    x: Tensor,
    atoms: int,
    *,
    penalty: str | Penalty = "l1",
    lam: float | str = "auto",
    lam_group: float | str = "auto",
    groups: Sequence[Sequence[int]] | None = None,
    nonnegative: bool = False,
    seed: int = 0,
) -> Start:
    """Build a sparse model on a dictionary of random samples.

    Parameters
    ----------
    x
        Signals, shape (n, m), centred if the model is for centred signals. NaN means not observed.
    atoms, seed
        The number of atoms, and a random seed.
    penalty, lam, lam_group, groups, nonnegative
        As for `SparseCoding`.

    Returns
    -------
    Start
        A `Lasso`, `GroupLasso` or `HiLasso`, or a `SparseModel` with the given penalty object.
    """
    rows = x.nan_to_num(nan=0.0)
    dictionary = draw(rows if bool(rows.any()) else torch.ones_like(rows), atoms, seed)
    if isinstance(penalty, Penalty):
        return Start(SparseModel(dictionary, penalty), None, None)
    if not isinstance(penalty, str):
        raise TypeError(f"penalty must be a name or a Penalty, got {type(penalty).__name__}")
    require_choice(penalty, ("l1", "group", "hilasso"), "penalty")
    weight, weight_group = as_weight_or_auto(lam, "lam"), as_weight_or_auto(lam_group, "lam_group")
    auto = weight is None or (penalty == "hilasso" and weight_group is None)
    sigma = noise.noise_level(x, atoms, seed) if auto else None
    level = sigma or 0.0
    if penalty == "l1":
        weight = noise.lasso_weight(level, atoms) if weight is None else weight
        return Start(Lasso(dictionary, weight, nonnegative), None, sigma)
    if (
        groups is None
        or not hasattr(groups, "__len__")
        or len(groups) == 0
        or not all(hasattr(group, "__len__") for group in groups)
    ):
        raise ValueError(
            f"penalty={penalty!r} needs groups, lists of atom indices such as [[0, 1], [2, 3]]"
        )
    auto_group = noise.group_weight(level, [len(group) for group in groups])
    if penalty == "group":
        weight = auto_group if weight is None else weight
        return Start(GroupLasso(dictionary, groups, weight, nonnegative), None, sigma)
    weight = noise.lasso_weight(level, atoms) / 2 if weight is None else weight
    weight_group = auto_group / 2 if weight_group is None else weight_group
    return Start(HiLasso(dictionary, groups, weight_group, weight, nonnegative), None, sigma)


def start_nmf(x: Tensor, atoms: int, ridge: float = 0.0, *, seed: int = 0) -> Start:
    """Build an NMF on non-negative parts of singular vectors.

    Parameters
    ----------
    x
        Non-negative signals, shape (n, m). NaN means not observed.
    atoms, ridge, seed
        The number of atoms, the weight of the ridge on codes and dictionary, and a random seed.

    Returns
    -------
    Start
        The `NMF`, and initial codes. Without a ridge the atoms have unit norm.
    """
    codes, dictionary = nonnegative_start(x, atoms, seed)
    if ridge == 0:
        norms = dictionary.norm(dim=1)
        norms = torch.where(norms > 0, norms, 1.0)
        codes, dictionary = codes * norms, dictionary / norms[:, None]
    return Start(NMF(without_zero_atoms(dictionary), ridge), codes, None)


def fitted_rank(x: Tensor, atoms: int) -> int:
    """The rank of a robust fit: at most half of the smaller side of x, or no noise is left."""
    return max(1, min(atoms, min(x.shape) // 2))


def start_robust(
    x: Tensor,
    atoms: int,
    *,
    lam: float | str = "auto",
    lam_star: float | str = "auto",
    nonnegative: bool = False,
    seed: int = 0,
    fit: RobustFit | None = None,
) -> Start:
    """Build a robust PCA or a robust NMF on a robust low-rank fit of the data.

    With singular values s and right singular vectors V of the fit, the atoms of robust PCA are
    ``sqrt(max(s - lam_star, s_1/100)) V'``, the factor that balances a ridge on codes and
    dictionary. Robust NMF starts from the non-negative parts of the fit.

    Parameters
    ----------
    x
        Signals, shape (n, m), centred if the model is for centred signals. NaN means not observed.
    atoms, seed
        The number of atoms, and a random seed.
    lam, lam_star
        As for `RobustPCA`.
    nonnegative
        Whether scores, outliers and dictionary must be non-negative, as in a `RobustNMF`.
    fit
        The low-rank fit of x, if it is known.

    Returns
    -------
    Start
        The model, the low-rank fit or, for a robust NMF, initial codes; and the noise level.
    """
    outliers, low_rank = as_weight_or_auto(lam, "lam"), as_weight_or_auto(lam_star, "lam_star")
    fit = robust_fit(x, fitted_rank(x, atoms), seed) if fit is None else fit
    sigma = max(fit.sigma, noise.least_robust_noise(x))
    auto, auto_star = noise.robust_weights(sigma, *x.shape)
    outliers = auto if outliers is None else outliers
    low_rank = auto_star if low_rank is None else low_rank
    if nonnegative:
        codes, first = nonnegative_parts(fit.factors, x, atoms, seed)
        return Start(RobustNMF(without_zero_atoms(first), low_rank, outliers), codes, fit.sigma)
    missing = atoms - fit.factors.right.shape[1]
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn((missing, x.shape[1]), generator=generator, dtype=x.dtype)
    first = torch.nn.functional.normalize(torch.cat([fit.factors.right.T, random]))
    values = torch.cat([fit.factors.values, x.new_zeros(missing)])
    sizes = (values - low_rank).clamp_min(LEAST_VALUE * max(float(values[0]), low_rank)).sqrt()
    first = without_zero_atoms(first * sizes[:, None])
    return Start(RobustPCA(first, low_rank, outliers), fit.factors, fit.sigma)
