"""The public names are there, and importing them is quick."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
import time

import pytest

import pursuit

NAMES = {
    "pursuit": {
        "BlockCoordinateEncoder",
        "CoordinateEncoder",
        "EncoderBank",
        "History",
        "NMF",
        "OnlineDictionary",
        "OnlineLearner",
        "Parts",
        "ProximalEncoder",
        "PursuitClassifier",
        "RobustNMF",
        "RobustPCA",
        "Solution",
        "SparseCoding",
        "certify",
        "certify_low_rank",
        "compile",
        "export_onnx",
        "fit",
        "learn",
        "load",
        "models",
        "penalties",
        "plots",
        "regimes",
        "principal_component_pursuit",
        "runtime",
        "save",
        "solve",
    },
    "pursuit.penalties": {
        "Elastic",
        "GroupL2",
        "L1",
        "NonNegative",
        "Penalty",
        "Ridge",
        "Stacked",
        "TreeL2",
        "Zero",
    },
    "pursuit.runtime": {"Compiled", "CompiledBank", "Plan", "Stream", "load"},
    "pursuit.regimes": {
        "Approximation",
        "Batch",
        "Custom",
        "Discriminative",
        "Regime",
        "Supervised",
        "Unsupervised",
        "Weighted",
    },
    "pursuit.models": {
        "Constraint",
        "GroupLasso",
        "HiLasso",
        "Lasso",
        "LowRankSparse",
        "NMF",
        "Parts",
        "RobustNMF",
        "RobustPCA",
        "SparseModel",
    },
}

MODULES = [info.name for info in pkgutil.walk_packages(pursuit.__path__, "pursuit.")]


@pytest.mark.parametrize("module", NAMES)
def test_inventory(module: str) -> None:
    loaded = importlib.import_module(module)
    assert set(loaded.__all__) == NAMES[module]
    for name in NAMES[module]:
        assert getattr(loaded, name) is not None
    assert set(loaded.__all__) <= set(dir(loaded))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = pursuit.nonsense


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_import_does_not_load_torch() -> None:
    heavy = ("torch", "numpy", "numba", "scipy", "sklearn")
    loaded = run(f"import sys, pursuit; print([m for m in {heavy} if m in sys.modules])")
    assert loaded.strip() == "[]"


def test_import_is_quick() -> None:
    def seconds(code: str) -> float:
        start = time.perf_counter()
        run(code)
        return time.perf_counter() - start

    extra = min(seconds("import pursuit") for _ in range(5)) - min(seconds("") for _ in range(5))
    assert extra < 0.2


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module: str) -> None:
    failures, _ = doctest.testmod(importlib.import_module(module))
    assert failures == 0


def test_versions_agree() -> None:
    from importlib.metadata import version

    assert pursuit.__version__ == version("pursuit")
