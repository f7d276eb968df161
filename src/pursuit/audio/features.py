"""What a separator sees of a spectrum: compressed magnitudes over their level, in bands.

Needs only numpy. Training and live streams use the same code.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from .spectrogram import STFT
from .streams import Array

#: added to the level, so that silence stays silence
TINY = 1e-8


@dataclass(frozen=True)
class Features:
    """``A / sqrt(level)`` with ``A = |X|^power``, in bands of the frequency axis.

    The level of frame t is the running mean of ``mean_f A^2`` over this frame and the earlier
    ones, with weights ``decay^(t - s)``: causal, and independent of the volume of a recording.
    Bands are triangular filters whose centres are equally spaced on a logarithmic axis and at
    least a bin wide. On such an axis all harmonic sounds have the same shape, only shifted.

    Parameters
    ----------
    window, hop : int
        The frames of the `STFT`, in samples.
    rate : int, default=16000
        Samples per second.
    power : float, default=0.5
        The exponent of the magnitudes.
    bands : int or None, default=None
        Bands for each octave; None for the bins of the transform themselves.
    lowest, highest : float
        The frequencies of the first and the last band, in hertz.
    margin : int, default=0
        Zeros before the first band.
    width : int or None, default=None
        The number of features, zeros after the last band included; None for no such zeros.
    decay : float or None, default=0.99
        The decay of the level for each 16 milliseconds; None divides by `scale` instead.
    scale : float, default=1.0
        What magnitudes are divided by if `decay` is None.

    Examples
    --------
    >>> features = Features(window=2048, hop=512, bands=24)
    >>> features.count, features.width
    (173, 173)
    """

    window: int = 1024
    hop: int = 256
    rate: int = 16_000
    power: float = 0.5
    bands: int | None = None
    lowest: float = 50.0
    highest: float = 7600.0
    margin: int = 0
    width: int = field(default=0)
    decay: float | None = 0.99
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.bands is not None and self.bands < 1:
            raise ValueError(f"bands must be at least 1 for each octave, or None, got {self.bands}")
        if not 0 < self.lowest < self.highest <= self.rate / 2:
            raise ValueError(
                f"lowest and highest must be frequencies below {self.rate / 2:g} Hz, half of the "
                f"sample rate, got {self.lowest:g} and {self.highest:g}"
            )
        if self.width == 0:
            object.__setattr__(self, "width", self.margin + self.count)
        if self.margin < 0 or self.width < self.margin + self.count:
            raise ValueError(
                f"width must be at least {self.margin + self.count}, the margin and the bands, "
                f"got {self.width}"
            )
        if self.decay is not None and not 0 < self.decay < 1:
            raise ValueError(f"decay must be between 0 and 1, or None, got {self.decay}")

    @property
    def config(self) -> dict[str, Any]:
        """The arguments, as plain data."""
        return asdict(self)

    @cached_property
    def stft(self) -> STFT:
        """The transform of the signal."""
        return STFT(self.window, self.hop)

    @cached_property
    def count(self) -> int:
        """The number of bands."""
        if self.bands is None:
            return self.stft.bins
        return int(self.bands * math.log2(self.highest / self.lowest))

    @cached_property
    def filters(self) -> Array:
        """The weights of the bins in each band, shape (count, bins), float32; rows sum to 1."""
        if self.bands is None:
            return np.eye(self.count, dtype=np.float32)
        hertz = self.rate / self.window
        bins = np.arange(self.stft.bins) * hertz
        centres = self.lowest * 2 ** (np.arange(self.count) / self.bands)
        widths = np.maximum(centres * (2 ** (1 / self.bands) - 1), hertz)
        weights = np.maximum(0, 1 - np.abs(bins - centres[:, None]) / widths[:, None])
        filters: Array = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
        return filters

    @cached_property
    def spread(self) -> Array:
        """The weights of the bands in each bin, shape (count, bins), float32.

        A mask of the bins is a mask of the bands times this matrix. Columns sum to 1, or are zero
        for bins outside of all bands.
        """
        squares = self.filters.astype(np.float64) ** 2
        total = squares.sum(0)
        spread: Array = (squares / np.where(total > 0, total, 1)).astype(np.float32)
        return spread

    def stream(self) -> FeatureStream:
        """Return a stream from spectra to features."""
        return FeatureStream(self)


class FeatureStream:
    """The stream from spectra (frames, ..., bins) to features (frames, ..., width), float32."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self._total: Array | float = 0.0  # of the decaying weights times the squares
        self._weight = 0.0  # of the decaying weights

    def push(self, spectra: Array) -> Array:
        """Return the features of the next frames."""
        return self.push_parts(spectra)[0]

    def push_parts(self, spectra: Array, *parts: Array) -> list[Array]:
        """Return the features of the next frames and of their parts, all over the same levels."""
        magnitudes = [self._compressed(values) for values in (spectra, *parts)]
        levels = self._levels(magnitudes[0])[..., None]
        return [self._in_bands(values) / levels for values in magnitudes]

    def _compressed(self, spectra: Array) -> Array:
        magnitudes: Array = np.abs(spectra)
        if self.features.power == 0.5:
            np.sqrt(magnitudes, out=magnitudes)
        elif self.features.power != 1:
            magnitudes **= self.features.power
        return magnitudes

    def _in_bands(self, magnitudes: Array) -> Array:
        features = self.features
        seen = np.zeros((*magnitudes.shape[:-1], features.width), np.float32)
        bands = seen[..., features.margin : features.margin + features.count]
        if features.bands is None:
            bands[...] = magnitudes
        else:
            np.matmul(magnitudes, features.filters.T, out=bands)
        return seen

    def _levels(self, magnitudes: Array) -> Array:
        """What each frame is divided by."""
        features = self.features
        if features.decay is None:
            return np.full(magnitudes.shape[:-1], features.scale, np.float32)
        decay = features.decay ** (features.hop / features.rate / 0.016)
        # einsum: a product of squares and a sum without a copy of the block
        squares = np.einsum("...f,...f->...", magnitudes, magnitudes, dtype=np.float64)
        squares /= magnitudes.shape[-1]
        levels = np.empty(squares.shape)
        for number, square in enumerate(squares):
            self._total = decay * self._total + square
            self._weight = decay * self._weight + 1
            levels[number] = self._total / self._weight
        return np.sqrt(levels + TINY).astype(np.float32)
