"""The public names are there, and importing them is quick."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import pursuit

NAMES = {
    "pursuit": {
        "BlockCoordinateEncoder",
        "ConvolutionalEncoder",
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
        "operators",
        "penalties",
        "plots",
        "regimes",
        "principal_component_pursuit",
        "runtime",
        "save",
        "solve",
    },
    "pursuit.operators": {
        "Convolution",
        "Joined",
        "Matrix",
        "Operator",
        "WithIdentity",
        "without_zero_atoms",
    },
    "pursuit.audio": {
        "Analysis",
        "BandSplit",
        "Bands",
        "Denoised",
        "Features",
        "Heard",
        "Identification",
        "Improvement",
        "Mixtures",
        "NoisySpeakers",
        "Pair",
        "Recipe",
        "Resampler",
        "STFT",
        "Separated",
        "Separator",
        "SeparatorStream",
        "Sources",
        "SpeakerStream",
        "Speakers",
        "Synthesis",
        "Timeline",
        "improvement",
        "mean_improvement",
        "sdr",
    },
    "pursuit.vision": {
        "AlignedPictures",
        "AlignmentModel",
        "ContactSheet",
        "Stack",
        "align_pictures",
        "read_stack",
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
    "pursuit.runtime": {
        "Compiled",
        "CompiledBank",
        "CompiledConvolution",
        "FrameStream",
        "Plan",
        "Stream",
        "load",
    },
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
        "ConvolutionalLowRankSparse",
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
    heavy = ("torch", "numpy", "pursuit._native", "scipy", "sklearn")
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


#: the order of the modules, as CONTRIBUTING has it: each imports only from its row or from above
ROWS = [
    {
        "_checks",
        "_registry",
        "_threads",
        "_words",
        "_native",
        "progress",
        "sampling",
        "fields",
        "whole_files",
        "files",
    },
    {"operators"},
    {"penalties"},
    {"models", "descriptions"},
    {"certificates"},
    {"solvers"},
    {"runtime"},
    {"encoders"},
    {"persistence"},
    {"dictionary", "nonnegative_factors", "batch"},
    {
        "batches",
        "guard",
        "regimes",
        "changes",
        "bursts",
        "optimisation",
        "resuming",
        "training_loop",
        "training",
        "online",
    },
    {"alignment"},
    {"estimators"},
    {"audio"},
    {"report", "plots"},
    {"datasets"},
    {"vision"},
    {"experiments"},
    {"cli", "__main__"},
]


def imported(path: Path, package: tuple[str, ...]) -> Iterator[str]:
    """The first parts of the names of pursuit's modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield ".".join([*base, name]).removeprefix("pursuit.").partition(".")[0]


def test_imports_point_one_way() -> None:
    order = {name: number for number, row in enumerate(ROWS) for name in row}
    root = Path(pursuit.__file__).parent
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if parts == ("pursuit", "__init__"):
            continue
        package = parts[:-1]
        row = order[parts[1]]
        for name in imported(path, package):
            if name not in ("pursuit", "__version__"):
                assert order[name] <= row, f"{'.'.join(parts)} imports {name}"
