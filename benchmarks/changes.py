"""Changes of a stream: how soon they are found, and how many alarms stationary streams raise.

    python benchmarks/changes.py [--samples 60000] [--folder FOLDER]

Changes: straw to bark (with a folder of textures that has them) and brick to grass, 6000 patches
each, 8x8, 64 atoms. Stationary: sparse signals in R^16, four dictionaries; patches of each
texture; robust PCA in R^60 from a random dictionary. Every stream is followed by an
`OnlineLearner` that learns encoder and dictionary.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from accuracy_per_layer import top_k
from contest import CONSOLE, machine, table, threads
from torch import Tensor

import pursuit as pu
from pursuit.datasets import textures
from pursuit.models import Lasso, RobustPCA

BLOCK, PIECE, SIDE = 6000, 5000, 8


def patches(picture: np.ndarray, count: int, rng: np.random.Generator) -> Tensor:
    """Patches at random positions, any of them more than once."""
    windows = np.lib.stride_tricks.sliding_window_view(picture, (SIDE, SIDE))
    rows, columns = (rng.integers(size, size=count) for size in windows.shape[:2])
    return torch.from_numpy(textures.normalise(windows[rows, columns].reshape(count, -1))).float()


def follow_patches(start: Tensor) -> pu.OnlineLearner:
    model = Lasso(pu.learn(start, 64, 1.0, passes=3), 1.0)
    return pu.OnlineLearner(top_k(model, 7, "model"), steps=1)


def sparse(seed: int) -> tuple[pu.OnlineLearner, Callable[[int], Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    true, start = torch.nn.functional.normalize(torch.randn(2, 24, 16, generator=generator), dim=-1)

    def draw(count: int) -> Tensor:
        codes = torch.randn(count, 24, generator=generator)
        codes *= torch.rand(count, 24, generator=generator) < 0.1
        return codes @ true + 0.02 * torch.randn(count, 16, generator=generator)

    step = ("model", "coupled")[seed % 2]
    return pu.OnlineLearner(pu.ProximalEncoder(Lasso(start, 0.1), 4, step), steps=1), draw


def robust(seed: int) -> tuple[pu.OnlineLearner, Callable[[int], Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(60, 4, generator=generator))[0].T
    start = torch.randn(8, 60, generator=generator)

    def draw(count: int) -> Tensor:
        scores = torch.randn(count, 4, generator=generator) * torch.tensor([3.0, 2.5, 2.0, 1.5])
        outliers = 3 * torch.randn(count, 60, generator=generator)
        outliers *= torch.rand(count, 60, generator=generator) < 0.05
        return scores @ basis + outliers + 0.1 * torch.randn(count, 60, generator=generator)

    return pu.OnlineLearner(pu.ProximalEncoder(RobustPCA(start, 3.0, 0.28), 5), steps=1), draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=60_000, help="of each stationary stream")
    parser.add_argument("--folder", help="a folder of textures, beside those of scikit-image")
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    pictures = {name: textures.load(name) for name in textures.NAMES}
    if arguments.folder:
        there = textures.read_folder(arguments.folder)
        pictures |= dict(zip(there.names, there.pictures, strict=True))
    rng = np.random.default_rng(0)
    streams = {f"sparse, seed {seed}": sparse(seed) for seed in range(4)}
    streams |= {f"robust PCA, seed {seed}": robust(seed) for seed in range(2)}
    rows = []
    with threads(1):
        for pair in (("straw", "bark"), ("brick", "grass")):
            if set(pair) <= set(pictures):
                x = torch.cat([patches(pictures[name], BLOCK, rng) for name in pair])
                learner = follow_patches(x[:1000]).partial_fit(x)
                rows.append(
                    [" to ".join(pair), f"{len(x)}", f"{BLOCK}", f"{list(learner.changes)}"]
                )
        for name, picture in pictures.items():
            learner = follow_patches(patches(picture, 1000, rng))
            streams[name] = learner, lambda count, own=picture: patches(own, count, rng)
        for name, (learner, draw) in streams.items():
            while learner.samples < arguments.samples:
                learner.partial_fit(draw(PIECE))
            rows.append([name, f"{learner.samples}", "none", f"{list(learner.changes)}"])
    table("changes", ["stream", "samples", "true changes", "alarms"], rows)


if __name__ == "__main__":
    main()
