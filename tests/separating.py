"""A separator that is quick and known, in place of a trained one.

It halves what the model's rate can represent, by way of the streams of a real separator: resampling
and short-time spectra, with their latency. ``python separating.py ...`` is ``pursuit ...`` with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np

from pursuit.audio import STFT, BandSplit

RATE = 16000


class Separated(NamedTuple):
    voice: np.ndarray
    accompaniment: np.ndarray


class Masked:
    """A process at the model's rate: all spectra are multiplied by a number."""

    def __init__(self, gain: float, channels: int | None, stft: STFT) -> None:
        self.gain, self.latency = np.float32(gain), stft.latency
        self.analysis = stft.analysis_stream(channels)
        self.synthesis = stft.synthesis_stream(channels)

    def push(self, samples: np.ndarray) -> np.ndarray:
        return self.synthesis.push(self.gain * self.analysis.push(samples))

    def flush(self) -> np.ndarray:
        return self.synthesis.flush(self.gain * self.analysis.flush(), self.analysis.samples)


class SeparatorStream:
    def __init__(self, split: BandSplit) -> None:
        self.split, self.latency = split, split.latency

    def push(self, samples: np.ndarray) -> Separated:
        return Separated(*self.split.push(samples))

    def flush(self) -> Separated:
        return Separated(*self.split.flush())


class Separator:
    """Without a file, the gain is 0.5; a file has another one as text."""

    rate = RATE

    def __init__(self, gain: float, window: int) -> None:
        self.gain, self.window = gain, window

    @classmethod
    def load(cls, path: Path) -> Separator:
        return cls(float(path.read_text()), 1024)

    @classmethod
    def pretrained(cls, latency: str = "normal") -> Separator:
        return cls(0.5, {"normal": 1024, "low": 128}[latency])

    def separate(self, wave: np.ndarray, rate: int) -> Separated:
        stream = self.stream(rate, wave.shape[1] if wave.ndim == 2 else None)
        voice, accompaniment = zip(stream.push(wave), stream.flush(), strict=True)
        return Separated(np.concatenate(voice), np.concatenate(accompaniment))

    def stream(
        self, rate: int, channels: int | None = None, quality: str = "HQ"
    ) -> SeparatorStream:
        process = Masked(self.gain, channels, STFT(self.window, self.window // 2))
        return SeparatorStream(BandSplit(rate, RATE, channels, process, quality))


if __name__ == "__main__":
    module = ModuleType("pursuit.audio.separation")
    module.Separator = Separator
    sys.modules[module.__name__] = module
    from pursuit.cli.main import main

    main()
