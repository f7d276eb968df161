"""Running trained encoders without torch, by ``codes = load("encoder.safetensors")(x)``.

Needs only numpy and safetensors.
"""

from .compiled import Compiled, CompiledBank, Plan, Stream, load
from .convolution import CompiledConvolution, FrameStream

__all__ = [
    "Compiled",
    "CompiledBank",
    "CompiledConvolution",
    "FrameStream",
    "Plan",
    "Stream",
    "load",
]
