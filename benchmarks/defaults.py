"""Estimators with their defaults: the time of `fit`, parallel searches, and when an encoder pays.

`fit` is timed after a first call, which compiles. The classifier learns from one half of the digits
and is tested on the other. An encoder pays from the number of rows on at which training it and
coding with it takes less time than exact codes.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from contest import CONSOLE, machine, table, threads
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.svm import SVC

import pursuit as pu
from pursuit.datasets import textures

Array = np.ndarray[Any, Any]


def seconds(run: Callable[..., Any], *arguments: Any, repeats: int = 3) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(*arguments)
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def fits() -> None:
    """`fit` of 1000 x 64."""
    rng = np.random.default_rng(0)
    low = rng.random((1000, 8)) @ rng.random((8, 64))
    x = low + 0.05 * rng.random(low.shape)
    rows = []
    for kind in (pu.SparseCoding, pu.NMF, pu.RobustPCA, pu.RobustNMF):
        kind().fit(x)
        rows.append([kind.__name__, f"{seconds(kind().fit, x):.3f}"])
    table("fit of 1000 x 64, float64", ["estimator", "seconds"], rows)


def classifier() -> None:
    x, y = load_digits(return_X_y=True)
    halves = train_test_split(x, y, test_size=0.5, random_state=0, stratify=y)
    x_train, x_test, y_train, y_test = halves
    rows = []
    contenders: dict[str, Callable[[], Any]] = {
        "PursuitClassifier": pu.PursuitClassifier,
        "SVC": SVC,
        "LogisticRegression": lambda: LogisticRegression(max_iter=5000),
    }
    for name, make in contenders.items():
        fitted = make().fit(x_train, y_train)
        spent = seconds(make().fit, x_train, y_train)
        rows.append([name, f"{fitted.score(x_test, y_test):.4f}", f"{spent:.2f}"])
    table("digits, one half to train", ["classifier", "accuracy", "fit: seconds"], rows)


def search() -> None:
    """A grid search with one and with two jobs."""
    x = textures.patches(2000, seed=0).numpy()
    grid = {"n_components": [48, 64, 80, 96]}
    rows = []
    for jobs in (1, 2):
        run = GridSearchCV(pu.SparseCoding(lam=1.0), grid, n_jobs=jobs, cv=3)
        run.fit(x)  # starts the processes, which then stay
        rows.append([str(jobs), f"{seconds(run.fit, x):.2f}"])
    table(f"GridSearchCV of SparseCoding, {x.shape}, 12 fits", ["jobs", "seconds"], rows)


def encoders(layers: int) -> None:
    train, test = textures.patches(10_000, seed=0).numpy(), textures.patches(7000, "test").numpy()
    rows = []
    for atoms in (64, 256):
        exact = pu.SparseCoding(atoms, lam=1.0).fit(train)
        exact.transform(test)
        slow, slow_one = (seconds(exact.transform, part) for part in (test, test[:1]))
        start = time.perf_counter()
        coder = pu.SparseCoding(atoms, lam=1.0).fit(train).train_encoder(train, layers=layers)
        spent = time.perf_counter() - start
        coder.transform(test)
        quick, quick_one = (seconds(coder.transform, part) for part in (test, test[:1]))
        saved = (slow - quick) / len(test)
        rows.append(
            [
                f"{atoms} atoms",
                f"{1e6 * slow / len(test):.2f}",
                f"{1e6 * quick / len(test):.2f}",
                f"{100 * coder.gap_:.2f}",
                f"{spent:.0f}",
                f"{spent / saved / 1e6:.0f}",
                f"{1e6 * slow_one:.0f}",
                f"{1e6 * quick_one:.0f}",
            ]
        )
    columns = ["", "exact us", "encoder us", "gap %", "training s", "pays from 10^6 rows"]
    table("8x8 patches, float32", [*columns, "one row us", "encoder us"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ["fits", "classifier", "search", "encoders"]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in known:
            parser.error(f"unknown task {name!r}; choose from {', '.join(known)}")
    chosen = arguments.names or known
    CONSOLE.print(machine())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with threads(1):
            if "fits" in chosen:
                fits()
            if "classifier" in chosen:
                classifier()
            if "encoders" in chosen:
                encoders(arguments.layers)
            if "search" in chosen:
                search()


if __name__ == "__main__":
    main()
