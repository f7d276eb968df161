"""Scores of separated clips: improvements over the mixture, and their means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..audio.metrics import CONVENTIONS, Improvement, Sources, mean_improvement, sdr
from ..datasets.singing import Clip

Array = np.ndarray[Any, Any]

#: the improvement of voice and music in decibels, clip by clip, in each convention
Scores = dict[str, list[list[float]]]


class Example(NamedTuple):
    """The waves of a clip, float64 tensors of shape (samples,)."""

    mixture: Tensor
    voice: Tensor
    music: Tensor


class Scorer:
    """Measures estimates of the voice and the music of some clips.

    The ratios of the mixtures, with which all estimates are compared, are computed once.
    """

    def __init__(self, clips: Sequence[Clip]) -> None:
        self.clips = clips

    def measure(self, separate: Callable[[Example], Mapping[str, Sources]]) -> dict[str, Scores]:
        """Separate every clip in one or more ways; return the scores of each way by name."""
        found: dict[str, Scores] = {}
        for clip, ratios in zip(self.clips, self._mixture_ratios, strict=True):
            example = read(clip)
            reference = torch.stack([example.voice, example.music])
            ways = separate(example)
            estimates = torch.stack([torch.stack(tuple(waves)) for waves in ways.values()])
            references = reference.expand(len(ways), -1, -1)
            for convention in CONVENTIONS:
                better = sdr(estimates, references, convention) - ratios[convention]
                for way, values in zip(ways, better.tolist(), strict=True):
                    found.setdefault(way, {}).setdefault(convention, []).append(values)
        return found

    @cached_property
    def _mixture_ratios(self) -> list[dict[str, Array]]:
        """The ratios of the mixture as an estimate of voice and music, for every clip."""
        ratios = []
        for clip in self.clips:
            example = read(clip)
            reference = torch.stack([example.voice, example.music])
            mixture = example.mixture.expand(2, -1)
            ratios.append({name: sdr(mixture, reference, name) for name in CONVENTIONS})
            if np.isnan(ratios[-1][CONVENTIONS[0]]).any():
                raise ValueError(
                    f"{clip.path} has a silent channel, so its separation cannot be measured; "
                    "leave it out of the test clips"
                )
        return ratios


def read(clip: Clip) -> Example:
    """Read the waves of a clip."""
    music, voice = map(torch.from_numpy, clip.read())
    return Example(music + voice, voice, music)


def global_mean(scores: Array, samples: Sequence[int], convention: str) -> list[float]:
    """The means of voice and music weighted by the lengths of the clips (GNSDR)."""
    clips = [
        Improvement(float(voice), float(music), count, convention)
        for (voice, music), count in zip(scores, samples, strict=True)
    ]
    mean = mean_improvement(clips)
    return [mean.voice, mean.music]
