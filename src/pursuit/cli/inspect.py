"""`pursuit inspect`: what a saved model, encoder, bank or checkpoint is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["describe", "inspect"]

#: lists longer than this are counted, not shown
LONGEST = 8


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="What fit, or save of the library, has written.")
    ],
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PICTURE", help="Draw the atoms to this file: .png, .svg or .pdf."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a file holds: model, sizes, layers, cost, training, provenance.

    Atoms whose length is a square are drawn as pictures.

    Example: pursuit inspect model.safetensors --plot atoms.png
    """
    from ..files import read

    arrays, info = read(path)
    said = {**describe(path, arrays, info), "bytes": path.stat().st_size}
    if plot is not None:
        said["plot"] = str(plot)
        _draw(path, plot, arrays)
    if as_json:
        import json

        typer.echo(json.dumps(said))
        return
    lines = list(_lines(said))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        typer.echo(f"{name:{width}}  {value}".rstrip())


def describe(path: Path, arrays: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in a file that was read, as plain data."""
    common = {"path": str(path), "kind": info.get("kind"), "format": info.get("version")}
    match info.get("kind"):
        case "model":
            from ..persistence import load

            own = {"model": info["model"], **_sizes(load(path))}
        case "encoder":
            from ..persistence import load

            own = _encoder(info, load(path))
        case "bank":
            from ..persistence import load

            bank = load(path)
            own = {
                "shared": info["shared"],
                "encoders": [
                    _encoder(each, encoder)
                    for each, encoder in zip(info["encoders"], bank, strict=True)
                ],
            }
        case "checkpoint":
            own = {"settings": info["settings"], "steps": info["history"]["steps"]}
        case _:
            own = {}
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return {**common, **own, "provenance": info.get("provenance"), "shapes": shapes}


def _encoder(info: Mapping[str, Any], encoder: Any) -> dict[str, Any]:
    return {
        "encoder": {"type": info["type"], "arguments": info["arguments"]},
        "model": info["model"],
        **_sizes(encoder.model),
        "layers": encoder.layers,
        "parameters": encoder.parameter_count,
        "multiplications": encoder.multiplications,
        "regime": info["regime"],
    }


def _sizes(model: Any) -> dict[str, Any]:
    return {
        "features": model.features,
        "atoms": sum(len(dictionary) for dictionary in model.dictionaries.values()),
        "size": model.code_size,
        "dtype": str(model.dtype).removeprefix("torch."),
    }


# ---- for readers ----------------------------------------------------------------------------


def _lines(said: Mapping[str, Any], indent: str = "") -> Iterator[tuple[str, str]]:
    for name, value in said.items():
        match name, value:
            case ("shapes", _) | (_, None):
                continue
            case "encoders", list():
                for number, own in enumerate(value):
                    yield f"encoder {number}", ""
                    yield from _lines(own, "  ")
            case (("encoder" | "model"), {"type": str(kind), "arguments": dict(arguments)}):
                given = (f"{key}={_short(own)}" for key, own in arguments.items())
                yield f"{indent}{name}", f"{kind}({', '.join(given)})"
            case _, dict():
                given = (f"{key}={_short(own)}" for key, own in value.items())
                yield f"{indent}{name}", ", ".join(given)
            case "multiplications", _:
                yield f"{indent}{name}", f"{value} a signal"
            case _:
                yield f"{indent}{name}", _short(value)


def _short(value: Any) -> str:
    if isinstance(value, list) and (
        len(value) > LONGEST or any(isinstance(own, list) for own in value)
    ):
        return f"[{len(value)} entries]"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict) and "@penalty" in value:
        given = (f"{key}={_short(own)}" for key, own in value["arguments"].items())
        return f"{value['@penalty']}({', '.join(given)})"
    return str(value)


# ---- atoms ----------------------------------------------------------------------------------


def _draw(path: Path, plot: Path, arrays: Mapping[str, Any]) -> None:
    import numpy as np

    from ..plots import atoms
    from .data import check_output

    check_output(plot, (path,), suffixes=(".png", ".svg", ".pdf"))
    names = ("dictionary", "low_rank", "sparse")
    found = [array for name, array in arrays.items() if name.split(".")[-1] in names]
    if not found:
        raise ValueError(f"{path} has no atoms that could be drawn")
    atoms(np.concatenate(found), title=path.name, path=plot)
