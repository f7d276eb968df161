"""Exact codes of the group Lasso and HiLasso, row by row, compiled.

Each row is solved on the Gram matrix: greedy descent over blocks finds the support, Newton steps
on the smooth manifold of that support finish, a duality gap certifies the result. The caller
sorts the atoms by block and may thread over tiles of rows: the kernel releases the lock.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

# Sums may be reordered and fused; infinities and NaN keep their meaning, the box at zero of a
# non-negative code begins at -inf.
_FLAGS = {"reassoc", "contract", "arcp", "nsz"}
_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FLAGS)
# Small functions are inlined: passing a dozen arrays costs more than most of them compute.
_inlined = njit(cache=True, nogil=True, error_model="numpy", fastmath=_FLAGS, forceinline=True)

_TINY = np.finfo(np.float64).tiny
_PIVOT = 1e-12  # below this share of its diagonal entry, a pivot counts as zero
_WORTHWHILE = 1e-2  # a greedy sweep ends when the best block promises this share of the first
_PATIENCE = 6  # rounds without progress after which rounding is taken to be the limit


class Problem(NamedTuple):
    """What all rows share; block r holds the coordinates starts[r] <= i < starts[r + 1]."""

    gram: np.ndarray
    starts: np.ndarray
    w: np.ndarray
    v: np.ndarray
    floor: np.ndarray  # lower end of the subdifferential of w|z| at zero: -w, or -inf if z >= 0
    inverse_constants: np.ndarray
    nonnegative: bool


class State(NamedTuple):
    """The iterate of one row: codes z, u = c - G z, and the subdifferential of the penalty at z.

    In an active block the latter is the box low <= s <= high, where low = high at non-zero codes;
    in a block of zeros it is that box plus a ball of radius v_r.
    """

    z: np.ndarray
    u: np.ndarray
    low: np.ndarray
    high: np.ndarray
    norms: np.ndarray


class Work(NamedTuple):
    """Scratch memory, allocated once for all rows."""

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray
    trial: np.ndarray
    trial_u: np.ndarray
    index: np.ndarray
    seen: np.ndarray
    hessian: np.ndarray


@_inlined
def _span(starts, r):
    """First coordinate and size of block r.

    The maximum tells the compiler that the offset is not negative: without it, indices may wrap
    around and no loop over a block is vectorised.
    """
    first = max(starts[r], 0)
    return first, starts[r + 1] - first


@_inlined
def _excess(x, low, high):
    """x - clip(x, low, high), the soft threshold if low = -high."""
    y = x if x > low else low
    y = y if y < high else high
    return x - y


@_inlined
def _subtract_rows(target, gram, index, factors, count):
    """target -= sum_p factors[p] gram[index[p]], four rows at a time."""
    p = 0
    while p + 4 <= count:
        i0, i1, i2, i3 = index[p], index[p + 1], index[p + 2], index[p + 3]
        f0, f1, f2, f3 = factors[p], factors[p + 1], factors[p + 2], factors[p + 3]
        for j in range(target.size):
            target[j] -= (
                f0 * gram[i0, j] + f1 * gram[i1, j] + f2 * gram[i2, j] + f3 * gram[i3, j]
            )
        p += 4
    while p < count:
        i0, f0 = index[p], factors[p]
        for j in range(target.size):
            target[j] -= f0 * gram[i0, j]
        p += 1


@_inlined
def _correlate(problem, state, work, c):
    """u = c - G z, from scratch."""
    count = 0
    for i in range(c.size):
        state.u[i] = c[i]
        if state.z[i] != 0.0:
            work.index[count] = i
            work.a[count] = state.z[i]
            count += 1
    _subtract_rows(state.u, problem.gram, work.index, work.a, count)


# ---------------------------------------------------------------------------------------------
# certificate


@_inlined
def _largest_ratio(problem, u, r, theta):
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


@_inlined
def _raise_gauge(problem, u, r, theta):
    """Smallest theta' >= theta with ||soft(u_r, theta' w_r)|| <= theta' v_r, from above.

    phi(theta) = ||soft(u_r, theta w_r)|| - theta v_r is convex and falls: Newton's steps from the
    left do not pass the root; growing additions then carry theta to its feasible side.
    """
    v = problem.v[r]
    if v <= 0.0:
        return _largest_ratio(problem, u, r, theta)
    first, size = _span(problem.starts, r)
    nudge = 1e-16
    for step in range(200):
        square = 0.0
        slope = 0.0
        for t in range(size):
            x = u[first + t] if problem.nonnegative else abs(u[first + t])
            x -= theta * problem.w[first + t]
            x = x if x > 0.0 else 0.0
            square += x * x
            slope += x * problem.w[first + t]
        norm = np.sqrt(square)
        phi = norm - theta * v
        if not phi > 0.0:
            return theta
        theta += phi / (v + slope / norm)
        if step > 2:
            theta *= 1.0 + nudge
            nudge *= 2.0
    return np.inf


@_inlined
def _gauge(problem, u, square):
    """max(1, max_r theta_r), where theta_r scales block r of u into the dual feasible set."""
    for i in range(u.size):
        x = u[i] if problem.nonnegative else abs(u[i])
        x -= problem.w[i]
        x = x if x > 0.0 else 0.0
        square[i] = x * x
    theta = 1.0
    for r in range(problem.v.size):
        first, size = _span(problem.starts, r)
        total = 0.0
        for t in range(size):
            total += square[first + t]
        if total > problem.v[r] * problem.v[r]:
            theta = _raise_gauge(problem, u, r, theta)
    return theta


@_inlined
def _certificate(problem, state, work, c, energy):
    """Objective and duality gap of the codes, with u the residual's correlations.

    gap = 1/2 (1 - k)^2 ||x - D z||^2 + (penalty(z) - k z'u),  k = 1 / max(1, gauge(u)).
    """
    penalty = 0.0
    zu = 0.0
    zc = 0.0
    for i in range(c.size):
        z = state.z[i]
        penalty += problem.w[i] * abs(z)
        zu += z * state.u[i]
        zc += z * c[i]
    for r in range(problem.v.size):
        penalty += problem.v[r] * state.norms[r]
    residual = max(energy - zc - zu, 0.0)
    objective = 0.5 * residual + penalty
    theta = _gauge(problem, state.u, work.a)
    if theta == np.inf:
        return objective, np.inf
    k = 1.0 / theta
    gap = 0.5 * (k * (theta - 1.0)) ** 2 * residual + (penalty - k * zu)
    return objective, max(gap, 0.0)


# ---------------------------------------------------------------------------------------------
# block descent


@_inlined
def _refresh_block(problem, state, r):
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
        # Codes whose square underflows count as zero.
        z = state.z[i] if norm > 0.0 else 0.0
        state.z[i] = z
        top = pull * z + problem.w[i]
        bottom = pull * z + problem.floor[i]
        state.low[i] = top if z > 0.0 else bottom
        state.high[i] = bottom if z < 0.0 else top


@_inlined
def _most_violated_block(problem, state, square):
    """Block with the largest promise ||e_r||^2 / L_r, e_r the distance of u_r to optimality."""
    for i in range(square.size):
        e = _excess(state.u[i], state.low[i], state.high[i])
        square[i] = e * e
    best = -1
    promise = 0.0
    for r in range(problem.v.size):
        first, size = _span(problem.starts, r)
        total = 0.0
        for t in range(size):
            total += square[first + t]
        if state.norms[r] == 0.0:
            if total <= problem.v[r] * problem.v[r]:
                continue
            total = (np.sqrt(total) - problem.v[r]) ** 2
        total *= problem.inverse_constants[r]
        if total > promise:
            promise = total
            best = r
    return best, promise


@_inlined
def _sweep_block(problem, r, u, z, ridge):
    """Coordinate descent over one block on the majoriser ridge/2 ||z||^2 of v ||z||.

    u (the block's residual correlations) and z are local copies, both updated.
    """
    gram = problem.gram
    first, size = _span(problem.starts, r)
    for t in range(size):
        i = first + t
        diagonal = gram[i, i]
        curvature = diagonal + ridge
        if curvature > 0.0:
            new = _excess(u[t] + diagonal * z[t], problem.floor[i], problem.w[i]) / curvature
        else:
            new = 0.0
        change = new - z[t]
        if change != 0.0:
            z[t] = new
            for s in range(size):
                u[s] -= gram[i, first + s] * change


@_inlined
def _rescale_block(problem, r, own, u, z):
    """Exact minimisation over the length of z, which the majoriser shortens.

    The minimiser of t -> objective(t z) is (z'own - w'|z| - v ||z||) / z'Gz, if positive, with own
    the correlations that the block would have at z = 0.
    """
    first, size = _span(problem.starts, r)
    square = 0.0
    linear = 0.0
    curvature = 0.0
    for t in range(size):
        square += z[t] * z[t]
        linear += z[t] * own[t] - problem.w[first + t] * abs(z[t])
        curvature += z[t] * (own[t] - u[t])
    linear -= problem.v[r] * np.sqrt(square)
    if linear > 0.0 and curvature > 0.0:
        scale = linear / curvature
        for t in range(size):
            z[t] *= scale
            u[t] = own[t] + scale * (u[t] - own[t])


@_inlined
def _descend_block(problem, state, work, r):
    """Lower the objective over block r: to zero where that is optimal, otherwise by a sweep."""
    gram = problem.gram
    own, u, z = work.a, work.b, work.d
    first, size = _span(problem.starts, r)
    v = problem.v[r]
    for t in range(size):
        own[t] = state.u[first + t]
        u[t] = state.u[first + t]
        z[t] = state.z[first + t]
    active = state.norms[r] > 0.0
    if active:
        for s in range(size):
            if z[s] != 0.0:
                for t in range(size):
                    own[t] += gram[first + s, first + t] * z[s]
    square = 0.0
    for t in range(size):
        e = _excess(own[t], problem.floor[first + t], problem.w[first + t])
        square += e * e
        # A new block starts in the direction of its thresholded correlations.
        if not active:
            z[t] = e
    if square <= v * v:
        for t in range(size):
            z[t] = 0.0
    else:
        if not active:
            for s in range(size):
                if z[s] != 0.0:
                    for t in range(size):
                        u[t] -= gram[first + s, first + t] * z[s]
            _rescale_block(problem, r, own, u, z)
        ridge = 0.0
        if v > 0.0:
            square = 0.0
            for t in range(size):
                square += z[t] * z[t]
            ridge = v / np.sqrt(square)
        _sweep_block(problem, r, u, z, ridge)
        if v > 0.0:
            _rescale_block(problem, r, own, u, z)
    count = 0
    for t in range(size):
        change = z[t] - state.z[first + t]
        state.z[first + t] = z[t]
        if change != 0.0:
            work.index[count] = first + t
            u[count] = change
            count += 1
    _subtract_rows(state.u, gram, work.index, u, count)
    _refresh_block(problem, state, r)


@_inlined
def _support_size(z):
    count = 0
    for i in range(z.size):
        count += z[i] != 0.0
    return count


@_inlined
def _greedy_sweep(problem, state, work, stamp):
    """Descend block after block, the most promising first; return the first promise.

    A block met again marks the end of the search for the support. A few more steps are still
    cheaper than the Newton step that follows, the more so the larger the support.
    """
    start = 0.0
    again = 0
    while True:
        r, promise = _most_violated_block(problem, state, work.a)
        if again == 0 and start == 0.0:
            start = promise
        elif promise <= _WORTHWHILE * start:
            break
        if r < 0:
            break
        if work.seen[r] == stamp:
            again += 1
            support = _support_size(state.z)
            if 4 * state.z.size * (again - 1) > support * support:
                break
        work.seen[r] = stamp
        _descend_block(problem, state, work, r)
    return start


# ---------------------------------------------------------------------------------------------
# Newton steps on the support


@_inlined
def _gather_support(z, index):
    count = 0
    for i in range(z.size):
        if z[i] != 0.0:
            index[count] = i
            count += 1
    return count


@_inlined
def _assemble(problem, state, work, count):
    """Upper triangle of the Hessian on the support, the gradient as its last column.

    H = G_AA + sum_r v_r (I / ||z_r|| - z_r z_r' / ||z_r||^3).
    """
    hessian, index, unit = work.hessian, work.index, work.a
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
                x = ridge * unit[row]
                for t in range(p - row):
                    hessian[row, row + t] -= x * unit[row + t]
                hessian[row, row] += ridge


@_inlined
def _solve_normal(hessian, count, d):
    """d = H^-1 g by Cholesky, H the upper triangle and g the last column of `hessian`.

    Directions without curvature are left out: their entry of d is zero.
    """
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
        inverse = 1.0 / np.sqrt(pivot) if pivot > _PIVOT * diagonal else 0.0
        for j in range(width):
            hessian[p, p + j] *= inverse
        hessian[p, p] = inverse
    for back in range(count):
        p = max(count - 1 - back, 0)
        after = p + 1
        rest = hessian[p, count]
        for j in range(back):
            rest -= hessian[p, after + j] * d[after + j]
        d[p] = rest * hessian[p, p]


@_inlined
def _first_crossing(state, work, count):
    """Largest step <= 1 that keeps all signs; one half if the full step does."""
    step = 1.0
    for p in range(count):
        z, d = state.z[work.index[p]], work.d[p]
        if z * (z + d) < 0.0:
            step = min(step, -z / d)
    return step if step < 1.0 else 0.5


@_inlined
def _try_step(problem, state, work, c, count, step):
    """Codes z + step d, signs that would flip set to zero; returns the change of the objective.

    The change is summed from differences, -(z' - z)'(u + u')/2 + penalty(z') - penalty(z), and so
    keeps its digits when it is far below the objective's rounding.
    """
    index, trial, u = work.index, work.trial, work.trial_u
    for p in range(count):
        z = state.z[index[p]]
        new = z + step * work.d[p]
        trial[p] = new if new * z > 0.0 and abs(new) > 1e-14 * abs(z) else 0.0
    for j in range(c.size):
        u[j] = c[j]
    _subtract_rows(u, problem.gram, index, trial, count)
    change = 0.0
    p = 0
    for r in range(problem.v.size):
        if state.norms[r] == 0.0:
            continue
        square = 0.0
        growth = 0.0
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


@_inlined
def _newton_step(problem, state, work, c):
    """One step to the minimum over the support with fixed signs, kept only if it descends."""
    count = _gather_support(state.z, work.index)
    if count == 0:
        return
    _assemble(problem, state, work, count)
    _solve_normal(work.hessian, count, work.d)
    change = _try_step(problem, state, work, c, count, 1.0)
    if not change < 0.0:
        step = _first_crossing(state, work, count)
        change = _try_step(problem, state, work, c, count, step)
        if not change < 0.0:
            return
    for p in range(count):
        state.z[work.index[p]] = work.trial[p]
    for j in range(c.size):
        state.u[j] = work.trial_u[j]
    for r in range(problem.v.size):
        if state.norms[r] > 0.0:
            _refresh_block(problem, state, r)


# ---------------------------------------------------------------------------------------------
# rows


@_compiled
def _begin_row(problem, state, work, c, row):
    """Read the warm start; u and the subdifferential follow from it."""
    warm = False
    for j in range(c.size):
        z = np.float64(row[j])
        if problem.nonnegative and z < 0.0:
            z = 0.0
        state.z[j] = z
        state.u[j] = c[j]
        state.low[j] = problem.floor[j]
        state.high[j] = problem.w[j]
        warm = warm or z != 0.0
    for r in range(problem.v.size):
        state.norms[r] = 0.0
    if warm:
        for r in range(problem.v.size):
            _refresh_block(problem, state, r)
        _correlate(problem, state, work, c)


@_compiled
def _solve_row(problem, state, work, c, energy, tol, max_iter, stamp):
    """Rounds of a greedy sweep and a Newton step until the gap is closed; returns their number."""
    objective, gap = _certificate(problem, state, work, c, energy)
    best_objective, best_gap, idle = objective, gap, 0
    iteration = 0
    while gap > tol * max(objective, _TINY) and iteration < max_iter and idle < _PATIENCE:
        iteration += 1
        promise = _greedy_sweep(problem, state, work, stamp + iteration)
        _newton_step(problem, state, work, c)
        # Without a finite gap, stop at a step that is small in the same sense: the gap is of first
        # order in the violation of optimality, the promised decrease of second.
        if promise == 0.0 or (gap == np.inf and promise <= tol * tol * objective):
            break
        objective, gap = _certificate(problem, state, work, c, energy)
        if gap < 0.9 * best_gap or objective < (1.0 - 1e-13) * best_objective:
            best_objective, best_gap, idle = min(objective, best_objective), min(gap, best_gap), 0
        else:
            idle += 1
    return iteration


@_compiled
def block_coordinate(
    c,
    energy,
    gram,
    starts,
    w,
    v,
    block_constants,
    nonnegative,
    z,
    objective,
    gap,
    iterations,
    tol,
    max_iter,
):
    """Minimise, for each row, 1/2 z'Gz - c'z + 1/2 energy + sum_i w_i|z_i| + sum_r v_r ||z_r||.

    Parameters
    ----------
    c : (n, q) float64, energy : (n,) float64
        Correlations D x and squared norms of the samples.
    gram : (q, q) float64
        D D', symmetric, possibly plus a non-negative diagonal.
    starts : (R + 1,) int64
        Block r holds the coordinates starts[r] <= i < starts[r + 1]; starts[R] = q.
    w : (q,) float64, v : (R,) float64
        Leaf and block weights, non-negative.
    block_constants : (R,) float64
        Largest eigenvalues of the diagonal blocks of `gram`, or upper bounds.
    nonnegative : bool
        Constrain z >= 0.
    z : (n, q) float32 or float64
        Warm start, overwritten by the codes.
    objective, gap : (n,) float64
        Written: objective and duality gap of the codes as stored in `z`. The gap is infinite where
        a coordinate without any weight keeps a correlation.
    iterations : (n,) int64
        Written: rounds of a greedy sweep and a Newton step.
    tol : float
        A row is done when gap <= tol * objective.
    max_iter : int
        Largest number of rounds; 0 evaluates the warm start.
    """
    n, q = c.shape
    blocks = v.size
    # In a singleton block the norm is an absolute value.
    leaf, group = w.copy(), v.copy()
    for r in range(blocks):
        if starts[r + 1] - starts[r] == 1:
            leaf[starts[r]] += v[r]
            group[r] = 0.0
    floor = np.full(q, -np.inf) if nonnegative else -leaf
    inverse_constants = 1.0 / np.maximum(block_constants, _TINY)
    problem = Problem(gram, starts, leaf, group, floor, inverse_constants, nonnegative)
    state = State(np.empty(q), np.empty(q), np.empty(q), np.empty(q), np.empty(blocks))
    work = Work(
        np.empty(q),
        np.empty(q),
        np.empty(q),
        np.empty(q),
        np.empty(q),
        np.empty(q, np.int64),
        np.zeros(blocks, np.int64),
        np.empty((q, q + 1)),
    )
    stamp = 0
    for k in range(n):
        _begin_row(problem, state, work, c[k], z[k])
        iterations[k] = _solve_row(problem, state, work, c[k], energy[k], tol, max_iter, stamp)
        stamp += iterations[k]
        for j in range(q):
            z[k, j] = state.z[j]
        # Certify what is stored, not what was computed: rounding to float32 shows in the gap.
        _begin_row(problem, state, work, c[k], z[k])
        objective[k], gap[k] = _certificate(problem, state, work, c[k], energy[k])
