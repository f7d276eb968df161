"""Error messages: mistakes of a user are answered by one line instead of a traceback.

Commands raise the exceptions of the library. The exit code is 1 for an error, 2 for a wrong use of
the command line, and 130, as in a shell, after Ctrl-C. Unexpected exceptions keep their traceback.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from .._words import one_line

#: exceptions of wrong files, values and installations; missing files and rights are OSErrors
EXPECTED = (ValueError, TypeError, ImportError, OSError)
#: the exception of typer for a wrong use; typer does not export it
UsageError: type[Any] = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """The group of all commands, which prints errors as one line."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with sentences():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with sentences(debug=ctx.params["debug"]):
            return super().invoke(ctx)


@contextmanager
def sentences(debug: bool = False) -> Iterator[None]:
    """Context manager: an expected exception inside ends the program with one line on stderr.

    With `debug`, the traceback is shown instead.
    """
    try:
        yield
    except KeyboardInterrupt:
        _end("interrupted", 130, debug)
    except UsageError as error:
        command = "pursuit" if error.ctx is None else error.ctx.command_path
        text = one_line(error.format_message(), None).rstrip(".")
        _end(f"error: {text} (see {command} --help)", error.exit_code, debug=False)
    except BrokenPipeError:  # the reader of the output has closed it; typer ends quietly
        raise
    except EXPECTED as error:
        _end(f"error: {_sentence(error)}", 1, debug)


def _end(line: str, code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    else:
        print(line, file=sys.stderr)
    raise typer.Exit(code)


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # the second name, if any, is that of the file to be written
        names = [name for name in (error.filename2, error.filename) if name is not None]
        return one_line(": ".join([*map(str, names[:1]), error.strerror]), None)
    return one_line(error, None)
