"""Speaker identification: HiLasso and its encoders with two layers on closed sets of speakers.

The paper's table: the share of speakers that are not recognised, by the exact codes and by those of
encoders with coordinate steps and with block steps, alone and in mixtures of two. `speakers_sounds`
makes the signals, `speakers_report` writes the report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..audio.speaker_recipe import Recipe
from ..audio.speaker_sounds import Sound
from ..audio.speaker_training import approximate, discriminate, learned_model
from ..audio.speakers import decide, energies, pooled
from ..datasets import speakers as corpus
from ..encoders.block_coordinate import BlockCoordinateEncoder
from ..encoders.coordinate import CoordinateEncoder
from ..encoders.encoder import Encoder
from ..models import HiLasso
from ..progress import Callback
from ..solvers.solve import solve
from .frame import Description, Experiment, Part, Settings
from .intervals import bootstrap
from .peers import installed
from .speaker_peers import PEERS, cosines, profile
from .speaker_peers import RATE as PEER_RATE
from .speakers_sounds import Collection

EXACT, COORDINATE = "exact HiLasso", "CoD, approximation"
BLOCK, DISCRIMINATIVE = "BCoD, approximation", "BCoD, discriminative"
#: misclassification in the paper, in per cent
PAPER = {EXACT: 2.35, COORDINATE: 6.08, BLOCK: 3.53, DISCRIMINATIVE: 3.44}
SINGLE, MIXED = "isolated", "mixtures"

Encode = Callable[[Tensor], Tensor]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SpeakersSettings(Recipe, Settings):
    """The values of the paper, where it states them; see `Recipe`."""

    sets: tuple[str, ...] = ()  # by default all sets of the folder
    role: str = "test"  # of the clips that are classified
    lengths: tuple[int, ...] = (62, 125, 250, 500)  # frames that are pooled; the last: 500
    draws: int = 10_000  # of the bootstrap
    approximation: int = 1500  # more steps than for an encoder that goes on to discriminate


class Reproduction(Experiment):
    """The share of speakers that are not recognised."""

    name = "speakers"
    settings: SpeakersSettings
    data: Path

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        if data is None:
            raise ValueError(
                "the experiment speakers needs recordings; give their folder as --data DIR"
            )
        super().__init__(settings, data)
        self.sets = self.settings.sets or corpus.sets(data)
        self.collection, self._model = cache(self._collect), cache(self._learn)
        self._sounds, self._approximate = cache(self._listen), cache(self._fit_blocks)
        # all rows of a set and seed need the exact codes; those of the next are other sounds
        self._solved = lru_cache(maxsize=32)(self._solve)

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> SpeakersSettings:
        if not quick:
            return SpeakersSettings()
        return SpeakersSettings(
            seeds=(0,), passes=1, lengths=(62, 500), training=1000, approximation=60,
            discriminative=30, tol=1e-2, sets=corpus.sets(data)[:1] if data else (),
        )  # fmt: skip

    @classmethod
    def download(cls, progress: Callback | None = None) -> Path:
        raise ValueError("the recordings of speakers cannot be downloaded; give a folder as --data")

    @cached_property
    def stamp(self) -> str:
        content = hashlib.sha256()
        for name, role in product(self.sets, ("train", self.settings.role)):
            for clip in corpus.read_folder(self.data, name, role):
                content.update(f"{name} {role} {clip.speaker} ".encode())
                content.update(clip.path.read_bytes())
        return content.hexdigest()

    @property
    def description(self) -> Description:
        from .speakers_report import SpeakersDescription

        return SpeakersDescription(self)

    def parts(self) -> Sequence[Part]:
        rows: dict[str, Callable[[str, int], Encode]] = {
            EXACT: self._exact,
            COORDINATE: self._coordinate,
            BLOCK: self._block,
            DISCRIMINATIVE: self._discriminative,
        }
        # set and seed first: rows of one set and seed have the same model and sounds
        parts = [
            Part(_part(name, row, seed), f"{row}, {name}, seed {seed}",
                 partial(self._classified, name, seed, encoder))
            for name, seed, (row, encoder) in product(
                self.sets, self.settings.seeds, rows.items()
            )
        ]  # fmt: skip
        return parts + [
            Part(f"{name}-{peer}", f"{peer}, {name}", partial(self._embedded, name, peer))
            for name, peer in product(self.sets, installed(PEERS))
        ]

    def _collect(self, name: str) -> Collection:
        return Collection(self.data, name, self.settings)

    def _learn(self, name: str, seed: int) -> HiLasso:
        return learned_model(self.collection(name).train, self.settings, seed)

    def _listen(self, name: str, seed: int) -> tuple[list[Sound], list[Sound]]:
        sounds = self.collection(name).sounds(self.settings.role)
        return sounds.single(seed), sounds.mixtures(seed)

    def _exact(self, name: str, seed: int) -> Encode:
        model, tol = self._model(name, seed), self.settings.tol
        return lambda x: solve(model, x, tol=tol).codes

    def _solve(self, name: str, seed: int, sound: Sound) -> Tensor:
        return self._exact(name, seed)(sound.signals)

    def _coordinate(self, name: str, seed: int) -> Encode:
        return self._fit(
            CoordinateEncoder(self._model(name, seed), self.settings.layers), name, seed
        )

    def _block(self, name: str, seed: int) -> Encode:
        return self._approximate(name, seed)

    def _fit_blocks(self, name: str, seed: int) -> Encoder:
        model = self._model(name, seed)
        return self._fit(BlockCoordinateEncoder(model, self.settings.layers), name, seed)

    def _fit(self, encoder: Encoder, name: str, seed: int) -> Encoder:
        approximate(encoder, self.collection(name).train, self.settings, seed)
        return encoder

    def _discriminative(self, name: str, seed: int) -> Encode:
        """Block steps that first approximate the exact codes, then learn who is active."""
        start = self._approximate(name, seed)
        encoder = BlockCoordinateEncoder(self._model(name, seed), self.settings.layers)
        encoder.load_state_dict(start.state_dict())
        discriminate(encoder, self.collection(name).train, self.settings, seed)
        return encoder

    def _classified(
        self, name: str, seed: int, encoder: Callable[[str, int], Encode]
    ) -> dict[str, Any]:
        """Decisions for every clip and window, and the distance of codes from the exact ones."""
        groups, encode = self._model(name, seed).block_labels.numpy(), encoder(name, seed)
        found: dict[str, Any] = {"clips": [], "windows": {}}
        squares = np.zeros(2)
        for kind, sounds in zip((SINGLE, MIXED), self._sounds(name, seed), strict=True):
            for sound in sounds:
                with torch.no_grad():
                    codes = encode(sound.signals)
                best = self._solved(name, seed, sound)
                squares += [float((codes - best).square().sum()), float(best.square().sum())]
                loud = energies(codes.numpy(), groups)
                if sound.clips:
                    each = np.split(loud, np.cumsum(list(sound.clips.values()))[:-1])
                    for clip, own in zip(sound.clips, each, strict=True):
                        decided = int(decide(pooled(own), 1).item())
                        found["clips"].append([sound.speakers[0], decided, Path(clip).name])
                for length in self.settings.lengths:
                    if length > len(loud):
                        continue
                    windows = decide(pooled(loud, length), len(sound.speakers))
                    kinds = found["windows"].setdefault(str(length), {SINGLE: [], MIXED: []})
                    kinds[kind] += [
                        [list(sound.speakers), window, place]
                        for place, window in enumerate(windows.tolist())
                    ]
        found["distance"] = squares[0] / squares[1]
        return found

    def _embedded(self, name: str, peer: str) -> list[Any]:
        """Decisions of another package for every clip: true speaker, found one, and clip."""
        embed, clips = PEERS[peer].load(), partial(corpus.read_folder, self.data, name)
        enrolled: dict[str, list[Array]] = {speaker: [] for speaker in self._names(name)}
        for clip in clips("train"):
            enrolled[clip.speaker].append(clip.read(PEER_RATE))
        profiles = {speaker: profile(embed, waves) for speaker, waves in enrolled.items()}
        found = []
        for clip in clips(self.settings.role):
            scores = list(cosines(embed(clip.read(PEER_RATE)), profiles).values())
            true = list(profiles).index(clip.speaker)
            found.append([true, int(np.argmax(scores)), clip.path.name])
        return found

    def _names(self, name: str) -> tuple[str, ...]:
        """The speakers of a set, in the order of their groups."""
        return self.collection(name).speakers

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Errors in per cent of every row, set, length and kind, and the table's means."""
        settings = self.settings
        lengths = [str(n) for n in settings.lengths if self._fits(values, str(n))]
        if not lengths:
            raise ValueError(
                f"no speaker has {min(settings.lengths)} frames of the role {settings.role}; "
                "give shorter lengths"
            )
        rows = {}
        for row in PAPER:
            each: dict[str, dict[str, Any]] = {}
            for name in self.sets:
                runs = [values[_part(name, row, seed)] for seed in settings.seeds]
                each[name] = {
                    "clips": self._clips(runs),
                    "distance": float(np.mean([run["distance"] for run in runs])),
                    "lengths": {
                        length: {kind: self._errors(runs, length, kind) for kind in (SINGLE, MIXED)}
                        for length in lengths
                    },
                    "confusion": self._confusion(runs, len(self._names(name))),
                }
            seeds = self._means(values, row, lengths[-1])
            exact = self._means(values, EXACT, lengths[-1])
            rows[row] = {
                "paper": PAPER[row],
                "mean": float(np.mean([run.mean for run in seeds])),
                "seeds": [run.mean for run in seeds],
                "interval": _mean_interval([run.interval(settings.draws) for run in seeds]),
                "minus exact": _mean_interval(
                    [
                        (run - own).interval(settings.draws)
                        for run, own in zip(seeds, exact, strict=True)
                    ]
                ),
                "sets": each,
            }
        return {
            "speakers": {name: list(self._names(name)) for name in self.sets},
            "pooled": int(lengths[-1]),
            "rows": rows,
            "peers": {
                peer: {
                    name: self._clips([{"clips": values[f"{name}-{peer}"]}]) for name in self.sets
                }
                for peer in PEERS
                if f"{self.sets[0]}-{peer}" in values
            },
        }

    def _fits(self, values: Mapping[str, Any], length: str) -> bool:
        """Whether there are windows of a length of every speaker alone, in every set."""
        return all(
            {speakers[0] for speakers, _, _ in value["windows"].get(length, {}).get(SINGLE, [])}
            == {speaker for speaker, _, _ in value["clips"]}
            for value in values.values()
            if isinstance(value, dict)  # those of peers are for whole clips only
        )

    def _errors(self, runs: Sequence[Mapping[str, Any]], length: str, kind: str) -> dict[str, Any]:
        """The share of speakers that are missed: the mean, its interval, and that of each seed."""
        seeds = [_Windows.of([run["windows"][length][kind]]) for run in runs]
        return {
            "mean": float(np.mean([run.mean for run in seeds])),
            "interval": _mean_interval([run.interval(self.settings.draws) for run in seeds]),
            "seeds": [run.mean for run in seeds],
            "windows": len(seeds[0].errors),
        }

    def _means(self, values: Mapping[str, Any], row: str, length: str) -> list[_Windows]:
        """The windows of all sets and kinds together, for each seed."""
        return [
            _Windows.of(
                [
                    values[_part(name, row, seed)]["windows"][length][kind]
                    for name, kind in product(self.sets, (SINGLE, MIXED))
                ]
            )
            for seed in self.settings.seeds
        ]

    def _clips(self, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The share of whole clips of one speaker that are not recognised."""
        errors = [[100.0 * (true != found) for true, found, _ in run["clips"]] for run in runs]
        seeds = [float(np.mean(own)) for own in errors]
        names = [f"{true} {clip}" for run in runs for true, _, clip in run["clips"]]
        return {
            "mean": float(np.mean(seeds)),
            "interval": bootstrap(np.concatenate(errors), names, draws=self.settings.draws),
            "seeds": seeds,
            "count": len(errors[0]),
        }

    @staticmethod
    def _confusion(runs: Sequence[Mapping[str, Any]], speakers: int) -> list[list[int]]:
        """Clips of each speaker (row) that were taken for each speaker (column), all seeds."""
        counts = np.zeros((speakers, speakers), int)
        for run in runs:
            true, found, _ = zip(*run["clips"], strict=True)
            np.add.at(counts, (true, found), 1)
        matrix: list[list[int]] = counts.tolist()
        return matrix


@dataclass(frozen=True, eq=False)
class _Windows:
    """The errors of windows, in per cent, and the stretches of time that they are from.

    Errors of several kinds are weighted, so that their mean is the mean over kinds. Windows of the
    same place have the same clips, in all mixtures that a speaker is in; therefore they are drawn
    together.
    """

    errors: Array
    places: tuple[str, ...]

    @classmethod
    def of(cls, kinds: Sequence[Sequence[Any]]) -> _Windows:
        total = sum(map(len, kinds))
        errors, places = [], []
        for number, windows in enumerate(kinds):
            weight = 100 * total / (len(kinds) * len(windows))
            for speakers, decided, place in windows:
                errors.append(weight * len(set(speakers) - set(decided)) / len(speakers))
                # both kinds of a set, one after the other, have the same places
                places.append(f"{number // 2} {place}")
        return cls(np.array(errors), tuple(places))

    @property
    def mean(self) -> float:
        return float(self.errors.mean())

    def __sub__(self, other: _Windows) -> _Windows:
        return _Windows(self.errors - other.errors, self.places)

    def interval(self, draws: int) -> list[float]:
        return bootstrap(self.errors, self.places, draws=draws)


def _mean_interval(intervals: Sequence[Sequence[float]]) -> list[float]:
    """The mean bounds of the intervals of each seed.

    Seeds order the same clips differently; taking them for independent samples would give intervals
    that are too narrow.
    """
    bounds: list[float] = np.mean(intervals, axis=0).tolist()
    return bounds


def _part(name: str, row: str, seed: int) -> str:
    """The name of a part, which is that of a file."""
    return "-".join([name, *row.replace(",", "").split(), str(seed)])
