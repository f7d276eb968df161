"""`Speakers` on real voices: known, unknown, two at once, and in noise; the figures of the guide.

    python benchmarks/identification.py DIR [--sets emodb asterisk] [--noise real]

DIR has the folders speakers and speech_noise. A model is fitted to the train and val clips of a
set, by default with noise that is made, and tested on its test clips; noise is that of the role
test. Unknown voices are those of one speaker after another, to models of the others. About two
minutes a set on one core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import combinations
from pathlib import Path

import numpy as np
from contest import CONSOLE, machine, table, threads

from pursuit.audio import Recipe, Speakers
from pursuit.audio.envelope import Contrast, heard, mix
from pursuit.audio.likeness import Likeness
from pursuit.audio.noisy_speakers import mixed, stretch
from pursuit.audio.speaker_training import FOLDS, divided
from pursuit.audio.speech import prepared
from pursuit.audio.streams import Array
from pursuit.datasets import noise as noises
from pursuit.datasets import speakers as corpus

RATE = corpus.RATE
#: mixtures of each pair of speakers
MIXTURES = 12

Waves = dict[str, list[Array]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the folder with speakers and speech_noise")
    parser.add_argument("--sets", nargs="+", default=["emodb", "asterisk"])
    parser.add_argument("--noise", default="made", choices=["made", "real"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    sounds = {
        role: [noise.read() for noise in noises.noises(arguments.data, role)]
        for role in ("train", "test")
    }
    columns = []
    with threads(1):
        for name in arguments.sets:
            known = read(arguments.data, name, ("train", "val"))
            tested = read(arguments.data, name, ("test",))
            trained = sounds["train"] if arguments.noise == "real" else None
            model = Speakers.fit(known, RATE, noise=trained, seed=arguments.seed)
            columns.append(
                {
                    **of_the_fit(model),
                    **recognised(model, tested),
                    **unknown(known, tested, arguments.seed),
                    **pairs(model, tested),
                    **noisy(model, tested, sounds["test"], arguments.seed),
                }
            )
            CONSOLE.print(name, columns[-1])
    rows = [[what, *(f"{column[what]:.3g}" for column in columns)] for what in columns[0]]
    table(f"Speakers, {arguments.noise} noise", ["", *arguments.sets], rows)


def read(data: Path, name: str, roles: tuple[str, ...]) -> Waves:
    waves: Waves = {}
    for role in roles:
        for clip in corpus.read_folder(data, name, role):
            waves.setdefault(clip.speaker, []).append(clip.read())
    return waves


def of_the_fit(model: Speakers) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        model.save(path)
        kilobytes = path.stat().st_size / 1000
    training = model.info["training"]
    return {
        "kilobytes": kilobytes,
        "accuracy that fit estimates, %": 100 * training["accuracy"],
    }


def recognised(model: Speakers, tested: Waves) -> dict[str, float]:
    begin = time.process_time()
    found = [(name, model.identify(w, RATE)) for name, waves in tested.items() for w in waves]
    seconds = time.process_time() - begin
    duration = sum(len(wave) for waves in tested.values() for wave in waves) / RATE
    highest = [max(each.scores, key=lambda n: each.scores[n]) for _, each in found]
    return {
        "test clips": len(found),
        "highest score is right, %": percent(
            [who == name for who, (name, _) in zip(highest, found, strict=True)]
        ),
        "right and not called unknown, %": percent([e.speaker == name for name, e in found]),
        "known clips called unknown, %": percent([e.speaker is None for _, e in found]),
        "times real time": duration / seconds,
    }


def unknown(known: Waves, tested: Waves, seed: int) -> dict[str, float]:
    """Whether a voice is unknown depends on the likeness alone, which needs no training."""
    recipe = Recipe()
    envelope = recipe.envelope
    parts = {
        name: [
            [envelope(wave) for wave in part]
            for part in divided([prepared(w, RATE, RATE) for w in waves], FOLDS, RATE, seed)
        ]
        for name, waves in known.items()
    }
    refused: dict[str, list[bool]] = {"default": [], "strict": []}
    for out in known:
        others = [own for name, own in parts.items() if name != out]
        features = [np.concatenate([f for part in own for f in part]) for own in others]
        contrast = Contrast.of(features, recipe.ridge, recipe.quiet)
        likeness = Likeness.of(others, contrast, recipe.ridge, recipe.quiet)
        for wave in tested[out]:
            signals = contrast(envelope(prepared(wave, RATE, RATE)))
            value = float(likeness(signals[heard(signals)]).max())
            refused["default"].append(value < likeness.threshold)
            refused["strict"].append(value < likeness.strict)
    return {
        "unknown clips called unknown, %": percent(refused["default"]),
        "the same with strict, %": percent(refused["strict"]),
    }


def pairs(model: Speakers, tested: Waves) -> dict[str, float]:
    right = []
    for one, other in combinations(tested, 2):
        for waves in list(zip(tested[one], tested[other], strict=False))[:MIXTURES]:
            found = model.identify(mix(*waves), RATE, speakers=2)
            right.append(set(found.speakers) == {one, other})
    return {"mixtures of two": len(right), "both speakers are right, %": percent(right)}


def noisy(model: Speakers, tested: Waves, sounds: list[Array], seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    plain, robust, gains = [], [], []
    for name, waves in tested.items():
        for wave in waves:
            noise = stretch(sounds[int(rng.integers(len(sounds)))], len(wave), rng)
            speech, rest = mixed(wave, noise, 0.0)
            mixture = speech + rest
            plain.append(model.identify(mixture, RATE, threshold=-1.0).speaker == name)
            robust.append(model.identify(mixture, RATE, noisy=True).speaker == name)
            left = model.denoise(mixture, RATE) - speech
            gains.append(10 * np.log10(np.sum(rest**2) / np.sum(left**2)))
    return {
        "right at 0 dB, %": percent(plain),
        "right at 0 dB with noisy, %": percent(robust),
        "gain of denoise, dB": float(np.mean(gains)),
    }


def percent(values: list[bool]) -> float:
    return 100 * float(np.mean(values))


if __name__ == "__main__":
    main()
