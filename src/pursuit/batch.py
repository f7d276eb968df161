"""Dictionaries of data that fit into memory, learned from all samples until convergence.

`pursuit.dictionary` learns from batches and streams. Here every iteration uses all samples:

* NMF and robust NMF: HALS with extrapolation (`pursuit.nonnegative_factors`);
* robust PCA: the convex problem of principal component pursuit;
* all other models: exact codes and updates of the atoms in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from ._checks import as_weight
from .dictionary import OnlineDictionary, default_passes, learn
from .models import RobustPCA, SparseModel, require_model
from .nonnegative_factors import factorise
from .operators import without_zero_atoms
from .progress import Callback, Progress
from .solvers.accuracy import ROUGH, exact_codes
from .solvers.low_rank import Factors
from .solvers.nonnegative import NONNEGATIVE
from .solvers.principal_component_pursuit import pursue

AnyModel = TypeVar("AnyModel", bound=SparseModel)

#: default tolerances: NMF, robust PCA, robust NMF and all other models
NMF_TOL, ROBUST_PCA_TOL, ROBUST_NMF_TOL, TOL = 1e-3, 1e-5, 1e-4, 1e-3
#: updates of all atoms between two computations of codes
SWEEPS = 5


@dataclass(frozen=True)
class Learned(Generic[AnyModel]):
    """A learned dictionary, and how it was reached.

    Attributes
    ----------
    model
        The model with the learned dictionary.
    codes
        The coefficients of the atoms, shape (n, q), without outliers.
    history
        The objective ``sum_i F(x_i, z_i) + phi(D)`` of the iterations in which it was computed.
    iterations, converged
        The number of iterations, and whether the tolerance was reached.
    certificate
        For robust PCA, ``||X - L - O||_2 / lam_star``: at most 1, up to the tolerance, at the
        optimum of the convex problem. None for other models.
    """

    model: AnyModel
    codes: Tensor
    history: Sequence[float]
    iterations: int
    converged: bool
    certificate: float | None = None


class _Settings(NamedTuple):
    tol: float | None
    max_iter: int
    seed: int
    callback: Callback | None

    def tolerance(self, usual: float) -> float:
        return usual if self.tol is None else self.tol

    def report(self, count: int, objective: float, began: float) -> bool:
        """Call the callback, and return whether it wants to stop."""
        if self.callback is None:
            return False
        seconds = time.perf_counter() - began
        now = Progress("dictionary", count, self.max_iter, loss=objective, seconds=seconds)
        return bool(self.callback(now))


def learn_in_batch(
    x: Tensor,
    model: AnyModel,
    start: Tensor | Factors | None = None,
    *,
    tol: float | None = None,
    max_iter: int = 500,
    seed: int = 0,
    callback: Callback | None = None,
) -> Learned[AnyModel]:
    """Learn the dictionary of a model from all samples until it converges.

    Parameters
    ----------
    x
        Signals, shape (n, m); NaN means not observed.
    model
        The initial model.
    start
        For NMF and robust NMF the initial codes (n, q), for robust PCA the initial low-rank part.
        By default they follow from the dictionary of the model. Other models do not use it.
    tol
        For robust PCA, stop when the gap to the optimum of the convex problem is at most this
        fraction of the objective (1e-5 by default). For other models, stop when the objective
        decreases by less than this fraction: for an NMF (1e-3) and robust NMF (1e-4) in ten
        iterations, for other models (1e-3) in one.
    max_iter
        The largest number of iterations.
    seed, callback
        The seed of random orders, and a function that is called with a `Progress` after each
        iteration; a true return value ends the learning.

    Returns
    -------
    Learned
        The model with its dictionary, the codes, and how they were reached. The atoms of NMF,
        robust PCA and robust NMF are sorted by the energy of their part, the largest first.
    """
    require_model(model)
    settings = _Settings(tol, max_iter, seed, callback)
    if NONNEGATIVE.misfit(model) is None:
        return _learn_nmf(x, model, start, settings)
    if isinstance(model, RobustPCA) and as_weight(model.lam, "lam").ndim == 0:
        learner = _learn_nmf if model.nonnegative else _learn_robust_pca
        return learner(x, model, start, settings)
    return _learn_sparse(x, model, settings)


def _learn_nmf(x: Tensor, model: AnyModel, start: Any, settings: _Settings) -> Learned[AnyModel]:
    """HALS, with outliers if the model has some. Without a ridge the atoms have unit norm."""
    weights: Any = model
    (constraint,) = model.constraints.values()
    atoms, lam = len(model.dictionary), getattr(weights, "lam", None)
    lam = None if lam is None else float(lam)
    if start is None:
        start = exact_codes(model, filled_by_means(x), ROUGH)[:, :atoms]
    options: Any = {"max_iter": settings.max_iter, "callback": settings.callback}
    options["tol"] = settings.tolerance(NMF_TOL if lam is None else ROBUST_NMF_TOL)
    dictionary = model.dictionary.to(x)
    reached = factorise(x, start, dictionary, ridge=constraint.ridge, lam=lam, **options)
    z, d = _sorted(reached.codes, reached.dictionary)
    if constraint.ridge == 0:
        norms = d.norm(dim=1)
        norms = torch.where(norms > 0, norms, 1.0)
        z, d = z * norms, d / norms[:, None]
    learned = model.replace(dictionary=without_zero_atoms(d))
    return Learned(learned, z, reached.history, len(reached.history), reached.converged)


def _learn_robust_pca(
    x: Tensor, model: AnyModel, start: Any, settings: _Settings
) -> Learned[AnyModel]:
    """Principal component pursuit.

    With the singular value decomposition ``U S V'`` of the low-rank part the dictionary is
    ``S^(1/2) V'`` and the scores are ``U S^(1/2)``, which minimise the factored problem. The
    largest entry of each atom is positive.
    """
    weights: Any = model
    lam_star, lam, atoms = float(weights.lam_star), float(weights.lam), len(model.dictionary)
    if start is None:
        scores = exact_codes(model, filled_by_means(x), ROUGH)[:, :atoms]
        start = Factors.of(scores, model.dictionary.T.to(scores))
    options: Any = {"max_iter": settings.max_iter, "callback": settings.callback}
    options |= {"rank": atoms, "start": start, "tol": settings.tolerance(ROBUST_PCA_TOL)}
    solved = pursue(x, lam_star, lam, **options)
    left, right = solved.factors
    roots = solved.factors.values.sqrt()
    largest = right.gather(0, right.abs().argmax(dim=0, keepdim=True))[0]
    signed = torch.where(largest < 0, -roots, roots)
    dictionary, scores = x.new_zeros((atoms, x.shape[1])), x.new_zeros((len(x), atoms))
    dictionary[: len(roots)] = (right * signed).T
    scores[:, : len(roots)] = left / signed
    learned = model.replace(dictionary=without_zero_atoms(dictionary), scale=None)
    certificate = solved.norm / lam_star if lam_star > 0 else None
    how = solved.history, solved.iterations, solved.converged
    return Learned(learned, scores, *how, certificate)


def _learn_sparse(x: Tensor, model: AnyModel, settings: _Settings) -> Learned[AnyModel]:
    """Exact codes and updates of the atoms in turn.

    Some passes in small batches come first, since they make most of the progress.
    """
    missing, filled = torch.isnan(x), filled_by_means(x)
    passes, seed = default_passes(len(x)), settings.seed
    model = learn(filled, model=model, passes=passes, seed=seed, callback=settings.callback)
    online = OnlineDictionary.of(model, total=len(x), sweeps=SWEEPS)
    tol = settings.tolerance(TOL)
    history: list[float] = []
    began, converged = time.perf_counter(), False
    for count in range(1, settings.max_iter + 1):
        codes = exact_codes(model, filled, ROUGH)
        history.append(float(model.objective(filled, codes).sum()))
        stop = settings.report(count, history[-1], began)
        converged = count > 1 and history[-2] - history[-1] <= tol * history[-1]
        if stop or converged:
            break
        online.decay()
        model = model.replace(**online.learn_batch(model, filled, codes))
        if filled is not x:
            filled = torch.where(missing, model.decode(codes), x)
    return Learned(model, codes, history, len(history), converged)


def filled_by_means(x: Tensor) -> Tensor:
    """The data with missing entries replaced by the means of their columns."""
    missing = torch.isnan(x)
    if not bool(missing.any()):
        return x
    return torch.where(missing, x.nanmean(dim=0).nan_to_num_(nan=0.0), x)


def _sorted(codes: Tensor, dictionary: Tensor) -> tuple[Tensor, Tensor]:
    """Sort the atoms and their codes by the energy of their part, the largest first."""
    norms = codes.norm(dim=0) * dictionary.norm(dim=1)
    order = norms.argsort(descending=True, stable=True)
    return codes[:, order], dictionary[order]
