"""What a trained encoder is worth on other data: trained on one texture, tested on all three.

    python benchmarks/shift.py [--layers 7]

Patches, dictionary (of all three textures) and lam as in accuracy_per_layer.py; 20000 train patches
of one texture, 1000 test patches of each. Training by `pu.fit(encoder, x)` with nothing else set.
Gap: mean(F - F*)/mean(F*) in per cent; in brackets that of `encoder.best`, the safeguard.
"""

from __future__ import annotations

import argparse

import torch
from accuracy_per_layer import top_k
from contest import CONSOLE, machine, table, threads
from reference import learn_dictionary

import pursuit as pu
from pursuit.datasets import textures
from pursuit.encoders.encoder import Encoder
from pursuit.models import Lasso


def forms(model: Lasso, layers: int) -> dict[str, Encoder]:
    return {
        "free, no momentum (the paper)": pu.ProximalEncoder(model, layers, "free", momentum=False),
        "free, momentum": pu.ProximalEncoder(model, layers, "free"),
        "coupled, no momentum": pu.ProximalEncoder(model, layers, momentum=False),
        "coupled, momentum (default)": pu.ProximalEncoder(model, layers),
        "coupled, momentum, untied": pu.ProximalEncoder(model, layers, tied=False),
        "coupled, momentum, top-k": top_k(model, layers),
        "model, no momentum": pu.ProximalEncoder(model, layers, "model", momentum=False),
        "model, momentum": pu.ProximalEncoder(model, layers, "model"),
        "model, momentum, top-k": top_k(model, layers, "model"),
        "coordinate, prox": pu.CoordinateEncoder(model, layers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=7)
    layers = parser.parse_args().layers
    CONSOLE.print(machine())
    model = Lasso(learn_dictionary(textures.patches(4000), 64), 1.0)
    test = {name: textures.patches(1000, "test", names=(name,), seed=1) for name in textures.NAMES}
    best = {name: pu.solve(model, x, tol=1e-9).objective for name, x in test.items()}

    def gap(encoder: Encoder, name: str, safe: bool) -> float:
        with torch.no_grad():
            codes = encoder.best(test[name]) if safe else encoder(test[name])
            value = model.objective(test[name], codes).double()
        return float(100 * (value - best[name]).mean() / best[name].mean())

    for source in textures.NAMES:
        train = textures.patches(20000, names=(source,))
        rows = []
        fista = pu.ProximalEncoder(model, layers)
        entries = {"untrained FISTA": fista, **forms(model, layers)}
        for title, encoder in entries.items():
            if encoder is not fista:
                with threads(1):
                    pu.fit(encoder, train)
            values = [
                f"{gap(encoder, name, False):.2f} ({gap(encoder, name, True):.2f})"
                for name in textures.NAMES
            ]
            rows.append([title, *values])
        table(f"trained on {source}, {layers} layers: gap in % on", ["form", *textures.NAMES], rows)


if __name__ == "__main__":
    main()
