"""Patches of textures: embedded in scikit-image, read from a folder, or downloaded.

scikit-image embeds pictures of brick, grass and gravel; their upper halves are for training, their
lower halves for testing. Plates of Brodatz's album can be downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._words import listed, require_choice
from ..files import write_whole
from ..progress import Callback
from .download import cache_folder, fetch, inside, read_table
from .pictures import find, normalise, random_patches, read, windows

Array = np.ndarray[Any, Any]

NAMES = ("brick", "grass", "gravel")
#: plates of Brodatz's album, and the address at which JuliaImages publishes them
PLATES = ("herringbone_weave", "straw", "bark")
URL = "https://raw.githubusercontent.com/JuliaImages/TestImages.jl/images/images"
SEQUENCE, SPLITS = "online_sequence.csv", "splits.csv"
BOUNDS = ("row_begin", "row_end", "col_begin", "col_end")


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures in a given order."""

    names: tuple[str, ...]
    pictures: tuple[Array, ...]  # grey values in [0, 1], float64, of any size
    source: str  # the names and the origin of the pictures, for a report


def embedded() -> Pictures:
    """The three pictures that scikit-image embeds.

    Examples
    --------
    >>> embedded().source
    'brick, grass and gravel of scikit-image'
    """
    return _pictures(NAMES, [load(name) for name in NAMES], "scikit-image")


def load(name: str) -> Array:
    """A picture of 512 x 512 grey values in [0, 1]."""
    require_choice(name, NAMES, "name")
    try:
        from skimage import data
    except ImportError as error:
        raise ImportError(
            "the textures come with scikit-image; install it with pip install 'pursuit[demo]'"
        ) from error
    picture: Array = getattr(data, name)()
    return picture / 255.0


def read_folder(folder: str | os.PathLike[str], names: Sequence[str] | None = None) -> Pictures:
    """Read the pictures of a folder as grey values; see `pictures.read`.

    If the table ``splits.csv`` (file, row_begin, row_end, col_begin, col_end; ends are exclusive)
    has entries for a picture, the picture is cropped to the smallest rectangle that contains all of
    them. Otherwise black rows at the upper and lower edge are removed.

    Parameters
    ----------
    folder
        The folder with the pictures, or its parent, if the folder is called ``textures``.
    names
        Pictures to read, in this order, with or without suffix. Ignored if the folder has a table
        ``online_sequence.csv`` (order, file); without both, all pictures are read, sorted by name.
    """
    folder = inside(folder, "textures")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    paths = _chosen(folder, names)
    boxes = _boxes(folder)
    pictures = [_cropped(read(path), path, boxes.get(path.name)) for path in paths]
    return _pictures([path.stem for path in paths], pictures, folder.resolve().name)


def download(
    folder: str | os.PathLike[str] | None = None,
    base: str = URL,
    names: Sequence[str] = PLATES,
    progress: Callback | None = None,
) -> Path:
    """Download plates of Brodatz's album, and return the folder, which `read_folder` reads.

    By default this is ``textures`` in `cache_folder`. The plates come from the repository
    JuliaImages/TestImages.jl, which states no licence for them; `base` is the address in front of
    ``/<name>_512.tiff``. Files that exist are not downloaded again; ``online_sequence.csv`` is
    rewritten with the order of `names`. For `progress`, see `fetch`.
    """
    if not names:
        raise ValueError("names must name at least one picture")
    folder = cache_folder() / "textures" if folder is None else inside(folder, "textures")
    files = [f"{name}.tiff" for name in names]
    for name, file in zip(names, files, strict=True):
        fetch(f"{base.rstrip('/')}/{name}_512.tiff", folder, file, progress=progress)
    lines = ["order,file", *(f"{number},{file}" for number, file in enumerate(files, 1))]
    write_whole(folder / SEQUENCE, ("\n".join(lines) + "\n").encode())
    return folder


def patches(
    count: int, half: str = "train", names: tuple[str, ...] = NAMES, size: int = 8, seed: int = 0
) -> Tensor:
    """Random patches of the embedded pictures as rows, shape (count * len(names), size^2), float32.

    There are `count` patches of each texture, in random order, from the upper halves of the
    pictures ("train") or the lower ones ("test"). Each has mean zero and is divided by
    ``max(std, 0.02)``: unit variance, but flat patches stay small.

    Examples
    --------
    >>> x = patches(100, "test")
    >>> tuple(x.shape), bool(x.mean(dim=1).abs().max() < 1e-5)
    ((300, 64), True)
    """
    require_choice(half, ("train", "test"), "half")
    rng = np.random.default_rng(seed)
    rows = []
    for name in names:
        picture = load(name)
        middle = len(picture) // 2
        region = picture[:middle] if half == "train" else picture[middle:]
        rows.append(random_patches(region, count, size, rng))
    x = normalise(np.concatenate(rows))
    rng.shuffle(x)
    return torch.from_numpy(x.astype(np.float32))


def draw(
    picture: Array,
    count: int,
    size: int = 8,
    seed: int = 0,
    avoid: Sequence[int] | Array | None = None,
) -> tuple[Tensor, Array]:
    """Random patches of one picture, normalised as by `patches`, and their positions.

    No position is drawn twice, and none of those to `avoid`, such as those of an earlier draw;
    patches at different positions may overlap. A patch with its upper left corner at (i, j) has
    position ``i (columns - size + 1) + j``.

    Examples
    --------
    >>> picture = load("brick")
    >>> train, taken = draw(picture, 1000)
    >>> test, others = draw(picture, 100, avoid=taken)
    >>> tuple(test.shape), bool(np.isin(others, taken).any())
    ((100, 64), False)
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if size < 2:
        raise ValueError(f"size must be at least 2, got {size}")
    picture = np.asarray(picture, np.float64)
    if picture.ndim != 2:
        raise ValueError(f"picture must have the shape (rows, columns), got {picture.shape}")
    if min(picture.shape) < size:
        rows, columns = picture.shape
        raise ValueError(
            f"a picture of {rows} x {columns} pixels is smaller than a patch of {size} x {size}"
        )
    view = windows(picture, size)
    total = view.shape[0] * view.shape[1]
    free = np.ones(total, bool)
    if avoid is not None and len(avoid) > 0:
        taken = np.asarray(avoid)
        if taken.dtype.kind not in "iu" or taken.min() < 0 or taken.max() >= total:
            raise ValueError(f"avoid must hold positions from 0 to {total - 1}")
        free[taken] = False
    available = np.flatnonzero(free)
    if count > len(available):
        raise ValueError(
            f"count must be at most {len(available)}, the positions that are left of {total}, "
            f"got {count}"
        )
    positions = np.random.default_rng(seed).choice(available, count, replace=False)
    x = normalise(view[np.unravel_index(positions, view.shape[:2])].reshape(count, -1))
    return torch.from_numpy(x.astype(np.float32)), positions


def _pictures(names: Sequence[str], pictures: Sequence[Array], owner: str) -> Pictures:
    return Pictures(tuple(names), tuple(pictures), f"{listed(names)} of {owner}")


def _chosen(folder: Path, names: Sequence[str] | None) -> list[Path]:
    """The paths of the pictures to read, in order; see `read_folder`."""
    sequence = folder / SEQUENCE
    if sequence.is_file():
        return _listed(sequence)
    paths = find(folder)
    if names is None:
        return paths
    if not names:
        raise ValueError("names must name at least one picture")
    chosen = []
    for name in names:
        fitting = [path for path in paths if name in (path.name, path.stem)]
        if len(fitting) != 1:
            known = ", ".join(path.name for path in paths)
            raise ValueError(
                f"names must name one picture of {folder} each, but {name!r} names "
                f"{len(fitting)}; there are {known}"
            )
        chosen += fitting
    return chosen


def _listed(sequence: Path) -> list[Path]:
    rows = read_table(sequence, ("order", "file"))
    if not rows:
        raise ValueError(f"{sequence} names no pictures")
    paths = {_integer(row["order"], sequence): sequence.parent / row["file"] for row in rows}
    if len(paths) < len(rows):
        raise ValueError(f"{sequence} has two entries with the same order")
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(f"{sequence} names {path.name}, which is not there")
    return [paths[order] for order in sorted(paths)]


def _boxes(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """The rectangle of each file from ``splits.csv``: row begin and end, column begin and end."""
    splits = folder / SPLITS
    boxes: dict[str, tuple[int, int, int, int]] = {}
    for row in read_table(splits, ("file", *BOUNDS)) if splits.is_file() else ():
        top, bottom, left, right = (_integer(row[name], splits) for name in BOUNDS)
        if row["file"] in boxes:
            box = boxes[row["file"]]
            top, left = min(top, box[0]), min(left, box[2])
            bottom, right = max(bottom, box[1]), max(right, box[3])
        boxes[row["file"]] = top, bottom, left, right
    return boxes


def _integer(cell: str, path: Path) -> int:
    try:
        return int(cell)
    except ValueError:
        raise ValueError(f"{path} must hold a whole number where it has {cell!r}") from None


def _cropped(picture: Array, path: Path, box: tuple[int, int, int, int] | None) -> Array:
    """The rectangle of a picture, by default without black rows at the upper and lower edge."""
    rows, columns = picture.shape
    if box is None:
        bright = np.flatnonzero(picture.any(axis=1))
        if len(bright) == 0:
            raise ValueError(f"{path} is black all over")
        return picture[bright[0] : bright[-1] + 1]
    top, bottom, left, right = box
    if not (0 <= top < bottom <= rows and 0 <= left < right <= columns):
        raise ValueError(
            f"{path.parent / SPLITS} gives rows {top} to {bottom} and columns {left} to {right} "
            f"of {path.name}, which has {rows} rows and {columns} columns"
        )
    return picture[top:bottom, left:right]
