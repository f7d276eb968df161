"""Solvers: the optimum of an independent solver, honest gaps, limiting cases, Theorem 1."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch

import pursuit as pu
from families import FEATURES, HALVES, LEAVES, MODELS, PAIRS, SIZE, problem, reference_codes
from pursuit import models, penalties
from pursuit.certificates import Certificate
from pursuit.models import SparseModel
from pursuit.solvers import nonnegative
from pursuit.solvers.plain import iterates
from pursuit.solvers.solve import METHODS

#: 200 problems per family: dictionaries, and signals for each
DICTIONARIES, SIGNALS = 20, 10

PLAIN = ("ista", "fista", "greedy", "block_greedy")
FITTING = [
    pytest.param(name, method, id=f"{name}-{method}")
    for name in MODELS
    for method in METHODS
    if METHODS[method].misfit(problem(name, 0, 1)[0]) is None
]
EXACT = [case for case in FITTING if case.values[1] not in PLAIN]


@pytest.fixture(scope="module")
def reference() -> dict[tuple[str, int], torch.Tensor]:
    """Optimal codes by cvxpy, computed once for all solvers of a family."""
    return {}


def optimum(cache, name: str, seed: int, model: SparseModel, x: torch.Tensor) -> torch.Tensor:
    if (name, seed) not in cache:
        codes = torch.from_numpy(reference_codes(model, x))
        sign = model.penalty.sign_constraint(model.code_size)
        codes = codes if sign is None else torch.where(sign, codes.clamp_min(0), codes)
        cache[name, seed] = model.to(torch.float64).objective(x.double(), codes)
    return cache[name, seed]


@pytest.mark.parametrize(("name", "method"), EXACT)
def test_exact_solvers_reach_the_optimum_of_cvxpy(name: str, method: str, reference) -> None:
    for seed in range(DICTIONARIES):
        # one reference serves both precisions: the data are representable in float32
        model, x = problem(name, seed, SIGNALS, torch.float32)
        best = optimum(reference, name, seed, model, x)
        for data, tol in ((x, 1e-5), (x.double(), 1e-8)):
            solution = pu.solve(model.to(data.dtype), data, method=method, tol=tol)
            assert solution.converged.all()
            assert solution.method == method
            assert solution.codes.dtype == data.dtype
            assert (solution.objective <= best * (1 + tol) + 1e-8).all()
            assert (solution.objective - best <= solution.gap + 1e-8).all()


@pytest.mark.parametrize("name", MODELS)
def test_auto_converges_at_its_defaults(name: str, dtype: torch.dtype) -> None:
    model, x = problem(name, 50, 300, dtype)
    solution = pu.solve(model, x)
    assert solution.converged.all()
    assert (solution.gap <= 1e-6 * solution.objective).all()
    exact = model.to(torch.float64).objective(x.double(), solution.codes.double())
    torch.testing.assert_close(solution.objective, exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", MODELS)
def test_gap_of_the_solution_is_an_upper_bound(name: str, dtype: torch.dtype) -> None:
    """Also where a kernel certifies its own codes, and at tolerances from loose to tight."""
    for seed, tol in enumerate([0.3, 1e-2, 1e-3, 1e-4, 1e-6]):
        model, x = problem(name, 60 + seed, 200, dtype)
        best = pu.solve(model.to(torch.float64), x.double(), method="restart", tol=1e-10)
        for method in METHODS:
            if method not in PLAIN and METHODS[method].misfit(model) is None:
                solution = pu.solve(model, x, method=method, tol=tol)
                assert (solution.objective - best.objective <= solution.gap).all(), method
                assert solution.converged.all(), method


@pytest.mark.parametrize(("name", "method"), FITTING)
def test_every_solver_descends_from_any_start(name: str, method: str, dtype: torch.dtype) -> None:
    model, x = problem(name, 70, 40, dtype)
    rough = pu.solve(model, x, method="ista", tol=0, max_iter=3).codes
    before = model.objective(x, rough)
    after = pu.solve(model, x, method=method, init=rough, max_iter=5).objective
    assert (after <= before.double() * (1 + 1e-5)).all()


@pytest.mark.parametrize(("name", "method"), EXACT)
def test_starting_at_the_solution_changes_nothing(name: str, method: str) -> None:
    model, x = problem(name, 71, 40)
    best = pu.solve(model, x, tol=1e-9)
    again = pu.solve(model, x, method=method, init=best.codes, tol=1e-7)
    assert again.converged.all()
    torch.testing.assert_close(again.objective, best.objective, rtol=1e-7, atol=0)


@pytest.mark.parametrize(("name", "method"), FITTING)
def test_rows_do_not_influence_each_other(name: str, method: str) -> None:
    model, x = problem(name, 72, 30)
    together = pu.solve(model, x, method=method, max_iter=50, tol=0).codes
    alone = [pu.solve(model, row[None], method=method, max_iter=50, tol=0).codes for row in x[:5]]
    torch.testing.assert_close(torch.cat(alone), together[:5], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("atoms", [5, 12, 40])
def test_a_row_that_overflows_does_no_harm_to_the_next(atoms: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.randn(atoms, FEATURES, generator=generator, dtype=dtype)
    model = models.Lasso(torch.nn.functional.normalize(dictionary), 0.1)
    x = torch.randn(6, FEATURES, generator=generator, dtype=dtype)
    x[::2] = 0
    calm = pu.solve(model, x).codes[1::2]
    x[::2] = torch.finfo(dtype).max * model.dictionary[:3].sign()
    assert model.correlate(x[::2]).isinf().any()
    solution = pu.solve(model, x)
    assert torch.equal(solution.codes[1::2], calm)
    assert not solution.gap.isnan().any()
    assert not solution.converged[::2].any()


@pytest.mark.parametrize("name", MODELS)
def test_theorem_1(name: str, dtype: torch.dtype) -> None:
    """``F(z_T) - F* <= alpha ||z*||^2 / (2 T)``, and ``2 alpha ||z*||^2 / (T + 1)^2`` for fista."""
    model, x = problem(name, 80, 30, dtype)
    exact = model.to(torch.float64)
    best = pu.solve(exact, x.double(), tol=1e-10)
    size = exact.to_normalised(best.codes).square().sum(dim=1)
    bound = exact.normalised.step_constant * size / 2
    rounding = 1e-5 if dtype == torch.float32 else 1e-9
    for method, rate in (("ista", lambda t: 1 / t), ("fista", lambda t: 4 / (t + 1) ** 2)):
        for t, codes in enumerate(islice(iterates(method, model, x), 60), start=1):
            excess = exact.objective(x.double(), codes.double()) - best.objective
            assert (excess <= bound * rate(t) + rounding * best.objective).all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", PLAIN)
def test_plain_iterations_make_exactly_max_iter_steps(name: str, method: str) -> None:
    model, x = problem(name, 81, 10)
    if METHODS[method].misfit(model) is not None:
        assert method == "greedy"
        return
    steps = list(islice(iterates(method, model, x), 12))
    solution = pu.solve(model, x, method=method, tol=0, max_iter=12)
    assert solution.iterations == 12
    assert torch.equal(solution.codes, steps[-1])
    resumed = pu.solve(model, x, method=method, tol=0, max_iter=1, init=steps[4])
    if method != "fista":  # its momentum is not part of the codes
        torch.testing.assert_close(resumed.codes, steps[5])
    assert pu.solve(model, x, method=method, tol=0.5, max_iter=5000).converged.all()


def test_ista_is_the_iteration_of_the_paper() -> None:
    """``b = W x + H z`` with ``W = P / alpha, H = I - Q / alpha``."""
    model, x = problem("lasso", 82, 10)
    alpha = model.step_constant
    W, H = model.dictionary.T / alpha, torch.eye(SIZE, dtype=torch.float64) - model.Q / alpha
    z, b = torch.zeros(10, SIZE, dtype=torch.float64), x @ W
    for codes in islice(iterates("ista", model, x), 20):
        new = penalties.L1(0.2).prox(b, 1 / alpha)
        b = b + (new - z) @ H.T
        z = new
        torch.testing.assert_close(codes, z)


def test_greedy_minimises_over_the_coefficient_that_changes_most() -> None:
    model, x = problem("lasso-weighted", 83, 10)
    z = torch.zeros(10, SIZE, dtype=torch.float64)
    for codes in islice(iterates("greedy", model, x), 20):
        changed = codes != z
        assert (changed.sum(dim=1) <= 1).all()
        grid = torch.linspace(-0.5, 0.5, 21, dtype=torch.float64)
        here = model.objective(x, codes)
        for step in grid:
            assert (here <= model.objective(x, codes + step * changed) + 1e-12).all()
        z = codes


def test_block_greedy_changes_one_block() -> None:
    model, x = problem("group", 84, 10)
    z = torch.zeros(10, SIZE, dtype=torch.float64)
    for codes in islice(iterates("block_greedy", model, x), 20):
        touched = torch.stack([(codes != z)[:, block].any(dim=1) for block in PAIRS], dim=1)
        assert (touched.sum(dim=1) <= 1).all()
        assert (model.objective(x, codes) <= model.objective(x, z) + 1e-12).all()
        z = codes


@pytest.mark.parametrize("name", MODELS)
def test_masked_entries_do_not_matter(name: str) -> None:
    model, x = problem(name, 85, 20)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.3
    other = torch.where(mask, x, torch.nan)
    first = pu.solve(model, x, mask=mask, tol=1e-8)
    second = pu.solve(model, other, mask=mask, tol=1e-8)
    assert torch.equal(first.codes, second.codes)
    full = pu.solve(model, x, method=first.method, mask=torch.ones_like(mask), tol=1e-8)
    plain = pu.solve(model, x, method=first.method, tol=1e-8)
    torch.testing.assert_close(full.objective, plain.objective, rtol=1e-7, atol=1e-9)


# ---- limiting cases -------------------------------------------------------------------


def both(first: SparseModel, second: SparseModel, dtype: torch.dtype, rows: int = 50) -> None:
    """Two models with one optimum."""
    x = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(9)).to(dtype)
    a, b = (pu.solve(model.to(dtype), x, tol=1e-6) for model in (first, second))
    assert (a.objective - b.objective <= a.gap).all()
    assert (b.objective - a.objective <= b.gap).all()
    torch.testing.assert_close(a.objective, b.objective, rtol=2e-6, atol=1e-9)


def atoms(size: int = SIZE, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, FEATURES, dtype=torch.float64, generator=generator)


def test_singleton_groups_give_the_lasso(dtype: torch.dtype) -> None:
    both(models.GroupLasso(atoms(), LEAVES, 0.3), models.Lasso(atoms(), 0.3), dtype)
    both(models.HiLasso(atoms(), LEAVES, 0.2, 0.1), models.Lasso(atoms(), 0.3), dtype)


def test_a_tree_of_one_level_gives_the_group_lasso(dtype: torch.dtype) -> None:
    tree = SparseModel(atoms(), penalties.TreeL2([(PAIRS, 0.4)]))
    both(tree, models.GroupLasso(atoms(), PAIRS, 0.4), dtype)


def test_a_tree_of_three_levels_with_one_weight_is_solved_as_the_smaller_tree(
    dtype: torch.dtype,
) -> None:
    tree = SparseModel(atoms(), penalties.TreeL2([(LEAVES, 0.1), (PAIRS, 0.2), (HALVES, 0.0)]))
    assert pu.solve(tree, torch.ones(1, FEATURES)).method == "restart"
    both(tree, models.HiLasso(atoms(), PAIRS, 0.2, 0.1), dtype)


def test_no_group_weight_gives_the_lasso(dtype: torch.dtype) -> None:
    both(models.HiLasso(atoms(), PAIRS, 0.0, 0.3), models.Lasso(atoms(), 0.3), dtype)


def test_no_weight_gives_least_squares() -> None:
    dictionary, x = atoms(5), atoms(30, seed=6)
    best = torch.linalg.lstsq(dictionary.T, x.T).solution.T
    for model in (
        models.Lasso(dictionary, 0.0),
        models.GroupLasso(dictionary, [[0, 1], [2, 3, 4]], 0.0),
        SparseModel(dictionary, penalties.Zero()),
    ):
        solution = pu.solve(model, x, tol=1e-10)
        assert solution.converged.all()
        torch.testing.assert_close(solution.codes, best, rtol=1e-4, atol=1e-5)


def test_no_weight_and_a_sign_gives_nonnegative_least_squares() -> None:
    from scipy.optimize import nnls

    dictionary, x = atoms(5), atoms(30, seed=6)
    best = torch.stack([torch.from_numpy(nnls(dictionary.T.numpy(), row.numpy())[0]) for row in x])
    for model in (models.NMF(dictionary), models.Lasso(dictionary, 0.0, nonnegative=True)):
        solution = pu.solve(model, x, tol=1e-10)
        assert solution.converged.all()
        torch.testing.assert_close(solution.codes, best, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_a_huge_weight_gives_zero(dtype: torch.dtype, scale: float) -> None:
    x = atoms(20, seed=6).to(dtype)
    for model in (
        models.Lasso(atoms(), scale),
        models.Lasso(atoms(), scale, nonnegative=True),
        models.GroupLasso(atoms(), PAIRS, scale),
        models.HiLasso(atoms(), PAIRS, scale, 0.1),
        models.HiLasso(atoms(), PAIRS, 0.1, scale),
        SparseModel(atoms(), penalties.TreeL2([(LEAVES, 0.1), (PAIRS, 0.1), (HALVES, scale)])),
    ):
        solution = pu.solve(model.to(dtype), x)
        assert solution.converged.all()
        assert (solution.codes == 0).all()
        torch.testing.assert_close(solution.objective, x.double().square().sum(dim=1) / 2)


def test_a_huge_score_weight_leaves_soft_thresholding(dtype: torch.dtype) -> None:
    x = atoms(20, seed=6).to(dtype)
    for model, shrunk in (
        (models.RobustPCA(atoms(3), 1e9, 0.3), penalties.L1(0.3).prox(x, 1.0)),
        (models.RobustNMF(atoms(3).abs(), 1e9, 0.3), penalties.L1(0.3, True).prox(x, 1.0)),
    ):
        solution = pu.solve(model.to(dtype), x)
        assert solution.converged.all()
        outliers = model.split(solution.codes).outliers
        torch.testing.assert_close(outliers, shrunk, rtol=1e-4, atol=1e-5)


def test_a_huge_outlier_weight_leaves_ridge_regression(dtype: torch.dtype) -> None:
    x = atoms(20, seed=6).to(dtype)
    dictionary = atoms(3)
    both(models.RobustNMF(dictionary.abs(), 0.5, 1e6), models.NMF(dictionary.abs(), 0.5), dtype)
    gram = dictionary @ dictionary.T + 0.5 * torch.eye(3, dtype=torch.float64)
    best = torch.linalg.solve(gram, dictionary @ x.double().T).T
    solution = pu.solve(models.RobustPCA(dictionary, 0.5, 1e6).to(dtype), x)
    torch.testing.assert_close(solution.codes[:, :3].double(), best, rtol=1e-3, atol=1e-4)


def test_zero_signals_have_zero_codes(dtype: torch.dtype) -> None:
    for name in MODELS:
        model, x = problem(name, 3, 5, dtype)
        solution = pu.solve(model, torch.zeros_like(x))
        assert solution.converged.all()
        assert (solution.codes == 0).all()
        assert (solution.objective == 0).all()


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: models.NMF(atoms(5)), id="nmf-mixed-signs"),
        pytest.param(lambda: models.NMF(torch.cat([atoms(3), -atoms(3)])), id="nmf-opposites"),
        pytest.param(lambda: models.LowRankSparse(atoms(3), atoms(4), 0.0, 0.1), id="no-lam-star"),
        pytest.param(lambda: models.RobustNMF(atoms(3), 0.0, 0.1), id="robust-nmf-no-lam-star"),
        pytest.param(lambda: models.RobustNMF(atoms(3), 0.0, 0.0), id="no-weights"),
    ],
)
def test_zero_signals_converge_without_a_dual_point_but_zero(model, dtype: torch.dtype) -> None:
    solution = pu.solve(model().to(dtype), torch.zeros(3, FEATURES, dtype=dtype))
    assert solution.converged.all()
    assert (solution.gap == 0).all()
    assert solution.iterations < 100


# ---- hard dictionaries ----------------------------------------------------------------


@pytest.mark.parametrize("lam", [1e-3, 0.1])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_lasso_with_dependent_atoms(lam: float, nonnegative: bool, dtype: torch.dtype) -> None:
    """Duplicates, opposites, and far more atoms than features."""
    base = atoms(30, seed=7)
    dictionary = torch.cat([base, base[:5], -base[5:10], 2 * base[10:12]])
    x = atoms(60, seed=8)
    model = models.Lasso(dictionary, lam, nonnegative)
    solution = pu.solve(model.to(dtype), x.to(dtype), tol=1e-5)
    assert solution.method == "coordinate"
    assert solution.converged.all()
    model, x = model.to(dtype).to(torch.float64), x.to(dtype).double()
    reference = pu.solve(model, x, method="restart", tol=1e-7)
    assert (solution.objective - reference.objective <= solution.gap + reference.gap).all()


@pytest.mark.parametrize("nonnegative", [False, True])
def test_duplicates_with_a_tiny_weight_are_never_worse_than_zero(
    nonnegative: bool, dtype: torch.dtype
) -> None:
    """An exchange of dependent atoms must not follow a factor that is rounding: it had no end."""
    for seed in range(20):
        base = atoms(3 + seed % 8, seed)
        dictionary = torch.cat([base, base, -base[:1]]).to(dtype)
        x = atoms(10, seed + 100).to(dtype)
        solution = pu.solve(models.Lasso(dictionary, 10 ** (-10 - seed / 5), nonnegative), x)
        assert (solution.objective <= x.double().square().sum(dim=1) / 2).all()


def test_lasso_agrees_with_scikit_learn() -> None:
    from sklearn.linear_model import Lasso

    dictionary, x = atoms(20, seed=3), atoms(10, seed=4)
    codes = pu.solve(models.Lasso(dictionary, 0.4), x, tol=1e-10).codes
    for row, code in zip(x, codes, strict=True):
        peer = Lasso(alpha=0.4 / FEATURES, fit_intercept=False, tol=1e-12, max_iter=100_000)
        peer.fit(dictionary.T.numpy(), row.numpy())
        torch.testing.assert_close(code, torch.from_numpy(peer.coef_), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_batches_are_tiled(threads: int) -> None:
    """Rows beyond one tile, in views that are not contiguous, on one thread and on two."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name in ("lasso", "group", "robust-pca"):
            model, x = problem(name, 1, 5000)
            wide = torch.cat([x, x], dim=1)[:, :FEATURES]
            solution = pu.solve(model, wide)
            assert solution.converged.all()
            few = pu.solve(model, x[4000:4010])
            torch.testing.assert_close(
                solution.objective[4000:4010], few.objective, rtol=1e-6, atol=0
            )
    finally:
        torch.set_num_threads(before)


# ---- the entry ------------------------------------------------------------------------


def test_init_may_be_a_function_of_the_signals() -> None:
    model, x = problem("lasso", 1, 10)
    best = pu.solve(model, x, tol=1e-9)
    again = pu.solve(model, x, init=lambda signals: best.codes, tol=1e-8)
    assert again.converged.all()
    assert again.iterations <= best.iterations


@pytest.mark.parametrize(("name", "method"), EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_start_that_violates_a_sign_constraint_does_no_harm(name, method, dtype) -> None:
    model, x = problem(name, 1, 10)
    model, x = model.to(dtype), x.to(dtype)
    best = pu.solve(model, x, method)
    again = pu.solve(model, x, method, init=-1 - torch.rand_like(best.codes))
    assert again.converged.all()
    assert torch.isfinite(model.penalty.value(again.codes)).all()
    torch.testing.assert_close(again.objective, best.objective, rtol=1e-5, atol=1e-6)


def test_solution_tells_what_happened() -> None:
    model, x = problem("lasso", 1, 10)
    text = repr(pu.solve(model, x))
    assert "method='coordinate'" in text
    assert "converged=10" in text


def test_a_solver_that_does_not_fit_says_what_is_missing() -> None:
    lasso, x = problem("lasso", 1, 4)
    tree, _ = problem("tree", 1, 4)
    robust, _ = problem("robust-pca", 1, 4)
    with pytest.raises(
        ValueError, match=r"'newton' does not fit Lasso: it needs .* these fit: ista"
    ):
        pu.solve(lasso, x, method="newton")
    with pytest.raises(ValueError, match="'greedy' does not fit SparseModel: it needs a penalty"):
        pu.solve(tree, x, method="greedy")
    with pytest.raises(
        ValueError, match=r"'block_coordinate' does not fit SparseModel: .*one level"
    ):
        pu.solve(tree, x, method="block_coordinate")
    with pytest.raises(ValueError, match="without an identity block"):
        pu.solve(robust, x, method="coordinate")
    with pytest.raises(ValueError, match="positive weight"):
        pu.solve(lasso.replace(lam=0.0), x, method="coordinate")
    with pytest.raises(ValueError, match="it takes no mask"):
        pu.solve(lasso, x, method="coordinate", mask=x > 0)


def test_the_methods_that_an_error_suggests_take_the_mask() -> None:
    model, x = problem("lasso", 1, 4)
    mask = x > 0
    for method in METHODS:
        if METHODS[method].misfit(model) is None and not METHODS[method].masks:
            with pytest.raises(ValueError, match="it takes no mask") as error:
                pu.solve(model, x, method=method, mask=mask)
            suggested = str(error.value).split("these fit: ")[1].split(", ")
            assert "restart" in suggested
            for name in suggested:
                pu.solve(model, x, method=name, mask=mask, max_iter=2)


@pytest.mark.parametrize("name", ["lasso", "group", "robust-pca", "nmf"])
def test_relative_gap_is_what_tol_bounds(name: str, dtype: torch.dtype) -> None:
    """Also where the objective is below the rounding unit of the data."""
    model, x = problem(name, 3, 20, dtype)
    x = x * torch.logspace(-12, 0, len(x), dtype=torch.float64)[:, None].to(dtype)
    for method in ("auto", "restart", "fista"):
        solution = pu.solve(model, x, method=method, tol=1e-5, max_iter=200)
        assert (solution.objective < torch.finfo(dtype).eps).any()
        assert torch.equal(solution.relative_gap <= 1e-5, solution.converged)


@pytest.mark.parametrize("method", PLAIN)
def test_plain_solvers_certify_the_codes_that_they_return(method: str, dtype: torch.dtype) -> None:
    for name in MODELS:
        model, x = problem(name, 4, 10, dtype)
        if METHODS[method].misfit(model) is not None:
            continue
        for tol, max_iter in ((0.0, 7), (0.3, 100), (1e-9, 20)):
            solution = pu.solve(model, x, method=method, tol=tol, max_iter=max_iter)
            assert torch.equal(solution.gap, pu.certify(model, x, solution.codes))


def test_the_certificate_of_a_plain_solver_is_evaluated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    evaluate = Certificate.evaluate

    def counted(self, *arguments):
        calls.append(1)
        return evaluate(self, *arguments)

    monkeypatch.setattr(Certificate, "evaluate", counted)
    model, x = problem("lasso", 4, 10)
    assert pu.solve(model, x, method="ista", tol=1e9).iterations == 10
    assert len(calls) == 1


def test_auto_asks_each_solver_once_whether_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    misfit = METHODS["coordinate"].misfit
    monkeypatch.setattr(
        "pursuit.solvers.solve.COORDINATE",
        replace(METHODS["coordinate"], misfit=lambda model: calls.append(1) or misfit(model)),
    )
    model, x = problem("lasso", 4, 10)
    assert pu.solve(model, x).method == "coordinate"
    assert len(calls) == 1


def test_the_same_call_gives_the_same_codes() -> None:
    for name in MODELS:
        model, x = problem(name, 2, 50, torch.float32)
        assert torch.equal(pu.solve(model, x).codes, pu.solve(model, x).codes)


# ---- non-negative least squares --------------------------------------------------------------


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_nmf_rows_that_the_active_set_misses_are_solved_by_the_last_stage(
    ridge: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a weight that is far too large the first stage is wrong, and the last corrects it."""
    generator = torch.Generator().manual_seed(0)
    model = pu.models.NMF(torch.rand(12, 20, generator=generator).double(), ridge)
    x = torch.rand(40, 20, generator=generator).double()
    best = pu.solve(model, x, "restart", tol=1e-11)
    calls = []
    last = nonnegative._without_gram_matrix

    def recorded(*given: object) -> torch.Tensor:
        calls.append(1)
        return last(*given)

    monkeypatch.setattr(nonnegative, "_without_gram_matrix", recorded)
    for weight in (None, 1e-2):
        if weight is not None:
            monkeypatch.setattr(nonnegative, "WEIGHT", weight)
        solution = pu.solve(model, x, tol=1e-9)
        assert solution.method == "nonnegative"
        assert solution.converged.all()
        torch.testing.assert_close(solution.objective, best.objective, rtol=1e-8, atol=0)
        assert bool(calls) == (weight is not None)


def test_nmf_of_silence_and_of_exact_sums_of_atoms() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms = torch.rand(5, 30, generator=generator)
    codes = torch.rand(20, 5, generator=generator)
    codes[0] = 0
    solution = pu.solve(pu.models.NMF(atoms), codes @ atoms)
    torch.testing.assert_close(solution.codes, codes, rtol=1e-4, atol=1e-5)
    assert (solution.codes[0] == 0).all()
    assert solution.iterations < 100
    # an objective of zero cannot be certified relatively, but most gaps are below eps
    assert (solution.gap <= 1e-11 * (codes @ atoms).double().square().sum(dim=1)).all()
    assert solution.converged.double().mean() > 0.6


def test_nmf_with_a_tiny_ridge_and_dependent_atoms() -> None:
    """Codes whose objective is the ridge's alone, which the rounding of a Gram matrix hides."""
    generator = torch.Generator().manual_seed(5)
    atoms = 15 * torch.rand(8, 2, generator=generator, dtype=torch.float64)
    x = 100 * torch.rand(12, 2, generator=generator, dtype=torch.float64)
    solution = pu.solve(models.NMF(atoms, 2e-6), x)
    assert solution.converged.all()
    assert solution.iterations < 1000
