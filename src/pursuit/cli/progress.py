"""Progress on stderr: a bar if it is a terminal, a line now and then if it is a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from ..progress import Callback, Progress

#: the seconds between two lines of a stage
EVERY = 10.0


@contextmanager
def shown() -> Iterator[Callback]:
    """Context manager: yields a callback that shows progress on stderr.

    On a terminal it is a bar, which disappears at the end; elsewhere lines.
    """
    if sys.stderr.isatty():
        with _bar() as callback:
            yield callback
    else:
        yield now_and_then(sys.stderr)


def now_and_then(file: IO[str], every: float = EVERY) -> Callback:
    """A callback that prints a line when a stage begins, and after that every few seconds.

    A stage that is complete when it first reports is not worth a line.
    """
    begin = time.perf_counter()
    stage, latest = "", begin

    def show(now: Progress) -> None:
        nonlocal stage, latest
        seconds = time.perf_counter()
        begins = now.stage != stage and now.done != now.total
        if begins or seconds - latest >= every:
            stage, latest = now.stage, seconds
            count = f"{now.done or ''}" if now.total is None else f"{now.done} of {now.total}"
            print(f"{seconds - begin:6.1f} s  {_described(now, count)}", file=file, flush=True)

    return show


def as_lines(file: IO[str]) -> Callback:
    """A callback that prints a line for each new stage and each detail, with the time so far."""
    begin = time.perf_counter()
    last = ""

    def show(now: Progress) -> None:
        nonlocal last
        if now.stage == last and not now.detail:
            return
        last = now.stage
        text = f"   {now.detail}" if now.detail else now.stage
        print(f"{time.perf_counter() - begin:6.1f} s  {text}", file=file, flush=True)

    return show


def _described(now: Progress, count: str = "") -> str:
    """The stage, how much of it is done, remarks and losses."""
    losses = {"loss": now.loss, "validation": now.validation}
    parts = [f"{now.stage} {count}".rstrip(), *([now.detail] if now.detail else [])]
    parts += [f"{name} {value:.4g}" for name, value in losses.items() if value is not None]
    return ", ".join(parts)


@contextmanager
def _bar() -> Iterator[Callback]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("{task.description}"),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(now: Progress) -> None:
            bar.update(task, completed=now.done, total=now.total, description=_described(now))

        yield show
