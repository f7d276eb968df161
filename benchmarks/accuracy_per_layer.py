"""How accurate trained encoders are, layer for layer: texture patches, defaults only.

    python benchmarks/accuracy_per_layer.py [--atoms 64 256] [--seeds 3] [--only NAME]

Patches 8x8 of scikit-image's brick, grass and gravel, zero mean, divided by max(std, 0.02), with
lam = 1; 20000 of each texture's top half train, 1000 of its bottom half test. The dictionary is
scikit-learn's MiniBatchDictionaryLearning on 4000 train patches of each. Every encoder is trained
by `pu.fit(encoder, x)` with nothing else set, on one thread.

The gap is mean(F - F*)/mean(F*) on test. Beside it: that of `encoder.best`, the part of F(0) - F*
that is left, the 99th percentile and the maximum of (F - F*)/F*, the F1 of the support, and how
many iterations of ISTA and of FISTA reach the same mean gap.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import islice

import torch
from contest import CONSOLE, machine, table, threads
from reference import learn_dictionary
from torch import Tensor

import pursuit as pu
from pursuit.datasets import textures
from pursuit.encoders.choice import coordinate_schedule
from pursuit.encoders.encoder import Encoder
from pursuit.models import Lasso
from pursuit.solvers.plain import iterates

MOST_ITERATIONS = 400

Build = Callable[[Lasso], Encoder]


def top_k(model: Lasso, layers: int, step: str = "coupled") -> Encoder:
    """Few coefficients a layer at first, all of them in the last."""
    widths = coordinate_schedule(model.code_size, layers)
    return pu.CoordinateEncoder(
        model, layers, coordinates=widths, step=step, momentum=True, final="partial"
    )


FORMS: dict[int, dict[str, Build]] = {
    64: {
        "the paper's, T=4": lambda model: pu.ProximalEncoder(model, 4, "free", momentum=False),
        "the paper's, T=7": lambda model: pu.ProximalEncoder(model, 7, "free", momentum=False),
        "coordinate, T=4": lambda model: pu.CoordinateEncoder(model, 4),
        "default, T=7": lambda model: pu.ProximalEncoder(model, 7),
        "default, T=16": lambda model: pu.ProximalEncoder(model, 16),
        "model, T=7": lambda model: pu.ProximalEncoder(model, 7, "model"),
        "model, T=16": lambda model: pu.ProximalEncoder(model, 16, "model"),
    },
    256: {
        "default, T=7": lambda model: pu.ProximalEncoder(model, 7),
        "free, T=7": lambda model: pu.ProximalEncoder(model, 7, "free"),
        "top-k coupled, T=7": lambda model: top_k(model, 7),
        "top-k model, T=7": lambda model: top_k(model, 7, "model"),
        "default, T=16": lambda model: pu.ProximalEncoder(model, 16),
        "top-k coupled, T=16": lambda model: top_k(model, 16),
        "top-k model, T=16": lambda model: top_k(model, 16, "model"),
    },
}


class Judge:
    """The test patches, their optimum, and the curves of the plain iterations."""

    def __init__(self, model: Lasso) -> None:
        self.model = model.to(torch.float64)
        self.x = textures.patches(1000, "test", seed=1)
        self.exact = pu.solve(self.model, self.x.double(), tol=1e-9)
        self.start = float((self.x.double().square().sum(dim=1) / 2).mean())
        self.curves = {
            name: [
                float((self.model.objective(self.x.double(), codes) - self.best).mean())
                for codes in islice(iterates(name, self.model, self.x.double()), MOST_ITERATIONS)
            ]
            for name in ("ista", "fista")
        }

    @property
    def best(self) -> Tensor:
        return self.exact.objective

    def row(self, encoder: Encoder) -> list[float]:
        with torch.no_grad():
            codes, safe = encoder(self.x).double(), encoder.best(self.x).double()
        excess = self.model.objective(self.x.double(), codes) - self.best
        safer = float((self.model.objective(self.x.double(), safe) - self.best).mean())
        mean, optimum = float(excess.mean()), float(self.best.mean())
        relative = (excess / self.best).sort().values
        found, true = codes != 0, self.exact.codes != 0
        f1 = 2 * (found & true).sum(dim=1) / (found.sum(dim=1) + true.sum(dim=1)).clamp_min(1)
        equal = [
            next((k for k, gap in enumerate(curve, 1) if gap <= mean), MOST_ITERATIONS)
            for curve in self.curves.values()
        ]
        return [
            100 * mean / optimum,
            100 * safer / optimum,
            100 * mean / (self.start - optimum),
            100 * float(relative[int(0.99 * len(relative))]),
            100 * float(relative[-1]),
            float(f1.mean()),
            *equal,
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, nargs="+", default=[64, 256], choices=list(FORMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="a part of the encoder's name")
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    train = textures.patches(20000)
    columns = [
        "gap % (seeds)",
        "best %",
        "valid.",
        "of F(0)-F*",
        "99th",
        "max",
        "F1",
        "ISTA",
        "FISTA",
    ]
    columns += ["steps", "s"]
    for atoms in arguments.atoms:
        model = Lasso(learn_dictionary(textures.patches(4000), atoms), 1.0)
        judge = Judge(model)
        held = textures.patches(1000, "train", seed=7)
        optimum = pu.solve(model, held).objective.mean()
        rows = []
        for name, build in FORMS[atoms].items():
            if arguments.only not in name:
                continue
            runs, seconds, checks = [], [], []
            with threads(1):
                for seed in range(arguments.seeds):
                    encoder = build(model)
                    history = pu.fit(encoder, train, seed=seed)
                    runs.append(judge.row(encoder))
                    seconds.append(history.seconds)
                    with torch.no_grad():
                        value = model.objective(held, encoder(held)).double().mean()
                    checks.append(float(100 * (value / optimum - 1)))
            gap = [run[0] for run in runs]
            mean = [sum(values) / len(values) for values in zip(*runs, strict=True)]
            rows.append(
                [
                    name,
                    f"{mean[0]:.3f} ({min(gap):.3f}-{max(gap):.3f})",
                    f"{mean[1]:.3f}",
                    f"{sum(checks) / len(checks):.3f}",
                    *(f"{value:.2g}" for value in mean[2:5]),
                    f"{mean[5]:.3f}",
                    *(f"{value:.0f}" for value in mean[6:]),
                    str(history.steps),
                    f"{max(seconds):.0f}",
                ]
            )
            CONSOLE.print(name, rows[-1][1:])
        table(f"{atoms} atoms, lam = 1, {arguments.seeds} seeds", ["encoder", *columns], rows)


if __name__ == "__main__":
    main()
