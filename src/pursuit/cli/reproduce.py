"""`pursuit reproduce`: the experiments of the paper, each with a report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from .errors import UsageError
from .output import AsJson, show


def reproduce(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The experiment, or list: show all of them.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder of the real data; by default embedded or synthetic."
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Download the real data, unless they are there.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version, to see that everything works.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="The folder of the report, the figures and the numbers; by default pursuit-NAME. "
            "An interrupted run is continued from what is there.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="The number of seeds; by default that of the experiment."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the computation.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Run an experiment of the paper and write a report.

    Example: pursuit reproduce online --quick -o online
    """
    from ..experiments import EXPERIMENTS, find

    if name == "list":
        text = "\n".join(
            f"{key}: {entry.shows}\n  data: {entry.data}\n  takes: {entry.takes}"
            for key, entry in EXPERIMENTS.items()
        )
        show({key: entry._asdict() for key, entry in EXPERIMENTS.items()}, text, as_json)
        return
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise UsageError(f"there is no experiment {name!r}; there are {known}", context)
    if data is not None and download:
        raise UsageError("--data and --download exclude each other", context)
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"{data} is not a folder; --data takes the folder of the data")
    folder = Path(f"pursuit-{name}") if output is None else output
    from .writing import check_folder

    check_folder(folder)
    from .._threads import limited_threads
    from ..experiments.frame import run
    from .progress import shown

    experiment = find(name)
    with shown() as callback, limited_threads(threads):
        if download:
            data = experiment.download(callback)
        settings = experiment.configure(data, quick)
        count = len(settings.seeds) if seeds is None else seeds
        settings = dataclasses.replace(settings, seeds=tuple(range(seed, seed + count)))
        result, page = run(experiment(settings, data), folder, callback)
    show({**result, "report": str(page)}, f"the report: {page.resolve()}", as_json)
