"""Robust alignment to a linear model: scores and transformations by one Gauss-Newton method.

For each picture, ``sum_i trust_i rho(x_i(p) - (s D)_i) + ridge/2 ||s||^2`` is minimised over the
scores s and the parameters p together, where rho is Huber's function, whose threshold follows the
median of the residual. The pictures are smoothed, less from level to level, and residuals are
averaged over squares of pixels, so that the steps see large displacements first and are cheap.
Pixels of areas that are much rougher than the rest of the picture, such as noise, have no trust.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .transformations import Transformation, with_slopes

#: smoothing of the first level: the shorter side of the window divided by this; and of all levels
FIRST, LEVELS = 16, (1.0, 0.5, 0.0)
#: the most Gauss-Newton steps of a level
STEPS = 12
#: squares over which residuals are averaged: the shorter side of the window divided by this
SQUARES = 24
#: the threshold of Huber's function, as a multiple of the median of the residual
THRESHOLD = 2.0
#: a pixel has trust if the roughness around it is at most this multiple of the median
ROUGH = 4.0
#: the smallest median of the roughness, as a fraction of the standard deviation of a picture
SMOOTHEST = 0.1
#: the longest step of a parameter, in pixels
LONGEST = 2.0
#: a picture that moves by fewer pixels than this waits for the next level
SETTLED = 0.03
#: the share of its diagonal that is added to a curvature
DAMPING = 1e-3
TINY = 1e-12


class Linear(NamedTuple):
    """A linear model of pictures: atoms as rows, shape (q, m), and a ridge for each score, (q,)."""

    dictionary: Tensor
    ridge: Tensor


def approach(
    linear: Linear, pictures: Tensor, transformation: Transformation, start: Tensor
) -> Tensor:
    """Return parameters near the optimum of pictures (n, H, W), shape (n, k)."""
    parameters = start.clone()
    scores = pictures.new_zeros(len(pictures), len(linear.dictionary))
    mask = trust(pictures)
    for number, share in enumerate(LEVELS):
        deviation = share * min(transformation.size) / FIRST
        level = _Level(linear, pictures, mask, transformation, deviation)
        if number == 0:
            scores = level.first_scores(parameters)
        moving = torch.arange(len(pictures), device=pictures.device)
        for _ in range(STEPS):
            new, scores[moving] = level.step(moving, parameters[moving], scores[moving])
            moved = (new - parameters[moving]).abs().amax(dim=1)
            parameters[moving] = new
            moving = moving[moved > SETTLED]
            if len(moving) == 0:
                break
    return parameters


def trust(pictures: Tensor) -> Tensor:
    """Return 0 for pixels in areas that are much rougher than the rest, 1 for others."""
    fine = (pictures - smooth(pictures, 1.0)).square()
    roughness = F.avg_pool2d(F.pad(fine[:, None], (2, 2, 2, 2), mode="replicate"), 5, 1)
    roughness = roughness[:, 0].sqrt()
    usual = roughness.flatten(1).median(dim=1).values
    usual = torch.maximum(usual, SMOOTHEST * pictures.flatten(1).std(dim=1))
    return (roughness <= ROUGH * usual[:, None, None]).to(pictures)


def smooth(pictures: Tensor, deviation: float) -> Tensor:
    """Return pictures (n, H, W) smoothed by a Gaussian of the given standard deviation."""
    if deviation <= 0:
        return pictures
    reach = min(int(3 * deviation + 1), min(pictures.shape[1:]) - 1)
    at = torch.arange(-reach, reach + 1, dtype=pictures.dtype, device=pictures.device)
    kernel = torch.softmax(-at.square() / (2 * deviation**2), dim=0)
    padded = F.pad(pictures[:, None], (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))[:, 0]


def _smooth_trusted(pictures: Tensor, mask: Tensor, deviation: float) -> Tensor:
    """Smooth pictures, so that pixels without trust do not spread and take the values around them.

    Without smoothing, they alone are replaced.
    """
    width = deviation if deviation > 0 else 2.0
    mean = ((pictures * mask).sum(dim=(1, 2)) / mask.sum(dim=(1, 2)).clamp_min(1))[:, None, None]
    filled = (smooth(pictures * mask, width) + 1e-3 * mean) / (smooth(mask, width) + 1e-3)
    return filled if deviation > 0 else torch.where(mask > 0, pictures, filled)


def normal_equations(
    atoms: Tensor, ridge: Tensor, derivatives: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the matrix of weighted least squares in (scores, parameters), and its left factor.

    The model of a residual r is ``r - ds D + dp J``, with derivatives J of shape (n, k, m) and
    weights (n, m). The matrix has shape (n, q + k, q + k), the factor (n, q + k, m): its product
    with a residual is the right-hand side.
    """
    count = len(derivatives)
    both = torch.cat([atoms.expand(count, -1, -1), -derivatives], dim=1)
    factor = both * weights[:, None]
    matrix = factor @ both.transpose(1, 2)
    matrix.diagonal(dim1=1, dim2=2)[:, : len(atoms)] += ridge
    return matrix, factor


def damped_step(
    derivatives: Tensor,
    weights: Tensor,
    gradient: Tensor,
    damping: Tensor | None = None,
    linear: Linear | None = None,
) -> Tensor:
    """Return ``-H^{-1} gradient``, shape (n, k), where H approximates the curvature in p.

    H is that of least squares with weights (n, m) and derivatives (n, k, m), plus a multiple of its
    diagonal. If a linear model is given, its scores are projected out.
    """
    empty = Linear(derivatives.new_empty(0, derivatives.shape[2]), derivatives.new_empty(0))
    atoms, ridge = empty if linear is None else linear
    matrix, _ = normal_equations(atoms, ridge, derivatives, weights)
    count = len(atoms)
    curvature = matrix[:, count:, count:]
    if count > 0:
        mixed = matrix[:, :count, count:]
        scores = matrix[:, :count, :count]
        curvature = curvature - mixed.transpose(1, 2) @ torch.linalg.solve(scores, mixed)
    diagonal = curvature.diagonal(dim1=1, dim2=2)
    share = torch.full_like(gradient[:, 0], DAMPING) if damping is None else damping
    diagonal += share[:, None] * diagonal + 1e-6 * diagonal.amax(dim=1, keepdim=True) + TINY
    return capped(-torch.linalg.solve(curvature, gradient), LONGEST)


class _Level:
    """One level of smoothing."""

    def __init__(
        self,
        linear: Linear,
        pictures: Tensor,
        mask: Tensor,
        transformation: Transformation,
        deviation: float,
    ) -> None:
        self.transformation, self.room = transformation, pictures.shape[1:]
        self.side = squares(transformation)
        atoms = linear.dictionary.reshape(-1, *transformation.size)
        self.atoms = self._pooled(smooth(atoms, deviation).flatten(1)[None])[0]
        self.ridge = linear.ridge / self.side**2
        soft = smooth(mask, deviation)
        shown = _smooth_trusted(pictures, mask, deviation)
        self.images = torch.cat([with_slopes(shown), soft[:, None]], dim=1)

    def first_scores(self, parameters: Tensor) -> Tensor:
        """Return the scores of least squares, shape (n, q)."""
        values, derivatives, mask = self._observed(slice(None), parameters)
        matrix, factor = normal_equations(self.atoms, self.ridge, derivatives[:, :0], mask)
        scores: Tensor = torch.linalg.solve(matrix, (factor @ values[..., None])[..., 0])
        return scores

    def step(self, rows: Tensor, parameters: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters and scores of some of the pictures after one step."""
        values, derivatives, mask = self._observed(rows, parameters)
        residual = values - scores @ self.atoms
        sizes = residual.abs()
        threshold = THRESHOLD * sizes.median(dim=1, keepdim=True).values
        weights = mask * threshold / torch.maximum(sizes, threshold).clamp_min(1e-30)
        matrix, factor = normal_equations(self.atoms, self.ridge, derivatives, weights)
        size = len(self.atoms)
        right = (factor @ residual[..., None])[..., 0]
        right[:, :size] -= self.ridge * scores
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        diagonal[:, size:] *= 1.001
        diagonal += 1e-9 * diagonal.amax(dim=1, keepdim=True)
        change = torch.linalg.solve(matrix, right)
        moved = self.transformation.bounded(
            parameters + capped(change[:, size:], LONGEST), self.room
        )
        return moved, scores + change[:, :size]

    def _observed(self, rows: Tensor | slice, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the window shows, its derivatives, and the trust in it, each averaged."""
        images = self.images[rows]
        values, derivatives = self.transformation.linearised(images[:, :3], parameters)
        mask = self.transformation(images[:, 3], parameters)[:, None]
        averaged = self._pooled(mask).clamp_min(1e-3)
        both = torch.cat([values[:, None], derivatives], dim=1)
        both = self._pooled(both * mask) / averaged
        return both[:, 0], both[:, 1:], averaged[:, 0]

    def _pooled(self, rows: Tensor) -> Tensor:
        return averaged(rows, self.transformation.size, self.side)


def capped(steps: Tensor, longest: float) -> Tensor:
    """Return steps (n, k), those with a longer component than `longest` scaled down."""
    sizes = steps.abs().amax(dim=1, keepdim=True)
    return steps * (longest / sizes.clamp_min(1e-30)).clamp_max(1)


def squares(transformation: Transformation) -> int:
    """Return the side of the squares over which pixels are averaged."""
    return max(1, min(transformation.size) // SQUARES)


def averaged(rows: Tensor, size: tuple[int, int], side: int) -> Tensor:
    """Average rows (n, c, h w) over squares of pixels; those at the end may be left over."""
    if side == 1:
        return rows
    return F.avg_pool2d(rows.reshape(*rows.shape[:2], *size), side).flatten(2)
