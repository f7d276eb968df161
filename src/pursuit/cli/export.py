"""`pursuit export`: a saved encoder as an ONNX file, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .options import AsJson

__all__ = ["export"]


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
    if model.exists() and output.exists() and model.samefile(output):
        raise ValueError(f"{output} is the encoder itself; give the ONNX file another name")
    from ..runtime.onnx import export_onnx
    from .output import show

    export_onnx(model, output, opset)
    written = _describe(output)
    text = (
        "{path}: {features} features to codes of size {size} by {layers} layers; "
        "{nodes} nodes, opset {opset}, {bytes} bytes"
    )
    show(written, text.format(**written), as_json)


def _describe(path: Path) -> dict[str, Any]:
    """Shapes, layers, nodes and bytes of an exported ONNX file."""
    import json

    import onnx

    model = onnx.load(path)
    (text,) = (entry.value for entry in model.metadata_props if entry.key == "pursuit")
    encoder = json.loads(text)
    return {
        "path": str(path),
        "features": encoder["features"],
        "size": encoder["size"],
        "layers": encoder["arguments"]["layers"],
        "nodes": len(model.graph.node),
        "opset": model.opset_import[0].version,
        "bytes": path.stat().st_size,
    }
