"""Dictionaries: each update solves its quadratic problem, descends, and forgets as it should."""

from __future__ import annotations

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

import pursuit as pu
from families import MODELS, problem
from pursuit.dictionary import draw
from pursuit.models import Lasso


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
    found = online.update(targets, codes)
    atoms = cp.Variable(start.shape)
    value = cp.sum_squares(targets.numpy() - codes.numpy() @ atoms) / 2
    value += ridge / 2 * cp.sum_squares(atoms)
    constraints = [atoms >= 0] if nonnegative else []
    if ridge == 0:
        constraints.append(cp.norm(atoms, 2, axis=1) <= 1)
    cp.Problem(cp.Minimize(value), constraints).solve(solver=cp.CLARABEL)
    np.testing.assert_allclose(found.numpy(), atoms.value, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_sweeps_descend(name: str) -> None:
    """For the dictionaries of every model, with weights that fade, monotonically."""
    model, x = problem(name, 0, 100)
    codes = pu.solve(model, x, tol=1e-4).codes
    allowed = {k: model.constraints[k].project(d) for k, d in model.dictionaries.items()}
    online = pu.OnlineDictionary.of(model.rebind(allowed), beta=0.999, total=300)
    s, y = model.regression(x, codes)
    online.count(y[:60], s[:60])
    online.count(y[60:], s[60:])
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
        online.renew(sweeps=1)
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
        single.count(targets[row : row + 1], codes[row : row + 1])
    ages = torch.arange(63, -1, -1).double()
    weighted = codes * (0.9**ages)[:, None]
    torch.testing.assert_close(single.A, weighted.T @ codes)
    assert single.weight == pytest.approx(float((0.9**ages).sum()))
    for part in torch.arange(64).split(16):
        whole.count(targets[part], codes[part])
    batch_age = torch.tensor([48.0, 32, 16, 0], dtype=torch.float64).repeat_interleave(16)
    torch.testing.assert_close(whole.A, (codes * (0.9**batch_age)[:, None]).T @ codes)


def test_dead_atoms_are_replaced_by_badly_coded_samples() -> None:
    codes, targets, start = sample(2)
    codes[:, 3] = 0
    targets[17] *= 100
    online = pu.OnlineDictionary(start)
    online.count(targets, codes)
    assert online.dead.tolist() == [3]
    online.renew()
    torch.testing.assert_close(online.atoms[3], start[3])
    left = targets - codes @ online.atoms
    assert online.revive(targets, codes) == 1
    expected = left[17] / left[17].norm()
    new = online.atoms[3] / online.atoms[3].norm()
    torch.testing.assert_close(new, expected)
    assert online.revive(targets, codes) == 1  # until a sample uses it


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
    first, found = draw(x, 20), pu.learn(x, 20, 0.05, passes=2)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20), atol=1e-5, rtol=0)
    values = [float(pu.solve(Lasso(d, 0.05), x).objective.mean()) for d in (first, found)]
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
    pu.learn(x, 10, 0.1, callback=lambda now: seen.append(now.samples) or now.samples >= 1024)
    assert seen == [512, 1024]


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
