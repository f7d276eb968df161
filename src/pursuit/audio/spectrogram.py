"""The short-time Fourier transform and its inverse: in batches with torch, and as streams without.

Both compute the same numbers, up to rounding in float32. The streams need only numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .streams import Array, SampleStream, Stream

if TYPE_CHECKING:
    from torch import Tensor


#: the longest window
LONGEST = 2**20


@dataclass(frozen=True)
class STFT:
    """A short-time Fourier transform with a Hann window, and its exact inverse.

    Frame k has the samples from ``k hop - (window - hop)`` to ``(k + 1) hop - 1``; those before
    the first and after the last sample of the signal are zero, so that the transform of frame k
    is known as soon as ``(k + 1) hop`` samples are::

        X[k, f] = sum_n w[n] x[k hop - (window - hop) + n] exp(-2 pi i f n / window)

    with the periodic Hann window ``w[n] = sin^2(pi n / window)``. The inverse is the
    least-squares one: each frame is transformed back, weighted by ``w[n] / sum_j w[n + j hop]^2``,
    and overlapping frames are added. Every sample is in all of its frames, the first and the last
    included, so the round trip is exact.

    Parameters
    ----------
    window : int, default=1024
        Samples in a frame.
    hop : int, default=256
        Samples from one frame to the next, at most half of the window.

    Examples
    --------
    >>> import torch
    >>> stft = STFT(window=320, hop=160)
    >>> wave = torch.randn(2, 1000)
    >>> spectra = stft.analyse(wave)
    >>> tuple(spectra.shape)
    (2, 8, 161)
    >>> bool(torch.allclose(stft.synthesise(spectra, 1000), wave, atol=1e-5))
    True

    The same as streams, without torch:

    >>> analysis, synthesis = stft.analysis_stream(), stft.synthesis_stream()
    >>> parts = [synthesis.push(analysis.push(block.numpy())) for block in wave[0].split(300)]
    >>> parts.append(synthesis.flush(analysis.flush(), analysis.samples))
    >>> bool(np.allclose(np.concatenate(parts), wave[0], atol=1e-5))
    True
    """

    window: int = 1024
    hop: int = 256

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ValueError(f"window must be at least 2 samples, got {self.window}")
        if self.window > LONGEST:
            raise ValueError(f"window must be at most {LONGEST} samples, got {self.window}")
        if not 1 <= self.hop <= self.window // 2:
            raise ValueError(
                f"hop must be from 1 to window // 2 = {self.window // 2}, got {self.hop}; "
                "with a larger hop some samples are in no frame but its edge, where the window is "
                "nearly zero, and the inverse amplifies every change of the spectra"
            )

    @property
    def bins(self) -> int:
        """The number of frequencies, ``window // 2 + 1``."""
        return self.window // 2 + 1

    @property
    def latency(self) -> int:
        """``window - 1`` samples: after n samples at least n - latency are reconstructed.

        If blocks are multiples of the hop, at least ``n - (window - hop)`` are.
        """
        return self.window - 1

    def frames(self, samples: int) -> int:
        """Return the number of frames of a signal."""
        return -(-(samples + self._before) // self.hop) if samples else 0

    def analyse(self, wave: Tensor) -> Tensor:
        """Return the spectra (..., frames, bins) of waves (..., samples); differentiable."""
        import torch
        from torch.nn.functional import pad

        samples = wave.shape[-1]
        if not samples:
            raise ValueError(f"wave has no samples, got shape {tuple(wave.shape)}")
        after = (self.frames(samples) - 1) * self.hop + self.window - self._before - samples
        frames = pad(wave, (self._before, after)).unfold(-1, self.window, self.hop)
        spectra: Tensor = torch.fft.rfft(frames * torch.from_numpy(self._hann).to(wave))
        return spectra

    def synthesise(self, spectra: Tensor, length: int) -> Tensor:
        """Return the waves (..., length) of spectra (..., frames, bins); differentiable.

        Of spectra that are no transform of a signal, it is the wave whose transform is nearest
        in the sense of least squares.
        """
        import torch
        from torch.nn.functional import pad

        self._require_spectra(tuple(spectra.shape))
        count = spectra.shape[-2]
        self._require_frames(count, length)
        frames = torch.fft.irfft(spectra, n=self.window)
        frames = frames * torch.from_numpy(self._dual).to(frames)
        hops = pad(frames, (0, self._overlap * self.hop - self.window))
        hops = hops.reshape(*hops.shape[:-1], self._overlap, self.hop)
        shifted = [
            pad(hops[..., number, :], (0, 0, number, self._overlap - 1 - number))
            for number in range(self._overlap)
        ]
        wave = torch.stack(shifted).sum(0).flatten(-2)
        return wave[..., self._before : self._before + length]

    def analysis_stream(self, channels: int | None = None) -> Analysis:
        """Return a stream from samples to spectra."""
        return Analysis(self, channels)

    def synthesis_stream(self, channels: int | None = None) -> Synthesis:
        """Return a stream from spectra to samples."""
        return Synthesis(self, channels)

    @property
    def _before(self) -> int:
        """The zeros before the signal."""
        return self.window - self.hop

    @property
    def _overlap(self) -> int:
        """The number of hops that a frame touches."""
        return -(-self.window // self.hop)

    @cached_property
    def _hann(self) -> Array:
        hann: Array = np.sin(np.pi * np.arange(self.window) / self.window) ** 2
        return hann

    @cached_property
    def _dual(self) -> Array:
        """The weights of synthesis, ``w[n] / sum_j w[n + j hop]^2``."""
        squares = np.zeros(self._overlap * self.hop)
        squares[: self.window] = self._hann**2
        total = np.tile(squares.reshape(self._overlap, self.hop).sum(0), self._overlap)
        dual: Array = self._hann / total[: self.window]
        return dual

    def _require_spectra(self, shape: tuple[int, ...]) -> None:
        if len(shape) < 2 or shape[-1] != self.bins:
            raise ValueError(
                f"spectra must have the shape (..., frames, bins) with {self.bins} bins for a "
                f"window of {self.window} samples, got {shape}"
            )

    def _require_frames(self, count: int, length: int) -> None:
        if count != self.frames(length):
            raise ValueError(
                f"a signal of {length} samples has {self.frames(length)} frames of {self.window} "
                f"samples every {self.hop}, got {count}; length is the number of samples analysed"
            )


class Analysis(SampleStream):
    """The stream from samples (samples,) to spectra (frames, bins), in complex64.

    Samples of shape (samples, channels) become spectra of shape (frames, channels, bins). Keeps
    less than a window of samples. Any division of a signal into blocks gives identical numbers.
    """

    def __init__(self, stft: STFT, channels: int | None = None) -> None:
        super().__init__(channels)
        self.stft = stft
        self._window = stft._hann.astype(np.float32)
        self._waiting = self._silence(stft._before)

    def push(self, samples: Array) -> Array:
        """Return the spectra of the frames that the next samples complete."""
        return self._transform(self._take(samples))

    def flush(self) -> Array:
        """End the signal and return the spectra of its last frames."""
        self._end()
        missing = self.stft.frames(self.samples) - self.samples // self.stft.hop
        return self._transform(self._silence(missing * self.stft.hop))

    def _transform(self, samples: Array) -> Array:
        window, hop = self.stft.window, self.stft.hop
        signal = np.concatenate([self._waiting, samples])
        count = (len(signal) - self.stft._before) // hop
        self._waiting = signal[count * hop :].copy()
        if not count:
            return np.zeros((0, *self._shape, self.stft.bins), np.complex64)
        # a view of overlapping frames; numpy's functions for it take longer than the transform
        shape, (sample, *channel) = (count, *self._shape, window), signal.strides
        strides = (hop * sample, *channel, sample)
        frames: Array = np.ndarray(shape, signal.dtype, signal, strides=strides)
        # numpy transforms row by row, so a frame's numbers do not depend on the others
        return np.fft.rfft(frames * self._window)


class Synthesis(Stream):
    """The stream from spectra (frames, bins) to samples (samples,), in float32.

    Spectra of shape (frames, channels, bins) become samples of shape (samples, channels). Keeps
    less than a window of samples. Any division of the frames gives identical numbers.
    """

    def __init__(self, stft: STFT, channels: int | None = None) -> None:
        super().__init__(channels)
        self.stft = stft
        self._window = stft._dual.astype(np.float32)
        self._frames = 0
        self._returned = -stft._before
        self._unfinished = np.zeros((stft._overlap - 1, *self._shape, stft.hop), np.float32)

    def push(self, spectra: Array) -> Array:
        """Return the samples that the next spectra complete."""
        self._require_open()
        self._require_spectra(spectra)
        window, hop, overlap = self.stft.window, self.stft.hop, self.stft._overlap
        count = len(spectra)
        frames = np.zeros((count, *self._shape, overlap * hop), np.float32)
        if count:
            frames[..., :window] = np.fft.irfft(spectra, n=window) * self._window
        hops = frames.reshape(count, *self._shape, overlap, hop)
        total = np.zeros((count + overlap - 1, *self._shape, hop), np.float32)
        total[: overlap - 1] = self._unfinished
        # the earliest frame first, as if they came one by one: the rounding is the same
        for number in reversed(range(overlap)):
            total[number : number + count] += hops[..., number, :]
        self._unfinished = total[count:].copy()
        self._frames += count
        done = total[:count].swapaxes(1, -1).reshape(count * hop, *self._shape)
        samples = done[min(max(-self._returned, 0), len(done)) :]
        self._returned += len(done)
        return samples

    def flush(self, spectra: Array, length: int) -> Array:
        """End the signal with the last spectra and return the remaining samples.

        Parameters
        ----------
        spectra : ndarray of shape (frames, [channels,] bins)
            The last frames, those that follow from ``Analysis.flush()``.
        length : int
            The number of samples in the whole signal, ``Analysis.samples``.
        """
        self._require_open()
        self._require_spectra(spectra)
        self.stft._require_frames(self._frames + len(spectra), length)
        returned = max(self._returned, 0)
        samples = self.push(spectra)
        self._end()
        return samples[: length - returned]

    def _require_spectra(self, spectra: Array) -> None:
        wanted = (*self._shape, self.stft.bins)
        if spectra.shape[1:] != wanted:
            shape = ", ".join(map(str, wanted))
            raise ValueError(
                f"spectra must have the shape (frames, {shape}), got {spectra.shape}; "
                "set the argument channels of the stream (None for no axis of channels)"
            )
