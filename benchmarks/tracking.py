"""Robust PCA of a stream whose subspace turns: tracked, against batch solutions.

    python benchmarks/tracking.py [--seeds 3]

20000 samples in R^60: four directions that turn slowly into four others (a quarter turn over
the stream), 5 % outliers of size 1 to 3, noise of standard deviation 0.1. Error: the distance of
the true directions of the moment from the subspace found, root mean square; the subspace is spanned
by the four strongest directions of the dictionary, or of the low-rank matrix.

The tracker is an `OnlineLearner` with 8 atoms that remembers 500 samples, the mean age of which is
that of a window of 1000. Batch solutions are those of `pu.principal_component_pursuit`: one of the
first window, and one of each window.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import torch
from contest import CONSOLE, machine, table, threads
from torch import Tensor

import pursuit as pu
from pursuit.models import RobustPCA

SAMPLES, FEATURES, RANK, SIGMA = 20_000, 60, 4, 0.1
WINDOW, MEMORY, ATOMS = 1000, 500, 8
LAM = 2 * math.sqrt(2) * SIGMA


def stream(seed: int) -> tuple[Tensor, Tensor]:
    """Samples, and the true directions at each of them, shape (n, rank, m)."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator)

    basis = torch.linalg.qr(torch.randn(FEATURES, 2 * RANK, generator=generator))[0].T
    angle = torch.linspace(0, math.pi / 2, SAMPLES)[:, None, None]
    directions = torch.cos(angle) * basis[:RANK] + torch.sin(angle) * basis[RANK:]
    scores = torch.randn(SAMPLES, RANK, generator=generator) * torch.tensor([3.0, 2.5, 2.0, 1.5])
    shape = (SAMPLES, FEATURES)
    outliers = (random(*shape) < 0.05) * (random(*shape) - 0.5).sign() * (1 + 2 * random(*shape))
    noise = SIGMA * torch.randn(shape, generator=generator)
    return torch.einsum("nr,nrm->nm", scores, directions) + outliers + noise, directions


def lam_star(samples: int) -> float:
    """The size of the noise's largest singular value."""
    return (math.sqrt(FEATURES) + math.sqrt(samples)) * SIGMA


def error(matrix: Tensor, directions: Tensor) -> float:
    found = torch.linalg.svd(matrix, full_matrices=False)[2][:RANK]
    return float((directions - directions @ found.T @ found).norm() / math.sqrt(RANK))


def run(step: str, seed: int) -> list[str]:
    x, directions = stream(seed)
    once, _ = pu.principal_component_pursuit(x[:WINDOW], lam_star(WINDOW), LAM)
    start = torch.randn(ATOMS, FEATURES, generator=torch.Generator().manual_seed(seed))
    model = RobustPCA(start, lam_star(MEMORY), LAM)
    learner = pu.OnlineLearner(pu.ProximalEncoder(model, 7, step), memory=MEMORY, seed=seed)
    tracked, batch, fixed = [], [], []
    seconds, batch_seconds = [0.0], []
    for chunk in x.split(learner.chunk):
        begin = time.perf_counter()
        learner.partial_fit(chunk)
        seconds[0] += time.perf_counter() - begin
        now = learner.samples
        if now % WINDOW == 0 and now > WINDOW:
            begin = time.perf_counter()
            renewed, _ = pu.principal_component_pursuit(
                x[now - WINDOW : now], lam_star(WINDOW), LAM
            )
            batch_seconds.append(time.perf_counter() - begin)
            truth = directions[now - 1]
            tracked.append(error(learner.encoder.model.dictionary.detach(), truth))
            batch.append(error(renewed, truth))
            fixed.append(error(once, truth))
    ratios = [a / b for a, b in zip(tracked, batch, strict=True)]
    below = sum(a < b for a, b in zip(tracked, fixed, strict=True))
    return [
        step,
        f"{seed}",
        f"{statistics.fmean(tracked):.3f}",
        f"{statistics.fmean(batch):.3f}",
        f"{statistics.fmean(fixed):.3f}",
        f"{max(ratios):.2f}",
        f"{below} of {len(tracked)}",
        f"{1e6 * seconds[0] / len(x):.0f}",
        f"{1e6 * statistics.median(batch_seconds) / WINDOW:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    with threads(1):
        rows = [run(step, s) for step in ("coupled", "model") for s in range(arguments.seeds)]
    columns = ["step", "seed", "tracked", "each window", "once", "worst ratio", "below once"]
    columns += ["us a sample", "batch"]
    table("error of the subspace", columns, rows)


if __name__ == "__main__":
    main()
