"""Dictionaries: each update solves its quadratic problem, descends, and forgets as it should."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import pursuit as pu
from families import MODELS, problem
from pursuit.dictionary import draw
from pursuit.models import Lasso, RobustNMF, RobustPCA, SparseModel
from pursuit.operators import without_zero_atoms


def sample(seed: int, n: int = 60, q: int = 5, m: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(n, q, generator=generator, dtype=torch.float64)
    targets = torch.randn(n, m, generator=generator, dtype=torch.float64) + 0.3
    return codes, targets, torch.rand(q, m, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("ridge", [0.0, 0.7, 20.0])
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_an_update_is_the_solution_of_cvxpy(ridge: float, nonnegative: bool, seed: int) -> None:
    codes, targets, start = sample(seed)
    online = pu.OnlineDictionary(start, ridge=ridge, nonnegative=nonnegative, sweeps=800)
    learned = online.update(targets, codes)
    atoms = cp.Variable(start.shape)
    value = cp.sum_squares(targets.numpy() - codes.numpy() @ atoms) / 2
    value += ridge / 2 * cp.sum_squares(atoms)
    constraints = [atoms >= 0] if nonnegative else []
    if ridge == 0:
        constraints.append(cp.norm(atoms, 2, axis=1) <= 1)
    cp.Problem(cp.Minimize(value), constraints).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(learned.numpy(), atoms.value, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_sweeps_descend(name: str) -> None:
    """For the dictionaries of every model, with weights that fade, monotonically."""
    model, x = problem(name, 0, 100)
    codes = pu.solve(model, x, tol=1e-4).codes
    allowed = {k: model.constraints[k].project(d) for k, d in model.dictionaries.items()}
    online = pu.OnlineDictionary.of(model.rebind(allowed), beta=0.999, total=300)
    s, y = model.regression(x, codes)
    online.accumulate(y[:60], s[:60])
    online.accumulate(y[60:], s[60:])
    weights = torch.ones(100, dtype=torch.float64)
    weights[:60] = 0.999**40
    torch.testing.assert_close(online.A, (weights[:, None] * s).T @ s)
    torch.testing.assert_close(online.B, (weights[:, None] * s).T @ y)

    def value() -> float:
        data = (weights[:, None] * (y - s @ online.atoms).square()).sum() / 2
        share = float(weights.sum()) / 300
        ridge = sum(c.value(online.dictionaries[key]) for key, c in model.constraints.items())
        return float(data + share * ridge)

    values = [value()]
    for _ in range(5):
        online.update_atoms(sweeps=1)
        values.append(value())
        for key, constraint in model.constraints.items():
            now = online.dictionaries[key]
            torch.testing.assert_close(constraint.project(now), now)
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(values))
    assert values[-1] < values[0]


def test_weights_do_not_depend_on_the_batch_size() -> None:
    """Up to the age within one batch: samples that arrive together are equally old."""
    codes, targets, start = sample(1, n=64)
    whole = pu.OnlineDictionary(start, beta=0.9)
    single = pu.OnlineDictionary(start, beta=0.9)
    for row in range(64):
        single.accumulate(targets[row : row + 1], codes[row : row + 1])
    ages = torch.arange(63, -1, -1).double()
    weighted = codes * (0.9**ages)[:, None]
    torch.testing.assert_close(single.A, weighted.T @ codes)
    assert single.weight == pytest.approx(float((0.9**ages).sum()))
    for part in torch.arange(64).split(16):
        whole.accumulate(targets[part], codes[part])
    batch_age = torch.tensor([48.0, 32, 16, 0], dtype=torch.float64).repeat_interleave(16)
    torch.testing.assert_close(whole.A, (codes * (0.9**batch_age)[:, None]).T @ codes)


def test_dead_atoms_are_replaced_by_badly_coded_samples() -> None:
    codes, targets, start = sample(2)
    codes[:, 3] = 0
    targets[17] *= 100
    online = pu.OnlineDictionary(start)
    online.accumulate(targets, codes)
    assert online.dead.tolist() == [3]
    online.update_atoms()
    torch.testing.assert_close(online.atoms[3], start[3])
    residual = targets - codes @ online.atoms
    assert online.replace_dead(targets, codes) == 1
    expected = residual[17] / residual[17].norm()
    new = online.atoms[3] / online.atoms[3].norm()
    torch.testing.assert_close(new, expected)
    assert online.replace_dead(targets, codes) == 1  # until a sample uses it


def test_codes_that_blew_up_are_not_counted() -> None:
    codes, targets, start = sample(5)
    clean, dirty = pu.OnlineDictionary(start), pu.OnlineDictionary(start)
    clean.update(targets, codes)
    broken = torch.tensor([[float("nan")] * 5, [float("inf")] * 5], dtype=torch.float64)
    dirty.update(torch.cat([targets, targets[:2]]), torch.cat([codes, broken]))
    torch.testing.assert_close(dirty.atoms, clean.atoms)


def planted(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    true = torch.nn.functional.normalize(torch.randn(20, 16, generator=generator))
    codes = torch.randn(8000, 20, generator=generator)
    codes = codes * (torch.rand(8000, 20, generator=generator) < 0.1)
    return true, codes @ true + 0.01 * torch.randn(8000, 16, generator=generator)


def test_learned_atoms_have_unit_norm_and_serve_better_than_samples() -> None:
    _, x = planted()
    first, learned = draw(x, 20), pu.learn(x, 20, 0.05, passes=2)
    torch.testing.assert_close(learned.norm(dim=1), torch.ones(20), atol=1e-5, rtol=0)
    values = [float(pu.solve(Lasso(d, 0.05), x).objective.mean()) for d in (first, learned)]
    assert values[1] < 0.8 * values[0]


def test_learn_is_as_good_as_its_peer() -> None:
    from sklearn.decomposition import MiniBatchDictionaryLearning

    _, x = planted(1)
    peer = MiniBatchDictionaryLearning(
        20, alpha=0.05, batch_size=512, max_iter=2, random_state=0, fit_algorithm="cd"
    ).fit(x.double().numpy())
    atoms = torch.nn.functional.normalize(torch.from_numpy(peer.components_))
    values = [
        float(pu.solve(Lasso(d, 0.05), x).objective.mean())
        for d in (pu.learn(x, 20, 0.05, passes=2), atoms.float())
    ]
    assert values[0] < 1.02 * values[1]


def test_learn_with_an_encoder_inside() -> None:
    _, x = planted(2)

    def encode(model, batch):
        return pu.ProximalEncoder(model, 12)(batch).detach()

    values = [
        float(pu.solve(Lasso(d, 0.05), x).objective.mean())
        for d in (
            draw(x, 20),
            pu.learn(x, 20, 0.05, encode=encode),
            pu.learn(x, 20, 0.05),
        )
    ]
    assert values[1] < 0.8 * values[0]
    assert values[1] < 1.15 * values[2]


def test_learning_is_seeded_and_can_be_stopped() -> None:
    _, x = planted(3)
    assert torch.equal(pu.learn(x, 10, 0.1, seed=1), pu.learn(x, 10, 0.1, seed=1))
    assert not torch.equal(pu.learn(x, 10, 0.1, seed=1), pu.learn(x, 10, 0.1, seed=2))
    seen = []
    pu.learn(x, 10, 0.1, callback=lambda now: seen.append(now.done) or now.done >= 1024)
    assert seen == [512, 1024]


# ---- every model, every source -------------------------------------------------------------


def total_objective(model: SparseModel, x: Tensor) -> float:
    """What `learn` minimises: the optimal objectives of all samples, and phi(D) once."""
    ridge = sum(c.value(model.dictionaries[name]) for name, c in model.constraints.items())
    return float(pu.solve(model, x, tol=1e-6).objective.sum() + ridge)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_learns_its_dictionaries(name: str) -> None:
    model, x = problem(name, 0, 300)
    allowed = {key: model.constraints[key].project(d) for key, d in model.dictionaries.items()}
    start = model.replace(**allowed)
    learned = pu.learn(x, model=start, passes=3)
    assert type(learned) is type(model)
    assert learned.dtype == model.dtype
    for key, constraint in learned.constraints.items():
        atoms = learned.dictionaries[key]
        torch.testing.assert_close(constraint.project(atoms), atoms)
        assert not torch.equal(atoms, start.dictionaries[key])
    assert total_objective(learned, x) < total_objective(start, x)


def test_atoms_and_lam_are_the_lasso_on_drawn_samples() -> None:
    _, x = planted(4)
    start = Lasso(draw(x, 10, seed=3), 0.1)
    learned = pu.learn(x, model=start, passes=2, seed=3)
    assert torch.equal(pu.learn(x, 10, 0.1, passes=2, seed=3), learned.dictionary)


@pytest.mark.parametrize("kind", [RobustPCA, RobustNMF])
def test_one_batch_of_all_rows_is_alternating_minimisation(kind: type) -> None:
    """The objective falls with every pass, because the ridge counts once for the data set."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(700, 3, generator=generator) @ torch.rand(3, 12, generator=generator)
    model = kind(torch.rand(4, 12, generator=generator), 0.5, 0.1)
    values = [total_objective(model, x)]
    for _ in range(5):
        model = pu.learn([x], model=model)
        values.append(total_objective(model, x))
    assert all(after < before * (1 + 1e-3) for before, after in pairwise(values))
    assert values[-1] < 0.9 * values[0]


def test_arrays_memory_maps_and_tensors_give_the_same(tmp_path: Path) -> None:
    _, x = planted(5)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    expected = pu.learn(x, 10, 0.1)
    assert torch.equal(pu.learn(x.numpy(), 10, 0.1), expected)
    assert torch.equal(pu.learn(mapped, 10, 0.1), expected)


def test_only_batches_are_read() -> None:
    class Watched:
        """Rows of an array, which remembers how many were read at a time."""

        shape, counts = (5000, 16), []

        def __len__(self) -> int:
            return 5000

        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            self.counts.append(len(rows))
            return np.random.default_rng(0).standard_normal((len(rows), 16), dtype=np.float32)

    pu.learn(Watched(), 10, 0.1)
    assert Watched.counts == [10, *[512] * 9, 5000 - 9 * 512]


def test_batches_of_an_iterable_are_taken_as_they_come() -> None:
    _, x = planted(6)
    batches = list(x.split(300))
    expected = pu.learn(batches, 40, 0.1)
    assert torch.equal(pu.learn(iter(batches), 40, 0.1), expected)
    pairs = [(batch, torch.zeros(len(batch))) for batch in batches]
    assert torch.equal(pu.learn(pairs, 40, 0.1), expected)
    seen = []
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:900]), batch_size=300)
    pu.learn(loader, 10, 0.1, passes=2, callback=lambda now: seen.append((now.done, now.total)))
    assert seen == [(300 * step, 1800) for step in range(1, 7)]
    pu.learn(iter(batches), 10, 0.1, callback=lambda now: seen.append(now.total) or True)
    assert seen[-1] is None


def test_progress_has_the_dictionary() -> None:
    _, x = planted(7)
    told = []
    learned = pu.learn(x, 10, 0.1, callback=told.append)
    assert {now.stage for now in told} == {"dictionary"}
    assert [now.done for now in told][-1] == told[-1].total == len(x)
    assert [now.seconds for now in told] == sorted(now.seconds for now in told)
    assert torch.equal(told[-1].dictionary, learned)


def test_a_ridge_removes_atoms_and_only_a_stream_replaces_them() -> None:
    codes, targets, start = sample(3)
    codes[:, 2] = 0
    online = pu.OnlineDictionary(start, ridge=1.0, nonnegative=True)
    online.accumulate(targets, codes)
    assert online.replace_dead(targets, codes) == 0
    assert online.replace_dead(targets, codes, under_ridge=True) == 1


def test_zero_atoms_become_small_ones() -> None:
    atoms = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 5.0]])
    whole = atoms[[0, 2]]
    assert without_zero_atoms(whole) is whole
    filled = without_zero_atoms(atoms)
    assert torch.equal(filled[[0, 2]], atoms[[0, 2]])
    assert float(filled[1].norm()) == pytest.approx(5e-4)
    assert float(without_zero_atoms(torch.zeros(2, 4)).norm(dim=1)[0]) == pytest.approx(1e-4)


@pytest.mark.parametrize("size", [1e-30, 2e-19, 1e-18])
def test_atoms_that_vanish_together_stay_valid(size: float) -> None:
    atoms = torch.tensor([[size, 0.0], [0.0, 0.0], [1e-40, 0.0]])
    pu.models.RobustPCA(without_zero_atoms(atoms), 0.1, 0.1)


def test_a_quarter_of_the_samples_is_remembered() -> None:
    online = pu.OnlineDictionary(torch.eye(4))

    def remembered(*args, **kwargs) -> float:
        online.remember(*args, **kwargs)
        return 1 / (1 - online.beta)

    assert remembered(1000) == pytest.approx(250)
    assert remembered(0) == pytest.approx(20)  # five samples per atom
    assert remembered(0, least=100) == pytest.approx(100)
    assert remembered(1000, most=60) == pytest.approx(60)
    assert remembered(0, most=0) == pytest.approx(2)


def test_what_is_refused() -> None:
    codes, targets, start = sample(4)
    with pytest.raises(ValueError, match=r"beta must be positive and at most 1, got 1\.5"):
        pu.OnlineDictionary(start, beta=1.5)
    with pytest.raises(ValueError, match="sweeps must be at least 1"):
        pu.OnlineDictionary(start, sweeps=0)
    with pytest.raises(ValueError, match="ridge must be non-negative"):
        pu.OnlineDictionary(start, ridge=-1.0)
    with pytest.raises(ValueError, match="do not fit a dictionary of shape"):
        pu.OnlineDictionary(start).update(targets[:, 1:], codes)
    with pytest.raises(ValueError, match="atoms must be at least 1"):
        pu.learn(targets, 0, 0.1)
    with pytest.raises(ValueError, match="no row that differs from zero"):
        pu.learn(torch.zeros(5, 3), 2, 0.1)
    with pytest.raises(ValueError, match="x contains NaN"):
        pu.learn(targets / 0, 2, 0.1)
    with pytest.raises(ValueError, match="passes must be at least 1, got 0"):
        pu.learn(targets, 2, 0.1, passes=0)
    with pytest.raises(TypeError, match="either atoms and lam, or model"):
        pu.learn(targets, 2)
    with pytest.raises(TypeError, match="either atoms and lam, or model"):
        pu.learn(targets, 2, 0.1, model=Lasso(start, 0.1))
    with pytest.raises(TypeError, match="model must be a SparseModel, got Tensor"):
        pu.learn(targets, model=start)
    with pytest.raises(ValueError, match="can be read only once, but passes is 2"):
        pu.learn(iter([targets]), 2, 0.1, passes=2)
    with pytest.raises(ValueError, match="empty iterable"):
        pu.learn([], 2, 0.1)
    with pytest.raises(ValueError, match="empty iterable"):
        pu.learn(iter([]), model=Lasso(start, 0.1))
    with pytest.raises(TypeError, match="an iterable of batches, got int"):
        pu.learn(3, 2, 0.1)
    with pytest.raises(ValueError, match="two dimensions"):
        pu.learn(targets[0], 2, 0.1)
    with pytest.raises(ValueError, match="x has 6 features, but the dictionary has 7"):
        pu.learn(targets[:, 1:], model=Lasso(start, 0.1))
