"""Voices: recordings of some speakers, in a folder for each of them.

Files that are no audio are ignored; audio that cannot be used is left out with a warning.
"""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .._words import one_line
from ..audio.recordings import Recording, is_audio
from ..audio.speech import prepared
from ..audio.streams import Array
from ..progress import Callback, Progress


def list_folder(folder: str | os.PathLike[str]) -> dict[str, list[Path]]:
    """List the audio files of each speaker by name, both sorted; nothing is read yet.

    A speaker is a folder in `folder`, with audio files in it or in folders below. Hidden files and
    files whose names do not end as those of audio are ignored.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    loose = [path.name for path in _audio(folder.glob("[!.]*"))]
    voices: dict[str, list[Path]] = {}
    for place in sorted(path for path in folder.glob("[!.]*") if path.is_dir()):
        below = (path for path in place.rglob("*") if not _is_hidden(path.relative_to(place)))
        paths = _audio(below)
        # some systems write letters with accents as two characters
        voices.setdefault(unicodedata.normalize("NFC", place.name), []).extend(paths)
    if loose and voices:
        warnings.warn(
            f"{folder / loose[0]} is left out: it is not in the folder of a speaker", stacklevel=2
        )
    if len(voices) < 2:
        raise ValueError(
            f"{folder} has {len(voices)} folders; it must have one for each speaker, with this "
            "person's recordings, of at least two speakers"
        )
    empty = [name for name, paths in voices.items() if not paths]
    if empty:
        raise ValueError(f"{folder / empty[0]} has no audio files; add some, or remove the folder")
    return voices


def read(
    voices: Mapping[str, Sequence[Path]], rate: int, callback: Callback | None = None
) -> dict[str, list[Array]]:
    """Read recordings at a sample rate, float32; those that cannot be used are left out.

    Parameters
    ----------
    voices
        The files of each speaker.
    rate
        Samples per second.
    callback
        Called with a `Progress` of stage "reading" before each file.
    """
    waves: dict[str, list[Array]] = {}
    total, done = sum(map(len, voices.values())), 0
    for name, paths in voices.items():
        waves[name] = []
        for path in paths:
            if callback is not None:
                callback(Progress("reading", done, total))
            done += 1
            try:
                waves[name].append(read_clip(path, rate))
            except (ValueError, OSError) as error:
                warnings.warn(f"left out: {one_line(error)}", stacklevel=2)
        if not waves[name]:
            raise ValueError(
                f"{name} has no recordings that can be used; add some, or remove the folder"
            )
    return waves


def read_clip(path: Path, rate: int) -> Array:
    """Read a recording of speech as `prepared` returns it; errors name the file."""
    wave = Recording.open(path).wave(rate)
    try:
        return prepared(wave, rate, rate)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _audio(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file() and is_audio(path))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
