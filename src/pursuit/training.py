"""fit: offline training.

Adam with a learning rate for each kind of parameter, cosine decay and gradient clipping. The loss
on held-out rows decides which parameters are kept; a loss that explodes is rolled back.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from .batches import Batch, as_source, as_tensors, require_shape
from .encoders.bank import EncoderBank
from .encoders.trainable import Trainable
from .progress import Callback
from .regimes import Regime, Unsupervised, as_regime
from .training_loop import History as History
from .training_loop import Run


def fit(
    encoder: Trainable | EncoderBank,
    x: Any,
    targets: Any = None,
    *,
    regime: Regime | Callable[[nn.Module, Batch], Tensor] | None = None,
    dictionary: str = "fixed",
    steps: int | None = None,
    validation: Any = None,
    held: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int = 0,
    callback: Callback | None = None,
    batch_size: int = 256,
    rate: float = 1.0,
    layerwise: float = 0.0,
) -> History:
    """Train an encoder, in place.

    Parameters
    ----------
    encoder
        An encoder, a bank of encoders, or any module with the members of
        `pursuit.encoders.trainable.Trainable`, such as one that transforms x before an encoder.
    x
        Signals (n, m): an array, a tensor or a memory map, from which random rows are drawn; or
        an iterable of batches, such as a DataLoader, each of them x or (x, targets); or a
        `pursuit.batches.Source`, which makes the batch of each step.
    targets
        What the regime compares with, row by row: an array, labels, or
        ``{"low_rank": L, "sparse": O}``.
    regime
        What the encoder is trained for, by default `regimes.Unsupervised`: a regime, or any
        callable ``(encoder, batch) -> loss``.
    dictionary
        "fixed"; "gradient": trained by the same optimiser; "statistics": computed from statistics
        of the codes. Constraints on the dictionary are kept.
    steps
        The number of mini-batches; by default a number that depends on the size of the encoder,
        and is smaller for arrays with few rows.
    validation
        Held-out x, or (x, targets); False for none. By default a tenth of the rows (2048 at most)
        of an array with 500 rows or more is held out. The parameters with the lowest validation
        loss are kept, and a run without improvement ends early.
    held
        Numbers of the rows of an array x to hold out for validation instead; they are never
        trained on. Not together with `validation`.
    checkpoint
        A file that the state of the run is written to regularly. If the file exists, the run
        resumes from it, bit for bit as if it had not been interrupted.
    seed
        The same seed gives the same result on the CPU.
    callback
        Called with a `Progress` of stage "training" after every validation; a true return value
        ends the run.
    batch_size
        Rows of a mini-batch, where x is an array.
    rate
        A factor for all learning rates.
    layerwise
        The weight of the mean loss of the earlier layers. With it every prefix of the encoder is
        usable, at the cost of accuracy at full depth.

    Returns
    -------
    History
        The losses of the run, and the step whose parameters were kept.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> model = pu.models.Lasso(torch.eye(4)[:3], lam=0.1)
    >>> encoder = pu.ProximalEncoder(model, layers=2)
    >>> x = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    >>> history = pu.fit(encoder, x, steps=20)
    >>> history.steps, encoder.regime
    (20, 'unsupervised')
    """
    regime = as_regime(Unsupervised() if regime is None else regime)
    rows = len(x) if getattr(x, "ndim", 0) > 0 else None
    run = Run(encoder, regime, dictionary, steps, seed, rate, layerwise, batch_size, rows)
    if held is not None and validation is not None:
        raise ValueError("give the held-out rows either as held or as validation, not both")
    source, held_out = as_source(
        x, targets, run.features, run.dtype, batch_size, seed, hold=validation is None, held=held
    )
    if held is not None and held_out is not None:
        # resuming with other held-out rows would train on rows that were validated on
        run.settings["held"] = zlib.crc32(np.asarray(held_out.rows).tobytes())
    if not (validation is None or validation is False):
        pair = validation if isinstance(validation, tuple) else (validation, None)
        held_out = Batch(*as_tensors(pair[0], pair[1], run.dtype), total=source.total)
        require_shape(held_out, run.features)
    if checkpoint is not None and not source.resumable:
        raise ValueError(
            "a run on a one-time iterator cannot be resumed, because its past cannot be read "
            "again; give an array, a list of batches or a DataLoader, or leave checkpoint out"
        )
    run.train(source, held_out, None if checkpoint is None else Path(checkpoint), callback)
    return run.history
