"""`pursuit align`: pictures of one thing, moved so that they show it at the same place."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .errors import UsageError
from .output import AsJson, show

#: the kinds of transformations
Kind = StrEnum("Kind", ["TRANSLATION", "SIMILARITY", "AFFINE"])

#: the margin in percent, and the weight of the outliers, by default
MARGIN, LAM = 15.0, 0.01


def align(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The pictures: PNG, JPEG, TIFF, BMP, GIF, WebP or PGM, grey or in colours. With "
            "--model it may be a single picture.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="The folder to write to; it is made if it does not exist.",
            show_default=False,
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Align each picture with this model, which --save-model has written, instead of "
            "aligning all with each other.",
            show_default=False,
        ),
    ] = None,
    save_model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the model of the aligned pictures, usually to *.safetensors.",
            show_default=False,
        ),
    ] = None,
    transformation: Annotated[
        Kind,
        typer.Option(
            help="What pictures may differ by: translation only; similarity, also rotation and "
            "scale; affine, also shear.",
        ),
    ] = Kind.SIMILARITY,
    margin: Annotated[
        float,
        typer.Option(
            metavar="PERCENT",
            min=1,
            max=45,
            help="How far pictures can move: the share of the height and of the width that is cut "
            "off on either side.",
        ),
    ] = MARGIN,
    lam: Annotated[
        float,
        typer.Option(
            min=1e-6,
            max=1,
            help="The weight of the outliers: smaller differences count as noise. 1 is the "
            "brightness of the brightest pixels.",
        ),
    ] = LAM,
    atoms: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The largest rank of the model; by default it is not limited.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Align pictures of one thing: faces, slides, frames of a shaking camera.

    Example: pursuit align photos/ -o out

    Example: pursuit align photos/ -o out --save-model face.safetensors

    Example: pursuit align new.jpg -o new --model face.safetensors

    The first writes out/contact_sheet.png, the picture to look at first, and
    for each picture of photos/, under its name:

    out/aligned: the aligned picture, in full size and in its colours

    out/low_rank: what it has in common with the others, in grey

    out/outliers: what it has not, such as a passer-by; brighter or darker
    than grey

    out/transformations.csv says by how many pixels the window is moved over
    each picture (x to the right, y down), by how many degrees it is turned
    (clockwise), its scale, and the loss of the model before and after.

    Pictures should be aligned roughly, to within the margin. Those of
    different sizes are cut around their middle, and left out if a side differs
    from the usual one by more than 25 %. Pictures with a side of more than 200
    pixels are aligned at a reduced scale, which is also that of low_rank and
    outliers.

    Files in the output folder that have the name of a result are replaced,
    all at once when the work is complete; others are kept.
    """
    if model is not None:
        given = {"transformation", "margin", "lam", "atoms", "save_model"}
        for name in sorted(given):
            origin = context.get_parameter_source(name)
            if origin is not None and origin.name == "COMMANDLINE":
                option = name.replace("_", "-")
                raise UsageError(f"--{option} does not go with --model, which settles it", context)
    from .align_run import check, run, summary
    from .progress import shown

    check(source, output, model, save_model)
    options = {
        "transformation": transformation.value,
        "margin": margin / 100,
        "lam": lam,
        "atoms": atoms,
    }
    with shown() as callback:
        written = run(source, output, model, save_model, options, callback)
    show(written, summary(written), as_json)
