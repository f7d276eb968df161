"""Where mini-batches come from: arrays and memory maps, iterables of batches, one-time streams.

A source gives the batch of a step number. Rows of an array are drawn by a generator that is
seeded with the step, so nothing has to be remembered to go on after an interruption. An iterable
that can be started again is counted through; a stream that cannot is read as it comes and
cannot be resumed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._checks import require_width
from .regimes import Batch, Targets

__all__ = ["Rows", "Source", "as_source", "as_tensors"]

#: the largest part of the rows that is held out, and the most rows
HELD_OUT, MOST_HELD_OUT = 0.1, 2048
#: below so many rows nothing is held out unasked
FEWEST_ROWS = 500


class Source(ABC):
    """What the training loop asks for."""

    #: the number of samples, if it is known
    total: int | None = None
    #: whether a run can go on from the middle
    resumable: bool = True

    @abstractmethod
    def batch(self, step: int) -> Batch | None:
        """The batch of a step, or None when a stream has ended."""

    def first(self) -> Batch:
        """The first batch, which `batch` gives again."""
        batch = self.batch(0)
        assert batch is not None
        return batch

    def seek(self, step: int) -> None:
        """Be ready for that step next."""
        return


class Rows(Source):
    """Rows of an array, a tensor or a memory map, drawn at random; only those drawn are read.

    Parameters
    ----------
    x, targets
        Signals (n, m), and what belongs to each row of them.
    size
        How many rows make a batch.
    seed
        Seeds the drawing.
    held
        Rows, sorted, that are never drawn.
    """

    def __init__(
        self, x: Any, targets: Any, size: int, seed: int, dtype: torch.dtype, held: Any = ()
    ) -> None:
        self.x, self.targets = x, targets
        self.size, self.seed, self.dtype = size, seed, dtype
        self.total = len(x)
        self.held = np.asarray(held, dtype=np.int64)
        # the k-th row that is not held out is k plus the held rows before it
        self._shifted = self.held - np.arange(len(self.held))

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        drawn = np.sort(rng.integers(len(self.x) - len(self.held), size=self.size))
        return self.take(drawn + np.searchsorted(self._shifted, drawn, side="right"))

    def take(self, rows: Any) -> Batch:
        """The given rows."""
        return Batch(
            _take(self.x, rows, self.dtype),
            _take_targets(self.targets, rows, self.dtype),
            torch.from_numpy(np.asarray(rows)),
            self.total,
        )


class Batches(Source):
    """An iterable of batches: a list, a DataLoader, anything that can be started again.

    A DataLoader that shuffles draws from torch's global generator. It gets a private one, seeded
    with the number of the pass, so that a run can be repeated and resumed.
    """

    def __init__(self, batches: Iterable[Any], seed: int, dtype: torch.dtype) -> None:
        self.batches, self.seed, self.dtype = batches, seed, dtype
        self.resumable = iter(batches) is not batches
        data = getattr(batches, "dataset", None)
        self.total = len(data) if data is not None and hasattr(data, "__len__") else None
        self._iterator: Iterator[Any] | None = None
        self._passes = 0
        self._random: Tensor | None = None
        self._waiting: list[Any] = []

    def batch(self, step: int) -> Batch | None:
        item = self._next()
        if item is None:
            if not self.resumable:
                return None
            self._iterator = None
            item = self._next()
        if item is None:
            raise ValueError("x is an empty iterable; it must give at least one batch")
        pair = item if isinstance(item, tuple | list) else [item]
        if len(pair) not in (1, 2):
            raise ValueError(f"a batch must be x or (x, targets), got {len(pair)} things")
        x, targets = pair[0], pair[1] if len(pair) == 2 else None
        return Batch(*as_tensors(x, targets, self.dtype), rows=None, total=self.total)

    def first(self) -> Batch:
        item = self._next()
        if item is None:
            raise ValueError("x is an empty iterable; it must give at least one batch")
        self._waiting.append(item)
        batch = self.batch(0)
        assert batch is not None
        self._waiting.append(item)
        return batch

    def seek(self, step: int) -> None:
        if step == 0:
            return
        self._iterator, self._passes = None, 0
        for _ in range(step):
            if self._next() is None:
                self._iterator = None
                self._next()

    def _begin_pass(self) -> None:
        self._random = torch.Generator().manual_seed(self.seed + self._passes).get_state()
        self._passes += 1
        self._iterator = iter(self.batches)

    def _next(self) -> Any:
        if self._waiting:
            return self._waiting.pop()
        if self._iterator is None:
            self._begin_pass()
        assert self._iterator is not None
        assert self._random is not None
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            item = next(self._iterator, None)
            self._random = torch.get_rng_state()
        return item


def as_source(
    x: Any,
    targets: Any,
    *,
    features: int,
    dtype: torch.dtype,
    size: int,
    seed: int,
    hold: bool,
    held: Any = None,
) -> tuple[Source, Batch | None]:
    """The source that fits the data, and the rows held out for validation, if any."""
    if not hasattr(x, "shape"):
        if isinstance(x, str | bytes) or not isinstance(x, Iterable):
            raise TypeError(
                "x must be an array, a tensor, a memory map, or an iterable of batches, "
                f"got {type(x).__name__}"
            )
        if targets is not None:
            raise ValueError(
                "targets belong to an array x; let an iterable give (x, targets) pairs instead"
            )
        return Batches(x, seed, dtype), None
    if len(x.shape) != 2:
        raise ValueError(f"x must have two dimensions (rows, features), got shape {tuple(x.shape)}")
    if len(x) == 0:
        raise ValueError("x is empty")
    require_width(x, features, "x", "features", "the encoder's dictionary")
    for name, values in _named(targets).items():
        if len(values) != len(x):
            raise ValueError(f"{name} has {len(values)} rows, but x has {len(x)}")
    if held is not None:
        held = np.unique(np.asarray(held, dtype=np.int64))
    elif not hold or len(x) < FEWEST_ROWS:
        return Rows(x, targets, size, seed, dtype), None
    else:
        count = min(int(HELD_OUT * len(x)), MOST_HELD_OUT)
        rng = np.random.default_rng([seed, len(x)])
        held = np.unique(rng.integers(len(x), size=count))
    source = Rows(x, targets, size, seed, dtype, held)
    return source, source.take(held)


def as_tensors(x: Any, targets: Any, dtype: torch.dtype) -> tuple[Tensor, Targets | None]:
    """Signals and targets as tensors, signals and real targets in the given dtype."""
    rows = slice(None)
    return _take(x, rows, dtype), _take_targets(targets, rows, dtype)


def _take(values: Any, rows: Any, dtype: torch.dtype) -> Tensor:
    part = (
        values[torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows]
        if isinstance(values, Tensor)
        else torch.from_numpy(np.ascontiguousarray(values[rows]))
    )
    return part.to(dtype) if part.is_floating_point() else part


def _take_targets(targets: Any, rows: Any, dtype: torch.dtype) -> Targets | None:
    if targets is None:
        return None
    if isinstance(targets, Mapping):
        return {name: _take(values, rows, dtype) for name, values in targets.items()}
    return _take(targets, rows, dtype)


def _named(targets: Any) -> dict[str, Any]:
    if targets is None:
        return {}
    if isinstance(targets, Mapping):
        return {f"targets[{name!r}]": values for name, values in targets.items()}
    return {"targets": targets}
