"""The sounds of the experiment `speakers`: single clips, speakers one after another, mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from ..audio.speakers import Contrast, Envelope, level, mix
from ..datasets import speakers as corpus

#: a speaker is active in a frame of a mixture if the norm of the envelope of this voice is at
#: least this fraction of that of the louder one
ACTIVE = 0.5


@dataclass(frozen=True, eq=False)
class Sound:
    """Signals and the numbers of the speakers that are heard in them.

    `clips` has the number of frames of each clip by its name, if clips follow one another.
    """

    speakers: tuple[int, ...]
    signals: Tensor
    clips: Mapping[str, int] = field(default_factory=dict)


class Collection:
    """The clips of one set of speakers, as signals."""

    def __init__(
        self, folder: Path, name: str, envelope: Envelope, ridge: float, quiet: float
    ) -> None:
        self.folder, self.name, self.envelope = folder, name, envelope
        train = corpus.read_folder(folder, name, "train")
        self.speakers = tuple(sorted({clip.speaker for clip in train}))
        self._waves = cache(self._read)
        features = [envelope(_joined(waves)) for waves in self._waves("train")]
        self.contrast = Contrast.of(features, ridge, quiet)

    def single(self, role: str, seed: int) -> list[Sound]:
        """The clips of each speaker one after another, in an order that the seed draws."""
        found = []
        for number, waves in enumerate(self._ordered(role, seed)):
            signals = {clip: self.contrast(self.envelope(wave)) for clip, wave in waves.items()}
            frames = {clip: len(own) for clip, own in signals.items()}
            found.append(Sound((number,), _joined(signals), frames))
        return found

    def mixtures(self, role: str, seed: int) -> list[Sound]:
        """All mixtures of two speakers, whose clips follow one another, at the same level."""
        streams = [_joined(waves) for waves in self._ordered(role, seed)]
        return [
            Sound((i, j), self.contrast(self.envelope(mix(streams[i], streams[j]))))
            for i, j in combinations(range(len(streams)), 2)
        ]

    def training(self, seed: int, count: int) -> tuple[Tensor, Tensor]:
        """Draw training signals (count, m), and who is active in each (count, speakers).

        They are frames of single speakers and of mixtures, as many of both, that are not silent.
        """
        generator = torch.Generator().manual_seed(seed)
        found = []
        for sounds in (self.single("train", seed), self.mixtures("train", seed)):
            signals = torch.cat([sound.signals for sound in sounds])
            active = torch.cat([self._active(sound, seed) for sound in sounds])
            heard = torch.nonzero(signals.any(dim=1)).flatten()
            rows = heard[torch.randperm(len(heard), generator=generator)[: count // 2]]
            found.append((signals[rows], active[rows]))
        signals, active = (torch.cat(parts) for parts in zip(*found, strict=True))
        return signals, active

    def _active(self, sound: Sound, seed: int) -> Tensor:
        """Which speakers are active in each frame of a training sound, (frames, speakers)."""
        active = torch.zeros(len(sound.signals), len(self.speakers), dtype=torch.bool)
        if len(sound.speakers) == 1:
            active[:, sound.speakers[0]] = True
            return active
        streams = [_joined(self._ordered("train", seed)[number]) for number in sound.speakers]
        length = min(map(len, streams))
        norms = torch.stack(
            [
                torch.linalg.vector_norm(self.envelope(level(wave[:length])), dim=1)
                for wave in streams
            ],
            dim=1,
        )
        active[:, list(sound.speakers)] = norms >= ACTIVE * norms.amax(dim=1, keepdim=True)
        return active

    def _ordered(self, role: str, seed: int) -> list[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        found = []
        for waves in self._waves(role):
            names = list(waves)
            order = torch.randperm(len(names), generator=generator).tolist()
            found.append({names[k]: waves[names[k]] for k in order})
        return found

    def _read(self, role: str) -> list[dict[str, Tensor]]:
        """The waves of each speaker by the path of the clip, all at the same level."""
        waves: list[dict[str, Tensor]] = [{} for _ in self.speakers]
        for clip in corpus.read_folder(self.folder, self.name, role):
            if clip.speaker not in self.speakers:
                raise ValueError(f"{clip.path} is of {clip.speaker}, who has no train clips")
            wave = torch.from_numpy(clip.read(self.envelope.rate))
            waves[self.speakers.index(clip.speaker)][str(clip.path)] = level(wave)
        return waves


def _joined(waves: Mapping[str, Tensor]) -> Tensor:
    return torch.cat(list(waves.values()))
