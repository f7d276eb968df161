"""Who speaks: structured sparse codes of spectral envelopes, and the energies of their groups.

Every speaker has a dictionary, learned from clips of this person alone. Together they are the
dictionary of a HiLasso with one group for each speaker; the groups with the most energy, summed
over some frames, are the speakers that are heard (`energies`, `pooled`, `decide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..dictionary import learn
from ..models import HiLasso, SparseModel
from .spectrogram import STFT


@dataclass(frozen=True)
class Envelope:
    """The short-time power-spectrum envelope of a wave, compressed.

    The power spectrum ``P = |X|^2`` of every frame is averaged in bands with triangular weights,
    which smooths the harmonics of the pitch away, and compressed: ``A = (P W')^power``. Clips are
    brought to the same level before (see `level`).

    Parameters
    ----------
    size : int, default=80
        The number of bands, whose centres are equally spaced on the mel scale.
    rate : int, default=8000
        Samples per second.
    window, hop : int
        The frames, in samples; by default 512, overlapping by 75 %.
    width : float, default=300.0
        The smallest distance from the centre of a band to its ends, in hertz; wider than that of
        the harmonics of a low voice, so that they are not resolved.
    power : float, default=0.15
        The exponent of the compression.

    Examples
    --------
    >>> wave = torch.randn(8000, generator=torch.Generator().manual_seed(0))
    >>> tuple(Envelope()(wave).shape)
    (66, 80)
    """

    size: int = 80
    rate: int = 8000
    window: int = 512
    hop: int = 128
    width: float = 300.0
    power: float = 0.15

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if not self.width >= self.rate / self.window:
            raise ValueError(
                f"width must be at least {self.rate / self.window:g} Hz, one frequency of the "
                f"transform, got {self.width}"
            )
        if not self.power > 0:
            raise ValueError(f"power must be positive, got {self.power}")

    @cached_property
    def stft(self) -> STFT:
        """The transform of the wave."""
        return STFT(self.window, self.hop)

    @cached_property
    def filters(self) -> Tensor:
        """W, the weights of the frequencies in each band, shape (size, bins); rows sum to 1.

        A band reaches to the centres of its neighbours, but at least over `width` on each side.
        """
        hertz = self.rate / self.window
        edges = 700 * np.expm1(np.linspace(0, np.log1p(self.rate / 1400), self.size + 2))
        low, centre, high = (edges[k : k + self.size, None] for k in range(3))
        below, above = np.maximum(centre - low, self.width), np.maximum(high - centre, self.width)
        away = np.arange(self.stft.bins) * hertz - centre
        weights = np.maximum(0, 1 - np.where(away < 0, -away / below, away / above))
        return torch.from_numpy(weights / weights.sum(1, keepdims=True)).float()

    def __call__(self, wave: Tensor) -> Tensor:
        """Return the features (frames, size) of a wave (samples,)."""
        power = self.stft.analyse(wave.float()).abs().square()
        features: Tensor = (power @ self.filters.T) ** self.power
        return features


@dataclass(frozen=True, eq=False)
class Contrast:
    """Features relative to those of all speakers: centred, whitened, and of unit norm.

    ``x = (A - mean) T / ||(A - mean) T||_2``, where ``T = (C + ridge mean(diag C) I)^(-1/2)`` and C
    is the covariance of the features around the mean of their speaker. What varies within the
    speech of everyone counts less than what tells speakers apart. Frames that are much quieter than
    the average are silence and become zero, whose code is zero.

    Attributes
    ----------
    mean, transform
        The mean, shape (m,), and T, shape (m, m).
    least
        The smallest norm of A that is not silence.
    """

    mean: Tensor
    transform: Tensor
    least: float

    @classmethod
    def of(cls, features: Sequence[Tensor], ridge: float, quiet: float) -> Contrast:
        """Learn from the features of some speakers, one matrix (frames, m) for each.

        Parameters
        ----------
        features
            The features.
        ridge
            The weight of the identity in the covariance, relative to the mean variance.
        quiet
            The smallest norm of a frame that is not silence, relative to the mean norm.
        """
        every = torch.cat(list(features))
        within = torch.cat([own - own.mean(0) for own in features]).double()
        covariance = within.T @ within / len(within)
        covariance += ridge * covariance.diag().mean() * torch.eye(len(covariance))
        values, vectors = torch.linalg.eigh(covariance)
        transform = (vectors / values.sqrt()) @ vectors.T
        least = quiet * float(torch.linalg.vector_norm(every, dim=1).mean())
        return cls(every.mean(0), transform.to(every), least)

    def __call__(self, features: Tensor) -> Tensor:
        """Return x for features of shape (frames, m)."""
        signals = (features - self.mean) @ self.transform
        norms = torch.linalg.vector_norm(signals, dim=1, keepdim=True)
        heard = torch.linalg.vector_norm(features, dim=1, keepdim=True) >= self.least
        return torch.where(heard & (norms > 0), signals / norms, 0.0)


def level(wave: Tensor) -> Tensor:
    """Return a wave divided by its root mean square."""
    size = wave.square().mean().sqrt()
    if not size > 0:
        raise ValueError("the wave is silent, so it cannot be brought to a level")
    return wave / size


def mix(first: Tensor, second: Tensor) -> Tensor:
    """Return the sum of two waves at the same level, as long as the shorter one."""
    length = min(len(first), len(second))
    return level(first[:length]) + level(second[:length])


def structured(
    signals: Sequence[Tensor],
    lam_group: float,
    lam: float = 0.05,
    *,
    atoms: int = 50,
    learning_lam: float = 0.2,
    passes: int = 3,
    seed: int = 0,
) -> HiLasso:
    """Learn a dictionary for each speaker, and join them in a HiLasso with a group for each.

    Parameters
    ----------
    signals
        Signals of each speaker, shape (frames, m); rows that are zero are left out.
    lam_group, lam
        The weights of groups and single coefficients in the HiLasso.
    atoms, learning_lam, passes
        For each dictionary: its atoms, the weight of the Lasso that it is learned with, and the
        passes over the signals.
    seed
        Seeds the dictionaries.
    """
    heard = [own[own.any(dim=1)] for own in signals]
    for number, own in enumerate(heard):
        if not len(own):
            raise ValueError(f"speaker {number} has no signals that are not zero")
    learned = [learn(own, atoms, learning_lam, passes=passes, seed=seed) for own in heard]
    groups = [list(range(k * atoms, (k + 1) * atoms)) for k in range(len(learned))]
    return HiLasso(torch.cat(learned), groups, lam_group, lam)


def energies(model: SparseModel, codes: Tensor) -> Tensor:
    """Return the norm ``||z_r||_2`` of each group of codes, shape (frames, speakers)."""
    return model.block_energies(codes).sqrt()


def pooled(energies: Tensor, frames: int | None = None) -> Tensor:
    """Sum energies over consecutive windows of some frames, by default over all frames.

    Returns a matrix (windows, speakers); frames after the last complete window are left out.

    Examples
    --------
    >>> pooled(torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 5.0]]), 2).tolist()
    [[3.0, 1.0]]
    """
    frames = len(energies) if frames is None else frames
    if not 1 <= frames <= len(energies):
        raise ValueError(
            f"frames must be from 1 to {len(energies)}, the frames there are, got {frames}"
        )
    count = len(energies) // frames
    return energies[: count * frames].reshape(count, frames, -1).sum(1)


def decide(pooled: Tensor, count: int) -> Tensor:
    """Return the numbers of the `count` speakers with the highest energies, in order of number.

    Examples
    --------
    >>> decide(torch.tensor([[0.1, 2.0, 1.0]]), 2).tolist()
    [[1, 2]]
    """
    if not 1 <= count <= pooled.shape[-1]:
        raise ValueError(
            f"count must be from 1 to {pooled.shape[-1]}, the speakers there are, got {count}"
        )
    return pooled.topk(count, dim=-1).indices.sort(dim=-1).values
