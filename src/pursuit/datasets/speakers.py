"""Speakers: clips of speech from closed sets of people, listed in a table.

A folder holds one or more sets, each a subfolder, and the table ``splits.csv``, which gives the
speaker and the role of every clip. Sounds are read one by one, when they are needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..audio.recordings import Recording
from ..audio.streams import Array
from .splits import Entry, located, read_splits
from .stems import Track

#: samples a second
RATE = 8000


@dataclass(frozen=True)
class Clip:
    """A recording of one speaker."""

    path: Path
    speaker: str

    def read(self, rate: int = RATE) -> Array:
        """Read the mean of the channels at a sample rate, float32, shape (samples,)."""
        if rate <= 0:
            raise ValueError(f"rate must be positive (samples per second), got {rate}")
        return Track(Recording.open(self.path)).read(rate)


def sets(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names of the sets of speakers in a folder, sorted."""
    return tuple(sorted({entry.name for entry in _table(folder)[1]}))


def read_folder(folder: str | os.PathLike[str], name: str, role: str) -> tuple[Clip, ...]:
    """List the clips of a set and a role, in the order of the table; no sound is read yet.

    Parameters
    ----------
    folder
        The folder with the table ``splits.csv`` (file, speaker, role), or its parent if it is
        called ``speakers``.
    name
        The set, which is the first folder of the paths in the table.
    role
        Such as train, val or test.
    """
    folder, entries = _table(folder)
    names = sorted({entry.name for entry in entries})
    if name not in names:
        raise ValueError(f"{folder} has no set {name!r}; its sets are {', '.join(names)}")
    roles = sorted({entry.role for entry in entries if entry.name == name})
    if role not in roles:
        raise ValueError(
            f"{name} in {folder} has no clips of the role {role!r}; its roles are "
            f"{', '.join(roles)}"
        )
    chosen = [entry for entry in entries if (entry.name, entry.role) == (name, role)]
    for entry in chosen:
        entry.require_file()
    return tuple(Clip(entry.path, entry.person) for entry in chosen)


def _table(folder: str | os.PathLike[str]) -> tuple[Path, list[Entry]]:
    folder = located(folder, "speakers", "speaker")
    return folder, read_splits(folder, "speaker", "clips")
