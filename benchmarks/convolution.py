"""A causal convolutional encoder without torch, frame by frame and in blocks, against eager torch.

    python benchmarks/convolution.py [--rounds 15]

Frames of 176 entries and their running mean, atoms of 16 with stride 4 at 41 positions, 32 atoms,
5 layers whose couplings cover 2 x 3 positions with growing dilation, a memory of the codes before
the last layer. Weights and signals are random, which does not matter for the time: a product is
skipped only where all codes are zero, and about a third of them are not. "torch" is the same
encoder by F.conv2d, without gradients: it joins each block to the frames that a layer still needs.
"product" is the matrix product of one coupling at all positions of a frame, times the number of
multiplications of the encoder: what is left is the cost of everything else. One thread, float32.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from contest import CONSOLE, Contender, compete, machine, table, threads
from torch import Tensor

from pursuit.runtime import CompiledConvolution
from pursuit.runtime.convolution import ConvolutionProgram

SIDE, ATOMS, KERNEL, STRIDE, WINDOW = 176, 32, 16, 4, 3
AVERAGE, MEMORY = 0.94, 4
STEPS = ((1, 1), (2, 3), (4, 6), (8, 12))
TAPS = (2, 3)
#: frames of a block, and of a whole signal
BLOCK, PLANE = 64, 512

Array = np.ndarray[Any, Any]


def random_program(rng: np.random.Generator) -> ConvolutionProgram:
    def normal(*sides: int) -> Array:
        entries = np.prod(sides[1:])
        return (rng.standard_normal(sides) / np.sqrt(entries)).astype(np.float32)

    positions = (SIDE - KERNEL) // STRIDE + 1
    return ConvolutionProgram(
        shape=(PLANE, SIDE),
        channels=1,
        kernel=(1, KERNEL),
        stride=(1, STRIDE),
        dilation=(1, 1),
        causal=True,
        averages=(AVERAGE,),
        weight=normal(ATOMS, 2, WINDOW, KERNEL),
        offset=0.1 * normal(ATOMS, 1, positions),
        couplings=tuple(normal(ATOMS, ATOMS, *TAPS) for _ in STEPS),
        coupling_dilations=STEPS,
        soft=np.full((1 + len(STEPS), ATOMS), 0.3, np.float32),
        negative=np.zeros(ATOMS, np.float32),
        memory=MEMORY,
        recall=normal(ATOMS, ATOMS),
        decays=np.linspace(0.73, 0.98, ATOMS, dtype=np.float32),
        dictionary=normal(ATOMS, KERNEL),
    )


class Mean:
    """Running means of blocks (1, channels, frames, side), one decay for each channel."""

    def __init__(self, decays: Tensor) -> None:
        lags = torch.arange(BLOCK)[:, None] - torch.arange(-1, BLOCK)
        powers = decays.double()[:, None, None] ** lags.clamp_min(0)
        self.powers = powers * (lags >= 0)  # the first column is that of the mean so far
        self.mean, self.total = torch.zeros(1, len(decays), 1, 1), torch.zeros(len(decays))

    def push(self, v: Tensor) -> Tensor:
        frames = v.shape[2]
        weights = self.powers[:, :frames, : 1 + frames].clone()
        weights[:, :, 0] *= self.total[:, None]
        totals = weights.sum(dim=2)
        weights = (weights / totals[:, :, None]).float()
        means = weights @ torch.cat([self.mean.expand(-1, -1, 1, v.shape[3]), v], dim=2)
        self.mean, self.total = means[:, :, -1:], totals[:, -1]
        return means


class Eager:
    """The encoder in torch; blocks have up to `BLOCK` frames."""

    def __init__(self, program: ConvolutionProgram) -> None:
        arrays = {name: torch.from_numpy(a) for name, a in program.arrays().items()}
        self.weight, self.offset, self.recall = (
            arrays[name] for name in ("weight", "offset", "recall")
        )
        self.couplings = [torch.from_numpy(a) for a in program.couplings]
        self.soft = [row[:, None, None] for row in arrays["soft"]]
        side = program.positions[1]
        self.signal = torch.zeros(1, 2, WINDOW - 1, SIDE)
        self.codes = [torch.zeros(1, ATOMS, d * (TAPS[0] - 1), side) for d, _ in STEPS]
        self.means = Mean(torch.tensor([AVERAGE])), Mean(arrays["decays"])

    def push(self, frames: Array) -> Array:
        x = torch.from_numpy(frames)[None, None]
        u = torch.cat([self.signal, torch.cat([x, self.means[0].push(x)], dim=1)], dim=2)
        self.signal = u[:, :, u.shape[2] - WINDOW + 1 :]
        b = F.conv2d(u, self.weight, stride=(1, STRIDE)) + self.offset
        z = torch.relu(b - self.soft[0])
        for number, (kernel, steps) in enumerate(zip(self.couplings, STEPS, strict=True)):
            if number + 1 == MEMORY:
                b = b + F.conv2d(self.means[1].push(z), self.recall[:, :, None, None])
            past = torch.cat([self.codes[number], z], dim=2)
            self.codes[number] = past[:, :, past.shape[2] - self.codes[number].shape[2] :]
            padding = (0, steps[1] * (TAPS[1] // 2))
            v = b + F.conv2d(past, kernel, padding=padding, dilation=steps)
            z = torch.relu(v - self.soft[number + 1])
        codes: Array = z[0].transpose(0, 1).flatten(1).numpy()
        return codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    CONSOLE.print(machine())
    rng = np.random.default_rng(0)
    program = random_program(rng)
    compiled = CompiledConvolution(program, threads=1)
    x = np.abs(rng.standard_normal((PLANE, SIDE))).astype(np.float32)
    blocks = np.split(x, PLANE // BLOCK)

    def encode(coder: Any, size: int) -> Array:
        return np.concatenate([coder.push(x[n : n + size]) for n in range(0, PLANE, size)])

    positions = program.positions[1]
    taps = np.ones((positions, ATOMS * TAPS[0] * TAPS[1]), np.float32)
    matrix = np.ones((taps.shape[1], ATOMS), np.float32)
    product = np.empty((positions, ATOMS), np.float32)
    share = compiled.program.multiplications / matrix.size

    def multiply() -> None:
        for _ in range(PLANE):
            np.matmul(taps, matrix, out=product)

    with threads(1), torch.no_grad():
        stream, eager = compiled.stream(), Eager(program)
        pairs = {
            "one frame": (lambda: encode(stream, 1), lambda: encode(eager, 1)),
            f"{BLOCK} frames": (lambda: encode(stream, BLOCK), lambda: encode(eager, BLOCK)),
        }
        contenders = [Contender("product", multiply, PLANE)]
        for name, runs in pairs.items():
            for who, run in zip(("pursuit", "torch"), runs, strict=True):
                contenders.append(Contender(f"{name}, {who}", run, PLANE))
        contenders.append(Contender("whole signal, pursuit", lambda: compiled(x.ravel()), PLANE))
        compete(contenders, rounds)
        fresh = compiled.stream(), Eager(program)
        ours, theirs = (np.concatenate([c.push(block) for block in blocks]) for c in fresh)
    times = {contender.name: contender for contender in contenders}
    rows = []
    for name, contender in times.items():
        other = times.get(name.replace("pursuit", "torch"))
        ratio = (
            ""
            if other in (None, contender)
            else f"{other.microseconds / contender.microseconds:.1f}"
        )
        us = contender.microseconds * (share if name == "product" else 1.0)
        rows.append([name, f"{us:.0f}", f"{100 * contender.spread:.0f} %", ratio])
    table(
        f"one frame of {SIDE} entries, {ATOMS} atoms at {positions} positions, one thread",
        ["contender", "us/frame", "spread", "torch / pursuit"],
        rows,
    )
    difference = np.abs(ours - theirs).max() / np.abs(theirs).max()
    CONSOLE.print(
        f"largest difference {difference:.1e} of the largest code; "
        f"{100 * np.mean(ours != 0):.0f} % of the codes are not zero"
    )


if __name__ == "__main__":
    main()
