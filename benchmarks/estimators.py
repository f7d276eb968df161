"""Fitting: our estimators beside those of other packages, inexact ALM and AccAltProj.

Each problem has a figure of merit that is the same for all contenders (an error, an objective, or
minus a quality: lower is better), and the time of `fit` alone, medians of interleaved rounds on one
thread. Problems on real data need the folder of the data sets ($PURSUIT_DATA) or statsmodels.
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contest import CONSOLE, Contender, compete, machine, table, threads
from sklearn.datasets import load_digits
from sklearn.decomposition import NMF, PCA, MiniBatchDictionaryLearning, MiniBatchNMF, SparseCoder

import pursuit as pu
from pursuit.datasets import faces, pictures, textures

Array = np.ndarray[Any, Any]
#: what a contender returns, and how it is judged
Merit = Callable[[Any], float]
#: the windows of spectrograms
WINDOW: Any = {"nperseg": 1024, "noverlap": 768}
Problem = tuple[str, dict[str, Callable[[], Any]], Merit, str]


# ---- peers that no package has ----------------------------------------------------------------


def inexact_alm(x: Array, most: int = 1000) -> tuple[Array, Array]:
    """``min ||L||_* + ||O||_1/sqrt(max(n, m))`` with ``L + O = X`` (Lin, Chen, Ma 2010).

    Singular vectors come from the smaller Gram matrix. In single precision the usual tolerance of
    1e-7 is out of reach.
    """
    n, m = x.shape
    tol = 1e-7 if x.dtype == np.float64 else 1e-5
    lam = 1 / math.sqrt(max(n, m))
    norm = _svd(x)[1][0]
    dual = x / max(norm, np.abs(x).max() / lam)
    mu, total = 1.25 / norm, np.linalg.norm(x)
    largest, sparse = 1e7 * mu, np.zeros_like(x)
    for _ in range(most):
        u, s, v = _svd(x - sparse + dual / mu)
        kept = s > 1 / mu
        low = (u[:, kept] * (s[kept] - 1 / mu)) @ v[kept]
        rest = x - low + dual / mu
        sparse = np.sign(rest) * np.maximum(np.abs(rest) - lam / mu, 0)
        gap = x - low - sparse
        dual += mu * gap
        mu = min(1.5 * mu, largest)
        if np.linalg.norm(gap) < tol * total:
            break
    return low, sparse


def _svd(x: Array) -> tuple[Array, Array, Array]:
    if x.shape[0] > x.shape[1]:
        v, s, u = _svd(x.T)
        return u.T, s, v.T
    values, u = np.linalg.eigh(x @ x.T)
    s = np.sqrt(np.maximum(values[::-1], 0))
    u = u[:, ::-1]
    return u, s, (u.T @ x) / np.maximum(s, np.finfo(x.dtype).tiny)[:, None]


def acc_alt_proj(
    x: Array, rank: int, tol: float = 1e-7, most: int = 100, gamma: float = 0.7
) -> tuple[Array, Array]:
    """Accelerated alternating projections of a known rank (Cai, Cai, Wei 2019)."""
    from scipy.sparse.linalg import svds

    beta = 1.1 * rank / math.sqrt(x.size)
    total = np.linalg.norm(x)
    largest = svds(x, k=1)[1][0]
    sparse = np.where(np.abs(x) > 4 * beta * largest, x, 0)
    u, s, v = svds(x - sparse, k=rank)
    u, s, v = u[:, ::-1], s[::-1], v[::-1]
    low = (u * s) @ v
    sparse = np.where(np.abs(x - low) > beta * s[0], x - low, 0)
    for count in range(1, most + 1):
        rest = x - sparse
        right, left = u.T @ rest, rest @ v.T
        core = right @ v.T
        q1, r1 = np.linalg.qr((right - core @ v).T)
        q2, r2 = np.linalg.qr(left - u @ core)
        block = np.block([[core, r1.T], [r2, np.zeros((rank, rank))]])
        a, s, b = np.linalg.svd(block)
        u, v = np.hstack([u, q2]) @ a[:, :rank], b[:rank] @ np.vstack([v, q1.T])
        low = (u * s[:rank]) @ v
        limit = beta * max(s[rank], gamma**count * s[0])
        rest = x - low
        sparse = np.where(np.abs(rest) > limit, rest, 0)
        if np.linalg.norm(rest - sparse) < tol * total:
            break
    return low, sparse


def tensorly_pca(x: Array) -> tuple[Array, Array]:
    from tensorly.decomposition import robust_pca

    lam = 1 / math.sqrt(max(x.shape))
    return robust_pca(x, reg_E=lam, learning_rate=1.1, n_iter_max=100, verbose=False)


def packaged_pca(x: Array, rank: int) -> Array:
    """AccAltProj of the package rpca."""
    from rpca import RobustPCA

    fitted = RobustPCA(rank, tol=1e-7, verbose=False)
    return np.asarray(fitted.inverse_transform(fitted.fit_transform(x)))


def packaged_alm(x: Array) -> Array:
    """Inexact ALM of the package pyrpca."""
    from pyrpca import rpca_pcp_ialm

    return np.asarray(rpca_pcp_ialm(x, 1 / math.sqrt(max(x.shape)), verbose=False)[0])


# ---- factorisations ---------------------------------------------------------------------------


def nmf(name: str, x: Array, atoms: int) -> Problem:
    """Fits from three seeds, since all contenders end in local minima: the mean error."""

    def merit(fitted: list[Any]) -> float:
        errors = [one.reconstruction_err_ for one in fitted]
        return float(np.mean(errors) / np.linalg.norm(x))

    def fits(make: Callable[..., Any], **options: Any) -> Callable[[], list[Any]]:
        return lambda: [make(atoms, random_state=s, **options).fit(x) for s in range(3)]

    contenders = {
        "pursuit": fits(pu.NMF),
        "scikit-learn NMF (cd)": fits(NMF),
        "the same, 1000 iterations": fits(NMF, max_iter=1000),
        "MiniBatchNMF": fits(MiniBatchNMF),
    }
    title = f"three NMFs, {name} {x.shape[0]} x {x.shape[1]}, {atoms} atoms"
    return title, contenders, merit, "mean error"


def dictionary() -> Problem:
    x = textures.patches(7000, seed=0).double().numpy()[:20_000]
    test = textures.patches(700, "test", seed=1).double().numpy()

    def merit(fitted: Any) -> float:
        atoms = fitted.components_ / np.linalg.norm(fitted.components_, axis=1, keepdims=True)
        codes = SparseCoder(atoms, transform_algorithm="lasso_cd", transform_alpha=1.0)
        z = codes.transform(test)
        return float(np.mean(((test - z @ atoms) ** 2).sum(1) / 2 + np.abs(z).sum(1)))

    def learner(passes: int) -> Any:
        options: Any = {"alpha": 1.0, "batch_size": 256, "fit_algorithm": "cd", "random_state": 0}
        return MiniBatchDictionaryLearning(100, max_iter=passes, **options).fit(x)

    contenders = {
        "pursuit": lambda: pu.SparseCoding(100, lam=1.0).fit(x),
        "MiniBatchDictionaryLearning, 3 passes": lambda: learner(3),
        "MiniBatchDictionaryLearning, 10 passes": lambda: learner(10),
    }
    return "dictionary of 20000 patches, 100 atoms", contenders, merit, "objective of test patches"


# ---- robust PCA -------------------------------------------------------------------------------


def planted(n: int, m: int, rank: int, share: float, size: float, noise: float) -> Problem:
    rng = np.random.default_rng(0)
    low = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, m))
    wild = (rng.random((n, m)) < share) * rng.uniform(-size, size, (n, m))
    x = low + wild + noise * rng.standard_normal((n, m))

    def merit(reached: Any) -> float:
        return float(np.linalg.norm(reached - low) / np.linalg.norm(low))

    def ours(debias: bool) -> Array:
        return np.asarray(pu.RobustPCA(rank, center=False).fit_split(x, debias=debias).low_rank)

    contenders: dict[str, Callable[[], Any]] = {
        "pursuit, debiased": lambda: ours(True),
        "pursuit": lambda: ours(False),
        "inexact ALM": lambda: inexact_alm(x)[0],
        "AccAltProj, rank known": lambda: acc_alt_proj(x, rank)[0],
        "AccAltProj, tol 1e-9": lambda: acc_alt_proj(x, rank, tol=1e-9)[0],
        "package rpca, rank known": lambda: packaged_pca(x, rank),
        "package pyrpca": lambda: packaged_alm(x),
        "scikit-learn PCA": lambda: _reconstructed(PCA(rank), x),
        "tensorly robust_pca": lambda: tensorly_pca(x)[0],
    }
    name = f"{n} x {m}, rank {rank}, {share:.0%} outliers up to {size:g}, noise {noise:g}"
    return name, contenders, merit, "error"


def _reconstructed(estimator: Any, x: Array) -> Array:
    return np.asarray(estimator.inverse_transform(estimator.fit_transform(x)))


def series(name: str) -> Problem:
    """A series as a matrix (a year a row) with 5 % spikes; error of what is left without them."""
    import statsmodels.api as sm

    if name == "CO2":
        values = sm.datasets.co2.load_pandas().data["co2"].interpolate().bfill().to_numpy()
        truth = values[: len(values) // 52 * 52].reshape(-1, 52)
    else:
        truth = sm.datasets.elnino.load_pandas().data.iloc[:, 1:].to_numpy(dtype=float)
    rng = np.random.default_rng(0)
    where = rng.random(truth.shape) < 0.05
    spikes = where * rng.choice([-1, 1], truth.shape) * rng.uniform(3, 10, truth.shape)
    x = truth + spikes * truth.std()

    def ours() -> Array:
        parts = pu.RobustPCA(4).fit_split(x, debias=True)
        return np.where(parts.outliers != 0, parts.low_rank, x)

    def without_outliers(parts: tuple[Array, Array]) -> Array:
        low, sparse = parts
        return np.where(np.abs(sparse) > 3 * np.median(np.abs(sparse[sparse != 0])), low, x)

    def merit(cleaned: Any) -> float:
        return float(np.sqrt(np.mean((cleaned - truth) ** 2)))

    contenders = {
        "pursuit, outliers replaced": ours,
        "pursuit, low rank": lambda: pu.RobustPCA(4).fit_split(x, debias=True).low_rank,
        "inexact ALM": lambda: inexact_alm(x)[0],
        "inexact ALM, outliers replaced": lambda: without_outliers(inexact_alm(x)),
        "scikit-learn PCA": lambda: _reconstructed(PCA(4), x),
    }
    return f"{name} with spikes, {truth.shape[0]} x {truth.shape[1]}", contenders, merit, "rmse"


def covered_faces() -> Problem:
    people = faces.orl()
    x = people.reshape(-1, people.shape[2] * people.shape[3]).astype(float)
    rng = np.random.default_rng(0)
    where = rng.random(x.shape) < 0.1
    noisy = np.where(where, rng.uniform(x.min(), x.max(), x.shape), x)

    def merit(low: Any) -> float:
        return float(np.linalg.norm((low - x)[where]) / np.linalg.norm((x - x.mean(0))[where]))

    contenders: dict[str, Callable[[], Any]] = {
        "pursuit, debiased": lambda: pu.RobustPCA(80).fit_split(noisy, debias=True).low_rank,
        "pursuit": lambda: pu.RobustPCA(80).fit_split(noisy).low_rank,
        "inexact ALM": lambda: inexact_alm(noisy)[0],
        "scikit-learn PCA": lambda: _reconstructed(PCA(40), noisy),
    }
    name = f"ORL faces, {x.shape[0]} x {x.shape[1]}, 10 % of the pixels replaced"
    return name, contenders, merit, "error there"


def highway(folder: Path) -> Problem:
    frames, masks = folder / "video/highway/frames", folder / "video/highway/masks"
    names = sorted(path.stem for path in frames.glob("*.jpg"))
    x = np.stack([pictures.read(frames / f"{name}.jpg").ravel() for name in names])
    x = x.astype(np.float32)
    truth = np.stack([pictures.read(masks / f"{name}.png").ravel() > 0.5 for name in names])

    def merit(low: Any) -> float:
        difference = np.abs(x - low)
        best = 0.0
        for limit in (0.06, 0.08, 0.1, 0.12, 0.15, 0.2):
            marked = difference > limit
            best = max(best, 2 * float((marked & truth).sum()) / (marked.sum() + truth.sum()))
        return -best

    contenders: dict[str, Callable[[], Any]] = {
        "pursuit, debiased": lambda: pu.RobustPCA(8).fit_split(x, debias=True).low_rank,
        "pursuit": lambda: pu.RobustPCA(8).fit_split(x).low_rank,
        "inexact ALM": lambda: inexact_alm(x)[0],
        "scikit-learn PCA": lambda: _reconstructed(PCA(8), x),
    }
    name = f"highway frames, {x.shape[0]} x {x.shape[1]}"
    return name, contenders, merit, "minus F of the foreground"


def magnitudes(folder: Path, clip: int) -> tuple[Array, Array, Array, Array, str]:
    """The magnitudes of a clip, of unit standard deviation; its spectrum, voice and mixture."""
    import soundfile
    from scipy.signal import stft

    path = sorted((folder / "singing").glob("*.flac"))[clip]
    music, singer = soundfile.read(path)[0].T
    spectrum = stft(music + singer, **WINDOW)[2]
    x = np.abs(spectrum).T
    return x / x.std(), spectrum, singer, music + singer, path.stem


def voice(folder: Path, clips: Sequence[int]) -> Problem:
    """Separation of the singing voice; the mean improvement of its signal-to-distortion ratio."""
    from mir_eval.separation import bss_eval_sources
    from scipy.signal import istft

    songs = [magnitudes(folder, clip) for clip in clips]

    def ratio(singer: Array, estimate: Array) -> float:
        return float(bss_eval_sources(singer[None], estimate[None, : len(singer)])[0][0])

    def merit(splits: list[tuple[Array, Array]]) -> float:
        gains = []
        for (_, spectrum, singer, mixture, _), parts in zip(songs, splits, strict=True):
            low, sparse = (np.abs(part).T for part in parts)
            masked = istft(spectrum * sparse / (low + sparse + 1e-9), **WINDOW)[1]
            gains.append(ratio(singer, masked) - ratio(singer, mixture))
        return -float(np.mean(gains))

    def ours(make: Callable[[], Any]) -> list[tuple[Array, Array]]:
        splits = [make().fit_split(song[0]) for song in songs]
        return [(split.low_rank, split.outliers) for split in splits]

    contenders: dict[str, Callable[[], Any]] = {
        "pursuit RobustNMF(25)": lambda: ours(lambda: pu.RobustNMF(25)),
        "pursuit RobustPCA(25)": lambda: ours(lambda: pu.RobustPCA(25, center=False)),
        "inexact ALM": lambda: [inexact_alm(song[0]) for song in songs],
    }
    return f"voices of {len(songs)} clips", contenders, merit, "minus NSDR in dB"


def problems(names: list[str], folder: Path | None) -> Iterator[Problem]:
    def chosen(name: str) -> bool:
        return not names or name in names

    if chosen("nmf"):
        for atoms in (16, 32):
            yield nmf("digits", load_digits().data, atoms)
        if folder is not None:
            for clip in (30, 130):
                x, *_, stem = magnitudes(folder, clip)
                yield nmf(f"spectrogram of {stem}", x, 25)
        people = faces.orl()
        yield nmf("ORL faces", people.reshape(len(people) * people.shape[1], -1).astype(float), 25)
    if chosen("dictionary"):
        yield dictionary()
    if chosen("planted"):
        yield planted(256, 128, 3, 0.1, 1000, 0.005)
        for share in (0.1, 0.2, 0.3):
            yield planted(1000, 1000, 5, share, 50, 0)
        yield planted(1000, 1000, 5, 0.1, 50, 0.1)
    if chosen("series"):
        for name in ("CO2", "El Nino"):
            yield series(name)
    if chosen("faces"):
        yield covered_faces()
    if folder is not None and chosen("video"):
        yield highway(folder)
    if folder is not None and chosen("voice"):
        yield voice(folder, (15, 30, 55, 80, 100, 120, 130, 150))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ["nmf", "dictionary", "planted", "series", "faces", "video", "voice"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in known:
            parser.error(f"unknown problem {name!r}; choose from {', '.join(known)}")
    data = os.environ.get("PURSUIT_DATA")
    CONSOLE.print(machine())
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, runs, merit, unit in problems(arguments.names, Path(data) if data else None):
            contenders = [Contender(label, run, 1) for label, run in runs.items()]
            compete(contenders, arguments.rounds)
            ours = contenders[0].microseconds
            rows = [
                [
                    c.name,
                    f"{merit(c.result):.4g}",
                    f"{c.microseconds / 1e6:.3f}",
                    f"{c.spread:.0%}",
                    f"{c.microseconds / ours:.1f}",
                ]
                for c in contenders
            ]
            table(name, ["contender", unit, "seconds", "spread", "ratio"], rows)


if __name__ == "__main__":
    main()
