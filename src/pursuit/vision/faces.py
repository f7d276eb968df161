"""Aligned pictures of one thing: faces, slides of a microscope, frames of a shaking camera.

`pursuit.alignment` finds the transformations; here are the files. Large pictures are aligned at a
reduced scale, and the transformations that are found there are applied in full size.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import files
from .._checks import require_choice
from .._words import one_line
from ..alignment import (
    Affine,
    Alignment,
    Similarity,
    Transformation,
    Translation,
    align,
    align_together,
)
from ..descriptions import describe_model, restore_model
from ..fields import arguments, entry, shown
from ..models import RobustPCA
from ..progress import Callback
from .stack import Array, Source, Stack, read_stack

#: the kinds of transformations by name
TRANSFORMATIONS: dict[str, type[Transformation]] = {
    "translation": Translation,
    "similarity": Similarity,
    "affine": Affine,
}
#: the columns of a description that are lengths
LENGTHS = ("x", "y")
KIND = "alignment"


@dataclass(frozen=True, eq=False, repr=False)
class AlignmentModel:
    """A robust PCA model of aligned pictures, and how new pictures are aligned with it.

    Attributes
    ----------
    model
        The model of what the window shows.
    transformation
        The kind of transformation, with the window, in reduced pixels.
    size
        Height and width of the pictures, in original pixels.
    factor
        The side of the squares of original pixels that a reduced pixel is the mean of.
    white
        The grey value that is 1 for the model.
    """

    model: RobustPCA
    transformation: Transformation
    size: tuple[int, int]
    factor: int
    white: float

    def __repr__(self) -> str:
        return (
            f"AlignmentModel({self.transformation!r}, atoms={len(self.model.dictionary)}, "
            f"size={self.size}, factor={self.factor})"
        )

    @property
    def kind(self) -> str:
        """The name of the kind of transformation."""
        return type(self.transformation).__name__.lower()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, usually ``*.safetensors``."""
        arrays = {name: d.detach().cpu().numpy() for name, d in self.model.dictionaries.items()}
        window = {"size": list(self.transformation.size), "limit": self.transformation.limit}
        info = {
            "kind": KIND,
            "model": describe_model(self.model),
            "transformation": {"kind": self.kind, **window},
            "size": list(self.size),
            "factor": self.factor,
            "white": self.white,
        }
        files.write(path, arrays, info)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AlignmentModel:
        """Read a model that `save` has written."""
        saved = files.open_saved(path)
        info = saved.info
        if info.get("kind") != KIND:
            raise ValueError(
                f"{path} holds {shown(info.get('kind'))}, not a model of aligned pictures; make "
                "one with pursuit align --save-model"
            )
        try:
            tensors = {name: torch.from_numpy(array) for name, array in saved.arrays.items()}
            model = restore_model(info.get("model"), tensors)
            window = entry(info, "transformation", dict)
            kind = TRANSFORMATIONS.get(entry(window, "kind", str))
            height, width = entry(info, "size", tuple[int, int])
            factor, white = (
                entry(info, "factor", int, least=1),
                entry(info, "white", float, least=0),
            )
            if not isinstance(model, RobustPCA) or kind is None or white == 0:
                raise ValueError("it does not describe aligned pictures")
            given = {name: window[name] for name in ("size", "limit") if name in window}
            transformation = kind(**arguments(given, kind))
            if model.features != math.prod(transformation.size):
                raise ValueError(f"its atoms must be windows of {transformation.size}")
            transformation.room((height // factor, width // factor))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} cannot be loaded: {one_line(error)}") from error
        return cls(model, transformation, (height, width), factor, white)


@dataclass(frozen=True, eq=False, repr=False)
class AlignedPictures:
    """Pictures, a model of them, and their alignment with it.

    Attributes
    ----------
    stack
        The pictures.
    model
        The model that was given, or the one that was learned.
    alignment
        The alignment of the reduced pictures.
    """

    stack: Stack
    model: AlignmentModel
    alignment: Alignment

    def __len__(self) -> int:
        return len(self.stack)

    def __repr__(self) -> str:
        return f"AlignedPictures({self.stack!r}, {self.alignment!r})"

    @cached_property
    def low_rank(self) -> Array:
        """The low-rank parts of the reduced pictures, shape (n, h, w); black is 0, white is 1."""
        return self._part("low_rank")

    @cached_property
    def outliers(self) -> Array:
        """The outliers of the reduced pictures, shape (n, h, w)."""
        return self._part("outliers")

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the window, in original pixels."""
        height, width = self.alignment.transformation.size
        return self.stack.factor * height, self.stack.factor * width

    @cached_property
    def at_border(self) -> Array:
        """Whether a window has moved as far as it can, so that it may not be where it should be."""
        found = self.alignment
        further = (1 + 1e-3) * found.parameters
        room = self.stack.grey.shape[1:]
        return (found.transformation.bounded(further, room) != further).any(dim=1).numpy()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of `table`."""
        return (*self.alignment.transformation.columns, "loss_before", "loss_after")

    @cached_property
    def differences(self) -> tuple[float, float]:
        """The mean absolute difference of the pictures from their median, before and after.

        White is 1. It does not depend on the model.
        """
        found = self.alignment
        start = found.transformation.identity(len(self))
        before = found.transformation(torch.from_numpy(self.stack.grey), start)
        first, second = (
            float((shown - shown.median(dim=0).values).abs().mean())
            for shown in (before, found.aligned)
        )
        return first, second

    def table(self) -> Array:
        """Return the transformation and the losses of each picture, shape (n, columns).

        Lengths are in original pixels, angles in degrees.
        """
        found = self.alignment
        described = found.transformation.describe(found.parameters.double())
        lengths = [name in LENGTHS for name in found.transformation.columns]
        described[:, lengths] *= self.stack.factor
        return torch.column_stack([described, found.loss_before, found.loss]).numpy()

    def views(self, number: int) -> tuple[Array, Array]:
        """Return what the window shows of a picture in full size, before and after alignment.

        Each has shape (height, width), or (height, width, 3) if the picture has colours.
        """
        picture = self.stack.picture(number)
        found = self.alignment
        chosen = found.parameters[[number]]
        steps = _steps(found.transformation, torch.cat([torch.zeros_like(chosen), chosen]))
        steps[:, :, 2] *= self.stack.factor
        before, after = (_shown(picture, step, self.window) for step in steps)
        return before, after

    def _part(self, name: str) -> Array:
        parts = self.model.model.split(self.alignment.codes)
        rows: Tensor = getattr(parts, name)
        return rows.reshape(-1, *self.alignment.transformation.size).numpy()


def align_pictures(
    source: Source,
    model: AlignmentModel | None = None,
    *,
    transformation: str = "similarity",
    margin: float = 0.15,
    lam: float = 0.01,
    atoms: int | None = None,
    callback: Callback | None = None,
) -> AlignedPictures:
    """Align pictures of one thing with each other, or with a model of it.

    Without a model, one is learned from the pictures (`pursuit.alignment.align_together`). With a
    model, each picture is aligned on its own, by exact codes (`pursuit.alignment.align`).

    Parameters
    ----------
    source
        A folder, a picture, or a list of pictures; see `read_stack` for what is left out.
    model
        The model. It determines all further options.
    transformation
        "translation", "similarity" (also rotation and scale) or "affine" (also shear).
    margin
        The share of the height and of the width that the window leaves free on either side, so
        that it can move; above 0 and below 0.5.
    lam
        The weight of the outliers: differences below it count as noise. Black is 0, and the
        brightest pixels are 1.
    atoms
        The largest rank of the model; by default it is not limited.
    callback
        Called with the progress of reading and of aligning.

    Returns
    -------
    AlignedPictures
        The pictures, the model and the alignment.

    Examples
    --------
    >>> import numpy as np
    >>> from PIL import Image
    >>> from tempfile import TemporaryDirectory
    >>> from pursuit.vision import align_pictures
    >>> rows, columns = np.mgrid[:40, :40] - 20
    >>> with TemporaryDirectory() as folder:
    ...     for number, x in enumerate([-1, 0, 1]):
    ...         blob = 255 * np.exp(-((columns - x) ** 2 + rows**2) / 40)
    ...         Image.fromarray(blob.astype(np.uint8)).save(f"{folder}/{number}.png")
    ...     found = align_pictures(folder, transformation="translation")
    >>> (found.table()[:, 0].round(1) + 0.0).tolist()
    [-1.0, 0.0, 1.0]
    """
    require_choice(transformation, tuple(TRANSFORMATIONS), "transformation")
    if not 0 < margin < 0.5:
        raise ValueError(f"margin must be above 0 and below 0.5, got {margin:g}")
    stack = read_stack(source, model, callback)
    if model is not None:
        found = align(model.model, stack.grey, model.transformation, callback=callback)
        return AlignedPictures(stack, model, found)
    if len(stack) < 2:
        raise ValueError(
            f"there is nothing to align {stack.paths[0]} with; give several pictures, or a model "
            "(--model)"
        )
    window = TRANSFORMATIONS[transformation](_window(stack.grey.shape[1:], margin))
    learned, found = align_together(stack.grey, window, lam=lam, atoms=atoms, callback=callback)
    kept = AlignmentModel(learned, window, stack.size, stack.factor, stack.white)
    return AlignedPictures(stack, kept, found)


def _window(size: tuple[int, ...], margin: float) -> tuple[int, int]:
    """The window that leaves equal margins of whole pixels."""
    height, width = (side - 2 * max(1, round(margin * side)) for side in size)
    if min(height, width) < 2:
        raise ValueError(f"a margin of {margin:g} leaves no window; choose a smaller one")
    return height, width


def _steps(transformation: Transformation, parameters: Tensor) -> Tensor:
    """Where pixels are shown from, as affine maps of (right, down, 1), shape (n, 2, 3), float64.

    Positions are relative to the middle of the window and of the picture.
    """
    fields = transformation.fields.reshape(-1, 2, *transformation.size)
    first = fields[:, :, 0, 0]
    parts = [fields[:, :, 0, 1] - first, fields[:, :, 1, 0] - first, fields.mean(dim=(2, 3))]
    moved = torch.einsum("nk,kij->nij", parameters.double(), torch.stack(parts, dim=-1))
    moved = moved.flip(1)  # fields are (down, right)
    moved[:, :, :2] += torch.eye(2, dtype=moved.dtype)
    return moved


def _shown(picture: Array, step: Tensor, window: tuple[int, int]) -> Array:
    """What a window shows of a picture under an affine map, between pixels by interpolation."""
    values = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(picture).transpose(2, 0, 1)))
    # positions from -1 to 1 over the outermost pixels
    inner, outer = (
        torch.tensor([width - 1, height - 1], dtype=torch.float64) / 2
        for height, width in (window, picture.shape[:2])
    )
    theta = step * torch.cat([inner, torch.ones(1)]) / outer[:, None]
    grid = F.affine_grid(theta[None].float(), [1, len(values), *window], align_corners=True)
    shown = F.grid_sample(
        values[None], grid, "bilinear", padding_mode="border", align_corners=True
    )[0]
    result: Array = shown.numpy().transpose(1, 2, 0).reshape(*window, *picture.shape[2:])
    return result
