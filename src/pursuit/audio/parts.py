"""Voice and accompaniment in the sample format of a recording, so that they add up to it exactly.

A separator returns parts in float32. Rounding both to integers would change their sum, and so would
clipping. So only the voice is rounded, and the accompaniment is the recording without it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from .streams import Array


class Parts(NamedTuple):
    """Samples of both parts: integers in int32 for formats of integers, else float64."""

    voice: Array
    accompaniment: Array


class _Separated(Protocol):
    @property
    def voice(self) -> Array: ...


class SeparatorStream(Protocol):
    """The stream of a separator; see `pursuit.audio.Separator.stream`."""

    @property
    def latency(self) -> int: ...

    def push(self, samples: Array) -> _Separated: ...

    def flush(self) -> _Separated: ...


class PartStream:
    """A stream from samples to both parts in a sample format.

    With ``scale = 2^(bits - 1)`` and x = rint(scale * samples), the integers are::

        v = clip(rint(scale * voice), max(-scale, x - (scale - 1)), min(scale - 1, x + scale))
        a = x - v

    so that ``v + a = x`` always, and neither part exceeds full scale. Where the bounds change v,
    one of the parts would have been clipped; its excess is given to the other part instead, and
    counted by `limited`. Without `bits`, parts are real numbers, which have no full scale, and
    ``a = samples - voice``.

    Parameters
    ----------
    stream : stream of a separator
        With `push`, `flush` and `latency`; takes blocks of shape (samples, channels).
    channels : int
        The number of channels.
    bits : int or None, default=None
        The bits of an integer, at most 32; None for real numbers.
    """

    def __init__(self, stream: SeparatorStream, channels: int, bits: int | None = None) -> None:
        self._stream, self.bits = stream, bits
        self._waiting = np.zeros((0, channels))
        #: the number of samples that one of the parts would have exceeded full scale at
        self.limited = 0

    @property
    def latency(self) -> int:
        """After n samples were pushed, at least n - latency samples of both were returned."""
        return self._stream.latency

    def push(self, samples: Array) -> Parts:
        """Take samples of shape (n, channels), float64, and return the parts that are ready."""
        self._waiting = np.concatenate([self._waiting, samples])
        return self._parts(self._stream.push(samples.astype(np.float32)).voice)

    def flush(self) -> Parts:
        """End the signal and return the remaining samples of both parts."""
        return self._parts(self._stream.flush().voice)

    def _parts(self, voice: Array) -> Parts:
        samples = self._waiting[: len(voice)]
        self._waiting = self._waiting[len(voice) :].copy()
        wanted = voice.astype(np.float64)
        if self.bits is None:
            return Parts(wanted, samples - wanted)
        scale = 2.0 ** (self.bits - 1)
        x, wanted = np.rint(scale * samples), np.rint(scale * wanted)
        lowest, highest = np.maximum(-scale, x - (scale - 1)), np.minimum(scale - 1, x + scale)
        v = np.clip(wanted, lowest, highest)
        self.limited += int(np.count_nonzero(v != wanted))
        return Parts(v.astype(np.int32), (x - v).astype(np.int32))
