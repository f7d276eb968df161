"""The compiled kernels: one extension module for each instruction set, built from `native/`.

The fastest that the processor has is chosen when this package is imported. The environment variable
``PURSUIT_INSTRUCTION_SET`` forces another one, for tests and comparisons. In a source checkout the
import first compiles what has changed.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

#: the instruction sets, each of which contains those before it
SETS = ("baseline", "avx2", "avx512")
#: the variable that forces an instruction set
VARIABLE = "PURSUIT_INSTRUCTION_SET"


def _find_checkout() -> None:
    """In a source checkout, compile what has changed, and find the modules there."""
    builder = Path(__file__).parents[3] / "native" / "build.py"
    if not builder.exists():
        return
    spec = spec_from_file_location("pursuit_build", builder)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    forced = os.environ.get(VARIABLE)
    try:
        folder = module.build_if_stale(every=forced in SETS, sanitize=forced == "sanitized")
        __path__.insert(0, str(folder))
    except OSError as error:
        raise ImportError(str(error)) from error


def _choose(forced: str | None) -> str:
    """Return the name of the module to load."""
    built = [name for name in (*SETS, "sanitized") if find_spec(f"{__name__}.{name}")]
    if not built:
        raise ImportError(
            "the compiled kernels of pursuit are missing; install the package, or build them with "
            "`make install`"
        )
    if forced is None:
        able = import_module(f"{__name__}.{built[0]}").instruction_sets()
        return next((name for name in reversed(able) if name in built), built[0])
    if forced not in built:
        raise ImportError(f"{VARIABLE} must be one of {', '.join(built)}, got {forced!r}")
    return forced


_find_checkout()
#: the instruction set in use
instruction_set = _choose(os.environ.get(VARIABLE) or None)
#: its kernels, see `native/bindings`
kernels: Any = import_module(f"{__name__}.{instruction_set}")
