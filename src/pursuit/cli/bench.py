"""`pursuit bench`: runs the scripts of the repository's folder `benchmarks`."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .errors import UsageError
from .output import show

#: the benchmarks that run by default
STANDARD = ("dictionary", "eager", "fronts", "lasso", "robust", "untrained")

_MAIN = re.compile(r"^if __name__ == ['\"]__main__['\"]:", re.MULTILINE)


class Bench(TyperCommand):
    """A command that does not parse arguments after ``--``; they become ``context.args``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:cut])
        ctx.args = args[cut + 1 :]
        return args[cut + 1 :]


def bench(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="Benchmarks to run, one after the other.", show_default=False
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the benchmarks and run none.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: print JSON.")] = False,
) -> None:
    """Run the benchmarks of the repository.

    Without a name, the standard set runs: --list marks it with a star.

    Arguments after -- are passed to the scripts.

    Example: pursuit bench lasso -- --rounds 3
    """
    if as_json and not listed:
        raise UsageError("--json goes with --list", context)
    if context.args and (listed or not names):
        raise UsageError("arguments after -- need the name of a benchmark to run", context)
    import pursuit

    root = Path(pursuit.__file__).parent.resolve().parents[1]
    folder = root / "benchmarks"
    if not ((root / "pyproject.toml").is_file() and folder.is_dir()):
        raise FileNotFoundError(
            "the benchmarks are part of the repository and are not installed; "
            "clone it and run make bench there"
        )
    summaries = scripts(folder)
    chosen = list(dict.fromkeys(names or (summaries if listed else STANDARD)))
    unknown = [name for name in chosen if name not in summaries]
    if unknown:
        raise ValueError(
            f"there is no benchmark {' or '.join(unknown)}; there are {', '.join(summaries)}"
        )
    if listed:
        _list({name: summaries[name] for name in chosen}, as_json)
    else:
        _run(folder, chosen, context.args)


def scripts(folder: Path) -> dict[str, str]:
    """The scripts of a folder that have a main part, each with the first line of its docstring."""
    summaries = {}
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if _MAIN.search(text):
            try:
                docstring = ast.get_docstring(ast.parse(text)) or ""
            except SyntaxError:  # list the script anyway; running it shows the error
                docstring = ""
            summaries[path.stem] = docstring.partition("\n")[0]
    return summaries


def _list(summaries: Mapping[str, str], as_json: bool) -> None:
    """Print names and summaries; those of the standard set are marked."""
    width = max(map(len, summaries), default=0)
    entries, lines = [], []
    for name, summary in summaries.items():
        standard = name in STANDARD
        entries.append({"name": name, "summary": summary, "standard": standard})
        lines.append(f"{'*' if standard else ' '} {name:{width}}  {summary}")
    show(entries, "\n".join([*lines, "* runs by default"]), as_json)


def _run(folder: Path, names: Sequence[str], arguments: Sequence[str]) -> None:
    """Run scripts one after the other; an error at the end names those that failed."""
    failed = []
    # without it, scripts buffer what they print if stdout is not a terminal
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for name in names:
        typer.echo(f"---- {' '.join([name, *arguments])}")
        sys.stdout.flush()
        command = [sys.executable, str(folder / f"{name}.py"), *arguments]
        code = subprocess.run(command, env=environment).returncode
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
            failed.append(f"{name} {how}")
    if failed:
        raise ChildProcessError("; ".join(failed))
