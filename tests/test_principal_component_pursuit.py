"""Principal component pursuit: the optimum of cvxpy, recovery, bad arguments."""

from __future__ import annotations

import cvxpy as cp
import pytest
import torch

import pursuit as pu


def low_rank_plus_spikes(rows: int, columns: int, rank: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(rows, rank, generator=generator, dtype=torch.float64)
    low = low @ torch.randn(rank, columns, generator=generator, dtype=torch.float64)
    spikes = torch.rand(rows, columns, generator=generator, dtype=torch.float64) < 0.05
    out = 10 * spikes * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    noise = 0.1 * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return low + out + noise, low, out


@pytest.mark.parametrize("seed", range(5))
def test_reaches_the_optimum_of_cvxpy(seed: int) -> None:
    x, _, _ = low_rank_plus_spikes(12, 9, 2, seed)
    star, lam = 0.8, 0.25
    low, out = cp.Variable(x.shape), cp.Variable(x.shape)
    residual = cp.sum_squares(x.numpy() - low - out) / 2
    objective = residual + star * cp.normNuc(low) + lam * cp.sum(cp.abs(out))
    best = cp.Problem(cp.Minimize(objective)).solve(solver=cp.SCS, eps=1e-9, max_iters=100_000)
    split = pu.principal_component_pursuit(x, star, lam, tol=1e-9)
    ours = float(
        (x - split.low_rank - split.outliers).square().sum() / 2
        + star * torch.linalg.matrix_norm(split.low_rank, "nuc")
        + lam * split.outliers.abs().sum()
    )
    assert ours == pytest.approx(best, rel=1e-5)
    gap = pu.certify_low_rank(x, *split, star, lam)
    assert ours - best <= gap + 1e-5 * best
    assert gap <= 2e-9 * ours


def test_recovers_rank_and_outliers(dtype: torch.dtype) -> None:
    """With lam = sqrt(2) sigma and lam_star = sqrt(2 max(n, m)) sigma."""
    x, low, out = low_rank_plus_spikes(100, 60, 3, 7)
    split = pu.principal_component_pursuit(x.to(dtype), 0.1 * (2 * 100) ** 0.5, 0.1 * 2**0.5)
    assert split.low_rank.dtype == dtype
    assert int(torch.linalg.matrix_rank(split.low_rank.double(), atol=1e-3)) <= 6
    error = (split.low_rank.double() - low).norm() / low.norm()
    assert error < 0.1
    assert (split.outliers.double() - out).norm() / out.norm() < 0.1


def test_gap_is_an_upper_bound_for_any_split() -> None:
    x, low, out = low_rank_plus_spikes(20, 15, 2, 1)
    star, lam = 1.0, 0.3
    best = pu.principal_component_pursuit(x, star, lam, tol=1e-10)

    def value(split: tuple[torch.Tensor, torch.Tensor]) -> float:
        residual = (x - split[0] - split[1]).square().sum() / 2
        nuclear = torch.linalg.matrix_norm(split[0], "nuc")
        return float(residual + star * nuclear + lam * split[1].abs().sum())

    for split in ((low, out), (0 * low, x), (x, 0 * x), (low, 0 * x)):
        assert value(split) - value(best) <= pu.certify_low_rank(x, *split, star, lam) + 1e-9


def test_too_few_steps_give_a_warning() -> None:
    x, _, _ = low_rank_plus_spikes(20, 15, 2, 1)
    with pytest.warns(UserWarning, match="stopped after 3 steps"):
        pu.principal_component_pursuit(x, 1.0, 0.3, max_iter=3)


@pytest.mark.parametrize("max_iter", [0, -1])
def test_at_least_one_step_is_required(max_iter: int) -> None:
    x, _, _ = low_rank_plus_spikes(5, 4, 1, 1)
    with pytest.raises(ValueError, match=f"max_iter must be at least 1, got {max_iter}"):
        pu.principal_component_pursuit(x, 1.0, 0.3, max_iter=max_iter)


@pytest.mark.parametrize("tol", [-1e-6, float("nan"), float("inf")])
def test_the_tolerance_must_be_non_negative_and_finite(tol: float) -> None:
    x, _, _ = low_rank_plus_spikes(5, 4, 1, 1)
    with pytest.raises(ValueError, match="tol must be non-negative and finite"):
        pu.principal_component_pursuit(x, 1.0, 0.3, tol=tol)
