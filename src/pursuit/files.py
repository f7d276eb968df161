"""Files: arrays and their description in one safetensors file, without torch.

The description is stored beside the arrays as JSON. A checksum over both reveals damaged files.
Files are written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ._words import one_line
from .fields import shown
from .whole_files import as_target as as_target
from .whole_files import signals_wait as signals_wait
from .whole_files import whole as whole
from .whole_files import whole_files as whole_files
from .whole_files import write_whole as write_whole

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
#: the deepest nesting of a description
DEEPEST = 60
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
        info = json.loads(text, parse_int=_whole_number)
        _check_depth(info)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} has a description that cannot be read: {one_line(error)}"
        ) from error
    if not isinstance(info, dict) or info.get("format") != "pursuit":
        raise ValueError(f"{path} is a safetensors file, but not one of pursuit; {SAVED_BY}")
    if info.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {shown(info.get('version'))}, but this version of pursuit "
            f"reads version {VERSION}; update pursuit, or save the model again with this version"
        )
    same = info.pop("same", {})
    if not isinstance(same, dict) or not all(
        isinstance(first, str) and first in arrays for first in same.values()
    ):
        raise ValueError(f"{path} has a description whose field 'same' names a missing array")
    # no copies: a short description could ask for any number of them
    arrays |= {name: arrays[first] for name, first in same.items()}
    return Saved(Path(path), arrays, info)


def _whole_number(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text[:20]}... is not a number of 64 bits")
    return int(text)


def _check_depth(value: Any) -> None:
    """Raise a ValueError if lists and mappings are nested more deeply than readers follow."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            entry
            for outer in level
            if isinstance(outer, dict | list)
            for entry in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")


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
