"""What all experiments share: settings, parts that are kept, a result, a report.

An experiment is a list of parts. Each is computed once and kept as a file of its own, so that a run
that was killed goes on where it stood; it is found again by all that it depends on: the experiment,
its settings, its data, and the version of the library. When all parts are there, they are
concluded to a result (JSON) and a report (HTML and Markdown).
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch

from .. import __version__
from ..datasets.download import Progress
from ..files import write_whole
from ..report import Report

__all__ = ["Experiment", "Part", "Settings", "run"]


@dataclass(frozen=True)
class Settings:
    """What an experiment is run with; the paper's values are the defaults of its subclasses.

    Attributes
    ----------
    seeds
        One run of what is random for each; figures show their mean and range.
    """

    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Part:
    """One piece of work: its name, what it does, and a function that returns something for JSON."""

    name: str
    what: str
    compute: Callable[[], Any]


class Experiment(ABC):
    """A figure or table of the paper.

    Parameters
    ----------
    settings
        What it is run with.
    data
        The folder with the real data; without it, what is embedded or synthetic.
    """

    name: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, settings: Settings, data: Path | None = None) -> None:
        self.settings, self.data = settings, data

    @classmethod
    @abstractmethod
    def configure(cls, data: Path | None, quick: bool) -> Settings:
        """The settings for some data; with `quick` such that all is done in a minute."""

    @classmethod
    @abstractmethod
    def download(cls, progress: Progress | None = None) -> Path:
        """Fetch the real data, if they are not there yet; their folder."""

    @property
    @abstractmethod
    def source(self) -> str:
        """Where the data come from and how they are split, for the report."""

    @property
    @abstractmethod
    def stamp(self) -> str:
        """Something that changes when the data do."""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """What is to be computed."""

    @abstractmethod
    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The result, from what the parts have computed."""

    @abstractmethod
    def describe(self, result: Mapping[str, Any], report: Report) -> None:
        """Write what was found, with figures and tables."""

    @property
    @abstractmethod
    def differences(self) -> Sequence[str]:
        """What is done otherwise than in the paper, and why."""

    @property
    def fingerprint(self) -> str:
        """Changes with everything that the parts depend on."""
        known = [self.name, asdict(self.settings), self.source, self.stamp, __version__]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


def run(
    experiment: Experiment, folder: Path, tell: Callable[[int, int, str], object]
) -> tuple[dict[str, Any], Path]:
    """Compute what is missing, conclude, and write result.json and the report.

    Parameters
    ----------
    experiment
        What is run.
    folder
        Where parts, result and report are written.
    tell
        Is called before each part with the number of those done, of all, and a sentence.

    Returns
    -------
    The result, and the path of the report's page.
    """
    kept = folder / "parts" / experiment.fingerprint
    kept.mkdir(parents=True, exist_ok=True)
    parts = experiment.parts()
    names = [part.name for part in parts]
    assert len(set(names)) == len(names), "two parts have the same name"
    values = {}
    seconds = 0.0
    for number, part in enumerate(parts):
        path = kept / f"{part.name}.json"
        found = _read(path)
        if found is None:
            tell(number, len(parts), part.what)
            begin = time.perf_counter()
            value = part.compute()
            found = {"value": value, "seconds": time.perf_counter() - begin}
            write_whole(path, json.dumps(found).encode())
            found = _read(path)  # what comes of JSON, as in a run that goes on
            assert found is not None
        values[part.name] = found["value"]
        seconds += found["seconds"]
    tell(len(parts), len(parts), "drawing")
    result = {
        "experiment": experiment.name,
        "data": experiment.source,
        "settings": asdict(experiment.settings),
        **experiment.conclude(values),
        "seconds": round(seconds, 1),
        "versions": _versions(),
    }
    write_whole(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())
    report = Report(experiment.title)
    experiment.describe(result, report)
    _append(experiment, result, report)
    return result, report.write(folder)


def _append(experiment: Experiment, result: Mapping[str, Any], report: Report) -> None:
    """What every report ends with."""
    report.section("What differs from the paper, and why")
    for sentence in experiment.differences:
        report.text(sentence)
    report.section("Data and settings")
    report.text(f"Data: {experiment.source}.")
    rows = [[field.name, _shown(getattr(experiment.settings, field.name))]
            for field in fields(experiment.settings)]  # fmt: skip
    report.table(["setting", "value"], rows)
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    report.text(
        f"Computing took {result['seconds']:.0f} seconds, {torch.get_num_threads()} thread(s): "
        f"{versions}. All numbers stand in `result.json`; the parts that they were made of are "
        "kept in `parts`, and a run that is broken off goes on from there."
    )


def _read(path: Path) -> dict[str, Any] | None:
    """A part that was kept, or None if it was not or cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.keys() == {"value", "seconds"} else None


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _versions() -> dict[str, str]:
    return {
        "pursuit": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }
