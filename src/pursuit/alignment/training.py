"""fit_aligned: an encoder, its dictionary and the alignment of its training data, learned together.

The parameters of the transformations are trained on a par with those of the encoder: each batch
first moves its own pictures by one step, then trains the encoder and the dictionary on what the
windows show. A regime that minimises the objective of the model moves the pictures by it; others
move them by their own loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..batches import Batch, Source, as_tensors, require_targets
from ..encoders.trainable import Trainable
from ..regimes import Regime, Unsupervised, as_regime
from ..training import fit
from ..training_loop import History
from .new_data import Alignment, Problem, as_pictures, as_start
from .robust import DAMPING, damped_step
from .transformations import Transformation, with_slopes


def fit_aligned(
    encoder: Trainable,
    x: Any,
    transformation: Transformation,
    targets: Any = None,
    *,
    regime: Regime | Callable[[nn.Module, Batch], Tensor] | None = None,
    start: Any = None,
    rate: float = 0.5,
    batch_size: int = 64,
    seed: int = 0,
    **options: Any,
) -> tuple[History, Alignment]:
    """Train an encoder, and align the pictures that it is trained on.

    Parameters
    ----------
    encoder
        The encoder of what the window shows; it is trained in place.
    x
        Pictures, shape (n, H, W), larger than the window.
    transformation
        The kind of transformation, with the window.
    targets
        What the regime compares with, row by row, as for `pursuit.fit`.
    regime
        What the encoder is trained for, by default `regimes.Unsupervised`.
    start
        Parameters to start from, shape (n, k), such as those of `align` or `align_together`.
    rate
        The share of a Gauss-Newton step that a batch moves its pictures by.
    batch_size, seed
        As for `pursuit.fit`.
    **options
        Further options of `pursuit.fit`, such as ``dictionary="gradient"`` and `steps`. There is
        no `checkpoint`.

    Returns
    -------
    History, Alignment
        The record of training, and the training pictures at their last parameters.
    """
    if "checkpoint" in options:
        raise TypeError("fit_aligned takes no checkpoint: it does not keep the parameters")
    regime = as_regime(Unsupervised() if regime is None else regime)
    source = AlignedBatches(
        encoder, x, transformation, targets, regime, start=start, rate=rate, size=batch_size,
        seed=seed,
    )  # fmt: skip
    before = source.alignment().loss
    history = fit(encoder, source, regime=regime, seed=seed, batch_size=batch_size, **options)
    return history, source.alignment(before)


class AlignedBatches(Source):
    """Batches of pictures that are moved whenever they are drawn.

    Attributes
    ----------
    parameters
        The current parameters of all pictures, shape (n, k).
    """

    resumable = False

    def __init__(
        self,
        encoder: Trainable,
        x: Any,
        transformation: Transformation,
        targets: Any,
        regime: Regime,
        *,
        start: Any = None,
        rate: float = 0.5,
        size: int = 64,
        seed: int = 0,
    ) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"rate must be from 0 to 1, got {rate}")
        model = encoder.model
        self.encoder, self.transformation, self.regime = encoder, transformation, regime
        self.pictures = as_pictures(x, model.dtype, model.device)
        self.parameters = as_start(self.pictures, transformation, start)
        require_targets(targets, len(self.pictures))
        self.targets, self.rate, self.size, self.seed = targets, rate, size, seed
        self.total: int = len(self.pictures)
        self.slopes = with_slopes(self.pictures)
        Problem.of(encoder, transformation)  # raises an error if window and encoder do not fit

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        rows = np.sort(rng.integers(self.total, size=self.size))
        _, targets = as_tensors(self.pictures, self.targets, self.pictures.dtype, rows)
        return self.moved(torch.from_numpy(rows), targets)

    def moved(self, rows: Tensor, targets: Any = None) -> Batch:
        """Move some of the pictures by one step, and return the batch of what is seen then."""
        pictures, parameters = self.pictures[rows], self.parameters[rows]
        change = self._step(rows, pictures, parameters, targets)
        new = self.transformation.bounded(parameters + self.rate * change, pictures.shape)
        self.parameters[rows] = torch.where(new.isfinite().all(dim=1)[:, None], new, parameters)
        with torch.no_grad():
            shown = self.transformation(pictures, self.parameters[rows])
        return Batch(shown, targets, None, self.total)

    def _step(self, rows: Tensor, pictures: Tensor, parameters: Tensor, targets: Any) -> Tensor:
        if self.regime.minimises_objective:
            problem = Problem.of(self.encoder, self.transformation)
            _, gradient, codes = problem.values(pictures, parameters)
            damping = torch.full_like(gradient[:, 0], DAMPING)
            return problem.step(self.slopes[rows], parameters, gradient, codes, damping)
        with torch.enable_grad():
            free = parameters.detach().requires_grad_()
            batch = Batch(self.transformation(pictures, free), targets, None, self.total)
            loss = self.regime(cast(nn.Module, self.encoder), batch)
            (gradient,) = torch.autograd.grad(len(pictures) * loss, free)
        # the curvature of the squared error, which bounds that of its parts
        _, derivatives = self.transformation.linearised(self.slopes[rows], parameters)
        return damped_step(derivatives, torch.ones_like(derivatives[:, 0]), gradient / 2)

    def alignment(self, before: Tensor | None = None) -> Alignment:
        """Return all pictures at their current parameters."""
        with torch.no_grad():
            shown = self.transformation(self.pictures, self.parameters)
            codes = self.encoder(shown)
            loss = self.encoder.model.objective(shown, codes)
        return Alignment(
            self.transformation, self.parameters.clone(), shown, codes, loss,
            loss if before is None else before,
        )  # fmt: skip
