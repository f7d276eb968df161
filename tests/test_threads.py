"""Tiles of work are distributed over threads, whenever these start and whatever fails."""

from __future__ import annotations

import threading
import time

import pytest

from pursuit import _threads
from pursuit._threads import equal_parts, work_through

TILES = equal_parts(100, 20)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_tile_is_run_once_and_each_thread_has_one_worker(threads: int) -> None:
    workers, done = [], []

    def worker() -> object:
        workers.append(threading.get_ident())

        def run(tile: slice) -> None:
            time.sleep(0.001)
            done.append((tile.start, threading.get_ident()))

        return run

    work_through(TILES, worker, threads)
    assert sorted(start for start, _ in done) == [tile.start for tile in TILES]
    assert len(set(workers)) == len(workers) <= threads
    assert {thread for _, thread in done} == set(workers)


def test_a_thread_that_starts_late_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    late = []
    monkeypatch.setattr(_threads, "start_new_thread", lambda *given: late.append(given))
    done: list[int] = []
    work_through(TILES, lambda: lambda tile: done.append(tile.start), 3)
    assert done == [tile.start for tile in TILES]
    assert len(late) == 2
    for function, given in late:
        function(*given)
    assert len(done) == len(TILES)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_error_of_the_first_tile_is_raised(threads: int) -> None:
    ran = []

    def run(tile: slice) -> None:
        ran.append(tile.start)
        time.sleep(0.002 if tile.start == 25 else 0.0)
        if tile.start >= 25:
            raise ValueError(f"tile {tile.start}")

    with pytest.raises(ValueError, match="tile 25"):
        work_through(TILES, lambda: run, threads)
    assert len(ran) < len(TILES)


def test_a_worker_that_cannot_be_made_is_an_error() -> None:
    def worker() -> object:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        work_through(TILES, worker, 2)


def test_an_interrupt_stops_all_threads() -> None:
    main, ran = threading.get_ident(), []

    def run(tile: slice) -> None:
        ran.append(tile.start)
        time.sleep(0.01)
        if threading.get_ident() == main:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_through(TILES, lambda: run, 2)
    count = len(ran)
    assert count < len(TILES)
    time.sleep(0.05)
    assert len(ran) == count


def test_parts_differ_by_one_row_at_most() -> None:
    for rows, count in ((0, 1), (1, 3), (10, 3), (12, 4)):
        parts = equal_parts(rows, count)
        assert [p.start for p in parts] == [0, *(p.stop for p in parts[:-1])]
        assert parts[-1].stop == rows
        sizes = [p.stop - p.start for p in parts]
        assert max(sizes) - min(sizes) <= 1
