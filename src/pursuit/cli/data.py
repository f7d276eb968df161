"""Data files of the commands: signals and codes as rows, read and written piece by piece.

Files in .npy format are memory-mapped and may be larger than the memory; others are loaded. An
output file is complete or does not exist.
"""

from __future__ import annotations

import contextlib
import mmap
import signal
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._words import listed, one_line
from ..files import whole

Array = np.ndarray[Any, Any]

READABLE = (".npy", ".npz", ".csv", ".parquet")
WRITABLE = (".npy", ".npz", ".csv")
#: the most numbers in a piece of a file
PIECE = 2**22
#: bytes of a memory map that are read before its pages are released
TOUCHED = 2**26
#: bytes that the operating system may read ahead for one row
READ_AHEAD = 2**18


class Table:
    """An array or a memory map of shape (n, m), whose rows are returned as float32.

    Of a memory map only the requested rows are read. The table can be passed to `fit` in place of
    an array, because it has a shape, a length and rows by number. Error messages contain its name.
    """

    def __init__(self, values: Array, name: str) -> None:
        if values.dtype.kind not in "fiu":
            raise ValueError(f"{name} must hold real numbers, it holds {values.dtype}")
        if values.ndim != 2:
            raise ValueError(
                f"{name} must have two dimensions (rows, features), it has shape {values.shape}"
            )
        self.values, self.name = values, name
        self._touched = 0

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Array:
        """Rows by number or slice; many scattered rows are read in several parts."""
        few = TOUCHED // READ_AHEAD
        if not isinstance(rows, np.ndarray) or len(rows) <= few:
            return self._read(rows, np.float32)
        parts = [rows[start : start + few] for start in range(0, len(rows), few)]
        return np.concatenate([self._read(part, np.float32) for part in parts])

    def pieces(self, width: int = 0, dtype: Any = np.float32) -> Iterator[tuple[int, Array]]:
        """Yield pairs of the number of a first row, and rows from there, which must be finite.

        `width` is the number of columns that rows will be converted to, which limits the pieces.
        """
        length = max(1, PIECE // max(width, self.shape[1], 1))
        for start in range(0, len(self), length):
            piece = self._read(slice(start, start + length), dtype)
            bad = np.flatnonzero(~np.isfinite(piece).all(axis=1))
            if len(bad) > 0:
                raise ValueError(
                    f"{self.name} contains NaN or infinite values, first in row {start + bad[0]}; "
                    "remove or replace them"
                )
            yield start, piece

    def check(self, nonnegative: bool = False) -> None:
        """Raise a ValueError that names the row if a number is not finite, or negative."""
        for start, piece in self.pieces():
            if nonnegative and piece.size and float(piece.min()) < 0:
                row = start + int(np.flatnonzero((piece < 0).any(axis=1))[0])
                raise ValueError(
                    f"{self.name} contains negative values, first in row {row}; nmf and rnmf need "
                    "non-negative data"
                )

    def _read(self, rows: Any, dtype: Any) -> Array:
        with np.errstate(over="ignore"):  # overflow to infinity is reported by `pieces`
            part = np.array(self.values[rows], dtype=dtype, order="C")
        self._touched += max(part.nbytes, READ_AHEAD * len(part))
        if self._touched >= TOUCHED:  # release the pages; the operating system still caches them
            memory_map = getattr(self.values, "_mmap", None)
            if memory_map is not None and hasattr(mmap, "MADV_DONTNEED"):
                memory_map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return part


# ---- reading --------------------------------------------------------------------------------


def open_table(path: Path, key: str | None = None) -> Table:
    """Open a file in .npy, .npz, .csv (with or without a header) or .parquet format.

    `key` is the name of an array in an .npz file; it is not needed if the file has only one.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a file is needed, {listed(READABLE, 'or')}")
    suffix = path.suffix.lower()
    if suffix not in READABLE:
        raise ValueError(f"{path} must end in {listed(READABLE, 'or')}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if key is not None and suffix != ".npz":
        raise ValueError(f"--key names an array of an .npz file, but {path} is not one")
    if suffix == ".npz":
        values = _read_npz(path, key)
    else:
        readers = {".npy": _read_npy, ".csv": _read_csv, ".parquet": _read_parquet}
        values = readers[suffix](path)
    return Table(values, str(path))


def _read_npy(path: Path) -> Array:
    with _damaged(path, ".npy"):
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.ndarray):
            raise ValueError("it is an archive of arrays; rename it to *.npz")
        return values


def _read_npz(path: Path, key: str | None) -> Array:
    with _damaged(path, ".npz"):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it is a single array; rename it to *.npy")
        with archive:
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


def _read_csv(path: Path) -> Array:
    # utf-8-sig: some spreadsheets write a byte order mark in front of the first number
    with open(path, encoding="utf-8-sig") as file:
        lines = (line.partition("#")[0].strip() for line in file)
        skipped, first = next(((n, line) for n, line in enumerate(lines) if line), (0, ""))
    if not first:
        raise ValueError(f"{path} is empty")
    delimiter = next((mark for mark in ",;\t" if mark in first), None)
    if not all(_is_number(cell) for cell in first.split(delimiter)):
        skipped += 1
    try:
        with contextlib.suppress(StopIteration), open(path, encoding="utf-8-sig") as file:
            for _ in range(skipped):
                next(file)
            if any(line.partition("#")[0].strip() for line in file):
                file.seek(0)
                return np.loadtxt(file, delimiter=delimiter, skiprows=skipped, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path} is not a table of numbers: {one_line(error)}") from error
    raise ValueError(f"{path} has a header, but no numbers")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return not cell.strip()
    return True


def _read_parquet(path: Path) -> Array:
    readers: dict[str, Callable[[Any], Any]] = {
        "pyarrow.parquet": lambda module: np.column_stack(
            [column.to_numpy() for column in module.read_table(path).columns]
        ),
        "polars": lambda module: module.read_parquet(path).to_numpy(),
        "pandas": lambda module: module.read_parquet(path).to_numpy(),
    }
    for name, read in readers.items():
        try:
            return np.asarray(read(import_module(name)))
        except ImportError:  # pandas raises it too, where it has no engine
            continue
        except OSError:
            raise
        except Exception as error:  # of a type that depends on the library
            raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
    raise ImportError(
        f"reading {path} needs pyarrow or polars; install one with pip install pyarrow"
    )


@contextmanager
def _damaged(path: Path, suffix: str) -> Iterator[None]:
    """Context manager: errors of a reader become one that names the file."""
    try:
        yield
    except PermissionError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole {suffix} file: {one_line(error)}") from error


def open_pictures(folder: Path, size: int, count: int, seed: int) -> Table:
    """Random patches of the pictures in a folder as rows; see `datasets.pictures.patches`."""
    from ..datasets.pictures import patches

    return Table(patches(folder, size, count, seed), str(folder))


# ---- writing --------------------------------------------------------------------------------


def check_output(
    path: Path, inputs: Sequence[Path] = (), suffixes: Sequence[str] = WRITABLE
) -> None:
    """Raise an error if a file cannot be written there, or would replace one of the inputs."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise ValueError(f"{path} must end in {listed(suffixes, 'or')}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    for source in inputs:
        if source.exists() and path.exists() and source.samefile(path):
            raise ValueError(f"{path} is the input itself; give the output another name")


@contextmanager
def appended(
    path: Path, rows: int, columns: int, dtype: Any, name: str
) -> Iterator[Callable[[Array], None]]:
    """Context manager: yields a function that appends rows to a new .npy, .npz or .csv file.

    The file replaces an existing one when it is complete; after an error nothing has changed.
    `rows` and `columns` are the final shape, and `name` is that of the array in an .npz file.
    """
    with _termination_as_exception(), whole(path) as file:
        match path.suffix.lower():
            case ".csv":
                # enough digits to tell any two numbers apart
                digits = 9 if np.dtype(dtype) == np.float32 else 17
                yield lambda values: np.savetxt(file, values, fmt=f"%.{digits}g", delimiter=",")
            case ".npz":
                with (
                    zipfile.ZipFile(file, "w") as archive,
                    archive.open(f"{name}.npy", "w", force_zip64=True) as member,
                ):
                    yield _binary(member, (rows, columns), dtype)
            case _:
                yield _binary(file, (rows, columns), dtype)


@contextmanager
def _termination_as_exception() -> Iterator[None]:
    """Context manager: SIGTERM raises SystemExit inside, so that temporary files are removed."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _binary(file: IO[bytes], shape: tuple[int, int], dtype: Any) -> Callable[[Array], None]:
    """Write the header of an .npy file, and return a function that appends rows."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)

    def append(values: Array) -> None:
        file.write(np.ascontiguousarray(values, dtype).data)

    return append
