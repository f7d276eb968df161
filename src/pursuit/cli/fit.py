"""`pursuit fit`: from a file of signals to a file with a trained encoder.

A dictionary is learned with exact codes, then an encoder is trained that replaces the solver. Both
stages leave what they have reached beside the output until it is there, so that the same command
goes on after an interruption, and ends as if there had been none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from ..encoders.encoder import Encoder
    from ..models import SparseModel
    from ..training import Progress
    from .data import Array, Table

__all__ = ["Kind", "Plan", "fit"]

#: rows, and bytes, from which a dictionary is learned at most
MOST_ROWS, MOST_BYTES = 200_000, 2**29
#: rows on which the gap is measured at most
GAP_ROWS = 2048


class Kind(StrEnum):
    """The models that can be fitted."""

    LASSO = "lasso"
    GROUP = "group"
    HILASSO = "hilasso"
    NMF = "nmf"
    RPCA = "rpca"
    RNMF = "rnmf"


class Form(StrEnum):
    """What the layers learn: all matrices, one of them, or scalars only."""

    FREE = "free"
    COUPLED = "coupled"
    MODEL = "model"


class Aim(StrEnum):
    """What training makes small: the objective, or the distance to exact codes."""

    UNSUPERVISED = "unsupervised"
    APPROXIMATION = "approximation"


GROUPED = (Kind.GROUP, Kind.HILASSO)
NONNEGATIVE = (Kind.NMF, Kind.RNMF)
#: the models whose options these are
OPTIONS = {
    "lam": (Kind.LASSO, Kind.GROUP, Kind.HILASSO, Kind.RPCA, Kind.RNMF),
    "lam_star": (Kind.NMF, Kind.RPCA, Kind.RNMF),
    "lam_group": (Kind.HILASSO,),
    "groups": GROUPED,
}


@dataclass(frozen=True)
class Plan:
    """What was asked for, as far as the result depends on it.

    Weights are numbers or "auto"; `data` is a fingerprint of the signals.
    """

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


def fit(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="The model.")],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Signals as rows: .npy (may be larger than the memory), .npz, .csv, .parquet; "
            "or a folder of pictures, of which random patches are taken.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUTPUT", help="What to write, usually *.safetensors."
        ),
    ],
    atoms: Annotated[
        int | None,
        typer.Option(
            min=1, help="Atoms of the dictionary; by default 64, for nmf, rpca and rnmf 8."
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder.")] = 7,
    lam: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|auto",
            help="The weight of the penalty on single coefficients, for group on groups, for rpca "
            "and rnmf on outliers. auto follows from the noise, and is the default.",
        ),
    ] = None,
    lam_star: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|auto",
            help="The weight of the squared scores: for rpca and rnmf, by default auto; for nmf, "
            "by default 0.",
        ),
    ] = None,
    lam_group: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|auto", help="The weight of the groups, for hilasso; by default auto."
        ),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(
            min=1, help="Atoms in a group, for group and hilasso: so many consecutive; default 4."
        ),
    ] = None,
    step: Annotated[
        Form | None,
        typer.Option(help="What the layers learn; by default what suits the model."),
    ] = None,
    regime: Annotated[
        Aim, typer.Option(help="Train for low objectives, or for codes near the exact ones.")
    ] = Aim.UNSUPERVISED,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; by default what the size asks for.")
    ] = None,
    passes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How often the dictionary goes through the data; by default until it has seen "
            "30000 rows.",
        ),
    ] = None,
    patch: Annotated[int, typer.Option(min=2, help="For pictures: the side of a patch.")] = 8,
    patches: Annotated[int, typer.Option(min=1, help="For pictures: how many patches.")] = 20_000,
    key: Annotated[
        str | None, typer.Option(help="Which array of an .npz file; not needed if it has one.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="How many threads work; by default as torch has it.")
    ] = None,
    provenance: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A note that is kept in the file.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where an unfinished run is kept; by default OUTPUT.checkpoint, removed at the "
            "end.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one JSON object.")
    ] = False,
) -> None:
    """Learn a dictionary, train an encoder for it, and write both to one file.

    After an interruption the same command goes on where it was, and ends as if nothing had
    happened.

    The data are taken as they are; only patches of pictures are centred and scaled.

    Example: pursuit fit lasso X.npy --atoms 256 --layers 7 -o model.safetensors
    """
    given = {"lam": lam, "lam_star": lam_star, "lam_group": lam_group, "groups": groups}
    for name, value in given.items():
        if value is not None and kind not in OPTIONS[name]:
            fitting = ", ".join(OPTIONS[name])
            raise UsageError(f"--{name.replace('_', '-')} is for {fitting}, not {kind}", context)
    plan = Plan(
        kind=kind.value,
        atoms=atoms or (8 if kind in OPTIONS["lam_star"] else 64),
        layers=layers,
        lam=_weight(lam, "lam", context),
        lam_star=_weight(lam_star or ("0" if kind is Kind.NMF else None), "lam-star", context),
        lam_group=_weight(lam_group, "lam-group", context),
        groups=groups or 4,
        step=None if step is None else step.value,
        regime=regime.value,
        steps=steps,
        passes=passes,
        seed=seed,
        threads=threads,
    )
    if kind is Kind.NMF and plan.lam_star == "auto":
        raise UsageError("--lam-star must be a number for nmf", context)
    if kind in GROUPED and plan.atoms % plan.groups:
        raise UsageError(
            f"--atoms must be a multiple of --groups, got {plan.atoms} and {plan.groups}", context
        )
    from . import data as files

    run = output.with_name(output.name + ".checkpoint") if checkpoint is None else checkpoint
    files.check_output(output, (data,), suffixes=())
    files.check_output(run, (data, output), suffixes=())
    try:
        table = (
            files.patches(data, patch, patches, seed)
            if data.is_dir()
            else files.open_table(data, key)
        )
        if len(table) == 0:
            raise ValueError(f"{data} has no rows, so there is nothing to learn from")
        written = _fit(plan, table, output, run, provenance)
    except KeyboardInterrupt:
        if context.find_root().params.get("debug"):
            raise
        print("interrupted; run the same command again to go on", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        import json

        typer.echo(json.dumps(written))
        return
    typer.echo(_summary(written))


def _weight(value: str | None, name: str, context: typer.Context) -> float | str:
    if value is None or value == "auto":
        return "auto"
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise UsageError(f"--{name} must be auto or a number that is not negative, got {value}",
                         context)  # fmt: skip
    return number


# ---- the run --------------------------------------------------------------------------------


def _fit(
    plan: Plan, table: Table, output: Path, checkpoint: Path, provenance: str | None
) -> dict[str, Any]:
    """All of it; what the summary says."""
    started = time.perf_counter()
    import torch

    from ..batches import as_source
    from ..persistence import save
    from ..regimes import Approximation, Unsupervised
    from ..training import fit as train

    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    table.check(nonnegative=plan.kind in NONNEGATIVE)
    # the rows that training will hold out, which the dictionary must not have seen either
    _, held = as_source(
        table, None, features=table.shape[1], dtype=torch.float32, size=1, seed=plan.seed, hold=True
    )
    rows = None if held is None else held.rows
    sample = _sample(table, None if rows is None else rows.numpy(), plan.seed)
    plan = Plan(**{**asdict(plan), "data": _fingerprint(table, sample)})
    beside = checkpoint.with_name(checkpoint.name + ".dictionary")
    reached = _reached(checkpoint, beside, plan)
    with _shown() as show:
        if not beside.exists():
            with show.dictionary(len(sample)):
                _keep(beside, learn(plan, sample), plan)
        # also in a run without interruption, so that both go on from the very same numbers
        encoder = build(plan, _kept(beside))
        regime = Approximation() if plan.regime == Aim.APPROXIMATION else Unsupervised()
        if reached is not None:
            print(f"resuming at step {reached}", file=sys.stderr)
        history = train(
            encoder,
            table,
            regime=regime,
            steps=plan.steps,
            checkpoint=checkpoint,
            seed=plan.seed,
            callback=show.training,
        )
    x = torch.from_numpy(sample[:GAP_ROWS]) if held is None else held.x[:GAP_ROWS]
    gap = measure(encoder, x)
    save(output, encoder, provenance)
    checkpoint.unlink(missing_ok=True)
    beside.unlink(missing_ok=True)
    model = encoder.model
    weights = {
        name: float(value)
        for name, value in model.config.items()
        if name in ("lam", "lam_star", "lam_group", "ridge")
    }
    return {
        "path": str(output),
        "kind": plan.kind,
        "encoder": type(encoder).__name__,
        "rows": len(table),
        "features": model.features,
        "atoms": plan.atoms,
        "size": model.code_size,
        "layers": encoder.layers,
        "parameters": encoder.parameter_count,
        **weights,
        "steps": history.steps,
        "best_step": history.best_step,
        "resumed_at": reached,
        "gap": gap,
        "gap_rows": len(x),
        "held_out": held is not None,
        "bytes": output.stat().st_size,
        "seconds": round(time.perf_counter() - started, 3),
        "training_seconds": round(history.seconds, 3),
    }


def learn(plan: Plan, x: Array) -> SparseModel:
    """The model on a dictionary learned from x, as the estimators learn it."""
    from .. import estimators

    common: dict[str, Any] = {
        "passes": plan.passes,
        "random_state": plan.seed,
        "transform_algorithm": "exact",
    }
    weights: dict[str, Any] = {"lam": plan.lam, "lam_star": plan.lam_star}
    ridge: Any = plan.lam_star
    estimator: Any
    match plan.kind:
        case Kind.NMF:
            estimator = estimators.NMF(plan.atoms, ridge=ridge, **common)
        case Kind.RPCA:
            estimator = estimators.RobustPCA(plan.atoms, center=False, **weights, **common)
        case Kind.RNMF:
            estimator = estimators.RobustNMF(plan.atoms, **weights, **common)
        case _:
            numbers = range(plan.atoms)
            estimator = estimators.SparseCoding(
                plan.atoms,
                lam=plan.lam,
                lam_group=plan.lam_group,
                penalty="l1" if plan.kind == Kind.LASSO else plan.kind,
                groups=[list(numbers[i : i + plan.groups]) for i in numbers[:: plan.groups]],
                **common,
            )
    model: SparseModel = estimator.fit(x).model_
    return model


def build(plan: Plan, model: SparseModel) -> Encoder:
    """The encoder that suits the model, with the step that was asked for."""
    from ..encoders.choice import choose_encoder

    encoder = choose_encoder(model, plan.layers)
    if plan.step is None or plan.step == encoder.config["step"]:
        return encoder
    arguments = {**encoder.config, "step": plan.step, "structure": "auto"}
    return type(encoder)(model, **arguments)


def measure(encoder: Encoder, x: Tensor) -> float:
    """How far the encoder's codes are above the optimum, as a part of it."""
    import torch

    from ..solvers.accuracy import mean_excess

    with torch.no_grad():
        return mean_excess(encoder.model, x, encoder(x))


def _sample(table: Table, held: Array | None, seed: int) -> Array:
    """The rows from which the dictionary is learned, drawn by the seed, in their order."""
    import numpy as np

    rows, features = table.shape
    most = max(1, min(MOST_ROWS, MOST_BYTES // (4 * features)))
    count = 0 if held is None else len(held)
    if rows - count > most:
        # a few more, since some of those drawn are held out
        chosen = np.random.default_rng(seed).choice(rows, min(rows, most + count), replace=False)
    else:
        chosen = np.arange(rows)
    if held is not None:
        chosen = chosen[~np.isin(chosen, held)]
    return table[np.sort(chosen[:most])]


def _fingerprint(table: Table, sample: Array) -> str:
    import hashlib

    return hashlib.sha256(f"{table.shape} ".encode() + sample.tobytes()).hexdigest()


# ---- what an unfinished run leaves ----------------------------------------------------------


def _reached(checkpoint: Path, beside: Path, plan: Plan) -> int | None:
    """The step that an earlier run of the same plan has reached, None without one."""
    from ..files import read

    if beside.exists():
        earlier = read(beside)[1].get("plan")
        if not isinstance(earlier, dict):
            raise ValueError(f"{beside} is no part of an unfinished run; give another --checkpoint")
        changed = [name for name, value in asdict(plan).items() if earlier.get(name) != value]
        if changed:
            raise ValueError(
                f"{checkpoint} is an unfinished run with other settings ({', '.join(changed)}); "
                f"repeat its command, or remove {beside.name} and {checkpoint.name}"
            )
    if not checkpoint.exists():
        return None
    if not beside.exists():
        raise ValueError(
            f"{checkpoint} has no {beside.name} beside it to go on with; "
            "remove it, or give another --checkpoint"
        )
    info = read(checkpoint)[1]
    if info.get("kind") != "checkpoint":
        raise ValueError(f"{checkpoint} is not the checkpoint of a run; give another --checkpoint")
    return int(info["history"]["steps"])


def _keep(path: Path, model: SparseModel, plan: Plan) -> None:
    from ..persistence import description, write

    what, tensors = description(model)
    write(path, tensors, {**what, "provenance": None, "plan": asdict(plan)})


def _kept(path: Path) -> SparseModel:
    from ..persistence import load

    model: SparseModel = load(path)
    return model


# ---- what is shown --------------------------------------------------------------------------


class _Show:
    """What a run tells while it works: nothing."""

    @contextmanager
    def dictionary(self, rows: int) -> Iterator[None]:
        yield

    training: Callable[[Progress], object] | None = None


class _Bars(_Show):
    """Two bars on a terminal."""

    def __init__(self, progress: Any) -> None:
        self.progress = progress
        self.task: Any = None
        self.training = self._training

    @contextmanager
    def dictionary(self, rows: int) -> Iterator[None]:
        task = self.progress.add_task("dictionary", total=None, note=f"from {rows} rows")
        yield
        self.progress.update(task, total=1, completed=1)

    def _training(self, now: Progress) -> None:
        note = f"step {now.step} of {now.steps}, loss {now.loss:.4g}"
        if now.validation is not None:
            note += f", validation {now.validation:.4g}"
        if self.task is None:
            self.task = self.progress.add_task("training", total=now.steps, note="")
        self.progress.update(self.task, completed=now.step, note=note)


@contextmanager
def _shown() -> Iterator[_Show]:
    """Bars on stderr if it is a terminal."""
    if not sys.stderr.isatty():
        yield _Show()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = ("{task.description}", "{task.fields[note]}")
    with Progress(
        TextColumn(columns[0]),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn(columns[1]),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        yield _Bars(progress)


def _summary(written: dict[str, Any]) -> str:
    weights = [
        f"{name.replace('_', '-')} {written[name]:.4g}"
        for name in ("lam", "lam_star", "lam_group", "ridge")
        if name in written
    ]
    where = "held-out" if written["held_out"] else "training"
    return (
        "{path}: {kind}, {atoms} atoms of {features} features, {layers} layers ({encoder}), "
        "{parameters} parameters, {bytes} bytes\n".format(**written)
        + f"{', '.join(weights)}; {written['steps']} steps, {written['best_step']} kept; "
        + f"gap {100 * written['gap']:.3g} % on {written['gap_rows']} {where} rows; "
        + f"{written['seconds']:.1f} s"
    )
