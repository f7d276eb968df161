"""Progress and results of commands: what is shown where."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections.abc import Callable

import pytest

from pursuit.cli import progress
from pursuit.cli.output import show
from pursuit.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_a_bar_with_stage_counts_and_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown() as callback:
        callback(Progress("dictionary", 0, None, detail="from 90 rows"))
        callback(Progress("training", 30, 60, loss=0.25, validation=0.5))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "30/60" in text
    assert "training, loss 0.25, validation 0.5" in text


def told(callback: Callable[[Progress], object], file: io.StringIO) -> list[str]:
    """The lines of a computation with two stages, without their times."""
    callback(Progress("first", 0, 2, detail="from 90 rows"))
    for number in range(1000):  # as a download reports each block
        callback(Progress("second", number, 1000, loss=0.25))
    callback(Progress("third", 5, None, loss=1.0, validation=0.5))
    callback(Progress("quick", 7, 7))
    return [re.sub(r"^ *[0-9.]+ s  ", "", line) for line in file.getvalue().splitlines()]


def test_a_file_gets_a_line_when_a_stage_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with progress.shown() as callback:
        lines = told(callback, file)
    assert lines == [
        "first 0 of 2, from 90 rows",
        "second 0 of 1000, loss 0.25",
        "third 5, loss 1, validation 0.5",
    ]


def test_a_long_stage_gets_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    file = io.StringIO()
    lines = told(progress.now_and_then(file, every=100), file)
    assert lines[1:7] == [
        "second 0 of 1000, loss 0.25",
        *(f"second {number} of 1000, loss 0.25" for number in range(200, 1000, 200)),
        "third 5, loss 1, validation 0.5",
    ]


def test_details_are_lines_of_their_own() -> None:
    file = io.StringIO()
    callback = progress.as_lines(file)
    callback(Progress("denoising", 2, 4))
    callback(Progress("denoising", 2, 4, detail="27 dB"))
    callback(Progress("denoising", 2, 4, detail="28 dB"))
    lines = file.getvalue().splitlines()
    assert [line.partition(" s  ")[2] for line in lines] == ["denoising", "   27 dB", "   28 dB"]


def test_a_result_is_text_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    show({"rows": 3}, "three rows", as_json=False)
    show({"rows": 3}, "three rows", as_json=True)
    text, data = capsys.readouterr().out.splitlines()
    assert text == "three rows"
    assert json.loads(data) == {"rows": 3}
