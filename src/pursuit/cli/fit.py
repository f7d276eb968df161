"""`pursuit fit`: the options of the command; `fit_run` does the work."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import UsageError
from .output import LARGEST_SEED, AsJson, Columns, Delimiter, Drop, Header, Key, show
from .separate import Latency

if TYPE_CHECKING:
    from .columns import Selection

#: the models; the values of the options are these names in lower case
Kind = StrEnum(
    "Kind", ["LASSO", "GROUP", "HILASSO", "NMF", "RPCA", "RNMF", "SEPARATION", "SPEAKERS"]
)
#: the parameters of the layers: all matrices, one of them, or scalars only
Form = StrEnum("Form", ["FREE", "COUPLED", "MODEL"])
#: the goal of training: a low objective, or codes near the exact ones
Aim = StrEnum("Aim", ["UNSUPERVISED", "APPROXIMATION"])

#: limits beyond which a number is rather a mistake
MOST_ATOMS, MOST_LAYERS = 1_000_000, 1_000
#: what the name of the dictionary of an unfinished run has after that of its checkpoint
DICTIONARY = ".dictionary"
GROUPED = (Kind.GROUP, Kind.HILASSO)
#: the models that each of these options belongs to
OPTIONS = {
    "lam": (Kind.LASSO, Kind.GROUP, Kind.HILASSO, Kind.RPCA, Kind.RNMF),
    "lam_star": (Kind.NMF, Kind.RPCA, Kind.RNMF),
    "lam_group": (Kind.HILASSO,),
    "groups": GROUPED,
}
#: the options that `fit separation` and `fit speakers` take
COMMON = ("kind", "data", "output", "seed", "threads", "provenance", "as_json")
OF_SOUNDS = {
    Kind.SEPARATION: (*COMMON, "steps", "latency", "checkpoint"),
    Kind.SPEAKERS: (*COMMON, "steps", "noise"),
}


def fit(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="The model.")],
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA",
            help="Signals as rows: .npy (may be larger than the memory), .npz, .csv, .parquet; "
            "or a folder of pictures, from which random patches are drawn. For separation: a "
            "folder with a folder for each song, in it vocals.* and accompaniment.* or other "
            "stems; or the corpus MIR-1K. For speakers: a folder with a folder for each speaker, "
            "in it recordings of this person alone.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUTPUT", help="The file to write, usually *.safetensors."
        ),
    ],
    atoms: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_ATOMS,
            help="Atoms of the dictionary; by default 64, for nmf, rpca and rnmf 8.",
        ),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, max=MOST_LAYERS, help="Layers of the encoder.")] = 7,
    lam: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|auto",
            help="The weight of the penalty on single coefficients, for group on groups, for rpca "
            "and rnmf on outliers. The default, auto, estimates it from the noise.",
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
            min=1, help="Consecutive atoms in a group, for group and hilasso; by default 4."
        ),
    ] = None,
    step: Annotated[
        Form | None,
        typer.Option(help="The parameters that layers learn; the default depends on the model."),
    ] = None,
    regime: Annotated[
        Aim, typer.Option(help="Train for low objectives, or for codes near the exact ones.")
    ] = Aim.UNSUPERVISED,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps; the default depends on the size.")
    ] = None,
    passes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Learn the dictionary in small batches, in this many passes; by default from all "
            "rows at once, until it converges.",
        ),
    ] = None,
    patch: Annotated[
        int | None,
        typer.Option(min=2, help="For pictures: the side of a patch; by default 8."),
    ] = None,
    patches: Annotated[
        int | None,
        typer.Option(min=1, help="For pictures: the number of patches; by default 20000."),
    ] = None,
    latency: Annotated[
        Latency, typer.Option(help="For separation: the length of its windows, 128 or 20 ms.")
    ] = Latency.NORMAL,
    noise: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For speakers: recordings of noise, for identify --noisy; by default noise is "
            "made of the recordings, and coloured noise is added.",
            show_default=False,
        ),
    ] = None,
    key: Key = None,
    columns: Columns = None,
    drop: Drop = None,
    delimiter: Delimiter = None,
    header: Header = None,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="The same seed gives the same result.")
    ] = 0,
    threads: Annotated[
        int | None, typer.Option(min=1, help="The number of threads; by default that of torch.")
    ] = None,
    provenance: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A note that is saved in the file.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The file of an unfinished run; by default OUTPUT.checkpoint, removed at the end.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Learn a dictionary, train an encoder for it, and write both to one file.

    The kind separation trains a separator of voice and accompaniment, for
    pursuit separate --model. The kind speakers learns to recognise voices, for
    pursuit identify.

    After an interruption the same command continues the run; the result is
    the same as without the interruption. The kind speakers, which takes a
    few minutes, begins again.

    The data are not changed; only patches of pictures are centred and scaled.

    The gap, the steps, the seed, the name and the shape of the data, and the
    date (SOURCE_DATE_EPOCH if that is set) are saved with the model;
    pursuit inspect shows them.

    Example: pursuit fit lasso X.npy --atoms 256 --layers 7 -o model.safetensors

    Example: pursuit fit rpca X.csv --drop id --atoms 10 -o model.safetensors

    Example: pursuit fit separation songs/ -o voice.safetensors

    Example: pursuit fit speakers voices/ -o voices.safetensors
    """
    if kind in OF_SOUNDS:
        _refuse(context, kind)
    for name, of in (("latency", Kind.SEPARATION), ("noise", Kind.SPEAKERS)):
        if kind is not of and _is_given(context, name):
            raise UsageError(f"--{name} is for {of}, not {kind}", context)
    if checkpoint is None:
        checkpoint = output.with_name(output.name + ".checkpoint")
    if kind in OF_SOUNDS:
        notes = {"provenance": provenance, "name": os.path.basename(data.absolute())}
        notes["date"] = _date()
    if kind is Kind.SPEAKERS:
        from .fit_speakers import fit_speakers

        fit_speakers(data, noise, output, steps, seed, threads, notes, as_json)
        return
    if kind is Kind.SEPARATION:
        from .fit_separation import fit_separation

        fit_separation(
            data, output, checkpoint, latency.value, steps, seed, threads, notes, as_json
        )
        return
    weights = {"lam": lam, "lam_star": lam_star, "lam_group": lam_group}
    model = _model(context, kind, atoms, groups, weights)
    from .columns import Selection

    selection = Selection(key, columns, drop, delimiter, header)
    _check_files(data, output, checkpoint, selection, {"--patch": patch, "--patches": patches})
    date = _date()
    from .data import open_table
    from .fit_run import Plan, run
    from .pictures import PATCH, PATCHES, open_pictures
    from .progress import shown

    plan = Plan(
        **model,
        layers=layers,
        step=None if step is None else step.value,
        regime=regime.value,
        steps=steps,
        passes=passes,
        seed=seed,
        threads=threads,
    )
    notes = {"provenance": provenance, "name": os.path.basename(data.absolute()), "date": date}
    try:
        with shown() as callback:
            if data.is_dir():
                table = open_pictures(data, patch or PATCH, patches or PATCHES, seed)
            else:
                table = open_table(data, selection, callback)
            written = run(plan, table, output, checkpoint, notes, callback)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
    show(written, _summary(written), as_json)


def _refuse(context: typer.Context, kind: Kind) -> None:
    """Raise a usage error if an option was given that this kind does not take."""
    for name in context.params:
        if name not in OF_SOUNDS[kind] and _is_given(context, name):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is not for {kind}", context)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_files(
    data: Path,
    output: Path,
    checkpoint: Path,
    selection: Selection,
    pictures: dict[str, int | None],
) -> None:
    """Raise an error if data cannot be read or results not written, before any work is done."""
    from .data import READABLE, check_input
    from .pictures import check_pictures
    from .writing import check_output

    check_output(output, (data,), suffixes=())
    if output.suffix.lower() in READABLE:
        raise ValueError(
            f"{output} has the suffix of a data file, but fit writes a model; call it *.safetensors"
        )
    if checkpoint.resolve() == output.resolve():
        raise ValueError(
            f"{output} is the output and the checkpoint; give --checkpoint another name"
        )
    check_output(checkpoint, (data,), suffixes=())
    check_output(checkpoint.with_name(checkpoint.name + DICTIONARY), (data,), suffixes=())
    check_pictures(data, selection, pictures)
    if not data.is_dir():
        check_input(data, selection)


def _date() -> str:
    """The current time, or that of SOURCE_DATE_EPOCH, with which equal runs give equal files."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return datetime.now(UTC).isoformat(timespec="seconds")
    try:
        return datetime.fromtimestamp(int(text), UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise ValueError(
            f"SOURCE_DATE_EPOCH must be a number of seconds since 1970, got {text!r}; unset it or "
            "correct it"
        ) from error


def _model(
    context: typer.Context,
    kind: Kind,
    atoms: int | None,
    groups: int | None,
    weights: dict[str, str | None],
) -> dict[str, Any]:
    """The options of the model with their defaults; a usage error if they do not fit its kind."""
    for name, value in {**weights, "groups": groups}.items():
        if value is not None and kind not in OPTIONS[name]:
            fitting = ", ".join(OPTIONS[name])
            raise UsageError(f"--{name.replace('_', '-')} is for {fitting}, not {kind}", context)
    if kind is Kind.NMF:
        if weights["lam_star"] == "auto":
            raise UsageError("--lam-star must be a number for nmf", context)
        weights = {**weights, "lam_star": weights["lam_star"] or "0"}
    atoms = atoms or (8 if kind in OPTIONS["lam_star"] else 64)
    groups = groups or 4
    numbers = {name: _weight(value, name, context) for name, value in weights.items()}
    if kind in GROUPED and atoms % groups:
        raise UsageError(
            f"--atoms must be a multiple of --groups, got {atoms} and {groups}", context
        )
    return {"kind": kind.value, "atoms": atoms, "groups": groups, **numbers}


def _weight(value: str | None, name: str, context: typer.Context) -> float | str:
    if value is None or value == "auto":
        return "auto"
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        option = name.replace("_", "-")
        raise UsageError(f"--{option} must be auto or a number >= 0, got {value}", context)
    return number


def _summary(written: dict[str, Any]) -> str:
    names = [name for name in ("lam", "lam_star", "lam_group", "ridge") if name in written]
    weights = [f"{name.replace('_', '-')} {written[name]:.4g}" for name in names]
    where = "held-out" if written["held_out"] else "training"
    return (
        "{path}: {kind}, {atoms} atoms of {features} features, {layers} layers ({encoder}), "
        "{parameters} parameters, {bytes} bytes\n".format(**written)
        + f"{', '.join(weights)}; {written['steps']} steps, best at {written['best_step']}; "
        + f"gap {100 * written['gap']:.3g} % on {written['gap_rows']} {where} rows; "
        + f"{written['seconds']:.1f} s"
    )
