"""Who speaks: a small encoder, Gaussians and large networks, by size, time and accuracy.

    python benchmarks/speakers.py --data DIR [--set emodb] [--tables size length noise enrolment]
        [--rows pursuit Gaussians Resemblyzer ECAPA] [--seed 0] [--rounds 5]

DIR has the folders `speakers` and `speech_noise`. All sounds are at 8 kHz, the rate of the noise;
networks that need 16 kHz get them resampled. Speakers are enrolled with clips of the role train, in
an order that the seed draws; accuracies are those of the role test, and 1 / speakers by chance.
Every third clip is tested in noise too: the kinds of noise in turn, at a level relative to that of
the clip. Networks have rows if their packages are installed. Prints Markdown. Most of the time goes
to ECAPA and to fitting the encoder, which the table `enrolment` does four times; it is left out
unless it is named. Fewer tables and rows make shorter runs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is imported

import numpy as np
import scipy.fft
from contest import CONSOLE, Contender, compete, machine, threads
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from pursuit.audio import Speakers
from pursuit.audio.envelope import Envelope, level
from pursuit.datasets.noise import noises
from pursuit.datasets.speakers import RATE, read_folder
from pursuit.experiments import speaker_peers
from pursuit.experiments.speaker_peers import cosines, profile, resampled
from pursuit.report import Report

Array = np.ndarray[Any, Any]
#: waves of each speaker, and a wave with the name of its speaker
Recordings = Mapping[str, Sequence[Array]]
Labelled = tuple[str, Array]

#: the rows of this package
PURSUIT, NOISY = "pursuit", "pursuit, noisy"
#: seconds of enrolment and of what is identified, and decibels of the speech over the noise
ENROLMENTS, LENGTHS, LEVELS = (2, 5, 20), (0.5, 1, 2, 4), (0, -5)
#: seconds from one tested piece to the next, and of what is timed
APART, TIMED = 10, 10
#: one of this many clips is tested in noise
EVERY = 3


class Identifier(Protocol):
    """What is compared; `bytes` is the size of what it needs to identify."""

    @property
    def bytes(self) -> int: ...

    def fit(self, recordings: Recordings, rate: int) -> None: ...

    def identify(self, wave: Array, rate: int) -> str | None:
        """The speaker; None if no speech is heard."""


# ---- what is compared ------------------------------------------------------------------------


class Encoder:
    """`Speakers`: with encoders of a HiLasso, or with those for noise, trained on other noise."""

    def __init__(self, seed: int, noise: Sequence[Array] | None = None) -> None:
        self.seed, self.noise = seed, noise

    @property
    def bytes(self) -> int:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "speakers.safetensors"
            self.speakers.save(path)
            return path.stat().st_size

    def fit(self, recordings: Recordings, rate: int) -> None:
        noisy = self.noise is not None
        self.speakers = Speakers.fit(
            recordings, rate, noisy=noisy, noise=self.noise, seed=self.seed
        )

    def identify(self, wave: Array, rate: int) -> str | None:
        noisy = self.noise is not None
        try:
            return self.speakers.identify(wave, rate, noisy=noisy, threshold=-1.0).speaker
        except ValueError as error:
            if "no speech is heard" not in str(error):
                raise
            return None


class Gaussians:
    """A Gaussian with a full covariance for each speaker, by scikit-learn.

    On 16 cepstra, without the level, of the frames that are not quiet.
    """

    cepstra, bands, quiet = 16, 32, 1e-3

    def __init__(self) -> None:
        self.envelope = Envelope(self.bands, width=RATE / Envelope.window, power=1.0)

    @property
    def bytes(self) -> int:
        """Means and halves of covariances, in single precision."""
        return 4 * len(self.model.classes_) * self.cepstra * (self.cepstra + 3) // 2

    def fit(self, recordings: Recordings, rate: int) -> None:
        frames = {
            name: np.concatenate([self._frames(wave) for wave in waves])
            for name, waves in recordings.items()
        }
        names = np.repeat(list(frames), list(map(len, frames.values())))
        equal = np.full(len(frames), 1 / len(frames))
        self.model = QuadraticDiscriminantAnalysis(priors=equal, reg_param=1e-3)
        self.model.fit(np.concatenate(list(frames.values())), names)

    def identify(self, wave: Array, rate: int) -> str:
        scores = self.model.decision_function(self._frames(wave)).sum(0)
        return str(self.model.classes_[scores.argmax()])

    def _frames(self, wave: Array) -> Array:
        powers = self.envelope(level(wave))
        loud = powers.mean(1) > self.quiet * powers.mean()
        return scipy.fft.dct(np.log(powers[loud] + 1e-6), norm="ortho")[:, 1 : self.cepstra + 1]


class Embeddings:
    """The speaker whose mean vector is closest to that of the wave."""

    def __init__(self, embed: speaker_peers.Embed, size: int) -> None:
        self.embed, self.size = embed, size

    @property
    def bytes(self) -> int:
        return self.size + sum(4 * each.size for each in self.profiles.values())

    def fit(self, recordings: Recordings, rate: int) -> None:
        self.profiles = {
            name: profile(self.embed, [resampled(wave, rate) for wave in waves])
            for name, waves in recordings.items()
        }

    def identify(self, wave: Array, rate: int) -> str:
        scores = cosines(self.embed(resampled(wave, rate)), self.profiles)
        return max(scores, key=scores.__getitem__)


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
        self.noise = [noise.read() for noise in noises(folder, "test")]
        self.training_noise = [noise.read() for noise in noises(folder, "train")]

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


# ---- the comparison --------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--set", default="emodb", help="the set of speakers")
    names = ("size", "length", "noise", "enrolment")
    parser.add_argument("--tables", nargs="+", choices=names, default=names[:3])
    rows = (PURSUIT, NOISY, "Gaussians", *speaker_peers.PEERS)
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    sounds = Sounds(arguments.data, arguments.set, arguments.seed)
    makers, memories = _makers(arguments.rows, arguments.seed, sounds.training_noise)
    report = Report(f"Speakers of {arguments.set}")
    with threads(1):
        fitted, took = {}, {}
        for name, make in makers.items():
            begin = time.perf_counter()
            fitted[name] = _fitted(make, sounds.train)
            took[name] = time.perf_counter() - begin
            CONSOLE.print(f"{name} is fitted")
        if "length" in arguments.tables:
            report.section(f"Accuracy of {len(sounds.pieces(1))} pieces, by their seconds")
            tested = {f"{each} s": sounds.pieces(each) for each in LENGTHS}
            _accuracies(report, fitted, {**tested, "whole clips": sounds.clips()})
        if "noise" in arguments.tables:
            report.section(f"Accuracy of {len(sounds.noisy(0))} clips in noise")
            tested = {f"{each} dB": sounds.noisy(each) for each in LEVELS}
            _accuracies(report, fitted, {"without": sounds.clips()[::EVERY], **tested})
        if "enrolment" in arguments.tables:
            _enrolments(report, makers, fitted, sounds)
        if "size" in arguments.tables:
            _sizes(report, fitted, took, memories, sounds, arguments.rounds)
    CONSOLE.print(report.markdown(), soft_wrap=True, markup=False)


def _makers(
    rows: Sequence[str], seed: int, noise: Sequence[Array]
) -> tuple[dict[str, Callable[[], Identifier]], list[Memory]]:
    """What makes the identifiers of each row, and the memories of the networks among them."""
    makers: dict[str, Callable[[], Identifier]] = {
        PURSUIT: partial(Encoder, seed),
        NOISY: partial(Encoder, seed, noise),
        "Gaussians": Gaussians,
    }
    memories = []
    for name, peer in speaker_peers.PEERS.items():
        if name in rows and peer.installed:
            memories.append(Memory(peer.load()))
            makers[name] = partial(Embeddings, memories[-1], peer.bytes)
        elif name in rows:
            CONSOLE.print(f"There is no row of {name}: {peer.sentence}.")
    return {name: make for name, make in makers.items() if name in rows}, memories


def _fitted(make: Callable[[], Identifier], recordings: Recordings) -> Identifier:
    identifier = make()
    identifier.fit(recordings, RATE)
    return identifier


def _accuracies(
    report: Report, fitted: Mapping[str, Identifier], tested: Mapping[str, Sequence[Labelled]]
) -> None:
    """A table of all identifiers and sounds."""
    rows = []
    for name, identifier in fitted.items():
        rows.append([name, *(_accuracy(identifier, sounds) for sounds in tested.values())])
        CONSOLE.print(*rows[-1])
    report.table(["", *tested], rows)


def _accuracy(identifier: Identifier, sounds: Sequence[Labelled]) -> str:
    right = [identifier.identify(wave, RATE) == who for who, wave in sounds]
    return f"{np.mean(right):.3f}"


def _enrolments(
    report: Report,
    makers: Mapping[str, Callable[[], Identifier]],
    fitted: Mapping[str, Identifier],
    sounds: Sounds,
) -> None:
    clips, rows = sounds.clips(), []
    for name, make in makers.items():
        each = [_fitted(make, sounds.enrolment(seconds)) for seconds in ENROLMENTS]
        rows.append([name, *(_accuracy(own, clips) for own in (*each, fitted[name]))])
        CONSOLE.print(*rows[-1])
    seconds = [sum(map(len, waves)) / RATE for waves in sounds.train.values()]
    report.section(f"Accuracy of {len(clips)} clips, by seconds of enrolment of each speaker")
    every = f"all ({min(seconds):.0f} to {max(seconds):.0f} s)"
    report.table(["", *(f"{each} s" for each in ENROLMENTS), every], rows)


def _sizes(
    report: Report,
    fitted: Mapping[str, Identifier],
    took: Mapping[str, float],
    memories: Sequence[Memory],
    sounds: Sounds,
    rounds: int,
) -> None:
    wave = np.concatenate([wave for _, wave in sounds.clips()])[: TIMED * RATE]

    def identified(identifier: Identifier) -> str | None:
        for memory in memories:
            memory.clear()
        return identifier.identify(wave, RATE)

    contenders = [
        Contender(name, partial(identified, identifier), TIMED)
        for name, identifier in fitted.items()
    ]
    compete(contenders, rounds)
    rows = [
        [
            each.name,
            f"{fitted[each.name].bytes / 1000:.0f}",
            f"{each.microseconds:.0f}",
            f"{took[each.name]:.1f}",
        ]
        for each in contenders
    ]
    report.section("Size, and time on one thread")
    report.table(["", "kilobytes", "us per second of sound", "s to enrol all"], rows)


if __name__ == "__main__":
    main()
