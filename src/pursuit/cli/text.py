"""Tables of text (.csv): their layout, their numbers, and errors that name the line.

Lines count from 1, as an editor shows them: header, comments and empty lines included.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from .._words import one_line
from ..progress import Callback, Progress
from .columns import Selection, given_as, label, refuse_index, refuse_text
from .errors import warn

Array = np.ndarray[Any, Any]

#: the delimiters that are recognised, and words for those that are hard to type
DELIMITERS = ("\t", ";", ",")
WORDS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
#: the number of lines between two reports of progress
REPORTED = 2**17


class Layout(NamedTuple):
    """How a file is written: `first` is the line of the first row, a delimiter None is spaces."""

    delimiter: str | None
    names: list[str] | None
    first: int
    cells: list[str]


def as_delimiter(text: str | None) -> str | None:
    """The delimiter that an option names; None means that it is found out."""
    if text is None:
        return None
    delimiter = WORDS.get(text, text)
    if len(delimiter) != 1 or delimiter.isalnum() or delimiter in "#\"'.+-\n\r":
        raise ValueError(
            f"--delimiter must be one character such as ';', or tab, or space, got {text!r}"
        )
    return delimiter


def read_csv(path: Path, selection: Selection, callback: Callback) -> Array:
    """The chosen columns of a file, as float64."""
    with _text(path) as file:
        layout = _layout(path, file, selection)
    names, width = layout.names, len(layout.cells)
    chosen = selection.choose(width, names, str(path))
    texts = {c: layout.cells[c] for c in chosen if _is_text(layout.cells[c])}
    # a cell with a decimal comma is no text; reading the numbers reports it
    texts = {column: cell for column, cell in texts.items() if not _has_decimal_comma(cell)}
    refuse_text(texts, width, names, str(path))
    values = _numbers(path, layout, chosen, callback)
    if selection.columns is None:
        refuse_index(values, chosen, names, str(path))
    return values


def line_of(path: Path, header: bool | None, delimiter: str | None, row: int) -> int:
    """The line of a row; rows count from 0."""
    with _text(path) as file:
        layout = _layout(path, file, Selection(header=header, delimiter=delimiter))
    with _text(path) as file:
        numbers = (number for number, _ in _content(file) if number >= layout.first)
        return next(itertools.islice(numbers, row, None))


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    """Context manager: yields an opened file; its encoding is checked while it is read."""
    try:
        # utf-8-sig: some spreadsheets write a byte order mark in front of the first number
        with open(path, encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not a text file in UTF-8; save it again as a CSV file in UTF-8"
        ) from error


def _content(file: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without comments and without empty lines."""
    for number, line in enumerate(file, start=1):
        text = line.partition("#")[0].strip(" \r\n")
        if text.strip():
            yield number, text


def _layout(path: Path, file: IO[str], selection: Selection) -> Layout:
    (number, first), (below, second) = [*itertools.islice(_content(file), 2), (0, ""), (0, "")][:2]
    if not first:
        raise ValueError(f"{path} is empty; give a file with rows of numbers")
    delimiter = as_delimiter(selection.delimiter)
    if delimiter is None:
        delimiter = next((mark for mark in DELIMITERS if mark in first), None)
    cells, others = _split(first, delimiter), _split(second, delimiter)
    header = selection.header
    if header is None:
        header = _is_header(cells, others)
        if not header and _counts(cells) and len(others) > 1:
            warn(
                f"the first line of {path} is {_short(cells)} and is taken as data; if it has the "
                "names of the columns, say so with --header"
            )
    if not header:
        return Layout(delimiter, None, number, cells)
    if not second:
        raise ValueError(f"{path} has a header, but no numbers; give a file with rows of numbers")
    if len(cells) != len(others):
        raise ValueError(
            f"{path} has {len(cells)} names in line {number}, but {len(others)} cells in line "
            f"{below}; correct the file, or choose the --delimiter"
        )
    return Layout(delimiter, cells, below, others)


def _is_header(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether the cells of the first line are names, judged by those of the second."""
    if not any(second):
        return any(map(_is_text, first))
    if not first[0] and len(first) > 1 and second[0] and all(first[1:]):
        return True  # an index without a name, as pandas writes it
    if _counts(first):
        return not all(cell.lstrip("-").isdigit() for cell in second)
    pairs = zip(first, second, strict=False)
    named = any(_is_text(above) and not _is_text(below) for above, below in pairs)
    return named or all(map(_is_text, first))


def _counts(cells: Sequence[str]) -> bool:
    """Whether cells are 0, 1, 2, ..., the names that pandas gives to columns without names."""
    return len(cells) > 1 and list(cells) == [str(number) for number in range(len(cells))]


def _short(cells: Sequence[str]) -> str:
    return ", ".join(cells if len(cells) < 5 else [*cells[:3], "...", cells[-1]])


def _split(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return line.split()
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [""])
    except csv.Error:  # a cell that is longer than the module allows
        cells = line.split(delimiter)
    return [cell.strip() for cell in cells]


def _is_text(cell: str) -> bool:
    """Whether a cell holds something else than a number; an empty one does not."""
    try:
        float(cell or "0")
    except ValueError:
        return True
    return False


def _has_decimal_comma(cell: str) -> bool:
    return cell.count(",") == 1 and not _is_text(cell.replace(",", "."))


def _numbers(path: Path, layout: Layout, chosen: Sequence[int], callback: Callback) -> Array:
    """Read the chosen columns; an error names the line and the cell."""
    width, latest = len(layout.cells), (0, "")

    def lines(file: IO[str]) -> Iterator[str]:
        nonlocal latest
        for number, line in enumerate(file, start=1):
            if number < layout.first:
                continue
            latest = number, line
            if number % REPORTED == 0:
                callback(Progress(f"lines of {path.name}", number, None))
            yield line

    options: Any = {"delimiter": layout.delimiter, "quotechar": '"', "ndmin": 2}
    if len(chosen) < width or list(chosen) != sorted(chosen):
        options["usecols"] = list(chosen)
    try:
        with _text(path) as file:
            return np.loadtxt(lines(file), **options)
    except ValueError as error:
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise
        reason = _mistake(*latest, layout, chosen) or one_line(error)
        raise ValueError(f"{path} is not a table of numbers: {reason}") from error


def _mistake(number: int, line: str, layout: Layout, chosen: Sequence[int]) -> str | None:
    """What is wrong with a line, and what to do; None if nothing is found."""
    cells = _split(line.partition("#")[0].strip(" \r\n"), layout.delimiter)
    width = len(layout.cells)
    if len(cells) != width:
        return f"line {number} has {len(cells)} instead of {width} cells; correct the line"
    for column in chosen:
        cell, where = cells[column], f"line {number}, {label(column, layout.names)}"
        drop = f"--drop {given_as([column], layout.names)}"
        if not cell:
            return f"{where} is empty; fill it in, or leave the column out with {drop}"
        if _is_text(cell):
            if _has_decimal_comma(cell):
                return f"{where} is {cell!r}; write a decimal point instead of the comma"
            short = one_line(cell, 40)
            return f"{where} is {short!r}; correct it, or leave the column out with {drop}"
    return None
