"""What the commands share: options, and the result on stdout as text or as one JSON object."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help='Print the result as one JSON object on stdout; an error is {"error": "..."} there.',
    ),
]
Key = Annotated[
    str | None, typer.Option(help="The array of an .npz file; not needed if it has only one.")
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="The columns to read, such as a,b,3-7: names of the header (.csv, .parquet) or "
        "numbers, which count from 1; 3- is the third and all after it.",
    ),
]
Drop = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Columns to leave out, given as for --columns."),
]
Delimiter = Annotated[
    str | None,
    typer.Option(
        metavar="CHARACTER",
        help="What separates the cells of a .csv file: a character, tab or space. By default it "
        "is found in the first line.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a .csv file has names. By default it is found out.",
        show_default=False,
    ),
]
#: the largest seed that all random number generators take
LARGEST_SEED = 2**63 - 1


def show(result: Any, text: str, as_json: bool) -> None:
    """Print the result of a command: plain data as JSON, or the text for readers."""
    typer.echo(json.dumps(result) if as_json else text)
