"""`pursuit export`: a saved encoder as an ONNX file, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .output import AsJson, show


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The file of a saved encoder.")],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="The file to write, usually *.onnx.")
    ],
    opset: Annotated[
        int, typer.Option(help="The version of ONNX's operators; older runtimes need older ones.")
    ] = 17,
    as_json: AsJson = False,
) -> None:
    """Write a saved encoder to an ONNX file.

    Its input is "x", its output "codes", both float32 with one row a signal.

    Example: pursuit export lasso.safetensors lasso.onnx
    """
    from .writing import check_output

    if model.suffix.lower() == ".onnx":
        raise ValueError(f"{model} is given as the encoder; give the encoder first, then the .onnx")
    check_output(output, (model,), suffixes=())
    from ..runtime.onnx import export_onnx

    export_onnx(model, output, opset)
    import onnx

    exported = onnx.load(output)
    (text,) = (entry.value for entry in exported.metadata_props if entry.key == "pursuit")
    encoder = json.loads(text)
    written = {
        "path": str(output),
        "features": encoder["features"],
        "size": encoder["size"],
        "layers": encoder["arguments"]["layers"],
        "nodes": len(exported.graph.node),
        "opset": exported.opset_import[0].version,
        "bytes": output.stat().st_size,
    }
    text = (
        "{path}: {features} features to codes of size {size} by {layers} layers; "
        "{nodes} nodes, opset {opset}, {bytes} bytes"
    )
    show(written, text.format(**written), as_json)
