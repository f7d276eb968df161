"""Truncated residuals, steps of subspace iteration, and robust low-rank fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pursuit._threads import limited_threads
from pursuit.solvers.low_rank import (
    OBSERVED,
    Residuals,
    Singular,
    Truncation,
    power_step,
    robust_fit,
    tangent_step,
)

SHAPES = [(1, 1), (3, 7), (5, 2100), (130, 33), (400, 1000)]


def problem(n: int, m: int, dtype: torch.dtype, missing: float = 0.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(n + m)
    sizes = {"x": (n, m), "left": (n, 3), "right": (m, 3), "vectors": (m, 5), "basis": (n, 4)}
    made = {
        name: torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)
        for name, size in sizes.items()
    }
    hidden = torch.rand(n, m, generator=generator) < missing
    made["x"][hidden] = torch.nan
    return tuple(made.values())


def dense(residual: Tensor, truncation: Truncation) -> Tensor:
    """The truncation of `Residuals.products`, for a whole matrix."""
    if truncation.by_row is None or truncation.by_column is None:
        truncated = residual.clamp(truncation.lower, truncation.upper)
    else:
        limits = torch.maximum(truncation.by_row[:, None], truncation.by_column)
        truncated = torch.where(residual.abs() <= limits, residual, 0.0)
    return truncated.nan_to_num(nan=0.0)


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["all", "clip", "one side", "reject"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_whole_matrix(
    shape: tuple[int, int], kind: str, dtype: torch.dtype, missing: float
) -> None:
    x, left, right, vectors, basis = problem(*shape, dtype, missing)
    n, m = shape
    # limits that no residual meets exactly
    limits = torch.linspace(0.51, 2.03, n).to(dtype), torch.linspace(2.53, 0.01, m).to(dtype)
    truncation = {
        "all": OBSERVED,
        "clip": Truncation.clip(0.7),
        "one side": Truncation(upper=0.7),
        "reject": Truncation(by_row=limits[0], by_column=limits[1]),
    }[kind]
    got = Residuals(x).products((left, right), truncation, vectors, basis)
    residual = x.double() - left.double() @ right.double().T
    if kind == "reject":  # in single precision, entries next to their limit may go either way
        bound = torch.maximum(limits[0][:, None], limits[1]).double()
        assert float(((residual.abs() - bound).abs() < 1e-6).double().mean()) < 1e-3
    expected = dense(residual, truncation)
    accuracy = (
        {"rtol": 1e-4, "atol": 1e-2} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    )
    torch.testing.assert_close(got.along_rows.double(), expected @ vectors.double(), **accuracy)
    torch.testing.assert_close(got.along_columns.double(), basis.double().T @ expected, **accuracy)
    assert got.size.energy == pytest.approx(float(expected.square().sum()), rel=1e-4)
    removed = 0.0 if kind == "reject" else float((residual - expected).abs().nansum())
    assert got.size.removed == pytest.approx(removed, rel=1e-4, abs=1e-9)


def test_threads_do_not_change_products() -> None:
    x, left, right, vectors, basis = problem(900, 500, torch.float64)
    with limited_threads(1):
        one = Residuals(x).products((left, right), Truncation.clip(1.0), vectors, basis)
    with limited_threads(2):
        two = Residuals(x).products((left, right), Truncation.clip(1.0), vectors, basis)
    torch.testing.assert_close(one.along_rows, two.along_rows)
    torch.testing.assert_close(one.along_columns, two.along_columns)
    assert one.size == pytest.approx(two.size)


@pytest.mark.parametrize("shape", [(60, 40), (40, 60), (8, 50)])
def test_steps_converge_to_the_singular_value_decomposition(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    n, m = shape
    u, _ = torch.linalg.qr(torch.randn(n, 8, generator=generator).double())
    v, _ = torch.linalg.qr(torch.randn(m, 8, generator=generator).double())
    values = torch.tensor([9.0, 7.0, 5.0, 4.0, 0.3, 0.2, 0.1, 0.05]).double()
    residuals = Residuals(u * values @ v.T)
    nothing = torch.zeros(n, 0).double(), torch.zeros(m, 0).double()
    start = torch.linalg.qr(torch.randn(m, 5, generator=generator).double())[0]
    reached, _ = power_step(residuals, nothing, start, OBSERVED)
    for _ in range(30):
        reached, size = tangent_step(residuals, nothing, reached, OBSERVED)
    torch.testing.assert_close(reached.values[:4], values[:4], rtol=1e-10, atol=0)
    product = reached.left[:, :4] * reached.values[:4] @ reached.right[:, :4].T
    torch.testing.assert_close(product, u[:, :4] * values[:4] @ v[:, :4].T, rtol=0, atol=1e-8)
    assert size.energy == pytest.approx(float(values.square().sum()))


def test_a_tangent_step_from_singular_vectors_keeps_them() -> None:
    x = torch.randn(30, 20, generator=torch.Generator().manual_seed(0)).double()
    u, values, v = torch.linalg.svd(x, full_matrices=False)
    nothing = torch.zeros(30, 0).double(), torch.zeros(20, 0).double()
    exact = Singular(u[:, :4], values[:4], v[:4].T)
    kept, _ = tangent_step(Residuals(x), nothing, exact, OBSERVED)
    torch.testing.assert_close(kept.values, values[:4])
    product = kept.left * kept.values @ kept.right.T
    torch.testing.assert_close(product, u[:, :4] * values[:4] @ v[:4])


def test_singular_vectors_stay_orthonormal_where_the_rank_is_smaller() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=generator).double() @ torch.randn(2, 40).double()
    nothing = torch.zeros(50, 0).double(), torch.zeros(40, 0).double()
    start = torch.linalg.qr(torch.randn(40, 6, generator=generator).double())[0]
    singular, _ = power_step(Residuals(x), nothing, start, OBSERVED)
    for _ in range(5):
        singular, _ = tangent_step(Residuals(x), nothing, singular, OBSERVED)
        for vectors in (singular.left, singular.right):
            torch.testing.assert_close(vectors.T @ vectors, torch.eye(6).double())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_outliers_that_crowd_in_one_row_are_not_explained(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = np.outer(np.linspace(-20, 20, 43), 1 + 0.1 * rng.random(52))
    x = low + 0.3 * rng.standard_normal(low.shape)
    x[rng.random(x.shape) < 0.03] += 90
    x[41, rng.choice(52, 9, replace=False)] += rng.uniform(60, 150, 9)
    fit = robust_fit(torch.from_numpy(x), 4, seed)
    error = fit.factors.product().numpy() - low
    assert np.sqrt(np.mean(error[41] ** 2)) < 60 / 20  # a direction for this row would have 40
    assert fit.sigma == pytest.approx(0.3, rel=0.3)
