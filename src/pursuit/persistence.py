"""Saving and loading: one safetensors file for a model, an encoder, a bank or a checkpoint.

The tensors are the state; a JSON description beside them names the classes of model, operator,
penalty and encoder, their arguments, the regime, and where the data came from. The file of an
encoder also holds its program, so that it runs without torch. No code is run from a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import files
from ._checks import as_float_matrix, dtype_name, is_finite
from ._registry import class_of
from ._words import one_line
from .descriptions import describe_model, named_tensors, restore_model
from .encoders import Encoder, EncoderBank
from .fields import arguments, entry, shown
from .files import below
from .models import SparseModel
from .operators import without_zero_atoms

#: the most layers of an encoder
MOST_LAYERS = 100_000
#: the buffers of encoders by which normalised coefficients become those of the model
UNITS = "units"
#: the most coefficients of the codes of an encoder
MOST_COEFFICIENTS = 2**21


def save(
    obj: SparseModel | Encoder | EncoderBank,
    path: str | os.PathLike[str],
    provenance: str | None = None,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write a model, an encoder or a bank of encoders to one file.

    Parameters
    ----------
    obj
        What is saved. Its model, penalty or operator may be of a class that you define. `load`
        needs that class, `pursuit.runtime.load` does not.
    path
        Usually ``*.safetensors``. An existing file is replaced once the new one is complete.
    provenance
        A remark on what it was trained on; `pursuit inspect` shows it.
    training
        How it was trained, as plain data with names of your choice; `pursuit fit` saves "steps",
        "gap", "seed", "data" and "date". `pursuit inspect` shows it.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> from tempfile import TemporaryDirectory
    >>> model = pu.models.Lasso(torch.eye(2), lam=1.0)
    >>> with TemporaryDirectory() as folder:
    ...     pu.save(model, f"{folder}/lasso.safetensors")
    ...     pu.load(f"{folder}/lasso.safetensors").lam
    1.0
    """
    if isinstance(obj, str | os.PathLike):
        raise TypeError("save takes the object first and then the path: save(obj, path)")
    info, arrays = contents(obj)
    notes = {"provenance": provenance, "training": None if training is None else dict(training)}
    files.write(path, arrays, {**info, **notes})


def contents(obj: SparseModel | Encoder | EncoderBank) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the description and the arrays of a file, those of programs included."""
    info, tensors = describe(obj)
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    if isinstance(obj, EncoderBank):
        for number, encoder in enumerate(obj):
            arrays |= _add_program(encoder, info["encoders"][number], f"program.{number}.")
    elif isinstance(obj, Encoder):
        arrays |= _add_program(obj, info, "program.")
    return info, arrays


def _add_program(encoder: Encoder, info: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the arrays of an encoder's program; note in the description that it is there."""
    try:
        program = encoder.program()
    except TypeError as error:  # its penalty shrinks in a way that only torch can run
        info["program"] = one_line(error)
        return {}
    info["program"] = program.info["program"]
    return {f"{prefix}{name}": array for name, array in program.arrays().items()}


def load(path: str | os.PathLike[str]) -> Any:
    """Read a model, an encoder or a bank that `save` has written.

    Returns
    -------
    SparseModel, Encoder or EncoderBank
        Its codes are bit for bit those of the object that was saved.

    Raises
    ------
    ValueError
        If the file is damaged or was not written by pursuit; the message names the file.
    """
    return build(files.open_saved(path))


def build(saved: files.Saved) -> Any:
    """Return the model, encoder or bank of an opened file; see `load`."""
    info = saved.info
    tensors = {n: t for n, t in _tensors(saved).items() if not n.startswith("program.")}
    try:
        match info.get("kind"):
            case "model":
                return restore_model(entry(info, "model", dict), tensors)
            case "encoder":
                return build_encoder(info, tensors)
            case "bank":
                encoders = [
                    _build_encoder(member, below(tensors, f"encoders.{number}."))
                    for number, member in enumerate(entry(info, "encoders", list[dict[str, Any]]))
                ]
                bank = EncoderBank(encoders, shared=entry(info, "shared", str | None))
                return _load_state(bank, tensors)
            case "checkpoint":
                raise ValueError("it is the checkpoint of a run: give it to fit(checkpoint=...)")
            case other:
                raise ValueError(f"it holds {shown(other)}, which this version does not know")
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{saved.path} cannot be loaded: {one_line(error)}") from error


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], info: Mapping[str, Any]
) -> None:
    """Write tensors and their description to one file."""
    files.write(path, {name: t.detach().cpu().numpy() for name, t in tensors.items()}, info)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and their description as they were written."""
    saved = files.open_saved(path)
    return _tensors(saved), saved.info


def _tensors(saved: files.Saved) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in saved.arrays.items()}


def describe(obj: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the description and the tensors of a model, an encoder or a bank."""
    if isinstance(obj, EncoderBank):
        encoders = [encoder.description for encoder in obj]
        info = {"kind": "bank", "shared": obj.shared, "encoders": encoders}
        return info, dict(obj.state_dict())
    if isinstance(obj, Encoder):
        if obj.model.code_size > MOST_COEFFICIENTS:
            raise ValueError(
                f"an encoder of codes of {obj.model.code_size} coefficients cannot be saved, at "
                f"most {MOST_COEFFICIENTS} are allowed; save one that is `resized` to small signals"
            )
        return {"kind": "encoder", **obj.description}, dict(obj.state_dict())
    if isinstance(obj, SparseModel):
        return {"kind": "model", "model": describe_model(obj)}, dict(obj.dictionaries)
    raise TypeError(f"a model, an encoder or an EncoderBank is needed, got {type(obj).__name__}")


def build_encoder(what: Mapping[str, Any], tensors: Mapping[str, Any]) -> Encoder:
    """Return the encoder of a description and its state, tensors or arrays by name."""
    state = {name: torch.as_tensor(values) for name, values in tensors.items()}
    encoder = _build_encoder(what, state)
    _load_state(encoder, state)
    return encoder


def _build_encoder(what: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Encoder:
    kind: Any = class_of(Encoder, entry(what, "type", str))
    given = arguments(entry(what, "arguments", dict), kind, ("model",))
    _check_layers(given, tensors)
    described = entry(what, "model", dict)
    matrices = named_tensors(described, tensors)
    for name, tensor in matrices.items():
        # an atom may have become zero in training; only a new model must not have one
        matrices[name] = without_zero_atoms(as_float_matrix(tensor, name, "features"))
    model = restore_model(described, {**tensors, **matrices})
    if model.code_size > MOST_COEFFICIENTS:
        raise ValueError(
            f"its codes must have at most {MOST_COEFFICIENTS} coefficients, got {model.code_size}"
        )
    regime = entry(what, "regime", str | None)
    minimises = entry(what, "minimises_objective", bool | None)
    encoder: Encoder = kind(model, **given)
    encoder.regime, encoder.minimises_objective = regime, minimises
    return encoder


def _check_layers(given: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Compare the number of layers with the depth of the state, before memory is allocated."""
    depth = tensors.get("depth")
    if depth is None or depth.shape != () or depth.dtype != torch.int64:
        raise ValueError("depth must be a whole number in an array without dimensions")
    layers = given.get("layers", 1)
    if not 1 <= layers <= min(int(depth), MOST_LAYERS):
        raise ValueError(f"layers must be from 1 to the depth {int(depth)}, got {layers}")


def _load_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    require_like(tensors, module.state_dict())
    module.load_state_dict(dict(tensors))
    return module


def require_like(given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless tensors have the names, shapes and dtypes expected, and are finite.

    The units of coefficients must be positive. The message names the first that differs.
    """
    for name, tensor in expected.items():
        if name not in given:
            raise ValueError(f"the array {name} is missing")
        found = given[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise ValueError(
                f"{name} must be {dtype_name(tensor.dtype)} of shape {tuple(tensor.shape)}, "
                f"got {dtype_name(found.dtype)} of shape {tuple(found.shape)}"
            )
        require_finite(found, name)
        if name.rpartition(".")[2] == UNITS and not bool((found > 0).all()):
            raise ValueError(f"{name} must be positive")
    unknown = sorted(set(given) - set(expected))
    if unknown:
        raise ValueError(f"the array {shown(unknown[0])} is not part of it")


def require_finite(tensor: Tensor, name: str) -> None:
    if tensor.is_floating_point() and not is_finite(tensor):
        raise ValueError(f"{name} contains NaN or infinite values")
