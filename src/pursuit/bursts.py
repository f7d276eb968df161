"""Bursts in a stream: samples far larger than those around them, from which nothing is learned.

The level of a stream is a norm that one in ten of its recent samples exceeds. A sample of more than
ten times the level belongs to a burst, until so many of them have come that the level itself has
risen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .batches import Batch

Array = np.ndarray[Any, Any]

#: a sample is part of a burst if its norm exceeds the level by more than this factor
LARGEST = 10.0
#: the number of samples in a block, the number of blocks that a level is the median of, and the
#: number of levels of which the largest counts: a stream may fall silent and return
BLOCK, BLOCKS, PAST = 100, 10, 100
#: the fraction of the samples of a block that do not exceed its level
SHARE = 0.9


class BurstDetector:
    """Follows the level of a stream by the norms of its samples.

    The level of a block of 100 samples is the norm that 90 % of them do not exceed, so a few large
    samples do not change it. The level of the stream is the median over 10 blocks, so it follows a
    change that lasts for more than 5 blocks, and the largest such median of the last 100 blocks.
    Samples that are zero are ignored.
    """

    def __init__(self) -> None:
        self.blocks = np.empty(0)
        self.started = np.empty(0)

    @property
    def is_young(self) -> bool:
        """Whether there are too few blocks to tell a burst from a change."""
        return len(self.blocks) < BLOCKS

    @property
    def level(self) -> float:
        """The level of the stream, infinite before the first sample."""
        if len(self.blocks) == 0:
            return _level(self.started) if len(self.started) > 0 else np.inf
        width = min(BLOCKS, len(self.blocks))
        windows = np.lib.stride_tricks.sliding_window_view(self.blocks, width)
        return float(np.sort(windows, axis=1)[:, (width - 1) // 2].max())

    def add(self, norms: Array) -> bool:
        """Add samples, and return whether those before them turn out to have been a burst.

        This happens at the start of a stream, whose level is not known yet: it falls by more than
        the factor by which a burst exceeds it.
        """
        young, before = self.is_young, self.level
        waiting = np.concatenate([self.started, norms[norms > 0]])
        whole = len(waiting) - len(waiting) % BLOCK
        levels = [_level(block) for block in waiting[:whole].reshape(-1, BLOCK)]
        self.blocks = np.append(self.blocks, levels)[-(PAST + BLOCKS - 1) :]
        self.started = waiting[whole:]
        return young and before < np.inf and before > LARGEST * self.level

    def is_ordinary(self, norms: Array) -> Array:
        """Return whether each sample is within the level."""
        ordinary: Array = norms <= LARGEST * self.level
        return ordinary

    @property
    def state(self) -> dict[str, Tensor]:
        """The levels of the blocks, and the norms of the block that is not complete."""
        return {name: torch.from_numpy(getattr(self, name)) for name in ("blocks", "started")}

    @state.setter
    def state(self, values: Mapping[str, Tensor]) -> None:
        self.blocks, self.started = (values[n].numpy().copy() for n in ("blocks", "started"))

    @staticmethod
    def check(values: Mapping[str, Tensor]) -> None:
        """Raise a ValueError unless tensors are a `state`."""
        most = {"blocks": PAST + BLOCKS - 1, "started": BLOCK - 1}
        if set(values) != set(most):
            raise ValueError(f"bursts must have the arrays {' and '.join(most)}")
        for name, count in most.items():
            tensor = values[name]
            if tensor.dtype != torch.float64 or tensor.ndim != 1 or len(tensor) > count:
                raise ValueError(f"bursts.{name} must be float64 of at most {count} numbers")
            if not bool((torch.isfinite(tensor) & (tensor >= 0)).all()):
                raise ValueError(f"bursts.{name} must be finite and not negative")


def norms_of(batch: Batch) -> Array:
    """Return the norm of each sample, targets that are numbers included, without overflow."""
    targets = batch.targets
    named = (
        [] if targets is None else [targets] if isinstance(targets, Tensor) else targets.values()
    )
    parts = [batch.x, *(t for t in named if t.is_floating_point())]
    rows = torch.cat([t.detach().cpu().double().reshape(len(t), -1) for t in parts], dim=1)
    largest = rows.abs().amax(dim=1, keepdim=True)
    unit = rows / largest.clamp_min(torch.finfo(rows.dtype).tiny)
    norms: Array = (largest[:, 0] * unit.norm(dim=1)).nan_to_num().numpy()
    return norms


def _level(norms: Array) -> float:
    """The norm that 90 % of the samples do not exceed."""
    return float(np.sort(norms)[int(SHARE * (len(norms) - 1))])
