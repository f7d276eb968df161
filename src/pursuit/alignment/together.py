"""align_together: robust PCA and the alignment of all pictures, for which there is no model yet.

Minimises ``1/2 ||X(p) - L - O||_F^2 + lam_star ||L||_* + lam ||O||_1`` over the low-rank part L,
the outliers O and the transformations p of the pictures X, as RASL (Peng et al., 2012) does.
Instead of solving a convex problem for every linearisation, a few steps of its solver alternate
with one Gauss-Newton step on all transformations.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import as_number
from ..models import RobustPCA
from ..progress import Callback, Progress
from ..solvers.low_rank import Factors
from ..solvers.principal_component_pursuit import pursue
from .new_data import Alignment, as_pictures, as_start
from .robust import FIRST, LEVELS, TINY, Linear, damped_step, smooth, squares
from .transformations import Transformation, with_slopes

#: the most rounds of a level
ROUNDS = 25
#: steps of the solver in a round
SOLVER_STEPS = 3
#: steps of the solver before the first round, and of that of the whole pictures at the end
FIRST_STEPS, FINAL_STEPS = 25, 10
#: a level ends when the mean movement is below this number of pixels
SETTLED = 0.02
#: the factor of Gauss-Newton steps: the low-rank part follows, so that longer ones are better
RELAXED = 1.5


class Together(NamedTuple):
    """A robust PCA model, and the alignment of the pictures that it was learned from."""

    model: RobustPCA
    alignment: Alignment


def align_together(
    x: Any,
    transformation: Transformation,
    *,
    lam: float = 0.01,
    lam_star: float | None = None,
    atoms: int | None = None,
    start: Any = None,
    callback: Callback | None = None,
) -> Together:
    """Align pictures of one thing with each other, and learn a robust PCA model of them.

    Parameters
    ----------
    x
        Pictures, shape (n, H, W), larger than the window; nearly aligned, by a few pixels.
    transformation
        The kind of transformation, with the window.
    lam
        The weight of the outliers: differences below it count as noise. If black is 0 and white 1,
        the default is 1 % of the range.
    lam_star
        The weight of the nuclear norm; by default ``lam sqrt(max(n, h w))``.
    atoms
        The largest rank; by default it is not limited.
    start
        Parameters to start from, shape (n, k).
    callback
        Called with a `Progress` of stage "aligning" after every round, of which there are usually
        fewer than its total; a true return value ends the work.

    Returns
    -------
    Together
        The model, and the alignment with the codes of the last round.

    Notes
    -----
    Pictures that all move alike do not change the objective much, so the mean of the parameters is
    kept at zero.
    """
    pictures = as_pictures(x, torch.get_default_dtype())
    transformation.room(pictures.shape)
    parameters = as_start(pictures, transformation, start)
    lam = as_number(lam, "lam")
    if lam == 0:
        raise ValueError("lam must be positive, got 0: without noise, every pixel is an outlier")
    if lam_star is None:
        lam_star = lam * max(len(pictures), transformation.features) ** 0.5
    lam_star = as_number(lam_star, "lam_star")
    small = _Reduced(pictures, transformation, lam_star, lam, atoms)
    small.state.split(small.window(small.pictures, parameters / small.side), FIRST_STEPS)
    state = _State(lam_star, lam, atoms)
    first = state.result(transformation(pictures, parameters), small.state)
    began, done, stopped = time.perf_counter(), 0, False
    for share in LEVELS:
        slopes = with_slopes(smooth(small.pictures, share * min(small.window.size) / FIRST))
        for _ in range(ROUNDS):
            new = parameters + small.step(slopes, parameters)
            new = transformation.bounded(new - new.mean(dim=0), pictures.shape)
            moved = float((new - parameters).abs().mean())
            parameters, done = new, done + 1
            if callback is not None:
                seconds = time.perf_counter() - began
                total = ROUNDS * len(LEVELS)
                stopped = bool(callback(Progress("aligning", done, total, seconds=seconds)))
            if stopped or moved < SETTLED:
                break
        if stopped:
            break
    aligned = transformation(pictures, parameters)
    model, codes, loss = state.result(aligned, small.state)
    return Together(
        model, Alignment(transformation, parameters, aligned, codes, loss, loss_before=first.loss)
    )


class _Parts(NamedTuple):
    """The low-rank part of pictures, as a matrix and as scores and atoms."""

    low_rank: Tensor
    scores: Tensor
    linear: Linear


class _Reduced:
    """Pictures of fewer pixels, each the mean of a square, and the steps on them.

    The transformations of reduced pictures are as accurate, and cost less.
    """

    def __init__(
        self,
        pictures: Tensor,
        transformation: Transformation,
        lam_star: float,
        lam: float,
        atoms: int | None,
    ) -> None:
        self.side = squares(transformation)
        self.pictures, self.window = pictures, transformation
        if self.side > 1:
            self.pictures = F.avg_pool2d(pictures[:, None], self.side)[:, 0]
            self.window = type(transformation)([n // self.side for n in transformation.size])
        # a nuclear norm shrinks with the side of the squares, the squared error with their area
        self.state = _State(lam_star / self.side, lam, atoms)

    def step(self, slopes: Tensor, parameters: Tensor) -> Tensor:
        """Continue robust PCA of what the windows show, and return a Gauss-Newton step."""
        lam = self.state.lam
        shown, derivatives = self.window.linearised(slopes, parameters / self.side)
        residual = shown - self.state.split(shown, SOLVER_STEPS).low_rank
        left = residual.clamp(-lam, lam)
        weights = (left / residual.abs().clamp_min(TINY)).square()
        gradient = (derivatives @ left[..., None])[..., 0]
        # the low-rank part also explains how the pictures differ by movements, so that the
        # curvature with it projected out would lead to steps that are far too long
        return RELAXED * self.side * damped_step(derivatives, weights, gradient)


class _Result(NamedTuple):
    """The model of pictures, their codes, and the loss of each."""

    model: RobustPCA
    codes: Tensor
    loss: Tensor


class _State:
    """Robust PCA, continued from round to round."""

    def __init__(self, lam_star: float, lam: float, atoms: int | None) -> None:
        self.lam_star, self.lam, self.atoms = lam_star, lam, atoms
        self.factors: Factors | None = None

    def split(self, shown: Tensor, steps: int) -> _Parts:
        """Take some steps of the solver."""
        solved = pursue(
            shown, self.lam_star, self.lam, rank=self.atoms, start=self.factors, tol=0.0,
            max_iter=steps,
        )  # fmt: skip
        self.factors = factors = solved.factors
        sizes = factors.values.sqrt()
        if len(sizes) == 0:
            raise ValueError(
                f"lam={self.lam:g} and lam_star={self.lam_star:g} leave no low-rank part of these "
                "pictures; choose smaller weights"
            )
        atoms = (factors.right * sizes).T
        linear = Linear(atoms, torch.full_like(sizes, self.lam_star))
        return _Parts(factors.product(), factors.left / sizes, linear)

    def result(self, shown: Tensor, reduced: _State) -> _Result:
        """Continue from the scores of reduced pictures, and return what that leads to."""
        assert reduced.factors is not None
        scores = reduced.factors.left / reduced.factors.values
        self.factors = Factors.of(scores, shown.T @ scores)
        parts = self.split(shown, FINAL_STEPS)
        residual = shown - parts.low_rank
        outliers = residual - residual.clamp(-self.lam, self.lam)
        model = RobustPCA(parts.linear.dictionary, self.lam_star, self.lam)
        codes = torch.cat([parts.scores, outliers], dim=1)
        return _Result(model, codes, model.objective(shown, codes))
