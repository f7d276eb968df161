"""How far each kind of encoder gets before any training: mean gap against layers.

    python benchmarks/untrained.py [--figure docs/images/untrained.png]

Untrained, an encoder is its algorithm cut off after T steps, so this is also how fast the
plain iterations converge, and what training has to beat. Texture patches (lam = 1, 3000 of the
test halves; dictionaries by scikit-learn's MiniBatchDictionaryLearning on 12000 of the train
halves), with a Lasso of 64 and of 256 atoms and a HiLasso whose three groups are the textures' own
dictionaries; and robust NMF on 1000 frames of the synthetic spectrogram (257 bins, 25 atoms
learned by alternating minimisation on 3000 others, lam = 0.141, lam_star = 7.75).
The gap is F - F*, its mean divided by the mean of F* for the figures in per cent.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from contest import CONSOLE, machine, table
from reference import learn_dictionary
from torch import Tensor

import pursuit as pu
from pursuit.datasets import spectrogram, textures
from pursuit.encoders.encoder import Encoder
from pursuit.models import HiLasso, Lasso, RobustNMF, SparseModel

DEPTHS = (1, 2, 4, 7, 10, 16, 20, 50)

#: five colours that colour-blind readers can tell apart (Okabe and Ito)
OKABE_ITO = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7")

Build = Callable[[SparseModel, int], Encoder]

FORMS: dict[str, Build] = {
    "ISTA": lambda model, T: pu.ProximalEncoder(model, T, "free", momentum=False),
    "FISTA": lambda model, T: pu.ProximalEncoder(model, T),
    "CoD partial": lambda model, T: pu.CoordinateEncoder(model, T, final="partial"),
    "CoD prox": lambda model, T: pu.CoordinateEncoder(model, T),
    "top-4 partial": lambda model, T: pu.CoordinateEncoder(model, T, 4, final="partial"),
    "top-4 prox": lambda model, T: pu.CoordinateEncoder(model, T, 4),
    "BCoD partial": lambda model, T: pu.BlockCoordinateEncoder(model, T, final="partial"),
    "BCoD prox": lambda model, T: pu.BlockCoordinateEncoder(model, T),
}


def problems() -> dict[str, tuple[SparseModel, Tensor]]:
    train, test = textures.patches(4000), textures.patches(1000, "test", seed=1)
    cases: dict[str, tuple[SparseModel, Tensor]] = {
        f"Lasso, {atoms} atoms": (Lasso(learn_dictionary(train, atoms), 1.0), test)
        for atoms in (64, 256)
    }
    own = [learn_dictionary(textures.patches(4000, names=(name,)), 32) for name in textures.NAMES]
    groups = [list(range(32 * j, 32 * (j + 1))) for j in range(len(own))]
    cases["HiLasso, 3 x 32 atoms"] = (HiLasso(torch.cat(own), groups, 1.0, 0.5), test)
    frames = spectrogram.synthetic(3000, seed=0).mixture
    dictionary = spectrogram.learn_dictionary(frames, 25, 7.75, 0.141)
    unseen = spectrogram.synthetic(1000, seed=1).mixture
    cases["RNMF, 25 atoms"] = (RobustNMF(dictionary, 7.75, 0.141), unseen)
    return cases


def gaps(model: SparseModel, x: Tensor, best: Tensor) -> dict[str, list[float]]:
    """The mean gap of each form at each depth."""
    curves = {}
    for name, build in FORMS.items():
        if name.startswith("BCoD") and isinstance(model, Lasso):
            continue  # without groups, and with atoms of unit norm, it is CoD again
        with torch.no_grad():
            codes = (build(model, T)(x) for T in DEPTHS)
            curves[name] = [float((model.objective(x, z) - best).mean()) for z in codes]
    return curves


def draw(results: dict[str, tuple[dict[str, list[float]], float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    families = ("ISTA", "FISTA", "CoD", "top-4", "BCoD")
    colours = dict(zip(families, OKABE_ITO, strict=True))
    figure, axes = plt.subplots(1, len(results), figsize=(3.8 * len(results), 3.8))
    for panel, (title, (curves, optimum)) in zip(axes, results.items(), strict=True):
        for name, values in curves.items():
            family, *kind = name.split()
            panel.loglog(
                DEPTHS,
                [100 * value / optimum for value in values],
                color=colours[family],
                linestyle="--" if kind == ["partial"] else "-",
                marker="o",
                markersize=3,
                label=name,
            )
        panel.set(title=title, xlabel="layers")
        ticks = [depth for depth in DEPTHS if depth != 16]
        panel.set_xticks(ticks, map(str, ticks))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("mean gap, % of the optimum")
    handles, labels = axes[2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.set_layout_engine("constrained")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--figure", type=Path, help="where to put a picture of the curves")
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    results = {}
    for title, (model, x) in problems().items():
        model, x = model.to(torch.float64), x.double()
        best = pu.solve(model, x, tol=1e-9).objective
        optimum = float(best.mean())
        at_zero = float(model.objective(x, x.new_zeros(len(x), model.code_size)).mean())
        curves = gaps(model, x, best)
        results[title] = (curves, optimum)
        alpha = model.normalised.step_constant
        table(
            f"{title}: F* = {optimum:.2f}, F(0) = {at_zero:.2f}, alpha = {alpha:.1f}; mean gap",
            ["layers", *map(str, DEPTHS)],
            [[name, *(f"{value:.4g}" for value in values)] for name, values in curves.items()],
        )
    if arguments.figure:
        draw(results, arguments.figure)
        CONSOLE.print(f"figure: {arguments.figure}")


if __name__ == "__main__":
    main()
