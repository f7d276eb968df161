"""A synthetic magnitude spectrogram: recurring tones (low rank) and a gliding tone (sparse).

It replaces music and voice where no recordings are available.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..models import RobustNMF, RobustPCA
from ..solvers.solve import solve

__all__ = ["Spectrogram", "learn_dictionary", "synthetic"]

TONES, HARMONICS, GLIDE_HARMONICS, STRETCH = 15, 12, 10, 40

Array = np.ndarray[Any, Any]


class Spectrogram(NamedTuple):
    """Frames as rows: the mixture and its two parts."""

    mixture: Tensor
    low_rank: Tensor
    sparse: Tensor


def synthetic(frames: int, bins: int = 257, seed: int = 0) -> Spectrogram:
    """Fifteen decaying harmonic tones, one gliding tone, and dense noise.

    Parameters
    ----------
    frames, bins
        The shape.
    seed
        Seeds onsets, glides and noise. The tones are the same for every seed, so that frames of
        different seeds can be used for training and testing.

    Returns
    -------
    Spectrogram
        Mixture, tones (low rank) and glide (sparse), float32, divided by the mixture's standard
        deviation.

    Examples
    --------
    >>> music = synthetic(100)
    >>> tuple(music.mixture.shape), round(float(music.mixture.std()), 3)
    ((100, 257), 1.0)
    """
    tones = _tones(np.random.default_rng(1234), bins)
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
    return Spectrogram(
        *(
            torch.from_numpy((part / scale).astype(np.float32))
            for part in (mixture, low_rank, sparse)
        )
    )


def learn_dictionary(
    x: Tensor,
    atoms: int,
    lam_star: float,
    lam: float,
    nonnegative: bool = True,
    sweeps: int = 30,
    seed: int = 0,
) -> Tensor:
    """D0 by alternating minimisation of the factored problem over all frames, float32.

    The problem is ``1/2 ||X - S D0 - O||^2 + lam_star/2 (||S||^2 + ||D0||^2) + lam ||O||_1``.
    Atoms that die out are dropped.
    """
    kind = RobustNMF if nonnegative else RobustPCA
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand if nonnegative else torch.randn
    dictionary = draw(atoms, x.shape[1], generator=generator)
    for _ in range(sweeps):
        model = kind(dictionary, lam_star, lam)
        codes = solve(model, x, tol=1e-3).codes
        scores, outliers = codes[:, : model.atoms], codes[:, model.atoms :]
        gram = scores.T @ scores + lam_star * torch.eye(model.atoms)
        target = scores.T @ (x - outliers)
        if not nonnegative:
            dictionary = torch.linalg.solve(gram, target)
            continue
        for _ in range(3):
            for j in range(model.atoms):
                step = (target[j] - gram[j] @ dictionary) / gram[j, j]
                dictionary[j] = (dictionary[j] + step).clamp_min(0)
        dictionary = dictionary[dictionary.norm(dim=1) > 1e-3]
    return dictionary


def _comb(bins: int, pitch: Array, harmonics: int) -> Array:
    """Peaks at the multiples of a pitch (one per row), falling off with their number."""
    grid = np.arange(bins)
    comb = np.zeros((len(pitch), bins))
    for number in range(1, harmonics + 1):
        distance = (grid - number * pitch[:, None]) / 1.2
        comb += np.exp(-0.5 * distance**2) / number**0.7
    return comb


def _tones(rng: np.random.Generator, bins: int) -> Array:
    return _comb(bins, rng.uniform(bins / 60, bins / 12, TONES), HARMONICS)


def _glide(rng: np.random.Generator, frames: int, bins: int) -> Array:
    parts: list[Array] = []
    while STRETCH * len(parts) < frames:
        start, end = rng.uniform(bins / 40, bins / 14, 2)
        pitch = np.linspace(start, end, STRETCH)
        loudness = rng.uniform(0.5, 1.5) if rng.random() < 0.6 else 0.0
        parts.append(loudness * _comb(bins, pitch, GLIDE_HARMONICS))
    return np.concatenate(parts)[:frames]
