"""A bank of encoders on scikit-learn's digits: with the hinge, without it, and logistic regression.

    python benchmarks/digits.py [--atoms 4 8 16] [--layers 3] [--seeds 5]

8x8 pictures, scaled to unit norm; half train, half test (stratified, seeded). One encoder a digit,
for a Lasso over atoms learned from that digit's training pictures; the class is that of the
smallest reconstruction error.
"""

from __future__ import annotations

import argparse

import torch
from contest import CONSOLE, machine, table, threads
from reference import learn_dictionary
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor

import pursuit as pu
from pursuit import regimes
from pursuit.models import Lasso

LAM, STEPS = 0.05, 600


def own_errors(bank: pu.EncoderBank, batch: regimes.Batch) -> Tensor:
    """The same loss without the hinge: every encoder only fits its own class."""
    return bank.errors(batch.x).gather(1, batch.targets[:, None]).mean()


def accuracy(bank: pu.EncoderBank, x: Tensor, labels: Tensor) -> float:
    with torch.no_grad():
        return float((bank.errors(x).argmin(dim=1) == labels).float().mean())


def compare(atoms: int, layers: int, seeds: int) -> None:
    data, labels = load_digits(return_X_y=True)
    x = torch.nn.functional.normalize(torch.tensor(data, dtype=torch.float32))
    y = torch.tensor(labels)
    names = ("untrained", "without the hinge", "with the hinge", "logistic regression")
    accuracies: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(seeds):
        halves = train_test_split(range(len(x)), test_size=0.5, stratify=y, random_state=seed)
        train, test = map(torch.tensor, halves)
        models = [
            Lasso(learn_dictionary(x[train][y[train] == j], atoms, LAM), LAM) for j in range(10)
        ]
        for name, regime in (
            ("untrained", None),
            ("without the hinge", own_errors),
            ("with the hinge", regimes.Discriminative()),
        ):
            encoders = [pu.ProximalEncoder(model, layers) for model in models]
            bank = pu.EncoderBank(encoders, shared=None)
            if regime is not None:
                with threads(1):
                    options = {"dictionary": "gradient", "seed": seed, "steps": STEPS}
                    pu.fit(bank, x[train], y[train], regime=regime, **options)
            accuracies[name].append(accuracy(bank, x[test], y[test]))
        peer = LogisticRegression(max_iter=2000).fit(data[train], labels[train])
        accuracies["logistic regression"].append(peer.score(data[test], labels[test]))
    table(
        f"{atoms} atoms a digit, {layers} layers: accuracy on test",
        ["classifier", "mean", "of each seed"],
        [
            [name, f"{sum(v) / len(v):.3f}", ", ".join(f"{value:.3f}" for value in v)]
            for name, v in accuracies.items()
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    for atoms in arguments.atoms:
        compare(atoms, arguments.layers, arguments.seeds)


if __name__ == "__main__":
    main()
