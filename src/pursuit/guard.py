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

from .encoders.trainable import Trainable
from .models import SparseModel

#: the number of rows of a batch for each hard row
SHARE = 8
#: hard rows are up to this many times larger than the rows that they are made of. Larger factors
#: extend the stability to larger signals and cost accuracy, most in shallow encoders.
LARGEST = 1.25


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
    count = -(-len(x) // SHARE)
    chosen = torch.from_numpy(rng.integers(len(x), size=count + -(-count // 3)))
    # NumPy's operations on so few numbers take a fraction of the time of torch's
    drawn = x.detach().index_select(0, chosen.to(x.device)).cpu().numpy()
    rows, added = drawn[:count], drawn[count:]
    rows[::3] += added
    rows[::3] *= 0.5**0.5
    rows[1::3] = rows[1::3][:, rng.permutation(x.shape[1])]
    rows *= (LARGEST ** rng.random((count, 1))).astype(rows.dtype)
    return torch.from_numpy(rows).to(x.device)
