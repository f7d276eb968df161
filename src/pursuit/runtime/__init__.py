"""Running trained encoders with numpy, numba and safetensors alone: no torch.

from pursuit.runtime import load

encode = load("encoder.safetensors")
codes = encode(x)
"""

from .compiled import Compiled, CompiledBank, Plan, Stream, load

__all__ = ["Compiled", "CompiledBank", "Plan", "Stream", "load"]
