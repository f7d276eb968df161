"""Dictionary learning: the time until the objective is within 2 % of the best; cost of a sample.

    python benchmarks/dictionary.py [--repeats 3] [--passes 3] [--figure docs/images/dictionary.png]

100000 patches 8x8 of the upper halves of brick, grass and gravel, lam = 1, 256 atoms, one thread.
Contenders take turns, each repeat with another seed. After every few batches a learner's
dictionary is put aside; afterwards its value is computed, mean min_z F on 5000 patches of the lower
halves with exact codes. The best value of any contender in any repeat sets the target.

SPAMS and scikit-learn are run with two batch sizes. scikit-learn takes one pass: it reaches the
target in a part of it, and more would take most of the time of this script.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from accuracy_per_layer import top_k
from contest import CONSOLE, Contender, compete, machine, table, threads
from torch import Tensor

import pursuit as pu
from pursuit.datasets import textures
from pursuit.models import Lasso

ATOMS, LAM, SAMPLES = 256, 1.0, 100_000
NEAR = 1.02

#: (seconds of learning so far, dictionary)
Snapshots = Iterator[tuple[float, Tensor]]


def ours(x: Tensor, passes: int, seed: int) -> Snapshots:
    found: list[tuple[float, Tensor]] = []
    begin = time.perf_counter()
    pu.learn(
        x, ATOMS, LAM, passes=passes, seed=seed,
        callback=lambda now: found.append((time.perf_counter() - begin, now.dictionary)),
    )  # fmt: skip
    yield from found


def spams(batch: int) -> Callable[[Tensor, int, int], Snapshots]:
    def run(x: Tensor, passes: int, seed: int) -> Snapshots:
        """Runs of growing length, each from the start, since it cannot be watched."""
        import spams as peer

        rng = np.random.default_rng(seed)
        columns = np.asfortranarray(x.numpy()[rng.permutation(len(x))].T, dtype=np.float32)
        start = np.asfortranarray(columns[:, :ATOMS] / np.linalg.norm(columns[:, :ATOMS], axis=0))
        most = passes * len(x) // batch
        for iterations in sorted({int(n) for n in np.geomspace(4, most, 24)}):
            begin = time.perf_counter()
            found = peer.trainDL(
                columns, D=start.copy(order="F"), lambda1=LAM, iter=iterations, batchsize=batch,
                mode=peer.PENALTY, numThreads=1, verbose=False,
            )  # fmt: skip
            yield time.perf_counter() - begin, torch.from_numpy(found.T.copy()).float()

    return run


def scikit(batch: int) -> Callable[[Tensor, int, int], Snapshots]:
    def run(x: Tensor, passes: int, seed: int) -> Snapshots:
        from sklearn.decomposition import MiniBatchDictionaryLearning

        rng = np.random.default_rng(seed)
        rows = x.double().numpy()
        first = rows[rng.permutation(len(rows))[:ATOMS]]
        learner = MiniBatchDictionaryLearning(
            ATOMS, alpha=LAM, batch_size=batch, fit_algorithm="cd", random_state=seed,
            dict_init=first / np.linalg.norm(first, axis=1, keepdims=True),
        )  # fmt: skip
        seconds = 0.0
        order = rng.permutation(len(rows))
        for start in range(0, len(rows) - batch + 1, batch):
            begin = time.perf_counter()
            learner.partial_fit(rows[order[start : start + batch]])
            seconds += time.perf_counter() - begin
            yield seconds, torch.from_numpy(learner.components_.copy()).float()

    return run


@dataclass
class Learner:
    name: str
    run: Callable[[Tensor, int, int], Snapshots]
    curves: list[list[tuple[float, float]]] = field(default_factory=list)

    def time_to(self, target: float) -> list[float]:
        """Seconds until the target, one entry a repeat."""
        return [
            next((seconds for seconds, value in curve if value <= target), float("inf"))
            for curve in self.curves
        ]


def value(dictionary: Tensor, test: Tensor) -> float:
    atoms = torch.nn.functional.normalize(dictionary)
    return float(pu.solve(Lasso(atoms, LAM), test, tol=1e-5).objective.mean())


def sparsely(snapshots: Snapshots, most: int = 40) -> list[tuple[float, Tensor]]:
    """Those at about equal ratios of time: all have to be judged, which takes longest."""
    found = list(snapshots)
    numbers = np.unique(np.geomspace(1, len(found), most).astype(int) - 1)
    return [found[number] for number in numbers]


def race(learners: list[Learner], x: Tensor, test: Tensor, passes: int, repeats: int) -> None:
    for learner in learners:
        next(iter(learner.run(x[:2000], 1, 0)))
    for seed in range(repeats):
        for learner in learners:
            found = sparsely(learner.run(x, passes, seed))
            learner.curves.append([(seconds, value(d, test)) for seconds, d in found])


def costs(x: Tensor) -> list[Contender]:
    """What one sample costs inside the learner, by how it is coded."""
    model = Lasso(pu.learn(x, ATOMS, LAM), LAM)
    batch = x[:512]
    encoder = top_k(model, 7, "model")
    online = pu.OnlineDictionary.of(model)
    codes = pu.solve(model, batch, tol=1e-3).codes
    learner = pu.OnlineLearner(top_k(model, 7, "model"))
    compiled, signals = pu.compile(encoder, threads=1), batch.numpy()

    def encode() -> Tensor:
        with torch.no_grad():
            return encoder(batch)

    contenders = [
        Contender("dictionary update alone", lambda: online.update(batch, codes), len(batch)),
        Contender("exact codes, gap 1e-3", lambda: pu.solve(model, batch, tol=1e-3), len(batch)),
        Contender(
            "FISTA, gap 1e-3",
            lambda: pu.solve(model, batch, "restart", tol=1e-3, max_iter=2000),
            len(batch),
        ),
        Contender("encoder, top-k, T=7, eager", encode, len(batch)),
        Contender("encoder, top-k, T=7, compiled", lambda: compiled(signals), len(batch)),
        Contender(
            "online learner: encode, update, train",
            lambda: learner.partial_fit(x[: learner.chunk]),
            learner.chunk,
        ),
    ]
    compete(contenders, rounds=9)
    return contenders


def draw(learners: list[Learner], target: float, path: str) -> None:
    """The first repeat of each."""
    panel = pu.plots.Panel(
        {learner.name: learner.curves[0] for learner in learners},
        "seconds of learning, one thread", "objective of unseen patches", log="x",
        levels={"1.02 x best": target}, markers=False,
    )  # fmt: skip
    pu.plots.panels([panel], size=(7, 4), path=path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--figure", help="where to draw the curves")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # scikit-learn's coordinate descent on rough codes
    CONSOLE.print(machine())
    x = textures.patches(SAMPLES // 3 + 1)[:SAMPLES]
    test = textures.patches(5000 // 3, "test", seed=1)
    learners = [
        Learner("pursuit", ours),
        *(Learner(f"SPAMS, batches of {n}", spams(n)) for n in (256, 512)),
        *(Learner(f"scikit-learn, batches of {n}", scikit(n)) for n in (256, 512)),
    ]
    with threads(1):
        race(learners, x, test, arguments.passes, arguments.repeats)
        coding = costs(x)
    best = min(value for learner in learners for curve in learner.curves for _, value in curve)
    target = NEAR * best
    rows = []
    reference = statistics.median(learners[0].time_to(target))
    for learner in learners:
        seconds = learner.time_to(target)
        median = statistics.median(seconds)
        lowest = min(value for curve in learner.curves for _, value in curve)
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        rows.append(
            [learner.name, f"{median:.2f}", spread, f"{median / reference:.1f}", f"{lowest:.3f}"]
        )
    columns = ["learner", "seconds", "range", "ratio", "its best"]
    table(f"time to {target:.3f}, {NEAR} times the best", columns, rows)
    columns = ["a sample inside the learner", "us"]
    table("cost", columns, [[c.name, f"{c.microseconds:.1f}"] for c in coding])
    if arguments.figure:
        quickest = [learners[0]] + [
            min(group, key=lambda one: statistics.median(one.time_to(target)))
            for group in (learners[1:3], learners[3:5])
        ]
        draw(quickest, target, arguments.figure)


if __name__ == "__main__":
    main()
