"""Progress of long computations: what every callback of the library receives.

Training, dictionary learning, downloads and experiments all report through one `Progress`; the
command line shows it as a bar. The module imports neither NumPy nor torch.
"""

from __future__ import annotations

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
