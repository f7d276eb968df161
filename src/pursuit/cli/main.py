"""The command `pursuit`: what stands before its commands, and the list of them.

A command is a function in a file of its own, registered at the end of this one. Its module
imports typer and the standard library; all else is imported inside the function, so that
``pursuit --help`` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .bench import Bench, bench
from .demo import demo
from .encode import decode, encode
from .errors import Commands
from .export import export
from .fit import fit
from .inspect import inspect
from .reproduce import reproduce

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pursuit {__version__}")
        raise typer.Exit


@app.callback()
def pursuit(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from: the traceback.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Sparse and low-rank models as small, fast, trainable encoders."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(demo)
app.command()(fit)
app.command()(encode)
app.command()(decode)
app.command()(inspect)
app.command()(export)
app.command()(reproduce)
app.command(cls=Bench)(bench)


def main() -> None:
    """What the installed command and ``python -m pursuit`` call."""
    app(prog_name="pursuit")
