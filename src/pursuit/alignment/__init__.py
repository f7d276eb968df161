"""Models of pictures that are not aligned: transformations, and pursuit over them."""

from .new_data import Alignment, align
from .stream import OnlineAlignment
from .together import Together, align_together
from .training import fit_aligned
from .transformations import Affine, Similarity, Transformation, Translation

__all__ = ["Affine", "Alignment", "OnlineAlignment", "Similarity", "Together", "Transformation"]
__all__ += ["Translation", "align", "align_together", "fit_aligned"]
