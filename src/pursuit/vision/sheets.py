"""Contact sheets: aligned pictures before and after, their parts and their mean, in one picture.

Drawn with Pillow alone. Values of pictures are 0 for black and 1 for white.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .stack import Array

#: the most pictures on a sheet
MOST = 12
#: the largest height and width of a picture, and of the mean of all, in pixels
CELL, MEAN = (180, 140), (520, 620)
#: space between pictures and around the sheet, and the width of the labels of the rows
GAP, BORDER, LABELS = 6, 32, 92
#: font sizes of the names of files, of labels and of the title
SMALL, TEXT, TITLE = 13, 16, 26
#: the colours of the ground, of labels and of the title
GROUND, INK, TITLE_INK = (255, 255, 255), (90, 90, 90), (20, 20, 20)
ROWS = ("before", "aligned", "low-rank", "outliers")


class Column(NamedTuple):
    """One picture on the sheet: its name, and a picture for each row."""

    name: str
    cells: tuple[Array, ...]


class ContactSheet:
    """A sheet that is given all pictures one by one, and shows some of them and the mean.

    Parameters
    ----------
    count
        The number of pictures. If there are more than 12, the sheet shows 12 at equal distances.
    """

    def __init__(self, count: int) -> None:
        chosen = np.linspace(0, count - 1, min(count, MOST)).round().astype(int)
        self._chosen = set(chosen.tolist())
        self._columns: list[Column] = []
        self._sums: list[Any] = [0.0, 0.0]
        self._count = 0

    def add(
        self, name: str, before: Array, aligned: Array, low_rank: Array, outliers: Array
    ) -> None:
        """Add the next picture; each part has shape (height, width) or (height, width, 3).

        `outliers` are drawn as they are; see `around_grey`.
        """
        for number, part in enumerate((before, aligned)):
            self._sums[number] = self._sums[number] + _as_colours(_fitted(part, MEAN))
        if self._count in self._chosen:
            parts = (before, aligned, low_rank, outliers)
            cells = tuple(_as_colours(_fitted(part, CELL)) for part in parts)
            self._columns.append(Column(name, cells))
        self._count += 1

    def draw(self, title: str, facts: Sequence[str]) -> Any:
        """Return the sheet as a picture of Pillow, with lines of facts beside the means."""
        from PIL import Image, ImageDraw

        cell, mean = self._columns[0].cells[0].shape, self._sums[0].shape
        top = BORDER + 2 * TITLE
        below = top + mean[0] + 3 * TEXT
        beside = 2 * (mean[1] + 2 * GAP) + max((_width(fact, TEXT) for fact in facts), default=0)
        columns = len(self._columns) * (cell[1] + GAP)
        width = max(LABELS + max(columns, beside), _width(title, TITLE)) + 2 * BORDER
        height = below + len(ROWS) * (cell[0] + GAP) + 2 * SMALL + BORDER
        sheet = Image.new("RGB", (width, height), GROUND)
        ink = ImageDraw.Draw(sheet)
        ink.text((BORDER, BORDER), title, TITLE_INK, _font(TITLE), anchor="lm")
        left = BORDER + LABELS
        for name, total in zip(ROWS, self._sums, strict=False):
            sheet.paste(Image.fromarray(as_bytes(total / self._count)), (left, top))
            label = name if self._count == 1 else f"mean, {name}"
            ink.text((left, top + mean[0] + GAP), label, INK, _font(TEXT))
            left += mean[1] + 2 * GAP
        for number, fact in enumerate(facts):
            ink.text((left, top + number * 2 * TEXT), fact, INK, _font(TEXT))
        self._draw_grid(sheet, ink, below)
        return sheet

    def _draw_grid(self, sheet: Any, ink: Any, top: int) -> None:
        from PIL import Image

        height, width, _ = self._columns[0].cells[0].shape
        tops = [top + row * (height + GAP) for row in range(len(ROWS) + 1)]
        for name, above in zip(ROWS, tops, strict=False):
            ink.text((BORDER, above + height // 2), name, INK, _font(TEXT), anchor="lm")
        for number, column in enumerate(self._columns):
            left = BORDER + LABELS + number * (width + GAP)
            for values, above in zip(column.cells, tops, strict=False):
                sheet.paste(Image.fromarray(as_bytes(values)), (left, above))
            ink.text((left, tops[-1]), _shortened(column.name, width), INK, _font(SMALL))


def around_grey(values: Array, largest: float) -> Array:
    """Signed values as a picture: 0 is mid-grey, `-largest` is black, `largest` is white."""
    return 0.5 + values / (2 * largest)


def as_bytes(values: Array, deep: bool = False) -> Array:
    """Values from 0 to 1 as integers of 8 bits, or 16 if deep; others are clipped."""
    most, kind = (65535, np.uint16) if deep else (255, np.uint8)
    return (np.clip(values, 0, 1) * most).round().astype(kind)


def _fitted(values: Array, box: tuple[int, int]) -> Array:
    """A picture that is scaled so that it just fits into a box of that height and width."""
    from PIL import Image

    scale = min(length / side for length, side in zip(box, values.shape, strict=False))
    height, width = (max(1, round(scale * side)) for side in values.shape[:2])
    planes = [
        np.asarray(Image.fromarray(plane).resize((width, height), Image.Resampling.BICUBIC))
        for plane in np.atleast_3d(values).astype(np.float32).transpose(2, 0, 1)
    ]
    return np.stack(planes, axis=-1) if values.ndim == 3 else planes[0]


def _as_colours(values: Array) -> Array:
    return values if values.ndim == 3 else np.repeat(values[:, :, None], 3, axis=2)


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _width(text: str, size: int) -> int:
    return int(_font(size).getlength(text)) + 1


def _shortened(name: str, width: int) -> str:
    """A name that is not wider than a column; what differs is usually at its end."""
    if _width(name, SMALL) <= width:
        return name
    while len(name) > 1 and _width(f"...{name}", SMALL) > width:
        name = name[1:]
    return f"...{name}"
