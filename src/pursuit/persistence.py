"""Files: one safetensors file for a model, an encoder, a bank or a checkpoint. No pickle.

The tensors are the state; what they mean stands beside them as JSON (format version, the kinds of
model, penalty and encoder, their arguments, the regime, where the data came from, and what
running without torch needs to know). `files` writes and reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import files, models, penalties
from .encoders.bank import EncoderBank
from .encoders.block_coordinate import BlockCoordinateEncoder
from .encoders.coordinate import CoordinateEncoder
from .encoders.encoder import Encoder
from .encoders.proximal import ProximalEncoder
from .files import below, one_line
from .models import SparseModel
from .penalties import Penalty

__all__ = ["below", "build", "describe", "description", "load", "read", "save", "write"]

#: deeper than this no description nests, and no encoder is
DEEPEST, MOST_LAYERS = 20, 100_000

ENCODERS: dict[str, type[Encoder]] = {
    kind.__name__: kind for kind in (ProximalEncoder, CoordinateEncoder, BlockCoordinateEncoder)
}


def save(
    path: str | os.PathLike[str],
    obj: SparseModel | Encoder | EncoderBank,
    provenance: str | None = None,
) -> None:
    """Write a model, an encoder or a bank of encoders to one file.

    Parameters
    ----------
    path
        Usually ``*.safetensors``. A file that is there is replaced once the new one is complete.
    obj
        What is saved.
    provenance
        What it was trained on, in your words; it stands in the file, and `describe` shows it.
    """
    what, tensors = description(obj)
    write(path, tensors, {**what, "provenance": provenance})


def description(obj: Any, named: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file of a model, an encoder or a bank says, and the tensors it holds.

    Without `named` the model of an encoder is left out; it may then be of any class.
    """
    if isinstance(obj, EncoderBank):
        encoders = [_describe_encoder(encoder, named) for encoder in obj]
        what = {"kind": "bank", "shared": obj.shared, "encoders": encoders}
        return what, dict(obj.state_dict())
    if isinstance(obj, Encoder):
        return {"kind": "encoder", **_describe_encoder(obj, named)}, dict(obj.state_dict())
    if isinstance(obj, SparseModel):
        return {"kind": "model", "model": _describe_model(obj)}, dict(obj.dictionaries)
    raise TypeError(f"a model, an encoder or an EncoderBank is needed, got {type(obj).__name__}")


def load(path: str | os.PathLike[str]) -> Any:
    """Read what `save` has written: a model, an encoder or a bank, with identical codes.

    No code is run from the file. A file that is damaged or no such file is a ValueError that
    says so.
    """
    return build(files.open_saved(path))


def build(saved: files.Saved) -> Any:
    """The model, encoder or bank of a file that `files.open_saved` has opened; see `load`."""
    tensors, info = _tensors(saved), saved.info
    try:
        match info.get("kind"):
            case "model":
                return _build_model(info["model"], tensors)
            case "encoder":
                return _load_state(_build_encoder(info, tensors, ""), tensors)
            case "bank":
                encoders = [
                    _build_encoder(own, tensors, f"encoders.{number}.")
                    for number, own in enumerate(info["encoders"])
                ]
                return _load_state(EncoderBank(encoders, shared=info["shared"]), tensors)
            case "checkpoint":
                raise ValueError("it is the checkpoint of a run: give it to fit(checkpoint=...)")
            case other:
                raise ValueError(f"it holds {other!r}, which this version does not know")
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{saved.path} cannot be loaded: {one_line(error)}") from error


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says about itself: kind, model, arguments, regime, provenance, shapes."""
    return files.open_saved(path).describe()


# ---- tensors --------------------------------------------------------------------------------


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], info: Mapping[str, Any]
) -> None:
    """Tensors and their description to one file, whole or not at all."""
    files.write(path, {name: t.detach().cpu().numpy() for name, t in tensors.items()}, info)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and their description, as they were written, or a ValueError."""
    saved = files.open_saved(path)
    return _tensors(saved), saved.info


def _tensors(saved: files.Saved) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in saved.arrays.items()}


# ---- descriptions ---------------------------------------------------------------------------


def _describe_encoder(encoder: Encoder, named: bool = True) -> dict[str, Any]:
    if type(encoder).__name__ not in ENCODERS:
        raise TypeError(f"{type(encoder).__name__} is not one of the encoders that can be saved")
    return {
        "type": type(encoder).__name__,
        "arguments": encoder.config,
        "model": _describe_model(encoder.model) if named else None,
        "regime": encoder.regime,
        "runtime": encoder.runtime,
    }


def _describe_model(model: SparseModel) -> dict[str, Any]:
    if getattr(models, type(model).__name__, None) is not type(model):
        raise TypeError(
            f"{type(model).__name__} is not one of pursuit's models; save the tensors yourself"
        )
    plain = {key: value for key, value in model.config.items() if key not in model.dictionaries}
    return {"type": type(model).__name__, "arguments": _plain(plain)}


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    match value:
        case Penalty():
            if getattr(penalties, type(value).__name__, None) is not type(value):
                raise TypeError(
                    f"{type(value).__name__} is not one of pursuit's penalties, so a file could "
                    "not say what it is; save the tensors yourself"
                )
            return {"@penalty": type(value).__name__, "arguments": _plain(value.config)}
        case Mapping():
            return {key: _plain(own) for key, own in value.items()}
        case list() | tuple():
            return [_plain(own) for own in value]
        case None | bool() | int() | float() | str():
            return value
        case _ if hasattr(value, "tolist"):
            return value.tolist()
        case _:
            raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _build(value: Any, depth: int = 0) -> Any:
    """The inverse of `_plain`: penalties are made again, all else is plain."""
    if depth > DEEPEST:
        raise ValueError("its description nests too deeply")
    if isinstance(value, list):
        return [_build(own, depth + 1) for own in value]
    if not isinstance(value, dict):
        return value
    if "@penalty" not in value:
        return {key: _build(own, depth + 1) for key, own in value.items()}
    kind = _known(penalties, value["@penalty"], Penalty)
    arguments = _build(value["arguments"], depth + 1)
    return kind(**arguments)


def _build_model(what: dict[str, Any], tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    kind = _known(models, what["type"], SparseModel)
    names = ("low_rank", "sparse") if kind is models.LowRankSparse else ("dictionary",)
    dictionaries = {name: tensors[prefix + name] for name in names}
    return kind(**dictionaries, **_build(what["arguments"]))


def _build_encoder(what: dict[str, Any], tensors: Mapping[str, Tensor], prefix: str) -> Encoder:
    if what["type"] not in ENCODERS:
        raise ValueError(f"{what['type']!r} is not an encoder that this version knows")
    if what["arguments"]["layers"] > MOST_LAYERS:
        raise ValueError(f"it claims to have {what['arguments']['layers']} layers")
    # an atom may have died in training; only a new model must not have one
    alive = {
        name: torch.where((tensor == 0).all(dim=1, keepdim=True), 1.0, tensor)
        if name in (prefix + "dictionary", prefix + "low_rank", prefix + "sparse")
        else tensor
        for name, tensor in tensors.items()
    }
    model = _build_model(what["model"], alive, prefix)
    encoder = ENCODERS[what["type"]](model, **what["arguments"])
    encoder.regime = what["regime"]
    return encoder


def _load_state(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} contains NaN or infinite values")
    module.load_state_dict(dict(tensors))
    return module


def _known(room: Any, name: Any, base: type) -> Any:
    kind = getattr(room, name, None) if isinstance(name, str) and name in room.__all__ else None
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ValueError(f"{name!r} is not one of the {base.__name__} kinds that are known here")
    return kind
