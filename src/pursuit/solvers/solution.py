"""The interface between `solve` and the solvers: problem, result, solver, solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models import SparseModel


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Codes with a certificate of their accuracy.

    Attributes
    ----------
    codes
        The codes, shape (n, q), in the dtype of the signals.
    objective
        ``F(codes)`` of each row, shape (n,), float64, up to the rounding that
        `pursuit.certificates` states.
    gap
        An upper bound of ``objective - optimum``, shape (n,), float64, rounding included; the
        objective itself where no certificate exists.
    iterations
        The number of iterations; where rows are solved one by one, the largest number.
    converged
        Whether ``gap <= tol max(objective, eps)``, shape (n,).
    method
        The name of the solver.
    """

    codes: Tensor
    objective: Tensor
    gap: Tensor
    iterations: int
    converged: Tensor
    method: str

    @property
    def relative_gap(self) -> Tensor:
        """``gap / max(objective, eps)``, which `tol` bounds; eps is that of the codes' dtype."""
        return self.gap / self.objective.clamp_min(torch.finfo(self.codes.dtype).eps)

    def __repr__(self) -> str:
        if len(self.codes) == 0:
            return f"Solution(method={self.method!r}, rows=0)"
        return (
            f"Solution(method={self.method!r}, rows={len(self.codes)}, "
            f"converged={int(self.converged.sum())}, iterations={self.iterations}, "
            f"largest relative gap={float(self.relative_gap.max()):.1e})"
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """The input of a solver: validated, on one device and in one dtype."""

    model: SparseModel
    x: Tensor
    mask: Tensor | None
    init: Tensor | None
    tol: float
    max_iter: int


@dataclass(frozen=True, eq=False)
class Result:
    """The output of a solver, see `Solution`; objective and gap are those of the codes."""

    codes: Tensor
    iterations: int
    objective: Tensor
    gap: Tensor


@dataclass(frozen=True)
class Solver:
    """A method of `solve`, its requirements and its defaults.

    `misfit` returns what a model lacks for this solver, as the end of the sentence "it needs ...",
    or None if the model fits. `prepare` computes what all signals share from a model, a tolerance
    and a number of iterations, and returns a `run` for problems with these; None if `run` computes
    little besides.
    """

    name: str
    run: Callable[[Problem], Result]
    misfit: Callable[[SparseModel], str | None]
    max_iter: int  # the default
    masks: bool = False  # whether it accepts a mask
    prepare: Callable[[SparseModel, float, int], Callable[[Problem], Result]] | None = None

    def accepts(self, model: SparseModel, masked: bool) -> bool:
        """Whether the solver fits a model, with a mask if `masked`."""
        return (self.masks or not masked) and self.misfit(model) is None


def fits_all(model: SparseModel) -> str | None:
    """The `misfit` of solvers without requirements."""
    return None
