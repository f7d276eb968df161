"""Speakers in noise: low-rank NMF of speech and noise, and its encoders.

The paper's table: the share of clips at 0 dB whose speaker is recognised, by exact codes and by
encoders trained to separate speech from noise or to tell speakers apart. In addition, other ratios
of speech to noise, noises that were not trained on, the denoised speech, rivals (`noise_rivals`)
and times (`noise_times`). `noise_report` writes the report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ..audio.metrics import CONVENTIONS, sdr
from ..audio.noisy_speakers import NoisySpeakers, mixed, observed, stretch
from ..audio.noisy_training import NoisySpeech
from ..audio.streams import Array
from ..certificates import certify
from ..datasets import noise as corpus
from ..encoders.bank import EncoderBank
from ..progress import Callback
from . import noise_rivals, noise_times
from .frame import Description, Experiment, Part, Settings
from .intervals import bootstrap

EXACT, SUPERVISED, DISCRIMINATIVE = "exact", "supervised", "discriminative"
GAUSSIANS, NETWORK = "Gaussians", "log-mel network"
#: success rates in the paper: exact, supervised, discriminative
PAPER = {
    "street": (0.86, 0.91, 0.91),
    "restaurant": (0.91, 0.89, 0.90),
    "car": (0.90, 0.91, 0.96),
    "exhibition": (0.93, 0.91, 0.95),
    "train": (0.93, 0.88, 0.96),
    "airport": (0.92, 0.85, 0.98),
    "average": (0.91, 0.89, 0.94),
}
#: the paper's columns, and all rows that recognise speakers
COLUMNS = (EXACT, SUPERVISED, DISCRIMINATIVE)
METHODS = (*COLUMNS, GAUSSIANS, NETWORK)
#: the ratio of speech to noise of the table, in decibels
MAIN = 0.0

#: the errors of a wave, (frames, speakers); the smallest sum over the frames decides
Errors = Callable[[Array], Array]

#: other packages by name: from the clean training clips of each speaker to the errors of a noisy
#: wave, of shape (1, speakers), such as negative cosines of embeddings
PEERS: dict[str, Callable[[Mapping[str, Sequence[Array]]], Errors]] = {}


@dataclass(frozen=True)
class NoiseSettings(Settings):
    """The values of the paper; * marks those that it does not state."""

    role: str = "test"  # of the clips and noises that are classified
    clips: int | None = None  # of this role, by default all of them *
    atoms: int = 50
    layers: int = 10
    lam_star: float = 0.3  # *
    supervised: int = 100  # training steps *
    discriminative: int = 400  # training steps *
    unseen: int = 100  # discriminative training steps without one of the noises *
    segments: int = 20  # in a training step *
    batches: int = 300  # of training mixtures, for the Gaussians *
    network: int = 600  # training steps of the network *
    others: tuple[float, ...] = (-5.0, 5.0)  # further ratios of speech to noise, in decibels *
    every: int = 3  # only these clips at other ratios, with unseen noises, and denoised *
    lengths: tuple[int, ...] = (16, 31, 62, 125)  # frames that are pooled *
    iterations: int = 80  # of the exact codes *
    draws: int = 10_000  # of the bootstrap


class Mixture(NamedTuple):
    """Speech in noise: the number of the speaker, the noise, the clip, and both waves."""

    speaker: int
    kind: str
    clip: int
    speech: Array
    noise: Array

    @property
    def wave(self) -> Array:
        """The sum."""
        total: Array = self.speech + self.noise
        return total


class Reproduction(Experiment):
    """The share of clips whose speaker is recognised."""

    name = "noise"
    settings: NoiseSettings
    data: Path

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        if data is None:
            raise ValueError(
                "the experiment noise needs recordings; give their folder as --data DIR"
            )
        super().__init__(settings, data)
        self._learned, self._separating = cache(self._learn), cache(self._separate)

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> NoiseSettings:
        if not quick:
            return NoiseSettings()
        return NoiseSettings(
            seeds=(0,), clips=10, atoms=15, supervised=10, discriminative=10, unseen=2, segments=10,
            batches=30, network=20, others=(5.0,), every=5, lengths=(31, 125),
        )  # fmt: skip

    @classmethod
    def download(cls, progress: Callback | None = None) -> Path:
        raise ValueError("speech and noise cannot be downloaded; give a folder as --data")

    @cached_property
    def clips(self) -> tuple[corpus.Clip, ...]:
        """The clips that are classified; if not all of them, evenly chosen."""
        every = corpus.clips(self.data, self.settings.role)
        count = min(self.settings.clips or len(every), len(every))
        return tuple(every[number * len(every) // count] for number in range(count))

    @cached_property
    def training_clips(self) -> tuple[corpus.Clip, ...]:
        return corpus.clips(self.data, "train")

    @cached_property
    def noises(self) -> dict[str, Array]:
        """The noises of the clips that are classified."""
        return {noise.kind: noise.read() for noise in corpus.noises(self.data, self.settings.role)}

    @cached_property
    def training_noises(self) -> dict[str, Array]:
        return {noise.kind: noise.read() for noise in corpus.noises(self.data, "train")}

    @cached_property
    def speech(self) -> dict[str, list[Array]]:
        """The training clips of each speaker."""
        names = sorted({clip.speaker for clip in self.training_clips})
        return {n: [c.read() for c in self.training_clips if c.speaker == n] for n in names}

    @cached_property
    def waves(self) -> list[Array]:
        """The waves of the clips that are classified."""
        return [clip.read() for clip in self.clips]

    @cached_property
    def stamp(self) -> str:
        content = hashlib.sha256()
        for clip in (*self.training_clips, *self.clips):
            content.update(f"{clip.speaker} {clip.name} ".encode())
            for path in clip.paths:
                content.update(path.read_bytes())
        for role in ("train", self.settings.role):
            for noise in corpus.noises(self.data, role):
                content.update(f"{noise.kind} {noise.begin} {noise.end} ".encode())
                content.update(noise.path.read_bytes())
        return content.hexdigest()

    @property
    def description(self) -> Description:
        from .noise_report import NoiseDescription

        return NoiseDescription(self)

    def mixtures(
        self, snr: float = MAIN, every: int = 1, kinds: Sequence[str] | None = None
    ) -> Iterator[Mixture]:
        """Yield clips with each kind of noise; a stretch of noise is the same at all ratios."""
        names = list(self.speech)
        for number, clip in enumerate(self.clips):
            if number % every:
                continue
            wave = self.waves[number]
            for place, (kind, noise) in enumerate(self.noises.items()):
                if kinds is not None and kind not in kinds:
                    continue
                rng = np.random.default_rng([number, place])
                pair = mixed(wave, stretch(noise, len(wave), rng), snr)
                yield Mixture(names.index(clip.speaker), kind, number, *pair)

    def parts(self) -> Sequence[Part]:
        trained = [
            Part(_part(row, seed), f"{row}, seed {seed}", partial(self._trained, row, seed))
            for seed, row in product(self.settings.seeds, (SUPERVISED, DISCRIMINATIVE))
        ]
        single: dict[str, Callable[[], Any]] = {EXACT: self._exact, GAUSSIANS: self._gaussians}
        single |= {name: partial(self._peer, enrol) for name, enrol in PEERS.items()}
        single["times"] = self._times
        networks = [
            Part(_part(NETWORK, seed), f"{NETWORK}, seed {seed}", partial(self._network, seed))
            for seed in self.settings.seeds
        ]
        unseen = [
            Part(_part("unseen", kind), f"without {kind}", partial(self._unseen, kind))
            for kind in self.noises
        ]
        alone = [Part(_part(name), name, compute) for name, compute in single.items()]
        return [*trained, *alone, *networks, *unseen]

    def _learn(self, without: str | None = None, layers: int | None = None) -> NoisySpeakers:
        """Untrained encoders on learned dictionaries, with the noises but one."""
        settings = self.settings
        depth = settings.layers if layers is None else layers
        noise = [wave for kind, wave in self.training_noises.items() if kind != without]
        return NoisySpeakers.learn(
            self.speech, noise, atoms=settings.atoms, lam_star=settings.lam_star, layers=depth
        )

    def _separate(self, seed: int, without: str | None = None) -> NoisySpeakers:
        """Encoders trained to separate speech from noise."""
        steps = self.settings.supervised
        return self._fit(self._learned(without), SUPERVISED, seed, steps, without)

    def _fit(
        self, start: NoisySpeakers, regime: str, seed: int, steps: int, without: str | None = None
    ) -> NoisySpeakers:
        """Train a copy."""
        speakers = NoisySpeakers(deepcopy(start.bank), start.speakers)
        noise = [wave for kind, wave in self.training_noises.items() if kind != without]
        segments = self.settings.segments
        speakers.fit(self.speech, noise, regime=regime, steps=steps, seed=seed, segments=segments)
        return speakers

    def _source(self, seed: int, every: int = 4, without: str | None = None) -> NoisySpeech:
        """The mixtures that encoders are trained on."""
        noise = [wave for kind, wave in self.training_noises.items() if kind != without]
        return NoisySpeech(
            self.speech, noise, every=every, segments=self.settings.segments, seed=seed
        )

    def _trained(self, regime: str, seed: int) -> dict[str, Any]:
        settings, speakers = self.settings, self._separating(seed)
        if regime == DISCRIMINATIVE:
            speakers = self._fit(speakers, regime, seed, settings.discriminative)
        found = self._classified(speakers.errors)
        if seed == settings.seeds[0]:
            found["denoised"] = self._denoised(lambda wave: speakers.denoise(wave).speech)
        count = sum(parameter.numel() for parameter in speakers.bank.parameters())
        return {**found, "parameters": count}

    def _exact(self) -> dict[str, Any]:
        """Codes of so many accelerated proximal steps that a certificate shows them to be exact."""
        speakers = self._learn(layers=self.settings.iterations)
        gaps = []
        for mixture in self.mixtures(every=len(self.clips)):
            x = torch.from_numpy(observed(mixture.wave)[1])
            for encoder in speakers.bank:
                with torch.no_grad():
                    codes = encoder(x)
                    objective = encoder.model.objective(x, codes)
                gaps.append(float((certify(encoder.model, x, codes) / objective).max()))
        return {
            **self._classified(speakers.errors),
            "denoised": self._denoised(lambda wave: speakers.denoise(wave).speech),
            "parameters": sum(tensor.numel() for tensor in _dictionaries(speakers.bank)),
            "gap": max(gaps),
        }

    def _gaussians(self) -> dict[str, Any]:
        rival = noise_rivals.gaussians(self._source(0), self.settings.batches)
        unseen = []
        for kind in self.noises:
            other = noise_rivals.gaussians(self._source(0, without=kind), self.settings.batches)
            unseen += self._decisions(_of_features(other), MAIN, self.settings.every, kind)
        return {**self._classified(_of_features(rival)), "unseen": unseen}

    def _network(self, seed: int) -> dict[str, Any]:
        source = self._source(seed, every=1)
        network = noise_rivals.classifier(source, len(self.speech), self.settings.network, seed)
        count = sum(parameter.numel() for parameter in network.parameters())
        return {**self._classified(_of_features(network), lengths=()), "parameters": count}

    def _peer(self, enrol: Callable[[Mapping[str, Sequence[Array]]], Errors]) -> dict[str, Any]:
        return self._classified(enrol(self.speech), lengths=())

    def _unseen(self, kind: str) -> list[Any]:
        """Decisions for a noise that dictionaries and encoders were not trained on."""
        seed = self.settings.seeds[0]
        start = self._separating(seed, kind)
        speakers = self._fit(start, DISCRIMINATIVE, seed, self.settings.unseen, kind)
        return self._decisions(speakers.errors, MAIN, self.settings.every, kind)

    def _times(self) -> dict[str, Any]:
        mixtures = list(self.mixtures(every=len(self.clips)))  # one clip with all noises
        return noise_times.measure(self._learned(), [mixture.wave for mixture in mixtures])

    def _classified(
        self,
        errors: Errors,
        lengths: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Decisions at all ratios, and those of windows of several lengths at 0 dB."""
        settings = self.settings
        wanted = settings.lengths if lengths is None else lengths
        main, windows = [], {str(length): [0, 0] for length in wanted}
        for mixture in self.mixtures():
            found = errors(mixture.wave)
            main.append(_decision(mixture, found))
            for length in wanted:
                count = len(found) // length
                sums = found[: count * length].reshape(count, length, found.shape[1]).sum(1)
                windows[str(length)][0] += int((sums.argmin(1) == mixture.speaker).sum())
                windows[str(length)][1] += count
        decisions = {str(MAIN): main}
        for snr in settings.others:
            decisions[str(snr)] = self._decisions(errors, snr, settings.every)
        return {"decisions": decisions, "windows": windows}

    def _decisions(
        self, errors: Errors, snr: float, every: int, kind: str | None = None
    ) -> list[Any]:
        kinds = None if kind is None else (kind,)
        return [
            _decision(mixture, errors(mixture.wave)) for mixture in self.mixtures(snr, every, kinds)
        ]

    def _denoised(self, speech: Callable[[Array], Array]) -> dict[str, list[float]]:
        """The improvement of the speech in decibels, mixture by mixture."""
        found: dict[str, list[float]] = {name: [] for name in CONVENTIONS}
        for mixture in self.mixtures(every=self.settings.every):
            estimate = np.stack([speech(mixture.wave), mixture.wave])
            truth = np.stack([mixture.speech] * 2)
            for name in CONVENTIONS:
                after, before = sdr(estimate, truth, name)
                found[name].append(float(after - before))
        return found

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        settings, rows = self.settings, {}
        for row in (*METHODS, *PEERS):
            keys = [_part(row), *(_part(row, seed) for seed in settings.seeds)]
            runs = [values[key] for key in keys if key in values]
            rows[row] = {
                "snr": {snr: self._rates(runs, snr) for snr in runs[0]["decisions"]},
                "lengths": {
                    length: float(np.mean([np.divide(*run["windows"][length]) for run in runs]))
                    for length, (_, count) in runs[0]["windows"].items()
                    if count
                },
                "parameters": runs[0].get("parameters"),
                "gap": runs[0].get("gap"),
                "denoised": self._improvements(runs[0].get("denoised")),
                "confusion": self._confusion(runs),
            }
        unseen = {
            DISCRIMINATIVE: [
                each for kind in self.noises for each in values[_part("unseen", kind)]
            ],
            GAUSSIANS: values[_part(GAUSSIANS)]["unseen"],
        }
        pairs = [(DISCRIMINATIVE, other) for other in rows if other != DISCRIMINATIVE]
        return {
            "speakers": list(self.speech),
            "clips": len(self.clips),
            "rows": rows,
            "differences": [self._difference(rows, *pair) for pair in pairs],
            "unseen": {row: self._rate(found) for row, found in unseen.items()},
            "times": values["times"],
        }

    def _rates(self, runs: Sequence[Mapping[str, Any]], snr: str) -> dict[str, Any]:
        """The success rate with each noise and on average, by clip and seed."""
        each = [self._rate(run["decisions"][snr]) for run in runs]
        clips = np.mean([own["clips"] for own in each], axis=0)
        kinds = {k: float(np.mean([own["kinds"][k] for own in each])) for k in self.noises}
        return {
            "mean": float(np.mean([own["mean"] for own in each])),
            "interval": bootstrap(clips, draws=self.settings.draws),
            "seeds": [own["mean"] for own in each],
            "kinds": kinds,
            "clips": clips.tolist(),
        }

    def _rate(self, decisions: Sequence[Any]) -> dict[str, Any]:
        """The success rate, with each noise, and of each clip over all noises, with its interval.

        Mixtures of the same clip are alike, therefore clips are drawn by the bootstrap.
        """
        hits: dict[int, list[bool]] = {}
        kinds: dict[str, list[bool]] = {}
        for true, found, kind, clip in decisions:
            hits.setdefault(clip, []).append(true == found)
            kinds.setdefault(kind, []).append(true == found)
        clips = [float(np.mean(own)) for own in hits.values()]
        return {
            "mean": float(np.mean(clips)),
            "interval": bootstrap(clips, draws=self.settings.draws),
            "kinds": {kind: float(np.mean(own)) for kind, own in kinds.items()},
            "clips": clips,
        }

    def _difference(self, rows: Mapping[str, Any], first: str, second: str) -> dict[str, Any]:
        """The mean paired difference of two rows at 0 dB, with an interval over clips."""
        clips = [np.array(rows[name]["snr"][str(MAIN)]["clips"]) for name in (first, second)]
        values = clips[0] - clips[1]
        interval = bootstrap(values, draws=self.settings.draws)
        return {"row": first, "other": second, "mean": float(values.mean()), "interval": interval}

    def _improvements(self, found: Mapping[str, Sequence[float]] | None) -> Any:
        if found is None:
            return None
        draws = self.settings.draws
        return {
            name: {"mean": float(np.mean(own)), "interval": bootstrap(own, draws=draws)}
            for name, own in found.items()
        }

    def _confusion(self, runs: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """Mixtures of each speaker (row) that were taken for each speaker (column), all seeds."""
        counts = np.zeros((len(self.speech), len(self.speech)), int)
        for run in runs:
            for true, found, _, _ in run["decisions"][str(MAIN)]:
                counts[true, found] += 1
        matrix: list[list[int]] = counts.tolist()
        return matrix


def _decision(mixture: Mixture, errors: Array) -> list[Any]:
    """The speaker, who was recognised, the noise, and the number of the clip."""
    return [mixture.speaker, int(errors.sum(0).argmin()), mixture.kind, mixture.clip]


def _of_features(rival: noise_rivals.Gaussians | noise_rivals.Classifier) -> Errors:
    return lambda wave: rival.errors(observed(wave)[1])


def _dictionaries(bank: EncoderBank) -> list[torch.Tensor]:
    """All dictionaries, the shared one once."""
    models = [encoder.model for encoder in bank]
    return [models[0].dictionaries["low_rank"], *(m.dictionaries["sparse"] for m in models)]


def _part(row: str, last: object = None) -> str:
    """The name of a part, which is that of a file."""
    return "-".join([*row.split(), *([] if last is None else [str(last)])])
