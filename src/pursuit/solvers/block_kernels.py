"""Compiled exact codes of the group Lasso and HiLasso, one row at a time.

Each row is solved on the Gram matrix: greedy descent over blocks finds the support, Newton steps
on that support converge, and a duality gap certifies the result. `block` sorts the atoms by block
and splits a batch into tiles. Infinities keep their meaning: the box at zero of a non-negative code
begins at -inf. Small functions are inlined, large ones are not, to limit compilation time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._numba import compiled, inlined

if TYPE_CHECKING:
    from .tiles import Rows

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_TINY = np.finfo(np.float64).tiny
_PIVOT = 1e-12  # a pivot below this fraction of its diagonal entry counts as zero ...
_FLAT = 1e-10  # ... and is replaced by this fraction
_FAR = 1e12  # the longest step of a line search
_SUFFICIENT = 0.1  # a full Newton step is accepted at this fraction of the predicted decrease
_COLLAPSED = 0.1  # a line search tries to drop blocks that it shortens below this fraction
_WORTHWHILE = 1e-2  # a greedy sweep ends when the best block promises this fraction of the first
_PATIENCE = 6  # rounds without progress after which rounding is assumed to be the limit


class Problem(NamedTuple):
    """What all rows share."""

    gram: Floats  # D D', (q, q), possibly plus a non-negative diagonal
    starts: Integers  # block r holds the coordinates starts[r] <= i < starts[r + 1], (R + 1,)
    w: Floats  # weights of the coefficients, (q,), non-negative
    v: Floats  # weights of the blocks, (R,), non-negative
    floor: Floats  # lower end of the subdifferential of w|z| at zero: -w, or -inf if z >= 0
    inverse_constants: Floats
    nonnegative: bool


def make_problem(
    gram: Floats, starts: Integers, w: Floats, v: Floats, constants: Floats, nonnegative: bool
) -> Problem:
    """Prepare what all rows share; `constants` bound the eigenvalues of the diagonal blocks."""
    # In a block of one coefficient the norm is an absolute value.
    leaf, group = w.copy(), v.copy()
    single = np.flatnonzero(np.diff(starts) == 1)
    leaf[starts[single]] += v[single]
    group[single] = 0.0
    floor = np.full(len(w), -np.inf) if nonnegative else -leaf
    inverse = 1.0 / np.maximum(constants, _TINY)
    return Problem(gram, starts, leaf, group, floor, inverse, nonnegative)


class State(NamedTuple):
    """The iterate of one row: codes z, u = c - G z, and the subdifferential of the penalty at z.

    In an active block the subdifferential is the box low <= s <= high, where low = high at non-zero
    codes; in a block of zeros it is that box plus a ball of radius v_r.
    """

    z: Floats
    u: Floats
    low: Floats
    high: Floats
    norms: Floats


class Work(NamedTuple):
    """Scratch memory, allocated once for all rows."""

    a: Floats
    b: Floats  # in Newton's steps: where the codes cross zero
    direction: Floats
    trial: Floats
    trial_u: Floats
    support: Integers
    seen: Integers  # the round in which a block was last descended
    hessian: Floats


def make_scratch(problem: Problem) -> tuple[State, Work]:
    """Allocate the memory for the rows that one thread solves."""
    q, blocks = problem.w.size, problem.v.size
    state = State(np.empty(q), np.empty(q), np.empty(q), np.empty(q), np.empty(blocks))
    vectors = (np.empty(q), np.empty(q), np.empty(q), np.empty(q), np.empty(q))
    support, seen = np.empty(q, np.int64), np.empty(blocks, np.int64)
    return state, Work(*vectors, support, seen, np.empty((q, q + 1)))


@inlined
def _span(starts: Integers, r: int) -> tuple[int, int]:
    """First coordinate and size of block r."""
    # Indices that might be negative wrap around, and loops over them are not vectorised.
    first = max(starts[r], 0)
    return first, starts[r + 1] - first


@inlined
def _copy(source: Floats, target: Floats) -> None:
    for j in range(target.size):
        target[j] = source[j]


@inlined
def _excess(x: float, low: float, high: float) -> float:
    """x - clip(x, low, high), the soft threshold if low = -high."""
    y = x if x > low else low
    y = y if y < high else high
    return x - y


@inlined
def _subtract_rows(
    target: Floats, gram: Floats, index: Integers, factors: Floats, count: int
) -> None:
    """target -= sum_p factors[p] gram[index[p]], four rows at a time."""
    p = 0
    while p + 4 <= count:
        i0, i1, i2, i3 = index[p], index[p + 1], index[p + 2], index[p + 3]
        f0, f1, f2, f3 = factors[p], factors[p + 1], factors[p + 2], factors[p + 3]
        for j in range(target.size):
            target[j] -= f0 * gram[i0, j] + f1 * gram[i1, j] + f2 * gram[i2, j] + f3 * gram[i3, j]
        p += 4
    while p < count:
        i0, f0 = index[p], factors[p]
        for j in range(target.size):
            target[j] -= f0 * gram[i0, j]
        p += 1


@inlined
def _correlate(problem: Problem, state: State, work: Work, c: Floats) -> None:
    """u = c - G z, from scratch."""
    _copy(c, state.u)
    count = _gather_support(state.z, work.support)
    for p in range(count):
        work.a[p] = state.z[work.support[p]]
    _subtract_rows(state.u, problem.gram, work.support, work.a, count)


@inlined
def _gather_support(z: Floats, index: Integers) -> int:
    """List the coordinates of the non-zero codes; return their number."""
    count = 0
    for i in range(z.size):
        if z[i] != 0.0:
            index[count] = i
            count += 1
    return count


# Certificate ----------------------------------------------------------------------------------


@inlined
def _largest_ratio(problem: Problem, u: Floats, r: int, theta: float) -> float:
    """Gauge of a block without group norm: max(theta, max_i |u_i| / w_i)."""
    first, size = _span(problem.starts, r)
    for t in range(size):
        x = u[first + t] if problem.nonnegative else abs(u[first + t])
        weight = problem.w[first + t]
        if x > theta * weight:
            if weight <= 0.0:
                return np.inf
            theta = x / weight
            while x > theta * weight:
                theta *= 1.0 + 1e-15
    return theta


@inlined
def _thresholded(problem: Problem, u: Floats, r: int, theta: float) -> tuple[float, float]:
    """||s||^2 and w_r's for s = soft(u_r, theta w_r)."""
    first, size = _span(problem.starts, r)
    square = slope = 0.0
    for t in range(size):
        x = u[first + t] if problem.nonnegative else abs(u[first + t])
        x -= theta * problem.w[first + t]
        x = x if x > 0.0 else 0.0
        square += x * x
        slope += x * problem.w[first + t]
    return square, slope


@inlined
def _raise_gauge(problem: Problem, u: Floats, r: int, theta: float) -> float:
    """Smallest theta' >= theta with ||soft(u_r, theta' w_r)|| <= theta' v_r, from above.

    phi(theta) = ||soft(u_r, theta w_r)|| - theta v_r is convex and decreasing, so that Newton's
    steps from the left do not pass the root; growing increments then move theta past it.
    """
    v = problem.v[r]
    if v <= 0.0:
        return _largest_ratio(problem, u, r, theta)
    nudge = 1e-16
    for step in range(200):
        square, slope = _thresholded(problem, u, r, theta)
        norm = np.sqrt(square)
        phi = norm - theta * v
        if not phi > 0.0:
            return theta
        theta += phi / (v + slope / norm)
        if step > 2:
            theta *= 1.0 + nudge
            nudge *= 2.0
    return np.inf


@inlined
def _gauge(problem: Problem, u: Floats) -> float:
    """max(1, max_r theta_r), where theta_r scales block r of u into the dual feasible set."""
    theta = 1.0
    for r in range(problem.v.size):
        if _thresholded(problem, u, r, theta)[0] > (theta * problem.v[r]) ** 2:
            theta = _raise_gauge(problem, u, r, theta)
    return theta


@inlined
def _certificate(problem: Problem, state: State, c: Floats, energy: float) -> tuple[float, float]:
    """Objective and duality gap of the codes, with u the residual's correlations.

    gap = 1/2 (1 - k)^2 ||x - D z||^2 + (penalty(z) - k z'u),  k = 1 / max(1, gauge(u)).
    """
    penalty = zu = zc = 0.0
    for i in range(c.size):
        z = state.z[i]
        penalty += problem.w[i] * abs(z)
        zu += z * state.u[i]
        zc += z * c[i]
    for r in range(problem.v.size):
        penalty += problem.v[r] * state.norms[r]
    residual = energy - zc - zu
    residual = 0.0 if residual < 0.0 else residual  # not max(), which may swallow a NaN
    objective = 0.5 * residual + penalty
    theta = _gauge(problem, state.u)
    if theta == np.inf:
        return objective, np.inf
    k = 1.0 / theta
    gap = 0.5 * (k * (theta - 1.0)) ** 2 * residual + (penalty - k * zu)
    return objective, 0.0 if gap < 0.0 else gap


# Block descent --------------------------------------------------------------------------------


@inlined
def _refresh_block(problem: Problem, state: State, r: int) -> None:
    """Norm and subdifferential of block r after its codes changed.

    At z_i != 0 the subdifferential is the point w_i sign(z_i) + v_r z_i / ||z_r||.
    """
    first, size = _span(problem.starts, r)
    square = 0.0
    for t in range(size):
        square += state.z[first + t] * state.z[first + t]
    norm = np.sqrt(square)
    state.norms[r] = norm
    pull = problem.v[r] / norm if norm > 0.0 else 0.0
    for t in range(size):
        i = first + t
        z = state.z[i] if norm > 0.0 else 0.0  # also if the square underflows
        state.z[i] = z
        top = pull * z + problem.w[i]
        bottom = pull * z + problem.floor[i]
        state.low[i] = top if z > 0.0 else bottom
        state.high[i] = bottom if z < 0.0 else top


@inlined
def _most_violated_block(problem: Problem, state: State) -> tuple[int, float]:
    """Block with the largest promise ||e_r||^2 / L_r, e_r the distance of u_r to optimality."""
    best, promise = -1, 0.0
    for r in range(problem.v.size):
        first, size = _span(problem.starts, r)
        square = 0.0
        for t in range(size):
            i = first + t
            e = _excess(state.u[i], state.low[i], state.high[i])
            square += e * e
        if state.norms[r] == 0.0:
            if square <= problem.v[r] ** 2:
                continue
            square = (np.sqrt(square) - problem.v[r]) ** 2
        square *= problem.inverse_constants[r]
        if square > promise:
            best, promise = r, square
    return best, promise


@inlined
def _add_image(problem: Problem, r: int, z: Floats, sign: float, target: Floats) -> None:
    """target += sign * G_rr z, all local to block r."""
    first, size = _span(problem.starts, r)
    for s in range(size):
        if z[s] != 0.0:
            factor = sign * z[s]
            for t in range(size):
                target[t] += factor * problem.gram[first + s, first + t]


@inlined
def _sweep_block(problem: Problem, r: int, u: Floats, z: Floats) -> None:
    """Coordinate descent over block r, where v ||z|| <= v/2 (||z||^2 / norm + norm).

    The norm is that of z before the sweep. u and z are local copies, both updated.
    """
    gram = problem.gram
    first, size = _span(problem.starts, r)
    ridge = 0.0
    if problem.v[r] > 0.0:
        square = 0.0
        for t in range(size):
            square += z[t] * z[t]
        ridge = problem.v[r] / np.sqrt(square)
    for t in range(size):
        i = first + t
        diagonal = gram[i, i]
        new = _excess(u[t] + diagonal * z[t], problem.floor[i], problem.w[i])
        if new == 0.0 and z[t] == 0.0:
            continue
        # Without curvature the atom is zero, and the best code as well.
        new = new / (diagonal + ridge) if diagonal + ridge > 0.0 else 0.0
        change = new - z[t]
        z[t] = new
        for s in range(size):
            u[s] -= gram[i, first + s] * change


@inlined
def _rescale_block(problem: Problem, r: int, full: Floats, u: Floats, z: Floats) -> bool:
    """Minimise over the length of z, which a sweep on the majoriser changes too little.

    The minimiser of t -> objective(t z) is (z'full - w'|z| - v ||z||) / z'Gz, with `full` the
    correlations of the block at z = 0. Returns False, without a change, if t = 0 is the best.
    """
    first, size = _span(problem.starts, r)
    square = linear = curvature = 0.0
    for t in range(size):
        square += z[t] * z[t]
        linear += z[t] * full[t] - problem.w[first + t] * abs(z[t])
        curvature += z[t] * (full[t] - u[t])
    linear -= problem.v[r] * np.sqrt(square)
    if not (linear > 0.0 and curvature > 0.0):
        return False
    scale = linear / curvature
    for t in range(size):
        z[t] *= scale
        u[t] = full[t] + scale * (u[t] - full[t])
    return True


@inlined
def _store_block(problem: Problem, state: State, work: Work, r: int, z: Floats) -> None:
    """Replace the codes of block r by z, and update u and the subdifferential."""
    first, size = _span(problem.starts, r)
    count = 0
    for t in range(size):
        change = z[t] - state.z[first + t]
        state.z[first + t] = z[t]
        if change != 0.0:
            work.support[count] = first + t
            work.b[count] = change
            count += 1
    _subtract_rows(state.u, problem.gram, work.support, work.b, count)
    _refresh_block(problem, state, r)


@inlined
def _descend_block(problem: Problem, state: State, work: Work, r: int) -> None:
    """Decrease the objective over block r: set it to zero where that is optimal, or sweep it."""
    full, u, z = work.a, work.b, work.direction
    first, size = _span(problem.starts, r)
    for t in range(size):
        full[t] = state.u[first + t]
        u[t] = state.u[first + t]
        z[t] = state.z[first + t]
    active = state.norms[r] > 0.0
    if active:
        _add_image(problem, r, z, 1.0, full)
    square = 0.0
    for t in range(size):
        square += _excess(full[t], problem.floor[first + t], problem.w[first + t]) ** 2
    if square <= problem.v[r] ** 2:
        for t in range(size):
            z[t] = 0.0
    else:
        if not (active and _rescale_block(problem, r, full, u, z)):
            # Restart from zero, along the thresholded correlations.
            for t in range(size):
                z[t] = _excess(full[t], problem.floor[first + t], problem.w[first + t])
                u[t] = full[t]
            _add_image(problem, r, z, -1.0, u)
            _rescale_block(problem, r, full, u, z)
        _sweep_block(problem, r, u, z)
        if problem.v[r] > 0.0:
            _rescale_block(problem, r, full, u, z)
    _store_block(problem, state, work, r, z)


@inlined
def _support_size(z: Floats) -> int:
    count = 0
    for i in range(z.size):
        count += z[i] != 0.0
    return count


@compiled
def _greedy_sweep(problem: Problem, state: State, work: Work, iteration: int) -> float:
    """Descend block after block, the most promising first; return the first promise.

    A block that is chosen again ends the sweep, since from there on Newton's step is faster, unless
    the support is so large that the k^3 operations of that step cost more than a few blocks.
    """
    r, start = _most_violated_block(problem, state)
    promise = start
    again = 0
    while r >= 0 and promise > _WORTHWHILE * start:
        if work.seen[r] == iteration:
            again += 1
            if 8 * state.z.size * again > _support_size(state.z) ** 2:
                break
        work.seen[r] = iteration
        _descend_block(problem, state, work, r)
        r, promise = _most_violated_block(problem, state)
    return start


# Newton steps on the support ------------------------------------------------------------------


@inlined
def _assemble(problem: Problem, state: State, work: Work, count: int, exact: bool) -> None:
    """Upper triangle of the Hessian on the support, the negative gradient as its last column.

    H = G_AA + sum_r v_r (I / ||z_r|| - z_r z_r' / ||z_r||^3). Unless `exact`, the last term is
    omitted; H then belongs to a quadratic function that majorises the objective.
    """
    hessian, index, unit = work.hessian, work.support, work.a
    for p in range(count):
        i = index[p]
        for s in range(p, count):
            hessian[p, s] = problem.gram[i, index[s]]
        hessian[p, count] = state.u[i] - state.low[i]
    p = 0
    for r in range(problem.v.size):
        if state.norms[r] == 0.0:
            continue
        begin = p
        while p < count and index[p] < problem.starts[r + 1]:
            unit[p] = state.z[index[p]] / state.norms[r]
            p += 1
        ridge = problem.v[r] / state.norms[r]
        if ridge > 0.0:
            for s in range(begin, p):
                row = max(s, 0)
                hessian[row, row] += ridge
                if exact:
                    x = ridge * unit[row]
                    for t in range(p - row):
                        hessian[row, row + t] -= x * unit[row + t]


@inlined
def _solve_normal(hessian: Floats, count: int, d: Floats) -> tuple[float, bool]:
    """d = H^-1 g by Cholesky, H the upper triangle and g the last column of `hessian`.

    Directions without curvature get a little of it. Return 1/2 g'd, the decrease of a quadratic
    objective, and whether H is singular.
    """
    flat = False
    for p in range(count):
        width = count - p + 1
        diagonal = hessian[p, p]
        t = 0
        while t + 4 <= p:
            f0, f1 = hessian[t, p], hessian[t + 1, p]
            f2, f3 = hessian[t + 2, p], hessian[t + 3, p]
            for j in range(width):
                hessian[p, p + j] -= (
                    f0 * hessian[t, p + j]
                    + f1 * hessian[t + 1, p + j]
                    + f2 * hessian[t + 2, p + j]
                    + f3 * hessian[t + 3, p + j]
                )
            t += 4
        while t < p:
            f0 = hessian[t, p]
            for j in range(width):
                hessian[p, p + j] -= f0 * hessian[t, p + j]
            t += 1
        pivot = hessian[p, p]
        if not pivot > _PIVOT * diagonal:
            flat = True
            pivot = _FLAT * diagonal
            # A row without a pivot holds only rounding errors, which must not be magnified.
            for j in range(width - 2):
                hessian[p, p + 1 + j] = 0.0
        inverse = 1.0 / np.sqrt(pivot) if pivot > 0.0 else 0.0
        for j in range(width):
            hessian[p, p + j] *= inverse
        hessian[p, p] = inverse
    promise = 0.0
    for back in range(count):
        p = max(count - 1 - back, 0)
        after = p + 1
        rest = hessian[p, count]
        promise += 0.5 * rest * rest
        for j in range(back):
            rest -= hessian[p, after + j] * d[after + j]
        d[p] = rest * hessian[p, p]
    return promise, flat


@inlined
def _smooth_slope(problem: Problem, state: State, work: Work, count: int) -> tuple[float, float]:
    """First and second derivative of the quadratic term along the direction: -u'd and d'Gd."""
    index, direction = work.support, work.direction
    slope = curvature = 0.0
    for p in range(count):
        image = 0.0
        for s in range(count):
            image += problem.gram[index[p], index[s]] * direction[s]
        slope -= state.u[index[p]] * direction[p]
        curvature += image * direction[p]
    return slope, curvature


@inlined
def _penalty_slope(
    problem: Problem, state: State, work: Work, count: int, step: float, after: bool
) -> float:
    """Derivative of the penalty along z + step d, just before or after `step`."""
    index = work.support
    slope, p = 0.0, 0
    for r in range(problem.v.size):
        if state.norms[r] == 0.0:
            continue
        square = growth = 0.0
        while p < count and index[p] < problem.starts[r + 1]:
            z, d = state.z[index[p]], work.direction[p]
            flipped = work.b[p] < step or (after and work.b[p] == step)
            slope += problem.w[index[p]] * d * (1.0 if (z > 0.0) != flipped else -1.0)
            square += (z + step * d) ** 2
            growth += (z + step * d) * d
            p += 1
        if square > 0.0:
            slope += problem.v[r] * growth / np.sqrt(square)
    return slope


@compiled
def _line_search(problem: Problem, state: State, work: Work, count: int) -> float:
    """Return the step to the minimum of the objective along the direction, across sign changes.

    Often a code is zero there: the objective has a kink where a code crosses zero, and is infinite
    beyond it if codes may not be negative.
    """
    first, curvature = _smooth_slope(problem, state, work, count)
    step, reach = 0.0, 1.0
    while reach < _FAR:
        following = reach
        for p in range(count):
            if step < work.b[p] < following:
                following = work.b[p]
        slope = first + following * curvature
        if slope + _penalty_slope(problem, state, work, count, following, False) >= 0.0:
            break
        step = following
        if step == reach:
            reach *= 8.0
        elif problem.nonnegative or (
            slope + _penalty_slope(problem, state, work, count, step, True) >= 0.0
        ):
            return step
    # The minimum lies inside the bracket; the objective decreases up to its lower end.
    for _ in range(60):
        middle = 0.5 * (step + following)
        slope = first + middle * curvature
        if slope + _penalty_slope(problem, state, work, count, middle, False) < 0.0:
            step = middle
        else:
            following = middle
        if following - step <= 1e-3 * step:
            break
    return step


@inlined
def _set_trial(
    problem: Problem, state: State, work: Work, count: int, step: float, clip: bool, collapse: float
) -> None:
    """Set the trial codes to z + step d.

    Codes that are zero at `step` become exactly zero, with `clip` also those that would change
    sign. A whole block is set to zero if at most the fraction `collapse` of its length remains in
    its old direction: like a sign, the direction of a block may not be reversed.
    """
    index, trial = work.support, work.trial
    p = 0
    for r in range(problem.v.size):
        if state.norms[r] == 0.0:
            continue
        begin, radial = p, 0.0
        while p < count and index[p] < problem.starts[r + 1]:
            new = state.z[index[p]] + step * work.direction[p]
            zero = work.b[p] <= step if clip else work.b[p] == step
            # Rounding may step past a crossing that lies just ahead.
            trial[p] = 0.0 if zero or (problem.nonnegative and new < 0.0) else new
            radial += trial[p] * state.z[index[p]]
            p += 1
        if problem.v[r] > 0.0 and radial <= collapse * state.norms[r] ** 2:
            for s in range(begin, p):
                trial[s] = 0.0


@compiled
def _try_step(
    problem: Problem, state: State, work: Work, c: Floats, count: int, step: float, clip: bool,
    collapse: float,
) -> float:  # fmt: skip
    """Set the trial codes z' and return the change of the objective from z to z'.

    It is summed from differences, -(z' - z)'(u + u')/2 + penalty(z') - penalty(z), and is therefore
    accurate even when it is far below the rounding of the objective.
    """
    _set_trial(problem, state, work, count, step, clip, collapse)
    index, trial, u = work.support, work.trial, work.trial_u
    _copy(c, u)
    _subtract_rows(u, problem.gram, index, trial, count)
    change, p = 0.0, 0
    for r in range(problem.v.size):
        if state.norms[r] == 0.0:
            continue
        square = growth = 0.0
        while p < count and index[p] < problem.starts[r + 1]:
            i = index[p]
            old, new = state.z[i], trial[p]
            square += new * new
            growth += (new - old) * (new + old)
            change += problem.w[i] * (abs(new) - abs(old))
            change -= 0.5 * (new - old) * (state.u[i] + u[i])
            p += 1
        change += problem.v[r] * growth / (state.norms[r] + np.sqrt(square))
    return change


@inlined
def _accept(problem: Problem, state: State, work: Work, count: int) -> None:
    """Accept the trial codes."""
    for p in range(count):
        state.z[work.support[p]] = work.trial[p]
    _copy(work.trial_u, state.u)
    for r in range(problem.v.size):
        if state.norms[r] > 0.0:
            _refresh_block(problem, state, r)


@compiled
def _search(problem: Problem, state: State, work: Work, c: Floats, count: int) -> float:
    """Step along the direction to the minimum of the objective; return its change."""
    step = _line_search(problem, state, work, count)
    change = _try_step(problem, state, work, c, count, step, False, _COLLAPSED)
    if not change < 0.0:
        change = _try_step(problem, state, work, c, count, step, False, -np.inf)
    if change < 0.0:
        _accept(problem, state, work, count)
    return change


@compiled
def _find_direction(
    problem: Problem, state: State, work: Work, count: int, exact: bool
) -> tuple[float, bool]:
    """Compute Newton's direction d, exact or of the majoriser, see `_solve_normal`.

    `work.b` receives the steps at which the codes z + step d cross zero.
    """
    _assemble(problem, state, work, count, exact)
    promise, flat = _solve_normal(work.hessian, count, work.direction)
    for p in range(count):
        z, d = state.z[work.support[p]], work.direction[p]
        work.b[p] = -z / d if z * d < 0.0 else np.inf
    return promise, flat


@compiled
def _newton(problem: Problem, state: State, work: Work, c: Floats, repeats: int) -> None:
    """Take a Newton step over the support, accepted only if the objective decreases.

    Where the full step fails, a line search replaces it, and if that achieves little, a second one
    along the direction of the majoriser. If a code reaches zero, the step is repeated on the
    remaining support, so that a support that is too large shrinks here.
    """
    count = _gather_support(state.z, work.support)
    while count > 0 and repeats > 0:
        repeats -= 1
        promise, flat = _find_direction(problem, state, work, count, True)
        if not flat:
            change = _try_step(problem, state, work, c, count, 1.0, True, 0.0)
            if change < -_SUFFICIENT * promise:
                _accept(problem, state, work, count)
                return
        change = _search(problem, state, work, c, count)
        kept = _gather_support(state.z, work.support)
        if kept == count:
            if change < -_SUFFICIENT * promise:
                return
            _find_direction(problem, state, work, count, False)
            _search(problem, state, work, c, count)
            kept = _gather_support(state.z, work.support)
            if kept == count:
                return
        count = kept


# Rows -----------------------------------------------------------------------------------------


@inlined
def _clear(problem: Problem, state: State, c: Floats) -> None:
    """Set the codes to zero."""
    state.z[:] = 0.0
    _copy(c, state.u)
    _copy(problem.floor, state.low)
    _copy(problem.w, state.high)
    state.norms[:] = 0.0


@compiled
def _begin_row(problem: Problem, state: State, work: Work, c: Floats, code: Floats) -> None:
    """Read the codes and compute u and the subdifferential."""
    _clear(problem, state, c)
    work.seen[:] = 0
    warm = False
    for j in range(c.size):
        z = np.float64(code[j])
        state.z[j] = z if z > 0.0 or not problem.nonnegative else 0.0
        warm = warm or state.z[j] != 0.0
    if warm:
        for r in range(problem.v.size):
            _refresh_block(problem, state, r)
        _correlate(problem, state, work, c)


@compiled
def _solve_row(
    problem: Problem, state: State, work: Work, c: Floats, energy: float, tol: float, max_iter: int
) -> int:
    """Repeat a greedy sweep and a Newton step until the gap is small; return how often."""
    objective, gap = _certificate(problem, state, c, energy)
    if max_iter > 0 and objective > 0.5 * energy:
        _clear(problem, state, c)  # the start is worse than zero
        objective, gap = _certificate(problem, state, c, energy)
    best_objective, best_gap, idle = objective, gap, 0
    iteration = 0
    while gap > tol * max(objective, _TINY) and iteration < max_iter and idle < _PATIENCE:
        iteration += 1
        promise = _greedy_sweep(problem, state, work, iteration)
        # Early supports are provisional: shrinking them completely does not pay.
        _newton(problem, state, work, c, 1 << min(iteration, 30))
        # Without a finite gap, stop at a small promised decrease. It is of second order in the
        # violation of optimality, the gap of first order; hence the square.
        if promise == 0.0 or (gap == np.inf and promise <= tol * tol * objective):
            break
        objective, gap = _certificate(problem, state, c, energy)
        if gap < 0.9 * best_gap or objective < (1.0 - 1e-13) * best_objective:
            best_objective, best_gap, idle = min(objective, best_objective), min(gap, best_gap), 0
        else:
            idle += 1
    return iteration


@compiled
def block_coordinate(
    problem: Problem, state: State, work: Work, c: Floats, energy: Floats, rows: Rows, tol: float,
    max_iter: int,
) -> None:  # fmt: skip
    """Minimise, for each row, 1/2 z'Gz - c'z + 1/2 energy + sum_i w_i|z_i| + sum_r v_r ||z_r||.

    c (n, q) and energy (n,) are the correlations and squared norms of the signals. A row stops when
    gap <= tol * objective, or earlier where rounding is the limit, or after `max_iter` iterations,
    each a greedy sweep and a Newton step; 0 evaluates the start. Objective and gap are those of the
    codes as stored; the gap is infinite where a coordinate without any weight keeps a correlation.
    """
    for k in range(c.shape[0]):
        code = rows.codes[k]
        _begin_row(problem, state, work, c[k], code)
        rows.iterations[k] = _solve_row(problem, state, work, c[k], energy[k], tol, max_iter)
        _copy(state.z, code)
        _begin_row(problem, state, work, c[k], code)  # evaluate what is stored
        rows.objective[k], rows.gap[k] = _certificate(problem, state, c[k], energy[k])
