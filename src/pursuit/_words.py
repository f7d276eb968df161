"""Wording of messages. Imports the standard library only, so that every module may use it."""

from __future__ import annotations

from collections.abc import Sequence


def one_line(message: object, longest: int | None = 300) -> str:
    """Return a message, often an exception, on a single line of at most `longest` characters.

    An exception without a text is shown by its type; `longest=None` means no limit.
    """
    text = " ".join(str(message).split()) or type(message).__name__
    return text if longest is None or len(text) <= longest else text[: longest - 3] + "..."


def listed(words: Sequence[str], conjunction: str = "and") -> str:
    """Return words as an enumeration, such as "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def require_choice(value: str, allowed: Sequence[str], name: str) -> None:
    """Raise a ValueError unless the value of the argument `name` is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
