"""Online sparse encoders: the objective on a stream of patches whose texture changes.

The paper's figure: patches of three textures, one texture after the other; coordinate encoders of
four layers, trained online together with their dictionary, in comparison with exact codes and with
encoders that were trained offline on other patches of the same three pictures. `online_report`
writes the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
    """The values of the paper; those that it does not state are marked.

    Attributes
    ----------
    block
        Patches of each texture.
    patch, atoms, lam
        Side of a patch, number of atoms, weight of the Lasso.
    layers
        Layers of the coordinate encoders.
    window, step
        Samples in the window of online learning, and by how many the window moves at a time.
    offline
        Other patches, of all textures together, that the offline encoders learn from.
    passes
        Passes over them for their dictionary (not stated in the paper).
    training
        Training steps of the offline encoders; None for the default of `fit` (not stated).
    updates
        Gradient steps of the online encoders for each position of the window (not stated).
    recommended
        Layers of the recommended encoder (ours).
    """

    block: int = 10_000
    patch: int = 8
    atoms: int = 64
    lam: float = 1.0
    layers: int = 4
    window: int = 1000
    step: int = 100
    offline: int = 6000
    passes: int = 5
    training: int | None = None
    updates: int = 10
    recommended: int = 7


class Reproduction(Experiment):
    """Objective against sample number, three textures one after the other."""

    name = "online"
    settings: OnlineSettings

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        super().__init__(settings, data)
        self._streams: dict[int, tuple[Tensor, Tensor]] = {}
        self._models: dict[int, Lasso] = {}

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
        work = []
        for seed in self.settings.seeds:
            for name, what, compute in (
                ("offline", "training encoders offline", self._offline),
                ("online", "following the stream", self._follow),
                (
                    "recommended",
                    "following the stream with the recommended encoder",
                    partial(self._follow, recommended=True),
                ),
            ):
                work.append(Part(f"{name}-{seed}", f"seed {seed}: {what}", partial(compute, seed)))
        return work

    @property
    def description(self) -> Description:
        from .online_report import OnlineDescription

        return OnlineDescription(self)

    # ---- parts ------------------------------------------------------------------------

    def _drawn(self, seed: int) -> tuple[Tensor, Tensor]:
        """The stream, and the patches that the offline encoders learn from; drawn once per seed."""
        if seed not in self._streams:
            self._streams[seed] = self._draw(seed)
        return self._streams[seed]

    def _draw(self, seed: int) -> tuple[Tensor, Tensor]:
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

    def _first_model(self, seed: int) -> Lasso:
        """The model on a dictionary of the first window, where online learning starts."""
        if seed not in self._models:
            settings = self.settings
            window = self._drawn(seed)[0][: settings.window]
            atoms = learn(window, settings.atoms, settings.lam, passes=3, seed=seed)
            self._models[seed] = Lasso(atoms, settings.lam)
        return self._models[seed]

    def _follow(self, seed: int, recommended: bool = False) -> dict[str, list[float]]:
        """Objectives and optima of an online encoder; chunks are measured, then learned from."""
        settings = self.settings
        stream, _ = self._drawn(seed)
        model = self._first_model(seed)
        encoder = self._recommended(model) if recommended else CoordinateEncoder(
            model, settings.layers
        )  # fmt: skip
        learner = OnlineLearner(
            encoder, window=settings.window, chunk=settings.step, steps=settings.updates, seed=seed
        )
        curves: dict[str, list[float]] = {"objective": [], "optimum": []}
        for chunk in _cut(stream, settings.step):
            curves["objective"].append(float(_objective(encoder, chunk).mean()))
            curves["optimum"].append(float(solve(encoder.model, chunk).objective.mean()))
            learner.partial_fit(chunk)
        curves["changes"] = [float(change) for change in learner.changes]
        return curves

    def _recommended(self, model: Lasso) -> CoordinateEncoder:
        layers = self.settings.recommended
        widths = coordinate_schedule(model.code_size, layers)
        return CoordinateEncoder(
            model, layers, coordinates=widths, step="model", momentum=True, final="partial"
        )

    def _chunks(self, values: Tensor) -> list[float]:
        return [float(chunk.mean()) for chunk in _cut(values, self.settings.step)]

    # ---- result -----------------------------------------------------------------------

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        settings = self.settings
        curves: dict[str, list[list[float]]] = {}
        optima: dict[str, list[list[float]]] = {}
        for seed in settings.seeds:
            offline, online, ours = (
                values[f"{name}-{seed}"] for name in ("offline", "online", "recommended")
            )
            for name, curve, optimum in (
                (EXACT, online["optimum"], online["optimum"]),
                (ONLINE, online["objective"], online["optimum"]),
                (OFFLINE, offline[OFFLINE], offline["optimum"]),
                (COPIED, offline[COPIED], offline["optimum"]),
                (RECOMMENDED, ours["objective"], ours["optimum"]),
            ):
                curves.setdefault(name, []).append(curve)
                optima.setdefault(name, []).append(optimum)
        halves = {name: [self._halves(one) for one in runs] for name, runs in curves.items()}
        bests = {name: [self._halves(one) for one in runs] for name, runs in optima.items()}
        blocks = []
        for number, texture in enumerate(self.pictures.names):
            value = {name: [half[number] for half in runs] for name, runs in halves.items()}
            best = {name: [half[number] for half in runs] for name, runs in bests.items()}
            blocks.append(
                {
                    "texture": texture,
                    "objective": value,
                    "optimum": best,
                    "holds": [
                        _comes_before(value[a], value[b], equal=a == EXACT)
                        for a, b in pairwise(ORDER)
                    ],
                }
            )
        changes = {
            name: [values[f"{part}-{seed}"]["changes"] for seed in settings.seeds]
            for name, part in ((ONLINE, "online"), (RECOMMENDED, "recommended"))
        }
        return {"curves": curves, "blocks": blocks, "changes": changes}

    def _halves(self, curve: Sequence[float]) -> list[float]:
        """The mean over the second half of each block."""
        chunks = self.settings.block // self.settings.step
        starts = range(0, len(curve), chunks)
        return [float(np.mean(curve[start + chunks // 2 : start + chunks])) for start in starts]


def _cut(x: Tensor, size: int) -> list[Tensor]:
    return [x[start : start + size] for start in range(0, len(x), size)]


def _objective(encoder: Encoder, x: Tensor) -> Tensor:
    with torch.no_grad():
        return encoder.model.objective(x, encoder(x))


def _comes_before(lower: Sequence[float], higher: Sequence[float], equal: bool) -> bool:
    """Whether the mean over seeds is lower."""
    difference = float(np.mean(higher) - np.mean(lower))
    return difference >= 0 if equal else difference > 0
