"""`pursuit encode` and `pursuit decode`: codes of signals and back, from file to file.

Everything that can be refused is refused before the first row is read. Files are processed piece by
piece. A trained encoder runs without torch; exact codes, models without an encoder, and single
parts need it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .output import LARGEST_SEED, AsJson, Columns, Delimiter, Drop, Header, Key, show

if TYPE_CHECKING:
    import numpy as np

    from ..files import Saved
    from ..progress import Callback
    from .columns import Selection
    from .data import Array, Table


#: the parts of the signals of robust models: low_rank and sparse
Part = StrEnum("Part", ["LOW_RANK", "SPARSE"])
ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The file of an encoder or of a model.")
]
Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="OUTPUT", help="The file to write: .npy, .npz or .csv."),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="The number of threads; by default one per core.")
]


class _Work(NamedTuple):
    """A function on rows, the numbers of columns it takes and returns, and its dtype."""

    run: Callable[[Array], Array]
    features: int
    columns: int
    dtype: type[np.floating[Any]]


class _Gaps:
    """The largest certified gaps of solutions, and the number of rows without convergence."""

    largest, relative, unconverged = 0.0, 0.0, 0

    def add(self, solution: Any) -> None:
        self.largest = max(self.largest, float(solution.gap.max()))
        self.relative = max(self.relative, float(solution.relative_gap.max()))
        self.unconverged += int((~solution.converged).sum())

    def describe(self) -> dict[str, Any]:
        def number(value: float) -> float | None:
            return value if math.isfinite(value) else None  # JSON has no infinity

        return {
            "largest_gap": number(self.largest),
            "largest_relative_gap": number(self.relative),
            "unconverged": self.unconverged,
        }

    def __str__(self) -> str:
        text = f"largest certified gap {self.largest:.2g} ({self.relative:.2g} of the objective)"
        return f"{text}, {self.unconverged} rows have not converged" if self.unconverged else text


def encode(
    model: ModelFile,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Signals as rows: .npy (may be larger than the memory), .npz, .csv or .parquet; "
            "or a folder of pictures, from which random patches are drawn as by fit.",
        ),
    ],
    output: Output,
    tol: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Solve exactly, to this relative gap, starting from the encoder's codes. "
            "If MODEL has no encoder, codes are always exact, by default to 1e-6.",
        ),
    ] = None,
    key: Key = None,
    columns: Columns = None,
    drop: Drop = None,
    delimiter: Delimiter = None,
    header: Header = None,
    patches: Annotated[
        int | None,
        typer.Option(min=1, help="For pictures: the number of patches; by default 20000."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=LARGEST_SEED, help="For pictures: the seed of the patches; by default 0."
        ),
    ] = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Write the codes of signals.

    OUTPUT has one row for each row of DATA, in the same order, and one
    column for each coefficient. It is complete or does not exist.

    The rows of a folder of pictures are the patches that fit draws with
    the same --patches and --seed, in the same order, centred and scaled
    in the same way. Their side follows from the model.

    Example: pursuit encode model.safetensors X.npy -o codes.npy

    Example: pursuit encode model.safetensors X.csv --drop id -o codes.csv
    """
    from .columns import Selection
    from .data import open_table
    from .progress import shown

    if tol is not None and not math.isfinite(tol):
        raise ValueError(f"--tol must be a finite number, got {tol}")
    started = time.perf_counter()
    selection = Selection(key, columns, drop, delimiter, header)
    saved = _open(model, data, output, selection, pictures=(patches, seed))
    learned = saved.info["kind"] == "encoder" and tol is None
    gaps = _Gaps()
    work = _encoder(saved, threads) if learned else _solver(saved, tol, threads, gaps)
    with shown() as callback:
        if data.is_dir():
            table = _pictures(data, work.features, patches, seed, model)
        else:
            table = open_table(data, selection, callback)
        needs = f"{model} is for signals of {work.features} features"
        _convert(table, work, output, "codes", needs, callback)
    method = "encoder" if learned else "exact"
    written = _written(output, table, started, size=work.columns, method=method)
    text = "{path}: {rows} codes of size {size}, {method}; {bytes} bytes, {seconds:.1f} s"
    sentence = text.format(**written)
    if not learned:
        written |= gaps.describe()
        sentence += f"; {gaps}"
    show(written, sentence, as_json)


def decode(
    model: ModelFile,
    codes: Annotated[
        Path, typer.Argument(metavar="CODES", help="Codes as rows: .npy, .npz, .csv or .parquet.")
    ],
    output: Output,
    part: Annotated[
        Part | None, typer.Option(help="Only this part of the signals, for robust models.")
    ] = None,
    key: Key = None,
    columns: Columns = None,
    drop: Drop = None,
    delimiter: Delimiter = None,
    header: Header = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Write the signals that codes represent.

    OUTPUT has one row for each row of CODES, in the same order. It is
    complete or does not exist.

    Example: pursuit decode model.safetensors codes.npy -o X.npy

    Example: pursuit decode rpca.safetensors codes.npy --part low_rank -o L.npy
    """
    from .columns import Selection
    from .data import open_table
    from .progress import shown

    started = time.perf_counter()
    selection = Selection(key, columns, drop, delimiter, header)
    saved = _open(model, codes, output, selection)
    plain = saved.info["kind"] == "encoder" and part is None
    work = _encoder(saved, decode=True) if plain else _parts(saved, part, threads)
    with shown() as callback:
        table = open_table(codes, selection, callback)
        needs = f"{model} has codes of size {work.features}"
        _convert(table, work, output, "signals", needs, callback)
    written = _written(output, table, started, features=work.columns, part=part)
    what = "signals" if part is None else f"{part} parts"
    text = "{path}: {rows} {what} of {features} features; {bytes} bytes, {seconds:.1f} s"
    show(written, text.format(what=what, **written), as_json)


def _open(
    model: Path,
    data: Path,
    output: Path,
    selection: Selection,
    pictures: tuple[int | None, int | None] | None = None,
) -> Saved:
    """The opened model, after a check of all files; `pictures` are the options for a folder."""
    from ..files import SAFETENSORS, format_of, open_saved
    from .data import READABLE, check_input
    from .pictures import check_pictures
    from .writing import check_output

    check_output(output, (model, data))
    swapped = model.suffix.lower() in READABLE or model.is_dir()
    if swapped and data.is_file() and format_of(data) == SAFETENSORS:
        raise ValueError(f"{data} is the model and {model} the data; give the model first")
    if output.is_file() and not data.exists():
        raise FileNotFoundError(
            f"there is no file {data}, but {output}, the file to write, exists; check their order"
        )
    if pictures is not None:
        check_pictures(data, selection, {"--patches": pictures[0], "--seed": pictures[1]})
    if pictures is None or not data.is_dir():
        check_input(data, selection)
    saved = open_saved(model)
    kind = saved.info.get("kind")
    if kind not in ("encoder", "model"):
        raise ValueError(f"an encoder or a model is needed, but {model} holds a {kind}")
    return saved


def _pictures(
    folder: Path, features: int, patches: int | None, seed: int | None, model: Path
) -> Table:
    """Patches of the size that a model is for."""
    from .pictures import PATCHES, open_pictures

    side = math.isqrt(features)
    if side**2 != features:
        raise ValueError(
            f"{model} is for signals of {features} features, which are no square patches; give "
            "signals instead of a folder of pictures"
        )
    return open_pictures(folder, side, PATCHES if patches is None else patches, seed or 0)


def _encoder(saved: Saved, threads: int | None = None, decode: bool = False) -> _Work:
    """The work of a trained encoder, without torch."""
    import numpy as np

    from ..runtime.compiled import CompiledBank, build

    encoder = build(saved, threads=threads)
    assert not isinstance(encoder, CompiledBank)
    if decode:
        return _Work(encoder.decode, encoder.size, encoder.features, np.float32)
    return _Work(encoder, encoder.features, encoder.size, np.float32)


def _solver(saved: Saved, tol: float | None, threads: int | None, gaps: _Gaps) -> _Work:
    import torch

    from ..solvers.solve import solve

    model, encoder, dtype = _built(saved, threads)
    options: dict[str, Any] = {} if tol is None else {"tol": tol}

    def run(x: Array) -> Array:
        solution = solve(model, torch.from_numpy(x), init=encoder, **options)
        gaps.add(solution)
        codes: Array = solution.codes.numpy()
        return codes

    return _Work(run, model.features, model.code_size, dtype)


def _parts(saved: Saved, part: Part | None, threads: int | None) -> _Work:
    import numpy as np
    import torch

    model, _, dtype = _built(saved, threads)

    def run(rows: Array) -> Array:
        with torch.no_grad():
            codes = torch.from_numpy(rows)
            signals = model.decode(codes) if part is None else getattr(model.split(codes), part)
        if signals is None:
            raise ValueError(f"codes of {type(model).__name__} have no {part} part; omit --part")
        values: Array = signals.numpy()
        return values

    if part is not None:
        run(np.zeros((1, model.code_size), dtype))  # refuses a missing part before any work
    return _Work(run, model.code_size, model.features, dtype)


def _built(saved: Saved, threads: int | None) -> tuple[Any, Any, type[np.floating[Any]]]:
    """The model of a file, its encoder or None, and the dtype of the model."""
    import numpy as np
    import torch

    from ..models import SparseModel
    from ..persistence import build

    if threads is not None:
        torch.set_num_threads(threads)
    built = build(saved)
    model, encoder = (built, None) if isinstance(built, SparseModel) else (built.model, built)
    return model, encoder, np.float64 if model.dtype == torch.float64 else np.float32


def _convert(
    table: Table, work: _Work, output: Path, name: str, needs: str, callback: Callback
) -> None:
    """Convert the rows of a table and write the result."""
    from ..progress import Progress
    from .writing import appended

    rows, columns = table.shape
    if columns != work.features:
        advice = "choose some by --columns or --drop" if columns > work.features else "give others"
        raise ValueError(f"{table.name} has {columns} columns, but {needs}; {advice}")
    with appended(output, rows, work.columns, work.dtype, name) as append:
        for start, piece in table.pieces(work.columns, work.dtype):
            append(work.run(piece))
            callback(Progress("rows", start + len(piece), rows))


def _written(output: Path, table: Table, started: float, **described: Any) -> dict[str, Any]:
    seconds = round(time.perf_counter() - started, 3)
    size = {"bytes": output.stat().st_size, "seconds": seconds}
    return {"path": str(output), "rows": len(table), **described, **size}
