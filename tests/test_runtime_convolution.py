"""Convolutional programs without torch: the mathematics, streams, files and ONNX."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pursuit.runtime import CompiledConvolution, convolution_engine
from pursuit.runtime.convolution import ConvolutionProgram

#: relative, in float32
CLOSE = 1e-5


# ---- the mathematics, slow and obvious --------------------------------------------------------


def running_mean(v: Tensor, decays: Tensor) -> Tensor:
    """``sum_{s<=t} d^(t-s) v_s / sum_{s<=t} d^(t-s)`` along axis 2, one decay for each channel."""
    means = torch.empty_like(v)
    for t in range(v.shape[2]):
        weights = decays[:, None] ** torch.arange(t, -1, -1).to(v)
        sums = torch.einsum("cs,ncsp->ncp", weights, v[:, :, : t + 1])
        means[:, :, t] = sums / weights.sum(dim=1)[:, None]
    return means


def shrunk(program: ConvolutionProgram, v: Tensor, layer: int) -> Tensor:
    soft = torch.from_numpy(program.soft[layer]).to(v)[:, None, None]
    signed = torch.from_numpy(program.negative)[:, None, None] != 0
    both = torch.sign(v) * torch.relu(v.abs() - soft)
    return torch.where(signed, both, torch.relu(v - soft))


def iterates(program: ConvolutionProgram, x: np.ndarray) -> list[Tensor]:
    """The codes after each layer, in float64, shape (n, C, P0, P1)."""
    arrays = {name: torch.from_numpy(a).double() for name, a in program.arrays().items()}
    u = torch.from_numpy(x).double().reshape(len(x), program.channels, *program.shape)
    means = [running_mean(u, torch.full((u.shape[1],), d).to(u)) for d in program.averages]
    u = torch.cat([u, *means], dim=1)
    if program.causal:
        u = F.pad(u, (0, 0, program.weight.shape[2] - 1, 0))
    b = F.conv2d(u, arrays["weight"], stride=program.stride, dilation=program.dilation)
    b = b + arrays["offset"]
    codes = [shrunk(program, b, 0)]
    for number in range(1, len(program.soft)):
        z = codes[-1]
        if program.memory == number:
            b = b + torch.einsum(
                "cj,njtp->nctp", arrays["recall"], running_mean(z, arrays["decays"])
            )
        kernel = torch.from_numpy(program.couplings[number - 1]).double()
        steps = program.coupling_dilations[number - 1]
        frames, side = (d * (k - 1) for d, k in zip(steps, kernel.shape[2:], strict=True))
        above, below = (frames, 0) if program.causal else (frames // 2, frames // 2)
        padded = F.pad(z, (side // 2, side // 2, above, below))
        codes.append(shrunk(program, b + F.conv2d(padded, kernel, dilation=steps), number))
    return codes


def assert_same(found: np.ndarray, program: ConvolutionProgram, x: np.ndarray) -> None:
    """To 1e-5 of the largest code of the signal in any layer, whose rounding is left in the last."""
    layers = iterates(program, x)
    expected = layers[-1].flatten(1).numpy()
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    sizes = torch.stack([z.flatten(1).abs().amax(dim=1) for z in layers]).amax(dim=0).numpy()
    error = np.abs(found - expected).max(axis=1)
    assert (error <= CLOSE * np.maximum(sizes, 1.0)).all(), error / sizes


# ---- programs ---------------------------------------------------------------------------------


def make(
    seed: int = 0,
    shape: tuple[int, int] = (7, 13),
    channels: int = 1,
    kernel: tuple[int, int] = (1, 4),
    stride: tuple[int, int] = (1, 2),
    dilation: tuple[int, int] = (1, 1),
    atoms: int = 5,
    taps: tuple[int, int] = (2, 3),
    steps: tuple[tuple[int, int], ...] = ((1, 1), (2, 1)),
    tied: bool = False,
    causal: bool = True,
    window: int = 3,
    averages: tuple[float, ...] = (0.9,),
    memory: int | None = 2,
    signs: str = "nonnegative",
    positional: bool = True,
) -> ConvolutionProgram:
    """A random program whose codes neither vanish nor grow."""
    rng = np.random.default_rng(seed)

    def normal(*sides: int, size: float = 1.0) -> np.ndarray:
        return (size * rng.standard_normal(sides)).astype(np.float32)

    inputs = channels * (1 + len(averages))
    height = window if causal else kernel[0]
    weight = normal(atoms, inputs, height, kernel[1])
    weight /= math.sqrt(weight[0].size)
    size = 0.7 / math.sqrt(atoms * math.prod(taps))
    couplings = [normal(atoms, atoms, *taps, size=size) for _ in (steps[:1] if tied else steps)]
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    across = (shape[1] - extent[1]) // stride[1] + 1
    negative = {"nonnegative": np.zeros(atoms), "signed": np.ones(atoms)}
    negative["mixed"] = np.arange(atoms) % 2
    return ConvolutionProgram(
        shape=shape,
        channels=channels,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        causal=causal,
        averages=averages,
        weight=weight,
        offset=normal(atoms, 1, across if positional else 1, size=0.2),
        couplings=tuple(couplings * len(steps) if tied else couplings),
        coupling_dilations=steps,
        soft=np.abs(normal(1 + len(steps), atoms, size=0.3)),
        negative=negative[signs].astype(np.float32),
        memory=memory,
        recall=None if memory is None else normal(atoms, atoms, size=0.5 / math.sqrt(atoms)),
        decays=None if memory is None else rng.uniform(0.5, 0.99, atoms).astype(np.float32),
        dictionary=normal(atoms, channels * math.prod(kernel)),
        parts=(2, atoms - 2) if atoms > 2 else (),
    )


def described(program: ConvolutionProgram) -> ConvolutionProgram:
    info = {"kind": "encoder", "type": "Random", "program": program.form}
    return dataclasses.replace(program, info=info)


def signals(program: ConvolutionProgram, count: int = 3, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, program.features)).astype(np.float32)


PLANES = {"causal": False, "window": 1, "averages": (), "memory": None}
#: one program for each thing that a program can have
CASES: dict[str, dict[str, object]] = {
    "stream": {},
    "no means": {"averages": (), "memory": None},
    "two means": {"averages": (0.5, 0.99), "channels": 2},
    "early memory": {"memory": 1},
    "plain means": {"averages": (1.0, 0.0)},
    "one frame": {"shape": (1, 13)},
    "one tap": {"taps": (1, 1), "window": 1, "kernel": (1, 1), "stride": (1, 1)},
    "far": {"steps": ((4, 3), (9, 40)), "shape": (11, 16)},
    "signed": {"signs": "signed"},
    "mixed": {"signs": "mixed"},
    "tied": {"tied": True, "steps": ((2, 1),) * 3},
    "tied, spread": {"tied": True, "steps": ((1, 1), (3, 2), (1, 1))},
    "one layer": {"steps": (), "memory": None},
    "spread": {"dilation": (1, 3), "stride": (1, 1), "channels": 2},
    "one axis": {**PLANES, "shape": (1, 40), "taps": (1, 5)},
    "two axes": {**PLANES, "shape": (9, 11), "kernel": (3, 2), "stride": (2, 1), "taps": (3, 3)},
    "two axes, spread": {
        **PLANES,
        "shape": (12, 15),
        "kernel": (2, 3),
        "stride": (1, 3),
        "dilation": (3, 2),
        "taps": (5, 1),
        "channels": 3,
        "signs": "mixed",
        "positional": False,
    },
}  # fmt: skip


@pytest.fixture(params=CASES)
def program(request: pytest.FixtureRequest) -> ConvolutionProgram:
    return described(make(**CASES[request.param]))


sides = st.tuples(st.integers(1, 4), st.integers(1, 5))


@st.composite
def programs(draw: st.DrawFn) -> ConvolutionProgram:
    causal = draw(st.booleans())
    kernel, stride, dilation = draw(sides), draw(sides), draw(sides)
    if causal:
        kernel, stride, dilation = ((1, pair[1]) for pair in (kernel, stride, dilation))
    extra = draw(st.tuples(st.integers(0, 9), st.integers(0, 12)))
    shape = tuple(d * (k - 1) + 1 + n for k, d, n in zip(kernel, dilation, extra, strict=True))
    layers = draw(st.integers(1, 4))
    tied = draw(st.booleans())
    steps = draw(st.lists(sides, min_size=layers - 1, max_size=layers - 1))
    odd = st.sampled_from([1, 3, 5])
    means = st.lists(st.floats(0.0, 1.0), max_size=2) if causal else st.just([])
    return make(
        seed=draw(st.integers(0, 2**16)),
        shape=shape,
        channels=draw(st.integers(1, 3)),
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        atoms=draw(st.integers(1, 6)),
        taps=(draw(st.integers(1, 4) if causal else odd), draw(odd)),
        steps=tuple(steps),
        tied=tied,
        causal=causal,
        window=draw(st.integers(1, 4)),
        averages=tuple(draw(means)),
        memory=draw(st.one_of(st.none(), st.integers(1, layers - 1)))
        if causal and layers > 1
        else None,
        signs=draw(st.sampled_from(["nonnegative", "signed", "mixed"])),
        positional=draw(st.booleans()),
    )


# ---- codes ------------------------------------------------------------------------------------


def test_codes_are_those_of_the_formula(program: ConvolutionProgram) -> None:
    x = signals(program)
    codes = CompiledConvolution(program)(x)
    assert_same(codes, program, x)
    assert (codes != 0).mean() > 0.05


@settings(max_examples=60, deadline=None)
@given(programs())
def test_codes_of_random_programs(program: ConvolutionProgram) -> None:
    x = signals(program)
    assert_same(CompiledConvolution(program)(x), program, x)


@pytest.mark.parametrize("numbers", [1, 40, 1000, 30_000])
def test_tiles_of_any_size(
    program: ConvolutionProgram, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles of a part of a frame, of some frames, and of several signals."""
    x = signals(program, 7)
    monkeypatch.setattr(convolution_engine, "TILE_NUMBERS", numbers)
    assert_same(CompiledConvolution(program)(x), program, x)
