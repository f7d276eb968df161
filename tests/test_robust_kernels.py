"""Exact codes of robust PCA and NMF at the sizes where registers and tiles begin and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import pursuit as pu
from pursuit import models
from pursuit._native import kernels
from pursuit.solvers.robust import _dictionary, _ridge_inverse

ATOMS, FEATURES = (1, 4, 8, 9, 25, 34), (1, 16, 17, 145)
#: far above the rounding that every gap includes
TOL = 1e-10
METHODS = ("newton", "huber_fista")


def model(kind: type[models.RobustPCA], atoms: int, features: int) -> models.RobustPCA:
    generator = torch.Generator().manual_seed(atoms + 100 * features)
    dictionary = torch.randn(atoms, features, generator=generator, dtype=torch.float64)
    return kind(dictionary.abs() if kind is models.RobustNMF else dictionary, 0.5, 0.3)


def signals(features: int) -> torch.Tensor:
    return torch.randn(
        6, features, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).abs()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [models.RobustPCA, models.RobustNMF])
@pytest.mark.parametrize("features", FEATURES)
def test_codes_are_optimal_at_all_sizes(
    kind: type[models.RobustPCA], features: int, method: str
) -> None:
    """With nu = clip(x - s D0), lam_star s = D0 nu, or its positive part, and o = x - s D0 - nu."""
    x = signals(features)
    for atoms in ATOMS:
        exact = model(kind, atoms, features)
        solution = pu.solve(exact, x, method=method, tol=TOL, max_iter=100_000)
        assert solution.converged.all()
        scores, outliers = solution.codes[:, :atoms], solution.codes[:, atoms:]
        residual = x - scores @ exact.dictionary
        if kind is models.RobustNMF:
            dual = residual.clamp(max=0.3)
            best = (dual @ exact.dictionary.T).clamp_min(0) / 0.5
        else:
            dual = residual.clamp(-0.3, 0.3)
            best = dual @ exact.dictionary.T / 0.5
        # the gap is at least lam_star/2 ||s - best||^2
        slack = (2 * TOL / 0.5 * solution.objective).sqrt()[:, None] + 1e-12
        assert ((scores - best).abs() <= slack).all()
        assert torch.allclose(outliers, residual - dual, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [models.RobustPCA, models.RobustNMF])
def test_few_atoms_of_many(kind: type[models.RobustPCA]) -> None:
    """Scores that are mostly zero, which come and go during the search."""
    wide = model(kind, 120, 60)
    x = signals(60)
    newton, fista = (pu.solve(wide, x, method=method, tol=1e-9) for method in METHODS)
    assert newton.converged.all()
    assert fista.converged.all()
    if kind is models.RobustNMF:
        assert (newton.codes[:, :120] == 0).double().mean() > 0.5
    assert torch.allclose(newton.objective, fista.objective, rtol=2e-9, atol=0)


def call(rows: int = 4, dtype: type = np.float32) -> dict[str, Any]:
    """The arguments of a call, with 9 atoms and 17 features."""
    rng = np.random.default_rng(0)
    x, d0 = rng.standard_normal((rows, 17)), rng.standard_normal((9, 17))
    return _dictionary(d0, 0.5) | {
        "x": x.astype(dtype), "lam": np.full(17, 0.3), "lam_star": 0.5, "nonnegative": False,
        "tol": 1e-6, "max_iter": 100, "rounding": 1e-14, "codes": np.zeros((rows, 26), dtype),
        "objective": np.empty(rows), "gap": np.empty(rows), "iterations": np.empty(rows, np.int64),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["huber_newton", "huber_fista"])
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("x", np.zeros((4, 16), np.float32), ValueError),
        ("atoms", np.zeros((9, 17)), ValueError),
        ("features", np.zeros((17, 9)), ValueError),
        ("single_atoms", np.zeros((8, 32), np.float32), ValueError),
        ("single_features", np.zeros((17, 24), np.float32), ValueError),
        ("gram", np.zeros((9, 9)), ValueError),
        ("ridge", np.zeros((16, 16)), ValueError),
        ("lam", np.ones(16), ValueError),
        ("codes", np.zeros((4, 17), np.float32), ValueError),
        ("gap", np.zeros(3), ValueError),
        ("codes", np.zeros((4, 26)), TypeError),
        ("single_atoms", np.zeros((9, 32)), TypeError),
    ],
)
def test_a_kernel_takes_only_what_fits(
    name: str, argument: str, value: Any, error: type[Exception]
) -> None:
    getattr(kernels, name)(**call())
    with pytest.raises(error):
        getattr(kernels, name)(**(call() | {argument: value}))


@pytest.mark.parametrize("name", ["huber_newton", "huber_fista"])
def test_a_kernel_takes_no_rows(name: str) -> None:
    getattr(kernels, name)(**call(rows=0))


@pytest.mark.parametrize("lam_star", [1e-14, 1e-6, 1.0, 1e9])
@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (6, 6)])
def test_the_inverse_of_the_ridge_regression(shape: tuple[int, int], lam_star: float) -> None:
    d0 = np.random.default_rng(0).standard_normal(shape)
    gram = d0 @ d0.T
    inverse, norm = _ridge_inverse(d0, gram, lam_star)
    np.testing.assert_allclose(norm, np.linalg.norm(d0, 2) ** 2)
    system = gram + lam_star * np.eye(len(d0))
    accuracy = max(1e-9, 1e-15 * np.linalg.cond(system))
    np.testing.assert_allclose(system @ inverse, np.eye(len(d0)), atol=accuracy)


@pytest.mark.parametrize("kind", [models.RobustPCA, models.RobustNMF])
def test_many_atoms_of_few_features_need_no_large_decomposition(
    kind: type[models.RobustPCA], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    for name in ("eigh", "eigvalsh"):
        exact = getattr(np.linalg, name)

        def recorded(a: np.ndarray, exact: Callable = exact) -> Any:
            sizes.append(len(a))
            return exact(a)

        monkeypatch.setattr(np.linalg, name, recorded)
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.rand(300, 3, generator=generator, dtype=torch.float64)
    x = torch.rand(2, 3, generator=generator, dtype=torch.float64)
    assert pu.solve(kind(dictionary, 0.5, 0.3), x).converged.all()
    assert sizes
    assert max(sizes) == 3
