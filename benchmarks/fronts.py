"""Fronts: time per signal against relative gap, learned encoders beside exact solvers and peers.

    python benchmarks/fronts.py [NAME ...] [--rounds 7] [--threads 1 2] [--figures DIR]

Names: lasso64, lasso256, hilasso, rpca, rnmf, nmf. Every method is a curve over its depth, its
tolerance or its number of iterations. Test signals are not among those that dictionaries and
encoders were trained on; encoders are trained by `pu.fit(encoder, x)` with nothing else set, and
kept in build/encoders for the next run. Gap: mean(F - F*)/mean(F*) on the test signals.

Contenders take turns, each in rounds; medians, and the spread (half the range of the middle half).
"""

from __future__ import annotations

import argparse
import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accuracy_per_layer import top_k
from contest import CONSOLE, Contender, compete, machine, table, threads
from lasso import as_codes, celer_lasso, fista_in_tiles, sklearn_lasso, spams_lasso
from robust import full_fista
from torch import Tensor

import pursuit as pu
from pursuit.datasets import spectrogram, textures
from pursuit.encoders.encoder import Encoder
from pursuit.models import HiLasso, Lasso, RobustNMF, RobustPCA, SparseModel

KEPT = Path(__file__).parents[1] / "build" / "encoders"


@dataclass
class Front:
    """A model, unseen signals, and the methods that code them, each a curve of contenders."""

    name: str
    model: SparseModel
    train: Tensor
    test: Tensor
    curves: dict[str, list[Contender]] = field(default_factory=dict)

    def add(self, curve: str, point: str, run: Callable[[], Any], rows: int | None = None) -> None:
        contender = Contender(f"{curve}, {point}", run, len(self.test) if rows is None else rows)
        self.curves.setdefault(curve, []).append(contender)

    def learned(self, curve: str, layers: int, build: Callable[[], Encoder]) -> Encoder:
        """Add a trained encoder, compiled."""
        encoder = self.trained(build())
        compiled = pu.compile(encoder, sample=self.train[:256].numpy(), threads=self.threads)
        x = self.test.numpy()
        self.add(f"{curve}, compiled", f"T={layers}", lambda: compiled(x))
        return encoder

    def trained(self, encoder: Encoder) -> Encoder:
        key = repr(encoder).encode() + encoder.model.dictionary.detach().numpy().tobytes()
        path = KEPT / f"{self.name}-{hashlib.sha256(key).hexdigest()[:16]}.safetensors"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            CONSOLE.print(f"training {type(encoder).__name__}, {encoder.layers} layers")
            pu.fit(encoder, self.train)
            pu.save(encoder, path)
        found = pu.load(path)
        assert isinstance(found, Encoder)
        return found

    def exact(self, tolerances: tuple[float, ...]) -> None:
        for tol in tolerances:
            self.add(
                "pursuit exact", f"{tol:.0e}", lambda t=tol: pu.solve(self.model, self.test, tol=t)
            )

    def eager(self, encoder: Encoder) -> None:
        def run() -> Tensor:
            with torch.no_grad():
                return encoder(self.test)

        self.add("the default in eager torch", f"T={encoder.layers}", run)

    def onnx(self, encoder: Encoder) -> None:
        """ONNX Runtime on the same encoder, in blocks that suit it."""
        try:
            import onnxruntime as runtime
        except ImportError as error:
            CONSOLE.print(f"left out: ONNX Runtime ({error})")
            return
        from pursuit.runtime.onnx import graph

        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        content = graph(pu.compile(encoder).program).SerializeToString()
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        tiles = [tile.numpy() for tile in self.test.split(512)]

        def run() -> np.ndarray:
            return np.concatenate([session.run(None, {"x": tile})[0] for tile in tiles])

        self.add("the default in ONNX Runtime", f"T={encoder.layers}", run)

    def peer(
        self, name: str, make: Callable[[], Callable[[], Any]], rows: int, point: str = "converged"
    ) -> None:
        try:
            self.add(name, point, make(), rows)
        except ImportError as error:
            CONSOLE.print(f"left out: {name} ({error})")

    threads: int = 1


def lasso(atoms: int) -> Callable[[int], Front]:
    def build(workers: int) -> Front:
        dictionary = pu.learn(textures.patches(10_000), atoms, 1.0)
        model = Lasso(dictionary, 1.0)
        front = Front(f"lasso{atoms}", model, textures.patches(20_000), test_patches(6000))
        front.threads = workers
        front.exact((1e-1, 1e-2, 1e-4, 1e-6))
        for depth in (2, 3, 4, 5, 7, 10):
            encoder = front.learned("default", depth, lambda t=depth: pu.ProximalEncoder(model, t))
            if depth in (4, 7):
                front.eager(encoder)
                front.onnx(encoder)
        for depth in (2, 4, 7):
            front.learned(
                "the paper's", depth,
                lambda t=depth: pu.ProximalEncoder(model, t, "free", momentum=False),
            )  # fmt: skip
        for depth in (3, 4, 5, 7, 10):
            front.learned("top-k", depth, lambda t=depth: widening(model, t))
        for steps in (5, 10, 30, 100):
            front.add(
                "FISTA in torch", f"{steps}", lambda s=steps: fista_in_tiles(model, front.test, s)
            )
        front.peer("SPAMS", lambda: spams_lasso(front.test, dictionary, workers), len(front.test))
        few, fewest = front.test[:300], front.test[:30]
        front.peer("scikit-learn, float64", lambda: sklearn_lasso(few, dictionary), len(few))
        front.peer("celer, float64", lambda: celer_lasso(fewest, dictionary), len(fewest))
        front.peer("skglm, float64", lambda: skglm_lasso(fewest, dictionary), len(fewest))
        return front

    return build


def widening(model: Lasso, layers: int) -> Encoder:
    """Top-k layers; where there are few of them, each takes over more."""
    if layers > 5:
        return top_k(model, layers)
    first = 4 if model.code_size <= 128 else 8
    widths = [first * 2**number for number in range(layers - 1)] + [model.code_size]
    return pu.CoordinateEncoder(
        model, layers, coordinates=widths, step="coupled", momentum=True, final="partial"
    )


def test_patches(count: int) -> Tensor:
    return textures.patches(count // 3, "test", seed=1)


def skglm_lasso(x: Tensor, dictionary: Tensor) -> Callable[[], Any]:
    from skglm import Lasso as Peer

    signals, atoms = x.double().numpy(), np.asfortranarray(dictionary.double().numpy().T)

    def run() -> np.ndarray:
        peer = Peer(alpha=1.0 / atoms.shape[0], fit_intercept=False, tol=1e-8)
        return np.stack([peer.fit(atoms, row).coef_ for row in signals])

    return run


def hilasso(workers: int) -> Front:
    """5 groups of 50 atoms in R^80, two of them active, as in the specification's experiment."""
    generator = torch.Generator().manual_seed(0)
    atoms = torch.nn.functional.normalize(torch.randn(250, 80, generator=generator))
    groups = [list(range(50 * r, 50 * (r + 1))) for r in range(5)]
    model = HiLasso(atoms, groups, 0.2, 0.05)

    def signals(count: int, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        codes = torch.zeros(count, 250)
        for row in codes:
            for r in torch.randperm(5, generator=generator)[:2].tolist():
                chosen = 50 * r + torch.randperm(50, generator=generator)[:4]
                row[chosen] = torch.randn(4, generator=generator)
        return codes @ atoms + 0.02 * torch.randn(count, 80, generator=generator)

    front = Front("hilasso", model, signals(20_000, 1), signals(2000, 2))
    front.threads = workers
    front.exact((1e-1, 1e-2, 1e-4, 1e-6))
    for depth in (2, 4, 8):
        front.learned(
            "block-coordinate", depth, lambda t=depth: pu.BlockCoordinateEncoder(model, t)
        )
    for depth in (4, 7, 12):
        encoder = front.learned("default", depth, lambda t=depth: pu.ProximalEncoder(model, t))
    front.eager(encoder)
    front.onnx(encoder)
    for steps in (10, 30, 100, 300):
        front.add(
            "FISTA in torch", f"{steps}",
            lambda s=steps: pu.solve(model, front.test, "fista", tol=0, max_iter=s).codes,
        )  # fmt: skip
    front.peer("SPAMS fistaFlat", lambda: spams_hilasso(front, groups), 200)
    return front


def spams_hilasso(front: Front, groups: list[list[int]]) -> Callable[[], Any]:
    import spams

    x = np.asfortranarray(front.test[:200].double().numpy().T)
    atoms = np.asfortranarray(front.model.dictionary.double().numpy().T)
    labels = np.zeros(atoms.shape[1], np.int32)
    for number, group in enumerate(groups):
        labels[group] = number + 1
    start = np.zeros((atoms.shape[1], x.shape[1]), order="F")

    def run() -> np.ndarray:
        codes = spams.fistaFlat(
            x, atoms, start, groups=labels, loss="square", regul="sparse-group-lasso-l2",
            lambda1=0.2, lambda2=0.05, tol=1e-6, max_it=500, numThreads=1,
        )  # fmt: skip
        return codes.T

    return run


def robust(kind: type[RobustPCA], name: str) -> Callable[[int], Front]:
    def build(workers: int) -> Front:
        train = spectrogram.synthetic(3000, 513, seed=0).mixture
        dictionary = spectrogram.learn_dictionary(
            train[:1000], 25, 7.75, 0.141, nonnegative=kind is RobustNMF
        )
        model = kind(dictionary, 7.75, 0.141)
        front = Front(name, model, train, spectrogram.synthetic(500, 513, seed=1).mixture)
        front.threads = workers
        front.exact((1e-1, 1e-2, 1e-4, 1e-6))
        for depth in (3, 5, 7, 10, 20):
            encoder = front.learned("default", depth, lambda t=depth: pu.ProximalEncoder(model, t))
            if depth in (7, 20):
                front.eager(encoder)
                front.onnx(encoder)
        for steps in (10, 30, 100, 300):
            front.add(
                "FISTA in torch", f"{steps}", lambda s=steps: full_fista(model, front.test, s)
            )
        if kind is RobustPCA:
            front.peer("tensorly robust_pca", lambda: tensorly_pca(front), len(front.test))
        return front

    return build


def tensorly_pca(front: Front) -> Callable[[], None]:
    """All frames at once, without a given dictionary: another problem, so there is no gap."""
    from tensorly.decomposition import robust_pca

    x, weight = front.test.numpy(), 0.141 / 7.75

    def run() -> None:
        robust_pca(x, reg_E=weight, n_iter_max=100, verbose=0)

    return run


def nmf(workers: int) -> Front:
    """Scores of given tones; peers solve the same problem, without outliers."""
    train = spectrogram.synthetic(3000, 257, seed=0).mixture
    dictionary = spectrogram.learn_dictionary(train[:1000], 25, 1.0, 1e3, nonnegative=True)
    dictionary = torch.nn.functional.normalize(dictionary + 1e-3)
    model = pu.models.NMF(dictionary)
    front = Front("nmf", model, train, spectrogram.synthetic(500, 257, seed=1).mixture)
    front.threads = workers
    front.exact((1e-2, 1e-4))
    for depth in (4, 7, 12):
        encoder = front.learned("default", depth, lambda t=depth: pu.ProximalEncoder(model, t))
    front.eager(encoder)
    front.onnx(encoder)
    for steps in (10, 100, 1000):
        for name, make in (
            ("scikit-learn", sklearn_nmf), ("torchnmf", torch_nmf), ("tensorly", tensorly_nmf),
        ):  # fmt: skip
            front.peer(name, lambda m=make, s=steps: m(front, s), len(front.test), f"{steps}")
    return front


def tensorly_nmf(front: Front, steps: int) -> Callable[[], Any]:
    from tensorly.solvers.nnls import hals_nnls

    x, atoms = front.test.numpy(), front.model.dictionary.numpy()

    def run() -> np.ndarray:
        codes = hals_nnls(atoms @ x.T, atoms @ atoms.T, n_iter_max=steps, tol=0)
        return np.ascontiguousarray(codes.T)

    return run


def sklearn_nmf(front: Front, steps: int) -> Callable[[], Any]:
    from sklearn.decomposition import non_negative_factorization

    x, atoms = front.test.numpy(), front.model.dictionary.numpy()

    def run() -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            codes, _, _ = non_negative_factorization(
                x, H=atoms, n_components=len(atoms), init="custom", update_H=False, solver="cd",
                tol=0, max_iter=steps, W=np.full((len(x), len(atoms)), 0.1, np.float32),
            )  # fmt: skip
        return codes

    return run


def torch_nmf(front: Front, steps: int) -> Callable[[], Any]:
    from torchnmf.nmf import NMF

    x, atoms = front.test.clamp_min(0), front.model.dictionary

    def run() -> Tensor:
        # torchnmf has V = H W' with H (n, r) the scores and W (m, r) the atoms
        scores = torch.full((len(x), len(atoms)), 0.1)
        peer = NMF(H=scores, W=atoms.T.contiguous(), trainable_W=False)
        peer.fit(x, beta=2, tol=0, max_iter=steps)
        return peer.H.detach()

    return run


FRONTS: dict[str, Callable[[int], Front]] = {
    "lasso64": lasso(64),
    "lasso256": lasso(256),
    "hilasso": hilasso,
    "rpca": robust(RobustPCA, "rpca"),
    "rnmf": robust(RobustNMF, "rnmf"),
    "nmf": nmf,
}


def judge(front: Front, rounds: int) -> list[tuple[str, Contender, float, float]]:
    """Run all, and for each contender its curve, itself, its mean gap and its worst."""
    contenders = [one for curve in front.curves.values() for one in curve]
    with threads(front.threads):
        compete(contenders, rounds)
    exact = front.model.to(torch.float64)
    best = pu.solve(exact, front.test.double(), tol=1e-9).objective
    results = []
    for name, curve in front.curves.items():
        for one in curve:
            if one.result is None:
                results.append((name, one, float("nan"), float("nan")))
                continue
            result = one.result.codes if isinstance(one.result, pu.Solution) else one.result
            codes = as_codes(result)
            excess = exact.objective(front.test[: len(codes)].double(), codes) - best[: len(codes)]
            mean = float(excess.mean() / best[: len(codes)].mean())
            results.append((name, one, mean, float((excess / best[: len(codes)]).max())))
    return results


def draw(title: str, results: list[tuple[str, Contender, float, float]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, one, gap, _ in results:
        if math.isnan(gap):
            continue
        curves.setdefault(name, []).append((one.microseconds, gap))
    pu.plots.front(curves, title=title, path=path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(FRONTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--figures", type=Path, help="a folder to draw the fronts into")
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    for name in arguments.names or FRONTS:
        for workers in arguments.threads:
            with threads(1):  # the same dictionary whatever the threads, to find kept encoders
                front = FRONTS[name](workers)
            results = judge(front, arguments.rounds)
            title = f"{name}, {workers} thread{'s' * (workers > 1)}"
            rows = [
                [
                    one.name,
                    f"{one.microseconds:.2f}",
                    f"{100 * one.spread:.0f} %",
                    *("-" if math.isnan(v) else f"{100 * max(v, 0):.2g}" for v in (gap, worst)),
                ]
                for _, one, gap, worst in results
            ]
            table(title, ["method", "us", "spread", "gap %", "worst %"], rows)
            if arguments.figures and workers == arguments.threads[0]:
                draw(title, results, arguments.figures / f"front-{name}.png")


if __name__ == "__main__":
    main()
