"""Files that are written whole or not at all.

The content goes to a part file beside the target, which replaces the target once it is complete. A
part file is locked while it is written; those of killed processes are removed by the next writer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # on Windows, where part files of killed processes stay
    fcntl = None  # type: ignore[assignment]

#: what cannot be replaced by a file, by the type in its mode
OTHERS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
#: errors of writing that do not name a file
UNNAMED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def as_target(path: str | os.PathLike[str]) -> Path:
    """Return the file that a path leads to through links, or raise an error if it cannot be one.

    It need not exist, but its folder must. Folders, devices and pipes raise a ValueError.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"{path} is a link to itself; give the name of a file") from error
    else:
        if stat.S_ISDIR(mode):
            raise ValueError(f"{path} is a folder; give the name of a file")
        if not stat.S_ISREG(mode):
            what = OTHERS.get(stat.S_IFMT(mode), "something else")
            raise ValueError(f"{path} is {what}, not a file; give the name of a file")
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent} to write {target.name} to")
    return target


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes to a file, whole or not at all."""
    with whole(path) as file:
        file.write(content)


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` on success and is deleted on an error."""
    with whole_files([path]) as (file,):
        yield file


@contextmanager
def whole_files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Sequence[BinaryIO]]:
    """Yield temporary files that replace all `paths` on success and are deleted on an error.

    Links stay, and what they lead to is replaced. An interrupt or a termination signal leaves all
    files or none: while they are renamed, it waits.
    """
    targets = [as_target(path) for path in paths]
    parts = [_Part(target) for target in targets]
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(part.open()) for part in parts]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        with signals_wait():
            for part in parts:
                part.replace()
    except OSError as error:
        named = _named(error, parts, paths)
        if named is None:
            raise
        raise named from error
    finally:
        for part in parts:
            part.remove()


class _Part:
    """The part file of a target: its name is short, since that of the target may be long."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.start = f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]}."
        self.path: Path | None = None
        self._claim = ExitStack()

    def open(self) -> BinaryIO:
        """Create the file, with the mode of the target or the user's usual one."""
        claim = claimed(self.target.parent, self.start, lambda path: open(path, "xb").close())
        self.path = self._claim.enter_context(claim)
        with suppress(OSError):
            shutil.copymode(self.target, self.path)
        return open(self.path, "wb")

    def replace(self) -> None:
        assert self.path is not None
        os.replace(self.path, self.target)
        self.path = None

    def remove(self) -> None:
        """Remove the file unless it has replaced the target."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()
        self._claim.close()


@contextmanager
def claimed(folder: Path, start: str, create: Callable[[Path], object]) -> Iterator[Path]:
    """Context manager: yields a new part file or folder, locked, after removing abandoned ones.

    `start` is how their names begin, and `create` makes one. The caller removes it.
    """
    _remove_abandoned(folder, start)
    while True:
        path = folder / f"{start}{secrets.token_hex(4)}.part"
        create(path)
        locked = _lock(path)
        if path.exists():
            break
        _unlock(locked)  # another process has taken it for an abandoned one
    try:
        yield path
    finally:
        _unlock(locked)


def _lock(path: Path, flags: int = 0) -> int | None:
    """Lock a file or folder; return a descriptor that keeps the lock, None where there are none."""
    if fcntl is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError:  # locked by another process, or a file system without locks
        os.close(descriptor)
        return None
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _remove_abandoned(folder: Path, start: str) -> None:
    """Remove the part files and folders with this start of their names that nobody has locked."""
    if fcntl is None:
        return
    for name in os.listdir(folder):
        if not (name.startswith(start) and name.endswith(".part")):
            continue
        descriptor = _lock(folder / name, fcntl.LOCK_NB)
        if descriptor is None:
            continue
        with suppress(OSError):
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                os.unlink(folder / name)
        _unlock(descriptor)


def _named(
    error: OSError, parts: Sequence[_Part], paths: Sequence[str | os.PathLike[str]]
) -> OSError | None:
    """The error with the name that the user gave, or None if it is not about writing the files."""
    for part, path in zip(parts, paths, strict=True):
        if error.filename is not None and Path(error.filename).name.startswith(part.start):
            return OSError(error.errno, error.strerror, str(path))
    if error.filename is None and error.errno in UNNAMED:
        return OSError(error.errno, error.strerror, str(paths[0]))
    return None


@contextmanager
def signals_wait() -> Iterator[None]:
    """Context manager: interrupts and termination signals are handled at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread handles signals
        return
    arrived: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, _: arrived.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None if it was not installed from Python
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    for late in arrived:
        signal.raise_signal(late)
