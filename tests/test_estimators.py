"""Estimators: the scikit-learn contract, and that they do what their models say."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import pursuit as pu
from pursuit import penalties, regimes
from pursuit.batch import learn_in_batch
from pursuit.datasets import textures
from pursuit.encoders.choice import coordinate_schedule
from pursuit.estimators import NMF, PursuitClassifier, RobustNMF, RobustPCA, SparseCoding
from pursuit.estimators.noise import noise_level
from pursuit.estimators.start import start_nmf, start_robust, start_sparse
from pursuit.sampling import sample_rows
from pursuit.solvers import accuracy
from pursuit.solvers.accuracy import exact_codes

SMALL = {"transform_algorithm": "encoder", "layers": 3, "steps": 20, "threads": 1}
TRANSFORMERS = (SparseCoding, NMF, RobustPCA, RobustNMF)


@parametrize_with_checks(
    [
        *(kind(3, **SMALL) for kind in TRANSFORMERS),
        *(kind(3) for kind in TRANSFORMERS),
        PursuitClassifier(3, steps=20, threads=1),
    ]
)
def test_contract(estimator, check) -> None:
    check(estimator)


def planted(
    n: int = 600, m: int = 40, rank: int = 3, sigma: float = 0.1, seed: int = 0, shift: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Low rank, noise and 5 % outliers; the data, the low-rank part, where outliers are."""
    rng = np.random.default_rng(seed)
    directions = np.random.default_rng(99).standard_normal((rank, m))
    low_rank = rng.standard_normal((n, rank)) @ directions + shift
    where = rng.random((n, m)) < 0.05
    outliers = where * rng.choice([-1, 1], (n, m)) * rng.uniform(3, 10, (n, m))
    return low_rank + outliers + sigma * rng.standard_normal((n, m)), low_rank, where


def parts_of_tones(n: int = 600, seed: int = 0) -> np.ndarray:
    """Non-negative combinations of four non-negative atoms, with some noise."""
    rng = np.random.default_rng(seed)
    atoms = np.random.default_rng(9).random((4, 40)) ** 2
    codes = rng.exponential(size=(n, 4)) * (rng.random((n, 4)) < 0.7)
    return codes @ atoms + 0.05 * rng.random((n, 40))


def data_for(kind: type, n: int = 600, seed: int = 0) -> np.ndarray:
    return parts_of_tones(n, seed) if kind in (NMF, RobustNMF) else planted(n, seed=seed)[0]


# ---- the rules -----------------------------------------------------------------------------


def test_noise_scales_with_the_data_and_is_never_zero() -> None:
    x, low_rank, _ = (torch.from_numpy(part) for part in planted())
    assert noise_level(7 * x, 3) == pytest.approx(7 * noise_level(x, 3), rel=1e-6)
    # without noise, a hundredth of what varies
    assert noise_level(low_rank, 3) == pytest.approx(0.01 * float(low_rank.std()), rel=0.5)
    for same in (torch.zeros(5, 4), torch.ones(5, 4)):
        assert noise_level(same, 3) > 0


def test_automatic_weights_are_those_of_the_docstrings() -> None:
    x, _, _ = planted(500, 40)
    robust = RobustPCA(3).fit(x)
    assert robust.noise_ == pytest.approx(0.1, rel=0.1)
    assert robust.lam_ == pytest.approx(math.sqrt(2) * robust.noise_)
    assert robust.lam_star_ == pytest.approx(math.sqrt(2 * 500) * robust.noise_)
    coder = SparseCoding(12).fit(x)
    sigma = noise_level(torch.from_numpy(x), 12)
    assert coder.lam_ == pytest.approx(sigma * math.sqrt(2 * math.log(12)))
    explicit = RobustPCA(3, lam=0.5, lam_star=4.0).fit(x)
    assert (explicit.lam_, explicit.lam_star_) == (0.5, 4.0)
    assert (explicit.model_.lam, explicit.model_.lam_star) == (0.5, 4.0)


@pytest.mark.parametrize("layers", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("atoms", [2, 12, 300])
def test_top_k_schedules_end_with_all_coefficients(atoms: int, layers: int) -> None:
    schedule = coordinate_schedule(atoms, layers)
    assert len(schedule) == layers
    assert schedule == sorted(schedule)
    assert schedule[-1] == atoms


def test_sampled_rows_are_distinct_sorted_and_not_excluded() -> None:
    excluded = [3, 4, 17]
    rows = sample_rows(30, 20, seed=1, exclude=excluded)
    assert len(rows) == len(set(rows.tolist()) - set(excluded)) == 20
    assert rows.tolist() == sorted(rows.tolist())
    assert 0 <= rows[0] < rows[-1] < 30
    assert sample_rows(30, 40, exclude=excluded).tolist() == sorted(set(range(30)) - set(excluded))
    drawn = np.concatenate([sample_rows(30, 5, seed, excluded) for seed in range(100)])
    assert set(drawn.tolist()) == set(range(30)) - set(excluded)


def test_estimators_learn_what_their_starts_lead_to() -> None:
    wild, smooth = (torch.from_numpy(data) for data in (planted(300, 20)[0], parts_of_tones(300)))
    for estimator, data, start in (
        (SparseCoding(6), wild, start_sparse(wild, 6)),
        (NMF(4, ridge=0.1), smooth, start_nmf(smooth, 4, 0.1)),
        (RobustNMF(4), smooth, start_robust(smooth, 4, nonnegative=True)),
        (RobustPCA(4, center=False), wild, start_robust(wild, 4)),
    ):
        learned = learn_in_batch(data, start.model, start.init)
        estimator.fit(data.numpy())
        np.testing.assert_array_equal(estimator.components_, learned.model.dictionary.numpy())
        assert estimator.history_ == list(learned.history)
        assert (estimator.n_iter_, estimator.converged_) == (learned.iterations, True)


# ---- the mathematics -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_exact_codes_are_those_of_solve(kind: type) -> None:
    x = data_for(kind)
    estimator = kind(5).fit(x)
    assert estimator.encoder_ is None
    assert estimator.gap_ == 0
    centred = torch.from_numpy(x if estimator.mean_ is None else x - estimator.mean_)
    solution = pu.solve(estimator.model_, centred, tol=1e-8)
    codes = estimator.transform(x)
    scale = float(solution.codes.abs().max())
    assert np.abs(codes - solution.codes[:, :5].numpy()).max() < 1e-2 * scale
    optimum = float(solution.objective.mean())
    assert -estimator.score(x) == pytest.approx(optimum, rel=1e-5)


def test_nonnegative_least_squares_of_any_size_and_ridge() -> None:
    from scipy.optimize import nnls

    rng = np.random.default_rng(0)
    atoms = rng.random((6, 10))
    x = rng.random((20, 10)) * np.logspace(-3, 3, 20)[:, None]
    x[7] = 0
    for ridge in (0.0, 0.3):
        model = pu.models.NMF(torch.from_numpy(atoms), ridge)
        codes = exact_codes(model, torch.from_numpy(x), 1e-6).numpy()
        stacked = np.vstack([atoms.T, math.sqrt(ridge) * np.eye(6)])
        right = [nnls(stacked, np.r_[row, np.zeros(6)])[0] for row in x]
        np.testing.assert_allclose(codes, right, rtol=1e-3, atol=1e-5 * x.max(axis=1).max())
        best = model.objective(torch.from_numpy(x), torch.from_numpy(np.array(right)))
        reached = model.objective(torch.from_numpy(x), torch.from_numpy(codes))
        np.testing.assert_allclose(reached, best, rtol=1e-5)


@pytest.fixture(scope="module")
def patches() -> np.ndarray:
    return textures.patches(1000).numpy()


@pytest.fixture(scope="module")
def trained(patches: np.ndarray) -> SparseCoding:
    coder = SparseCoding(64, lam=1.0, threads=1).fit(patches)
    return coder.train_encoder(patches, layers=7, steps=400)


def test_trained_encoders_are_near_the_optimum_on_new_patches(trained: SparseCoding) -> None:
    assert type(trained.encoder_).__name__ == "ProximalEncoder"
    assert trained.gap_ < 0.01
    x = textures.patches(100, "test", seed=1).numpy()
    exact = copy.deepcopy(trained).set_params(transform_algorithm="exact")
    assert trained.score(x) < exact.score(x) * (1 - 1e-6)
    assert trained.score(x) == pytest.approx(exact.score(x), rel=0.02)


def test_many_atoms_are_coded_by_top_k_layers() -> None:
    x = planted(400, 10)[0]
    coder = SparseCoding(30, **SMALL).fit(x)
    assert coder.encoder_.coordinates == (4, 16, 30)
    assert coder.transform(x).shape == (400, 30)


def test_single_and_double_precision_agree(trained: SparseCoding) -> None:
    x = textures.patches(100, "test", seed=2).numpy()
    single, double = trained.transform(x), trained.transform(x.astype(np.float64))
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(single, double)  # both run in single precision


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_single_and_double_precision_agree_for_all(kind: type) -> None:
    x = data_for(kind)
    estimator = kind(5, **SMALL).fit(x)
    single, double = estimator.transform(x.astype(np.float32)), estimator.transform(x)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    assert np.abs(single - double).max() < 1e-4 * np.abs(double).max()


@pytest.mark.parametrize("algorithm", ["encoder", "exact"])
def test_robust_pca_finds_what_was_planted(algorithm: str) -> None:
    x, low_rank, where = planted(shift=5.0)
    estimator = RobustPCA(3, transform_algorithm=algorithm, layers=7, steps=300, threads=1).fit(x)
    new, new_low_rank, new_where = planted(seed=5, shift=5.0)
    for data, truth, wild in ((x, low_rank, where), (new, new_low_rank, new_where)):
        parts = estimator.split(data)
        variation = np.linalg.norm(truth - truth.mean(axis=0))
        assert np.linalg.norm(parts.low_rank - truth) < 0.1 * variation
        assert np.mean((parts.outliers != 0)[wild]) > 0.99
        assert np.mean((parts.outliers != 0)[~wild]) < 0.3
        assert parts.sparse is parts.outliers
        np.testing.assert_allclose(parts.scores, estimator.transform(data))
        np.testing.assert_allclose(estimator.inverse_transform(parts.scores), parts.low_rank)
        # what the two parts leave is noise, which exact outliers clip at lam
        residual = data - parts.low_rank - parts.sparse
        assert np.linalg.norm(residual) < 1.2 * 0.1 * math.sqrt(residual.size)
        if algorithm == "exact":
            assert np.abs(residual).max() < estimator.lam_ * (1 + 1e-3)


def test_robust_pca_is_the_convex_solution() -> None:
    x, _, _ = planted(200, 30)
    estimator = RobustPCA(30, center=False).fit(x)
    convex, _ = pu.principal_component_pursuit(x, estimator.lam_star_, estimator.lam_)
    low_rank = estimator.split(x).low_rank
    # gaps of 1e-5 in fit and 1e-6 in split
    assert np.linalg.norm(low_rank - np.asarray(convex)) < 5e-3 * np.linalg.norm(convex)
    assert estimator.certificate_ == pytest.approx(1, abs=1e-3)
    # with too few directions the residual shows that the problem is not solved
    assert RobustPCA(2, center=False).fit(x).certificate_ > 1.5


def test_without_bias_the_low_rank_part_is_nearer_to_the_truth() -> None:
    x, truth, where = planted(400, 60)
    estimator = RobustPCA(3).fit(x)
    plain, debiased = estimator.split(x), estimator.split(x, debias=True)
    error, smaller = (np.linalg.norm(p.low_rank - truth) for p in (plain, debiased))
    # the best that least squares over the entries without outliers can do
    noise = 0.1 * math.sqrt(3 * (400 + 60))
    assert smaller < 1.2 * noise < error
    np.testing.assert_array_equal(debiased.outliers != 0, estimator.outlier_mask(x))
    np.testing.assert_allclose(
        (debiased.low_rank + debiased.outliers)[debiased.outliers != 0],
        x[debiased.outliers != 0],
    )
    assert (debiased.outliers != 0)[where].mean() > 0.99


@pytest.mark.parametrize("debias", [False, True])
def test_fit_split_is_fit_and_split(debias: bool) -> None:
    x, _, _ = planted(300, 40)
    x[::7, 3] = np.nan
    together = RobustPCA(3).fit_split(x, debias=debias)
    apart = RobustPCA(3).fit(x).split(x, debias=debias)
    size = np.linalg.norm(apart.low_rank)
    assert np.linalg.norm(together.low_rank - apart.low_rank) < 5e-3 * size
    assert np.linalg.norm(together.outliers - apart.outliers) < 5e-3 * size
    for parts in (together, apart):
        assert np.isfinite(parts.low_rank).all()
        assert not np.any(parts.outliers[np.isnan(x)])
    tones = planted(100, 40)[0] + 20
    np.testing.assert_array_equal(
        RobustNMF(3).fit_split(tones).low_rank, RobustNMF(3).fit(tones).split(tones).low_rank
    )


def test_an_uncertain_noise_level_is_reported() -> None:
    rng = np.random.default_rng(0)
    good, _, _ = planted(300, 100)
    bad = np.where(rng.random(good.shape) < 0.5, rng.uniform(-50, 50, good.shape), good)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RobustPCA(3).fit(good)
    with pytest.warns(UserWarning, match="noise level .* is uncertain") as caught:
        RobustPCA(3).fit(bad)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        RobustPCA(3, lam=0.1, lam_star=2.0).fit(bad)


def test_directions_are_sorted_and_balanced() -> None:
    x, _, _ = planted(200, 30)
    estimator = RobustPCA(3).fit(x)
    scores, atoms = estimator.transform(x), estimator.components_
    gram = atoms @ atoms.T
    np.testing.assert_allclose(scores.T @ scores, gram, atol=1e-2 * gram.max())
    assert np.all(np.diff(np.diagonal(gram)) < 0)
    assert np.abs(gram - np.diag(np.diagonal(gram))).max() < 1e-6 * gram.max()


@pytest.mark.parametrize("kind", [NMF, RobustNMF])
def test_nonnegative_parts_explain_the_data(kind: type) -> None:
    x = parts_of_tones()
    estimator = kind(5, transform_algorithm="encoder", layers=7, steps=300, threads=1).fit(x)
    codes = estimator.transform(x)
    assert codes.min() >= 0
    assert estimator.components_.min() >= 0
    residual = x - estimator.inverse_transform(codes)
    if kind is RobustNMF:
        residual -= estimator.split(x).sparse
    assert np.linalg.norm(residual) < 0.1 * np.linalg.norm(x)


@pytest.mark.parametrize("penalty", ["group", "hilasso"])
def test_groups(penalty: str) -> None:
    x = planted(400, 20)[0]
    groups = [[i, i + 1] for i in range(0, 12, 2)]
    coder = SparseCoding(12, penalty=penalty, groups=groups, **SMALL).fit(x)
    assert type(coder.encoder_).__name__ == "BlockCoordinateEncoder"
    active = coder.transform(x).reshape(len(x), 6, 2) != 0
    assert 0 < active.any(axis=2).mean() < 1
    if penalty == "group":
        assert (active.any(axis=2) == active.all(axis=2)).mean() > 0.99
        assert coder.lam_group_ is None
    else:
        assert coder.lam_group_ > 0


def test_a_penalty_object_and_nonnegative_codes() -> None:
    x = planted(400, 20)[0]
    custom = SparseCoding(8, penalty=penalties.L1(0.5, nonnegative=True), **SMALL).fit(x)
    named = SparseCoding(8, lam=0.5, nonnegative=True, **SMALL).fit(x)
    assert custom.transform(x).min() >= 0
    np.testing.assert_allclose(custom.transform(x), named.transform(x))
    assert custom.lam_ is None


def test_centring_adds_the_mean_back() -> None:
    x = planted(300, 20, shift=30.0)[0]
    coder = SparseCoding(20, lam=0.01, center=True).fit(x)
    np.testing.assert_allclose(coder.mean_, x.mean(axis=0))
    residual = x - coder.inverse_transform(coder.transform(x))
    assert np.linalg.norm(residual) < 0.05 * np.linalg.norm(x - coder.mean_)


# ---- new data ------------------------------------------------------------------------------


def test_a_warning_tells_when_the_encoder_is_far_off(trained: SparseCoding) -> None:
    x = textures.patches(200, "test", seed=3).numpy()
    other = 20 * np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
    eager = copy.deepcopy(trained)
    eager._runner.cost = 0.0  # so that every call is checked
    for dtype in (np.float32, np.float64):
        with pytest.warns(UserWarning, match="partial_fit") as caught:
            eager.transform(other.astype(dtype))
        assert len(caught) == 1
        assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        eager.transform(x)
        eager.transform(x.astype(np.float64))
        eager.transform(other[:19])  # too few rows to judge by
        copy.deepcopy(eager).set_params(transform_algorithm="exact").transform(other)


def test_the_encoder_is_compared_within_a_budget(
    trained: SparseCoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[int] = []
    exact_codes = accuracy.exact_codes

    def counted(model, x, *args, **kwargs):
        solved.append(len(x))
        return exact_codes(model, x, *args, **kwargs)

    monkeypatch.setattr(accuracy, "exact_codes", counted)
    estimator, runner = copy.deepcopy(trained), trained._runner
    x = textures.patches(200, "test", seed=3).numpy()
    assert 0 < runner.cost < math.inf
    runner = estimator._runner
    runner.cost, runner.spent = 1.0, 0.0
    estimator.transform(x)
    assert solved == []
    assert runner.spent > 0
    runner.spent = 20.0  # 5 % of it suffice
    estimator.transform(x)
    assert solved == [20]
    assert runner.spent == 0
    estimator.transform(x)
    assert solved == [20]


@pytest.mark.parametrize("algorithm", ["encoder", "exact"])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_partial_fit_follows(kind: type, algorithm: str) -> None:
    x = data_for(kind, 600)
    other = np.ascontiguousarray(x[:, ::-1])
    estimator = kind(5, **SMALL | {"transform_algorithm": algorithm}).fit(x)
    before = estimator.score(other)
    kept = estimator.score(x)
    atoms = estimator.components_.copy()
    estimator.partial_fit(x)
    # more of the same changes little
    assert estimator.score(x) > kept * 1.05
    for _ in range(5):  # robust models follow slowly: at first all that is new is an outlier
        estimator.partial_fit(other)
    assert estimator.n_samples_seen_ == 7 * 600
    assert not np.array_equal(atoms, estimator.components_)
    np.testing.assert_array_equal(estimator.components_, estimator.model_.dictionary.numpy())
    assert estimator.score(other) > before + 0.15 * (kept - before)
    assert np.isfinite(estimator.transform(other)).all()
    single, double = estimator.transform(other.astype(np.float32)), estimator.transform(other)
    assert np.abs(single - double).max() < 1e-3 * np.abs(double).max()


@pytest.mark.parametrize("algorithm", ["encoder", "exact"])
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_partial_fit_starts_by_itself(kind: type, algorithm: str) -> None:
    x = data_for(kind, 400)
    estimator = kind(5, transform_algorithm=algorithm, layers=3, threads=1)
    for batch in np.split(x, 4):
        estimator.partial_fit(batch)
    assert estimator.n_samples_seen_ == 400
    assert estimator.transform(x).shape == (400, 5)
    few = kind(5, transform_algorithm=algorithm, layers=3, threads=1).partial_fit(x[:2])
    assert few.transform(x).shape == (400, 5)


# ---- scikit-learn's company ----------------------------------------------------------------


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_settings_are_those_of_the_constructor(kind: type) -> None:
    estimator = kind(4, transform_algorithm="encoder", layers=5)
    assert kind(4).get_params()["transform_algorithm"] == "exact"
    again = clone(estimator).set_params(transform_algorithm="exact", layers=2)
    assert (again.transform_algorithm, again.layers) == ("exact", 2)
    assert "transform_algorithm='encoder'" in repr(estimator)


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_pickles_give_equal_codes_and_go_on_learning(kind: type) -> None:
    x = data_for(kind, 300)
    estimator = kind(4, **SMALL).fit(x).partial_fit(x)
    single = x.astype(np.float32)
    codes = estimator.transform(x), estimator.transform(single)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.transform(x), codes[0])
    np.testing.assert_array_equal(again.transform(single), codes[1])
    again.partial_fit(x)
    estimator.partial_fit(x)
    np.testing.assert_array_equal(again.components_, estimator.components_)
    np.testing.assert_array_equal(again.transform(x), estimator.transform(x))


def test_the_same_seed_gives_the_same_and_none_is_zero() -> None:
    x = planted(300, 12)[0]
    codes = [
        SparseCoding(8, random_state=seed, **SMALL).fit_transform(x) for seed in (None, 0, 0, 1)
    ]
    np.testing.assert_array_equal(codes[0], codes[1])
    np.testing.assert_array_equal(codes[1], codes[2])
    assert not np.array_equal(codes[2], codes[3])


def test_grid_search_and_pipelines() -> None:
    x, y = load_digits(return_X_y=True)
    x, y = x[:300] / 16, y[:300]
    pipeline = make_pipeline(SparseCoding(20, **SMALL), LogisticRegression(max_iter=500))
    choices = {"sparsecoding__transform_algorithm": ["encoder", "exact"]}
    search = GridSearchCV(pipeline, choices, cv=2).fit(x, y)
    assert search.best_score_ > 0.8
    choices = {"transform_algorithm": ["encoder", "exact"]}
    search = GridSearchCV(RobustPCA(3, **SMALL), choices, cv=2).fit(x)
    assert search.best_params_ == {"transform_algorithm": "exact"}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_in_and_out(library: str) -> None:
    frames = importlib.import_module(library)
    x = frames.DataFrame(dict(zip("abcdef", planted(100, 6)[0].T, strict=True)))
    estimator = RobustPCA(2, **SMALL).set_output(transform=library).fit(x)
    frame = estimator.transform(x)
    assert isinstance(frame, frames.DataFrame)
    assert list(frame.columns) == ["robustpca0", "robustpca1"]
    assert isinstance(estimator.split(x).low_rank, np.ndarray)
    np.testing.assert_allclose(estimator.inverse_transform(frame), estimator.split(x).low_rank)


@pytest.mark.parametrize("kind", [NMF, RobustNMF])
def test_librosa_can_decompose_by_them(kind: type) -> None:
    from librosa.decompose import decompose

    spectrogram = parts_of_tones(200).T
    estimator = kind(5)
    components, activations = decompose(spectrogram, transformer=estimator)
    assert components.shape == (40, 5)
    assert activations.shape == (5, 200)
    error = np.linalg.norm(spectrogram - components @ activations)
    assert error < 0.35 * np.linalg.norm(spectrogram)
    again = decompose(spectrogram, transformer=estimator, fit=False)[1]
    np.testing.assert_allclose(again, activations)


@pytest.mark.parametrize(
    ("estimator", "error", "words"),
    [
        (SparseCoding(0), ValueError, "n_components == 0, must be >= 1"),
        (SparseCoding(2.5), TypeError, "n_components must be an instance of"),
        (SparseCoding(2, lam="big"), ValueError, "lam must be 'auto' or a number, got 'big'"),
        (RobustPCA(2, lam_star=-1.0), ValueError, "lam_star must be 'auto' or non-negative"),
        (SparseCoding(2, penalty="l2"), ValueError, "penalty must be one of 'l1', 'group'"),
        (SparseCoding(2, penalty="group"), ValueError, "penalty='group' needs groups"),
        (SparseCoding(2, penalty="group", groups=3), ValueError, "penalty='group' needs groups"),
        (SparseCoding(2, penalty=3), TypeError, "penalty must be a name or a Penalty, got int"),
        (NMF(2, transform_algorithm="fast"), ValueError, "transform_algorithm must be one of"),
        (NMF(2, max_iter=0), ValueError, "max_iter == 0, must be >= 1"),
        (NMF(2, tol=-1.0), ValueError, "tol must be None or non-negative and finite, got -1.0"),
        (NMF(2, regime="magic"), ValueError, "regime must be one of 'unsupervised'"),
        (NMF(2, layers=0), ValueError, "layers == 0, must be >= 1"),
        (NMF(2, max_iter=2.5), TypeError, "max_iter must be an instance of int, not float"),
        (NMF(2, max_iter=True), TypeError, "max_iter must be an instance of int, not bool"),
        (NMF(2, ridge="auto"), ValueError, "ridge must be a number, got 'auto'"),
        (NMF(2, ridge=[1.0]), TypeError, "ridge must be a number, got list"),
        (NMF(2, steps=2.5), TypeError, "steps must be an instance of int, not float"),
        (NMF(2, threads=1.5), TypeError, "threads must be an instance of int, not float"),
        (NMF(2, threads=0), ValueError, "threads == 0, must be >= 1"),
        (NMF(2, tol="low"), ValueError, "tol must be None or a number, got 'low'"),
        (NMF(2, callback=3), TypeError, "callback must be None or a function of a Progress"),
        (NMF(2, regime=3), TypeError, "regime must be a Regime or a callable"),
        (RobustPCA(2, lam=None), TypeError, "lam must be 'auto' or a number, got NoneType"),
        (RobustPCA(2, random_state=-1), ValueError, "random_state must lie between 0 and 2^63"),
        (SparseCoding(2, random_state=2**64), ValueError, "random_state must lie between 0"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:40],
)
def test_settings_are_refused_in_one_sentence(estimator, error, words) -> None:
    with pytest.raises(error) as caught:
        estimator.fit(np.random.default_rng(0).random((20, 4)))
    assert str(caught.value).startswith(words)


def test_other_misuse_is_refused() -> None:
    x = planted(100, 6)[0]
    estimator = RobustPCA(2).fit(x)
    with pytest.raises(ValueError, match="false_alarms must lie between 0 and 1, got 2"):
        estimator.outlier_mask(x, false_alarms=2)
    with pytest.raises(ValueError, match="X has 3 columns, but there are 2 components"):
        estimator.inverse_transform(np.ones((4, 3)))
    with pytest.raises(ValueError, match="call train_encoder"):
        estimator.set_params(transform_algorithm="encoder").transform(x)
    with pytest.raises(ValueError, match="Negative values"):
        NMF(2).fit(x)


def test_a_regime_object_is_not_changed() -> None:
    x = planted(100, 6)[0]
    regime = regimes.Approximation()
    estimator = SparseCoding(4, regime=regime, **SMALL).fit(x)
    assert regime._codes is None
    assert estimator.encoder_.regime == "approximation"


# ---- the classifier ------------------------------------------------------------------------


def test_digits_are_told_apart() -> None:
    x, y = load_digits(return_X_y=True)
    names = np.array([f"digit {value}" for value in range(10)])[y]
    train, test, train_labels, test_labels = train_test_split(
        x, names, test_size=0.5, stratify=y, random_state=0
    )
    classifier = PursuitClassifier(threads=1).fit(train, train_labels)
    assert classifier.score(test, test_labels) > 0.98
    decision = classifier.decision_function(test)
    assert decision.shape == (len(test), 10)
    single = classifier.decision_function(test.astype(np.float32))
    assert np.abs(single - decision).max() < 1e-4
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict(test), classifier.predict(test))


def test_two_classes_have_one_decision() -> None:
    x, y = load_digits(n_class=2, return_X_y=True)
    classifier = PursuitClassifier(4, steps=50, threads=1).fit(x, y)
    decision = classifier.decision_function(x)
    assert decision.shape == (len(x),)
    np.testing.assert_array_equal(classifier.predict(x), (decision > 0).astype(int))
    assert classifier.score(x, y) > 0.98
    with pytest.raises(ValueError, match="one class only"):
        classifier.fit(x, np.zeros(len(x)))
