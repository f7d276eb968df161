"""Training of speakers in noise: dictionaries, random mixtures, and two regimes.

`NoisySpeakers` runs what is learned here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .._checks import as_number
from .._words import require_choice
from ..batches import Batch, Source
from ..encoders.bank import EncoderBank, squared_errors
from ..encoders.proximal import ProximalEncoder
from ..models import LowRankSparse
from ..nonnegative_factors import factorise, nonnegative_start
from ..progress import Callback
from ..regimes import Codes, Regime
from ..training import fit
from ..training_loop import History
from .features import Features
from .noisy_speakers import FEATURES, NoisySpeakers, as_wave, observed, stretch
from .streams import Array

#: training steps of each regime, and factors of their learning rates
STEPS = {"supervised": 100, "discriminative": 400}
RATES = {"supervised": 3.0, "discriminative": 0.7}
#: the weight of the true parts in the discriminative regime
PARTS = 0.003
#: iterations of a factorisation, and the distance of the frames that it uses, which overlap
ITERATIONS, EVERY = 30, 2
#: added to features before they are divided by each other
TINY = 1e-9


def learn(
    speech: Mapping[str, Sequence[Array]],
    noise: Sequence[Array],
    atoms: int,
    lam_star: float,
    layers: int,
    step: str,
    seed: int,
) -> NoisySpeakers:
    """Return untrained encoders on learned dictionaries; see `NoisySpeakers.learn`."""
    _require_sounds(speech, noise)
    shared = dictionary(noise, atoms, seed)
    models = [
        LowRankSparse(shared, dictionary(waves, atoms, seed), lam_star, 0.0, sparse_ridge=lam_star)
        for waves in speech.values()
    ]
    encoders = [ProximalEncoder(model, layers, step, form="gram") for model in models]
    return NoisySpeakers(EncoderBank(encoders), list(speech), FEATURES)


def dictionary(waves: Sequence[Array], atoms: int, seed: int = 0) -> Tensor:
    """Learn a non-negative dictionary of unit atoms, (atoms, bins), from the features of waves."""
    frames = np.concatenate([observed(wave)[1][::EVERY] for wave in waves])
    x = torch.from_numpy(frames)
    found = factorise(x, *nonnegative_start(x, atoms, seed), max_iter=ITERATIONS).dictionary
    unit: Tensor = found / found.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    return unit


class NoisySpeech(Source):
    """Batches of random mixtures; the batch of a step depends on the seed and the step alone.

    A row is a frame; the rows of a segment follow one another. Targets are the labels of the rows,
    ``"labels"``, and the two parts of the features, ``"low_rank"`` (noise) and ``"sparse"``
    (speech): x divided in proportion to the features of noise and speech alone, so that the parts
    add up to x.

    Parameters
    ----------
    speech
        Clean waves of every speaker. All speakers are drawn equally often.
    noise
        Waves of noise, drawn equally often.
    features
        The transform and the compression.
    seconds, every
        The length of a segment, and the distance of the frames that are taken from it, which
        overlap.
    segments
        The number of segments in a batch.
    snr
        The range of the signal-to-noise ratio of a segment, in decibels: relative to the level of
        the whole wave that the speech is from.
    seed
        The seed of all draws.
    """

    def __init__(
        self,
        speech: Mapping[str, Sequence[Array]],
        noise: Sequence[Array],
        features: Features = FEATURES,
        seconds: float = 1.0,
        every: int = 4,
        segments: int = 16,
        snr: tuple[float, float] = (-5.0, 5.0),
        seed: int = 0,
    ) -> None:
        _require_sounds(speech, noise)
        self.speech = [[_level(as_wave(w, "speech")) for w in own] for own in speech.values()]
        self.noise = [as_wave(wave, "noise") for wave in noise]
        self.features, self.every, self.segments = features, every, segments
        self.snr, self.seed = snr, seed
        self.samples = round(seconds * features.rate)
        if self.samples < features.window:
            raise ValueError(f"a segment of {seconds} s is shorter than a window")
        count = features.stft.frames(self.samples)
        #: the frames of a segment that are taken, whole ones only
        self.chosen = np.arange(features.window // features.hop - 1, count - 3, every)

    @property
    def frames(self) -> int:
        """The number of rows of a segment."""
        return len(self.chosen)

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        speakers = len(self.speech)
        # every speaker once before anyone is drawn again
        rounds = [rng.permutation(speakers) for _ in range(-(-self.segments // speakers))]
        labels = np.concatenate(rounds)[: self.segments]
        pairs = [self._segment(int(label), rng) for label in labels]
        voice, rest = (torch.from_numpy(np.stack(waves)) for waves in zip(*pairs, strict=True))
        parts = self.features.stft.analyse(torch.stack([rest, voice]))[:, :, self.chosen]
        noise, speech = parts.transpose(1, 2).numpy()
        seen = self.features.stream().push_parts(noise + speech, noise, speech)
        level = np.sqrt(np.square(seen[0]).mean(axis=(0, 2), keepdims=True))
        share = seen[2] / (seen[1] + seen[2] + TINY)
        x = seen[0] / level
        rows = [self._rows(part) for part in (x, x * (1 - share), x * share)]
        targets = {"low_rank": rows[1], "sparse": rows[2]}
        targets["labels"] = torch.from_numpy(labels.repeat(self.frames))
        return Batch(rows[0], targets)

    def _segment(self, label: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Speech and noise of one segment."""
        waves = self.speech[label]
        wave = waves[rng.integers(len(waves))]
        begin = int(rng.integers(max(1, len(wave) - self.samples + 1)))
        voice = wave[begin : begin + self.samples]
        voice = np.pad(voice, (0, self.samples - len(voice)))
        noise = stretch(self.noise[rng.integers(len(self.noise))], self.samples, rng)
        gain = np.float32(10 ** (-rng.uniform(*self.snr) / 20))
        return voice, gain * _level(noise)

    def _rows(self, seen: Array) -> Tensor:
        """Features (frames, segments, bins) as the rows of a batch, segment by segment."""
        rows = np.ascontiguousarray(seen.swapaxes(0, 1))
        return torch.from_numpy(rows).flatten(0, 1)


class SpeechParts(Regime):
    """The distance of both parts to the true ones, each row by the encoder of its speaker.

    ``mean_i ||s_i D0 - noise_i||^2 + ||o_i Dj - speech_i||^2`` with the label j of row i.
    """

    name = "supervised"

    def __call__(self, encoder: nn.Module, batch: Batch) -> Tensor:
        # other encoders than that of the label do not count, so they need not run
        bank, targets = cast(EncoderBank, encoder), cast(Mapping[str, Tensor], batch.targets)
        rows = [torch.nonzero(targets["labels"] == j).flatten() for j in range(len(bank))]
        codes = [member(batch.x[own]) for member, own in zip(bank, rows, strict=True)]
        return self._mean(bank, batch, codes, rows)

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        bank, targets = cast(EncoderBank, encoder), cast(Mapping[str, Tensor], batch.targets)
        rows = [torch.nonzero(targets["labels"] == j).flatten() for j in range(len(bank))]
        own = [each[chosen] for each, chosen in zip(codes, rows, strict=True)]
        return self._mean(bank, batch, own, rows)

    @staticmethod
    def _mean(bank: EncoderBank, batch: Batch, codes: list[Tensor], rows: list[Tensor]) -> Tensor:
        targets = cast(Mapping[str, Tensor], batch.targets)
        total = batch.x.new_zeros(())
        for member, own, chosen in zip(bank, codes, rows, strict=True):
            parts = member.model.split(own)
            for name in ("low_rank", "sparse"):
                total = total + (getattr(parts, name) - targets[name][chosen]).square().sum()
        return total / len(batch.x)


class PooledErrors(Regime):
    """The cross-entropy of the decision by errors that are summed over the frames of a segment.

    ::

        mean_i -log softmax(-sharpness log(e_i))_j   with   e_ij = sum_t ||x_t - decode_j(z_t)||^2

    for segment i with the label j. This is the decision of `NoisySpeakers` made smooth; it depends
    on the ratios of errors only.

    Parameters
    ----------
    frames
        The number of rows of a segment.
    sharpness
        How much a ratio of errors counts.
    """

    name = "discriminative"

    def __init__(self, frames: int, sharpness: float = 30.0) -> None:
        self.frames, self.sharpness = frames, as_number(sharpness, "sharpness")

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        bank, targets = cast(EncoderBank, encoder), cast(Mapping[str, Tensor], batch.targets)
        errors = squared_errors(bank, batch.x, cast(list[Tensor], codes))
        pooled = errors.reshape(-1, self.frames, len(bank)).sum(1)
        labels = targets["labels"][:: self.frames]
        return cross_entropy(-self.sharpness * pooled.log(), labels)


def train(
    speakers: NoisySpeakers,
    speech: Mapping[str, Sequence[Array]],
    noise: Sequence[Array],
    regime: str,
    steps: int | None,
    seed: int,
    callback: Callback | None,
    checkpoint: str | os.PathLike[str] | None,
    rate: float | None = None,
    sharpness: float = 30.0,
    parts: float = PARTS,
    **options: Any,
) -> History:
    """Train in place; see `NoisySpeakers.fit`.

    The discriminative regime is `PooledErrors` plus `parts` times `SpeechParts`, which keeps the
    parts of the explanation those of speech and noise.
    """
    require_choice(regime, tuple(STEPS), "regime")
    if set(speech) != set(speakers.speakers):
        raise ValueError(
            f"speech must be of the speakers {', '.join(speakers.speakers)}, got that of "
            f"{', '.join(speech)}"
        )
    ordered = {name: speech[name] for name in speakers.speakers}
    source = NoisySpeech(ordered, noise, speakers.features, seed=seed, **options)
    loss: Regime = SpeechParts()
    if regime == "discriminative":
        loss = PooledErrors(source.frames, sharpness) + parts * loss
    return fit(
        speakers.bank, source, regime=loss, dictionary="gradient", seed=seed, validation=False,
        steps=STEPS[regime] if steps is None else steps, callback=callback, checkpoint=checkpoint,
        rate=RATES[regime] if rate is None else rate,
    )  # fmt: skip


def _level(wave: Array) -> Array:
    """A wave divided by its root mean square; silence stays silence."""
    size = float(np.sqrt(np.square(wave, dtype=np.float64).mean()))
    return wave / np.float32(size) if size > 0 else wave


def _require_sounds(speech: Mapping[str, Sequence[Array]], noise: Sequence[Array]) -> None:
    if len(speech) < 2:
        raise ValueError(f"speech must be of two speakers or more, got {len(speech)}")
    for name, waves in speech.items():
        if len(waves) == 0:
            raise ValueError(f"speech has no waves of the speaker {name!r}; give one or more")
    if len(noise) == 0:
        raise ValueError("noise is empty; give one wave or more")
