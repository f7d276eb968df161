"""Pictures: aligning those of a folder, and drawing the result.

The public names are resolved when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .faces import AlignedPictures, AlignmentModel, align_pictures
    from .sheets import ContactSheet
    from .stack import Stack, read_stack

#: the modules that public names come from
_NAMES_OF = {
    ".faces": "AlignedPictures AlignmentModel align_pictures",
    ".sheets": "ContactSheet",
    ".stack": "Stack read_stack",
}
_NAMES = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = ["AlignedPictures", "AlignmentModel", "ContactSheet", "Stack", "align_pictures"]
__all__ += ["read_stack"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
