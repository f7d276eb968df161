"""How the model of a set of speakers is learned: one place for all settings.

`Speakers.fit` and the experiment `speakers` use the same ones. Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .envelope import Envelope


@dataclass(frozen=True)
class Recipe:
    """The settings of features, dictionaries and training; * marks those the paper does not state.

    Attributes
    ----------
    width, power
        Of the `Envelope` *: the smallest half-width of a band in hertz, and the exponent.
    ridge, quiet
        Of the `Contrast` *: the ridge of the whitening, and the norm below which a frame is silent.
    atoms, learning_lam, passes
        Of each speaker's dictionary: its atoms, the weight of the Lasso that it is learned with,
        and the passes over the frames *.
    lam_group, lam
        The weights of groups * and of single coefficients in the HiLasso.
    layers
        The layers of the encoder.
    training
        The frames that the encoder is trained on *.
    approximation, discriminative
        The training steps towards the exact codes, and then with labels of who speaks *.
    margin
        Of the discriminative loss, relative *.
    tol
        The relative gap of the exact codes *.
    """

    width: float = 300.0
    power: float = 0.15
    ridge: float = 0.03
    quiet: float = 0.6
    atoms: int = 50
    learning_lam: float = 0.2
    passes: int = 5
    lam_group: float = 0.3
    lam: float = 0.05
    layers: int = 2
    training: int = 12_000
    approximation: int = 200
    discriminative: int = 300
    margin: float = 0.5
    tol: float = 1e-4

    def shortened(self, factor: float) -> Recipe:
        """Return the recipe with the numbers of training steps multiplied by a factor."""
        return replace(
            self,
            approximation=max(1, round(factor * self.approximation)),
            discriminative=max(1, round(factor * self.discriminative)),
        )

    @property
    def envelope(self) -> Envelope:
        """The features of a frame before they are compared with those of other speakers."""
        return Envelope(width=self.width, power=self.power)


@dataclass(frozen=True)
class NoiseRecipe:
    """The settings of the model of speakers in noise, `NoisySpeakers`.

    Attributes
    ----------
    atoms
        Of each dictionary; 24 keep the file of ten speakers below a megabyte.
    layers
        The layers of the encoders.
    supervised, discriminative
        The training steps to separate speech and noise, and then to tell speakers apart.
    """

    atoms: int = 24
    layers: int = 10
    supervised: int = 100
    discriminative: int = 400

    def shortened(self, factor: float) -> NoiseRecipe:
        """Return the recipe with the numbers of training steps multiplied by a factor."""
        return replace(
            self,
            supervised=max(1, round(factor * self.supervised)),
            discriminative=max(1, round(factor * self.discriminative)),
        )
