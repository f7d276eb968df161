"""The report of `pursuit separate`: spectrograms, players and facts on one page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from .. import plots
from ..audio.recordings import Recording, import_soundfile
from ..audio.spectrogram import STFT
from ..audio.streams import Array
from ..report import Report

#: the seconds at the beginning that are drawn and embedded
SECONDS = 30
#: the duration of a window of the spectrograms, in seconds
WINDOW = 0.093


def page(facts: Mapping[str, Any], paths: Mapping[str, str | PathLike[str]]) -> str:
    """Return the HTML page; `paths` are the files of the mixture and of its parts by name."""
    name, rate = Path(facts["audio"]).name, facts["rate"]
    report = Report(f"Voice and accompaniment of {name}")
    report.table(
        ["", ""],
        [
            ["duration", f"{facts['duration']:.2f} s"],
            ["rate", f"{rate} Hz"],
            ["channels", str(facts["channels"])],
            ["format of the parts", facts["format"]],
            ["samples limited to full scale", str(facts["limited"])],
            ["time of the separation", f"{facts['seconds']:.2f} s"],
            ["speed", f"{facts['speed']:.1f} times real time"],
            ["latency as a live stream", f"{1000 * facts['latency']:.0f} ms"],
        ],
    )
    waves = {part: Recording.open(path).read(SECONDS * rate) for part, path in paths.items()}
    if not facts["samples"]:
        report.text("The recording has no samples.")
        return report.html()
    shown = "the whole recording"
    if facts["samples"] > SECONDS * rate:
        shown = f"the first {SECONDS} seconds"
    report.section("Sound")
    report.text(f"The players have {shown}; voice and accompaniment add up to the mixture.")
    for part, wave in waves.items():
        report.sound(_flac(wave, rate), f"{part}.flac", part)
    report.section("Spectrograms")
    report.text(f"Of {shown}, the mean of the channels.")
    stft = _transform(rate)
    magnitudes = {part: _magnitudes(stft, wave) for part, wave in waves.items()}
    report.figure(plots.spectrograms(magnitudes, rate, stft.hop), "spectrograms")
    return report.html()


def _transform(rate: int) -> STFT:
    window = 2 ** round(np.log2(WINDOW * rate))
    return STFT(window, window // 4)


def _magnitudes(stft: STFT, wave: Array) -> Array:
    analysis = stft.analysis_stream()
    spectra = np.concatenate([analysis.push(wave.mean(axis=1)), analysis.flush()])
    magnitudes: Array = np.abs(spectra)
    return magnitudes


def _flac(wave: Array, rate: int) -> bytes:
    """A FLAC file of 16 bits; more than two channels, which few players know, are averaged."""
    content = io.BytesIO()
    wave = wave if wave.shape[1] <= 2 else wave.mean(axis=1, keepdims=True)
    import_soundfile().write(content, wave, rate, "PCM_16", format="FLAC")
    return content.getvalue()
