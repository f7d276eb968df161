"""Programs as a user runs them: commands in processes of their own, and some that are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

#: where these are set, typer would colour the help even in a pipe
COLOURS = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in COLOURS}
#: the same whatever a test adds to it
UNCHANGED = dict(ENVIRONMENT)


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=ENVIRONMENT,
    )


def pursuit(*arguments: object, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, which is forked unless Python gets options."""
    if options or not hasattr(os, "fork"):
        return python(*options, "-m", "pursuit", *arguments)
    return forks().run(["pursuit", *map(str, arguments)])


def script(path: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a file in a process of its own, which is forked where there is fork."""
    command = [str(path), *map(str, arguments)]
    if hasattr(os, "fork"):
        return forks().run(command, cwd)
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True)


#: forks a process for each line on stdin: the current folder, one for the output, the command or
#: the file with its arguments, the environment
SERVER = """
import json, os, runpy, sys, traceback
import torch, pursuit.training, pursuit.cli.main, pursuit.cli.fit_run, pursuit.cli.data
import pursuit.cli.align_run, pursuit.cli.separate_run, pursuit.audio.speaker_training

def call(place, arguments):
    for number, name in enumerate(("in", "out", "errors")):
        os.dup2(os.open(f"{place}/{name}", os.O_RDWR | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    sys.argv = arguments
    try:
        if arguments[0] == "pursuit":
            runpy.run_module("pursuit", run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

for line in sys.stdin:
    folder, place, arguments, environment = json.loads(line)
    process = os.fork()
    if process == 0:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        code = call(place, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class Forks:
    """A process that has imported torch and forks for each run, which saves the imports."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "default", "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=UNCHANGED,
        )

    def run(
        self, arguments: list[str], cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            folder = os.getcwd() if cwd is None else str(cwd)
            server.stdin.write(json.dumps([folder, place, arguments, ENVIRONMENT]) + "\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
            out, errors = (Path(place, name).read_text() for name in ("out", "errors"))
        return subprocess.CompletedProcess(arguments, code, out, errors)


@cache
def forks() -> Forks:
    return Forks()


def errors_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr but for progress."""
    return without_progress(done.stderr).splitlines()


def without_progress(errors: str) -> str:
    """What is on stderr but for progress."""
    return re.sub(r"^ *[0-9.]+ s  .*\n", "", errors, flags=re.MULTILINE)


def assert_refused(done: subprocess.CompletedProcess[str], code: int, sentence: str) -> None:
    """One line on stderr that has the sentence in it, and nothing else."""
    (line,) = errors_of(done)
    assert line.startswith("error: ")
    assert sentence in line
    assert (done.returncode, done.stdout) == (code, "")


def kill_some(script: list[str], seed: int, shortest: float, times: int = 2) -> None:
    """Start a script that says when it is ready, and kill it at a random moment; several times."""
    rng = np.random.default_rng(seed)
    kills = 0
    for _ in range(times):
        with subprocess.Popen(script, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(shortest, 0.9))
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert kills >= 1
