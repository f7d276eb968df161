"""Running trained encoders without torch, by ``codes = load("encoder.safetensors")(x)``.

Needs only numpy, numba and safetensors.
"""

from .compiled import Compiled, CompiledBank, Plan, Stream, load

__all__ = ["Compiled", "CompiledBank", "Plan", "Stream", "load"]
