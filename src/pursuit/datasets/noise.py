"""Speech and noise: spoken digits of a closed set of people, and noises to mix them with.

A folder holds two tables, ``speech_splits.csv`` and ``noise_splits.csv``, which give the role of
every spoken digit and of every stretch of a noise. Roles have no take and no sample in common.
Sounds are read when they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np

from ..audio.recordings import Recording
from ..audio.streams import Array
from .download import inside, read_table

#: samples a second
RATE = 8000
SPEECH, NOISE = "speech_splits.csv", "noise_splits.csv"
#: the collection of noises whose roles are disjoint in time; others may overlap with it
COLLECTION = "aurora10s"


@dataclass(frozen=True)
class Clip:
    """Digits of one take of a speaker, one after another.

    Attributes
    ----------
    paths
        The recordings, in the order in which they are joined.
    speaker, take
        Who speaks, and the number of the take.
    """

    paths: tuple[Path, ...]
    speaker: str
    take: str

    @property
    def name(self) -> str:
        """A name that no other clip has."""
        return " ".join(path.stem for path in self.paths)

    def read(self) -> Array:
        """Read the joined digits, float32, shape (samples,)."""
        return np.concatenate([_read(path) for path in self.paths])


@dataclass(frozen=True)
class Noise:
    """A stretch of a recorded noise, from sample `begin` to before sample `end`."""

    path: Path
    kind: str
    begin: int
    end: int

    def read(self) -> Array:
        """Read the stretch, float32, shape (end - begin,)."""
        wave = _read(self.path)
        if len(wave) < self.end:
            raise ValueError(
                f"{self.path} has {len(wave)} samples, but {NOISE} names those up to {self.end}"
            )
        return wave[self.begin : self.end]


def clips(
    folder: str | os.PathLike[str], role: str, seconds: float = 2.0, seed: int = 0
) -> tuple[Clip, ...]:
    """List clips of about the same length; no sound is read yet.

    The digits of each take are put in an order that the seed draws, and divided into clips, in
    which every digit occurs once.

    Parameters
    ----------
    folder
        The folder with the tables, or its parent if it is called ``speech_noise``.
    role
        Such as train, val or test.
    seconds
        The length of a clip that is aimed at.
    seed
        The seed of the orders.
    """
    table = _located(folder) / SPEECH
    takes: dict[tuple[str, str], list[tuple[Path, float]]] = {}
    roles: dict[tuple[str, str], set[str]] = {}
    for row in read_table(table, ("file", "speaker", "role", "seconds")):
        path = table.parent / row["file"]
        _, _, take = path.stem.rpartition("_")
        if take == path.stem:
            raise ValueError(f"{table} must name files as digit_speaker_take, got {row['file']!r}")
        key = row["speaker"], take
        roles.setdefault(key, set()).add(row["role"])
        if row["role"] == role:
            takes.setdefault(key, []).append((path, float(row["seconds"])))
    for (speaker, take), own in roles.items():
        if len(own) > 1:
            raise ValueError(f"take {take} of {speaker} has two roles in {table}; give it one")
    _require_role(role, {each for own in roles.values() for each in own}, table)
    rng, found = np.random.default_rng(seed), []
    for (speaker, take), files in sorted(takes.items()):
        total = sum(length for _, length in files)
        count = min(max(1, round(total / seconds)), len(files))
        order = [files[number][0] for number in rng.permutation(len(files))]
        for part in np.array_split(np.arange(len(order)), count):
            found.append(Clip(tuple(order[number] for number in part), speaker, take))
    return tuple(found)


def noises(folder: str | os.PathLike[str], role: str) -> tuple[Noise, ...]:
    """List the stretches of noise of a role, in the order of the table.

    Parameters
    ----------
    folder
        As for `clips`.
    role
        Such as train, val or test. Only noises of the collection ``aurora10s`` are listed, since
        the other excerpts of the same recordings may overlap with them.
    """
    table = _located(folder) / NOISE
    columns = ("file", "noise", "role", "sample_begin", "sample_end")
    every = []
    for row in read_table(table, columns):
        if COLLECTION in PurePosixPath(row["file"]).parts:
            bounds = int(row["sample_begin"]), int(row["sample_end"])
            every.append((Noise(table.parent / row["file"], row["noise"], *bounds), row["role"]))
    _require_role(role, {each for _, each in every}, table)
    _require_disjoint([noise for noise, _ in every], table)
    return tuple(noise for noise, each in every if each == role)


def _require_disjoint(every: Sequence[Noise], table: Path) -> None:
    ordered = sorted(every, key=lambda noise: (noise.path, noise.begin, noise.end))
    for first, second in pairwise(ordered):
        if first.path == second.path and second.begin < first.end:
            raise ValueError(
                f"{table} names samples of {first.path.name} twice, from {second.begin} on; "
                "stretches must not overlap"
            )


def _require_role(role: str, roles: set[str], table: Path) -> None:
    if role not in roles:
        known = ", ".join(sorted(roles)) or "none"
        raise ValueError(f"{table} has no role {role!r}; its roles are {known}")


def _located(folder: str | os.PathLike[str]) -> Path:
    folder = inside(folder, "speech_noise")
    for name in (SPEECH, NOISE):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"there is no {folder / name}; give a folder with {SPEECH} and {NOISE}"
            )
    return folder


def _read(path: Path) -> Array:
    """The mean of the channels of a recording at the rate of the data, float32."""
    recording = Recording.open(path)
    if recording.rate != RATE:
        raise ValueError(f"{path} has {recording.rate} samples a second; it must have {RATE}")
    wave: Array = recording.read().mean(axis=1).astype(np.float32)
    return wave
