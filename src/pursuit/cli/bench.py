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

__all__ = ["STANDARD", "Bench", "bench"]

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
    show: Annotated[bool, typer.Option("--list", help="List the benchmarks and run none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: print JSON.")] = False,
) -> None:
    """Run the benchmarks of the repository.

    Without a name, the standard set runs: --list marks it with a star.

    Arguments after -- are passed to the scripts.

    Example: pursuit bench lasso -- --rounds 3
    """
    if as_json and not show:
        raise UsageError("--json goes with --list", context)
    if context.args and (show or not names):
        raise UsageError("arguments after -- need the name of a benchmark to run", context)
    import pursuit

    folder = _find(Path(pursuit.__file__).parent)
    summaries = scripts(folder)
    chosen = list(dict.fromkeys(names or (summaries if show else STANDARD)))
    _check(chosen, summaries)
    if show:
        _list({name: summaries[name] for name in chosen}, as_json)
    else:
        _run(folder, chosen, context.args)


def _find(package: Path) -> Path:
    """The folder of the benchmarks in the repository of the package."""
    root = package.resolve().parents[1]
    if not ((root / "pyproject.toml").is_file() and (root / "benchmarks").is_dir()):
        raise FileNotFoundError(
            "the benchmarks are part of the repository and are not installed; "
            "clone it and run make bench there"
        )
    return root / "benchmarks"


def scripts(folder: Path) -> dict[str, str]:
    """The scripts of a folder that have a main part, each with the first line of its docstring."""
    summaries = {}
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if _MAIN.search(text):
            summaries[path.stem] = _summary(text)
    return summaries


def _check(names: Sequence[str], known: Mapping[str, str]) -> None:
    """Raise a ValueError if a name is not that of a benchmark."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"there is no benchmark {' or '.join(unknown)}; there are {', '.join(known)}"
        )


def _list(summaries: Mapping[str, str], as_json: bool) -> None:
    """Print names and summaries; those of the standard set are marked."""
    from .output import show

    entries = [
        {"name": name, "summary": summary, "standard": name in STANDARD}
        for name, summary in summaries.items()
    ]
    width = max(map(len, summaries), default=0)
    lines = [
        f"{'*' if name in STANDARD else ' '} {name:{width}}  {summary}"
        for name, summary in summaries.items()
    ]
    show(entries, "\n".join([*lines, "* runs by default"]), as_json)


def _run(folder: Path, names: Sequence[str], arguments: Sequence[str]) -> None:
    """Run scripts one after the other; raise an error at the end that names those that failed."""
    failed = []
    # without it, scripts buffer what they print if stdout is not a terminal
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    for name in names:
        typer.echo(f"---- {' '.join([name, *arguments])}")
        sys.stdout.flush()
        command = [sys.executable, str(folder / f"{name}.py"), *arguments]
        code = subprocess.run(command, env=environment).returncode
        if code:
            failed.append(
                f"{name} was ended by signal {-code}" if code < 0 else f"{name} exited with {code}"
            )
    if failed:
        raise ChildProcessError("; ".join(failed))


def _summary(text: str) -> str:
    try:
        lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    except SyntaxError:
        # it is listed nevertheless; running it shows the error
        lines = []
    return lines[0] if lines else ""
