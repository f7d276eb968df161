"""Speakers: clips of speech from closed sets of people, listed in a table.

A folder holds one or more sets, each a subfolder, and the table ``splits.csv``, which gives the
speaker and the role of every clip. Sounds are read one by one, when they are needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..audio.recordings import Recording
from ..audio.streams import Array
from .download import inside, read_table
from .stems import Track

#: samples a second
RATE = 8000
SPLITS = "splits.csv"


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
    return tuple(sorted({name for _, name, _ in _table(_located(folder))}))


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
    folder = _located(folder)
    rows = _table(folder)
    names = sorted({each for _, each, _ in rows})
    if name not in names:
        raise ValueError(f"{folder} has no set {name!r}; its sets are {', '.join(names)}")
    roles = sorted({each for _, own, each in rows if own == name})
    if role not in roles:
        raise ValueError(
            f"{name} in {folder} has no clips of the role {role!r}; its roles are "
            f"{', '.join(roles)}"
        )
    clips = tuple(clip for clip, own, each in rows if (own, each) == (name, role))
    for clip in clips:
        if not clip.path.is_file():
            raise FileNotFoundError(f"there is no file {clip.path}, but {SPLITS} names it")
    return clips


def _located(folder: str | os.PathLike[str]) -> Path:
    folder = inside(folder, "speakers")
    if not (folder / SPLITS).is_file():
        raise FileNotFoundError(
            f"there is no {folder / SPLITS}; give a folder with this table of file, speaker, role"
        )
    return folder


def _table(folder: Path) -> list[tuple[Clip, str, str]]:
    """Every clip with its set and its role."""
    splits, found = folder / SPLITS, []
    for row in read_table(splits, ("file", "speaker", "role")):
        parts = PurePosixPath(row["file"]).parts
        if len(parts) < 2 or parts[0] in ("/", ".."):
            raise ValueError(
                f"{splits} must name files as set/file or set/speaker/file, got {row['file']!r}"
            )
        found.append((Clip(folder / row["file"], row["speaker"]), parts[0], row["role"]))
    if not found:
        raise ValueError(f"{splits} names no clips")
    return found
