"""Data files of the commands: signals and codes as rows, read piece by piece.

Files in .npy format are memory-mapped and may be larger than the memory; others are loaded.
"""

from __future__ import annotations

import mmap
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from .._words import listed, one_line
from ..files import SAFETENSORS, format_of
from ..progress import Callback, Progress
from .columns import Selection, refuse_index, refuse_text
from .text import as_delimiter, line_of, read_csv

Array = np.ndarray[Any, Any]

READABLE = (".npy", ".npz", ".csv", ".parquet")
#: what files of these suffixes are by their first bytes, and advice for those that are not
FORMATS = {
    ".npy": ("a NumPy array (.npy)", "give one that numpy.save has written"),
    ".npz": ("an archive (.npz or .zip)", "give one that numpy.savez has written"),
    ".csv": (None, "give a table of numbers as text"),
}
KINDS = f"a file that ends in {listed(READABLE, 'or')}"
#: the most numbers in a piece of a file
PIECE = 2**22
#: bytes of a memory map that are read before its pages are released
TOUCHED = 2**26
#: bytes that the operating system may read ahead for one row
READ_AHEAD = 2**18
#: the largest magnitude in float32 whose squares can be summed without overflow
LARGEST = 1e15
#: the largest magnitude to learn from, and the smallest. Training was seen to explode at 1e9 with
#: 1000 features and at 1e12 with 9 (not at 1e10), so the limit has a margin for many features.
LEARNABLE, SMALLEST = 1e8, 1e-15


def ignore(now: Progress) -> None:
    """A callback that does nothing."""


class Table:
    """An array or a memory map of shape (n, m), whose rows are returned as float32.

    Of a memory map only the requested rows are read. The table can be passed to `fit` in place of
    an array, because it has a shape, a length and rows by number. Error messages contain its name.

    Parameters
    ----------
    values, name
        The array, and the name of its file.
    columns
        The columns to take, by default all.
    line
        A function from the number of a row to its line in a file of text.
    """

    def __init__(
        self,
        values: Array,
        name: str,
        columns: Sequence[int] | None = None,
        line: Callable[[int], int] | None = None,
    ) -> None:
        if values.dtype.kind not in "fiu":
            raise ValueError(
                f"{name} must hold real numbers, it holds {values.dtype}; convert it to float32"
            )
        if values.ndim != 2:
            raise ValueError(
                f"{name} must have two dimensions (rows, features), it has shape {values.shape}; "
                "save it again in that shape"
            )
        if values.shape[1] == 0:
            raise ValueError(f"{name} has no columns, its shape is {values.shape}; give features")
        self.values, self.name = values, name
        self.columns = None if columns is None else list(columns)
        self._line = line
        self._touched = 0

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns if self.columns is None else len(self.columns)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Array:
        """Rows by number or slice; many scattered rows are read in several parts."""
        few = TOUCHED // READ_AHEAD
        if not isinstance(rows, np.ndarray) or len(rows) <= few:
            return self._read(rows, np.float32)
        parts = [rows[start : start + few] for start in range(0, len(rows), few)]
        return np.concatenate([self._read(part, np.float32) for part in parts])

    def pieces(
        self, width: int = 0, dtype: Any = np.float32, largest: float = LARGEST
    ) -> Iterator[tuple[int, Array]]:
        """Yield pairs of the number of a first row, and rows from there.

        `width` is the number of columns that rows will be converted to, which limits the pieces.
        Raises a ValueError at a number that is not finite or, in float32, larger than `largest`.
        """
        length = max(1, PIECE // max(width, self.shape[1], 1))
        for start in range(0, len(self), length):
            piece = self._read(slice(start, start + length), dtype)
            self._require_moderate(start, piece, largest)
            yield start, piece

    def check(self, nonnegative: bool = False, callback: Callback = ignore) -> str | None:
        """Check all numbers; return why nothing can be learned from them, or None.

        Raises a ValueError that names the row of a number that is not finite, too large, or
        negative.
        """
        low, high = np.full(self.shape[1], np.inf), np.full(self.shape[1], -np.inf)
        for start, piece in self.pieces(largest=LEARNABLE):
            callback(Progress(f"checking {self.name}", start + len(piece), len(self)))
            if nonnegative and float(piece.min()) < 0:
                row = start + int(np.flatnonzero((piece < 0).any(axis=1))[0])
                raise ValueError(
                    f"{self.name} contains negative values, first in {self.place(row)}; nmf and "
                    "rnmf need non-negative data"
                )
            low = np.minimum(low, piece.min(axis=0))
            high = np.maximum(high, piece.max(axis=0))
        if len(self) == 1:
            return f"{self.name} has a single row; give several, nothing can be learned from one"
        if low.min() == high.max():
            return f"all entries of {self.name} are {low[0]:g}, so there is nothing to learn"
        if len(self) > 0 and np.array_equal(low, high):
            return f"all rows of {self.name} are the same, so there is nothing to learn"
        size = float(max(-low.min(), high.max()))
        if size < SMALLEST:
            raise ValueError(
                f"{self.name} contains no magnitude above {size:g}, less than learning in float32 "
                f"allows ({SMALLEST:g}); multiply the data by a constant"
            )
        return None

    def place(self, row: int) -> str:
        """Where a row, counted from 0, is found in the file; messages count from 1."""
        if self._line is not None:
            return f"line {self._line(row)}"
        return f"row {row + 1} (counted from 1)"

    def _require_moderate(self, start: int, piece: Array, largest: float) -> None:
        """Raise a ValueError that names the row if a number is not finite, or too large."""
        if piece.dtype == np.float64:
            largest = float(np.finfo(np.float64).max)
        if piece.size == 0 or max(piece.max(), -piece.min()) <= largest:  # false for NaN
            return
        row = int(np.flatnonzero(~(np.abs(piece) <= largest).all(axis=1))[0])
        exact = self._read(start + row, np.float64)
        if not np.isfinite(exact).all():
            raise ValueError(
                f"{self.name} contains NaN or infinite values, first in "
                f"{self.place(start + row)}; remove or replace them"
            )
        raise ValueError(
            f"{self.name} contains {exact[np.abs(exact).argmax()]:g} in {self.place(start + row)}, "
            f"more than computations in float32 allow ({largest:g}); divide the data by a constant"
        )

    def _read(self, rows: Any, dtype: Any) -> Array:
        with np.errstate(over="ignore"):  # overflow to infinity is reported by `pieces`
            part = self.values[rows]
            if self.columns is not None:
                part = part[..., self.columns]
            part = np.array(part, dtype=dtype, order="C")
        self._touched += max(part.nbytes, READ_AHEAD * len(part))
        if self._touched >= TOUCHED:  # release the pages; the operating system still caches them
            memory_map = getattr(self.values, "_mmap", None)
            if memory_map is not None and hasattr(mmap, "MADV_DONTNEED"):
                memory_map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return part


def check_input(path: Path, selection: Selection) -> None:
    """Raise an error if a data file cannot be read, or if options do not fit it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give {KINDS}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    found, suffix = format_of(path), path.suffix.lower()
    if found == SAFETENSORS:
        raise ValueError(f"{path} is a safetensors file, such as a model, not data; give {KINDS}")
    if suffix not in READABLE:
        raise ValueError(f"{path} is of an unknown kind; give {KINDS}")
    if selection.key is not None and suffix != ".npz":
        raise ValueError(f"--key names an array of an .npz file, but {path} is not one")
    if suffix == ".csv":
        as_delimiter(selection.delimiter)
    elif selection.delimiter is not None or selection.header is not None:
        option = "--header" if selection.delimiter is None else "--delimiter"
        raise ValueError(f"{option} is for .csv files, but {path} is not one")


def open_table(
    path: Path, selection: Selection | None = None, callback: Callback = ignore
) -> Table:
    """Open a file in .npy, .npz, .csv (with or without a header) or .parquet format."""
    selection = Selection() if selection is None else selection
    check_input(path, selection)
    name = str(path)
    match path.suffix.lower():
        case ".csv":
            _require_format(path)
            options = selection.header, selection.delimiter
            values = read_csv(path, selection, callback)
            return Table(values, name, line=lambda row: line_of(path, *options, row))
        case ".parquet":
            return Table(_read_parquet(path, selection), name)
        case ".npz":
            values = _read_npz(path, selection.key)
        case _:
            values = _read_npy(path)
    if values.ndim != 2 or (selection.columns is None and selection.drop is None):
        return Table(values, name)
    return Table(values, name, selection.choose(values.shape[1], None, name))


def _require_format(path: Path) -> None:
    """Raise a ValueError if a file is by its first bytes of another format than its name says."""
    found, suffix = format_of(path), path.suffix.lower()
    expected, advice = FORMATS[suffix]
    if found == expected:
        return
    fitting = [other for other, (name, _) in FORMATS.items() if name == found and found]
    if fitting:
        advice = f"rename it to *{fitting[0]}"
    article = "an" if suffix.startswith(".n") else "a"
    what = f"{found}, not" if found else "not"
    raise ValueError(f"{path} is {what} {article} {suffix} file; {advice}")


def _read_npy(path: Path) -> Array:
    _require_format(path)
    with _damaged(path):
        values: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return values


def _read_npz(path: Path, key: str | None) -> Array:
    _require_format(path)
    with _damaged(path), np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        if key is None and len(names) == 1:
            key = names[0]
        if key in names:
            values: Array = archive[key]
            return values
    known = ", ".join(names) or "none"
    if key is None:
        raise ValueError(f"{path} has {len(names)} arrays ({known}); choose one by --key")
    raise ValueError(f"{path} has no array {key}; it has {known}")


def _read_parquet(path: Path, selection: Selection) -> Array:
    # for each library, the names of the columns, and one of them
    readers: dict[str, tuple[Callable[[Any], Any], Callable[[Any, str], Any]]] = {
        "pyarrow.parquet": (
            lambda module: module.read_schema(path).names,
            lambda module, name: module.read_table(path, columns=[name]).column(0).to_numpy(),
        ),
        "polars": (
            lambda module: module.read_parquet_schema(path),
            lambda module, name: module.read_parquet(path, columns=[name]).to_series().to_numpy(),
        ),
        "pandas": (
            lambda module: module.read_parquet(path).columns,
            lambda module, name: module.read_parquet(path, columns=[name])[name].to_numpy(),
        ),
    }
    for library, (names_of, column_of) in readers.items():
        try:
            module = import_module(library)
            names = [str(name) for name in names_of(module)]
        except ImportError:  # pandas raises it too, where it has no engine
            continue
        except OSError:
            raise
        except Exception as error:  # of a type that depends on the library
            raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
        chosen = selection.choose(len(names), names, str(path))
        columns = [np.asarray(column_of(module, names[number])) for number in chosen]
        return _joined(columns, chosen, names, path, selection)
    raise ImportError(
        f"reading {path} needs pyarrow or polars; install one with pip install pyarrow"
    )


def _joined(
    columns: Sequence[Array],
    chosen: Sequence[int],
    names: Sequence[str],
    path: Path,
    selection: Selection,
) -> Array:
    """Columns as one array; a ValueError names those that do not hold numbers, or an index."""
    pairs = list(zip(chosen, columns, strict=True))
    texts = {
        n: str(next(iter(column), "")) for n, column in pairs if column.dtype.kind not in "fiu"
    }
    refuse_text(texts, len(names), names, str(path))
    values = np.column_stack(columns)
    if selection.columns is None:
        refuse_index(values, chosen, names, str(path))
    return values


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Context manager: errors of a reader become one that names the file."""
    try:
        yield
    except PermissionError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        if any(word in str(error) for word in ("allow_pickle", "Python objects")):
            raise ValueError(
                f"{path} holds Python objects, not numbers; save it again with dtype float32"
            ) from error
        suffix = path.suffix.lower()
        raise ValueError(f"{path} is not a whole {suffix} file: {one_line(error)}") from error
