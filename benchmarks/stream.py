"""An encoder and a dictionary that follow a stream, against encoders trained offline.

    python benchmarks/stream.py [--seeds 3] [--figure docs/images/stream.png]

Patches 8x8 of the upper halves of brick, grass and gravel, 10000 each, one texture after the other;
lam = 1, 64 atoms. The learner starts with a dictionary of the first 1000 patches and an untrained
encoder, and has the defaults of `pu.OnlineLearner`. Each chunk is measured before anything is
learned from it, and counted if it lies in the second half of its block.

Excess: mean(F - F*), F* with the same dictionary. "Offline" encoders of the same form are trained
by `pu.fit` on the whole block, the measured half included, with a dictionary of five passes over
it; "of first" is the objective of the one that was trained on the first block.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from accuracy_per_layer import top_k
from contest import CONSOLE, machine, table, threads
from torch import Tensor

import pursuit as pu
from pursuit.datasets import textures
from pursuit.encoders.encoder import Encoder
from pursuit.models import Lasso

BLOCK, CHUNK, ATOMS = 10_000, 100, 64

FORMS: dict[str, Callable[[Lasso], Encoder]] = {
    "model, top-k, T=7": lambda model: top_k(model, 7, "model"),
    "coupled, top-k, T=7": lambda model: top_k(model, 7),
    "model, T=7": lambda model: pu.ProximalEncoder(model, 7, "model"),
    "the paper's coordinate, T=4": lambda model: pu.CoordinateEncoder(model, 4),
}


@dataclass
class Curves:
    """Mean objectives of each chunk."""

    samples: list[int] = field(default_factory=list)
    online: list[float] = field(default_factory=list)
    exact: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def half(self, name: str, block: int) -> float:
        """The mean over the second half of a block."""
        chunks = BLOCK // CHUNK
        values: list[float] = getattr(self, name)
        return statistics.fmean(values[block * chunks + chunks // 2 : (block + 1) * chunks])


def value(encoder: Encoder, x: Tensor) -> Tensor:
    with torch.no_grad():
        return encoder.model.objective(x, encoder(x))


def offline(build: Callable[[Lasso], Encoder], x: Tensor, seed: int) -> Encoder:
    model = Lasso(pu.learn(x, ATOMS, 1.0, passes=5, seed=seed), 1.0)
    encoder = build(model)
    pu.fit(encoder, x, seed=seed)
    return encoder


def follow(build: Callable[[Lasso], Encoder], x: Tensor, first: Encoder, seed: int) -> Curves:
    start = pu.learn(x[:1000], ATOMS, 1.0, passes=3, seed=seed)
    learner = pu.OnlineLearner(build(Lasso(start, 1.0)), seed=seed)
    curves = Curves()
    for chunk in x.split(CHUNK):
        model = learner.encoder.model
        curves.samples.append(learner.samples)
        curves.online.append(float(value(learner.encoder, chunk).mean()))
        curves.exact.append(float(pu.solve(model, chunk).objective.mean()))
        curves.first.append(float(value(first, chunk).mean()))
        learner.partial_fit(chunk)
    CONSOLE.print(f"changes seen at {list(learner.changes)}; the true ones: {BLOCK}, {2 * BLOCK}")
    return curves


def draw(curves: Curves, title: str, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    lines = (
        ("offline on the first texture", curves.first, "#D55E00", "-"),
        ("online", curves.online, "#0072B2", "-"),
        ("exact codes, the online dictionary", curves.exact, "#000000", ":"),
    )
    for label, values, colour, style in lines:
        smooth = torch.tensor(values).unfold(0, 5, 1).mean(dim=1).tolist()
        axes.plot(
            curves.samples[4:], smooth, label=label, color=colour, linestyle=style, linewidth=1.5
        )
    for number, name in enumerate(textures.NAMES):
        axes.axvline(number * BLOCK, color="0.8", linewidth=0.8, zorder=0)
        axes.text((number + 0.5) * BLOCK, 1.0, name, ha="center", va="bottom",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set(xlabel="sample", ylabel="objective (mean of 500)", xlim=(0, 3 * BLOCK))
    axes.set_title(title, pad=18, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--forms", type=int, default=len(FORMS), help="only the first so many")
    parser.add_argument("--figure", help="where to draw the objective against the sample")
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    rows = []
    for name, build in list(FORMS.items())[: arguments.forms]:
        for seed in range(arguments.seeds):
            with threads(1):
                blocks = [
                    textures.patches(BLOCK, names=(texture,), seed=10 * seed + number)
                    for number, texture in enumerate(textures.NAMES)
                ]
                encoders = [offline(build, block, seed) for block in blocks]
                curves = follow(build, torch.cat(blocks), encoders[0], seed)
            if arguments.figure and not rows:
                draw(curves, f"a stream of three textures, {name}", arguments.figure)
            for number, (texture, block) in enumerate(zip(textures.NAMES, blocks, strict=True)):
                half, own = block[BLOCK // 2 :], encoders[number]
                best = pu.solve(own.model, half).objective
                theirs = float((value(own, half) - best).mean())
                online, exact = curves.half("online", number), curves.half("exact", number)
                entries = (online - exact, theirs, (online - exact) / theirs, online)
                numbers = [f"{entry:.3f}" for entry in entries]
                rows.append(
                    [name, f"{seed}", texture, *numbers, f"{curves.half('first', number):.3f}"]
                )
    columns = ["form", "seed", "texture", "excess", "offline", "ratio", "objective", "of first"]
    table("second half of each block", columns, rows)


if __name__ == "__main__":
    main()
