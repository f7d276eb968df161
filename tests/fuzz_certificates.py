"""Attacks on the certificates: random problems of every family, judged in extended precision.

A trial draws a model, signals, a method and a tolerance, from sizes of one and dependent atoms to
scales and weights over twenty orders of magnitude. It states the problem anew from plain arrays
(`Statement`) and compares what `solve` and `certify` report with objectives in long double, of the
codes that were returned and of those that other methods find; on a sample, cvxpy is one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

import pursuit as pu
from pursuit import models, penalties
from pursuit.models import SparseModel
from pursuit.operators import Convolution
from pursuit.solvers.solve import METHODS

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

EPS = np.finfo(np.float64).eps
#: iterations of the methods that have no compiled kernel
STEPS = 50
#: a trial has fewer signals than this
MOST_ROWS = 40
#: iterations of `Statement.descend`
REFERENCE_STEPS = 60
#: the part of the trials in which cvxpy is asked as well
CVXPY = 0.02


@dataclass
class Statement:
    """``1/2 ||x - z D||^2 + sum_i w_i |z_i| + sum_r v_r ||z_r|| + 1/2 sum_i c_i z_i^2``."""

    dictionary: Array
    w: Array
    c: Array
    sign: Array
    groups: list[tuple[list[int], float]] = field(default_factory=list)  # leaves first

    def objective(self, x: Array, codes: Array) -> Array:
        """The objective of each row in long double; inf where a sign is wrong."""
        x, z, d, w, c = (np.asarray(a, np.longdouble) for a in (
            x, codes, self.dictionary, self.w, self.c
        ))  # fmt: skip
        residual = x - z @ d
        value = np.square(residual).sum(1) / 2 + np.abs(z) @ w + np.square(z) @ c / 2
        for group, weight in self.groups:
            value += np.longdouble(weight) * np.sqrt(np.square(z[:, group]).sum(1))
        return np.where((z[:, self.sign] < 0).any(1), np.inf, value)

    def rounding(self, x: Array, codes: Array) -> Array:
        """The bound on the rounding of an objective that the documentation states."""
        q, m = self.dictionary.shape
        unit = (q + m + 16) * EPS
        z = np.abs(codes)
        size = np.linalg.norm(x, axis=1) + z @ np.linalg.norm(self.dictionary, axis=1)
        value = self.objective(x, codes).astype(np.float64)
        return unit * (size * np.sqrt(2 * value) + unit * size**2 + value)

    def shrink(self, v: Array, step: float) -> Array:
        v = np.where(self.sign, np.maximum(v, 0), v)
        v = np.sign(v) * np.maximum(np.abs(v) - step * self.w, 0)
        for group, weight in self.groups:
            norms = np.linalg.norm(v[:, group], axis=1, keepdims=True)
            v[:, group] *= np.maximum(1 - step * weight / np.maximum(norms, 1e-300), 0)
        return v

    def solved_by_cvxpy(self, x: Array) -> Array | None:
        """The codes that cvxpy finds, None where it fails."""
        import cvxpy as cp

        z = cp.Variable((len(x), len(self.w)))
        value = cp.sum_squares(x - z @ self.dictionary) / 2 + cp.sum(cp.abs(z) @ self.w)
        value += cp.sum(cp.square(z) @ self.c) / 2
        for group, weight in self.groups:
            value += weight * cp.sum(cp.norm(z[:, group], 2, axis=1))
        signs = [z[:, i] >= 0 for i in np.flatnonzero(self.sign)]
        try:
            cp.Problem(cp.Minimize(value), signs).solve(solver=cp.CLARABEL)
        except (cp.SolverError, ValueError):
            return None
        if z.value is None:
            return None
        return np.where(self.sign, np.maximum(z.value, 0), z.value)

    def descend(self, x: Array, z: Array) -> Array:
        """Some accelerated proximal gradient steps in float64, restarted where they ascend."""
        d = self.dictionary
        step = 1 / max(np.linalg.norm(d, 2) ** 2 + self.c.max(), 1e-300)
        y, t = z, np.ones((len(x), 1))
        for _ in range(REFERENCE_STEPS):
            new = self.shrink(y + step * ((x - y @ d) @ d.T - y * self.c), step)
            change = new - z
            t = np.where(((y - new) * change).sum(1, keepdims=True) > 0, 1.0, t)
            following = (1 + np.sqrt(1 + 4 * t * t)) / 2
            y, z, t = new + (t - 1) / following * change, new, following
        return z


# ---- problems -------------------------------------------------------------------------


def power(rng: Rng, least: float, most: float) -> float:
    return float(10 ** rng.uniform(least, most))


def draw_atoms(rng: Rng, q: int, m: int, nonnegative: bool = False) -> Array:
    """Atoms, some of them duplicates, opposites, multiples or nearly parallel."""
    atoms = rng.standard_normal((q, m))
    if nonnegative:
        atoms = np.abs(atoms)
    if rng.random() < 0.5:
        atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    if rng.random() < 0.4:
        for i in range(1, q):
            kind, j = rng.integers(8), int(rng.integers(i))
            if kind == 0:
                atoms[i] = atoms[j]
            elif kind == 1:
                atoms[i] = atoms[j] + power(rng, -14, -2) * rng.standard_normal(m)
            elif kind == 2:
                atoms[i] = atoms[j] * power(rng, -3, 3) * (1 if nonnegative else -1)
    if nonnegative:
        atoms = np.abs(atoms)
    if rng.random() < 0.3:
        atoms *= power(rng, -8, 8)
    return atoms


def draw_signals(rng: Rng, atoms: Array) -> Array:
    """Noise, sparse sums of atoms, or zeros, at scales from 1e-8 to 1e8."""
    n, (q, m) = int(rng.integers(1, MOST_ROWS)), atoms.shape
    x = rng.standard_normal((n, m))
    if rng.random() < 0.3:
        x = np.abs(x)
    if rng.random() < 0.4:
        sums = (rng.standard_normal((n, q)) * (rng.random((n, q)) < 0.4)) @ atoms
        x = sums / max(np.abs(sums).max(), 1e-300) + rng.choice([0, 1e-6, 0.1]) * x
    x *= 10 ** rng.uniform(-2, 2, (n, 1)) if rng.random() < 0.3 else 1
    x[rng.random(n) < 0.1] = 0
    return x * power(rng, -8, 8)


def draw_groups(rng: Rng, q: int) -> list[list[int]]:
    edges = np.unique(np.concatenate([[0], rng.integers(0, q + 1, int(rng.integers(5))), [q]]))
    order = rng.permutation(q)
    return [sorted(order[a:b].tolist()) for a, b in pairwise(edges)]


def draw_size(rng: Rng) -> int:
    return int(rng.choice([1, 2, 3, 5, 8, 16, 24]))


@dataclass
class Case:
    """A problem in the dtypes in which it is solved, and its statement of the same numbers."""

    model: SparseModel
    statement: Statement
    x: torch.Tensor


class Draw:
    """The parts that the families share: atoms and signals, rounded to their dtypes."""

    def __init__(self, rng: Rng, nonnegative: bool = False) -> None:
        self.rng = rng
        self.single = bool(rng.random() < 0.5)
        self.single_atoms = self.single and bool(rng.random() < 0.7)
        self.q, self.m = draw_size(rng), draw_size(rng)
        self.atoms = self.stored(draw_atoms(rng, self.q, self.m, nonnegative))
        x = draw_signals(rng, self.atoms)
        self.x = torch.from_numpy(x.astype(np.float32) if self.single else x)

    def stored(self, atoms: Array) -> Array:
        return atoms.astype(np.float32) if self.single_atoms else atoms

    def weight(self, low: float = -12, high: float = 12) -> float:
        """A weight relative to the largest correlation."""
        x = self.x.double().numpy()
        largest = float(np.abs(x @ self.atoms.T.astype(np.float64)).max())
        return max(largest, 1e-30) * power(self.rng, low, min(high, 12))

    def ridge(self) -> float:
        square = float(np.square(self.atoms.astype(np.float64)).sum())
        return max(square, 1e-30) * power(self.rng, -12, 12)

    def flag(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def case(
        self, model: SparseModel, w: Any = 0.0, c: Any = 0.0, sign: bool = False,
        groups: list[tuple[list[int], float]] | None = None, atoms: Array | None = None,
    ) -> Case:  # fmt: skip
        d = (self.atoms if atoms is None else atoms).astype(np.float64)
        w, c = (np.broadcast_to(np.asarray(a, np.float64), len(d)).copy() for a in (w, c))
        statement = Statement(d, w, c, np.full(len(d), sign), groups or [])
        return Case(model, statement, self.x)


def lasso(rng: Rng) -> Case:
    draw = Draw(rng)
    lam, sign = draw.weight(), draw.flag()
    weights = lam * 10 ** rng.uniform(-2, 2, draw.q) if rng.random() < 0.3 else lam
    return draw.case(models.Lasso(draw.atoms, weights, sign), weights, 0.0, sign)


def elastic_net(rng: Rng) -> Case:
    draw = Draw(rng)
    lam, ridge, sign = draw.weight(), draw.ridge(), draw.flag()
    penalty = penalties.Elastic(penalties.L1(lam, sign), ridge)
    return draw.case(SparseModel(draw.atoms, penalty), lam, ridge, sign)


def group_lasso(rng: Rng) -> Case:
    draw = Draw(rng)
    groups, sign = draw_groups(rng, draw.q), draw.flag()
    lam = [draw.weight()] * len(groups)
    if rng.random() < 0.3:
        lam = [value * power(rng, -2, 2) for value in lam]
    model = models.GroupLasso(draw.atoms, groups, lam, sign)
    return draw.case(model, 0.0, 0.0, sign, list(zip(groups, lam, strict=True)))


def hilasso(rng: Rng) -> Case:
    draw = Draw(rng)
    groups, sign, lam = draw_groups(rng, draw.q), draw.flag(), draw.weight()
    lam_group = lam * power(rng, -3, 3)
    model = models.HiLasso(draw.atoms, groups, lam_group, lam, sign)
    return draw.case(model, lam, 0.0, sign, [(group, lam_group) for group in groups])


def tree(rng: Rng) -> Case:
    draw = Draw(rng)
    coarse, sign, lam = draw_groups(rng, draw.q), draw.flag(), draw.weight()
    fine = [part for group in coarse for part in (group[::2], group[1::2]) if part]
    levels = [(fine, lam * power(rng, -2, 2)), (coarse, lam)]
    ridge = draw.ridge() if rng.random() < 0.3 else 0.0
    penalty: penalties.Penalty = penalties.TreeL2(levels, sign)
    if ridge:
        penalty = penalties.Elastic(penalty, ridge)
    groups = [(group, weight) for level, weight in levels for group in level]
    return draw.case(SparseModel(draw.atoms, penalty), 0.0, ridge, sign, groups)


def nmf(rng: Rng) -> Case:
    draw = Draw(rng, nonnegative=rng.random() < 0.6)
    ridge = draw.ridge() if draw.flag() else 0.0
    return draw.case(models.NMF(draw.atoms, ridge), 0.0, ridge, True)


def least_squares(rng: Rng) -> Case:
    draw = Draw(rng)
    ridge = draw.ridge() if draw.flag() else 0.0
    penalty = penalties.Ridge(ridge) if ridge else penalties.Zero()
    return draw.case(SparseModel(draw.atoms, penalty), 0.0, ridge)


def robust(rng: Rng) -> Case:
    sign = bool(rng.random() < 0.5)
    draw = Draw(rng, nonnegative=sign and rng.random() < 0.7)
    star = 0.0 if rng.random() < 0.1 else draw.ridge()
    size = float(draw.x.abs().max())
    lam = max(size, 1e-30) * power(rng, -12, 12)
    weights = lam * 10 ** rng.uniform(-2, 2, draw.m) if rng.random() < 0.3 else lam
    kind = models.RobustNMF if sign else models.RobustPCA
    atoms = np.concatenate([draw.atoms, np.eye(draw.m, dtype=draw.atoms.dtype)])
    w, c = np.zeros(len(atoms)), np.zeros(len(atoms))
    w[draw.q :], c[: draw.q] = weights, star
    return draw.case(kind(draw.atoms, star, weights), w, c, sign, atoms=atoms)


def low_rank_sparse(rng: Rng) -> Case:
    sign = bool(rng.random() < 0.5)
    draw = Draw(rng, nonnegative=sign and rng.random() < 0.7)
    sparse = draw.stored(draw_atoms(rng, draw_size(rng), draw.m, sign))
    star = 0.0 if rng.random() < 0.2 else draw.ridge()
    ridge = 0.0 if rng.random() < 0.5 else draw.ridge()
    lam = draw.weight()
    first, second = draw.atoms, sparse
    model = models.LowRankSparse(first, second, star, lam, ridge, sign)
    atoms = np.concatenate([first, second])
    w, c = np.zeros(len(atoms)), np.full(len(atoms), ridge)
    w[draw.q :], c[: draw.q] = lam, star
    return draw.case(model, w, c, sign, atoms=atoms)


def convolution(rng: Rng) -> Case:
    draw = Draw(rng)
    length = int(rng.integers(1, draw.m + 1))
    kernels = draw.atoms[: min(draw.q, 3), :length]
    operator = Convolution(kernels, shape=(draw.m,), stride=int(rng.integers(1, 3)))
    lam, sign = draw.weight(), draw.flag()
    model = SparseModel(operator, penalties.L1(lam, sign))
    return draw.case(model, lam, 0.0, sign, atoms=operator.atoms.numpy())


# ---- judgement ------------------------------------------------------------------------


def judge(rng: Rng, family: Callable[[Rng], Case]) -> None:
    """Draw a problem, solve it by one method and compare what it reports."""
    case = family(rng)
    model, statement = case.model, case.statement
    fitting = [name for name, solver in METHODS.items() if solver.accepts(model, False)]
    method = "auto" if rng.random() < 0.5 else str(rng.choice(fitting))
    name = method if method != "auto" else pu.solvers.solve.choose(model).name
    slow = name in ("ista", "fista", "greedy", "block_greedy", "restart", "nonnegative")
    tol = float(rng.choice([1e-3, 1e-6, 1e-9, 0.0], p=[0.2, 0.6, 0.15, 0.05]))
    most = STEPS if slow else 500 if name == "huber_fista" else None if tol else 50
    with np.errstate(all="ignore"):
        solution = pu.solve(model, case.x, method, tol, most)
        what = (
            f"{solution.method} of {type(model).__name__} {statement.dictionary.shape}, "
            f"{case.x.dtype} signals, {model.dtype} atoms, tol {tol:g}"
        )
        x, codes = (t.double().numpy() for t in (case.x, solution.codes))
        assert np.isfinite(codes).all(), f"{what}: the codes are not finite"
        value = statement.objective(x, codes)
        rounding = statement.rounding(x, codes)
        objective, gap = solution.objective.numpy(), solution.gap.numpy()
        error = np.abs(objective - value)
        _require(error <= rounding, f"{what}: the objective is wrong", objective, value, rounding)
        best = np.minimum(value, np.square(x.astype(np.longdouble)).sum(1) / 2)
        starts = [codes, np.zeros_like(codes)]
        others = [other for other in fitting if other not in (name, "restart", "nonnegative")]
        for other in [str(rng.choice(others))] if others and rng.random() < 0.5 else []:
            found = pu.solve(model, case.x.double(), other, 1e-12, STEPS).codes.numpy()
            starts.append(found)
        if rng.random() < CVXPY:
            solved = statement.solved_by_cvxpy(x)
            starts += [] if solved is None else [solved]
        for start in starts:
            for other in (start, statement.descend(x, start)):
                reached = statement.objective(x, other)
                best = np.where(reached < best, reached, best)
        excess = value - best
        _require(excess <= gap, f"{what}: the gap is no bound", excess, gap, value)
        met = excess <= tol * np.maximum(value, float(torch.finfo(case.x.dtype).eps)) + rounding
        claimed = solution.converged.numpy()
        _require(met | ~claimed, f"{what}: converged is wrong", excess, gap, value)
        certified = pu.certify(model, case.x, solution.codes).numpy()
        _require(excess <= certified, f"{what}: certify is no bound", excess, certified, value)


def _require(fine: Array, what: str, *numbers: Array) -> None:
    if not fine.all():
        row = int(np.argmin(fine))
        raise AssertionError(f"{what} in row {row}: {[float(n[row]) for n in numbers]}")


def _attack(family: Callable[[Rng], Case]) -> Callable[[Rng], None]:
    return lambda rng: judge(rng, family)


FAMILIES = (lasso, elastic_net, group_lasso, hilasso, tree, nmf, least_squares, robust)
FAMILIES += (low_rank_sparse, convolution)

#: one random trial each
ATTACKS: dict[str, Callable[[Rng], None]] = {f.__name__: _attack(f) for f in FAMILIES}
