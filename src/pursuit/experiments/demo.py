"""The demonstration: what the library does, on real pictures, in about two minutes.

A dictionary of texture patches is learned online, and encoders are trained in two regimes; they and
exact solvers code unseen patches; a noisy picture is denoised by its codes; and faces of new people
are split into a low-rank part and outliers. Nothing is cached, because times are measured.
`demo_report` writes the report.
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

from .. import regimes
from .._threads import limited_threads
from ..datasets import faces, pictures, textures
from ..encoders.proximal import ProximalEncoder
from ..estimators import RobustPCA, SparseCoding
from ..models import Lasso
from ..progress import Callback, Progress
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
#: the stages of the demonstration
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


@dataclass(frozen=True)
class Denoised:
    """A picture, its noisy version and reconstructions, their PSNR in dB, and coding times."""

    truth: Array
    pictures: dict[str, Array]
    psnr: dict[str, float]
    seconds: dict[str, float]
    patches: int


@dataclass(frozen=True)
class SplitFaces:
    """Covered faces and their two parts, errors behind the squares, and detection rates."""

    known: int
    shape: tuple[int, int]
    x: Array
    low_rank: Array
    outliers: Array
    errors: dict[str, float]
    detected: float
    false: float


class Demo:
    """The demonstration, stage by stage; results are attributes.

    Parameters
    ----------
    callback
        Receives each stage, and results as its details.
    steps
        Training steps of each encoder; by default those of `fit`.
    seed
        The seed of all random numbers.
    threads
        Threads of every coder.
    """

    columns = ("coder", "us a patch", "times as fast", "gap %", "non-zeros")

    def __init__(
        self,
        callback: Callback | None = None,
        steps: int | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        self.steps, self.seed, self.threads = steps, seed, threads
        self.on = "one thread" if threads == 1 else f"{threads} threads"
        self._callback = callback
        self._stage, self._done = "", -1

    def run(self, folder: Path) -> Path:
        """Run all stages, write the report to a folder, and return the path of its page."""
        from .demo_report import describe

        with limited_threads(self.threads):
            self.learn()
            self.compare()
            self.denoise()
            self.split_faces()
        return describe(self).write(folder)

    # ---- patches ----------------------------------------------------------------------

    def learn(self) -> None:
        """Learn a dictionary of patches and two encoders."""
        self._begin(f"learning {ATOMS} atoms from patches of brick, grass and gravel, online")
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
        self.fista = self._fista(x[:2000])

    @property
    def rows(self) -> list[list[str]]:
        """The table of coders, with `columns`."""
        reference = self.coders[-1].microseconds
        return [
            [
                coder.name,
                f"{coder.microseconds:.2f}",
                f"{reference / coder.microseconds:.0f}",
                f"{100 * max(coder.gap, 0):.2g}",
                f"{coder.nonzeros:.1f}",
            ]
            for coder in self.coders
        ]

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

    # ---- a picture --------------------------------------------------------------------

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
            versions[name] = reconstruct_from_patches_2d(
                patches.reshape(-1, PATCH, PATCH), noisy.shape
            )
        self.psnr = {name: _psnr(version, lower) for name, version in versions.items()}
        for name, value in self.psnr.items():
            self._tell(f"{name}: {value:.2f} dB")
        self.denoised = Denoised(lower, versions, self.psnr, seconds, len(x))

    # ---- faces ------------------------------------------------------------------------

    def split_faces(self) -> None:
        """Split covered faces of new people into low rank and outliers."""
        self._begin("splitting faces that were never seen into low rank and outliers")
        people = faces.orl()
        shape = people.shape[2], people.shape[3]
        known = people[:LEARNED].reshape(-1, shape[0] * shape[1])
        new = people[LEARNED:, :2].reshape(-1, *shape)
        truth = new.reshape(len(new), -1)
        x, hidden = _covered(new, self.seed)
        pca = RobustPCA(
            FACE_ATOMS,
            layers=7,
            steps=self.steps or 250,
            random_state=self.seed,
            threads=self.threads,
        )
        with self._timed("robust PCA of faces"):
            pca.fit(known)
        parts = pca.split(x)
        low_rank, outliers = np.asarray(parts.low_rank), np.asarray(parts.outliers)
        errors = {
            "the covered pictures": _rms(x - truth, hidden),
            "the low-rank part": _rms(low_rank - truth, hidden),
            "the mean face": _rms(pca.mean_[None] - truth, hidden),
        }
        marked = np.abs(outliers) > 0
        detected = float((marked & hidden).sum() / hidden.sum())
        false = float((marked & ~hidden).sum() / (~hidden).sum())
        self._tell(f"{100 * detected:.0f} % of the covered pixels are outliers")
        self.faces = SplitFaces(len(known), shape, x, low_rank, outliers, errors, detected, false)

    # ---- progress ---------------------------------------------------------------------

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


def _psnr(picture: Array, truth: Array) -> float:
    return float(-10 * np.log10(np.mean((picture - truth) ** 2)))


def _rms(error: Array, where: Array) -> float:
    return float(np.sqrt(np.mean(error[where] ** 2)))
