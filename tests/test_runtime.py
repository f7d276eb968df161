"""The runtime: the codes of torch without torch, whatever the kernel, the block or the thread."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
import tracemalloc
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch

import pursuit as pu
from families import MODELS, problem
from pursuit import _threads
from pursuit.files import read, write
from pursuit.runtime import Compiled, CompiledBank
from pursuit.runtime.executors import EXECUTORS
from pursuit.runtime.program import Program
from test_encoders import KINDS, bank_models, build, shaken

CLOSE = 1e-5


def torch_codes(encoder, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return encoder(x).numpy()


def decided(encoder, x: torch.Tensor) -> np.ndarray:
    """The rows in which no layer's choice of coefficients hangs on less than 1e-5 of itself."""
    double = copy.deepcopy(encoder).double()
    keep = torch.ones(len(x), dtype=torch.bool)
    choose = double._choose

    def watched(number, z, candidate):
        nonlocal keep
        change = (candidate if z is None else candidate - z).abs()
        width = double._width(number)
        if width is None:
            gains = change.square() * double.constants
            blocks = gains.new_zeros(len(gains), int(double.labels.max()) + 1)
            change, width = blocks.index_add(-1, double.labels, gains), 1
        if width < change.shape[1]:
            last, following = change.sort(descending=True).values[:, width - 1 : width + 1].T
            keep &= (last - following >= CLOSE * last) | (last == 0)
        return choose(number, z, candidate)

    double._choose = watched
    double(x.double())  # with gradients a batch is not cut into tiles
    return keep.numpy()


def assert_close(found: np.ndarray, expected: np.ndarray, rows: np.ndarray) -> None:
    """To 1e-5 of the row's largest coefficient, or of a usual row's where thresholds left little.

    What is left when nearly all is taken away has the rounding error of what it was taken from.
    """
    largest = np.abs(expected).max(axis=1)
    error = np.abs(found - expected).max(axis=1) / np.maximum(largest, np.median(largest))
    assert error[rows].max() < CLOSE


def possible(encoder) -> list[str]:
    return [name for name in EXECUTORS if name not in pu.compile(encoder).plan.misfits]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_codes_are_those_of_torch(kind: str, name: str) -> None:
    """Every kernel that fits, tied or not, through the matrix or the residual."""
    model, x = problem(name, 3, 70, torch.float32)
    x = 3 * x
    undecided = np.zeros(len(x), bool)
    for tied, structure in product((True, False), ("gram", "residual")):
        encoder = shaken(build(kind, model, 4, tied=tied, form=structure))
        rows = decided(encoder, x)
        expected = torch_codes(encoder, x)
        undecided |= ~rows
        for kernel in possible(encoder):
            assert_close(pu.compile(encoder, kernel=kernel)(x), expected, rows)
    assert undecided.sum() <= 1  # over all cases it is one row in ten thousand


def test_layers_that_change_several_coefficients() -> None:
    """Top-k with ties, with fewer changes than allowed, and with all coefficients."""
    model, x = problem("lasso", 4, 200, torch.float32)
    for step in ("free", "coupled", "model"):
        widths = [1, 3, 7, 12]
        encoder = shaken(
            pu.CoordinateEncoder(model, 4, widths, step, momentum=True, final="partial")
        )
        signals = 3 * x
        signals[:20] *= 0.1  # few coefficients change
        assert_close(
            pu.compile(encoder)(signals), torch_codes(encoder, signals), decided(encoder, signals)
        )
    # of changes that are equal just as many are taken as allowed
    encoder = pu.CoordinateEncoder(pu.models.Lasso(torch.eye(6), 0.5), 1, 2, final="partial")
    codes = pu.compile(encoder)(np.ones((1, 6), np.float32))
    assert (codes != 0).sum() == 2


@pytest.fixture
def ready_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are taken for any amount of work."""
    monkeypatch.setattr("pursuit.runtime.compiled.WORTH_A_THREAD", 1e-3)


@pytest.mark.usefixtures("ready_threads")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-nmf", "low-rank-sparse", "nmf"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_gives_the_codes_of_the_batch(kind: str, name: str, seed: int) -> None:
    """Blocks of 1 to 1000 signals, cut at random, on one thread or two."""
    model, x = problem(name, seed, 2500, torch.float32)
    encoder = shaken(build(kind, model, 3))
    rows = decided(encoder, x)
    compiled = pu.compile(encoder, threads=2)
    whole = compiled(x.numpy())
    assert_close(whole, torch_codes(encoder, x), rows)
    stream = compiled.stream()
    rng = np.random.default_rng(seed)
    parts, start = [], 0
    sizes = [1, 1000, 1, 15, 16, 17]
    while start < len(x):
        size = sizes.pop() if sizes else int(rng.integers(1, 1000))
        parts.append(stream(x[start : start + size].numpy()).copy())
        start += size
    assert stream.frames == len(x)
    assert_close(np.concatenate(parts), whole, rows)
    frame = stream(x[0].numpy())
    assert frame.shape == (compiled.size,)
    np.testing.assert_allclose(frame, whole[0], rtol=CLOSE, atol=CLOSE)


@pytest.mark.usefixtures("ready_threads")
def test_threads_change_nothing() -> None:
    model, x = problem("lasso", 0, 5000, torch.float32)
    encoder = pu.ProximalEncoder(model, 5)
    for kernel in ("dense", "sparse"):
        one, two = (pu.compile(encoder, threads=n, kernel=kernel)(x) for n in (1, 2))
        np.testing.assert_array_equal(one, two)


@pytest.mark.usefixtures("ready_threads")
def test_the_first_bad_row_is_named_whichever_thread_met_it(lasso: Compiled) -> None:
    x = np.ones((20_000, lasso.features), np.float32)
    for first in (19_999, 19_000, 9000, 8000, 700, 0):
        x[first, 0] = np.nan
        with pytest.raises(ValueError, match=f"first in row {first};"):
            lasso(x)


def test_threads_are_taken_where_there_is_work_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = _threads.start_new_thread
    monkeypatch.setattr(
        _threads, "start_new_thread", lambda *given: (started.append(given), start(*given))[1]
    )
    model, x = problem("lasso", 0, 16, torch.float32)
    compiled = pu.compile(pu.ProximalEncoder(model, 3), threads=3)
    compiled(x)
    started.clear()
    compiled(x)
    assert started == []
    compiled(x.repeat(20_000, 1))
    assert len(started) == 2


def trained(tmp_path: Path) -> tuple[pu.ProximalEncoder, np.ndarray]:
    model, x = problem("robust-nmf", 1, 600, torch.float32)
    encoder = pu.ProximalEncoder(model, 3)
    pu.fit(encoder, x, steps=30)
    pu.save(encoder, tmp_path / "encoder.safetensors", provenance="noise")
    return encoder, x[:50].numpy()


RUN = """
import json, sys
for name in ("torch", "numba", "sklearn", "scipy", "threadpoolctl", "rich", "typer"):
    sys.modules[name] = None  # an import of it fails
import numpy as np
from pursuit.runtime import load
encode = load(sys.argv[1])
x = np.load(sys.argv[2])
codes = encode(x)
stream = encode.stream()
np.save(sys.argv[3], codes)
np.testing.assert_allclose(stream(x[:3]), codes[:3], rtol=1e-5, atol=1e-6)
print(json.dumps(encode.info["provenance"]))
"""


def test_a_saved_encoder_runs_without_torch(tmp_path: Path) -> None:
    encoder, x = trained(tmp_path)
    np.save(tmp_path / "x.npy", x)
    files = [str(tmp_path / name) for name in ("encoder.safetensors", "x.npy", "codes.npy")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *files],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == "noise"
    expected = torch_codes(encoder, torch.from_numpy(x))
    np.testing.assert_allclose(
        np.load(tmp_path / "codes.npy"), expected, rtol=CLOSE, atol=CLOSE * np.abs(expected).max()
    )


def test_a_bank_is_compiled_too(tmp_path: Path) -> None:
    bank = pu.EncoderBank([pu.ProximalEncoder(model, 3) for model in bank_models()]).float()
    x = torch.randn(40, bank[0].model.features, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "bank.safetensors"
    pu.save(bank, path)
    expected = bank.errors(x).detach().numpy()
    for compiled in (pu.compile(bank), pu.runtime.load(path)):
        assert isinstance(compiled, CompiledBank)
        np.testing.assert_allclose(compiled.errors(x.numpy()), expected, rtol=1e-4)
        for codes, encoder in zip(compiled(x.numpy()), bank, strict=True):
            np.testing.assert_allclose(codes, torch_codes(encoder, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_decoding_is_that_of_the_model(name: str) -> None:
    model, x = problem(name, 2, 20, torch.float32)
    encoder = pu.ProximalEncoder(model, 2)
    compiled = pu.compile(encoder)
    codes = compiled(x)
    expected = model.decode(torch.from_numpy(codes)).numpy()
    np.testing.assert_allclose(compiled.decode(codes), expected, rtol=1e-4, atol=1e-5)


def test_what_is_learned_later_does_not_reach_what_was_compiled() -> None:
    model, x = problem("lasso", 0, 600, torch.float32)
    encoder = pu.ProximalEncoder(model, 3)
    compiled = pu.compile(encoder)
    before = compiled(x)
    pu.fit(encoder, x, steps=20)
    np.testing.assert_array_equal(compiled(x), before)


# ---- input ----------------------------------------------------------------------------------


@pytest.fixture
def lasso() -> Compiled:
    model, _ = problem("lasso", 0, 1, torch.float32)
    compiled = pu.compile(pu.ProximalEncoder(model, 3), threads=2)
    assert isinstance(compiled, Compiled)
    return compiled


@pytest.mark.usefixtures("ready_threads")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1, 5, 2000])
def test_signals_that_are_not_finite_are_refused(lasso: Compiled, rows: int, value: float) -> None:
    x = np.ones((rows, lasso.features), np.float32)
    good = lasso(x)
    x[rows - 1, 3] = value
    for encode in (lasso, lasso.stream()):
        with pytest.raises(ValueError, match=f"NaN or infinite values, first in row {rows - 1}"):
            encode(x)
    x[rows - 1, 3] = 1
    np.testing.assert_array_equal(lasso(x), good)


def test_large_numbers_are_not_mistaken_for_infinite_ones(lasso: Compiled) -> None:
    x = np.full((20, lasso.features), 1e38, np.float32)
    x[:, 1:] = 0
    assert np.isfinite(lasso(x)).all()


def test_what_is_not_a_batch_of_signals_is_refused(lasso: Compiled) -> None:
    m = lasso.features
    with pytest.raises(ValueError, match=rf"x must have shape \(n, {m}\) or \({m},\), got \(3,\)"):
        lasso(np.ones(3))
    with pytest.raises(ValueError, match="x must have shape"):
        lasso(np.ones((2, 2, m)))
    with pytest.raises(TypeError, match="x must hold real numbers"):
        lasso(np.full((1, m), "a"))
    with pytest.raises(ValueError, match="out must be a float32 array of shape"):
        lasso(np.ones((2, m)), out=np.empty((2, 1), np.float32))
    with pytest.raises(ValueError, match="codes must have 12 columns"):
        lasso.decode(np.ones((2, 5)))


def test_any_array_will_do(lasso: Compiled, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, lasso.features)).astype(np.float32)
    codes = lasso(x)
    np.save(tmp_path / "x.npy", x)
    for given in (
        x.astype(np.float64), x.astype(">f4"), x.astype(np.longdouble), x.tolist(),
        torch.from_numpy(x), np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2],
        np.load(tmp_path / "x.npy", mmap_mode="r"),
    ):  # fmt: skip
        np.testing.assert_allclose(lasso(given), codes, rtol=1e-6, atol=1e-7)
    half = x.astype(np.float16)
    np.testing.assert_allclose(lasso(half), lasso(half.astype(np.float32)), rtol=1e-6)
    assert lasso(x[:0]).shape == (0, lasso.size)
    assert lasso(x[0]).shape == (lasso.size,)
    out = np.empty_like(codes)
    assert lasso(x, out=out) is out
    np.testing.assert_array_equal(out, codes)
    assert lasso(np.zeros((3, lasso.features), int)).dtype == np.float32


# ---- streams --------------------------------------------------------------------------------


@pytest.mark.usefixtures("ready_threads")
@pytest.mark.parametrize(
    ("name", "kernel"),
    [(name, kernel) for name in ("lasso", "hilasso", "nmf-ridge") for kernel in ("dense", "sparse")]
    + [("robust-nmf", "fused"), ("robust-nmf", "sparse")],
)
def test_a_kernel_gives_a_row_the_same_bits_in_any_company(name: str, kernel: str) -> None:
    model, x = problem(name, 4, 700, torch.float32)
    encoder = pu.ProximalEncoder(model, 5)
    rows, compiled = x.numpy(), pu.compile(encoder, kernel=kernel, threads=1)
    whole, stream = compiled(rows), compiled.stream()
    assert np.array_equal(pu.compile(encoder, kernel=kernel, threads=2)(rows), whole)
    for sizes in ([1, 15, 16, 17, 500, 0, 151], [0, 700], [3] * 233 + [1]):
        blocks = np.split(rows, np.cumsum(sizes)[:-1])
        assert np.array_equal(np.concatenate([stream(b).copy() for b in blocks]), whole)
        assert np.array_equal(np.concatenate([compiled(b) for b in blocks]), whole)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
@pytest.mark.parametrize("name", ["lasso", "robust-nmf"])
@pytest.mark.parametrize("rows", [1, 64])
def test_a_stream_takes_its_memory_once(name: str, rows: int) -> None:
    model, x = problem(name, 0, rows, torch.float32)
    signals = x.numpy()
    stream = pu.compile(pu.ProximalEncoder(model, 3)).stream()
    for _ in range(100):
        codes = stream(signals)
    address = codes.__array_interface__["data"]
    tracemalloc.start()
    stream(signals)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    stream(signals)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert peak < 6000  # views and numbers, no buffers
    resident = _resident()
    for _ in range(20_000):
        codes = stream(signals)
    assert codes.__array_interface__["data"] == address
    assert _resident() - resident < 2**19


def _resident() -> int:
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def test_decaying_tails_do_not_slow_it_down() -> None:
    """Signals that fade through the denormal range cost what others cost."""
    rng = np.random.default_rng(0)
    atoms = torch.from_numpy(np.abs(rng.standard_normal((20, 200))).astype(np.float32))
    stream = pu.compile(pu.ProximalEncoder(pu.models.RobustNMF(atoms, 0.5, 1e-30), 8)).stream()
    loud = np.abs(rng.standard_normal((1, 200))).astype(np.float32)

    def quickest(frame: np.ndarray) -> float:
        seconds = []
        for _ in range(300):
            begin = time.perf_counter()
            stream(frame)
            seconds.append(time.perf_counter() - begin)
        return min(seconds)

    stream(loud)
    usual = quickest(loud)
    for size in (1e-25, 1e-31, 1e-36, 1e-39, 1e-42, 1e-45):
        assert quickest((loud * size).astype(np.float32)) < 3 * usual, size
        assert np.isfinite(stream((loud * size).astype(np.float32))).all()


# ---- plans and files ------------------------------------------------------------------------


def test_the_plan_explains_itself() -> None:
    model, x = problem("lasso", 0, 300, torch.float32)
    compiled = pu.compile(pu.ProximalEncoder(model, 3))
    assert not compiled.plan.measured
    assert "supposed" in str(compiled.plan)
    compiled(x)
    assert compiled.plan.measured
    text = str(compiled.plan)
    assert "measured" in text
    assert "fused: not possible, needs an identity block" in text
    sample = pu.compile(pu.ProximalEncoder(model, 3), sample=x)
    assert sample.plan.changes == compiled.plan.changes
    # what was measured is true
    with torch.no_grad():
        iterates = list(pu.ProximalEncoder(model, 3).iterates(x[:256]))
    counts = [float((iterates[0] != 0).sum(dim=1).float().mean())]
    counts += [float((b != a).sum(dim=1).float().mean()) for a, b in pairwise(iterates)]
    assert compiled.plan.changes == pytest.approx(counts, rel=0.02)


def test_a_silent_start_does_not_decide_the_plan() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms = torch.nn.functional.normalize(torch.randn(256, 64, generator=generator))
    encoder = pu.ProximalEncoder(pu.models.Lasso(atoms, 0.5), 7)
    x = torch.randn(5000, 64, generator=generator).numpy()
    loud, late = pu.compile(encoder), pu.compile(encoder)
    loud(x)
    x[:256] = 0
    stream = late.stream()
    late(x)
    assert late.plan.many == loud.plan.many
    assert late.plan.changes == pytest.approx(loud.plan.changes, rel=0.2)
    assert not stream.plan.measured  # it goes on as it began


def test_a_kernel_that_does_not_fit_is_refused() -> None:
    model, _ = problem("lasso", 0, 1, torch.float32)
    with pytest.raises(ValueError, match="'fused' cannot run this encoder: it needs an identity"):
        pu.compile(pu.ProximalEncoder(model, 3), kernel="fused")
    with pytest.raises(ValueError, match="'dense' cannot run this encoder"):
        pu.compile(pu.CoordinateEncoder(model, 3), kernel="dense")
    with pytest.raises(ValueError, match="kernel must be 'auto' or one of"):
        pu.compile(pu.ProximalEncoder(model, 3), kernel="quick")
    with pytest.raises(ValueError, match="threads must be at least 1"):
        pu.compile(pu.ProximalEncoder(model, 3), threads=0)
    with pytest.raises(ValueError, match="most must be at least 1"):
        pu.compile(pu.ProximalEncoder(model, 3)).stream(0)


def test_files_that_cannot_be_run_are_refused(tmp_path: Path) -> None:
    model, _ = problem("lasso", 0, 1, torch.float32)
    path = tmp_path / "model.safetensors"
    pu.save(model, path)
    with pytest.raises(ValueError, match="only encoders and banks of them can be run"):
        pu.runtime.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        pu.runtime.load(tmp_path / "missing.safetensors")
    pu.save(pu.ProximalEncoder(model, 2), path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        pu.runtime.load(path)
    with pytest.raises(TypeError, match="an encoder or an EncoderBank can be compiled, got str"):
        pu.compile("encoder")


def test_matrices_that_layers_share_are_stored_once() -> None:
    model, _ = problem("lasso", 0, 1, torch.float32)
    program = pu.compile(pu.ProximalEncoder(model, 5, form="gram")).program
    assert isinstance(program, Program)
    assert len({id(layer.weight) for layer in program.layers}) == 1
    assert len({id(gram) for gram in program.grams()}) == 1
    untied = pu.compile(pu.ProximalEncoder(model, 5, form="gram", tied=False)).program
    assert len({id(gram) for gram in untied.grams()}) == 5


#: field -> a change that a kernel must never see
CORRUPTIONS = {
    "labels.0": lambda a: a + 10**9,
    "groups.0": lambda a: -a - 1,
    "blocks": lambda a: a - 10**9,
    "soft": lambda a: a[:, :-1],
    "soft ": lambda a: -a - 1,
    "soft  ": lambda a: a.astype(np.float64),
    "widths": lambda a: a - 5,
    "widths ": lambda a: a + 10**9,
    "weights": lambda a: a[:, :-1],
    "weights ": lambda a: a * np.float32(np.nan),
    "weights  ": lambda a: a.reshape(-1),
    "weights.of": lambda a: a + 1,
    "weights.of ": lambda a: a[:1],
    "grams": lambda a: a[:, :, :-1],
    "grams.of": lambda a: a - 1,
    "mix": lambda a: a[:, :4],
    "mix ": lambda a: a * np.inf,
    "negative": lambda a: a * 2,
    "negative ": lambda a: a.astype(np.float64),
    "constants": lambda a: a * 0,
    "dictionary": lambda a: a[:-1],
    "dictionary ": lambda a: a.astype(np.int32),
}


@pytest.mark.parametrize("field", CORRUPTIONS)
def test_a_file_with_a_valid_checksum_is_checked_all_the_same(field: str, tmp_path: Path) -> None:
    """A file is data from a stranger; what a kernel indexes by must be in range."""
    model, x = problem("hilasso", 0, 4, torch.float32)
    encoder = pu.BlockCoordinateEncoder(model, 3, final="prox")
    path = tmp_path / "forged.safetensors"
    pu.save(encoder, path)
    arrays, info = read(path)
    name = f"program.{field.strip()}"
    arrays[name] = CORRUPTIONS[field](arrays[name])
    write(path, arrays, info)
    sentence = rf"forged\.safetensors cannot be run: {field.split('.')[0].strip()}"
    with pytest.raises(ValueError, match=sentence) as refusal:
        pu.runtime.load(path)(x.numpy())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "field", ["mix", "weights", "weights.of", "negative", "blocks", "labels.0"]
)
def test_a_field_that_is_missing_is_named(field: str, tmp_path: Path) -> None:
    model, _ = problem("hilasso", 0, 4, torch.float32)
    path = tmp_path / "forged.safetensors"
    pu.save(pu.BlockCoordinateEncoder(model, 3), path)
    arrays, info = read(path)
    del arrays[f"program.{field}"]
    write(path, arrays, info)
    with pytest.raises(ValueError, match=r"forged\.safetensors cannot be run"):
        pu.runtime.load(path)


def test_fields_of_the_residual_form_are_checked(tmp_path: Path) -> None:
    model, _ = problem("robust-pca", 0, 4, torch.float32)
    path = tmp_path / "forged.safetensors"
    changes = {
        "outlier_steps": lambda a: a[:, :-1],
        "outlier_steps.of": lambda a: a + 7,
        "atoms": lambda a: a[:, :, :-1],
        "decay": lambda a: a[:-1],
        "units": lambda a: a[:-1],
        "other": lambda a: np.zeros(3),
    }
    for name, change in changes.items():
        pu.save(pu.ProximalEncoder(model, 3), path)
        arrays, info = read(path)
        arrays[f"program.{name}"] = change(arrays.get(f"program.{name}"))
        write(path, arrays, info)
        with pytest.raises(ValueError, match=rf"cannot be run: {name.split('.')[0]}"):
            pu.runtime.load(path)
    for form in ({"memory": "candidate", "readout": "diagonal"}, None, "code"):
        pu.save(pu.ProximalEncoder(model, 3), path)
        arrays, info = read(path)
        write(path, arrays, {**info, "program": form})
        with pytest.raises(ValueError, match="program must be"):
            pu.runtime.load(path)
