"""Checks of what is resumed from a file, before anything is changed by it.

Tensors are compared with those of the run or learner that resumes, and numbers with what they may
be. Every message names the file and the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .fields import entry, real, shown
from .optimisation import Adam
from .persistence import require_finite, require_like

#: numbers up to here are whole in float64
LARGEST = 2**53


def check_groups(tensors: Mapping[str, Tensor], groups: tuple[str, ...]) -> None:
    """Raise a ValueError if a tensor belongs to no group, by the start of its name."""
    for name in tensors:
        if not name.startswith(tuple(f"{group}." for group in groups)):
            raise ValueError(f"the array {shown(name)} is not part of it")


def check_optimiser(given: Mapping[str, Tensor], optimiser: Adam) -> None:
    """Check the moments and step counts of an optimiser."""
    own = optimiser.state
    # a parameter that has not had a gradient may be missing
    expected = {n: t for n, t in own.items() if f"{n.partition('.')[0]}.step" in given}
    require_like(given, expected)
    for name, tensor in given.items():
        if not name.endswith(".exp_avg") and bool((tensor < 0).any()):
            raise ValueError(f"{name} must not be negative")
        if name.endswith(".step") and not (float(tensor) <= LARGEST and float(tensor) % 1 == 0):
            raise ValueError(f"{name} must be a number of steps, got {float(tensor)}")


def check_rows(given: Mapping[str, Tensor], features: int, dtype: torch.dtype, what: str) -> None:
    """Check samples, with targets of the same number of rows or without; there may be none."""
    if not given:
        return
    if "x" not in given:
        raise ValueError(f"the array {what}.x is missing")
    require_like({"x": given["x"]}, {"x": torch.empty(len_of(given["x"]), features, dtype=dtype)})
    for name, tensor in given.items():
        if name != "x" and not name.startswith("targets"):
            raise ValueError(f"the array {shown(f'{what}.{name}')} is not part of it")
        if len_of(tensor) != len(given["x"]):
            raise ValueError(f"{what}.{name} must have {len(given['x'])} rows")
        require_finite(tensor, f"{what}.{name}")


def len_of(tensor: Tensor) -> int:
    """The number of rows, 0 for a tensor without dimensions."""
    return len(tensor) if tensor.ndim > 0 else 0


def check_regime(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a regime."""
    values: dict[str, float] = entry(info, "regime", dict[str, float])
    for name in values:
        real(values, name)
    return values
