"""Robust models of pictures that are not aligned: transformations, and pursuit over them."""

from .transformations import Affine, Similarity, Transformation, Translation

__all__ = ["Affine", "Similarity", "Transformation", "Translation"]
