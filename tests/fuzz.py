"""Attacks: random problems, files, streams and calls, each of which must end as promised.

    python tests/fuzz.py [NAME ...] [--seconds 600] [--seed 0] [--trial N]

The attacks of all modules ``fuzz_*.py`` take turns until the time is over. A trial depends on the
seed, the name of its attack and its number alone, so that a finding is repeated by
``--seed S NAME --trial N``. Exit status 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import numpy as np

Attack = Callable[[np.random.Generator], None]
#: the number of findings of one attack that are printed in full
SHOWN = 5


def attacks() -> dict[str, Attack]:
    """The attacks of all modules ``fuzz_*.py`` beside this one, by name."""
    found: dict[str, Attack] = {}
    for path in sorted(Path(__file__).parent.glob("fuzz_*.py")):
        module = importlib.import_module(path.stem)
        for name, attack in module.ATTACKS.items():
            found[f"{path.stem.removeprefix('fuzz_')}.{name}"] = attack
    return found


def trial(name: str, attack: Attack, seed: int, number: int) -> str | None:
    """Run one trial; return the traceback if there is a finding."""
    rng = np.random.default_rng([seed, number, zlib.crc32(name.encode())])
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            attack(rng)
    except Exception:
        return traceback.format_exc()
    return None


@dataclass
class Count:
    """What became of the trials of one attack."""

    trials: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    findings: list[int] = field(default_factory=list)


def run(chosen: dict[str, Attack], seed: int, seconds: float) -> dict[str, Count]:
    """Let attacks take turns, each the same time, until the time is over."""
    counts = {name: Count() for name in chosen}
    for name, count in _turns(counts, seconds):
        start = time.perf_counter()
        found = trial(name, chosen[name], seed, count.trials)
        took = time.perf_counter() - start
        if found is not None:
            count.findings.append(count.trials)
            if len(count.findings) <= SHOWN:
                print(f"--seed {seed} {name} --trial {count.trials}\n{found}", flush=True)
        count.trials += 1
        count.seconds += took
        count.slowest = max(count.slowest, took)
    return counts


def _turns(counts: dict[str, Count], seconds: float) -> Iterator[tuple[str, Count]]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield min(counts.items(), key=lambda item: item[1].seconds)


def main() -> int:
    every = attacks()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="parts of names; by default all attacks")
    parser.add_argument("--seconds", type=float, default=600, help="default: 600")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trial", type=int, help="run only this trial")
    options = parser.parse_args()
    parts = options.names or [""]
    chosen = {name: a for name, a in every.items() if any(part in name for part in parts)}
    if not chosen:
        parser.error(f"no attack is called {parts}; there are {', '.join(every)}")
    if options.trial is not None:
        found = {n: trial(n, attack, options.seed, options.trial) for n, attack in chosen.items()}
        print("\n".join(f"{name}: {text or 'as promised'}" for name, text in found.items()))
        return int(any(text is not None for text in found.values()))
    counts = run(chosen, options.seed, options.seconds)
    width = max(map(len, counts))
    print(f"{'attack':{width}}  trials  findings  slowest (seed {options.seed})")
    for name, count in counts.items():
        row = f"{name:{width}}  {count.trials:6}  {len(count.findings):8}  {count.slowest:6.2f} s"
        print(row)
    return int(any(count.findings for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
