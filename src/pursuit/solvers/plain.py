"""The plain iterations of the paper, on a whole batch.

All four compute a candidate ``y = prox(z - gradient / L)``: ista accepts all of it, fista computes
it at an extrapolated point, greedy accepts its largest change, block_greedy its largest block.
An untrained encoder with T layers is T steps of one of them. They run in the model's normalised
coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor

from ..certificates import Certificate, is_met
from ..models import SparseModel
from .solution import Problem, Result, Solver, fits_all

#: the number of steps between two evaluations of the certificate
CHECK_EVERY = 10

Iterates = Callable[[SparseModel, Tensor, Tensor, Tensor | None], Iterator[Tensor]]


def ista(model: SparseModel, x: Tensor, z: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """``z <- prox_{psi/alpha}(z - gradient(z) / alpha)``."""
    step = 1 / model.step_constant
    while True:
        z = model.nonsmooth.prox(z - step * model.gradient(x, z, mask), step)
        yield z


def fista(model: SparseModel, x: Tensor, z: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """ista from ``y = z + (t - 1)/t' (z - z_previous)``, ``t' = (1 + sqrt(1 + 4 t^2)) / 2``."""
    step = 1 / model.step_constant
    y, t = z, 1.0
    while True:
        previous, z = z, model.nonsmooth.prox(y - step * model.gradient(x, y, mask), step)
        following = (1 + (1 + 4 * t * t) ** 0.5) / 2
        y = z + (t - 1) / following * (z - previous)
        t = following
        yield z


def greedy(model: SparseModel, x: Tensor, z: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """Minimise over the one coefficient that would change most, with ``L_i = Q_ii``."""
    steps = (1 / model.coordinate_constants).to(z)
    while True:
        change = model.nonsmooth.prox(z - steps * model.gradient(x, z, mask), steps) - z
        chosen = change.abs().argmax(dim=-1, keepdim=True)
        z = z.scatter_add(-1, chosen, change.gather(-1, chosen))
        yield z


def block_greedy(model: SparseModel, x: Tensor, z: Tensor, mask: Tensor | None) -> Iterator[Tensor]:
    """A step with ``L_r = ||Q_rr||_2`` on the block with the largest ``sqrt(L_r) ||e_r||``."""
    labels, constants = model.block_labels.to(z.device), model.block_constants.to(z)
    steps = 1 / constants[labels]
    while True:
        change = model.nonsmooth.prox(z - steps * model.gradient(x, z, mask), steps) - z
        squares = z.new_zeros(len(z), len(constants)).index_add(-1, labels, change.square())
        chosen = (squares * constants).argmax(dim=-1, keepdim=True)
        z = z + change * (labels == chosen)
        yield z


def iterates(
    name: str, model: SparseModel, x: Tensor, init: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield the codes after 1, 2, 3, ... steps of a plain iteration, without end.

    Examples
    --------
    >>> import torch
    >>> from itertools import islice
    >>> from pursuit.models import Lasso
    >>> model, x = Lasso(torch.eye(2), lam=1.0), torch.tensor([[3.0, 0.5]])
    >>> [codes.tolist() for codes in islice(iterates("ista", model, x), 2)]
    [[[2.0, 0.0]], [[2.0, 0.0]]]
    """
    for z in _ITERATES[name](model.to(x.dtype).normalised, x, _start(model, x, init), None):
        yield model.from_normalised(z)


def _start(model: SparseModel, x: Tensor, init: Tensor | None) -> Tensor:
    return x.new_zeros(len(x), model.code_size) if init is None else model.to_normalised(init)


def _run(name: str, problem: Problem) -> Result:
    model, x, mask = problem.model, problem.x, problem.mask
    steps = _ITERATES[name](model.normalised, x, _start(model, x, problem.init), mask)
    certificate = Certificate(model)
    for count in range(1, problem.max_iter + 1):
        z = next(steps)
        if count == problem.max_iter or (problem.tol > 0 and count % CHECK_EVERY == 0):
            codes = model.from_normalised(z)
            objective, gap = certificate.evaluate(x, codes, mask)
            if bool(is_met(gap, objective, problem.tol, x.dtype).all()):
                break
    return Result(codes, count, objective, gap)


def _fits_separable(model: SparseModel) -> str | None:
    if model.separable:
        return None
    return "a penalty that is a sum over single coefficients (block_greedy takes groups)"


_ITERATES: dict[str, Iterates] = {f.__name__: f for f in (ista, fista, greedy, block_greedy)}

PLAIN = tuple(
    Solver(name, partial(_run, name), _fits_separable if name == "greedy" else fits_all, 1000, True)
    for name in _ITERATES
)
