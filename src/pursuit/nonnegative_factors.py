"""Non-negative matrix factorisation of a data set: HALS with extrapolation, from an SVD start.

``1/2 ||X - Z D - O||_F^2 + ridge/2 (||Z||_F^2 + ||D||_F^2) + lam ||O||_1`` over ``Z >= 0``,
``D >= 0`` and ``O >= 0``. Without `lam` there are no outliers O.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import torch
from torch import Tensor

from ._native import kernels
from .progress import Callback, Progress
from .solvers.low_rank import OBSERVED, Factors, Residuals, Truncation, power_step

#: sweeps over all rows of a factor between two products with the data
SWEEPS = 3
#: the first extrapolation, its growth after a decrease, its reduction after an increase
FIRST, GROWTH, REDUCTION = 0.5, 1.05, 1.5
#: the decrease of the objective is measured over this number of iterations
WINDOW = 10
#: subspace iterations of the singular value decomposition from which the factors start
POWER_STEPS = 4


class Factorisation(NamedTuple):
    """Codes (n, q), dictionary (q, m), the objective after every iteration, and convergence."""

    codes: Tensor
    dictionary: Tensor
    history: list[float]
    converged: bool


def nonnegative_start(x: Tensor, rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Compute non-negative factors of x from its singular vectors.

    Of each pair of singular vectors the positive or the negative parts are taken, whichever have
    the larger product; zeros are filled with a small part of the mean of x (NNDSVDa, Boutsidis
    and Gallopoulos 2008). Random factors make up for missing singular vectors.

    Parameters
    ----------
    x
        Non-negative data, shape (n, m); NaN means not observed.
    rank, seed
        The number of atoms, and a random seed.

    Returns
    -------
    tuple of Tensor
        Codes (n, rank) and dictionary (rank, m).
    """
    return nonnegative_parts(_singular_vectors(x, min(rank, *x.shape), seed), x, rank, seed)


def nonnegative_parts(
    factors: Factors, x: Tensor, rank: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Compute non-negative factors from given singular vectors, see `nonnegative_start`."""
    codes, atoms = [], []
    mean = float(x.nanmean())
    for left, right in zip(factors.left.T, factors.right.T, strict=True):
        value = float(left.norm())
        if value == 0:
            continue
        pairs = [(sign * left / value).clamp_min(0) for sign in (1, -1)]
        others = [(sign * right).clamp_min(0) for sign in (1, -1)]
        sizes = [float(a.norm() * b.norm()) for a, b in zip(pairs, others, strict=True)]
        best = 0 if sizes[0] >= sizes[1] else 1
        factor = math.sqrt(value * sizes[best])
        codes.append(factor * pairs[best] / pairs[best].norm())
        atoms.append(factor * others[best] / others[best].norm())
    generator = torch.Generator().manual_seed(seed)
    size = math.sqrt(max(mean, torch.finfo(x.dtype).tiny) / rank)
    while len(codes) < rank:
        codes.append(size * torch.rand(len(x), generator=generator, dtype=x.dtype))
        atoms.append(size * torch.rand(x.shape[1], generator=generator, dtype=x.dtype))
    # an entry that is exactly zero would leave it only slowly
    least = 0.1 * size
    return torch.stack(codes, dim=1).clamp_min(least), torch.stack(atoms).clamp_min(least)


def factorise(
    x: Tensor,
    codes: Tensor,
    dictionary: Tensor,
    *,
    ridge: float = 0.0,
    lam: float | None = None,
    tol: float = 1e-3,
    max_iter: int = 500,
    callback: Callback | None = None,
) -> Factorisation:
    """Minimise over both factors, starting from given ones.

    Parameters
    ----------
    x
        Non-negative data, shape (n, m); NaN means not observed.
    codes, dictionary
        The initial factors, shapes (n, q) and (q, m).
    ridge, lam
        The weights of the squares of both factors, and of the outliers; None for no outliers.
    tol
        Stop when the objective has decreased by less than this fraction in ten iterations.
    max_iter, callback
        The largest number of iterations, and a function that is called with a `Progress` after
        each; a true return value ends the iteration.

    Notes
    -----
    Each iteration updates the columns of one factor in turn, three times, then those of the other
    (accelerated HALS, Gillis and Glineur 2012). Both factors are extrapolated along their last
    change; if the objective rises, the extrapolated factors are discarded and the extrapolation is
    reduced (Ang and Gillis 2019). Outliers and missing entries take their best values before each
    product with the data: ``X - O = Z D + T(X - Z D)``, where T truncates at lam.
    """
    data = _Data(x, lam)
    history: list[float] = []
    began, converged = time.perf_counter(), False
    z, d = codes.T.contiguous(), dictionary.contiguous().clone()  # (q, n), (q, m)
    z_far, d_far = z.clone(), d.clone()
    weight, most, last = FIRST, 1.0, math.inf
    for count in range(1, max_iter + 1):
        new_z = z_far.clone()
        _sweep(new_z, d_far @ d_far.T, data.times_rows(z_far, d_far), ridge)
        z_far = (new_z + weight * (new_z - z)).clamp_min_(0)
        gram, product = z_far @ z_far.T, data.times_columns(z_far, d_far)
        new_d = d_far.clone()
        _sweep(new_d, gram, product, ridge)
        objective = data.objective(z_far, new_d, gram, product, ridge)
        if objective > last:
            z_far, d_far = z.clone(), d.clone()
            most, weight, last = weight, weight / REDUCTION, math.inf
        else:
            d_far = (new_d + weight * (new_d - d)).clamp_min_(0)
            most = min(1.0, 1.01 * most)
            z, d, weight, last = new_z, new_d, min(most, GROWTH * weight), objective
            if ridge == 0:
                _balance((z, z_far), (d, d_far))
        history.append(min(objective, history[-1]) if history else objective)
        if callback is not None:
            seconds = time.perf_counter() - began
            now = Progress("factors", count, max_iter, loss=history[-1], seconds=seconds)
            if callback(now):
                break
        if count > WINDOW and history[-1 - WINDOW] - history[-1] <= tol * history[-1]:
            converged = True
            break
    _sweep(z, d @ d.T, data.times_rows(z, d), ridge)
    return Factorisation(z.T.contiguous(), d, history, converged)


def _balance(codes: tuple[Tensor, Tensor], atoms: tuple[Tensor, Tensor]) -> None:
    """Give both factors of each component the same norm, in place; products stay the same.

    Without a ridge nothing else keeps one factor from growing while the other shrinks.
    """
    sizes = codes[0].norm(dim=1, keepdim=True), atoms[0].norm(dim=1, keepdim=True)
    used = (sizes[0] > 0) & (sizes[1] > 0)
    root = torch.where(used, sizes[1] / sizes[0], 1.0).sqrt()
    for factor in codes:
        factor *= root
    for factor in atoms:
        factor /= root


def _singular_vectors(x: Tensor, rank: int, seed: int) -> Factors:
    residuals = Residuals(x)
    generator = torch.Generator().manual_seed(seed)
    n, m = x.shape
    right = torch.randn(m, min(rank + 5, n, m), generator=generator, dtype=x.dtype)
    left = torch.zeros((n, right.shape[1]), dtype=x.dtype)
    for _ in range(POWER_STEPS):
        (u, values, right), _ = power_step(residuals, (left, right), right, OBSERVED)
        if residuals.missing:
            left = u * values
    return Factors((u * values)[:, :rank], right[:, :rank])


def _sweep(factor: Tensor, gram: Tensor, product: Tensor, ridge: float) -> None:
    """Update the rows of a factor in turn, in place."""
    count = len(factor)
    ridges = torch.full((count,), ridge, dtype=factor.dtype)
    ball, nonnegative = torch.zeros(count, dtype=torch.bool), torch.ones(count, dtype=torch.bool)
    arrays = factor.numpy(), gram.numpy(), product.numpy(), ridges.numpy()
    kernels.dictionary_sweep(*arrays, ball.numpy(), nonnegative.numpy(), 0.0, SWEEPS)


class _Data:
    """Products of the data, without outliers and with fitted values for missing entries."""

    def __init__(self, x: Tensor, lam: float | None) -> None:
        self.x, self.residuals, self.lam = x, Residuals(x), lam
        self.plain = lam is None and not self.residuals.missing
        self.truncation = OBSERVED if lam is None else Truncation(upper=lam)
        self.energy = 0.0
        if self.plain:
            self.energy = float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2

    def times_rows(self, z: Tensor, d: Tensor) -> Tensor:
        """``D (X - O)'``, shape (q, n)."""
        if self.plain:
            return d @ self.x.T
        times = self.residuals.products((z.T, d.T), self.truncation, vectors=d.T).along_rows
        return times.T.contiguous() + (d @ d.T) @ z

    def times_columns(self, z: Tensor, d: Tensor) -> Tensor:
        """``Z' (X - O)``, shape (q, m)."""
        if self.plain:
            return z @ self.x
        product = self.residuals.products((z.T, d.T), self.truncation, basis=z.T).along_columns
        return product + (z @ z.T) @ d

    def objective(self, z: Tensor, d: Tensor, gram: Tensor, product: Tensor, ridge: float) -> float:
        squares = ridge / 2 * float(z.square().sum() + d.square().sum())
        if not self.plain:
            return self._misfit(z, d) + squares
        # from the products, in double precision, unless rounding would matter
        misfit = self.energy - 2 * float((d * product).sum(dtype=torch.float64))
        misfit += float(((d @ d.T) * gram).sum(dtype=torch.float64))
        exact = misfit / 2 if misfit > 1e-4 * self.energy else self._misfit(z, d)
        return exact + squares

    def _misfit(self, z: Tensor, d: Tensor) -> float:
        size = self.residuals.products((z.T, d.T), self.truncation).size
        return size.energy / 2 + (self.lam or 0.0) * size.removed
