"""The command line: quick help, one sentence for each mistake, and commands that do as they say."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

import pursuit as pu
from processes import assert_refused, pursuit, python
from pursuit.cli import bench
from pursuit.cli.errors import one_line_warnings, sentences, wants_json
from pursuit.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "numpy", "scipy", "sklearn", "matplotlib", "onnx", "safetensors"}
FEATURES, ATOMS, LAYERS = 5, 9, 3


def imported(done: subprocess.CompletedProcess[str]) -> set[str]:
    """The packages that a process started with ``-X importtime`` has imported."""
    return set(re.findall(r"^import time:[^|]*\|[^|]*\| +(\w+)", done.stderr, re.MULTILINE))


@pytest.fixture(scope="module")
def encoder() -> pu.ProximalEncoder:
    atoms = torch.randn(ATOMS, FEATURES, generator=torch.Generator().manual_seed(0))
    model = pu.models.Lasso(torch.nn.functional.normalize(atoms), lam=0.1)
    return pu.ProximalEncoder(model, layers=LAYERS)


@pytest.fixture
def saved(encoder: pu.ProximalEncoder, tmp_path: Path) -> Path:
    pu.save(encoder, tmp_path / "lasso.safetensors")
    return tmp_path / "lasso.safetensors"


# ---- the command itself ---------------------------------------------------------------------


def test_help_is_quick() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = pursuit("--help")
        times.append(time.perf_counter() - start)
    assert done.returncode == 0
    assert {"export", "bench", "--debug", "--version"} <= set(done.stdout.split())
    assert min(times) < 1.0


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["export", "--help"], ["bench", "--help"], ["bench", "--list"]],
    ids=" ".join,
)
def test_nothing_heavy_is_imported(arguments: list[str]) -> None:
    done = pursuit(*arguments, options=("-X", "importtime"))
    assert done.returncode == 0
    assert "typer" in imported(done)
    assert not HEAVY & imported(done)


def test_version() -> None:
    done = pursuit("--version")
    assert (done.returncode, done.stdout) == (0, f"pursuit {pu.__version__}\n")


def test_without_a_command_there_is_help() -> None:
    done = pursuit()
    assert done.returncode == 0
    assert done.stdout == pursuit("--help").stdout


def test_help_shows_an_example_of_each_command() -> None:
    shown = pursuit("--help").stdout.partition("Examples:")[2]
    for command in COMMANDS:
        assert f" pursuit {command.__name__} " in shown


@pytest.mark.parametrize("command", [command.__name__ for command in COMMANDS])
def test_help_of_a_command_shows_an_example(command: str) -> None:
    assert f"Example: pursuit {command} " in pursuit(command, "--help").stdout


def test_the_command_is_installed() -> None:
    from importlib.metadata import entry_points

    from pursuit.__main__ import main

    (command,) = entry_points(group="console_scripts", name="pursuit")
    assert command.load() is main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "No such option: --nonsense (see pursuit --help)"),
        (["export", "--nonsense"], "No such option: --nonsense (see pursuit export --help)"),
        (["export", "a.safetensors"], "Missing argument"),
        (["export", "a.safetensors", "a.onnx", "--opset", "new"], "'--opset'"),
        (["bench", "--", "--rounds", "3"], "need the name of a benchmark"),
        (["bench", "lasso", "--list", "--", "3"], "need the name of a benchmark"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_use_is_one_sentence(arguments: list[str], sentence: str) -> None:
    assert_refused(pursuit(*arguments), 2, sentence)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_while_it_is_imported_is_one_line() -> None:
    script = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from pursuit.__main__ import main; main()"
    )
    done = python("-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
def test_a_closed_stderr_does_not_stop_a_command(saved: Path, tmp_path: Path) -> None:
    """Progress is not shown, and an error is told on stdout, since there is nothing else."""
    np.save(tmp_path / "x.npy", np.ones((3, FEATURES), np.float32))
    for data, code in (("x.npy", 0), ("missing.npy", 1)):
        paths = f"{saved} {tmp_path / data} -o {tmp_path / 'z.npy'}"
        line = f"exec {sys.executable} -m pursuit encode {paths} 2>&-"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
        assert done.returncode == code, done.stdout
        assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("error: there is no file")
    assert len(np.load(tmp_path / "z.npy")) == 3


# ---- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("lam must be positive,\n  got -1"), "error: lam must be positive, got -1"),
        (TypeError("an encoder"), "error: an encoder"),
        (ImportError("install onnx"), "error: install onnx"),
        (ValueError(), "error: ValueError"),
        (FileNotFoundError("there is no file a"), "error: there is no file a"),
        (FileNotFoundError(2, "No such file", "a"), "error: a: No such file"),
        (PermissionError(13, "Permission denied", "a"), "error: a: Permission denied"),
        (IsADirectoryError(21, "Is a directory", "a", None, "b"), "error: b: Is a directory"),
        (OSError(28, "No space left"), "error: No space left"),
    ],
    ids=str,
)
def test_expected_errors_are_sentences(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as end, sentences():
        raise error
    assert end.value.exit_code == 1
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["export", "missing.safetensors", "a.onnx", "--json"], 1, "there is no file missing"),
        (["export", "--json"], 2, "Missing argument 'MODEL' (see pursuit export --help)"),
        (["bench", "--json"], 2, "--json goes with --list"),
        (["nonsense", "--json"], 2, "No such command 'nonsense'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_errors_are_json_if_the_result_is(arguments: list[str], code: int, sentence: str) -> None:
    done = pursuit(*arguments)
    assert (done.returncode, done.stderr) == (code, "")
    error = json.loads(done.stdout)
    assert list(error) == ["error"]
    assert sentence in error["error"]


def test_json_of_other_programs_is_not_that_of_the_command() -> None:
    assert wants_json(["bench", "lasso", "--json"])
    assert not wants_json(["bench", "lasso", "--", "--json"])


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), KeyboardInterrupt("stopped")], ids=repr)
def test_all_errors_are_json(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises((ZeroDivisionError, typer.Exit)), sentences(as_json=True):
        raise error
    said = json.loads(capsys.readouterr().out)["error"]
    assert said == ("stopped" if str(error) == "stopped" else "ZeroDivisionError: oh")


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with one_line_warnings():
        warnings.warn("the iterations\n  did not suffice", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: the iterations did not suffice\n"


def test_unexpected_errors_pass() -> None:
    with pytest.raises(ZeroDivisionError), sentences():
        raise ZeroDivisionError


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=repr)
def test_debug_shows_the_traceback(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as end, sentences(debug=True):
        raise error
    assert end.value.exit_code == (1 if isinstance(error, ValueError) else 130)
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert f"raise error\n{type(error).__name__}" in shown


# ---- export ---------------------------------------------------------------------------------


def test_export_writes_the_encoder(encoder: pu.ProximalEncoder, saved: Path) -> None:
    import onnxruntime

    target = saved.with_suffix(".onnx")
    done = pursuit("export", saved, target)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        f"{target}: {FEATURES} features to codes of size {ATOMS} by {LAYERS} layers; "
    )
    assert f"opset 17, {target.stat().st_size} bytes\n" in done.stdout
    x = torch.randn(6, FEATURES, generator=torch.Generator().manual_seed(1))
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    (codes,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(codes), encoder(x).detach(), rtol=1e-4, atol=1e-5)


def test_export_prints_json_and_does_not_need_torch(saved: Path) -> None:
    import onnx

    target = saved.with_suffix(".onnx")
    done = pursuit("export", saved, target, "--opset", 13, "--json", options=("-X", "importtime"))
    assert done.returncode == 0
    assert "onnx" in imported(done)
    assert "torch" not in imported(done)
    model = onnx.load(target)
    assert json.loads(done.stdout) == {
        "path": str(target),
        "features": FEATURES,
        "size": ATOMS,
        "layers": LAYERS,
        "nodes": len(model.graph.node),
        "opset": 13,
        "bytes": target.stat().st_size,
    }


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("missing file", "there is no file"),
        ("damaged file", "is not a whole safetensors file"),
        ("other file", "but not one of pursuit"),
        ("model", "only encoders and banks of them can be run"),
        ("bank", "export its encoders one by one"),
        ("missing folder", "there is no folder"),
        ("target is a folder", "is a folder; give the name of a file"),
        ("old opset", "opset must be 13 to"),
        ("same file", "is the input itself; give the output another name"),
        ("same file by another name", "is the input itself; give the output another name"),
        ("swapped", "give the encoder first, then the .onnx"),
    ],
)
def test_export_refuses(
    mistake: str, sentence: str, encoder: pu.ProximalEncoder, saved: Path
) -> None:
    folder = saved.parent
    source, target, options = saved, folder / "lasso.onnx", []
    match mistake:
        case "missing file":
            source = folder / "missing.safetensors"
        case "damaged file":
            saved.write_bytes(saved.read_bytes()[:100])
        case "other file":
            from safetensors.torch import save_file

            save_file({"a": torch.zeros(2)}, saved)
        case "model":
            pu.save(encoder.model, saved)
        case "bank":
            pu.save(pu.EncoderBank([encoder, copy.deepcopy(encoder)], shared=None), saved)
        case "missing folder":
            target = folder / "missing" / "lasso.onnx"
        case "target is a folder":
            target.mkdir()
        case "swapped":
            source, target = target, source
        case "old opset":
            options = ["--opset", "12"]
        case "same file":
            target = saved
        case "same file by another name":
            target.symlink_to(saved)
    before = {path: path.is_file() and path.read_bytes() for path in folder.iterdir()}
    assert_refused(pursuit("export", source, target, *options), 1, sentence)
    assert before == {path: path.is_file() and path.read_bytes() for path in folder.iterdir()}


def test_debug_is_an_option_of_all_commands(tmp_path: Path) -> None:
    done = pursuit("--debug", "export", tmp_path / "missing.safetensors", tmp_path / "a.onnx")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith("FileNotFoundError: there is no file")


@pytest.mark.parametrize("command", [["demo"], ["reproduce", "online"]], ids=" ".join)
def test_a_report_needs_a_folder(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = pursuit(*command, "-o", tmp_path / "file" / "report")
    assert_refused(done, 1, "file is a file; give the name of a folder")


# ---- bench ----------------------------------------------------------------------------------

SCRIPTS = {
    "good": '"""What it says.\n\nMore.\n"""\nimport sys\nfrom helper import SAY\n'
    'if __name__ == "__main__":\n    print(SAY, *sys.argv[1:])\n',
    "bad": 'import sys\nif __name__ == "__main__":\n    sys.exit(3)\n',
    "long": '"""Sleeps."""\nimport time\nif __name__ == "__main__":\n'
    "    print('asleep')\n    time.sleep(60)\n",
    "broken": 'if __name__ == "__main__":\n    not python\n',
    "helper": '"""No script: it has no main."""\n\nSAY = "said"\n',
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a package and small benchmarks."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "src" / "pursuit").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    for name, text in SCRIPTS.items():
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    return tmp_path


def bench_of(repository: Path, *arguments: str) -> list[str]:
    """The command line that runs `pursuit bench` as if it were installed from there."""
    package = repository / "src" / "pursuit" / "__init__.py"
    code = f"import pursuit; pursuit.__file__ = {str(package)!r}\n"
    code += "from pursuit.cli.main import main; main()"
    return ["-c", code, "bench", *arguments]


def test_bench_lists_every_script() -> None:
    mains = {
        path.stem
        for path in (ROOT / "benchmarks").glob("*.py")
        if '\nif __name__ == "__main__":' in path.read_text()
    }
    listed = json.loads(pursuit("bench", "--list", "--json").stdout)
    assert {entry["name"] for entry in listed} == mains
    assert "contest" not in mains
    assert all(entry["summary"] for entry in listed)
    assert {entry["name"] for entry in listed if entry["standard"]} == set(bench.STANDARD)
    shown = pursuit("bench", "--list").stdout
    for entry in listed:
        assert re.search(rf"^[* ] {entry['name']} +{re.escape(entry['summary'])}$", shown, re.M)


def test_bench_lists_what_is_named() -> None:
    (entry,) = json.loads(pursuit("bench", "lasso", "--list", "--json").stdout)
    assert (entry["name"], entry["standard"]) == ("lasso", True)


def test_scripts_are_those_with_a_main(repository: Path) -> None:
    found = bench.scripts(repository / "benchmarks")
    assert found == {"bad": "", "broken": "", "good": "What it says.", "long": "Sleeps."}


def test_bench_runs_what_is_named_and_passes_arguments(repository: Path) -> None:
    done = python(*bench_of(repository, "good", "--", "--rounds", "3", "--"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "---- good --rounds 3 --\nsaid --rounds 3 --\n"


def test_bench_goes_on_after_a_failure_and_names_it(repository: Path) -> None:
    done = python(*bench_of(repository, "bad", "good"))
    assert (done.returncode, done.stderr) == (1, "error: bad exited with 3\n")
    assert done.stdout == "---- bad\n---- good\nsaid\n"


def test_bench_refuses_unknown_names_before_it_runs(repository: Path) -> None:
    done = python(*bench_of(repository, "good", "helper", "nonsense"))
    assert_refused(done, 1, "there is no benchmark helper or nonsense; there are bad, broken, good")


def test_benchmarks_come_with_the_repository(tmp_path: Path) -> None:
    done = python(*bench_of(tmp_path, "--list"))
    assert_refused(done, 1, "clone it and run make bench")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupted_benchmark(repository: Path) -> None:
    with subprocess.Popen(
        [sys.executable, *bench_of(repository, "long", "good")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["---- long\n", "asleep\n"]
        # as a terminal does it: to the whole group
        os.killpg(process.pid, signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert rest == ""
    assert errors.splitlines()[-1] == "interrupted"
