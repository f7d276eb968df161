"""Columns of a data file: chosen by name or by number, and index columns that are noticed.

Numbers count from 1, as editors and spreadsheets do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._words import listed, one_line

Array = np.ndarray[Any, Any]
Names = Sequence[str] | None

#: names of columns that pandas gives to an index
UNNAMED = re.compile(r"(unnamed: \d+|__index_level_\d+__)?", re.IGNORECASE)
#: names of columns that are an index if they hold whole numbers
INDEX = ("index", "idx", "id", "row", "row_id", "rowid", "level_0")
#: a first column that counts from 0 or 1 is taken for an index in files of this many rows or more
COUNTED = 5
#: a number, a range, or a range without an end
NUMBERS = re.compile(r"(\d+)(?:(-)(\d*))?")


class Selection(NamedTuple):
    """What is read of a data file: the options of the same names."""

    key: str | None = None
    columns: str | None = None
    drop: str | None = None
    delimiter: str | None = None
    header: bool | None = None

    def choose(self, width: int, names: Names, file: str) -> list[int]:
        """The chosen columns of a file, counted from 0."""
        chosen = list(range(width))
        if self.columns is not None:
            chosen = _parse(self.columns, width, names, file, "--columns")
        if self.drop is not None:
            dropped = _parse(self.drop, width, names, file, "--drop")
            chosen = [column for column in chosen if column not in dropped]
        if not chosen:
            raise ValueError(f"no column of {file} is left; it has {_known(width, names)}")
        return chosen


def _parse(text: str, width: int, names: Names, file: str, option: str) -> list[int]:
    """Columns from a list such as "a,b,3-7"; names that look like numbers cannot be used."""
    columns: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        columns += _find(part, width, names, file, option)
    if not columns:
        raise ValueError(f"{option} is empty; {file} has {_known(width, names)}")
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise ValueError(f"{option} has {label(twice[0], names)} of {file} twice; give it once")
    return columns


def _find(part: str, width: int, names: Names, file: str, option: str) -> list[int]:
    match = NUMBERS.fullmatch(part)
    if match:
        first = int(match[1])
        last = first if match[2] is None else int(match[3] or width)
        if 1 <= first <= last <= width:
            return list(range(first - 1, last))
    same = [column for column, name in enumerate(names or ()) if name == part and not match]
    if len(same) > 1:
        numbers = listed([str(column + 1) for column in same])
        raise ValueError(f"{file} has several columns {part}, {numbers}; give {option} numbers")
    if not same:
        raise ValueError(f"{option}: {file} has no column {part}; it has {_known(width, names)}")
    return same


def _known(width: int, names: Names) -> str:
    numbers = f"columns 1 to {width}"
    given = [name for name in names or () if name]
    return one_line(f"{numbers}, called {', '.join(given)}" if given else numbers, 200)


def label(column: int, names: Names) -> str:
    """How a message calls a column: by its number and, if it has one, its name."""
    name = names[column] if names else ""
    return f"column {column + 1} ({name})" if name else f"column {column + 1}"


def given_as(columns: Sequence[int], names: Names) -> str:
    """How the options take columns: their names, or their numbers where names are ambiguous."""
    words = []
    for column in columns:
        name = names[column] if names else ""
        plain = name and "," not in name and not NUMBERS.fullmatch(name)
        unique = list(names or ()).count(name) == 1
        words.append(name if plain and unique else str(column + 1))
    text = ",".join(words)
    return f"'{text}'" if re.search(r"[^\w,.:+-]", text) else text


def refuse_text(texts: dict[int, str], width: int, names: Names, file: str) -> None:
    """Raise a ValueError if there are columns of text; `texts` has an example of each."""
    if not texts:
        return
    column, example = next(iter(texts.items()))
    example = one_line(example, 40)
    if len(texts) == width:
        raise ValueError(
            f"{file} has no column of numbers, {label(column, names)} holds {example!r}; "
            "give a table of numbers"
        )
    others = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
    raise ValueError(
        f"{file} has text in {label(column, names)}{others}, for example {example!r}; leave it "
        f"out with --drop {given_as(list(texts), names)}"
    )


def refuse_index(values: Array, chosen: Sequence[int], names: Names, file: str) -> None:
    """Raise a ValueError if one of the columns is an index of the rows rather than data."""
    for position, column in enumerate(chosen):
        if _is_index(values[:, position], column, names):
            raise ValueError(
                f"{label(column, names)} of {file} looks like an index of the rows; leave it out "
                f"with --drop {given_as([column], names)}, or keep it with --columns 1-"
            )


def _is_index(values: Array, column: int, names: Names) -> bool:
    if names is not None:
        name = names[column]
        if UNNAMED.fullmatch(name) and (name or column == 0):
            return True
        if name.lower() in INDEX:
            return bool(np.all(values == np.floor(values)))
    if column > 0 or len(values) < COUNTED or values[0] not in (0, 1):
        return False
    return bool(np.array_equal(values, values[0] + np.arange(len(values))))
