"""Approximation error against depth: robust NMF encoders beside the iterations they replace.

The paper's figure on music separation: the optimality gap of trained encoders and of the truncated
proximal method against the number of layers, and the separation error of unsupervised and
supervised encoders beside that of exact robust NMF. Beyond it, the three parts of an encoder's
error: too few layers (approximation), too few frames (estimation), too few steps (optimisation).
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

from .. import plots
from ..datasets import singing, spectrogram
from ..datasets.download import Progress
from ..encoders.proximal import ProximalEncoder
from ..models import RobustNMF, SparseModel
from ..regimes import Supervised
from ..report import Report
from ..runtime.compiled import Compiled
from ..runtime.compiled import compile as compile_encoder
from ..solvers.plain import iterates
from ..solvers.solve import solve
from ..training import fit
from .frame import Experiment, Part, Settings

__all__ = ["ApproximationSettings", "Reproduction"]

PAPER, OURS = "the paper's encoder", "our encoder"
ISTA, FISTA, EXACT = "ISTA (untrained)", "FISTA", "exact robust NMF"
FORMS: dict[str, Callable[[RobustNMF, int], ProximalEncoder]] = {
    PAPER: lambda model, layers: ProximalEncoder(
        model, layers, step="free", momentum=False, structure="dense"
    ),
    OURS: lambda model, layers: ProximalEncoder(model, layers),
}
REGIMES = ("unsupervised", "supervised")
SHORT = {PAPER: "paper", OURS: "ours"}
#: the paper's claim: so many iterations reach what an encoder of seven layers has
CLAIMED_LAYERS, CLAIMED_ITERATIONS = 7, 70


@dataclass(frozen=True)
class ApproximationSettings(Settings):
    """The paper's values where it gives them; what it leaves open is marked.

    Attributes
    ----------
    train, test
        Frames to learn from, and unseen ones to report on (not given in the paper).
    bins
        Frequencies of the synthetic spectrogram; recordings have 513.
    atoms
        q.
    sigma
        The noise that the weights are derived from: ``lam = sqrt(2) sigma`` and
        ``lam_star = sqrt(2 max(m, joint)) sigma``.
    joint
        The number of frames for which that holds, about half a minute of sound (not given).
    depths
        Numbers of layers.
    training, supervised, batch
        Training steps without targets and with them, and frames in each (not given).
    layers
        The depth at which sizes and steps are tried.
    sizes, steps
        Training frames for the estimation error, training steps for the optimisation error.
    iterations
        The most iterations of the plain methods.
    """

    seeds: tuple[int, ...] = (0,)
    train: int = 3000
    test: int = 1000
    bins: int = 257
    atoms: int = 25
    sigma: float = 0.1
    joint: int = 3000
    depths: tuple[int, ...] = (1, 2, 3, 5, 7, 10, 20)
    training: int = 600
    supervised: int = 300
    batch: int = 64
    layers: int = 7
    sizes: tuple[int, ...] = (30, 300)
    steps: tuple[int, ...] = (30, 100, 300)
    iterations: int = 1000


class Reproduction(Experiment):
    """Gap and separation error against depth."""

    name = "approximation"
    title = "Approximation error of robust NMF encoders against depth"
    settings: ApproximationSettings

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> ApproximationSettings:
        settings: dict[str, Any] = {}
        if data is not None:
            settings |= {
                "train": 20_000, "bins": 513, "sigma": 0.3, "joint": 4000,
                "training": 8000, "supervised": 1500,
                "sizes": (100, 1000), "steps": (100, 300, 1000, 3000),
            }  # fmt: skip
        if quick:
            settings |= {
                "train": 1000, "test": 300, "depths": (1, 3, 7), "training": 150,
                "supervised": 150, "sizes": (100,), "steps": (30,), "iterations": 400,
            }  # fmt: skip
        return ApproximationSettings(**settings)

    @classmethod
    def download(cls, progress: Progress | None = None) -> Path:
        return singing.download(progress=progress)

    @property
    def source(self) -> str:
        settings = self.settings
        if self.data is None:
            return (
                f"a synthetic spectrogram of {settings.bins} bins, {settings.train} frames to "
                f"learn from and {settings.test} of another seed to report on; the tones of the "
                "low-rank part are the same in both"
            )
        return (
            f"MIR-1K (`{self.data.name}`), {settings.train} frames of the training singers drawn "
            f"at random and {settings.test} of the test singers, who do not sing in the former; "
            "mixture = accompaniment + voice, STFT with a Hann window of 1024 samples and a hop "
            "of 256, square root of the magnitudes, divided by the standard deviation of the "
            "training mixtures"
        )

    @cached_property
    def frames(self) -> tuple[spectrogram.Spectrogram, spectrogram.Spectrogram]:
        settings = self.settings
        if self.data is None:
            train = spectrogram.synthetic(settings.train, settings.bins, seed=0)
            return train, spectrogram.synthetic(settings.test, settings.bins, seed=1)
        return (
            singing.frames(self.data, "train", settings.train),
            singing.frames(self.data, "test", settings.test),
        )

    @property
    def stamp(self) -> str:
        sums = (float(part.double().sum()) for half in self.frames for part in half)
        return " ".join(f"{value:.8g}" for value in sums)  # the last digits vary with threads

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
        # frames are independent of each other: some of them have the dictionary of all
        some = train[:: -(-len(train) // self.settings.joint)]
        atoms = spectrogram.learn_dictionary(some, self.settings.atoms, lam_star, lam)
        return RobustNMF(atoms, lam_star, lam)

    @cached_property
    def best(self) -> tuple[Tensor, Tensor]:
        """The optimum of every training and test frame."""
        train, test = self.frames
        return (
            solve(self.model, train.mixture, tol=1e-8).objective,
            solve(self.model, test.mixture, tol=1e-8).objective,
        )

    # ---- what is computed -------------------------------------------------------------

    def parts(self) -> Sequence[Part]:
        settings, train = self.settings, self._trained
        work = [Part("reference", "exact codes, ISTA and FISTA", self._reference)]
        for seed in settings.seeds:
            for depth, form, regime in product(settings.depths, FORMS, REGIMES):
                name = f"depth-{SHORT[form]}-{regime}-{depth}-{seed}"
                what = f"{form}, {depth} layers, {regime}"
                run = partial(train, form, depth, seed, supervised=regime == "supervised")
                work.append(Part(name, what, run))
            for form, size in product(FORMS, settings.sizes):
                name, what = f"size-{SHORT[form]}-{size}-{seed}", f"{form}, {size} training frames"
                run = partial(train, form, settings.layers, seed, frames=size)
                work.append(Part(name, what, run))
            for form, steps in product(FORMS, settings.steps):
                name, what = f"steps-{SHORT[form]}-{steps}-{seed}", f"{form}, {steps} steps"
                run = partial(train, form, settings.layers, seed, steps=steps)
                work.append(Part(name, what, run))
        return work

    def _reference(self) -> dict[str, Any]:
        test = self.frames[1]
        found: dict[str, Any] = {"optimum": float(self.best[1].mean())}
        begin = time.perf_counter()
        exact = solve(self.model, test.mixture)
        found["exact_us"] = 1e6 * (time.perf_counter() - begin) / len(test.mixture)
        found["exact"] = self._errors(self.model, exact.codes)
        for name in ("ista", "fista"):
            gaps, errors = [], []
            runs = islice(iterates(name, self.model, test.mixture), self.settings.iterations)
            for codes in runs:
                gaps.append(self._gap(codes))
                errors.append(self._errors(self.model, codes))
            found[name] = {"gaps": gaps, "errors": errors}
        return found

    def _trained(
        self,
        form: str,
        depth: int,
        seed: int,
        supervised: bool = False,
        frames: int | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        """An encoder's gap on training and unseen frames, its separation errors and its time."""
        settings, (train, test) = self.settings, self.frames
        best = self.best[0]
        if frames is not None:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(len(train.mixture), generator=generator)[:frames]
            best, train = best[order], spectrogram.Spectrogram(*(part[order] for part in train))
        encoder = FORMS[form](self.model, depth)
        options: dict[str, Any] = {}
        if supervised:
            options = {
                "targets": {"low_rank": train.low_rank, "sparse": train.sparse},
                "regime": Supervised(),
                "dictionary": "gradient",
            }
        fit(
            encoder,
            train.mixture,
            steps=steps or (settings.supervised if supervised else settings.training),
            batch_size=min(settings.batch, len(train.mixture)),
            seed=seed,
            **options,
        )
        with torch.no_grad():
            codes, known = encoder(test.mixture), encoder(train.mixture)
        found: dict[str, Any] = {"errors": self._errors(encoder.model, codes)}
        if not supervised:
            own = self.model.objective(train.mixture.double(), known.double())
            found["gap"] = self._gap(codes)
            found["gap_known"] = float((own - best).mean())
        if depth == settings.layers:
            found["us"] = _microseconds(encoder, test.mixture)
        return found

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

    # ---- what comes of it --------------------------------------------------------------

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        settings, reference = self.settings, values["reference"]

        def seeds(name: str, key: str) -> list[float]:
            return [values[f"{name}-{seed}"][key] for seed in settings.seeds]

        depths: dict[str, list[dict[str, Any]]] = {}
        for form in FORMS:
            for depth in settings.depths:
                name = f"depth-{SHORT[form]}-unsupervised-{depth}"
                gaps = seeds(name, "gap")
                row = {
                    "layers": depth,
                    "gap": gaps,
                    "gap_known": seeds(name, "gap_known"),
                    "error": seeds(name, "errors"),
                    "error_supervised": seeds(f"depth-{SHORT[form]}-supervised-{depth}", "errors"),
                }
                for method in ("ista", "fista"):
                    row[f"equals_{method}"] = _equivalent(
                        reference[method]["gaps"], float(np.mean(gaps))
                    )
                if depth == settings.layers:
                    row["us"] = float(np.median(seeds(name, "us")))
                depths.setdefault(form, []).append(row)
        tried = {
            kind: {
                form: [
                    {kind: value, "gap": seeds(f"{kind}-{SHORT[form]}-{value}", "gap"),
                     "gap_known": seeds(f"{kind}-{SHORT[form]}-{value}", "gap_known")}
                    for value in chosen
                ]
                for form in FORMS
            }
            for kind, chosen in (("size", settings.sizes), ("steps", settings.steps))
        }  # fmt: skip
        return {
            "optimum": reference["optimum"],
            "weights": {"lam": self.weights[0], "lam_star": self.weights[1]},
            "exact": {"error": reference["exact"], "us": reference["exact_us"]},
            "iterations": {name: reference[name] for name in ("ista", "fista")},
            "depths": depths,
            **tried,
        }

    def describe(self, result: Mapping[str, Any], report: Report) -> None:
        settings = self.settings
        report.text(
            "Robust NMF splits the spectrum of a mixture into a low-rank part (the accompaniment) "
            "and sparse outliers (the voice). Encoders of T layers are trained to minimise its "
            "objective without targets, or for the true parts; the proximal method that they "
            f"unroll stands beside them. All figures are of {settings.test} unseen frames, whose "
            f"mean optimum is {result['optimum']:.2f}."
        )
        report.figure(self._depth_figure(result), "depth",
                      "Left: mean objective above the optimum against layers or iterations. "
                      "Right: mean squared separation error; the dotted line is that of the exact "
                      "solution.")  # fmt: skip
        report.section("How many iterations a trained layer is worth")
        rows = []
        for number, depth in enumerate(settings.depths):
            row = [str(depth)]
            for form in FORMS:
                point = result["depths"][form][number]
                gap = float(np.mean(point["gap"]))
                row += [
                    f"{gap:.3g} ({100 * gap / result['optimum']:.2g} %)",
                    _count(point["equals_ista"], settings.iterations),
                    _count(point["equals_fista"], settings.iterations),
                ]
            rows.append(row)
        columns = ["T"] + [f"{SHORT[form]}: {what}" for form in FORMS
                           for what in ("gap", "ISTA", "FISTA")]  # fmt: skip
        report.table(columns, rows)
        report.text(
            "ISTA and FISTA: the first iteration whose mean gap is not above the encoder's. Both "
            "run in the coordinates in which the dictionary has norm 1; without that, ISTA needs "
            "several times as many."
        )
        self._describe_claim(result, report)
        report.section("Separation error")
        rows = []
        for number, depth in enumerate(settings.depths):
            cells = [result["iterations"]["ista"]["errors"][depth - 1]]
            for form in FORMS:
                point = result["depths"][form][number]
                cells += [float(np.mean(point[key])) for key in ("error", "error_supervised")]
            rows.append([str(depth), *(f"{cell:.4g}" for cell in cells)])
        columns = ["T", "untrained"] + [f"{SHORT[form]}: {regime}" for form in FORMS
                                        for regime in REGIMES]  # fmt: skip
        report.table(columns, rows)
        report.text(
            f"Mean of ||l - l*||^2 + ||o - o*||^2; exact robust NMF has "
            f"{result['exact']['error']:.4g}. " + self._order(result)
        )
        report.section("Where an encoder's error comes from")
        report.text(
            "Approximation: what layers of a given number cannot do however they are trained. "
            "Estimation: what is lost by having few frames to learn from; the gap on the frames "
            "that were trained on falls apart from that on unseen ones. Optimisation: what is lost "
            f"by ending the training early. Frames and steps were varied at T = {settings.layers}."
        )
        report.figure(self._parts_figure(result), "parts",
                      "Gap against depth, training frames and training steps.")  # fmt: skip

    def _order(self, result: Mapping[str, Any]) -> str:
        """Whether the paper's order of the errors holds at the greatest depth."""
        last = result["depths"][PAPER][-1]
        exact = result["exact"]["error"]
        own, taught = (float(np.mean(last[key])) for key in ("error", "error_supervised"))
        holds = taught < min(own, exact)
        return (
            "The paper finds supervised encoders below unsupervised ones and below the exact "
            f"solution; with {last['layers']} layers of its form that "
            f"{'holds' if holds else 'does NOT hold'}: {taught:.4g}, {own:.4g} and {exact:.4g}."
        )

    def _describe_claim(self, result: Mapping[str, Any], report: Report) -> None:
        settings = self.settings
        points = {
            form: point
            for form, rows in result["depths"].items()
            for point in rows
            if point["layers"] == CLAIMED_LAYERS
        }
        if not points:
            return
        equal = points[PAPER]["equals_ista"]
        reached = equal is None or equal >= CLAIMED_ITERATIONS
        report.text(
            f"The paper says that about {CLAIMED_ITERATIONS} iterations reach what its encoder of "
            f"{CLAIMED_LAYERS} layers does; here it equals "
            f"{_count(equal, settings.iterations)} (and "
            f"{_count(points[PAPER]['equals_fista'], settings.iterations)} of FISTA), so the claim "
            f"{'holds' if reached else 'does NOT hold'}; ours equals "
            f"{_count(points[OURS]['equals_ista'], settings.iterations)} and "
            f"{_count(points[OURS]['equals_fista'], settings.iterations)}."
        )
        if "us" in points[OURS]:
            report.text(
                f"Time per frame in a batch, as measured here: {points[OURS]['us']:.0f} us for "
                f"our encoder of {CLAIMED_LAYERS} layers and {points[PAPER]['us']:.0f} us for the "
                f"paper's, both compiled; {result['exact']['us']:.0f} us for exact codes certified "
                "to 1e-6."
            )

    def _depth_figure(self, result: Mapping[str, Any]) -> Any:
        settings = self.settings
        shown = [k for k in range(1, settings.iterations + 1) if k in _ticks(settings.iterations)]
        gaps: dict[str, list[Any]] = {
            name: [(k, result["iterations"][key]["gaps"][k - 1]) for k in shown
                   if result["iterations"][key]["gaps"][k - 1] > 1e-5 * result["optimum"]]
            for name, key in ((ISTA, "ista"), (FISTA, "fista"))
        }  # fmt: skip
        most = max(settings.depths)
        errors: dict[str, list[Any]] = {
            ISTA: [(k, result["iterations"]["ista"]["errors"][k - 1]) for k in shown if k <= most]
        }
        for form in FORMS:
            rows = result["depths"][form]
            gaps[f"{form}, unsupervised"] = [_point(row["layers"], row["gap"]) for row in rows]
            for what, key in (("unsupervised", "error"), ("supervised", "error_supervised")):
                errors[f"{form}, {what}"] = [_point(row["layers"], row[key]) for row in rows]
        return plots.panels(
            [
                plots.Panel(gaps, "layers or iterations", "mean gap", "optimality gap", log="xy"),
                plots.Panel(errors, "layers", "mean squared error", "separation error", log="xy",
                            levels={EXACT: result["exact"]["error"]}),
            ],
            size=(4.6, 4.4),
        )  # fmt: skip

    def _parts_figure(self, result: Mapping[str, Any]) -> Any:
        settings = self.settings
        at = settings.layers
        shown = []
        for key, title, label in (
            ("layers", "approximation", "layers"),
            ("size", "estimation", "training frames"),
            ("steps", "optimisation", "training steps"),
        ):
            curves = {}
            for form in FORMS:
                rows = list(result["depths"][form] if key == "layers" else result[key][form])
                whole = next((r for r in result["depths"][form] if r["layers"] == at), None)
                if key != "layers" and whole is not None:
                    full = settings.train if key == "size" else settings.training
                    rows = sorted([*rows, {**whole, key: full}], key=lambda row: row[key])
                curves[f"{form}, unseen frames"] = [_point(row[key], row["gap"]) for row in rows]
                curves[f"{form}, training frames"] = [
                    _point(row[key], row["gap_known"]) for row in rows
                ]
            shown.append(plots.Panel(curves, label, "mean gap", title, log="xy"))
        return plots.panels(shown, size=(3.6, 3.6))

    @property
    def differences(self) -> Sequence[str]:
        settings = self.settings
        data = (
            "The frames are those of the paper's corpus, but its protocol (which clips, how many "
            "frames, how spectra are scaled) is not stated."
            if self.data is not None
            else "The spectrogram is synthetic; with --data or --download the experiment runs on "
            "MIR-1K, the paper's corpus."
        )
        return (
            f"{data} The weights follow lam = sqrt(2) sigma, lam_star = sqrt(2 N) sigma with "
            f"N = {settings.joint} and sigma = {settings.sigma} for spectra of unit standard "
            "deviation: in print the two are exchanged, which leaves no outliers at all.",
            "The pursuit is that of the stated objective: in print its matrix has an additional "
            "ridge on the outliers, whose solution is another one.",
            "The dictionary is scaled to norm 1, an equivalent problem, for iterations and "
            "encoders alike. Without it the proximal method is several times slower, and the "
            "comparison would flatter the encoder.",
            "Optimiser and number of training steps are not stated: Adam, "
            f"{settings.training} steps of {settings.batch} frames ({settings.supervised} where "
            "there are targets): the paper's form needs many. Supervised encoders learn "
            "their dictionary too, from the true parts, without the regularisers of the printed "
            "loss.",
            "Our encoder (structured layers with momentum, H tied to W) and FISTA are not in the "
            "paper; an iteration of FISTA costs as much as one of ISTA, so it is the fairer "
            "measure.",
        )


def _equivalent(gaps: Sequence[float], gap: float) -> int | None:
    """The first iteration with at most this gap; None if there is none."""
    return next((k for k, value in enumerate(gaps, 1) if value <= gap), None)


def _count(iterations: int | None, most: int) -> str:
    return f"more than {most}" if iterations is None else str(iterations)


def _point(x: float, values: Sequence[float]) -> tuple[float, ...]:
    """The mean over seeds, with their range."""
    return float(x), float(np.mean(values)), min(values), max(values)


def _ticks(most: int) -> set[int]:
    """Numbers that are about evenly spaced on a logarithmic axis."""
    return {round(value) for value in np.geomspace(1, most, 25)}


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
