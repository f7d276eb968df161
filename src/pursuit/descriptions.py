"""Models, operators and penalties as plain data for JSON, and back.

A class is referred to by its name, a dictionary by the name of its tensor; no code is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ._registry import Registered, class_of, name_of
from .fields import arguments, entry, shown
from .models import SparseModel
from .operators import Operator
from .penalties import Penalty

#: the deepest nesting of a description
DEEPEST = 20
#: objects that a description may contain, by the key that marks them
MARKED: dict[str, type[Registered]] = {"@penalty": Penalty, "@operator": Operator}


def describe_model(model: SparseModel) -> dict[str, Any]:
    """Return a model as plain data: its class, its arguments, the names of its dictionaries."""
    names = list(model.dictionaries)
    arguments = {
        key: value
        for key, value in model.config.items()
        if key not in names or isinstance(value, Operator)
    }
    return {"type": name_of(model), "arguments": _plain(arguments), "dictionaries": names}


def _plain(value: Any) -> Any:
    """Return a value as data that JSON can represent."""
    match value:
        case Penalty():
            return {"@penalty": name_of(value), "arguments": _plain(value.config)}
        case Operator():
            config = {k: v for k, v in value.config.items() if k not in value.dictionaries}
            names = list(value.dictionaries)
            return {"@operator": name_of(value), "arguments": _plain(config), "dictionaries": names}
        case Mapping():
            return {key: _plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_plain(entry) for entry in value]
        case None | bool() | int() | float() | str():
            return value
        case _ if hasattr(value, "tolist"):
            return value.tolist()
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _restore(value: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> Any:
    """Invert `_plain`: rebuild penalties and operators, and return anything else as it is."""
    if depth > DEEPEST:
        raise ValueError("its description is nested too deeply")
    if isinstance(value, list):
        return [_restore(entry, tensors, depth + 1) for entry in value]
    if not isinstance(value, dict):
        return value
    for mark, base in MARKED.items():
        if mark in value:
            given = _restore_each(entry(value, "arguments", dict), tensors, depth + 1)
            matrices = named_tensors(value, tensors) if "dictionaries" in value else {}
            kind: Any = class_of(base, value[mark])
            return kind(**matrices, **arguments(given, kind, matrices))
    return _restore_each(value, tensors, depth)


def _restore_each(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], depth: int
) -> dict[str, Any]:
    return {key: _restore(value, tensors, depth + 1) for key, value in values.items()}


def restore_model(description: object, tensors: Mapping[str, Tensor]) -> SparseModel:
    """Return the model that `describe_model` describes, on the given dictionaries."""
    kind: Any = class_of(SparseModel, entry(description, "type", str))
    given = _restore_each(entry(description, "arguments", dict), tensors, 0)
    matrices = named_tensors(description, tensors)
    if any(isinstance(value, Operator) for value in given.values()):
        matrices = {}  # the operator has them
    model: SparseModel = kind(**matrices, **arguments(given, kind, matrices))
    return model


def named_tensors(description: object, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the dictionaries that a description names."""
    names = entry(description, "dictionaries", list[str])
    for name in names:
        if name not in tensors:
            raise ValueError(f"the array {shown(name)} is missing")
    return {name: tensors[name] for name in names}
