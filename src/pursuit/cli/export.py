"""`pursuit export`: a saved encoder as an ONNX file, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["export"]


def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The file that an encoder was saved to.")
    ],
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="The file to write, usually *.onnx.")
    ],
    opset: Annotated[
        int, typer.Option(help="The version of ONNX's operators; older runtimes need older ones.")
    ] = 17,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one JSON object.")
    ] = False,
) -> None:
    """Write a saved encoder to an ONNX file.

    Its input is "x", its output "codes", both float32 with one row a signal.

    Example: pursuit export lasso.safetensors lasso.onnx
    """
    if model.exists() and output.exists() and model.samefile(output):
        raise ValueError(f"{output} is the encoder itself; give the ONNX file another name")
    from ..runtime.onnx import export_onnx

    export_onnx(model, output, opset)
    written = describe(output)
    if as_json:
        import json

        typer.echo(json.dumps(written))
        return
    typer.echo(
        "{path}: {features} features to codes of size {size} by {layers} layers; "
        "{nodes} nodes, opset {opset}, {bytes} bytes".format(**written)
    )


def describe(path: Path) -> dict[str, Any]:
    """What stands in an ONNX file that was exported: shapes, layers, nodes and bytes."""
    import json

    import onnx

    model = onnx.load(path)
    (said,) = (entry.value for entry in model.metadata_props if entry.key == "pursuit")
    encoder = json.loads(said)
    return {
        "path": str(path),
        "features": encoder["features"],
        "size": encoder["size"],
        "layers": encoder["arguments"]["layers"],
        "nodes": len(model.graph.node),
        "opset": model.opset_import[0].version,
        "bytes": path.stat().st_size,
    }
