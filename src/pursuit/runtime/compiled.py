"""Compiled encoders: NumPy in, codes out, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._threads import cores, work_through
from ..fields import shown
from ..files import Saved, below, open_saved
from .checks import as_signals, require_finite, require_output
from .convolution import CompiledConvolution, ConvolutionProgram
from .executors import EXECUTORS, TILE_ROWS, Executor, Sparse
from .flat import flat
from .program import Program, from_arrays

Array = np.ndarray[Any, Any]

#: rows on which sparsity is measured
MEASURED = 256
#: fewer rows than this are "a few", for which another executor may be faster
FEW = 16
#: microseconds of work that justify a thread
WORTH_A_THREAD = 1500


@dataclass(frozen=True)
class Plan:
    """How a program is run, and why.

    Attributes
    ----------
    many, few
        The executors for batches and for a few signals at a time.
    changes
        The number of coefficients that each layer changes, measured or supposed.
    measured
        Whether `changes` were measured.
    estimates
        The estimated microseconds per signal of a batch, for each executor that fits.
    misfits
        What the program lacks for the other executors.
    """

    many: str
    few: str
    changes: tuple[float, ...]
    measured: bool
    estimates: dict[str, float]
    misfits: dict[str, str]

    def __str__(self) -> str:
        known = "measured" if self.measured else "supposed"
        changes = ", ".join(f"{value:.0f}" for value in self.changes)
        lines = [
            f"{self.many} for batches, {self.few} for fewer than {FEW} signals",
            f"coefficients that the layers change ({known}): {changes}",
        ]
        lines += [f"{name}: about {us:.2g} us a signal" for name, us in self.estimates.items()]
        lines += [f"{name}: not possible, needs {lack}" for name, lack in self.misfits.items()]
        return "\n".join(lines)


class Compiled:
    """An encoder that runs without torch: call it on signals (n, m) to get codes (n, q), float32.

    A batch with a value that is not finite raises a ValueError. Numbers below 1e-30 count as zero.

    Parameters
    ----------
    program
        The layers of the encoder, as `Encoder.program` returns them.
    sample
        Typical signals, to measure how sparse the codes are; by default the first large batch.
    threads
        The largest number of threads, by default the number of cores; small batches use fewer.
    kernel
        The executor, "dense", "sparse" or "fused"; "auto" takes the fastest.

    Attributes
    ----------
    features, size
        m and q.
    plan
        The `Plan` by which it runs.
    info
        The description of the encoder from its file.
    """

    def __init__(
        self, program: Program, sample: Any = None, threads: int | None = None, kernel: str = "auto"
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        if kernel != "auto" and kernel not in EXECUTORS:
            known = ", ".join(map(repr, EXECUTORS))
            raise ValueError(f"kernel must be 'auto' or one of {known}, got {kernel!r}")
        self.program = program
        self.threads = cores() if threads is None else threads
        self.features, self.size, self.info = program.features, program.size, program.info
        self._kernel = kernel
        self._executors: dict[str, Executor] = {}
        self.plan = self._planned(_supposed(program), measured=False)
        if sample is not None:
            self._measure(as_signals(sample, self.features))

    def __repr__(self) -> str:
        depth = len(self.program.layers)
        return f"Compiled(features={self.features}, size={self.size}, layers={depth})"

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
        single = np.ndim(x) == 1
        if not self.plan.measured and self._is_open and len(signals) >= FEW:
            self._measure(signals)
        shape = (self.size,) if single else (len(signals), self.size)
        codes = np.empty(shape, np.float32) if out is None else require_output(out, shape)
        self._encode(signals, codes.reshape(len(signals), self.size))
        return codes

    def stream(self, most: int = 1024) -> Stream:
        """Return a `Stream`, which reuses its memory, for blocks of up to `most` signals."""
        return Stream(self, most)

    def decode(self, codes: Any) -> Array:
        """Return the signals ``z D``, shape (n, m), of codes (n, q)."""
        given = np.asarray(codes, np.float32)
        if given.shape[-1:] != (self.size,):
            raise ValueError(f"codes must have {self.size} columns, got shape {given.shape}")
        atoms = self.program.dictionary
        signals: Array = given[..., : len(atoms)] @ atoms
        return signals if len(atoms) == self.size else signals + given[..., len(atoms) :]

    def _encode(self, x: Array, codes: Array) -> None:
        executor = self._executor(self.plan.many if len(x) >= FEW else self.plan.few)
        most = int(len(x) * self.plan.estimates[executor.name] / WORTH_A_THREAD)
        workers = max(1, min(self.threads, most))
        length = min(TILE_ROWS, max(1, -(-len(x) // workers)))
        tiles = [slice(start, start + length) for start in range(0, len(x), length)]

        def worker() -> Callable[[slice], None]:
            runner = _Runner(executor, length)
            return lambda tile: runner.run(x[tile], codes[tile], tile.start)

        work_through(tiles, worker, workers)

    @property
    def _is_open(self) -> bool:
        """Whether a measurement could change the choice."""
        return self._kernel == "auto" and len(self.plan.estimates) > 1

    def _measure(self, x: Array) -> None:
        """Measure how many coefficients the layers change, and choose the executors again."""
        executor = self._executor("sparse")
        assert isinstance(executor, Sparse)
        rows = x[:: -(-len(x) // MEASURED)]  # from the whole batch, which may begin with silence
        _Runner(executor, len(rows)).run(rows, np.empty((len(rows), self.size), np.float32), 0)
        self.plan = self._planned(executor.measured(), measured=True)

    def _planned(self, changes: Sequence[float], measured: bool) -> Plan:
        misfits, estimates, few = {}, {}, {}
        for name, kind in EXECUTORS.items():
            lack = kind.misfit(self.program)
            if lack is not None:
                misfits[name] = lack
                continue
            estimates[name] = kind.estimate(self.program, changes, rows=1024)
            few[name] = kind.estimate(self.program, changes, rows=1)
        if self._kernel in misfits:
            raise ValueError(
                f"kernel {self._kernel!r} cannot run this encoder: it needs {misfits[self._kernel]}"
            )
        best, best_few = (min(costs, key=costs.__getitem__) for costs in (estimates, few))
        if self._kernel != "auto":
            best = best_few = self._kernel
        return Plan(best, best_few, tuple(changes), measured, estimates, misfits)

    def flat(self) -> bytes:
        """Return the program as one buffer, for the library and the WebAssembly module.

        Both are in `native/standalone` and need no Python.
        """
        executor = self._executor(self.plan.many)
        return flat(executor.arrays(), executor.name)

    def _executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = EXECUTORS[name](self.program)
        return self._executors[name]


class Stream:
    """Encodes a stream of signals in blocks of any size, with the codes of one large batch.

    The codes have the same bits if the plan has one executor for all blocks, as with a named
    kernel, and are equal to 1e-5 of the largest coefficient otherwise. Memory is allocated once,
    and the plan is that of the encoder when the stream is created. The codes that a call returns
    are overwritten by the next call.

    Parameters
    ----------
    compiled
        The compiled encoder.
    most
        The largest number of signals that are encoded together; longer blocks are split.
    """

    def __init__(self, compiled: Compiled, most: int = 1024) -> None:
        if most < 1:
            raise ValueError(f"most must be at least 1, got {most}")
        self.compiled = compiled
        self.plan = compiled.plan  # kept, so that the kernel does not change
        self.frames = 0
        self._codes = np.empty((most, compiled.size), np.float32)
        self._runners: dict[str, _Runner] = {}

    def __call__(self, x: Any, out: Array | None = None) -> Array:
        """Return the codes of a block (n, m) or of one frame (m,), in `out` if it is given."""
        compiled = self.compiled
        signals = as_signals(x, compiled.features)
        n = len(signals)
        if out is not None:
            codes = require_output(out, (compiled.size,) if np.ndim(x) == 1 else (n, compiled.size))
        else:
            if n > len(self._codes):
                self._codes = np.empty((n, compiled.size), np.float32)
            codes = self._codes[0] if np.ndim(x) == 1 else self._codes[:n]
        rows = codes.reshape(n, compiled.size)
        runner = self._runner(self.plan.many if n >= FEW else self.plan.few)
        for start in range(0, n, runner.rows):
            tile = slice(start, start + runner.rows)
            runner.run(signals[tile], rows[tile], self.frames + start)
        self.frames += n
        return codes

    def _runner(self, name: str) -> _Runner:
        if name not in self._runners:
            executor = self.compiled._executor(name)
            self._runners[name] = _Runner(executor, min(TILE_ROWS, len(self._codes)))
        return self._runners[name]


class CompiledBank:
    """One compiled encoder per class; a call returns the codes of each."""

    def __init__(self, encoders: Sequence[Compiled | CompiledConvolution]) -> None:
        self.encoders = tuple(encoders)

    def __len__(self) -> int:
        return len(self.encoders)

    def __getitem__(self, number: int) -> Compiled | CompiledConvolution:
        return self.encoders[number]

    def __call__(self, x: Any) -> list[Array]:
        return [encoder(x) for encoder in self.encoders]

    def errors(self, x: Any) -> Array:
        """Return ``||x - decode(codes)||^2`` of each encoder, shape (n, classes)."""
        signals = np.asarray(x, np.float32)
        residuals = [signals - encoder.decode(encoder(signals)) for encoder in self.encoders]
        return np.stack([np.square(residual).sum(axis=-1) for residual in residuals], axis=-1)


def compile(
    encoder: Any, sample: Any = None, threads: int | None = None, kernel: str = "auto"
) -> Compiled | CompiledConvolution | CompiledBank:
    """Compile an encoder to run on NumPy arrays at full speed, without gradients.

    Parameters
    ----------
    encoder
        An encoder or an `EncoderBank`. Later training does not change the compiled one.
    sample, threads, kernel
        See `Compiled`.

    Returns
    -------
    Compiled, CompiledConvolution or CompiledBank
        Maps signals (n, m) to codes (n, q), float32.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> encoder = pu.ProximalEncoder(pu.models.Lasso(torch.eye(2), lam=1.0), layers=3)
    >>> pu.compile(encoder)([[3.0, -0.5]]).tolist()
    [[2.0, 0.0]]
    """
    programs = getattr(encoder, "programs", None)
    if callable(programs):
        return CompiledBank([_compiled(p, sample, threads, kernel) for p in programs()])
    if not callable(getattr(encoder, "program", None)):
        raise TypeError(
            f"an encoder or an EncoderBank can be compiled, got {type(encoder).__name__}"
        )
    return _compiled(encoder.program(), sample, threads, kernel)


def load(
    path: str | os.PathLike[str],
    sample: Any = None,
    threads: int | None = None,
    kernel: str = "auto",
) -> Compiled | CompiledConvolution | CompiledBank:
    """Read an encoder that `pursuit.save` has written, without torch; see `Compiled`."""
    return build(open_saved(path), sample, threads, kernel)


def build(
    saved: Saved, sample: Any = None, threads: int | None = None, kernel: str = "auto"
) -> Compiled | CompiledConvolution | CompiledBank:
    """Compile the encoder of a file that `files.open_saved` has read, without torch."""
    info = saved.info
    arrays = below(saved.arrays, "program.")
    try:
        match info.get("kind"):
            case "encoder":
                return _compiled(from_arrays(arrays, info), sample, threads, kernel)
            case "bank":
                members = info.get("encoders")
                if not isinstance(members, list) or not all(isinstance(m, dict) for m in members):
                    raise ValueError("encoders must be a list of descriptions")
                parts = [(below(arrays, f"{n}."), member) for n, member in enumerate(members)]
                programs = [from_arrays(*part) for part in parts]
                return CompiledBank([_compiled(p, sample, threads, kernel) for p in programs])
            case kind:
                what = f"only encoders and banks of them can be run, this is a {shown(kind)}"
                raise ValueError(what)
    except ValueError as error:
        raise ValueError(f"{saved.path} cannot be run: {error}") from error


def _compiled(
    program: Program | ConvolutionProgram, sample: Any, threads: int | None, kernel: str
) -> Compiled | CompiledConvolution:
    if isinstance(program, Program):
        return Compiled(program, sample, threads, kernel)
    if kernel != "auto":
        raise ValueError(f"kernel must be 'auto' for a convolutional encoder, got {kernel!r}")
    return CompiledConvolution(program, threads)


class _Runner:
    """An executor with the memory of one thread, for tiles of up to `rows` signals."""

    def __init__(self, executor: Executor, rows: int) -> None:
        self.executor, self.rows = executor, rows
        self.scratch = executor.scratch(rows)

    def run(self, x: Array, codes: Array, first: int) -> None:
        """Encode a tile; `first` is the number of its first row, for errors."""
        if not self.executor.run(np.ascontiguousarray(x), codes, self.scratch):
            with np.errstate(over="ignore"):
                require_finite(x.astype(np.float32), "x", "row", first)


def _supposed(program: Program) -> list[float]:
    """How many coefficients the layers are supposed to change, until it is measured."""
    widths, size = (layer.width for layer in program.layers), program.size
    return [width if 0 < width < size else size / 6 for width in widths]
