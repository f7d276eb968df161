"""The compiled kernels: how they are found, and that all instruction sets compute the same."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from fuzz_kernels import KERNELS, fuzz
from pursuit import _native

#: the instruction sets that this machine can run
SETS = tuple(_native.kernels.instruction_sets())


def lasso(dtype: type = np.float32, rows: int = 20) -> dict[str, Any]:
    """The arguments of a call of `active_set`."""
    rng = np.random.default_rng(0)
    x, atoms = rng.standard_normal((rows, 16)), rng.standard_normal((24, 16)) / 4
    x, atoms = x.astype(dtype), atoms.astype(dtype)
    gram = atoms.astype(float) @ atoms.astype(float).T
    return {
        "x": x, "c": x @ atoms.T, "gram": gram.astype(dtype), "exact_gram": gram, "atoms": atoms,
        "lam": np.full(24, 0.3), "ridge": np.zeros(24), "nonnegative": False, "tol": 1e-6,
        "max_iter": 100, "rounding": 1e-15, "warm": False, "codes": np.zeros((rows, 24), dtype),
        "objective": np.empty(rows), "gap": np.empty(rows), "iterations": np.empty(rows, np.int64),
    }  # fmt: skip


def in_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("name", SETS)
def test_an_instruction_set_can_be_forced(name: str) -> None:
    code = "from pursuit import _native; print(_native.instruction_set, _native.kernels.__name__)"
    done = in_process(code, PURSUIT_INSTRUCTION_SET=name)
    assert done.stdout.split() == [name, f"pursuit._native.{name}"]


def test_an_unknown_instruction_set_is_refused() -> None:
    done = in_process("import pursuit._native", PURSUIT_INSTRUCTION_SET="avx1024")
    assert "PURSUIT_INSTRUCTION_SET must be one of baseline" in done.stderr.splitlines()[-1]


def test_the_best_instruction_set_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    if _native.instruction_set == "sanitized":
        pytest.skip("the sanitized module is forced")
    baseline = importlib.import_module("pursuit._native.baseline")
    assert _native._choose(None) == SETS[-1]
    for count in range(1, len(SETS) + 1):
        monkeypatch.setattr(baseline, "instruction_sets", lambda count=count: SETS[:count])
        assert _native._choose(None) == SETS[count - 1]


def test_instruction_sets_agree() -> None:
    if len(SETS) == 1 or _native.instruction_set == "sanitized":
        pytest.skip("there is only one instruction set here")
    results = []
    for name in SETS:
        call = lasso(np.float64)
        importlib.import_module(f"pursuit._native.{name}").active_set(**call)
        results.append(call)
    first, *others = results
    assert np.abs(first["codes"]).max() > 0.1
    for other in others:
        for name in ("codes", "objective", "gap"):
            np.testing.assert_allclose(first[name], other[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("x", np.zeros((20, 15), np.float32), ValueError),
        ("c", np.zeros((19, 24), np.float32), ValueError),
        ("gram", np.zeros((24, 23), np.float32), ValueError),
        ("lam", np.ones(23), ValueError),
        ("codes", np.zeros((20, 25), np.float32), ValueError),
        ("iterations", np.zeros(19, np.int64), ValueError),
        ("iterations", np.zeros(20, np.int32), TypeError),
        ("codes", np.zeros((20, 24)), TypeError),
        ("codes", np.zeros((24, 20), np.float32).T, TypeError),
        ("x", np.zeros((20, 32), np.float32)[:, ::2], TypeError),
        ("objective", [0.0] * 20, TypeError),
    ],
)
def test_a_kernel_takes_only_what_fits(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        _native.kernels.active_set(**{**lasso(), name: value})


def test_a_kernel_does_not_write_to_read_only_memory() -> None:
    call = lasso()
    call["codes"].flags.writeable = False
    with pytest.raises(TypeError):
        _native.kernels.active_set(**call)


def test_a_kernel_takes_no_rows() -> None:
    _native.kernels.active_set(**lasso(rows=0))


def test_other_threads_run_meanwhile() -> None:
    """The interpreter's lock is released: a thread counts while a kernel runs."""
    call, counted, done = lasso(np.float64, rows=50_000), [0], threading.Event()

    def count() -> None:
        while not done.wait(1e-3):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    _native.kernels.active_set(**call)
    after = counted[0]
    done.set()
    thread.join()
    assert after > before + 2


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_extreme_calls_neither_crash_nor_write_outside(name: str) -> None:
    fuzz(name, 1000)


def test_every_kernel_is_fuzzed() -> None:
    functions = {name for name in dir(_native.kernels) if not name.startswith("_")}
    assert functions - {"instruction_sets", "Program", "ConvolutionLayers"} == set(KERNELS)
