"""The run of `pursuit separate` on a file: block by block, to two files in the format of the first.

The memory does not depend on the length of the recording.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..audio.parts import PartStream
from ..audio.recordings import Recording, import_soundfile
from ..audio.streams import Array
from ..files import whole_files
from ..progress import Callback, Progress
from .errors import warn
from .writing import check_folder, check_output, made_folder, termination_as_exception

if TYPE_CHECKING:
    from ..audio.separation import Separator

VOICE, ACCOMPANIMENT, REPORT = "voice.wav", "accompaniment.wav", "report.html"
#: the bits of the formats of integers that are written, and the bytes of all formats
BITS = {"PCM_16": 16, "PCM_24": 24, "PCM_32": 32}
BYTES = {"PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
#: the most bytes of samples in a WAV file; its sizes are numbers of 32 bits
LARGEST_WAV = 2**32 - 2**12


def check(audio: Path, folder: Path, report: bool) -> None:
    """Raise an error if the files cannot be written, or would replace the recording."""
    if report:
        from ..plots import require_matplotlib

        require_matplotlib()
    check_folder(folder)
    if folder.is_dir():
        for path in _paths(folder, report):
            check_output(path, (audio,), suffixes=())


def run(
    separator: Separator, recording: Recording, folder: Path, report: bool, callback: Callback
) -> dict[str, Any]:
    """Write both parts of a recording, and the report; return a description of them."""
    recording, subtype = _format(recording, callback)
    if not recording.samples:
        warn(f"{recording.path} has no samples; its parts will have none either")
    rate, channels = recording.rate, recording.channels
    stream = PartStream(separator.stream(rate, channels), channels, BITS.get(subtype))
    paths = _paths(folder, report)
    with termination_as_exception(), made_folder(folder), whole_files(paths) as files:
        begin = time.perf_counter()
        _write(stream, recording, subtype, files, callback)
        seconds = time.perf_counter() - begin
        described = {
            "audio": str(recording.path),
            "voice": str(paths[0]),
            "accompaniment": str(paths[1]),
            "rate": rate,
            "channels": channels,
            "samples": recording.samples,
            "duration": recording.seconds,
            "format": subtype,
            "limited": stream.limited,
            "latency": stream.latency / rate,
            "seconds": float(f"{seconds:.4g}"),
            "speed": float(f"{recording.seconds / seconds:.4g}"),
        }
        if report:
            from .separate_report import page

            described["report"] = str(paths[2])
            parts = {"voice": files[0].name, "accompaniment": files[1].name}
            files[2].write(page(described, {"mixture": recording.path, **parts}).encode())
    return described


def summary(written: dict[str, Any]) -> str:
    """The description for readers."""
    lines = [
        "{voice} and {accompaniment}".format(**written),
        "{duration:.1f} s at {rate} Hz, channels: {channels}, {format}; "
        "{seconds:.1f} s, {speed:.1f} times real time".format(**written),
    ]
    if written["limited"]:
        lines.append("{limited} samples of a part were limited to full scale".format(**written))
    if "report" in written:
        lines.append(f"the report: {Path(written['report']).resolve()}")
    return "\n".join(lines)


def _paths(folder: Path, report: bool) -> list[Path]:
    return [folder / name for name in (VOICE, ACCOMPANIMENT, *([REPORT] if report else []))]


def _format(recording: Recording, callback: Callback) -> tuple[Recording, str]:
    """The recording with its true length, and the format of samples of its parts.

    Formats of integers are as their header says. Others are read through first: for values that
    are not finite, and for those beyond full scale, which lossy formats may decode to.
    """
    integers = re.fullmatch(r"(?:PCM|ALAC|DPCM|DWVW)_[SU]?(\d+)", recording.subtype)
    if integers:
        bits = int(integers[1])
        return recording, next(name for name, most in BITS.items() if bits <= most)
    samples, peak = 0, 0.0
    stage = "checking second"
    for block in recording.blocks():
        samples += len(block)
        peak = max(peak, float(np.abs(block).max()))
        callback(Progress(stage, samples // recording.rate, int(recording.seconds)))
    if samples < recording.samples:
        warn(
            f"{recording.path} is incomplete: it has {samples} of {recording.samples} samples; "
            "these are separated"
        )
    recording = replace(recording, samples=samples)
    if recording.subtype in ("FLOAT", "DOUBLE"):
        return recording, recording.subtype
    return recording, "PCM_16" if peak <= 1 else "FLOAT"


def _write(
    stream: PartStream,
    recording: Recording,
    subtype: str,
    files: Sequence[BinaryIO],
    callback: Callback,
) -> None:
    done = 0
    with _writer(files[0], recording, subtype) as voice, _writer(files[1], recording, subtype) as a:

        def append(parts: tuple[Array, Array]) -> None:
            for file, samples in zip((voice, a), parts, strict=True):
                # soundfile takes the upper bits of an integer
                left = 0 if stream.bits is None else 32 - stream.bits
                file.write(samples << left if left else samples)

        for block in recording.blocks():
            append(stream.push(block))
            done += len(block)
            callback(Progress("separating second", done // recording.rate, int(recording.seconds)))
        append(stream.flush())
    if done != recording.samples:
        raise ValueError(
            f"{recording.path} is incomplete: it has {done} of {recording.samples} samples"
        )


@contextmanager
def _writer(file: BinaryIO, recording: Recording, subtype: str) -> Iterator[Any]:
    """Context manager: yields a file of soundfile, which does not close the given one."""
    size = recording.samples * recording.channels * BYTES[subtype]
    kind = "WAV" if size <= LARGEST_WAV else "RF64"
    soundfile = import_soundfile()
    try:
        with soundfile.SoundFile(
            file.fileno(),
            "w",
            recording.rate,
            recording.channels,
            subtype,
            format=kind,
            closefd=False,
        ) as writer:
            yield writer
    except soundfile.LibsndfileError as error:
        raise OSError(f"{file.name} cannot be written: {error.error_string}") from error
