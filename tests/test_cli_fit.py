"""`pursuit fit`: what the library learns, from file to file, whatever interrupts it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import pursuit as pu
from processes import ENVIRONMENT, assert_refused, errors_of, pursuit, python, without_progress
from pursuit import files
from pursuit.encoders.choice import choose_encoder
from pursuit.estimators.start import start_robust, start_sparse
from pursuit.solvers.accuracy import mean_excess

FEATURES, ROWS = 16, 800
#: of the run that is interrupted
STEPS = 1000

#: several commands in one process, each a list in JSON: importing takes longer than they do
SEVERAL = (
    "import json, sys; from pursuit.cli.main import app\n"
    "for arguments in json.loads(sys.argv[1]): app(arguments, standalone_mode=False)"
)


@pytest.fixture(scope="module")
def signals() -> np.ndarray:
    """Sparse combinations of non-negative atoms, with noise; not negative."""
    rng = np.random.default_rng(0)
    atoms = rng.random((10, FEATURES))
    codes = rng.random((ROWS, 10)) * (rng.random((ROWS, 10)) < 0.3)
    noise = 0.02 * rng.standard_normal((ROWS, FEATURES))
    return np.abs(codes @ atoms + noise).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, signals: np.ndarray) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    np.save(folder / "x.npy", signals)
    np.save(folder / "negative.npy", -signals)
    np.save(folder / "small.npy", signals[:60])
    return folder


# ---- what is learned ------------------------------------------------------------------------

COMMANDS = {
    "lasso": ["--atoms", "24", "--lam", "0.1"],
    "group": ["--atoms", "12", "--groups", "3"],
    "hilasso": ["--atoms", "12", "--groups", "3", "--lam", "0.05", "--step", "coupled"],
    "nmf": ["--atoms", "6", "--regime", "approximation", "--lam-star", "0.01"],
    "rpca": ["--atoms", "5", "--step", "free"],
    "rnmf": ["--atoms", "5", "--provenance", "noise"],
}


@pytest.fixture(scope="module")
def fitted(folder: Path) -> dict[str, dict]:
    """What the command said for each kind of model; the files are there as KIND.safetensors."""
    common = ["--layers", "3", "--steps", "30", "--passes", "2", "--threads", "1", "--json"]
    data, outputs = str(folder / "x.npy"), [str(folder / f"{k}.safetensors") for k in COMMANDS]
    commands = [
        ["fit", kind, data, "-o", output, *own, *common]
        for (kind, own), output in zip(COMMANDS.items(), outputs, strict=True)
    ]
    done = python("-c", SEVERAL, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip(COMMANDS, said, strict=True))


@pytest.mark.parametrize("kind", COMMANDS)
def test_every_kind_of_model(kind: str, folder: Path, fitted: dict[str, dict]) -> None:
    said, path = fitted[kind], folder / f"{kind}.safetensors"
    encoder = pu.load(path)
    model = encoder.model
    names = {"lasso": "Lasso", "group": "GroupLasso", "hilasso": "HiLasso", "nmf": "NMF"}
    names |= {"rpca": "RobustPCA", "rnmf": "RobustNMF"}
    assert type(model).__name__ == names[kind]
    assert len(model.dictionary) == said["atoms"] == int(COMMANDS[kind][1])
    assert (encoder.layers, said["layers"], said["steps"]) == (3, 3, 30)
    assert said["parameters"] == encoder.parameter_count
    assert said["bytes"] == path.stat().st_size
    assert encoder.regime == ("approximation" if kind == "nmf" else "unsupervised")
    assert said["held_out"]
    assert 0 <= said["gap"] < 1
    if kind in ("nmf", "rnmf"):
        assert float(model.dictionary.min()) >= 0
    if kind in ("group", "hilasso"):
        assert model.groups == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    if kind in ("hilasso", "rpca"):
        assert encoder.config["step"] == {"hilasso": "coupled", "rpca": "free"}[kind]
    assert files.read(path)[1]["provenance"] == ("noise" if kind == "rnmf" else None)
    assert not list(folder.glob("*.checkpoint*"))


@pytest.mark.parametrize("kind", ["lasso", "rnmf"])
def test_it_is_what_the_library_learns(
    kind: str, folder: Path, fitted: dict[str, dict], signals: np.ndarray
) -> None:
    """The dictionary comes from the rows that training does not hold out."""
    rng = np.random.default_rng([0, ROWS])
    held = np.unique(rng.integers(ROWS, size=ROWS // 10))
    rest = np.delete(signals, held, axis=0)
    x = torch.from_numpy(rest).float()
    start = (
        start_sparse(x, 24, lam=0.1) if kind == "lasso" else start_robust(x, 5, nonnegative=True)
    )
    encoder = choose_encoder(pu.learn(x, model=start.model, passes=2), 3)
    pu.fit(encoder, signals, steps=30)
    saved = pu.load(folder / f"{kind}.safetensors")
    for name, tensor in encoder.state_dict().items():
        torch.testing.assert_close(saved.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    x = torch.from_numpy(signals[held])
    with torch.no_grad():
        gap = mean_excess(saved.model, x, saved(x))
    assert fitted[kind]["gap"] == pytest.approx(gap, rel=1e-3)
    assert fitted[kind]["gap_rows"] == len(held)


def test_other_data_and_the_summary(folder: Path, signals: np.ndarray) -> None:
    from PIL import Image

    pictures = folder / "pictures"
    pictures.mkdir()
    grey = np.random.default_rng(0).integers(0, 255, (40, 40)).astype(np.uint8)
    Image.fromarray(grey).save(pictures / "a.png")
    np.savetxt(folder / "x.csv", signals[:100], delimiter=",")
    np.savez(folder / "x.npz", a=signals[:3], b=(100 * signals[:100]).astype(np.uint8))
    common = ["--atoms", "6", "--layers", "2", "--steps", "10", "--passes", "1"]
    commands = [
        ["fit", "lasso", str(pictures), "--patch", "4", "--patches", "100", "-o", "1", *common],
        ["fit", "lasso", "x.csv", "-o", "2", *common],
        ["fit", "lasso", "x.npz", "--key", "b", "-o", "3", *common],
    ]
    command = [sys.executable, "-c", SEVERAL, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for number in (1, 2, 3):
        assert pu.load(folder / str(number)).model.dictionary.shape == (6, FEATURES)
        start = f"{number}: lasso, 6 atoms of 16 features, 2 layers (ProximalEncoder), "
        assert lines[2 * number - 2].startswith(start)
        assert "% on 100 training rows" in lines[2 * number - 1]


# ---- interruptions --------------------------------------------------------------------------


def steps_of(checkpoint: Path) -> int:
    return files.read(checkpoint)[1]["history"]["steps"] if checkpoint.exists() else 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("regime", "numbers"),
    [("approximation", (signal.SIGINT, signal.SIGKILL))],
    ids=["approximation"],
)
def test_an_interrupted_run_goes_on_bit_by_bit(
    folder: Path, regime: str, numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")

    def command(name: str) -> list[str]:
        arguments = ["fit", "lasso", folder / "x.npy", "-o", folder / name, "--atoms", 24]
        arguments += ["--lam", 0.1, "--passes", 1, "--layers", 4, "--steps", STEPS]
        arguments += ["--regime", regime, "--seed", 3, "--threads", 1]
        return [sys.executable, "-m", "pursuit", *map(str, arguments)]

    def interrupted(number: int, after: int) -> tuple[int, str]:
        with subprocess.Popen(
            command(f"{regime}.b"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            deadline = time.monotonic() + 120
            while steps_of(checkpoint) <= after and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(process.pid, number)
            out, errors = process.communicate(timeout=60)
        assert out == ""
        assert not (folder / f"{regime}.b").exists()
        return process.returncode, without_progress(errors)

    checkpoint = folder / f"{regime}.b.checkpoint"
    whole = subprocess.run(command(f"{regime}.a"), capture_output=True, text=True, timeout=300)
    assert (whole.returncode, without_progress(whole.stderr)) == (0, "")
    steps, line = 0, ""
    for number in numbers:
        code, errors = interrupted(number, after=steps)
        if number == signal.SIGINT:
            line += "interrupted; run the same command again to continue\n"
        assert (code, errors) == (130 if number == signal.SIGINT else -number, line)
        assert steps < steps_of(checkpoint) < STEPS
        steps = steps_of(checkpoint)
        line = f"resuming at step {steps}\n"
    done = subprocess.run(command(f"{regime}.b"), capture_output=True, text=True, timeout=300)
    assert (done.returncode, without_progress(done.stderr)) == (0, line)
    assert (folder / f"{regime}.a").read_bytes() == (folder / f"{regime}.b").read_bytes()
    assert not list(folder.glob(f"*{regime}*.checkpoint*"))


def test_an_unfinished_run_is_not_mixed_up(folder: Path) -> None:
    run_of = folder / "other.checkpoint"
    beside = folder / "other.checkpoint.dictionary"
    arguments = ["fit", "lasso", folder / "small.npy", "-o", folder / "other", "--atoms", 6]
    common = ["--steps", 10, "--passes", 1]
    pu.fit(
        pu.ProximalEncoder(pu.models.Lasso(torch.eye(FEATURES), 0.1), layers=2),
        np.load(folder / "small.npy"),
        steps=10,
        checkpoint=run_of,
    )
    assert_refused(
        pursuit(*arguments, *common), 1, "has no other.checkpoint.dictionary beside it, so"
    )
    pu.save(pu.models.Lasso(torch.eye(FEATURES), 0.1), beside)
    assert_refused(pursuit(*arguments, *common), 1, "is not part of an unfinished run")
    _, info = files.read(beside)
    files.write(beside, files.read(beside)[0], {**info, "plan": {"kind": "lasso", "atoms": 7}})
    assert_refused(pursuit(*arguments, *common), 1, "is an unfinished run with other settings")
    assert run_of.exists()
    assert beside.exists()
    assert not (folder / "other").exists()


# ---- wrong uses -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["pca", "x.npy", "-o", "a"], "'pca' is not one of 'lasso', 'group'"),
        (["lasso", "x.npy"], "Missing option '--output'"),
        (["lasso", "x.npy", "-o", "a", "--lam-star", "1"], "--lam-star is for nmf, rpca, rnmf"),
        (["nmf", "x.npy", "-o", "a", "--lam", "1"], "--lam is for lasso, group, hilasso"),
        (["nmf", "x.npy", "-o", "a", "--lam-star", "auto"], "--lam-star must be a number for nmf"),
        (["lasso", "x.npy", "-o", "a", "--groups", "2"], "--groups is for group, hilasso"),
        (["lasso", "x.npy", "-o", "a", "--lam", "much"], "--lam must be auto or a number"),
        (["lasso", "x.npy", "-o", "a", "--lam", "-1"], "--lam must be auto or a number"),
        (["lasso", "x.npy", "-o", "a", "--step", "big"], "'--step'"),
        (["lasso", "x.npy", "-o", "a", "--regime", "none"], "'--regime'"),
        (["lasso", "x.npy", "-o", "a", "--layers", "0"], "'--layers'"),
        (["group", "x.npy", "-o", "a", "--atoms", "9"], "--atoms must be a multiple of --groups"),
        (["lasso", "x.npy", "-o", "a", "--atoms", "10000000"], "'--atoms'"),
        (["lasso", "x.npy", "-o", "a", "--seed", "-1"], "'--seed'"),
        (["lasso", "x.npy", "a", "-o", "b"], "the file to write is given by -o"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_use_is_one_sentence(arguments: list[str], sentence: str) -> None:
    assert_refused(pursuit("fit", *arguments), 2, sentence)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("missing", "there is no file"),
        ("missing folder", "there is no folder"),
        ("output is the input", "is the input itself"),
        ("empty folder", "has no pictures"),
        ("no rows", "none.npy has no rows, so there is nothing to learn from"),
        ("negative", "negative.npy contains negative values, first in row 1 (counted from 1)"),
        ("nan", "nan.npy contains NaN or infinite values, first in row 701 (counted from 1)"),
        ("too large", "row 6 (counted from 1), more than computations in float32 allow (1e+08)"),
        ("too small", "less than learning in float32 allows (1e-15); multiply the data"),
        ("a model as data", "is a safetensors file, such as a model, not data"),
        ("data as output", "has the suffix of a data file, but fit writes a model"),
        ("output is a folder", "is a folder; give the name of a file"),
        ("output is a device", "/dev/full is a device, not a file; give the name of a file"),
        ("too many atoms", "the memory does not suffice: 1000000 atoms need"),
        ("long name", "cannot be written: file name too long"),
        ("checkpoint is the output", "is the output and the checkpoint"),
        ("checkpoint in no folder", "there is no folder"),
        ("checkpoint is the data", "is the input itself"),
        ("patches of a file", "--patches is for a folder of pictures, but"),
        ("key of a folder", "--key is for files, but"),
        ("index", "index.csv looks like an index of the rows; leave it out with --drop id"),
    ],
)
def test_fit_refuses(mistake: str, sentence: str, folder: Path, signals: np.ndarray) -> None:
    kind, data, output = "lasso", folder / "x.npy", folder / "refused"
    options: list[object] = []
    match mistake:
        case "too large":
            data = folder / "large.npy"
            np.save(data, np.where(np.arange(ROWS)[:, None] == 5, 1e300, signals.astype(float)))
        case "too small":
            data = folder / "tiny.npy"
            np.save(data, 1e-25 * signals.astype(np.float64))
        case "a model as data":
            data = folder / "model.safetensors"
            pu.save(pu.models.Lasso(torch.eye(FEATURES), 0.1), data)
        case "data as output":
            output = folder / "refused.npy"
        case "output is a device":
            output = Path("/dev/full")
        case "too many atoms":
            options = ["--atoms", "1000000"]
        case "output is a folder":
            output = folder
        case "long name":
            output = folder / ("refused" * 40)
        case "checkpoint is the output":
            options = ["--checkpoint", output]
        case "checkpoint in no folder":
            options = ["--checkpoint", folder / "missing" / "run"]
        case "checkpoint is the data":
            options = ["--checkpoint", data]
        case "patches of a file":
            options = ["--patches", 3]
        case "key of a folder":
            data, options = folder, ["--key", "a"]
        case "index":
            data = folder / "index.csv"
            numbers = np.arange(len(signals))[:, None]
            header = ",".join(["id", *"abcdefghijklmnop"])
            np.savetxt(data, np.hstack([numbers, signals]), "%g", ",", header=header, comments="")
        case "missing":
            data = folder / "missing.npy"
        case "missing folder":
            output = folder / "missing" / "refused"
        case "output is the input":
            output = data
        case "empty folder":
            data = folder / "empty"
            data.mkdir()
        case "no rows":
            data = folder / "none.npy"
            np.save(data, signals[:0])
        case "negative":
            kind, data = "nmf", folder / "negative.npy"
        case "nan":
            data = folder / "nan.npy"
            bad = signals.copy()
            bad[700, 3] = np.nan
            np.save(data, bad)
    done = pursuit("fit", kind, data, "-o", output, "--steps", 5, "--atoms", 4, *options)
    assert_refused(done, 1, sentence)
    assert not [path for path in folder.iterdir() if "refused" in path.name]


def test_nothing_is_read_before_the_options_are_checked(folder: Path) -> None:
    """The data are damaged, but the output, which is wrong as well, is what is reported."""
    (folder / "damaged.npy").write_bytes(b"no array")
    arguments = ["fit", "lasso", folder / "damaged.npy", "-o", folder / "missing" / "a"]
    done = pursuit(*arguments, options=("-X", "importtime"))
    assert done.returncode == 1
    assert "there is no folder" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


def test_a_bad_date_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "SOURCE_DATE_EPOCH", "yesterday")
    done = pursuit("fit", "lasso", folder / "x.npy", "-o", folder / "refused")
    assert_refused(done, 1, "SOURCE_DATE_EPOCH must be a number of seconds since 1970, got")


# ---- what is told ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("one", "one.npy has a single row; give several"),
        ("zero", "zero.npy are 0, so there is nothing to learn"),
        ("constant", "constant.npy are 3, so there is nothing to learn"),
        ("same", "same.npy are the same, so there is nothing to learn"),
    ],
)
def test_nothing_to_learn_is_a_warning(
    name: str, sentence: str, signals: np.ndarray, folder: Path
) -> None:
    data = {
        "one": signals[:1],
        "zero": np.zeros((30, FEATURES)),
        "constant": np.full((30, FEATURES), 3.0),
        "same": np.repeat(signals[:1], 30, axis=0),
    }
    np.save(folder / f"{name}.npy", data[name])
    common = ["--atoms", 4, "--layers", 2, "--steps", 5, "--passes", 1, "--lam", 0.1]
    done = pursuit("fit", "lasso", folder / f"{name}.npy", "-o", folder / f"{name}.out", *common)
    assert done.returncode == 0
    (line,) = errors_of(done)
    assert line.startswith("warning: ")
    assert sentence in line
    assert (folder / f"{name}.out").is_file()


def test_the_file_says_what_it_was_trained_on(folder: Path, fitted: dict[str, dict]) -> None:
    shown = json.loads(pursuit("inspect", folder / "lasso.safetensors", "--json").stdout)
    training, said = shown["training"], fitted["lasso"]
    assert training["data"] == {"name": "x.npy", "shape": [ROWS, FEATURES]}
    assert (training["steps"], training["seed"]) == (30, 0)
    assert training["gap"] == said["gap"]
    date = datetime.fromisoformat(training["date"])
    assert timedelta(0) <= datetime.now(UTC) - date < timedelta(hours=1)
    assert str(folder).encode() not in (folder / "lasso.safetensors").read_bytes()
    lines = pursuit("inspect", folder / "lasso.safetensors").stdout.splitlines()
    assert f"data             x.npy, {ROWS} rows of {FEATURES} features" in lines
    assert (
        f"gap              {100 * said['gap']:.3g} % on {said['gap_rows']} held-out rows" in lines
    )
    assert f"date             {training['date']}" in lines


def test_equal_runs_write_equal_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "SOURCE_DATE_EPOCH", "86400")
    common = ["--atoms", "4", "--layers", "2", "--steps", "5", "--passes", "1", "--lam", "0.1"]
    data, outputs = str(folder / "small.npy"), [folder / f"equal.{number}" for number in range(4)]
    commands = [["fit", "lasso", data, "-o", str(output), *common] for output in outputs]
    done = python("-c", SEVERAL, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    assert len({output.read_bytes() for output in outputs}) == 1
    assert files.read(outputs[0])[1]["training"]["date"] == "1970-01-02T00:00:00+00:00"


def test_progress_is_reported_to_a_file(folder: Path) -> None:
    common = ["--atoms", 4, "--layers", 2, "--steps", 40, "--passes", 1, "--lam", 0.1]
    done = pursuit("fit", "lasso", folder / "small.npy", "-o", folder / "told", *common)
    first, second = done.stderr.splitlines()
    assert re.fullmatch(r" *[0-9.]+ s  dictionary, from 60 rows", first)
    assert re.fullmatch(r" *[0-9.]+ s  training 10 of 40, loss [0-9.e-]+", second)


def test_help_shows_an_example() -> None:
    assert "Example: pursuit fit " in pursuit("fit", "--help").stdout
