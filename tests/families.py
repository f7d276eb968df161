"""The catalogue that tests are parametrised over: every penalty and every model, at random.

A new penalty or model joins the tests of all properties by one entry here. The references
(`reference_*`) state the problem anew for cvxpy from a penalty's own arguments, and share no
code with the library's mathematics. cvxpy is imported where it is used, since that takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pursuit import models, penalties
from pursuit.models import SparseModel
from pursuit.operators import WithIdentity
from pursuit.penalties import L1, Elastic, GroupL2, NonNegative, Penalty, Ridge, Stacked, TreeL2

if TYPE_CHECKING:
    import cvxpy as cp

SIZE = 12
FEATURES = 8

PAIRS = [[0, 1], [2, 3, 4], [5, 6], [7], [8, 9, 10, 11]]
HALVES = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]]
LEAVES = [[i] for i in range(SIZE)]
WEIGHTS = [0.05 + 0.02 * i for i in range(SIZE)]


def _tree(nonnegative: bool) -> TreeL2:
    return TreeL2(
        [(LEAVES, 0.05), (PAIRS, [0.1, 0.2, 0.05, 0.1, 0.15]), (HALVES, 0.1)], nonnegative
    )


#: name -> a penalty on SIZE coefficients
PENALTIES: dict[str, Callable[[], Penalty]] = {
    "zero": penalties.Zero,
    "nonnegative": NonNegative,
    "l1": lambda: L1(0.2),
    "l1-weighted": lambda: L1(WEIGHTS),
    "l1-nonnegative": lambda: L1(0.2, nonnegative=True),
    "group": lambda: GroupL2(PAIRS, [0.2, 0.3, 0.25, 0.15, 0.4]),
    "group-partial": lambda: GroupL2(PAIRS[:3], 0.3),
    "group-nonnegative": lambda: GroupL2(PAIRS, 0.3, nonnegative=True),
    "tree": lambda: _tree(False),
    "tree-nonnegative": lambda: _tree(True),
    "ridge": lambda: Ridge(0.3),
    "ridge-nonnegative": lambda: Ridge(0.3, nonnegative=True),
    "elastic-l1": lambda: Elastic(L1(WEIGHTS), 0.3),
    "elastic-tree": lambda: Elastic(_tree(False), 0.2),
    "stacked": lambda: Stacked([(Ridge(0.4), 4), (L1(0.1), 5), (NonNegative(), 3)]),
}


def _dictionary(generator: torch.Generator, size: int = SIZE) -> Tensor:
    atoms = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64)
    return atoms / atoms.norm(dim=1, keepdim=True)


def _with(name: str) -> Callable[[torch.Generator], SparseModel]:
    return lambda g: SparseModel(_dictionary(g), PENALTIES[name]())


#: name -> a model with a random dictionary
MODELS: dict[str, Callable[[torch.Generator], SparseModel]] = {
    "lasso": lambda g: models.Lasso(_dictionary(g), 0.2),
    "lasso-weighted": lambda g: models.Lasso(3 * _dictionary(g), WEIGHTS),
    "lasso-nonnegative": lambda g: models.Lasso(_dictionary(g), 0.2, nonnegative=True),
    "elastic-net": _with("elastic-l1"),
    "group": lambda g: models.GroupLasso(_dictionary(g), PAIRS, 0.3),
    "group-nonnegative": lambda g: models.GroupLasso(_dictionary(g), PAIRS, 0.3, nonnegative=True),
    "hilasso": lambda g: models.HiLasso(_dictionary(g), PAIRS, 0.2, 0.1),
    "hilasso-nonnegative": lambda g: models.HiLasso(_dictionary(g), HALVES, 0.2, WEIGHTS, True),
    "tree": _with("tree"),
    "tree-nonnegative": _with("tree-nonnegative"),
    "elastic-tree": _with("elastic-tree"),
    "nmf": lambda g: models.NMF(_dictionary(g, 5).abs()),
    "nmf-ridge": lambda g: models.NMF(_dictionary(g).abs(), ridge=0.2),
    "ridge": _with("ridge"),
    "stacked": _with("stacked"),
    "robust-pca": lambda g: models.RobustPCA(4 * _dictionary(g, 3), 0.5, 0.3),
    "robust-pca-weak": lambda g: models.RobustPCA(_dictionary(g, 5), 1e-3, WEIGHTS[:FEATURES]),
    "robust-nmf": lambda g: models.RobustNMF(4 * _dictionary(g, 3).abs(), 0.5, 0.3),
    "robust-nmf-weak": lambda g: models.RobustNMF(_dictionary(g, 5).abs(), 1e-3, 0.2),
    "low-rank-sparse": lambda g: models.LowRankSparse(
        5 * _dictionary(g, 3).abs(), _dictionary(g, 7).abs(), 0.5, 0.1
    ),
    "low-rank-sparse-free": lambda g: models.LowRankSparse(
        _dictionary(g, 3), _dictionary(g, 7), 0.3, 0.2, sparse_ridge=0.1, nonnegative=False
    ),
}


def problem(
    name: str, seed: int, rows: int, dtype: torch.dtype = torch.float64
) -> tuple[SparseModel, Tensor]:
    """A random instance of a family and signals for it; the same seed gives the same one."""
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[name](generator)
    x = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    return model.to(dtype), x.to(dtype)


def full_dictionary(model: SparseModel) -> Tensor:
    """The dictionary with the identity of robust PCA written out."""
    if isinstance(model.operator, WithIdentity):
        return torch.cat([model.dictionary, torch.eye(model.features, dtype=model.dtype)])
    return model.dictionary


def reference_penalty(penalty: Penalty, codes: cp.Variable) -> tuple[cp.Expression, list]:
    """The penalty of a matrix of codes as a cvxpy expression, with its constraints."""
    import cvxpy as cp

    match penalty:
        case Elastic():
            value, constraints = reference_penalty(penalty.penalty, codes)
            weights = np.broadcast_to(penalty.ridge.numpy(), codes.shape)
            return value + cp.sum(cp.multiply(weights, cp.square(codes))) / 2, constraints
        case Stacked():
            ends = np.cumsum([size for _, size in penalty.parts])
            parts = [
                reference_penalty(part, codes[:, end - size : end])
                for (part, size), end in zip(penalty.parts, ends, strict=True)
            ]
            return sum(p[0] for p in parts), [c for p in parts for c in p[1]]
        case L1():
            weights = np.broadcast_to(penalty.lam.numpy(), codes.shape)
            value = cp.sum(cp.multiply(weights, cp.abs(codes)))
        case TreeL2():
            value = cp.Constant(0)
            for level in penalty.levels:
                weights = np.broadcast_to(level.lam.numpy(), len(level.groups))
                for group, weight in zip(level.groups, weights, strict=True):
                    value += weight * cp.sum(cp.norm(codes[:, list(group)], 2, axis=1))
        case penalties.Zero() | NonNegative():
            value = cp.Constant(0)
        case _:
            raise NotImplementedError(type(penalty))
    sign = penalty.sign_constraint(codes.shape[1])
    return value, [] if sign is None else [codes >= 0]


def reference_prox(penalty: Penalty, v: Tensor, step: float) -> np.ndarray:
    import cvxpy as cp

    codes = cp.Variable(tuple(v.shape))
    value, constraints = reference_penalty(penalty, codes)
    distance = cp.sum_squares(codes - v.numpy()) / 2
    return _minimise(distance + step * value, constraints, codes)


def reference_codes(model: SparseModel, x: Tensor) -> np.ndarray:
    import cvxpy as cp

    model, x = model.to(torch.float64), x.double()
    codes = cp.Variable((len(x), model.code_size))
    value, constraints = reference_penalty(model.penalty, codes)
    residual = x.numpy() - codes @ full_dictionary(model).numpy()
    return _minimise(cp.sum_squares(residual) / 2 + value, constraints, codes)


def _minimise(objective: cp.Expression, constraints: list, codes: cp.Variable) -> np.ndarray:
    import cvxpy as cp

    cp.Problem(cp.Minimize(objective), constraints).solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10
    )
    return codes.value
