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

#: what runs when nothing is named
STANDARD = ("dictionary", "eager", "fronts", "lasso", "robust", "untrained")

_MAIN = re.compile(r"^if __name__ == ['\"]__main__['\"]:", re.MULTILINE)


class Bench(TyperCommand):
    """A command that leaves alone what stands after ``--``: it becomes ``context.args``."""

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
            metavar="NAME", help="Which to run, one after the other.", show_default=False
        ),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Say which benchmarks there are, and run nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: print JSON.")] = False,
) -> None:
    """Run the benchmarks of the repository.

    Without a name, the standard set runs: --list marks it with a star.

    What stands after -- goes to the scripts as it is.

    Example: pursuit bench lasso -- --rounds 3
    """
    if as_json and not show:
        raise UsageError("--json goes with --list", context)
    if context.args and (show or not names):
        raise UsageError("what stands after -- needs the name of a benchmark to run", context)
    import pursuit

    folder = find(Path(pursuit.__file__).parent)
    summaries = scripts(folder)
    chosen = list(dict.fromkeys(names or (summaries if show else STANDARD)))
    check(chosen, summaries)
    if show:
        typer.echo(listing({name: summaries[name] for name in chosen}, as_json))
    else:
        run(folder, chosen, context.args)


def find(package: Path) -> Path:
    """The folder of the benchmarks, if the package is used from within its repository."""
    root = package.resolve().parents[1]
    if not ((root / "pyproject.toml").is_file() and (root / "benchmarks").is_dir()):
        raise FileNotFoundError(
            "the benchmarks come with the repository and are not installed; "
            "clone it and run make bench there"
        )
    return root / "benchmarks"


def scripts(folder: Path) -> dict[str, str]:
    """The scripts of a folder that can be run, each with the first line of its docstring."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if _MAIN.search(text):
            found[path.stem] = _summary(text)
    return found


def check(names: Sequence[str], known: Mapping[str, str]) -> None:
    """All names are those of benchmarks, or a ValueError."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"there is no benchmark {' or '.join(unknown)}; there are {', '.join(known)}"
        )


def listing(summaries: Mapping[str, str], as_json: bool) -> str:
    """Names and summaries, as text or as JSON; those of the standard set are marked."""
    if as_json:
        import json

        return json.dumps(
            [
                {"name": name, "summary": summary, "standard": name in STANDARD}
                for name, summary in summaries.items()
            ]
        )
    width = max(map(len, summaries), default=0)
    lines = (
        f"{'*' if name in STANDARD else ' '} {name:{width}}  {summary}"
        for name, summary in summaries.items()
    )
    return "\n".join([*lines, "* runs when nothing is named"])


def run(folder: Path, names: Sequence[str], arguments: Sequence[str] = ()) -> None:
    """Run scripts one after the other; at the end an error names those that failed.

    Parameters
    ----------
    folder, names
        Where the scripts are, and which of them, without ``.py``.
    arguments
        What each of them is given.
    """
    failed = []
    # a script must not keep back what it prints because nobody watches a terminal
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
        # running it tells more about it
        lines = []
    return lines[0] if lines else ""
