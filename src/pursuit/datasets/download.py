"""Downloads, each made once and then verified, and tables that describe a data set.

A checksum is given by the caller, or else that of the first download is recorded and later
downloads of the same address must agree with it.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .._words import one_line
from ..files import write_whole
from ..progress import Callback, Progress

#: the file in which checksums of first downloads are recorded, by address
CHECKSUMS = "checksums.json"
#: bytes received at a time
CHUNK = 2**16


def cache_folder() -> Path:
    """The default folder of downloads: ``$PURSUIT_CACHE``, or the system's folder for caches."""
    chosen = os.environ.get("PURSUIT_CACHE")
    return Path(chosen).expanduser() if chosen else Path(_pooch().os_cache("pursuit"))


def fetch(
    url: str,
    folder: str | os.PathLike[str],
    name: str | None = None,
    sha256: str | None = None,
    progress: Callback | None = None,
) -> Path:
    """Download a file into a folder, unless it is there and its checksum agrees; return its path.

    The default name is the last part of the address. Without a checksum, that of the first download
    is recorded in ``checksums.json`` beside the file; a file that was put there by hand counts as
    one. A download that fails raises a ConnectionError and leaves the folder unchanged. `progress`
    counts bytes, and has no total if the server does not give the length.
    """
    pooch = _pooch()
    from requests import RequestException

    folder = Path(folder).expanduser()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"url must be an http or https address, got {url!r}")
    name = unquote(parts.path.rpartition("/")[2]) if name is None else name
    if name in ("", ".", "..", CHECKSUMS) or re.search(r"[/\\]", name):
        raise ValueError(f"name must be that of a file in {folder}, got {name!r}")
    path = folder / name
    kept = _kept(folder)
    known = kept.get(url)
    if sha256 is not None:
        known = sha256.strip().lower()
        if not re.fullmatch(r"[0-9a-f]{64}", known):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")

    def download(address: str, temporary: str, _: Any) -> None:
        # pooch has made it readable by its owner only; a new one has the usual permissions
        os.unlink(temporary)
        bar = False if progress is None else _Bar(name, progress)
        pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK)(address, temporary, None)
        actual = pooch.file_hash(temporary)
        if known in (None, actual):
            return
        if sha256 is None:
            raise ValueError(
                f"{url} has changed: its sha256 is {actual}, at the first download it was {known}; "
                f"if the new content is right, remove its line from {folder / CHECKSUMS}"
            )
        raise ValueError(
            f"{url} has the sha256 {actual}, but {known} was expected; "
            "check both, nothing was saved"
        )

    try:
        with _silent(pooch.get_logger()):
            pooch.retrieve(url, known, name, folder, downloader=download)
        if known is None:
            content = json.dumps({**_kept(folder), url: pooch.file_hash(str(path))}, indent=1)
            write_whole(folder / CHECKSUMS, content.encode())
    except RequestException as error:
        raise ConnectionError(
            f"{url} could not be downloaded: {one_line(error)}; "
            f"try again, or download it by hand to {path}"
        ) from error
    except OSError as error:
        raise OSError(f"{url} could not be saved as {path}: {one_line(error)}") from error
    return path


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """The folder of a data set: the subfolder of that name if it exists, else the folder itself."""
    parent = Path(folder).expanduser()
    return parent / name if (parent / name).is_dir() else parent


def read_table(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a .csv file with a header, restricted to these columns, which it must have."""
    try:
        # utf-8-sig: some spreadsheets write a byte order mark in front of the first name
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a table: {one_line(error)}") from error
    missing = [column for column in columns if column not in names]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]}; it has {', '.join(names) or 'none'}")
    for line, row in rows:
        if None in row or None in row.values():
            raise ValueError(
                f"{path} must have {len(names)} entries on each line, but line {line} has not"
            )
    return [{column: row[column].strip() for column in columns} for _, row in rows]


def _pooch() -> Any:
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            "downloads need pooch; install it with pip install 'pursuit[data]'"
        ) from error
    return pooch


def _kept(folder: Path) -> dict[str, str]:
    """The recorded checksums of first downloads into a folder."""
    path = folder / CHECKSUMS
    try:
        kept = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        kept = None
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise ValueError(f"{path} is not the list of checksums that was written; delete it")
    return kept


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Context manager: the logger passes on warnings and errors only."""

    # a filter, because a logger outside logging's hierarchy caches the answers of an old level
    def loud(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    logger.addFilter(loud)
    try:
        yield
    finally:
        logger.removeFilter(loud)


class _Bar:
    """A progress bar as pooch expects it, which calls `progress`; pooch fills it at the end."""

    def __init__(self, name: str, progress: Callback) -> None:
        self.name, self.progress = name, progress
        self.total = self.done = 0

    def update(self, more: int) -> None:
        self.done += more
        if self.total:
            self.done = min(self.done, self.total)
        if more:
            self.progress(Progress(f"fetching {self.name}", self.done, self.total or None))

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
