"""`pursuit encode` and `pursuit decode`: codes of signals and back, from file to file.

Files are worked off piece by piece. What a trained encoder does by itself does not need torch;
exact codes, models without an encoder and single parts do.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    import numpy as np

    from .data import Array, Table

__all__ = ["decode", "encode"]

#: the relative gap of codes that no encoder gives
EXACT = 1e-6


class Part(StrEnum):
    """What robust models split signals into."""

    LOW_RANK = "low_rank"
    SPARSE = "sparse"


ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The file of an encoder, or of a model.")
]
Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="OUTPUT", help="What to write: .npy, .npz or .csv."),
]
Key = Annotated[
    str | None, typer.Option(help="Which array of an .npz file; not needed if it has one.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="How many threads work; by default one a core.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")]


class Work(NamedTuple):
    """What is done with the rows of a file."""

    run: Callable[[Array], Array]
    features: int
    columns: int
    dtype: type[np.floating[Any]]


class Gaps:
    """The certificates of exact codes, as they come."""

    def __init__(self) -> None:
        self.largest, self.relative, self.unconverged = 0.0, 0.0, 0

    def add(self, solution: Any) -> None:
        import torch

        eps = torch.finfo(solution.codes.dtype).eps
        relative = solution.gap / solution.objective.clamp_min(eps)
        self.largest = max(self.largest, float(solution.gap.max()))
        self.relative = max(self.relative, float(relative.max()))
        self.unconverged += int((~solution.converged).sum())

    def describe(self) -> dict[str, Any]:
        def number(value: float) -> float | None:
            return value if math.isfinite(value) else None  # JSON has no infinity

        return {
            "largest_gap": number(self.largest),
            "largest_relative_gap": number(self.relative),
            "unconverged": self.unconverged,
        }


def encode(
    model: ModelFile,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Signals as rows: .npy (may be larger than the memory), .npz, .csv or .parquet.",
        ),
    ],
    output: Output,
    tol: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Solve exactly, to this relative gap, starting from the encoder's codes. "
            "Without an encoder in MODEL this is what happens anyway, by default with 1e-6.",
        ),
    ] = None,
    key: Key = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Write the codes of signals.

    OUTPUT is there whole in the end, or not at all.

    Example: pursuit encode model.safetensors X.npy -o codes.npy
    """
    from .data import check_output, open_table

    started = time.perf_counter()
    check_output(output, (model, data))
    gaps = Gaps()
    kind = _kind(model)
    table = open_table(data, key)
    if kind == "encoder" and tol is None:
        work = _encoder(model, threads)
    else:
        work = _solver(model, EXACT if tol is None else tol, threads, gaps)
    _convert(table, work, output, "codes", f"{model} is for signals of {work.features} features")
    written: dict[str, Any] = {
        "path": str(output),
        "rows": len(table),
        "size": work.columns,
        "method": "encoder" if kind == "encoder" and tol is None else "exact",
        "bytes": output.stat().st_size,
        "seconds": round(time.perf_counter() - started, 3),
    }
    proof = ""
    if written["method"] == "exact":
        written |= gaps.describe()
        proof = f"; largest certified gap {gaps.largest:.2g} ({gaps.relative:.2g} of the objective)"
        if gaps.unconverged:
            proof += f", {gaps.unconverged} rows have not converged"
    if as_json:
        _print_json(written)
        return
    typer.echo(
        "{path}: {rows} codes of size {size}, {method}; {bytes} bytes, {seconds:.1f} s".format(
            **written
        )
        + proof
    )


def decode(
    model: ModelFile,
    codes: Annotated[
        Path,
        typer.Argument(metavar="CODES", help="Codes as rows: .npy, .npz, .csv or .parquet."),
    ],
    output: Output,
    part: Annotated[
        Part | None, typer.Option(help="Only this part of the signals, for robust models.")
    ] = None,
    key: Key = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Write the signals that codes stand for.

    OUTPUT is there whole in the end, or not at all.

    Example: pursuit decode model.safetensors codes.npy -o X.npy
    """
    from .data import check_output, open_table

    started = time.perf_counter()
    check_output(output, (model, codes))
    kind = _kind(model)
    table = open_table(codes, key)
    plain = kind == "encoder" and part is None
    work = _decoder(model) if plain else _parts(model, part, threads)
    _convert(table, work, output, "signals", f"{model} has codes of size {work.features}")
    written: dict[str, Any] = {
        "path": str(output),
        "rows": len(table),
        "features": work.columns,
        "part": part,
        "bytes": output.stat().st_size,
        "seconds": round(time.perf_counter() - started, 3),
    }
    if as_json:
        _print_json(written)
        return
    what = "signals" if part is None else f"{part} parts"
    typer.echo(
        f"{output}: {len(table)} {what} of {work.columns} features; {written['bytes']} bytes, "
        f"{written['seconds']:.1f} s"
    )


def _kind(path: Path) -> str:
    """What a file holds, "encoder" or "model"; all else is a ValueError."""
    from ..files import read

    kind = read(path)[1].get("kind")
    if kind not in ("encoder", "model"):
        raise ValueError(f"an encoder or a model is needed, but {path} holds a {kind}")
    return str(kind)


def _encoder(path: Path, threads: int | None) -> Work:
    import numpy as np

    from ..runtime.compiled import Compiled, load

    encoder = load(path, threads=threads)
    assert isinstance(encoder, Compiled)
    return Work(encoder, encoder.features, encoder.size, np.float32)


def _decoder(path: Path) -> Work:
    import numpy as np

    from ..runtime.compiled import Compiled, load

    encoder = load(path)
    assert isinstance(encoder, Compiled)
    return Work(encoder.decode, encoder.size, encoder.features, np.float32)


def _solver(path: Path, tol: float, threads: int | None, gaps: Gaps) -> Work:
    import torch

    from ..solvers.solve import solve

    model, encoder = _loaded(path, threads)

    def run(x: Array) -> Array:
        solution = solve(model, torch.from_numpy(x), tol=tol, init=encoder)
        gaps.add(solution)
        codes: Array = solution.codes.numpy()
        return codes

    return Work(run, model.features, model.code_size, _dtype(model))


def _parts(path: Path, part: Part | None, threads: int | None) -> Work:
    import torch

    model, _ = _loaded(path, threads)

    def run(codes: Array) -> Array:
        with torch.no_grad():
            given = torch.from_numpy(codes)
            signals = model.decode(given) if part is None else getattr(model.split(given), part)
        if signals is None:
            raise ValueError(f"codes of {type(model).__name__} have no {part} part")
        values: Array = signals.numpy()
        return values

    dtype = _dtype(model)
    if part is not None:
        import numpy as np

        run(np.zeros((1, model.code_size), dtype))  # a part that is missing is told before all else
    return Work(run, model.code_size, model.features, dtype)


def _loaded(path: Path, threads: int | None) -> tuple[Any, Any]:
    """The model of a file, and its encoder if it has one."""
    import torch

    from ..models import SparseModel
    from ..persistence import load

    if threads is not None:
        torch.set_num_threads(threads)
    thing = load(path)
    return (thing, None) if isinstance(thing, SparseModel) else (thing.model, thing)


def _dtype(model: Any) -> type[np.floating[Any]]:
    import numpy as np
    import torch

    return np.float64 if model.dtype == torch.float64 else np.float32


def _convert(table: Table, work: Work, output: Path, name: str, needs: str) -> None:
    """Run over a table and write what comes out."""
    from .data import appended

    rows, columns = table.shape
    if columns != work.features:
        raise ValueError(f"{table.name} has {columns} columns, but {needs}")
    with appended(output, rows, work.columns, work.dtype, name) as append:
        pieces = (piece for _, piece in table.pieces(work.columns, work.dtype))
        for piece in _watched(pieces, rows):
            append(work.run(piece))


def _watched(pieces: Iterator[Array], rows: int) -> Iterator[Array]:
    """The same pieces, with a bar that moves if somebody watches."""
    if not sys.stderr.isatty():
        yield from pieces
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("rows", total=rows)
        for piece in pieces:
            yield piece
            progress.advance(task, len(piece))


def _print_json(written: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(written))
