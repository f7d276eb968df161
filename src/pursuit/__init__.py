"""pursuit: sparse and low-rank models, their exact solvers, and encoders that replace them.

The public names are resolved when they are first used, so that ``import pursuit`` is quick and
does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import models as models
    from . import penalties as penalties
    from . import plots as plots
    from . import regimes as regimes
    from . import runtime as runtime
    from .certificates import certify as certify
    from .certificates import certify_low_rank as certify_low_rank
    from .dictionary import OnlineDictionary as OnlineDictionary
    from .dictionary import learn as learn
    from .encoders.bank import EncoderBank as EncoderBank
    from .encoders.block_coordinate import BlockCoordinateEncoder as BlockCoordinateEncoder
    from .encoders.coordinate import CoordinateEncoder as CoordinateEncoder
    from .encoders.proximal import ProximalEncoder as ProximalEncoder
    from .estimators import NMF as NMF
    from .estimators import PursuitClassifier as PursuitClassifier
    from .estimators import RobustNMF as RobustNMF
    from .estimators import RobustPCA as RobustPCA
    from .estimators import SparseCoding as SparseCoding
    from .models import Parts as Parts
    from .online import OnlineLearner as OnlineLearner
    from .persistence import load as load
    from .persistence import save as save
    from .runtime.compiled import compile as compile
    from .runtime.onnx import export_onnx as export_onnx
    from .solvers.principal_component_pursuit import (
        principal_component_pursuit as principal_component_pursuit,
    )
    from .solvers.solution import Solution as Solution
    from .solvers.solve import solve as solve
    from .training import History as History
    from .training import fit as fit

__version__ = "0.1.0"

#: each public name and the module that it comes from
_NAMES = {
    "NMF": ".estimators",
    "BlockCoordinateEncoder": ".encoders.block_coordinate",
    "CoordinateEncoder": ".encoders.coordinate",
    "EncoderBank": ".encoders.bank",
    "History": ".training",
    "OnlineDictionary": ".dictionary",
    "OnlineLearner": ".online",
    "Parts": ".models",
    "ProximalEncoder": ".encoders.proximal",
    "PursuitClassifier": ".estimators",
    "RobustNMF": ".estimators",
    "RobustPCA": ".estimators",
    "Solution": ".solvers.solution",
    "SparseCoding": ".estimators",
    "certify": ".certificates",
    "certify_low_rank": ".certificates",
    "compile": ".runtime.compiled",
    "export_onnx": ".runtime.onnx",
    "fit": ".training",
    "learn": ".dictionary",
    "load": ".persistence",
    "principal_component_pursuit": ".solvers.principal_component_pursuit",
    "save": ".persistence",
    "solve": ".solvers.solve",
}
_MODULES = ("models", "penalties", "plots", "regimes", "runtime")

__all__ = ["NMF", "BlockCoordinateEncoder", "CoordinateEncoder", "EncoderBank", "History"]
__all__ += ["OnlineDictionary", "OnlineLearner", "Parts", "ProximalEncoder", "PursuitClassifier"]
__all__ += ["RobustNMF", "RobustPCA", "Solution", "SparseCoding"]
__all__ += ["certify", "certify_low_rank", "compile", "export_onnx", "fit", "learn", "load"]
__all__ += ["models", "penalties", "plots", "principal_component_pursuit", "regimes", "runtime"]
__all__ += ["save", "solve"]


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
