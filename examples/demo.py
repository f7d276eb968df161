"""The demonstration: exact sparse codes of real textures, with proof, and how solvers get there.

    python examples/demo.py [--output pursuit-demo]

Learns a dictionary from patches of three pictures, codes unseen patches exactly with a
certificate for each, and follows the objective over the iterations of every solver.
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.table import Table

import pursuit as pu
from pursuit.datasets import textures
from pursuit.solvers.plain import iterates

STEPS = 100
SHOWN = (1, 3, 10, 30, 100)
METHODS = {"Lasso": ("ista", "fista", "greedy"), "HiLasso": ("ista", "fista", "block_greedy")}
# colours that colour-blind readers can tell apart (Okabe and Ito)
COLOURS = {"ista": "#0072B2", "fista": "#D55E00", "greedy": "#009E73", "block_greedy": "#009E73"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("pursuit-demo"))
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()

    console.print("[bold]1.[/bold] a dictionary of 64 atoms from patches of brick, grass, gravel")
    start = time.perf_counter()
    dictionary = textures.learn_dictionary(textures.patches(4000), atoms=64)
    console.print(f"   learned in {time.perf_counter() - start:.1f} s")

    console.print("[bold]2.[/bold] exact codes of unseen patches, with certificates")
    x = textures.patches(4000, "test", seed=1)
    pairs = [[i, i + 1] for i in range(0, 64, 2)]
    models = {
        "Lasso": pu.models.Lasso(dictionary, lam=1.0),
        "group Lasso": pu.models.GroupLasso(dictionary, pairs, lam=1.4),
        "HiLasso": pu.models.HiLasso(dictionary, pairs, lam_group=0.7, lam=0.5),
    }
    table = Table("model", "solver", "us/patch", "non-zeros", "objective", "largest gap (relative)")
    for name, model in models.items():
        pu.solve(model, x[:10])  # the first call compiles
        start = time.perf_counter()
        solution = pu.solve(model, x)
        seconds = time.perf_counter() - start
        table.add_row(
            name,
            solution.method,
            f"{1e6 * seconds / len(x):.1f}",
            f"{(solution.codes != 0).sum(dim=1).float().mean():.1f}",
            f"{solution.objective.mean():.3f}",
            f"{solution.relative_gap.max():.1e}",
        )
    console.print(table)

    console.print("[bold]3.[/bold] how far the plain iterations are from the optimum (relative)")
    few = x[:1000]
    table = Table("model", "iteration", *(f"{step} steps" for step in SHOWN))
    curves = {}
    for name, methods in METHODS.items():
        model = models[name]
        best = pu.solve(model.to(torch.float64), few.double(), tol=1e-9).objective.mean()
        for method in methods:
            steps = islice(iterates(method, model, few), STEPS)
            curve = [float(model.objective(few, z).double().mean() / best - 1) for z in steps]
            curves[name, method] = curve
            table.add_row(name, method, *(f"{curve[step - 1]:.1e}" for step in SHOWN))
    console.print(table)

    picture = folder / "solvers.png"
    draw(dictionary, curves, picture)
    console.print(f"atoms and curves: {picture.resolve()}")


def draw(dictionary: torch.Tensor, curves: dict[tuple[str, str], list[float]], path: Path) -> None:
    figure, (left, *panels) = plt.subplots(1, 3, figsize=(13, 4.2), constrained_layout=True)
    sheet = torch.full((8 * 9 + 1, 8 * 9 + 1), torch.nan)
    for number, atom in enumerate(dictionary):
        row, column = divmod(number, 8)
        top, side = 9 * row + 1, 9 * column + 1
        sheet[top : top + 8, side : side + 8] = atom.reshape(8, 8) / atom.abs().max()
    left.imshow(sheet, cmap="gray", vmin=-1, vmax=1)
    left.set_title("64 atoms learned from textures")
    left.set_axis_off()
    for panel, name in zip(panels, METHODS, strict=True):
        for method in METHODS[name]:
            panel.loglog(
                range(1, STEPS + 1),
                curves[name, method],
                color=COLOURS[method],
                label=method,
                linewidth=2,
            )
        panel.set_xlabel("iterations")
        panel.set_title(f"{name} codes of 1000 unseen patches")
        panel.grid(which="major", alpha=0.3)
        panel.legend(frameon=False)
    panels[0].set_ylabel("relative gap to the optimum")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
