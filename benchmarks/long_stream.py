"""A million frames through a compiled stream: memory, time, equality with the batch, latency.

    python benchmarks/long_stream.py [--frames 1000000] [--calls 20000]

Blocks of random size, 1 to 1000 frames, each made from a seed of its own right before it is
encoded and then forgotten. Two untrained encoders: top-k Lasso (64 features, 64 atoms, 7 layers,
signals as in growth.py) and robust NMF (129 bins, 16 atoms, 10 layers, frames of random scores, 5 %
outliers and noise). Printed are the processor time of a frame and the memory of the process at ten
moments, and by how much straight lines through all blocks after the first tenth rise over the
stream. A square product (384 x 384) after each block tells how quick the machine is just then:
time in units of it hardly feels a busy machine. The codes of the last 10000 frames are kept; in
the end these frames are made again and encoded as one batch, and the last 2000 of them once more,
one at a time.

Latency: robust NMF, 513 bins, 25 atoms, 20 layers, synthetic spectrogram frames (lam_star = 7.75,
lam = 0.141), one frame a call; wall clock, and the stream's processor time, which other processes
disturb less. The stream and the eager encoders take turns: the stream
does 200 calls a turn, each eager encoder three. The first calls of a turn, which find the caches
full of what the others left, do not count; the stream's very first ones are a row of their own.
Eager: the same encoder in torch, and the paper's form (free, no momentum) with dense matrices.
One thread, float32.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accuracy_per_layer import top_k
from contest import CONSOLE, machine, table, threads
from endurance import resident
from growth import combinations, lasso

import pursuit as pu
from pursuit.datasets import spectrogram
from pursuit.encoders.encoder import Encoder
from pursuit.models import RobustNMF

LARGEST, KEPT, SINGLES, MOMENTS, SQUARE = 1000, 10_000, 2000, 10, 384
BINS, ATOMS, LAYERS = 129, 16, 10
LIVE_BINS, LIVE_ATOMS, LIVE_LAYERS, LAM_STAR, LAM = 513, 25, 20, 7.75, 0.141
#: calls a turn of the stream and of each eager encoder, and those that do not count
TURN, EAGER_TURN, WARM, EAGER_WARM = 200, 3, 5, 1
#: blocks on either side over which the square product is averaged
WINDOW = 10

Array = np.ndarray[Any, Any]
Source = Callable[[int, np.random.Generator], Array]


def lasso_case() -> tuple[Encoder, Source]:
    model = lasso(64, 64)
    dictionary = model.dictionary.numpy()
    return top_k(model, 7), lambda count, rng: combinations(dictionary, count, rng)


def robust_case() -> tuple[Encoder, Source]:
    rng = np.random.default_rng(0)
    dictionary = rng.exponential(size=(ATOMS, BINS)).astype(np.float32)

    def frames(count: int, rng: np.random.Generator) -> Array:
        scores = rng.random((count, ATOMS), np.float32)
        scores *= rng.random((count, ATOMS), np.float32) < 0.3
        x: Array = rng.random((count, BINS), np.float32)
        x *= 10 * (rng.random((count, BINS), np.float32) < 0.05)
        x += 0.1 * rng.random((count, BINS), np.float32)
        x += scores @ dictionary
        return x

    model = RobustNMF(torch.from_numpy(dictionary), 1.0, 0.3)
    return pu.ProximalEncoder(model, LAYERS), frames


def rise(positions: Array, values: Array, weights: Array) -> float:
    """The growth of a straight line through the values while the position goes from 0 to 1."""
    return float(np.polyfit(positions, values, 1, w=np.sqrt(weights))[0])


def block_sizes(frames: int) -> list[int]:
    rng = np.random.default_rng(0)
    sizes: list[int] = []
    while (left := frames - sum(sizes)) > 0:
        sizes.append(min(left, int(rng.integers(1, LARGEST + 1))))
    return sizes


def endure(title: str, encoder: Encoder, source: Source, frames: int) -> None:
    compiled = pu.compile(encoder, threads=1)
    assert isinstance(compiled, pu.runtime.Compiled)
    stream = compiled.stream()
    sizes = block_sizes(frames)
    ends = np.cumsum(sizes)

    def block(number: int) -> Array:
        return source(sizes[number], np.random.default_rng([1, number]))

    first_kept = max(0, frames - KEPT)
    kept = np.full((frames - first_kept, compiled.size), np.nan, np.float32)
    seconds, yard, memory = np.full((3, len(sizes)), np.nan)
    square = np.random.default_rng(0).random((SQUARE, SQUARE), np.float32)
    product = square @ square
    for rows in (1, LARGEST):  # so that everything is compiled
        compiled.stream()(source(rows, np.random.default_rng(0)))
    plan, bad = compiled.plan, 0
    for number, end in enumerate(ends):
        x = block(number)
        begin = time.process_time()
        codes = stream(x)
        middle = time.process_time()
        np.matmul(square, square, out=product)
        seconds[number], yard[number] = middle - begin, time.process_time() - middle
        bad += int(np.count_nonzero(~np.isfinite(codes)))
        wanted = min(len(codes), end - first_kept)
        if wanted > 0:
            start = end - wanted - first_kept
            kept[start : start + wanted] = codes[len(codes) - wanted :]
        gc.collect(0)
        memory[number] = resident()
    rows = []
    moments = -(-MOMENTS * ends // frames)  # which tenth a block ends in, from 1
    counts = np.array(sizes)
    for moment in np.unique(moments):
        own = moments == moment
        each, unit = seconds[own].sum() / counts[own].sum(), yard[own].mean()
        rows.append(
            [
                f"{ends[own][-1]}",
                f"{1e6 * each:.3f}",
                f"{1e6 * unit:.0f}",
                f"{1e3 * each / unit:.2f}",
                f"{memory[own][-1]:.2f}",
            ]
        )
    columns = ["frames", "us/frame", "product us", "frame/product, 1e-3", "memory MB"]
    table(f"{title}: {len(sizes)} blocks", columns, rows)
    later = moments > 1
    positions = ends[later] / frames
    each, weights = seconds[later] / counts[later], counts[later]
    local = np.convolve(np.pad(yard, WINDOW, "edge"), np.ones(2 * WINDOW + 1), "valid")
    times = {"processor time": each, "in units of the product": each / local[later]}
    for name, values in times.items():
        part = rise(positions, values, weights) / np.average(values, weights=weights)
        CONSOLE.print(f"growth over the stream, {name}: {100 * part:+.1f} %")
    larger = rise(positions, memory[later], np.ones(len(positions)))
    CONSOLE.print(f"growth over the stream, memory: {larger:+.3f} MB")
    CONSOLE.print(f"coefficients that were not finite: {bad}; frames counted: {stream.frames}")
    again = np.concatenate([block(n) for n, end in enumerate(ends) if end > first_kept])
    again = again[-len(kept) :]
    singles = np.stack([stream(frame).copy() for frame in again[-SINGLES:]])
    batch = compiled(again)
    for name, codes in ((f"last {len(kept)} frames", kept), ("one by one, the last", singles)):
        difference = np.abs(batch[-len(codes) :] - codes).max(axis=1) / np.abs(batch).max()
        CONSOLE.print(
            f"{name}, against one batch: largest difference {difference.max():.1e} of the largest "
            f"code; {np.count_nonzero(difference > 1e-5)} of {len(codes)} frames above 1e-5"
        )
    after = compiled.plan
    CONSOLE.print(
        f"kernels of the stream: {plan.many} for blocks, {plan.few} for few; "
        f"of the batch: {after.many}\n"
    )


@dataclass
class Caller:
    """Something called on one frame at a time, how often in a turn, and the seconds it took."""

    name: str
    call: Callable[[int], Any]
    turn: int
    warm: int
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    done: int = 0

    def take_turn(self) -> None:
        for number in range(self.warm + self.turn):
            before, begin = time.thread_time(), time.perf_counter()
            self.call(self.done)
            took, busy = time.perf_counter() - begin, time.thread_time() - before
            self.done += 1
            if number >= self.warm:
                self.seconds.append(took)
                self.processor.append(busy)
            elif number == 0:
                self.first.append(took)


def latency(calls: int) -> None:
    train = spectrogram.synthetic(1000, LIVE_BINS, seed=0).mixture
    x = spectrogram.synthetic(2000, LIVE_BINS, seed=1).mixture
    dictionary = spectrogram.learn_dictionary(train, LIVE_ATOMS, LAM_STAR, LAM)
    model = RobustNMF(dictionary, LAM_STAR, LAM)
    structured = pu.ProximalEncoder(model, LIVE_LAYERS)
    dense = pu.ProximalEncoder(model, LIVE_LAYERS, "free", momentum=False, form="gram")
    compiled = pu.compile(structured, threads=1)
    assert isinstance(compiled, pu.runtime.Compiled)
    stream = compiled.stream(1)
    frames, singles = list(x.numpy()), list(x.split(1))
    callers = [
        Caller("stream", lambda n: stream(frames[n % len(frames)]), TURN, WARM),
        Caller(
            "eager, structured, coupled",
            lambda n: structured(singles[n % len(singles)]),
            EAGER_TURN,
            EAGER_WARM,
        ),
        Caller(
            "eager, dense, free (the paper)",
            lambda n: dense(singles[n % len(singles)]),
            EAGER_TURN,
            EAGER_WARM,
        ),
    ]
    with torch.no_grad():
        for caller in callers:
            for number in range(20):
                caller.call(number)
        for _ in range(max(1, calls // TURN)):
            for caller in callers:
                caller.take_turn()
        eager = structured(x[:500]).numpy()
    wrong = np.abs(np.stack([stream(frame).copy() for frame in frames[:500]]) - eager).max()

    def row(name: str, seconds: list[float]) -> list[str]:
        microseconds = 1e6 * np.array(seconds)
        parts = np.quantile(microseconds, [0.5, 0.99, 0.999])
        ratio = float(parts[0]) / (1e6 * float(np.median(callers[0].seconds)))
        numbers = [f"{value:.1f}" for value in (*parts, microseconds.max())]
        if len(seconds) < 1000:
            numbers[2] = "-"
        return [name, str(len(seconds)), *numbers, f"{ratio:.1f}"]

    rows = [row(caller.name, caller.seconds) for caller in callers]
    rows.insert(1, row("stream, processor time", callers[0].processor))
    rows.insert(2, row("stream, first call of a turn", callers[0].first))
    columns = ["one frame a call", "calls", "median us", "99 %", "99.9 %", "longest", "ratio"]
    table(
        f"latency of robust NMF: {LIVE_BINS} bins, {len(dictionary)} atoms, {LIVE_LAYERS} layers, "
        f"kernel {compiled.plan.few}",
        columns,
        rows,
    )
    CONSOLE.print(
        f"largest difference from eager: {wrong / np.abs(eager).max():.1e} of the largest"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=20_000, help="single frames for the latency")
    arguments = parser.parse_args()
    CONSOLE.print(machine())
    with threads(1):
        endure("top-k Lasso", *lasso_case(), arguments.frames)
        endure("robust NMF", *robust_case(), arguments.frames)
        latency(arguments.calls)


if __name__ == "__main__":
    main()
