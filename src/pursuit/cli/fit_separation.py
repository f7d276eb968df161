"""`pursuit fit separation`: a separator of voice and accompaniment from a folder of stems."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from .output import show


def fit_separation(
    data: Path,
    output: Path,
    checkpoint: Path,
    latency: str,
    steps: int | None,
    seed: int,
    threads: int | None,
    notes: dict[str, Any],
    as_json: bool,
) -> None:
    """Train a separator and write it to a file; an interrupted run is continued."""
    from .writing import check_output

    if not data.is_dir():
        raise ValueError(f"{data} is not a folder; separation is learned from a folder of stems")
    for path in (output, checkpoint):
        check_output(path, (), suffixes=())
    if checkpoint.resolve() == output.resolve():
        raise ValueError(
            f"{output} is the output and the checkpoint; give --checkpoint another name"
        )
    from .._threads import limited_threads
    from ..audio.separation import STEPS, Separator
    from ..datasets.stems import read_folder, read_pairs
    from ..progress import Progress
    from .progress import shown

    separator = Separator.convolutional(latency, seed)
    steps = STEPS if steps is None else steps
    try:
        with shown() as callback, limited_threads(threads) if threads else nullcontext():
            stems = read_folder(data)
            pairs = []
            for number, pair in enumerate(read_pairs(stems, separator.rate)):
                callback(Progress("reading", number, len(stems)))
                pairs.append(pair)
            history = separator.fit(
                pairs, steps=steps, seed=seed, callback=callback, checkpoint=checkpoint
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; run the same command again to continue") from None
    minutes = sum(len(pair.voice) for pair in pairs) / separator.rate / 60
    training = {
        "steps": history.steps,
        "seed": seed,
        "loss": history.loss[-1],
        "data": f"{notes['name']}, {len(pairs)} recordings, {minutes:.1f} minutes",
        "date": notes["date"],
    }
    separator.save(output, provenance=notes["provenance"], training=training)
    checkpoint.unlink(missing_ok=True)
    written = {
        "path": str(output),
        "kind": "separation",
        "latency": latency,
        "parameters": separator.parameter_count,
        "bytes": output.stat().st_size,
        "seconds": history.seconds,
        **training,
    }
    text = (
        "{path}: a separator with {parameters} parameters, {bytes} bytes\n"
        "{steps} steps on {data}; signal-to-distortion ratio of the last training mixtures "
        "{ratio:.1f} dB; {seconds:.0f} s"
    ).format(**written, ratio=-history.loss[-1])
    show(written, text, as_json)
