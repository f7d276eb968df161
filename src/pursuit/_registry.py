"""Classes known by their names, so that a file can refer to them without pickle.

A class is registered by deriving it from a registered base, in a user's script too.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar, TypeVar

T = TypeVar("T", bound="Registered")


class Registered:
    """A base whose direct subclasses each keep a table of all classes derived from them."""

    classes: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if Registered in cls.__bases__:
            cls.classes = {}
        taken = cls.classes.get(cls.__name__)
        # a class of the library keeps its name; a user's class may be defined again
        if taken is None or not _is_builtin(taken) or _is_builtin(cls):
            cls.classes[cls.__name__] = cls


def name_of(obj: Registered) -> str:
    """Return the name of an object's class, or raise a TypeError if another class has it."""
    kind = type(obj)
    known = obj.classes.get(kind.__name__)
    if known is not kind:
        raise TypeError(
            f"the name {kind.__name__} refers to another class ({_origin(known)}), so a file "
            f"cannot refer to {_origin(kind)} by it; rename one of the two"
        )
    return kind.__name__


def class_of(base: type[T], name: object) -> type[T]:
    """Return the class that is known by a name, or raise a ValueError if there is none."""
    kind = base.classes.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(
            f"it refers to the {base.__name__} class {name!r}, which is not defined here; define "
            "or import the class before loading"
        )
    return kind


def arguments_of(obj: object) -> dict[str, Any]:
    """Return the constructor's arguments, read from the attributes of the same names."""
    names = list(signature(type(obj)).parameters)
    missing = [name for name in names if not hasattr(obj, name)]
    if missing:
        raise TypeError(
            f"{type(obj).__name__} takes the argument {missing[0]!r} but has no attribute of that "
            "name; set it in __init__, or define `config`"
        )
    return {name: getattr(obj, name) for name in names}


def _is_builtin(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pursuit"


def _origin(kind: type | None) -> str:
    return "none" if kind is None else f"{kind.__module__}.{kind.__qualname__}"
