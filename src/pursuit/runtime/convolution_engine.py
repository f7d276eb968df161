"""The layers of a convolutional program on blocks of frames, in NumPy.

Arrays have the order (signals, frames, positions, channels). A cross-correlation copies the taps
of a tile of positions into the rows of a matrix that fits into the cache, and multiplies it by the
weights. Each layer's input is kept in a buffer with zeros around it and the frames of earlier
blocks before it, so that a whole plane and a stream of frames are the same computation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .checks import Array

if TYPE_CHECKING:
    from .convolution import ConvolutionProgram

Sides = tuple[int, int]
Place = tuple[slice, slice, slice]

#: numbers in the matrix of taps of a tile
TILE_NUMBERS = 2**17
#: the most frames of a block of a causal program
MOST_FRAMES = 64
#: the fewest frames after which a buffer moves the past back to its start
ROOM = 16
#: much smaller values of signals and running means become zero: denormal numbers are slow
SMALL = np.float32(1e-25)
#: the lower end of a one-sided threshold
LOWEST = np.finfo(np.float32).min
#: blocks whose views are kept
MOST_VIEWS = 64


class Correlation:
    """A cross-correlation with a kernel (C, channels, taps, taps) as a product of matrices.

    The taps of position p along an axis are at ``p stride - before + n dilation``, n = 0, 1, ...
    """

    def __init__(self, kernel: Array, stride: Sides, dilation: Sides, before: Sides) -> None:
        self.taps = kernel.shape[2:]
        self.matrix = np.ascontiguousarray(kernel.transpose(2, 3, 1, 0)).reshape(-1, len(kernel))
        self.stride, self.dilation, self.before = stride, dilation, before


class Layers:
    """The weights of a program, formatted once for all engines."""

    def __init__(self, program: ConvolutionProgram) -> None:
        self.program = program
        positions = math.prod(program.positions)
        past = program.weight.shape[2] - 1 if program.causal else 0
        self.signal = Correlation(program.weight, program.stride, program.dilation, (past, 0))
        self.couplings = self._couplings()
        products = (self.signal, *self.couplings)
        #: the earlier frames that are kept; running means need one
        self.past = max(1, *(p.before[0] for p in products)) if program.causal else 0
        #: multiplications for each position
        self.multiplications = sum(p.matrix.size for p in products)
        #: the size of the matrix of taps of a tile
        self.columns = max(len(p.matrix) for p in products)
        self.rows = max(1, TILE_NUMBERS // self.columns)
        #: the most positions along axis 1 in a tile
        self.side = min(program.positions[1], self.rows)
        #: whole planes that are encoded together
        self.planes = max(1, self.rows // positions)
        self.positional = program.offset.shape[2] > 1
        offset = np.ascontiguousarray(program.offset[:, 0].T)
        self.offset = offset if self.positional else self._repeated(offset)
        self.soft = [self._repeated(row) for row in program.soft]
        lowest = np.where(program.negative != 0, -program.soft, LOWEST)
        self.zero = self._repeated(np.zeros(program.atoms))
        signed = bool(program.negative.any())
        self.lowest = [self._repeated(row) for row in lowest] if signed else None
        self.recall = None if program.recall is None else np.ascontiguousarray(program.recall.T)

    def _couplings(self) -> list[Correlation]:
        """One for each layer after the first; equal ones are one object."""
        causal = self.program.causal
        known: dict[tuple[int, Sides], Correlation] = {}
        couplings = []
        for kernel, dilation in zip(
            self.program.couplings, self.program.coupling_dilations, strict=True
        ):
            key = (id(kernel), dilation)
            if key not in known:
                frames, side = (
                    d * (n - 1) for d, n in zip(dilation, kernel.shape[2:], strict=True)
                )
                before = (frames if causal else frames // 2, side // 2)
                known[key] = Correlation(kernel, (1, 1), dilation, before)
            couplings.append(known[key])
        return couplings

    def _repeated(self, values: Array) -> Array:
        """Values for each atom at each position of a tile: broadcasting short rows is slow."""
        return np.repeat(values.reshape(1, -1).astype(np.float32), self.side, axis=0)


class Engine:
    """Encodes up to `signals` signals at a time: whole planes, or frames of a causal program."""

    def __init__(self, layers: Layers, signals: int) -> None:
        self.layers, program = layers, layers.program
        causal, atoms, (first, side) = program.causal, program.atoms, program.positions
        fitting = min(MOST_FRAMES, max(1, layers.rows // (signals * side)))
        #: the most frames of codes in a block
        self.frames = fitting if causal else first
        room = self.frames + max(layers.past, ROOM)
        past = (layers.past, room) if causal else None
        channels = program.channels * (1 + len(program.averages))
        self._signal = _Plane(layers.signal, signals, program.shape, channels, past)
        self._codes = [
            _Plane(coupling, signals, (first, side), atoms, past) for coupling in layers.couplings
        ]
        self._base = np.empty((signals, self.frames, side, atoms), np.float32)
        self._sums, self._within = np.empty((2, self._base.size), np.float32)
        rows = min(layers.rows, self._base.size // atoms)
        self._taps = np.empty(rows * layers.columns, np.float32)
        self._averages = _Weights(np.array(program.averages, np.float64)[:, None], self.frames)
        decays = np.zeros(0) if program.decays is None else program.decays.astype(np.float64)
        self._memory = _Weights(decays, self.frames)
        height = 0 if program.decays is None else side
        self._means = np.zeros((signals, 1 + self.frames, height, atoms), np.float32)
        self._room = room
        self._known: dict[tuple[int, int, int], _Views] = {}
        self.restart()

    def restart(self) -> None:
        """Forget all earlier frames."""
        self._at = 0  # where the next frame is in the buffers, after the past
        self._count = 0  # frames so far
        for plane in (self._signal, *self._codes):
            plane.forget()
        self._means[:, 0] = 0
        self._averages.restart()
        self._memory.restart()

    def run(self, x: Array, out: Array) -> None:
        """Write the codes of planes (signals, channels, S0, S1) to `out`, (signals, C, P0, P1).

        For a causal program S0 is any number of frames, which follow those of the last call.
        """
        if not self.layers.program.causal:
            self._block(x, out)
            return
        for start in range(0, x.shape[2], self.frames):
            frames = slice(start, start + self.frames)
            self._block(x[:, :, frames], out[:, :, frames])

    def _block(self, x: Array, out: Array) -> None:
        program, frames = self.layers.program, out.shape[2]
        if program.causal and self._at + frames > self._room:
            self._slide()
        views = self._views(len(x), x.shape[2], frames)
        np.add(x.transpose(0, 2, 3, 1), SMALL, out=views.signal)
        np.subtract(views.signal, SMALL, out=views.signal)
        if program.averages:
            _average(views.signal[:, :, :, None], self._averages.next(frames), views.averages)
        maps = out.transpose(0, 2, 3, 1)
        for number, tiles in enumerate(views.layers):
            if number == program.memory:
                self._recall(views, frames)
            if self._layer(number, tiles, maps):
                self._codes[number].active = self._count + frames
        if program.causal:
            self._at += frames
            self._count += frames

    def _slide(self) -> None:
        """Move the past to the start of the buffers."""
        for plane in (self._signal, *self._codes):
            plane.slide(self._at)
        self._at = 0
        # in silence, running means become denormal numbers
        _flush(self._signal.array[:, self.layers.past - 1])
        _flush(self._means[:, 0])

    def _recall(self, views: _Views, frames: int) -> None:
        """Add the product of the running mean of the codes of the last layer."""
        assert self.layers.recall is not None
        _average(views.codes, self._memory.next(frames), views.means)
        np.matmul(views.means[:, 1:], self.layers.recall, out=views.recalled)
        np.add(views.base, views.recalled, out=views.base)
        views.means[:, 0] = views.means[:, frames]

    def _layer(self, number: int, tiles: list[_Tile], maps: Array) -> bool:
        """Compute the codes of a layer; return whether they are an input that is not zero."""
        plane = self._signal if number == 0 else self._codes[number - 1]
        last = number == len(self._codes)
        silent = number > 0 and plane.active + plane.coupling.before[0] <= self._count
        active = False
        for tile in tiles:
            v, sums = tile.base, tile.sums
            if not silent:
                np.copyto(tile.gathered, tile.taps)
                np.matmul(tile.rows, plane.coupling.matrix, out=tile.products)
                # the first layer keeps the sum for the others
                v = v if number == 0 else sums
                np.add(sums, tile.added, out=v)
            target = maps[tile.place] if tile.target is None else tile.target
            if tile.lowest is None:
                np.subtract(v, tile.soft, out=sums)
                np.maximum(sums, tile.zero, out=target)
                # not "> 0", which NaN after an overflow are not
                active |= not last and not sums.max() <= 0
            else:
                within = np.maximum(v, tile.lowest, out=tile.within)
                np.minimum(within, tile.soft, out=within)
                np.subtract(v, within, out=target)
                active |= not last and bool(target.any())
        return active

    def _views(self, signals: int, inputs: int, frames: int) -> _Views:
        """The views for a block of some size at the present place in the buffers."""
        key = (signals, frames, self._at)
        if key not in self._known:
            if len(self._known) >= MOST_VIEWS:
                self._known.clear()
            self._known[key] = self._made(signals, inputs, frames)
        return self._known[key]

    def _made(self, signals: int, inputs: int, frames: int) -> _Views:
        program = self.layers.program
        base = self._base[:signals, :frames]
        entries = self._signal.entries(self._at, signals, inputs)
        # with the frame before the block
        running = self._signal.entries(self._at - 1, signals, inputs + 1)
        averages = running.reshape(*running.shape[:3], -1, program.channels)[:, :, :, 1:]
        codes = base
        if program.memory is not None:
            codes = self._codes[program.memory - 1].entries(self._at, signals, frames)
        return _Views(
            signal=entries[..., : program.channels],
            averages=averages,
            codes=codes,
            means=self._means[:signals, : 1 + frames],
            recalled=self._sums[: base.size].reshape(base.shape),
            base=base,
            layers=[self._cut(number, base) for number in range(program.depth)],
        )

    def _cut(self, number: int, base: Array) -> list[_Tile]:
        """The tiles of a layer."""
        layers = self.layers
        plane = self._signal if number == 0 else self._codes[number - 1]
        taps = plane.taps(self._at, base.shape)
        following = None
        if number < len(self._codes):
            following = self._codes[number].entries(self._at, *base.shape[:2])
        tiles = []
        for place in _places(base.shape, layers.rows):
            chosen, part = taps[place], base[place]
            across, atoms = part.shape[2:]
            columns = len(plane.coupling.matrix)
            rows = self._taps[: part.size // atoms * columns]
            sums = self._sums[: part.size]
            offset = layers.offset[place[2] if layers.positional else slice(across)]
            tiles.append(
                _Tile(
                    place=place,
                    taps=chosen,
                    gathered=rows.reshape(chosen.shape),
                    rows=rows.reshape(-1, columns),
                    products=sums.reshape(-1, atoms),
                    sums=sums.reshape(part.shape),
                    within=self._within[: part.size].reshape(part.shape),
                    base=part,
                    added=offset if number == 0 else part,
                    soft=layers.soft[number][:across],
                    lowest=None if layers.lowest is None else layers.lowest[number][:across],
                    zero=layers.zero[:across],
                    target=None if following is None else following[place],
                )
            )
        return tiles


class _Views(NamedTuple):
    """Views of the buffers for one block, which are kept, since making them takes time."""

    signal: Array
    averages: Array  # the running means of the signal, (signals, frame before and frames, ...)
    codes: Array  # of which running means are taken
    means: Array  # these running means, with the frame before
    recalled: Array  # what they add to b
    base: Array  # b
    layers: list[list[_Tile]]


class _Tile(NamedTuple):
    """The views for one tile of a layer."""

    place: Place
    taps: Array  # where the input is read
    gathered: Array  # where it is copied to, and the same as a matrix
    rows: Array
    products: Array  # the result as a matrix, and the same in the order of the maps
    sums: Array
    within: Array  # scratch of the same shape
    base: Array  # b
    added: Array  # what is added to the product
    soft: Array
    lowest: Array | None
    zero: Array
    target: Array | None  # where the next layer reads its input


class _Plane:
    """The input of a correlation, (signals, frames, positions, channels), with zeros around it.

    For a causal program `past` is the number of earlier frames that are kept, and the number of
    frames for which there is room after them.
    """

    def __init__(
        self, coupling: Correlation, signals: int, sides: Sides, channels: int, past: Sides | None
    ) -> None:
        above, left = coupling.before
        self.coupling, self.side = coupling, sides[1]
        self.past = 0 if past is None else past[0]
        self.start = (above if past is None else self.past, left)
        height = sides[0] + 2 * above if past is None else sum(past)
        self.array = np.zeros((signals, height, sides[1] + 2 * left, channels), np.float32)
        step = self.array.strides
        self._strides = (
            step[0],
            coupling.stride[0] * step[1],
            coupling.stride[1] * step[2],
            coupling.dilation[0] * step[1],
            coupling.dilation[1] * step[2],
            step[3],
        )
        self.forget()

    def forget(self) -> None:
        """Set the earlier frames to zero; those of a block are written before they are read."""
        self.array[:, : self.past] = 0
        #: the number of frames up to the last one that is not zero
        self.active = -self.start[0]

    def slide(self, at: int) -> None:
        """Move the frames before frame `at` of the buffer to its start."""
        self.array[:, : self.past] = self.array[:, at : at + self.past]

    def entries(self, at: int, signals: int, frames: int) -> Array:
        first, left = self.start[0] + at, self.start[1]
        return self.array[:signals, first : first + frames, left : left + self.side]

    def taps(self, at: int, shape: tuple[int, ...]) -> Array:
        """The taps of all positions, a view of shape (signals, P0, P1, taps, taps, channels)."""
        above, left = self.coupling.before
        step = self.array.strides
        offset = (self.start[0] + at - above) * step[1] + (self.start[1] - left) * step[2]
        sides = (*shape[:3], *self.coupling.taps, self.array.shape[3])
        return np.ndarray(sides, np.float32, self.array, offset, self._strides)


class _Weights:
    """The weights of new values in running means, ``1 / sum_{s<=t} d^(t-s)`` for each decay d."""

    def __init__(self, decays: Array, frames: int) -> None:
        counts = np.arange(frames).reshape(-1, *[1] * decays.ndim)
        self._carried = decays ** (1 + counts)
        self._added = np.cumsum(decays**counts, axis=0)
        self._limit = np.repeat((1 - decays)[None], frames, axis=0).astype(np.float32)
        slowest = decays.max(initial=0.0)
        with np.errstate(divide="ignore"):
            #: the number of frames after which the weights are 1 - d in double precision
            self._settled = np.divide(math.log(1e17), np.abs(np.log(slowest)))
        self.restart()

    def restart(self) -> None:
        self._frames = 0
        self._total = np.zeros(self._limit.shape[1:])

    def next(self, frames: int) -> Array:
        """Return the weights of the next frames, shape (frames, *decays)."""
        if self._frames > self._settled:
            return self._limit[:frames]
        totals = self._carried[:frames] * self._total + self._added[:frames]
        self._frames += frames
        self._total = totals[-1]
        return np.reciprocal(totals).astype(np.float32)


def _average(values: Array, weights: Array, means: Array) -> None:
    """Write ``m_t = (1 - w_t) m_{t-1} + w_t v_t`` to `means`, whose first frame is the last m."""
    kept = 1 - weights
    np.multiply(values, weights[:, None], out=means[:, 1:])
    before = means[:, 0]
    for number, part in enumerate(kept, 1):
        now = means[:, number]
        np.add(now, part * before, out=now)
        before = now


def _flush(values: Array) -> None:
    """Turn numbers that are almost denormal into zeros, in place."""
    np.add(values, SMALL, out=values)
    np.subtract(values, SMALL, out=values)


def _places(shape: tuple[int, ...], rows: int) -> Iterator[Place]:
    """Slices of (signals, frames, positions) that have up to `rows` positions together."""
    signals, frames, side = shape[:3]
    across = min(side, rows)
    down = min(frames, max(1, rows // side))
    many = min(signals, max(1, rows // (side * frames)))
    steps = ((signals, many), (frames, down), (side, across))
    yield from product(*([slice(n, n + step) for n in range(0, end, step)] for end, step in steps))


def decoded(program: ConvolutionProgram, maps: Array) -> Array:
    """Return the signals (n, channels, S0, S1) of codes (n, C, P0, P1)."""
    signals = np.zeros((len(maps), program.channels, *program.shape), np.float32)
    first, second = program.positions
    many = max(1, TILE_NUMBERS // (first * second * program.dictionary.shape[1]))
    for start in range(0, len(maps), many):
        codes = np.ascontiguousarray(maps[start : start + many].transpose(0, 2, 3, 1))
        atoms = codes.reshape(-1, program.atoms) @ program.dictionary
        patches = atoms.reshape(*codes.shape[:3], program.channels, *program.kernel)
        patches = patches.transpose(4, 5, 0, 3, 1, 2)
        for taps in np.ndindex(*program.kernel):
            above, left = (tap * d for tap, d in zip(taps, program.dilation, strict=True))
            down, across = program.stride
            signals[
                start : start + many,
                :,
                above : above + down * (first - 1) + 1 : down,
                left : left + across * (second - 1) + 1 : across,
            ] += patches[taps]
    return signals
