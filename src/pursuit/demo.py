"""The demonstration: what the library does for you, on real pictures, in about two minutes.

A dictionary of texture patches is learned online; encoders are trained in two regimes; they and
exact solvers code unseen patches side by side; a noisy picture is denoised by the codes; and faces
that were never seen are split into what faces have in common and what covers them.
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
from threadpoolctl import threadpool_limits

from . import plots, regimes
from .datasets import faces, textures
from .encoders.proximal import ProximalEncoder
from .estimators import RobustPCA, SparseCoding
from .models import Lasso
from .report import Report
from .runtime.compiled import Compiled
from .runtime.compiled import compile as compile_encoder
from .solvers.solve import solve
from .training import fit

__all__ = ["Demo"]

Array = np.ndarray[Any, Any]

ATOMS, LAYERS, LAM, PATCH = 64, 4, 1.0, 8
#: patches that transform codes, and how many of them slower coders are given
MANY, FEW = 100_000, 1000
#: standard deviation of the noise, and what lam = 1 is in units of it (chosen on the upper half)
NOISE, STRENGTH = 0.1, 1.5
#: faces: people to learn from (the others are new), atoms, and the side of what covers a face
LEARNED, FACE_ATOMS, COVER = 30, 24, 9


@dataclass
class Coder:
    """One row of the table."""

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
    """Runs step by step and collects the report.

    Parameters
    ----------
    say
        Is called with a sentence before each step, and with results.
    steps
        Training steps of each encoder; by default what `fit` thinks right.
    seed
        Seeds everything that is random.
    threads
        Of all coders alike.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        steps: int | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        self.say, self.steps, self.seed, self.threads = say, steps, seed, threads
        self.on = "one thread" if threads == 1 else f"{threads} threads"
        self.report = Report("pursuit: sparse codes of textures, exact and learned")
        self.coders: list[Coder] = []

    def run(self, folder: Path) -> Path:
        """All steps; the path of the report."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with threadpool_limits(self.threads):
                self.learn()
                self.compare()
                self.denoise()
                self.split_faces()
        finally:
            torch.set_num_threads(before)
        return self.report.write(folder)

    # ---- patches ----------------------------------------------------------------------

    def learn(self) -> None:
        self.say(f"learning {ATOMS} atoms from patches of brick, grass and gravel, online")
        train = textures.patches(10_000, seed=self.seed).numpy()
        begin = time.perf_counter()
        self.coding = SparseCoding(
            ATOMS, lam=LAM, layers=LAYERS, steps=self.steps,
            random_state=self.seed, threads=self.threads,
        )  # fmt: skip
        with self._timed("dictionary and unsupervised encoder"):
            self.coding.fit(train)
        self.model = Lasso(torch.from_numpy(self.coding.components_).float(), LAM)
        with self._timed("encoder trained on exact codes"):
            self.copied = ProximalEncoder(self.model, LAYERS)
            regime = regimes.Approximation()
            fit(self.copied, train, regime=regime, steps=self.steps, seed=self.seed)
        self.training_seconds = time.perf_counter() - begin
        self.report.section("What was learned")
        self.report.text(
            f"A dictionary of {ATOMS} atoms for {PATCH} x {PATCH} patches of three textures, and "
            f"two encoders of {LAYERS} layers: one trained for the objective itself, one for the "
            f"exact codes. All of it took {self.training_seconds:.0f} seconds on {self.on}."
        )
        self.report.figure(plots.atoms(self.coding.components_), "atoms", "The atoms.")

    def compare(self) -> None:
        self.say(f"coding {MANY} unseen patches, {self.on}")
        x = textures.patches(MANY // 3 + 1, "test", seed=self.seed + 1).numpy()[:MANY]
        exact = copy.deepcopy(self.coding).set_params(transform_algorithm="exact")
        compiled = compile_encoder(self.copied, threads=self.threads)
        assert isinstance(compiled, Compiled)
        few = x[:FEW]
        self.coders = [
            Coder(f"SparseCoding, encoder of {LAYERS} layers", self.coding.transform, x),
            Coder("the same, trained on exact codes", compiled, x),
            Coder("SparseCoding, exact", exact.transform, x),
            Coder(
                "scikit-learn SparseCoder, lasso_cd",
                _scikit(self.coding.components_, self.threads),
                few,
            ),
        ]
        for coder in self.coders:
            coder.run(coder.patches[:64])  # compiles and warms up
        for _ in range(3):  # in turn, so that a busy moment hits everyone
            for coder in self.coders:
                begin = time.perf_counter()
                codes = coder.run(coder.patches)
                coder.seconds.append(time.perf_counter() - begin)
                coder.gap, coder.nonzeros = self._judge(coder.patches, codes)
        reference = self.coders[-1].microseconds
        columns = ["coder", "us a patch", "times as fast", "gap %", "non-zeros"]
        rows = [
            [
                coder.name,
                f"{coder.microseconds:.2f}",
                f"{reference / coder.microseconds:.0f}",
                f"{100 * max(coder.gap, 0):.2g}",
                f"{coder.nonzeros:.1f}",
            ]
            for coder in self.coders
        ]
        self.rows, self.columns = rows, columns
        for row in rows:
            self.say("   " + ", ".join(f"{c}: {e}" for c, e in zip(columns, row, strict=True)))
        self.report.section("Exact and learned codes")
        self.report.text(
            f"{MANY} patches of the lower halves of the pictures, which nothing was learned from "
            f"(scikit-learn: {FEW} of them), {self.on}, median of three rounds in turn. The gap "
            "is how far the mean objective lies above the optimum."
        )
        self.report.table(columns, rows)
        curves = {coder.name: [(coder.microseconds, max(coder.gap, 1e-7))] for coder in self.coders}
        curves |= self._fista(x[:2000])
        self.report.figure(
            plots.front(curves), "front", "Time against gap: the lower left corner is the best."
        )

    def _fista(self, x: Array) -> dict[str, list[tuple[float, float]]]:
        points = []
        signals = torch.from_numpy(x)
        for steps in (5, 10, 20, 40, 80):
            begin = time.perf_counter()
            codes = solve(self.model, signals, "fista", tol=0, max_iter=steps).codes
            seconds = time.perf_counter() - begin
            gap, _ = self._judge(x, codes.numpy())
            points.append((1e6 * seconds / len(x), max(gap, 1e-7)))
        return {"FISTA, 5 to 80 steps": points}

    def _judge(self, x: Array, codes: Array) -> tuple[float, float]:
        """Mean relative gap and number of non-zeros, on some of the patches."""
        rows = slice(0, 5000)
        signals, found = torch.from_numpy(x[rows]), torch.from_numpy(np.asarray(codes[rows]))
        best = solve(self.model, signals, tol=1e-8).objective
        value = self.model.objective(signals.double(), found.double())
        nonzeros = float((found != 0).sum(dim=1).double().mean())
        return float((value - best).mean() / best.mean()), nonzeros

    # ---- a picture --------------------------------------------------------------------

    def denoise(self) -> None:
        self.say("denoising a picture with the encoder, and with exact codes")
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
        pictures = {"noisy": noisy}
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
            pictures[name] = _average(patches, noisy.shape)
        values = {name: _psnr(found, lower) for name, found in pictures.items()}
        for name, value in values.items():
            self.say(f"   {name}: {value:.2f} dB")
        self.psnr = values
        self.report.section("Denoising")
        self.report.text(
            f"Noise of standard deviation {NOISE} on a part of the brick picture that nothing was "
            "learned from; every 8 x 8 patch is coded and the overlapping patches are averaged. "
            f"Coding {len(x)} patches took {seconds['encoder']:.3f} s with the encoder and "
            f"{seconds['exact codes']:.3f} s exactly."
        )
        self.report.table(
            ["picture", "PSNR, dB"], [[name, f"{value:.2f}"] for name, value in values.items()]
        )
        shown = [noisy, pictures["encoder"], pictures["exact codes"], lower]
        titles = [f"{name}, {values[name]:.1f} dB" for name in pictures] + ["the picture"]
        self.report.figure(plots.compare(shown, titles), "denoised", "")

    # ---- faces ------------------------------------------------------------------------

    def split_faces(self) -> None:
        self.say("splitting faces that were never seen into low rank and outliers")
        people = faces.orl()
        shape = people.shape[2:]
        known = people[:LEARNED].reshape(-1, shape[0] * shape[1])
        new = people[LEARNED:, :2].reshape(-1, *shape).copy()
        truth = new.reshape(len(new), -1).copy()
        rng = np.random.default_rng(self.seed)
        covered = np.zeros_like(new, bool)
        for face, mask in zip(new, covered, strict=True):
            top, left = (int(rng.integers(0, side - COVER)) for side in shape)
            mask[top : top + COVER, left : left + COVER] = True
            face[mask] = rng.random(COVER * COVER)
        pca = RobustPCA(
            FACE_ATOMS,
            layers=7,
            steps=self.steps or 250,
            random_state=self.seed,
            threads=self.threads,
        )
        with self._timed("robust PCA of faces"):
            pca.fit(known)
        x = new.reshape(len(new), -1)
        parts = pca.split(x)
        low_rank, outliers = np.asarray(parts.low_rank), np.asarray(parts.outliers)
        hidden = covered.reshape(len(new), -1)
        errors = {
            "the covered pictures": _rms(x - truth, hidden),
            "the low-rank part": _rms(low_rank - truth, hidden),
            "the mean face": _rms(pca.mean_[None] - truth, hidden),
        }
        found = np.abs(outliers) > 0
        part = float((found & hidden).sum() / hidden.sum())
        false = float((found & ~hidden).sum() / (~hidden).sum())
        self.say(f"   {100 * part:.0f} % of the covered pixels are outliers")
        self.report.section("Faces with something in front")
        self.report.text(
            f"Robust PCA with {FACE_ATOMS} atoms was learned from {len(known)} pictures of "
            f"{LEARNED} people. These are others, each covered by a square of noise. The encoder "
            f"splits them into a low-rank part and outliers; {100 * part:.0f} % of the covered "
            f"pixels and {100 * false:.0f} % of the others are outliers. Behind the squares the "
            "distance from the true face is (root mean square):"
        )
        self.report.table(["", "distance"], [[n, f"{e:.3f}"] for n, e in errors.items()])
        self.report.figure(
            plots.decomposition(x[:6], low_rank[:6], outliers[:6], shape=shape, rows=6),
            "faces",
            "Input, low rank and outliers of faces that were not among those learned from.",
        )

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.say(f"   {what}: {time.perf_counter() - begin:.1f} s")


def _scikit(atoms: Array, threads: int) -> Callable[[Array], Array]:
    """scikit-learn's coder, in double precision: in single its stopping rule is never met."""
    from sklearn.decomposition import SparseCoder

    coder = SparseCoder(
        atoms.astype(np.float64),
        transform_algorithm="lasso_cd",
        transform_alpha=LAM,
        n_jobs=threads,
    )

    def run(x: Array) -> Array:
        codes: Array = coder.transform(x.astype(np.float64))
        return codes

    return run


def _noisy_patches(picture: Array) -> tuple[Array, Array]:
    """All patches without their means, in units in which the noise is worth lam = 1; the means."""
    windows = np.lib.stride_tricks.sliding_window_view(picture, (PATCH, PATCH))
    patches = windows.reshape(-1, PATCH * PATCH)
    means = patches.mean(axis=1, keepdims=True)
    return ((patches - means) / (STRENGTH * NOISE)).astype(np.float32), means


def _average(patches: Array, shape: tuple[int, ...]) -> Array:
    """The picture whose pixels are the means of all patches that cover them."""
    rows, columns = shape[0] - PATCH + 1, shape[1] - PATCH + 1
    grid = patches.reshape(rows, columns, PATCH, PATCH)
    total, count = np.zeros(shape), np.zeros(shape)
    for i in range(PATCH):
        for j in range(PATCH):
            total[i : i + rows, j : j + columns] += grid[:, :, i, j]
            count[i : i + rows, j : j + columns] += 1
    return total / count


def _psnr(found: Array, truth: Array) -> float:
    return float(-10 * np.log10(np.mean((found - truth) ** 2)))


def _rms(error: Array, where: Array) -> float:
    return float(np.sqrt(np.mean(error[where] ** 2)))
