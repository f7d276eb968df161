"""Learning from data in memory: optimality, convergence, noise levels, missing entries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn import decomposition
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

import pursuit as pu
from pursuit.batch import learn_in_batch
from pursuit.certificates import certify_low_rank
from pursuit.estimators.start import start_nmf, start_robust, start_sparse
from pursuit.nonnegative_factors import factorise, nonnegative_start
from pursuit.progress import Progress
from pursuit.solvers.low_rank import Factors, robust_fit
from pursuit.solvers.principal_component_pursuit import pursue


def mixture(
    n: int, m: int, share: float, size: float, noise: float, heavy: bool = False, rank: int = 3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Data, their low-rank part and where the outliers are; `size` in standard deviations."""
    rng = np.random.default_rng(7)
    low = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, m))
    grains = rng.laplace(size=(n, m)) / np.sqrt(2) if heavy else rng.standard_normal((n, m))
    where = rng.random((n, m)) < share
    sizes = rng.choice([-1, 1], (n, m)) * size * low.std() * rng.uniform(0.5, 1.5, (n, m))
    return tuple(map(torch.from_numpy, (low + noise * grains + where * sizes, low, where)))


# ---- the robust fit ------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("size", [0.1, 1, 1000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("shape", [(300, 120), (120, 300), (2000, 100)])
def test_the_noise_level_is_found_within_a_factor(
    shape: tuple[int, int], share: float, size: float, noise: float
) -> None:
    for heavy, rank in itertools.product((False, True), (3, 6)):
        x, _, _ = mixture(*shape, share, size, noise, heavy)
        sigma = robust_fit(x, rank).sigma
        if noise > 0:
            assert noise / 1.5 < sigma < 1.5 * noise
        else:
            assert sigma < 2e-3


@pytest.mark.parametrize("size", [0.1, 1, 1000])
@pytest.mark.parametrize("shape", [(400, 40), (40, 400), (2000, 30)])
def test_few_features_need_fewer_outliers(shape: tuple[int, int], size: float) -> None:
    for share, noise, rank in itertools.product((0.0, 0.1), (0.01, 0.3), (3, 6)):
        x, _, _ = mixture(*shape, share, size, noise)
        assert noise / 1.5 < robust_fit(x, rank).sigma < 1.5 * noise


@pytest.mark.parametrize("extra", [0, 4])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_without_noise_the_low_rank_part_is_recovered(share: float, extra: int) -> None:
    x, low, _ = mixture(300, 300, share, 30.0, 0.0)
    fit = robust_fit(x, 3 + extra)
    assert float((fit.factors.product() - low).norm() / low.norm()) < 1e-7
    assert int((fit.factors.values > 0).sum()) == 3
    assert fit.outliers >= share - 0.02


def test_missing_entries_are_completed() -> None:
    x, low, _ = mixture(300, 100, 0.05, 10.0, 0.0)
    hidden = torch.from_numpy(np.random.default_rng(1).random(x.shape) < 0.3)
    fit = robust_fit(torch.where(hidden, torch.nan, x), 3)
    assert float((fit.factors.product() - low)[hidden].norm() / low[hidden].norm()) < 1e-6


def test_factors_are_a_singular_value_decomposition() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, 4, generator=generator).double() for size in (30, 20))
    factors = Factors.of(left, right)
    torch.testing.assert_close(factors.product(), left @ right.T)
    torch.testing.assert_close(factors.right.T @ factors.right, torch.eye(4).double())
    torch.testing.assert_close(factors.values, torch.linalg.svdvals(left @ right.T)[:4])


# ---- principal component pursuit -----------------------------------------------------------


def test_the_reported_gap_is_that_of_the_certificate() -> None:
    x, _, _ = mixture(80, 60, 0.1, 5.0, 0.1)
    star, lam = 1.3, 0.14

    def stop(now: Progress) -> bool:
        return now.done == 30

    for options in ({"max_iter": 3}, {"max_iter": 10}, {"callback": stop}, {"max_iter": 400}):
        solved = pursue(x, star, lam, **options)
        low = solved.factors.product()
        residual = x - low
        gap = certify_low_rank(x, low, residual - residual.clamp(-lam, lam), star, lam)
        assert solved.gap == pytest.approx(gap, rel=1e-6, abs=1e-9 * solved.objective)
    assert solved.converged
    assert solved.norm == pytest.approx(star, rel=1e-5)


def test_a_start_and_a_rank_do_not_change_the_optimum() -> None:
    x, _, _ = mixture(120, 90, 0.1, 20.0, 0.2)
    plain = pursue(x, 3.2, 0.28, tol=1e-9)
    rank = plain.factors.left.shape[1]
    warm = pursue(x, 3.2, 0.28, tol=1e-9, rank=rank + 3, start=robust_fit(x, 3).factors)
    assert warm.objective == pytest.approx(plain.objective, rel=1e-8)
    limited = pursue(x, 3.2, 0.28, rank=2)
    assert limited.objective > plain.objective * (1 + 1e-3)
    assert limited.norm > 2 * 3.2


def test_entries_that_are_missing_do_not_matter() -> None:
    x, low, _ = mixture(200, 80, 0.05, 10.0, 0.05)
    hidden = torch.from_numpy(np.random.default_rng(1).random(x.shape) < 0.2)
    solved = pursue(torch.where(hidden, torch.nan, x), 1.0, 0.07, tol=1e-5)
    assert solved.converged
    error = (solved.factors.product() - low)[hidden].norm() / low[hidden].norm()
    assert float(error) < 0.1


# ---- non-negative factors ------------------------------------------------------------------


@pytest.mark.parametrize("atoms", [16, 32])
def test_factors_are_at_least_as_good_as_the_peer(atoms: int) -> None:
    x = load_digits().data
    ours = pu.NMF(atoms).fit(x)
    assert ours.converged_
    # local minima differ by about 1 %, and the peer's start is random
    peer = decomposition.NMF(atoms, max_iter=1000, random_state=0).fit(x)
    assert ours.reconstruction_err_ < 1.01 * peer.reconstruction_err_
    codes = ours.transform(x)
    assert np.linalg.norm(x - codes @ ours.components_) <= ours.reconstruction_err_ * (1 + 1e-6)
    np.testing.assert_allclose(np.linalg.norm(ours.components_, axis=1), 1)
    energies = np.linalg.norm(codes, axis=0)
    assert np.all(np.diff(energies) <= 1e-2 * energies[0])
    assert ours.objective_ == pytest.approx(ours.reconstruction_err_**2 / 2, rel=1e-3)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_factors_are_stationary(ridge: float) -> None:
    x = torch.from_numpy(np.random.default_rng(0).random((40, 20)))
    start = nonnegative_start(x, 4)
    reached = factorise(x, *start, ridge=ridge, tol=0.0, max_iter=3000)
    z, d = reached.codes, reached.dictionary
    for factor, slope in (
        (z, (z @ d - x) @ d.T + ridge * z),
        (d, z.T @ (z @ d - x) + ridge * d),
    ):
        assert float(slope.min()) > -1e-3
        assert float((factor * slope).abs().max()) < 1e-3
    assert np.all(np.diff(reached.history) <= 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("atoms", [2, 3, 5])
def test_factors_of_data_without_noise_stay_balanced(atoms: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((300, 3)) @ rng.random((3, 12))).to(dtype)
    reached = factorise(x, *nonnegative_start(x, atoms), tol=0.0, max_iter=2000)
    sizes = reached.codes.norm(dim=0), reached.dictionary.norm(dim=1)
    assert all(bool(size.isfinite().all()) for size in sizes)
    assert float((sizes[0] / sizes[1]).log().abs().max()) < 1
    error = (x - reached.codes @ reached.dictionary).norm() / x.norm()
    best = torch.linalg.svdvals(x)[atoms:].norm() / x.norm()
    assert float(error) < float(best) + (0.03 if atoms < 3 else 2e-3)


def test_non_negative_factors_complete_a_matrix() -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.random((200, 3)) @ rng.random((3, 50)))
    hidden = torch.from_numpy(rng.random(x.shape) < 0.3)
    given = torch.where(hidden, torch.nan, x)
    start = start_nmf(given, 3)
    learned = learn_in_batch(given, start.model, start.init, tol=1e-6, max_iter=3000)
    completed = learned.codes @ learned.model.dictionary
    assert float((completed - x)[hidden].norm() / x[hidden].norm()) < 0.02


# ---- all models ----------------------------------------------------------------------------


def starts() -> dict[str, tuple[torch.Tensor, object]]:
    x, _, _ = mixture(300, 30, 0.05, 5.0, 0.1)
    positive = x.abs()
    return {
        "sparse": (x, start_sparse(x, 12)),
        "nmf": (positive, start_nmf(positive, 4)),
        "robust pca": (x, start_robust(x, 5)),
        "robust nmf": (positive, start_robust(positive, 4, nonnegative=True)),
    }


@pytest.mark.parametrize("name", ["sparse", "nmf", "robust pca", "robust nmf"])
def test_learning_converges_reports_and_can_be_stopped(name: str) -> None:
    x, start = starts()[name]
    seen: list[Progress] = []
    learned = learn_in_batch(x, start.model, start.init, callback=seen.append)
    assert learned.converged
    assert learned.history[-1] <= learned.history[0]
    assert seen
    stopped = learn_in_batch(x, start.model, start.init, callback=lambda now: True)
    assert stopped.iterations <= 1
    short = learn_in_batch(x, start.model, start.init, tol=0.0, max_iter=2)
    assert not short.converged
    assert short.iterations == 2


@pytest.mark.parametrize("kind", [pu.RobustPCA, pu.RobustNMF])
def test_weights_of_zero_are_the_limit_of_small_ones(kind: type) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((59, 2)) @ rng.random((2, 7)) + 0.01 * rng.random((59, 7))
    x[rng.random(x.shape) < 0.05] += 4
    none, small = (kind(2, lam=0.1, lam_star=weight).fit(x) for weight in (0, 1e-9))
    assert none.objective_ == pytest.approx(small.objective_, rel=1e-6)
    parts = [e.inverse_transform(e.transform(x)) for e in (none, small)]
    np.testing.assert_allclose(*parts, atol=1e-3)
    given = kind(2, lam=np.float32(0.1), lam_star=1e-9).fit(x)
    assert given.objective_ == pytest.approx(small.objective_, rel=1e-5)


@pytest.mark.parametrize("kind", [pu.SparseCoding, pu.NMF, pu.RobustPCA, pu.RobustNMF])
def test_estimators_fill_in_what_is_missing(kind: type) -> None:
    rng = np.random.default_rng(0)
    low = rng.random((300, 3)) @ rng.random((3, 40))
    x = low + 0.005 * rng.random(low.shape)
    hidden = rng.random(x.shape) < 0.1
    given = np.where(hidden, np.nan, x)
    options = {"lam": 0.01} if kind is pu.SparseCoding else {}
    estimator = kind(5, **options).fit(given)
    codes = estimator.transform(given)
    assert np.isfinite(codes).all()
    filled = estimator.inverse_transform(codes)
    mean = np.broadcast_to(np.nanmean(given, axis=0), x.shape)
    assert np.linalg.norm((filled - low)[hidden]) < 0.3 * np.linalg.norm((mean - low)[hidden])
    assert np.isfinite(estimator.score(given))
    complete = ~hidden.any(axis=1)
    np.testing.assert_allclose(estimator.transform(x[complete]), codes[complete], atol=1e-8)
    estimator.partial_fit(given)
    assert np.isfinite(estimator.components_).all()


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
def test_outliers_are_marked_at_the_stated_rate(rate: float) -> None:
    x, _, where = (part.numpy() for part in mixture(600, 60, 0.05, 8.0, 0.1))
    pca = pu.RobustPCA(4).fit(x)
    mask = pca.outlier_mask(x, false_alarms=rate)
    assert mask[~where].mean() < 2 * rate
    assert mask[~where].mean() > rate / 3
    assert mask[where].mean() > 0.99
    gaps = np.where(where, np.nan, x)
    assert not pca.outlier_mask(gaps)[where].any()


def test_a_memory_map_is_learned_in_batches(tmp_path) -> None:
    x, _, _ = mixture(500, 20, 0.05, 5.0, 0.1)
    np.save(tmp_path / "x.npy", x.numpy())
    estimator = pu.RobustPCA(3).fit(x.numpy())
    estimator.fit(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert not hasattr(estimator, "n_iter_")
    assert estimator.transform(x.numpy()).shape == (500, 3)


def test_estimators_are_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    x, _, _ = (part.numpy() for part in mixture(200, 20, 0.05, 5.0, 0.1))
    pu.RobustPCA(3, verbose=1).fit(x)
    lines = capsys.readouterr().out.splitlines()
    stages = [line.split(": ")[1].split(" 1 of ")[0] for line in lines if " 1 of " in line]
    assert stages == ["robust fit", "low rank"]
    assert all(line.startswith("RobustPCA: ") for line in lines)
    with pytest.warns(ConvergenceWarning, match="after 2 iterations; raise max_iter or tol"):
        pu.NMF(3, max_iter=2).fit(np.abs(x))
    with pytest.warns(UserWarning, match="single row"):
        pu.RobustPCA(1).fit(x[:1])
    with pytest.warns(UserWarning, match="all entries of X are 2"):
        pu.SparseCoding(2).fit(np.full((10, 4), 2.0))
