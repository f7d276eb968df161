"""Folders with sets of files by people: a table ``splits.csv`` gives the role of every file."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from .download import inside, read_table

SPLITS = "splits.csv"


class Entry(NamedTuple):
    """A line of the table: a file, its set, who it is of, and its role."""

    path: Path
    name: str
    person: str
    role: str

    def require_file(self) -> None:
        """Raise an error unless the file exists."""
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no file {self.path}, but {SPLITS} names it")


def located(folder: str | os.PathLike[str], name: str, column: str) -> Path:
    """Return the folder with the table: the subfolder of that name if it exists, else itself."""
    folder = inside(folder, name)
    if not (folder / SPLITS).is_file():
        raise FileNotFoundError(
            f"there is no {folder / SPLITS}; give a folder with this table of file, {column}, role"
        )
    return folder


def read_splits(folder: Path, column: str, files: str) -> list[Entry]:
    """Return the entries of the table, in its order.

    Parameters
    ----------
    folder
        The folder with the table, see `located`.
    column
        The column that names the person, beside file and role.
    files
        What the files are, such as clips, for messages.
    """
    splits, found = folder / SPLITS, []
    for row in read_table(splits, ("file", column, "role")):
        parts = PurePosixPath(row["file"]).parts
        if len(parts) < 2 or parts[0] in ("/", ".."):
            raise ValueError(
                f"{splits} must name files as set/file or set/{column}/file, got {row['file']!r}"
            )
        found.append(Entry(folder / row["file"], parts[0], row[column], row["role"]))
    if not found:
        raise ValueError(f"{splits} names no {files}")
    return found
