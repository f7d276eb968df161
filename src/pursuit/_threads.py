"""Threads: tiles of work distributed over threads, and how many threads other libraries start."""

from __future__ import annotations

import os
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any


def work_through(
    tiles: Sequence[slice], worker: Callable[[], Callable[[slice], None]], threads: int
) -> None:
    """Run all tiles on `threads` threads, this one included, or raise the first tile's error.

    Each thread calls `worker` once, and what it returns with one tile after the other. No thread is
    waited for before it has a tile: on busy cores it may start milliseconds later.
    """
    rest = deque(tiles)
    failures: list[tuple[int, Exception]] = []

    def work() -> None:
        run = None
        while rest:
            try:
                tile = rest.popleft()  # a free thread takes the next tile
            except IndexError:  # another thread was quicker
                return
            try:  # a tile that was taken is run, so that the first failure is reported
                run = run or worker()
                run(tile)
            except Exception as error:
                rest.clear()
                failures.append((tile.start, error))

    def help_out(busy: LockType) -> None:
        with busy:
            work()

    others = [allocate_lock() for _ in range(threads - 1)]
    try:
        for busy in others:
            start_new_thread(help_out, (busy,))
        work()
    finally:
        rest.clear()  # after an interrupt the others end with the tile in hand
        for busy in others:
            with busy:
                pass
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]


def equal_parts(rows: int, count: int) -> list[slice]:
    """Divide rows into a number of parts that differ by one row at most."""
    return [slice(*edges) for edges in pairwise(rows * k // count for k in range(count + 1))]


def cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _blas() -> list[Any]:
    """The BLAS libraries whose number of threads can be set; none without threadpoolctl."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return []
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS from starting threads: the tiles are distributed over threads already."""
    before = [(library, library.num_threads) for library in _blas() if library.num_threads != 1]
    for library, _ in before:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, count in before:
            library.set_num_threads(count)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Context manager that limits torch, BLAS and OpenMP to `count` threads."""
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threadpool_limits(count):
            yield
    finally:
        torch.set_num_threads(before)
