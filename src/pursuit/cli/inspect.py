"""`pursuit inspect`: the content of a saved model, encoder, bank or checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import AsJson, show

if TYPE_CHECKING:
    from ..files import Saved

#: longer lists are not printed, only their length
LONGEST = 8


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that fit or the library has saved.")
    ],
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PICTURE", help="Draw the atoms to this file: .png, .svg or .pdf."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the content of a file: model, sizes, layers, cost, training, data, date.

    The gap is the mean excess of the encoder's objective over the optimum,
    measured on held-out rows if there were enough.

    Atoms whose length is a square are drawn as pictures.

    Example: pursuit inspect model.safetensors --plot atoms.png
    """
    from ..files import open_saved

    if plot is not None:
        from .writing import check_output

        check_output(plot, (path,), suffixes=(".png", ".svg", ".pdf"))
    saved = open_saved(path)
    content = {**_describe(saved), "bytes": path.stat().st_size}
    if plot is not None:
        content["plot"] = str(plot)
        _draw(saved, plot)
    lines = list(_lines(content))
    width = max(len(name) for name, _ in lines)
    text = "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in lines)
    show(content, text, as_json)


def _describe(saved: Saved) -> dict[str, Any]:
    """The content of a file as plain data."""
    from ..fields import naming

    info, built = saved.describe(), None
    kind = info.get("kind")
    if kind in ("model", "encoder", "bank"):
        from ..persistence import build

        built = build(saved)
    common = {"path": str(saved.path), "kind": kind, "format": info.get("version")}
    with naming(saved.path, "shown"):
        special = _special(info, built)
    training = info.get("training") or {}
    notes = {"provenance": info.get("provenance"), "shapes": info["shapes"]}
    return {**common, **special, "training": training, **notes}


def _special(info: Mapping[str, Any], built: Any) -> dict[str, Any]:
    """What files of a kind have besides what all files have."""
    from ..fields import entry

    special: dict[str, Any] = {}
    match info.get("kind"):
        case "model":
            special = {"model": info["model"], **_sizes(built)}
        case "encoder":
            special = _encoder(info, built)
        case "bank":
            pairs = zip(info["encoders"], built, strict=True)
            encoders = [_encoder(each, encoder) for each, encoder in pairs]
            special = {"shared": info["shared"], "encoders": encoders}
        case "separator":
            special = {name: entry(info, name, dict) for name in ("encoder", "features")}
        case "speakers":
            names = entry(info, "names", list[str])
            special = {"names": names, "envelope": entry(info, "envelope", dict)}
            special["recipe"] = info.get("recipe")
        case "alignment":
            kinds = {"model": dict, "transformation": dict, "size": list, "factor": int}
            special = {name: entry(info, name, kind) for name, kind in kinds.items()}
            special["white"] = entry(info, "white", float)
        case "checkpoint":
            special = {"settings": entry(info, "settings", dict)}
            special["steps"] = entry(entry(info, "history", dict), "steps", int)
    return special


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


def _lines(content: Mapping[str, Any], indent: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of a content as text for readers."""
    for name, value in content.items():
        match name, value:
            case ("shapes", _) | (_, None):
                continue
            case "training", dict():
                yield from _lines(_training(value))
            case "encoders", list():
                for number, encoder in enumerate(value):
                    yield f"encoder {number}", ""
                    yield from _lines(encoder, "  ")
            case (("encoder" | "model"), {"type": str(kind), "arguments": dict(arguments)}):
                yield f"{indent}{name}", f"{kind}({_pairs(arguments)})"
            case _, dict():
                yield f"{indent}{name}", _pairs(value)
            case "multiplications", _:
                yield f"{indent}{name}", f"{value} a signal"
            case _:
                yield f"{indent}{name}", _short(value)


def _training(training: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of the training, worded for readers."""
    worded = dict(training)
    best, rows, held = (worded.pop(key, None) for key in ("best_step", "gap_rows", "held_out"))
    if "steps" in worded and best is not None:
        worded["steps"] = f"{worded['steps']}, best at {best}"
    if isinstance(worded.get("gap"), float) and rows is not None:
        where = f"{rows} {'held-out' if held else 'training'} rows"
        worded["gap"] = f"{100 * worded['gap']:.3g} % on {where}"
    match worded.get("data"):
        case {"name": name, "shape": [samples, features]}:
            worded["data"] = f"{name}, {samples} rows of {features} features"
    return worded


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> str:
    match value:
        case list() if len(value) > LONGEST or any(isinstance(entry, list) for entry in value):
            return f"[{len(value)} entries]"
        case float():
            return f"{value:.6g}"
        case {"@penalty": name, "arguments": arguments}:
            return f"{name}({_pairs(arguments)})"
    return str(value)


def _draw(saved: Saved, plot: Path) -> None:
    import numpy as np

    from ..plots import atoms

    names = ("dictionary", "low_rank", "sparse")
    dictionaries = [array for name, array in saved.arrays.items() if name.split(".")[-1] in names]
    if not dictionaries:
        raise ValueError(f"{saved.path} has no atoms to draw")
    window = saved.info.get("transformation", {}).get("size")
    atoms(np.concatenate(dictionaries), window, title=saved.path.name, path=plot)
