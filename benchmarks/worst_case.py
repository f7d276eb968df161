"""The worst of a million unseen patches: does a trained encoder blow up?

    python benchmarks/worst_case.py [--atoms 256] [--layers 16] [--seeds 2]
                                    [--no-guard] [--largest 1.25]

Encoders are trained by `pu.fit(encoder, x)` on patches of the top halves of brick, grass and
gravel, Lasso with lam = 1, as in accuracy_per_layer.py. They are then run on all 377235 windows of
the bottom halves, and, if $PURSUIT_DATA/textures has pictures, on random windows of those, as many
as make a million; and on rows further from the data: the patches times 3 and times 10, and
Gaussian noise times 1 and times 10, 50000 of each.

The gap of a row is (F - F*)/F*, in per cent, F* at least 0.01. The columns are its mean, its
99.99th percentile and its maximum, then the largest F/F(0), and how many rows have a gap above
100 %. `--no-guard` trains without the guard against blow-ups; `--largest` is how many times larger
than the data the rows of the guard are, at most.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from contest import CONSOLE, machine, table, threads
from PIL import Image
from reference import learn_dictionary
from torch import Tensor

import pursuit as pu
from pursuit import guard, training_loop
from pursuit.datasets import textures
from pursuit.models import Lasso

TOTAL, VARIED, TILE = 1_000_000, 50_000, 20_000


def windows(picture: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(picture, (8, 8)).reshape(-1, 64)


def unseen() -> dict[str, Tensor]:
    """The rows of each test, by name."""
    rng = np.random.default_rng(0)
    halves = [windows(textures.load(name)[256:]) for name in textures.NAMES]
    rows = {"bottom halves": textures.normalise(np.concatenate(halves))}
    folder = os.environ.get("PURSUIT_DATA")
    if folder and (Path(folder) / "textures").is_dir():
        files = sorted((Path(folder) / "textures").glob("*.png"))
        pictures = [np.asarray(Image.open(file).convert("L")) / 255 for file in files]
        share = (TOTAL - len(rows["bottom halves"])) // max(len(files), 1)
        drawn = []
        for picture in pictures:
            every = windows(picture[picture.any(axis=1)])  # the plates have black margins
            drawn.append(every[rng.choice(len(every), share, replace=False)])
        rows["other pictures"] = textures.normalise(np.concatenate(drawn))
    some = rows["bottom halves"][rng.choice(len(rows["bottom halves"]), VARIED, replace=False)]
    noise = rng.standard_normal((VARIED, 64))
    rows |= {
        "times 3": 3 * some,
        "times 10": 10 * some,
        "noise": noise,
        "noise times 10": 10 * noise,
    }
    return {name: torch.from_numpy(values.astype(np.float32)) for name, values in rows.items()}


def judged(encoder: pu.ProximalEncoder, x: Tensor, optimum: Tensor) -> list[str]:
    model = encoder.model
    with torch.no_grad():
        value = torch.cat([model.objective(tile, encoder(tile)) for tile in x.split(TILE)])
    value = value.double().nan_to_num(torch.inf)
    gap = 100 * ((value - optimum) / optimum.clamp_min(0.01)).clamp_min(0)
    ratio = value / (x.double().square().sum(dim=1) / 2).clamp_min(0.01)
    tail = gap.kthvalue(int(0.9999 * len(gap))).values
    numbers = (gap.mean(), tail, gap.max(), ratio.max())
    return [*(f"{float(number):.3g}" for number in numbers), str(int((gap > 100).sum()))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--no-guard", action="store_true")
    parser.add_argument("--largest", type=float, default=guard.LARGEST)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    if arguments.no_guard:
        training_loop.GUARD = 0.0
    guard.LARGEST = arguments.largest
    model = Lasso(learn_dictionary(textures.patches(4000), arguments.atoms), 1.0)
    train, tests = textures.patches(20_000), unseen()
    optima = {
        name: torch.cat([pu.solve(model, tile, tol=1e-4).objective for tile in x.split(TILE)])
        for name, x in tests.items()
    }
    rows = []
    for seed in range(arguments.seeds):
        encoder = pu.ProximalEncoder(model, arguments.layers)
        with threads(1):
            history = pu.fit(encoder, train, seed=seed)
        CONSOLE.print(f"seed {seed}: {history.seconds:.0f} s, {len(history.rollbacks)} rollbacks")
        for name, x in tests.items():
            rows.append([str(seed), name, *judged(encoder, x, optima[name].double())])
    title = f"{arguments.atoms} atoms, {arguments.layers} layers"
    columns = ["seed", "rows", "mean %", "99.99th %", "max %", "F/F(0)", "above 100 %"]
    table(title + (", without the guard" if arguments.no_guard else ""), columns, rows)


if __name__ == "__main__":
    main()
