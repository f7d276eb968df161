"""Data files of the commands: signals and codes, one a row, read and written piece by piece.

Only .npy files are read from the disk as they are needed, so that they may be larger than the
memory; the others are loaded. What is written is there whole in the end, or not at all.
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

from ..files import one_line, whole

__all__ = ["Table", "appended", "check_output", "open_table", "patches"]

Array = np.ndarray[Any, Any]

READABLE = (".npy", ".npz", ".csv", ".parquet")
WRITABLE = (".npy", ".npz", ".csv")
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm")
#: numbers that a piece of a file has at most
PIECE = 2**22
#: bytes of a memory map that may be in memory before they are given back
TOUCHED = 2**26
#: what the system may read for one row
READ_AHEAD = 2**18
#: patches whose standard deviation is below this part of the range from black to white stay small
FLAT = 0.02


class Table:
    """Rows of numbers, given out as float32; of a memory map only what is asked for is read.

    It has what `fit` asks of an array: a shape, a length and rows by number.

    Parameters
    ----------
    values
        An array or a memory map, shape (n, m).
    name
        What errors call it, usually the path.
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
        """Rows by number or slice; many that are far apart are read a few at a time."""
        few = TOUCHED // READ_AHEAD
        if not isinstance(rows, np.ndarray) or len(rows) <= few:
            return self._taken(rows, np.float32)
        parts = [rows[start : start + few] for start in range(0, len(rows), few)]
        return np.concatenate([self._taken(part, np.float32) for part in parts])

    def pieces(self, width: int = 0, dtype: Any = np.float32) -> Iterator[tuple[int, Array]]:
        """The table piece by piece, each with the number of its first row; a row that is not finite
        is a ValueError.

        Parameters
        ----------
        width
            The width of what is made of a row, if that is larger than the table's own.
        dtype
            What the numbers are given out as.
        """
        length = max(1, PIECE // max(width, self.shape[1], 1))
        for start in range(0, len(self), length):
            piece = self._taken(slice(start, start + length), dtype)
            bad = np.flatnonzero(~np.isfinite(piece).all(axis=1))
            if len(bad) > 0:
                raise ValueError(
                    f"{self.name} contains NaN or infinite values, first in row {start + bad[0]}; "
                    "remove or replace them"
                )
            yield start, piece

    def check(self, nonnegative: bool = False) -> None:
        """All numbers are finite, and not negative if asked, or a ValueError names a row."""
        for start, piece in self.pieces():
            if nonnegative and piece.size and float(piece.min()) < 0:
                row = start + int(np.flatnonzero((piece < 0).any(axis=1))[0])
                raise ValueError(
                    f"{self.name} contains negative values, first in row {row}; nmf and rnmf are "
                    "for data that are not"
                )

    def _taken(self, rows: Any, dtype: Any) -> Array:
        with np.errstate(over="ignore"):  # what becomes infinite is found and named
            taken = np.array(self.values[rows], dtype=dtype, order="C")
        self._touched += max(taken.nbytes, READ_AHEAD * len(taken))
        if self._touched >= TOUCHED:
            self._release()
        return taken

    def _release(self) -> None:
        """Give the pages back that were read; they stay in the system's cache."""
        own = getattr(self.values, "_mmap", None)
        if own is not None and hasattr(mmap, "MADV_DONTNEED"):
            own.madvise(mmap.MADV_DONTNEED)
        self._touched = 0


# ---- reading --------------------------------------------------------------------------------


def open_table(path: Path, key: str | None = None) -> Table:
    """The rows of a file, by its suffix.

    Parameters
    ----------
    path
        .npy (memory-mapped), .npz, .csv (with or without a line of names) or .parquet.
    key
        Which array of an .npz file; not needed if it has one.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; a file is needed, {_either(READABLE)}")
    suffix = path.suffix.lower()
    if suffix not in READABLE:
        raise ValueError(f"{path} must end in {_either(READABLE)}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if key is not None and suffix != ".npz":
        raise ValueError(f"--key names an array of an .npz file, but {path} is none")
    match suffix:
        case ".npy":
            values = _read_npy(path)
        case ".npz":
            values = _read_npz(path, key)
        case ".csv":
            values = _read_csv(path)
        case _:
            values = _read_parquet(path)
    return Table(values, str(path))


def _read_npy(path: Path) -> Array:
    with _damage(path, ".npy"):
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.ndarray):
            raise ValueError("it is an archive of arrays; call it *.npz")
        return values


def _read_npz(path: Path, key: str | None) -> Array:
    with _damage(path, ".npz"):
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("it is a single array; call it *.npy")
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
    # a byte order mark, which some spreadsheets write, is no part of the first number
    with open(path, encoding="utf-8-sig") as file:
        skipped = 0
        first = ""
        for line in file:
            first = line.partition("#")[0].strip()
            if first:
                break
            skipped += 1
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
        raise ValueError(f"{path} is no table of numbers: {one_line(error)}") from error
    raise ValueError(f"{path} has names of columns, but no numbers")


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
        except ImportError:  # also from pandas, which needs one of two others for it
            continue
        except OSError:
            raise
        except Exception as error:  # each of them has errors of its own
            raise ValueError(f"{path} cannot be read: {one_line(error)}") from error
    raise ImportError(
        f"reading {path} needs pyarrow or polars; install one with pip install pyarrow"
    )


@contextmanager
def _damage(path: Path, suffix: str) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole {suffix} file: {one_line(error)}") from error


# ---- pictures -------------------------------------------------------------------------------


def patches(folder: Path, size: int = 8, count: int = 20_000, seed: int = 0) -> Table:
    """Random patches of the pictures in a folder as rows, shape (count, size^2).

    Every patch of every picture is equally likely. Each is made of grey values, has mean zero and
    is divided by ``max(std, 0.02)``: unit variance, but what is flat stays small.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading pictures needs Pillow; install it with pip install 'pursuit[vision]'"
        ) from error
    if size < 2:
        raise ValueError(f"patch must be at least 2, got {size}")
    if count < 1:
        raise ValueError(f"patches must be at least 1, got {count}")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
    if not paths:
        raise ValueError(f"{folder} has no pictures ({', '.join(PICTURES)})")
    places = []
    for path in paths:
        with _unreadable(path), Image.open(path) as picture:
            width, height = picture.size
        places.append(max(height - size + 1, 0) * max(width - size + 1, 0))
    total = sum(places)
    if total == 0:
        raise ValueError(f"no picture in {folder} is as large as a patch of {size} x {size}")
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(count, [own / total for own in places])
    x = np.empty((count, size * size), np.float32)
    start = 0
    for path, own in zip(paths, counts, strict=True):
        if own == 0:
            continue
        with _unreadable(path), Image.open(path) as picture:
            grey = _grey(picture)
        windows = np.lib.stride_tricks.sliding_window_view(grey, (size, size))
        top, left = (rng.integers(0, extent, own) for extent in windows.shape[:2])
        x[start : start + own] = windows[top, left].reshape(own, -1)
        start += own
    x -= x.mean(axis=1, keepdims=True)
    x /= np.maximum(x.std(axis=1, keepdims=True), FLAT)
    rng.shuffle(x)
    return Table(x, str(folder))


def _grey(picture: Any) -> Array:
    """Grey values, from 0 for black to 1 for white."""
    if picture.mode.startswith("I"):
        return np.asarray(picture, np.float32) / 65535
    if picture.mode == "F":
        values = np.asarray(picture, np.float32)
        return values / max(float(np.abs(values).max()), 1.0)
    return np.asarray(picture.convert("L"), np.float32) / 255


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError:
        raise
    except Exception as error:  # each format has errors of its own
        raise ValueError(f"{path} cannot be read as a picture: {one_line(error)}") from error


# ---- writing --------------------------------------------------------------------------------


def check_output(
    path: Path, inputs: Sequence[Path] = (), suffixes: Sequence[str] = WRITABLE
) -> None:
    """A file can be written there without harm to the inputs, or an error says why not."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise ValueError(f"{path} must end in {_either(suffixes)}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    for own in inputs:
        if own.exists() and path.exists() and own.samefile(path):
            raise ValueError(f"{path} is the input itself; give the output another name")


@contextmanager
def appended(
    path: Path, rows: int, columns: int, dtype: Any, name: str
) -> Iterator[Callable[[Array], None]]:
    """Within, a function that appends rows to a file; after an error there is no new file.

    Parameters
    ----------
    path
        .npy, .npz or .csv. A file that is there is replaced once the new one is complete.
    rows, columns, dtype
        What will be written altogether.
    name
        What the array is called in an .npz file.
    """
    with (
        _ends_when_told(),
        whole(path) as file,
        _arrays(file, path.suffix.lower(), (rows, columns), dtype, name) as append,
    ):
        yield append


@contextmanager
def _arrays(
    file: IO[bytes], suffix: str, shape: tuple[int, int], dtype: Any, name: str
) -> Iterator[Callable[[Array], None]]:
    match suffix:
        case ".csv":
            # so many digits tell any two numbers apart
            digits = 9 if np.dtype(dtype) == np.float32 else 17
            yield lambda values: np.savetxt(file, values, fmt=f"%.{digits}g", delimiter=",")
        case ".npz":
            with (
                zipfile.ZipFile(file, "w") as archive,
                archive.open(f"{name}.npy", "w", force_zip64=True) as member,
            ):
                yield _binary(member, shape, dtype)
        case _:
            yield _binary(file, shape, dtype)


@contextmanager
def _ends_when_told() -> Iterator[None]:
    """Within, the signal to end is an exception, so that nothing is left behind."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _binary(file: IO[bytes], shape: tuple[int, int], dtype: Any) -> Callable[[Array], None]:
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, header)

    def append(values: Array) -> None:
        file.write(np.ascontiguousarray(values, dtype).data)

    return append


def _either(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
