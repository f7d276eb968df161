"""What the commands share: options, and the result on stdout as text or as one JSON object."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Key = Annotated[
    str | None, typer.Option(help="The array of an .npz file; not needed if it has only one.")
]


def show(result: Any, text: str, as_json: bool) -> None:
    """Print the result of a command: plain data as JSON, or the text for readers."""
    typer.echo(json.dumps(result) if as_json else text)
