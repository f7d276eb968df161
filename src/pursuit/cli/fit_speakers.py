"""`pursuit fit speakers`: a model of voices from a folder with a folder for each speaker."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .output import show


def fit_speakers(
    data: Path,
    noise: Path | None,
    output: Path,
    steps: int | None,
    seed: int,
    threads: int | None,
    notes: dict[str, Any],
    as_json: bool,
) -> None:
    """Learn to recognise speakers, and write the model to a file.

    `steps` are those towards the exact codes; the other stages are shortened in proportion.
    """
    from .writing import check_output, termination_as_exception

    if not data.is_dir():
        raise ValueError(
            f"{data} is not a folder; speakers are learned from a folder with a folder for each"
        )
    if noise is not None and not noise.is_dir():
        raise ValueError(f"{noise} is not a folder; give --noise a folder with recordings of noise")
    check_output(output, (), suffixes=())
    from .._threads import limited_threads
    from ..audio.speaker_recipe import NoiseRecipe, Recipe
    from ..audio.speakers import Speakers
    from ..datasets import voices
    from .progress import shown

    recipe = Recipe()
    rate, share = recipe.envelope.rate, 1 if steps is None else steps / recipe.approximation
    with shown() as callback, limited_threads(threads) if threads else nullcontext():
        recordings = voices.read(voices.list_folder(data), rate, callback)
        sounds = None if noise is None else voices.read_sounds(noise, rate, callback)
        speakers = Speakers.fit(
            recordings, rate, noise=sounds, recipe=recipe.shortened(share),
            noise_recipe=NoiseRecipe().shortened(share), seed=seed, callback=callback,
        )  # fmt: skip
    training = speakers.info["training"]
    training |= {"data": notes["name"], "date": notes["date"]}
    speakers.info["provenance"] = notes["provenance"]
    with termination_as_exception():
        speakers.save(output)
    written = {
        "path": str(output),
        "kind": "speakers",
        "names": list(speakers.names),
        "bytes": output.stat().st_size,
        **training,
    }
    show(written, _summary(written), as_json)


def _summary(written: dict[str, Any]) -> str:
    lines = [
        "{path}: {speakers} speakers, {kilobytes:.0f} kB; {recordings} recordings, "
        "{duration:.0f} s of speech; {seconds:.0f} s".format(
            **written, kilobytes=written["bytes"] / 1000
        )
    ]
    if written["accuracy"] is None:
        lines.append("the recordings are too short to estimate the accuracy")
    else:
        lines.append(
            f"accuracy {100 * written['accuracy']:.0f} % on {written['held_out']} recordings held "
            f"out, {written['held_out_seconds'] / written['held_out']:.1f} s each on average"
        )
    if written["unknown_error"] is not None:
        lines.append(
            f"known and unknown voices are mistaken for each other in about "
            f"{100 * written['unknown_error']:.0f} % of cases with --strict"
        )
    return "\n".join(lines)
