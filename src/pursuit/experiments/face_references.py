"""References for the alignment of faces: phase correlation, enhanced correlation, and RASL.

The first two compare each picture with a template. RASL aligns a whole batch, by the convex problem
of `pursue_aligned` at the current parameters.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.signal.windows import tukey
from torch import Tensor

from .._checks import as_number
from ..alignment.transformations import Affine, Transformation, Translation, with_slopes

Array = np.ndarray[Any, Any]

# the settings of the two correlations are those with the smallest error on validation faces that
# were displaced by up to 6 pixels along each axis

#: the precision of phase correlation, as a fraction of a pixel
UPSAMPLING = 20
#: the fraction of the window in which its weights rise from 0 to 1 and fall again
TAPER = 0.5
#: how often it is repeated from where the window has been moved to
REPEATS = 3
#: the margin of the template that enhanced correlation leaves out, as a fraction of each side
MARGIN = 0.1
#: the largest number of its iterations, and the change of the correlation at which they end
ITERATIONS, CHANGE = 100, 1e-5


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this reference needs {package}; install it with pip install {package}"
        ) from error


# ---- phase correlation -----------------------------------------------------------------------


def phase_correlation(
    pictures: Tensor, template: Tensor, transformation: Translation, start: Tensor
) -> Tensor:
    """Move the window to where it resembles a template, by the peak of a correlation.

    Parameters
    ----------
    pictures
        Shape (n, H, W).
    template
        What the window should show, shape (h, w) or (h w,).
    transformation
        The window; it can only be moved.
    start
        The parameters to start from, shape (n, 2).

    Returns
    -------
    Tensor
        The parameters at which the window is aligned, shape (n, 2).
    """
    if transformation.parameters != 2:
        raise ValueError(f"phase correlation finds a Translation only, got {transformation!r}")
    registration = _imported("skimage.registration", "scikit-image")
    goal = _tapered(template.reshape(1, -1), transformation.size)[0]
    found = start
    for _ in range(REPEATS):
        shifts = [
            registration.phase_cross_correlation(
                # whitened spectra, the default, have larger errors on faces
                goal,
                shown,
                upsample_factor=UPSAMPLING,
                normalization=None,
            )[0]
            for shown in _tapered(transformation(pictures, found), transformation.size)
        ]
        # a picture that has to move to the left is seen from a window further to the right
        moved = found - torch.from_numpy(np.stack(shifts)[:, ::-1].copy()).to(found)
        found = transformation.bounded(moved, pictures.shape)
    return found


def _tapered(shown: Tensor, size: tuple[int, int]) -> Array:
    """What the window shows, (n, h, w), weighted towards the middle; its weighted mean is zero."""
    weights = np.outer(*(tukey(side + 2, TAPER)[1:-1] for side in size))
    values = shown.double().numpy().reshape(-1, *size)
    means = (values * weights).sum(axis=(1, 2), keepdims=True) / weights.sum()
    tapered: Array = (values - means) * weights
    return tapered


# ---- enhanced correlation --------------------------------------------------------------------


def enhanced_correlation(
    pictures: Tensor, template: Tensor, transformation: Transformation, start: Tensor
) -> Tensor:
    """Maximise the correlation of the window with a template, by ``findTransformECC`` of OpenCV.

    Parameters and result are those of `phase_correlation`; the window may also be transformed by
    an `Affine`. Pictures for which OpenCV does not converge keep the parameters that they have.
    """
    cv2 = _imported("cv2", "opencv-python-headless")
    if isinstance(transformation, Affine):
        motion = cv2.MOTION_AFFINE
    elif type(transformation) is Translation:
        motion = cv2.MOTION_TRANSLATION
    else:
        raise ValueError(f"OpenCV finds a Translation or an Affine, got {transformation!r}")
    top, left = (round(MARGIN * side) for side in transformation.size)
    height, width = transformation.size
    goal = template.reshape(height, width).float().numpy()
    goal = np.ascontiguousarray(goal[top : height - top, left : width - left])
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, ITERATIONS, CHANGE)
    middle, basis = _matrices(transformation, pictures.shape, (left, top))
    found = start.double().numpy().copy()
    for number, picture in enumerate(pictures.float().numpy()):
        matrix = (middle + np.tensordot(found[number], basis, 1)).astype(np.float32)
        try:
            # the last argument is the side of a Gaussian filter: none
            _, matrix = cv2.findTransformECC(goal, picture, matrix, motion, criteria, None, 1)
        except cv2.error:
            continue
        difference = (matrix - middle).ravel()
        found[number] = np.linalg.lstsq(basis.reshape(-1, 6).T, difference, rcond=None)[0]
    return transformation.bounded(torch.from_numpy(found).to(start), pictures.shape)


def _matrices(
    transformation: Transformation, picture: torch.Size, corner: tuple[int, int]
) -> tuple[Array, Array]:
    """The matrices (2, 3) from (x, y, 1), counted from a pixel of the window, to the picture's.

    The first one is that of the window in the middle; the others, (k, 2, 3), are added to it for
    each parameter.
    """
    height, width = transformation.size
    x, y = corner
    # displacements are affine, so those of three pixels determine them; here (right, down)
    fields = transformation.fields.numpy().reshape(-1, 2, height, width)[:, ::-1]
    origin = fields[:, :, y, x]
    basis = [fields[:, :, y, x + 1] - origin, fields[:, :, y + 1, x] - origin, origin]
    left, top = (picture[-1] - width) / 2 + x, (picture[-2] - height) / 2 + y
    return np.array([[1, 0, left], [0, 1, top]]), np.stack(basis, axis=-1)


# ---- RASL ------------------------------------------------------------------------------------


class AlignedPursuit(NamedTuple):
    """The result of `pursue_aligned`."""

    low_rank: Array
    sparse: Array
    step: Array
    objective: float
    iterations: int


@dataclass(frozen=True, eq=False)
class BatchAlignment:
    """The result of `rasl`.

    Attributes
    ----------
    parameters
        The parameters that align the pictures, shape (n, k).
    low_rank, sparse
        The parts of what the window shows, each picture divided by its norm, shape (n, h w).
    objectives
        The objective after each outer iteration.
    iterations
        The number of inner iterations in each outer iteration.
    seconds
        The time of all this.
    """

    parameters: Tensor
    low_rank: Tensor
    sparse: Tensor
    objectives: tuple[float, ...]
    iterations: tuple[int, ...]
    seconds: float


def rasl(
    pictures: Tensor,
    transformation: Transformation,
    start: Tensor | None = None,
    lam: float | None = None,
    *,
    tol: float = 1e-2,
    max_iter: int = 25,
    inner_tol: float = 1e-4,
    inner_max_iter: int = 1000,
    growth: float = 1.25,
) -> BatchAlignment:
    """Align a batch of pictures by sparse and low-rank decomposition (RASL).

    Parameters
    ----------
    pictures
        Shape (n, H, W).
    transformation
        The window and how it is moved.
    start
        The parameters to start from, shape (n, k); by default the window is in the middle.
    lam
        The weight of the sparse part, by default ``1 / sqrt(h w)``.
    tol, max_iter
        Stop when the objective decreases by less than `tol`, or after `max_iter` outer iterations.
    inner_tol, inner_max_iter, growth
        See `pursue_aligned`.

    Notes
    -----
    Each outer iteration divides what the window shows by its norm, linearises it with respect to
    the parameters, solves the convex problem of `pursue_aligned`, and adds the step that it finds
    to the parameters. The window stays inside the pictures. The settings are those of the authors'
    program, with one exception that makes it faster: there, `inner_tol` is 1e-6. This changes the
    parameters by a few thousandths of a pixel and needs 40 % more inner iterations.

    References
    ----------
    Y. Peng, A. Ganesh, J. Wright, W. Xu, Y. Ma, "RASL: Robust alignment by sparse and low-rank
    decomposition for linearly correlated images", IEEE Transactions on Pattern Analysis and Machine
    Intelligence 34 (2012).
    """
    if max_iter < 1 or inner_max_iter < 1:
        raise ValueError(
            f"max_iter and inner_max_iter must be at least 1, got {max_iter} and {inner_max_iter}"
        )
    if growth <= 1:
        raise ValueError(f"growth must be above 1, got {growth}")
    began = time.perf_counter()
    slopes = with_slopes(pictures.double())
    given = transformation.identity(len(pictures)) if start is None else start
    parameters = given.double()
    weight = transformation.features**-0.5 if lam is None else as_number(lam, "lam")
    objectives: list[float] = []
    iterations: list[int] = []
    for _ in range(max_iter):
        shown, jacobian = _normalised(*transformation.linearised(slopes, parameters))
        inner = pursue_aligned(shown, jacobian, weight, inner_tol, inner_max_iter, growth)
        step = torch.from_numpy(inner.step)
        parameters = transformation.bounded(parameters + step, pictures.shape)
        objectives.append(inner.objective)
        iterations.append(inner.iterations)
        if len(objectives) > 1 and objectives[-2] - objectives[-1] < tol:
            break
    return BatchAlignment(
        parameters.to(given),
        torch.from_numpy(inner.low_rank).to(pictures),
        torch.from_numpy(inner.sparse).to(pictures),
        tuple(objectives),
        tuple(iterations),
        time.perf_counter() - began,
    )


def _normalised(shown: Tensor, jacobian: Tensor) -> tuple[Array, Array]:
    """Rows y divided by their norms, and the derivatives of these: ``(I - y y'/|y|^2) J / |y|``."""
    norms = torch.linalg.vector_norm(shown, dim=1)
    if not bool((norms > 0).all()):
        raise ValueError(f"picture {int(norms.argmin())} is black in the window; leave it out")
    shown, jacobian = shown / norms[:, None], jacobian / norms[:, None, None]
    along = jacobian @ shown[:, :, None]
    return shown.numpy(), jacobian.baddbmm_(along, shown[:, None], alpha=-1).numpy()


def pursue_aligned(
    x: Array,
    jacobian: Array,
    lam: float,
    tol: float = 1e-6,
    max_iter: int = 1000,
    growth: float = 1.25,
) -> AlignedPursuit:
    """``min ||A||_* + lam ||E||_1`` subject to ``x_i + J_i' t_i = a_i + e_i`` for all rows i.

    Parameters
    ----------
    x
        Shape (n, m).
    jacobian
        The derivatives of each row with respect to its parameters, shape (n, k, m).
    lam
        The weight of E.
    tol, max_iter
        Stop when the norm of the constraint's residual is at most `tol` times that of x, or after
        `max_iter` iterations.
    growth
        The factor of the penalty from one iteration to the next. The smaller it is, the closer the
        result is to the optimum.

    Notes
    -----
    The method is that of RASL, the inexact augmented Lagrangian: with multipliers Y and a growing
    penalty mu, it minimises over A, E and t in turn, once each. A is the soft-thresholding of
    singular values, which come from the eigenvectors of the n x n Gram matrix. With ``X = x + J t +
    Y/mu - A``, ``E = X - C``, where C is X clipped to ``[-lam/mu, lam/mu]``. With an orthonormal
    basis Q of J, t moves J t by ``-Q Q'C``, and Y becomes ``mu (C - Q Q'C)``.
    """
    basis, triangle = np.linalg.qr(jacobian.transpose(0, 2, 1))
    rows = np.ascontiguousarray(basis.transpose(0, 2, 1))
    # the largest multiple of x at which the dual norm of the objective is 1
    norm = float(np.sqrt(np.linalg.eigvalsh(x @ x.T)[-1]))
    multipliers = x / max(norm, float(np.abs(x).max()) / lam)
    mu, accuracy = 1.25 / norm, tol * float(np.linalg.norm(x))
    moved, sparse = x.copy(), np.zeros_like(x)
    # memory that all iterations use: to allocate it anew takes as long as to fill it
    target, low_rank, clipped, change = (np.empty_like(x) for _ in range(4))
    turned, nuclear, iterations = np.zeros(jacobian.shape[:2]), 0.0, 0
    residual = float("inf")
    while residual > accuracy and iterations < max_iter:
        np.divide(multipliers, mu, out=target)
        target += moved
        nuclear = _shrink(np.subtract(target, sparse, out=clipped), 1 / mu, out=low_rank)
        target -= low_rank
        np.clip(target, -lam / mu, lam / mu, out=clipped)
        np.subtract(target, clipped, out=sparse)
        along = (rows @ clipped[:, :, None])[:, :, 0]
        turned -= along
        np.matmul(along[:, None], rows, out=change[:, None])
        moved -= change
        clipped -= change
        clipped *= mu
        multipliers -= clipped
        residual = float(np.linalg.norm(multipliers)) / mu
        multipliers, clipped = clipped, multipliers
        mu *= growth
        iterations += 1
    step = np.linalg.solve(triangle, turned[:, :, None])[:, :, 0]
    objective = nuclear + lam * float(np.abs(sparse).sum())
    return AlignedPursuit(low_rank, sparse, step, objective, iterations)


def _shrink(matrix: Array, threshold: float, out: Array) -> float:
    """Reduce the singular values of a matrix by a threshold, into `out`; return their sum."""
    squares, vectors = np.linalg.eigh(matrix @ matrix.T)
    kept = squares > threshold**2
    values, vectors = np.sqrt(squares[kept]), vectors[:, kept]
    np.matmul(vectors * (1 - threshold / values), vectors.T @ matrix, out=out)
    return float((values - threshold).sum())
