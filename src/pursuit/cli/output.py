"""The result of a command on stdout: text for readers, or one JSON object for programs."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["show"]


def show(result: Any, text: str, as_json: bool) -> None:
    """Print the result of a command.

    Parameters
    ----------
    result
        The result as plain data.
    text
        The same for readers.
    as_json
        Print `result` as JSON instead of `text`.
    """
    if as_json:
        import json

        text = json.dumps(result)
    typer.echo(text)
