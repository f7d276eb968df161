"""Batches of samples, and where training takes them from.

Rows of an array are drawn by a generator that is seeded with the number of the step, so a run can
be resumed without further state. Other iterables are read again from the beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._checks import as_tensor, require_width
from .sampling import Array, skip_rows

Targets = Tensor | Mapping[str, Tensor]

#: the largest fraction of the rows that is held out by default, and the largest number of rows
HELD_OUT, MOST_HELD_OUT = 0.1, 2048
#: arrays with fewer rows than this have no rows held out by default
FEWEST_ROWS = 500

#: the number of steps whose rows are drawn at once, which is quicker than one by one
DRAWN_AT_ONCE = 32

EMPTY = "x is an empty iterable; it must yield at least one batch"


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples, and what a regime may need to know about them.

    Attributes
    ----------
    x
        Signals, shape (n, m).
    targets
        What the regime compares with: a matrix, labels, or named matrices; None if not needed.
    rows
        The row numbers of the samples in the data set, shape (n,); None if they are not known.
    total
        The number of samples of the data set; None if it is not known.
    learns_dictionary
        Whether the dictionary is learned as well, so that its penalty phi(D) counts.
    """

    x: Tensor
    targets: Targets | None = None
    rows: Tensor | None = None
    total: int | None = None
    learns_dictionary: bool = False

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; `rows` stay where they are."""
        if self.x.device == device:
            return self
        targets = _each(self.targets, lambda values: values.to(device))
        return replace(self, x=self.x.to(device), targets=targets)

    def part(self, rows: slice) -> Batch:
        """Return the samples in a slice of the rows."""
        targets = _each(self.targets, lambda values: values[rows])
        numbers = None if self.rows is None else self.rows[rows]
        return replace(self, x=self.x[rows], targets=targets, rows=numbers)


class Source(ABC):
    """The batch of each training step."""

    #: the number of samples, None if it is not known
    total: int | None = None
    #: whether a run can be resumed in the middle
    resumable: bool = True

    @abstractmethod
    def batch(self, step: int) -> Batch | None:
        """Return the batch of a step, or None at the end of a one-time iterator."""

    def first(self) -> Batch:
        """Return the first batch; `batch` returns it again."""
        batch = self.batch(0)
        assert batch is not None
        return batch

    def seek(self, step: int) -> None:
        """Skip to a step."""
        return


class Rows(Source):
    """Random rows of an array or memory map, except those in `held`; only these rows are read."""

    def __init__(
        self, x: Any, targets: Any, size: int, seed: int, dtype: torch.dtype, held: Array
    ) -> None:
        self.x, self.targets = x, targets
        self.size, self.seed, self.dtype = size, seed, dtype
        self.total: int = len(x)
        self.held = held
        self._block, self._drawn = -1, np.empty((0, size), np.int64)

    def batch(self, step: int) -> Batch:
        block, number = divmod(step, DRAWN_AT_ONCE)
        if block != self._block:
            rng = np.random.default_rng([self.seed, block])
            shape = DRAWN_AT_ONCE, self.size
            drawn = np.sort(rng.integers(self.total - len(self.held), size=shape), axis=1)
            self._block, self._drawn = block, skip_rows(drawn, self.held)
        return self.take(self._drawn[number])

    def take(self, rows: Any) -> Batch:
        """Return the batch of the given rows."""
        x, targets = as_tensors(self.x, self.targets, self.dtype, rows)
        return Batch(x, targets, torch.from_numpy(np.asarray(rows)), self.total)


class Batches(Source):
    """The batches of an iterable: a list, a DataLoader, or a one-time iterator.

    Each item is x or (x, targets). A DataLoader that shuffles draws from torch's global generator;
    here it gets a private one, seeded with the number of the pass, so that a run can be repeated
    and resumed.
    """

    def __init__(self, batches: Iterable[Any], width: int, seed: int, dtype: torch.dtype) -> None:
        self.batches, self.width, self.seed, self.dtype = batches, width, seed, dtype
        self.resumable = not isinstance(batches, Iterator)
        data = getattr(batches, "dataset", None)
        self.total = len(data) if data is not None and hasattr(data, "__len__") else None
        self._iterator: Iterator[Any] | None = None
        self._passes = 0
        self._random = torch.empty(0)
        self._first: Batch | None = None

    def batch(self, step: int) -> Batch | None:
        if self._first is not None:
            batch, self._first = self._first, None
            return batch
        item = self._next()
        if item is None:
            if not self.resumable:
                return None
            self._iterator = None
            item = self._next()
        if item is None:
            raise ValueError(EMPTY)
        pair = item if isinstance(item, tuple | list) else [item]
        if len(pair) not in (1, 2):
            raise ValueError(f"a batch must be x or (x, targets), got a tuple of {len(pair)}")
        x, targets = pair[0], pair[1] if len(pair) == 2 else None
        batch = Batch(*as_tensors(x, targets, self.dtype), rows=None, total=self.total)
        return require_shape(batch, self.width)

    def first(self) -> Batch:
        self._first = self.batch(0)
        if self._first is None:
            raise ValueError(EMPTY)
        return self._first

    def seek(self, step: int) -> None:
        if step == 0:
            return
        self._iterator, self._passes = None, 0
        for _ in range(step):
            if self._next() is None:
                self._iterator = None
                self._next()

    def _next(self) -> Any:
        if self._iterator is None:
            self._random = torch.Generator().manual_seed(self.seed + self._passes).get_state()
            self._passes += 1
            self._iterator = iter(self.batches)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            item = next(self._iterator, None)
            self._random = torch.get_rng_state()
        return item


def as_source(
    x: Any,
    targets: Any,
    features: int,
    dtype: torch.dtype,
    size: int,
    seed: int,
    hold: bool,
    held: Any = None,
) -> tuple[Source, Batch | None]:
    """Return the source of batches, and the batch of the rows that are held out, or None.

    `held` are the numbers of the rows to hold out; without it, `hold` tells whether to draw some.
    """
    if isinstance(x, Source):
        return x, None
    if not hasattr(x, "shape"):
        if isinstance(x, str | bytes) or not isinstance(x, Iterable):
            raise TypeError(
                "x must be an array, a tensor, a memory map, or an iterable of batches, "
                f"got {type(x).__name__}"
            )
        if targets is not None:
            raise ValueError(
                "targets belong to an array x; an iterable must yield (x, targets) pairs instead"
            )
        if held is not None:
            raise ValueError(
                "held names rows of an array x, but x is an iterable; give validation=... instead"
            )
        return Batches(x, features, seed, dtype), None
    if len(x.shape) != 2:
        raise ValueError(f"x must have two dimensions (rows, features), got shape {tuple(x.shape)}")
    if len(x) == 0:
        raise ValueError("x is empty")
    require_width(x, features, "x", "features", "the encoder's dictionary")
    require_targets(targets, len(x))
    rows = np.empty(0, np.int64)
    if held is not None:
        rows = _as_rows(held, len(x))
    elif hold and len(x) >= FEWEST_ROWS:
        count = min(int(HELD_OUT * len(x)), MOST_HELD_OUT)
        rows = np.unique(np.random.default_rng([seed, len(x)]).integers(len(x), size=count))
    source = Rows(x, targets, size, seed, dtype, rows)
    return source, source.take(rows) if len(rows) > 0 else None


def as_tensors(
    x: Any, targets: Any, dtype: torch.dtype, rows: Any = slice(None)
) -> tuple[Tensor, Targets | None]:
    """Return rows of signals and targets as tensors; floats are converted to `dtype`."""
    return _take(x, rows, dtype), _each(targets, lambda values: _take(values, rows, dtype))


def require_targets(targets: Any, rows: int) -> None:
    """Raise a ValueError unless the targets, if there are any, have a row for each of x."""
    named = targets if isinstance(targets, Mapping) else {None: targets}
    for key, values in named.items():
        if values is not None and len(values) != rows:
            name = "targets" if key is None else f"targets[{key!r}]"
            raise ValueError(f"{name} has {len(values)} rows, but x has {rows}")


def require_shape(batch: Batch, width: int, name: str = "a batch") -> Batch:
    """Return the batch; raise a ValueError unless its signals have shape (rows, width)."""
    if batch.x.ndim != 2 or batch.x.shape[1] != width:
        raise ValueError(f"{name} must have shape (rows, {width}), got {tuple(batch.x.shape)}")
    return batch


def _as_rows(held: Any, total: int) -> Array:
    """Return sorted row numbers without repetitions, or raise a ValueError."""
    rows = np.asarray(held)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(
            f"held must be a list of row numbers, got {rows.dtype} of shape {rows.shape}"
        )
    rows = np.unique(rows.astype(np.int64))
    if len(rows) == 0:
        raise ValueError("held is empty; name at least one row, or use validation=False")
    if not 0 <= rows[0] <= rows[-1] < total:
        raise ValueError(
            f"held must name rows from 0 to {total - 1}, got numbers from {rows[0]} to {rows[-1]}"
        )
    if len(rows) == total:
        raise ValueError("held names all rows of x; leave some to train on")
    return rows


def _take(values: Any, rows: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(values, Tensor):
        tensor = as_tensor(values, "x")  # not a sparse one
        by_number = isinstance(rows, np.ndarray)
        part = tensor.index_select(0, torch.from_numpy(rows)) if by_number else tensor[rows]
    else:
        part = as_tensor(values[rows], "x", copy=False)
    return part.to(dtype) if part.is_floating_point() else part


def _each(targets: Any, change: Any) -> Targets | None:
    """Return the targets with a function applied to each array."""
    if targets is None:
        return None
    if isinstance(targets, Mapping):
        return {name: change(values) for name, values in targets.items()}
    changed: Tensor = change(targets)
    return changed
