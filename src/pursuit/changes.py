"""Detection of abrupt changes in a stream of samples.

Two quantities are watched, chunk by chunk: the objective, and the second moments of the directions
of the samples, which also change if the new data are coded equally well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .fields import arguments, entry

#: the number of chunks in recent means, and in the past means of levels
RECENT, PAST = 5, 50
#: the number of chunks after a change in which none is looked for: the objective falls quickly
YOUNG = 10
#: the objective has changed if its recent mean differs from its past mean by more than this number
#: of standard deviations, and by more than this fraction of the past mean
OBJECTIVE_DEVIATIONS, OBJECTIVE_CHANGE = 5.0, 0.05
#: the moments have changed if their deviation rises by more than this number of its standard
#: deviations (a product of two deviations has long tails), and by more than this fraction of the
#: squared norm of the past moments
MOMENTS_DEVIATIONS, MOMENTS_CHANGE = 10.0, 0.02
#: the number of chunks in the past mean of the moments: few, since a slow drift is not a change
MOMENTS_PAST = 20
#: an upper bound of the variance of objectives, so that all numbers stay finite
LARGEST_VARIANCE = 1e300
#: signals of more features than this are projected to as many random directions
DIRECTIONS = 64


@dataclass
class Level:
    """The level of a number since the last change, and how much it varies.

    `recent` and `mean` are means over about the last `RECENT` and `PAST` values. `variance` comes
    from the differences of neighbours, since a slow trend is not variation.
    """

    chunks: int = 0
    last: float = 0.0
    recent: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def has_changed(
        self, value: float, deviations: float, least: float, upwards: bool = False
    ) -> bool:
        """Add a value, and return whether the recent mean differs from the past mean.

        The difference must exceed both `deviations` standard deviations and `least`; with
        `upwards` it must be an increase. Values that are not finite are ignored.
        """
        if not math.isfinite(value):
            return False
        self.chunks += 1
        self.recent = running_mean(self.recent, value, min(RECENT, self.chunks))
        difference = self.recent - self.mean if upwards else abs(self.recent - self.mean)
        smallest = max(deviations * math.sqrt(self.variance / RECENT), least)
        if self.chunks > YOUNG and difference > smallest:
            self.chunks = 0
            return True
        self.mean = running_mean(self.mean, value, min(PAST, self.chunks))
        square = min((value - self.last) * (value - self.last) / 2, LARGEST_VARIANCE)
        if self.chunks > 1:
            self.variance = running_mean(self.variance, square, min(PAST, self.chunks - 1))
        self.last = value
        return False


class Moments:
    """Second moments of the directions of samples, over recent chunks and over a longer past.

    A chunk of n samples has the moments ``M = 1/n sum_i u_i u_i'`` with ``u = x / ||x||``: samples
    of any norm count equally, so a few large ones do not look like a change. Wide samples are
    replaced by random orthonormal projections, the same in every run.
    """

    def __init__(self, features: int) -> None:
        size = min(features, DIRECTIONS)
        self._projection: Tensor | None = None
        if features > size:
            generator = torch.Generator().manual_seed(0)
            random = torch.randn(features, size, generator=generator, dtype=torch.float64)
            self._projection = torch.linalg.qr(random)[0]
        self.chunks = 0
        self.recent = torch.zeros(size, size, dtype=torch.float64)
        self.past = torch.zeros(size, size, dtype=torch.float64)

    def deviation(self, x: Tensor) -> float | None:
        """Add a chunk, and return how far the moments are from their past mean.

        ``<M - past, recent - past>`` has a mean of about 0 on stationary data, because a chunk is
        independent of those before it, and of ``||M_new - M_old||^2`` after a change. None for the
        first chunks, in which recent and past are the same.
        """
        x = x.detach().cpu().double()
        x = x if self._projection is None else x @ self._projection
        u = x / x.norm(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
        moments = u.T @ u / len(u)
        value = float(((moments - self.past) * (self.recent - self.past)).sum())
        self.chunks += 1
        self.recent = torch.lerp(self.recent, moments, 1 / min(RECENT, self.chunks))
        self.past = torch.lerp(self.past, moments, 1 / min(MOMENTS_PAST, self.chunks))
        return value if self.chunks > RECENT + 1 else None

    @property
    def state(self) -> dict[str, Tensor]:
        """The means and the number of chunks, as tensors."""
        chunks = torch.tensor(self.chunks, dtype=torch.int64)
        return {"chunks": chunks, "recent": self.recent, "past": self.past}

    @state.setter
    def state(self, values: Mapping[str, Tensor]) -> None:
        self.chunks = int(values["chunks"])
        self.recent, self.past = values["recent"].clone(), values["past"].clone()


class ChangeDetector:
    """Detects changes of a stream: of its objective, or of the directions of its samples."""

    def __init__(self, features: int) -> None:
        self.objective = Level()
        self.moments = Moments(features)
        self.deviation = Level()

    @property
    def chunks(self) -> int:
        """The number of chunks since the last change."""
        return self.objective.chunks

    def has_changed(self, x: Tensor, objective: float) -> bool:
        """Add a chunk and its mean objective, and return whether the stream has changed."""
        least = OBJECTIVE_CHANGE * abs(self.objective.mean)
        changed = self.objective.has_changed(objective, OBJECTIVE_DEVIATIONS, least)
        least = MOMENTS_CHANGE * float(self.moments.past.square().sum())
        value = self.moments.deviation(x)
        if value is not None:
            changed |= self.deviation.has_changed(value, MOMENTS_DEVIATIONS, least, upwards=True)
        if changed:
            self.objective.chunks = self.deviation.chunks = self.moments.chunks = 0
        return changed

    @property
    def levels(self) -> dict[str, dict[str, Any]]:
        """The levels as plain data."""
        return {"objective": asdict(self.objective), "deviation": asdict(self.deviation)}

    @levels.setter
    def levels(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        self.objective = Level(**values["objective"])
        self.deviation = Level(**values["deviation"])

    @staticmethod
    def checked(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return levels from a file; raise a ValueError if they are invalid."""
        for name in ("objective", "deviation"):
            level = arguments(entry(values, name, dict), Level)
            entry(level, "chunks", int, least=0)
            entry(level, "variance", float, least=0)
            if not all(map(math.isfinite, level.values())):
                raise ValueError(f"the numbers of {name} must be finite")
        return {name: values[name] for name in ("objective", "deviation")}


def running_mean(mean: float, value: float, count: int) -> float:
    """Return the mean over about the last `count` values, of which `value` is the newest."""
    return value if count <= 1 or math.isnan(mean) else mean + (value - mean) / count
