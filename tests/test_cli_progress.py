"""Progress and results of commands: what is shown where."""

from __future__ import annotations

import io
import json
import re
import sys

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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"quiet": True, "lines": True}, []),
        ({"lines": True}, ["0 of 2  first", "1 of 2  second", "second again"]),
    ],
    ids=["nothing", "quiet", "lines"],
)
def test_elsewhere_there_are_lines_or_nothing(
    options: dict[str, bool], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with progress.shown(**options) as callback:
        callback(Progress("first", 0, 2))
        for _ in range(3):  # as a download reports each block
            callback(Progress("second", 1, 2))
        callback(Progress("second again", 5, None))
    lines = file.getvalue().splitlines()
    assert [re.sub(r"^ *[0-9.]+ s  ", "", line) for line in lines] == expected


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
