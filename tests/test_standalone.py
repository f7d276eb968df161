"""The library without Python: the same codes from a program in one buffer."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pursuit.runtime.executors import EXECUTORS
from pursuit.runtime.flat import flat
from test_native_runtime import FORMS, encode, random_program

NATIVE = Path(__file__).parent.parent / "native"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    path = tmp_path_factory.mktemp("standalone") / "libpursuit.so"
    source = [f"-I{NATIVE / 'include'}", str(NATIVE / "standalone" / "encode.cpp"), "-o", str(path)]
    subprocess.run([compiler, "-std=c++17", "-O2", "-shared", "-fPIC", *source], check=True)
    library = ctypes.CDLL(str(path))
    library.pursuit_load.restype = ctypes.c_void_p
    library.pursuit_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    for name in ("pursuit_features", "pursuit_size", "pursuit_free"):
        getattr(library, name).argtypes = [ctypes.c_void_p]
    pointer = ctypes.c_void_p
    library.pursuit_encode.argtypes = [pointer, pointer, ctypes.c_int, pointer]
    return library


@pytest.mark.parametrize("form", FORMS)
def test_codes_are_those_of_the_executors(library, form):
    rng = np.random.default_rng(0)
    for _ in range(5):
        program = random_program(rng, **FORMS[form])
        x = rng.standard_normal((40, program.features)).astype(np.float32)
        for kind in EXECUTORS.values():
            if kind.misfit(program) is not None:
                continue
            executor = kind(program)
            buffer = flat(executor)
            encoder = library.pursuit_load(buffer, len(buffer))
            assert encoder
            assert library.pursuit_features(encoder) == program.features
            assert library.pursuit_size(encoder) == program.size
            codes = np.empty((len(x), program.size), np.float32)
            assert library.pursuit_encode(encoder, x.ctypes.data, len(x), codes.ctypes.data) == 1
            x[3, 0] = np.nan
            assert (
                library.pursuit_encode(encoder, x.ctypes.data, len(x), codes.copy().ctypes.data)
                == 0
            )
            x[3, 0] = 1
            assert library.pursuit_encode(encoder, x.ctypes.data, len(x), codes.ctypes.data) == 1
            library.pursuit_free(encoder)
            expected = encode(executor, x)
            # compiled for another processor it rounds differently, which may decide a choice
            wrong = abs(codes - expected).max(axis=1) > 1e-5 * abs(expected).max()
            assert wrong.sum() <= (2 if program.partial else 0)


def test_buffers_that_are_not_valid_are_refused(library):
    rng = np.random.default_rng(1)
    buffer = flat(EXECUTORS["sparse"](random_program(rng, levels=1, partial=True)))
    assert not library.pursuit_load(b"", 0)
    assert not library.pursuit_load(b"X" + buffer[1:], len(buffer))
    for size in rng.integers(0, len(buffer) - 8, 200):
        assert not library.pursuit_load(buffer[:size], int(size))
