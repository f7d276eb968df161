"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["AsJson", "Key"]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Key = Annotated[
    str | None, typer.Option(help="The array of an .npz file; not needed if it has only one.")
]
