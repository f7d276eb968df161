"""Compile the kernels of a source checkout, into a folder under ``build``.

``python native/build.py`` compiles what has changed; ``import pursuit._native`` does the same, so
that an editable install is never out of date. The compiler is the system's, or else the one in the
PyPI package ziglang, which the command installs where it is missing. Wheels are built by
scikit-build-core from the same CMakeLists.txt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
ROOT = NATIVE.parent
#: the names under which systems have a C++ compiler, in order of preference
COMPILERS = ("c++", "g++", "clang++", "cl")
#: the tools that CMake looks for, which zig's compiler stands for
TOOLS = ("c++", "cc", "ar", "ranlib")
ADVICE = "run `make install`, or `pip install nanobind cmake ninja`"


def is_stale(stamp: Path) -> bool:
    """Whether a source has changed since the stamp was written."""
    parts = (
        NATIVE / "CMakeLists.txt",
        *NATIVE.glob("include/**/*.hpp"),
        *NATIVE.glob("bindings/*"),
    )
    return not stamp.exists() or max(p.stat().st_mtime for p in parts) > stamp.stat().st_mtime


def build_if_stale(
    *, every: bool = False, sanitize: bool = False, install_zig: bool = False
) -> Path:
    """Compile the modules unless they are up to date, and return the folder that holds them.

    Only the module for this processor is compiled, unless `every` asks for all, now or earlier.
    `sanitize` asks for the one with checks. Says on stderr that it compiles, and raises an OSError
    if that fails.
    """
    kind = "sanitized" if sanitize else "kernels"
    folder = ROOT / "build" / f"{kind}-{sys.implementation.cache_tag}-{sys.platform}"
    complete = folder / "complete"
    widest = _widest()
    every = every or sanitize or complete.exists() or widest is None
    stamp = complete if every else folder / f"stamp-{widest}"
    if not is_stale(stamp):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if is_stale(stamp):  # another process may have compiled them meanwhile
            checked = (widest or "baseline") if sanitize else "OFF"
            _build(folder, [] if every else ["--target", str(widest)], checked, install_zig)
            stamp.touch()
    return folder


def _widest() -> str | None:
    """The best instruction set of this processor, None if only compiled code can tell.

    The rules are those of `native/bindings/module.cpp`.
    """
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return None
    if not {"avx2", "fma", "bmi1", "bmi2", "f16c"} <= flags:
        return None
    wide = {f"avx512{part}" for part in ("f", "dq", "cd", "bw", "vl", "_bf16")}
    return "avx512" if wide <= flags else "avx2"


def _build(folder: Path, target: list[str], sanitize: str, install_zig: bool) -> None:
    # imported here, because every import of the kernels in a checkout loads this file
    import shutil
    import subprocess

    cmake = _cmake()
    environment, compiler = _compiler(folder, install_zig)
    print(f"compiling the kernels with {compiler} ...", file=sys.stderr, flush=True)
    ninja = shutil.which("ninja", path=environment["PATH"])
    generator = ["-G", "Ninja"] if ninja else []
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DPURSUIT_SANITIZE={sanitize}",
    ]
    configure = [cmake, "-S", str(NATIVE), "-B", str(folder), *generator, *options]
    build = [cmake, "--build", str(folder), "--config", "Release", "--parallel", *target]
    for command in (configure, build):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"the kernels cannot be compiled:\n{done.stdout}{done.stderr}")


def _cmake() -> str:
    """The path of CMake: that of the PyPI package, or the system's."""
    import shutil

    if find_spec("nanobind") is None:
        raise OSError(
            "nanobind is missing; run `make install`, or `pip install nanobind cmake ninja`"
        )
    beside = Path(sys.executable).parent / "cmake"
    found = str(beside) if beside.exists() else shutil.which("cmake")
    if found is None:
        raise OSError(f"CMake is missing; {ADVICE}")
    return found


def _compiler(folder: Path, install_zig: bool) -> tuple[dict[str, str], str]:
    """The environment to compile in, and the name of the compiler."""
    import shutil
    import subprocess

    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), environment.get("PATH", "")]
    )
    named = os.environ.get("CXX") or next((n for n in COMPILERS if shutil.which(n)), None)
    if named is not None:
        return environment, shutil.which(named) or named
    if find_spec("ziglang") is None:
        if not install_zig:
            raise OSError(
                "there is no C++ compiler; install one, or run `make install`, which takes zig's "
                "from PyPI"
            )
        constraints = ROOT / "constraints.txt"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "ziglang"]
        subprocess.run([*pip, "-c", str(constraints)], check=True)
    tools = folder / "zig"
    tools.mkdir(exist_ok=True)
    for tool in TOOLS:
        script = tools / tool
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {tool} "$@"\n')
        script.chmod(0o755)
    environment |= {"CC": str(tools / "cc"), "CXX": str(tools / "c++")}
    environment["PATH"] = os.pathsep.join([str(tools), environment["PATH"]])
    return environment, "zig (no compiler was found on this system)"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from compiling at the same time, where the system has file locks."""
    with path.open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:
            pass
        yield


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="Compile the kernels of pursuit.")
    parser.add_argument(
        "--sanitize", action="store_true", help="with checks of memory and arithmetic"
    )
    parser.add_argument("--all", action="store_true", help="for all instruction sets")
    options = parser.parse_args()
    build_if_stale(every=options.all, sanitize=options.sanitize, install_zig=True)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(str(error))
