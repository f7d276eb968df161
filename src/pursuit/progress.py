"""Progress of long computations: what every callback of the library receives.

Training, dictionary learning, downloads and experiments all report through one `Progress`; the
command line shows it as a bar. The module imports neither NumPy nor torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Progress:
    """The state of a computation at one moment.

    Attributes
    ----------
    stage
        What is being computed, for example "training", "dictionary" or the name of a file.
    done, total
        The number of units completed, and in total: steps, samples, bytes or parts. `total` is
        None where it is not known.
    loss, validation
        The training loss and the loss on held-out rows, where the stage has them.
    seconds
        Time since the computation began.
    detail
        A remark on the stage, such as a first result.
    dictionary
        The current dictionary, where the stage learns one.
    """

    stage: str
    done: int
    total: int | None
    loss: float | None = None
    validation: float | None = None
    seconds: float = 0.0
    detail: str = ""
    dictionary: Tensor | None = field(default=None, compare=False, repr=False)


#: a function that receives progress; if it returns true, a computation that can end early ends
Callback = Callable[[Progress], object]


def printed(title: str, every: float = 1.0) -> Callback:
    """Return a callback that prints a line on stdout when a stage begins, and every few seconds.

    Parameters
    ----------
    title
        The beginning of each line.
    every
        The seconds between two lines of a stage.
    """
    last: dict[str, float] = {}

    def show(now: Progress) -> None:
        seconds = time.perf_counter()
        if seconds - last.get(now.stage, -every) < every and now.done != now.total:
            return
        last[now.stage] = seconds
        words = [f"{title}: {now.stage} {now.done}"]
        if now.total is not None:
            words[0] += f" of {now.total}"
        if now.loss is not None:
            words.append(f"objective {now.loss:.6g}")
        if now.validation is not None:
            words.append(f"validation {now.validation:.6g}")
        words += [now.detail] if now.detail else []
        print(", ".join(words) + f" ({now.seconds:.1f} s)", file=sys.stdout, flush=True)

    return show


def combined(*callbacks: Callback | None) -> Callback | None:
    """Return a callback that calls all given ones; it ends the computation if one of them does."""
    given = [callback for callback in callbacks if callback is not None]
    if len(given) < 2:
        return given[0] if given else None
    return lambda now: any([callback(now) for callback in given])
