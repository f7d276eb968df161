"""Training from a file that is larger than the memory allowed: the process must not grow with it.

    python benchmarks/memory.py [--gigabytes 4] [--limit 2]

Writes random signals to a temporary file, memory-maps it, and trains on it in a process whose
memory (address space apart from the map itself) is limited. Prints the peak beside that of the
same training on a small part of the file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from contest import CONSOLE, table

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
    columns = ["rows", "file MB", "peak MB", "after a quarter MB", "at the end MB"]
    table(f"memory of the process itself, limit {arguments.limit} GB", columns, results)
    CONSOLE.print("the map's pages belong to the file and can be dropped; they are not counted")


if __name__ == "__main__":
    main()
