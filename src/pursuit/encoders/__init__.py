"""Encoders: the steps of the plain iterations, cut off after T layers and made learnable."""

from .bank import EncoderBank as EncoderBank
from .block_coordinate import BlockCoordinateEncoder as BlockCoordinateEncoder
from .convolutional import ConvolutionalEncoder as ConvolutionalEncoder
from .coordinate import CoordinateEncoder as CoordinateEncoder
from .encoder import Encoder as Encoder
from .proximal import ProximalEncoder as ProximalEncoder
