"""Progress on the terminal: a bar if stderr is a terminal, lines or nothing otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from ..progress import Callback, Progress


@contextmanager
def shown(quiet: bool = False, lines: bool = False) -> Iterator[Callback]:
    """Context manager: yields a callback that shows progress on stderr, unless `quiet`.

    On a terminal it is a bar, which disappears at the end. Elsewhere nothing is shown, or with
    `lines` a line for each stage.
    """
    if quiet or not (sys.stderr.isatty() or lines):
        yield lambda now: None
    elif not sys.stderr.isatty():
        yield as_lines(sys.stderr, counted=True)
    else:
        with _bar() as callback:
            yield callback


def as_lines(file: IO[str], counted: bool = False) -> Callback:
    """A callback that prints a line for each new stage and each detail, with the time so far.

    With `counted`, a line also shows how much is done, such as "2 of 7".
    """
    begin = time.perf_counter()
    last = ""

    def show(now: Progress) -> None:
        nonlocal last
        if now.stage == last and not now.detail:
            return
        last = now.stage
        text = f"   {now.detail}" if now.detail else now.stage
        if counted and now.total is not None:
            text = f"{now.done} of {now.total}  {text}"
        print(f"{time.perf_counter() - begin:6.1f} s  {text}", file=file, flush=True)

    return show


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
            parts = [now.stage, now.detail] if now.detail else [now.stage]
            losses = {"loss": now.loss, "validation": now.validation}
            parts += [f"{name} {value:.4g}" for name, value in losses.items() if value is not None]
            bar.update(task, completed=now.done, total=now.total, description=", ".join(parts))

        yield show
