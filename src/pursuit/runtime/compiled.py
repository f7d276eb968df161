"""Compiled encoders: NumPy in, codes out, without torch."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..files import Saved, below, open_saved
from .executors import EXECUTORS, TINY, Executor, Sparse
from .program import Program, from_arrays

Array = np.ndarray[Any, Any]

logger = logging.getLogger(__name__)

#: rows on which sparsity is measured
MEASURED = 256
#: fewer rows than this are "a few", for which another executor may be quicker
FEW = 16
#: what the kernels read as it stands
NATIVE = (np.dtype(np.float32), np.dtype(np.float64))
#: seconds of compilation after which it is announced
PATIENCE = 1.0
#: microseconds of work that are worth a thread; threads with less hinder each other
WORTH_A_THREAD = 1500


@dataclass(frozen=True)
class Plan:
    """How a program is run, and why.

    Attributes
    ----------
    many, few
        The executor for batches, and for a few signals at a time.
    changes
        How many coefficients each layer changes, measured or supposed.
    measured
        Whether they were measured.
    estimates
        About how many microseconds a signal takes in a batch, for each executor that fits.
    misfits
        What the program lacks for the others.
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

    A signal that is not finite is refused with a ValueError, and so is the whole batch. Numbers
    below 1e-30 count as zero.

    Parameters
    ----------
    program
        What is run.
    sample
        Signals like those to come, to measure how sparse the codes are; by default the first
        batch with enough rows serves.
    threads
        The most tiles that are worked on at the same time, fewer where there is little to do; by
        default as many as there are cores.
    kernel
        "auto", or the executor that must be taken: "dense", "sparse" or "fused".

    Attributes
    ----------
    features, size
        m and q.
    info
        What the file says about the encoder.
    """

    def __init__(
        self,
        program: Program,
        sample: Any = None,
        threads: int | None = None,
        kernel: str = "auto",
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        if kernel != "auto" and kernel not in EXECUTORS:
            known = ", ".join(map(repr, EXECUTORS))
            raise ValueError(f"kernel must be 'auto' or one of {known}, got {kernel!r}")
        self.program = program
        self.threads = _cores() if threads is None else threads
        self.features, self.size, self.info = program.features, program.size, program.info
        self._kernel = kernel
        self._executors: dict[str, Executor] = {}
        self._ready: set[str] = set()
        self.plan = self._planned(_supposed(program), measured=False)
        if sample is not None:
            self._measure(self._signals(sample))

    def __repr__(self) -> str:
        depth = len(self.program.layers)
        return f"Compiled(features={self.features}, size={self.size}, layers={depth})"

    def __call__(self, x: Any, out: Array | None = None) -> Array:
        """The codes of signals (n, m) or of one signal (m,).

        Parameters
        ----------
        x
            An array, a memory map, or anything that NumPy makes an array of.
        out
            Room for the result, float32, shape (n, q); partly written if an error is raised.
        """
        signals = self._signals(x)
        single = np.ndim(x) == 1
        if not self.plan.measured and self._is_open and len(signals) >= FEW:
            self._measure(signals)
        shape = (self.size,) if single else (len(signals), self.size)
        codes = np.empty(shape, np.float32) if out is None else _room(out, shape)
        self._encode(signals, codes.reshape(len(signals), self.size))
        return codes

    def stream(self, most: int = 1024) -> Stream:
        """A runner that reuses its memory, for frames or blocks of up to `most` signals."""
        return Stream(self, most)

    def decode(self, codes: Any) -> Array:
        """The signals that codes (n, q) stand for, ``z D``, shape (n, m)."""
        given = np.asarray(codes, np.float32)
        if given.shape[-1:] != (self.size,):
            raise ValueError(f"codes must have {self.size} columns, got shape {given.shape}")
        atoms = self.program.dictionary
        signals: Array = given[..., : len(atoms)] @ atoms
        return signals if len(atoms) == self.size else signals + given[..., len(atoms) :]

    # ---- how ---------------------------------------------------------------------------

    def _signals(self, x: Any) -> Array:
        signals = np.asarray(x)
        if signals.ndim == 1:
            signals = signals[None]
        if signals.ndim != 2 or signals.shape[1] != self.features:
            raise ValueError(
                f"x must have shape (n, {self.features}) or ({self.features},), got {np.shape(x)}"
            )
        if signals.dtype.kind not in "fiu":
            raise TypeError(f"x must hold real numbers, got {signals.dtype}")
        # the kernels read native single and double precision; all else is converted at once
        return signals if signals.dtype in NATIVE else signals.astype(np.float32)

    def _encode(self, x: Array, codes: Array) -> None:
        executor = self._executor(self.plan.many if len(x) >= FEW else self.plan.few)
        most = int(len(x) * self.plan.estimates[executor.name] / WORTH_A_THREAD)
        workers = max(1, min(self.threads, most))
        length = min(executor.tile, max(1, -(-len(x) // workers)))
        tiles = iter([slice(start, start + length) for start in range(0, len(x), length)])
        failures: list[tuple[int, Exception]] = []

        def work() -> None:
            room = _Room(executor, length)
            while not failures:
                tile = next(tiles, None)  # whoever is free takes the next
                if tile is None:
                    return
                try:  # what was taken is run, so that no earlier failure is missed
                    room.run(x[tile], codes[tile], tile.start)
                except Exception as error:
                    failures.append((tile.start, error))

        with _one_blas_thread() if len(x) >= FEW else nullcontext():
            others = [threading.Thread(target=work) for _ in range(workers - 1)]
            for thread in others:
                thread.start()
            work()
            for thread in others:
                thread.join()
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]

    @property
    def _is_open(self) -> bool:
        """Whether what is measured could change the choice."""
        return self._kernel == "auto" and len(self.plan.estimates) > 1

    def _measure(self, x: Array) -> None:
        """Choose anew, knowing how many coefficients the layers change."""
        executor = self._executor("sparse")
        assert isinstance(executor, Sparse)
        rows = x[:: -(-len(x) // MEASURED)]  # from all of them: a stream may begin with silence
        room = _Room(executor, len(rows))
        room.run(rows, np.empty((len(rows), self.size), np.float32), 0)
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
        chosen = self._kernel != "auto"
        return Plan(
            many=self._kernel if chosen else min(estimates, key=estimates.__getitem__),
            few=self._kernel if chosen else min(few, key=few.__getitem__),
            changes=tuple(changes),
            measured=measured,
            estimates=estimates,
            misfits=misfits,
        )

    def _executor(self, name: str) -> Executor:
        if name not in self._executors:
            self._executors[name] = EXECUTORS[name](self.program)
        executor = self._executors[name]
        if name not in self._ready:
            with _announced(f"compiling the {name} kernels (once on this machine)"):
                zeros = np.zeros((1, self.features), np.float32)
                room = _Room(executor, 1)
                room.run(zeros, np.empty((1, self.size), np.float32), 0)
            if isinstance(executor, Sparse):
                executor.changes[:], executor.rows = 0, 0
            self._ready.add(name)
        return executor


class Stream:
    """Signals as they come, in blocks of any size, with the codes of the whole batch.

    Its memory is taken once, and its plan is that of the moment. The codes that a call returns are
    overwritten by the next call.

    Parameters
    ----------
    compiled
        What encodes.
    most
        The most signals of a block that are worked on at a time; longer ones are cut.
    """

    def __init__(self, compiled: Compiled, most: int = 1024) -> None:
        if most < 1:
            raise ValueError(f"most must be at least 1, got {most}")
        self.compiled = compiled
        self.plan = compiled.plan  # kept, so that the kernel does not change on the way
        self.frames = 0
        self._codes = np.empty((most, compiled.size), np.float32)
        self._rooms: dict[str, _Room] = {}

    def __call__(self, x: Any, out: Array | None = None) -> Array:
        """The codes of a block (n, m), or of one frame (m,); a view that is reused if no `out`."""
        compiled = self.compiled
        signals = compiled._signals(x)
        n = len(signals)
        if out is not None:
            codes = _room(out, (compiled.size,) if np.ndim(x) == 1 else (n, compiled.size))
        else:
            if n > len(self._codes):
                self._codes = np.empty((n, compiled.size), np.float32)
            codes = self._codes[0] if np.ndim(x) == 1 else self._codes[:n]
        rows = codes.reshape(n, compiled.size)
        room = self._room_of(self.plan.many if n >= FEW else self.plan.few)
        with _one_blas_thread() if n >= FEW else nullcontext():
            for start in range(0, n, room.rows):
                tile = slice(start, start + room.rows)
                room.run(signals[tile], rows[tile], self.frames + start)
        self.frames += n
        return codes if out is None else out

    def _room_of(self, name: str) -> _Room:
        if name not in self._rooms:
            executor = self.compiled._executor(name)
            self._rooms[name] = _Room(executor, min(executor.tile, len(self._codes)))
        return self._rooms[name]


class CompiledBank:
    """One compiled encoder a class; calling it gives the codes of each."""

    def __init__(self, encoders: Sequence[Compiled]) -> None:
        self.encoders = tuple(encoders)

    def __len__(self) -> int:
        return len(self.encoders)

    def __getitem__(self, number: int) -> Compiled:
        return self.encoders[number]

    def __call__(self, x: Any) -> list[Array]:
        return [encoder(x) for encoder in self.encoders]

    def errors(self, x: Any) -> Array:
        """``||x - decode(codes)||^2`` of each encoder, shape (n, classes)."""
        signals = np.asarray(x, np.float32)
        left = [signals - encoder.decode(encoder(signals)) for encoder in self.encoders]
        return np.stack([np.square(one).sum(axis=-1) for one in left], axis=-1)


def compile(
    encoder: Any, sample: Any = None, threads: int | None = None, kernel: str = "auto"
) -> Compiled | CompiledBank:
    """An encoder as it is now, to run on NumPy arrays at full speed, without gradients.

    Parameters
    ----------
    encoder
        An encoder, or an `EncoderBank`. What it learns later does not reach what was compiled.
    sample, threads, kernel
        See `Compiled`.

    Returns
    -------
    Compiled
        Called on signals (n, m) it gives codes (n, q), float32; `.plan` tells how it runs.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> encoder = pu.ProximalEncoder(pu.models.Lasso(torch.eye(2), lam=1.0), layers=3)
    >>> pu.compile(encoder)([[3.0, -0.5]]).tolist()
    [[2.0, 0.0]]
    """
    programs = getattr(encoder, "programs", None)
    if callable(programs):
        return CompiledBank([Compiled(p, sample, threads, kernel) for p in programs()])
    if not callable(getattr(encoder, "program", None)):
        raise TypeError(
            f"an encoder or an EncoderBank can be compiled, got {type(encoder).__name__}"
        )
    return Compiled(encoder.program(), sample, threads, kernel)


def load(
    path: str | os.PathLike[str],
    sample: Any = None,
    threads: int | None = None,
    kernel: str = "auto",
) -> Compiled | CompiledBank:
    """Read an encoder that `pursuit.save` has written, without torch; see `Compiled`."""
    return build(open_saved(path), sample, threads, kernel)


def build(
    saved: Saved, sample: Any = None, threads: int | None = None, kernel: str = "auto"
) -> Compiled | CompiledBank:
    """The encoder of a file that `files.open_saved` has opened, without torch; see `load`."""
    info = saved.info
    arrays = below(saved.arrays, "program.")
    try:
        match info.get("kind"):
            case "encoder":
                return Compiled(from_arrays(arrays, info), sample, threads, kernel)
            case "bank":
                programs = [
                    from_arrays(below(arrays, f"{number}."), member)
                    for number, member in enumerate(_members(info))
                ]
                return CompiledBank([Compiled(p, sample, threads, kernel) for p in programs])
            case kind:
                raise ValueError(f"only encoders and banks of them can be run, this is a {kind!r}")
    except ValueError as error:
        raise ValueError(f"{saved.path} cannot be run: {error}") from error


def _members(info: dict[str, Any]) -> list[dict[str, Any]]:
    members = info.get("encoders")
    if not isinstance(members, list) or not all(isinstance(one, dict) for one in members):
        raise ValueError("encoders must be a list of descriptions")
    return members


class _Room:
    """An executor with its memory and room for prepared signals."""

    def __init__(self, executor: Executor, rows: int) -> None:
        self.executor, self.rows = executor, rows
        self.signals = np.empty((rows, executor.program.features), np.float32)
        self.memory = executor.room(rows)

    def run(self, x: Array, codes: Array, first: int) -> None:
        """Encode a tile; `first` is the number of its first row, for errors."""
        from .dense_kernels import prepare

        signals = self.signals[: len(x)]
        x = np.ascontiguousarray(x)  # one layout, so that one kernel serves all
        if not prepare(x, np.float32(TINY), signals):
            bad = np.flatnonzero(~np.isfinite(signals).all(axis=1))
            if len(bad) > 0:
                raise ValueError(
                    f"x contains NaN or infinite values, first in row {first + bad[0]}; "
                    "remove or replace them"
                )
        self.executor.run(signals, codes, self.memory)


def _supposed(program: Program) -> list[float]:
    """How many coefficients layers change, before anything was measured."""
    return [layer.width if 0 < layer.width < program.size else program.size / 6
            for layer in program.layers]  # fmt: skip


def _room(out: Array, shape: tuple[int, ...]) -> Array:
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != shape:
        given = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out)
        raise ValueError(f"out must be a float32 array of shape {shape}, got {given}")
    if not out.flags.c_contiguous:
        raise ValueError("out must be contiguous")
    return out


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _blas() -> list[Any]:
    """The BLAS libraries whose threads can be told; none without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    """Tiles are shared out among threads here; BLAS must not start threads of its own."""
    before = [(library, library.num_threads) for library in _blas()]
    for library, count in before:
        if count != 1:
            library.set_num_threads(1)
    try:
        yield
    finally:
        for library, count in before:
            if count != 1:
                library.set_num_threads(count)


@contextmanager
def _announced(message: str) -> Iterator[None]:
    """Log a message if what happens inside takes long."""
    timer = threading.Timer(PATIENCE, logger.warning, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
