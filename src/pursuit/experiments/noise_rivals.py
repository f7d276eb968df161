"""Rivals of the encoders in the experiment `noise`: Gaussians, and a small network.

Both learn from the mixtures that the encoders learn from, and see the same features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..audio.envelope import Envelope
from ..audio.noisy_speakers import FEATURES
from ..audio.noisy_training import NoisySpeech
from ..audio.streams import Array

#: bands on the mel scale, and cepstra of them
BANDS, CEPSTRA = 40, 40
#: added to the power in a band before the logarithm; features have unit mean square
FLOOR = 0.1
#: the weight of the mean variance on the diagonal of a covariance
RIDGE = 1e-3
#: steps of a rising learning rate, and the highest rate
WARM_UP, RATE = 50, 3e-3


@cache
def _filters() -> Array:
    """The weights of the bins in triangular bands on the mel scale, (BANDS, bins); sums are 1."""
    narrow = FEATURES.rate / FEATURES.window
    return Envelope(BANDS, FEATURES.rate, FEATURES.window, FEATURES.hop, narrow).filters


def log_mel(x: Array) -> Array:
    """Logarithms of the power in bands, (frames, bands), from the features of `observed`."""
    power = x ** (2 / FEATURES.power)
    logs: Array = np.log(power @ _filters().T + FLOOR)
    return logs


def cepstra(x: Array) -> Array:
    """The first cosine coefficients of the logarithms, (frames, CEPSTRA)."""
    rows, columns = np.arange(CEPSTRA)[:, None], np.arange(BANDS)
    cosines = np.cos(np.pi * rows * (columns + 0.5) / BANDS)
    found: Array = log_mel(x) @ cosines.T
    return found


class Gaussians:
    """A Gaussian with a full covariance for each speaker; frames are independent.

    Parameters
    ----------
    x
        Features of mixtures, (frames, bins).
    labels
        The number of the speaker of each frame.
    """

    def __init__(self, x: Array, labels: Array) -> None:
        seen = cepstra(x).astype(np.float64)
        self.means, self.roots, self.constants = [], [], []
        for label in range(int(labels.max()) + 1):
            own = seen[labels == label]
            covariance = np.cov(own.T)
            covariance += RIDGE * covariance.trace() / CEPSTRA * np.eye(CEPSTRA)
            root = np.linalg.inv(np.linalg.cholesky(covariance))
            self.means.append(own.mean(0))
            self.roots.append(root)
            self.constants.append(float(np.log(np.diag(root)).sum()))

    def errors(self, x: Array) -> Array:
        """The negative log-likelihood of each speaker but for a constant, (frames, speakers)."""
        seen = cepstra(x)
        parts = zip(self.means, self.roots, self.constants, strict=True)
        each = [0.5 * np.square((seen - mean) @ root.T).sum(1) - c for mean, root, c in parts]
        return np.stack(each, axis=1)


def gaussians(source: NoisySpeech, batches: int) -> Gaussians:
    """Learn Gaussians from the mixtures of some training steps."""
    drawn = [source.batch(step) for step in range(batches)]
    labels = [cast(Mapping[str, Tensor], batch.targets)["labels"].numpy() for batch in drawn]
    return Gaussians(np.concatenate([batch.x.numpy() for batch in drawn]), np.concatenate(labels))


class Classifier(nn.Module):
    """Three convolutions along time, means and deviations over frames, and two linear layers."""

    def __init__(self, speakers: int, hidden: int = 96) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(BANDS, hidden, 5, padding=2), nn.ReLU(), nn.BatchNorm1d(hidden),
            nn.Conv1d(hidden, hidden, 5, padding=4, dilation=2), nn.ReLU(), nn.BatchNorm1d(hidden),
            nn.Conv1d(hidden, hidden, 3, padding=3, dilation=3), nn.ReLU(), nn.BatchNorm1d(hidden),
        )  # fmt: skip
        self.outside = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, speakers)
        )

    def forward(self, logs: Tensor) -> Tensor:
        """Return the scores (clips, speakers) of logarithms (clips, frames, bands)."""
        centred = logs - logs.mean(1, keepdim=True)
        hidden = self.layers(centred.transpose(1, 2))
        scores: Tensor = self.outside(torch.cat([hidden.mean(2), hidden.std(2)], dim=1))
        return scores

    def errors(self, x: Array) -> Array:
        """The negative scores of a whole clip, (1, speakers), from its features."""
        with torch.no_grad():
            scores: Array = self(torch.from_numpy(log_mel(x))[None]).numpy()
        return -scores


def classifier(source: NoisySpeech, speakers: int, steps: int, seed: int) -> Classifier:
    """Train a network: Adam with a warm-up and cosine decay."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Classifier(speakers)
    optimiser = torch.optim.Adam(network.parameters())
    for step in range(steps):
        batch = source.batch(step)
        labels = cast(Mapping[str, Tensor], batch.targets)["labels"][:: source.frames]
        logs = torch.from_numpy(log_mel(batch.x.numpy())).reshape(-1, source.frames, BANDS)
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP, 1) * cosine
        optimiser.zero_grad()
        torch.autograd.backward(cross_entropy(network(logs), labels))
        optimiser.step()
    return network.eval()
