"""Timing contenders against each other: interleaved, medians, one process, pinned threads.

A contender is a function without arguments that returns what it computed. All of them run in
turn, several rounds, so that a busy moment of the machine hits everyone alike. What counts is
the ratio of two medians of one run, never a number of seconds from another day.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from pursuit._threads import limited_threads as threads

__all__ = ["CONSOLE", "Contender", "compete", "machine", "table", "threads"]

CONSOLE = Console(width=120)
#: seconds that threads of other libraries wait actively after their work, on the cores of the next
PAUSE = 0.05
#: seconds up to which a run is short, and for which it is then repeated before it is timed
SHORT, WARM = 0.02, 0.1
#: seconds from which on a run is so long that one suffices
LONG = 20.0


@dataclass
class Contender:
    """A name, what it does, for how many samples, and what was measured."""

    name: str
    run: Callable[[], Any]
    samples: int
    seconds: list[float] = field(default_factory=list)
    result: Any = None

    @property
    def microseconds(self) -> float:
        """Median time per sample."""
        return 1e6 * statistics.median(self.seconds) / self.samples

    @property
    def spread(self) -> float:
        """Half the range of the middle half, as a part of the median."""
        ordered = sorted(self.seconds)
        quarter = len(ordered) // 4
        middle = ordered[quarter : len(ordered) - quarter]
        return (middle[-1] - middle[0]) / 2 / statistics.median(ordered)


def compete(contenders: list[Contender], rounds: int = 5) -> None:
    """Run all contenders in turn; a first round, not counted, compiles and warms up.

    What takes a few milliseconds is repeated for a while before it is timed: it would pay for the
    cache that the one before it has filled, and the system takes milliseconds to move a thread to
    an idle core. What takes more than 20 seconds runs once. All find the same number of threads
    (SPAMS changes it), and none of another still at work.
    """
    count = torch.get_num_threads()

    def settle() -> None:
        time.sleep(PAUSE)
        if torch.get_num_threads() != count:
            torch.set_num_threads(count)

    quick, timed = set(), []
    for contender in contenders:
        settle()
        start = time.perf_counter()
        contender.result = contender.run()
        if time.perf_counter() - start > LONG:
            contender.seconds.append(time.perf_counter() - start)
            continue
        timed.append(contender)
        start = time.perf_counter()
        contender.run()
        if time.perf_counter() - start < SHORT:
            quick.add(contender.name)
    for _ in range(rounds):
        for contender in timed:
            settle()
            start = time.perf_counter()
            while contender.name in quick and time.perf_counter() - start < WARM:
                contender.run()
            start = time.perf_counter()
            contender.run()
            contender.seconds.append(time.perf_counter() - start)


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    view = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        view.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        view.add_row(*row)
    CONSOLE.print(view)


def machine() -> str:
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as lines:
            name = next(line.split(":")[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}"
