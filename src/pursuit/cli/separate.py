"""`pursuit separate`: the voice and the accompaniment of a recording, or of a live signal.

Everything that can be refused is refused before the work begins. Runs without torch.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import UsageError
from .output import AsJson, show

if TYPE_CHECKING:
    from ..audio.separation import Separator

#: the pretrained models
Latency = StrEnum("Latency", ["NORMAL", "LOW"])
#: raw samples: signed integers of 16 or 24 bits, or float32, the lowest byte first
Encoding = StrEnum("Encoding", ["S16LE", "S24LE", "F32LE"])
#: what a live signal is turned into
Part = StrEnum("Part", ["VOICE", "ACCOMPANIMENT", "BOTH"])

#: the defaults of a live signal, those of `arecord -f cd`
RATE, CHANNELS = 44100, 2
#: limits beyond which a number is rather a mistake
MOST_CHANNELS, LOWEST_RATE, HIGHEST_RATE = 64, 1000, 768_000


def separate(
    context: typer.Context,
    audio: Annotated[
        Path | None,
        typer.Argument(
            metavar="AUDIO",
            help="The recording: WAV, FLAC, OGG, MP3, AIFF or any other format that soundfile "
            "reads, of any rate, length and number of channels.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="The folder to write to; it is made if it does not exist.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file of a separator; by default a pretrained one."),
    ] = None,
    latency: Annotated[
        Latency | None,
        typer.Option(
            help="Which pretrained separator: normal, the default, has windows of 128 ms; low has "
            "windows of 20 ms, for --live, and separates 3 dB less well.",
            show_default=False,
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Also write report.html, a page with spectrograms and players of the first "
            "30 seconds.",
        ),
    ] = False,
    live: Annotated[
        bool,
        typer.Option("--live", help="Read raw samples from stdin, and write them to stdout."),
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(
            min=LOWEST_RATE,
            max=HIGHEST_RATE,
            help=f"For --live: samples a second; by default {RATE}.",
            show_default=False,
        ),
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_CHANNELS,
            help=f"For --live: the number of channels; by default {CHANNELS}.",
            show_default=False,
        ),
    ] = None,
    encoding: Annotated[
        Encoding | None,
        typer.Option(
            help="For --live: integers of 16 or 24 bits, or float32; by default s16le.",
            show_default=False,
        ),
    ] = None,
    output_part: Annotated[
        Part | None,
        typer.Option(
            help="For --live: the part to write; by default voice. With both, the channels of the "
            "voice come first, then those of the accompaniment.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Separate the singing voice from the accompaniment.

    Example: pursuit separate song.mp3 -o parts

    Example: pursuit separate song.flac -o parts --report

    Example: arecord -f cd | pursuit separate --live | aplay -f cd

    The first writes parts/voice.wav and parts/accompaniment.wav, with the
    rate, the length and the channels of the song. Both files are complete
    or do not exist. A song may be longer than the memory. If it has no
    samples, neither have they.

    The parts add up to the song exactly. They have its sample format: 16,
    24 or 32 bits, or float; 8 bits become 16. Where a part would exceed
    full scale it is limited, and the other part takes the difference; the
    number of such samples is printed. Lossy formats (MP3, OGG) become 16
    bits, or float if the decoded song itself exceeds full scale.

    A live signal is raw samples, the channels interleaved, as arecord and
    aplay write and read them. The delay is printed on stderr.
    """
    raw = {
        "--rate": rate,
        "--channels": channels,
        "--encoding": encoding,
        "--output-part": output_part,
    }
    if live:
        given = {"AUDIO": audio, "-o": output, "--report": report, "--json": as_json}
        _refuse(given, "--live reads stdin and writes stdout; leave out {}", context)
        _require_pipes(context)
        from .live import run as run_live

        run_live(
            _separator(model, latency),
            rate or RATE,
            channels or CHANNELS,
            encoding or Encoding.S16LE,
            output_part or Part.VOICE,
            low=latency is Latency.LOW,
        )
        return
    _refuse(raw, "{} goes with --live only", context)
    if audio is None:
        raise UsageError("Missing argument 'AUDIO', or --live", context)
    if output is None:
        raise UsageError("Missing option '--output' / '-o', the folder to write to", context)
    if model is not None and latency is not None:
        raise UsageError(
            "--latency chooses a pretrained separator; give it or --model",
            context,
        )
    from ..audio.recordings import Recording
    from .progress import shown
    from .separate_run import check, run, summary

    recording = Recording.open(audio)
    check(audio, output, report)
    separator = _separator(model, latency)
    with shown() as callback:
        written = run(separator, recording, output, report, callback)
    show(written, summary(written), as_json)


def _refuse(given: dict[str, Any], sentence: str, context: typer.Context) -> None:
    """Raise a usage error if an option is given that does not fit the others."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UsageError(sentence.format(name), context)


def _require_pipes(context: typer.Context) -> None:
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if stream.isatty():
            raise UsageError(
                f"{name} of --live is a terminal; connect programs by pipes, such as "
                "arecord -f cd | pursuit separate --live | aplay -f cd",
                context,
            )


def _separator(model: Path | None, latency: Latency | None) -> Separator:
    from ..audio.separation import Separator

    if model is not None:
        return Separator.load(model)
    return Separator.pretrained(latency=(latency or Latency.NORMAL).value)
