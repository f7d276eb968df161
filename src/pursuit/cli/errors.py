"""Errors as one sentence: what a user can cause is answered by a line, not by a traceback.

Commands raise what the library raises. The exit code is 1 for an error, 2 for a wrong use of the
command line, and 130, as in a shell, after Ctrl-C. What nobody expects keeps its traceback.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

__all__ = ["Commands", "UsageError", "sentences"]

#: what wrong files, values and installations raise; missing files and rights are OSErrors
EXPECTED = (ValueError, TypeError, ImportError, OSError)
#: what typer raises for a wrong use; it does not export the class itself
UsageError: type[Any] = typer.BadParameter.__mro__[1]


class Commands(TyperGroup):
    """The group of all commands, whose errors are sentences."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with sentences():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with sentences(debug=ctx.params["debug"]):
            return super().invoke(ctx)


@contextmanager
def sentences(debug: bool = False) -> Iterator[None]:
    """Within, an expected exception ends the program with one line on stderr.

    Parameters
    ----------
    debug
        Show the traceback instead.
    """
    try:
        yield
    except KeyboardInterrupt:
        _end("interrupted", 130, debug)
    except UsageError as error:
        _end(f"error: {_misuse(error)}", error.exit_code, debug=False)
    except BrokenPipeError:
        # the reader of our output has seen enough, and typer ends quietly
        raise
    except EXPECTED as error:
        _end(f"error: {_sentence(error)}", 1, debug)


def _end(line: str, code: int, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    else:
        print(line, file=sys.stderr)
    raise typer.Exit(code)


def _misuse(error: Any) -> str:
    command = "pursuit" if error.ctx is None else error.ctx.command_path
    return f"{_one_line(error.format_message()).rstrip('.')} (see {command} --help)"


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # the second name, where there is one, is that of the file that was to be written
        names = [name for name in (error.filename2, error.filename) if name is not None]
        return _one_line(": ".join([*map(str, names[:1]), error.strerror]))
    return _one_line(str(error)) or type(error).__name__


def _one_line(text: str) -> str:
    return " ".join(text.split())
