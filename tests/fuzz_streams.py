"""Random attacks on streams: signals in blocks of any size against one batch.

Each attack is one random trial, which raises an error if something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pursuit as pu
from families import MODELS, problem
from pursuit.runtime.executors import EXECUTORS

Rng = np.random.Generator
Array = np.ndarray[Any, Any]


def _pick(rng: Rng, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _blocks(rng: Rng, x: Array) -> list[Array]:
    """x in blocks of random sizes, some of them empty."""
    sizes = rng.choice([0, 1, 2, 3, 5, 15, 16, 17, 64, 300, 1000], size=len(x) + 20)
    ends = np.cumsum(sizes)
    return np.split(x, ends[ends < len(x)])


def _encoder(rng: Rng) -> tuple[str, pu.ProximalEncoder | pu.CoordinateEncoder]:
    """An encoder of any family of models, or a wider one whose codes are sparse."""
    seed, layers = int(rng.integers(2**31)), int(rng.integers(1, 8))
    options: Any = {"step": _pick(rng, ["free", "coupled", "model"])}
    options["momentum"] = bool(rng.integers(2))
    if rng.random() < 0.5:
        name = _pick(rng, list(MODELS))
        model = problem(name, seed, 1, torch.float32)[0]
    else:
        q, m = int(_pick(rng, [24, 64, 128, 256])), int(_pick(rng, [8, 16, 64]))
        atoms = torch.randn(q, m, generator=torch.Generator().manual_seed(seed))
        name = f"wide lasso {q} x {m}"
        model = pu.models.Lasso(atoms / atoms.norm(dim=1, keepdim=True), float(rng.uniform(0.1, 1)))
    drawn = f"{name} {seed} {layers} {options}"
    if model.operator.identity_size == 0 and rng.random() < 0.2:
        return drawn, pu.CoordinateEncoder(model, layers, int(rng.integers(1, 4)), **options)
    return drawn, pu.ProximalEncoder(model, layers, **options)


def kernels(rng: Rng) -> None:
    """Every kernel gives a row the same bits, whatever the blocks and threads."""
    drawn, encoder = _encoder(rng)
    program = encoder.program()
    names = [name for name, kind in EXECUTORS.items() if kind.misfit(program) is None]
    x = rng.standard_normal((int(rng.integers(1, 1200)), encoder.features)).astype(np.float32)
    name = _pick(rng, names)
    compiled = pu.compile(encoder, kernel=name, threads=1)
    whole = compiled(x)
    stream = compiled.stream(int(rng.integers(1, 600)))
    streamed = np.concatenate([stream(block).copy() for block in _blocks(rng, x)])
    assert np.array_equal(streamed, whole), f"stream: {name} {drawn}"
    called = np.concatenate([compiled(block) for block in _blocks(rng, x)])
    assert np.array_equal(called, whole), f"calls: {name} {drawn}"
    threads = pu.compile(encoder, kernel=name, threads=2)(x)
    assert np.array_equal(threads, whole), f"threads: {name} {drawn}"


def chosen_kernels(rng: Rng) -> None:
    """Where the kernel is chosen, a stream equals the batch in bits or to 1e-5."""
    drawn, encoder = _encoder(rng)
    compiled = pu.compile(encoder, threads=1)
    x = rng.standard_normal((int(rng.integers(20, 1200)), encoder.features)).astype(np.float32)
    early = compiled.stream()
    whole = compiled(x)
    for stream in (early, compiled.stream()):
        streamed = np.concatenate([stream(block).copy() for block in _blocks(rng, x)])
        if stream.plan.many == stream.plan.few == compiled.plan.many:
            assert np.array_equal(streamed, whole), f"{stream.plan.many} {drawn}"
        elif not compiled.program.partial:  # which choose coefficients by comparison
            most = float(np.abs(whole).max(initial=1e-30))
            off = float(np.abs(streamed - whole).max()) / most
            assert off < 1e-5, f"{off:g} {stream.plan.many} {stream.plan.few} {drawn}"


def convolutions(rng: Rng) -> None:
    """Frames of a causal convolutional encoder in blocks against the whole plane."""
    seed, bins, frames = int(rng.integers(2**31)), int(rng.integers(4, 24)), 60
    generator = torch.Generator().manual_seed(seed)
    kernel = (1, int(rng.integers(1, 4)))
    atoms = torch.randn(int(rng.integers(1, 6)), 1, *kernel, generator=generator)
    operator = pu.operators.Convolution(atoms / atoms.norm(), (frames, bins))
    model = pu.models.SparseModel(operator, pu.penalties.L1(0.1))
    layers = int(rng.integers(1, 4))
    window = int(rng.integers(1, 5))
    encoder = pu.ConvolutionalEncoder(model, layers, causal=True, window=window)
    compiled = pu.compile(encoder)
    x = rng.standard_normal((frames, bins)).astype(np.float32)
    plane = compiled(x.reshape(1, -1)).reshape(len(atoms), frames, -1)
    whole = plane.transpose(1, 0, 2).reshape(frames, -1)
    stream = compiled.stream()
    streamed = np.concatenate([stream.push(block) for block in _blocks(rng, x)])
    off = float(np.abs(streamed - whole).max()) / float(np.abs(whole).max(initial=1e-30))
    assert off < 1e-5, f"{off:g} {seed} {bins} {kernel} {layers} {window}"


#: one random trial each; raises an error if something is wrong
ATTACKS: dict[str, Callable[[Rng], None]] = {
    "kernels": kernels,
    "chosen kernels": chosen_kernels,
    "convolutions": convolutions,
}
