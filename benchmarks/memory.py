"""Training from and encoding of a file larger than memory: the process must not grow with it.

    python benchmarks/memory.py [--gigabytes 4] [--limit 2]

Writes random signals to a temporary file, memory-maps it, and trains on it in a process whose
memory (address space apart from the map itself) is limited. Prints the peak beside that of the
same training on a small part of the file. Then the same for `pursuit encode` of the file with a
compiled encoder of 64 atoms.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from contest import CONSOLE, table

import pursuit as pu

FEATURES = 64

RUN = """
import resource, sys
import numpy as np, torch
import pursuit as pu
torch.set_num_threads(1)
path, rows, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
x = np.load(path, mmap_mode="r")[:rows]
whole = np.load(path, mmap_mode="r").nbytes
resource.setrlimit(resource.RLIMIT_AS, (int(limit * 2**30) + 2 * whole,) * 2)
model = pu.models.Lasso(torch.nn.functional.normalize(torch.randn(64, 64)), 0.5)
def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
peak = []
pu.fit(pu.ProximalEncoder(model, 4), x, steps=2000, callback=lambda p: peak.append(anonymous()))
print(max(peak), peak[len(peak) // 4], peak[-1])
"""


def encode(path: Path, folder: Path) -> tuple[float, float]:
    """Peak of the own memory of `pursuit encode`, in MB, and its seconds."""
    model = pu.models.Lasso(torch.nn.functional.normalize(torch.randn(64, FEATURES)), 0.5)
    pu.save(pu.ProximalEncoder(model, 4), folder / "encoder.safetensors")
    command = ["-m", "pursuit", "encode", str(folder / "encoder.safetensors"), str(path)]
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command, "-o", str(folder / "codes.npy")], stdout=subprocess.DEVNULL
    ) as process:
        peak = 0.0
        while process.poll() is None:
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            except OSError:
                break
            own = [int(line.split()[1]) for line in lines if line.startswith("RssAnon")]
            peak = max([peak, *(size / 1024 for size in own)])
            time.sleep(0.05)
    assert process.returncode == 0
    (folder / "codes.npy").unlink()
    return peak, time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--limit", type=float, default=2.0, help="memory allowed, in gigabytes")
    arguments = parser.parse_args()
    rows = int(arguments.gigabytes * 2**30 / (4 * FEATURES))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.npy"
        out = np.lib.format.open_memmap(path, "w+", np.float32, (rows, FEATURES))
        rng = np.random.default_rng(0)
        for start in range(0, rows, 2**18):
            part = out[start : start + 2**18]
            part[:] = rng.standard_normal(part.shape, np.float32)
        out.flush()
        del out
        results = []
        for count in (rows // 100, rows):
            done = subprocess.run(
                [sys.executable, "-c", RUN, str(path), str(count), str(arguments.limit)],
                check=True,
                capture_output=True,
                text=True,
            )
            peak, early, late = map(float, done.stdout.split())
            size = count * 4 * FEATURES / 2**20
            results.append([f"{count}", *(f"{v:.0f}" for v in (size, peak, early, late))])
        small = Path(folder) / "small.npy"
        np.save(small, np.load(path, mmap_mode="r")[: rows // 100])
        coded = [[str(p.stat().st_size // 2**20), *map("{:.1f}".format, encode(p, Path(folder)))]
                 for p in (small, path)]  # fmt: skip
    columns = ["rows", "file MB", "peak MB", "after a quarter MB", "at the end MB"]
    table(f"memory of the process itself, limit {arguments.limit} GB", columns, results)
    table("pursuit encode", ["file MB", "peak MB", "seconds"], coded)
    CONSOLE.print("the map's pages belong to the file and can be dropped; they are not counted")


if __name__ == "__main__":
    main()
