"""Who speaks: a small encoder, Gaussians and large networks, by size, time and accuracy.

    python benchmarks/speakers.py --data DIR [--set emodb] [--seed 0] [--rounds 5]

DIR has the folders `speakers` and `speech_noise`. All sounds are at 8 kHz, the rate of the noise;
networks that need 16 kHz get them resampled. Speakers are enrolled with clips of the role train, in
an order that the seed draws; accuracies are those of the role test, and 1 / speakers by chance.
Every third clip is tested in noise too: the kinds of noise in turn, at a level relative to that of
the clip. Networks have rows if their packages are installed. Prints Markdown; a run takes nine
minutes on one core, half of them for ECAPA.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import numpy as np
import scipy.fft
import torch
from contest import CONSOLE, Contender, compete, machine, threads
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from pursuit.audio import Resampler
from pursuit.audio.speakers import Contrast, Envelope, energies, level, structured
from pursuit.datasets.download import read_table
from pursuit.datasets.speakers import RATE, Clip, read_folder
from pursuit.encoders.block_coordinate import BlockCoordinateEncoder
from pursuit.experiments import speaker_peers
from pursuit.experiments.speakers import SpeakersSettings
from pursuit.regimes import Approximation, Discriminative
from pursuit.report import Report
from pursuit.training import fit

Array = np.ndarray[Any, Any]
#: waves of each speaker, and a wave with the name of its speaker
Recordings = Mapping[str, Sequence[Array]]
Labelled = tuple[str, Array]

#: seconds of enrolment and of what is identified, and decibels of the speech over the noise
ENROLMENTS, LENGTHS, LEVELS = (2, 5, 10, 20), (0.5, 1, 2, 4), (0, -5)
#: seconds from one tested piece to the next, and of what is timed
APART, TIMED = 10, 10
#: one of this many clips is tested in noise
EVERY = 3


@dataclass(frozen=True)
class Identified:
    """The score of each speaker; the highest one decides."""

    scores: Mapping[str, float]

    @property
    def speaker(self) -> str:
        return max(self.scores, key=self.scores.__getitem__)


class Identifier(Protocol):
    """What is compared; `bytes` is the size of what it needs to identify."""

    @property
    def bytes(self) -> int: ...

    def fit(self, recordings: Recordings, rate: int) -> None: ...

    def identify(self, wave: Array, rate: int) -> Any: ...


# ---- what is compared ------------------------------------------------------------------------


class Encoder:
    """A HiLasso with a group for each speaker, and its encoder of two layers of block steps."""

    def __init__(self, seed: int) -> None:
        self.seed, self.settings = seed, SpeakersSettings()
        self.envelope = Envelope(width=self.settings.width, power=self.settings.power)

    @property
    def bytes(self) -> int:
        arrays = [*self.encoder.state_dict().values(), self.contrast.mean, self.contrast.transform]
        return sum(each.nbytes for each in arrays)

    def fit(self, recordings: Recordings, rate: int) -> None:
        settings, seed, self.names = self.settings, self.seed, list(recordings)
        waves = [[level(torch.from_numpy(wave)) for wave in own] for own in recordings.values()]
        features = [self.envelope(torch.cat(own)) for own in waves]
        self.contrast = Contrast.of(features, settings.ridge, settings.quiet)
        signals = [self.contrast(own) for own in features]
        model = structured(
            signals, settings.lam_group, settings.lam, atoms=settings.atoms,
            learning_lam=settings.learning_lam, passes=settings.passes, seed=seed,
        )  # fmt: skip
        self.encoder = BlockCoordinateEncoder(model, settings.layers)
        x = torch.cat(signals)
        active = torch.eye(len(signals), dtype=torch.bool).repeat_interleave(
            torch.tensor([len(own) for own in signals]), dim=0
        )
        heard = x.any(dim=1)
        x, active = x[heard], active[heard]
        regime = Approximation(tol=settings.tol)
        fit(self.encoder, x, regime=regime, steps=settings.approximation, seed=seed)
        regime = Discriminative(settings.margin)
        fit(self.encoder, x, active, regime=regime, steps=settings.discriminative, seed=seed)

    def identify(self, wave: Array, rate: int) -> Identified:
        x = self.contrast(self.envelope(level(torch.from_numpy(wave))))
        with torch.no_grad():
            scores = energies(self.encoder.model, self.encoder(x)).mean(0)
        return Identified(dict(zip(self.names, scores.tolist(), strict=True)))


class Gaussians:
    """A Gaussian with a full covariance for each speaker, on 16 cepstra of the frames."""

    cepstra, bands, quiet = 16, 32, 1e-3

    def __init__(self) -> None:
        self.envelope = Envelope(self.bands, width=RATE / Envelope.window, power=1.0)

    @property
    def bytes(self) -> int:
        """Means and halves of covariances, in single precision."""
        size = self.cepstra
        return 4 * len(self.model.classes_) * (size + size * (size + 1) // 2)

    def fit(self, recordings: Recordings, rate: int) -> None:
        frames = {
            name: np.concatenate([self._frames(wave) for wave in waves])
            for name, waves in recordings.items()
        }
        who = np.repeat(list(frames), list(map(len, frames.values())))
        equal = np.full(len(frames), 1 / len(frames))
        self.model = QuadraticDiscriminantAnalysis(priors=equal, reg_param=1e-3)
        self.model.fit(np.concatenate(list(frames.values())), who)

    def identify(self, wave: Array, rate: int) -> Identified:
        scores = self.model.decision_function(self._frames(wave)).mean(0)
        return Identified(dict(zip(self.model.classes_, scores.tolist(), strict=True)))

    def _frames(self, wave: Array) -> Array:
        """The cepstra but for the first, which is the level, of frames that are not quiet."""
        power = self.envelope(torch.from_numpy(wave)).numpy()
        power = power[power.sum(1) >= self.quiet * power.sum(1).max()]
        cepstra: Array = scipy.fft.dct(np.log(power + 1e-10 * power.max()), norm="ortho", axis=1)
        return cepstra[:, 1 : 1 + self.cepstra]


class Embeddings:
    """The speaker whose mean vector is closest to that of the wave."""

    def __init__(self, embed: speaker_peers.Embed, size: int) -> None:
        self.embed, self.size = embed, size

    @property
    def bytes(self) -> int:
        return self.size + sum(4 * each.size for each in self.profiles.values())

    def fit(self, recordings: Recordings, rate: int) -> None:
        self.profiles = {
            name: speaker_peers.profile(self.embed, [resampled(wave, rate) for wave in waves])
            for name, waves in recordings.items()
        }

    def identify(self, wave: Array, rate: int) -> Identified:
        vector = self.embed(resampled(wave, rate))
        return Identified(speaker_peers.cosines(vector, self.profiles))


def resampled(wave: Array, rate: int) -> Array:
    stream = Resampler(rate, speaker_peers.RATE)
    return np.concatenate([stream.push(wave), stream.flush()])


class Memory(dict[bytes, Array]):
    """The vectors of waves that a network has embedded."""

    def __init__(self, embed: speaker_peers.Embed) -> None:
        self.embed = embed

    def __call__(self, wave: Array) -> Array:
        key = hashlib.sha256(wave.tobytes()).digest()
        if key not in self:
            self[key] = self.embed(wave)
        return self[key]


# ---- sounds ----------------------------------------------------------------------------------


class Sounds:
    """The clips of a set of speakers, and noise."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.train = {
            who: [waves[k] for k in rng.permutation(len(waves))]
            for who, waves in read(folder, name, "train").items()
        }
        self.test = read(folder, name, "test")
        self.noise = read_noise(folder)

    def enrolment(self, seconds: float) -> dict[str, list[Array]]:
        """The first training clips of each speaker, together this long.

        What remains of the last one joins the clip before it if it is shorter than a second.
        """
        found = {}
        for who, waves in self.train.items():
            pieces: list[Array] = []
            left = round(seconds * RATE)
            for wave in waves:
                piece, left = wave[:left], max(0, left - len(wave))
                if pieces and len(piece) < RATE:
                    pieces[-1] = np.concatenate([pieces[-1], piece])
                else:
                    pieces.append(piece)
            found[who] = pieces
        return found

    def clips(self) -> list[Labelled]:
        return [(who, wave) for who, waves in self.test.items() for wave in waves]

    def pieces(self, seconds: float) -> list[Labelled]:
        """Pieces of the test clips one after another; all lengths begin at the same places."""
        found = []
        for who, waves in self.test.items():
            stream = np.concatenate(waves)
            last = len(stream) - round(max(LENGTHS) * RATE)
            for start in range(0, last + 1, APART * RATE):
                found.append((who, stream[start : start + round(seconds * RATE)]))
        return found

    def noisy(self, decibels: float) -> list[Labelled]:
        """Some test clips with noise, which is repeated where it is too short."""
        found = []
        for number, (who, wave) in enumerate(self.clips()[::EVERY]):
            noise = np.resize(self.noise[number % len(self.noise)], len(wave))
            gain = np.sqrt(np.mean(wave**2) / np.mean(noise**2)) * 10 ** (-decibels / 20)
            found.append((who, wave + gain.astype(np.float32) * noise))
        return found


def read(folder: Path, name: str, role: str) -> dict[str, list[Array]]:
    """The waves of each speaker."""
    waves: dict[str, list[Array]] = {}
    for clip in read_folder(folder, name, role):
        waves.setdefault(clip.speaker, []).append(clip.read(RATE))
    return waves


def read_noise(folder: Path) -> list[Array]:
    """The parts for tests of the recordings of ten seconds, one of each kind of noise."""
    table, found = folder / "speech_noise" / "noise_splits.csv", []
    for row in read_table(table, ("file", "role", "sample_begin", "sample_end")):
        if row["role"] == "test" and "aurora10s" in row["file"]:
            wave = Clip(table.parent / row["file"], "noise").read(RATE)
            found.append(wave[int(row["sample_begin"]) : int(row["sample_end"])])
    return found


# ---- the comparison --------------------------------------------------------------------------


@dataclass
class Row:
    """What was measured of one method; accuracies are formatted."""

    identifier: Identifier
    enrolling: float
    enrolments: list[str]
    lengths: list[str]
    noises: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--set", default="emodb", help="the set of speakers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    sounds = Sounds(arguments.data, arguments.set, arguments.seed)
    makers: dict[str, Callable[[], Identifier]] = {
        "pursuit": partial(Encoder, arguments.seed),
        "Gaussians": Gaussians,
    }
    memories = []
    for name, peer in speaker_peers.PEERS.items():
        if peer.installed:
            memories.append(Memory(peer.load()))
            makers[name] = partial(Embeddings, memories[-1], peer.bytes)
        else:
            CONSOLE.print(f"There is no row of {name}: {peer.sentence}.")
    wave = np.concatenate([wave for _, wave in sounds.clips()])[: TIMED * RATE]
    with threads(1):
        rows = {name: measured(name, make, sounds) for name, make in makers.items()}

        def identified(identifier: Identifier) -> Any:
            for memory in memories:
                memory.clear()
            return identifier.identify(wave, RATE)

        contenders = [
            Contender(name, partial(identified, row.identifier), TIMED)
            for name, row in rows.items()
        ]
        compete(contenders, arguments.rounds)
    CONSOLE.print(written(rows, contenders, sounds, arguments.set), soft_wrap=True, markup=False)


def measured(name: str, make: Callable[[], Identifier], sounds: Sounds) -> Row:
    """Enrol all speakers, with all clips and with less, and identify the test clips."""
    CONSOLE.print(f"{name} ...")
    identifier, clips = make(), sounds.clips()
    begin = time.perf_counter()
    identifier.fit(sounds.train, RATE)
    enrolling = time.perf_counter() - begin
    whole = accuracy(identifier, clips)
    enrolments = []
    for seconds in ENROLMENTS:
        other = make()
        other.fit(sounds.enrolment(seconds), RATE)
        enrolments.append(accuracy(other, clips))
    lengths = [accuracy(identifier, sounds.pieces(seconds)) for seconds in LENGTHS]
    noises = [accuracy(identifier, clips[::EVERY])]
    noises += [accuracy(identifier, sounds.noisy(decibels)) for decibels in LEVELS]
    return Row(identifier, enrolling, [*enrolments, whole], [*lengths, whole], noises)


def accuracy(identifier: Identifier, sounds: Sequence[Labelled]) -> str:
    right = [identifier.identify(wave, RATE).speaker == who for who, wave in sounds]
    return f"{np.mean(right):.3f}"


def written(
    rows: Mapping[str, Row], contenders: Sequence[Contender], sounds: Sounds, name: str
) -> str:
    """The tables in Markdown."""
    seconds = [sum(map(len, waves)) / RATE for waves in sounds.train.values()]
    clips, shorter = len(sounds.clips()), len(sounds.pieces(1))
    report = Report(f"Speakers of {name}")
    report.section("Size and time")
    report.table(
        ["", "kilobytes", "us per second of sound", "s for the enrolment"],
        [
            [
                contender.name,
                f"{row.identifier.bytes / 1000:.0f}",
                f"{contender.microseconds:.0f}",
                f"{row.enrolling:.1f}",
            ]
            for contender, row in zip(contenders, rows.values(), strict=True)
        ],
    )
    report.section(f"Accuracy of {clips} clips, by seconds of enrolment of each speaker")
    every = f"all ({min(seconds):.0f} to {max(seconds):.0f})"
    _table(report, [*map(str, ENROLMENTS), every], {n: row.enrolments for n, row in rows.items()})
    report.section(f"Accuracy of {shorter} pieces, by their seconds")
    columns = [*map(str, LENGTHS), f"the {clips} clips"]
    _table(report, columns, {n: row.lengths for n, row in rows.items()})
    report.section(f"Accuracy of {len(sounds.noisy(0))} clips in noise")
    columns = ["without", *(f"{decibels} dB" for decibels in LEVELS)]
    _table(report, columns, {n: row.noises for n, row in rows.items()})
    return report.markdown()


def _table(report: Report, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> None:
    report.table(["", *columns], [[name, *cells] for name, cells in rows.items()])


if __name__ == "__main__":
    main()
