"""Online sparse encoders: the objective on a stream of patches whose texture changes.

The paper's figure: patches of three textures, one texture after the other; coordinate encoders of
four layers, trained online together with their dictionary, in comparison with exact codes and with
encoders that were trained offline on other patches of the same three pictures. `online_report`
writes the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import textures
from ..dictionary import learn
from ..encoders.choice import coordinate_schedule
from ..encoders.coordinate import CoordinateEncoder
from ..encoders.encoder import Encoder
from ..models import Lasso
from ..online import OnlineLearner
from ..progress import Callback
from ..regimes import Approximation, Regime, Unsupervised
from ..solvers.solve import solve
from ..training import fit
from .frame import Description, Experiment, Part, Settings

EXACT = "exact codes, online dictionary"
ONLINE = "online, unsupervised"
OFFLINE = "offline, unsupervised"
COPIED = "offline, approximation"
RECOMMENDED = "online, recommended encoder"
#: in the order of the paper, the lowest objective first
ORDER = (EXACT, ONLINE, OFFLINE, COPIED)


@dataclass(frozen=True)
class OnlineSettings(Settings):
    """The values of the paper; * marks those that it does not state."""

    block: int = 10_000  # patches of each texture
    patch: int = 8  # side of a patch
    atoms: int = 64
    lam: float = 1.0
    layers: int = 4  # of the coordinate encoders
    window: int = 1000  # samples in the window of online learning
    step: int = 100  # samples by which the window moves at a time
    offline: int = 6000  # other patches, of all textures together, for the offline encoders
    passes: int = 5  # over them, for the offline dictionary *
    training: int | None = None  # steps of the offline encoders, by default those of `fit` *
    updates: int = 10  # gradient steps of the online encoders for each position of the window *
    recommended: int = 7  # layers of the recommended encoder *


class Reproduction(Experiment):
    """Objective against sample number, three textures one after the other."""

    name = "online"
    settings: OnlineSettings

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        super().__init__(settings, data)
        self._drawn, self._first_model = cache(self._draw), cache(self._learn_first)

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> OnlineSettings:
        if quick:
            return OnlineSettings(
                seeds=(0,), block=2000, offline=1200, passes=3, training=300, updates=10
            )
        return OnlineSettings()

    @classmethod
    def download(cls, progress: Callback | None = None) -> Path:
        return textures.download(progress=progress)

    @cached_property
    def pictures(self) -> textures.Pictures:
        return textures.embedded() if self.data is None else textures.read_folder(self.data)

    @property
    def stamp(self) -> str:
        return " ".join(f"{float(picture.sum()):.8g}" for picture in self.pictures.pictures)

    def parts(self) -> Sequence[Part]:
        ours = partial(self._follow, recommended=True)
        kinds: tuple[tuple[str, str, Callable[[int], Any]], ...] = (
            ("offline", "training encoders offline", self._offline),
            ("online", "following the stream", self._follow),
            ("recommended", "following the stream with the recommended encoder", ours),
        )
        return [
            Part(f"{name}-{seed}", f"seed {seed}: {what}", partial(compute, seed))
            for seed in self.settings.seeds
            for name, what, compute in kinds
        ]

    @property
    def description(self) -> Description:
        from .online_report import OnlineDescription

        return OnlineDescription(self)

    def _draw(self, seed: int) -> tuple[Tensor, Tensor]:
        """The stream, and the patches that the offline encoders learn from."""
        settings, pictures = self.settings, self.pictures.pictures
        stream, others = [], []
        each = settings.offline // len(pictures)
        for number, picture in enumerate(pictures):
            start = 100 * seed + number
            x, used = textures.draw(picture, settings.block, settings.patch, seed=start)
            y, _ = textures.draw(picture, each, settings.patch, seed=start + 50, avoid=used)
            stream.append(x)
            others.append(y)
        mixed = torch.cat(others)
        generator = torch.Generator().manual_seed(seed)
        return torch.cat(stream), mixed[torch.randperm(len(mixed), generator=generator)]

    def _offline(self, seed: int) -> dict[str, list[float]]:
        settings = self.settings
        stream, others = self._drawn(seed)
        atoms = learn(others, settings.atoms, settings.lam, passes=settings.passes, seed=seed)
        model = Lasso(atoms, settings.lam)
        curves = {"optimum": self._chunks(solve(model, stream).objective)}
        regimes: dict[str, Regime] = {OFFLINE: Unsupervised(), COPIED: Approximation()}
        for name, regime in regimes.items():
            encoder = CoordinateEncoder(model, settings.layers)
            fit(encoder, others, regime=regime, steps=settings.training, seed=seed)
            curves[name] = self._chunks(_objective(encoder, stream))
        return curves

    def _learn_first(self, seed: int) -> Lasso:
        """The model on a dictionary of the first window, where online learning starts."""
        settings = self.settings
        window = self._drawn(seed)[0][: settings.window]
        atoms = learn(window, settings.atoms, settings.lam, passes=3, seed=seed)
        return Lasso(atoms, settings.lam)

    def _follow(self, seed: int, recommended: bool = False) -> dict[str, list[float]]:
        """Objectives and optima of an online encoder; chunks are measured, then learned from."""
        settings = self.settings
        stream, _ = self._drawn(seed)
        model = self._first_model(seed)
        if recommended:
            layers = settings.recommended
            widths = coordinate_schedule(model.code_size, layers)
            encoder = CoordinateEncoder(
                model, layers, coordinates=widths, step="model", momentum=True, final="partial"
            )
        else:
            encoder = CoordinateEncoder(model, settings.layers)
        learner = OnlineLearner(
            encoder, window=settings.window, chunk=settings.step, steps=settings.updates, seed=seed
        )
        curves: dict[str, list[float]] = {"objective": [], "optimum": []}
        for chunk in torch.split(stream, settings.step):
            curves["objective"].append(float(_objective(encoder, chunk).mean()))
            curves["optimum"].append(float(solve(encoder.model, chunk).objective.mean()))
            learner.partial_fit(chunk)
        curves["changes"] = [float(change) for change in learner.changes]
        return curves

    def _chunks(self, values: Tensor) -> list[float]:
        return [float(chunk.mean()) for chunk in torch.split(values, self.settings.step)]

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        def runs(part: str, key: str) -> list[list[float]]:
            return [values[f"{part}-{seed}"][key] for seed in self.settings.seeds]

        sources = {
            EXACT: ("online", "optimum"),
            ONLINE: ("online", "objective"),
            OFFLINE: ("offline", OFFLINE),
            COPIED: ("offline", COPIED),
            RECOMMENDED: ("recommended", "objective"),
        }
        curves = {name: runs(part, key) for name, (part, key) in sources.items()}
        optima = {name: runs(part, "optimum") for name, (part, _) in sources.items()}
        chunks = self.settings.block // self.settings.step
        blocks = []
        for number, texture in enumerate(self.pictures.names):
            # the second half of a block
            half = slice(number * chunks + chunks // 2, (number + 1) * chunks)
            value, best = (
                {name: [float(np.mean(run[half])) for run in each] for name, each in kind.items()}
                for kind in (curves, optima)
            )
            holds = [
                _comes_before(value[a], value[b], equal=a == EXACT) for a, b in pairwise(ORDER)
            ]
            blocks.append({"texture": texture, "objective": value, "optimum": best, "holds": holds})
        changes = {name: runs(sources[name][0], "changes") for name in (ONLINE, RECOMMENDED)}
        return {"curves": curves, "blocks": blocks, "changes": changes}


def _objective(encoder: Encoder, x: Tensor) -> Tensor:
    with torch.no_grad():
        return encoder.model.objective(x, encoder(x))


def _comes_before(lower: Sequence[float], higher: Sequence[float], equal: bool) -> bool:
    """Whether the mean over seeds is lower."""
    difference = float(np.mean(higher) - np.mean(lower))
    return difference >= 0 if equal else difference > 0
