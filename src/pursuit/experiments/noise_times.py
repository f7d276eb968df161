"""Times of the experiment `noise`: encoders against exact codes, for each second of sound.

Contenders are measured in turn, in one process and on one thread, and the fastest of some repeats
counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .._threads import one_blas_thread
from ..audio.noisy_speakers import NoisySpeakers, observed
from ..audio.streams import Array
from ..solvers.solve import solve

#: the relative gap of exact codes
GAP = 1e-3
#: numbers of iterations of FISTA that are tried, until all gaps are small enough
ITERATIONS = (10, 20, 40, 80, 160, 320, 640, 1280)
#: how often everything is measured
REPEATS = 5

ENCODERS, SOLVER, FISTA = "encoders", "exact, our solver", "exact, FISTA"


def measure(speakers: NoisySpeakers, waves: Sequence[Array]) -> dict[str, Any]:
    """Return seconds for each second of sound, all speakers, features included, and ratios.

    FISTA makes the smallest number of iterations, of those in `ITERATIONS`, after which 99 % of the
    frames have a relative gap of at most `GAP`, for every speaker. This is in its favour: it does
    not compute the gaps while it is measured.
    """
    models = [encoder.model for encoder in speakers.bank]
    first = torch.from_numpy(observed(waves[0])[1])
    steps, share = ITERATIONS[-1], 0.0
    for steps in ITERATIONS:
        found = [solve(m, first, method="fista", tol=0.0, max_iter=steps) for m in models]
        share = float(np.mean([(s.relative_gap <= GAP).double().mean() for s in found]))
        if share >= 0.99:
            break

    def encoders(x: Array) -> None:
        speakers.compiled.errors(x)

    def exact(x: Array) -> None:
        for model in models:
            solve(model, torch.from_numpy(x), tol=GAP)

    def fista(x: Array) -> None:
        for model in models:
            solve(model, torch.from_numpy(x), method="fista", tol=0.0, max_iter=steps)

    contenders: dict[str, Callable[[Array], None]] = {
        ENCODERS: encoders, SOLVER: exact, FISTA: fista,
    }  # fmt: skip
    length = sum(map(len, waves)) / speakers.features.rate
    best = dict.fromkeys(contenders, np.inf)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with one_blas_thread():
            for name in (SOLVER, ENCODERS):  # compiled now
                contenders[name](observed(waves[0])[1])
            for _ in range(REPEATS):
                for name, run in contenders.items():
                    began = time.process_time()
                    for wave in waves:
                        run(observed(wave)[1])
                    best[name] = min(best[name], (time.process_time() - began) / length)
    finally:
        torch.set_num_threads(threads)
    return {
        "seconds": best,
        "ratios": {name: best[name] / best[ENCODERS] for name in (SOLVER, FISTA)},
        "iterations": steps,
        "share": share,
        "gap": GAP,
    }
