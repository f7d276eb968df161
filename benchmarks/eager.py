"""Eager speed of dense layers, as a part of a square matrix product's rate at equal flops.

    python benchmarks/eager.py [--signals 100000] [--rounds 5]

A matrix product of 2048 x 2048 stands for what the machine can do; an encoder spends the rest on
element-wise work. One thread, float32, gradients off, 64 features, 7 layers. The values of the
weights do not matter for the time; the scalars are moved off their start, where some terms
vanish. "textbook" is the paper's encoder written down naively: the whole batch at once,
sign(b) relu(|b| - t).
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
        "coupled, momentum, dense": pu.ProximalEncoder(model, LAYERS, structure="dense"),
        "coupled, momentum, structured": pu.ProximalEncoder(model, LAYERS, structure="structured"),
    }
    for encoder in encoders.values():
        if encoder.step.mixing is not None:
            shape = encoder.step.mixing.shape
            encoder.step.mixing.data.add_(0.01 * torch.randn(shape, generator=generator))
    contenders = [Contender("square product", lambda: square @ square, 2048)]
    contenders += [
        Contender(name, lambda encoder=encoder: encoder(x), count)
        for name, encoder in encoders.items()
    ]
    contenders.append(Contender("textbook", lambda: textbook(paper, x), count))
    with threads(1), torch.no_grad():
        compete(contenders, rounds)
    peak = 2048**2 / contenders[0].microseconds
    multiplications = [2048**2, *(encoder.multiplications for encoder in encoders.values())]
    multiplications.append(paper.multiplications)
    table(
        f"{atoms} atoms, {count} signals, one thread",
        ["contender", "us/signal", "spread", "multiplications", "part of the square rate"],
        [
            [
                contender.name,
                f"{contender.microseconds:.2f}",
                f"{100 * contender.spread:.0f} %",
                str(products),
                f"{products / contender.microseconds / peak:.2f}",
            ]
            for contender, products in zip(contenders, multiplications, strict=True)
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    for atoms in (64, 256):
        measure(atoms, arguments.signals, arguments.rounds)


if __name__ == "__main__":
    main()
