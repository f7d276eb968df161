"""The frame of all experiments: settings, cached parts, a result, a report.

An experiment is a list of parts. Each is computed once and saved in a separate file, so that an
interrupted run can be continued; the cache key consists of the experiment's name, its settings, a
stamp of its data, and the version of the library. The parts together make the result (JSON), and a
`Description` turns the result into a report (HTML and Markdown).
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from .. import __version__
from ..files import write_whole
from ..progress import Callback, Progress
from ..report import Report


@dataclass(frozen=True)
class Settings:
    """The settings of an experiment; the defaults of subclasses are the values of the paper.

    Everything random is repeated for each seed; figures show mean and range.
    """

    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Part:
    """A piece of work that is cached in a file of that name."""

    name: str
    what: str  # what is computed, for the display of progress
    compute: Callable[[], Any]  # its result must be serialisable as JSON


class Experiment(ABC):
    """The numbers of a figure or table of the paper.

    `data` is the folder with the real data; by default embedded or synthetic data are used.
    """

    name: ClassVar[str]

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        self.settings, self.data = settings, data

    @classmethod
    @abstractmethod
    def configure(cls, data: Path | None, quick: bool) -> Settings:
        """The settings for some data; with `quick`, for a run of less than a minute."""

    @classmethod
    @abstractmethod
    def download(cls, progress: Callback | None = None) -> Path:
        """Download the real data, unless they are there, and return their folder."""

    @property
    @abstractmethod
    def stamp(self) -> str:
        """A text that changes when the data change."""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """The parts to compute."""

    @abstractmethod
    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The result, from the values of the parts by name."""

    @property
    @abstractmethod
    def description(self) -> Description:
        """The text and the figures of the report."""

    @property
    def fingerprint(self) -> str:
        """The key of the cached parts; it does not depend on any text of the report."""
        key = [self.name, asdict(self.settings), self.stamp, __version__]
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


class Description(ABC):
    """The report of an experiment, made from its result."""

    title: ClassVar[str]

    @property
    @abstractmethod
    def source(self) -> str:
        """The origin of the data and how they are split."""

    @property
    @abstractmethod
    def differences(self) -> Sequence[str]:
        """The differences from the paper, with reasons."""

    @abstractmethod
    def write(self, result: Mapping[str, Any], report: Report) -> None:
        """Write findings, figures and tables to a report."""


def run(
    experiment: Experiment, folder: Path, callback: Callback | None = None
) -> tuple[dict[str, Any], Path]:
    """Compute the missing parts, and write result.json and the report to a folder.

    Returns the result as plain data, and the path of the report. The callback is called before each
    part that is computed, and before the report.
    """
    kept = folder / "parts" / experiment.fingerprint
    kept.mkdir(parents=True, exist_ok=True)
    parts = experiment.parts()
    names = [part.name for part in parts]
    assert len(set(names)) == len(names), "two parts have the same name"
    tell = callback or (lambda now: None)
    values = {}
    seconds = 0.0
    for number, part in enumerate(parts):
        path = kept / f"{part.name}.json"
        entry = _read(path)
        if entry is None:
            tell(Progress(part.what, number, len(parts)))
            begin = time.perf_counter()
            value = part.compute()
            entry = {"value": value, "seconds": time.perf_counter() - begin}
            write_whole(path, json.dumps(entry).encode())
            entry = _read(path)  # converted by JSON, as in a run that is continued
            assert entry is not None
        values[part.name] = entry["value"]
        seconds += entry["seconds"]
    tell(Progress("drawing", len(parts), len(parts)))
    description = experiment.description
    result = {
        "experiment": experiment.name,
        "data": description.source,
        "settings": asdict(experiment.settings),
        **experiment.conclude(values),
        "seconds": round(seconds, 1),
        "versions": {
            "pursuit": __version__,
            "torch": torch.__version__,
            "Python": platform.python_version(),
        },
    }
    write_whole(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    report = Report(description.title)
    description.write(result, report)
    _append(experiment.settings, description, result, report)
    return result, report.write(folder)


def _append(
    settings: Settings, description: Description, result: Mapping[str, Any], report: Report
) -> None:
    """Write the end of every report: differences, data, settings and versions."""
    report.section("Differences from the paper, and reasons")
    for sentence in description.differences:
        report.text(sentence)
    report.section("Data and settings")
    report.text(f"Data: {description.source}.")
    rows = []
    for name, value in asdict(settings).items():
        shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        rows.append([name, shown])
    report.table(["setting", "value"], rows)
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    report.text(
        f"The computation took {result['seconds']:.0f} seconds, {torch.get_num_threads()} "
        f"thread(s): {versions}. All numbers are in `result.json`; the parts they were made from "
        "are in `parts`, and an interrupted run is continued from there."
    )


def _read(path: Path) -> dict[str, Any] | None:
    """A cached part, or None if there is none or it cannot be read."""
    try:
        entry = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return entry if isinstance(entry, dict) and entry.keys() == {"value", "seconds"} else None
