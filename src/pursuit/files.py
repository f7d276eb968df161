"""Files: arrays and their description in one safetensors file, without torch.

The description is stored beside the arrays as JSON. A checksum over both reveals damaged files.
Files are written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from ._words import one_line

Array = np.ndarray[Any, Any]
T = TypeVar("T")

#: increased when older versions cannot read new files, or newer versions cannot read old ones
VERSION = 2
#: how files of other formats begin
BEGINNINGS = {
    b"\x93NUMPY": "a NumPy array (.npy)",
    b"PK\x03\x04": "an archive (.npz or .zip)",
    b"PK\x05\x06": "an empty archive (.npz or .zip)",
    b"PAR1": "a Parquet table",
    b"\x89PNG": "a PNG picture",
    b"\xff\xd8\xff": "a JPEG picture",
    b"GIF8": "a GIF picture",
    b"II*\x00": "a TIFF picture",
    b"MM\x00*": "a TIFF picture",
    b"%PDF": "a PDF document",
    b"\x89HDF": "an HDF5 file",
    b"MATLAB": "a MATLAB file",
    b"\x1f\x8b": "a gzip archive",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04": "a Python pickle",
    b"\x80\x05": "a Python pickle",
}
SAFETENSORS = "a safetensors file"
SAVED_BY = "give a file that `pursuit fit` or `pursuit.save` has written"


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, Array], info: Mapping[str, Any]
) -> None:
    """Write arrays, equal ones only once, and their description to one file."""
    from safetensors.numpy import save

    stored: dict[str, Array] = {}
    same: dict[str, str] = {}
    known: dict[tuple[Any, ...], str] = {}
    for name, array in arrays.items():
        # ascontiguousarray turns an array without dimensions into a vector
        rows = np.ascontiguousarray(array).reshape(array.shape)
        content = (rows.dtype.str, rows.shape, hashlib.sha256(rows.data).digest())
        first = known.setdefault(content, name)
        if first == name:
            stored[name] = rows
        else:
            same[name] = first
    text = json.dumps({"format": "pursuit", "version": VERSION, **info, "same": same})
    notes = {"pursuit": text, "checksum": _checksum(text, stored)}
    write_whole(path, _in_order(save(stored, notes)))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with sorted notes; safetensors writes them in a random order."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the arrays stay aligned
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes to a file, whole or not at all."""
    with whole(path) as file:
        file.write(content)


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` on success and is deleted on an error."""
    with whole_files([path]) as (file,):
        yield file


@contextmanager
def whole_files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Sequence[BinaryIO]]:
    """Yield temporary files that replace all `paths` on success and are deleted on an error.

    An interrupt or a termination signal leaves all files or none: while they are renamed, it waits.
    """
    targets = [Path(path) for path in paths]
    names = [path.parent / f".{path.name}.{secrets.token_hex(4)}.part" for path in targets]
    try:
        with ExitStack() as stack:
            # unlike mkstemp, with the user's usual mode
            files = [stack.enter_context(open(name, "xb")) for name in names]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        with signals_wait():
            for name, path in zip(names, targets, strict=True):
                os.replace(name, path)
    except BaseException:
        for name in names:
            name.unlink(missing_ok=True)
        raise


@contextmanager
def signals_wait() -> Iterator[None]:
    """Context manager: interrupts and termination signals are handled at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles signals
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, _: arrived.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None if it was not installed from Python
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for late in arrived:
        signal.raise_signal(late)


@dataclass(frozen=True, eq=False)
class Saved:
    """The content of a file: its arrays, and the description that says what they mean."""

    path: Path
    arrays: dict[str, Array]
    info: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Return the description, and the shapes of the arrays as ``"shapes"``."""
        return {**self.info, "shapes": {name: list(a.shape) for name, a in self.arrays.items()}}


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return arrays and their description as they were written."""
    saved = open_saved(path)
    return saved.arrays, saved.info


def open_saved(path: str | os.PathLike[str]) -> Saved:
    """Read a file that `write` has written, or raise a ValueError that says what is wrong."""
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir():
        raise ValueError(f"{path} is a folder; {SAVED_BY}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    found = format_of(path)
    if found is not None and found != SAFETENSORS:
        raise ValueError(f"{path} is {found}, not a model; {SAVED_BY}")
    try:
        with safe_open(path, framework="np") as file:
            notes = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{path} is not a whole safetensors file ({one_line(error)}); {SAVED_BY}"
        ) from error
    text = notes.get("pursuit")
    if text is None:
        raise ValueError(f"{path} is a safetensors file, but not one of pursuit; {SAVED_BY}")
    if notes.get("checksum") != _checksum(text, arrays):
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    try:
        info = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a description that is not JSON: {one_line(error)}") from error
    if not isinstance(info, dict) or info.get("format") != "pursuit":
        raise ValueError(f"{path} is a safetensors file, but not one of pursuit; {SAVED_BY}")
    if info.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {info.get('version')}, but this version of pursuit reads "
            f"version {VERSION}; update pursuit, or save the model again with this version"
        )
    same = info.pop("same", {})
    if not isinstance(same, dict) or not all(
        isinstance(first, str) and first in arrays for first in same.values()
    ):
        raise ValueError(f"{path} has a description whose field 'same' names a missing array")
    # copies, so that changing one array does not change the other
    arrays |= {name: arrays[first].copy() for name, first in same.items()}
    return Saved(Path(path), arrays, info)


def format_of(path: str | os.PathLike[str]) -> str | None:
    """What a file is by its first bytes, such as "a PNG picture"; None if they are not known."""
    with open(path, "rb") as file:
        first = file.read(9)
    if first[8:] == b"{":  # after the length of the header
        return SAFETENSORS
    matches = (name for start, name in BEGINNINGS.items() if first.startswith(start))
    return next(matches, None)


def below(values: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Return the values whose names begin with the prefix, under names without it."""
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}


def joined(groups: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the values of all groups under names ``group.name``; the inverse of `below`."""
    return {f"{g}.{name}": value for g, values in groups.items() for name, value in values.items()}


def _checksum(text: str, arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
