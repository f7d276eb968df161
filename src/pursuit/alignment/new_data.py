"""align: the transformation of each new picture under which a model describes it best.

The loss is ``F(g_p(x), z(g_p(x)))``, the objective of the model at what the window shows, with the
codes of an encoder or exact codes. Its gradient with respect to p has two parts, one through the
signal that codes are compared with, and one through the codes; for exact codes the second is zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import dtype_name
from ..encoders.trainable import Trainable, require_members
from ..models import SparseModel
from ..progress import Callback, Progress
from ..solvers.solve import solve
from .robust import (
    DAMPING,
    FIRST,
    TINY,
    Linear,
    approach,
    averaged,
    damped_step,
    smooth,
    squares,
    trust,
)
from .transformations import Transformation, with_slopes

#: pictures that are aligned together
TOGETHER = 64
#: the factors of the damping after a step that is taken and one that is not
LESS, MORE = 0.2, 8.0
#: a picture with a smaller share of pixels with trust is aligned by the robust fit alone
COVERED = 0.9
#: the smallest ridge of the scores, as a fraction of the mean energy of an atom
LEAST_RIDGE = 1e-6

Codes = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Alignment:
    """Pictures and their transformations.

    Attributes
    ----------
    transformation
        The kind of transformation.
    parameters
        The parameters of each picture, shape (n, k); ``transformation.describe(parameters)`` has
        them in pixels and degrees.
    aligned
        What the windows show, shape (n, h w).
    codes
        The codes of `aligned`, shape (n, q).
    loss, loss_before
        The loss at `parameters` and at the start, shape (n,).
    """

    transformation: Transformation
    parameters: Tensor
    aligned: Tensor
    codes: Tensor
    loss: Tensor
    loss_before: Tensor

    def __repr__(self) -> str:
        return (
            f"Alignment(pictures={len(self.parameters)}, {self.transformation!r}, "
            f"loss={float(self.loss.mean()):.4g}, before={float(self.loss_before.mean()):.4g})"
        )


def align(
    encoder: Trainable | SparseModel,
    x: Any,
    transformation: Transformation,
    *,
    start: Any = None,
    coarse: bool = True,
    steps: int = 4,
    tol: float = 1e-3,
    callback: Callback | None = None,
) -> Alignment:
    """Find the transformation of each picture under which a model describes it best.

    Parameters
    ----------
    encoder
        An encoder of what the window shows; or a model, whose exact codes are computed.
    x
        Pictures, shape (n, H, W), larger than the window.
    transformation
        The kind of transformation, with the window.
    start
        Parameters to start from, shape (n, k); by default the window is in the middle.
    coarse
        Whether a robust fit of the model's low-rank part on smoothed pictures comes first, which
        finds displacements of several pixels. Without it pictures must be nearly aligned.
    steps
        The number of steps that minimise the loss itself. A step that does not decrease the loss of
        a picture is not taken, so the loss does not increase. The exception are pictures that are
        partly covered by noise: they are aligned by what is visible, whatever their loss.
    tol
        The relative gap of exact codes.
    callback
        Called with a `Progress` of stage "aligning" after every 64 pictures; a true return value
        ends the work, and the pictures that follow keep their start.

    Returns
    -------
    Alignment
        The parameters, the aligned pictures, their codes, and the loss before and after.

    See Also
    --------
    align_together : The alignment of pictures for which there is no model yet.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> from pursuit.alignment import Translation, align
    >>> rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    >>> blob = torch.exp(-((rows - 12).square() + (columns - 11).square()) / 18)[None]
    >>> window = Translation((16, 16))
    >>> there = window(blob, torch.zeros(1, 2))
    >>> model = pu.models.RobustPCA(there, lam_star=0.01, lam=0.05)
    >>> shifted = blob.roll((2, -1), dims=(1, 2))
    >>> align(model, shifted, window).parameters.round().tolist()
    [[-1.0, 2.0]]
    """
    problem = Problem.of(encoder, transformation, tol)
    pictures = as_pictures(x, problem.model.dtype, problem.model.device)
    transformation.room(pictures.shape)
    first = as_start(pictures, transformation, start)
    if steps < 0:
        raise ValueError(f"steps must not be negative, got {steps}")
    found, before = [], []
    began, stopped = time.perf_counter(), False
    for rows in torch.split(torch.arange(len(pictures)), TOGETHER):
        part, here = pictures[rows], first[rows]
        before.append(problem.values(part, here)[0])
        if not stopped:
            here = problem.aligned(part, here, before[-1], coarse, steps)
        found.append(here)
        if callback is not None and not stopped:
            done = int(rows[-1]) + 1
            seconds = time.perf_counter() - began
            stopped = bool(callback(Progress("aligning", done, len(pictures), seconds=seconds)))
    parameters = torch.cat(found)
    with torch.no_grad():
        aligned = transformation(pictures, parameters)
        codes = problem.codes(aligned).detach()
        loss = problem.model.objective(aligned, codes)
    return Alignment(transformation, parameters, aligned, codes, loss, torch.cat(before))


class Problem:
    """The loss of pictures under transformations, and the steps that decrease it."""

    def __init__(self, model: SparseModel, codes: Codes, transformation: Transformation) -> None:
        self.model, self.codes, self.transformation = model, codes, transformation
        if model.features != transformation.features:
            height, width = transformation.size
            raise ValueError(
                f"the window has {height} x {width} = {transformation.features} pixels, but the "
                f"model describes {model.features}"
            )
        self.linear = low_rank_part(model)

    @classmethod
    def of(
        cls, encoder: Trainable | SparseModel, transformation: Transformation, tol: float = 1e-3
    ) -> Problem:
        """The problem of an encoder, or of a model with exact codes."""
        if isinstance(encoder, SparseModel):
            model = encoder
            return cls(model, lambda x: solve(model, x, tol=tol).codes, transformation)
        require_members(encoder, "align")
        return cls(encoder.model, encoder, transformation)

    def values(self, pictures: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of each picture (n,), its gradient (n, k), and the codes (n, q)."""
        with torch.enable_grad():
            free = parameters.detach().requires_grad_()
            shown = self.transformation(pictures, free)
            codes = self.codes(shown)
            loss = self.model.objective(shown, codes)
            (gradient,) = torch.autograd.grad(loss.sum(), free)
        return loss.detach(), gradient, codes.detach()

    def aligned(
        self, pictures: Tensor, start: Tensor, before: Tensor, coarse: bool, steps: int
    ) -> Tensor:
        """Return better parameters."""
        if not coarse:
            return self.refined(pictures, start, steps)
        if len(self.linear.dictionary) == 0:
            # nothing to project out: the same loss on smoothed pictures first
            first = min(self.transformation.size) / FIRST
            near = start
            for deviation in (first, first / 2):
                near = self.refined(smooth(pictures, deviation), near, 2 * steps)
            covered = torch.zeros(len(pictures), dtype=torch.bool, device=pictures.device)
        else:
            near = approach(self.linear, pictures, self.transformation, start)
            covered = trust(pictures).mean(dim=(1, 2)) < COVERED
        # the loss of a covered picture depends most on how much of the cover the window shows
        better = self.refined(pictures, near, steps)
        better = torch.where((self.values(pictures, better)[0] < before)[:, None], better, start)
        return torch.where(covered[:, None], near, better)

    def refined(self, pictures: Tensor, parameters: Tensor, steps: int) -> Tensor:
        """Return the parameters after damped Gauss-Newton steps on the loss itself."""
        slopes = with_slopes(pictures)
        loss, gradient, codes = self.values(pictures, parameters)
        damping = torch.full_like(loss, DAMPING)
        for _ in range(steps):
            change = self.step(slopes, parameters, gradient, codes, damping)
            new = self.transformation.bounded(parameters + change, pictures.shape)
            new_loss, new_gradient, new_codes = self.values(pictures, new)
            lower = new_loss < loss
            parameters = torch.where(lower[:, None], new, parameters)
            gradient = torch.where(lower[:, None], new_gradient, gradient)
            codes = torch.where(lower[:, None], new_codes, codes)
            loss = torch.where(lower, new_loss, loss)
            damping = torch.where(lower, LESS * damping, MORE * damping)
        return parameters

    def step(
        self,
        slopes: Tensor,
        parameters: Tensor,
        gradient: Tensor,
        codes: Tensor,
        damping: Tensor,
    ) -> Tensor:
        """Return a damped Gauss-Newton step.

        Pixels with an outlier count less: by the square of the share of their residual that the
        outlier leaves. The curvature is that of pixels averaged over squares.
        """
        with torch.no_grad():
            shown, derivatives = self.transformation.linearised(slopes, parameters)
            atoms, ridge = self.linear
            residual = shown - codes[:, : len(atoms)] @ atoms
            left = self.model.residual(shown, codes) if len(atoms) > 0 else residual
            weights = (left.abs() / residual.abs().clamp_min(TINY)).clamp_max(1).square()
            size, side = self.transformation.size, squares(self.transformation)
            return damped_step(
                averaged(derivatives, size, side),
                averaged(weights[:, None], size, side)[:, 0],
                gradient / side**2,
                damping,
                Linear(averaged(atoms[None], size, side)[0], ridge / side**2),
            )


def as_pictures(x: Any, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return pictures (n, H, W) as a tensor, or raise an error that says what is wrong."""
    given = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
    if given.ndim != 3 or len(given) == 0:
        raise ValueError(
            f"x must be pictures of shape (n, height, width), got {tuple(given.shape)}"
        )
    if given.dtype == torch.bool or given.is_complex():
        raise TypeError(f"x must be real numbers, got {dtype_name(given.dtype)}")
    given = given.detach().to(device, dtype)
    if not bool(given.isfinite().all()):
        raise ValueError("x contains NaN or infinite values; remove or replace them")
    return given


def as_start(pictures: Tensor, transformation: Transformation, start: Any) -> Tensor:
    """Return the parameters to start from, inside the bounds."""
    if start is None:
        return transformation.identity(len(pictures)).to(pictures)
    given = torch.as_tensor(start).detach().to(pictures)
    transformation.check(pictures, given)
    return transformation.bounded(given, pictures.shape)


def low_rank_part(model: SparseModel) -> Linear:
    """Return the atoms of the low-rank part of a model, and their ridge; there may be none."""
    name = model.dictionary_of("low_rank")
    atoms = model.dictionaries[name].detach() if name is not None else None
    if atoms is None or model.part_names[0] != "low_rank" or atoms.shape[1] != model.features:
        return Linear(model.dictionary.new_empty(0, model.features), model.dictionary.new_empty(0))
    ridge = torch.full_like(atoms[:, 0], LEAST_RIDGE * float(atoms.square().sum(dim=1).mean()))
    if model.curvature is not None:
        ridge = torch.maximum(ridge, model.curvature[: len(atoms)].to(ridge))
    return Linear(atoms, ridge)
