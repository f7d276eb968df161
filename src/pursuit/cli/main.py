"""The command `pursuit`: its general options and the list of its commands.

Each command is a function in a separate file, registered at the end of this one. These files import
only typer and the standard library at the top, everything else inside the functions, so that
``pursuit --help`` is quick.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from .. import __version__
from .align import align
from .bench import Bench, bench
from .demo import demo
from .encode import decode, encode
from .errors import Commands
from .export import export
from .fit import fit
from .identify import identify
from .inspect import inspect
from .reproduce import reproduce
from .separate import separate

#: the commands, in the order of the help
COMMANDS: tuple[Callable[..., None], ...] = (
    demo, fit, encode, decode, inspect, export, separate, identify, align, reproduce, bench,
)  # fmt: skip


def _examples() -> str:
    """The first example of each command; an empty line makes typer begin a new one."""
    texts = (re.search(r"Example: (.+)", command.__doc__ or "") for command in COMMANDS)
    return "\n\n".join(["Examples:", *(text[1] for text in texts if text)])


app = typer.Typer(
    cls=Commands,
    epilog=_examples(),
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(show: bool) -> None:
    if show:
        typer.echo(f"pursuit {__version__}")
        raise typer.Exit


@app.callback()
def pursuit(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Sparse and low-rank models as small, fast, trainable encoders."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in COMMANDS:
    app.command(cls=Bench if _command is bench else None)(_command)


def main() -> None:
    """Run the command; `pursuit.__main__` is the entry point."""
    if sys.stderr is None:  # it was closed
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    app(prog_name="pursuit")
