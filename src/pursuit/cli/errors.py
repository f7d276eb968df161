"""Error messages and warnings: mistakes of a user are answered by one line, not by a traceback.

Commands raise the exceptions of the library. The exit code is 1 for an error, 2 for a wrong use of
the command line, and 130, as in a shell, after Ctrl-C. With --json the line is an object on stdout.
Unexpected exceptions keep their traceback.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from .._words import one_line

#: exceptions of wrong files, values and installations; missing files and rights are OSErrors
EXPECTED = (ValueError, TypeError, ImportError, OSError, MemoryError)
#: the exception of typer for a wrong use; typer does not export it
UsageError: type[Any] = typer.BadParameter.__mro__[1]
#: where the context of a command keeps whether --json was given
AS_JSON = "pursuit.json"


class Commands(TyperGroup):
    """The group of all commands, which prints errors and warnings as one line."""

    def make_context(
        self, info_name: str | None, args: list[str], *rest: Any, **options: Any
    ) -> Any:
        as_json = wants_json(args)
        with sentences(as_json=as_json):
            context = super().make_context(info_name, args, *rest, **options)
        context.meta[AS_JSON] = as_json
        return context

    def invoke(self, ctx: Any) -> Any:
        with sentences(debug=ctx.params["debug"], as_json=ctx.meta[AS_JSON]), one_line_warnings():
            return super().invoke(ctx)


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether --json is among the arguments of a command, even if others of them are wrong."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


@contextmanager
def sentences(debug: bool = False, as_json: bool = False) -> Iterator[None]:
    """Context manager: an expected exception inside ends the program with one line on stderr.

    With `debug`, the traceback is shown instead. With `as_json`, ``{"error": ...}`` is printed on
    stdout instead of the line.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        _end(str(error) or "interrupted", 130, debug, as_json, prefix="")
    except UsageError as error:
        _end(_usage(error), error.exit_code, False, as_json)
    except BrokenPipeError:  # the reader of the output has closed it; typer ends quietly
        raise
    except EXPECTED as error:
        _end(_sentence(error), 1, debug, as_json)
    except Exception as error:
        if as_json and not isinstance(error, typer.Exit | typer.Abort):
            _print_json(one_line(f"{type(error).__name__}: {error}", None))
        raise


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Context manager: warnings inside are lines on stderr without the place in the code."""

    def show(message: Warning | str, *rest: Any, **options: Any) -> None:
        warn(one_line(message, None))

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def warn(sentence: str) -> None:
    print(f"warning: {sentence}", file=sys.stderr)


def _end(line: str, code: int, debug: bool, as_json: bool, prefix: str = "error: ") -> NoReturn:
    if debug:
        traceback.print_exc()
    elif not as_json:
        # where stderr was closed, stdout is the only place for the line
        print(prefix + line, file=sys.stdout if sys.__stderr__ is None else sys.stderr)
    if as_json:
        _print_json(line)
    raise typer.Exit(code)


def _print_json(error: str) -> None:
    typer.echo(json.dumps({"error": error}))


def _usage(error: Any) -> str:
    text = one_line(error.format_message(), None).rstrip(".").replace(": Value error,", ":")
    if error.ctx is None:
        return f"{text} (see pursuit --help)"
    options = [option for parameter in error.ctx.command.params for option in parameter.opts]
    if text.startswith("Got unexpected extra argument") and "-o" in options:
        text += "; the file to write is given by -o"
    return f"{text} (see {error.ctx.command_path} --help)"


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError):
        reason = f": {one_line(error, None)}" if str(error) else ""
        return f"the memory does not suffice{reason}; take fewer atoms, features or rows"
    if isinstance(error, OSError) and error.strerror:
        # the second name, if any, is that of the file to be written
        names = [name for name in (error.filename2, error.filename) if name is not None]
        return one_line(": ".join([*map(str, names[:1]), error.strerror]), None)
    return one_line(error, None)
