"""Sufficient statistics of codes, and the dictionary that is best for them.

For coefficients s and targets y (the signals, or what outliers leave of them) the dictionary
minimises ``1/2 sum_i w_i ||y_i - s_i D||^2 + phi(D)``, which depends on the samples only through
``A = sum w s's`` and ``B = sum w s'y``. Old samples are forgotten by the weights
``w_i = beta^(age in samples)``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .models import SparseModel

__all__ = ["Statistics"]


class Statistics:
    """The statistics of a model's codes, kept in float64.

    Parameters
    ----------
    model
        Whose dictionaries are learned.
    beta
        How much a sample's weight shrinks with every sample that comes after it.
    total
        The number of samples that the dictionary's penalty counts once for; by default the
        number that the weights amount to in the long run.
    """

    def __init__(self, model: SparseModel, beta: float = 1.0, total: float | None = None) -> None:
        if not 0 < beta <= 1:
            raise ValueError(f"beta must be positive and at most 1, got {beta}")
        atoms, features = model.dictionary.shape
        self.beta, self.total = beta, total
        self.A = torch.zeros(atoms, atoms, dtype=torch.float64)
        self.B = torch.zeros(atoms, features, dtype=torch.float64)
        self.weight = 0.0

    def add(self, model: SparseModel, x: Tensor, codes: Tensor) -> None:
        """Count some samples in; within a batch they are of one age."""
        with torch.no_grad():
            coefficients, targets = (t.double().cpu() for t in model.regression(x, codes))
        kept = self.beta ** len(x)
        self.A = kept * self.A + coefficients.T @ coefficients
        self.B = kept * self.B + coefficients.T @ targets
        self.weight = kept * self.weight + len(x)

    def update(self, model: SparseModel, sweeps: int = 2) -> dict[str, Tensor]:
        """Better dictionaries for the statistics, by name: each lowers the quadratic problem.

        With a ridge alone the solution is exact, ``D = (A + ridge I)^{-1} B``. Otherwise atoms are
        renewed in turn, ``d_j <- P(d_j + (B_j - A_j D - ridge d_j) / (A_jj + ridge))``, where P
        is the constraint's projection. Atoms that no sample uses stay as they are.
        """
        with torch.no_grad():
            return self._update(model, sweeps)

    def _update(self, model: SparseModel, sweeps: int) -> dict[str, Tensor]:
        sizes = [len(tensor) for tensor in model.dictionaries.values()]
        constraints = list(model.constraints.values())
        share = 1.0 if self.total is None else self.weight / self.total
        ridges = torch.cat(
            [
                torch.full((size,), constraint.ridge * share, dtype=torch.float64)
                for size, constraint in zip(sizes, constraints, strict=True)
            ]
        )
        current = torch.cat([t.detach().double().cpu() for t in model.dictionaries.values()])
        if all(c.ridge > 0 and not c.nonnegative for c in constraints):
            updated = torch.linalg.solve(self.A + torch.diag(ridges), self.B)
        else:
            owner = [c for c, size in zip(constraints, sizes, strict=True) for _ in range(size)]
            updated = current.clone()
            used = self.A.diagonal() > 1e-12 * self.A.diagonal().max()
            for _ in range(sweeps):
                for j in used.nonzero().flatten().tolist():
                    step = self.B[j] - self.A[j] @ updated - ridges[j] * updated[j]
                    atom = updated[j] + step / (self.A[j, j] + ridges[j])
                    updated[j] = owner[j].project(atom[None])[0]
        parts = updated.split(sizes)
        return {
            name: part.to(old)
            for (name, old), part in zip(model.dictionaries.items(), parts, strict=True)
        }

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything as tensors, for a checkpoint."""
        return {"A": self.A, "B": self.B, "weight": torch.tensor(self.weight, dtype=torch.float64)}

    @state.setter
    def state(self, values: Mapping[str, Tensor]) -> None:
        self.A, self.B = values["A"].clone(), values["B"].clone()
        self.weight = float(values["weight"])
