"""Exact codes on one thread and on two, for batches of different sizes.

    python benchmarks/threads.py [--rounds 9]

Random dictionaries and signals. What is measured is the whole call of `solve`, with the constants
of the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from contest import CONSOLE, Contender, compete, machine, table
from torch import nn

import pursuit as pu
from pursuit import models

ROWS = (50, 500, 5000)


def problems() -> dict[str, tuple[Any, torch.Tensor]]:
    """A model of each family with a compiled solver, and signals."""
    generator = torch.Generator().manual_seed(0)
    dictionary = nn.functional.normalize(torch.randn(64, 64, generator=generator))
    positive = nn.functional.normalize(torch.rand(25, 257, generator=generator))
    groups = [list(range(*edges)) for edges in pairwise(range(0, 65, 8))]
    x = torch.randn(max(ROWS), 64, generator=generator)
    frames = torch.rand(max(ROWS), 257, generator=generator)
    return {
        "Lasso, 64 atoms": (models.Lasso(dictionary, 0.5), x),
        "HiLasso, 8 groups of 8": (models.HiLasso(dictionary, groups, 0.3, 0.3), x),
        "NMF, 25 atoms of 257": (models.NMF(positive), frames),
        "RobustPCA, 25 atoms of 257": (models.RobustPCA(positive, 1.0, 0.1), frames),
        "RobustNMF, 25 atoms of 257": (models.RobustNMF(positive, 1.0, 0.1), frames),
    }


def timed(model: Any, x: torch.Tensor, count: int) -> Callable[[], Any]:
    def run() -> Any:
        torch.set_num_threads(count)
        return pu.solve(model, x)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    CONSOLE.print(machine())
    rows = []
    for name, (model, x) in problems().items():
        for count in ROWS:
            one, two = (Contender(f"{k}", timed(model, x[:count], k), count) for k in (1, 2))
            compete([one, two], options.rounds)
            ratio = one.microseconds / two.microseconds
            times = (f"{figure:.2f}" for figure in (one.microseconds, two.microseconds, ratio))
            rows.append([name, f"{count}", *times])
    table(
        "Exact codes, the whole call",
        ["model", "rows", "one thread, us/row", "two, us/row", "times as quick"],
        rows,
    )


if __name__ == "__main__":
    main()
