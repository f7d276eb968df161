"""Wording of messages. Imports the standard library only, so that every module may use it."""

from __future__ import annotations

from collections.abc import Sequence


def one_line(message: object, longest: int | None = 300) -> str:
    """A message, often an exception, on a single line of at most `longest` characters.

    An exception without a text is shown by its type; with None, nothing is cut off.
    """
    text = " ".join(str(message).split()) or type(message).__name__
    return text if longest is None or len(text) <= longest else text[: longest - 3] + "..."


def listed(words: Sequence[str], joint: str = "and") -> str:
    """Words as an enumeration, such as "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} {joint} {last}" if first else last


def require_choice(value: str, allowed: Sequence[str], name: str) -> None:
    """Raise a ValueError unless the value of the argument `name` is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
