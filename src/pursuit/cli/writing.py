"""Files that the commands write: checked before any work, and complete or not there at all."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._words import listed
from ..files import as_target, signals_wait, whole
from ..whole_files import UNNAMED, claimed

Array = np.ndarray[Any, Any]

WRITABLE = (".npy", ".npz", ".csv")
#: how the names of temporary folders begin
START = ".pursuit-"


def check_output(
    path: Path, inputs: Sequence[Path] = (), suffixes: Sequence[str] = WRITABLE
) -> None:
    """Raise an error if a file cannot be written there, or would replace one of the inputs."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise ValueError(f"{path} must end in {listed(suffixes, 'or')}")
    try:
        target = as_target(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _unwritable(path, error) from error
    _require_writable(target.parent, path)
    for source in inputs:
        if source.resolve() == path.resolve() or (
            source.exists() and path.exists() and source.samefile(path)
        ):
            raise ValueError(f"{path} is the input itself; give the output another name")


def check_folder(path: Path) -> None:
    """Raise an error if files cannot be written to a folder, which need not exist."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing} is a file; give the name of a folder")
    _require_writable(existing, path)


def _require_writable(folder: Path, what: Path) -> None:
    """Raise an OSError that names `what` if no file can be created in a folder."""
    trial = folder / f".{secrets.token_hex(4)}.part"
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise _unwritable(what, error) from error


def _unwritable(what: Path, error: OSError) -> OSError:
    reason = (error.strerror or str(error)).lower()
    return OSError(f"{what} cannot be written: {reason}; give another name")


@contextmanager
def appended(
    path: Path, rows: int, columns: int, dtype: Any, name: str
) -> Iterator[Callable[[Array], None]]:
    """Context manager: yields a function that appends rows to a new .npy, .npz or .csv file.

    The file replaces an existing one when it is complete; after an error nothing has changed.
    `rows` and `columns` are the final shape, and `name` is that of the array in an .npz file.
    """
    with termination_as_exception(), whole(path) as file:
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
def made_folder(path: Path) -> Iterator[None]:
    """Context manager: makes a folder and its parents; after an error those it made are removed."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):  # something else has been put there, or it was not made
                folder.rmdir()
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Context manager: yields an empty folder; on success its files are moved to `path`.

    They replace files of the same names, and others stay. After an error nothing has changed.
    """
    with termination_as_exception(), made_folder(path), claimed(path, START, os.mkdir) as place:
        try:
            yield place
            with signals_wait():
                for file in sorted(file for file in place.rglob("*") if file.is_file()):
                    target = path / file.relative_to(place)
                    target.parent.mkdir(exist_ok=True)
                    file.replace(as_target(target))
        except OSError as error:
            raise _named(error, place, path) from error
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _named(error: OSError, place: Path, path: Path) -> OSError:
    """The error with the name of a file in the folder `path` instead of in the temporary one."""
    if error.filename is None and error.errno in UNNAMED:
        return OSError(error.errno, error.strerror, str(path))
    if error.filename is not None and Path(error.filename).is_relative_to(place):
        inside = path / Path(error.filename).relative_to(place)
        return OSError(error.errno, error.strerror, str(inside))
    return error


@contextmanager
def termination_as_exception() -> Iterator[None]:
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
