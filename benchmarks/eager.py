"""Speed of dense layers, eager and compiled, as a part of a square matrix product's rate.

    python benchmarks/eager.py [--signals 100000] [--rounds 5]

A matrix product of 2048 x 2048 stands for what the machine can do; an encoder spends the rest on
element-wise work. One thread, float32, gradients off, 64 features, 7 layers. The values of the
weights do not matter for the time; the scalars are moved off their start, where some terms
vanish. "textbook" is the paper's encoder written down naively: the whole batch at once,
sign(b) relu(|b| - t). Compiled encoders are made to run their dense kernels.
"""

from __future__ import annotations

import argparse

import torch
from contest import CONSOLE, Contender, compete, machine, table, threads
from torch import Tensor

import pursuit as pu
from pursuit.models import Lasso

FEATURES, LAYERS = 64, 7


def textbook(encoder: pu.ProximalEncoder, x: Tensor) -> Tensor:
    W, H = encoder.step.weight, encoder.step.coupling[0]
    t = encoder.step.thresholds[0][0]
    b = x @ W.T
    z = torch.sign(b) * torch.relu(b.abs() - t)
    for _ in range(LAYERS - 1):
        v = b + z @ H.T
        z = torch.sign(v) * torch.relu(v.abs() - t)
    return z


def measure(atoms: int, count: int, rounds: int) -> None:
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.nn.functional.normalize(torch.randn(atoms, FEATURES, generator=generator))
    model, x = Lasso(dictionary, 0.3), torch.randn(count, FEATURES, generator=generator)
    square = torch.randn(2048, 2048, generator=generator)
    paper = pu.ProximalEncoder(model, LAYERS, "free", momentum=False)
    encoders = {
        "free, no momentum (the paper)": paper,
        "free, momentum": pu.ProximalEncoder(model, LAYERS, "free"),
        "coupled, momentum, dense": pu.ProximalEncoder(model, LAYERS, form="gram"),
        "coupled, momentum, structured": pu.ProximalEncoder(model, LAYERS, form="residual"),
    }
    for encoder in encoders.values():
        if encoder.step.mixing is not None:
            shape = encoder.step.mixing.shape
            encoder.step.mixing.data.add_(0.01 * torch.randn(shape, generator=generator))
    runs = {name: lambda encoder=encoder: encoder(x) for name, encoder in encoders.items()}
    runs["textbook"] = lambda: textbook(paper, x)
    counted = [*encoders.values(), paper]
    array = x.numpy()
    for name, encoder in list(encoders.items())[:3]:  # those whose layers are dense
        compiled = pu.compile(encoder, threads=1, kernel="dense")
        runs[f"{name}, compiled"] = lambda compiled=compiled: compiled(array)
        counted.append(encoder)
    # each has a square product of its own right before it, since the machine's clock wanders
    pairs = [
        (Contender("square product", lambda: square @ square, 2048), Contender(name, run, count))
        for name, run in runs.items()
    ]
    with threads(1), torch.no_grad():
        compete([contender for pair in pairs for contender in pair], rounds)
    rows = []
    for pair, encoder in zip(pairs, counted, strict=True):
        work = (2048**3, count * encoder.multiplications)
        rates = [torch.tensor(c.seconds).reciprocal() * w for c, w in zip(pair, work, strict=True)]
        parts = (rates[1] / rates[0]).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
        rows.append(
            [
                pair[1].name,
                f"{pair[1].microseconds:.2f}",
                str(encoder.multiplications),
                f"{2e-9 * float(rates[0].median()):.0f}",
                f"{parts[1]:.2f} ({parts[0]:.2f} to {parts[2]:.2f})",
            ]
        )
    table(
        f"{atoms} atoms, {count} signals, one thread",
        [
            "contender",
            "us/signal",
            "multiplications",
            "square, GFLOP/s",
            "part of that (middle half)",
        ],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    for atoms in (64, 256):
        measure(atoms, arguments.signals, arguments.rounds)


if __name__ == "__main__":
    main()
