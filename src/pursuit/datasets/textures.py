"""Patches of textures: pictures that come with scikit-image, of a folder, or downloaded.

Of the brick, grass and gravel pictures that come with scikit-image, the upper halves are for
training, the lower halves for testing. The plates of Brodatz's album can be downloaded.
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

from .._checks import require_choice
from ..files import one_line, write_whole
from .download import Progress, cache_folder, fetch, inside, read_table

__all__ = [
    "NAMES",
    "PLATES",
    "Pictures",
    "download",
    "draw",
    "embedded",
    "learn_dictionary",
    "load",
    "normalise",
    "patches",
    "read_folder",
]

Array = np.ndarray[Any, Any]

NAMES = ("brick", "grass", "gravel")
#: plates of Brodatz's album, and where JuliaImages keeps them
PLATES = ("herringbone_weave", "straw", "bark")
URL = "https://raw.githubusercontent.com/JuliaImages/TestImages.jl/images/images"
#: patches whose standard deviation is below this part of the range from black to white stay small
FLAT = 0.02

SUFFIXES = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".pgm", ".bmp")
SEQUENCE, SPLITS = "online_sequence.csv", "splits.csv"
BOUNDS = ("row_begin", "row_end", "col_begin", "col_end")


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures in their order.

    Parameters
    ----------
    names
        What each is called.
    pictures
        Grey values in [0, 1], float64, of any size.
    source
        What they are and where they come from, for a report.
    """

    names: tuple[str, ...]
    pictures: tuple[Array, ...]
    source: str


# ---- pictures -------------------------------------------------------------------------------


def embedded() -> Pictures:
    """The pictures that come with scikit-image.

    Examples
    --------
    >>> embedded().source
    'brick, grass and gravel of scikit-image'
    """
    return _pictures(NAMES, [load(name) for name in NAMES], "scikit-image")


def load(name: str) -> np.ndarray[Any, Any]:
    """A picture of 512 x 512 grey values in [0, 1]."""
    require_choice(name, NAMES, "name")
    try:
        from skimage import data
    except ImportError as error:
        raise ImportError(
            "the textures come with scikit-image; install it with pip install 'pursuit[demo]'"
        ) from error
    picture: np.ndarray[Any, Any] = getattr(data, name)()
    return picture / 255.0


def read_folder(folder: str | os.PathLike[str], names: Sequence[str] | None = None) -> Pictures:
    """The pictures of a folder, 8 or 16 bit; colours become grey.

    If ``splits.csv`` (file, row_begin, row_end, col_begin, col_end; ends are not included) has rows
    for a picture, the smallest rectangle around them is taken of it. Otherwise rows at the upper
    and lower edge that are black all along are left out.

    Parameters
    ----------
    folder
        The folder with the pictures, or one with a folder ``textures`` in it.
    names
        Pictures to take, in this order, with or without their suffix. Only asked if the folder
        has no ``online_sequence.csv`` (order, file), which comes first; without both, all pictures
        are taken, sorted by name.
    """
    folder = inside(folder, "textures")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    paths = _chosen(folder, names)
    boxes = _boxes(folder)
    pictures = [_cut(_read(path), path, boxes.get(path.name)) for path in paths]
    return _pictures([path.stem for path in paths], pictures, folder.resolve().name)


def download(
    folder: str | os.PathLike[str] | None = None,
    base: str = URL,
    names: Sequence[str] = PLATES,
    progress: Progress | None = None,
) -> Path:
    """Plates of Brodatz's album into a folder that `read_folder` reads in the order given here.

    They come from the repository JuliaImages/TestImages.jl, which states no licence for them. What
    is there already is not fetched again; ``online_sequence.csv`` is written anew.

    Parameters
    ----------
    folder
        Where to; else ``textures`` in `cache_folder`.
    base
        The address of which ``<name>_512.tiff`` are the files.
    names
        Names of plates, in their order.
    progress
        See `fetch`.
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


# ---- patches --------------------------------------------------------------------------------


def patches(
    count: int, half: str = "train", names: tuple[str, ...] = NAMES, size: int = 8, seed: int = 0
) -> Tensor:
    """Random patches as rows, `count` of each texture, shuffled, shape (n, size^2), float32.

    Each patch has mean zero and is divided by ``max(std, 0.02)``: unit variance, but what is
    flat stays small.

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
        windows = np.lib.stride_tricks.sliding_window_view(region, (size, size))
        top, left = (rng.integers(0, extent, count) for extent in windows.shape[:2])
        rows.append(windows[top, left].reshape(count, -1))
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
    """Random patches of one picture as rows, shape (count, size^2), float32; none comes twice.

    They are normalised as those of `patches`.

    Parameters
    ----------
    picture
        Grey values, shape (rows, columns).
    count, size, seed
        How many patches, of how many pixels squared, and which.
    avoid
        Positions that are not drawn, such as those of an earlier draw. Patches at other positions
        may overlap with them.

    Returns
    -------
    patches, positions
        A window with its upper left corner at (i, j) has position ``i (columns - size + 1) + j``.

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
    windows = np.lib.stride_tricks.sliding_window_view(picture, (size, size))
    total = windows.shape[0] * windows.shape[1]
    free = np.ones(total, bool)
    if avoid is not None and len(avoid) > 0:
        taken = np.asarray(avoid)
        if taken.dtype.kind not in "iu" or taken.min() < 0 or taken.max() >= total:
            raise ValueError(f"avoid must hold positions from 0 to {total - 1}")
        free[taken] = False
    left = np.flatnonzero(free)
    if count > len(left):
        raise ValueError(
            f"count must be at most {len(left)}, the positions that are left of {total}, "
            f"got {count}"
        )
    positions = np.random.default_rng(seed).choice(left, count, replace=False)
    x = normalise(windows[np.unravel_index(positions, windows.shape[:2])].reshape(count, -1))
    return torch.from_numpy(x.astype(np.float32)), positions


def normalise(x: Array) -> Array:
    """Rows with mean zero, divided by ``max(std, 0.02)``."""
    x = x - x.mean(axis=1, keepdims=True)
    result: Array = x / np.maximum(x.std(axis=1, keepdims=True), FLAT)
    return result


def learn_dictionary(x: Tensor, atoms: int, lam: float = 1.0, seed: int = 0) -> Tensor:
    """Unit-norm atoms by scikit-learn's MiniBatchDictionaryLearning, shape (atoms, m), float32."""
    import warnings

    from sklearn.decomposition import MiniBatchDictionaryLearning
    from sklearn.exceptions import ConvergenceWarning

    learner = MiniBatchDictionaryLearning(
        n_components=atoms,
        alpha=lam,
        batch_size=256,
        max_iter=12,
        fit_algorithm="cd",
        transform_algorithm="lasso_cd",
        random_state=seed,
    )
    with warnings.catch_warnings():
        # a rough code is enough for the learner's next step
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner.fit(x.double().numpy())
    components = torch.from_numpy(learner.components_)
    return torch.nn.functional.normalize(components).float()


# ---- files ----------------------------------------------------------------------------------


def _pictures(names: Sequence[str], pictures: Sequence[Array], owner: str) -> Pictures:
    *others, last = names
    listed = f"{', '.join(others)} and {last}" if others else last
    return Pictures(tuple(names), tuple(pictures), f"{listed} of {owner}")


def _chosen(folder: Path, names: Sequence[str] | None) -> list[Path]:
    """The files of the pictures that are asked for, in their order."""
    sequence = folder / SEQUENCE
    if sequence.is_file():
        return _listed(sequence)
    there = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if not there:
        raise ValueError(f"{folder} has no pictures ({', '.join(SUFFIXES)})")
    if names is None:
        return there
    if not names:
        raise ValueError("names must name at least one picture")
    chosen = []
    for name in names:
        fitting = [path for path in there if name in (path.name, path.stem)]
        if len(fitting) != 1:
            known = ", ".join(path.name for path in there)
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
        raise ValueError(f"{sequence} has a place in the order twice")
    for path in paths.values():
        if not path.is_file():
            raise FileNotFoundError(f"{sequence} names {path.name}, which is not there")
    return [paths[order] for order in sorted(paths)]


def _boxes(folder: Path) -> dict[str, tuple[int, int, int, int]]:
    """Rows and columns to take of each file, by the table of splits if there is one."""
    splits = folder / SPLITS
    boxes: dict[str, tuple[int, int, int, int]] = {}
    if not splits.is_file():
        return boxes
    for row in read_table(splits, ("file", *BOUNDS)):
        top, bottom, left, right = (_integer(row[name], splits) for name in BOUNDS)
        if row["file"] in boxes:
            own = boxes[row["file"]]
            top, left = min(top, own[0]), min(left, own[2])
            bottom, right = max(bottom, own[1]), max(right, own[3])
        boxes[row["file"]] = top, bottom, left, right
    return boxes


def _integer(cell: str, path: Path) -> int:
    try:
        return int(cell)
    except ValueError:
        raise ValueError(f"{path} must hold a whole number where it has {cell!r}") from None


def _read(path: Path) -> Array:
    """Grey values, from 0 for black to 1 for white."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading pictures needs Pillow; install it with pip install 'pursuit[vision]'"
        ) from error
    try:
        with Image.open(path) as picture:
            deep = picture.mode[0] in "IF"
            values = np.asarray(picture if deep else picture.convert("L"))
    except PermissionError:
        raise
    except Exception as error:  # each format has errors of its own
        raise ValueError(f"{path} cannot be read as a picture: {one_line(error)}") from error
    if deep and (values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535):
        raise ValueError(f"{path} has neither 8 nor 16 bits a pixel; convert it to one of them")
    grey: Array = values / (65535.0 if deep else 255.0)
    return grey


def _cut(picture: Array, path: Path, box: tuple[int, int, int, int] | None) -> Array:
    """What can be used of a picture."""
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
