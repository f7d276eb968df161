"""Convolutional encoders without torch: their programs, and running them on planes and streams.

A signal is a plane of sides (S0, S1) with channels, flattened in the order (channel, S0, S1); a
code has one map of P0 x P1 coefficients for each of C atoms. The layers are

    u   = x and its running means along axis 0, as further channels
    b   = W * u + offset,                z_1 = shrink(b, t_1)
    b   = b + R runmean(z_{k-1})         once, before layer k = memory + 1
    z_k = shrink(b + H_{k-1} * z_{k-1}, t_k),

where * is a cross-correlation, and the running mean of values v with the decay d is
``sum_{s<=t} d^(t-s) v_s / sum_{s<=t} d^(t-s)``. In a causal program axis 0 is time, its entries are
frames, and products cover the current frame and earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._native import kernels
from .._threads import cores, work_through
from ..fields import entry, shown
from .checks import (
    Array,
    as_real,
    as_signals,
    require,
    require_finite,
    require_output,
    require_range,
    require_values,
)
from .flat import flat

Sides = tuple[int, int]

#: the entry "form" in the description of a program of this kind
CONVOLUTION = "convolution"
#: the other entries
FIELDS = (
    "shape",
    "channels",
    "kernel",
    "stride",
    "dilation",
    "causal",
    "averages",
    "memory",
    "couplings",
)
#: the most numbers of the inputs of all layers with what is around them, unless a signal and its
#: codes have many
MOST_KEPT = 2**23
#: multiplications that justify a thread, and those of the signals that it takes at once
WORTH_A_THREAD, WORTH_A_TILE = 2**25, 2**26
#: numbers of the patches that are decoded together
DECODED = 2**17


@dataclass(frozen=True, eq=False)
class ConvolutionProgram:
    """All layers of a convolutional encoder; couplings that layers share are one object."""

    shape: Sides  # S0, S1
    channels: int
    kernel: Sides
    stride: Sides
    dilation: Sides
    causal: bool
    averages: tuple[float, ...]  # the decays of the running means of the signal
    weight: Array  # W, (C, channels (1 + averages), frames or kernel[0], kernel[1])
    offset: Array  # (C, 1, P1) or (C, 1, 1)
    couplings: tuple[Array, ...]  # H of the layers after the first, (C, C, taps, taps)
    coupling_dilations: tuple[Sides, ...]
    soft: Array  # the threshold of each atom in each layer, (T, C)
    negative: Array  # 1 where a coefficient may be negative, else 0, (C,)
    memory: int | None  # the number of layers before the running mean of the codes is added
    recall: Array | None  # R, (C, C)
    decays: Array | None  # of the running mean of each atom's codes, (C,)
    dictionary: Array  # the atoms for decoding, (C, channels kernel[0] kernel[1])
    parts: tuple[int, ...] = ()  # the numbers of atoms of the parts of the model
    info: Mapping[str, Any] = field(default_factory=dict)  # a description of the encoder

    def __post_init__(self) -> None:
        _check(self)

    @property
    def features(self) -> int:
        """The number of entries of a signal."""
        return self.channels * math.prod(self.shape)

    @property
    def size(self) -> int:
        """The number of coefficients of a code."""
        return self.atoms * math.prod(self.positions)

    @property
    def atoms(self) -> int:
        """C, the number of atoms."""
        return len(self.dictionary)

    @property
    def depth(self) -> int:
        """T, the number of layers."""
        return len(self.soft)

    @property
    def positions(self) -> Sides:
        """P0 and P1, the number of positions of an atom along each axis."""
        sides = zip(self.shape, self.kernel, self.stride, self.dilation, strict=True)
        first, second = ((s - d * (k - 1) - 1) // stride + 1 for s, k, stride, d in sides)
        return first, second

    @property
    def multiplications(self) -> int:
        """The number of multiplications for each position."""
        return self.weight.size + sum(coupling.size for coupling in self.couplings)

    @property
    def form(self) -> dict[str, Any]:
        """What `from_arrays` needs besides the arrays, as ``info["program"]`` states it."""
        return {
            "form": CONVOLUTION,
            "shape": list(self.shape),
            "channels": self.channels,
            "kernel": list(self.kernel),
            "stride": list(self.stride),
            "dilation": list(self.dilation),
            "causal": self.causal,
            "averages": list(self.averages),
            "memory": self.memory,
            "couplings": [list(steps) for steps in self.coupling_dilations],
        }

    def arrays(self) -> dict[str, Array]:
        """Return everything that `from_arrays` needs besides `form`, by name."""
        names = ("weight", "offset", "soft", "negative", "dictionary", "recall", "decays")
        arrays = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        distinct, arrays["couplings.of"] = _distinct(self.couplings)
        arrays |= {f"couplings.{number}": coupling for number, coupling in enumerate(distinct)}
        arrays["parts"] = np.array(self.parts, np.int64)
        return arrays

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], info: Mapping[str, Any]
    ) -> ConvolutionProgram:
        """Return the program with the arrays of `arrays` and a description with its `form`."""
        form = dict(info["program"])
        for name in FIELDS:
            if name not in form:
                raise ValueError(f"{name} is missing in the description of the program")
        steps = form["couplings"]
        rest = dict(arrays)

        def take(name: str) -> Array:
            if name not in rest:
                raise ValueError(f"{name} is missing")
            return rest.pop(name)

        distinct: list[Array] = []
        while f"couplings.{len(distinct)}" in rest:
            distinct.append(rest.pop(f"couplings.{len(distinct)}"))
        chosen = require(take("couplings.of"), "couplings.of", np.int64, (None,))
        require_range(chosen, "couplings.of", 0, len(distinct))
        parts = require(take("parts"), "parts", np.int64, (None,))
        weight, offset, soft, negative, dictionary = map(
            take, ("weight", "offset", "soft", "negative", "dictionary")
        )
        recall, decays = (rest.pop(name, None) for name in ("recall", "decays"))
        if rest:
            raise ValueError(f"{min(rest)} is not part of a program")
        return cls(
            shape=_tuple(form["shape"]),
            channels=form["channels"],
            kernel=_tuple(form["kernel"]),
            stride=_tuple(form["stride"]),
            dilation=_tuple(form["dilation"]),
            causal=form["causal"],
            averages=_tuple(form["averages"]),
            weight=weight,
            offset=offset,
            couplings=tuple(distinct[number] for number in chosen),
            coupling_dilations=tuple(map(_tuple, steps)) if isinstance(steps, list) else steps,
            soft=soft,
            negative=negative,
            memory=form["memory"],
            recall=recall,
            decays=decays,
            dictionary=dictionary,
            parts=tuple(parts.tolist()),
            info=info,
        )


class CompiledConvolution:
    """A convolutional encoder that runs without torch, on planes or on a stream of frames.

    Call it on signals (n, m) to get codes (n, q), float32. A batch with a value that is not finite
    raises a ValueError.

    Parameters
    ----------
    program
        The layers of the encoder, as `Encoder.program` returns them.
    threads
        The largest number of threads, by default the number of cores; small batches use fewer.

    Attributes
    ----------
    features, size
        m and q.
    info
        The description of the encoder from its file.
    """

    def __init__(self, program: ConvolutionProgram, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.program = program
        self.threads = cores() if threads is None else threads
        self.features, self.size, self.info = program.features, program.size, program.info
        self._layers = kernels.ConvolutionLayers(**kernel_arrays(program))

    def __repr__(self) -> str:
        depth = self.program.depth
        return f"CompiledConvolution(features={self.features}, size={self.size}, layers={depth})"

    def __call__(self, x: Any, out: Array | None = None) -> Array:
        """Return the codes of signals (n, m) or of one signal (m,).

        Parameters
        ----------
        x
            An array, a memory map, or anything else that NumPy converts to an array.
        out
            A float32 array for the result, shape (n, q); partly written if an error is raised.
        """
        signals = as_signals(x, self.features)
        shape = (self.size,) if np.ndim(x) == 1 else (len(signals), self.size)
        codes = np.empty(shape, np.float32) if out is None else require_output(out, shape)
        self._encode(signals, codes.reshape(len(signals), self.size))
        return codes

    def stream(self, signals: int = 1) -> FrameStream:
        """Return a `FrameStream` of frames of one signal or of several; for causal encoders."""
        return FrameStream(self, signals)

    def decode(self, codes: Any) -> Array:
        """Return the signals, shape (n, m), of codes (n, q)."""
        given = np.asarray(codes, np.float32)
        if given.shape[-1:] != (self.size,):
            raise ValueError(f"codes must have {self.size} columns, got shape {given.shape}")
        maps = given.reshape(-1, self.program.atoms, *self.program.positions)
        return _decoded(self.program, maps).reshape(*given.shape[:-1], self.features)

    def flat(self) -> bytes:
        """Return the encoder in one buffer, for `native/standalone`: C and WebAssembly."""
        return flat(kernel_arrays(self.program), "convolution")

    def _encode(self, x: Array, codes: Array) -> None:
        each = math.prod(self.program.positions) * self.program.multiplications
        workers = max(1, min(self.threads, len(x), len(x) * each // WORTH_A_THREAD))
        length = max(1, min(-(-len(x) // workers), WORTH_A_TILE // each))
        tiles = [slice(start, start + length) for start in range(0, len(x), length)]

        def worker() -> Callable[[slice], None]:
            engine = kernels.ConvolutionEngine(self._layers)

            def run(tile: slice) -> None:
                signals = as_float32(x[tile])
                if not np.isfinite(signals).all():
                    require_finite(signals, "x", "row", tile.start)
                engine.encode(signals, codes[tile])

            return run

        work_through(tiles, worker, workers)


class FrameStream:
    """The codes of a stream of frames, pushed in blocks of any size, equal to those of one plane.

    A stream may be longer than the planes of its encoder. Its memory does not grow.

    Parameters
    ----------
    compiled
        The compiled causal encoder.
    signals
        The number of signals, which are pushed side by side.

    Attributes
    ----------
    frames
        The number of frames pushed so far.
    """

    def __init__(self, compiled: CompiledConvolution, signals: int = 1) -> None:
        program = compiled.program
        if not program.causal:
            raise ValueError(
                "a stream needs a causal encoder, whose codes do not depend on later frames; "
                "encode whole signals instead, or train one with causal=True"
            )
        if signals < 1:
            raise ValueError(f"signals must be at least 1, got {signals}")
        self.compiled, self.signals, self.frames = compiled, signals, 0
        self._width = program.channels * program.shape[1]
        self._size = program.atoms * program.positions[1]
        self._engines = [kernels.ConvolutionEngine(compiled._layers) for _ in range(signals)]

    def push(self, frames: Any) -> Array:
        """Return the codes of the next frames.

        Parameters
        ----------
        frames
            Shape (n, signals, channels S1), or (n, channels S1) if there is one signal.

        Returns
        -------
        ndarray
            The codes, float32, shape (n, signals, C P1), or (n, C P1).
        """
        given = as_real(np.asarray(frames), "frames")
        single = self.signals == 1 and given.ndim == 2
        if given.shape[1:] != ((self._width,) if single else (self.signals, self._width)):
            also = f" or (n, {self._width})" if self.signals == 1 else ""
            raise ValueError(
                f"frames must have shape (n, {self.signals}, {self._width}){also}, "
                f"got {given.shape}"
            )
        block = as_float32(given)
        if not np.isfinite(block).all():
            require_finite(block, "frames", "frame", self.frames)
        count = len(block)
        codes = np.empty((*block.shape[:-1], self._size), np.float32)
        planes = block.reshape(count, self.signals, self._width)
        for number, engine in enumerate(self._engines):
            engine.push(planes, codes.reshape(count, self.signals, self._size), number)
        self.frames += count
        return codes


def as_float32(x: Array) -> Array:
    """Return an array as a kernel takes it; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(x, np.float32)


def kernel_arrays(program: ConvolutionProgram) -> dict[str, Array | None]:
    """Return the arrays that the kernel is made from, by name and in order."""
    distinct, coupling_of = _distinct(program.couplings)
    form = [*program.shape, program.channels, *program.stride, *program.dilation]
    weight = program.weight
    return {
        "form": np.array([*form, program.causal, program.memory or 0], np.int64),
        "averages": np.array(program.averages, np.float64),
        "weight": np.ascontiguousarray(weight).reshape(*weight.shape[:2], -1),
        "taps": np.array(weight.shape[2:], np.int64),
        "offset": np.ascontiguousarray(program.offset[:, 0]),
        "couplings": np.concatenate([np.empty(0, np.float32), *map(np.ravel, distinct)]),
        "coupling_taps": np.array([c.shape[2:] for c in distinct], np.int64).reshape(-1, 2),
        "coupling_of": coupling_of,
        "coupling_dilations": np.array(program.coupling_dilations, np.int64).reshape(-1, 2),
        "soft": np.ascontiguousarray(program.soft),
        "negative": np.ascontiguousarray(program.negative),
        "recall": None if program.recall is None else np.ascontiguousarray(program.recall),
        "decays": None if program.decays is None else np.ascontiguousarray(program.decays),
    }


def _distinct(couplings: Sequence[Array]) -> tuple[list[Array], Array]:
    """The couplings without repetitions, and the number of each layer's."""
    distinct = {id(coupling): coupling for coupling in couplings}
    numbers = {key: number for number, key in enumerate(distinct)}
    return list(distinct.values()), np.array([numbers[id(c)] for c in couplings], np.int64)


def _decoded(program: ConvolutionProgram, maps: Array) -> Array:
    """Return the signals (n, channels, S0, S1) of codes (n, C, P0, P1)."""
    signals = np.zeros((len(maps), program.channels, *program.shape), np.float32)
    first, second = program.positions
    many = max(1, DECODED // (first * second * program.dictionary.shape[1]))
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


# ---- checks of programs ---------------------------------------------------------------------


def _tuple(values: Any) -> Any:
    """A list as a tuple; anything else is left to the checks."""
    return tuple(values) if isinstance(values, list) else values


def _check(program: ConvolutionProgram) -> None:
    """Raise a ValueError that names the invalid field."""
    for name in ("shape", "kernel", "stride", "dilation"):
        _require_sides(getattr(program, name), name)
    if not _is_whole(program.channels, 1):
        raise ValueError(f"channels must be a positive whole number, got {shown(program.channels)}")
    if not isinstance(program.causal, bool):
        raise ValueError(f"causal must be True or False, got {shown(program.causal)}")
    require(program.dictionary, "dictionary", np.float32, (None, None))
    if program.atoms < 1:
        raise ValueError("dictionary must have at least one atom")
    entries = program.channels * math.prod(program.kernel)
    require(program.dictionary, "dictionary", np.float32, (program.atoms, entries))
    if min(program.positions) < 1:
        raise ValueError(
            f"kernel {program.kernel} with dilation {program.dilation} does not fit into signals "
            f"of shape {program.shape}"
        )
    _check_codes(program)
    _check_time(program)
    _check_signal(program)
    _require_near(program)
    if program.parts:
        if not all(_is_whole(part, 1) for part in program.parts):
            raise ValueError(f"parts must be positive whole numbers, got {program.parts}")
        if sum(program.parts) != program.atoms:
            raise ValueError(f"parts must add up to {program.atoms} atoms, got {program.parts}")
    if "program" in program.info:
        _check_form(program.form, entry(program.info, "program", dict))


def _check_form(form: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Compare what the arrays amount to with what a description says of them."""
    for name in form:
        if name not in given or given[name] != form[name]:
            found = shown(given[name]) if name in given else "nothing"
            raise ValueError(f"{name} of program must be {shown(form[name])}, got {found}")
    unknown = [name for name in given if name not in form]
    if unknown:
        raise ValueError(f"program has no field {shown(unknown[0])}")


def _check_time(program: ConvolutionProgram) -> None:
    """Check the running means, and that only causal programs have them."""
    averages, memory = program.averages, program.memory
    if not isinstance(averages, tuple) or not all(
        isinstance(decay, float) and 0 <= decay <= 1 for decay in averages
    ):
        raise ValueError(f"averages must be decays between 0 and 1, got {shown(averages)}")
    if memory is not None and not (_is_whole(memory, 1) and memory < program.depth):
        raise ValueError(
            f"memory must be a number of layers from 1 to {program.depth - 1}, or None, "
            f"got {shown(memory)}"
        )
    if program.causal:
        for name in ("kernel", "stride", "dilation"):
            if getattr(program, name)[0] != 1:
                raise ValueError(
                    f"{name} must be 1 along the frames of a causal program, "
                    f"got {getattr(program, name)}"
                )
    else:
        for name, given in (("averages", bool(averages)), ("memory", memory is not None)):
            if given:
                raise ValueError(f"{name} must be absent unless the program is causal")
    for name, shape in (("recall", (program.atoms, program.atoms)), ("decays", (program.atoms,))):
        value = getattr(program, name)
        if (value is None) != (memory is None):
            raise ValueError(f"{name} must be given with memory, and only then")
        if value is not None:
            require(value, name, np.float32, shape)
    if program.decays is not None:
        require_values(program.decays, "decays", lambda a: (a >= 0) & (a <= 1), "between 0 and 1")


def _check_signal(program: ConvolutionProgram) -> None:
    """Check W and its offset."""
    atoms, channels = program.atoms, program.channels * (1 + len(program.averages))
    taps = None if program.causal else program.kernel[0]
    require(program.weight, "weight", np.float32, (atoms, channels, taps, program.kernel[1]))
    if program.weight.shape[2] < 1:
        raise ValueError("weight must cover at least one frame")
    require(program.offset, "offset", np.float32, (atoms, 1, None))
    if program.offset.shape[2] not in (1, program.positions[1]):
        raise ValueError(
            f"offset must have 1 or {program.positions[1]} positions, got {program.offset.shape}"
        )


def _check_codes(program: ConvolutionProgram) -> None:
    """Check the couplings and the thresholds."""
    atoms = program.atoms
    require(program.soft, "soft", np.float32, (None, atoms))
    if program.depth < 1:
        raise ValueError("soft must have at least one layer")
    require_values(program.soft, "soft", lambda a: a >= 0, "non-negative")
    require(program.negative, "negative", np.float32, (atoms,))
    require_values(program.negative, "negative", lambda a: (a == 0) | (a == 1), "0 or 1")
    for name in ("couplings", "coupling_dilations"):
        values = getattr(program, name)
        if not isinstance(values, tuple) or len(values) != program.depth - 1:
            given = len(values) if isinstance(values, tuple) else repr(values)
            raise ValueError(f"{name} must have {program.depth - 1} entries, got {given}")
    for coupling in {id(coupling): coupling for coupling in program.couplings}.values():
        require(coupling, "couplings", np.float32, (atoms, atoms, None, None))
        first, second = coupling.shape[2:]
        if second % 2 == 0 or first < 1 or (first % 2 == 0 and not program.causal):
            raise ValueError(
                f"couplings must have odd numbers of taps, got {first} x {second}"
                + (", any number of frames apart" if program.causal else "")
            )
    for steps in program.coupling_dilations:
        _require_sides(steps, "coupling_dilations")


def _require_near(program: ConvolutionProgram) -> None:
    """Check that what layers read around their input is not much larger than a signal and codes.

    An engine keeps it. A causal program has a signal of one frame, and the frames before it.
    """
    first, second = (1, program.positions[1]) if program.causal else program.positions
    frames, side = (1, program.shape[1]) if program.causal else program.shape
    entries = side * program.channels * (1 + len(program.averages))
    codes = first * second * program.atoms
    kept = entries * (program.weight.shape[2] if program.causal else frames)
    around = [
        (d0 * (coupling.shape[2] - 1), d1 * (coupling.shape[3] - 1))
        for (d0, d1), coupling in zip(program.coupling_dilations, program.couplings, strict=True)
    ]
    kept += numbers_kept((first, second), program.atoms, around)
    if kept > max(MOST_KEPT, 9 * (frames * entries + program.depth * codes)):
        raise ValueError(
            f"weight and couplings must not reach far beyond {first} x {second} positions; with "
            f"dilations {program.coupling_dilations} layers keep {kept} numbers"
        )


def numbers_kept(positions: Sides, atoms: int, around: Sequence[Sides]) -> int:
    """The numbers of the codes that couplings read, with what is around the positions."""
    first, second = positions
    return sum(atoms * (first + above) * (second + left) for above, left in around)


def _require_sides(sides: object, name: str) -> None:
    fits = isinstance(sides, tuple) and len(sides) == 2 and all(_is_whole(s, 1) for s in sides)
    if not fits:
        raise ValueError(f"{name} must be two positive whole numbers, got {shown(sides)}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
