"""Pictures: aligning those of a folder, and drawing the result."""

from .faces import AlignedPictures, AlignmentModel, align_pictures
from .sheets import ContactSheet
from .stack import Stack, read_stack

__all__ = ["AlignedPictures", "AlignmentModel", "ContactSheet", "Stack", "align_pictures"]
__all__ += ["read_stack"]
