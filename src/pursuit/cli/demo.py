"""`pursuit demo`: the library on real pictures, with a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["demo"]


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder that the report is written to.")
    ] = Path("pursuit-demo"),
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Training steps of each encoder; fewer are quicker and worse."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seeds everything that is random.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of all coders alike.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the table as JSON, and nothing else.")
    ] = False,
) -> None:
    """Learn from textures, code, denoise, and split faces: about two minutes.

    Example: pursuit demo -o report
    """
    import json
    import time

    from ..demo import Demo

    begin = time.perf_counter()

    def say(sentence: str) -> None:
        if not as_json:
            typer.echo(f"{time.perf_counter() - begin:6.1f} s  {sentence}")

    run = Demo(say, steps, seed, threads)
    page = run.run(output)
    if as_json:
        rows = [dict(zip(run.columns, row, strict=True)) for row in run.rows]
        typer.echo(json.dumps({"report": str(page), "coders": rows, "psnr": run.psnr}))
    else:
        typer.echo(f"the report: {page.resolve()}")
