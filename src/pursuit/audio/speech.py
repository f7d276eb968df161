"""A recording as a model of speakers hears it: one channel, no offset, the model's rate and level.

Recordings that are too short or silent are refused. Needs only numpy, and soxr for other rates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .envelope import level
from .resampling import Resampler
from .streams import Array

#: the shortest recording, in seconds
SHORTEST = 0.25
#: the lowest sample rate
LOWEST_RATE = 1000
#: a wave whose root mean square is lower, relative to full scale, is silent (-80 dB)
SILENT = 1e-4


def prepared(wave: Any, rate: int, model_rate: int) -> Array:
    """Return a recording as a wave (samples,) at the rate of a model, float32, of unit level.

    Channels are averaged and the mean is subtracted, so that an offset does not count.

    Parameters
    ----------
    wave : array of shape (samples,) or (samples, channels)
        Floating-point samples, full scale from -1 to 1.
    rate, model_rate : int
        Samples per second of the recording, and of the result.
    """
    samples = one_channel(wave)
    if rate < LOWEST_RATE:
        raise ValueError(f"rate must be at least {LOWEST_RATE} samples per second, got {rate}")
    if len(samples) < SHORTEST * rate:
        raise ValueError(
            f"the recording has {len(samples) / rate:.2f} s, which is too short; at least "
            f"{SHORTEST} s are needed, and more than 2 s are better"
        )
    samples = samples - samples.mean(dtype=np.float64).astype(np.float32)
    if rate != model_rate:
        resampler = Resampler(rate, model_rate)
        samples = np.concatenate([resampler.push(samples), resampler.flush()])
    if np.sqrt(np.mean(np.square(samples), dtype=np.float64)) < SILENT:
        raise ValueError("the recording is silent; check the microphone or the file")
    return level(samples)


def one_channel(wave: Any) -> Array:
    """Return the mean of the channels of a recording (samples,) or (samples, channels), float32."""
    samples = np.asarray(wave)
    if samples.dtype.kind != "f":
        raise TypeError(
            f"samples must be floating-point numbers, got {samples.dtype}; read the file with "
            "dtype='float32', which scales integers to [-1, 1]"
        )
    if samples.ndim not in (1, 2) or 0 in samples.shape[1:]:
        raise ValueError(
            f"a recording must have the shape (samples,) or (samples, channels), got "
            f"{samples.shape}"
        )
    if not np.isfinite(samples).all():
        bad = np.flatnonzero(~np.isfinite(samples.reshape(len(samples), -1)).all(1))[0]
        raise ValueError(f"sample {bad} is NaN or infinite; check the recording")
    mono: Array = samples if samples.ndim == 1 else samples.mean(axis=1)
    return mono.astype(np.float32, copy=False)
