"""Programs as a user runs them: commands in processes of their own, and some that are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

#: where these are set, typer would colour the help even in a pipe
COLOURS = ("GITHUB_ACTIONS", "FORCE_COLOR", "PY_COLORS")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in COLOURS}


def python(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env=ENVIRONMENT,
    )


def pursuit(*arguments: object, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    return python(*options, "-m", "pursuit", *arguments)


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
