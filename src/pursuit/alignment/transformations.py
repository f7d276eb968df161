"""Transformations: a window that is moved, rotated, scaled or sheared over a picture.

The window stands in the middle of the picture. Parameters p displace its pixels: the pixel at u
shows the picture at ``u + sum_k p_k b_k(u)``, between pixels by linear interpolation. A kind of
transformation is its fields b_k. They are scaled so that a parameter of 1 displaces the pixels by 1
in the root mean square.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Affine", "Similarity", "Transformation", "Translation"]


class Transformation(ABC):
    """The interface of all transformations; a new kind implements `_fields` and `describe`.

    Calling it on pictures (n, H, W) and parameters (n, k) gives what the window shows, as rows of
    shape (n, h w). This is differentiable with respect to both.

    Parameters
    ----------
    size
        Height and width of the window in pixels.
    limit
        The largest displacement of a corner of the window along either axis, in pixels. By default
        the window may move as far as the picture reaches; it never leaves it in any case, so that
        nothing can be gained by looking beside the picture.
    """

    #: the names of what `describe` returns
    columns: ClassVar[tuple[str, ...]]

    def __init__(self, size: Sequence[int], limit: float | None = None) -> None:
        if len(size) != 2 or not all(isinstance(n, int) and n >= 2 for n in size):
            raise ValueError(f"size must be (height, width), each at least 2, got {size!r}")
        if limit is not None and not 0 < limit < float("inf"):
            raise ValueError(f"limit must be positive and finite, got {limit}")
        self.size, self.limit = (size[0], size[1]), limit

    @abstractmethod
    def _fields(self, y: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The displacements (down, right) of the window's pixels for each parameter.

        y and x, shape (h, w), are the positions of the pixels relative to the middle.
        """

    @abstractmethod
    def describe(self, parameters: Tensor) -> Tensor:
        """Return what people would like to know, in the order of `columns`, shape (n, columns).

        Lengths are in pixels, angles in degrees.
        """

    @property
    def features(self) -> int:
        """The number of pixels of the window."""
        return self.size[0] * self.size[1]

    @property
    def parameters(self) -> int:
        """k, the number of parameters."""
        return len(self.fields)

    @cached_property
    def fields(self) -> Tensor:
        """The displacements (down, right) of each parameter, shape (k, 2, h w), float64."""
        height, width = self.size
        rows = torch.arange(height, dtype=torch.float64) - (height - 1) / 2
        columns = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        fields = torch.stack([torch.stack(field) for field in self._fields(y, x)]).flatten(2)
        return fields / fields.square().sum(dim=1).mean(dim=-1).sqrt()[:, None, None]

    def identity(self, count: int) -> Tensor:
        """Return the parameters that leave the window in the middle, shape (count, k)."""
        return torch.zeros(count, self.parameters)

    def __call__(self, pictures: Tensor, parameters: Tensor) -> Tensor:
        return self.warp(pictures, parameters).flatten(1)

    def warp(self, pictures: Tensor, parameters: Tensor) -> Tensor:
        """Return what the window shows of pictures (n, H, W) or (n, channels, H, W)."""
        if pictures.ndim == 3:
            return self.warp(pictures[:, None], parameters)[:, 0]
        self.check(pictures, parameters)
        height, width = pictures.shape[-2:]
        moved = parameters @ self.fields.to(parameters).flatten(1)
        down, right = moved.reshape(-1, 2, *self.size).unbind(1)
        rows = torch.arange(self.size[0], dtype=moved.dtype, device=moved.device)
        columns = torch.arange(self.size[1], dtype=moved.dtype, device=moved.device)
        down = down + rows[:, None] - (self.size[0] - 1) / 2
        right = right + columns - (self.size[1] - 1) / 2
        grid = torch.stack([right * (2 / (width - 1)), down * (2 / (height - 1))], dim=-1)
        return F.grid_sample(
            pictures, grid.to(pictures), "bilinear", padding_mode="border", align_corners=True
        )

    def linearised(self, slopes: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the window shows, (n, h w), and its derivatives, (n, k, h w).

        `slopes` are pictures with their slopes as returned by `with_slopes`.
        """
        shown, down, right = self.warp(slopes, parameters).flatten(2).unbind(1)
        fields = self.fields.to(shown)
        return shown, down[:, None] * fields[:, 0] + right[:, None] * fields[:, 1]

    def bounded(self, parameters: Tensor, picture: Sequence[int]) -> Tensor:
        """Return parameters that keep the window inside a picture of the given size.

        Those that do are unchanged; others are scaled down until the window just touches the
        border.
        """
        height, width = self.size
        corners = [0, width - 1, (height - 1) * width, height * width - 1]
        moved = (parameters @ self.fields.to(parameters)[:, :, corners].flatten(1)).abs()
        room = parameters.new_tensor(self.room(picture)).repeat_interleave(len(corners))
        share = (room / moved.clamp_min(1e-30)).amin(dim=-1, keepdim=True)
        return parameters * share.clamp_max(1)

    def room(self, picture: Sequence[int]) -> tuple[float, float]:
        """Return how far the corners may move down and to the right in a picture of that size."""
        room = [(length - side) / 2 for length, side in zip(picture[-2:], self.size, strict=True)]
        if min(room) <= 0:
            raise ValueError(
                f"pictures of {picture[-2]} x {picture[-1]} pixels leave no room for a window of "
                f"{self.size[0]} x {self.size[1]} to move; choose a smaller window"
            )
        limit = float("inf") if self.limit is None else self.limit
        return min(room[0], limit), min(room[1], limit)

    def __repr__(self) -> str:
        limit = "" if self.limit is None else f", limit={self.limit:g}"
        return f"{type(self).__name__}(size={self.size}{limit})"

    def check(self, pictures: Tensor, parameters: Tensor) -> None:
        """Raise a ValueError unless the shapes of pictures and parameters fit."""
        self.room(pictures.shape)
        if parameters.shape != (len(pictures), self.parameters):
            raise ValueError(
                f"parameters must have shape ({len(pictures)}, {self.parameters}), "
                f"got {tuple(parameters.shape)}"
            )


class Translation(Transformation):
    """The window is moved: two parameters, by how many pixels to the right and down.

    Examples
    --------
    >>> import torch
    >>> picture = torch.arange(30.0).reshape(1, 5, 6)
    >>> Translation((3, 4))(picture, torch.tensor([[0.5, 1.0]])).reshape(3, 4)[0]
    tensor([13.5000, 14.5000, 15.5000, 16.5000])
    """

    columns: ClassVar[tuple[str, ...]] = ("x", "y")

    def _fields(self, y: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        one, zero = torch.ones_like(y), torch.zeros_like(y)
        return [(zero, one), (one, zero)]

    def describe(self, parameters: Tensor) -> Tensor:
        return parameters


class Similarity(Translation):
    """The window is moved, rotated (clockwise) and scaled: four parameters."""

    columns = ("x", "y", "angle", "scale")

    def _fields(self, y: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [*super()._fields(y, x), (x, -y), (y, x)]

    def describe(self, parameters: Tensor) -> Tensor:
        down, right = _linear_part(self, parameters)
        angle = torch.atan2(down[:, 1], right[:, 1]).rad2deg()
        scale = torch.hypot(down[:, 1], right[:, 1])
        return torch.stack([*parameters[:, :2].unbind(1), angle, scale], dim=1)


class Affine(Translation):
    """The window is moved, rotated (clockwise), scaled along each axis and sheared: six parameters.

    `describe` gives the angle of its upper edge, the scale along both axes, and the shear angle.
    """

    columns = ("x", "y", "angle", "scale_x", "scale_y", "shear")

    def _fields(self, y: Tensor, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        zero = torch.zeros_like(y)
        return [*super()._fields(y, x), (zero, x), (zero, y), (x, zero), (y, zero)]

    def describe(self, parameters: Tensor) -> Tensor:
        down, right = _linear_part(self, parameters)
        # the edges of the window as vectors (down, right)
        angle = torch.atan2(down[:, 1], right[:, 1])
        other = torch.atan2(-right[:, 0], down[:, 0])
        scales = (torch.hypot(down[:, i], right[:, i]) for i in (1, 0))
        shear = (other - angle).rad2deg()
        return torch.stack([*parameters[:, :2].unbind(1), angle.rad2deg(), *scales, shear], dim=1)


def with_slopes(pictures: Tensor) -> Tensor:
    """Return pictures (n, H, W) with their slopes down and to the right, shape (n, 3, H, W)."""
    down, right = torch.gradient(pictures, dim=(1, 2))
    return torch.stack([pictures, down, right], dim=1)


def _linear_part(transformation: Transformation, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Where one step down and one to the right lead: (n, 2) downwards and (n, 2) to the right."""
    height, width = transformation.size
    fields = transformation.fields.to(parameters).reshape(-1, 2, height, width)
    steps = torch.stack(
        [fields[:, :, 1, 0] - fields[:, :, 0, 0], fields[:, :, 0, 1] - fields[:, :, 0, 0]], dim=-1
    )
    moved = torch.einsum("nk,kij->nij", parameters, steps)
    moved = moved + torch.eye(2, dtype=moved.dtype, device=moved.device)
    return moved[:, 0], moved[:, 1]
