"""Fields of descriptions: what a file says is compared with the types that its reader declares.

A description is plain data from JSON. The types are annotations, as those of a constructor. Imports
the standard library only.
"""

from __future__ import annotations

import math
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import Parameter, signature
from typing import Any

from ._words import one_line

#: annotations in words
WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a mapping",
    list: "a list",
    None: "null",
    types.NoneType: "null",
}


@contextmanager
def naming(path: str | os.PathLike[str], done: str = "loaded") -> Iterator[None]:
    """Context manager: a ValueError inside becomes one that names the file.

    `done` says what cannot be done with it.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} cannot be {done}: {one_line(error)}") from error


def entry(values: object, name: str, kind: Any, least: float = -math.inf) -> Any:
    """Return a field of a description.

    Parameters
    ----------
    values
        The description, or the part of it that has the field.
    name
        The field.
    kind
        Its type as an annotation, such as ``list[int] | None``.
    least
        The smallest number that is allowed; NaN and infinity are not allowed if it is finite.

    Raises
    ------
    ValueError
        If the field is missing, of another type, or too small; the message names it.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{name} must be in a mapping, got {shown(values)}")
    if name not in values:
        raise ValueError(f"{name} is missing")
    value = values[name]
    if not fits(value, kind):
        raise ValueError(f"{name} must be {worded(kind)}, got {shown(value)}")
    if least > -math.inf:
        numbers = value if isinstance(value, list) else [value]
        for number in numbers:
            if not least <= number < math.inf:
                raise ValueError(f"{name} must be at least {least:g}, got {number}")
    return value


def real(info: object, name: str, *, finite: bool = True, least: float = -math.inf) -> float:
    """Return a number of a description; if it need not be finite, it may be NaN or infinite."""
    value = float(entry(info, name, float))
    if (finite and not math.isfinite(value)) or value < least:
        bound = "" if least == -math.inf else f" from {least:g} on"
        raise ValueError(f"{name} must be a finite number{bound}, got {value}")
    return value


def arguments(values: object, kind: Callable[..., Any], beside: Iterable[str] = ()) -> Any:
    """Return the arguments of a constructor after comparing them with its annotations.

    Arguments that are passed in another way are named by `beside`.
    """
    name = kind.__name__
    if not isinstance(values, Mapping):
        raise ValueError(f"the arguments of {name} must be a mapping, got {shown(values)}")
    given = {*values, *beside}
    hints = _hints(kind)
    for key in values:
        if key in beside or (key not in hints and not _takes_all(kind)):
            raise ValueError(f"{name} has no argument {shown(key)}; it takes {', '.join(hints)}")
        if key in hints and not fits(values[key], hints[key][0]):
            expected = worded(hints[key][0])
            raise ValueError(f"{key} of {name} must be {expected}, got {shown(values[key])}")
    missing = [key for key, (_, required) in hints.items() if required and key not in given]
    if missing:
        raise ValueError(f"{missing[0]} of {name} is missing")
    return values


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of the type that an annotation states; lists count as tuples."""
    if kind is Any or isinstance(kind, str | typing.TypeVar):
        return True
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, part) for part in parts)
    if kind is None or kind is types.NoneType:
        return value is None
    if kind is bool:
        return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    base = origin or kind
    if not isinstance(base, type):
        return True
    if issubclass(base, str):
        return isinstance(value, str)
    if issubclass(base, tuple) and parts and parts[-1] is not Ellipsis:
        return (
            isinstance(value, list | tuple)
            and len(value) == len(parts)
            and all(map(fits, value, parts))
        )
    if issubclass(base, Sequence):
        each = parts[0] if parts else Any
        return isinstance(value, list | tuple) and all(fits(item, each) for item in value)
    if issubclass(base, Mapping):
        each = parts[1] if parts else Any
        return isinstance(value, dict) and all(fits(item, each) for item in value.values())
    return isinstance(value, base)


def worded(kind: Any) -> str:
    """An annotation in words, such as "a list of whole numbers or null"."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        plain = [part for part in parts if _is_plain(part)]  # what JSON can hold
        return " or ".join(dict.fromkeys(worded(part) for part in plain or parts))
    base = origin or kind
    if isinstance(base, type) and issubclass(base, Sequence) and not issubclass(base, str):
        plurals: dict[Any, str] = {int: "whole numbers", float: "numbers", str: "texts"}
        plural = plurals.get(parts[0]) if parts else None
        return f"a list of {plural}" if plural else "a list"
    if isinstance(base, type) and issubclass(base, Mapping):
        return "a mapping"
    known = WORDS.get(kind)
    return known if known is not None else f"a {getattr(base, '__name__', base)}"


def _is_plain(kind: Any) -> bool:
    base = typing.get_origin(kind) or kind
    return kind in WORDS or (isinstance(base, type) and issubclass(base, Sequence | Mapping))


def shown(value: object) -> str:
    """A value of a file in a few characters."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list) and len(value) > 4:
        return f"a list of {len(value)} entries"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@cache
def _takes_all(kind: Callable[..., Any]) -> bool:
    parameters = signature(kind).parameters.values()
    return any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)


@cache
def _hints(kind: Callable[..., Any]) -> dict[str, tuple[Any, bool]]:
    """The annotation of each parameter, and whether it is required.

    Annotations of classes outside of the library are not used.
    """
    own = kind.__module__.partition(".")[0] == __package__
    hints = typing.get_type_hints(kind.__init__) if own else {}
    return {
        name: (hints.get(name, Any), parameter.default is Parameter.empty)
        for name, parameter in signature(kind).parameters.items()
        if parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    }
