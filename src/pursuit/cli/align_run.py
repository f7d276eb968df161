"""The run of `pursuit align`: from a folder of pictures to aligned ones and a contact sheet."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..progress import Callback, Progress
from ..vision.faces import AlignedPictures, AlignmentModel, align_pictures
from ..vision.sheets import ContactSheet, around_grey, as_bytes
from ..vision.stack import Array
from .errors import warn
from .writing import check_folder, check_output, whole_folder

PARTS = ("aligned", "low_rank", "outliers")
SHEET, TABLE = "contact_sheet.png", "transformations.csv"
#: the percentage of the outliers that are between black and white, which is at least this
RESOLVED, LEAST = 99.8, 0.1


def check(source: Path, folder: Path, model: Path | None, save_model: Path | None) -> None:
    """Raise an error if the files cannot be written, or would replace those that are read."""
    if not source.exists():
        raise FileNotFoundError(f"there is no folder or picture {source}")
    if source.is_file() and model is None:
        raise ValueError(
            f"there is nothing to align {source} with; give a folder of pictures, or a model by "
            "--model"
        )
    read = source if source.is_dir() else source.parent
    for written in (folder, *(folder / part for part in PARTS)):
        if written.resolve() == read.resolve():
            raise ValueError(
                f"the pictures are in {read}, to which results would be written; give another -o"
            )
        check_folder(written)
    for name in (SHEET, TABLE):
        if folder.is_dir():
            check_output(folder / name, (), suffixes=())
    if save_model is not None:
        if save_model.parent.is_dir() or not _is_inside(save_model, folder):
            check_output(save_model, (), suffixes=())
        if save_model.suffix.lower() in (".png", ".csv"):
            raise ValueError(f"{save_model} will be a model; call it *.safetensors")


def run(
    source: Path,
    folder: Path,
    model: Path | None,
    save_model: Path | None,
    options: Mapping[str, Any],
    callback: Callback,
) -> dict[str, Any]:
    """Align pictures and write everything; return a description of it."""
    begin = time.perf_counter()
    known = None if model is None else AlignmentModel.load(model)
    found = align_pictures(source, known, callback=callback, **options)
    losses = found.table()[:, -2:].mean(axis=0).tolist()
    described: dict[str, Any] = {
        "source": str(source),
        "output": str(folder),
        "pictures": len(found),
        "transformation": found.model.kind,
        "window": list(found.window),
        "size": list(found.stack.size),
        "factor": found.stack.factor,
        "atoms": found.model.model.dictionary.shape[0],
        "loss_before": losses[0],
        "loss_after": losses[1],
        "difference_before": found.differences[0],
        "difference_after": found.differences[1],
        "at_border": int(found.at_border.sum()),
        "outlier_scale": _scale(found.outliers),
        "contact_sheet": str(folder / SHEET),
        "transformations": str(folder / TABLE),
        "model": None if model is None else str(model),
        "saved_model": None if save_model is None else str(save_model),
    }
    if described["at_border"]:
        warn(
            f"in {described['at_border']} of {len(found)} pictures the window has reached the "
            "border of the picture, so they may not be aligned; "
            + ("cut them around what they show" if known else "take a larger --margin")
        )
    with whole_folder(folder) as place:
        _write(found, place, described, callback)
        if save_model is not None:
            inside = _is_inside(save_model, folder)
            found.model.save(place / save_model.name if inside else save_model)
    return {**described, "seconds": round(time.perf_counter() - begin, 3)}


def summary(written: Mapping[str, Any]) -> str:
    """The description for readers."""
    height, width = written["window"]
    count = "1 picture" if written["pictures"] == 1 else f"{written['pictures']} pictures"
    reduced = "" if written["factor"] == 1 else f" at 1/{written['factor']} of the size"
    lines = [
        f"{written['contact_sheet']}: {count} aligned by {written['transformation']}{reduced}",
        f"what is aligned: the {height} x {width} pixels in the middle; "
        + "model of rank {atoms}; loss {loss_before:.4g} before, {loss_after:.4g} after; "
        "{seconds:.1f} s".format(**written),
    ]
    if written["pictures"] > 1:
        lines.append(_differences(written))
    if written["saved_model"] is not None:
        lines.append(f"the model: {written['saved_model']}")
    return "\n".join(lines)


def _write(
    found: AlignedPictures, folder: Path, described: Mapping[str, Any], callback: Callback
) -> None:
    from PIL import Image

    paths, sheet = found.stack.paths, ContactSheet(len(found))
    for part in PARTS:
        (folder / part).mkdir()
    begin, white = time.perf_counter(), found.stack.white
    for number, name in enumerate(names(paths)):
        before, aligned = found.views(number)
        outliers = around_grey(found.outliers[number], described["outlier_scale"])
        low_rank = found.low_rank[number]
        for part, values in zip(PARTS, (aligned, low_rank, outliers), strict=True):
            deep = part == "aligned" and found.stack.deep[number]
            Image.fromarray(as_bytes(values, deep)).save(folder / part / f"{name}.png")
        sheet.add(paths[number].name, before / white, aligned / white, low_rank, outliers)
        seconds = time.perf_counter() - begin
        callback(Progress("writing pictures", number + 1, len(found), seconds=seconds))
    name = Path(described["source"]).resolve().name
    title = name if len(found) == 1 else f"{len(found)} pictures of {name}"
    sheet.draw(title, _facts(found, described)).save(folder / SHEET)
    (folder / TABLE).write_bytes(_csv(found))


def _is_inside(path: Path, folder: Path) -> bool:
    return path.parent.resolve() == folder.resolve()


def names(paths: Sequence[Path]) -> list[str]:
    """The names of results: without a suffix if they differ then, otherwise with it."""
    stems = [path.stem for path in paths]
    if len({stem.casefold() for stem in stems}) == len(stems):
        return stems
    return [path.name for path in paths]


def _scale(outliers: Array) -> float:
    """The outlier that is drawn white, the same for all pictures."""
    return max(float(np.percentile(np.abs(outliers), RESOLVED)), LEAST)


def _facts(found: AlignedPictures, described: Mapping[str, Any]) -> list[str]:
    """What the sheet says beside the means."""
    height, width = found.window
    table = dict(zip(found.columns, found.table().T, strict=True))
    moved = np.hypot(table["x"], table["y"])
    facts = [
        f"aligned by {found.model.kind}",
        f"window of {height} x {width} pixels",
        f"moved by {moved.mean():.1f} pixels"
        + (f" on average, {moved.max():.1f} at most" if len(found) > 1 else ""),
    ]
    if "angle" in table:
        upto = "up to " if len(found) > 1 else ""
        facts.append(f"turned by {upto}{np.abs(table['angle']).max():.1f} degrees")
    facts.append(f"model of rank {described['atoms']}")
    facts.append(f"loss {described['loss_before']:.3g} before, {described['loss_after']:.3g} after")
    return [*facts, _differences(described)] if len(found) > 1 else facts


def _differences(described: Mapping[str, Any]) -> str:
    """How much the pictures differ, which says more to readers than a loss."""
    before, after = described["difference_before"], described["difference_after"]
    return f"difference from the median picture {before:.1%} before, {after:.1%} after"


def _csv(found: AlignedPictures) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", *found.columns])
    for path, row in zip(found.stack.paths, found.table().tolist(), strict=True):
        writer.writerow([path.name, *(f"{value:.6g}" for value in row)])
    return text.getvalue().encode()
