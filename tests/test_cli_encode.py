"""`pursuit encode`, `decode` and `inspect`: what the library gives, from file to file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pursuit as pu
from processes import assert_refused, pursuit, python
from pursuit import files
from pursuit.cli.columns import Selection
from pursuit.cli.data import Table, open_table
from pursuit.cli.encode import _Gaps
from pursuit.cli.main import app
from pursuit.cli.pictures import open_pictures
from pursuit.cli.writing import appended
from pursuit.files import read
from pursuit.solvers.solution import Solution

FEATURES, ATOMS, ROWS = 9, 14, 333

#: as a user has it, with files read in pieces that are smaller than these tests' files
SMALL_PIECES = (
    "import sys; from pursuit.cli import data; data.PIECE = 500\n"
    "from pursuit.cli.main import main; main()"
)


#: files that are refused
TEXTS = {
    "nan in the csv": "# c\na,b,c,d,e,f,g,h,i\n\n1,2,3,4,5,6,7,8,9\n1,2,3,4,nan,6,7,8,9\n",
    "index in the csv": ",a,b\n" + "".join(f"{n},0.5,{n % 2}\n" for n in range(6)),
    "dates in the csv": "day,a\n2020-01-01,1\n2020-01-02,2\n",
    "words in the csv": "# c\na,b\n1,2\n3,four\n",
    "short line in the csv": "1,2\n3,4\n5\n",
    "gap in the csv": "1,2\n3,4\n5,\n",
    "decimal commas": "a;b\n1,5;2\n",
    "text as csv": "name,town\nbob,rome\n",
    "bytes as csv": "\xff\xfea,b\n",
    "empty csv": "\n# nothing\n",
    "csv of names": "a,b\n",
}


def said(done: subprocess.CompletedProcess[str]) -> dict:
    """What a command with --json has said, and that it said nothing else."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def dictionary(seed: int = 0, atoms: int = ATOMS) -> torch.Tensor:
    values = torch.randn(atoms, FEATURES, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(values)


@pytest.fixture(scope="module")
def signals() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def encoder() -> pu.ProximalEncoder:
    return pu.ProximalEncoder(pu.models.Lasso(dictionary(), lam=0.2), layers=3)


@pytest.fixture
def folder(tmp_path: Path, encoder: pu.ProximalEncoder, signals: np.ndarray) -> Path:
    """A folder with an encoder, a model, a robust encoder, and signals."""
    pu.save(encoder, tmp_path / "lasso.safetensors", provenance="noise")
    pu.save(encoder.model, tmp_path / "model.safetensors")
    robust = pu.models.RobustPCA(2 * dictionary(1, 3), lam_star=0.3, lam=0.4)
    pu.save(pu.ProximalEncoder(robust, layers=2), tmp_path / "rpca.safetensors")
    np.save(tmp_path / "x.npy", signals)
    return tmp_path


# ---- encode ---------------------------------------------------------------------------------


def test_encode_gives_the_codes_of_the_library(
    folder: Path, encoder: pu.ProximalEncoder, signals: np.ndarray
) -> None:
    done = pursuit("encode", folder / "lasso.safetensors", folder / "x.npy", "-o", folder / "z.npy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{folder / 'z.npy'}: {ROWS} codes of size {ATOMS}, encoder; ")
    codes = np.load(folder / "z.npy")
    assert (codes.dtype, codes.shape) == (np.float32, (ROWS, ATOMS))
    np.testing.assert_array_equal(codes, pu.compile(encoder)(signals))
    with torch.no_grad():
        np.testing.assert_allclose(codes, encoder(torch.from_numpy(signals)), atol=1e-5)
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(("dtype", "order"), [("float64", "C"), (">f4", "F"), ("int16", "C")])
def test_pieces_make_no_difference(folder: Path, dtype: str, order: str) -> None:
    values = np.random.default_rng(2).integers(-50, 50, (ROWS, FEATURES)).astype(dtype, order=order)
    np.save(folder / "x.npy", values)
    source, out = folder / "lasso.safetensors", folder / "z.npy"
    done = python("-c", SMALL_PIECES, "encode", source, folder / "x.npy", "-o", out, "--threads", 1)
    assert done.returncode == 0, done.stderr
    expected = pu.runtime.load(source)(values.astype(np.float32))
    np.testing.assert_allclose(np.load(out), expected, rtol=1e-5, atol=1e-4)


def test_encode_does_not_import_torch(folder: Path) -> None:
    code = (
        "import sys; from pursuit.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert 'pursuit._native' in sys.modules and 'torch' not in sys.modules"
    )
    arguments = [folder / "lasso.safetensors", folder / "x.npy", "-o", folder / "z.npy"]
    done = python("-c", code, "encode", *arguments, "--json")
    assert said(done)["rows"] == ROWS


@pytest.mark.parametrize("source", ["lasso", "model", "rpca"])
def test_exact_codes_are_certified(folder: Path, source: str, signals: np.ndarray) -> None:
    saved, out = folder / f"{source}.safetensors", folder / "z.npy"
    tol = [] if source == "model" else ["--tol", "1e-4"]
    written = said(
        python("-c", SMALL_PIECES, "encode", saved, folder / "x.npy", "-o", out, *tol, "--json")
    )
    thing, x = pu.load(saved), torch.from_numpy(signals)
    model, init = (thing, None) if source == "model" else (thing.model, thing)
    solution = pu.solve(model, x, tol=1e-6 if source == "model" else 1e-4, init=init)
    np.testing.assert_allclose(np.load(out), solution.codes.detach(), atol=1e-4)
    assert written["method"] == "exact"
    assert written["unconverged"] == 0
    assert 0 <= written["largest_relative_gap"] <= (1e-6 if source == "model" else 1e-4)
    gap = pu.certify(model, x.double(), torch.from_numpy(np.load(out)).double())
    assert float(gap.min()) > -1e-9


def test_gaps_of_pieces_become_the_largest_of_all_rows() -> None:
    gaps = _Gaps()
    for gap, converged in (((1.0, 3.0), (True, False)), ((0.5, 2.0), (True, True))):
        gaps.add(
            Solution(
                codes=torch.zeros(2, 1),
                objective=torch.tensor([10.0, 4.0]),
                gap=torch.tensor(gap),
                iterations=1,
                converged=torch.tensor(converged),
                method="coordinate",
            )
        )
    assert gaps.describe() == {
        "largest_gap": 3.0,
        "largest_relative_gap": 0.75,
        "unconverged": 1,
    }


def test_double_precision_models_give_double_precision_codes(folder: Path) -> None:
    pu.save(pu.models.Lasso(dictionary().double(), lam=0.2), folder / "model.safetensors")
    said(
        pursuit("encode", folder / "model.safetensors", folder / "x.npy", "-o", folder / "z.npy",
                "--tol", "1e-10", "--json")
    )  # fmt: skip
    assert np.load(folder / "z.npy").dtype == np.float64


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_other_files(folder: Path, suffix: str, signals: np.ndarray) -> None:
    given, codes = folder / f"x{suffix}", folder / f"z{suffix}"
    if suffix == ".npz":
        np.savez(given, other=np.zeros(3), x=signals)
    else:
        np.savetxt(given, signals, delimiter=",", header="a,b,c,d,e,f,g,h,i", comments="")
    key = ["--key", "x"] if suffix == ".npz" else []
    saved = folder / "lasso.safetensors"
    assert said(pursuit("encode", saved, given, "-o", codes, *key, "--json"))["rows"] == ROWS
    expected = pu.runtime.load(saved)(signals)
    np.testing.assert_allclose(open_table(codes)[:], expected, rtol=1e-6, atol=1e-6)
    assert said(pursuit("decode", saved, codes, "-o", folder / "y.npy", "--json"))["rows"] == ROWS


def test_columns_of_the_command(
    folder: Path, encoder: pu.ProximalEncoder, signals: np.ndarray
) -> None:
    rows = np.hstack([np.arange(ROWS)[:, None], signals])
    header = "id;a;b;c;d;e;f;g;h;i"
    np.savetxt(folder / "x.csv", rows, delimiter=";", header=header, comments="")
    arguments = [folder / "x.csv", "-o", folder / "z.npy", "--drop", "id", "--delimiter", ";"]
    assert said(pursuit("encode", folder / "lasso.safetensors", *arguments, "--json"))
    np.testing.assert_allclose(np.load(folder / "z.npy"), pu.compile(encoder)(signals), atol=1e-5)


def test_patches_of_pictures_are_encoded(folder: Path, encoder: pu.ProximalEncoder) -> None:
    from PIL import Image

    (folder / "pictures").mkdir()
    grey = np.random.default_rng(0).integers(0, 255, (20, 30)).astype(np.uint8)
    Image.fromarray(grey).save(folder / "pictures" / "a.png")
    arguments = [folder / "pictures", "-o", folder / "z.npy", "--patches", 50, "--seed", 2]
    assert said(pursuit("encode", folder / "lasso.safetensors", *arguments, "--json"))["rows"] == 50
    patches = open_pictures(folder / "pictures", 3, 50, seed=2)[:]
    np.testing.assert_allclose(np.load(folder / "z.npy"), pu.compile(encoder)(patches), atol=1e-5)
    pu.save(pu.models.Lasso(torch.eye(10), lam=0.1), folder / "model.safetensors")
    done = pursuit("encode", folder / "model.safetensors", *arguments)
    assert_refused(done, 1, "is for signals of 10 features, which are no square patches")


def test_no_rows_are_no_codes(folder: Path) -> None:
    np.save(folder / "x.npy", np.zeros((0, FEATURES), np.float32))
    arguments = [folder / "x.npy", "-o", folder / "z.npy", "--json"]
    assert said(pursuit("encode", folder / "lasso.safetensors", *arguments))["rows"] == 0
    assert np.load(folder / "z.npy").shape == (0, ATOMS)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("width", f"x.npy has 4 columns, but {{model}} is for signals of {FEATURES} features"),
        ("nan", "x.npy contains NaN or infinite values, first in row 302 (counted from 1)"),
        ("nan in the csv", "x.csv contains NaN or infinite values, first in line 5; remove"),
        ("too large", "x.npy contains 1e+300 in row 3 (counted from 1), more than computations"),
        ("one dimension", "must have two dimensions (rows, features), it has shape (9,)"),
        ("complex", "must hold real numbers, it holds complex64"),
        ("objects", "holds Python objects, not numbers; save it again"),
        ("missing data", "there is no file"),
        ("missing model", "there is no file"),
        ("damaged data", "is not a whole .npy file"),
        ("damaged model", "is not a whole safetensors file"),
        ("bank", "an encoder or a model is needed, but {model} holds a bank"),
        ("swapped", "is the model and {model} the data; give the model first"),
        ("data as model", "x.npy is a NumPy array (.npy), not a model; give a file that"),
        ("model as data", "is a safetensors file, such as a model, not data"),
        ("output as data", "z.npy, but {folder}/x.npy, the file to write, exists; check"),
        ("picture as data", "x.npy is a PNG picture, not an .npy file; give one that numpy.save"),
        ("archive as array", "x.npy is an archive (.npz or .zip), not an .npy file; rename it"),
        ("text as array", "x.npy is not an .npy file; give one that numpy.save has written"),
        ("folder without pictures", "has no pictures"),
        ("long name", "cannot be written: file name too long"),
        ("index in the csv", "column 1 of {folder}/x.csv looks like an index of the rows; leave it "
                             "out with --drop 1, or keep it with --columns 1-"),
        ("dates in the csv", "has text in column 1 (day), for example '2020-01-01'; leave it out "
                             "with --drop day"),
        ("delimiter of an array", "--delimiter is for .csv files"),
        ("delimiter", "--delimiter must be one character"),
        ("no such column", "x.npy has no column 10; it has columns 1 to 9"),
        ("patches of a file", "--patches is for a folder of pictures"),
        ("same file", "is the input itself"),
        ("same file by another name", "is the input itself"),
        ("output is the model", "is the input itself"),
        ("missing folder", "there is no folder"),
        ("output is a folder", "is a folder; give the name of a file"),
        ("suffix of the output", "z.txt must end in .npy, .npz or .csv"),
        ("suffix of the data", "give a file that ends in .npy, .npz, .csv or .parquet"),
        ("key", "--key names an array of an .npz file"),
        ("which array", "x.npz has 2 arrays (a, b); choose one by --key"),
        ("no such array", "x.npz has no array c; it has a, b"),
        ("words in the csv", "x.csv is not a table of numbers: line 4, column 2 (b) is 'four'"),
        ("short line in the csv", "line 3 has 1 instead of 2 cells; correct the line"),
        ("gap in the csv", "line 3, column 2 is empty; fill it in, or leave the column out with "
                           "--drop 2"),
        ("decimal commas", "line 2, column 1 (a) is '1,5'; write a decimal point"),
        ("text as csv", "x.csv has no column of numbers"),
        ("bytes as csv", "x.csv is not a text file in UTF-8"),
        ("empty csv", "x.csv is empty"),
        ("csv of names", "x.csv has a header, but no numbers"),
    ],
)  # fmt: skip
def test_encode_refuses_and_leaves_nothing_behind(
    mistake: str, sentence: str, folder: Path, encoder: pu.ProximalEncoder, signals: np.ndarray
) -> None:
    saved, data, out = folder / "lasso.safetensors", folder / "x.npy", folder / "z.npy"
    options: list[str] = []
    bad = signals.copy()
    match mistake:
        case "width":
            np.save(data, signals[:, :4])
        case "nan":
            bad[[301, 310], 2] = np.nan
            np.save(data, bad)
        case "too large":
            wide = signals.astype(np.float64)
            wide[2, 0] = 1e300
            np.save(data, wide)
        case "one dimension":
            np.save(data, signals[0])
        case "complex":
            np.save(data, signals.astype(np.complex64))
        case "objects":
            np.save(data, np.array([{}, []], dtype=object), allow_pickle=True)
        case "missing data":
            data = folder / "missing.npy"
        case "missing model":
            saved = folder / "missing.safetensors"
        case "damaged data":
            data.write_bytes(data.read_bytes()[:1000])
        case "damaged model":
            saved.write_bytes(saved.read_bytes()[:100])
        case "bank":
            pu.save(pu.EncoderBank([encoder], shared=None), saved)
        case "swapped":
            saved, data = data, saved
        case "data as model":
            saved = data
        case "model as data":
            data = folder / "model.safetensors"
        case "output as data":
            data, out = out, data
        case "picture as data":
            data.write_bytes(b"\x89PNG\r\n and more")
        case "archive as array":
            np.savez(folder / "x.npz", signals)
            (folder / "x.npz").rename(data)
        case "text as array":
            data.write_text("1,2,3\n")
        case "folder without pictures":
            data = folder
        case "long name":
            out = folder / f"{'z' * 252}.npy"
        case "delimiter of an array" | "delimiter":
            options = ["--delimiter", ";;"]
            if mistake == "delimiter":
                data = folder / "x.csv"
                data.write_text("1,2\n")
        case "no such column":
            options = ["--columns", "1-3,10"]
        case "patches of a file":
            options = ["--patches", "3"]
        case "same file":
            out = data
        case "same file by another name":
            out.symlink_to(data)
        case "output is the model":
            out = saved = saved.rename(folder / "model.npy")
        case "missing folder":
            out = folder / "missing" / "z.npy"
        case "output is a folder":
            out.mkdir()
        case "suffix of the output":
            out = folder / "z.txt"
        case "suffix of the data":
            data = data.rename(folder / "x.txt")
        case "key":
            options = ["--key", "a"]
        case "which array" | "no such array":
            data = folder / "x.npz"
            np.savez(data, a=signals, b=signals)
            options = [] if mistake == "which array" else ["--key", "c"]
        case _ if mistake in TEXTS:
            data = folder / "x.csv"
            data.write_text(TEXTS[mistake], encoding="latin-1")
    before = content(folder)
    done = python("-c", SMALL_PIECES, "encode", saved, data, "-o", out, *options)
    assert_refused(done, 1, sentence.format(model=saved, folder=folder))
    assert content(folder) == before


def test_an_old_output_survives_an_error(folder: Path, signals: np.ndarray) -> None:
    bad = signals.copy()
    bad[-1] = np.inf
    np.save(folder / "x.npy", bad)
    (folder / "z.npy").write_bytes(b"old")
    before = content(folder)
    arguments = [folder / "lasso.safetensors", folder / "x.npy", "-o", folder / "z.npy"]
    assert_refused(python("-c", SMALL_PIECES, "encode", *arguments), 1, f"in row {ROWS} (counted")
    assert content(folder) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["encode", "a.safetensors", "x.npy"], "Missing option '--output'"),
        (["encode", "a", "x.npy", "-o", "z.npy", "--tol", "-1"], "'--tol'"),
        (["encode", "a", "x.npy", "-o", "z.npy", "--threads", "0"], "'--threads'"),
        (["decode", "a", "z.npy", "-o", "x.npy", "--part", "noise"], "'--part'"),
        (["inspect"], "Missing argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_use_is_one_sentence(arguments: list[str], sentence: str) -> None:
    assert_refused(pursuit(*arguments), 2, sentence)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_encode_leaves_nothing(folder: Path, number: int, code: int) -> None:
    slow = (
        "import time; from pursuit.cli import data; data.PIECE = 100\n"
        "pieces = data.Table.pieces\n"
        "def slowly(*arguments):\n"
        "    for piece in pieces(*arguments):\n"
        "        yield piece\n"
        "        time.sleep(0.2)\n"
        "data.Table.pieces = slowly\n"
        "from pursuit.cli.main import main; main()"
    )
    before = content(folder)
    arguments = [folder / "lasso.safetensors", folder / "x.npy", "-o", folder / "z.npy"]
    command = [sys.executable, "-c", slow, "encode", *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(folder.glob(".*.*.part")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("interrupted\n" in errors) == (number == signal.SIGINT)
    assert "Traceback" not in errors
    assert content(folder) == before


# ---- decode ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("lasso", None),
        ("model", None),
        ("rpca", None),
        ("rpca", "low_rank"),
        ("rpca", "sparse"),
        ("lasso", "low_rank"),
    ],
)
def test_decode_gives_the_signals_of_the_library(
    folder: Path, source: str, part: str | None
) -> None:
    saved = folder / f"{source}.safetensors"
    thing = pu.load(saved)
    model = thing if source == "model" else thing.model
    codes = torch.randn(ROWS, model.code_size, generator=torch.Generator().manual_seed(3))
    np.save(folder / "z.npy", codes.numpy())
    options = [] if part is None else ["--part", part]
    arguments = [saved, folder / "z.npy", "-o", folder / "y.npy", *options]
    done = python("-c", SMALL_PIECES, "decode", *arguments, "--json")
    if part == "low_rank" and source != "rpca":
        assert done.returncode == 1
        assert "codes of Lasso have no low_rank part" in json.loads(done.stdout)["error"]
        assert not (folder / "y.npy").exists()
        return
    assert said(done)["part"] == part
    with torch.no_grad():
        expected = model.decode(codes) if part is None else getattr(model.split(codes), part)
    np.testing.assert_allclose(np.load(folder / "y.npy"), expected, atol=1e-5)


def test_decode_refuses_codes_of_another_size(folder: Path) -> None:
    saved = folder / "lasso.safetensors"
    done = pursuit("decode", saved, folder / "x.npy", "-o", folder / "y.npy")
    assert_refused(done, 1, f"x.npy has {FEATURES} columns, but {saved} has codes of size {ATOMS}")


# ---- inspect --------------------------------------------------------------------------------


def test_inspect_says_what_the_library_knows(folder: Path, encoder: pu.ProximalEncoder) -> None:
    saved = folder / "lasso.safetensors"
    shown = said(pursuit("inspect", saved, "--json"))
    assert shown["kind"] == "encoder"
    assert shown["encoder"] == {"type": "ProximalEncoder", "arguments": encoder.config}
    assert shown["model"] == read(saved)[1]["model"]
    assert (shown["features"], shown["atoms"], shown["size"]) == (FEATURES, ATOMS, ATOMS)
    assert (shown["layers"], shown["parameters"]) == (3, encoder.parameter_count)
    assert shown["multiplications"] == encoder.multiplications
    assert (shown["regime"], shown["provenance"]) == (None, "noise")
    assert shown["bytes"] == saved.stat().st_size
    lines = pursuit("inspect", saved).stdout.splitlines()
    assert "model            Lasso(lam=0.2, nonnegative=False)" in lines
    assert "provenance       noise" in lines


def test_inspect_knows_every_kind_of_file(folder: Path, encoder: pu.ProximalEncoder) -> None:
    shown = said(pursuit("inspect", folder / "model.safetensors", "--json"))
    assert (shown["kind"], shown["model"]["type"], shown["size"]) == ("model", "Lasso", ATOMS)
    bank = folder / "bank.safetensors"
    pu.save(pu.EncoderBank([encoder, encoder], shared=None), bank)
    assert len(said(pursuit("inspect", bank, "--json"))["encoders"]) == 2
    assert "encoder 1" in pursuit("inspect", bank).stdout
    run_of = folder / "run.checkpoint"
    pu.fit(encoder, torch.randn(50, FEATURES), steps=10, checkpoint=run_of)
    assert said(pursuit("inspect", run_of, "--json"))["steps"] == 10


def test_inspect_draws_the_atoms(folder: Path) -> None:
    from PIL import Image

    target = folder / "atoms.png"
    assert said(pursuit("inspect", folder / "lasso.safetensors", "--plot", target, "--json"))
    assert min(Image.open(target).size) > 100
    done = pursuit("inspect", folder / "lasso.safetensors", "--plot", folder / "atoms.txt")
    assert_refused(done, 1, "atoms.txt must end in .png, .svg or .pdf")


@pytest.mark.parametrize("command", ["encode", "decode", "inspect"])
def test_help_shows_an_example(command: str) -> None:
    assert f"Example: pursuit {command} " in pursuit(command, "--help").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["encode", "lasso.safetensors", "x.npy", "-o", "z.npy"],
        ["encode", "lasso.safetensors", "x.npy", "-o", "z.npy", "--tol", "1e-4"],
        ["encode", "model.safetensors", "x.npy", "-o", "z.npy"],
        ["decode", "lasso.safetensors", "codes.npy", "-o", "y.npy"],
        ["decode", "model.safetensors", "codes.npy", "-o", "y.npy"],
        ["inspect", "lasso.safetensors"],
        ["inspect", "model.safetensors"],
        ["export", "lasso.safetensors", "lasso.onnx"],
    ],
    ids=" ".join,
)
def test_a_model_file_is_read_once(
    arguments: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors

    np.save(folder / "codes.npy", np.ones((3, ATOMS), np.float32))
    read: list[str] = []
    hashed: list[str] = []
    original, checksum = safetensors.safe_open, files._checksum
    monkeypatch.setattr(
        safetensors, "safe_open", lambda path, **o: read.append(path) or original(path, **o)
    )
    monkeypatch.setattr(files, "_checksum", lambda *a: hashed.append(a[0]) or checksum(*a))
    monkeypatch.chdir(folder)
    app(arguments, standalone_mode=False)
    assert [Path(path).name for path in read] == [arguments[1]]
    assert len(hashed) == 1


# ---- data files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["1,2\n3,4\n", "a,b\n1,2\n3,4\n", "\ufeffa;b\n1;2\n3;4", "# c\n\n1\t2\n3\t4\n", "1 2\n3 4\n"],
    ids=["plain", "header", "semicolons and mark", "comment and tabs", "spaces"],
)
def test_tables_of_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    np.testing.assert_array_equal(open_table(tmp_path / "x.csv")[:], [[1, 2], [3, 4]])


COMMON = "a,b,c\n1,2,3\n4,5,6\n"


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (COMMON, {"columns": "c,a"}, [[3, 1], [6, 4]]),
        (COMMON, {"columns": "2-3"}, [[2, 3], [5, 6]]),
        (COMMON, {"columns": "2-"}, [[2, 3], [5, 6]]),
        (COMMON, {"columns": "1-2,c"}, [[1, 2, 3], [4, 5, 6]]),
        (COMMON, {"drop": "b"}, [[1, 3], [4, 6]]),
        (COMMON, {"columns": "1-2", "drop": "a"}, [[2], [5]]),
        ("1|2\n3|4\n", {"delimiter": "|"}, [[1, 2], [3, 4]]),
        ("1 2\n3 4\n", {"delimiter": "space"}, [[1, 2], [3, 4]]),
        ("day,a\nmon,1\ntue,2\n", {"drop": "day"}, [[1], [2]]),
        ("mon,1\ntue,2\n", {"drop": "1"}, [[1], [2]]),
        (",0,1\n0,5,6\n1,7,8\n", {"drop": "1"}, [[5, 6], [7, 8]]),
        (",0,1\n0,5,6\n1,7,8\n", {"columns": "1-"}, [[0, 5, 6], [1, 7, 8]]),
        ("0,1\n0.5,6\n0.7,8\n", {}, [[0.5, 6], [0.7, 8]]),
        ("0,1\n5,6\n7,8\n", {"header": True}, [[5, 6], [7, 8]]),
        ("id,a\n0.5,6\n0.7,8\n", {}, [[0.5, 6], [0.7, 8]]),
    ],
    ids=str,
)
def test_columns_are_chosen(
    text: str, options: dict[str, Any], expected: list[list[float]], tmp_path: Path
) -> None:
    (tmp_path / "x.csv").write_text(text)
    table = open_table(tmp_path / "x.csv", Selection(**options))
    np.testing.assert_allclose(table[:], expected)
    assert table.shape == np.shape(expected)


def test_columns_of_arrays_have_numbers(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "x.npy", values)
    table = open_table(tmp_path / "x.npy", Selection(columns="2-4", drop="3"))
    np.testing.assert_array_equal(table[:], values[:, [1, 3]])
    np.testing.assert_array_equal(table[np.array([2, 0])], values[[2, 0]][:, [1, 3]])
    assert table.shape == (3, 2)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (",a,b\n10,1,2\n20,3,4\n", "column 1 of"),
        ("Unnamed: 0,a\n5,1\n6,2\n", r"column 1 \(Unnamed: 0\)"),
        ("a,ID\n1,7\n2,9\n", r"column 2 \(ID\)"),
        ("".join(f"{number},0.5\n" for number in range(1, 7)), "column 1 of"),
        ("time,a\n" + "".join(f"{number},0.5\n" for number in range(6)), r"column 1 \(time\)"),
    ],
    ids=["pandas", "pandas read and written", "id", "counted", "counted and named"],
)
def test_an_index_is_not_learned_from(text: str, index: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=f"{index}.* looks like an index of the rows; leave it"):
        open_table(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": "0"}, "--columns: .* has no column 0; it has columns 1 to 3, called a, b, c"),
        ({"columns": "3-2"}, "has no column 3-2"),
        ({"drop": "d"}, "--drop: .* has no column d"),
        ({"columns": "a,1"}, r"--columns has column 1 \(a\) of .* twice"),
        ({"drop": "1-"}, "no column of .* is left"),
        ({"columns": " "}, "--columns is empty"),
        ({"header": False}, "has no column of numbers, column 1 holds 'a'"),
    ],
    ids=str,
)
def test_columns_that_are_not_there(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(COMMON)
    with pytest.raises(ValueError, match=sentence):
        open_table(tmp_path / "x.csv", Selection(**options))


def test_a_first_line_that_may_be_a_header_is_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.csv").write_text("0,1,2\n5,6,7\n")
    assert open_table(tmp_path / "x.csv").shape == (2, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: the first line of")
    assert line.endswith("say so with --header")


def test_parquet_needs_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    for name in ("pyarrow", "pyarrow.parquet", "polars", "fastparquet", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="needs pyarrow or polars; install one with"):
        open_table(tmp_path / "x.parquet")


@pytest.mark.parametrize("reader", ["pyarrow.parquet", "polars"])
def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    import polars

    polars.DataFrame({"a": [1, 3], "b": [2.0, 4.0]}).write_parquet(tmp_path / "x.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and nothing else")
    for other in {"pyarrow.parquet", "polars"} - {reader}:
        monkeypatch.setitem(sys.modules, other, None)
    np.testing.assert_array_equal(open_table(tmp_path / "x.parquet")[:], [[1, 2], [3, 4]])
    some = open_table(tmp_path / "x.parquet", Selection(columns="b"))
    np.testing.assert_array_equal(some[:], [[2], [4]])
    for name in ("id", "t"):
        column = [7, 8] if name == "id" else ["x", "y"]
        polars.DataFrame({name: column, "b": [2.0, 4.0]}).write_parquet(tmp_path / "y.parquet")
        with pytest.raises(ValueError, match=rf"column 1 \({name}\).* --drop {name}"):
            open_table(tmp_path / "y.parquet")
    with pytest.raises(ValueError, match=r"broken.parquet cannot be read: "):
        open_table(tmp_path / "broken.parquet")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_appended_is_read_again(tmp_path: Path, suffix: str, dtype: type) -> None:
    values = np.random.default_rng(0).standard_normal((20, 3)).astype(dtype)
    path = tmp_path / f"x{suffix}"
    with appended(path, 20, 3, dtype, "x") as append:
        append(values[:7])
        append(values[7:])
    np.testing.assert_array_equal(np.asarray(open_table(path).values, dtype), values)
    assert path.stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))


def test_patches_are_those_of_the_pictures(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    large = rng.integers(0, 255, (20, 30)).astype(np.uint8)
    Image.fromarray(large).save(tmp_path / "a.png")
    Image.fromarray(large[:4]).save(tmp_path / "small.png")
    x = open_pictures(tmp_path, 5, 200, seed=1)[:]
    assert x.shape == (200, 25)
    np.testing.assert_allclose(x.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=1), 1, atol=1e-5)
    windows = np.lib.stride_tricks.sliding_window_view(large / 255.0, (5, 5)).reshape(-1, 25)
    windows = windows - windows.mean(axis=1, keepdims=True)
    windows /= np.maximum(windows.std(axis=1, keepdims=True), 0.02)
    nearest = ((x[:20, None] - windows[None]) ** 2).sum(axis=2).min(axis=1)
    assert nearest.max() < 1e-6
    np.testing.assert_array_equal(x, open_pictures(tmp_path, 5, 200, seed=1)[:])
    with pytest.raises(ValueError, match=r"no picture in .* is as large as a patch of 40 x 40"):
        open_pictures(tmp_path, 40, 20, seed=0)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"broken.png cannot be read as a picture"):
        open_pictures(tmp_path, 5, 20, seed=0)


def test_a_table_gives_rows_by_number(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.uint8).reshape(6, 2))
    table = open_table(tmp_path / "x.npy")
    assert isinstance(table, Table)
    assert (table.shape, len(table)) == ((6, 2), 6)
    rows = np.array([4, 1])
    np.testing.assert_array_equal(table[rows], [[8, 9], [2, 3]])
    many = np.random.default_rng(0).integers(6, size=1000)
    np.testing.assert_array_equal(table[many], np.load(tmp_path / "x.npy")[many])
    assert table[rows].dtype == np.float32
