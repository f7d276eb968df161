"""Exact codes of robust PCA and robust NMF: time per frame against relative gap.

    python benchmarks/robust.py [--frames 1000] [--rounds 5]

513 frequency bins, 25 atoms, a weak and a strong lam_star. Newton's method and FISTA on the
eliminated problem side by side, what "auto" picks, and FISTA in torch on the full problem, batched,
in the rescaled coordinates; one interleaved run, on one thread and on two.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from contest import CONSOLE, Contender, compete, machine, table, threads
from torch import Tensor

import pursuit as pu
from pursuit.datasets import spectrogram
from pursuit.models import RobustNMF, RobustPCA

BINS, ATOMS, LAM, TOL = 513, 25, 0.141, 1e-6
CASES = {"strong": 7.75, "weak": 0.05}


def full_fista(model: RobustPCA, x: Tensor, steps: int) -> Tensor:
    """FISTA on scores and outliers together, in the well-scaled coordinates."""
    inner = model.normalised
    d0, lam_star = inner.dictionary, model.lam_star / model.scale**2
    step = 1 / inner.step_constant
    low = 0.0 if isinstance(model, RobustNMF) else -torch.inf
    s = ys = x.new_zeros(len(x), len(d0))
    o = yo = torch.zeros_like(x)
    t = 1.0
    for _ in range(steps):
        residual = torch.addmm(x - yo, ys, d0, alpha=-1)
        new_s = (ys + step * (residual @ d0.T - lam_star * ys)).clamp_min(low)
        v = yo + step * residual
        new_o = (v - step * LAM).clamp_min(0) if low == 0 else v - v.clamp(-step * LAM, step * LAM)
        following = (1 + (1 + 4 * t * t) ** 0.5) / 2
        factor = (t - 1) / following
        ys, yo = new_s + factor * (new_s - s), new_o + factor * (new_o - o)
        s, o, t = new_s, new_o, following
    return torch.cat([s / model.scale, o], dim=1)


def steps_needed(model: RobustPCA, x: Tensor, best: Tensor) -> int:
    """How many steps the full FISTA needs until the mean relative gap is below TOL."""
    exact = model.to(torch.float64)
    steps = 16
    while steps < 20_000:
        codes = full_fista(exact, x.double(), steps)
        if float((exact.objective(x.double(), codes) / best - 1).mean()) <= TOL:
            return steps
        steps = int(steps * 1.25)
    return steps


def front(name: str, model: RobustPCA, x: Tensor, workers: int, rounds: int) -> None:
    exact = model.to(torch.float64)
    best = pu.solve(exact, x.double(), tol=1e-10).objective
    few = x[:200]
    steps = steps_needed(model, few, best[:200])
    contenders = [
        Contender(
            f"{method}, tol {TOL:.0e}",
            lambda method=method: pu.solve(model, x, method=method, tol=TOL),
            len(x),
        )
        for method in ("newton", "huber_fista", "auto")
    ]
    batched = Contender(
        f"torch FISTA, full problem, {steps} steps", lambda: full_fista(model, few, steps), len(few)
    )
    contenders.append(batched)
    with threads(workers):
        compete(contenders, rounds)
    rows = []
    for contender in contenders:
        result = contender.result
        codes = result.codes if isinstance(result, pu.Solution) else result
        relative = (
            exact.objective(x[: len(codes)].double(), codes.double()) / best[: len(codes)] - 1
        )
        certified = isinstance(result, pu.Solution)
        rows.append(
            [
                contender.name + (f" ({result.method})" if "auto" in contender.name else ""),
                f"{contender.microseconds:.1f}",
                f"{100 * contender.spread:.0f} %",
                str(result.iterations) if certified else str(steps),
                f"{float(relative.clamp_min(0).max()):.1e}",
                f"{float(result.relative_gap.max()):.1e}" if certified else "-",
                f"{batched.microseconds / contender.microseconds:.1f} x",
            ]
        )
    condition = np.linalg.cond((model.dictionary @ model.dictionary.T).double().numpy())
    table(
        f"{name}: {len(model.dictionary)} atoms, ||D0||^2 = {model.scale**2:.0f}, "
        f"cond(D0 D0') = {condition:.0f}, {workers} thread{'s' * (workers > 1)}",
        ["solver", "us/frame", "spread", "most steps", "worst gap", "certified", "against torch"],
        rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    train = spectrogram.synthetic(3000, BINS, seed=0).mixture
    test = spectrogram.synthetic(arguments.frames, BINS, seed=1).mixture
    for workers in (1, 2):
        for kind, title in ((RobustNMF, "RNMF"), (RobustPCA, "RPCA")):
            dictionary = spectrogram.learn_dictionary(
                train[:1000], ATOMS, CASES["strong"], LAM, nonnegative=kind is RobustNMF
            )
            for strength, lam_star in CASES.items():
                model = kind(dictionary, lam_star, LAM)
                name = f"{title}, {strength} lam_star = {lam_star:g}"
                front(name, model, test, workers, arguments.rounds)


if __name__ == "__main__":
    main()
