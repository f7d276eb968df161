"""Compiled exact codes of robust PCA and robust NMF by accelerated gradient steps.

Two passes over D0 per step and nothing else: faster than `newton_kernels` when a few steps suffice,
see `robust.prefers_newton`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .._numba import Array, compiled
from .huber_kernels import evaluate, ridge_step, set_residual, solve_rows

if TYPE_CHECKING:
    from .huber_kernels import Problem, Space, Vectors, Work
    from .tiles import Rows


@compiled
def fista(problem: Problem, work: Work, x: Array, rows: Rows) -> None:
    """Solve every row, see `solve_rows`."""
    solve_rows(_descend, problem, work, x, rows, 0.5, 0.5, problem.max_iter)


@compiled
def _descend(
    x: Array, d0: Array, problem: Problem, code: Array, vectors: Vectors, space: Space,
    tol: float, max_iter: int, warm: bool,
) -> int:  # fmt: skip
    """Accelerated proximal gradient with restart, in the precision of d0; return the steps.

        s+ = prox step of y,  y+ = s+ + (t - 1)/t+ (s+ - s),  t+ = (1 + sqrt(1 + 4 t^2))/2

    The momentum restarts when it points uphill. Robust PCA stops by the gap at y. That of robust
    NMF is infinite while some y_j < 0, and L^2 ||s+ - y||^2 / (2 lam_star) replaces it. `warm` does
    not matter here.
    """
    lam_star, nonnegative = problem.lam_star, problem.nonnegative
    bound, forward, gradient, step = problem.step_constant, space.local, space.gradient, space.step
    for j in range(code.size):
        forward[j] = code[j]
    momentum, least, idle = 1.0, np.inf, 0
    for done in range(max_iter):
        set_residual(x, d0, forward, vectors)
        value, estimate = evaluate(d0, problem, forward, vectors, gradient)
        _proximal_step(problem, forward, space)
        uphill = moved = 0.0
        following = 0.5 * (1 + np.sqrt(1 + 4 * momentum * momentum))
        weight = (momentum - 1) / following
        momentum = following
        for j in range(code.size):
            new = forward[j] + step[j]
            force = -bound * step[j] if nonnegative else gradient[j]
            uphill += force * (new - code[j])
            moved += step[j] * step[j]
            forward[j] = new + weight * (new - code[j])
            code[j] = new
        if nonnegative:
            estimate = bound * bound * moved / (2 * lam_star)
        if not estimate > tol * value:
            return done + 1
        # Without a gain for this long, rounding is the limit.
        idle = 0 if estimate < least else idle + 1
        least = min(least, estimate)
        if idle > 200:
            return done + 1
        if uphill > 0:
            momentum = 1.0
            for j in range(code.size):
                forward[j] = code[j]
    return max_iter


@compiled
def _proximal_step(problem: Problem, forward: Array, space: Space) -> None:
    """space.step = s+ - y, s+ the minimiser of g(y) (s+ - y) + ||s+ - y||_M^2 / 2.

    M majorises the Hessian: the step constant for robust NMF, where the constraint needs a diagonal
    matrix; D0 D0' + lam_star I for robust PCA, so that its conditioning does not matter.
    """
    gradient, step = space.gradient, space.step
    if not problem.nonnegative:
        ridge_step(problem.ridge, gradient, step)
        return
    for j in range(forward.size):
        y = forward[j]
        step[j] = max(y - gradient[j] / problem.step_constant, 0.0) - y
