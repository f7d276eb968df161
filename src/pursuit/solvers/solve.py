"""`solve`: the common entry of all solvers, and the choice among them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from .._checks import ArrayLike, as_codes, as_count, as_signals, require_choice
from ..certificates import is_met, round_codes
from ..models import SparseModel, require_model
from .block import BLOCK_COORDINATE
from .coordinate import COORDINATE
from .masked import mask_misfit, solve_masked
from .nonnegative import NONNEGATIVE
from .plain import PLAIN
from .restart import RESTART
from .robust import HUBER_FISTA, NEWTON, prefers_newton
from .solution import Problem, Solution, Solver

logger = logging.getLogger(__name__)

_FAST = (COORDINATE, BLOCK_COORDINATE, NONNEGATIVE, NEWTON, HUBER_FISTA)


def _masked_misfit(model: SparseModel) -> str | None:
    fast = any(solver.misfit(model) is None for solver in _FAST)
    return mask_misfit(model) if fast else "a model that another of the fast methods fits"


MASKED = Solver(
    "masked",
    lambda problem: solve_masked(problem, choose(problem.model)),
    _masked_misfit,
    max_iter=20_000,
    masks=True,
)
METHODS: dict[str, Solver] = {solver.name: solver for solver in (*PLAIN, *_FAST, MASKED, RESTART)}


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
        The model, which defines the objective.
    x
        Signals, shape (n, m), float32 or float64, the dtype of the codes. The computation follows
        it, unless the dictionary is float64 and would have to be rounded.
    method
        "auto" takes the fastest solver that fits the model; `Solution.method` is its name.
        The plain iterations are "ista", "fista", "greedy" and "block_greedy"; the fast ones are
        "coordinate" (Lasso), "block_coordinate" (group Lasso, HiLasso), "nonnegative" (NMF),
        "newton" and "huber_fista" (robust PCA and NMF), and "restart" (FISTA, every model).
    tol
        A row has converged when ``gap <= tol max(objective, eps)``, where eps is the rounding
        unit of the dtype. With 0 the plain iterations make exactly `max_iter` steps.
    max_iter
        The largest number of iterations; the default depends on the method.
    init
        Codes to start from, or a function (an encoder) that computes them from x.
    mask
        Optional, True where x is observed; other entries do not enter the data term.

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
    signals, observed = as_signals(x, model.features, model.device, mask)
    signals = signals.detach()
    start = None
    if init is not None:
        with torch.no_grad():
            codes = init(signals) if callable(init) else init
        start = as_codes(codes, signals, model.code_size, "init").detach()
    masked = observed is not None
    solver = choose(model, masked) if method == "auto" else _fitting(method, model, masked)
    logger.debug("solving %r with %s", model, solver.name)
    most = solver.max_iter if max_iter is None else as_count(max_iter, "max_iter")
    if len(signals) == 0:
        none = torch.zeros(0, dtype=torch.float64, device=signals.device)
        codes = signals.new_zeros(0, model.code_size)
        return Solution(codes, none, none, 0, none.bool(), solver.name)
    dtype = torch.promote_types(signals.dtype, model.dtype)
    problem = Problem(
        model.to(dtype),
        signals.to(dtype),
        observed,
        None if start is None else start.to(dtype),
        float(tol),
        most,
    )
    with torch.no_grad():
        result = solver.run(problem)
        codes, objective, gap = result.codes, result.objective, result.gap
        for values in (objective, gap):  # an overflow leaves NaN: no certificate
            values[values.isnan()] = torch.inf
        if codes.dtype != signals.dtype:
            codes, objective, gap = round_codes(model, signals, codes, objective, gap, observed)
    converged = is_met(gap, objective, tol, signals.dtype)
    return Solution(codes, objective, gap, result.iterations, converged, solver.name)


def choose(model: SparseModel, masked: bool = False) -> Solver:
    """Return the fastest solver that fits the model, for signals with a mask if `masked`."""
    if masked:
        return MASKED if MASKED.accepts(model, masked) else RESTART
    for solver in (NEWTON, COORDINATE, BLOCK_COORDINATE, NONNEGATIVE):
        if solver.accepts(model, masked=False):
            return HUBER_FISTA if solver is NEWTON and not prefers_newton(model) else solver
    return RESTART


def _fitting(method: str, model: SparseModel, masked: bool) -> Solver:
    """Return a solver by its name, or raise an error that lists the ones that fit."""
    solver = METHODS[method]
    missing = solver.misfit(model)
    if missing is None and masked and not solver.masks:
        missing = "fully observed signals (it takes no mask)"
    if missing is not None:
        fitting = [name for name, other in METHODS.items() if other.accepts(model, masked)]
        raise ValueError(
            f"method {method!r} does not fit {type(model).__name__}: it needs {missing}; "
            f"these fit: {', '.join(fitting)}"
        )
    return solver
