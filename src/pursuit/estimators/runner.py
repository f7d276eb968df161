"""A trained encoder as it runs inside an estimator, compared with the optimum now and then."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..models import SparseModel
from ..runtime.compiled import compile as compile_encoder
from ..sampling import Array, sample_rows
from ..solvers.accuracy import mean_excess

#: number of rows on which the excess over the optimum is measured after training, and later
MEASURED_ROWS, CHECKED_ROWS = 100, 20
#: rows run in multiples of this number: what is left over would run in other kernels, whose codes
#: differ in the last digits
BLOCK = 16
#: the comparison takes at most this fraction of the time spent in the encoder
BUDGET = 0.05
#: an encoder is far off if its excess is this many times that of the training data, and noticeable
FAR, NOTICEABLE = 5.0, 0.01


class Runner:
    """A compiled encoder, or a bank of encoders, in single precision.

    It is compiled when it is first needed, and again after unpickling.
    """

    def __init__(self, encoder: Any, threads: int | None) -> None:
        self.encoder, self.threads = encoder, threads
        self.gap = 0.0
        #: seconds that a comparison takes, and seconds spent in the encoder since the last one
        self.cost, self.spent = float("inf"), 0.0
        self._compiled: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_compiled": None}

    def run(self, x: Tensor, method: str = "__call__") -> Array:
        """Compute codes, shape (n, q), or the "errors" of a bank, in the dtype of x."""
        if self._compiled is None:
            self._compiled = compile_encoder(self.encoder, threads=self.threads)
        began = time.perf_counter()
        signals, run = x.numpy(), getattr(self._compiled, method)
        rows = signals.astype(np.float32, copy=False)
        whole = len(rows) - len(rows) % BLOCK
        parts = [run(rows[:whole])] if whole or not len(rows) else []
        if whole < len(rows):
            rest = rows[whole:]
            parts.append(run(np.pad(rest, ((0, BLOCK - len(rest)), (0, 0))))[: len(rest)])
        result: Array = np.concatenate(parts) if len(parts) > 1 else parts[0]
        result = result.astype(signals.dtype, copy=False)
        self.spent += time.perf_counter() - began
        return result

    def measure(self, model: SparseModel, x: Tensor) -> float:
        """Measure the excess over the optimum on some rows, and what a comparison costs."""
        rows = x[torch.from_numpy(sample_rows(len(x), MEASURED_ROWS))]
        self.gap = mean_excess(model, rows, torch.from_numpy(self.run(rows)))
        began = time.perf_counter()
        self.excess(model, rows, self.run(rows))
        self.cost, self.spent = time.perf_counter() - began, 0.0
        return self.gap

    def check_is_due(self, rows: int) -> bool:
        """Whether the time spent in the encoder allows a comparison of some of these rows."""
        if rows < CHECKED_ROWS or BUDGET * self.spent < self.cost:
            return False
        self.spent = 0.0
        return True

    def excess(self, model: SparseModel, x: Tensor, codes: Array) -> float:
        """The excess over the optimum on a few rows."""
        rows = torch.from_numpy(sample_rows(len(x), CHECKED_ROWS))
        return mean_excess(model, x[rows], torch.from_numpy(codes)[rows])

    def is_far(self, gap: float) -> bool:
        """Whether an excess is far above that of the training data."""
        return gap > max(FAR * self.gap, NOTICEABLE)
