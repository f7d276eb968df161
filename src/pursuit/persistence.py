"""Files: one safetensors file for a model, an encoder, a bank or a checkpoint. No pickle.

The tensors are the state; what they mean stands beside them as JSON (format version, the kinds of
model, penalty and encoder, their arguments, the regime, where the data came from). A checksum
over both tells a damaged file from a whole one. Files are written whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor, nn

from . import models, penalties
from .encoders.bank import EncoderBank
from .encoders.block_coordinate import BlockCoordinateEncoder
from .encoders.coordinate import CoordinateEncoder
from .encoders.encoder import Encoder
from .encoders.proximal import ProximalEncoder
from .models import SparseModel
from .penalties import Penalty

__all__ = ["below", "describe", "load", "read", "save", "write"]

#: raised by one when old programs could no longer read new files
VERSION = 1
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
    if isinstance(obj, EncoderBank):
        what: dict[str, Any] = {
            "kind": "bank",
            "shared": obj.shared,
            "encoders": [_describe_encoder(encoder) for encoder in obj],
        }
        tensors = dict(obj.state_dict())
    elif isinstance(obj, Encoder):
        what = {"kind": "encoder", **_describe_encoder(obj)}
        tensors = dict(obj.state_dict())
    elif isinstance(obj, SparseModel):
        what = {"kind": "model", "model": _describe_model(obj)}
        tensors = obj.dictionaries
    else:
        raise TypeError(
            f"a model, an encoder or an EncoderBank can be saved, got {type(obj).__name__}"
        )
    write(path, tensors, {**what, "provenance": provenance})


def load(path: str | os.PathLike[str]) -> Any:
    """Read what `save` has written: a model, an encoder or a bank, with identical codes.

    No code is run from the file. A file that is damaged or no such file is a ValueError that
    says so.
    """
    tensors, info = read(path)
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
        raise ValueError(f"{path} cannot be loaded: {_one_line(error)}") from error


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What a file says about itself: kind, model, arguments, regime, provenance, shapes."""
    tensors, info = read(path)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return {**info, "shapes": shapes}


# ---- whole files ----------------------------------------------------------------------------


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], info: Mapping[str, Any]
) -> None:
    """Tensors and their description to one file, whole or not at all."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps({"format": "pursuit", "version": VERSION, **info})
    content = serialise(whole, {"pursuit": text, "checksum": _checksum(text, whole)})
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and their description, as they were written, or a ValueError."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            notes = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {_one_line(error)}") from error
    text = notes.get("pursuit")
    if text is None:
        raise ValueError(f"{path} is a safetensors file, but not one of pursuit")
    if notes.get("checksum") != _checksum(text, tensors):
        raise ValueError(f"{path} is damaged: its content does not match its checksum")
    info = json.loads(text)
    if not isinstance(info, dict) or info.get("format") != "pursuit":
        raise ValueError(f"{path} is a safetensors file, but not one of pursuit")
    if info.get("version") != VERSION:
        raise ValueError(
            f"{path} has format version {info.get('version')}, this is version {VERSION}; "
            "update pursuit to read it"
        )
    return tensors, info


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---- descriptions ---------------------------------------------------------------------------


def _describe_encoder(encoder: Encoder) -> dict[str, Any]:
    if type(encoder).__name__ not in ENCODERS:
        raise TypeError(f"{type(encoder).__name__} is not one of the encoders that can be saved")
    return {
        "type": type(encoder).__name__,
        "arguments": encoder.config,
        "model": _describe_model(encoder.model),
        "regime": encoder.regime,
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


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
