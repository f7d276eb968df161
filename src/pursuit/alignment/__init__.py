"""Robust models of pictures that are not aligned: transformations, and pursuit over them."""

from .new_data import Alignment, align
from .transformations import Affine, Similarity, Transformation, Translation

__all__ = ["Affine", "Alignment", "Similarity", "Transformation", "Translation", "align"]
