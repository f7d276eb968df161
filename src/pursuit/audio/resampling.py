"""Streams between the sample rate of a recording and that of a model, aligned to the sample.

The filters are those of soxr. They have linear phase and soxr removes their delay: output sample m
is the signal at the time of input sample ``m rate_in / rate_out``. A stream only returns it later.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np

from .._words import require_choice
from .streams import Array, SampleProcess, SampleStream

QUALITIES = ("LQ", "MQ", "HQ", "VHQ")


class Resampler(SampleStream):
    """A stream from one sample rate to another, in float32.

    Output sample m is the band-limited signal at the time of input sample
    ``m rate_in / rate_out``; n samples become ``ceil(n rate_out / rate_in)``. Equal rates return
    the samples unchanged and at once.

    Parameters
    ----------
    rate_in, rate_out : int
        Samples per second.
    channels : int or None, default=None
        The number of channels; None for blocks of one dimension.
    quality : {"LQ", "MQ", "HQ", "VHQ"}, default="HQ"
        A name of soxr. A lower quality has a wider transition below the Nyquist frequency and,
        in general, a lower latency.

    Examples
    --------
    >>> resampler = Resampler(44100, 16000)
    >>> blocks = [resampler.push(np.zeros(1000, np.float32)) for _ in range(44)]
    >>> sum(map(len, blocks)) + len(resampler.flush())
    15964
    """

    def __init__(
        self, rate_in: int, rate_out: int, channels: int | None = None, quality: str = "HQ"
    ) -> None:
        try:
            import soxr
        except ImportError as error:
            raise ImportError(
                "resampling needs soxr; install it with pip install 'pursuit[audio]'"
            ) from error
        super().__init__(channels)
        for name, rate in (("rate_in", rate_in), ("rate_out", rate_out)):
            if rate <= 0:
                raise ValueError(f"{name} must be positive (samples per second), got {rate}")
        require_choice(quality, QUALITIES, "quality")
        self.rate_in, self.rate_out, self.quality = rate_in, rate_out, quality
        self._soxr = soxr.ResampleStream(rate_in, rate_out, channels or 1, "float32", quality)
        self._returned = 0

    @property
    def latency(self) -> int:
        """Samples of the input by which the output is late, at most.

        After n samples, at least ``(n - latency) rate_out / rate_in`` were returned. soxr works
        in blocks of a size of its choice, which it does not tell; so the latency is measured once
        for each pair of rates, with a margin of 2 %.
        """
        return _latency(self.rate_in, self.rate_out, self.quality)

    def push(self, samples: Array) -> Array:
        """Take the next samples and return those of the output that are ready."""
        return self._resample(self._take(samples))

    def flush(self, length: int | None = None) -> Array:
        """End the signal and return the remaining samples of the output.

        Parameters
        ----------
        length : int or None, default=None
            The number of samples of the whole output, by default
            ``ceil(n rate_out / rate_in)``. The signal is zero after its end.
        """
        self._end()
        if length is None:
            length = -(-self.samples * self.rate_out // self.rate_in)
        missing = length - self._returned
        if missing < 0:
            raise ValueError(
                f"length must be at least {self._returned}, the samples returned so far, "
                f"got {length}"
            )
        # soxr returns round(n rate_out / rate_in) samples
        enough = ceil((length + 1) * self.rate_in / self.rate_out)
        silence = self._silence(max(enough - self.samples, 0))
        return self._resample(silence, last=True)[:missing]

    def _resample(self, samples: Array, last: bool = False) -> Array:
        resampled: Array = self._soxr.resample_chunk(np.ascontiguousarray(samples), last=last)
        self._returned += len(resampled)
        return resampled


class Bands(NamedTuple):
    """Two parts of a signal, at its sample rate; their sum is the signal."""

    #: the band below half of the model's sample rate, after the process
    low: Array
    #: the signal without it
    rest: Array


class BandSplit(SampleStream):
    """A stream that splits a signal into the band of a model and the rest.

    The signal x is resampled to the model's rate, processed there, and resampled to its own
    rate; ``rest = x - low``, aligned to the sample and of the same length. So ``low + rest`` is
    the signal, up to one rounding in float32: ``|low + rest - x| <= 2^-23 (|low| + |rest|)``.

    Parameters
    ----------
    rate, model_rate : int
        Samples per second of the signal and of the process.
    channels : int or None, default=None
        The number of channels; None for blocks of one dimension.
    process : stream or None, default=None
        What is done at the model's rate, with `push`, `flush` and `latency`, such as the
        separation of a voice: then `low` is the voice and `rest` is the accompaniment, with
        everything above the model's band. By default nothing is done.
    quality : {"LQ", "MQ", "HQ", "VHQ"}, default="HQ"
        The quality of `Resampler`.

    Examples
    --------
    >>> split = BandSplit(44100, 16000, channels=2)
    >>> x = np.random.default_rng(0).standard_normal((10_000, 2)).astype(np.float32)
    >>> low, rest = map(np.concatenate, zip(split.push(x), split.flush()))
    >>> bool(np.allclose(low + rest, x, atol=1e-6))
    True
    """

    def __init__(
        self,
        rate: int,
        model_rate: int,
        channels: int | None = None,
        process: SampleProcess | None = None,
        quality: str = "HQ",
    ) -> None:
        super().__init__(channels)
        self.rate, self.model_rate = rate, model_rate
        self._process = process
        self._down = Resampler(rate, model_rate, channels, quality)
        self._up = Resampler(model_rate, rate, channels, quality)
        self._waiting = self._silence(0)

    @property
    def latency(self) -> int:
        """After n samples were pushed, at least n - latency samples of both parts were returned."""
        inner = self._process.latency if self._process else 0
        slow = ceil((inner + self._up.latency) * self.rate / self.model_rate)
        return self._down.latency + slow

    def push(self, samples: Array) -> Bands:
        """Take the next samples and return those of both parts that are ready."""
        block = self._take(samples)
        low = self._down.push(block)
        if self._process:
            low = self._process.push(low)
        return self._split(block, self._up.push(low))

    def flush(self) -> Bands:
        """End the signal and return the remaining samples of both parts."""
        self._end()
        low = self._down.flush()
        if self._process:
            low = np.concatenate([self._process.push(low), self._process.flush()])
        low = np.concatenate([self._up.push(low), self._up.flush(self.samples)])
        return self._split(self._silence(0), low)

    def _split(self, samples: Array, low: Array) -> Bands:
        waiting = np.concatenate([self._waiting, samples])
        self._waiting = waiting[len(low) :].copy()
        return Bands(low, waiting[: len(low)] - low)


@lru_cache
def _latency(rate_in: int, rate_out: int, quality: str) -> int:
    """Measure the latency of soxr's stream over two seconds, in blocks of half a millisecond."""
    resampler = Resampler(rate_in, rate_out, quality=quality)
    block = np.zeros(max(rate_in // 2000, 1), np.float32)
    late, returned = 0.0, 0
    for pushed in range(len(block), 2 * rate_in, len(block)):
        returned += len(resampler.push(block))
        late = max(late, pushed - returned * rate_in / rate_out)
    # between two measurements it may have been later, by less than a block
    return ceil(1.02 * (late + len(block))) if late else 0
