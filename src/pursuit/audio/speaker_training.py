"""Training of speaker models: a dictionary with a group of atoms for each, and an encoder.

The encoder first approximates the exact codes of a HiLasso, then learns who is active. `enrol`
makes `Speakers` from recordings, and estimates their accuracy from recordings it holds out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..dictionary import learn
from ..encoders.block_coordinate import BlockCoordinateEncoder
from ..encoders.encoder import Encoder
from ..models import HiLasso
from ..progress import Callback, Progress
from ..regimes import Approximation, Discriminative
from ..training import fit
from .likeness import Likeness
from .made_noise import made_noise
from .noisy_speakers import NoisySpeakers
from .noisy_storage import compact, restored
from .speaker_recipe import NoiseRecipe, Recipe
from .speaker_sounds import Sounds
from .speakers import Speakers
from .speech import SHORTEST, prepared
from .streams import Array

#: the recordings of a speaker are divided into this many parts, each held out in turn
FOLDS = 3


def structured(
    signals: Sequence[Tensor],
    lam_group: float,
    lam: float = 0.05,
    *,
    atoms: int = 50,
    learning_lam: float = 0.2,
    passes: int = 3,
    seed: int = 0,
) -> HiLasso:
    """Learn a dictionary for each speaker, and join them in a HiLasso with a group for each.

    Parameters
    ----------
    signals
        Signals of each speaker, shape (frames, m); rows that are zero are left out.
    lam_group, lam
        The weights of groups and single coefficients in the HiLasso.
    atoms, learning_lam, passes
        For each dictionary: its atoms, the weight of the Lasso that it is learned with, and the
        passes over the signals.
    seed
        Seeds the dictionaries.
    """
    heard = [own[own.any(dim=1)] for own in signals]
    for number, own in enumerate(heard):
        if not len(own):
            raise ValueError(f"speaker {number} has no signals that are not zero")
    learned = [learn(own, atoms, learning_lam, passes=passes, seed=seed) for own in heard]
    groups = [list(range(k * atoms, (k + 1) * atoms)) for k in range(len(learned))]
    return HiLasso(torch.cat(learned), groups, lam_group, lam)


def learned_model(sounds: Sounds, recipe: Recipe, seed: int) -> HiLasso:
    """Return the HiLasso of the speakers of some sounds."""
    signals = [sound.signals for sound in sounds.single(seed)]
    return structured(
        signals, recipe.lam_group, recipe.lam, atoms=recipe.atoms,
        learning_lam=recipe.learning_lam, passes=recipe.passes, seed=seed,
    )  # fmt: skip


def approximate(
    encoder: Encoder, sounds: Sounds, recipe: Recipe, seed: int, callback: Callback | None = None
) -> None:
    """Train an encoder towards the exact codes of frames of one speaker and of two."""
    signals, _ = sounds.training(seed, recipe.training)
    regime = Approximation(tol=recipe.tol)
    fit(encoder, signals, regime=regime, steps=recipe.approximation, seed=seed, callback=callback)


def discriminate(
    encoder: Encoder, sounds: Sounds, recipe: Recipe, seed: int, callback: Callback | None = None
) -> None:
    """Train an encoder so that the groups of those who speak, and only those, are active."""
    signals, active = sounds.training(seed, recipe.training)
    regime = Discriminative(recipe.margin)
    fit(
        encoder, signals, active, regime=regime, steps=recipe.discriminative, seed=seed,
        callback=callback,
    )  # fmt: skip


def enrol(
    recordings: Mapping[str, Sequence[Any]],
    rate: int,
    *,
    noisy: bool,
    noise: Sequence[Any] | None,
    recipe: Recipe,
    noise_recipe: NoiseRecipe,
    seed: int,
    callback: Callback | None,
) -> Speakers:
    """Learn to recognise speakers; see `Speakers.fit`."""
    began = time.perf_counter()
    clips = _prepared(recordings, rate, recipe)
    every = [wave for own in clips.values() for wave in own]
    parts = [divided(own, FOLDS, recipe.envelope.rate, seed) for own in clips.values()]
    training = {
        "speakers": len(clips),
        "recordings": len(every),
        "duration": sum(map(len, every)) / recipe.envelope.rate,
        "seed": seed,
        **_held_out(list(clips), parts, recipe, seed, callback),
    }
    speakers = _enrolled(clips, parts, recipe, seed, _staged(callback, "learning"))
    if noisy:
        sounds = (
            made_noise(every, speakers.rate, seed)
            if noise is None
            else [_used(wave, rate, speakers.rate, f"noise {n}") for n, wave in enumerate(noise)]
        )
        staged = _staged(callback, "learning noise")
        speakers.noisy = _in_noise(clips, sounds, noise_recipe, seed, staged)
        training["noise"] = "made" if noise is None else f"{len(sounds)} recordings"
    training["unknown_error"] = speakers.likeness.error
    training["seconds"] = round(time.perf_counter() - began, 1)
    speakers.info = {"training": training, "recipe": asdict(recipe)}
    return speakers


def divided(waves: Sequence[Array], parts: int, rate: int, seed: int) -> list[list[Array]]:
    """Divide the recordings of a speaker into parts, in an order that the seed draws.

    Fewer recordings than parts are cut into pieces of equal length. If these would be too short,
    all recordings are in the last part, and the others are empty.
    """
    if len(waves) < parts:
        joined = np.concatenate(list(waves))
        if len(joined) < parts * SHORTEST * rate:
            return [[] for _ in range(parts - 1)] + [list(waves)]
        return [[piece] for piece in np.array_split(joined, parts)]
    order = np.random.default_rng(seed).permutation(len(waves))
    return [[waves[k] for k in order[part::parts]] for part in range(parts)]


def _prepared(
    recordings: Mapping[str, Sequence[Any]], rate: int, recipe: Recipe
) -> dict[str, list[Array]]:
    if len(recordings) < 2:
        raise ValueError(f"at least two speakers are needed, got {len(recordings)}")
    clips: dict[str, list[Array]] = {}
    for name, waves in recordings.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"names of speakers must be strings that are not empty, got {name!r}")
        clips[name] = []
        for number, wave in enumerate(waves):
            what = f"recording {number} of {name}"
            clips[name].append(_used(wave, rate, recipe.envelope.rate, what))
        if not clips[name]:
            raise ValueError(f"{name} has no recordings; give at least one")
    return clips


def _used(wave: Any, rate: int, model_rate: int, what: str) -> Array:
    """A recording as it is used; errors name it."""
    try:
        return prepared(wave, rate, model_rate)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what} cannot be used: {error}") from error


def _in_noise(
    clips: Mapping[str, Sequence[Array]],
    noise: Sequence[Array],
    recipe: NoiseRecipe,
    seed: int,
    callback: Callback | None,
) -> NoisySpeakers:
    """The model for noise, as it is stored."""
    found = NoisySpeakers.learn(clips, noise, atoms=recipe.atoms, layers=recipe.layers, seed=seed)
    for regime in ("supervised", "discriminative"):
        steps = getattr(recipe, regime)
        if steps:
            found.fit(clips, noise, regime=regime, steps=steps, seed=seed, callback=callback)
    programs = found.bank.programs()
    info = {"noise_atoms": found.noise_atoms, "program": programs[0].info["program"]}
    return restored(compact(programs), found.speakers, info, Path())


def _enrolled(
    clips: Mapping[str, Sequence[Array]],
    parts: Sequence[Sequence[Sequence[Array]]],
    recipe: Recipe,
    seed: int,
    callback: Callback | None,
) -> Speakers:
    """The model of recordings that are prepared; `parts` are those that find the thresholds."""
    if callback is not None:
        callback(Progress("dictionaries", 0, None))
    numbered = [{str(number): wave for number, wave in enumerate(own)} for own in clips.values()]
    sounds = Sounds(numbered, recipe)
    model = learned_model(sounds, recipe, seed)
    # of all forms that layers can have, this one takes the least memory
    encoder = BlockCoordinateEncoder(model, recipe.layers, form="residual")
    approximate(encoder, sounds, recipe, seed, callback)
    discriminate(encoder, sounds, recipe, seed, callback)
    envelope = recipe.envelope
    features = [[[envelope(wave) for wave in part] for part in own] for own in parts]
    likeness = Likeness.of(features, sounds.contrast, recipe.ridge, recipe.quiet)
    program = encoder.program()
    atoms = program.layers[0].atoms
    assert atoms is not None
    # nothing is decoded, so the atoms that the layers have learned are enough
    program = replace(program, dictionary=atoms)
    return Speakers(list(clips), envelope, sounds.contrast, program, likeness, None, {})


def _held_out(
    names: Sequence[str],
    parts: Sequence[Sequence[Sequence[Array]]],
    recipe: Recipe,
    seed: int,
    callback: Callback | None,
) -> dict[str, Any]:
    """The accuracy on each part of the recordings of a model of the others."""
    right: list[bool] = []
    samples = 0
    for fold in range(FOLDS):
        held = [(name, w) for name, own in zip(names, parts, strict=True) for w in own[fold]]
        rest = [[part for k, part in enumerate(own) if k != fold] for own in parts]
        clips = {n: [w for part in own for w in part] for n, own in zip(names, rest, strict=True)}
        if not held or not all(clips.values()):
            continue
        stage = f"estimating the accuracy, {fold + 1} of {FOLDS}"
        model = _enrolled(clips, rest, recipe, seed, _staged(callback, stage))
        found = [model.identify(wave, model.rate, threshold=-1.0) for _, wave in held]
        right += [each.speaker == name for each, (name, _) in zip(found, held, strict=True)]
        samples += sum(len(wave) for _, wave in held)
    return {
        "accuracy": float(np.mean(right)) if right else None,
        "held_out": len(right),
        "held_out_seconds": samples / recipe.envelope.rate,
    }


def _staged(callback: Callback | None, stage: str) -> Callback | None:
    """A callback whose stages begin with what they are for."""
    if callback is None:
        return None

    def staged(now: Progress) -> object:
        return callback(replace(now, stage=f"{stage}: {now.stage}"))

    return staged
