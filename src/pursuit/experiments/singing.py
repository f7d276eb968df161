"""Singing voice separation: robust NMF and its encoders on the clips of MIR-1K.

The paper's table: the improvement of voice and music by exact robust NMF and by its encoders,
untrained and trained with and without targets, below an ideal mask. In addition, the separator of
the library, a recurrent network of the same size (`singing_rivals`) and separators of other
packages where they are installed (`singing_peers`). `singing_scores` measures, `singing_report`
writes the report.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..audio.metrics import CONVENTIONS, Sources
from ..audio.mixtures import Pair
from ..audio.separation import Separator
from ..audio.spectrogram import STFT
from ..datasets import singing, spectrogram
from ..encoders.proximal import ProximalEncoder
from ..models import Parts, RobustNMF
from ..progress import Callback
from ..regimes import Supervised
from ..solvers.solve import solve
from ..training import fit
from . import peers, singing_peers, singing_rivals
from .frame import Description, Experiment, Part, Settings
from .intervals import bootstrap
from .singing_scores import Example, Scorer, global_mean

IDEAL, EXACT, UNTRAINED = "ideal ratio mask", "exact robust NMF", "encoder, untrained"
UNSUPERVISED, SUPERVISED = "encoder, unsupervised", "encoder, supervised"
RECOMMENDED, SHIPPED, RIVAL = "our separator", "our separator, as shipped", "GRU mask network"
LOW = "our separator, low latency"
#: from robust NMF with the same dictionary, and the row that should have the best voice
FAITHFUL = (EXACT, UNTRAINED, UNSUPERVISED, SUPERVISED)
#: voice and music in the paper, in decibels
PAPER = {
    IDEAL: [13.48, 12.51],
    EXACT: [5.60, 3.17],
    UNTRAINED: [1.62, 4.31],
    UNSUPERVISED: [5.00, 4.01],
    SUPERVISED: [6.36, 4.32],
}
#: from parts to waves: the parts themselves, or a mask made from them
DIRECT, MASKED = "direct", "masked"

POWER = 0.5
TRANSFORM = STFT(1024, 256)


@dataclass(frozen=True)
class SingingSettings(Settings):
    """The values of the paper; * marks those that it does not state.

    The weights are ``lam = sqrt(2) sigma`` and ``lam_star = sqrt(2 max(m, joint)) sigma``.
    """

    clips: int | None = None  # test clips, by default all of them *
    atoms: int = 25
    layers: int = 20
    sigma: float = 0.3  # the noise level
    joint: int = 4000  # frames that the dictionary is learned from, and in lam_star *
    passes: int = 30  # over them *
    unsupervised: int = 600  # training steps without targets *
    supervised: int = 300  # training steps with targets *
    batch: int = 64  # frames in a training step *
    rival: int = 3000  # training steps of the GRU mask network *
    separator: int = 3000  # training steps of the library's separator *
    draws: int = 10_000  # of the bootstrap


class Reproduction(Experiment):
    """The improvement of voice and music on the test clips."""

    name = "singing"
    settings: SingingSettings
    data: Path

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        if data is None:
            raise ValueError(
                "the experiment singing needs recordings; give the folder of MIR-1K as --data DIR, "
                "or --download"
            )
        super().__init__(settings, data)
        self._model, self.peers = cache(self._learn), peers.installed(singing_peers.PEERS)

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> SingingSettings:
        if not quick:
            return SingingSettings()
        return SingingSettings(
            seeds=(0,), clips=6, joint=1000, passes=5, unsupervised=40,
            supervised=100, rival=40, separator=10,
        )  # fmt: skip

    @classmethod
    def download(cls, progress: Callback | None = None) -> Path:
        return singing.download(progress=progress)

    @cached_property
    def clips(self) -> tuple[singing.Clip, ...]:
        """The test clips; if not all of them, evenly chosen."""
        every = singing.read_folder(self.data, "test")
        count = min(self.settings.clips or len(every), len(every))
        return tuple(every[number * len(every) // count] for number in range(count))

    @cached_property
    def training_clips(self) -> tuple[singing.Clip, ...]:
        return singing.read_folder(self.data, "train")

    @cached_property
    def stamp(self) -> str:
        content = hashlib.sha256()
        for clip in (*self.training_clips, *self.clips):
            content.update(f"{clip.path.name} {clip.singer} ".encode())
            content.update(clip.path.read_bytes())
        return content.hexdigest()

    @cached_property
    def pairs(self) -> list[Pair]:
        """The training clips in two parts."""
        found = []
        for clip in self.training_clips:
            music, voice = (wave.astype(np.float32) for wave in clip.read())
            found.append(Pair(music, voice, clip.singer))
        return found

    @cached_property
    def scale(self) -> float:
        """The standard deviation of the training mixtures, by which all spectra are divided."""
        return singing.train_scale(self.data, TRANSFORM.window, TRANSFORM.hop, POWER)

    @cached_property
    def frames(self) -> spectrogram.Spectrogram:
        """Training frames of mixture, accompaniment and voice."""
        window, hop, scale = TRANSFORM.window, TRANSFORM.hop, self.scale
        return singing.frames(self.data, "train", window=window, hop=hop, power=POWER, scale=scale)

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.clips)

    @property
    def weights(self) -> tuple[float, float]:
        """lam and lam_star."""
        sigma, largest = self.settings.sigma, max(TRANSFORM.bins, self.settings.joint)
        return math.sqrt(2) * sigma, math.sqrt(2 * largest) * sigma

    @property
    def description(self) -> Description:
        from .singing_report import SingingDescription

        return SingingDescription(self)

    def parts(self) -> Sequence[Part]:
        seeded: dict[str, Callable[[int], Any]] = {
            EXACT: self._exact,
            UNTRAINED: self._encoder,
            UNSUPERVISED: self._unsupervised,
            SUPERVISED: self._supervised,
            RECOMMENDED: self._recommended,
            RIVAL: self._rival,
        }
        single: dict[str, Callable[[], Any]] = {
            IDEAL: self._ideal,
            SHIPPED: lambda: self._separated(Separator.pretrained()),
            LOW: lambda: self._separated(Separator.pretrained("low")),
        }
        for name, peer in self.peers.items():
            single[name] = partial(self._peer, peer)
        work = [Part(_part(name), name, compute) for name, compute in single.items()]
        return work + [
            Part(_part(name, seed), f"{name}, seed {seed}", partial(compute, seed))
            for (name, compute), seed in product(seeded.items(), self.settings.seeds)
        ]

    def _learn(self, seed: int) -> RobustNMF:
        """Robust NMF with a dictionary of the training mixtures."""
        settings, (lam, lam_star) = self.settings, self.weights
        mixture = self.frames.mixture
        generator = torch.Generator().manual_seed(seed)
        some = mixture[torch.randperm(len(mixture), generator=generator)[: settings.joint]]
        atoms = spectrogram.learn_dictionary(
            some, settings.atoms, lam_star, lam, sweeps=settings.passes, seed=seed
        )
        return RobustNMF(atoms, lam_star, lam)

    def _ideal(self) -> dict[str, Any]:
        return {"scores": self.scorer.measure(_ideally)}

    def _exact(self, seed: int) -> dict[str, Any]:
        model = self._model(seed)
        return self._scored(lambda x: model.split(solve(model, x).codes))

    def _encoder(
        self, seed: int, train: Callable[[ProximalEncoder], object] | None = None
    ) -> dict[str, Any]:
        """The scores of the paper's encoder, after some training."""
        encoder = ProximalEncoder(
            self._model(seed), self.settings.layers, step="free", momentum=False
        )
        if train is not None:
            train(encoder)

        def encoded(x: Tensor) -> Parts:
            with torch.no_grad():
                return encoder.model.split(encoder(x))

        return {**self._scored(encoded), "parameters": _count(encoder)}

    def _unsupervised(self, seed: int) -> dict[str, Any]:
        settings, x = self.settings, self.frames.mixture

        def train(encoder: ProximalEncoder) -> None:
            steps, size = settings.unsupervised, settings.batch
            fit(encoder, x, steps=steps, batch_size=size, seed=seed)

        return self._encoder(seed, train)

    def _supervised(self, seed: int) -> dict[str, Any]:
        frames, settings = self.frames, self.settings
        targets = {"low_rank": frames.low_rank, "sparse": frames.sparse}

        def train(encoder: ProximalEncoder) -> None:
            fit(
                encoder, frames.mixture, targets, steps=settings.supervised, seed=seed,
                regime=Supervised(penalty=1.0), dictionary="gradient", batch_size=settings.batch,
            )  # fmt: skip

        return self._encoder(seed, train)

    def _rival(self, seed: int) -> dict[str, Any]:
        network = singing_rivals.trained(self.pairs, self.settings.rival, seed)
        scores = self.scorer.measure(partial(singing_rivals.separate, network))
        return {"scores": scores, "parameters": _count(network)}

    def _recommended(self, seed: int) -> dict[str, Any]:
        """The separator of the library, trained on the same clips as the encoders."""
        separator = Separator.convolutional(seed=seed)
        separator.fit(self.pairs, steps=self.settings.separator, seed=seed)
        return self._separated(separator)

    def _separated(self, separator: Separator) -> dict[str, Any]:
        def separate(example: Example) -> dict[str, Sources]:
            found = separator.separate(example.mixture.numpy(), singing.RATE)
            return {MASKED: Sources(*map(torch.from_numpy, found))}

        scores = self.scorer.measure(separate)
        return {"scores": scores, "parameters": separator.parameter_count}

    def _peer(self, peer: peers.Peer[singing_peers.Separate]) -> dict[str, Any]:
        separate = peer.load()

        def separated(example: Example) -> dict[str, Sources]:
            voice = torch.from_numpy(separate(example.mixture.numpy()))
            return {MASKED: Sources(voice, example.mixture - voice)}

        return {"scores": self.scorer.measure(separated)}

    def _scored(self, encode: Callable[[Tensor], Parts]) -> dict[str, Any]:
        """The scores of a decomposition of frames."""

        def separate(example: Example) -> dict[str, Sources]:
            spectra = TRANSFORM.analyse(example.mixture.float())
            parts = encode(spectra.abs() ** POWER / self.scale)
            return synthesised(parts, spectra, self.scale, example.mixture)

        return {"scores": self.scorer.measure(separate)}

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        settings, rows = self.settings, {}
        singers = [clip.singer for clip in self.clips]
        for name in (IDEAL, *FAITHFUL, RECOMMENDED, SHIPPED, LOW, RIVAL, *self.peers):
            keys = [_part(name, seed) for seed in (None, *settings.seeds)]
            runs = [values[key] for key in keys if key in values]
            for kind in runs[0]["scores"] if runs else ():
                row = f"{name}, {kind}" if len(runs[0]["scores"]) > 1 else name
                rows[row] = self._row([run["scores"][kind] for run in runs])
                rows[row] |= {"paper": PAPER.get(name), "parameters": runs[0].get("parameters")}
        return {
            "clips": [
                {"file": clip.path.name, "singer": clip.singer, "samples": clip.samples}
                for clip in self.clips
            ],
            "rows": rows,
            "differences": [
                self._difference(rows, better, other, singers) for better, other in _pairs(rows)
            ],
            "skipped": {
                name: peer.sentence
                for name, peer in singing_peers.PEERS.items()
                if name not in self.peers
            },
        }

    def _row(self, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Means over seeds clip by clip, and of all clips with their intervals."""
        row: dict[str, Any] = {}
        samples = [clip.samples for clip in self.clips]
        for convention in CONVENTIONS:
            each = np.array([run[convention] for run in runs])
            clips = each.mean(axis=0)
            row[convention] = {
                "mean": clips.mean(axis=0).tolist(),
                "interval": [bootstrap(column, draws=self.settings.draws) for column in clips.T],
                "global": global_mean(clips, samples, convention),
                "seeds": each.mean(axis=1).tolist(),
                "clips": clips.tolist(),
            }
        return row

    def _difference(
        self, rows: Mapping[str, Any], better: str, other: str, singers: Sequence[str]
    ) -> dict[str, Any]:
        """Mean difference of two rows, with intervals over clips and over singers."""
        found: dict[str, Any] = {"row": better, "other": other}
        first, second = (np.array(rows[name][CONVENTIONS[0]]["clips"]) for name in (better, other))
        for source, values in zip(Sources._fields, (first - second).T, strict=True):
            found[source] = {
                "mean": float(values.mean()),
                "clips": bootstrap(values, draws=self.settings.draws),
                "singers": bootstrap(values, singers, draws=self.settings.draws),
            }
        return found


def synthesised(parts: Parts, spectra: Tensor, scale: float, mixture: Tensor) -> dict[str, Sources]:
    """Waves from the parts ``|X|^power / scale`` of a mixture, directly and by a mask.

    Direct: the sparse part is the magnitude of the voice, the low-rank part that of the music, both
    with the phase of the mixture. Masked: the voice is the mixture's spectrum times ``o/(o + l)``,
    of linear magnitudes, and the music is the rest; bins where both parts are zero are music.
    """
    assert parts.low_rank is not None
    assert parts.sparse is not None
    music, voice = (
        (scale * part.clamp_min(0)) ** (1 / POWER) for part in (parts.low_rank, parts.sparse)
    )
    tiny = torch.finfo(voice.dtype).tiny
    phase = spectra / spectra.abs().clamp_min(tiny)
    mask = voice / (voice + music).clamp_min(tiny)
    own, rest, masked = TRANSFORM.synthesise(
        torch.stack([voice * phase, music * phase, mask * spectra]), len(mixture)
    )
    return {DIRECT: Sources(own, rest), MASKED: Sources(masked.to(mixture), mixture - masked)}


def _ideally(example: Example) -> dict[str, Sources]:
    """The mask of the true magnitudes, ``|V| / (|V| + |M|)``."""
    spectra = TRANSFORM.analyse(torch.stack([example.voice, example.music]))
    voice, music = spectra.abs()
    mask = voice / (voice + music).clamp_min(torch.finfo(voice.dtype).tiny)
    found = TRANSFORM.synthesise(mask * spectra.sum(0), len(example.mixture))
    return {MASKED: Sources(found, example.mixture - found)}


def _pairs(rows: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The rows to compare: the supervised encoder, then our separator, with the others."""
    pairs = [
        (f"{SUPERVISED}, {kind}", f"{name}, {kind}")
        for kind in (DIRECT, MASKED)
        for name in FAITHFUL[:-1]
    ]
    best = f"{SUPERVISED}, {MASKED}"
    for ours in (SHIPPED, RECOMMENDED):
        pairs += [(ours, name) for name in (best, RIVAL, *singing_peers.PEERS)]
    pairs.append((RIVAL, best))
    return [(first, second) for first, second in pairs if first in rows and second in rows]


def _part(name: str, seed: int | None = None) -> str:
    """The name of a part, which is that of a file."""
    plain = "-".join(name.replace(",", "").split())
    return plain if seed is None else f"{plain}-{seed}"


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
