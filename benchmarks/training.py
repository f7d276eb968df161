"""Time of a training step, against the textbook loop, and of a stream that is learned from.

    python benchmarks/training.py [--rounds 7] [--learners-only]

One thread, float32, 64 features, batches of 256 rows of 20000. "textbook" is the loop that one
writes down: the paper's encoder in eager torch, ``sign(b) relu(|b| - t)``, autograd, the mean
objective of the Lasso, torch.optim.Adam; no validation, no guard, no schedule. `pu.fit` has all of
these; the run is ended after the first validation, so one validation is part of the time. "fit, the
paper's" trains the same layers as the textbook; "fit" is the default encoder.

The second table is the time per sample of `OnlineLearner` with its defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from contest import CONSOLE, Contender, compete, machine, table, threads
from torch import Tensor, nn

import pursuit as pu
from pursuit.encoders.encoder import Encoder
from pursuit.models import Lasso

FEATURES, ROWS, BATCH = 64, 20_000, 256
#: number of atoms, layers
SIZES = ((64, 7), (256, 16))


def problem(atoms: int, seed: int = 0) -> tuple[Lasso, Tensor]:
    """A random dictionary, and signals of a twentieth of its atoms with noise."""
    generator = torch.Generator().manual_seed(seed)
    dictionary = nn.functional.normalize(torch.randn(atoms, FEATURES, generator=generator))
    codes = torch.randn(ROWS, atoms, generator=generator)
    codes = codes * (torch.rand(ROWS, atoms, generator=generator) < 0.05)
    noise = 0.05 * torch.randn(ROWS, FEATURES, generator=generator)
    return Lasso(dictionary, 0.2), codes @ dictionary + noise


def textbook(model: Lasso, x: Tensor, layers: int, steps: int) -> Callable[[], None]:
    """The training loop of a textbook."""
    dictionary = model.dictionary
    largest = float(torch.linalg.matrix_norm(dictionary, 2)) ** 2
    W = nn.Parameter(dictionary / largest)
    H = nn.Parameter(torch.eye(len(dictionary)) - dictionary @ dictionary.T / largest)
    t = nn.Parameter(torch.full((len(dictionary),), 0.2 / largest))
    optimiser = torch.optim.Adam([W, H, t], lr=1e-4)

    def shrink(v: Tensor) -> Tensor:
        return torch.sign(v) * torch.relu(v.abs() - t)

    def run() -> None:
        for _ in range(steps):
            rows = x[torch.randint(len(x), (BATCH,))]
            b = rows @ W.T
            z = shrink(b)
            for _ in range(layers - 1):
                z = shrink(b + z @ H.T)
            loss = (rows - z @ dictionary).square().sum(dim=1).mean() / 2
            loss = loss + 0.2 * z.abs().sum(dim=1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return run


def fit(build: Callable[[], Encoder], x: Tensor) -> tuple[Callable[[], None], int]:
    """A run of `pu.fit` up to its first validation, and the number of its steps."""

    def run() -> int:
        return pu.fit(build(), x, callback=lambda progress: True).steps

    return run, run()


def steps(rounds: int) -> None:
    rows = []
    for atoms, layers in SIZES:
        model, x = problem(atoms)
        builds = {
            "fit": lambda model=model, layers=layers: pu.ProximalEncoder(model, layers),
            "fit, gram form": lambda model=model, layers=layers: pu.ProximalEncoder(
                model, layers, form="gram"
            ),
            "fit, the paper's": lambda model=model, layers=layers: pu.ProximalEncoder(
                model, layers, "free", momentum=False
            ),
        }
        contenders = [Contender("textbook", textbook(model, x, layers, 20), 20)]
        contenders += [Contender(name, *fit(build, x)) for name, build in builds.items()]
        compete(contenders, rounds)
        for contender in contenders:
            ratio = contenders[0].microseconds / contender.microseconds
            ms, spread = f"{contender.microseconds / 1000:.2f}", f"{100 * contender.spread:.0f} %"
            rows.append(
                [f"{atoms} atoms, T={layers}: {contender.name}", ms, spread, f"{ratio:.2f}"]
            )
    table("One training step", ["contender", "ms/step", "spread", "x textbook"], rows)


def streams(rounds: int) -> None:
    rows = []
    for atoms, layers in SIZES:
        model, x = problem(atoms)
        learner = pu.OnlineLearner(pu.ProximalEncoder(model, layers))
        learner.partial_fit(x[:2000])
        contender = Contender(
            "learner", lambda learner=learner, x=x: learner.partial_fit(x[:200]), 200
        )
        compete([contender], rounds)
        us, spread = f"{contender.microseconds:.0f}", f"{100 * contender.spread:.0f} %"
        rows.append([f"{atoms} atoms, T={layers}", us, spread])
    table("OnlineLearner, defaults", ["encoder", "us/sample", "spread"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--learners-only", action="store_true")
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    with threads(1):
        if not arguments.learners_only:
            steps(arguments.rounds)
        streams(arguments.rounds)


if __name__ == "__main__":
    main()
