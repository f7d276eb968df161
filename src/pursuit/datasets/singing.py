"""Singing with accompaniment: the corpus MIR-1K as magnitudes of short-time spectra.

A clip has the accompaniment on its left channel and the voice on its right channel; their sum is
the mixture to be separated.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch

from .._words import one_line
from ..audio.recordings import import_soundfile
from ..progress import Callback
from .download import cache_folder, fetch, inside, read_table
from .spectrogram import Spectrogram

Array = np.ndarray[Any, Any]

#: samples a second
RATE = 16_000
#: the singers that the literature trains on
TRAIN_SINGERS = ("abjones", "amy")
URL = "http://mirlab.org/dataset/public/MIR-1K.zip"
#: frames from which the scale is computed
SCALE_FRAMES = 4000
SPLITS = "splits.csv"


@dataclass(frozen=True)
class Clip:
    """A recording and its number of samples."""

    path: Path
    singer: str
    song: str
    samples: int

    def read(self) -> tuple[Array, Array]:
        """Read accompaniment and voice, float64 vectors of `samples` entries."""
        soundfile = import_soundfile()
        try:
            channels, _ = soundfile.read(self.path, dtype="float64", always_2d=True)
        except (RuntimeError, OSError) as error:
            raise ValueError(f"{self.path} cannot be read: {one_line(error)}") from error
        if len(channels) != self.samples:
            raise ValueError(
                f"{self.path} is incomplete: it has {len(channels)} of {self.samples} samples"
            )
        return channels[:, 0], channels[:, 1]


def read_folder(folder: str | os.PathLike[str], role: str) -> tuple[Clip, ...]:
    """List the clips of a role, such as train or test; no sound is read yet.

    The table ``splits.csv`` (file, singer, song, role) defines them and their order. Without it,
    the clips are those of the folder ``Wavfile`` of the corpus, sorted by name; the singers abjones
    and amy have the role train, all others test. The folder is that of the corpus, or its parent if
    it is called ``singing``.
    """
    folder = inside(folder, "singing")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    rows = _table(folder) if (folder / SPLITS).is_file() else _corpus(folder)
    roles = sorted({row[-1] for row in rows})
    if role not in roles:
        raise ValueError(
            f"{folder} has no clips of the role {role!r}; its roles are {', '.join(roles)}"
        )
    return tuple(
        Clip(path, singer, song, _samples(path))
        for path, singer, song, its_role in rows
        if its_role == role
    )


def frames(
    folder: str | os.PathLike[str],
    role: str,
    count: int | None = None,
    seed: int = 0,
    window: int = 1024,
    hop: int = 256,
    power: float = 0.5,
    scale: float | None = None,
) -> Spectrogram:
    """Short-time spectra ``|X|^power / scale`` of mixture, accompaniment and voice, float32.

    A frame is `window` samples weighted by a periodic Hann window; frame k of a clip begins at
    sample ``k hop``, and all frames lie within their clip. Rows are frames, clip after clip in
    order of time, with ``window // 2 + 1`` bins. The low-rank part is the accompaniment, the sparse
    part the voice; since magnitudes do not add, the mixture is not their sum.

    Parameters
    ----------
    folder, role
        See `read_folder`.
    count, seed
        The number of frames to draw at random, without repetition, from all clips of the role, and
        the seed of the draw; by default all frames. Only clips with drawn frames are read.
    window, hop
        Samples of a frame, and samples from the start of a frame to that of the next.
    power, scale
        The exponent of the magnitudes, and the divisor: by default `train_scale`, for every role.
    """
    _check_numbers(window, hop, power)
    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be positive and finite, got {scale:g}")
    clips = read_folder(folder, role)
    chosen = _draw(clips, count, seed, window, hop)
    if scale is None:
        scale = train_scale(folder, window, hop, power)
    rows = sum(map(len, chosen))
    parts = [np.empty((rows, window // 2 + 1), np.float32) for _ in Spectrogram._fields]
    start = 0
    for clip, numbers in zip(clips, chosen, strict=True):
        end = start + len(numbers)
        if len(numbers) > 0:
            spectra = _magnitudes(clip, numbers, window, hop, power)
            for part, values in zip(parts, spectra, strict=True):
                part[start:end] = values / scale
        start = end
    return Spectrogram(*map(torch.from_numpy, parts))


def train_scale(
    folder: str | os.PathLike[str], window: int = 1024, hop: int = 256, power: float = 0.5
) -> float:
    """The standard deviation of all entries of the training mixtures ``|X|^power``.

    If there are more than 4000 frames, it is computed from 4000 of them, drawn with a fixed seed.
    Test frames are divided by it too, because nothing may be learned from them.
    """
    _check_numbers(window, hop, power)
    clips = read_folder(folder, "train")
    total = sum(_frames_in(clip, window, hop) for clip in clips)
    chosen = _draw(clips, min(SCALE_FRAMES, max(total, 1)), 0, window, hop)
    sums = np.zeros(3)
    for clip, numbers in zip(clips, chosen, strict=True):
        if len(numbers) > 0:
            mixture, _, _ = _magnitudes(clip, numbers, window, hop, power)
            sums += mixture.size, mixture.sum(), (mixture**2).sum()
    size, first, second = sums
    scale = float(np.sqrt(max(second / size - (first / size) ** 2, 0)))
    if scale == 0:
        raise ValueError(f"the train clips of {folder} are silent; give a scale")
    return scale


def download(
    folder: str | os.PathLike[str] | None = None, url: str = URL, progress: Callback | None = None
) -> Path:
    """Download and unpack the whole corpus, 1 GB, and return its folder.

    By default this is ``singing`` in `cache_folder`. Once the corpus is unpacked it is not
    downloaded again, and the archive may be deleted. The default address is that of the authors,
    who may change it. For `progress`, see `fetch`.
    """
    folder = cache_folder() / "singing" if folder is None else inside(folder, "singing")
    unpacked = folder / "MIR-1K"
    if not unpacked.is_dir():
        _unpack(fetch(url, folder, "MIR-1K.zip", progress=progress), unpacked)
    return folder


Row = tuple[Path, str, str, str]  # the file, its singer, song and role


def _table(folder: Path) -> list[Row]:
    splits = folder / SPLITS
    rows = [
        (folder / row["file"], row["singer"], row["song"], row["role"])
        for row in read_table(splits, ("file", "singer", "song", "role"))
    ]
    if not rows:
        raise ValueError(f"{splits} names no clips")
    return rows


def wav_folders(folder: Path) -> list[Path]:
    """List the folders called Wavfile in a folder, up to two levels below it."""
    patterns = ("Wavfile", "*/Wavfile", "*/*/Wavfile")
    return [wavs for pattern in patterns for wavs in sorted(folder.glob(pattern))]


def _corpus(folder: Path) -> list[Row]:
    for wavs in wav_folders(folder):
        rows = []
        for path in sorted(wavs.glob("[!.]*.wav")):  # <singer>_<song>_<clip>.wav
            singer = path.stem.partition("_")[0]
            role = "train" if singer in TRAIN_SINGERS else "test"
            rows.append((path, singer, path.stem.rpartition("_")[0], role))
        if rows:
            return rows
    raise ValueError(f"{folder} has neither {SPLITS} nor a folder Wavfile with .wav files")


def _samples(path: Path) -> int:
    """The length of a clip, after a check of its channels and its rate."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}, but {SPLITS} names it")
    try:
        info = import_soundfile().info(path)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
    if info.channels != 2:
        raise ValueError(
            f"{path} must have two channels, accompaniment and voice, it has {info.channels}"
        )
    if info.samplerate != RATE:
        raise ValueError(f"{path} must have {RATE} samples a second, it has {info.samplerate}")
    return int(info.frames)


def _check_numbers(window: int, hop: int, power: float) -> None:
    if window < 2:
        raise ValueError(f"window must be at least 2, got {window}")
    if hop < 1:
        raise ValueError(f"hop must be at least 1, got {hop}")
    if not (np.isfinite(power) and power > 0):
        raise ValueError(f"power must be positive and finite, got {power:g}")


def _frames_in(clip: Clip, window: int, hop: int) -> int:
    return max(0, 1 + (clip.samples - window) // hop)


def _draw(
    clips: Sequence[Clip], count: int | None, seed: int, window: int, hop: int
) -> list[Array]:
    """The numbers of the chosen frames of each clip, in increasing order."""
    ends = np.cumsum([_frames_in(clip, window, hop) for clip in clips])
    total = int(ends[-1])
    if total == 0:
        raise ValueError(f"no clip is as long as a window of {window} samples")
    if count is None:
        chosen = np.arange(total)
    elif 1 <= count <= total:
        chosen = np.sort(np.random.default_rng(seed).choice(total, count, replace=False))
    else:
        raise ValueError(f"count must be from 1 to {total}, the frames there are, got {count}")
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    starts = [0, *ends[:-1]]
    return [part - start for part, start in zip(parts, starts, strict=True)]


def _magnitudes(
    clip: Clip, numbers: Array, window: int, hop: int, power: float
) -> tuple[Array, Array, Array]:
    """Frames of mixture, accompaniment and voice: ``|X|^power``, float64."""
    # periodic: np.hanning is the symmetrical one
    weights = np.hanning(window + 1)[:-1]
    cut = partial(np.lib.stride_tricks.sliding_window_view, window_shape=window)
    left, right = (np.fft.rfft(cut(channel)[hop * numbers] * weights) for channel in clip.read())
    mixture, accompaniment, voice = (np.abs(part) ** power for part in (left + right, left, right))
    return mixture, accompaniment, voice


def _unpack(archive: Path, target: Path) -> None:
    """Unpack an archive into a new folder, completely or not at all."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        with zipfile.ZipFile(archive) as file:
            for name in file.namelist():
                if _leaves(name):
                    raise ValueError(f"{archive} has a file {name!r} outside of its folder")
            # a subfolder, because the temporary folder itself is readable by its owner only
            file.extractall(temporary / target.name)
        os.replace(temporary / target.name, target)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(
            f"{archive} is not a whole zip archive: {one_line(error)}; delete it and the line "
            "of its address in checksums.json, and download again"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _leaves(name: str) -> bool:
    """Whether a name in an archive leads out of the target folder, on any operating system."""
    windows = PureWindowsPath(name)
    return bool(
        windows.drive or windows.root or PurePosixPath(name).is_absolute() or ".." in windows.parts
    )
