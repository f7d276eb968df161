"""What a solver returns, and what a solver is to `solve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import SparseModel

__all__ = ["Problem", "Result", "Solution", "Solver"]


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Codes with the proof of their accuracy.

    Attributes
    ----------
    codes
        The codes, shape (n, q), in the dtype of the signals.
    objective
        ``F(codes)`` of each row, shape (n,), float64.
    gap
        An upper bound of ``objective - optimum`` of each row, shape (n,), float64; inf where
        no certificate exists.
    iterations
        The number of iterations; where rows are solved one by one, the largest number.
    converged
        Whether ``gap <= tol max(objective, eps)``, shape (n,).
    method
        The solver that was used.
    """

    codes: Tensor
    objective: Tensor
    gap: Tensor
    iterations: int
    converged: Tensor
    method: str

    @property
    def relative_gap(self) -> Tensor:
        """``gap / objective`` of each row, the quantity that `tol` bounds."""
        return self.gap / self.objective.clamp_min(torch.finfo(torch.float64).tiny)

    def __repr__(self) -> str:
        return (
            f"Solution(method={self.method!r}, rows={len(self.codes)}, "
            f"converged={int(self.converged.sum())}, iterations={self.iterations}, "
            f"largest relative gap={float(self.relative_gap.max()):.1e})"
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """What a solver is given: everything checked, on one device and in one dtype."""

    model: SparseModel
    x: Tensor
    mask: Tensor | None
    init: Tensor | None
    tol: float
    max_iter: int


@dataclass(frozen=True, eq=False)
class Result:
    """What a solver hands back to `solve`; without objective and gap, `solve` certifies."""

    codes: Tensor
    iterations: int
    objective: Tensor | None = None
    gap: Tensor | None = None


@dataclass(frozen=True)
class Solver:
    """A method by name, with what it needs.

    Attributes
    ----------
    name
        What the user asks for.
    run
        From a problem to its codes.
    misfit
        What the model lacks for this solver, as the end of a sentence, or None if it fits.
    max_iter
        The number of iterations if the user gives none.
    masks
        Whether it can leave out unobserved entries.
    """

    name: str
    run: Callable[[Problem], Result]
    misfit: Callable[[SparseModel], str | None]
    max_iter: int
    masks: bool = False
