"""Checks of the fields of programs, and of the arrays that compiled encoders are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: dtypes that are read without conversion
NATIVE = (np.dtype(np.float32), np.dtype(np.float64))


def require(array: object, name: str, dtype: Any, shape: tuple[int | None, ...]) -> Array:
    if array is None:
        raise ValueError(f"{name} is missing")
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        given = getattr(array, "dtype", type(array).__name__)
        raise ValueError(f"{name} must be an array of {np.dtype(dtype)}, got {given}")
    fits = array.ndim == len(shape) and all(
        side is None or side == length for side, length in zip(shape, array.shape, strict=True)
    )
    if not fits:
        text = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"{name} must have shape ({text}), got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be contiguous")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinite values")
    return array


def require_values(array: Array, name: str, allowed: Callable[[Array], Array], what: str) -> None:
    ok = allowed(array)
    if not ok.all():
        raise ValueError(f"{name} must be {what}, got {array[~ok][0]:g}")


def require_range(array: Array, name: str, low: int, end: int) -> None:
    outside = array[(array < low) | (array >= end)]
    if len(outside) > 0:
        raise ValueError(f"{name} must lie between {low} and {end - 1}, got {outside[0]}")


def as_signals(x: Any, features: int) -> Array:
    """Return signals (n, features) or (features,) as an array (n, features) of real numbers."""
    layout = str(getattr(x, "layout", "strided"))  # of a tensor; torch is not imported here
    if not layout.endswith("strided"):
        raise TypeError("x must be a dense tensor, got a sparse one; convert it with x.to_dense()")
    signals = np.asarray(x)
    if signals.ndim == 1:
        signals = signals[None]
    if signals.ndim != 2 or signals.shape[1] != features:
        raise ValueError(f"x must have shape (n, {features}) or ({features},), got {np.shape(x)}")
    return as_real(signals, "x")


def as_real(array: Array, name: str) -> Array:
    """Return an array of real numbers as float32 or float64."""
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got {array.dtype}")
    return array if array.dtype in NATIVE else array.astype(np.float32)


def require_finite(rows: Array, name: str, unit: str, first: int = 0) -> None:
    """Raise a ValueError that names the first row, counted from `first`, that is not finite."""
    bad = np.flatnonzero(~np.isfinite(rows).reshape(len(rows), -1).all(axis=1))
    if len(bad) > 0:
        raise ValueError(
            f"{name} contains NaN or infinite values, first in {unit} {first + bad[0]}; "
            "remove or replace them"
        )


def require_output(out: object, shape: tuple[int, ...]) -> Array:
    """Return `out` if it is a contiguous float32 array of the shape."""
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != shape:
        given = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out)
        raise ValueError(f"out must be a float32 array of shape {shape}, got {given}")
    if not out.flags.c_contiguous:
        raise ValueError("out must be contiguous")
    return out
