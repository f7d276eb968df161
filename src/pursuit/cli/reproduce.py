"""`pursuit reproduce`: the paper's experiments, with a report of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .errors import UsageError

__all__ = ["reproduce"]

Tell = Callable[[int, int, str], None]


def reproduce(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The experiment, or list: say which there are.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder of the real data; without it, what comes along."
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the real data first, if they are not there.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version of it, to see that all works.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR",
            help="Where the report, the figures and the numbers go; by default pursuit-NAME. "
            "A run that was broken off goes on from what is there.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="How many seeds; by default what the experiment asks for."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the computation.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")
    ] = False,
) -> None:  # fmt: skip
    """Run an experiment of the paper and write a report.

    Example: pursuit reproduce online --quick -o online
    """
    import json

    from ..experiments import EXPERIMENTS

    if name == "list":
        if as_json:
            typer.echo(json.dumps({key: entry._asdict() for key, entry in EXPERIMENTS.items()}))
            return
        for key, entry in EXPERIMENTS.items():
            typer.echo(f"{key}: {entry.shows}\n  data: {entry.data}\n  takes: {entry.takes}")
        return
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise UsageError(f"there is no experiment {name!r}; there are {known}", context)
    if data is not None and download:
        raise UsageError("--data and --download exclude each other", context)
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"{data} is not a folder; --data takes the folder of the data")

    import dataclasses

    import torch
    from threadpoolctl import threadpool_limits

    from ..experiments import find
    from ..experiments.frame import run

    experiment = find(name)
    folder = Path(f"pursuit-{name}") if output is None else output
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _shown(quiet=as_json) as tell, threadpool_limits(threads):
            if download:
                data = experiment.download(
                    lambda file, done, all_: tell(done, all_, f"fetching {file}")
                )
            settings = experiment.configure(data, quick)
            count = len(settings.seeds) if seeds is None else seeds
            settings = dataclasses.replace(settings, seeds=tuple(range(seed, seed + count)))
            result, page = run(experiment(settings, data), folder, tell)
    finally:
        torch.set_num_threads(before)
    if as_json:
        typer.echo(json.dumps({**result, "report": str(page)}))
    else:
        typer.echo(f"the report: {page.resolve()}")


@contextmanager
def _shown(quiet: bool) -> Iterator[Tell]:
    """A bar in a terminal; elsewhere a line for each part; nothing if quiet."""
    import sys
    import time

    if quiet:
        yield lambda done, count, what: None
        return
    begin = time.perf_counter()
    if not sys.stderr.isatty():

        def say(done: int, count: int, what: str) -> None:
            line = f"{time.perf_counter() - begin:6.1f} s  {done} of {count}  {what}"
            print(line, file=sys.stderr, flush=True)

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, count, what: bar.update(
            task, completed=done, total=count, description=what
        )
