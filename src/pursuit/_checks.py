"""Checks of arguments. Each message says what was given, what is allowed and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._words import require_choice as require_choice

ArrayLike = Tensor | np.ndarray[Any, Any] | Sequence[Any] | float

FLOATS = (torch.float32, torch.float64)
#: the entries from which on a tensor is added up by the threads of torch
MANY = 1 << 22


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_float_matrix(
    values: ArrayLike, name: str, columns: str, *, some_rows: bool = True
) -> Tensor:
    """Return a finite float matrix: a tensor itself, a copy of anything else.

    It may have no rows if `some_rows` is false.
    """
    matrix = as_tensor(values, name)
    if matrix.dtype not in FLOATS:
        raise TypeError(
            f"{name} must be float32 or float64, got {dtype_name(matrix.dtype)}; "
            f"convert it, for example with {name}.to(torch.float32)"
        )
    if matrix.ndim != 2:
        raise ValueError(
            f"{name} must have two dimensions (rows, {columns}), got shape {tuple(matrix.shape)}"
            + (f"; for a single row pass {name}[None]" if matrix.ndim == 1 else "")
        )
    if matrix.shape[1] == 0 or (some_rows and len(matrix) == 0):
        raise ValueError(f"{name} is empty, got shape {tuple(matrix.shape)}")
    if not is_meta(matrix) and not is_finite(matrix):
        raise ValueError(f"{name} contains NaN or infinite values; remove, replace or mask them")
    return matrix


def as_signals(
    values: ArrayLike, features: int, device: torch.device, mask: ArrayLike | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return checked signals and mask; unobserved entries, which may be NaN, are set to zero.

    There may be no rows.
    """
    observed = None
    if mask is not None:
        observed = mask if isinstance(mask, Tensor) else torch.tensor(np.asarray(mask))
        if observed.dtype != torch.bool:
            raise TypeError(
                f"mask must be boolean (True where observed), got {dtype_name(observed.dtype)}"
            )
        raw = as_tensor(values, "x")
        if observed.shape != raw.shape:
            raise ValueError(
                f"mask must have the shape of x {tuple(raw.shape)}, got {tuple(observed.shape)}"
            )
        require_device(observed, raw.device, "mask", "x")
        values = raw.masked_fill(~observed, 0) if raw.dtype in FLOATS else raw
    x = as_float_matrix(values, "x", "features", some_rows=False)
    require_width(x, features, "x", "features", "the dictionary")
    require_device(x, device, "x", "the model")
    return x, observed


def as_codes(values: ArrayLike, x: Tensor, size: int, name: str = "codes") -> Tensor:
    """Return codes for the signals `x`: same number of rows, device and dtype."""
    codes = as_float_matrix(values, name, "coefficients", some_rows=False)
    require_width(codes, size, name, "coefficients", "the model")
    if len(codes) != len(x):
        raise ValueError(f"{name} must have one row per signal ({len(x)}), got {len(codes)} rows")
    require_device(codes, x.device, name, "x")
    return codes.to(x.dtype)


def require_width(matrix: Tensor, width: int, name: str, what: str, owner: str) -> None:
    if matrix.shape[-1] != width:
        raise ValueError(f"{name} has {matrix.shape[-1]} {what}, but {owner} has {width}")


def require_device(tensor: Tensor, device: torch.device, name: str, owner: str) -> None:
    if tensor.device != device:
        raise ValueError(
            f"{name} is on {tensor.device}, but {owner} is on {device}; move one of them with .to()"
        )


def as_weight(value: ArrayLike, name: str, *, positive: bool = False) -> Tensor:
    """Return a non-negative weight (a scalar or a vector), in float64 whatever the data's dtype."""
    if isinstance(value, str):
        raise TypeError(f"{name} must be a number or a vector of numbers, got {value!r}")
    tensor = as_tensor(value, name)
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TypeError(f"{name} must be a real number or a vector of them, got {tensor.dtype}")
    tensor = tensor.to(torch.float64)
    if tensor.ndim > 1:
        raise ValueError(f"{name} must be a number or a vector, got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        raise ValueError(f"{name} is empty")
    values = tensor.detach()
    bad = ~torch.isfinite(values) | ((values <= 0) if positive else (values < 0))
    if bool(bad.any()):
        first = values.reshape(-1)[bad.reshape(-1)][0].item()
        raise ValueError(
            f"{name} must be {'positive' if positive else 'non-negative'} and finite, got {first:g}"
        )
    return tensor


def as_number(value: float, name: str) -> float:
    """Return a finite non-negative number."""
    weight = as_weight(value, name)
    if weight.ndim != 0:
        raise ValueError(f"{name} must be one number, got shape {tuple(weight.shape)}")
    return float(weight)


def as_count(value: int, name: str) -> int:
    """Return an integer of at least 1."""
    if not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)


def is_finite(tensor: Tensor) -> bool:
    """Return whether all entries are finite: at once where their sum is, which is seldom not.

    NumPy adds up what is not large, since threads of torch spin for milliseconds afterwards, on the
    cores that a solver needs.
    """
    tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.numel() < MANY and is_eager():
        with np.errstate(over="ignore", invalid="ignore"):
            finite = bool(np.isfinite(tensor.numpy().sum()))
    else:
        finite = bool(tensor.sum().isfinite())
    return finite or bool(tensor.isfinite().all())


def is_meta(tensor: Tensor) -> bool:
    """Return whether a tensor has no data (shape inference), so that its values cannot be read."""
    return tensor.device.type == "meta"


def is_eager() -> bool:
    """Return whether values may be read and overwritten: no tracing, compiling or vmap."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
    )


def as_tensor(values: Any, name: str, *, copy: bool = True) -> Tensor:
    """Return a dense tensor: a tensor itself, a copy of anything else, unless `copy` is false.

    A NumPy array keeps its dtype, but not its byte order; Python floats become float64.
    """
    if isinstance(values, Tensor):
        if values.layout is not torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor, got a sparse one; convert it with "
                f"{name}.to_dense()"
            )
        return values
    try:
        array = np.array(values) if copy else np.ascontiguousarray(values)
        if array.dtype.kind != "f" or array.dtype.itemsize <= 8:
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a tensor or an array of numbers, got {type(values).__name__}"
        ) from error
    raise TypeError(
        f"{name} must be float32 or float64, got {array.dtype}; convert it, for example with "
        f"{name}.astype(numpy.float64)"
    )
