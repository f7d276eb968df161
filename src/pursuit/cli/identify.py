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
    from ..audio.recordings import Recording
    from ..audio.speakers import Speakers
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
    noisy: Annotated[
        bool,
        typer.Option("--noisy", help="Use the model for noise; with it nobody is unknown."),
    ] = False,
    denoise: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.wav",
            help="Write the speech without the noise, one channel at the rate of the recording, "
            "below 4 kHz.",
        ),
    ] = None,
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

    A voice is unknown if it is not like enough to any speaker. The likeness,
    at most 1, is that to the speaker it is most like.

    With --noisy, scores are probabilities by the errors of the model for
    noise, which also sum to 1.

    With --json, the result has "speaker", which is null for an unknown voice,
    and "scores"; several recordings are a list in "clips".
    """
    if strict and threshold is not None:
        raise UsageError("--strict and --threshold exclude each other; give one", context)
    if noisy and (strict or threshold is not None):
        raise UsageError("with --noisy nobody is unknown; leave out the threshold", context)
    for name, path in (("--plot", plot), ("--denoise", denoise)):
        if path is not None and len(clips) > 1:
            raise UsageError(f"{name} is for one recording, got {len(clips)}", context)
    _check(model, clips, plot, denoise)
    from ..audio.speakers import Speakers

    known = Speakers.load(model)
    if speakers > len(known.names):
        raise UsageError(
            f"--speakers must be at most {len(known.names)}, the speakers of {model}, got "
            f"{speakers}",
            context,
        )
    options = {"speakers": speakers, "noisy": noisy, "strict": strict, "threshold": threshold}
    if len(clips) == 1:
        recording, wave = _read(clips[0])
        result = _identified(known, recording, wave, options)
        if denoise is not None:
            _write(known.denoise(wave, recording.rate), recording.rate, denoise)
            result["denoised"] = str(denoise)
        if plot is not None:
            _draw(known, recording, wave, plot)
            result["plot"] = str(plot)
        show(result, _text(result), as_json)
        return
    results = [_attempted(known, clip, options) for clip in clips]
    texts = [_text(result) for result in results if "error" not in result]
    show({"clips": results}, "\n".join(texts), as_json)
    if len(texts) < len(results):
        raise typer.Exit(1)


def _check(model: Path, clips: list[Path], plot: Path | None, denoise: Path | None) -> None:
    """Raise an error if files cannot be written, before any work is done."""
    from .writing import check_output

    if plot is not None:
        from ..plots import require_matplotlib

        require_matplotlib()
        check_output(plot, (model, *clips), suffixes=(".png", ".svg", ".pdf"))
    if denoise is not None:
        check_output(denoise, (model, *clips), suffixes=(".wav",))


def _read(path: Path) -> tuple[Recording, Array]:
    """A recording and the mean of its channels."""
    from ..audio.recordings import Recording

    recording = Recording.open(path)
    return recording, recording.wave(recording.rate)


def _identified(
    known: Speakers, recording: Recording, wave: Array, options: dict[str, Any]
) -> dict[str, Any]:
    """The identification as plain data; errors name the file."""
    try:
        found = known.identify(wave, recording.rate, **options)
    except ValueError as error:
        raise ValueError(f"{recording.path}: {error}") from error
    return {"audio": str(recording.path), **asdict(found), "speakers": list(found.speakers)}


def _attempted(known: Speakers, path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The identification of one of several recordings, or the error."""
    try:
        return _identified(known, *_read(path), options)
    except (ValueError, OSError) as error:
        warn(one_line(error, None))
        return {"audio": str(path), "error": one_line(error, None)}


def _text(result: dict[str, Any]) -> str:
    who = " and ".join(result["speakers"]) or "unknown"
    scores = sorted(result["scores"].items(), key=lambda item: -item[1])
    shares = ", ".join(f"{name} {score:.2f}" for name, score in scores)
    lines = [
        f"{result['audio']}: {who}",
        f"  scores: {shares}; margin {result['margin']:.2f}; {result['seconds']:.1f} s",
    ]
    if result["likeness"] is not None:
        lines.append(
            f"  likeness {result['likeness']:.2f}, known from {result['threshold']:.2f} on"
        )
    return "\n".join(lines)


def _write(speech: Array, rate: int, path: Path) -> None:
    import numpy as np

    from ..audio.recordings import import_soundfile
    from ..files import whole

    with whole(path) as file:
        samples = np.clip(speech, -1, 1)
        import_soundfile().write(file, samples, rate, "PCM_16", format="WAV")


def _draw(known: Speakers, recording: Recording, wave: Array, plot: Path) -> None:
    from ..plots import timeline

    when = known.timeline(wave, recording.rate)
    scores = dict(zip(when.names, when.scores.T, strict=True))
    timeline(when.times, scores, wave, recording.rate, title=recording.path.name, path=plot)
