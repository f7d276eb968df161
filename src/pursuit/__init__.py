"""pursuit: sparse and low-rank models, their exact solvers, and encoders that replace them.

The public names are resolved when they are first used, so that ``import pursuit`` is quick and
does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import models, operators, penalties, plots, regimes, runtime
    from .certificates import certify, certify_low_rank
    from .dictionary import OnlineDictionary, learn
    from .encoders.bank import EncoderBank
    from .encoders.block_coordinate import BlockCoordinateEncoder
    from .encoders.convolutional import ConvolutionalEncoder
    from .encoders.coordinate import CoordinateEncoder
    from .encoders.proximal import ProximalEncoder
    from .estimators import NMF, PursuitClassifier, RobustNMF, RobustPCA, SparseCoding
    from .models import Parts
    from .online import OnlineLearner
    from .persistence import load, save
    from .runtime.compiled import compile
    from .runtime.onnx import export_onnx
    from .solvers.principal_component_pursuit import principal_component_pursuit
    from .solvers.solution import Solution
    from .solvers.solve import solve
    from .training import History, fit

__version__ = "0.1.0"

#: the modules that public names come from
_NAMES_OF = {
    ".certificates": "certify certify_low_rank",
    ".dictionary": "OnlineDictionary learn",
    ".encoders": "BlockCoordinateEncoder ConvolutionalEncoder CoordinateEncoder EncoderBank "
    "ProximalEncoder",
    ".estimators": "NMF PursuitClassifier RobustNMF RobustPCA SparseCoding",
    ".models": "Parts",
    ".online": "OnlineLearner",
    ".persistence": "load save",
    ".runtime.compiled": "compile",
    ".runtime.onnx": "export_onnx",
    ".solvers.principal_component_pursuit": "principal_component_pursuit",
    ".solvers.solution": "Solution",
    ".solvers.solve": "solve",
    ".training": "History fit",
}
_NAMES = {name: module for module, names in _NAMES_OF.items() for name in names.split()}
_MODULES = ("models", "operators", "penalties", "plots", "regimes", "runtime")

__all__ = ["NMF", "BlockCoordinateEncoder", "ConvolutionalEncoder", "CoordinateEncoder"]
__all__ += ["EncoderBank", "History"]
__all__ += ["OnlineDictionary", "OnlineLearner", "Parts", "ProximalEncoder", "PursuitClassifier"]
__all__ += ["RobustNMF", "RobustPCA", "Solution", "SparseCoding"]
__all__ += ["certify", "certify_low_rank", "compile", "export_onnx", "fit", "learn", "load"]
__all__ += ["models", "operators", "penalties", "plots", "principal_component_pursuit"]
__all__ += ["regimes", "runtime", "save", "solve"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
