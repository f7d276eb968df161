"""Noise to train on where none was recorded: babble of the speakers themselves, and coloured noise.

Needs only numpy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .envelope import level
from .streams import Array

#: voices in a babble, babbles, and the duration of each noise in seconds
VOICES, BABBLES, SECONDS = 6, 3, 10
#: by how much the power of coloured noise falls with the frequency f: as f to minus this
COLOURS = {"white": 0.0, "pink": 1.0, "brown": 2.0}


def made_noise(waves: Sequence[Array], rate: int, seed: int = 0) -> list[Array]:
    """Return babbles of random stretches of the waves, and white, pink and brown noise.

    Parameters
    ----------
    waves
        Speech, shape (samples,) each.
    rate
        Samples per second.
    seed
        The seed of all draws.
    """
    rng = np.random.default_rng(seed)
    samples = SECONDS * rate
    babbles = [babble(waves, samples, rng) for _ in range(BABBLES)]
    return [*babbles, *(coloured(samples, falling, rng) for falling in COLOURS.values())]


def babble(waves: Sequence[Array], samples: int, rng: np.random.Generator) -> Array:
    """Return the sum of random waves, each from a random sample on, and repeated."""
    total = np.zeros(samples, np.float32)
    for _ in range(VOICES):
        wave = level(waves[int(rng.integers(len(waves)))])
        begin = int(rng.integers(len(wave)))
        total += np.take(wave, np.arange(begin, begin + samples), mode="wrap")
    return total


def coloured(samples: int, falling: float, rng: np.random.Generator) -> Array:
    """Return Gaussian noise whose power falls with the frequency f as ``f^-falling``."""
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    spectrum[0] = 0
    spectrum[1:] *= np.arange(1, len(spectrum)) ** (-falling / 2)
    return level(np.fft.irfft(spectrum, samples).astype(np.float32))
