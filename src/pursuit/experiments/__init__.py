"""The paper's experiments, each a module; `EXPERIMENTS` is the list of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .frame import Experiment

__all__ = ["EXPERIMENTS", "Entry", "find"]


class Entry(NamedTuple):
    """What an experiment shows, what it runs on, and about how long it takes on one core."""

    shows: str
    data: str
    takes: str


#: a module of each name holds the class `Reproduction`
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
}


def find(name: str) -> type[Experiment]:
    """The experiment of a name, imported when it is asked for."""
    if name not in EXPERIMENTS:
        known = ", ".join(map(repr, EXPERIMENTS))
        raise ValueError(f"there is no experiment {name!r}; there are {known}")
    found: type[Experiment] = import_module(f".{name}", __name__).Reproduction
    return found
