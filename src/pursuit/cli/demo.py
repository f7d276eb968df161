"""`pursuit demo`: the library on real pictures, with a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .output import AsJson, show


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the report.")
    ] = Path("pursuit-demo"),
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Training steps of each encoder; fewer are quicker and worse."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of all random numbers.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every coder.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Learn from textures, code, denoise, and split faces: about two minutes.

    Example: pursuit demo -o report
    """
    from .writing import check_folder

    check_folder(output)
    from ..experiments.demo import Demo
    from .progress import as_lines

    run = Demo(as_lines(sys.stderr if as_json else sys.stdout), steps, seed, threads)
    page = run.run(output)
    rows = [dict(zip(run.columns, row, strict=True)) for row in run.rows]
    result = {"report": str(page), "coders": rows, "psnr": run.psnr}
    show(result, f"the report: {page.resolve()}", as_json)
