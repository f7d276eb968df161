"""Encoders: the steps of the plain iterations, cut off after T layers and made learnable."""

from .bank import EncoderBank
from .block_coordinate import BlockCoordinateEncoder
from .coordinate import CoordinateEncoder
from .encoder import Encoder
from .proximal import ProximalEncoder

__all__ = [
    "BlockCoordinateEncoder",
    "CoordinateEncoder",
    "Encoder",
    "EncoderBank",
    "ProximalEncoder",
]
