"""`solve`: one entry for all solvers, and the choice among them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from .._checks import ArrayLike, as_codes, as_signals, require_choice
from ..certificates import Certificate, is_met
from ..models import SparseModel, require_model
from .block import BLOCK_COORDINATE
from .coordinate import COORDINATE
from .nonnegative import NONNEGATIVE
from .plain import PLAIN
from .restart import RESTART
from .robust import HUBER_FISTA, NEWTON, prefers_newton
from .solution import Problem, Solution, Solver

__all__ = ["METHODS", "choose", "solve"]

logger = logging.getLogger(__name__)

METHODS: dict[str, Solver] = {
    solver.name: solver
    for solver in (
        *PLAIN,
        COORDINATE,
        BLOCK_COORDINATE,
        NONNEGATIVE,
        NEWTON,
        HUBER_FISTA,
        RESTART,
    )
}


def solve(
    model: SparseModel,
    x: ArrayLike,
    method: str = "auto",
    tol: float = 1e-6,
    max_iter: int | None = None,
    init: ArrayLike | Callable[[Tensor], Tensor] | None = None,
    mask: ArrayLike | None = None,
) -> Solution:
    """Minimise the model's objective for each row of x, with a certificate.

    Parameters
    ----------
    model
        What is minimised.
    x
        Signals, shape (n, m), float32 or float64; the computation follows its dtype.
    method
        "auto" takes the quickest solver that fits the model; `Solution.method` tells which.
        The plain iterations, without restart: "ista", "fista", "greedy", "block_greedy".
        The fast exact ones: "coordinate" (Lasso), "block_coordinate" (group Lasso, HiLasso),
        "nonnegative" (NMF), "newton" and "huber_fista" (robust PCA and NMF), "restart" (FISTA
        with restart; every model).
    tol
        A row has converged when ``gap <= tol max(objective, eps)``, where eps is the rounding
        unit of the dtype. With 0 the plain iterations make exactly `max_iter` steps.
    max_iter
        The most iterations; by default what suits the method.
    init
        Codes to start from, or a function (an encoder) that gives them for x.
    mask
        Optional, True where x is observed; the data term leaves out the rest.

    Returns
    -------
    Solution
        Codes, objective, gap and convergence of each row.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> model = pu.models.Lasso(torch.eye(2), lam=1.0)
    >>> pu.solve(model, torch.tensor([[3.0, -0.5]])).codes.tolist()
    [[2.0, 0.0]]
    """
    require_model(model)
    require_choice(method, ["auto", *METHODS], "method")
    if not 0 <= tol < float("inf"):
        raise ValueError(f"tol must be non-negative and finite, got {tol}")
    if max_iter is not None and max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter}")
    signals, observed = as_signals(x, model.features, model.device, mask)
    signals = signals.detach()
    start = None
    if init is not None:
        with torch.no_grad():
            given = init(signals) if callable(init) else init
        start = as_codes(given, len(signals), signals, model.code_size, "init").detach()
    solver = choose(model, masked=observed is not None) if method == "auto" else METHODS[method]
    _require_fit(solver, model, masked=observed is not None)
    logger.debug("solving %r with %s", model, solver.name)
    problem = Problem(
        model=model.to(signals.dtype),
        x=signals,
        mask=observed,
        init=start,
        tol=tol,
        max_iter=solver.max_iter if max_iter is None else max_iter,
    )
    with torch.no_grad():
        result = solver.run(problem)
    objective, gap = result.objective, result.gap
    if objective is None or gap is None:
        objective, gap = Certificate(model).evaluate(signals, result.codes, observed)
    return Solution(
        codes=result.codes,
        objective=objective,
        gap=gap,
        iterations=result.iterations,
        converged=is_met(gap, objective, tol, signals.dtype),
        method=solver.name,
    )


def choose(model: SparseModel, masked: bool = False) -> Solver:
    """The quickest solver that fits the model."""
    robust = NEWTON if prefers_newton(model) else HUBER_FISTA
    for solver in (robust, COORDINATE, BLOCK_COORDINATE, NONNEGATIVE):
        if solver.misfit(model) is None and (solver.masks or not masked):
            return solver
    return RESTART


def _require_fit(solver: Solver, model: SparseModel, masked: bool) -> None:
    missing = solver.misfit(model)
    if missing is None and masked and not solver.masks:
        missing = "fully observed signals (it takes no mask)"
    if missing is not None:
        fitting = [s.name for s in METHODS.values() if s.misfit(model) is None]
        raise ValueError(
            f"method {solver.name!r} does not fit {type(model).__name__}: it needs {missing}; "
            f"these fit: {', '.join(fitting)}"
        )
