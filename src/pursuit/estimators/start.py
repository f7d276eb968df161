"""Initial models: weights that follow from the noise, and dictionaries to start learning from.

``pursuit.learn(x, model=start_sparse(x, 64))`` does what estimators do before training an encoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .._checks import require_choice
from ..dictionary import draw, learn
from ..models import NMF, GroupLasso, HiLasso, Lasso, RobustNMF, RobustPCA, SparseModel
from ..operators import without_zero_atoms
from ..penalties import Penalty
from ..sampling import Array, sample_rows
from ..solvers.accuracy import ROUGH, exact_codes
from . import noise
from .noise import as_weight_or_auto

__all__ = ["start_nmf", "start_robust", "start_sparse"]

#: passes of the plain NMF from which a non-negative low-rank dictionary starts
START_PASSES = 20


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
) -> SparseModel:
    """Build a sparse model on a dictionary of random samples.

    Parameters
    ----------
    x
        Signals, shape (n, m), centred if the model is for centred signals.
    atoms, seed
        The number of atoms, and a random seed.
    penalty, lam, lam_group, groups, nonnegative
        As for `SparseCoding`.

    Returns
    -------
    SparseModel
        A `Lasso`, `GroupLasso` or `HiLasso`, or a `SparseModel` with the given penalty object.
    """
    dictionary = draw(x if bool(x.any()) else torch.ones_like(x), atoms, seed)
    if isinstance(penalty, Penalty):
        return SparseModel(dictionary, penalty)
    if not isinstance(penalty, str):
        raise TypeError(f"penalty must be a name or a Penalty, got {type(penalty).__name__}")
    require_choice(penalty, ("l1", "group", "hilasso"), "penalty")
    weight, weight_group = as_weight_or_auto(lam, "lam"), as_weight_or_auto(lam_group, "lam_group")
    auto = weight is None or (penalty == "hilasso" and weight_group is None)
    sigma = noise.noise_level(x.numpy(), atoms, seed) if auto else 0.0
    if penalty == "l1":
        weight = noise.lasso_weight(sigma, atoms) if weight is None else weight
        return Lasso(dictionary, weight, nonnegative)
    if not groups:
        raise ValueError(
            f"penalty={penalty!r} needs groups, lists of atom indices such as [[0, 1], [2, 3]]"
        )
    auto_group = noise.group_weight(sigma, [len(group) for group in groups])
    if penalty == "group":
        weight = auto_group if weight is None else weight
        return GroupLasso(dictionary, groups, weight, nonnegative)
    weight = noise.lasso_weight(sigma, atoms) / 2 if weight is None else weight
    weight_group = auto_group / 2 if weight_group is None else weight_group
    return HiLasso(dictionary, groups, weight_group, weight, nonnegative)


def start_nmf(x: Tensor, atoms: int, ridge: float = 0.0, *, seed: int = 0) -> NMF:
    """Build an NMF on the dictionary of `low_rank_start`.

    Parameters
    ----------
    x
        Non-negative signals, shape (n, m).
    atoms, ridge, seed
        The number of atoms, the weight of the ridge on codes and dictionary, and a random seed.
    """
    rows = x[torch.from_numpy(sample_rows(len(x), noise.MEASURED_ROWS, seed))].double().numpy()
    return NMF(low_rank_start(rows, atoms, ridge, len(x), nonnegative=True, seed=seed), ridge)


def start_robust(
    x: Tensor,
    atoms: int,
    *,
    lam: float | str = "auto",
    lam_star: float | str = "auto",
    nonnegative: bool = False,
    seed: int = 0,
) -> RobustPCA:
    """Build a robust PCA or robust NMF on the dictionary of `low_rank_start` for cleaned data.

    Parameters
    ----------
    x
        Signals, shape (n, m), centred if the model is for centred signals.
    atoms, seed
        The number of atoms, and a random seed.
    lam, lam_star
        As for `RobustPCA`.
    nonnegative
        Whether scores, outliers and dictionary must be non-negative, as in a `RobustNMF`.
    """
    outliers, low_rank = as_weight_or_auto(lam, "lam"), as_weight_or_auto(lam_star, "lam_star")
    cleaned, sigma = noise.clean(x.numpy(), atoms, seed)
    auto, auto_star = noise.robust_weights(sigma, *x.shape)
    outliers = auto if outliers is None else outliers
    low_rank = auto_star if low_rank is None else low_rank
    start = low_rank_start(cleaned, atoms, low_rank, len(x), nonnegative=nonnegative, seed=seed)
    return (RobustNMF if nonnegative else RobustPCA)(start, low_rank, outliers)


def low_rank_start(
    x: Array, atoms: int, ridge: float, samples: int, *, nonnegative: bool, seed: int
) -> Tensor:
    """Compute an initial dictionary of a low-rank model from a sample x of the data.

    With singular values s (scaled to the number of samples in the data set) and right singular
    vectors V the atoms are ``sqrt(max(s - ridge, s_1/100)) V'``, the factor that balances a ridge
    on codes and dictionary. Random directions make up for missing singular vectors. A non-negative
    dictionary comes from a plain NMF, in which the norms of the codes take the place of s. Without
    a ridge, atoms have unit norm, and non-negative ones are samples.
    """
    rows = x if x.any() else np.abs(np.random.default_rng(seed).standard_normal(x.shape))
    if nonnegative and ridge == 0:
        return draw(torch.from_numpy(rows), atoms, seed, nonnegative=True).float()
    if nonnegative:
        first, values = _nonnegative_factors(rows, atoms, seed)
    else:
        _, sizes, vectors = np.linalg.svd(rows, full_matrices=False)
        missing = max(0, atoms - len(vectors))
        random = np.random.default_rng(seed).standard_normal((missing, x.shape[1]))
        random /= np.linalg.norm(random, axis=1, keepdims=True)
        first = np.concatenate([vectors, random])[:atoms]
        values = np.pad(sizes, (0, missing))[:atoms]
    if ridge > 0:
        values = values * math.sqrt(samples / len(x))
        first = first * np.sqrt(np.maximum(values - ridge, values.max() / 100))[:, None]
    return without_zero_atoms(torch.from_numpy(first).float())


def _nonnegative_factors(x: Array, atoms: int, seed: int) -> tuple[Array, Array]:
    """Atoms of unit norm of a plain NMF, and the norms of their codes."""
    rows = torch.from_numpy(x).clamp_min(0)
    if not bool(rows.any()):
        rows = torch.ones_like(rows)
    start = NMF(draw(rows, atoms, seed, nonnegative=True))
    model = learn(rows, model=start, passes=START_PASSES, seed=seed)
    norms = model.dictionary.norm(dim=1, keepdim=True)
    codes = exact_codes(model, rows, ROUGH) * norms.T
    values = codes.norm(dim=0).clamp_min(torch.finfo(torch.float32).tiny)
    return (model.dictionary / norms).numpy(), values.numpy()
