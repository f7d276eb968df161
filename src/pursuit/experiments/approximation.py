"""Approximation error against depth: robust NMF encoders and the iterations that they replace.

The paper's figure on music separation: the optimality gap of trained encoders and of the truncated
proximal method against the number of layers, and the separation error of unsupervised and
supervised encoders in comparison with exact robust NMF. In addition, the three components of an
encoder's error: too few layers (approximation), too few frames (estimation), too few steps
(optimisation). `approximation_report` writes the report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import singing, spectrogram
from ..encoders.proximal import ProximalEncoder
from ..models import RobustNMF, SparseModel
from ..progress import Callback
from ..regimes import Supervised
from ..runtime.compiled import Compiled
from ..runtime.compiled import compile as compile_encoder
from ..solvers.plain import iterates
from ..solvers.solve import solve
from ..training import fit
from .frame import Description, Experiment, Part, Settings

PAPER, OURS = "the paper's encoder", "our encoder"
FORMS: dict[str, Callable[[RobustNMF, int], ProximalEncoder]] = {
    PAPER: lambda model, layers: ProximalEncoder(
        model, layers, step="free", momentum=False, form="gram"
    ),
    OURS: lambda model, layers: ProximalEncoder(model, layers),
}
REGIMES = ("unsupervised", "supervised")
SHORT = {PAPER: "paper", OURS: "ours"}


@dataclass(frozen=True)
class ApproximationSettings(Settings):
    """The values of the paper; * marks those that it does not state.

    The weights are ``lam = sqrt(2) sigma`` and ``lam_star = sqrt(2 max(m, joint)) sigma``.
    """

    seeds: tuple[int, ...] = (0,)
    train: int = 3000  # frames for training *
    test: int = 1000  # unseen frames for the results *
    bins: int = 257  # frequencies of the synthetic spectrogram; recordings have 513
    atoms: int = 25
    sigma: float = 0.1  # the noise level
    joint: int = 3000  # frames in the formula of lam_star, about half a minute of sound *
    depths: tuple[int, ...] = (1, 2, 3, 5, 7, 10, 20)
    training: int = 600  # training steps without targets *
    supervised: int = 300  # training steps with targets *
    batch: int = 64  # frames in a training step *
    layers: int = 7  # the depth at which the numbers of frames and steps are varied
    sizes: tuple[int, ...] = (30, 300)  # training frames, for the estimation error
    steps: tuple[int, ...] = (30, 100, 300)  # training steps, for the optimisation error
    iterations: int = 1000  # of the plain methods


class Reproduction(Experiment):
    """Gap and separation error against depth."""

    name = "approximation"
    settings: ApproximationSettings

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> ApproximationSettings:
        settings: dict[str, Any] = {}
        if data is not None:
            settings |= {
                "train": 20_000,
                "bins": 513,
                "sigma": 0.3,
                "joint": 4000,
                "training": 8000,
                "supervised": 1500,
                "sizes": (100, 1000),
                "steps": (100, 300, 1000, 3000),
            }
        if quick:
            settings |= {
                "train": 1000,
                "test": 300,
                "depths": (1, 3, 7),
                "training": 150,
                "supervised": 150,
                "sizes": (100,),
                "steps": (30,),
                "iterations": 400,
            }
        return ApproximationSettings(**settings)

    @classmethod
    def download(cls, progress: Callback | None = None) -> Path:
        return singing.download(progress=progress)

    @cached_property
    def frames(self) -> tuple[spectrogram.Spectrogram, spectrogram.Spectrogram]:
        train, test, bins = self.settings.train, self.settings.test, self.settings.bins
        if self.data is None:
            return spectrogram.synthetic(train, bins), spectrogram.synthetic(test, bins, seed=1)
        return singing.frames(self.data, "train", train), singing.frames(self.data, "test", test)

    @property
    def stamp(self) -> str:
        sums = (float(part.double().sum()) for half in self.frames for part in half)
        # the last digits depend on the number of threads
        return " ".join(f"{value:.8g}" for value in sums)

    @property
    def weights(self) -> tuple[float, float]:
        """lam and lam_star."""
        sigma, bins = self.settings.sigma, self.frames[0].mixture.shape[1]
        largest = max(bins, self.settings.joint)
        return math.sqrt(2) * sigma, math.sqrt(2 * largest) * sigma

    @cached_property
    def model(self) -> RobustNMF:
        lam, lam_star = self.weights
        train = self.frames[0].mixture
        # a subset of the frames suffices, because frames are independent of each other
        some = train[:: -(-len(train) // self.settings.joint)]
        atoms = spectrogram.learn_dictionary(some, self.settings.atoms, lam_star, lam)
        return RobustNMF(atoms, lam_star, lam)

    @cached_property
    def best(self) -> tuple[Tensor, Tensor]:
        """The optimum of every training and test frame."""
        train, test = (solve(self.model, part.mixture, tol=1e-8) for part in self.frames)
        return train.objective, test.objective

    @property
    def description(self) -> Description:
        from .approximation_report import ApproximationDescription

        return ApproximationDescription(self)

    def parts(self) -> Sequence[Part]:
        settings = self.settings
        work = [Part("reference", "exact codes, ISTA and FISTA", self._reference)]

        def add(name: str, what: str, form: str, depth: int, seed: int, **options: Any) -> None:
            compute = partial(self._trained, form, depth, seed, **options)
            work.append(Part(f"{name}-{seed}", f"{form}, {what}", compute))

        for seed in settings.seeds:
            for depth, form, regime in product(settings.depths, FORMS, REGIMES):
                name, what = f"depth-{SHORT[form]}-{regime}-{depth}", f"{depth} layers, {regime}"
                add(name, what, form, depth, seed, supervised=regime == "supervised")
            for form, size in product(FORMS, settings.sizes):
                name, what = f"size-{SHORT[form]}-{size}", f"{size} training frames"
                add(name, what, form, settings.layers, seed, frames=size)
            for form, steps in product(FORMS, settings.steps):
                name, what = f"steps-{SHORT[form]}-{steps}", f"{steps} steps"
                add(name, what, form, settings.layers, seed, steps=steps)
        return work

    def _reference(self) -> dict[str, Any]:
        test = self.frames[1]
        numbers: dict[str, Any] = {"optimum": float(self.best[1].mean())}
        begin = time.perf_counter()
        exact = solve(self.model, test.mixture)
        numbers["exact_us"] = 1e6 * (time.perf_counter() - begin) / len(test.mixture)
        numbers["exact"] = self._errors(self.model, exact.codes)
        for name in ("ista", "fista"):
            numbers[name] = {"gaps": [], "errors": []}
            steps = iterates(name, self.model, test.mixture)
            for codes in islice(steps, self.settings.iterations):
                numbers[name]["gaps"].append(self._gap(codes))
                numbers[name]["errors"].append(self._errors(self.model, codes))
        return numbers

    def _trained(
        self,
        form: str,
        depth: int,
        seed: int,
        supervised: bool = False,
        frames: int | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """The gap on training and unseen frames, separation error and time of a trained encoder."""
        settings, (train, test) = self.settings, self.frames
        best = self.best[0]
        if frames is not None:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(train.mixture), generator=generator)[:frames]
            best, train = best[order], spectrogram.Spectrogram(*(part[order] for part in train))
        encoder = FORMS[form](self.model, depth)
        steps = steps or (settings.supervised if supervised else settings.training)
        options: dict[str, Any] = {"steps": steps, "seed": seed}
        if supervised:
            targets = {"low_rank": train.low_rank, "sparse": train.sparse}
            options |= {"targets": targets, "regime": Supervised(), "dictionary": "gradient"}
        batch_size = min(settings.batch, len(train.mixture))
        fit(encoder, train.mixture, batch_size=batch_size, **options)
        with torch.no_grad():
            codes, known = encoder(test.mixture), encoder(train.mixture)
        numbers: dict[str, Any] = {"errors": self._errors(encoder.model, codes)}
        if not supervised:
            value = self.model.objective(train.mixture.double(), known.double())
            numbers["gap"] = self._gap(codes)
            numbers["gap_known"] = float((value - best).mean())
        if depth == settings.layers:
            numbers["us"] = _microseconds(encoder, test.mixture)
        return numbers

    def _gap(self, codes: Tensor) -> float:
        value = self.model.objective(self.frames[1].mixture.double(), codes.double())
        return float((value - self.best[1]).mean())

    def _errors(self, model: SparseModel, codes: Tensor) -> float:
        """``mean ||l - l*||^2 + ||o - o*||^2`` on the unseen frames."""
        test, parts = self.frames[1], model.split(codes)
        assert parts.low_rank is not None
        assert parts.sparse is not None
        wrong = (parts.low_rank - test.low_rank).square().sum(dim=1)
        wrong = wrong + (parts.sparse - test.sparse).square().sum(dim=1)
        return float(wrong.mean())

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        settings, reference = self.settings, values["reference"]

        def seeds(name: str, key: str) -> list[float]:
            return [values[f"{name}-{seed}"][key] for seed in settings.seeds]

        def gaps(name: str) -> dict[str, Any]:
            return {key: seeds(name, key) for key in ("gap", "gap_known")}

        depths: dict[str, list[dict[str, Any]]] = {}
        for form, depth in product(FORMS, settings.depths):
            name = f"depth-{SHORT[form]}-unsupervised-{depth}"
            row = {"layers": depth, **gaps(name), "error": seeds(name, "errors")}
            row["error_supervised"] = seeds(f"depth-{SHORT[form]}-supervised-{depth}", "errors")
            for method in ("ista", "fista"):
                gap = float(np.mean(row["gap"]))
                row[f"equals_{method}"] = _equivalent(reference[method]["gaps"], gap)
            if depth == settings.layers:
                row["us"] = float(np.median(seeds(name, "us")))
            depths.setdefault(form, []).append(row)
        tried = {
            kind: {
                form: [{kind: value, **gaps(f"{kind}-{SHORT[form]}-{value}")} for value in chosen]
                for form in FORMS
            }
            for kind, chosen in (("size", settings.sizes), ("steps", settings.steps))
        }
        return {
            "optimum": reference["optimum"],
            "weights": {"lam": self.weights[0], "lam_star": self.weights[1]},
            "exact": {"error": reference["exact"], "us": reference["exact_us"]},
            "iterations": {name: reference[name] for name in ("ista", "fista")},
            "depths": depths,
            **tried,
        }


def _equivalent(gaps: Sequence[float], gap: float) -> int | None:
    """The first iteration with at most this gap, or None."""
    return next((k for k, value in enumerate(gaps, 1) if value <= gap), None)


def _microseconds(encoder: ProximalEncoder, x: Tensor) -> float:
    compiled = compile_encoder(encoder, threads=1)
    assert isinstance(compiled, Compiled)
    rows = x.numpy()
    compiled(rows)
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        compiled(rows)
        seconds.append(time.perf_counter() - begin)
    return 1e6 * float(np.median(seconds)) / len(rows)
