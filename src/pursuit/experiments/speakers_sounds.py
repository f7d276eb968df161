"""The sounds of the experiment `speakers`: the clips of a set, in their roles."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..audio.speaker_recipe import Recipe
from ..audio.speaker_sounds import Sounds
from ..audio.streams import Array
from ..datasets import speakers as corpus


class Collection:
    """The clips of one set of speakers; what they are compared with comes from the train clips."""

    def __init__(self, folder: Path, name: str, recipe: Recipe) -> None:
        self.folder, self.name, self.recipe = folder, name, recipe
        train = corpus.read_folder(folder, name, "train")
        self.speakers = tuple(sorted({clip.speaker for clip in train}))
        self.train = Sounds(self._read("train"), recipe)
        self.sounds = cache(self._sounds)  # by role

    def _sounds(self, role: str) -> Sounds:
        if role == "train":
            return self.train
        return Sounds(self._read(role), self.recipe, self.train.contrast)

    def _read(self, role: str) -> list[dict[str, Array]]:
        """The waves of each speaker by the path of the clip."""
        waves: list[dict[str, Array]] = [{} for _ in self.speakers]
        for clip in corpus.read_folder(self.folder, self.name, role):
            if clip.speaker not in self.speakers:
                raise ValueError(f"{clip.path} is of {clip.speaker}, who has no train clips")
            waves[self.speakers.index(clip.speaker)][str(clip.path)] = clip.read(
                self.recipe.envelope.rate
            )
        return waves
