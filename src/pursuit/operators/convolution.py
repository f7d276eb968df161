"""Atoms that slide along one or two axes: convolutional sparse coding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import ArrayLike
from .base import Operator, squared_norm
from .matrices import as_dictionary

#: the most entries of the matrix of all atoms at all positions that is still formed
LARGEST_MATRIX = 2**22
#: points of the Fourier grid for each entry of an atom's side
OVERSAMPLING = 32

Sides = tuple[int, int]


class Convolution(Operator):
    """``z -> sum_c z_c * d_c``: each atom at all positions where it lies within the signal.

    A signal is an array of `shape`, flattened; a code has one map of coefficients for each atom,
    which has `positions` entries, flattened in the order (atom, positions). Neighbouring positions
    are `stride` entries apart, neighbouring entries of an atom `dilation`.

    Parameters
    ----------
    dictionary
        The atoms, shape (atoms, *kernel), or (atoms, channels, *kernel), or flattened to a matrix
        if `kernel` is given.
    shape
        The sides of a signal: one or two numbers. Pad signals where atoms should reach beyond.
    kernel
        The sides of an atom; by default those of `dictionary`.
    stride, dilation
        One number for each axis, or one for all.
    channels
        The number of channels of a signal, which all positions of an atom cover; a signal has the
        order (channel, *shape).
    parts
        The numbers of atoms of the parts that a signal consists of; by default one part.

    Examples
    --------
    >>> import torch
    >>> from pursuit.operators import Convolution
    >>> operator = Convolution(torch.tensor([[1.0, 2.0]]), shape=(4,))
    >>> operator.decode(torch.tensor([[1.0, 0.0, 3.0]])).tolist()
    [[1.0, 2.0, 3.0, 6.0]]
    """

    def __init__(
        self,
        dictionary: ArrayLike,
        shape: Sequence[int],
        kernel: Sequence[int] | None = None,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        channels: int = 1,
        parts: Sequence[int] | None = None,
    ) -> None:
        self.shape = _as_sides(shape, "shape")
        axes = len(self.shape)
        atoms = dictionary if isinstance(dictionary, Tensor) else torch.as_tensor(dictionary)
        if kernel is None:
            if atoms.ndim not in (axes + 1, axes + 2):
                raise ValueError(
                    f"dictionary must have shape (atoms, {', '.join(['side'] * axes)}), perhaps "
                    f"with channels after the atoms, got {tuple(atoms.shape)}; or give kernel"
                )
            kernel = atoms.shape[-axes:]
        self.kernel = _as_sides(kernel, "kernel", axes)
        self.stride, self.dilation = (
            _as_sides([value] * axes if isinstance(value, int) else value, name, axes)
            for value, name in ((stride, "stride"), (dilation, "dilation"))
        )
        self.channels = channels
        self.dictionary = as_dictionary(atoms.flatten(1) if atoms.ndim > 2 else atoms, "dictionary")
        size = channels * math.prod(self.kernel)
        if self.dictionary.shape[1] != size:
            raise ValueError(
                f"an atom must have {size} entries, {channels} channel(s) of {self.kernel}, "
                f"dictionary has {self.dictionary.shape[1]}"
            )
        self.parts = (len(self.dictionary),) if parts is None else tuple(map(int, parts))
        if min(self.parts) < 1 or sum(self.parts) != len(self.dictionary):
            raise ValueError(
                f"parts must be positive and add up to the {len(self.dictionary)} atoms, "
                f"got {self.parts}"
            )
        if min(self.positions) < 1:
            raise ValueError(
                f"atoms of {self.extent} entries do not fit into signals of {self.shape}"
            )

    @property
    def extent(self) -> tuple[int, ...]:
        """The sides of an atom, dilation included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def positions(self) -> tuple[int, ...]:
        """The number of positions of an atom along each axis."""
        sides = zip(self.shape, self.extent, self.stride, strict=True)
        return tuple((side - extent) // stride + 1 for side, extent, stride in sides)

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        return {"dictionary": self.dictionary}

    @property
    def atoms(self) -> Tensor:
        """All atoms at all positions as one matrix, shape (q, m); see `is_small`."""
        return self.decode(torch.eye(self.code_size, dtype=self.dtype, device=self.device))

    @property
    def is_small(self) -> bool:
        return self.code_size * self.features <= LARGEST_MATRIX

    @property
    def features(self) -> int:
        return self.channels * math.prod(self.shape)

    @property
    def code_size(self) -> int:
        return len(self.dictionary) * math.prod(self.positions)

    @property
    def device(self) -> torch.device:
        return self.dictionary.device

    @property
    def dtype(self) -> torch.dtype:
        return self.dictionary.dtype

    @property
    def block_sizes(self) -> tuple[int, ...]:
        return tuple(atoms * math.prod(self.positions) for atoms in self.parts)

    def resized(self, shape: Sequence[int]) -> Convolution:
        """Return the operator of the same atoms on signals of another shape."""
        return type(self)(**{**self.config, "shape": shape})

    def maps(self, codes: Tensor) -> Tensor:
        """Return codes as maps, shape (..., atoms, *positions)."""
        return codes.reshape(*codes.shape[:-1], len(self.dictionary), *self.positions)

    def decode(self, codes: Tensor) -> Tensor:
        maps = codes.reshape(-1, len(self.dictionary), *as_plane(self.positions))
        signals = F.conv_transpose2d(
            maps,
            self._kernels(codes),
            stride=as_plane(self.stride),
            dilation=as_plane(self.dilation),
        )
        height, width = as_plane(self.shape)
        missing = width - signals.shape[-1], height - signals.shape[-2]
        signals = F.pad(signals, (0, missing[0], 0, missing[1]))
        return signals.reshape(*codes.shape[:-1], self.features)

    def decode_parts(self, codes: Tensor) -> tuple[Tensor, ...]:
        signals, first = [], 0
        for count, block in zip(self.parts, self.split(codes), strict=True):
            own = self.rebind({"dictionary": self.dictionary[first : first + count]})
            own.parts, first = (count,), first + count
            signals.append(own.decode(block))
        return tuple(signals)

    def lags(self) -> Tensor:
        """Return the Gram matrix as a kernel, shape (atoms, atoms, *lags).

        ``(z D D')_c = sum_j kernel[c, j] * z_j``, a cross-correlation with an odd number of lags
        along each axis; codes are zero beyond the ends of a map.
        """
        reach = [(e - 1) // s for e, s in zip(self.extent, self.stride, strict=True)]
        sides = zip(self.extent, self.stride, reach, strict=True)
        small = self.resized([extent + 2 * r * stride for extent, stride, r in sides])
        count = len(self.dictionary)
        # the response to each atom at the centre of a plane that just holds all of its neighbours
        impulse = self.dictionary.new_zeros(count, count, *small.positions)
        impulse.diagonal()[tuple(reach)] = 1.0
        response = small.maps(small.correlate(small.decode(impulse.flatten(1))))
        return response.flip(list(range(2, response.ndim))).transpose(0, 1)

    def correlate(self, signals: Tensor) -> Tensor:
        planes = signals.reshape(-1, self.channels, *as_plane(self.shape))
        maps = F.conv2d(
            planes, self._kernels(signals), stride=as_plane(self.stride),
            dilation=as_plane(self.dilation),
        )  # fmt: skip
        return maps.reshape(*signals.shape[:-1], self.code_size)

    def regression(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        raise TypeError(
            "the atoms of a Convolution are not the solution of a regression on codes; train "
            'them with fit(..., dictionary="gradient")'
        )

    def rows(self, numbers: Sequence[int]) -> Tensor:
        chosen = torch.zeros(len(numbers), self.code_size, dtype=torch.float64, device=self.device)
        chosen[torch.arange(len(numbers)), list(numbers)] = 1.0
        return self.decode(chosen).detach()

    def squared_norms(self) -> Tensor:
        norms = self.dictionary.detach().double().square().sum(dim=-1)
        return norms.repeat_interleave(math.prod(self.positions))

    def largest_eigenvalue(self, curvature: Tensor | None = None) -> float:
        """Return the largest eigenvalue or, if the matrix is large, an upper bound near it.

        The bound is that of all positions on an infinite grid: the largest value over frequencies
        of ``sum_c |d_c(w)|^2``, with channels the largest eigenvalue of their matrix of such sums.
        Between the points of a fine grid a trigonometric polynomial of degree k exceeds its largest
        sample by at most ``1 / cos(pi k / points)``. The largest curvature is added.
        """
        added = 0.0 if curvature is None else float(curvature.max())
        if self.is_small:
            return squared_norm(self.atoms.detach().double()) + added
        spread = torch.zeros(len(self.dictionary), self.channels, *self.extent, dtype=torch.float64)
        steps = (slice(None), slice(None), *(slice(None, None, d) for d in self.dilation))
        spread[steps] = (
            self.dictionary.detach()
            .double()
            .cpu()
            .reshape(len(self.dictionary), self.channels, *self.kernel)
        )
        grid = [OVERSAMPLING * side for side in self.extent]
        spectra = torch.fft.fftn(spread, s=grid, dim=tuple(range(2, spread.ndim))).flatten(2)
        if self.channels == 1:
            largest = float(spectra.abs().square().sum(dim=(0, 1)).max())
        else:
            columns = spectra.permute(2, 0, 1)
            matrices = columns.mH @ columns
            largest = float(torch.linalg.eigvalsh(matrices)[..., -1].max())
        for side, points in zip(self.extent, grid, strict=True):
            largest /= math.cos(math.pi * (side - 1) / points)
        return largest + added

    def _kernels(self, like: Tensor) -> Tensor:
        sides = len(self.dictionary), self.channels, *as_plane(self.kernel)
        return self.dictionary.to(like.dtype).reshape(sides)


def as_plane(sides: Sequence[int]) -> Sides:
    """Return two numbers: a single axis becomes the second one."""
    return (1, sides[0]) if len(sides) == 1 else (sides[0], sides[1])


def _as_sides(values: Sequence[int], name: str, axes: int | None = None) -> tuple[int, ...]:
    sides = tuple(int(value) for value in values)
    if len(sides) not in ((1, 2) if axes is None else (axes,)):
        count = "one or two numbers" if axes is None else f"{axes} number(s), as shape has"
        raise ValueError(f"{name} must have {count}, got {tuple(values)}")
    if min(sides) < 1:
        raise ValueError(f"{name} must be positive, got {tuple(values)}")
    return sides
