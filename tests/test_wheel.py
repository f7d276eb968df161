"""A wheel works in an environment without a compiler, and without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import pursuit as pu

ROOT = Path(__file__).parents[1]
#: what a deployment needs beside pursuit
NEEDED = ("numpy", "numpy.libs", "safetensors")

CODE = """
import json, sys
import numpy as np
from pursuit import _native, runtime
codes = runtime.load("encoder.safetensors")(np.load("x.npy"))
np.save("codes.npy", codes)
print(json.dumps([_native.__file__, sorted(m for m in sys.modules if "." not in m)]))
"""


@pytest.mark.slow
def test_a_wheel_works_without_a_compiler(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w"]
    settings = (
        f"build-dir={tmp_path / 'build'}",
        "cmake.define.PURSUIT_INSTRUCTION_SETS=baseline",
        "cmake.define.PURSUIT_OPTIMISATION=-O0",
    )
    options = [f"--config-settings={setting}" for setting in settings]
    done = subprocess.run(
        [*build, str(tmp_path), *options, str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("pursuit-*.whl")
    # an environment that has only what a deployment needs
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".cpp", ".hpp"))]
    packages = Path(np.__file__).parents[1]
    for name in NEEDED:
        if (packages / name).exists():
            (site / name).symlink_to(packages / name)
    rng = torch.Generator().manual_seed(0)
    atoms = torch.nn.functional.normalize(torch.randn(12, 8, generator=rng), dim=1)
    encoder = pu.ProximalEncoder(pu.models.Lasso(atoms, 0.1), layers=3)
    pu.save(encoder, tmp_path / "encoder.safetensors")
    x = torch.randn(7, 8, generator=rng)
    np.save(tmp_path / "x.npy", x.numpy())
    bare = {"PATH": "", "PYTHONPATH": str(site), "HOME": str(tmp_path)}
    if "SYSTEMROOT" in os.environ:
        bare["SYSTEMROOT"] = os.environ["SYSTEMROOT"]
    done = subprocess.run(
        [sys.executable, "-S", "-c", CODE], capture_output=True, text=True, cwd=tmp_path, env=bare
    )
    assert done.returncode == 0, done.stderr
    place, modules = json.loads(done.stdout)
    assert Path(place).is_relative_to(site)
    assert not {"torch", "scipy", "sklearn", "nanobind", "cmake"} & set(modules)
    with torch.no_grad():
        expected = encoder(x).numpy()
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(np.load(tmp_path / "codes.npy"), expected, atol=1e-5)
