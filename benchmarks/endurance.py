"""A million samples through `partial_fit`: memory and cost of a batch over time.

    python benchmarks/endurance.py [--samples 1000000]

Signals in R^16 of 24 sparse atoms that change slowly, in batches of 1000, one thread. Prints the
processor time of a batch and the memory of the process at ten moments, and by how much straight
lines through all of them rise from the first tenth to the end.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

import numpy as np
import torch
from contest import CONSOLE, machine, table, threads

import pursuit as pu
from pursuit.models import Lasso

BATCH, FEATURES, ATOMS = 1000, 16, 24


def resident() -> float:
    """Megabytes that belong to the process alone."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def slope(values: list[float]) -> float:
    """The growth of a straight line through the values, from the first to the last."""
    return float(np.polyfit(np.linspace(0, 1, len(values)), values, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    batches = parser.parse_args().samples // BATCH
    CONSOLE.print(machine())
    generator = torch.Generator().manual_seed(0)
    true = torch.nn.functional.normalize(torch.randn(ATOMS, FEATURES, generator=generator))
    start = torch.nn.functional.normalize(torch.randn(ATOMS, FEATURES, generator=generator))
    encoder = pu.ProximalEncoder(Lasso(start, 0.1), 4, "model")
    learner = pu.OnlineLearner(encoder, steps=1)
    seconds, memory, objectives, bad = [], [], [], 0
    with threads(1):
        for _ in range(batches):
            true = true + 0.003 * torch.randn(true.shape, generator=generator)
            true = torch.nn.functional.normalize(true)
            codes = torch.randn(BATCH, ATOMS, generator=generator)
            codes = codes * (torch.rand(codes.shape, generator=generator) < 0.1)
            begin = time.process_time()
            learner.partial_fit(codes @ true)
            seconds.append(time.process_time() - begin)
            gc.collect(0)
            memory.append(resident())
            objectives.append(learner.history[-1].objective)
            bad += sum(not bool(torch.isfinite(t).all()) for t in encoder.state_dict().values())
    part = batches // 10
    rows = [
        [
            f"{(number + 1) * part * BATCH}",
            f"{1e3 * statistics.median(seconds[number * part : (number + 1) * part]):.1f}",
            f"{memory[(number + 1) * part - 1]:.1f}",
            f"{objectives[(number + 1) * part - 1]:.3f}",
        ]
        for number in range(10)
    ]
    table("a long stream", ["samples", "ms a batch", "memory MB", "objective"], rows)
    time_slope, memory_slope = 1e3 * slope(seconds[part:]), slope(memory[part:])
    CONSOLE.print(f"growth over the stream: {time_slope:+.2f} ms a batch, {memory_slope:+.1f} MB")
    CONSOLE.print(f"tensors that were not finite: {bad}")


if __name__ == "__main__":
    main()
