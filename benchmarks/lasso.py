"""The front of Lasso coders on texture patches: time per patch against relative gap.

    python benchmarks/lasso.py [--patches 6000] [--rounds 5]

Our exact solver at several tolerances, SPAMS, scikit-learn, celer and FISTA in torch, in one
interleaved run, for dictionaries of 64 and 256 atoms, on one thread and on two.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import numpy as np
import torch
from contest import CONSOLE, Contender, compete, machine, table, threads
from reference import learn_dictionary
from torch import Tensor

import pursuit as pu
from pursuit.datasets import textures
from pursuit.models import Lasso

LAM = 1.0


def fista_in_tiles(model: Lasso, x: Tensor, steps: int, rows: int = 1024) -> Tensor:
    """FISTA as a careful user of torch writes it: Gram matrix, tiles, fused products."""
    step = 1 / model.step_constant
    gram = torch.eye(model.code_size) - step * model.Q
    codes = []
    for tile in x.split(rows):
        drive = step * model.correlate(tile)
        z = y = torch.zeros_like(drive)
        t = 1.0
        for _ in range(steps):
            v = torch.addmm(drive, y, gram)
            new = v - v.clamp(-step * LAM, step * LAM)
            following = (1 + (1 + 4 * t * t) ** 0.5) / 2
            y = torch.lerp(z, new, 1 + (t - 1) / following)
            z, t = new, following
        codes.append(z)
    return torch.cat(codes)


def spams_lasso(x: Tensor, dictionary: Tensor, workers: int) -> Callable[[], Tensor]:
    import spams

    signals = np.asfortranarray(x.numpy().T)
    atoms = np.asfortranarray(dictionary.numpy().T)

    def run() -> Tensor:
        codes = spams.lasso(signals, D=atoms, lambda1=LAM, lambda2=0.0, mode=2, numThreads=workers)
        return codes

    return run


def sklearn_lasso(x: Tensor, dictionary: Tensor) -> Callable[[], Tensor]:
    from sklearn.decomposition import sparse_encode

    signals, atoms = x.double().numpy(), dictionary.double().numpy()

    def run() -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sparse_encode(signals, atoms, algorithm="lasso_cd", alpha=LAM, n_jobs=1)

    return run


def celer_lasso(x: Tensor, dictionary: Tensor) -> Callable[[], Tensor]:
    from celer import Lasso as Celer

    signals, atoms = x.double().numpy(), np.asfortranarray(dictionary.double().numpy().T)

    def run() -> np.ndarray:
        peer = Celer(alpha=LAM / atoms.shape[0], fit_intercept=False, tol=1e-8)
        return np.stack([peer.fit(atoms, row).coef_ for row in signals])

    return run


def as_codes(result: object) -> Tensor:
    if isinstance(result, Tensor):
        return result.double()
    dense = result.T.toarray() if hasattr(result, "toarray") else np.asarray(result)
    return torch.from_numpy(np.ascontiguousarray(dense)).double()


def front(atoms: int, workers: int, count: int, rounds: int) -> None:
    dictionary = learn_dictionary(textures.patches(4000), atoms, LAM)
    model = Lasso(dictionary, LAM)
    x = textures.patches(count // 3, "test", seed=1)
    few, fewest = x[: min(600, len(x))], x[: min(50, len(x))]
    contenders = [
        Contender(
            f"pursuit, tol {tol:.0e}", lambda tol=tol: pu.solve(model, x, tol=tol).codes, len(x)
        )
        for tol in (1e-2, 1e-3, 1e-4, 1e-6)
    ]
    contenders += [
        Contender(
            f"torch FISTA, {steps} steps", lambda s=steps: fista_in_tiles(model, x, s), len(x)
        )
        for steps in (10, 30, 100, 300)
    ]
    for name, make, samples in (
        ("SPAMS lasso", lambda s: spams_lasso(s, dictionary, workers), x),
        ("scikit-learn lasso_cd, float64", lambda s: sklearn_lasso(s, dictionary), few),
        ("celer, float64", lambda s: celer_lasso(s, dictionary), fewest),
    ):
        try:
            contenders.append(Contender(name, make(samples), len(samples)))
        except ImportError as error:
            CONSOLE.print(f"left out: {name} ({error})")
    with threads(workers):
        compete(contenders, rounds)
    exact = model.to(torch.float64)
    best = pu.solve(exact, x.double(), tol=1e-10).objective
    reference = next(c for c in contenders if c.name == "pursuit, tol 1e-06")
    rows = []
    for contender in contenders:
        codes = as_codes(contender.result)
        excess = exact.objective(x[: len(codes)].double(), codes) - best[: len(codes)]
        relative = (excess / best[: len(codes)]).clamp_min(0)
        rows.append(
            [
                contender.name,
                f"{contender.microseconds:.2f}",
                f"{100 * contender.spread:.0f} %",
                f"{float(excess.mean() / best[: len(codes)].mean()):.1e}",
                f"{float(relative.max()):.1e}",
                f"{float((codes != 0).sum(dim=1).double().mean()):.1f}",
                f"{contender.microseconds / reference.microseconds:.2f}",
            ]
        )
    table(
        f"{atoms} atoms, {workers} thread{'s' * (workers > 1)}",
        [
            "coder",
            "us/patch",
            "spread",
            "mean gap",
            "worst gap",
            "non-zeros",
            "time / pursuit 1e-6",
        ],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patches", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    for workers in (1, 2):
        for atoms in (64, 256):
            front(atoms, workers, arguments.patches, arguments.rounds)


if __name__ == "__main__":
    main()
