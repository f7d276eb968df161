"""Sounds of known speakers, to train and to test on: clips one after another, and mixtures of two.

Every frame of a mixture has the labels of those who are active in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from .envelope import Contrast, level, mix
from .speaker_recipe import Recipe
from .streams import Array

#: a speaker is active in a frame of a mixture if the norm of the envelope of this voice is at
#: least this fraction of that of the louder one
ACTIVE = 0.5
#: the most pairs of speakers whose mixtures are made, and the most seconds of each speaker in them
PAIRS, SECONDS = 45, 300


@dataclass(frozen=True, eq=False)
class Sound:
    """Signals and the numbers of the speakers that are heard in them.

    `clips` has the number of frames of each clip by its name, if clips follow one another.
    """

    speakers: tuple[int, ...]
    signals: Tensor
    clips: Mapping[str, int] = field(default_factory=dict)


class Sounds:
    """The clips of some speakers as signals of a model.

    Parameters
    ----------
    clips
        For each speaker the waves by the name of the clip; all are brought to the same level.
    recipe : Recipe
        The settings of the features.
    contrast : Contrast or None
        What features are compared with; by default it is learned from these clips.
    """

    def __init__(
        self,
        clips: Sequence[Mapping[str, Array]],
        recipe: Recipe,
        contrast: Contrast | None = None,
    ) -> None:
        self.envelope = recipe.envelope
        self._clips = [{name: level(wave) for name, wave in own.items()} for own in clips]
        if contrast is None:
            features = [self.envelope(_joined(own)) for own in self._clips]
            contrast = Contrast.of(features, recipe.ridge, recipe.quiet)
        self.contrast = contrast

    def single(self, seed: int) -> list[Sound]:
        """The clips of each speaker one after another, in an order that the seed draws."""
        found = []
        for number, clips in enumerate(self.ordered(seed)):
            signals = [self._signals(wave) for wave in clips.values()]
            frames = dict(zip(clips, map(len, signals), strict=True))
            found.append(Sound((number,), torch.cat(signals), frames))
        return found

    def mixtures(self, seed: int) -> list[Sound]:
        """Mixtures of two speakers, whose clips follow one another, at the same level.

        All pairs are mixed, or 45 that the seed draws.
        """
        streams = self._streams(seed)
        pairs = list(combinations(range(len(streams)), 2))
        if len(pairs) > PAIRS:
            chosen = np.random.default_rng(seed).choice(len(pairs), PAIRS, replace=False)
            pairs = [pairs[k] for k in sorted(chosen)]
        return [Sound((i, j), self._signals(mix(streams[i], streams[j]))) for i, j in pairs]

    def training(self, seed: int, count: int) -> tuple[Tensor, Tensor]:
        """Draw training signals (count, m), and who is active in each (count, speakers).

        They are frames of single speakers and of mixtures, as many of both, that are not silent.
        """
        generator = torch.Generator().manual_seed(seed)
        found = []
        for sounds in (self.single(seed), self.mixtures(seed)):
            signals = torch.cat([sound.signals for sound in sounds])
            active = torch.cat([self._active(sound, seed) for sound in sounds])
            heard = torch.nonzero(signals.any(dim=1)).flatten()
            rows = heard[torch.randperm(len(heard), generator=generator)[: count // 2]]
            found.append((signals[rows], active[rows]))
        signals, active = (torch.cat(parts) for parts in zip(*found, strict=True))
        return signals, active

    def ordered(self, seed: int) -> list[dict[str, Array]]:
        """The waves of each speaker by the name of the clip, in an order that the seed draws."""
        generator = torch.Generator().manual_seed(seed)
        found = []
        for clips in self._clips:
            names = list(clips)
            order = torch.randperm(len(names), generator=generator).tolist()
            found.append({names[k]: clips[names[k]] for k in order})
        return found

    def _streams(self, seed: int) -> list[Array]:
        """The clips of each speaker one after another, as long as they are mixed."""
        longest = SECONDS * self.envelope.rate
        return [_joined(clips)[:longest] for clips in self.ordered(seed)]

    def _signals(self, wave: Array) -> Tensor:
        return torch.from_numpy(self.contrast(self.envelope(wave)))

    def _active(self, sound: Sound, seed: int) -> Tensor:
        """Which speakers are active in each frame of a sound, (frames, speakers)."""
        active = torch.zeros(len(sound.signals), len(self._clips), dtype=torch.bool)
        if len(sound.speakers) == 1:
            active[:, sound.speakers[0]] = True
            return active
        streams = [self._streams(seed)[number] for number in sound.speakers]
        length = min(map(len, streams))
        norms = [np.linalg.norm(self.envelope(level(wave[:length])), axis=1) for wave in streams]
        louder = ACTIVE * np.max(norms, axis=0)
        for number, norm in zip(sound.speakers, norms, strict=True):
            active[:, number] = torch.from_numpy(norm >= louder)
        return active


def _joined(clips: Mapping[str, Array]) -> Array:
    return np.concatenate(list(clips.values()))
