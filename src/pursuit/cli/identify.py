"""`pursuit identify`: who speaks in recordings, by a model of known voices. Runs without torch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .._words import one_line
from .errors import UsageError, warn
from .output import AsJson, show

if TYPE_CHECKING:
    from ..audio.speakers import Identification, Speakers
    from ..audio.streams import Array


def identify(
    context: typer.Context,
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file that pursuit fit speakers has written.")
    ],
    clips: Annotated[
        list[Path],
        typer.Argument(
            metavar="CLIP...",
            help="Recordings in any format that soundfile reads, of any rate, length and number of "
            "channels.",
            show_default=False,
        ),
    ],
    speakers: Annotated[
        int, typer.Option(min=1, help="How many speak at once; if more than 1, nobody is unknown.")
    ] = 1,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Call more voices unknown: as many known ones by mistake as unknown ones are "
            "accepted. By default at most about 5 % of known ones are.",
        ),
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=1,
            help="The smallest likeness of a known voice; -1 accepts all. By default it is the one "
            "that fit found.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PICTURE", help="Draw who speaks when to this file: .png, .svg or .pdf."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say who speaks in each recording.

    Example: pursuit identify voices.safetensors clip.wav

    Example: pursuit identify voices.safetensors meeting.flac --plot when.png

    The score of a speaker is the share of this voice in what the model hears,
    from 0 to 1; the scores of all speakers sum to 1. The margin is the
    distance between the speaker and the next one.

    A voice is unknown if it is not like enough to the speaker with the
    highest score. The likeness is at most 1.

    With --json, the result has "speaker", which is null for an unknown voice,
    and "scores"; several recordings are a list in "clips".
    """
    if strict and threshold is not None:
        raise UsageError("--strict and --threshold exclude each other; give one", context)
    if plot is not None and len(clips) > 1:
        raise UsageError(f"--plot draws one recording, got {len(clips)}", context)
    if plot is not None:
        from ..plots import require_matplotlib
        from .writing import check_output

        require_matplotlib()
        check_output(plot, (model, *clips), suffixes=(".png", ".svg", ".pdf"))
    from ..audio.speakers import Speakers

    known = Speakers.load(model)
    if speakers > len(known.names):
        raise UsageError(
            f"--speakers must be at most {len(known.names)}, the speakers of {model}, got "
            f"{speakers}",
            context,
        )
    options = {"speakers": speakers, "strict": strict, "threshold": threshold}
    if len(clips) == 1:
        wave, result = _identified(known, clips[0], options)
        if plot is not None:
            _draw(known, wave, clips[0], plot)
            result["plot"] = str(plot)
        show(result, _text(result), as_json)
        return
    results = [_attempted(known, clip, options) for clip in clips]
    texts = [_text(result) for result in results if "error" not in result]
    show({"clips": results}, "\n".join(texts), as_json)
    if len(texts) < len(results):
        raise typer.Exit(1)


def _identified(
    known: Speakers, path: Path, options: dict[str, Any]
) -> tuple[Array, dict[str, Any]]:
    """The wave of a recording and its identification as plain data."""
    from ..datasets.voices import read_clip

    wave = read_clip(path, known.rate)
    try:
        found: Identification = known.identify(wave, known.rate, **options)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return wave, {"audio": str(path), **asdict(found), "speakers": list(found.speakers)}


def _attempted(known: Speakers, path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The identification of one of several recordings, or the error."""
    try:
        return _identified(known, path, options)[1]
    except (ValueError, OSError) as error:
        warn(one_line(error, None))
        return {"audio": str(path), "error": one_line(error, None)}


def _text(result: dict[str, Any]) -> str:
    who = " and ".join(result["speakers"]) or "unknown"
    scores = sorted(result["scores"].items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {score:.2f}" for name, score in scores)
    return (
        f"{result['audio']}: {who}\n"
        f"  scores: {shares}; margin {result['margin']:.2f}\n"
        f"  likeness {result['likeness']:.2f}, known from {result['threshold']:.2f} on; "
        f"{result['seconds']:.1f} s of speech"
    )


def _draw(known: Speakers, wave: Array, path: Path, plot: Path) -> None:
    from ..files import whole
    from ..plots import timeline

    when = known.timeline(wave, known.rate)
    figure = timeline(
        when.times, dict(zip(when.names, when.scores.T, strict=True)), wave, known.rate,
        title=path.name,
    )  # fmt: skip
    with whole(plot) as file:
        figure.savefig(file, format=plot.suffix[1:].lower(), dpi=150)
