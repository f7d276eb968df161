"""Operators: the dictionary as a linear map from codes to signals, ``z -> z D``."""

from .base import Operator
from .convolution import Convolution
from .matrices import Joined, Matrix, WithIdentity, without_zero_atoms

__all__ = ["Convolution", "Joined", "Matrix", "Operator", "WithIdentity", "without_zero_atoms"]
