"""The executors without Python, as a library and as WebAssembly: the same codes from one buffer."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import pursuit as pu
import test_runtime_convolution as convolutions
from pursuit.runtime import CompiledConvolution
from pursuit.runtime.executors import EXECUTORS
from pursuit.runtime.flat import flat
from test_native_runtime import FORMS, encode, random_program

STANDALONE = Path(__file__).parents[1] / "native" / "standalone"
NODE = """
import { readFileSync, writeFileSync } from "node:fs";
import { Encoder } from "%s";
const encoder = await Encoder.load(readFileSync("pursuit.wasm"), readFileSync("model.bin"));
const bytes = readFileSync("x.bin");
const signals = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
writeFileSync("codes.bin", encoder.encode(signals));
const refused = [];
try {
    const first = 7 * encoder.frameFeatures;
    encoder.push(signals.slice(0, first));
    encoder.restart();
    writeFileSync("first.bin", encoder.push(signals.slice(0, first)));
    writeFileSync("rest.bin", encoder.push(signals.slice(first)));
} catch (error) { refused.push(error.message); }
for (const wrong of [signals.slice(1), signals.map((v, i) => (i === 3 ? NaN : v))]) {
    try { encoder.encode(wrong); } catch (error) { refused.push(error.message); }
}
try { await Encoder.load(readFileSync("pursuit.wasm"), new Uint8Array(100)); }
catch (error) { refused.push(error.message); }
console.log(JSON.stringify([encoder.features, encoder.size, refused]));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library, built as the file says."""
    # that of the extra dev: its folder need not be on the path
    cmake = Path(sys.executable).with_name("cmake")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("needs a C++ compiler")
    build = tmp_path_factory.mktemp("standalone")
    for command in (["-S", STANDALONE, "-B", build], ["--build", build]):
        done = subprocess.run([cmake, *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


@pytest.fixture(scope="module")
def library(folder: Path) -> ctypes.CDLL:
    (path,) = [p for p in folder.iterdir() if p.name in ("libpursuit.so", "libpursuit.dylib")]
    library = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    library.pursuit_load.restype = pointer
    library.pursuit_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    for name in ("pursuit_features", "pursuit_size", "pursuit_free"):
        getattr(library, name).argtypes = [pointer]
    for name in ("pursuit_frame_features", "pursuit_frame_size", "pursuit_restart"):
        getattr(library, name).argtypes = [pointer]
    for name in ("pursuit_encode", "pursuit_push"):
        getattr(library, name).argtypes = [pointer, pointer, ctypes.c_int, pointer]
    return library


def run(library: ctypes.CDLL, buffer: bytes, x: np.ndarray) -> np.ndarray | None:
    """The codes of the library, None if it refuses the signals."""
    encoder = library.pursuit_load(buffer, len(buffer))
    assert encoder
    assert library.pursuit_features(encoder) == x.shape[1]
    codes = np.full((len(x), library.pursuit_size(encoder)), np.nan, np.float32)
    done = library.pursuit_encode(encoder, x.ctypes.data, len(x), codes.ctypes.data)
    library.pursuit_free(encoder)
    return codes if done else None


@pytest.mark.parametrize("form", FORMS)
def test_codes_are_those_of_the_executors(library: ctypes.CDLL, form: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        program = random_program(rng, **FORMS[form])
        x = rng.standard_normal((40, program.features)).astype(np.float32)
        broken = x.copy()
        broken[3, 0] = np.nan
        for kind in EXECUTORS.values():
            if kind.misfit(program) is not None:
                continue
            executor = kind(program)
            buffer = flat(executor.arrays(), kind.name)
            codes, expected = run(library, buffer, x), encode(executor, x)
            # compiled for another processor it rounds differently, which may decide a choice
            wrong = abs(codes - expected).max(axis=1) > 1e-5 * abs(expected).max()
            assert wrong.sum() <= (2 if program.partial else 0)
            assert run(library, buffer, broken) is None


#: convolutional programs of each kind
CONVOLUTIONS = ("stream", "early memory", "far", "tied, spread", "one layer", "two axes, spread")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutional_encoders(library: ctypes.CDLL, name: str) -> None:
    """Whole planes, and a stream in blocks of any size, which begins anew after a plane."""
    program = convolutions.make(**convolutions.CASES[name])
    compiled, x = CompiledConvolution(program), convolutions.signals(program, 3)
    expected = compiled(x)
    buffer = compiled.flat()
    found = run(library, buffer, x)
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    x[2, 1] = np.inf
    assert run(library, buffer, x) is None
    encoder = library.pursuit_load(buffer, len(buffer))
    features, size = (
        getattr(library, f"pursuit_frame_{of}")(encoder) for of in ("features", "size")
    )
    if not program.causal:
        assert features == size == 0
        assert not library.pursuit_push(encoder, x.ctypes.data, 1, found.ctypes.data)
    else:
        frames = convolutions.in_frames(program, x[:1], program.channels)
        assert frames.shape[2] == features
        for _ in range(2):
            codes = np.full((len(frames), size), np.nan, np.float32)
            for given, to in zip(np.array_split(frames, 3), np.array_split(codes, 3), strict=True):
                assert library.pursuit_push(encoder, given.ctypes.data, len(given), to.ctypes.data)
            whole = convolutions.in_frames(program, found[:1], program.atoms)
            np.testing.assert_array_equal(codes, whole[:, 0])
            library.pursuit_restart(encoder)
    library.pursuit_free(encoder)


def buffers() -> dict[str, list[bytes]]:
    """Programs of all kinds, for each executor that they fit."""
    rng = np.random.default_rng(2)
    found = {}
    for form, options in FORMS.items():
        program = random_program(rng, **options)
        fitting = [kind for kind in EXECUTORS.values() if kind.misfit(program) is None]
        found[form] = [flat(kind(program).arrays(), kind.name) for kind in fitting]
    for name in CONVOLUTIONS:
        program = convolutions.make(**convolutions.CASES[name])
        found[f"convolution, {name}"] = [CompiledConvolution(program).flat()]
    return found


BUFFERS = buffers()


@pytest.mark.parametrize("form", BUFFERS)
def test_buffers_that_are_not_valid_are_refused(library: ctypes.CDLL, form: str) -> None:
    rng = np.random.default_rng(1)
    assert not library.pursuit_load(b"", 0)
    for buffer in BUFFERS[form]:
        assert not library.pursuit_load(b"X" + buffer[1:], len(buffer))
        for size in rng.integers(0, len(buffer) - 8, 40):
            assert not library.pursuit_load(buffer[:size], int(size))


@pytest.mark.parametrize("form", BUFFERS)
def test_no_buffer_makes_the_library_read_elsewhere(library: ctypes.CDLL, form: str) -> None:
    """Sizes, indices and numbers of a buffer are replaced; it is refused, or it still runs."""
    rng = np.random.default_rng(2)
    values = [-1, 0, 1, 2, 5, 40, 10**9, 2**31, -(2**31), 2**62, -(2**63)]
    for number in range(400):
        content = np.frombuffer(bytearray(BUFFERS[form][number % len(BUFFERS[form])]), np.int64)
        if number % 4 == 0:  # any bytes, such as NaN and infinity
            places = rng.integers(8, 8 * len(content), 6)
            content.view(np.uint8)[places] = rng.integers(0, 256, 6)
        else:
            # small numbers are mostly sizes and indices
            small = np.flatnonzero(np.abs(content) < 1000)
            places = rng.choice(small[small > 0], int(rng.integers(1, 3)))
            content[places] = rng.choice(values, len(places))
        buffer = content.tobytes()
        encoder = library.pursuit_load(buffer, len(buffer))
        if not encoder:
            continue
        features, size = library.pursuit_features(encoder), library.pursuit_size(encoder)
        if max(features, size) < 1e6:
            x = np.ones((3, features), np.float32)
            codes = np.zeros((3, size), np.float32)
            library.pursuit_encode(encoder, x.ctypes.data, len(x), codes.ctypes.data)
        library.pursuit_free(encoder)


def saved_model(folder: Path) -> tuple[pu.runtime.Compiled, np.ndarray]:
    """An encoder of robust PCA from a file, and signals."""
    rng = torch.Generator().manual_seed(0)
    model = pu.models.RobustPCA(torch.randn(5, 33, generator=rng), 0.3, 0.2)
    pu.save(pu.ProximalEncoder(model, layers=4), folder / "encoder.safetensors")
    compiled = pu.runtime.load(folder / "encoder.safetensors")
    return compiled, torch.randn(20, 33, generator=rng).numpy()


def test_a_saved_model_runs_in_the_library(library: ctypes.CDLL, tmp_path: Path) -> None:
    compiled, x = saved_model(tmp_path)
    expected = compiled(x)
    assert np.abs(expected).max() > 0.5
    np.testing.assert_allclose(run(library, compiled.flat(), x), expected, atol=1e-5)


def has_wasi(out: Path) -> bool:
    """Whether clang++ can make a WebAssembly module of a C++ program."""
    clang = shutil.which("clang++")
    if clang is None:
        return False
    command = [clang, "--target=wasm32-wasi", "-nostartfiles", "-Wl,--no-entry", "-x", "c++", "-"]
    done = subprocess.run([*command, "-o", out], input="#include <climits>\n", text=True,
                          capture_output=True)  # fmt: skip
    return done.returncode == 0


@pytest.fixture(scope="module")
def run_in_node(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """A function that runs a buffer in WebAssembly and returns what was printed, and the folder."""
    node = shutil.which("node") or pytest.skip("needs Node")
    if not has_wasi(folder / "probe.wasm"):
        pytest.skip("needs clang++ with LLD and the C++ library of WASI")
    build = [Path(sys.executable).with_name("cmake"), "--build", folder, "--target", "wasm"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr

    def run_in(place: Path, buffer: bytes, x: np.ndarray) -> str:
        shutil.copy(folder / "pursuit.wasm", place)
        (place / "model.bin").write_bytes(buffer)
        (place / "x.bin").write_bytes(x.tobytes())
        (place / "run.mjs").write_text(NODE % (STANDALONE / "pursuit.mjs"))
        done = subprocess.run([node, "run.mjs"], cwd=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_in


def test_a_saved_model_runs_in_webassembly(run_in_node: Callable[..., str], tmp_path: Path) -> None:
    compiled, x = saved_model(tmp_path)
    printed = run_in_node(tmp_path, compiled.flat(), x)
    assert printed.startswith("[33,38,")
    for sentence in (
        "only causal convolutional encoders",
        "33 numbers each, got 659",
        "is not finite",
        "not one that Compiled.flat",
    ):
        assert sentence in printed
    codes = np.frombuffer((tmp_path / "codes.bin").read_bytes(), np.float32).reshape(20, 38)
    np.testing.assert_allclose(codes, compiled(x), atol=1e-5)


def test_a_stream_runs_in_webassembly(run_in_node: Callable[..., str], tmp_path: Path) -> None:
    program = convolutions.make(shape=(40, 13), memory=2)
    compiled = CompiledConvolution(program)
    (x,) = frames = convolutions.signals(program, 1)
    run_in_node(tmp_path, compiled.flat(), frames)
    parts = [(tmp_path / f"{name}.bin").read_bytes() for name in ("first", "rest")]
    codes = np.frombuffer(b"".join(parts), np.float32).reshape(40, -1)
    expected = compiled.stream().push(x.reshape(40, 13))
    np.testing.assert_allclose(codes, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    plane = np.frombuffer((tmp_path / "codes.bin").read_bytes(), np.float32)
    np.testing.assert_array_equal(codes, convolutions.in_frames(program, plane[None], 5)[:, 0])
