"""What streams of samples have in common: a check of each block, a count, and an end.

Samples are arrays of shape (samples,) or (samples, channels), as soundfile reads them. A stream is
fed blocks of any size by ``push`` and ended by ``flush``; what both return, joined along the first
axis, does not depend on the division into blocks. Needs only numpy.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class SampleProcess(Protocol):
    """A stream that returns as many samples as it is given, aligned with them, only later."""

    @property
    def latency(self) -> int:
        """After n samples were pushed, at least n - latency samples were returned."""

    def push(self, samples: Array) -> Array:
        """Take the next samples and return those that are ready."""

    def flush(self) -> Array:
        """End the signal and return the remaining samples."""


class Stream:
    """The shape of the blocks, and whether the stream has ended.

    Parameters
    ----------
    channels : int or None, default=None
        The number of channels; None for blocks of one dimension.
    """

    def __init__(self, channels: int | None = None) -> None:
        if channels is not None and channels < 1:
            raise ValueError(f"channels must be at least 1, or None, got {channels}")
        self.channels = channels
        self._ended = False

    def _end(self) -> None:
        self._require_open()
        self._ended = True

    def _require_open(self) -> None:
        if self._ended:
            raise RuntimeError("the stream has been flushed; make a new one for the next signal")

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return () if self.channels is None else (self.channels,)

    def _silence(self, samples: int) -> Array:
        return np.zeros((samples, *self._shape), np.float32)


class SampleStream(Stream):
    """A stream whose input is samples; counts them as `samples`."""

    def __init__(self, channels: int | None = None) -> None:
        super().__init__(channels)
        #: the number of samples pushed so far
        self.samples = 0

    def _take(self, samples: Array) -> Array:
        """Return a checked block in float32, and count it."""
        self._require_open()
        block = np.asarray(samples)
        if block.dtype.kind != "f":
            raise TypeError(
                f"samples must be floating-point numbers, got {block.dtype}; "
                "read the file with dtype='float32', which scales integers to [-1, 1]"
            )
        if block.ndim != 1 + len(self._shape) or block.shape[1:] != self._shape:
            wanted = "(samples,)" if self.channels is None else f"(samples, {self.channels})"
            raise ValueError(
                f"samples must have the shape {wanted}, got {block.shape}; "
                "set the argument channels of the stream (None for one dimension)"
            )
        self.samples += len(block)
        return block.astype(np.float32, copy=False)
