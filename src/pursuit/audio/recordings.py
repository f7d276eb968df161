"""Recordings: audio files that are read block by block, whatever their format, rate and channels.

The files are read by soundfile; errors name the file and say what is wrong with it. Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .._words import listed, one_line
from ..files import format_of
from .resampling import Resampler
from .streams import Array

#: suffixes of audio files that are not the names of their formats
SUFFIXES = (".aif", ".aifc", ".oga", ".opus", ".mp2")
#: suffixes of audio files that soundfile cannot read
UNREADABLE = (".m4a", ".aac", ".wma", ".amr", ".mka")
#: samples of each channel that are read at once
BLOCK = 2**16


@dataclass(frozen=True)
class Recording:
    """An audio file, described by its header; its samples are read when they are needed.

    Attributes
    ----------
    path
        The file.
    rate, channels, samples
        Samples a second, the number of channels, and the number of samples in each of them.
    subtype
        How samples are stored, in the words of soundfile, such as "PCM_16", "FLOAT" or "VORBIS".
    """

    path: Path
    rate: int
    channels: int
    samples: int
    subtype: str

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Recording:
        """Read the header of a file."""
        with _opened(Path(path)) as file:
            return cls(Path(path), file.samplerate, file.channels, file.frames, file.subtype)

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.samples / self.rate

    def blocks(self, size: int = BLOCK) -> Iterator[Array]:
        """Yield the samples in blocks of shape (n, channels), float64, with n <= size.

        Integers are scaled to [-1, 1). NaN and infinite values are refused with their place.
        """
        done = 0
        with _opened(self.path) as file:
            while True:
                try:
                    block: Array = file.read(size, dtype="float64", always_2d=True)
                except RuntimeError as error:
                    raise ValueError(
                        f"{self.path} cannot be read after {done / self.rate:.1f} s: "
                        f"{_reason(error)}; it may be damaged, else convert it to WAV"
                    ) from error
                if not len(block):
                    return
                self._require_finite(block, done)
                yield block
                done += len(block)

    def read(self, samples: int | None = None) -> Array:
        """Return the first samples, by default all, of shape (samples, channels), float64."""
        blocks, missing = [np.zeros((0, self.channels))], samples
        for block in self.blocks():
            blocks.append(block[:missing])
            if missing is not None:
                missing -= len(blocks[-1])
                if missing == 0:
                    break
        return np.concatenate(blocks)

    def wave(self, rate: int, channel: int | None = None) -> Array:
        """Return the mean of the channels, or one of them, at a sample rate.

        Parameters
        ----------
        rate
            Samples per second of the result.
        channel
            The number of a channel, from 0; by default the mean of all.

        Returns
        -------
        ndarray of shape (samples,), float32
        """
        resampler = None if rate == self.rate else Resampler(self.rate, rate)
        waves, done = [np.zeros(0, np.float32)], 0
        for block in self.blocks():
            done += len(block)
            wave = block.mean(axis=1) if channel is None else block[:, channel]
            waves.append(wave.astype(np.float32) if resampler is None else resampler.push(wave))
        if done < self.samples:
            raise ValueError(f"{self.path} is incomplete: it has {done} of {self.samples} samples")
        if resampler is not None:
            waves.append(resampler.flush())
        return np.concatenate(waves)

    def _require_finite(self, block: Array, done: int) -> None:
        if np.isfinite(block).all():
            return
        sample, channel = np.argwhere(~np.isfinite(block))[0]
        value, place = block[sample, channel], done + int(sample)
        raise ValueError(
            f"{self.path} has the value {value} at sample {place} ({place / self.rate:.3f} s) of "
            f"channel {channel + 1}; repair the file, for example by writing 0 there"
        )


def import_soundfile() -> Any:
    """Return the module soundfile, or raise an error that says how it is installed."""
    try:
        import soundfile
    except ImportError as error:
        raise ImportError(
            "audio files need soundfile; install it with pip install 'pursuit[audio]'"
        ) from error
    return soundfile


def readable_formats() -> list[str]:
    """Return the names of the formats that soundfile reads, the common ones first."""
    first = ["WAV", "FLAC", "OGG", "MP3", "AIFF"]
    # without a header, nothing says what the samples are
    others = sorted(set(import_soundfile().available_formats()) - {*first, "RAW"})
    return [*first, *others]


def is_audio(path: Path, readable: bool = False) -> bool:
    """Whether a file is audio by its suffix, and, if asked for, in a format that can be read."""
    suffixes = {*SUFFIXES, *(f".{name.lower()}" for name in readable_formats())}
    suffix = path.suffix.lower()
    return suffix in suffixes or (not readable and suffix in UNREADABLE)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Context manager: yields the opened file of soundfile."""
    soundfile = import_soundfile()
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give an audio file")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if not path.is_file():
        raise ValueError(f"{path} is a device, not a file; give an audio file")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty (0 bytes); give an audio file")
    # by its descriptor, since soundfile expects files called *.raw to have no header
    with open(path, "rb") as handle:
        try:
            file = soundfile.SoundFile(handle.fileno(), closefd=False)
        except RuntimeError as error:
            found = format_of(path)
            what = "not audio that can be read" if found is None else f"{found}, not audio"
            raise ValueError(
                f"{path} is {what} ({_reason(error)}); give a file in one of the formats "
                f"{listed(readable_formats(), 'or')}"
            ) from error
        with file:
            yield file


def _reason(error: Exception) -> str:
    """The reason that libsndfile gives, without the name of the file."""
    text = one_line(getattr(error, "error_string", error))
    return text.removeprefix("Error : ").rstrip(".") or "it has no samples"
