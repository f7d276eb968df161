"""OnlineAlignment: a stream of pictures, aligned with a model that follows them.

New pictures are aligned with the current encoder. As the model changes, so does the best alignment
of earlier pictures: some of those that are remembered are moved by one step, not aligned from
scratch, and the learner sees them again at their new positions. Time and memory for each picture
are constant.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..online import OnlineLearner
from .new_data import Alignment, Problem, align, as_pictures
from .transformations import Transformation

#: steps by which a remembered picture is moved when it is drawn
MOVES = 2


class OnlineAlignment:
    """Aligns a stream of pictures, and learns from them.

    Parameters
    ----------
    learner
        The learner of what the windows show, with its encoder and regime.
    transformation
        The kind of transformation, with the window.
    memory
        The number of pictures that are remembered, the latest ones.
    again
        The number of remembered pictures that are moved for each new one.
    seed
        Seeds the choice of these pictures.

    Attributes
    ----------
    numbers
        The numbers of the remembered pictures in the stream, shape (n,), in order.
    parameters
        Their current parameters, shape (n, k).

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> from pursuit.alignment import OnlineAlignment, Translation
    >>> pictures = torch.rand(20, 12, 12, generator=torch.Generator().manual_seed(0))
    >>> window = Translation((8, 8))
    >>> first = window(pictures[:4], window.identity(4))
    >>> model = pu.models.RobustPCA(first, lam_star=0.1, lam=0.05)
    >>> learner = pu.OnlineLearner(pu.ProximalEncoder(model, layers=3), chunk=10, steps=2)
    >>> stream = OnlineAlignment(learner, window, memory=15)
    >>> stream.partial_fit(pictures[:10]).parameters.shape
    torch.Size([10, 2])
    >>> stream.partial_fit(pictures[10:]).parameters.shape, stream.numbers.min()
    (torch.Size([10, 2]), tensor(5))
    """

    def __init__(
        self,
        learner: OnlineLearner,
        transformation: Transformation,
        *,
        memory: int = 500,
        again: float = 1.0,
        seed: int = 0,
    ) -> None:
        if memory < 1:
            raise ValueError(f"memory must be at least 1, got {memory}")
        if not 0 <= again < float("inf"):
            raise ValueError(f"again must be non-negative and finite, got {again}")
        Problem.of(learner.encoder, transformation)
        self.learner, self.transformation = learner, transformation
        self.memory, self.again, self.seed = memory, again, seed
        self.received = 0
        self.numbers = torch.empty(0, dtype=torch.long)
        self.parameters = transformation.identity(0)
        self._pictures: Tensor | None = None

    def partial_fit(self, x: Any) -> Alignment:
        """Align new pictures (n, H, W), learn from them, and move remembered ones.

        Returns
        -------
        Alignment
            The new pictures, aligned with what was learned before them.
        """
        model = self.learner.encoder.model
        pictures = as_pictures(x, model.dtype, model.device)
        known = self._pictures
        if known is not None and known.shape[1:] != pictures.shape[1:]:
            raise ValueError(
                f"x has pictures of {tuple(pictures.shape[1:])}, but those before had "
                f"{tuple(known.shape[1:])}"
            )
        alignment = align(self.learner.encoder, pictures, self.transformation)
        seen = self._moved_again(len(pictures))
        self._remember(pictures, alignment.parameters)
        self.learner.partial_fit(torch.cat([alignment.aligned, seen]))
        return alignment

    def _moved_again(self, count: int) -> Tensor:
        """Move some of the remembered pictures by one step, and return what is seen then."""
        if self._pictures is None:
            return torch.empty(0, self.transformation.features)
        rng = np.random.default_rng([self.seed, self.received])
        size = min(round(self.again * count), len(self._pictures))
        rows = torch.from_numpy(rng.choice(len(self._pictures), size, replace=False))
        problem = Problem.of(self.learner.encoder, self.transformation)
        pictures = self._pictures[rows]
        self.parameters[rows] = problem.refined(pictures, self.parameters[rows], MOVES)
        with torch.no_grad():
            return self.transformation(pictures, self.parameters[rows])

    def _remember(self, pictures: Tensor, parameters: Tensor) -> None:
        numbers = torch.arange(self.received, self.received + len(pictures))
        self.received += len(pictures)
        old = pictures[:0] if self._pictures is None else self._pictures
        self._pictures = torch.cat([old, pictures])[-self.memory :]
        self.parameters = torch.cat([self.parameters.to(parameters), parameters])[-self.memory :]
        self.numbers = torch.cat([self.numbers, numbers])[-self.memory :]
