"""Regimes: each loss is its formula, they add up, and targets that do not fit are refused."""

from __future__ import annotations

import pytest
import torch

import pursuit as pu
from families import FEATURES, MODELS, PAIRS, problem
from pursuit import models, regimes
from pursuit.regimes import Batch
from test_encoders import bank_models, shaken


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_unsupervised_is_the_objective(name: str) -> None:
    model, x = problem(name, 1, 20)
    encoder = pu.ProximalEncoder(model, 3)
    loss = regimes.Unsupervised()(encoder, Batch(x))
    close(loss, model.objective(x, encoder(x)).mean())


def test_the_penalty_of_the_dictionary_counts_once_for_all_samples() -> None:
    model, x = problem("robust-nmf", 2, 20)
    encoder = pu.ProximalEncoder(model, 3)
    fixed = regimes.Unsupervised()(encoder, Batch(x, total=50))
    phi = model.lam_star / 2 * model.dictionary.square().sum()
    learned = Batch(x, total=50, learns_dictionary=True)
    close(regimes.Unsupervised()(encoder, learned), fixed + phi / 50)
    close(regimes.Unsupervised(n=200)(encoder, learned), fixed + phi / 200)
    supervised = regimes.Supervised(penalty=2.0)
    targets = {"targets": x, "total": 50}
    without = supervised(encoder, Batch(x, **targets))
    close(supervised(encoder, Batch(x, learns_dictionary=True, **targets)), without + phi / 25)
    with pytest.raises(ValueError, match=r"give it as Unsupervised\(n=...\)"):
        regimes.Unsupervised()(encoder, Batch(x, learns_dictionary=True))


@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-pca", "low-rank-sparse"])
def test_approximation_is_the_distance_to_exact_codes(name: str) -> None:
    model, x = problem(name, 3, 40)
    encoder = pu.ProximalEncoder(model, 3)
    exact = pu.solve(model, x, tol=1e-6).codes
    difference = model.to_normalised(encoder(x)) - model.to_normalised(exact)
    expected = difference.square().sum(dim=1)
    regime = regimes.Approximation()
    close(regime(encoder, Batch(x)), expected.mean())
    for rows in (torch.arange(0, 40, 3), torch.arange(20, 40), torch.arange(40)):
        loss = regime(encoder, Batch(x[rows], rows=rows, total=40))
        # the solver stops at tol, where exactly may depend on the rows it is given
        torch.testing.assert_close(loss, expected[rows].mean(), rtol=1e-3, atol=1e-6)


def test_approximation_solves_each_sample_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = problem("lasso", 4, 40)
    encoder = pu.ProximalEncoder(model, 3)
    solved = []

    def count(model, x, **options):
        solved.append(len(x))
        return pu.solve(model, x, **options)

    monkeypatch.setattr(regimes, "solve", count)
    regime = regimes.Approximation()
    everything = torch.arange(40)
    for rows in (everything[:10], everything[:20], everything, everything):
        regime(encoder, Batch(x[rows], rows=rows, total=40))
    assert solved == [10, 10, 20]
    # another dictionary has other codes
    with torch.no_grad():
        encoder.dictionary.mul_(0.5)
    loss = regime(encoder, Batch(x, rows=everything, total=40))
    exact = pu.solve(encoder.model, x, tol=1e-6).codes
    close(loss, (encoder(x) - exact).square().sum(dim=1).mean())
    assert solved[3:] == [40]
    # without room nothing is kept
    frugal = regimes.Approximation(cache=100)
    for _ in range(2):
        frugal(encoder, Batch(x, rows=everything, total=40))
    assert solved[4:] == [40, 40]


def test_approximation_solves_other_data_of_the_same_size_again() -> None:
    model, x = problem("lasso", 4, 40)
    losses = []
    for regime in (shared := regimes.Approximation(), shared, regimes.Approximation()):
        encoder = pu.ProximalEncoder(model, 2)
        losses.append(pu.fit(encoder, x, regime=regime, steps=10).loss)
        x = x.flip(1)
    assert losses[2] == losses[0] != losses[1]
    encoder = pu.ProximalEncoder(model, 2)
    assert losses[1] == pu.fit(encoder, x, regime=regimes.Approximation(), steps=10).loss


def test_supervised_by_signal_and_by_parts() -> None:
    model, x = problem("robust-nmf", 5, 20)
    encoder = pu.ProximalEncoder(model, 3)
    codes = encoder(x)
    s, o = codes[:, :3], codes[:, 3:]
    y = x.flip(0)
    signal = (s @ model.dictionary + o - y).square().sum(dim=1).mean()
    close(regimes.Supervised()(encoder, Batch(x, y)), signal)
    low_rank = (s @ model.dictionary - y).square().sum(dim=1).mean()
    sparse = (o - x).square().sum(dim=1).mean()
    parts = {"low_rank": y, "sparse": x}
    close(regimes.Supervised()(encoder, Batch(x, parts)), low_rank + sparse)
    close(regimes.Supervised(low_rank=0.5)(encoder, Batch(x, {"low_rank": y})), low_rank / 2)
    penalty = (model.lam_star / 2 * s.square().sum(dim=1) + 0.3 * o.sum(dim=1)).mean()
    loss = regimes.Supervised(sparse=3.0, penalty=0.1)(encoder, Batch(x, parts))
    close(loss, low_rank + 3 * sparse + 0.1 * penalty)


def test_discriminative_over_a_bank() -> None:
    bank = pu.EncoderBank([pu.ProximalEncoder(model, 3) for model in bank_models()])
    x = torch.rand(30, FEATURES, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    labels = torch.arange(30) % 3
    errors = bank.errors(x).detach()
    regime = regimes.Discriminative(margin=0.02, absolute=True)
    expected = 0.0
    for i in range(30):
        for j in range(3):
            hinge = (0.02 - errors[i, j]).clamp_min(0)
            expected = expected + (errors[i, j] if j == labels[i] else hinge)
    close(regime(bank, Batch(x, labels)), expected / 30)
    # relative to the wrong classes' median at the start, and constant from then on
    relative = regimes.Discriminative(margin=2.0)
    wrong = errors[labels[:, None] != torch.arange(3)]
    absolute = regimes.Discriminative(margin=2 * float(wrong.median()), absolute=True)
    close(relative(bank, Batch(x, labels)), absolute(bank, Batch(x, labels)))
    state = relative.state
    shaken(bank[0])
    close(relative(bank, Batch(x, labels)), absolute(bank, Batch(x, labels)))
    resumed = regimes.Discriminative(margin=2.0)
    resumed.state = state
    close(resumed(bank, Batch(x, labels)), absolute(bank, Batch(x, labels)))


def test_discriminative_over_groups() -> None:
    model, x = problem("hilasso", 7, 30)
    encoder = pu.ProximalEncoder(model, 3)
    codes = encoder(x)
    energy = torch.stack([codes[:, group].square().sum(dim=1) for group in PAIRS], dim=1)
    active = torch.rand(30, 5, generator=torch.Generator().manual_seed(7)) < 0.4
    regime = regimes.Discriminative(margin=0.1, absolute=True)
    hinge = (0.1 - energy).clamp_min(0)
    close(regime(encoder, Batch(x, active)), torch.where(active, hinge, energy).sum(dim=1).mean())
    labels = torch.arange(30) % 5
    one_hot = labels[:, None] == torch.arange(5)
    close(regime(encoder, Batch(x, labels)), regime(encoder, Batch(x, one_hot)))


def test_regimes_add_up() -> None:
    model, x = problem("robust-pca", 8, 20)
    encoder = pu.ProximalEncoder(model, 3)
    batch = Batch(x, {"low_rank": x, "sparse": 0 * x})
    first, second = regimes.Unsupervised(), regimes.Supervised()

    def own(encoder, batch):
        return encoder(batch.x).abs().mean()

    total = 0.5 * first + second * 2 + 3 * regimes.Custom(own)
    expected = 0.5 * first(encoder, batch) + 2 * second(encoder, batch) + 3 * own(encoder, batch)
    close(total(encoder, batch), expected)
    close((first + own)(encoder, batch), first(encoder, batch) + own(encoder, batch))
    close((own + first)(encoder, batch), first(encoder, batch) + own(encoder, batch))
    assert total.name == "0.5 unsupervised + 2 supervised + 3 custom"


def test_what_regimes_refuse() -> None:
    model, x = problem("lasso", 9, 6)
    encoder = pu.ProximalEncoder(model, 2)
    bank = pu.EncoderBank([encoder, encoder], shared=None)
    with pytest.raises(TypeError, match="the unsupervised regime is for one encoder"):
        regimes.Unsupervised()(bank, Batch(x))
    with pytest.raises(ValueError, match="the supervised regime needs targets"):
        regimes.Supervised()(encoder, Batch(x))
    with pytest.raises(ValueError, match=r"targets must have shape \(6, 8\), got \(6, 7\)"):
        regimes.Supervised()(encoder, Batch(x, x[:, 1:]))
    with pytest.raises(ValueError, match="targets name 'low_rank', but Lasso has 'sparse'"):
        regimes.Supervised()(encoder, Batch(x, {"low_rank": x}))
    with pytest.raises(ValueError, match="the discriminative regime needs targets"):
        regimes.Discriminative()(bank, Batch(x))
    with pytest.raises(ValueError, match="labels must lie between 0 and 1, got 0 to 5"):
        regimes.Discriminative()(bank, Batch(x, torch.arange(6)))
    with pytest.raises(ValueError, match="labels must be integers"):
        regimes.Discriminative()(bank, Batch(x, torch.rand(6)))
    with pytest.raises(ValueError, match="margin must be non-negative and finite"):
        regimes.Discriminative(margin=-1)
    with pytest.raises(TypeError, match="regime must be a Regime or a callable"):
        pu.fit(encoder, x, regime="unsupervised")
    with pytest.raises(TypeError, match="regime must be a Regime or a callable"):
        pu.fit(encoder, x, regime=regimes.Unsupervised)


def test_constraints_of_dictionaries() -> None:
    """Each projection gives an allowed dictionary, and leaves allowed ones alone."""
    for name in MODELS:
        model, _ = problem(name, 10, 1)
        for key, constraint in model.constraints.items():
            tensor = 3 * torch.randn_like(model.dictionaries[key])
            allowed = constraint.project(tensor)
            close(constraint.project(allowed), allowed)
            if constraint.nonnegative:
                assert (allowed >= 0).all()
            if constraint.ridge == 0:
                assert (allowed.norm(dim=1) <= 1 + 1e-12).all()
    lam_star = models.RobustPCA(torch.eye(2), 0.5, 0.1).constraints["dictionary"]
    assert lam_star.value(torch.full((2, 2), 2.0)) == 4.0
