"""Mixtures to train a separator with: random segments of recorded voices and accompaniments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._words import require_choice
from ..batches import Batch, Source
from .features import Features
from .streams import Array

#: playback speeds: a speed changes the pitch and the tempo of a recording, as another singer would
SPEEDS = (0.84, 0.89, 0.94, 1.0, 1.06, 1.12, 1.19)
#: the fraction of the segments whose voice and accompaniment come from different recordings
REMIX = 0.9


@dataclass(frozen=True, eq=False)
class Pair:
    """A recording in two parts, float32 waves of the same length at the rate of the separator.

    Attributes
    ----------
    accompaniment, voice
        The parts; their sum is the mixture.
    group
        The singer or the song. All groups are drawn equally often.
    """

    accompaniment: Array
    voice: Array
    group: str = ""

    def __post_init__(self) -> None:
        if self.accompaniment.ndim != 1 or self.accompaniment.shape != self.voice.shape:
            raise ValueError(
                "accompaniment and voice must be waves of the same length, got shapes "
                f"{self.accompaniment.shape} and {self.voice.shape}"
            )
        for name in ("accompaniment", "voice"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name} contains NaN or infinite values")


class Mixtures(Source):
    """Batches of random segments; the batch of a step depends on the seed and the step alone.

    Parameters
    ----------
    pairs
        The recordings.
    features
        What the separator sees of a spectrum.
    frames
        The length of a segment.
    segments
        The number of segments in a batch.
    flat
        Whether a row of a batch is a frame, or else a segment, frame by frame.
    targets
        "spectra": what the masked signal is compared with, one row for each segment; "parts": the
        features of accompaniment and voice, as ``{"low_rank": ..., "sparse": ...}``.
    remix, speeds
        The augmentation: see `REMIX` and `SPEEDS`; 0 and (1.0,) for none.
    seed
        The seed of all draws.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        features: Features,
        frames: int = 64,
        segments: int = 8,
        flat: bool = False,
        targets: str = "spectra",
        remix: float = REMIX,
        speeds: Sequence[float] = SPEEDS,
        seed: int = 0,
    ) -> None:
        if not pairs:
            raise ValueError("pairs is empty; a separator learns from at least one recording")
        self.pairs, self.features = list(pairs), features
        require_choice(targets, ("spectra", "parts"), "targets")
        self.frames, self.segments, self.flat, self.targets = frames, segments, flat, targets
        self.remix, self.speeds, self.seed = remix, tuple(speeds), seed
        #: the samples of a segment, so that it has the number of frames
        self.samples = frames * features.hop - (features.window - features.hop)
        if self.samples < 1:
            raise ValueError(f"a segment of {frames} frames is shorter than a window")
        groups = sorted({pair.group for pair in self.pairs})
        self._groups = [[p for p in self.pairs if p.group == group] for group in groups]

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        drawn = [self._segment(rng) for _ in range(self.segments)]
        music, voice = (torch.from_numpy(np.stack(waves)) for waves in zip(*drawn, strict=True))
        return self._batch(music, voice)

    def _batch(self, music: Tensor, voice: Tensor) -> Batch:
        spectra = self.features.stft.analyse(torch.stack([music, voice]))
        mixture = spectra.sum(0)
        frames = [part.transpose(0, 1).numpy() for part in (mixture, *spectra)]
        if self.targets == "parts":
            x, *parts = (self._rows(seen) for seen in self.features.stream().push_parts(*frames))
            return Batch(x, dict(zip(("low_rank", "sparse"), parts, strict=True)))
        energies = spectra.abs().square().sum((2, 3))
        targets = {
            "power": mixture.abs().square(),
            "cross": (mixture.conj() * spectra[1]).real,
            "music": energies[0],
            "voice": energies[1],
        }
        return Batch(self._rows(self.features.stream().push(frames[0])), targets)

    def _rows(self, seen: Array) -> Tensor:
        """Features (frames, segments, width) as the rows of a batch."""
        rows = torch.from_numpy(np.ascontiguousarray(seen.swapaxes(0, 1)))
        return rows.flatten(0, 1) if self.flat else rows.flatten(1)

    def _segment(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Accompaniment and voice of one segment."""
        first = self._cut(rng)
        if rng.random() >= self.remix:
            return first
        return first[0], self._cut(rng)[1]

    def _cut(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A segment of a random recording, at a random speed."""
        import soxr

        group = self._groups[rng.integers(len(self._groups))]
        pair = group[rng.integers(len(group))]
        speed = self.speeds[rng.integers(len(self.speeds))]
        needed = int(np.ceil(self.samples * speed)) + 1
        start = int(rng.integers(max(1, len(pair.voice) - needed)))
        parts = (wave[start : start + needed] for wave in (pair.accompaniment, pair.voice))
        if speed == 1:
            cut = [_fitted(wave, self.samples) for wave in parts]
        else:
            rates = (1000 * speed, 1000.0)
            cut = [_fitted(soxr.resample(w, *rates, "MQ"), self.samples) for w in parts]
        return cut[0], cut[1]


def _fitted(wave: Array, samples: int) -> Array:
    """A wave cut or padded with zeros to a length."""
    wave = wave[:samples]
    return np.pad(wave, (0, samples - len(wave))).astype(np.float32, copy=False)
