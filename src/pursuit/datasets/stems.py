"""Stems: pairs of accompaniment and voice from a folder, to train a separator on.

Two layouts are read: a folder for each song with a file for each stem, as in MUSDB, and the clips
of MIR-1K (`pursuit.datasets.singing`). Sounds are read one by one, when they are needed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .._words import listed
from ..audio.mixtures import Pair
from ..audio.recordings import Recording, is_audio
from ..audio.streams import Array
from . import singing
from .download import inside

#: names of files without their suffix, in any case
VOICES = ("vocals", "voice")
ACCOMPANIMENTS = ("accompaniment", "instrumental")
#: files that hold the sum of all stems
MIXTURES = ("mixture", "mix")
#: files of a song whose durations differ by less, in seconds, are padded with zeros
TOLERANCE = 0.1


class Track(NamedTuple):
    """A recording, or one of its channels, counted from 0; None is the mean of all channels."""

    recording: Recording
    channel: int | None = None

    def read(self, rate: int) -> Array:
        """Return the samples (n,) at a sample rate, float32."""
        return self.recording.wave(rate, self.channel)


@dataclass(frozen=True)
class Stem:
    """A song, or a part of one, with separate accompaniment and voice.

    Attributes
    ----------
    name
        The name of the clip, or of the folder of the song.
    group
        What should not be in training and validation at once: the singer of a clip of MIR-1K, else
        the song.
    accompaniment, voice
        The recordings; their sum is the accompaniment, or the voice.
    """

    name: str
    group: str
    accompaniment: tuple[Track, ...]
    voice: tuple[Track, ...]

    @property
    def seconds(self) -> float:
        """The duration."""
        return max(t.recording.seconds for t in (*self.accompaniment, *self.voice))

    def read(self, rate: int) -> tuple[Array, Array]:
        """Read accompaniment and voice at a sample rate, float32 vectors of one length."""
        if rate <= 0:
            raise ValueError(f"rate must be positive (samples per second), got {rate}")
        waves = [[track.read(rate) for track in part] for part in (self.accompaniment, self.voice)]
        length = max(len(wave) for part in waves for wave in part)
        accompaniment, voice = (_sum(part, length) for part in waves)
        return accompaniment, voice


def read_folder(folder: str | os.PathLike[str], role: str = "train") -> tuple[Stem, ...]:
    """List the stems of a folder, sorted by name; no sound is read yet.

    A song is a folder in `folder`, or in its folder `role`, with a file vocals.* or voice.*, in any
    format that soundfile reads, and either a file accompaniment.* or instrumental.*, or other
    stems, such as drums.*, bass.* and other.*, which are summed. A file mixture.* or mix.* is not
    used. Without songs, the clips are those of `singing.read_folder`.

    Parameters
    ----------
    folder
        The folder of songs, of a data set with folders train and test, or of MIR-1K.
    role
        The clips to list, such as train or test, where the folder distinguishes them.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    clips = inside(folder, "singing")
    if (clips / singing.SPLITS).is_file() or singing.wav_folders(clips):
        return tuple(
            Stem(clip.path.stem, clip.singer, (Track(found, 0),), (Track(found, 1),))
            for clip in singing.read_folder(folder, role)
            for found in [Recording.open(clip.path)]
        )
    for parent in (folder, folder / role):
        songs = [path for path in sorted(parent.glob("[!.]*")) if path.is_dir()]
        stems = [stem for stem in map(_song, songs) if stem is not None]
        if stems:
            return tuple(stems)
    raise ValueError(
        f"{folder} has no pairs of voice and accompaniment; it must have a folder for each song "
        f"with a file {_files(VOICES)} and a file {_files(ACCOMPANIMENTS)} or other stems, or it "
        f"must be the corpus MIR-1K with {singing.SPLITS} or a folder Wavfile"
    )


def read_pairs(stems: Iterable[Stem], rate: int) -> Iterator[Pair]:
    """Read stems one by one; those with a silent part are left out with a warning."""
    for stem in stems:
        pair = Pair(*stem.read(rate), stem.group)
        silent = [part for part in ("accompaniment", "voice") if not getattr(pair, part).any()]
        if silent:
            warnings.warn(
                f"{stem.name} is left out: no sound in its {listed(silent)}", stacklevel=2
            )
        else:
            yield pair


def _song(folder: Path) -> Stem | None:
    """The stem of a song, or None if its folder does not hold one."""
    paths = [p for p in sorted(folder.glob("[!.]*")) if is_audio(p, readable=True)]
    voices = [path for path in paths if path.stem.lower() in VOICES]
    others = [path for path in paths if path.stem.lower() not in (*VOICES, *MIXTURES)]
    others = [path for path in others if path.stem.lower() in ACCOMPANIMENTS] or others
    if not voices or not others:
        if paths:
            missing = "no accompaniment or other stems" if voices else f"no {_files(VOICES)}"
            warnings.warn(f"{folder} is left out: it has {missing}", stacklevel=3)
        return None
    _require_one_each(voices)
    _require_one_each(others)
    accompaniment, voice = ([Track(Recording.open(p)) for p in part] for part in (others, voices))
    _require_one_length([track.recording for track in (*accompaniment, *voice)])
    return Stem(folder.name, folder.name, tuple(accompaniment), tuple(voice))


def _files(names: Sequence[str]) -> str:
    return listed([f"{name}.*" for name in names], "or")


def _require_one_each(paths: Sequence[Path]) -> None:
    """Raise an error if two files are the same stem, which would be summed."""
    first: dict[str, Path] = {}
    for path in paths:
        name = path.stem.lower()
        part = next((names[0] for names in (VOICES, ACCOMPANIMENTS) if name in names), name)
        if first.setdefault(part, path) is not path:
            raise ValueError(
                f"{path.parent} has {first[part].name} and {path.name}, which are the same stem; "
                "keep one of them"
            )


def _require_one_length(recordings: Sequence[Recording]) -> None:
    short = min(recordings, key=lambda recording: recording.seconds)
    long = max(recordings, key=lambda recording: recording.seconds)
    if long.seconds - short.seconds >= TOLERANCE:
        raise ValueError(
            f"{short.path} has {short.seconds:.2f} s, but {long.path} has {long.seconds:.2f} s; "
            f"stems of a song may differ by less than {TOLERANCE} s, cut or pad one of them"
        )


def _sum(waves: Sequence[Array], length: int) -> Array:
    """The sum of waves, those that are shorter padded with zeros."""
    total = np.zeros(length, np.float32)
    for wave in waves:
        total[: len(wave)] += wave
    return total
