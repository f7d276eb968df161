"""Compiled exact codes of robust PCA and robust NMF by projected semismooth Newton steps.

The Huber problem of `huber_kernels` has the Hessian ``D0_M D0_M' + lam_star I``, where M are the
features inside their threshold, those that are no outliers. The masked Gram matrix is updated by
the features that change sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._numba import Array, compiled
from .huber_kernels import evaluate, ridge_step, set_residual, solve_rows, subtract_atoms

if TYPE_CHECKING:
    from .huber_kernels import Problem, Space, Vectors, Work
    from .tiles import Rows


@compiled
def newton(problem: Problem, work: Work, x: Array, rows: Rows) -> None:
    """Solve every row, see `solve_rows`."""
    solve_rows(_descend, problem, work, x, rows, 0.7, 0.9, 1)


# Iteration ------------------------------------------------------------------------------------


@compiled
def _descend(
    x: Array, d0: Array, problem: Problem, code: Array, vectors: Vectors, space: Space,
    tol: float, max_iter: int, warm: bool,
) -> int:  # fmt: skip
    """Take Newton steps from `code`, in the precision of d0; return their number."""
    rounding = 6e-8 if d0.itemsize == 4 else 1.2e-16
    ridge_steps = 0 if warm or problem.nonnegative else 2
    gradient, step = space.gradient, space.step
    coefficients, change = vectors.coefficients, vectors.change
    set_residual(x, d0, code, vectors)
    count: Any = np.int64(0)  # not a literal, which would compile everything that it reaches twice
    idle, before, reweight = 0, np.inf, 0
    for done in range(max_iter):
        value, gap = evaluate(d0, problem, code, vectors, gradient)
        if not gap > tol * value:
            return done
        if done < ridge_steps:
            ridge_step(problem.ridge, gradient, step)
        else:
            count = _newton_step(d0, problem, code, vectors, space, count, reweight > 0, rounding)
        slope = 0.0
        for j in range(code.size):
            slope += gradient[j] * step[j]
            coefficients[j] = -step[j]
        # Allow two steps whose gain is below the rounding of the objective.
        lost = not -slope > 4 * rounding * value
        idle += lost or not value < before
        before = value
        if not slope < 0 or idle > 2:
            return done
        change[:] = 0
        subtract_atoms(coefficients, d0, change)
        length = 1.0
        if not lost:
            length = _step_length(problem, code, vectors, space, slope, value, rounding)
        if not length > 0:
            return done
        # After a short step too many features changed sides for the mask to be a good model.
        reweight = 2 if length < 0.3 else max(reweight - 1, 0)
        _move(problem.nonnegative, code, step, length, vectors.residual, change)
    return max_iter


@compiled
def _step_length(
    problem: Problem, code: Array, vectors: Vectors, space: Space, slope: float, value: float,
    rounding: float,
) -> float:  # fmt: skip
    """Return the length of a descent step.

    Newton's method on the slope of the convex, piecewise quadratic function

        phi(t) = sum_i huber(r_i - t change_i) + lam_star/2 ||s + t p||^2

    until the slope is a tenth of the first one and phi satisfies Armijo's rule. Every trial costs
    one pass over the m features.
    """
    lam_star, nonnegative, step = problem.lam_star, problem.nonnegative, space.step
    norm = cross = square = 0.0
    ceiling = np.inf
    for j in range(code.size):
        norm += code[j] * code[j]
        cross += code[j] * step[j]
        square += step[j] * step[j]
        if nonnegative and step[j] < 0:
            ceiling = min(ceiling, -code[j] / step[j])
    low, high, t = 0.0, ceiling, min(1.0, ceiling)
    for trial in range(40):
        huber, tilt, curvature = _along(
            vectors.residual, vectors.change, vectors.thresholds, nonnegative, t
        )
        tilt += lam_star * (cross + t * square)
        curvature += lam_star * square
        if abs(tilt) <= -0.1 * slope:
            here = huber + 0.5 * lam_star * (norm + t * (2 * cross + t * square))
            if tilt <= 0 or here <= value + 1e-4 * t * slope + 8 * rounding * value:
                return t
        if tilt < 0:
            low = t
            if t >= ceiling:
                return t
        else:
            high = t
        following = t - tilt / curvature
        if following >= ceiling and high == ceiling:
            following = ceiling
        elif not low < following < high or trial >= 20:
            following = 0.5 * (low + high) if high < np.inf else 2 * low
        t = following
    return low


@compiled
def _along(
    residual: Array, change: Array, thresholds: Array, nonnegative: bool, length: float
) -> tuple[float, float, float]:
    """Value, slope and curvature at t of the Huber function of r - t change."""
    real = residual.dtype.type
    zero, half, t = real(0), real(0.5), real(length)
    value = slope = curvature = zero
    if nonnegative:
        for i in range(residual.size):
            r = residual[i] - t * change[i]
            nu = min(r, thresholds[i])
            value += nu * (r - half * nu)
            slope -= nu * change[i]
            curvature += change[i] * change[i] if r <= thresholds[i] else zero
    else:
        for i in range(residual.size):
            r = residual[i] - t * change[i]
            nu = max(-thresholds[i], min(r, thresholds[i]))
            value += nu * (r - half * nu)
            slope -= nu * change[i]
            curvature += change[i] * change[i] if abs(r) <= thresholds[i] else zero
    return np.float64(value), np.float64(slope), np.float64(curvature)


@compiled
def _move(
    nonnegative: bool, code: Array, step: Array, length: float, residual: Array, change: Array
) -> None:
    """s += t p, r -= t p D0; a full step with p_j = -s_j puts s_j on its bound exactly."""
    for j in range(code.size):
        code[j] += length * step[j]
        if nonnegative:
            code[j] = max(code[j], 0.0)
    t = residual.dtype.type(length)
    for i in range(residual.size):
        residual[i] -= t * change[i]


# Model and direction ---------------------------------------------------------------------------


@compiled
def _newton_step(
    d0: Array, problem: Problem, code: Array, vectors: Vectors, space: Space, count: int,
    reweighted: bool, rounding: float,
) -> int:  # fmt: skip
    """Set `space.step` to the minimiser of the model at r; return how many atoms stay known.

    The model has the Hessian of the mask, or, if that led to a short step before, the weights of
    reweighted least squares. If the factorisation fails by rounding, a projected gradient step
    replaces it.
    """
    gram, lam_star, nonnegative = problem.gram, problem.lam_star, problem.nonnegative
    old = 0 if reweighted else count
    count = _new_atoms(space, code, nonnegative, old)
    if reweighted:
        _reweight_gram(d0, vectors, space, nonnegative, count)
    else:
        _update_gram(d0, gram, vectors, space, nonnegative, old, count)
    masked = space.masked
    largest = 0.0
    for b in range(count):
        largest = max(largest, masked[b, b])
    # Rounding in the sums must not make the model indefinite.
    ridge = lam_star + 4 * rounding * largest
    step, local, known, gradient = space.step, space.local, space.known, space.gradient
    if _model_step(space, count, ridge, code, nonnegative):
        step[:] = 0
        for b in range(count):
            step[known[b]] = local[b]
        return 0 if reweighted else count
    scale = lam_star
    for j in range(code.size):
        scale += gram[j, j]
    for j in range(code.size):
        p = -gradient[j] / scale
        step[j] = max(p, -code[j]) if nonnegative else p
    return 0


@compiled
def _model_step(space: Space, count: int, ridge: float, code: Array, nonnegative: bool) -> bool:
    """p = argmin g p + p (G + ridge I) p / 2 on the known atoms, s + p >= 0 if nonnegative.

    Block principal pivoting: all atoms of a wrong sign change sides while that reduces their
    number; after three rounds without a reduction, one at a time. Return False if it failed. The
    minimiser of a convex model over the feasible set is a descent direction, whatever the mask.
    """
    masked, gradient = space.masked, space.gradient
    known, state, flagged = space.known, space.state, space.wrong
    slack = 0.0
    for b in range(count):
        for d in range(b):
            masked[d, b] = masked[b, d]
        j = known[b]
        state[b] = not nonnegative or code[j] > 0 or gradient[j] < 0
        slack = max(slack, 1e-10 * abs(gradient[j]))
    fewest, patience = count + 1, 3
    for _ in range(10 + 2 * count):
        if not _solve_face(space, count, ridge, code):
            return False
        if not nonnegative:
            return True
        wrong = _wrong_signs(space, count, ridge, code, slack)
        if wrong == 0:
            return True
        patience = 3 if wrong < fewest else patience - 1
        fewest = min(fewest, wrong)
        for b in range(count - 1, -1, -1):
            if flagged[b]:
                state[b] = not state[b]
                if patience < 0:
                    break
    return False


@compiled
def _solve_face(space: Space, count: int, ridge: float, code: Array) -> bool:
    """Minimise the model with the atoms of state False at zero; return False if not positive."""
    masked, factor, gradient = space.masked, space.factor, space.gradient
    free, known, state = space.free, space.known, space.state
    target, step = space.target, space.local
    n = 0
    for b in range(count):
        if state[b]:
            free[n] = b
            target[n] = -gradient[known[b]]
            n += 1
    for b in range(count):
        if not state[b]:
            s = code[known[b]]
            step[b] = -s
            if s != 0:
                for c in range(n):
                    target[c] += masked[b, free[c]] * s
    for c in range(n):
        b = free[c]
        for d in range(c + 1):
            factor[c, d] = masked[b, free[d]]
        factor[c, c] += ridge
    if not _factorise(factor, n):
        return False
    _substitute(factor, n, target)
    for c in range(n):
        step[free[c]] = target[c]
    return True


@compiled
def _wrong_signs(space: Space, count: int, ridge: float, code: Array, slack: float) -> int:
    """Mark atoms with s + p < 0 or a negative multiplier; return their number."""
    masked, gradient, step = space.masked, space.gradient, space.local
    known, state, wrong = space.known, space.state, space.wrong
    total = 0
    for b in range(count):
        j = known[b]
        if state[b]:
            wrong[b] = code[j] + step[b] < 0
        else:
            multiplier = gradient[j] + ridge * step[b]
            for d in range(count):
                multiplier += masked[b, d] * step[d]
            wrong[b] = multiplier < -slack
        total += wrong[b]
    return total


# Masked Gram matrix -----------------------------------------------------------------------------


@compiled
def _new_atoms(space: Space, code: Array, nonnegative: bool, count: int) -> int:
    """Append to `known` the missing atoms with s_j > 0 or g_j < 0; return its length."""
    known, seen, gradient = space.known, space.seen, space.gradient
    if count == 0:
        seen[:] = False
    for j in range(code.size):
        if not seen[j] and (not nonnegative or code[j] > 0 or gradient[j] < 0):
            seen[j] = True
            known[count] = j
            count += 1
    return count


@compiled
def _update_gram(
    d0: Array, gram: Array, vectors: Vectors, space: Space, nonnegative: bool,
    old: int, count: int,
) -> None:  # fmt: skip
    """Update the sum of d_i d_i' over the features inside their threshold.

    The first time it starts from the whole Gram matrix, as if all features were inside. Features
    that changed sides are gathered, which costs about 28 multiplications per number; where the
    whole sum is cheaper, it is computed again.
    """
    m = d0.shape[1]
    masked, known = space.masked, space.known
    inside, flips, weights = space.inside, space.flips, vectors.weights
    if old == 0:
        inside[:] = True
        old = count
        for b in range(count):
            for d in range(b + 1):
                masked[b, d] = gram[known[b], known[d]]
    flipped = _flipped(vectors.residual, vectors.thresholds, nonnegative, inside, flips)
    for t in range(flipped):
        inside[flips[t]] = not inside[flips[t]]
    if flipped * (old + 28) > m * old or count > old + 6:
        masked[:] = 0
        for i in range(m):
            weights[i] = 1 if inside[i] else 0
        _add_gram(masked, d0, known, count, weights, m, vectors.scaled)
        return
    if flipped > 0:
        _flip_panel(d0, space, vectors, old, flipped)
    _append_rows(d0, space, vectors, old, count)


@compiled
def _reweight_gram(
    d0: Array, vectors: Vectors, space: Space, nonnegative: bool, count: int
) -> None:
    """sum_i min(1, lam_i/|r_i|) d_i d_i', of a quadratic majoriser of the Huber function."""
    residual, thresholds, weights = vectors.residual, vectors.thresholds, vectors.weights
    space.masked[:] = 0
    for i in range(residual.size):
        size = residual[i] if nonnegative else abs(residual[i])
        weights[i] = thresholds[i] / size if size > thresholds[i] else 1
    _add_gram(space.masked, d0, space.known, count, weights, residual.size, vectors.scaled)


@compiled
def _flipped(
    residual: Array, thresholds: Array, nonnegative: bool, inside: Array, flips: Array
) -> int:
    """List the features that changed sides, without branches; return their number."""
    count = 0
    if nonnegative:
        for i in range(residual.size):
            flips[count] = i
            count += (residual[i] <= thresholds[i]) != inside[i]
    else:
        for i in range(residual.size):
            flips[count] = i
            count += (abs(residual[i]) <= thresholds[i]) != inside[i]
    return count


@compiled
def _flip_panel(d0: Array, space: Space, vectors: Vectors, count: int, flipped: int) -> None:
    """Add or subtract d_i d_i' of the flipped features, gathered into contiguous rows."""
    known, rows, inside, flips = space.known, space.free, space.inside, space.flips
    weights, panel = vectors.weights, vectors.panel
    for t in range(flipped):
        weights[t] = 1 if inside[flips[t]] else -1
    length = (flipped + 7) // 8 * 8  # a remainder would be summed one number at a time
    weights[flipped:length] = 0
    for b in range(count):
        j = known[b]
        rows[b] = b
        for t in range(flipped):
            panel[b, t] = d0[j, flips[t]]
        panel[b, flipped:length] = 0
    _add_gram(space.masked, panel, rows, count, weights, length, vectors.scaled)


@compiled
def _append_rows(d0: Array, space: Space, vectors: Vectors, old: int, count: int) -> None:
    """Compute rows old..count of the masked Gram matrix from all features inside."""
    masked, known, inside, scaled = space.masked, space.known, space.inside, vectors.scaled
    m, zero = d0.shape[1], d0.dtype.type(0)
    for a in range(old, count):
        j = known[a]
        for i in range(m):
            scaled[0, i] = d0[j, i] if inside[i] else zero
        for b in range(a + 1):
            k = known[b]
            total = zero
            for i in range(m):
                total += scaled[0, i] * d0[k, i]
            masked[a, b] = total


@compiled
def _add_gram(
    masked: Array, panel: Array, rows: Array, count: int, weights: Array, m: int, scaled: Array
) -> None:
    """masked += P diag(weights) P' in its lower triangle, P = panel[rows[:count], :m].

    Sixteen sums over contiguous features at a time, so that every load feeds four multiplications
    and nothing is stored inside the loop.
    """
    zero = weights.dtype.type(0)
    a = 0
    while a + 4 <= count:
        for k in range(4):
            row = rows[a + k]
            for i in range(m):
                scaled[k, i] = weights[i] * panel[row, i]
        for b in range(0, a + 4, 4):
            j0, j1, j2, j3 = rows[b], rows[b + 1], rows[b + 2], rows[b + 3]
            s00 = s01 = s02 = s03 = zero
            s10 = s11 = s12 = s13 = zero
            s20 = s21 = s22 = s23 = zero
            s30 = s31 = s32 = s33 = zero
            for i in range(m):
                p0, p1, p2, p3 = panel[j0, i], panel[j1, i], panel[j2, i], panel[j3, i]
                y = scaled[0, i]
                s00 += y * p0
                s01 += y * p1
                s02 += y * p2
                s03 += y * p3
                y = scaled[1, i]
                s10 += y * p0
                s11 += y * p1
                s12 += y * p2
                s13 += y * p3
                y = scaled[2, i]
                s20 += y * p0
                s21 += y * p1
                s22 += y * p2
                s23 += y * p3
                y = scaled[3, i]
                s30 += y * p0
                s31 += y * p1
                s32 += y * p2
                s33 += y * p3
            masked[a, b] += s00
            masked[a, b + 1] += s01
            masked[a, b + 2] += s02
            masked[a, b + 3] += s03
            masked[a + 1, b] += s10
            masked[a + 1, b + 1] += s11
            masked[a + 1, b + 2] += s12
            masked[a + 1, b + 3] += s13
            masked[a + 2, b] += s20
            masked[a + 2, b + 1] += s21
            masked[a + 2, b + 2] += s22
            masked[a + 2, b + 3] += s23
            masked[a + 3, b] += s30
            masked[a + 3, b + 1] += s31
            masked[a + 3, b + 2] += s32
            masked[a + 3, b + 3] += s33
        a += 4
    while a < count:
        row = rows[a]
        for i in range(m):
            scaled[0, i] = weights[i] * panel[row, i]
        for b in range(a + 1):
            j0 = rows[b]
            s00 = zero
            for i in range(m):
                s00 += scaled[0, i] * panel[j0, i]
            masked[a, b] += s00
        a += 1


# Cholesky factorisation -------------------------------------------------------------------------


@compiled
def _factorise(a: Array, n: int) -> bool:
    """Cholesky factor over the lower triangle of a[:n, :n], with its diagonal inverted.

    Four rows share every load of a finished row. Return False if the matrix is not positive.
    """
    top = 0
    while top < n:
        end = min(top + 4, n)
        start = 0
        if end == top + 4:
            start = top
            for j in range(top):
                t0, t1, t2, t3 = a[top, j], a[top + 1, j], a[top + 2, j], a[top + 3, j]
                for k in range(j):
                    v = a[j, k]
                    t0 -= a[top, k] * v
                    t1 -= a[top + 1, k] * v
                    t2 -= a[top + 2, k] * v
                    t3 -= a[top + 3, k] * v
                v = a[j, j]
                a[top, j] = t0 * v
                a[top + 1, j] = t1 * v
                a[top + 2, j] = t2 * v
                a[top + 3, j] = t3 * v
        for i in range(top, end):
            for j in range(start, i):
                t = a[i, j]
                for k in range(j):
                    t -= a[i, k] * a[j, k]
                a[i, j] = t * a[j, j]
            t = a[i, i]
            for k in range(i):
                t -= a[i, k] * a[i, k]
            if not t > 0:
                return False
            a[i, i] = 1 / np.sqrt(t)
        top = end
    return True


@compiled
def _substitute(factor: Array, n: int, target: Array) -> None:
    """Solve L L' p = target in place, L from `_factorise`."""
    for i in range(n):
        t = target[i]
        for k in range(i):
            t -= factor[i, k] * target[k]
        target[i] = t * factor[i, i]
    for i in range(n - 1, -1, -1):
        p = target[i] * factor[i, i]
        target[i] = p
        for k in range(i):
            target[k] -= factor[i, k] * p
