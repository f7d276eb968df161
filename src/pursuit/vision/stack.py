"""Stacks: the pictures of a folder, cut to one size and reduced to the scale of alignment.

Pictures that cannot be used are left out with a warning. Pixels of the full size are read again
when they are needed, so that a stack of large pictures fits into memory.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .._words import listed, one_line
from ..datasets.pictures import SUFFIXES, Header, as_grey, find, read_colours, read_header
from ..progress import Callback, Progress

if TYPE_CHECKING:
    from .faces import AlignmentModel

Array = np.ndarray[Any, Any]
T = TypeVar("T")
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: the longer side of the pictures that are aligned, at most
LARGEST = 200
#: sides differ from the usual one by at most this factor
TOLERANCE = 1.25
#: the shortest side of the pictures that are aligned
SMALLEST = 16
#: a picture whose grey values differ by less is of one colour
FLAT = 1e-3
#: the percentage of grey values that are not brighter than white; the rest may be defective pixels
WHITE = 99.9
#: the most names in a message
MOST_NAMES = 5


@dataclass(frozen=True, eq=False, repr=False)
class Stack:
    """Pictures of one size.

    Attributes
    ----------
    paths
        Their files.
    size
        Height and width that pictures are cut to around their middle, multiples of `factor`.
    factor
        The side of the squares of pixels that are averaged for the alignment.
    grey
        The averaged grey values, shape (n, height / factor, width / factor), float32, 0 for black
        and 1 for `white`.
    white
        The grey value of the brightest pixels, where 1 is the largest value of the files.
    deep
        Whether a picture has more than 8 bits, for each.
    """

    paths: tuple[Path, ...]
    size: tuple[int, int]
    factor: int
    grey: Array
    white: float
    deep: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        height, width = self.size
        return f"Stack(pictures={len(self)}, size={height} x {width}, factor={self.factor})"

    def picture(self, number: int) -> Array:
        """Read a picture in full size, shape (height, width) or (height, width, 3), float32."""
        return _cut(read_colours(self.paths[number]), self.size).astype(np.float32)


def read_stack(
    source: Source, model: AlignmentModel | None = None, callback: Callback | None = None
) -> Stack:
    """Read pictures of one thing.

    Pictures of different sizes are cut around their middle to the smallest height and width. Those
    with a side that differs from the usual one, the median, by more than 25 % are left out; if
    these are most of the pictures, an error is raised. Files that are not pictures, broken files
    and pictures of one colour are left out too. A warning names what is left out.

    Parameters
    ----------
    source
        A folder, a picture, or a list of pictures.
    model
        A model that the pictures will be aligned with. It determines the usual size, and the
        factor by which pictures are reduced.
    callback
        Called with a `Progress` of stage "reading pictures" after each picture.

    Returns
    -------
    Stack
        The pictures.
    """
    paths = _listed(source)
    single = len(paths) == 1
    headers = dict(_attempted(paths, read_header, single))
    usual = _usual_size(headers.values()) if model is None else model.size
    fitting = {path: header for path, header in headers.items() if _fits(header, usual, model)}
    others = [path for path in headers if path not in fitting]
    if others:
        sentence = _misfit(others, headers, usual)
        if model is None and len(fitting) <= len(others):
            raise ValueError(f"{sentence}; give pictures of about the same size")
        if not fitting:
            raise ValueError(f"{sentence}, which the model was made for")
        warnings.warn(f"left out: {sentence}", stacklevel=2)
    if not fitting:
        raise ValueError("there are no pictures that can be read")
    lowest, narrowest = (min(header[axis] for header in fitting.values()) for axis in (0, 1))
    size = lowest, narrowest
    factor = -(-max(size) // LARGEST) if model is None else model.factor
    size = lowest // factor * factor, narrowest // factor * factor
    if model is not None:
        size = min(size[0], model.size[0]), min(size[1], model.size[1])
    if min(size) < SMALLEST * factor:
        raise ValueError(
            f"pictures of {lowest} x {narrowest} pixels cannot be aligned; their sides must be at "
            f"least {SMALLEST * factor}"
        )
    began = time.perf_counter()
    grey: dict[Path, Array] = {}
    for number, path in enumerate(fitting, start=1):
        grey |= dict(_attempted([path], lambda path: _reduced(path, size, factor), single))
        if callback is not None:
            seconds = time.perf_counter() - began
            callback(Progress("reading pictures", number, len(fitting), seconds=seconds))
    if not grey:
        raise ValueError("there are no pictures that can be used")
    white = _white(grey.values()) if model is None else model.white
    return Stack(
        paths=tuple(grey),
        size=size,
        factor=factor,
        grey=np.stack(list(grey.values())) / np.float32(white),
        white=white,
        deep=tuple(fitting[path].deep for path in grey),
    )


def _listed(source: Source) -> list[Path]:
    """The pictures of a folder, or those that are given."""
    if not isinstance(source, str | os.PathLike):
        return [Path(path) for path in source]
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"there is no folder or picture {path}")
    if not path.is_dir():
        return [path]
    found = find(path)
    others = sorted(
        other.name
        for other in path.iterdir()
        if other.is_file() and not other.name.startswith(".") and other not in found
    )
    if others:
        _warn(f"{_names(others)} of {path} (pictures end in {listed(SUFFIXES, 'or')})")
    return found


def _attempted(
    paths: Sequence[Path], function: Callable[[Path], T], needed: bool
) -> Iterator[tuple[Path, T]]:
    """Each picture and what a function returns for it, without those that it fails for.

    If the pictures are needed, the error is raised.
    """
    for path in paths:
        try:
            yield path, function(path)
        except (ValueError, OSError) as error:
            if needed:
                raise
            _warn(one_line(error))


def _warn(sentence: str) -> None:
    warnings.warn(f"left out: {sentence}", stacklevel=4)


def _usual_size(headers: Iterable[Header]) -> tuple[int, int]:
    """The lower median of heights and widths."""
    sides = [sorted(lengths) for lengths in zip(*((h[0], h[1]) for h in headers), strict=True)]
    if not sides:
        return 0, 0
    heights, widths = sides
    return heights[(len(heights) - 1) // 2], widths[(len(widths) - 1) // 2]


def _fits(header: Header, usual: tuple[int, int], model: AlignmentModel | None) -> bool:
    smallest = [side / TOLERANCE for side in usual]
    if model is not None:  # its window must have room to move
        smallest = [model.factor * (side + 2) for side in model.transformation.size]
    return all(
        least <= side <= TOLERANCE * length
        for side, length, least in zip(header[:2], usual, smallest, strict=True)
    )


def _misfit(others: Sequence[Path], headers: dict[Path, Header], usual: tuple[int, int]) -> str:
    first, (height, width) = headers[others[0]], usual
    has = "has" if len(others) == 1 else "have sizes such as"
    return (
        f"{_names([path.name for path in others])} {has} {first.height} x {first.width} pixels, "
        f"too different from {height} x {width}"
    )


def _names(names: Sequence[str]) -> str:
    shown = list(names[:MOST_NAMES])
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} others")
    return listed(shown)


def _cut(values: Array, size: tuple[int, int]) -> Array:
    """The middle of a picture."""
    top, left = ((length - side) // 2 for length, side in zip(values.shape, size, strict=False))
    if min(top, left) < 0:
        raise ValueError(f"a picture has shrunk to {values.shape[0]} x {values.shape[1]} pixels")
    return values[top : top + size[0], left : left + size[1]]


def _reduced(path: Path, size: tuple[int, int], factor: int) -> Array:
    """The grey values of a picture, averaged over squares."""
    grey = as_grey(_cut(read_colours(path), size))
    rows, columns = size[0] // factor, size[1] // factor
    means = grey.reshape(rows, factor, columns, factor).mean(axis=(1, 3))
    if np.ptp(means) < FLAT * max(float(np.abs(means).max()), 1 / 255):
        raise ValueError(f"{path} is of one colour, so that nothing in it can be aligned")
    reduced: Array = means.astype(np.float32)
    return reduced


def _white(pictures: Iterable[Array]) -> float:
    return max(float(np.percentile(np.abs(grey), WHITE)) for grey in pictures)
