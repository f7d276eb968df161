"""Speakers in noise as few arrays: what follows from the dictionaries is not stored.

In the encoders of `NoisySpeakers` every row of the weights is a multiple of an atom, so a number
for each atom is enough. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..fields import entry
from ..files import Saved, below, joined
from ..runtime.checks import require
from ..runtime.program import Program
from .noisy_speakers import NoisySpeakers
from .streams import Array

WEIGHTS, MULTIPLES = "weights", "multiples"


def compact(programs: Sequence[Program]) -> dict[str, Array]:
    """Return the arrays of programs under names ``number.name``, without their weights."""
    found = {}
    for number, program in enumerate(programs):
        arrays = program.arrays()
        weights, atoms = arrays.pop(WEIGHTS), arrays["dictionary"]
        if len(weights) != 1:
            raise ValueError("the layers of an encoder must share their weights")
        squares = np.square(atoms, dtype=np.float64).sum(axis=1)
        products = (weights[0].astype(np.float64) * atoms).sum(axis=1)
        multiples = products / np.where(squares > 0, squares, 1)
        arrays[MULTIPLES] = multiples.astype(np.float32)
        if not np.allclose(_weights(arrays)[0], weights[0], rtol=1e-4, atol=1e-7):
            raise ValueError("the weights of an encoder must be multiples of its atoms")
        found[str(number)] = arrays
    return joined(found)


def restored(
    arrays: Mapping[str, Array], names: Sequence[str], info: object, path: Path
) -> NoisySpeakers:
    """Return the speakers whose programs `compact` has described.

    Parameters
    ----------
    arrays
        What `compact` has returned.
    names
        The names of the speakers.
    info
        The number of atoms of noise, ``"noise_atoms"``, and the form of the programs,
        ``"program"``.
    path
        The file that they are from.
    """
    programs = {}
    for number in range(len(names)):
        own = below(arrays, f"{number}.")
        atoms = require(own.get("dictionary"), "dictionary", np.float32, (None, None))
        require(own.get(MULTIPLES), MULTIPLES, np.float32, (len(atoms),))
        programs[f"bank.program.{number}"] = {**own, WEIGHTS: _weights(own)}
        del programs[f"bank.program.{number}"][MULTIPLES]
    members = [{"program": entry(info, "program", dict)} for _ in names]
    noise_atoms = entry(info, "noise_atoms", int, least=0)
    inner = {"bank": {"encoders": members}, "noise_atoms": noise_atoms}
    return NoisySpeakers(None, names, _saved=Saved(path, joined(programs), inner))


def _weights(arrays: Mapping[str, Array]) -> Array:
    weights: Array = (arrays["dictionary"] * arrays[MULTIPLES][:, None])[None]
    return weights
