"""Certificates: the gap is an upper bound, it is tight at the optimum, and inf where it must be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pursuit as pu
from families import FEATURES, MODELS, problem
from pursuit import models, penalties
from pursuit.certificates import is_met
from pursuit.models import SparseModel

#: 3000 problems a family: so many dictionaries, so many signals each
DICTIONARIES, SIGNALS = 6, 500


def disturbed(model: SparseModel, codes: torch.Tensor, seed: int) -> torch.Tensor:
    """Codes at distances from 1e-8 to 1 of the given ones, feasible, some entries left alone."""
    generator = torch.Generator().manual_seed(seed)
    shape = codes.shape
    size = 10 ** (-8 * torch.rand(len(codes), 1, generator=generator, dtype=torch.float64))
    noise = size * torch.randn(shape, generator=generator, dtype=torch.float64)
    noise = noise * (torch.rand(shape, generator=generator) > 0.5)
    codes = codes.double() + noise
    sign = model.penalty.sign_constraint(model.code_size)
    return codes if sign is None else torch.where(sign, codes.clamp_min(0), codes)


@pytest.mark.parametrize("name", MODELS)
def test_gap_is_an_upper_bound_of_the_suboptimality(name: str) -> None:
    for seed in range(DICTIONARIES):
        model, x = problem(name, seed, SIGNALS, torch.float32)
        exact, signals = model.to(torch.float64), x.double()
        best = pu.solve(exact, signals, tol=1e-10)
        optimum = best.objective - pu.certify(exact, signals, best.codes)
        assert (best.objective - optimum <= 1e-8 * best.objective).all()
        codes = disturbed(model, best.codes, seed)
        for stored, data in ((codes, signals), (codes.float(), x)):
            gap = pu.certify(model.to(data.dtype), data, stored)
            assert gap.dtype == torch.float64
            assert torch.isfinite(gap).all()
            excess = exact.objective(signals, stored.double()) - best.objective
            assert (excess <= gap).all()


@pytest.mark.parametrize("name", MODELS)
def test_gap_closes_at_the_optimum(name: str) -> None:
    model, x = problem(name, 100, 50)
    solution = pu.solve(model, x, method="restart", tol=1e-12, max_iter=200_000)
    assert (solution.relative_gap <= 1e-11).all()


@pytest.mark.parametrize("name", MODELS)
def test_gap_with_a_mask_is_an_upper_bound(name: str) -> None:
    model, x = problem(name, 101, 50)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.3
    best = pu.solve(model, x, method="restart", mask=mask, tol=1e-10)
    codes = disturbed(model, best.codes, 1)
    gap = pu.certify(model, x, codes, mask=mask)
    assert (model.objective(x, codes, mask) - best.objective <= gap).all()


def test_certify_leaves_the_codes_alone() -> None:
    model, x = problem("lasso", 0, 5)
    codes = torch.ones(5, model.code_size, dtype=torch.float64)
    before = codes.clone()
    pu.certify(model, x, codes)
    assert torch.equal(codes, before)


def test_broken_constraints_have_no_certificate() -> None:
    for name in ("lasso-nonnegative", "nmf", "nmf-ridge", "robust-nmf"):
        model, x = problem(name, 0, 5)
        codes = torch.zeros(5, model.code_size, dtype=torch.float64)
        codes[2, 0] = -0.1
        gap = pu.certify(model, x, codes)
        assert torch.isinf(gap).tolist() == [False, False, True, False, False]


def test_nmf_without_ridge_is_certified_by_a_shift() -> None:
    """Scaling alone has no feasible point where the residual correlates with an atom."""
    model, x = problem("nmf", 1, 200)
    solution = pu.solve(model, x.abs(), tol=1e-9)
    assert solution.converged.all()


def test_without_a_strictly_feasible_direction_the_gap_is_the_objective() -> None:
    """With atoms d and -d no nu has a negative correlation with both; nu = 0 is feasible."""
    atom = torch.ones(1, FEATURES, dtype=torch.float64)
    model = models.NMF(torch.cat([atom, -atom]))
    x = torch.randn(4, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    codes = torch.rand(4, 2, dtype=torch.float64)
    torch.testing.assert_close(pu.certify(model, x, codes), model.objective(x, codes))


def test_least_squares_is_certified_by_projection() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms = torch.randn(3, FEATURES, dtype=torch.float64, generator=generator)
    model = SparseModel(atoms, penalties.Zero())
    x = torch.randn(20, FEATURES, dtype=torch.float64, generator=generator)
    best = torch.linalg.lstsq(atoms.T, x.T).solution.T
    codes = best + 0.1
    excess = model.objective(x, codes) - model.objective(x, best)
    gap = pu.certify(model, x, codes)
    assert (gap >= excess).all()
    torch.testing.assert_close(gap, excess)
    masked = pu.certify(model, x, codes, mask=x > 0)
    torch.testing.assert_close(masked, model.objective(x, codes, x > 0))


def test_zero_scores_weight_and_free_outliers_are_certified_or_bounded_by_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms = torch.randn(3, FEATURES, dtype=torch.float64, generator=generator)
    x = torch.randn(20, FEATURES, dtype=torch.float64, generator=generator)
    for model in (
        models.RobustPCA(atoms, 0.0, 0.3),
        models.RobustPCA(atoms, 0.5, 0.0),
        models.RobustNMF(atoms.abs(), 0.0, 0.3),
        models.RobustNMF(atoms.abs(), 0.5, 0.0),
    ):
        best = pu.solve(model, x, method="restart", tol=1e-9)
        assert best.converged.all()
        codes = disturbed(model, best.codes, 3)
        assert (model.objective(x, codes) - best.objective <= pu.certify(model, x, codes)).all()
    free = models.RobustPCA(atoms, 0.0, [0.3] * (FEATURES - 1) + [0.0])
    codes = torch.zeros(20, free.code_size, dtype=torch.float64)
    torch.testing.assert_close(pu.certify(free, x, codes), free.objective(x, codes))


def in_long_double(model: SparseModel, x: torch.Tensor, codes: torch.Tensor) -> np.ndarray:
    """The objective of a group Lasso or a Lasso, from its definition."""
    x, z, d = (t.double().numpy().astype(np.longdouble) for t in (x, codes, model.dictionary))
    value = np.square(x - z @ d).sum(axis=1) / 2
    if isinstance(model, models.Lasso):
        return value + np.longdouble(model.lam) * np.abs(z).sum(axis=1)
    for group in model.groups:
        value += np.longdouble(model.lam) * np.sqrt(np.square(z[:, group]).sum(axis=1))
    return value


def stated_rounding(model: SparseModel, x: torch.Tensor, codes: torch.Tensor) -> np.ndarray:
    """The bound on the rounding of an objective that docs/certificates.md states."""
    x, z, d = (t.double().numpy() for t in (x, codes, model.dictionary))
    unit = (sum(d.shape) + 16) * np.finfo(np.float64).eps
    size = np.linalg.norm(x, axis=1) + np.abs(z) @ np.linalg.norm(d, axis=1)
    value = in_long_double(model, *map(torch.from_numpy, (x, z))).astype(np.float64)
    return unit * (size * np.sqrt(2 * value) + unit * size**2 + value)


@pytest.mark.parametrize("kind", [models.Lasso, models.GroupLasso])
@pytest.mark.parametrize("lam", [1e-3, 1e-9, 1e-12, 1e-25])
def test_tiny_weights_do_not_hide_rounding(kind: type[SparseModel], lam: float) -> None:
    """Where the penalty is far below the rounding of the energy, nothing may be claimed."""
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.randn(16, 7, generator=generator, dtype=torch.float64)
    dictionary = dictionary / dictionary.norm(dim=1, keepdim=True)
    groups = [list(range(start, start + 4)) for start in range(0, 16, 4)]
    model = kind(dictionary, lam) if kind is models.Lasso else kind(dictionary, groups, lam)
    x = torch.randn(40, 7, generator=generator, dtype=torch.float64)
    solution = pu.solve(model, x)
    assert torch.isfinite(solution.codes).all()
    value = in_long_double(model, x, solution.codes)
    error = np.abs(solution.objective.numpy() - value)
    assert (error <= stated_rounding(model, x, solution.codes)).all()
    # other codes show where a claim is wrong
    other = pu.solve(kind(dictionary, *(groups,) * (kind is not models.Lasso), 1e-6), x).codes
    excess = value - np.minimum(value, in_long_double(model, x, other))
    assert (excess <= solution.gap.numpy()).all()
    assert (excess <= 1e-6 * value)[solution.converged.numpy()].all()
    assert solution.converged.all() or lam < 1e-3


def test_a_float64_dictionary_is_not_rounded_for_float32_signals() -> None:
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    x = 100 * torch.randn(20, 9, generator=generator)
    for model in (models.Lasso(dictionary, 0.1), models.GroupLasso(dictionary, [[0, 1, 2]], 0.1)):
        for method in ("auto", "restart", "fista"):
            solution = pu.solve(model, x, method)
            assert solution.codes.dtype == torch.float32
            objective = model.objective(x.double(), solution.codes.double())
            torch.testing.assert_close(solution.objective, objective, rtol=1e-12, atol=0)


def test_a_large_ridge_is_certified() -> None:
    """What a ridge loses by rounding is counted by itself: ridge |z| is small if ridge is large."""
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    x = torch.randn(20, 9, generator=generator, dtype=torch.float64)
    model = SparseModel(dictionary, penalties.Elastic(penalties.L1(1e-8), 1e8))
    for method in ("coordinate", "restart"):
        assert pu.solve(model, x, method).converged.all()


def test_low_rank_certificate_proves_the_factored_solution() -> None:
    """Alternating minimisation reaches the convex optimum if there are atoms enough, and the
    certificate tells when there are not, or when the start was at the spurious point zero."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    truth = truth @ torch.randn(3, 25, generator=generator, dtype=torch.float64)
    spikes = torch.rand(40, 25, generator=generator) < 0.05
    x = truth + 5 * spikes + 0.1 * torch.randn(40, 25, generator=generator, dtype=torch.float64)
    star, lam = 1.5, 0.25
    low, out = pu.principal_component_pursuit(x, star, lam, tol=1e-9)
    convex = _low_rank_objective(x, low, out, star, lam)
    rank = int(torch.linalg.matrix_rank(low, atol=1e-6))
    gaps, excess = {}, {}
    for atoms in (rank, rank - 1):
        dictionary = torch.randn(atoms, 25, generator=generator, dtype=torch.float64)
        scores = torch.zeros(40, atoms, dtype=torch.float64)
        ridge = star * torch.eye(atoms, dtype=torch.float64)
        for _ in range(3000):
            residual = x - scores @ dictionary
            outliers = residual - residual.clamp(-lam, lam)
            gram = dictionary @ dictionary.T + ridge
            scores = torch.linalg.solve(gram, dictionary @ (x - outliers).T).T
            gram = scores.T @ scores + ridge
            dictionary = torch.linalg.solve(gram, scores.T @ (x - outliers))
        gaps[atoms] = pu.certify_low_rank(
            x, scores @ dictionary, outliers, star, lam, factors=(scores, dictionary)
        )
        found = _low_rank_objective(x, scores @ dictionary, outliers, star, lam)
        excess[atoms] = found - convex
    assert gaps[rank] <= 1e-5 * convex
    # one atom fewer is truly worse, and the certificate does not hide it
    assert gaps[rank - 1] >= excess[rank - 1] > 10 * gaps[rank]
    zero = torch.zeros_like(x)
    soft = x - x.clamp(-lam, lam)
    assert pu.certify_low_rank(x, zero, soft, star, lam) > 1e-2 * convex


def _low_rank_objective(
    x: torch.Tensor, low: torch.Tensor, out: torch.Tensor, star: float, lam: float
) -> float:
    nuclear = torch.linalg.matrix_norm(low, "nuc")
    return float((x - low - out).square().sum() / 2 + star * nuclear + lam * out.abs().sum())


def test_no_tolerance_is_met_by_an_infinite_gap() -> None:
    gap, objective = torch.tensor([torch.inf, 1e-7, 1.0]), torch.tensor([torch.inf, 1.0, 1.0])
    assert is_met(gap, objective, 1e-6, torch.float64).tolist() == [False, True, False]
