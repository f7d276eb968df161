"""Training of speaker models: a dictionary with a group of atoms for each, and an encoder.

The encoder first approximates the exact codes of a HiLasso, then learns who is active.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..dictionary import learn
from ..encoders.encoder import Encoder
from ..models import HiLasso
from ..progress import Callback
from ..regimes import Approximation, Discriminative
from ..training import fit
from .speaker_recipe import Recipe
from .speaker_sounds import Sounds


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
