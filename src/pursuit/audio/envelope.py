"""What tells voices apart: spectral envelopes, compressed, and relative to those of all speakers.

Needs only numpy. Training, recordings and live streams use the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .spectrogram import STFT
from .streams import Array


@dataclass(frozen=True)
class Envelope:
    """The short-time power-spectrum envelope of a wave, compressed.

    The power spectrum ``P = |X|^2`` of every frame is averaged in bands with triangular weights,
    which smooths the harmonics of the pitch away, and compressed: ``A = (P W')^power``. Clips are
    brought to the same level before (see `level`).

    Parameters
    ----------
    size : int, default=80
        The number of bands, whose centres are equally spaced on the mel scale.
    rate : int, default=8000
        Samples per second.
    window, hop : int
        The frames, in samples; by default 512, overlapping by 75 %.
    width : float, default=300.0
        The smallest distance from the centre of a band to its ends, in hertz; wider than that of
        the harmonics of a low voice, so that they are not resolved.
    power : float, default=0.15
        The exponent of the compression.

    Examples
    --------
    >>> wave = np.random.default_rng(0).standard_normal(8000)
    >>> Envelope()(wave).shape
    (66, 80)
    """

    size: int = 80
    rate: int = 8000
    window: int = 512
    hop: int = 128
    width: float = 300.0
    power: float = 0.15

    def __post_init__(self) -> None:
        for name in ("size", "rate", "window", "hop"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.width >= self.rate / self.window:
            raise ValueError(
                f"width must be at least {self.rate / self.window:g} Hz, one frequency of the "
                f"transform, got {self.width}"
            )
        if not self.power > 0:
            raise ValueError(f"power must be positive, got {self.power}")

    @cached_property
    def stft(self) -> STFT:
        """The transform of the wave."""
        return STFT(self.window, self.hop)

    @cached_property
    def filters(self) -> Array:
        """W, the weights of the frequencies in each band, shape (size, bins); rows sum to 1.

        A band reaches to the centres of its neighbours, but at least over `width` on each side.
        """
        hertz = self.rate / self.window
        edges = 700 * np.expm1(np.linspace(0, np.log1p(self.rate / 1400), self.size + 2))
        low, centre, high = (edges[k : k + self.size, None] for k in range(3))
        below, above = np.maximum(centre - low, self.width), np.maximum(high - centre, self.width)
        away = np.arange(self.stft.bins) * hertz - centre
        weights = np.maximum(0, 1 - np.where(away < 0, -away / below, away / above))
        filters: Array = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
        return filters

    def __call__(self, wave: Array) -> Array:
        """Return the features (frames, size) of a wave (samples,), float32."""
        stream = self.stft.analysis_stream()
        return np.concatenate([self.of_spectra(s) for s in (stream.push(wave), stream.flush())])

    def of_spectra(self, spectra: Array) -> Array:
        """Return the features of spectra (frames, bins)."""
        power = np.square(spectra.real) + np.square(spectra.imag)
        features: Array = (power @ self.filters.T) ** np.float32(self.power)
        return features


@dataclass(frozen=True, eq=False)
class Contrast:
    """Features relative to those of all speakers: centred, whitened, and of unit norm.

    ``x = (A - mean) T / ||(A - mean) T||_2``, where ``T = (C + ridge mean(diag C) I)^(-1/2)`` and C
    is the covariance of the features around the mean of their speaker. What varies within the
    speech of everyone counts less than what tells speakers apart. Frames that are much quieter than
    the average are silence and become zero, whose code is zero.

    Attributes
    ----------
    mean, transform
        The mean, shape (m,), and T, shape (m, m), float32.
    least
        The smallest norm of A that is not silence.
    """

    mean: Array
    transform: Array
    least: float

    @classmethod
    def of(cls, features: Sequence[Array], ridge: float, quiet: float) -> Contrast:
        """Learn from the features of some speakers, one matrix (frames, m) for each.

        Parameters
        ----------
        features
            The features.
        ridge
            The weight of the identity in the covariance, relative to the mean variance.
        quiet
            The smallest norm of a frame that is not silence, relative to the mean norm.
        """
        every = np.concatenate(list(features)).astype(np.float64)
        within = np.concatenate([own - own.mean(0, dtype=np.float64) for own in features])
        covariance = within.T @ within / len(within)
        covariance += ridge * covariance.diagonal().mean() * np.eye(len(covariance))
        values, vectors = np.linalg.eigh(covariance)
        transform = (vectors / np.sqrt(values)) @ vectors.T
        least = quiet * float(np.linalg.norm(every, axis=1).mean())
        return cls(every.mean(0).astype(np.float32), transform.astype(np.float32), least)

    def __call__(self, features: Array) -> Array:
        """Return x for features of shape (frames, m), float32."""
        signals = (features - self.mean) @ self.transform
        norms = np.linalg.norm(signals, axis=1, keepdims=True)
        loud = np.linalg.norm(features, axis=1, keepdims=True) >= self.least
        scaled: Array = np.zeros_like(signals)
        np.divide(signals, norms, out=scaled, where=loud & (norms > 0))
        return scaled


def heard(signals: Array) -> Array:
    """Return which signals (frames, m) are not silent, that is, not zero; shape (frames,)."""
    spoken: Array = np.count_nonzero(signals, axis=1) > 0
    return spoken


def level(wave: Array) -> Array:
    """Return a wave divided by its root mean square."""
    size = np.sqrt(np.mean(np.square(wave), dtype=np.float64))
    if not size > 0:
        raise ValueError("the wave is silent, so it cannot be brought to a level")
    levelled: Array = wave / wave.dtype.type(size)
    return levelled


def mix(first: Array, second: Array) -> Array:
    """Return the sum of two waves at the same level, as long as the shorter one."""
    length = min(len(first), len(second))
    return level(first[:length]) + level(second[:length])
