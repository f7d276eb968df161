"""Compiled Lasso codes: an active set grown by the worst violators, with exact support solves.

Works on correlations and the Gram matrix, so the cost of a row follows its few non-zero
coefficients, not the size of the dictionary. `coordinate` is the wrapper that tiles a batch.

For one row, with correlations ``c = D x``, Gram matrix G (the ridge on its diagonal) and
``u = c - G z`` the correlation of the residual, z is optimal exactly if ``u_i = lam_i sign(z_i)``
on the support and ``|u_i| <= lam_i`` (``u_i <= lam_i`` if non-negative) off it. So with signs s
on a support A the code is ``z_A = G_AA^{-1} (c_A - lam_A s)``, as long as the signs agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]

#: sums may be reordered and maxima vectorised; the caller has refused NaN
FLAGS = {"reassoc", "contract", "arcp", "nsz", "nnan"}
#: a violator joins if its excess is this part of the largest excess ...
FRACTION = 0.7
#: ... but at most so many join at once
JOIN = 8
#: how often a support that was found is refined to the accuracy of float64
REFINEMENTS = 2
#: the largest support that is solved directly; beyond it coordinate descent takes over
ROOM = 1024
#: the rows of the small inverse are padded to full vectors
PAD = 16

_compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath=FLAGS)
# What runs for every row is inlined: passing a dozen arrays takes longer than most of it computes.
_inlined = njit(cache=True, nogil=True, error_model="numpy", fastmath=FLAGS, forceinline=True)


@_compiled
def active_set(
    x: Array,
    c: Array,
    gram: Array,
    atoms: Array,
    exact_gram: Array,
    lam: Array,
    ridge: Array,
    nonnegative: bool,
    codes: Array,
    objective: Array,
    gap: Array,
    iterations: Array,
    excess: Array,
    excess_bits: Array,
    warm: bool,
    tol: float,
    max_iter: int,
) -> None:
    """Solve every row; `codes` holds the start on entry and the result on return.

    Parameters
    ----------
    x, c
        Signals (n, m), and their correlations (n, q) in the dtype of the search.
    gram, exact_gram
        ``D D' + diag(ridge)``, in the dtype of the search and in float64.
    atoms
        Dictionary (q, m) in the dtype of the signals: half the memory traffic in float32, and
        products are taken in float64 all the same.
    lam, ridge
        Weights, all positive, and ridge, (q,), in float64.
    codes
        (n, q), in the dtype that the user gets.
    warm
        Whether `codes` holds a start at all.
    objective, gap, iterations
        (n,), written; objective and gap are those of the codes as stored.
    excess, excess_bits
        Scratch (q + 1,) in the dtype of the search, and the same memory as integers: floats that
        are not negative are ordered as their bits, and maxima of integers are vectorised.
    """
    n, q = c.shape
    room = min(q, ROOM)
    u = np.empty(q, c.dtype)
    inverse = (1.0 / lam).astype(c.dtype)
    listed = np.empty(q + 1, np.int64)
    joined = np.zeros(q, np.bool_)
    active = np.empty(q, np.int64)
    z = np.empty(q)
    signs = np.empty(q)
    target = np.empty(q + PAD)
    rhs = np.empty(q + PAD)
    inverse_gram = np.empty((room, _padded(room) + 8))
    residual = np.empty(x.shape[1])
    dense = np.empty(q)
    dense_u = np.empty(q)
    largest, steepest = 0.0, 0.0
    for i in range(q):
        largest = max(largest, exact_gram[i, i])
        steepest = max(steepest, 1.0 / lam[i])
    rounding = max(np.finfo(c.dtype).eps, np.finfo(codes.dtype).eps) * (x.shape[1] + 16.0)
    double = c.itemsize == 8
    for row in range(n):
        energy = 0.0
        for i in range(x.shape[1]):
            energy += np.float64(x[row, i]) * np.float64(x[row, i])
        size = _load(codes[row], active, z, signs, joined) if warm else 0
        solved = size <= room
        known = 0
        count = 0
        value = bound = best = np.inf
        while solved:
            size, solved = _enter(
                gram, active, z, signs, joined, rhs, target, inverse_gram, known, size
            )
            if not solved:
                break
            size = _solve_support(
                c[row], lam, active, z, signs, target, rhs, inverse_gram, joined, size
            )
            known = size
            _correlate(c[row], gram, active, z, size, u)
            gauge = _gauge(u, inverse, nonnegative, excess, excess_bits)
            value, bound = _estimate(c[row], lam, active, z, signs, size, gauge, energy)
            if count >= max_iter or bound <= 0.25 * tol * value:
                break
            if not value < best:
                break
            best = value
            size = _grow(u, excess, gauge, listed, active, z, signs, joined, size, room)
            if size == known:
                break
            count += 1
        moved = 0.0
        attempts = 0
        value = np.inf
        while True:
            if not solved:
                size, sweeps = _descend(
                    x[row], atoms, exact_gram, lam, nonnegative, energy, active, z, size,
                    dense, dense_u, tol, max_iter - count,
                )  # fmt: skip
                count += sweeps
                for i in range(q):
                    u[i] = dense_u[i]
                    joined[i] = False
                _gauge(u, inverse, nonnegative, excess, excess_bits)
            before = value
            value, bound = _store(
                x[row], energy, atoms, lam, ridge, nonnegative, codes[row], active, z, target,
                size, excess, listed, rounding, largest, steepest, residual, moved,
            )  # fmt: skip
            if bound <= tol * value or not solved:
                break
            if value > before:
                for k in range(size):
                    z[k] = dense[k]
            elif size > 0 and attempts < REFINEMENTS:
                # the search rounds to its own dtype: refine with exact correlations
                attempts += 1
                for k in range(size):
                    dense[k] = z[k]
                moved += _refine(lam, active, z, signs, target, rhs, inverse_gram, size)
                continue
            if not double or count >= max_iter:
                break
            solved = False  # rounding ended the search, as with nearly dependent atoms
        for k in range(size):
            joined[active[k]] = False
        objective[row] = value
        gap[row] = bound
        iterations[row] = count


@_compiled
def _load(code: Array, active: Array, z: Array, signs: Array, joined: Array) -> int:
    """The support of the starting code; returns its size."""
    size = 0
    for i in range(code.shape[0]):
        if code[i] != 0:
            active[size] = i
            z[size] = code[i]
            signs[size] = 1.0 if code[i] > 0 else -1.0
            joined[i] = True
            size += 1
    return size


@_inlined
def _correlate(c: Array, gram: Array, active: Array, z: Array, size: int, u: Array) -> None:
    """``u = c - G z``, two atoms at a time so that u is loaded and stored half as often."""
    q = c.shape[0]
    for i in range(q):
        u[i] = c[i]
    k = 0
    while k + 1 < size:
        first, second = gram[active[k]], gram[active[k + 1]]
        a, b = c.dtype.type(z[k]), c.dtype.type(z[k + 1])
        for i in range(q):
            u[i] -= a * first[i] + b * second[i]
        k += 2
    if k < size:
        first = gram[active[k]]
        a = c.dtype.type(z[k])
        for i in range(q):
            u[i] -= a * first[i]


@_inlined
def _gauge(u: Array, inverse: Array, nonnegative: bool, excess: Array, excess_bits: Array) -> float:
    """``excess_i = |u_i| / lam_i`` (``u_i / lam_i`` if non-negative); returns the largest."""
    q = u.shape[0]
    if nonnegative:
        for i in range(q):
            excess[i] = u[i] * inverse[i]
    else:
        for i in range(q):
            excess[i] = abs(u[i]) * inverse[i]
    worst = excess_bits[0]
    for i in range(q):
        worst = max(worst, excess_bits[i])
    excess_bits[q] = worst  # the spare entry turns the bits back into a number
    return max(np.float64(excess[q]), 0.0)


@_inlined
def _list_above(excess: Array, threshold: float, listed: Array) -> int:
    """The numbers of the entries above a threshold, found without branches; returns how many."""
    limit = excess.dtype.type(threshold)
    count = 0
    for i in range(excess.shape[0] - 1):
        listed[count] = i
        count += excess[i] >= limit
    return count


@_inlined
def _estimate(
    c: Array, lam: Array, active: Array, z: Array, signs: Array, size: int, gauge: float,
    energy: float,
) -> tuple[float, float]:  # fmt: skip
    """Objective and gap of a solved support, where ``||r||^2 = ||x||^2 - z'(c + lam s)``."""
    square, charge = energy, 0.0
    for k in range(size):
        i = active[k]
        square -= z[k] * (c[i] + lam[i] * signs[k])
        charge += lam[i] * abs(z[k])
    square = max(square, 0.0)
    slack = 1.0 - 1.0 / max(gauge, 1.0)
    return 0.5 * square + charge, 0.5 * slack * slack * square + slack * charge


@_inlined
def _grow(
    u: Array, excess: Array, gauge: float, listed: Array, active: Array, z: Array, signs: Array,
    joined: Array, size: int, room: int,
) -> int:  # fmt: skip
    """Let the worst violators join the support, with value 0 and the sign they pull to."""
    most = min(size + JOIN, room)
    for k in range(_list_above(excess, 1.0 + FRACTION * (gauge - 1.0), listed)):
        i = listed[k]
        if excess[i] > 1.0 and not joined[i] and size < most:
            active[size] = i
            z[size] = 0.0
            signs[size] = 1.0 if u[i] > 0 else -1.0
            joined[i] = True
            size += 1
    return size


@_inlined
def _enter(
    gram: Array, active: Array, z: Array, signs: Array, joined: Array, column: Array, image: Array,
    inverse_gram: Array, known: int, size: int,
) -> tuple[int, bool]:  # fmt: skip
    """Take those that joined, at `known` to `size`, into the inverse.

    An atom that depends on the solved support changes places with one of it (`_exchange`); one
    that depends on others that joined with it waits for its turn. Returns the new size, and False
    if neither could be done.
    """
    first = known
    while known < size:
        if _insert(gram, active, known, column, image, inverse_gram):
            known += 1
            continue
        if known == first:
            leaving = _exchange(z, signs, image, known)
            if leaving < 0:
                return size, False
            joined[active[leaving]] = False
            _delete(inverse_gram, leaving, known, column)
            known -= 1
            first = known
            _move(active, z, signs, known, leaving)
            _move(active, z, signs, known + 1, known)
            _move(active, z, signs, size - 1, known + 1)
        else:
            joined[active[known]] = False
            _move(active, z, signs, size - 1, known)
        size -= 1
    return size, True


@_inlined
def _move(active: Array, z: Array, signs: Array, source: int, target: int) -> None:
    active[target], z[target], signs[target] = active[source], z[source], signs[source]


@_compiled
def _exchange(z: Array, signs: Array, image: Array, known: int) -> int:
    """Move along a direction that leaves the residual as it is, until a coefficient is zero.

    The new atom equals the combination `image` of the solved support, so adding t times its sign
    to its coefficient and taking as much off the others changes only the penalty, which falls
    since the atom violates its bound. Returns who reaches zero first, or -1.
    """
    sign = signs[known]
    step, leaving = 1e300, -1
    for k in range(known):
        pull = sign * image[k]
        if pull * signs[k] > 0 and z[k] / pull < step:
            step, leaving = z[k] / pull, k
    if leaving >= 0:
        for k in range(known):
            z[k] -= step * sign * image[k]
        z[known] += step * sign
        z[leaving] = 0.0
    return leaving


@_inlined
def _solve_support(
    c: Array, lam: Array, active: Array, z: Array, signs: Array, target: Array, rhs: Array,
    inverse_gram: Array, joined: Array, size: int,
) -> int:  # fmt: skip
    """Minimise over the support: solve, step to the first sign change, drop it, solve again.

    The objective falls with every step. Returns the size of the support.
    """
    while size > 0:
        for k in range(size):
            rhs[k] = c[active[k]] - lam[active[k]] * signs[k]
        _multiply(inverse_gram, rhs, size, target)
        step, leaving = 1.0, -1
        for k in range(size):
            if target[k] * signs[k] <= 0:
                ratio = z[k] / (z[k] - target[k]) if z[k] != 0 else 0.0
                if ratio < step:
                    step, leaving = ratio, k
        for k in range(size):
            z[k] += step * (target[k] - z[k])
        if leaving < 0:
            break
        joined[active[leaving]] = False
        _delete(inverse_gram, leaving, size, rhs)
        size -= 1
        active[leaving], z[leaving], signs[leaving] = active[size], z[size], signs[size]
    return size


@_inlined
def _padded(size: int) -> int:
    """Rows are worked on in full vectors: a scalar remainder would cost more than it saves."""
    return (size + PAD - 1) // PAD * PAD


@_inlined
def _multiply(inverse_gram: Array, values: Array, size: int, product: Array) -> None:
    """``product = G_AA^{-1} values``, as a sum of rows, since the matrix is symmetric."""
    width = _padded(size)
    for p in range(width):
        product[p] = 0.0
    for k in range(size):
        row = inverse_gram[k]
        value = values[k]
        for p in range(width):
            product[p] += value * row[p]


@_inlined
def _insert(
    gram: Array, active: Array, size: int, column: Array, image: Array, inverse_gram: Array
) -> bool:
    """Border the inverse by the atom ``active[size]``; False if it depends on the others.

    With g the new column of G_AA, ``h = B g`` and ``s = G_ii - g'h``, the inverse B becomes
    ``[[B + h h'/s, -h/s], [-h'/s, 1/s]]``.
    """
    atom = gram[active[size]]
    diagonal = np.float64(atom[active[size]])
    for k in range(size):
        column[k] = atom[active[k]]
    _multiply(inverse_gram, column, size, image)
    pivot = diagonal
    for k in range(size):
        pivot -= column[k] * image[k]
    # the inverse magnifies rounding by diagonal / pivot, in the next pivot too: hence the root
    if pivot <= 8 * np.sqrt(np.finfo(gram.dtype).eps) * diagonal:
        return False
    width = _padded(size + 1)
    for p in range(size, width):
        image[p] = 0.0
    image[size] = -1.0
    scale = 1.0 / pivot
    new = inverse_gram[size]
    for p in range(width):
        new[p] = 0.0
    if size % PAD == 0:  # the rows reach into a stretch that was not used before
        for k in range(size):
            for p in range(size, width):
                inverse_gram[k, p] = 0.0
    for k in range(size + 1):
        row = inverse_gram[k]
        factor = scale * image[k]
        for p in range(width):
            row[p] += factor * image[p]
    return True


@_inlined
def _delete(inverse_gram: Array, leaving: int, size: int, column: Array) -> None:
    """Take an atom out of the inverse, ``B <- B - b b'/b_j``, and move the last one there."""
    width = _padded(size)
    last = size - 1
    scale = -1.0 / inverse_gram[leaving, leaving]
    for p in range(width):
        column[p] = inverse_gram[leaving, p]
    for k in range(size):
        row = inverse_gram[k]
        factor = scale * column[k]
        for p in range(width):
            row[p] += factor * column[p]
    for p in range(width):
        inverse_gram[leaving, p] = inverse_gram[last, p]
    for k in range(size):
        inverse_gram[k, leaving] = inverse_gram[k, last]
        inverse_gram[k, last] = 0.0


@_inlined
def _store(
    x: Array, energy: float, atoms: Array, lam: Array, ridge: Array,
    nonnegative: bool, code: Array, active: Array, z: Array, target: Array, size: int,
    excess: Array, listed: Array, rounding: float, largest: float, steepest: float,
    residual: Array, moved: float,
) -> tuple[float, float]:  # fmt: skip
    """Write the code and certify what was written, in float64.

    The dual point is the residual r of z before it is rounded to the stored code, scaled by
    ``k = 1 / max(1, gauge)``. With ``d = z - code`` the residual of the code is ``r + d D``, and

        gap = 1/2 ||(1 - k) r + d D||^2 + sum_i (lam_i |code_i| - k code_i u_i),

    where ``||d D||^2`` is replaced by a bound. Off the support most correlations of the search
    are so far below lam that their error cannot matter; the others are computed anew. `target`
    returns the exact correlations on the support.
    """
    m = x.shape[0]
    code[:] = 0
    for i in range(m):
        residual[i] = x[i]
    _subtract(atoms, active, z, size, residual)
    quadratic = 0.0
    for j in range(m):
        quadratic += residual[j] * residual[j]
    gauge, charge, product, cross, total, lost = 1.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(size):
        i = active[k]
        code[i] = z[k]
        value = np.float64(code[i])
        exact = _dot(atoms[i], residual) - ridge[i] * z[k]
        target[k] = exact
        quadratic += ridge[i] * z[k] * z[k]
        charge += lam[i] * abs(value)
        product += exact * value
        cross += exact * (z[k] - value)
        total += abs(z[k])
        lost += abs(z[k] - value)
        gauge = max(gauge, (exact if nonnegative else abs(exact)) / lam[i])
    margin = rounding * (np.sqrt(energy * largest) + total * largest) + moved * largest
    for k in range(_list_above(excess, 1.0 - margin * steepest, listed)):
        i = listed[k]
        if code[i] == 0:
            exact = _dot(atoms[i], residual)
            gauge = max(gauge, (exact if nonnegative else abs(exact)) / lam[i])
    scale = 1.0 / gauge
    slack = 1.0 - scale
    second = lost * lost * largest
    objective = 0.5 * (quadratic + 2.0 * cross + second) + charge
    gap = 0.5 * (slack * slack * quadratic + 2.0 * slack * cross + second)
    gap += charge - scale * product
    return objective, max(gap, 0.0) + 16 * np.finfo(np.float64).eps * objective


@_inlined
def _subtract(atoms: Array, active: Array, values: Array, size: int, residual: Array) -> None:
    """``residual -= z D``, four atoms at a time so that it is loaded and stored less often."""
    m = residual.shape[0]
    k = 0
    while k + 3 < size:
        d0, d1 = atoms[active[k]], atoms[active[k + 1]]
        d2, d3 = atoms[active[k + 2]], atoms[active[k + 3]]
        z0, z1, z2, z3 = values[k], values[k + 1], values[k + 2], values[k + 3]
        for j in range(m):
            residual[j] -= (z0 * d0[j] + z1 * d1[j]) + (z2 * d2[j] + z3 * d3[j])
        k += 4
    while k < size:
        d0 = atoms[active[k]]
        z0 = values[k]
        for j in range(m):
            residual[j] -= z0 * d0[j]
        k += 1


@_inlined
def _dot(atom: Array, residual: Array) -> float:
    product = 0.0
    for j in range(residual.shape[0]):
        product += residual[j] * atom[j]
    return product


@_compiled
def _refine(
    lam: Array, active: Array, z: Array, signs: Array, target: Array,
    rhs: Array, inverse_gram: Array, size: int,
) -> float:  # fmt: skip
    """One step of iterative refinement on the support; returns how far the code moved."""
    for k in range(size):
        rhs[k] = target[k] - lam[active[k]] * signs[k]
    _multiply(inverse_gram, rhs, size, target)
    moved = 0.0
    for k in range(size):
        refined = z[k] + target[k]
        if refined * signs[k] > 0:
            moved += abs(refined - z[k])
            z[k] = refined
    return moved


@_compiled
def _descend(
    x: Array, atoms: Array, gram: Array, lam: Array, nonnegative: bool, energy: float,
    active: Array, z: Array, size: int, dense: Array, u: Array, tol: float, max_iter: int,
) -> tuple[int, int]:  # fmt: skip
    """Cyclic coordinate descent in float64, for supports whose atoms depend on each other.

    Returns the size of the support and the number of sweeps.
    """
    q = dense.shape[0]
    dense[:] = 0.0
    for k in range(size):
        dense[active[k]] = z[k]
    for i in range(q):
        entry = 0.0
        for j in range(x.shape[0]):
            entry += atoms[i, j] * np.float64(x[j])
        u[i] = entry
    for k in range(size):
        for i in range(q):
            u[i] -= z[k] * gram[active[k], i]
    sweeps = 0
    while sweeps < max_iter:
        sweeps += 1
        for i in range(q):
            pull = u[i] + gram[i, i] * dense[i]
            if nonnegative or pull > 0:
                new = max(pull - lam[i], 0.0) / gram[i, i]
            else:
                new = min(pull + lam[i], 0.0) / gram[i, i]
            change = new - dense[i]
            if change != 0.0:
                dense[i] = new
                row = gram[i]
                for j in range(q):
                    u[j] -= change * row[j]
        gauge, charge, product, fit = 1.0, 0.0, 0.0, 0.0
        for i in range(q):
            gauge = max(gauge, (u[i] if nonnegative else abs(u[i])) / lam[i])
            charge += lam[i] * abs(dense[i])
            product += u[i] * dense[i]
            entry = 0.0
            for j in range(x.shape[0]):
                entry += atoms[i, j] * np.float64(x[j])
            fit += entry * dense[i]
        square = max(energy - fit - product, 0.0)
        scale = 1.0 / gauge
        bound = 0.5 * (1.0 - scale) ** 2 * square + charge - scale * product
        if bound <= 0.25 * tol * (0.5 * square + charge):
            break
    size = 0
    for i in range(q):
        if dense[i] != 0.0:
            active[size] = i
            z[size] = dense[i]
            size += 1
    return size, sweeps
