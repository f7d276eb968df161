"""Folders of pictures as data of the commands: random patches as rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .columns import Selection
from .data import Table

#: the side of a patch, and the number of patches, by default
PATCH, PATCHES = 8, 20_000


def check_pictures(path: Path, selection: Selection, options: Mapping[str, int | None]) -> None:
    """Raise a ValueError if there are options for pictures without a folder, or the reverse."""
    if path.is_dir():
        given = [name for name, value in selection._asdict().items() if value is not None]
        if given:
            raise ValueError(f"--{given[0]} is for files, but {path} is a folder of pictures")
        return
    others = [name for name, value in options.items() if value is not None]
    if others and path.exists():
        raise ValueError(f"{others[0]} is for a folder of pictures, but {path} is a file")


def open_pictures(folder: Path, size: int, count: int, seed: int) -> Table:
    """Random patches of the pictures in a folder as rows; see `datasets.pictures.patches`."""
    from ..datasets.pictures import patches

    return Table(patches(folder, size, count, seed), str(folder))
