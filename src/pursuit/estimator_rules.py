"""What the estimators decide for their users: weights, starts, passes, encoders.

Each function is one rule, stated in its docstring, so that whoever disagrees knows what to set.
The estimators are built on these; nothing here knows of scikit-learn's classes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dictionary import BATCH, OnlineDictionary, draw
from .encoders.block_coordinate import BlockCoordinateEncoder
from .encoders.coordinate import CoordinateEncoder
from .encoders.encoder import Encoder
from .encoders.proximal import ProximalEncoder
from .models import NMF, SparseModel
from .online import SAMPLES_AN_ATOM, SHARE
from .solvers.restart import RESTART
from .solvers.solve import choose, solve

__all__ = [
    "alive",
    "balanced_start",
    "choose_encoder",
    "choose_passes",
    "clean",
    "coordinate_schedule",
    "exact",
    "group_weight",
    "lasso_weight",
    "memory",
    "noise_level",
    "refine",
    "relative_gap",
    "renew",
    "robust_weights",
    "statistics",
]

Array = np.ndarray[Any, Any]

#: 1.4826 median|r| is the standard deviation of Gaussian noise r
MAD_TO_SIGMA = 1.4826
#: the noise is taken to be at least this part of the size of an entry
LEAST_NOISE = 0.01
#: rows on which noise is measured and from which a start is drawn
MEASURED_ROWS = 2000
#: the most rounds of fitting and leaving out, and what is left out, in units of the noise
ROUNDS, WILD = 50, 3.0
#: matrices whose smaller side is above this are fitted by a randomised decomposition
LARGE = 400
#: passes of the plain NMF that a robust one starts from
START_PASSES = 20
#: samples that all passes together go through, and the most passes
PASSED, MOST_PASSES = 30_000, 30
#: the most samples that a stream of exact codes remembers
MEMORY = 10_000
#: the relative gap of codes from which a dictionary is learned
LEARNING = 1e-3
#: that of codes that count as exact
EXACT = 1e-6
#: the most iterations of the general solver
MOST_ITERATIONS = 2000
#: an objective counts as at least this part of what a code of zeros has
LEAST_OBJECTIVE = 1e-3
#: an atom that has died is put back at this part of the size of the others
DEAD_SIZE = 1e-4


# ---- the noise, and what follows from it -----------------------------------------------


def clean(x: Array, rank: int, seed: int = 0) -> tuple[Array, float]:
    """What single wild entries leave of the data, and the standard deviation of the noise.

    A principal component fit of the centred rows alternates with setting the entries that it
    misses by more than 3 sigma to its own values;
    ``sigma = 1.4826 median|r| sqrt(n m / ((n - k)(m - k)))`` over the other entries of the residual
    r of a fit of rank k. k is `rank`, but at most half of what the data allow. It begins
    with the rows clipped at three deviations around the median of each column.

    Parameters
    ----------
    x
        Signals (n, m); a seeded sample of 2000 rows if there are more.
    rank
        The rank of the fit.
    seed
        Seeds the sample.

    Returns
    -------
    cleaned, sigma
        The rows looked at without their wild entries, and the noise, without any floor.
    """
    rows = _sample(np.asarray(x), MEASURED_ROWS, seed).astype(np.float64)
    n, m = rows.shape
    k = min(rank, min(n, m) // 2)
    centre = np.median(rows, axis=0)
    spread = WILD * MAD_TO_SIGMA * np.median(np.abs(rows - centre), axis=0)
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
            return rows, 0.0
        usual = residual <= WILD * sigma
        cleaned = np.where(usual, rows, fit)
        if abs(sigma - before) <= 1e-3 * sigma:
            break
    return cleaned, sigma


def noise_level(x: Array, rank: int, seed: int = 0) -> float:
    """The sigma of `clean`, floored at 1 % of the size of an entry.

    The size of an entry is the median norm of a median-centred row over sqrt(m); where that is 0,
    of a row as it is; where that is 0 too, 1.
    """
    _, sigma = clean(x, rank, seed)
    rows = _sample(np.asarray(x), MEASURED_ROWS, seed).astype(np.float64)
    for values in (rows - np.median(rows, axis=0), rows):
        size = float(np.median(np.linalg.norm(values, axis=1))) / math.sqrt(rows.shape[1])
        if size > 0:
            return max(sigma, LEAST_NOISE * size)
    return max(sigma, LEAST_NOISE)


def robust_weights(sigma: float, rows: int, features: int) -> tuple[float, float]:
    """``lam = sqrt(2) sigma`` and ``lam_star = sqrt(2 N) sigma``, with ``N = max(n, m)``."""
    return math.sqrt(2) * sigma, math.sqrt(2 * max(rows, features)) * sigma


def lasso_weight(sigma: float, atoms: int) -> float:
    """``lam = sigma sqrt(2 log q)``, at least sigma: about the largest of q correlations of noise
    with atoms of unit norm."""
    return sigma * max(1.0, math.sqrt(2 * math.log(atoms)))


def group_weight(sigma: float, groups: int, size: float) -> float:
    """``lam = sigma (sqrt(g) + sqrt(2 log R))``: the same for R groups of g atoms each."""
    return sigma * (math.sqrt(size) + math.sqrt(2 * math.log(max(groups, 1))))


# ---- exact codes -----------------------------------------------------------------------


def exact(model: SparseModel, x: Tensor, tol: float) -> Tensor:
    """The codes of `solve`, with an end for whatever converges slowly.

    Models without a solver of their own get 2000 iterations at most, 200 for a tol of 1e-3 or more.
    """
    if choose(model) is not RESTART:
        return solve(model, x, tol=tol).codes
    most = MOST_ITERATIONS // (10 if tol >= LEARNING else 1)
    return solve(model, x, tol=tol, max_iter=most).codes


# ---- dictionaries ----------------------------------------------------------------------


def balanced_start(
    x: Array, atoms: int, weight: float, nonnegative: bool, seed: int = 0, wild: bool = True
) -> Tensor:
    """A first low-rank dictionary, float32, of the size that a ridge on both factors asks for.

    From the cleaned rows' singular values s and vectors V: ``sqrt(max(s - weight, s_1/100)) V'``,
    with noise where there are fewer of them than atoms. If it must not be negative, a plain
    NMF of the cleaned rows takes the place of the decomposition, and the norm of an atom's
    codes that of s. Without a weight norms are 1, and non-negative atoms are rows.

    Parameters
    ----------
    x
        Signals (n, m), centred if the model's are.
    atoms
        q, the number of atoms.
    weight
        The ridge of both factors, lam_star.
    nonnegative
        Whether entries must not be negative.
    seed
        Seeds what is drawn.
    wild
        Whether single entries may be outliers, which a start should not contain.
    """
    rows = _sample(np.asarray(x), MEASURED_ROWS, seed).astype(np.float64)
    cleaned = clean(rows, atoms, seed)[0] if wild else rows
    if not cleaned.any():
        cleaned = np.abs(np.random.default_rng(seed).standard_normal(cleaned.shape))
    if nonnegative and weight == 0:
        return alive(draw(torch.from_numpy(cleaned), atoms, seed, nonnegative=True).float())
    if nonnegative:
        first, values = _parts(cleaned, atoms, seed)
    else:
        _, sizes, vectors = np.linalg.svd(cleaned, full_matrices=False)
        missing = max(0, atoms - len(vectors))
        noise = np.random.default_rng(seed).standard_normal((missing, x.shape[1]))
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        first = np.concatenate([vectors, noise])[:atoms]
        values = np.pad(sizes, (0, missing))[:atoms]
    if weight > 0:
        values = values * math.sqrt(len(x) / len(rows))
        first = first * np.sqrt(np.maximum(values - weight, values.max() / 100))[:, None]
    return alive(torch.from_numpy(first).float())


def _parts(x: Array, atoms: int, seed: int) -> tuple[Array, Array]:
    """Atoms of unit norm of a plain NMF, and the norms of their codes."""
    rows = torch.from_numpy(x).clamp_min(0)
    if not bool(rows.any()):
        rows = torch.ones_like(rows)
    model: SparseModel = NMF(alive(draw(rows, atoms, seed, nonnegative=True)))
    model = refine(model, rows, START_PASSES, seed)
    norms = model.dictionary.norm(dim=1, keepdim=True)
    codes = exact(model, rows, LEARNING) * norms.T
    values = codes.norm(dim=0).clamp_min(torch.finfo(torch.float32).tiny)
    return (model.dictionary / norms).numpy(), values.numpy()


def choose_passes(passes: int | None, rows: int) -> int:
    """As many passes as go through 30 000 samples, between 1 and 30."""
    if passes is None:
        return max(1, min(MOST_PASSES, math.ceil(PASSED / rows)))
    if passes < 1:
        raise ValueError(f"passes must be at least 1, got {passes}")
    return passes


def refine(model: SparseModel, x: Tensor, passes: int, seed: int = 0) -> SparseModel:
    """A better dictionary for the model: code exactly, count, renew, batch by batch.

    The dictionary's own penalty counts once for all of x. Data of one batch are alternated on:
    what is counted is always the last pass.
    """
    online = OnlineDictionary.of(model, total=len(x))
    rng = np.random.default_rng(seed)
    seen = 0
    for _ in range(passes):
        order = torch.from_numpy(rng.permutation(len(x)))
        for rows in torch.split(order, BATCH):
            if len(x) <= BATCH:
                online.forget()
            else:
                # early codes belong to a poor dictionary, and a pass is all there is to know
                online.beta = 1 - 1 / max(min(seen / 4, len(x)), 2 * BATCH)
            model = renew(model, online, x[rows])
            seen += len(rows)
    return model


def renew(model: SparseModel, online: OnlineDictionary, batch: Tensor) -> SparseModel:
    """The model after one batch: its exact codes are counted and the atoms renewed."""
    codes = exact(model, batch, LEARNING)
    coefficients, targets = model.regression(batch, codes)
    online.count(targets, coefficients)
    if all(constraint.ridge == 0 for constraint in model.constraints.values()):
        # under a ridge an atom that dies was one too many
        online.revive(targets, coefficients)
    online.renew()
    return model.replace(**{name: alive(atoms) for name, atoms in online.dictionaries.items()})


def statistics(model: SparseModel, x: Tensor, seed: int = 0) -> OnlineDictionary:
    """What a stream that begins with this model should remember: the exact codes of a sample."""
    online = OnlineDictionary.of(model, total=len(x))
    rows = torch.from_numpy(_sample(np.arange(len(x)), MEASURED_ROWS, seed))
    codes = exact(model, x[rows], LEARNING)
    coefficients, targets = model.regression(x[rows], codes)
    online.count(targets, coefficients)
    return online


def memory(online: OnlineDictionary, seen: int) -> float:
    """The beta that remembers a quarter of what has come, 5 samples an atom to 10 000.

    The rule of `OnlineLearner` for a stream that does not change.
    """
    remembered = max(min(SHARE * seen, MEMORY), SAMPLES_AN_ATOM * len(online.atoms), 2)
    return 1 - 1 / remembered


def alive(dictionary: Tensor) -> Tensor:
    """The dictionary with tiny atoms in the place of those that are zero, which no model takes."""
    norms = dictionary.norm(dim=1, keepdim=True)
    dead = norms < torch.finfo(torch.float32).tiny ** 0.5
    if not bool(dead.any()):
        return dictionary
    size = float(norms[~dead].median()) if bool((~dead).any()) else 1.0
    return torch.where(dead, DEAD_SIZE * size / math.sqrt(dictionary.shape[1]), dictionary)


# ---- encoders --------------------------------------------------------------------------


def choose_encoder(model: SparseModel, layers: int) -> Encoder:
    """The form that serves the model best.

    Penalties that tie coefficients together: block-coordinate layers. One dictionary with more than
    twice as many atoms as features: top-k layers, which cannot overshoot on rare samples. All
    others: proximal layers, coupled, with momentum.
    """
    if not model.separable:
        return BlockCoordinateEncoder(model, layers, final="prox")
    if len(model.operator.block_sizes) == 1 and model.code_size > 2 * model.features:
        return CoordinateEncoder(
            model,
            layers,
            coordinates=coordinate_schedule(model.code_size, layers),
            step="coupled",
            momentum=True,
            final="partial",
        )
    return ProximalEncoder(model, layers)


def coordinate_schedule(atoms: int, layers: int) -> list[int]:
    """How many coefficients top-k layers change: few at first, all of them in the last."""
    widths = [4] * (layers // 2) + [8] * (layers - layers // 2 - 2) + [16]
    if atoms > 128 and layers < 10:
        widths = [2 * width for width in widths]
    return [min(width, atoms) for width in [*widths, atoms][-layers:]]


def relative_gap(model: SparseModel, x: Tensor, codes: Tensor) -> float:
    """``mean(F - F*) / mean(F*)`` of codes, against exact ones, in float64.

    F* counts as at least a thousandth of the objective of zeros, so that data which the model
    explains completely have a gap too.
    """
    x, codes = x.double(), codes.double()
    model = model.to(torch.float64)
    best = model.objective(x, exact(model, x, EXACT)).mean()
    zero = x.square().sum(dim=1).mean() / 2
    reached = model.objective(x, codes).mean()
    unit = torch.maximum(best, LEAST_OBJECTIVE * zero).clamp_min(torch.finfo(torch.float64).tiny)
    gap = float((reached - best) / unit)
    return max(gap, 0.0) if math.isfinite(gap) else math.inf


def _sample(x: Array, most: int, seed: int) -> Array:
    """At most so many rows, drawn by the seed, in their order."""
    if len(x) <= most:
        return x
    rows = np.sort(np.random.default_rng(seed).choice(len(x), most, replace=False))
    chosen: Array = x[rows]
    return chosen


def _low_rank(x: Array, rank: int, seed: int) -> Array:
    """The best fit of a rank."""
    from sklearn.utils.extmath import randomized_svd

    if rank == 0:
        return np.zeros_like(x)
    if min(x.shape) <= LARGE or rank > min(x.shape) // 4:
        # through the smaller Gram matrix, which is much quicker than a decomposition of x
        if x.shape[1] <= x.shape[0]:
            vectors = np.linalg.eigh(x.T @ x)[1][:, -rank:]
            return np.asarray(x @ vectors @ vectors.T)
        vectors = np.linalg.eigh(x @ x.T)[1][:, -rank:]
        return np.asarray(vectors @ (vectors.T @ x))
    left, values, right = randomized_svd(x, rank, n_iter=2, random_state=seed)
    return np.asarray((left * values) @ right)
