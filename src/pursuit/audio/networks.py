"""Training of separators: an encoder with a mask behind it, its loss, and its start."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from .._words import require_choice
from ..batches import Batch
from ..encoders.convolutional import ConvolutionalEncoder
from ..encoders.encoder import Encoder
from ..encoders.trainable import Kind
from ..models import ConvolutionalLowRankSparse, SparseModel
from ..operators import Convolution
from ..progress import Callback
from ..regimes import Codes, Regime, Supervised, Unsupervised
from ..training import fit
from ..training_loop import History
from .features import Features
from .mixtures import Mixtures, Pair
from .separation import FLOOR, Separator

#: segments of this many seconds, and segments in a batch, unless they are given
SECONDS, SEGMENTS = 2.0, 8
#: factors of the learning rates of the mask, and of weights and atoms that start at random
MASK_RATE, WEIGHT_RATE, DICTIONARY_RATE = 0.3, 0.6, 10.0
#: added to energies, so that those of silence have a logarithm
SILENCE = 1e-6


class MaskedSDR(Regime):
    """The negative signal-to-distortion ratio of the masked spectra of segments, in decibels.

    ::

        mean_i 10 log10(sum |mask X - V|^2) - 5 log10(sum |V|^2 sum |M|^2)

    with the spectra X of the mixture, V of the voice and M of the accompaniment. Both estimates,
    ``mask X`` and ``X - mask X``, have the same error, so this is the mean of both ratios.

    Parameters
    ----------
    frames
        The number of frames of a segment.
    """

    name = "masked SDR"

    def __init__(self, frames: int) -> None:
        self.frames = frames

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        targets = cast(Mapping[str, Tensor], batch.targets)
        mask = cast(Network, encoder).mask(cast(Tensor, codes))
        mask = mask.reshape(-1, self.frames, targets["power"].shape[-1])
        return masked_distortion(mask, targets).mean()


def masked_distortion(mask: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    """Return the loss of `MaskedSDR` for each segment, shape (n,).

    Parameters
    ----------
    mask
        Shape (n, frames, bins).
    targets
        Those of `Mixtures` with ``targets="spectra"``.
    """
    change = mask * (mask * targets["power"] - 2 * targets["cross"])
    error = change.sum((1, 2)) + targets["voice"]
    energies = (targets["voice"] + SILENCE).log10() + (targets["music"] + SILENCE).log10()
    ratio: Tensor = 10 * (error + SILENCE).log10() - 5 * energies
    return ratio


class Network(nn.Module):
    """The encoder of a separator with its mask, as `fit` trains it; see `Trainable`."""

    spread: Tensor

    def __init__(self, separator: Separator) -> None:
        super().__init__()
        self.encoder: Encoder = separator.encoder
        like = next(self.encoder.parameters())
        self.exponent = nn.Parameter(torch.tensor(separator.exponent).to(like))
        self.bias = nn.Parameter(torch.from_numpy(separator.bias).to(like))
        features = separator.features
        self._first, self._count = features.margin, features.count
        self._bands = features.bands is not None
        spread = torch.from_numpy(features.spread) if self._bands else torch.empty(0)
        self.register_buffer("spread", spread.to(like), persistent=False)

    @property
    def model(self) -> SparseModel:
        return self.encoder.model

    @property
    def features(self) -> int:
        return self.encoder.features

    def forward(self, x: Tensor) -> Tensor:
        codes: Tensor = self.encoder(x)
        return codes

    def prepare(self, x: Tensor) -> Tensor:
        return self.encoder.prepare(x)

    def mask(self, codes: Tensor) -> Tensor:
        """Return the mask of the bins of all frames, shape (..., bins); see `Separator`."""
        parts = self.model.split(codes)
        bands = slice(self._first, self._first + self._count)
        low, voice = (
            cast(Tensor, part).reshape(-1, self._width)[:, bands].clamp_min(0) + FLOOR
            for part in (parts.low_rank, parts.sparse)
        )
        mask = torch.sigmoid(self.exponent * (voice.log() - low.log()) + self.bias)
        return mask @ self.spread if self._bands else mask

    @property
    def _width(self) -> int:
        operator = self.model.operator
        return operator.shape[1] if isinstance(operator, Convolution) else operator.features

    def kinds(self) -> dict[str, Kind]:
        own = self.encoder.kinds()
        if isinstance(self.encoder, ConvolutionalEncoder):
            own["weight"] = Kind("matrix", WEIGHT_RATE)
            own["dictionary"] = Kind("dictionary", DICTIONARY_RATE)
            own["thresholds.0"] = Kind("diagonal")
        kinds = {f"encoder.{name}": kind for name, kind in own.items()}
        return {**kinds, "exponent": Kind("scalar", MASK_RATE), "bias": Kind("diagonal")}

    def project_(self) -> None:
        self.encoder.project_()


def train(
    separator: Separator,
    pairs: Sequence[Pair],
    regime: str,
    steps: int,
    seed: int,
    callback: Callback | None,
    checkpoint: str | os.PathLike[str] | None,
    rate: float = 1.0,
    **options: Any,
) -> History:
    """Train a separator in place; see `Separator.fit`."""
    require_choice(regime, ("masked", "supervised", "unsupervised"), "regime")
    features, encoder = separator.features, separator.encoder
    sliding = isinstance(encoder, ConvolutionalEncoder)
    frames = round(SECONDS * features.rate / features.hop)
    if isinstance(encoder, ConvolutionalEncoder):
        frames = encoder.operator.shape[0]
    options = {"segments": SEGMENTS, "frames": frames, **options}
    if sliding and options["frames"] != frames:
        raise ValueError(f"the encoder is for segments of {frames} frames, got {options['frames']}")
    targets = "parts" if regime == "supervised" else "spectra"
    mixtures = Mixtures(pairs, features, flat=not sliding, targets=targets, seed=seed, **options)
    losses: dict[str, Callable[[], Regime]] = {
        "masked": lambda: MaskedSDR(options["frames"]),
        "supervised": Supervised,
        "unsupervised": lambda: Unsupervised(n=sum(len(p.voice) for p in pairs) / features.hop),
    }
    network = Network(separator)
    history = fit(
        network, mixtures, regime=losses[regime](), dictionary="gradient", steps=steps,
        validation=False, seed=seed, callback=callback, checkpoint=checkpoint, rate=rate,
    )  # fmt: skip
    separator.exponent = float(network.exponent.detach())
    separator.bias = network.bias.detach().cpu().numpy().astype(np.float32)
    return history


#: the architectures in the package, by their latency
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "normal": {
        "features": Features(window=2048, hop=512, bands=24),
        "frames": 64,
        "dilation": [(1, 1), (2, 3), (4, 6), (8, 12), (1, 1), (2, 6)],
        "memory": 5,
    },
    "low": {
        "features": Features(window=320, hop=160, bands=12),
        "frames": 160,
        "dilation": [(1, 1), (2, 2), (4, 3), (8, 6), (16, 1), (1, 3)],
        "memory": 5,
    },
}


def convolutional(
    latency: str = "normal",
    seed: int = 0,
    atoms: tuple[int, int] = (16, 16),
    kernel: int = 16,
    stride: int = 4,
    **changes: Any,
) -> Separator:
    """Return an untrained separator with a convolutional encoder; see `Separator.convolutional`.

    The atoms slide along a logarithmic frequency axis, where all harmonic sounds have one shape.
    Weights start at random: an ista of random atoms, all of them non-negative and much alike, is
    a worse start.
    """
    chosen = {**ARCHITECTURES[latency], **changes}
    features: Features = chosen["features"]
    positions = -(-features.count // stride)
    margin = (kernel - stride) // 2
    features = replace(features, margin=margin, width=stride * (positions - 1) + kernel)
    generator = torch.Generator().manual_seed(seed)
    total = sum(atoms)
    dictionary = 0.1 * torch.rand(total, kernel, generator=generator)
    shape = chosen["frames"], features.width
    operator = Convolution(dictionary, shape, (1, kernel), (1, stride), parts=atoms)
    model = ConvolutionalLowRankSparse(operator, lam_star=0.1, lam=0.1)
    decay = 0.97 ** (features.hop / features.rate / 0.016)
    dilation = chosen["dilation"]
    encoder = ConvolutionalEncoder(
        model, layers=len(dilation) + 1, tied=False, reach=(1, 1), dilation=dilation, causal=True,
        window=3, averages=(decay,), memory=chosen["memory"], positional=True,
    )  # fmt: skip
    with torch.no_grad():
        _normal_(encoder.weight, 1.0, generator)
        for coupling in encoder.couplings:
            _normal_(coupling, 0.5, generator)
            coupling[:, :, -1, coupling.shape[3] // 2] += 0.5 * torch.eye(total)
    return Separator(encoder, features, exponent=1.0)


def _normal_(kernel: Tensor, gain: float, generator: torch.Generator) -> None:
    """Draw weights such that an output is about `gain` times as large as an input."""
    inputs = kernel[0].numel()
    kernel.normal_(0.0, gain * inputs**-0.5, generator=generator)
