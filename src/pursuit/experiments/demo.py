"""The demonstration: what the library does, on real pictures, in about two minutes.

A dictionary of texture patches is learned online, and encoders are trained in two regimes; they and
exact solvers code unseen patches; a noisy picture is denoised by its codes; and faces of new people
are split into a low-rank part and outliers. Nothing is cached, because times are measured.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import plots, regimes
from .._threads import limited_threads
from ..datasets import faces, pictures, textures
from ..encoders.proximal import ProximalEncoder
from ..estimators import RobustPCA, SparseCoding
from ..models import Lasso
from ..progress import Callback, Progress
from ..report import Report
from ..runtime.compiled import Compiled
from ..runtime.compiled import compile as compile_encoder
from ..solvers.solve import solve
from ..training import fit

Array = np.ndarray[Any, Any]

ATOMS, LAYERS, LAM, PATCH = 64, 4, 1.0, 8
#: the number of patches to code, and the number for slow coders
MANY, FEW = 100_000, 1000
#: standard deviation of the noise, and lam = 1 in units of it (chosen on the upper half)
NOISE, STRENGTH = 0.1, 1.5
#: faces: people to learn from (the others are new), atoms, and the side of the covering square
LEARNED, FACE_ATOMS, COVER = 30, 24, 9
#: the smallest gap in the figure; below it is rounding
FLOOR = 1e-7
#: the number of stages
STAGES = 4


@dataclass
class Coder:
    """A method that codes patches, with its measured times, gap and number of non-zeros."""

    name: str
    run: Callable[[Array], Array]
    patches: Array
    seconds: list[float] = field(default_factory=list)
    gap: float = 0.0
    nonzeros: float = 0.0

    @property
    def microseconds(self) -> float:
        return 1e6 * statistics.median(self.seconds) / len(self.patches)


class Demo:
    """The demonstration: every stage adds a section to the report.

    `callback` receives each stage, and results as its details; `steps` are the training steps of
    each encoder, by default those of `fit`.
    """

    columns = ("coder", "us a patch", "times as fast", "gap %", "non-zeros")

    def __init__(
        self, callback: Callback | None, steps: int | None, seed: int, threads: int
    ) -> None:
        self.steps, self.seed, self.threads = steps, seed, threads
        self.on = "one thread" if threads == 1 else f"{threads} threads"
        self.report = Report("pursuit: sparse codes of textures, exact and learned")
        self._callback = callback
        self._stage, self._done = "", -1

    def run(self, folder: Path) -> Path:
        """Run all stages, write the report to a folder, and return the path of its page."""
        with limited_threads(self.threads):
            self.learn()
            self.compare()
            self.denoise()
            self.split_faces()
        return self.report.write(folder)

    def learn(self) -> None:
        """Learn a dictionary of patches and two encoders."""
        self._begin(f"learning {ATOMS} atoms from patches of brick, grass and gravel")
        train = textures.patches(10_000, seed=self.seed).numpy()
        begin = time.perf_counter()
        self.coding = SparseCoding(
            ATOMS,
            lam=LAM,
            transform_algorithm="encoder",
            layers=LAYERS,
            steps=self.steps,
            random_state=self.seed,
            threads=self.threads,
        )
        with self._timed("dictionary and unsupervised encoder"):
            self.coding.fit(train)
        self.model = Lasso(torch.from_numpy(self.coding.components_).float(), LAM)
        with self._timed("encoder trained on exact codes"):
            self.copied = ProximalEncoder(self.model, LAYERS)
            regime = regimes.Approximation()
            fit(self.copied, train, regime=regime, steps=self.steps, seed=self.seed)
        seconds = time.perf_counter() - begin
        self.report.section("What was learned")
        self.report.text(
            f"A dictionary of {ATOMS} atoms for {PATCH} x {PATCH} patches of three textures, and "
            f"two encoders of {LAYERS} layers: one trained for the objective itself, one for the "
            f"exact codes. All of it took {seconds:.0f} seconds on {self.on}."
        )
        self.report.figure(plots.atoms(self.coding.components_), "atoms", "The atoms.")

    def compare(self) -> None:
        """Code unseen patches with encoders and exact solvers, in turn."""
        self._begin(f"coding {MANY} unseen patches, {self.on}")
        x = textures.patches(MANY // 3 + 1, "test", seed=self.seed + 1).numpy()[:MANY]
        exact = copy.deepcopy(self.coding).set_params(transform_algorithm="exact")
        compiled = compile_encoder(self.copied, threads=self.threads)
        assert isinstance(compiled, Compiled)
        scikit = _scikit(self.coding.components_, self.threads)
        self.coders = [
            Coder(f"SparseCoding, encoder of {LAYERS} layers", self.coding.transform, x),
            Coder("the same, trained on exact codes", compiled, x),
            Coder("SparseCoding, exact", exact.transform, x),
            Coder("scikit-learn SparseCoder, lasso_cd", scikit, x[:FEW]),
        ]
        for coder in self.coders:
            coder.run(coder.patches[:64])  # compiles and warms up
        for _ in range(3):  # in turn, so that a busy moment affects every coder
            for coder in self.coders:
                begin = time.perf_counter()
                codes = coder.run(coder.patches)
                coder.seconds.append(time.perf_counter() - begin)
                coder.gap, coder.nonzeros = self._judge(coder.patches, codes)
        for row in self.rows:
            self._tell(", ".join(f"{c}: {e}" for c, e in zip(self.columns, row, strict=True)))
        curves = {coder.name: [(coder.microseconds, coder.gap)] for coder in self.coders}
        curves["FISTA, 5 to 80 steps"] = self._fista(x[:2000])
        self.report.section("Exact and learned codes")
        self.report.text(
            f"{MANY} patches of the lower halves of the pictures, which were not used for learning "
            f"(scikit-learn: {FEW} of them), {self.on}, median of three interleaved rounds. The "
            "gap is the distance of the mean objective from the optimum."
        )
        self.report.table(self.columns, self.rows)
        caption = "Time against gap: the lower left corner is the best."
        self.report.figure(plots.front(curves, floor=FLOOR), "front", caption)

    @property
    def rows(self) -> list[list[str]]:
        """The table of coders, with `columns`."""
        rows = []
        for coder in self.coders:
            us, faster = coder.microseconds, self.coders[-1].microseconds / coder.microseconds
            gap, nonzeros = f"{100 * max(coder.gap, 0):.2g}", f"{coder.nonzeros:.1f}"
            rows.append([coder.name, f"{us:.2f}", f"{faster:.0f}", gap, nonzeros])
        return rows

    def _fista(self, x: Array) -> list[tuple[float, float]]:
        """Microseconds and gap of some numbers of steps."""
        points = []
        signals = torch.from_numpy(x)
        for steps in (5, 10, 20, 40, 80):
            begin = time.perf_counter()
            codes = solve(self.model, signals, "fista", tol=0, max_iter=steps).codes
            seconds = time.perf_counter() - begin
            gap, _ = self._judge(x, codes.numpy())
            points.append((1e6 * seconds / len(x), gap))
        return points

    def _judge(self, x: Array, codes: Array) -> tuple[float, float]:
        """Mean relative gap and mean number of non-zeros, on some of the patches."""
        rows = slice(0, 5000)
        signals, z = torch.from_numpy(x[rows]), torch.from_numpy(np.asarray(codes[rows]))
        best = solve(self.model, signals, tol=1e-8).objective
        value = self.model.objective(signals.double(), z.double())
        nonzeros = float((z != 0).sum(dim=1).double().mean())
        return float((value - best).mean() / best.mean()), nonzeros

    def denoise(self) -> None:
        """Denoise a picture by the mean of its overlapping coded patches."""
        from sklearn.feature_extraction.image import reconstruct_from_patches_2d

        self._begin("denoising a picture with the encoder, and with exact codes")
        picture = textures.load("brick")
        rng = np.random.default_rng(self.seed)
        upper, lower = picture[:256, :256], picture[256:, 256:]
        train, _ = _noisy_patches(upper + NOISE * rng.standard_normal(upper.shape))
        noisy = lower + NOISE * rng.standard_normal(lower.shape)
        encoder = ProximalEncoder(self.model, LAYERS)
        fit(encoder, train[rng.permutation(len(train))[:20_000]], steps=self.steps, seed=self.seed)
        compiled = compile_encoder(encoder, threads=self.threads)
        assert isinstance(compiled, Compiled)
        x, means = _noisy_patches(noisy)
        atoms = self.model.dictionary.numpy()
        versions = {"noisy": noisy}
        seconds = {}
        for name, code in (
            ("encoder", compiled),
            ("exact codes", lambda x: solve(self.model, torch.from_numpy(x)).codes.numpy()),
        ):
            code(x[:64])
            begin = time.perf_counter()
            codes = code(x)
            seconds[name] = time.perf_counter() - begin
            patches = STRENGTH * NOISE * (codes @ atoms) + means
            squares = patches.reshape(-1, PATCH, PATCH)
            versions[name] = reconstruct_from_patches_2d(squares, noisy.shape)
        self.psnr = {  # in dB
            name: float(-10 * np.log10(np.mean((version - lower) ** 2)))
            for name, version in versions.items()
        }
        for name, value in self.psnr.items():
            self._tell(f"{name}: {value:.2f} dB")
        self.report.section("Denoising")
        self.report.text(
            f"Noise of standard deviation {NOISE} on a part of the brick picture that was not used "
            "for learning; every 8 x 8 patch is coded and the overlapping patches are averaged. "
            f"Coding {len(x)} patches took {seconds['encoder']:.3f} s with the encoder and "
            f"{seconds['exact codes']:.3f} s exactly."
        )
        rows = [[name, f"{value:.2f}"] for name, value in self.psnr.items()]
        self.report.table(["picture", "PSNR, dB"], rows)
        titles = [f"{name}, {value:.1f} dB" for name, value in self.psnr.items()]
        figure = plots.compare([*versions.values(), lower], [*titles, "the picture"])
        self.report.figure(figure, "denoised")

    def split_faces(self) -> None:
        """Split covered faces of new people into low rank and outliers."""
        self._begin("splitting faces that were never seen into low rank and outliers")
        people = faces.orl()
        shape = people.shape[2], people.shape[3]
        known = people[:LEARNED].reshape(-1, shape[0] * shape[1])
        new = people[LEARNED:, :2].reshape(-1, *shape)
        truth = new.reshape(len(new), -1)
        x, hidden = _covered(new, self.seed)
        pca = RobustPCA(FACE_ATOMS, random_state=self.seed)
        with self._timed("robust PCA of faces"):
            pca.fit(known)
        parts = pca.split(x)
        low_rank, outliers = np.asarray(parts.low_rank), np.asarray(parts.outliers)
        errors = {
            "the covered pictures": _rms(x - truth, hidden),
            "the low-rank part": _rms(low_rank - truth, hidden),
            "the mean face": _rms(pca.mean_[None] - truth, hidden),
        }
        marked = pca.outlier_mask(x)
        detected = float((marked & hidden).sum() / hidden.sum())
        false = float((marked & ~hidden).sum() / (~hidden).sum())
        self._tell(f"{100 * detected:.0f} % of the covered pixels are marked as outliers")
        self.report.section("Faces with something in front")
        self.report.text(
            f"Robust PCA with {FACE_ATOMS} atoms was learned from {len(known)} pictures of "
            f"{LEARNED} people. These are others, each covered by a square of noise. They "
            f"are split into a low-rank part and outliers; {100 * detected:.0f} % of the covered "
            f"pixels and {100 * false:.0f} % of the others are marked as outliers. Behind the "
            "squares the distance from the true face is (root mean square):"
        )
        self.report.table(["", "distance"], [[name, f"{e:.3f}"] for name, e in errors.items()])
        figure = plots.decomposition(x[:6], low_rank[:6], outliers[:6], shape=shape, rows=6)
        caption = "Input, low rank and outliers of faces that were not used for learning."
        self.report.figure(figure, "faces", caption)

    def _begin(self, stage: str) -> None:
        self._stage, self._done = stage, self._done + 1
        self._tell("")

    def _tell(self, detail: str) -> None:
        if self._callback is not None:
            self._callback(Progress(self._stage, self._done, STAGES, detail=detail))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._tell(f"{what}: {time.perf_counter() - begin:.1f} s")


def _scikit(atoms: Array, threads: int) -> Callable[[Array], Array]:
    """The coder of scikit-learn in double precision; in single its stopping rule is never met."""
    from sklearn.decomposition import SparseCoder

    options = {"transform_algorithm": "lasso_cd", "transform_alpha": LAM, "n_jobs": threads}
    coder = SparseCoder(atoms.astype(np.float64), **options)
    return lambda x: coder.transform(x.astype(np.float64))


def _noisy_patches(picture: Array) -> tuple[Array, Array]:
    """All patches without their means, scaled so that lam = 1 suits the noise; and the means."""
    patches = pictures.windows(picture, PATCH).reshape(-1, PATCH * PATCH)
    means = patches.mean(axis=1, keepdims=True)
    return ((patches - means) / (STRENGTH * NOISE)).astype(np.float32), means


def _covered(new: Array, seed: int) -> tuple[Array, Array]:
    """Faces as rows, each covered by a square of noise, and the mask of the covered pixels."""
    rng = np.random.default_rng(seed)
    x, hidden = new.copy(), np.zeros_like(new, bool)
    for face, mask in zip(x, hidden, strict=True):
        top, left = (int(rng.integers(0, side - COVER)) for side in face.shape)
        mask[top : top + COVER, left : left + COVER] = True
        face[mask] = rng.random(COVER * COVER)
    return x.reshape(len(x), -1), hidden.reshape(len(x), -1)


def _rms(error: Array, where: Array) -> float:
    return float(np.sqrt(np.mean(error[where] ** 2)))
