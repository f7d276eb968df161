"""How the time of compiled encoders grows with the signals, the atoms, the features, the layers.

    python benchmarks/growth.py [--quick] [--rounds 7] [--figure growth.png]

One of n, q, m and T moves at a time; the others stay at 20000 signals, 64 atoms, 64 features, 7
layers. Atoms are random of norm one; signals are combinations of eight of them on average, with
coefficients of size 1 to 2, and noise of standard deviation 0.1; lam is such that exact codes have
nine non-zeros. The encoders are the default `ProximalEncoder` and the top-k encoder of
accuracy_per_layer.py (which needs four layers, and doubles its widths above 128 atoms), both
untrained: their codes are rough, and training moves the time only as far as it moves the
non-zeros. "non-zeros" are those of the encoder's codes, "kernel" is what "auto" has chosen.

One thread, float32; memory for the codes is taken anew by every call. All points of an axis take
turns, and medians count. The exponent is the slope of log(total time) against log(value), fitted
over the upper half of the axis; the middle value of an odd number belongs to it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accuracy_per_layer import top_k
from contest import CONSOLE, Contender, compete, machine, table, threads

import pursuit as pu
from pursuit.encoders.encoder import Encoder
from pursuit.models import Lasso

SIGNALS, ATOMS, FEATURES, LAYERS = 20_000, 64, 64, 7
USED, NON_ZEROS, NOISE = 8, 9.0, 0.1
LABELS = {"n": "signals n", "q": "atoms q", "m": "features m", "T": "layers T"}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Form:
    """A kind of encoder, and how it is drawn."""

    name: str
    build: Callable[[Lasso, int], Encoder]
    least: int
    colour: str


FORMS = (
    Form("default", lambda model, layers: pu.ProximalEncoder(model, layers), 1, "#0072B2"),
    Form("top-k", top_k, 4, "#D55E00"),
)


@dataclass
class Point:
    """An encoder at one value of an axis."""

    form: Form
    value: int
    compiled: pu.runtime.Compiled
    contender: Contender

    @property
    def seconds(self) -> float:
        return statistics.median(self.contender.seconds)


def combinations(dictionary: Array, count: int, rng: np.random.Generator) -> Array:
    """Signals of USED atoms on average, and a little noise, float32."""
    atoms, features = dictionary.shape
    codes = 2 * rng.random((count, atoms), np.float32) - 1
    codes += np.sign(codes)
    codes *= rng.random((count, atoms), np.float32) < USED / atoms
    x: Array = rng.standard_normal((count, features), np.float32)
    x *= np.float32(NOISE)
    x += codes @ dictionary
    return x


def lasso(atoms: int, features: int, seed: int = 0) -> Lasso:
    """Random atoms; lam such that the exact codes of combinations have NON_ZEROS on average."""
    rng = np.random.default_rng(seed)
    dictionary = rng.standard_normal((atoms, features), np.float32)
    dictionary /= np.linalg.norm(dictionary, axis=1, keepdims=True)
    sample = torch.from_numpy(combinations(dictionary, 500, rng))
    low, high = 1e-3, float(abs(sample.numpy() @ dictionary.T).max())
    for _ in range(16):
        lam = (low * high) ** 0.5
        codes = pu.solve(Lasso(torch.from_numpy(dictionary), lam), sample, tol=1e-4).codes
        if (codes != 0).sum(dim=1).double().mean() > NON_ZEROS:
            low = lam
        else:
            high = lam
    return Lasso(torch.from_numpy(dictionary), lam)


def signals(model: Lasso, count: int) -> Array:
    return combinations(model.dictionary.numpy(), count, np.random.default_rng(1))


def exact(model: Lasso, x: Array) -> float:
    """Non-zeros of exact codes, on average over up to 1000 signals."""
    codes = pu.solve(model, torch.from_numpy(x[:1000]), tol=1e-4).codes
    return float((codes != 0).sum(dim=1).double().mean())


def points(model: Lasso, x: Array, layers: int, value: int) -> list[Point]:
    found = []
    for form in FORMS:
        if layers < form.least:
            continue
        compiled = pu.compile(form.build(model, layers), threads=1)
        assert isinstance(compiled, pu.runtime.Compiled)
        contender = Contender(form.name, lambda compiled=compiled: compiled(x), len(x))
        found.append(Point(form, value, compiled, contender))
    return found


def exponent(own: list[Point]) -> float:
    """The slope of log(seconds) against log(value) over the upper half of the values."""
    upper = own[len(own) // 2 :]
    values, seconds = [point.value for point in upper], [point.seconds for point in upper]
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def of_form(found: list[Point], form: Form) -> list[Point]:
    return [point for point in found if point.form is form]


def report(axis: str, fixed: str, found: list[Point]) -> None:
    rows = []
    for form in FORMS:
        for point in of_form(found, form):
            contender = point.contender
            non_zeros = np.count_nonzero(contender.result) / len(contender.result)
            rows.append(
                [
                    form.name,
                    str(point.value),
                    f"{contender.microseconds:.3f}",
                    f"{1e3 * point.seconds:.2f}",
                    f"{100 * contender.spread:.0f} %",
                    point.compiled.plan.many,
                    f"{non_zeros:.1f}",
                ]
            )
    columns = ["encoder", axis, "us/signal", "total ms", "spread", "kernel", "non-zeros"]
    table(f"time against the {LABELS[axis]}; {fixed}", columns, rows)
    for form in FORMS:
        own = of_form(found, form)
        upper = own[len(own) // 2 :]
        CONSOLE.print(
            f"{form.name}: total time ~ {axis}^{exponent(own):.2f} "
            f"from {axis} = {upper[0].value} to {upper[-1].value}"
        )


def draw(axes_of: dict[str, list[Point]], path: str) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    figure = Figure(figsize=(9, 6.4), layout="constrained")
    for panel, (axis, found) in zip(figure.subplots(2, 2).flat, axes_of.items(), strict=True):
        for form in FORMS:
            own = of_form(found, form)
            values = [point.value for point in own]
            panel.plot(
                values, [1e3 * point.seconds for point in own], color=form.colour, marker="o",
                markersize=4, linewidth=1.5, label=f"{form.name}: {axis}$^{{{exponent(own):.2f}}}$",
            )  # fmt: skip
        times = [1e3 * point.seconds for point in found]
        last = of_form(found, FORMS[0])[-1]
        ends = np.array([found[0].value, last.value])
        guide = 1e3 * last.seconds * ends / last.value / 2
        panel.plot(ends, guide, color="0.6", linewidth=1, linestyle=":", label="proportional")
        panel.set(xscale="log", yscale="log", xlabel=LABELS[axis], ylabel="total time, ms")
        panel.set_ylim(0.4 * min(times), max(times) * (max(times) / min(times)) ** 0.35 * 2)
        if axis != "n":
            ticks = sorted({point.value for point in found})
            panel.xaxis.set_major_locator(FixedLocator(ticks))
            panel.set_xticklabels([str(tick) for tick in ticks])
            panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=9, loc="upper left")
    figure.suptitle(
        f"compiled encoders on one thread; where not moved: n = {SIGNALS}, q = {ATOMS}, "
        f"m = {FEATURES}, T = {LAYERS}",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="shorter axes")
    parser.add_argument("--figure", help="where to draw time against n, q, m and T")
    arguments = parser.parse_args()
    quick = arguments.quick
    counts = [1000, 3000, 10_000, 30_000, 100_000] + ([] if quick else [300_000, 1_000_000])
    sizes = [32, 64, 128, 256] + ([] if quick else [512, 1024])
    widths = [16, 32, 64, 128, 256] + ([] if quick else [512, 1024])
    depths = [1, 2, 4, 8, 16, 32]
    CONSOLE.print(machine())
    axes_of: dict[str, list[Point]] = {axis: [] for axis in LABELS}

    def measure(axis: str, fixed: str) -> None:
        compete([point.contender for point in axes_of[axis]], arguments.rounds)
        report(axis, fixed, axes_of[axis])
        for point in axes_of[axis]:
            point.contender.result = None

    with threads(1):
        model = lasso(ATOMS, FEATURES)
        x = signals(model, max(counts))
        CONSOLE.print(f"n, T: lam = {model.lam:.3f}, {exact(model, x):.1f} non-zeros, exact")
        for count in counts:
            axes_of["n"] += points(model, x[:count], LAYERS, count)
        measure("n", f"q = {ATOMS}, m = {FEATURES}, T = {LAYERS}")
        x = x[:SIGNALS].copy()
        for axis, values in (("q", sizes), ("m", widths)):
            for value in values:
                size = (value, FEATURES) if axis == "q" else (ATOMS, value)
                own = lasso(*size)
                own_x = signals(own, SIGNALS)
                non_zeros = exact(own, own_x)
                CONSOLE.print(f"{axis} = {value}: lam = {own.lam:.3f}, {non_zeros:.1f} non-zeros")
                axes_of[axis] += points(own, own_x, LAYERS, value)
            other = f"m = {FEATURES}" if axis == "q" else f"q = {ATOMS}"
            measure(axis, f"n = {SIGNALS}, {other}, T = {LAYERS}")
        for depth in depths:
            axes_of["T"] += points(model, x, depth, depth)
        measure("T", f"n = {SIGNALS}, q = {ATOMS}, m = {FEATURES}")
    if arguments.figure:
        draw(axes_of, arguments.figure)


if __name__ == "__main__":
    main()
