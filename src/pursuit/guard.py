"""The guard: a training term that keeps deep encoders stable on signals unlike the training data.

On the data, codes are sparse, and few active atoms allow steps several times longer than those that
are stable for all atoms. Training finds such steps, because they are accurate. A signal that
activates many atoms is then amplified by every layer, and activates still more. No training row
shows this before it happens, so the guard adds rows that are harder than the data.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .batches import DRAWN_AT_ONCE
from .encoders.trainable import Trainable
from .models import SparseModel
from .sampling import Array

#: the number of rows of a batch for each hard row
SHARE = 8
#: hard rows are up to this many times larger than the rows that they are made of. Larger factors
#: extend the stability to larger signals and cost accuracy, most in shallow encoders.
LARGEST = 1.25
#: the most numbers of the features' orders that are drawn at once
MOST_DRAWN = 2**18


def guard(encoder: Trainable, x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return how much worse than the zero code an encoder is on hard rows.

    The term is ``mean_i max(0, log F(y_i, z(y_i)) - log F(y_i, 0))`` over `hard_rows` y of x. It is
    zero, and so is its gradient, as long as no code is worse than zero; the logarithm makes a
    row that blows up by a factor of 10^10 count 23, not 10^10.
    """
    rows = hard_rows(x, rng)
    return excess(encoder.model, encoder.prepare(rows), encoder(rows))


def excess(model: SparseModel, y: Tensor, codes: Tensor) -> Tensor:
    """Return the term of `guard` for signals y and their codes."""
    reached = model.objective(y, codes)
    start = model.objective(y, y.new_zeros(len(y), model.code_size))
    tiny = torch.finfo(y.dtype).tiny
    return (reached.clamp_min(tiny).log() - start.clamp_min(tiny).log()).clamp_min(0).mean()


def hard_rows(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return signals that are harder to encode than x, shape (ceil(n / 8), m).

    In equal parts sums of two rows (divided by sqrt(2)), rows with their features shuffled (all in
    the same order), and plain rows, each multiplied by a factor between 1 and `LARGEST`, uniform on
    a logarithmic scale. Non-negative signals stay non-negative.
    """
    return _made(x, *(numbers[0] for numbers in _drawn(rng, 1, *x.shape)))


class HardRows:
    """The hard rows of each step of a run, which depend on the seed, the step and the batch alone.

    Random numbers are drawn for many steps at once, which takes a third of the time.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._key: tuple[int, ...] = ()
        self._numbers: tuple[Array, ...] = ()

    def __call__(self, step: int, x: Tensor) -> Tensor:
        """Return the rows for the batch of a step, as `hard_rows` makes them."""
        rows, features = x.shape
        steps = max(1, min(DRAWN_AT_ONCE, MOST_DRAWN // max(features, 1)))
        block, number = divmod(step, steps)
        key = (block, rows, features)
        if key != self._key:
            rng = np.random.Generator(np.random.Philox(key=[self.seed, block]))
            self._key, self._numbers = key, _drawn(rng, steps, rows, features)
        return _made(x, *(numbers[number] for numbers in self._numbers))


def _drawn(rng: np.random.Generator, steps: int, rows: int, features: int) -> tuple[Array, ...]:
    """The numbers of some steps: the rows that are taken, the order of features, the factors."""
    count = -(-rows // SHARE)
    chosen = rng.integers(rows, size=(steps, count + -(-count // 3)))
    orders = rng.permuted(np.tile(np.arange(features), (steps, 1)), axis=1)
    factors = LARGEST ** rng.random((steps, count, 1))
    factors[:, ::3] *= 0.5**0.5
    return chosen, orders, factors


def _made(x: Tensor, chosen: Array, order: Array, factors: Array) -> Tensor:
    # NumPy's operations on so few numbers take a fraction of the time of torch's
    drawn = x.detach().index_select(0, torch.from_numpy(chosen).to(x.device)).cpu().numpy()
    rows, added = drawn[: len(factors)], drawn[len(factors) :]
    rows[::3] += added
    rows[1::3] = rows[1::3][:, order]
    rows *= factors.astype(rows.dtype)
    return torch.from_numpy(rows).to(x.device)
