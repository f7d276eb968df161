"""Compiled exact codes of robust PCA and robust NMF, one row at a time.

The outliers are eliminated, so a row is a smooth Huber problem in its q low-rank codes; `newton`
and `fista` solve it and `finish` certifies what is written. The arrays arrive checked: choosing
the method, threading over tiles of rows and reporting are the caller's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

# NaN and infinity keep their meaning, so that every test below can be written to stop on them.
_FAST = {"reassoc", "contract", "arcp", "nsz"}


def _compiled(function: Callable[..., Any]) -> Any:
    return njit(function, cache=True, nogil=True, error_model="numpy", fastmath=_FAST)


class Tables(NamedTuple):
    """What the kernels look up of a dictionary D0 (q, m) and a ridge weight lam_star."""

    d0: Array
    single: Array  # D0 in float32, which halves the reading; zero columns up to a cache line
    gram: Array  # D0 D0'
    ridge: Array  # (D0 D0' + lam_star I)^-1
    lam_star: float
    step_constant: float  # ||D0||^2 + lam_star


def _aligned(values: Array, width: int, dtype: type) -> Array:
    """Copy with rows of `width`, from the start of a cache line: a fifth quicker to read."""
    rows, columns = values.shape
    size = np.dtype(dtype).itemsize
    memory = np.zeros(rows * width + 64 // size, dtype)
    first = -memory.ctypes.data % 64 // size
    copy = memory[first : first + rows * width].reshape(rows, width)
    copy[:, :columns] = values
    return copy


def tables(d0: Array, lam_star: float) -> Tables:
    """Prepare `Tables`, once for a model; the kernels only read them."""
    m = d0.shape[1]
    double = _aligned(d0, m, np.float64)
    gram = double @ double.T
    eigenvalues, vectors = np.linalg.eigh(gram)
    eigenvalues = np.maximum(eigenvalues, 0.0) + lam_star
    ridge = np.ascontiguousarray((vectors / eigenvalues) @ vectors.T)
    # Below float32's rounding anyway, and products of such numbers are slow subnormal ones.
    floor = 1e-10 * np.max(np.abs(double), initial=0.0)
    large = np.where(np.abs(double) > floor, double, 0.0)
    single = _aligned(large, -(-m // 16) * 16, np.float32)
    return Tables(double, single, gram, ridge, float(lam_star), float(eigenvalues[-1]))


def prefer_newton(gram: Array, lam_star: float, m: int, nonnegative: bool) -> bool:
    """Whether `newton` is likely quicker than `fista`, from what is known of a model.

    In units of one pair of passes over D0, 2 q m multiplications, a Newton step costs about
    1 + q/16 + q^2/(3m): the passes, the masked Gram matrix (its first sum and the flips), the
    factorisation. Four steps are the rule. FISTA takes about 6 sqrt(k) steps of one unit for
    RNMF, k = (||D0||^2 + lam_star)/(smallest eigenvalue of the Gram matrix + lam_star), and 15
    for RPCA, where the metric D0 D0' + lam_star I makes k irrelevant (7 to 30: more if most
    features are outliers). Fitted to a gap of 1e-6 at q 5 to 200, m 64 to 2049, k 2 to 10^4; on
    72 other models it chose the slower method 18 times, and never lost more than a factor of 1.4.
    """
    q = gram.shape[0]
    eigenvalues = np.maximum(np.linalg.eigvalsh(gram), 0.0) + lam_star
    condition = float(eigenvalues[-1] / eigenvalues[0])
    fista_steps = 6 * condition**0.5 if nonnegative else 15.0
    return bool(4 * (1 + q / 16 + q * q / (3 * m)) < fista_steps)


class _Vectors(NamedTuple):
    """Work space of one precision; `change` is p D0 for a step p of the codes."""

    residual: Array
    dual: Array
    change: Array
    thresholds: Array
    weights: Array
    scaled: Array
    panel: Array
    correlation: Array
    coefficients: Array


class _Newton(NamedTuple):
    """Work space of the second-order step, in float64 whatever the precision of the passes."""

    gradient: Array
    step: Array
    local: Array  # the step on the known atoms
    target: Array
    masked: Array  # masked Gram matrix of the known atoms
    factor: Array
    free: Array
    known: Array
    seen: Array
    state: Array
    wrong: Array
    inside: Array
    flips: Array


@_compiled
def _vectors(d0: Array, lam: Array) -> _Vectors:
    q, m = d0.shape
    kind = d0.dtype
    thresholds = np.ones(m, kind)
    thresholds[: lam.size] = lam
    return _Vectors(
        np.empty(m, kind),
        np.empty(m, kind),
        np.empty(m, kind),
        thresholds,
        np.empty(m + 8, kind),
        np.empty((4, m + 8), kind),
        np.empty((q, m + 8), kind),
        np.empty(q, kind),
        np.empty(q, kind),
    )


@_compiled
def _workspace(q: int, m: int) -> _Newton:
    return _Newton(
        np.empty(q),
        np.empty(q),
        np.empty(q),
        np.empty(q),
        np.empty((q, q)),
        np.empty((q, q)),
        np.empty(q, np.int64),
        np.empty(q, np.int64),
        np.empty(q, np.bool_),
        np.empty(q, np.bool_),
        np.empty(q, np.bool_),
        np.empty(m, np.bool_),
        np.empty(m + 1, np.int64),
    )


@_compiled
def _memory(lookup: Tables, lam: Array) -> tuple[_Vectors, _Vectors, _Newton, Array, Array]:
    """All scratch memory of a call: vectors in both precisions, matrices, codes, a float32 row."""
    q, width = lookup.single.shape
    single = _vectors(lookup.single, lam)
    double = _vectors(lookup.d0, lam)
    return single, double, _workspace(q, width), np.empty(q), np.empty(width, np.float32)


# Passes over the dictionary and over a residual ---------------------------------------------


@_compiled
def _subtract_atoms(coefficients: Array, d0: Array, residual: Array) -> None:
    """residual -= coefficients D0, four atoms a pass; groups of zeros cost nothing."""
    q, m = d0.shape
    j = 0
    while j + 4 <= q:
        a = coefficients[j]
        b = coefficients[j + 1]
        c = coefficients[j + 2]
        e = coefficients[j + 3]
        if a != 0 or b != 0 or c != 0 or e != 0:
            for i in range(m):
                residual[i] -= (a * d0[j, i] + b * d0[j + 1, i]) + (
                    c * d0[j + 2, i] + e * d0[j + 3, i]
                )
        j += 4
    while j < q:
        a = coefficients[j]
        if a != 0:
            for i in range(m):
                residual[i] -= a * d0[j, i]
        j += 1


@_compiled
def _correlate(d0: Array, vector: Array, correlation: Array) -> None:
    """correlation = D0 vector, four atoms a pass."""
    q, m = d0.shape
    zero = d0.dtype.type(0)
    j = 0
    while j + 4 <= q:
        a = zero
        b = zero
        c = zero
        e = zero
        for i in range(m):
            v = vector[i]
            a += d0[j, i] * v
            b += d0[j + 1, i] * v
            c += d0[j + 2, i] * v
            e += d0[j + 3, i] * v
        correlation[j] = a
        correlation[j + 1] = b
        correlation[j + 2] = c
        correlation[j + 3] = e
        j += 4
    while j < q:
        a = zero
        for i in range(m):
            a += d0[j, i] * vector[i]
        correlation[j] = a
        j += 1


@_compiled
def _residual(x: Array, d0: Array, code: Array, vectors: _Vectors) -> None:
    """r = x - s D0 in the precision of d0."""
    residual, coefficients = vectors.residual, vectors.coefficients
    for i in range(x.size):
        residual[i] = x[i]
    for j in range(code.size):
        coefficients[j] = code[j]
    _subtract_atoms(coefficients, d0, residual)


@_compiled
def _clip(residual: Array, thresholds: Array, nonnegative: bool, dual: Array) -> Any:
    """nu = clip(r, -lam, lam), RNMF min(r, lam); returns the Huber value sum nu (r - nu/2)."""
    value = residual.dtype.type(0)
    half = residual.dtype.type(0.5)
    if nonnegative:
        for i in range(residual.size):
            nu = min(residual[i], thresholds[i])
            dual[i] = nu
            value += nu * (residual[i] - half * nu)
    else:
        for i in range(residual.size):
            nu = max(-thresholds[i], min(residual[i], thresholds[i]))
            dual[i] = nu
            value += nu * (residual[i] - half * nu)
    return value


@_compiled
def _along(
    residual: Array, change: Array, thresholds: Array, nonnegative: bool, length: float
) -> tuple[float, float, float]:
    """Value, slope and curvature at t of the Huber part of r - t change."""
    zero = residual.dtype.type(0)
    half = residual.dtype.type(0.5)
    t = residual.dtype.type(length)
    value = zero
    slope = zero
    curvature = zero
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


# Certificate ----------------------------------------------------------------------------------


@_compiled
def _code_gap(s: float, u: float, lam_star: float, nonnegative: bool) -> float:
    """f(s) + f*(u) - s u of one code, f = lam_star/2 s^2 (on s >= 0), as positive terms."""
    top = max(u, 0.0) if nonnegative else u
    return (top - lam_star * s) ** 2 * (0.5 / lam_star) + s * (top - u)


@_compiled
def finish(
    x: Array,
    lookup: Tables,
    lam: Array,
    nonnegative: bool,
    code: Array,
    s: Array,
    o: Array,
    vectors: _Vectors,
) -> tuple[float, float]:
    """Write the codes of a row and certify what was written; all sums in float64.

    The dual point nu = clip(x - code D0) comes from the codes before they are rounded into `s`
    and `o`, any feasible one being allowed, which keeps rounding from being multiplied by
    ||D0||^2 / lam_star. With u = D0 nu and r = x - s D0 - o, f(s) = lam_star/2 ||s||^2,

        gap = ||r - nu||^2/2 + sum_j (f(s_j) + f*(u_j) - s_j u_j) + sum_i (lam_i |o_i| - o_i nu_i)

    bounds objective(s, o) - optimum from above. Returns the objective and the gap.
    """
    d0 = lookup.d0
    lam_star = lookup.lam_star
    residual, dual = vectors.residual, vectors.dual
    correlation, rounded = vectors.correlation, vectors.coefficients
    _residual(x, d0, code, vectors)
    _clip(residual, lam, nonnegative, dual)
    _correlate(d0, dual, correlation)
    objective = 0.0
    gap = 0.0
    for j in range(code.size):
        s[j] = code[j]
        stored = np.float64(s[j])
        rounded[j] = stored - code[j]
        objective += 0.5 * lam_star * stored * stored
        gap += _code_gap(stored, correlation[j], lam_star, nonnegative)
    _subtract_atoms(rounded, d0, residual)
    lowest = 0.0 if nonnegative else -np.inf
    for i in range(x.size):
        r = residual[i]
        o[i] = max(lowest, r - max(-lam[i], min(r, lam[i])))
    for i in range(x.size):
        outlier = np.float64(o[i])
        r = residual[i] - outlier
        size = lam[i] * abs(outlier) if outlier != 0 else 0.0
        objective += 0.5 * r * r + size
        gap += 0.5 * (r - dual[i]) ** 2 + (size - outlier * dual[i])
    return objective, gap


@_compiled
def _missed(objective: float, gap: float, tol: float) -> bool:
    """Whether a row deserves more work; NaN does not."""
    return gap > tol * max(objective, 1e-300)


# Newton direction -----------------------------------------------------------------------------


@_compiled
def _factorise(a: Array, n: int) -> bool:
    """Cholesky factor over the lower triangle of a[:n, :n], its diagonal inverted.

    Four rows share every read of a finished row. False if the matrix is not positive.
    """
    top = 0
    while top < n:
        end = min(top + 4, n)
        start = 0
        if end == top + 4:
            start = top
            for j in range(top):
                t0 = a[top, j]
                t1 = a[top + 1, j]
                t2 = a[top + 2, j]
                t3 = a[top + 3, j]
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


@_compiled
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


@_compiled
def _solve_face(space: _Newton, count: int, ridge: float, code: Array) -> bool:
    """Minimise the model with atoms of state False moved to zero; False if not positive."""
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


@_compiled
def _wrong_signs(space: _Newton, count: int, ridge: float, code: Array, slack: float) -> int:
    """Mark the atoms of a face that break s + p >= 0 or have a negative multiplier."""
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


@_compiled
def _model_step(space: _Newton, count: int, ridge: float, code: Array, nonnegative: bool) -> bool:
    """p = argmin g p + p (G + ridge I) p / 2 on the known atoms, s + p >= 0 if nonnegative.

    Block principal pivoting: all atoms of a wrong sign change sides while that lowers their
    number, one at a time when it has not for three rounds. The minimiser of a convex model over
    the feasible set is a feasible descent direction, whatever the mask. False if it failed.
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
    fewest = count + 1
    patience = 3
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


@_compiled
def _add_gram(
    masked: Array, panel: Array, rows: Array, count: int, weights: Array, m: int, scaled: Array
) -> None:
    """masked += P diag(weights) P' in its lower triangle, P = panel[rows[:count], :m].

    Sums of products along contiguous features, sixteen at once, so that a read feeds four
    multiplications and nothing is stored inside the loop.
    """
    zero = weights.dtype.type(0)
    a = 0
    while a + 4 <= count:
        for k in range(4):
            row = rows[a + k]
            for i in range(m):
                scaled[k, i] = weights[i] * panel[row, i]
        for b in range(0, a + 4, 4):
            j0 = rows[b]
            j1 = rows[b + 1]
            j2 = rows[b + 2]
            j3 = rows[b + 3]
            s00 = s01 = s02 = s03 = zero
            s10 = s11 = s12 = s13 = zero
            s20 = s21 = s22 = s23 = zero
            s30 = s31 = s32 = s33 = zero
            for i in range(m):
                p0 = panel[j0, i]
                p1 = panel[j1, i]
                p2 = panel[j2, i]
                p3 = panel[j3, i]
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


@_compiled
def _flipped(
    residual: Array, thresholds: Array, nonnegative: bool, inside: Array, flips: Array
) -> int:
    """List the features whose side of the threshold changed; without a branch to mispredict."""
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


@_compiled
def _new_atoms(space: _Newton, code: Array, nonnegative: bool, count: int) -> int:
    """Append to `known` the atoms with s_j > 0 or g_j < 0 that it lacks; returns its length."""
    known, seen, gradient = space.known, space.seen, space.gradient
    if count == 0:
        seen[:] = False
    for j in range(code.size):
        if not seen[j] and (not nonnegative or code[j] > 0 or gradient[j] < 0):
            seen[j] = True
            known[count] = j
            count += 1
    return count


@_compiled
def _flip_panel(d0: Array, space: _Newton, vectors: _Vectors, count: int, flipped: int) -> None:
    """Add or subtract d_i d_i' of the flipped features, gathered so that sums run along them."""
    known, rows, inside, flips = space.known, space.free, space.inside, space.flips
    weights, panel = vectors.weights, vectors.panel
    for t in range(flipped):
        weights[t] = 1 if inside[flips[t]] else -1
    # Whole vectors only: what is left over would be summed one by one.
    length = (flipped + 7) // 8 * 8
    weights[flipped:length] = 0
    for b in range(count):
        j = known[b]
        rows[b] = b
        for t in range(flipped):
            panel[b, t] = d0[j, flips[t]]
        panel[b, flipped:length] = 0
    _add_gram(space.masked, panel, rows, count, weights, length, vectors.scaled)


@_compiled
def _append_rows(d0: Array, space: _Newton, vectors: _Vectors, old: int, count: int) -> None:
    """Rows old..count of the masked Gram matrix, from all features inside."""
    masked, known, inside = space.masked, space.known, space.inside
    scaled = vectors.scaled
    m = d0.shape[1]
    zero = d0.dtype.type(0)
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


@_compiled
def _update_gram(
    d0: Array,
    gram: Array,
    vectors: _Vectors,
    space: _Newton,
    nonnegative: bool,
    old: int,
    count: int,
) -> None:
    """Bring sum of d_i d_i' over the features inside their threshold up to date.

    The first time it starts from the whole Gram matrix, as if all features were inside. Flipped
    features are gathered, at about 28 multiplications a number; when they are so many that the
    whole sum is cheaper, it is done again.
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


@_compiled
def _reweight_gram(
    d0: Array, vectors: _Vectors, space: _Newton, nonnegative: bool, count: int
) -> None:
    """sum of min(1, lam_i/|r_i|) d_i d_i', that of a quadratic above the Huber function."""
    residual, thresholds, weights = vectors.residual, vectors.thresholds, vectors.weights
    masked = space.masked
    masked[:] = 0
    for i in range(residual.size):
        size = residual[i] if nonnegative else abs(residual[i])
        weights[i] = thresholds[i] / size if size > thresholds[i] else 1
    _add_gram(masked, d0, space.known, count, weights, residual.size, vectors.scaled)


@_compiled
def _newton_step(
    d0: Array,
    gram: Array,
    lam_star: float,
    vectors: _Vectors,
    space: _Newton,
    nonnegative: bool,
    code: Array,
    count: int,
    reweighted: bool,
    rounding: float,
) -> int:
    """space.step = the minimiser of the model at r. Returns how many atoms stay known.

    The model has the Hessian of the mask, or, if that misled the step before, the weights of
    reweighted least squares. Should rounding defeat the factorisation, a projected gradient
    step takes its place.
    """
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
    # What the sums lost to rounding must not make the model indefinite.
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


@_compiled
def _ridge_step(ridge: Array, gradient: Array, step: Array) -> None:
    """p = -(D0 D0' + lam_star I)^-1 g: an alternating minimisation, at no cost but q^2."""
    for j in range(step.size):
        t = 0.0
        for k in range(step.size):
            t -= ridge[j, k] * gradient[k]
        step[j] = t


# Newton iteration -----------------------------------------------------------------------------


@_compiled
def _evaluate(
    d0: Array, lam_star: float, nonnegative: bool, code: Array, vectors: _Vectors, gradient: Array
) -> tuple[float, float]:
    """Objective and gap of the eliminated problem at r, and its gradient lam_star s - D0 nu."""
    value = np.float64(_clip(vectors.residual, vectors.thresholds, nonnegative, vectors.dual))
    _correlate(d0, vectors.dual, vectors.correlation)
    correlation = vectors.correlation
    gap = 0.0
    for j in range(code.size):
        s = code[j]
        u = np.float64(correlation[j])
        gradient[j] = lam_star * s - u
        value += 0.5 * lam_star * s * s
        gap += _code_gap(s, u, lam_star, nonnegative)
    return value, gap


@_compiled
def _step_length(
    lam_star: float,
    nonnegative: bool,
    code: Array,
    step: Array,
    slope: float,
    value: float,
    vectors: _Vectors,
    rounding: float,
) -> float:
    """Length of a descent step: Newton's method on the slope of the convex, piecewise quadratic

        phi(t) = sum_i huber(r_i - t change_i) + lam_star/2 ||s + t p||^2

    until the slope fell tenfold and phi by Armijo's rule; every trial costs one pass over m.
    """
    cross = 0.0
    square = 0.0
    ceiling = np.inf
    for j in range(code.size):
        cross += code[j] * step[j]
        square += step[j] * step[j]
        if nonnegative and step[j] < 0:
            ceiling = min(ceiling, -code[j] / step[j])
    norm = 0.0
    for j in range(code.size):
        norm += code[j] * code[j]
    low = 0.0
    high = ceiling
    t = min(1.0, ceiling)
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


@_compiled
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


@_compiled
def _newton_row(
    x: Array,
    d0: Array,
    lookup: Tables,
    nonnegative: bool,
    code: Array,
    vectors: _Vectors,
    space: _Newton,
    tol: float,
    max_iter: int,
    ridge_steps: int,
    rounding: float,
) -> int:
    """Descend from `code`, in the precision of d0. Returns the number of steps taken."""
    lam_star = lookup.lam_star
    gradient, step = space.gradient, space.step
    coefficients, change = vectors.coefficients, vectors.change
    _residual(x, d0, code, vectors)
    count = np.int64(0)  # not a literal, which would compile all that it reaches twice
    spent = 0
    before = np.inf
    reweight = 0
    for done in range(max_iter):
        value, gap = _evaluate(d0, lam_star, nonnegative, code, vectors, gradient)
        if not gap > tol * value:
            return done
        if done < ridge_steps:
            _ridge_step(lookup.ridge, gradient, step)
        else:
            count = _newton_step(
                d0,
                lookup.gram,
                lam_star,
                vectors,
                space,
                nonnegative,
                code,
                count,
                reweight > 0,
                rounding,
            )
        slope = 0.0
        for j in range(code.size):
            slope += gradient[j] * step[j]
            coefficients[j] = -step[j]
        # Two steps whose gain is lost in the rounding of the objective, then no more.
        lost = not -slope > 4 * rounding * value
        spent += lost or not value < before
        before = value
        if not slope < 0 or spent > 2:
            return done
        change[:] = 0
        _subtract_atoms(coefficients, d0, change)
        length = 1.0
        if not lost:
            length = _step_length(
                lam_star, nonnegative, code, step, slope, value, vectors, rounding
            )
        if not length > 0:
            return done
        # A short step: too many features changed sides for the mask to be a model.
        reweight = 2 if length < 0.3 else max(reweight - 1, 0)
        _move(nonnegative, code, step, length, vectors.residual, change)
    return max_iter


@_compiled
def _descend_coordinates(lookup: Tables, code: Array, gradient: Array, sweeps: int) -> None:
    """Coordinate descent on s >= 0 without outliers: s_j <- max(s_j - g_j/(G_jj + lam_star), 0)."""
    gram, lam_star = lookup.gram, lookup.lam_star
    for _ in range(sweeps):
        for j in range(code.size):
            new = max(code[j] - gradient[j] / (gram[j, j] + lam_star), 0.0)
            change = new - code[j]
            if change != 0:
                code[j] = new
                gradient[j] += lam_star * change
                for k in range(code.size):
                    gradient[k] += gram[j, k] * change


@_compiled
def _start(
    x: Array,
    d0: Array,
    lookup: Tables,
    nonnegative: bool,
    code: Array,
    vectors: _Vectors,
    space: _Newton,
) -> None:
    """The codes without outliers: a ridge regression, for RNMF nearly that with s >= 0."""
    gram, lam_star = lookup.gram, lookup.lam_star
    correlation, gradient = vectors.correlation, space.gradient
    _correlate(d0, x, correlation)
    for j in range(code.size):
        gradient[j] = -np.float64(correlation[j])
    _ridge_step(lookup.ridge, gradient, code)
    if not nonnegative:
        return
    for j in range(code.size):
        code[j] = max(code[j], 0.0)
        gradient[j] += lam_star * code[j]
    for j in range(code.size):
        for k in range(code.size):
            gradient[k] += gram[j, k] * code[j]
    _descend_coordinates(lookup, code, gradient, 8)


@_compiled
def _to_single(x: Array, lookup: Tables, row: Array) -> bool:
    """Copy a row to float32; False if squares of its numbers could leave that range."""
    energy = 0.0
    for i in range(x.size):
        energy += np.float64(x[i]) * np.float64(x[i])
    # Smaller ones are lost in rounding, but make slow subnormal products.
    floor = 1e-10 * np.sqrt(energy / x.size)
    row[x.size :] = 0
    for i in range(x.size):
        row[i] = x[i] if abs(x[i]) > floor else 0
    return 1e-16 < energy < 1e16 and 1e-8 < lookup.step_constant < 1e8


@_compiled
def _read(s: Array, nonnegative: bool, code: Array) -> bool:
    """Copy a warm start. A row of zeros counts as none: the start without outliers is better."""
    warm = False
    for j in range(code.size):
        code[j] = max(s[j], 0.0) if nonnegative else s[j]
        warm = warm or code[j] != 0
    return warm


@_compiled
def _round(code: Array, s: Array) -> bool:
    """Round codes to the precision they are stored in; False if one is not finite."""
    total = 0.0
    for j in range(code.size):
        s[j] = code[j]
        code[j] = s[j]
        total += abs(code[j])
    return total < np.inf


@_compiled
def newton(
    x: Array,
    lookup: Tables,
    lam: Array,
    nonnegative: bool,
    s: Array,
    o: Array,
    objective: Array,
    gap: Array,
    iterations: Array,
    tol: float,
    max_iter: int,
) -> None:
    """Codes of every row by projected semismooth Newton steps, to gap <= tol objective.

    Minimises, with D0 and lam_star from `lookup` (see `tables`) and s, o >= 0 if nonnegative,

        1/2 ||x - s D0 - o||^2 + lam_star/2 ||s||^2 + sum_i lam_i |o_i|

    x (n, m) is float32 or float64; s (n, q) and o (n, m) have its dtype; s holds a warm start on
    entry (a row of zeros: none); objective, gap (n,) float64 and iterations (n,) int64 are
    written. A row descends in float32 first, where a pass over D0 takes half the time, and is
    certified in float64; one that misses the tolerance there goes on in float64.
    """
    single, double, space, code, row = _memory(lookup, lam)
    for k in range(x.shape[0]):
        warm = _read(s[k], nonnegative, code)
        done = 0
        if _to_single(x[k], lookup, row):
            ridge_steps = 0 if warm or nonnegative else 2
            if not warm:
                _start(row, lookup.single, lookup, nonnegative, code, single, space)
            done = _newton_row(
                row, lookup.single, lookup, nonnegative, code, single, space,
                0.7 * tol, max_iter, ridge_steps, 6e-8,
            )  # fmt: skip
            warm = _round(code, s[k])
            iterations[k] = done
            objective[k], gap[k] = finish(x[k], lookup, lam, nonnegative, code, s[k], o[k], double)
            if warm and not _missed(objective[k], gap[k], tol):
                continue
        if not warm:
            _start(x[k], lookup.d0, lookup, nonnegative, code, double, space)
        ridge_steps = 0 if warm or nonnegative else 2
        iterations[k] = done + _newton_row(
            x[k], lookup.d0, lookup, nonnegative, code, double, space,
            0.9 * tol, max_iter - done, ridge_steps, 1.2e-16,
        )  # fmt: skip
        objective[k], gap[k] = finish(x[k], lookup, lam, nonnegative, code, s[k], o[k], double)


# First-order iteration ------------------------------------------------------------------------


@_compiled
def _proximal_step(lookup: Tables, nonnegative: bool, forward: Array, space: _Newton) -> None:
    """space.step = s+ - y, s+ the minimiser of g(y) (s+ - y) + ||s+ - y||_M^2 / 2.

    M majorises the Hessian: the step constant for RNMF, where the constraint needs a diagonal
    one; D0 D0' + lam_star I for RPCA, so that its conditioning does not matter.
    """
    gradient, step = space.gradient, space.step
    if not nonnegative:
        _ridge_step(lookup.ridge, gradient, step)
        return
    for j in range(forward.size):
        y = forward[j]
        step[j] = max(y - gradient[j] / lookup.step_constant, 0.0) - y


@_compiled
def _fista_row(
    x: Array,
    d0: Array,
    lookup: Tables,
    nonnegative: bool,
    code: Array,
    vectors: _Vectors,
    space: _Newton,
    tol: float,
    max_iter: int,
) -> int:
    """Accelerated proximal gradient with restart, in the precision of d0. Returns its steps.

        s+ = prox step of y,  y+ = s+ + (t - 1)/t+ (s+ - s),  t+ = (1 + sqrt(1 + 4 t^2))/2

    The momentum starts anew when it points uphill. RPCA stops by the gap at y; that of RNMF is
    infinite while some y_j < 0, so there L^2 ||s+ - y||^2 / (2 lam_star) stands for it.
    """
    lam_star = lookup.lam_star
    bound = lookup.step_constant
    forward = space.local
    gradient = space.gradient
    step = space.step
    forward[:] = code
    momentum = 1.0
    least = np.inf
    waited = 0
    for done in range(max_iter):
        _residual(x, d0, forward, vectors)
        value, estimate = _evaluate(d0, lam_star, nonnegative, forward, vectors, gradient)
        _proximal_step(lookup, nonnegative, forward, space)
        uphill = 0.0
        moved = 0.0
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
        # Nothing gained for so long means that rounding is all that is left.
        waited = 0 if estimate < least else waited + 1
        least = min(least, estimate)
        if waited > 200:
            return done + 1
        if uphill > 0:
            momentum = 1.0
            forward[:] = code
    return max_iter


@_compiled
def fista(
    x: Array,
    lookup: Tables,
    lam: Array,
    nonnegative: bool,
    s: Array,
    o: Array,
    objective: Array,
    gap: Array,
    iterations: Array,
    tol: float,
    max_iter: int,
) -> None:
    """Codes of every row by accelerated gradient steps; the contract of `newton`.

    Two passes over D0 a step and nothing else: quicker than `newton` when a handful of steps
    is enough (see `prefer_newton`).
    """
    single, double, space, code, row = _memory(lookup, lam)
    for k in range(x.shape[0]):
        warm = _read(s[k], nonnegative, code)
        done = 0
        target = 0.5 * tol
        if _to_single(x[k], lookup, row):
            if not warm:
                _start(row, lookup.single, lookup, nonnegative, code, single, space)
            done = _fista_row(
                row, lookup.single, lookup, nonnegative, code, single, space, target, max_iter
            )
            warm = _round(code, s[k])
        if not warm:
            _start(x[k], lookup.d0, lookup, nonnegative, code, double, space)
        objective[k], gap[k] = finish(x[k], lookup, lam, nonnegative, code, s[k], o[k], double)
        while done < max_iter and _missed(objective[k], gap[k], tol):
            done += _fista_row(
                x[k], lookup.d0, lookup, nonnegative, code, double, space, target, max_iter - done
            )
            target *= 0.25
            objective[k], gap[k] = finish(x[k], lookup, lam, nonnegative, code, s[k], o[k], double)
        iterations[k] = done
