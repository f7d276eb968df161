"""The speed of the separators in the package: files, and live blocks, on one thread.

    python benchmarks/live.py [--seconds 60] [--rounds 3]

Files: a generated FLAC file, mono at 16 kHz and stereo at 44.1 kHz, from its bytes to both parts
(decoding, resampling, transform, encoder, mask, inverse), as `pursuit separate` does it without
writing; the median of the rounds, as a multiple of real time. Live: one hop of samples at a time
at the rate of the model; percentiles of the time for a block, and half a hop beside them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import numpy as np
import soundfile
from contest import CONSOLE, machine, table, threads

from pursuit.audio import Separator
from pursuit.audio.parts import PartStream
from pursuit.audio.recordings import Recording


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    files, live = [], []
    with threads(1), tempfile.TemporaryDirectory() as folder:
        for latency in ("normal", "low"):
            separator = Separator.pretrained(latency)
            for rate, channels in ((16_000, 1), (44_100, 2)):
                path = f"{folder}/{rate}.flac"
                soundfile.write(path, sound(rate, channels, arguments.seconds), rate)
                took = [whole(separator, path) for _ in range(arguments.rounds)]
                speed = arguments.seconds / statistics.median(took)
                files.append([latency, f"{rate} Hz, {channels} channel(s)", f"{speed:.0f}"])
            took = blocks(separator, arguments.seconds)
            hop = separator.features.hop / separator.rate
            percentiles = [1e3 * np.quantile(took, q) for q in (0.5, 0.99, 0.999, 1)]
            live.append([latency, *(f"{value:.2f}" for value in percentiles), f"{500 * hop:.1f}"])
    table("whole files, times real time", ["model", "file", "speed"], files)
    head = ["model", "median", "99 %", "99.9 %", "longest", "half a hop"]
    table(f"blocks of one hop, {len(took)} of them, ms", head, live)


def sound(rate: int, channels: int, seconds: int) -> np.ndarray:
    """Chords over noise, with a level that changes."""
    time = np.arange(rate * seconds) / rate
    rng = np.random.default_rng(0)
    tones = sum(np.sin(2 * np.pi * f * time + f) for f in (110, 220, 277, 330, 660, 1320))
    wave = 0.05 * tones * (1.2 + np.sin(2 * np.pi * 0.7 * time))
    return wave[:, None] + 0.01 * rng.standard_normal((len(time), channels))


def whole(separator: Separator, path: str) -> float:
    begin = time.perf_counter()
    recording = Recording.open(path)
    stream = PartStream(
        separator.stream(recording.rate, recording.channels), recording.channels, 16
    )
    for block in recording.blocks():
        stream.push(block)
    stream.flush()
    return time.perf_counter() - begin


def blocks(separator: Separator, seconds: int) -> list[float]:
    stream, hop = separator.stream(), separator.features.hop
    wave = sound(separator.rate, 1, seconds)[:, 0].astype(np.float32)
    took = []
    for start in range(0, len(wave) - hop, hop):
        begin = time.perf_counter()
        stream.push(wave[start : start + hop])
        took.append(time.perf_counter() - begin)
    return took


if __name__ == "__main__":
    main()
