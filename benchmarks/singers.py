"""Variants of the separator, trained on one singer and measured on another; no test clips.

    python benchmarks/singers.py DIR [--variants shipped "1024 samples"] [--steps 800] [--seed 0]

DIR is the corpus MIR-1K. For each variant two runs, abjones to amy and amy to abjones: all training
clips of the one, every second of the other. Improvement of the SDR with 512 taps (NSDR), voice and
music. A run of 800 steps takes about five minutes on one core.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from contest import CONSOLE, machine, table, threads

from pursuit.audio import Features, Pair, Separator, Sources, improvement
from pursuit.audio.networks import ARCHITECTURES, convolutional
from pursuit.datasets.stems import read_folder, read_pairs

OCTAVES = ARCHITECTURES["normal"]["dilation"]
#: what is changed, by the name of the variant
VARIANTS: dict[str, dict[str, Any]] = {
    "shipped": {},
    "1024 samples": {"features": Features(window=1024, hop=256, bands=24), "frames": 128},
    "36 bands an octave": {"features": Features(window=2048, hop=512, bands=36)},
    "12 bands an octave": {"features": Features(window=2048, hop=512, bands=12)},
    "linear axis": {"features": Features(window=1024, hop=256), "frames": 128},
    "four couplings": {"dilation": OCTAVES[:4], "memory": 4},
    "powers of two": {"dilation": [(2**n, 2**n) for n in (0, 1, 2, 3, 0, 1)]},
    "24 + 24 atoms": {"atoms": (24, 24)},
    "low latency": {"latency": "low"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="the folder of MIR-1K")
    parser.add_argument("--variants", nargs="+", default=["shipped"], choices=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    pairs = list(read_pairs(read_folder(arguments.data), 16_000))
    rows = []
    with threads(1):
        for name in arguments.variants:
            row, separator = [name], convolutional(seed=arguments.seed, **VARIANTS[name])
            row.append(str(separator.parameter_count))
            for singer in ("amy", "abjones"):
                separator = convolutional(seed=arguments.seed, **VARIANTS[name])
                known = [pair for pair in pairs if pair.group == singer]
                separator.fit(known, steps=arguments.steps, seed=arguments.seed)
                others = [pair for pair in pairs if pair.group != singer][::2]
                row.append("{:.2f} / {:.2f}".format(*measured(separator, others)))
                CONSOLE.print(*row)
            rows.append(row)
    head = ["variant", "parameters", "amy to abjones", "abjones to amy"]
    table(f"NSDR (512 taps), voice / music, {arguments.steps} steps", head, rows)


def measured(separator: Separator, pairs: list[Pair]) -> tuple[float, float]:
    """The mean improvement of voice and music."""
    found = []
    for pair in pairs:
        mixture = pair.voice + pair.accompaniment
        estimate = Sources(*separator.separate(mixture, separator.rate))
        found.append(improvement(estimate, Sources(pair.voice, pair.accompaniment), mixture)[:2])
    voice, music = np.mean(found, axis=0)
    return float(voice), float(music)


if __name__ == "__main__":
    main()
