"""The run of `pursuit fit`: from a table of signals to a file with a trained encoder.

A dictionary is learned with exact codes, then an encoder is trained to replace the solver. Until
the output is written, the dictionary and a checkpoint of the training are saved beside it, so that
the same command continues after an interruption and gives the same result as without it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import learn_in_batch
from ..dictionary import learn
from ..encoders.choice import choose_encoder
from ..encoders.encoder import Encoder
from ..estimators.start import Start, start_nmf, start_robust, start_sparse
from ..fields import entry, naming
from ..files import open_saved
from ..models import SparseModel
from ..persistence import describe, load, save, write
from ..progress import Callback, Progress
from ..regimes import Approximation, Unsupervised
from ..solvers.accuracy import mean_excess
from ..training import fit
from .data import Array, Table
from .errors import warn
from .fit import DICTIONARY

#: the most rows, and bytes, from which a dictionary is learned
MOST_ROWS, MOST_BYTES = 200_000, 2**29
#: the fraction of the rows held out for validation, the most of them, and the fewest rows for that
HELD_OUT, MOST_HELD_OUT, FEWEST_ROWS = 0.1, 2048, 500
#: the most rows on which the gap is measured
GAP_ROWS = 2048
#: the models of non-negative data
NONNEGATIVE = ("nmf", "rnmf")


@dataclass(frozen=True)
class Plan:
    """The options on which the result depends; `data` is a fingerprint of the signals."""

    kind: str
    atoms: int
    layers: int
    lam: float | str
    lam_star: float | str
    lam_group: float | str
    groups: int
    step: str | None
    regime: str
    steps: int | None
    passes: int | None
    seed: int
    threads: int | None
    data: str = ""


def run(
    plan: Plan,
    table: Table,
    output: Path,
    checkpoint: Path,
    notes: Mapping[str, str | None],
    callback: Callback,
) -> dict[str, Any]:
    """Learn the dictionary, train the encoder, and save it.

    `notes` are saved with it: the name of the data, the date, and the provenance. Returns sizes,
    weights, steps and the gap, for the summary.
    """
    started = time.perf_counter()
    _require_memory(plan.atoms)
    if len(table) == 0:
        raise ValueError(f"{table.name} has no rows, so there is nothing to learn from")
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    trivial = table.check(plan.kind in NONNEGATIVE, callback)
    if trivial is not None:
        warn(trivial)
    held = _held_out(len(table), plan.seed)
    sample = _sample(table, held, plan.seed)
    fingerprint = hashlib.sha256(f"{table.shape} ".encode() + sample.tobytes()).hexdigest()
    plan = replace(plan, data=fingerprint)
    unfinished = _Unfinished(checkpoint)
    reached = unfinished.reached(plan)
    if not unfinished.dictionary.exists():
        callback(Progress("dictionary", 0, None, detail=f"from {len(sample)} rows"))
        x = torch.from_numpy(sample).float()
        start = _start(plan, x)
        options: Any = {"seed": plan.seed, "callback": callback}
        if plan.passes is None:
            model = learn_in_batch(x, start.model, start.init, **options).model
        else:
            model = learn(x, model=start.model, passes=plan.passes, **options)
        unfinished.keep(model, plan)
    # read from the file even without an interruption, so that both cases use the same numbers
    model = load(unfinished.dictionary)
    if not isinstance(model, SparseModel) or model.features != table.shape[1]:
        raise ValueError(
            f"{unfinished.dictionary} does not hold a model of {table.shape[1]} features; remove "
            f"it and {checkpoint.name}"
        )
    encoder = _build(plan, model)
    if reached is not None:
        print(f"resuming at step {reached}", file=sys.stderr)
    history = fit(
        encoder,
        table,
        regime=Approximation() if plan.regime == "approximation" else Unsupervised(),
        steps=plan.steps,
        validation=None if len(held) else False,
        held=held.tolist() or None,
        checkpoint=checkpoint,
        seed=plan.seed,
        callback=callback,
    )
    x = torch.from_numpy(table[held[:GAP_ROWS]] if len(held) else sample[:GAP_ROWS])
    model = encoder.model
    with torch.no_grad():
        gap = mean_excess(model, x, encoder(x))
    training = {
        "steps": history.steps,
        "best_step": history.best_step,
        "gap": gap,
        "gap_rows": len(x),
        "held_out": len(held) > 0,
        "seed": plan.seed,
        "data": {"name": notes["name"], "shape": list(table.shape)},
        "date": notes["date"],
    }
    save(encoder, output, notes["provenance"], training)
    unfinished.remove()
    weights = ("lam", "lam_star", "lam_group", "ridge")
    return {
        "path": str(output),
        "kind": plan.kind,
        "rows": len(table),
        "atoms": len(model.dictionary),
        "encoder": type(encoder).__name__,
        "features": model.features,
        "size": model.code_size,
        "layers": encoder.layers,
        "parameters": encoder.parameter_count,
        **{name: float(value) for name, value in model.config.items() if name in weights},
        **training,
        "resumed_at": reached,
        "bytes": output.stat().st_size,
        "seconds": round(time.perf_counter() - started, 3),
        "training_seconds": round(history.seconds, 3),
    }


def _require_memory(atoms: int) -> None:
    """Raise a MemoryError if the statistics of so many atoms exceed the memory of the machine."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not known on this system
        return
    needed = 2 * 8 * atoms**2  # two matrices of the size of the Gram matrix in float64
    if needed > memory:
        raise MemoryError(
            f"{atoms} atoms need {needed / 2**30:.0f} GB, this machine has {memory / 2**30:.0f}"
        )


def _start(plan: Plan, x: Tensor) -> Start:
    """The model that the plan names, and where learning starts."""
    if plan.kind == "nmf":
        return start_nmf(x, plan.atoms, float(plan.lam_star), seed=plan.seed)
    if plan.kind in ("rpca", "rnmf"):
        nonnegative = plan.kind == "rnmf"
        atoms = plan.atoms if nonnegative else min(plan.atoms, x.shape[1])
        weights: Any = {"lam": plan.lam, "lam_star": plan.lam_star}
        return start_robust(x, atoms, nonnegative=nonnegative, seed=plan.seed, **weights)
    numbers = range(plan.atoms)
    groups = [list(numbers[i : i + plan.groups]) for i in numbers[:: plan.groups]]
    return start_sparse(
        x,
        plan.atoms,
        penalty="l1" if plan.kind == "lasso" else plan.kind,
        lam=plan.lam,
        lam_group=plan.lam_group,
        groups=groups,
        seed=plan.seed,
    )


def _build(plan: Plan, model: SparseModel) -> Encoder:
    """The encoder recommended for the model, with the step of the plan."""
    encoder = choose_encoder(model, plan.layers)
    if plan.step is None or plan.step == encoder.config["step"]:
        return encoder
    return type(encoder)(model, **{**encoder.config, "step": plan.step, "form": "auto"})


def _held_out(rows: int, seed: int) -> Array:
    """Sorted numbers of rows that neither the dictionary nor the encoder learns from."""
    if rows < FEWEST_ROWS:
        return np.empty(0, np.int64)
    count = min(int(HELD_OUT * rows), MOST_HELD_OUT)
    return np.unique(np.random.default_rng([seed, rows]).integers(rows, size=count))


def _sample(table: Table, held: Array, seed: int) -> Array:
    """Rows for the dictionary, drawn at random from those not held out, in their order."""
    rows, features = table.shape
    most = max(1, min(MOST_ROWS, MOST_BYTES // (4 * features)))
    if rows - len(held) > most:
        # a few more than needed, since some of them are held out
        size = min(rows, most + len(held))
        chosen = np.random.default_rng(seed).choice(rows, size, replace=False)
    else:
        chosen = np.arange(rows)
    chosen = chosen[~np.isin(chosen, held)]
    return table[np.sort(chosen[:most])]


class _Unfinished:
    """The files of an unfinished run: the checkpoint of the training, and the dictionary."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.dictionary = checkpoint.with_name(checkpoint.name + DICTIONARY)

    def reached(self, plan: Plan) -> int | None:
        """The step that an earlier run of the same plan has reached, None without one."""
        checkpoint, dictionary = self.checkpoint, self.dictionary
        if dictionary.exists():
            earlier = open_saved(dictionary).info.get("plan")
            if not isinstance(earlier, dict):
                raise ValueError(
                    f"{dictionary} is not part of an unfinished run; give another --checkpoint"
                )
            changed = [name for name, value in asdict(plan).items() if earlier.get(name) != value]
            if changed:
                raise ValueError(
                    f"{checkpoint} is an unfinished run with other settings "
                    f"({', '.join(changed)}); repeat its command, or remove {dictionary.name} and "
                    f"{checkpoint.name}"
                )
        if not checkpoint.exists():
            return None
        if not dictionary.exists():
            raise ValueError(
                f"{checkpoint} has no {dictionary.name} beside it, so it cannot be continued; "
                "remove it, or give another --checkpoint"
            )
        info = open_saved(checkpoint).info
        if info.get("kind") != "checkpoint":
            raise ValueError(
                f"{checkpoint} is not the checkpoint of a run; give another --checkpoint"
            )
        with naming(checkpoint, "continued"):
            steps: int = entry(entry(info, "history", dict), "steps", int, least=0)
        return steps

    def keep(self, model: SparseModel, plan: Plan) -> None:
        """Save the model and the plan that it was learned with."""
        info, tensors = describe(model)
        write(self.dictionary, tensors, {**info, "provenance": None, "plan": asdict(plan)})

    def remove(self) -> None:
        self.checkpoint.unlink(missing_ok=True)
        self.dictionary.unlink(missing_ok=True)
