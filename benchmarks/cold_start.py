"""The first result of a fresh process: CPU seconds of the first and of the second call, by model.

Every case runs in a process of its own, after the imports. What the first call takes beyond the
second is the price of a cold start: libraries that load their parts late, memory, and whatever is
compiled. A wheel has everything compiled; in a source checkout run anything once before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from contest import CONSOLE, machine, table

#: imports of all cases; those of the packages below them are lazy
IMPORTS = """
import importlib, json, pkgutil, time
import numpy as np, torch
import sklearn.base
import pursuit as pu
for package in ("solvers", "runtime", "encoders", "estimators"):
    for module in pkgutil.iter_modules(importlib.import_module(f"pursuit.{package}").__path__):
        importlib.import_module(f"pursuit.{package}.{module.name}")
torch.set_num_threads(1)
rng = np.random.default_rng(0)
x = np.abs(rng.standard_normal((100, 20))).astype(np.float32)
atoms = torch.from_numpy(np.abs(rng.standard_normal((12, 20))).astype(np.float32))
groups = [list(range(i, i + 4)) for i in (0, 4, 8)]
signals = torch.from_numpy(x)
"""

MODELS = {
    "Lasso": "pu.models.Lasso(atoms, 0.3)",
    "GroupLasso": "pu.models.GroupLasso(atoms, groups, 0.3)",
    "HiLasso": "pu.models.HiLasso(atoms, groups, 0.2, 0.2)",
    "NMF": "pu.models.NMF(atoms)",
    "RobustPCA": "pu.models.RobustPCA(atoms, 0.3, 0.2)",
    "RobustNMF": "pu.models.RobustNMF(atoms, 0.3, 0.2)",
}

ESTIMATORS = {
    name: f"pu.estimators.{name}(n_components=4, transform_algorithm={{!r}}, random_state=0)"
    for name in ("SparseCoding", "NMF", "RobustPCA", "RobustNMF")
}


def cases() -> dict[str, str]:
    """What is called, by its name."""
    result = {f"solve, {name}": f"pu.solve({model}, signals)" for name, model in MODELS.items()}
    for name, model in MODELS.items():
        result[f"compiled encoder, {name}"] = (
            f"pu.compile(pu.ProximalEncoder({model}, layers=3))(x)"
        )
    for name, estimator in ESTIMATORS.items():
        exact = estimator.format("exact")
        result[f"fit and transform, {name}"] = f"{exact}.fit_transform(x)"
        learned = estimator.format("encoder")
        result[f"the same with an encoder, {name}"] = f"{learned}.fit_transform(x)"
    return result


def measure(expression: str) -> list[float]:
    """CPU seconds of two calls, the first in a fresh process."""
    code = IMPORTS + (
        f"def call():\n    return {expression}\n"
        "times = []\n"
        "for _ in range(2):\n"
        "    start = time.process_time()\n"
        "    call()\n"
        "    times.append(time.process_time() - start)\n"
        "print(json.dumps(times))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"{expression} failed:\n{done.stderr}")
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    rows = []
    for name, expression in cases().items():
        if options.only in name:
            pairs = [measure(expression) for _ in range(options.rounds)]
            first, second = min(pairs, key=lambda pair: pair[0])
            rows.append([name, f"{first:.3f}", f"{second:.3f}", f"{max(first - second, 0):.3f}"])
    CONSOLE.print(machine())
    table("CPU seconds", ["", "first call", "second call", "difference"], rows)


if __name__ == "__main__":
    main()
