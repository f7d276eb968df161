"""Robust NMF encoders on the synthetic spectrogram: accuracy, and separation with supervision.

    python benchmarks/separation.py [--layers 7]

257 bins, 3000 frames to train and 1000 of another seed to test, 25 atoms learned by alternating
minimisation on the training frames, lam = 0.141, lam_star = 7.75. The plain iterations run in the
rescaled coordinates, in which D0 has norm 1. Gap: mean(F - F*)/mean(F*). Separation error: the
mean of ||l - l*||^2 and of ||o - o*||^2.
"""

from __future__ import annotations

import argparse
from itertools import islice

import torch
from contest import CONSOLE, machine, table, threads
from torch import Tensor

import pursuit as pu
from pursuit import regimes
from pursuit.datasets import spectrogram
from pursuit.models import RobustNMF, SparseModel
from pursuit.solvers.plain import iterates

LAM, LAM_STAR, MOST_ITERATIONS = 0.141, 7.75, 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=7)
    layers = parser.parse_args().layers
    CONSOLE.print(machine())
    train, test = (spectrogram.synthetic(n, seed=seed) for n, seed in ((3000, 0), (1000, 1)))
    dictionary = spectrogram.learn_dictionary(train.mixture, 25, LAM_STAR, LAM)
    model, x = RobustNMF(dictionary, LAM_STAR, LAM), test.mixture
    exact = pu.solve(model, x, tol=1e-9)
    best = exact.objective.mean()
    curves = {
        name: [
            float(model.objective(x, codes).double().mean() - best)
            for codes in islice(iterates(name, model, x), MOST_ITERATIONS)
        ]
        for name in ("ista", "fista")
    }

    def row(name: str, codes: Tensor, own: SparseModel, seconds: float = 0.0) -> list[str]:
        gap = float(model.objective(x, codes).double().mean() - best)
        equal = [
            next((k for k, value in enumerate(curve, 1) if value <= gap), MOST_ITERATIONS)
            for curve in curves.values()
        ]
        parts = own.split(codes)
        assert parts.low_rank is not None
        assert parts.sparse is not None
        wrong = [
            float((parts.low_rank - test.low_rank).square().sum(dim=1).mean()),
            float((parts.sparse - test.sparse).square().sum(dim=1).mean()),
        ]
        numbers = [f"{gap:.3f}", f"{100 * gap / float(best):.2f}", *map(str, equal)]
        return [name, *numbers, *(f"{value:.2f}" for value in wrong), f"{seconds:.0f}"]

    rows = [row("exact", exact.codes, model)]
    paper = {"step": "free", "momentum": False, "form": "gram"}
    targets = {"low_rank": train.low_rank, "sparse": train.sparse}
    for name, options, settings in (
        ("the paper's, untrained", paper, None),
        ("the paper's, unsupervised", paper, {}),
        ("the paper's, structured, unsupervised", {**paper, "form": "auto"}, {}),
        ("default, untrained", {}, None),
        ("default, unsupervised", {}, {}),
        ("default, supervised", {}, {"targets": targets, "regime": regimes.Supervised()}),
        (
            "default, supervised, D0 trained",
            {},
            {"targets": targets, "regime": regimes.Supervised(), "dictionary": "gradient"},
        ),
    ):
        encoder = pu.ProximalEncoder(model, layers, **options)
        seconds = 0.0
        if settings is not None:
            with threads(1):
                seconds = pu.fit(encoder, train.mixture, **settings).seconds
        with torch.no_grad():
            rows.append(row(name, encoder(x), encoder.model, seconds))
        CONSOLE.print(rows[-1])
    columns = ["encoder", "gap", "%", "ISTA its", "FISTA its", "|l-l*|^2", "|o-o*|^2", "s"]
    table(f"{layers} layers, F* = {float(best):.2f}", columns, rows)


if __name__ == "__main__":
    main()
