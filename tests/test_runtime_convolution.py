"""Convolutional programs without torch: the mathematics, streams, files and ONNX."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from processes import pursuit
from pursuit._native import kernels
from pursuit.files import Saved, read, write
from pursuit.operators import Convolution
from pursuit.runtime import CompiledConvolution, convolution, load
from pursuit.runtime import onnx as export
from pursuit.runtime.compiled import build
from pursuit.runtime.compiled import compile as compile_encoder
from pursuit.runtime.convolution import ConvolutionProgram, kernel_arrays
from pursuit.runtime.program import from_arrays

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
    """To 1e-5 of a signal's largest code in any layer, whose rounding is left in the last.

    Where thresholds leave little, what is left has the rounding of the signal itself.
    """
    layers = iterates(program, x)
    expected = layers[-1].flatten(1).numpy()
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    sizes = torch.stack([z.flatten(1).abs().amax(dim=1) for z in layers]).amax(dim=0).numpy()
    error = np.abs(found - expected).max(axis=1)
    rounding = 4 * np.finfo(np.float32).eps * np.abs(x).max(axis=1, initial=0)
    assert (error <= CLOSE * sizes + rounding).all(), error / sizes


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


def test_threads_change_nothing(
    program: ConvolutionProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution, "WORTH_A_THREAD", 1)
    x = signals(program, 40)
    one, three = (CompiledConvolution(program, threads=threads)(x) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def quiet(signs: str) -> ConvolutionProgram:
    """A program whose codes are zero where there is no signal and was none before."""
    program = make(
        steps=((1, 1), (3, 1), (2, 1)), averages=(), memory=3, shape=(40, 13), signs=signs
    )
    return dataclasses.replace(program, offset=np.zeros_like(program.offset))


@pytest.mark.parametrize("signs", ["nonnegative", "mixed"])
def test_codes_before_and_after_silence(signs: str) -> None:
    """Products of zeros are skipped, and only those."""
    program = quiet(signs)
    x = signals(program, 2).reshape(2, 40, 13)
    x[:, 5:20], x[:, 26:] = 0, 0
    x = x.reshape(2, -1)
    compiled = CompiledConvolution(program)
    assert_same(compiled(x), program, x)
    stream = compiled.stream()
    codes = np.concatenate([stream.push(frame[None]) for frame in x[0].reshape(40, 13)])
    assert_same(in_planes(program, codes), program, x[:1])


@pytest.mark.parametrize("signs", ["nonnegative", "mixed"])
def test_small_codes_are_not_silence(signs: str) -> None:
    program = quiet(signs)
    program = dataclasses.replace(program, soft=np.zeros_like(program.soft))
    x = np.float32(1e-6) * signals(program)
    assert_same(CompiledConvolution(program)(x), program, x)


@pytest.mark.parametrize("signs", ["nonnegative", "mixed"])
def test_silence_costs_no_products(signs: str) -> None:
    program = quiet(signs)
    for coupling in program.couplings:
        coupling[:] = np.nan
    stream = CompiledConvolution(program).stream()
    silence = np.zeros((30, 13), np.float32)
    for _ in range(3):
        assert not stream.push(silence).any()
    assert np.isnan(stream.push(silence + 1)).any()


def test_decoding_is_that_of_the_operator(program: ConvolutionProgram) -> None:
    operator = Convolution(
        torch.from_numpy(program.dictionary),
        program.shape,
        program.kernel,
        program.stride,
        program.dilation,
        program.channels,
    )
    compiled = CompiledConvolution(program)
    codes = compiled(signals(program))
    expected = operator.decode(torch.from_numpy(codes)).numpy()
    np.testing.assert_allclose(compiled.decode(codes), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(compiled.decode(codes[0]), expected[0], rtol=1e-4, atol=1e-5)
    assert compiled.decode(codes[:0]).shape == (0, program.features)
    with pytest.raises(ValueError, match=f"codes must have {program.size} columns"):
        compiled.decode(codes[:, :-1])


# ---- streams ----------------------------------------------------------------------------------

CAUSAL = [name for name, options in CASES.items() if options.get("causal", True)]


def in_frames(program: ConvolutionProgram, rows: np.ndarray, channels: int) -> np.ndarray:
    """Planes (n, channels S0 S1) as frames (S0, n, channels S1)."""
    planes = rows.reshape(len(rows), channels, program.shape[0], -1)
    return planes.transpose(2, 0, 1, 3).reshape(program.shape[0], len(rows), -1)


def in_planes(program: ConvolutionProgram, frames: np.ndarray) -> np.ndarray:
    """The codes of frames (S0, C P1) of one signal as those of a plane (1, C S0 P1)."""
    return frames.reshape(len(frames), program.atoms, -1).transpose(1, 0, 2).reshape(1, -1)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", CAUSAL)
def test_a_stream_gives_the_codes_of_the_plane(name: str, count: int) -> None:
    """In blocks of random sizes, none and one among them, for as long as the buffers slide."""
    options = {**CASES[name], "shape": (150, CASES[name].get("shape", (7, 13))[1])}
    program = make(**options)
    compiled = CompiledConvolution(program)
    x = signals(program, count)
    whole = in_frames(program, compiled(x), program.atoms)
    frames = in_frames(program, x, program.channels)
    rng = np.random.default_rng(0)
    for sizes in ([1] * 150, [150], [0, 1, 0, 70, 2, 1, 76], list(rng.integers(0, 9, 100))):
        stream = compiled.stream(signals=count)
        parts, start = [], 0
        for size in sizes:
            parts.append(stream.push(frames[start : start + size]))
            start += size
        codes = np.concatenate(parts)
        assert stream.frames == len(codes)
        np.testing.assert_array_equal(codes, whole[: len(codes)])
    if count == 1:  # the axis of the signals may be omitted
        np.testing.assert_array_equal(compiled.stream().push(frames[:, 0]), whole[:, 0])


@pytest.mark.parametrize("averages", [(0.9, 1.0), (0.5, 0.8)])
def test_a_stream_may_be_longer_than_a_plane(averages: tuple[float, ...]) -> None:
    """Also when the weights of new frames in the running means have reached their limit, 1 - d."""
    program = make(shape=(7, 13), averages=averages)
    program = dataclasses.replace(program, decays=np.linspace(0.3, 0.8, 5, dtype=np.float32))
    long = dataclasses.replace(program, shape=(600, 13))
    x = signals(long, 1)
    codes = CompiledConvolution(program).stream().push(x.reshape(600, 13))
    assert_same(in_planes(long, codes), long, x)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_stream_takes_its_memory_once() -> None:
    program = make(shape=(7, 400), atoms=60)
    stream = CompiledConvolution(program).stream()
    block = signals(program, 1).reshape(7, 400)

    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    for size in (1, 7) * 20:
        stream.push(block[:size])
    before = resident()
    for size in (1, 7) * 300:
        stream.push(block[:size])
    # the codes of all these frames would take 115 MB
    assert resident() - before < 2e7


def test_silence_does_not_become_denormal() -> None:
    """Running means that decay reach zero, and values that are almost zero are zero.

    The first layer's codes are a multiple of the running mean of the signal, the second's that of
    the mean of these codes.
    """
    program = make(
        averages=(0.6,), memory=1, steps=((1, 1),), taps=(1, 1), window=1, kernel=(1, 1),
        stride=(1, 1), atoms=2, signs="signed",
    )  # fmt: skip
    weight, recall = np.zeros_like(program.weight), np.zeros((2, 2), np.float32)
    weight[0, 1], recall[1, 0] = 1, 1
    program = dataclasses.replace(
        program,
        weight=weight,
        recall=recall,
        decays=np.full(2, 0.6, np.float32),
        offset=np.zeros_like(program.offset),
        soft=np.zeros_like(program.soft),
        couplings=tuple(map(np.zeros_like, program.couplings)),
    )
    stream = CompiledConvolution(program).stream()
    codes = [stream.push(signals(program, 1).reshape(7, 13))]
    codes.append(stream.push(np.full((3, 13), 1e-40, np.float32)))
    codes.append(stream.push(np.zeros((400, 13), np.float32)))
    values = np.concatenate(codes).reshape(410, 2, 13)
    assert (values[9] != 0).all()
    assert not values[-1].any()
    assert (np.abs(values[values != 0]) >= np.finfo(np.float32).tiny).all()


def test_a_block_that_is_refused_changes_nothing() -> None:
    program = make()
    compiled = CompiledConvolution(program)
    frames = signals(program, 1).reshape(7, 13)
    stream, other = compiled.stream(), compiled.stream()
    stream.push(frames[:3])
    other.push(frames[:3])
    bad = frames[3:].copy()
    bad[2, 1] = np.nan
    with pytest.raises(
        ValueError, match="frames contains NaN or infinite values, first in frame 5"
    ):
        stream.push(bad)
    assert stream.frames == 3
    np.testing.assert_array_equal(stream.push(frames[3:]), other.push(frames[3:]))


def test_what_cannot_be_streamed_is_refused() -> None:
    planes = CompiledConvolution(make(**CASES["two axes"]))
    with pytest.raises(ValueError, match="a stream needs a causal encoder"):
        planes.stream()
    compiled = CompiledConvolution(make())
    with pytest.raises(ValueError, match="signals must be at least 1, got 0"):
        compiled.stream(0)
    with pytest.raises(ValueError, match=r"shape \(n, 1, 13\) or \(n, 13\), got \(2, 12\)"):
        compiled.stream().push(np.ones((2, 12)))
    with pytest.raises(ValueError, match=r"shape \(n, 2, 13\), got \(2, 13\)"):
        compiled.stream(2).push(np.ones((2, 13)))
    with pytest.raises(ValueError, match=r"got \(13,\)"):
        compiled.stream().push(np.ones(13))
    with pytest.raises(TypeError, match="frames must hold real numbers"):
        compiled.stream().push(np.full((1, 13), 1j))


# ---- input ------------------------------------------------------------------------------------


def test_any_array_will_do(tmp_path: Path) -> None:
    program = make()
    compiled = CompiledConvolution(program)
    x = signals(program, 20)
    codes = compiled(x)
    np.save(tmp_path / "x.npy", x)
    for same in (
        x.astype(np.float64), x.astype(">f4"), x.tolist(), torch.from_numpy(x),
        np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2],
        np.load(tmp_path / "x.npy", mmap_mode="r"),
    ):  # fmt: skip
        np.testing.assert_allclose(compiled(same), codes, rtol=1e-6, atol=1e-7)
    assert compiled(x[:0]).shape == (0, compiled.size)
    np.testing.assert_allclose(compiled(x[0]), codes[0], rtol=CLOSE, atol=1e-6)
    assert compiled(x[0]).shape == (compiled.size,)
    out = np.empty_like(codes)
    assert compiled(x, out=out) is out
    np.testing.assert_array_equal(out, codes)
    assert compiled(np.zeros((3, compiled.features), int)).dtype == np.float32
    assert compiled.info is program.info
    assert repr(compiled) == "CompiledConvolution(features=91, size=175, layers=3)"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_signals_that_are_not_finite_are_refused(value: float) -> None:
    program = make()
    compiled = CompiledConvolution(program, threads=2)
    x = signals(program, 50).astype(np.float64)
    good = compiled(x)
    for row in (49, 30, 0):
        broken = x.copy()
        broken[row:, 3] = value
        with pytest.raises(ValueError, match=f"NaN or infinite values, first in row {row};"):
            compiled(broken)
    np.testing.assert_array_equal(compiled(x), good)


def test_what_is_not_a_batch_of_signals_is_refused() -> None:
    compiled = CompiledConvolution(make())
    with pytest.raises(ValueError, match=r"x must have shape \(n, 91\) or \(91,\), got \(3,\)"):
        compiled(np.ones(3))
    with pytest.raises(TypeError, match="x must hold real numbers"):
        compiled(np.full((1, 91), "a"))
    with pytest.raises(ValueError, match="out must be a float32 array of shape"):
        compiled(np.ones((2, 91)), out=np.empty((2, 1), np.float32))
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        CompiledConvolution(make(), threads=0)


def test_an_overflow_stays_in_its_signal() -> None:
    program = make()
    x = signals(program, 2)
    expected = CompiledConvolution(program)(x)[1]
    x[0] = 3e38
    with np.errstate(all="ignore"):
        codes = CompiledConvolution(program, threads=1)(x)
    assert not np.isfinite(codes[0]).all()
    np.testing.assert_array_equal(codes[1], expected)


# ---- files ------------------------------------------------------------------------------------


class Encoder:
    """What `compile` needs of an encoder."""

    def __init__(self, program: ConvolutionProgram) -> None:
        self._program = program

    def program(self) -> ConvolutionProgram:
        return self._program


def saved(program: ConvolutionProgram, path: Path) -> Path:
    arrays = {f"program.{name}": array for name, array in program.arrays().items()}
    write(path, arrays, program.info)
    return path


def test_a_program_returns_from_its_arrays(program: ConvolutionProgram, tmp_path: Path) -> None:
    x = signals(program)
    codes = CompiledConvolution(program)(x)
    again = from_arrays(program.arrays(), program.info)
    assert isinstance(again, ConvolutionProgram)
    assert again.form == program.form
    assert again.parts == program.parts
    assert len({id(h) for h in again.couplings}) == len({id(h) for h in program.couplings})
    loaded = load(saved(program, tmp_path / "encoder.safetensors"))
    compiled = compile_encoder(Encoder(program), threads=1)
    for encode in (CompiledConvolution(again), loaded, compiled):
        assert isinstance(encode, CompiledConvolution)
        np.testing.assert_array_equal(encode(x), codes)
    assert loaded.info["type"] == "Random"


def test_kernels_are_not_chosen() -> None:
    with pytest.raises(ValueError, match="kernel must be 'auto' for a convolutional encoder"):
        compile_encoder(Encoder(make()), kernel="dense")


RUN = """
import sys
for name in ("torch", "sklearn", "scipy", "threadpoolctl", "rich", "typer"):
    sys.modules[name] = None  # an import of it fails
import numpy as np
from pursuit.runtime import load
encode = load(sys.argv[1])
x = np.load(sys.argv[2])
np.save(sys.argv[3], encode(x))
assert encode.stream().push(x[0].reshape(7, 13)).shape == (7, encode.size // 7)
"""


def test_a_saved_encoder_runs_without_torch(tmp_path: Path) -> None:
    program = described(make())
    x = signals(program)
    np.save(tmp_path / "x.npy", x)
    saved(program, tmp_path / "encoder.safetensors")
    files = [str(tmp_path / name) for name in ("encoder.safetensors", "x.npy", "codes.npy")]
    done = subprocess.run([sys.executable, "-c", RUN, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same(np.load(tmp_path / "codes.npy"), program, x)


def test_the_command_line_runs_it(tmp_path: Path) -> None:
    program = described(make())
    x = signals(program, 4)
    model, given, codes, parts = (
        tmp_path / name for name in ("encoder.safetensors", "x.npy", "z.npy", "y.npy")
    )
    saved(program, model)
    np.save(given, x)
    for arguments in (["encode", model, given, "-o", codes], ["decode", model, codes, "-o", parts]):
        done = pursuit(*arguments)
        assert done.returncode == 0, done.stderr
    assert_same(np.load(codes), program, x)
    decoded = CompiledConvolution(program).decode(np.load(codes))
    np.testing.assert_allclose(np.load(parts), decoded, rtol=1e-4, atol=1e-5)


#: field -> a change of its array that must be noticed
CORRUPTIONS = {
    "weight": lambda a: a[:, :-1],
    "weight ": lambda a: a * np.float32(np.nan),
    "weight  ": lambda a: a[:, :, :0],
    "offset": lambda a: a[:, :, :2],
    "offset ": lambda a: a.astype(np.float64),
    "couplings.0": lambda a: a[:, :, :, :2],
    "couplings.0 ": lambda a: a[:-1],
    "couplings.0  ": lambda a: a[:, :, :0],
    "couplings.of": lambda a: a + 1,
    "couplings.of ": lambda a: a[:1],
    "couplings.of  ": lambda a: a.astype(np.float32),
    "soft": lambda a: -a - 1,
    "soft ": lambda a: a[:, :-1],
    "soft  ": lambda a: a[:0],
    "negative": lambda a: a + 2,
    "negative ": lambda a: a[:-1],
    "recall": lambda a: a[:-1],
    "decays": lambda a: a + 1,
    "decays ": lambda a: a[:-1],
    "dictionary": lambda a: a[:, :-1],
    "dictionary ": lambda a: a[:0],
    "parts": lambda a: a + 1,
    "parts ": lambda a: a - a,
    "other": lambda a: np.zeros(3),
}


@pytest.mark.parametrize("field", CORRUPTIONS)
def test_arrays_are_checked(field: str) -> None:
    program = described(make())
    arrays = program.arrays()
    name = field.strip()
    arrays[name] = np.ascontiguousarray(CORRUPTIONS[field](arrays.get(name)))
    with pytest.raises(ValueError, match=f"^{name.split('.')[0]}") as refusal:
        from_arrays(arrays, program.info)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "field", ["weight", "couplings.0", "couplings.of", "recall", "decays", "parts", "dictionary"]
)
def test_an_array_that_is_missing_is_named(field: str) -> None:
    program = described(make())
    arrays = program.arrays()
    del arrays[field]
    with pytest.raises(ValueError, match=f"^{field.split('.')[0]}"):
        from_arrays(arrays, program.info)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("shape", [7]), ("shape", [7, 2.5]), ("shape", [7, 0]), ("shape", "7x13"), ("shape", None),
        ("channels", 0), ("channels", 1.0), ("channels", True), ("kernel", [1, 99]),
        ("kernel", [2, 4]), ("stride", [2, 2]), ("stride", [1, -1]), ("dilation", [2, 1]),
        ("dilation", [0, 1]), ("causal", 1), ("causal", None), ("averages", [1.5]),
        ("averages", ["0.5"]), ("averages", 0.5), ("averages", [float("nan")]), ("memory", 0),
        ("memory", 3), ("memory", True), ("memory", "2"), ("couplings", [[1, 1]]),
        ("couplings", [[1, 1], [1]]), ("couplings", [[1, 1], 1]), ("couplings", 3),
        ("couplings", [[1, 1], [0, 1]]),
    ],
)  # fmt: skip
def test_the_description_is_checked(field: str, value: object) -> None:
    program = described(make())
    names = {"couplings": "coupling_dilations", "kernel": "(kernel|dictionary)"}
    info = {**program.info, "program": {**program.form, field: value}}
    with pytest.raises(ValueError, match=f"^{names.get(field, field)}"):
        from_arrays(program.arrays(), info)
    without = {key: entry for key, entry in program.form.items() if key != field}
    with pytest.raises(ValueError, match=f"^{field} is missing"):
        from_arrays(program.arrays(), {**program.info, "program": without})


def test_planes_have_no_past() -> None:
    program = make(**CASES["two axes"])
    memory = {"memory": 1, "recall": np.eye(5, dtype=np.float32), "decays": np.ones(5, np.float32)}
    for changes in ({"averages": (0.5,)}, memory):
        with pytest.raises(ValueError, match="must be absent unless the program is causal"):
            dataclasses.replace(program, **changes)
    even = tuple(np.zeros((5, 5, 2, 3), np.float32) for _ in program.couplings)
    with pytest.raises(ValueError, match="couplings must have odd numbers of taps"):
        dataclasses.replace(program, couplings=even)


def test_a_program_does_not_decide_how_much_memory_is_taken() -> None:
    """A small file with many frames in its weights, or distant taps, would keep gigabytes."""
    program = make()
    wide = {"shape": (7, 40_000), "offset": np.zeros((5, 1, 1), np.float32)}
    frames = np.zeros((5, 2, 3000, 4), np.float32)
    for changes in (
        {**wide, "weight": frames},
        {"coupling_dilations": ((1, 1), (1, 10**7))},
        {"coupling_dilations": ((10**7, 1), (1, 1))},
    ):
        with pytest.raises(ValueError, match="must not reach far beyond 1 x"):
            dataclasses.replace(program, **changes)
        unchecked = copy.copy(program)
        for name, value in changes.items():
            object.__setattr__(unchecked, name, value)
        with pytest.raises(ValueError, match="taps that do not reach far"):
            kernels.ConvolutionLayers(**kernel_arrays(unchecked))
    assert dataclasses.replace(program, **wide).positions[1] == 19_999


@pytest.mark.parametrize("form", [{"form": "wavelet"}, {}, None, "convolution", ["convolution"]])
def test_unknown_forms_are_refused(form: object, tmp_path: Path) -> None:
    program = described(make())
    path = saved(dataclasses.replace(program), tmp_path / "forged.safetensors")
    arrays, info = read(path)
    given = Saved(path, arrays, {**info, "program": form})
    with pytest.raises(ValueError, match=r"forged\.safetensors cannot be run: program must be"):
        build(given)


def test_a_description_of_another_program_is_refused() -> None:
    program = described(make())
    with pytest.raises(ValueError, match=r"averages of program must be \[0\.8\], got \[0\.9\]"):
        dataclasses.replace(program, averages=(0.8,))


# ---- ONNX -------------------------------------------------------------------------------------


def session(model: object):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def test_the_graph_gives_the_codes_of_the_formula(program: ConvolutionProgram) -> None:
    x = signals(program, 5)
    for opset in (13, 17, 21):
        run = session(export.graph(program, opset))
        for rows in (5, 1, 0):
            (codes,) = run.run(None, {"x": x[:rows]})
            assert_same(codes, program, x[:rows])


def test_the_newest_operators(program: ConvolutionProgram) -> None:
    """With ONNX's own interpreter, since runtimes are older."""
    import onnx
    from onnx import reference

    x = signals(program)
    run = reference.ReferenceEvaluator(export.graph(program, onnx.defs.onnx_opset_version()))
    assert_same(run.run(None, {"x": x})[0], program, x)


@settings(max_examples=30, deadline=None)
@given(programs())
def test_graphs_of_random_programs(program: ConvolutionProgram) -> None:
    x = signals(program)
    (codes,) = session(export.graph(program)).run(None, {"x": x})
    assert_same(codes, program, x)


def test_the_file_describes_itself(tmp_path: Path) -> None:
    program = described(make())
    path = saved(program, tmp_path / "encoder.safetensors")
    target = tmp_path / "encoder.onnx"
    x = signals(program)
    for encoder in (path, program, Encoder(program), CompiledConvolution(program)):
        export.export_onnx(encoder, target)
        run = session(target.read_bytes())
        assert_same(run.run(None, {"x": x})[0], program, x)
        (given,), (result,) = run.get_inputs(), run.get_outputs()
        assert (given.name, given.shape) == ("x", ["batch", program.features])
        assert (result.name, result.shape) == ("codes", ["batch", program.size])
        notes = json.loads(run.get_modelmeta().custom_metadata_map["pursuit"])
        assert notes["type"] == "Random"
        assert notes["size"] == program.size


def test_couplings_that_layers_share_are_stored_once() -> None:
    graphs = [export.graph(make(tied=tied, steps=((1, 1),) * 3)) for tied in (True, False)]
    kernels = [[c for c in g.graph.initializer if c.dims == [5, 5, 2, 3]] for g in graphs]
    assert list(map(len, kernels)) == [1, 3]
