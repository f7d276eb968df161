"""`pursuit separate --live`: raw samples from stdin to stdout, as soon as they arrive."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..audio.parts import Parts, PartStream
from ..audio.streams import Array
from .errors import warn

if TYPE_CHECKING:
    from ..audio.separation import Separator

STDIN, STDOUT = 0, 1
#: the most bytes that are read at once; fewer are processed as they come
READ = 2**16
#: the bytes of a sample, and the bits of integers
BYTES = {"s16le": 2, "s24le": 3, "f32le": 4}
BITS = {"s16le": 16, "s24le": 24}


def run(
    separator: Separator, rate: int, channels: int, encoding: str, part: str, low: bool
) -> None:
    """Separate samples from stdin until they end, or until the reader of stdout has closed it.

    `low` takes resampling of a lower quality and delay, where rates differ.
    """
    quality = "LQ" if low and rate != separator.rate else "HQ"
    stream = PartStream(
        separator.stream(rate, channels, quality=quality), channels, BITS.get(encoding)
    )
    print(f"latency {1000 * stream.latency / rate:.0f} ms", file=sys.stderr, flush=True)
    try:
        _copy(stream, channels, encoding, _chosen(part), rate)
    except BrokenPipeError:
        return


def _copy(
    stream: PartStream, channels: int, encoding: str, choose: Callable[[Parts], Array], rate: int
) -> None:
    size = channels * BYTES[encoding]
    rest, done = b"", 0
    while data := os.read(STDIN, READ):
        rest += data
        whole = len(rest) - len(rest) % size
        samples = decode(rest[:whole], encoding, channels)
        rest = rest[whole:]
        if not np.isfinite(samples).all():
            place = done + int(np.argwhere(~np.isfinite(samples))[0, 0])
            raise ValueError(
                f"stdin has a value that is not finite at sample {place} ({place / rate:.3f} s); "
                f"check that it is {encoding} with {channels} channels"
            )
        done += len(samples)
        _write(encode(choose(stream.push(samples)), encoding))
    if rest:
        warn(f"the last {len(rest)} bytes are no whole sample of {size} and are left out")
    _write(encode(choose(stream.flush()), encoding))


def _chosen(part: str) -> Callable[[Parts], Array]:
    """The function from both parts to the samples to write."""
    if part == "both":
        return lambda parts: np.concatenate(parts, axis=1)
    return lambda parts: getattr(parts, part)


def _write(data: bytes) -> None:
    # without a buffer: the next program gets the samples at once
    view = memoryview(data)
    while view:
        view = view[os.write(STDOUT, view) :]


def decode(data: bytes, encoding: str, channels: int) -> Array:
    """Return samples (n, channels) in float64; integers are scaled to [-1, 1)."""
    match encoding:
        case "s16le":
            samples = np.frombuffer(data, "<i2") / 2.0**15
        case "s24le":
            words = np.zeros((len(data) // 3, 4), np.uint8)
            words[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
            samples = words.view("<i4")[:, 0] / 2.0**31
        case _:
            samples = np.frombuffer(data, "<f4").astype(np.float64)
    return samples.reshape(-1, channels)


def encode(samples: Array, encoding: str) -> bytes:
    """Return the bytes of samples (n, channels): integers, or real numbers for f32le."""
    match encoding:
        case "s16le":
            return samples.astype("<i2").tobytes()
        case "s24le":
            words = np.ascontiguousarray(samples, "<i4").reshape(-1, 1).view(np.uint8)
            return words[:, :3].tobytes()
        case _:
            return samples.astype("<f4").tobytes()
