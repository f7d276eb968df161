"""Whether a voice is known: how like it is to the speaker it is most like, and what is enough.

The likeness is the cosine of two means: that of the signals of the recording, and that of the
signals of the speaker. Needs only numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .envelope import Contrast, heard
from .streams import Array

#: the largest share of recordings of known voices that may be called unknown by default
REFUSED = 0.05
#: with fewer speakers, there is nobody to compare a speaker with who is left out
FEWEST = 3


@dataclass(frozen=True, eq=False)
class Likeness:
    """The directions of the speakers' voices, and thresholds for unknown ones.

    Attributes
    ----------
    means
        The mean of the signals of each speaker, of unit norm, shape (speakers, m).
    threshold, strict
        A voice with a lower likeness is unknown: by default, and by a strict decision.
    error
        The estimated share of known voices that the strict threshold refuses, and of unknown ones
        that it accepts; None if there are too few speakers to estimate it.
    """

    means: Array
    threshold: float
    strict: float
    error: float | None

    @classmethod
    def of(
        cls,
        features: Sequence[Sequence[Sequence[Array]]],
        contrast: Contrast,
        ridge: float,
        quiet: float,
    ) -> Likeness:
        """Learn from features that are divided into folds.

        Known voices are clips of a fold, compared with the others. Unknown voices are clips of a
        speaker, compared with the other speakers alone. The strict threshold is where both are
        mistaken equally often; the default one is lower if that refuses more than 5 % of the known.
        With two speakers nobody can be left out: the strict threshold refuses 5 % of the known
        voices, and the default one is twice as far from their median.

        Parameters
        ----------
        features
            For each speaker and each fold the features (frames, m) of some clips.
        contrast
            What the features are compared with in use.
        ridge, quiet
            As for `Contrast.of`.
        """
        speakers, folds = range(len(features)), range(len(features[0]))
        known, unknown = [], []
        for fold in folds:
            held = [own[fold] for own in features]
            rest = [[f for k in folds if k != fold for f in own[k]] for own in features]
            known += _best(rest, [clip for own in held for clip in own], ridge, quiet)
            if len(features) >= FEWEST:
                for out in speakers:
                    others = [own for k, own in enumerate(rest) if k != out]
                    unknown += _best(others, held[out], ridge, quiet)
        means = _directions([[f for fold in own for f in fold] for own in features], contrast)
        if not known:
            return cls(means, -1.0, -1.0, None)
        lenient = float(np.quantile(known, REFUSED))
        if not unknown:
            # nothing tells how unlike unknown voices are, so only outliers are unknown
            outlying = 2 * lenient - float(np.median(known))
            return cls(means, outlying, lenient, None)
        strict, error = equal_error(known, unknown)
        return cls(means, min(lenient, strict), strict, error)

    def __call__(self, signals: Array) -> Array:
        """Return the likeness of signals (frames, m) to each speaker, between -1 and 1."""
        mean = signals.mean(axis=0)
        cosines: Array = self.means @ mean / max(float(np.linalg.norm(mean)), 1e-12)
        return cosines


def equal_error(known: Sequence[float], unknown: Sequence[float]) -> tuple[float, float]:
    """Return the threshold at which known and unknown values are mistaken equally often.

    Known values below the threshold are mistaken, and unknown ones from it on; the second number
    is the larger one of both shares, which the threshold minimises.

    Examples
    --------
    >>> equal_error([0.5, 0.75, 1.0], [0.0, 0.25])
    (0.375, 0.0)
    """
    genuine, other = np.sort(known), np.sort(unknown)
    values = np.unique(np.concatenate([genuine, other]))
    between = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2])
    refused = np.searchsorted(genuine, between, "left") / len(genuine)
    accepted = 1 - np.searchsorted(other, between, "left") / len(other)
    worse = np.maximum(refused, accepted)
    best = int(np.lexsort((refused + accepted, worse))[0])
    return float(between[best]), float(worse[best])


def _best(
    enrolled: Sequence[Sequence[Array]], clips: Sequence[Array], ridge: float, quiet: float
) -> list[float]:
    """The likeness of each clip to the speaker it is most like."""
    if not clips or not all(enrolled):
        return []
    contrast = Contrast.of([np.concatenate(list(own)) for own in enrolled], ridge, quiet)
    likeness = Likeness(_directions(enrolled, contrast), 0.0, 0.0, None)
    spoken = [signals[heard(signals)] for signals in map(contrast, clips)]
    return [float(likeness(signals).max()) for signals in spoken if len(signals)]


def _directions(enrolled: Sequence[Sequence[Array]], contrast: Contrast) -> Array:
    """The mean of the signals of each speaker, of unit norm."""
    means = np.stack([contrast(np.concatenate(list(own))).mean(axis=0) for own in enrolled])
    directions: Array = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    return directions
