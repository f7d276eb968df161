"""A synthetic magnitude spectrogram: recurring tones (low rank) and a gliding tone (sparse).

It replaces music and voice where no recordings are available.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..dictionary import learn
from ..models import RobustNMF, RobustPCA

TONES, HARMONICS, GLIDE_HARMONICS, STRETCH = 15, 12, 10, 40

Array = np.ndarray[Any, Any]


class Spectrogram(NamedTuple):
    """Frames as rows: the mixture and its two parts."""

    mixture: Tensor
    low_rank: Tensor
    sparse: Tensor


def synthetic(frames: int, bins: int = 257, seed: int = 0) -> Spectrogram:
    """Fifteen decaying harmonic tones (low rank), one gliding tone (sparse), and dense noise.

    Onsets, glides and noise depend on the seed; the tones are the same for every seed, so that
    frames of different seeds can be used for training and testing. All parts have the shape
    (frames, bins), float32, and are divided by the standard deviation of the mixture.

    Examples
    --------
    >>> music = synthetic(100)
    >>> tuple(music.mixture.shape), round(float(music.mixture.std()), 3)
    ((100, 257), 1.0)
    """
    pitch = np.random.default_rng(1234).uniform(bins / 60, bins / 12, TONES)
    tones = _comb(bins, pitch, HARMONICS)
    rng = np.random.default_rng(seed)
    activations = np.zeros((frames, TONES))
    level = np.zeros(TONES)
    for frame in range(frames):
        struck = rng.random(TONES) < 0.03
        level = np.where(struck, rng.uniform(0.5, 2.0, TONES), 0.93 * level)
        activations[frame] = level
    low_rank = activations @ tones
    sparse = _glide(rng, frames, bins)
    noise = 0.1 * np.abs(rng.standard_normal((frames, bins)))
    mixture = low_rank + sparse + noise
    scale = mixture.std()
    parts = ((part / scale).astype(np.float32) for part in (mixture, low_rank, sparse))
    return Spectrogram(*map(torch.from_numpy, parts))


def learn_dictionary(
    x: Tensor,
    atoms: int,
    lam_star: float,
    lam: float,
    nonnegative: bool = True,
    sweeps: int = 30,
    seed: int = 0,
) -> Tensor:
    """Learn the low-rank dictionary of robust NMF, or of robust PCA if it may have any sign.

    Minimises ``1/2 ||X - S D - O||^2 + lam_star/2 (||S||^2 + ||D||^2) + lam ||O||_1`` over scores
    S, outliers O and the dictionary D, by passes (`sweeps`) over the frames from a random
    dictionary. Returns atoms as rows, float32, without those that the ridge removed.
    """
    kind = RobustNMF if nonnegative else RobustPCA
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand if nonnegative else torch.randn
    start = kind(draw(atoms, x.shape[1], generator=generator), lam_star, lam)
    dictionary = learn([x], model=start, passes=sweeps, seed=seed).dictionary
    norms = dictionary.norm(dim=1)
    return dictionary[norms > 1e-3 * norms.max()]


def _comb(bins: int, pitch: Array, harmonics: int) -> Array:
    """Peaks at the multiples of a pitch (one per row), falling off with their number."""
    grid = np.arange(bins)
    comb = np.zeros((len(pitch), bins))
    for number in range(1, harmonics + 1):
        distance = (grid - number * pitch[:, None]) / 1.2
        comb += np.exp(-0.5 * distance**2) / number**0.7
    return comb


def _glide(rng: np.random.Generator, frames: int, bins: int) -> Array:
    parts: list[Array] = []
    while STRETCH * len(parts) < frames:
        start, end = rng.uniform(bins / 40, bins / 14, 2)
        pitch = np.linspace(start, end, STRETCH)
        loudness = rng.uniform(0.5, 1.5) if rng.random() < 0.6 else 0.0
        parts.append(loudness * _comb(bins, pitch, GLIDE_HARMONICS))
    return np.concatenate(parts)[:frames]
