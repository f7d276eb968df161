"""Compiled Lasso codes: an active set grown by the worst violators, with exact support solves.

The cost of a row follows its few non-zero coefficients, not the size of the dictionary.

For one row, with correlations ``c = D x``, Gram matrix G (the ridge on its diagonal) and
``u = c - G z`` the correlation of the residual, z is optimal exactly if ``u_i = lam_i sign(z_i)``
on the support and ``|u_i| <= lam_i`` (``u_i <= lam_i`` if non-negative) off it. With signs s on a
support A the code is ``z_A = G_AA^{-1} (c_A - lam_A s)``, as long as the signs agree.

A row takes two stages. `_search` finds the support in the dtype of the correlations; `_finish`
writes the code, certifies it in float64 and improves it where rounding ended the search too early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._numba import FINITE, Array, compiler
from ..certificates import ROUNDING

if TYPE_CHECKING:
    from .tiles import Rows

#: a violator joins the support if its excess is at least this fraction of the largest one
FRACTION = 0.7
#: the largest number of atoms that join at once
JOIN = 8
#: how often the code of a solved support is refined to the accuracy of float64
REFINEMENTS = 2
#: the largest support that is solved directly; larger ones are left to coordinate descent
LARGEST_SUPPORT = 1024
#: the rows of the inverse are padded to full vectors
PAD = 16

_compiled, _inlined = compiler(FINITE), compiler(FINITE, forceinline=True)


class Problem(NamedTuple):
    """What all rows share."""

    gram: Array  # D D' + diag(ridge), (q, q), in the dtype of the search
    exact_gram: Array  # the same in float64
    atoms: Array  # D, (q, m), in the dtype of the signals, which saves memory traffic in float32
    lam: Array  # weights, (q,), float64, all positive
    inverse_lam: Array  # 1 / lam in the dtype of the search
    ridge: Array  # (q,), float64
    nonnegative: bool
    tol: float  # a row is done when gap <= tol * objective, or after `max_iter` rounds
    max_iter: int
    largest: float  # max_i G_ii
    steepest: float  # max_i 1 / lam_i
    rounding: float  # relative error of a correlation of the search


class Support(NamedTuple):
    """The active set of one row; entry k belongs to the atom ``active[k]``.

    Its size is a plain number that the functions take and return, since a tuple cannot change.
    """

    active: Array  # (q,)
    z: Array  # coefficients, (q,), float64
    signs: Array  # (q,), float64
    member: Array  # whether an atom belongs to the support, (q,), by atom
    inverse: Array  # G_AA^{-1}, float64, with padded rows


class Work(NamedTuple):
    """Scratch memory, allocated once for all rows."""

    u: Array  # correlations of the residual, (q,), in the dtype of the search
    excess: Array  # |u_i| / lam_i and one spare entry, (q + 1,), in the same dtype
    excess_bits: Array  # the memory of `excess` as integers
    listed: Array  # indices of atoms, (q + 1,)
    target: Array  # (q + PAD,), float64
    rhs: Array  # (q + PAD,), float64
    residual: Array  # (m,), float64
    dense: Array  # a code, or a copy of `Support.z`, (q,), float64
    exact_u: Array  # (q,), float64


def make_problem(
    gram: Array, atoms: Array, lam: Array, ridge: Array, nonnegative: bool, tol: float,
    max_iter: int, search: type,
) -> Problem:  # fmt: skip
    """Prepare what all rows share, for a search in float32 or float64; `gram` is in float64."""
    eps = max(np.finfo(search).eps, np.finfo(atoms.dtype).eps)
    return Problem(
        gram.astype(search, copy=False), gram, atoms, lam, (1.0 / lam).astype(search), ridge,
        nonnegative, tol, max_iter,
        largest=float(gram.diagonal().max()),
        steepest=float((1.0 / lam).max()),
        rounding=float(eps) * (atoms.shape[1] + 16.0),
    )  # fmt: skip


def make_scratch(problem: Problem) -> tuple[Support, Work]:
    """Allocate the memory for the rows that one thread solves."""
    (q, m), dtype = problem.atoms.shape, problem.gram.dtype
    capacity = min(q, LARGEST_SUPPORT)
    inverse = np.empty((capacity, -(-capacity // PAD) * PAD + 8))
    member = np.zeros(q, np.bool_)
    support = Support(np.empty(q, np.int64), np.empty(q), np.empty(q), member, inverse)
    excess = np.empty(q + 1, dtype)
    work = Work(
        np.empty(q, dtype), excess, excess.view(np.int32 if dtype == np.float32 else np.int64),
        listed=np.empty(q + 1, np.int64), target=np.empty(q + PAD), rhs=np.empty(q + PAD),
        residual=np.empty(m), dense=np.empty(q), exact_u=np.empty(q),
    )  # fmt: skip
    return support, work


@_compiled
def active_set(
    problem: Problem, support: Support, work: Work, x: Array, c: Array, rows: Rows, warm: bool
) -> None:
    """Solve every row of a tile.

    x (n, m) are the signals, c (n, q) their correlations in the dtype of the search. Objective and
    gap are those of the codes as stored. `warm` says whether ``rows.codes`` holds a start.
    """
    for row in range(c.shape[0]):
        energy, code = _dot(x[row], x[row]), rows.codes[row]
        size = _load(code, support) if warm else 0
        size, count, solved = _search(problem, support, work, c[row], energy, size)
        size, count, rows.objective[row], rows.gap[row] = _finish(
            problem, support, work, x[row], code, energy, size, count, solved
        )
        rows.iterations[row] = count
        for k in range(size):
            support.member[support.active[k]] = False


@_compiled
def _load(code: Array, support: Support) -> int:
    """Read the support of the starting code; return its size."""
    size = 0
    for i in range(code.shape[0]):
        if code[i] != 0:
            support.active[size] = i
            support.z[size] = code[i]
            support.signs[size] = 1.0 if code[i] > 0 else -1.0
            support.member[i] = True
            size += 1
    return size


# The two stages of a row ----------------------------------------------------------------------


@_inlined
def _search(
    problem: Problem, support: Support, work: Work, c: Array, energy: float, size: int
) -> tuple[int, int, bool]:
    """Solve on the support and let the worst violators join, until there are none.

    Return the size of the support, the number of rounds, and False if the support is too large or
    its atoms are too dependent to be solved directly.
    """
    known, count, best = 0, 0, np.inf
    if size > support.inverse.shape[0]:
        return size, count, False
    while True:
        size, entered = _enter(problem, support, work, known, size)
        if not entered:
            return size, count, False
        known = size = _solve_support(problem, support, work, c, size)
        _correlate(problem, support, work, c, size)
        gauge = _gauge(problem, work)
        value, bound = _estimate(problem, support, c, size, gauge, energy)
        if count >= problem.max_iter or bound <= 0.25 * problem.tol * value or not value < best:
            return size, count, True
        best = value
        size = _grow(support, work, gauge, size)
        if size == known:
            return size, count, True
        count += 1


@_inlined
def _finish(
    problem: Problem, support: Support, work: Work, x: Array, code: Array, energy: float,
    size: int, count: int, solved: bool,
) -> tuple[int, int, float, float]:  # fmt: skip
    """Write the code and certify it; refine it, or descend by coordinates, if it misses `tol`.

    Return the size of the support, the number of rounds, objective and gap.
    """
    if not solved:
        size, sweeps = _descend(problem, support, work, x, energy, size, problem.max_iter - count)
        count += sweeps
    value, moved, attempts = np.inf, 0.0, 0
    while True:
        before = value
        value, bound = _store(problem, support, work, x, code, energy, size, moved)
        if bound <= problem.tol * value or not solved:
            break
        if value > before:  # the refinement made it worse
            for k in range(size):
                support.z[k] = work.dense[k]
        elif size > 0 and attempts < REFINEMENTS:
            attempts += 1
            moved += _refine(problem, support, work, size)
            continue
        if problem.gram.itemsize < 8 or count >= problem.max_iter:
            break
        # rounding ended the search, as with nearly dependent atoms
        solved = False
        size, sweeps = _descend(problem, support, work, x, energy, size, problem.max_iter - count)
        count += sweeps
    return size, count, value, bound


# Search: correlations of all atoms, and who joins ---------------------------------------------


@_inlined
def _correlate(problem: Problem, support: Support, work: Work, c: Array, size: int) -> None:
    """``u = c - G z``, two atoms at a time so that u is loaded and stored half as often."""
    gram, active, z, u = problem.gram, support.active, support.z, work.u
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
        first, a = gram[active[k]], c.dtype.type(z[k])
        for i in range(q):
            u[i] -= a * first[i]


@_inlined
def _gauge(problem: Problem, work: Work) -> float:
    """``excess_i = |u_i| / lam_i`` (``u_i / lam_i`` if non-negative); return the largest."""
    u, inverse, excess, bits = work.u, problem.inverse_lam, work.excess, work.excess_bits
    q = u.shape[0]
    if problem.nonnegative:
        for i in range(q):
            excess[i] = u[i] * inverse[i]
    else:
        for i in range(q):
            excess[i] = abs(u[i]) * inverse[i]
    worst = bits[0]
    for i in range(q):
        worst = max(worst, bits[i])
    bits[q] = worst  # the spare entry turns the bits back into a number
    return max(np.float64(excess[q]), 0.0)


@_inlined
def _list_above(excess: Array, threshold: float, listed: Array) -> int:
    """List the entries above a threshold, without branches; return their number."""
    limit = excess.dtype.type(threshold)
    count = 0
    for i in range(excess.shape[0] - 1):
        listed[count] = i
        count += excess[i] >= limit
    return count


@_inlined
def _estimate(
    problem: Problem, support: Support, c: Array, size: int, gauge: float, energy: float
) -> tuple[float, float]:
    """Objective and gap of a solved support, where ``||r||^2 = ||x||^2 - z'(c + lam s)``."""
    lam, active, z, signs = problem.lam, support.active, support.z, support.signs
    square, penalty = energy, 0.0
    for k in range(size):
        i = active[k]
        square -= z[k] * (c[i] + lam[i] * signs[k])
        penalty += lam[i] * abs(z[k])
    square = max(square, 0.0)
    slack = 1.0 - 1.0 / max(gauge, 1.0)
    return 0.5 * square + penalty, 0.5 * slack * slack * square + slack * penalty


@_inlined
def _grow(support: Support, work: Work, gauge: float, size: int) -> int:
    """Let the worst violators join with value 0 and the sign of u; return the new size."""
    u, excess, member = work.u, work.excess, support.member
    most = min(size + JOIN, support.inverse.shape[0])
    for k in range(_list_above(excess, 1.0 + FRACTION * (gauge - 1.0), work.listed)):
        i = work.listed[k]
        if excess[i] > 1.0 and not member[i] and size < most:
            support.active[size] = i
            support.z[size] = 0.0
            support.signs[size] = 1.0 if u[i] > 0 else -1.0
            member[i] = True
            size += 1
    return size


# Search: solving on the support ---------------------------------------------------------------


@_inlined
def _enter(
    problem: Problem, support: Support, work: Work, known: int, size: int
) -> tuple[int, bool]:
    """Border the inverse by the atoms at positions `known` to `size`, which have just joined.

    An atom that depends on the solved support replaces one atom of it (`_exchange`); one that
    depends on others that joined with it leaves again, and may join in a later round. Return the
    new size, and False if an atom could be neither added nor exchanged.
    """
    active, member, inverse = support.active, support.member, support.inverse
    first = known
    while known < size:
        if _insert(problem, support, work, known):
            known += 1
            continue
        if known == first:
            leaving = _exchange(support.z, support.signs, work.target, known)
            if leaving < 0:
                return size, False
            member[active[leaving]] = False
            _delete(inverse, leaving, known, work.rhs)
            known -= 1
            first = known
            _move(support, known, leaving)
            _move(support, known + 1, known)
            _move(support, size - 1, known + 1)
        else:
            member[active[known]] = False
            _move(support, size - 1, known)
        size -= 1
    return size, True


@_inlined
def _move(support: Support, source: int, target: int) -> None:
    """Copy an entry of the support to another position."""
    support.active[target] = support.active[source]
    support.z[target] = support.z[source]
    support.signs[target] = support.signs[source]


@_compiled
def _exchange(z: Array, signs: Array, image: Array, known: int) -> int:
    """Move along a direction that does not change the residual until a coefficient is zero.

    The new atom, at position `known`, equals the combination `image` of the solved support. Adding
    t times its sign to its coefficient and subtracting the same combination from the others changes
    only the penalty, which decreases because the atom violates its bound. Return the position that
    reaches zero first, or -1.
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
def _solve_support(problem: Problem, support: Support, work: Work, c: Array, size: int) -> int:
    """Solve, step to the first sign change, drop that atom, and solve again; return the size."""
    lam, active, z, signs = problem.lam, support.active, support.z, support.signs
    target, rhs = work.target, work.rhs
    while size > 0:
        for k in range(size):
            rhs[k] = c[active[k]] - lam[active[k]] * signs[k]
        _multiply(support.inverse, rhs, size, target)
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
        support.member[active[leaving]] = False
        _delete(support.inverse, leaving, size, rhs)
        size -= 1
        _move(support, size, leaving)
    return size


@_inlined
def _padded(size: int) -> int:
    """Length of a row in full vectors: a scalar remainder would cost more than it saves."""
    return (size + PAD - 1) // PAD * PAD


@_inlined
def _multiply(inverse: Array, values: Array, size: int, product: Array) -> None:
    """``product = G_AA^{-1} values``, as a sum of rows, since the matrix is symmetric."""
    width = _padded(size)
    for p in range(width):
        product[p] = 0.0
    for k in range(size):
        row, value = inverse[k], values[k]
        for p in range(width):
            product[p] += value * row[p]


@_inlined
def _insert(problem: Problem, support: Support, work: Work, size: int) -> bool:
    """Border the inverse by the atom ``active[size]``; return False if it depends on the others.

    With g the new column of G_AA, ``h = B g`` and ``s = G_ii - g'h``, the inverse B becomes
    ``[[B + h h'/s, -h/s], [-h'/s, 1/s]]``. `Work.target` receives h.
    """
    active, inverse = support.active, support.inverse
    column, image = work.rhs, work.target
    atom = problem.gram[active[size]]
    diagonal = np.float64(atom[active[size]])
    for k in range(size):
        column[k] = atom[active[k]]
    _multiply(inverse, column, size, image)
    pivot = diagonal
    for k in range(size):
        pivot -= column[k] * image[k]
    # the inverse magnifies rounding by diagonal / pivot, in the next pivot too: hence the root
    if pivot <= 8 * np.sqrt(np.finfo(problem.gram.dtype).eps) * diagonal:
        return False
    width = _padded(size + 1)
    for p in range(size, width):
        image[p] = 0.0
    image[size] = -1.0
    scale = 1.0 / pivot
    new = inverse[size]
    for p in range(width):
        new[p] = 0.0
    if size % PAD == 0:  # the rows become longer by one vector
        for k in range(size):
            for p in range(size, width):
                inverse[k, p] = 0.0
    for k in range(size + 1):
        row, factor = inverse[k], scale * image[k]
        for p in range(width):
            row[p] += factor * image[p]
    return True


@_inlined
def _delete(inverse: Array, leaving: int, size: int, column: Array) -> None:
    """Remove an atom from the inverse, ``B <- B - b b'/b_j``; the last one takes its place."""
    width, last = _padded(size), size - 1
    scale = -1.0 / inverse[leaving, leaving]
    for p in range(width):
        column[p] = inverse[leaving, p]
    for k in range(size):
        row, factor = inverse[k], scale * column[k]
        for p in range(width):
            row[p] += factor * column[p]
    for p in range(width):
        inverse[leaving, p] = inverse[last, p]
    for k in range(size):
        inverse[k, leaving] = inverse[k, last]
        inverse[k, last] = 0.0


# Finish: certificate, refinement, coordinate descent ------------------------------------------


@_inlined
def _store(
    problem: Problem, support: Support, work: Work, x: Array, code: Array, energy: float,
    size: int, moved: float,
) -> tuple[float, float]:  # fmt: skip
    """Write the code and return objective and gap of what was written, in float64.

    The dual point is the residual r of z before it is rounded to the stored code, scaled by
    ``k = 1 / max(1, gauge)``. With ``d = z - code`` the residual of the code is ``r + d D``, and

        gap = 1/2 ||(1 - k) r + d D||^2 + sum_i (lam_i |code_i| - k code_i u_i),

    where ``||d D||^2`` is replaced by a bound. Off the support most correlations of the search are
    so far below lam that their error cannot matter; the others are computed again. `moved` is the
    1-norm of the change of z since the search. `Work.target` receives the exact correlations on the
    support.
    """
    atoms, lam, ridge, nonnegative = problem.atoms, problem.lam, problem.ridge, problem.nonnegative
    active, z, residual, largest = support.active, support.z, work.residual, problem.largest
    code[:] = 0
    for i in range(x.shape[0]):
        residual[i] = x[i]
    _subtract(atoms, active, z, size, residual)
    quadratic = _dot(residual, residual)
    gauge, penalty, product, cross, total, lost = 1.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(size):
        i = active[k]
        code[i] = z[k]
        value = np.float64(code[i])
        exact = _dot(atoms[i], residual) - ridge[i] * z[k]
        work.target[k] = exact
        quadratic += ridge[i] * z[k] * z[k]
        penalty += lam[i] * abs(value)
        product += exact * value
        cross += exact * (z[k] - value)
        total += abs(z[k])
        lost += abs(z[k] - value)
        gauge = max(gauge, (exact if nonnegative else abs(exact)) / lam[i])
    margin = problem.rounding * (np.sqrt(energy * largest) + total * largest) + moved * largest
    for k in range(_list_above(work.excess, 1.0 - margin * problem.steepest, work.listed)):
        i = work.listed[k]
        if code[i] == 0:
            exact = _dot(atoms[i], residual)
            gauge = max(gauge, (exact if nonnegative else abs(exact)) / lam[i])
    scale = 1.0 / gauge
    slack = 1.0 - scale
    second = lost * lost * largest
    objective = 0.5 * (quadratic + 2.0 * cross + second) + penalty
    gap = 0.5 * (slack * slack * quadratic + 2.0 * slack * cross + second)
    gap += penalty - scale * product
    return objective, max(gap, 0.0) + ROUNDING * objective


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
        d0, z0 = atoms[active[k]], values[k]
        for j in range(m):
            residual[j] -= z0 * d0[j]
        k += 1


@_inlined
def _dot(atom: Array, vector: Array) -> float:
    """Correlation of an atom with a signal or a residual, in float64."""
    product = 0.0
    for j in range(vector.shape[0]):
        product += np.float64(vector[j]) * atom[j]
    return product


@_compiled
def _refine(problem: Problem, support: Support, work: Work, size: int) -> float:
    """Take one step of iterative refinement on the support; return how far the code moved.

    The search rounds to its dtype; the correlations in `Work.target` are exact. `Work.dense`
    receives a copy of z before the step.
    """
    z, signs, target, rhs = support.z, support.signs, work.target, work.rhs
    for k in range(size):
        work.dense[k] = z[k]
        rhs[k] = target[k] - problem.lam[support.active[k]] * signs[k]
    _multiply(support.inverse, rhs, size, target)
    moved = 0.0
    for k in range(size):
        refined = z[k] + target[k]
        if refined * signs[k] > 0:
            moved += abs(refined - z[k])
            z[k] = refined
    return moved


@_compiled
def _descend(
    problem: Problem, support: Support, work: Work, x: Array, energy: float, size: int, most: int
) -> tuple[int, int]:
    """Cyclic coordinate descent in float64, at most `most` sweeps, for dependent atoms.

    Starts from the support and replaces it. `Work.u` and `Work.excess` receive the correlations of
    the result. Return the size of the support and the number of sweeps.
    """
    gram, lam, nonnegative = problem.exact_gram, problem.lam, problem.nonnegative
    dense, u = work.dense, work.exact_u
    q = dense.shape[0]
    dense[:] = 0.0
    for k in range(size):
        dense[support.active[k]] = support.z[k]
    for i in range(q):
        u[i] = _dot(problem.atoms[i], x)
    for k in range(size):
        for i in range(q):
            u[i] -= support.z[k] * gram[support.active[k], i]
    sweeps = 0
    while sweeps < most:
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
        if _descent_is_over(problem, work, x, energy):
            break
    size = 0
    for i in range(q):
        work.u[i] = u[i]
        support.member[i] = False
        if dense[i] != 0.0:
            support.active[size] = i
            support.z[size] = dense[i]
            size += 1
    _gauge(problem, work)
    return size, sweeps


@_compiled
def _descent_is_over(problem: Problem, work: Work, x: Array, energy: float) -> bool:
    """Whether the gap of the code in `Work.dense` is at most a quarter of what `tol` allows."""
    lam, dense, u = problem.lam, work.dense, work.exact_u
    gauge, penalty, product, fit = 1.0, 0.0, 0.0, 0.0
    for i in range(dense.shape[0]):
        gauge = max(gauge, (u[i] if problem.nonnegative else abs(u[i])) / lam[i])
        penalty += lam[i] * abs(dense[i])
        product += u[i] * dense[i]
        fit += _dot(problem.atoms[i], x) * dense[i]
    square = max(energy - fit - product, 0.0)
    scale = 1.0 / gauge
    bound = 0.5 * (1.0 - scale) ** 2 * square + penalty - scale * product
    return bound <= 0.25 * problem.tol * (0.5 * square + penalty)
