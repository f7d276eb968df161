"""Compiled exact codes of robust PCA and robust NMF: what both methods share.

A row minimises, over the scores s (q,) and the outliers o (m,), both non-negative for robust NMF,

    1/2 ||x - s D0 - o||^2 + lam_star/2 ||s||^2 + sum_i lam_i |o_i|.

For given scores the best outliers are known, and eliminating them leaves a smooth Huber problem in
s. `newton_kernels` and `huber_fista_kernels` descend on it from a start; `solve_rows` is the driver
around either of them, with one precision after the other and the certificate.

NaN and infinity keep their meaning, and every test is written so that they end an iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._numba import Array, compiled, expanded

if TYPE_CHECKING:
    from .tiles import Rows


class Problem(NamedTuple):
    """What all rows share."""

    d0: Array  # D0, (q, m), float64
    single: Array  # D0 in float32, which halves the reading; zero columns up to a cache line
    gram: Array  # D0 D0'
    ridge: Array  # (D0 D0' + lam_star I)^-1
    lam_star: float
    step_constant: float  # ||D0||^2 + lam_star
    lam: Array  # weights of the outliers, (m,)
    nonnegative: bool
    tol: float  # a row is done when gap <= tol * objective, or after `max_iter` steps
    max_iter: int


class Vectors(NamedTuple):
    """Scratch memory in one precision; `change` is p D0 for a step p of the codes."""

    residual: Array
    dual: Array
    change: Array
    thresholds: Array
    weights: Array
    scaled: Array
    panel: Array
    correlation: Array
    coefficients: Array


class Space(NamedTuple):
    """Scratch memory of a step of the codes, in float64 whatever the precision of the passes.

    "Known" atoms are those that the Hessian of a Newton step includes.
    """

    gradient: Array
    step: Array
    local: Array  # the step on the known atoms; in FISTA the extrapolated point
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


class Work(NamedTuple):
    """All scratch memory."""

    single: Vectors
    double: Vectors
    space: Space
    code: Array  # the scores in float64
    short: Array  # a signal in float32


def make_problem(
    d0: Array, lam_star: float, lam: Array, nonnegative: bool, tol: float, max_iter: int
) -> Problem:
    """Prepare what all rows share."""
    m = d0.shape[1]
    double = _aligned(d0, m, np.float64)
    gram = double @ double.T
    eigenvalues, vectors = np.linalg.eigh(gram)
    eigenvalues = np.maximum(eigenvalues, 0.0) + lam_star
    ridge = np.ascontiguousarray((vectors / eigenvalues) @ vectors.T)
    # Smaller numbers are below the rounding of float32, and their subnormal products are slow.
    floor = 1e-10 * np.max(np.abs(double), initial=0.0)
    large = np.where(np.abs(double) > floor, double, 0.0)
    single = _aligned(large, -(-m // 16) * 16, np.float32)
    constant = float(eigenvalues[-1])
    return Problem(double, single, gram, ridge, lam_star, constant, lam, nonnegative, tol, max_iter)


def make_scratch(problem: Problem) -> Work:
    """Allocate the memory for the rows that one thread solves."""
    q, width = problem.single.shape
    space = Space(
        gradient=np.empty(q), step=np.empty(q), local=np.empty(q), target=np.empty(q),
        masked=np.empty((q, q)), factor=np.empty((q, q)),
        free=np.empty(q, np.int64), known=np.empty(q, np.int64), seen=np.empty(q, np.bool_),
        state=np.empty(q, np.bool_), wrong=np.empty(q, np.bool_),
        inside=np.empty(width, np.bool_), flips=np.empty(width + 1, np.int64),
    )  # fmt: skip
    single, double = _vectors(problem.single, problem.lam), _vectors(problem.d0, problem.lam)
    return Work(single, double, space, np.empty(q), np.empty(width, np.float32))


def _vectors(d0: Array, lam: Array) -> Vectors:
    (q, m), dtype = d0.shape, d0.dtype
    thresholds = np.ones(m, dtype)
    thresholds[: lam.size] = lam
    return Vectors(
        residual=np.empty(m, dtype), dual=np.empty(m, dtype), change=np.empty(m, dtype),
        thresholds=thresholds, weights=np.empty(m + 8, dtype), scaled=np.empty((4, m + 8), dtype),
        panel=np.empty((q, m + 8), dtype), correlation=np.empty(q, dtype),
        coefficients=np.empty(q, dtype),
    )  # fmt: skip


def _aligned(values: Array, width: int, dtype: type) -> Array:
    """Copy with rows of `width` numbers that begin at a cache line, which is a fifth faster."""
    rows, columns = values.shape
    size = np.dtype(dtype).itemsize
    memory = np.zeros(rows * width + 64 // size, dtype)
    first = -memory.ctypes.data % 64 // size
    copy = memory[first : first + rows * width].reshape(rows, width)
    copy[:, :columns] = values
    return copy


# Rows -----------------------------------------------------------------------------------------


@expanded
def solve_rows(
    descend: Any, problem: Problem, work: Work, x: Array, rows: Rows,
    single_share: float, double_share: float, attempts: int,
) -> None:  # fmt: skip
    """Solve every row: descend in float32, certify, and descend in float64 where that misses `tol`.

    A pass over D0 takes half the time in float32. ``descend(x, d0, problem, code, vectors, space,
    tol, max_iter, warm)`` improves `code` in the precision of d0 and returns the number of its
    steps; `warm` is False if the code comes from `_start`. Its tolerance is a share of
    `Problem.tol`; in float64 each of the `attempts` tries a quarter of the tolerance before.
    """
    single, double, space, code, short = work
    q = code.size
    for k in range(x.shape[0]):
        scores, outliers = rows.codes[k, :q], rows.codes[k, q:]
        warm = _read(scores, problem.nonnegative, code)
        done = 0
        if _to_single(x[k], problem, short):
            if not warm:
                _start(short, problem.single, problem, code, single, space)
            done += descend(
                short, problem.single, problem, code, single, space,
                single_share * problem.tol, problem.max_iter, warm,
            )  # fmt: skip
            warm = _round(code, scores)
        if not warm:
            _start(x[k], problem.d0, problem, code, double, space)
        objective, gap = finish(x[k], problem, code, scores, outliers, double)
        tol = double_share * problem.tol
        attempt = 0
        # False for NaN
        while gap > problem.tol * max(objective, 1e-300) and (
            attempt < attempts and done < problem.max_iter
        ):
            done += descend(
                x[k], problem.d0, problem, code, double, space, tol, problem.max_iter - done, warm
            )
            objective, gap = finish(x[k], problem, code, scores, outliers, double)
            tol *= 0.25
            attempt += 1
        rows.objective[k], rows.gap[k], rows.iterations[k] = objective, gap, done


@compiled
def _read(scores: Array, nonnegative: bool, code: Array) -> bool:
    """Copy the start; return False for zeros, since the start without outliers is better."""
    warm = False
    for j in range(code.size):
        code[j] = max(scores[j], 0.0) if nonnegative else scores[j]
        warm = warm or code[j] != 0
    return warm


@compiled
def _to_single(x: Array, problem: Problem, short: Array) -> bool:
    """Copy a row to float32; return False if squares of its numbers could leave that range."""
    energy = 0.0
    for i in range(x.size):
        energy += np.float64(x[i]) * np.float64(x[i])
    # Smaller numbers are below the rounding, and their subnormal products are slow.
    floor = 1e-10 * np.sqrt(energy / x.size)
    short[x.size :] = 0
    for i in range(x.size):
        short[i] = x[i] if abs(x[i]) > floor else 0
    return 1e-16 < energy < 1e16 and 1e-8 < problem.step_constant < 1e8


@compiled
def _round(code: Array, scores: Array) -> bool:
    """Round the code to the stored precision; return False if it is not finite."""
    total = 0.0
    for j in range(code.size):
        scores[j] = code[j]
        code[j] = scores[j]
        total += abs(code[j])
    return total < np.inf


# Start ----------------------------------------------------------------------------------------


@compiled
def _start(
    x: Array, d0: Array, problem: Problem, code: Array, vectors: Vectors, space: Space
) -> None:
    """Codes without outliers: ridge regression, for robust NMF a few sweeps with s >= 0."""
    gram, lam_star = problem.gram, problem.lam_star
    correlation, gradient = vectors.correlation, space.gradient
    correlate(d0, x, correlation)
    for j in range(code.size):
        gradient[j] = -np.float64(correlation[j])
    ridge_step(problem.ridge, gradient, code)
    if not problem.nonnegative:
        return
    for j in range(code.size):
        code[j] = max(code[j], 0.0)
        gradient[j] += lam_star * code[j]
    for j in range(code.size):
        for k in range(code.size):
            gradient[k] += gram[j, k] * code[j]
    _descend_coordinates(problem, code, gradient, 8)


@compiled
def _descend_coordinates(problem: Problem, code: Array, gradient: Array, sweeps: int) -> None:
    """Sweeps over s >= 0 without outliers: s_j <- max(s_j - g_j/(G_jj + lam_star), 0)."""
    gram, lam_star = problem.gram, problem.lam_star
    for _ in range(sweeps):
        for j in range(code.size):
            new = max(code[j] - gradient[j] / (gram[j, j] + lam_star), 0.0)
            change = new - code[j]
            if change != 0:
                code[j] = new
                gradient[j] += lam_star * change
                for k in range(code.size):
                    gradient[k] += gram[j, k] * change


@compiled
def ridge_step(ridge: Array, gradient: Array, step: Array) -> None:
    """p = -(D0 D0' + lam_star I)^-1 g: an alternating minimisation, q^2 multiplications."""
    for j in range(step.size):
        t = 0.0
        for k in range(step.size):
            t -= ridge[j, k] * gradient[k]
        step[j] = t


# Passes over the dictionary and over a residual -----------------------------------------------


@compiled
def subtract_atoms(coefficients: Array, d0: Array, residual: Array) -> None:
    """residual -= coefficients D0, four atoms per pass; groups of zeros are skipped."""
    q, m = d0.shape
    j = 0
    while j + 4 <= q:
        a, b = coefficients[j], coefficients[j + 1]
        c, e = coefficients[j + 2], coefficients[j + 3]
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


@compiled
def correlate(d0: Array, vector: Array, correlation: Array) -> None:
    """correlation = D0 vector, four atoms per pass."""
    q, m = d0.shape
    zero = d0.dtype.type(0)
    j = 0
    while j + 4 <= q:
        a = b = c = e = zero
        for i in range(m):
            v = vector[i]
            a += d0[j, i] * v
            b += d0[j + 1, i] * v
            c += d0[j + 2, i] * v
            e += d0[j + 3, i] * v
        correlation[j], correlation[j + 1] = a, b
        correlation[j + 2], correlation[j + 3] = c, e
        j += 4
    while j < q:
        a = zero
        for i in range(m):
            a += d0[j, i] * vector[i]
        correlation[j] = a
        j += 1


@compiled
def set_residual(x: Array, d0: Array, code: Array, vectors: Vectors) -> None:
    """r = x - s D0 in the precision of d0."""
    residual, coefficients = vectors.residual, vectors.coefficients
    for i in range(x.size):
        residual[i] = x[i]
    for j in range(code.size):
        coefficients[j] = code[j]
    subtract_atoms(coefficients, d0, residual)


@compiled
def clip(residual: Array, thresholds: Array, nonnegative: bool, dual: Array) -> Any:
    """nu = clip(r, -lam, lam), or min(r, lam); return the Huber value sum nu (r - nu/2)."""
    value, half = residual.dtype.type(0), residual.dtype.type(0.5)
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


@compiled
def evaluate(
    d0: Array, problem: Problem, code: Array, vectors: Vectors, gradient: Array
) -> tuple[float, float]:
    """Return objective and gap of the Huber problem at r; write its gradient lam_star s - D0 nu."""
    lam_star, nonnegative = problem.lam_star, problem.nonnegative
    value = np.float64(clip(vectors.residual, vectors.thresholds, nonnegative, vectors.dual))
    correlation, gap = vectors.correlation, 0.0
    correlate(d0, vectors.dual, correlation)
    for j in range(code.size):
        s, u = code[j], np.float64(correlation[j])
        gradient[j] = lam_star * s - u
        value += 0.5 * lam_star * s * s
        gap += code_gap(s, u, lam_star, nonnegative)
    return value, gap


# Certificate ----------------------------------------------------------------------------------


@compiled
def code_gap(s: float, u: float, lam_star: float, nonnegative: bool) -> float:
    """f(s) + f*(u) - s u of one code, f = lam_star/2 s^2 (on s >= 0), as positive terms."""
    top = max(u, 0.0) if nonnegative else u
    return (top - lam_star * s) ** 2 * (0.5 / lam_star) + s * (top - u)


@compiled
def finish(
    x: Array, problem: Problem, code: Array, s: Array, o: Array, vectors: Vectors
) -> tuple[float, float]:
    """Write scores and outliers of a row; return objective and gap of what was written.

    All sums are in float64. The dual point nu = clip(x - code D0) comes from the code before it is
    rounded to `s` and `o`, which avoids a factor ||D0||^2 / lam_star on the rounding; any feasible
    point is allowed. With u = D0 nu, r = x - s D0 - o and f(s) = lam_star/2 ||s||^2,

        gap = ||r - nu||^2/2 + sum_j (f(s_j) + f*(u_j) - s_j u_j) + sum_i (lam_i |o_i| - o_i nu_i)

    is an upper bound of objective(s, o) - optimum.
    """
    d0, lam = problem.d0, problem.lam
    lam_star, nonnegative = problem.lam_star, problem.nonnegative
    residual, dual = vectors.residual, vectors.dual
    correlation, rounded = vectors.correlation, vectors.coefficients
    set_residual(x, d0, code, vectors)
    clip(residual, lam, nonnegative, dual)
    correlate(d0, dual, correlation)
    objective = gap = 0.0
    for j in range(code.size):
        s[j] = code[j]
        stored = np.float64(s[j])
        rounded[j] = stored - code[j]
        objective += 0.5 * lam_star * stored * stored
        gap += code_gap(stored, correlation[j], lam_star, nonnegative)
    subtract_atoms(rounded, d0, residual)
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
