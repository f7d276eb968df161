"""Training: it learns, keeps what must hold, takes any source, and survives being killed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import pursuit as pu
from families import FEATURES, problem
from processes import kill_some
from pursuit import models, regimes, training_loop
from pursuit.encoders import steps
from pursuit.encoders.trainable import Kind
from pursuit.guard import guard, hard_rows
from test_encoders import KINDS, bank_models, build, thresholds_of


def signals(name: str, rows: int = 2000, seed: int = 0, dtype=torch.float64):
    model, x = problem(name, seed, rows, dtype)
    return model, x


def objective(model, x, encoder) -> float:
    with torch.no_grad():
        return float(model.objective(x, encoder(x)).mean())


@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-nmf", "low-rank-sparse"])
@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_objective_of_unseen_signals(kind: str, name: str) -> None:
    model, x = signals(name)
    train, test = x[:1500], x[1500:]
    encoder = build(kind, model, layers=3)
    before = objective(model, test, encoder)
    best = float(pu.solve(model, test).objective.mean())
    history = pu.fit(encoder, train, steps=150)
    after = objective(model, test, encoder)
    assert after - best < 0.97 * (before - best)
    assert encoder.regime == "unsupervised"
    assert len(history.validation) == len(history.loss) == len(history.looked)
    assert history.looked[-1] == history.steps == 150
    assert all((threshold >= 0).all() for threshold in thresholds_of(encoder))
    assert torch.equal(encoder.model.dictionary, model.dictionary)
    assert all(p.grad is None for p in encoder.parameters())
    assert not encoder.model.dictionary.requires_grad


@pytest.fixture(scope="module")
def paper() -> dict[str, tuple[float, float]]:
    """Gap and squared code error on test signals, of the paper's encoder in several states."""
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.nn.functional.normalize(torch.randn(32, 16, generator=generator))
    model = models.Lasso(dictionary, 0.2)
    sparse = torch.randn(6000, 32, generator=generator)
    sparse = sparse * (torch.rand(6000, 32, generator=generator) < 0.1)
    x = sparse @ dictionary + 0.05 * torch.randn(6000, 16, generator=generator)
    train, test = x[:5000], x[5000:]
    exact = pu.solve(model, test)
    results = {}
    for name, regime in (
        ("untrained", None),
        ("unsupervised", regimes.Unsupervised()),
        ("approximation", regimes.Approximation()),
    ):
        encoder = pu.ProximalEncoder(model, 4, "free", momentum=False)
        if regime is not None:
            pu.fit(encoder, train, regime=regime, steps=1500)
        with torch.no_grad():
            codes = encoder(test)
            excess = model.objective(test, codes) - exact.objective
            error = (codes - exact.codes).square().sum(dim=1)
        results[name] = float(excess.mean()), float(error.mean())
    return results


def test_both_regimes_beat_the_untrained_encoder(paper) -> None:
    for name in ("unsupervised", "approximation"):
        assert paper[name][0] < 0.7 * paper["untrained"][0]
        assert paper[name][1] < 0.7 * paper["untrained"][1]


def test_each_regime_wins_in_what_it_is_trained_for(paper) -> None:
    assert paper["unsupervised"][0] < 0.97 * paper["approximation"][0]
    assert paper["approximation"][1] < 0.97 * paper["unsupervised"][1]


def test_supervision_beats_the_exact_model_in_separation() -> None:
    from pursuit.datasets import spectrogram

    train, test = (spectrogram.synthetic(1500, bins=64, seed=seed) for seed in (0, 1))
    dictionary = spectrogram.learn_dictionary(train.mixture, 12, 5.0, 0.141, sweeps=8)
    model = models.RobustNMF(dictionary, 5.0, 0.141)

    def error(codes: torch.Tensor) -> float:
        parts = model_of.split(codes)
        wrong = (parts.low_rank - test.low_rank).square() + (parts.sparse - test.sparse).square()
        return float(wrong.sum(dim=1).mean())

    model_of = model
    exact = error(pu.solve(model, test.mixture).codes)
    encoder = pu.ProximalEncoder(model, 5)
    targets = {"low_rank": train.low_rank, "sparse": train.sparse}
    pu.fit(
        encoder,
        train.mixture,
        targets,
        regime=regimes.Supervised(),
        dictionary="gradient",
        steps=400,
    )
    model_of = encoder.model
    assert encoder.regime == "supervised"
    with torch.no_grad():
        assert error(encoder(test.mixture)) < 0.8 * exact
    assert (encoder.dictionary >= 0).all()
    assert not torch.equal(encoder.dictionary, dictionary)
    with pytest.raises(ValueError, match="trained for 'supervised'"):
        encoder.best(test.mixture)


def test_the_guard_keeps_deep_encoders_from_blowing_up(monkeypatch) -> None:
    # without the guard the worst code is six times worse than zero
    monkeypatch.setattr(training_loop, "GUARD", 0.02)
    monkeypatch.setattr("pursuit.guard.LARGEST", 10.0)
    generator = torch.Generator().manual_seed(0)
    # atoms with a common direction: few at a time allow far longer steps than all at once
    atoms = torch.randn(48, 12, generator=generator)
    atoms[:, 0] += 2
    model = models.Lasso(torch.nn.functional.normalize(atoms), 0.2)
    sparse = torch.randn(7000, 48, generator=generator)
    sparse = sparse * (torch.rand(7000, 48, generator=generator) < 0.06)
    x = sparse @ model.dictionary + 0.02 * torch.randn(7000, 12, generator=generator)
    train, test = x[:3000], 5 * x[3000:]
    encoder = pu.ProximalEncoder(model, 12)
    pu.fit(encoder, train, steps=200)
    with torch.no_grad():
        reached = model.objective(test, encoder(test))
    zero = model.objective(test, test.new_zeros(len(test), 48))
    assert float((reached / zero.clamp_min(0.1)).max()) < 1.5


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_hard_rows_are_larger_and_keep_the_sign_of_the_data(sign: float) -> None:
    x = sign * torch.rand(100, 6, generator=torch.Generator().manual_seed(0))
    rows = hard_rows(x, np.random.default_rng(0))
    assert rows.shape == (13, 6)
    assert rows.dtype == x.dtype
    assert (sign * rows >= 0).all()
    assert x.abs().mean() < rows.abs().mean() < 2 * x.abs().mean()
    assert torch.equal(rows, hard_rows(x, np.random.default_rng(0)))


def test_the_guard_is_zero_for_an_encoder_that_descends() -> None:
    model, x = signals("lasso")
    encoder = pu.ProximalEncoder(model, 3, momentum=False)  # ista never ascends
    value = guard(encoder, x, np.random.default_rng(0))
    torch.autograd.backward(value)
    assert value.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in encoder.step.parameters())


# ---- the dictionary -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gradient", "statistics"])
@pytest.mark.parametrize("name", ["lasso", "group", "nmf-ridge", "robust-nmf", "low-rank-sparse"])
def test_training_the_dictionary_helps_and_keeps_its_constraints(name: str, how: str) -> None:
    model, x = signals(name)
    fixed, learned = pu.ProximalEncoder(model, 4), pu.ProximalEncoder(model, 4)
    pu.fit(fixed, x, steps=200)
    pu.fit(learned, x, steps=200, dictionary=how)

    # the whole learning problem: the ridge on the dictionary counts once for all samples
    def total(encoder) -> float:
        own = encoder.model
        penalty = sum(
            c.value(own.dictionaries[key]) for key, c in own.constraints.items() if c.ridge > 0
        )
        return objective(own, x, encoder) + float(penalty) / len(x)

    assert total(learned) < total(fixed)
    for key, constraint in learned.model.constraints.items():
        tensor = learned.model.dictionaries[key].detach()
        torch.testing.assert_close(constraint.project(tensor), tensor)
        assert not torch.equal(tensor, model.dictionaries[key])


@pytest.mark.parametrize("how", ["fixed", "gradient", "statistics"])
@pytest.mark.parametrize("name", ["nmf-ridge", "robust-pca", "low-rank-sparse"])
def test_validation_counts_the_penalty_of_a_dictionary_that_is_learned(name: str, how: str) -> None:
    """The kept parameters have the lowest mean F + phi(D)/n on the held-out rows."""
    model, x = signals(name, 600)
    encoder = pu.ProximalEncoder(model, 3)
    history = pu.fit(encoder, x, steps=100, dictionary=how, validation=x[:100])
    learned = encoder.model
    phi = sum(float(c.value(learned.dictionaries[k])) for k, c in learned.constraints.items())
    assert phi > 0
    expected = objective(learned, x[:100], encoder) + (phi / 600 if how != "fixed" else 0.0)
    assert min(history.validation) == pytest.approx(expected, rel=1e-9)


def test_statistics_of_a_source_of_unknown_size() -> None:
    model, x = signals("nmf-ridge", 600)
    encoder = pu.ProximalEncoder(model, 3)
    start = encoder.dictionary.detach().clone()
    pu.fit(encoder, list(x.split(100)), steps=30, dictionary="statistics", validation=x[:100])
    assert not torch.equal(encoder.dictionary, start)


# ---- what is trained ------------------------------------------------------------------------


class Scaled(torch.nn.Module):
    """Signals of another width, transformed before an encoder; nothing but the needed members."""

    def __init__(self, encoder, features: int) -> None:
        super().__init__()
        width = encoder.features
        front = torch.zeros(features, width, dtype=torch.float64)
        self.front = torch.nn.Parameter(front.fill_diagonal_(1.0))
        self.encoder = encoder

    model = property(lambda self: self.encoder.model)
    features = property(lambda self: len(self.front))

    def prepare(self, x):
        return x @ self.front

    def forward(self, x):
        return self.encoder(self.prepare(x))

    def kinds(self):
        inner = {f"encoder.{name}": kind for name, kind in self.encoder.kinds().items()}
        return inner | {"front": Kind("matrix")}

    def project_(self) -> None:
        self.encoder.project_()

    def refresh_constants(self) -> None:
        self.encoder.refresh_constants()


@pytest.mark.parametrize("how", ["fixed", "gradient", "statistics"])
@pytest.mark.parametrize(
    "regime",
    [
        regimes.Unsupervised(),
        regimes.Approximation(),
        regimes.Supervised(),
        lambda encoder, batch: encoder.model.objective(
            encoder.prepare(batch.x), encoder(batch.x)
        ).mean(),
    ],
    ids=["unsupervised", "approximation", "supervised", "custom"],
)
def test_a_module_around_an_encoder_is_trained(regime, how: str) -> None:
    model, x = signals("lasso", 800)
    x = torch.cat([x, torch.randn(800, 2, dtype=x.dtype)], dim=1)
    targets = x[:, :-2] if isinstance(regime, regimes.Supervised) else None
    wrapper = Scaled(pu.ProximalEncoder(model, 3), FEATURES + 2)
    batch = regimes.Batch(x, targets)
    before = {name: p.detach().clone() for name, p in wrapper.named_parameters()}
    loss = float(regimes.as_regime(regime)(wrapper, batch).detach())
    pu.fit(wrapper, x, targets, regime=regime, steps=60, dictionary=how)
    if how == "fixed" or not isinstance(regime, regimes.Approximation):
        assert float(regimes.as_regime(regime)(wrapper, batch).detach()) < loss
    learned = wrapper.model
    assert torch.equal(learned.dictionary, before["encoder.dictionary"]) == (how == "fixed")
    assert not torch.equal(wrapper.front, before["front"])
    assert not torch.equal(wrapper.encoder.step.weight, before["encoder.step.weight"])
    assert wrapper.encoder.regime == regimes.as_regime(regime).name


def test_modules_around_encoders_make_a_bank() -> None:
    x = torch.rand(300, FEATURES + 2, dtype=torch.float64)
    members = [Scaled(pu.ProximalEncoder(m, 2), FEATURES + 2) for m in bank_models()]
    bank = pu.EncoderBank(members)
    assert all(m.encoder.low_rank is members[0].encoder.low_rank for m in members)
    fronts = [m.front.detach().clone() for m in members]
    labels = torch.arange(300) % 3
    pu.fit(bank, x, labels, regime=regimes.Discriminative(), dictionary="gradient", steps=20)
    assert not any(torch.equal(m.front, f) for m, f in zip(members, fronts, strict=True))
    assert all(m.encoder.low_rank is members[0].encoder.low_rank for m in members)
    with pytest.raises(TypeError, match=r"EncoderBank needs an encoder.* Linear has no model"):
        pu.EncoderBank([torch.nn.Linear(2, 2)])


def test_what_a_module_lacks_is_named() -> None:
    model, x = signals("lasso", 100)
    wrapper = Scaled(pu.ProximalEncoder(model, 2), FEATURES)

    class Undeclared(Scaled):
        def kinds(self):
            return {k: v for k, v in super().kinds().items() if k != "front"}

    with pytest.raises(TypeError, match=r"fit without steps needs .* no layers, eager_multip"):
        pu.fit(wrapper, x)
    with pytest.raises(TypeError, match=r"fit with layerwise needs .* Scaled has no iterates"):
        pu.fit(wrapper, x, steps=5, layerwise=1.0)
    with pytest.raises(TypeError, match=r"kinds\(\) must name all parameters, but front is"):
        pu.fit(Undeclared(pu.ProximalEncoder(model, 2), FEATURES), x, steps=5)


def test_a_step_with_parameters_of_its_own_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new kind of step declares its parameters; training knows none by name."""

    class Biased(steps.Coupled):
        def __init__(self, setting, start) -> None:
            super().__init__(setting, start)
            self.bias = torch.nn.Parameter(torch.ones(setting.depth, dtype=start.atoms.dtype))

        def kinds(self, atom_norm):
            return super().kinds(atom_norm) | {"bias": Kind("scalar", 0.1)}

        def _thresholds(self, now):
            first, *others = super()._thresholds(now)
            return (self.bias[:, None] * first, *others)

    monkeypatch.setitem(steps.STEPS, "biased", Biased)
    model, x = signals("lasso", 600)
    encoder = pu.ProximalEncoder(model, 3, "biased")
    pu.fit(encoder, x, steps=40)
    moved = (encoder.step.bias.detach() - 1).abs()
    assert 0 < float(moved.max()) < 40 * 0.1 * 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_declares_what_it_is(kind: str) -> None:
    for name, tied in product(["lasso", "hilasso", "robust-nmf", "low-rank-sparse"], [True, False]):
        model, _ = signals(name, 1)
        encoder = build(kind, model, layers=2, tied=tied)
        kinds = encoder.kinds()
        assert set(kinds) == {name for name, _ in encoder.named_parameters()}
        assert {n for n, k in kinds.items() if k.role == "dictionary"} == set(model.dictionaries)


@pytest.mark.parametrize(
    ("regime", "aims"),
    [
        (regimes.Unsupervised(), True),
        (regimes.Unsupervised() + 0.1 * regimes.Approximation(), True),
        (regimes.Unsupervised() + 0.1 * regimes.Supervised(), False),
        (lambda encoder, batch: encoder(batch.x).square().mean(), False),
    ],
)
def test_best_is_for_encoders_that_minimise_the_objective(regime, aims: bool) -> None:
    model, x = signals("lasso", 100)
    encoder = pu.ProximalEncoder(model, 2)
    assert encoder.minimises_objective is None
    encoder.best(x)
    pu.fit(encoder, x, x, regime=regime, steps=5)
    assert encoder.minimises_objective is aims
    if aims:
        encoder.best(x)
    else:
        with pytest.raises(ValueError, match="not to minimise the objective"):
            encoder.best(x)


# ---- where batches come from ----------------------------------------------------------------


def parameters(encoder) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in encoder.parameters()])


def test_arrays_tensors_and_memory_maps_are_one(tmp_path: Path) -> None:
    model, x = signals("lasso", 800, dtype=torch.float32)
    np.save(tmp_path / "x.npy", x.numpy())
    results = []
    for data in (x, x.numpy(), np.load(tmp_path / "x.npy", mmap_mode="r"), x.double().numpy()):
        encoder = pu.ProximalEncoder(model, 3)
        pu.fit(encoder, data, steps=30)
        results.append(parameters(encoder))
    assert all(torch.equal(result, results[0]) for result in results)


def test_iterables_and_loaders() -> None:
    model, x = signals("lasso", 800)
    batches = list(x.split(100))
    loader = DataLoader(TensorDataset(x), batch_size=100, shuffle=True)
    before = objective(model, x, pu.ProximalEncoder(model, 3))
    for data in (batches, (batch.numpy() for batch in 5 * batches), loader):
        encoder = pu.ProximalEncoder(model, 3)
        history = pu.fit(encoder, data, steps=40, validation=x[:100])
        assert history.steps == 40
        assert objective(model, x, encoder) < before
    # a stream that ends early ends the run, and what was learned until then is kept
    encoder = pu.ProximalEncoder(model, 3)
    assert pu.fit(encoder, iter(batches), steps=40, validation=x[:100]).steps == 8
    assert objective(model, x, encoder) < before
    # and no batch of it is lost
    seen = []
    pu.fit(
        pu.ProximalEncoder(model, 3),
        iter(batches),
        steps=40,
        regime=lambda encoder, batch: seen.append(batch.x) or encoder(batch.x).square().mean(),
    )
    assert all(torch.equal(a, b) for a, b in zip(seen[1:], batches, strict=True))


def test_targets_come_with_the_batches() -> None:
    model, x = signals("lasso", 400)
    pairs = [(batch, 0.5 * batch) for batch in x.split(100)]
    encoder = pu.ProximalEncoder(model, 3)
    pu.fit(encoder, pairs, regime=regimes.Supervised(), steps=60)
    by_array = pu.ProximalEncoder(model, 3)
    pu.fit(by_array, x, 0.5 * x, regime=regimes.Supervised(), steps=60, validation=False)
    for trained in (encoder, by_array):
        with torch.no_grad():
            wrong = (model.decode(trained(x)) - 0.5 * x).square().mean()
            assert wrong < (model.decode(pu.ProximalEncoder(model, 3)(x)) - 0.5 * x).square().mean()


def test_held_out_rows_are_never_trained_on() -> None:
    model, x = signals("lasso", 1000)
    x[:, 0] = torch.arange(1000).double() / 1000
    trained, looked = set(), set()

    def regime(encoder, batch):
        rows = (1000 * batch.x[:, 0]).round().long().tolist()
        (trained if torch.is_grad_enabled() else looked).update(rows)
        return model.objective(batch.x, encoder(batch.x)).mean()

    pu.fit(pu.ProximalEncoder(model, 2), x, regime=regime, steps=100)
    held = looked - trained
    assert 90 <= len(held) <= 100
    assert len(trained) > 890
    trained.clear()
    pu.fit(pu.ProximalEncoder(model, 2), x, regime=regime, steps=100, validation=False)
    assert len(trained) == 1000


def test_named_rows_are_held_out_and_no_others() -> None:
    model, x = signals("lasso", 300)
    x[:, 0] = torch.arange(300).double() / 300
    trained, validated = set(), []

    def regime(encoder, batch):
        rows = (300 * batch.x[:, 0]).round().long().tolist()
        trained.update(rows) if torch.is_grad_enabled() else validated.append(rows)
        return model.objective(batch.x, encoder(batch.x)).mean()

    held = [250, 7, 31, 7, 299]
    history = pu.fit(pu.ProximalEncoder(model, 2), x, regime=regime, steps=60, held=held)
    assert trained == set(range(300)) - set(held)
    # the first call without gradients is the loss of the untrained encoder on a batch
    assert all(rows == sorted(set(held)) for rows in validated[1:])
    assert len(validated) == 2 + len(history.validation)


def test_the_held_out_rows_belong_to_a_run(tmp_path: Path) -> None:
    model, x = signals("lasso", 300)
    path = tmp_path / "run.checkpoint"
    pu.fit(pu.ProximalEncoder(model, 2), x, steps=20, held=[1, 2], checkpoint=path)
    pu.fit(pu.ProximalEncoder(model, 2), x, steps=20, held=[2, 1], checkpoint=path)
    for other in ({"held": [1, 3]}, {"validation": False}):
        with pytest.raises(ValueError, match="another run: held differ"):
            pu.fit(pu.ProximalEncoder(model, 2), x, steps=20, checkpoint=path, **other)


def test_the_best_parameters_are_kept() -> None:
    model, x = signals("lasso", 1000)
    encoder = pu.ProximalEncoder(model, 3)
    states = []

    def remember(progress) -> None:
        states.append((progress.validation, parameters(encoder)))

    history = pu.fit(encoder, x, steps=60, rate=30.0, callback=remember)
    best, state = min(states, key=lambda pair: pair[0])
    assert best == min(history.validation)
    assert history.best_step == history.looked[history.validation.index(best)]
    assert torch.equal(parameters(encoder), state)


def test_a_run_without_progress_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = signals("lasso", 600)
    monkeypatch.setattr(training_loop, "PATIENCE", 3)
    looks = []

    def ever_worse(encoder, batch):
        if not torch.is_grad_enabled():
            looks.append(1)
        return encoder(batch.x).square().mean() + len(looks)

    encoder = pu.ProximalEncoder(model, 2)
    start = parameters(encoder)
    assert pu.fit(encoder, x, regime=ever_worse, steps=500).steps == 3 * (
        500 // training_loop.LOOKS
    )
    assert torch.equal(parameters(encoder), start)
    history = pu.fit(encoder, x, steps=90, callback=lambda progress: progress.done >= 30)
    assert history.steps == 30


# ---- when it goes wrong ---------------------------------------------------------------------


def test_an_exploding_loss_is_rolled_back(caplog: pytest.LogCaptureFixture) -> None:
    model, x = signals("lasso", 1000)
    encoder = pu.ProximalEncoder(model, 3)
    before = objective(model, x, encoder)
    calls = []

    def treacherous(encoder, batch):
        loss = model.objective(batch.x, encoder(batch.x)).mean()
        calls.append(1)
        if torch.is_grad_enabled() and len(calls) in (40, 80):
            return loss * (float("nan") if len(calls) == 40 else 1e6)
        return loss

    with caplog.at_level(logging.INFO):
        history = pu.fit(encoder, x, regime=treacherous, steps=150)
    assert len(history.rollbacks) == 2
    assert caplog.text.count("training continues at half the rate") == 2
    assert not [entry for entry in caplog.records if entry.levelno > logging.INFO]
    assert objective(model, x, encoder) < before
    assert parameters(encoder).isfinite().all()


def test_a_rollback_takes_the_solved_dictionary_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = signals("lasso", 1000)
    encoder = pu.ProximalEncoder(model, 3)
    seen, calls, starts = [], [], []
    update = pu.OnlineDictionary.update

    def watched(self, targets, codes):
        starts.append(self.atoms.clone())
        return update(self, targets, codes)

    monkeypatch.setattr(pu.OnlineDictionary, "update", watched)

    def treacherous(encoder, batch):
        loss = model.objective(batch.x, encoder(batch.x)).mean()
        if torch.is_grad_enabled():
            seen.append(encoder.dictionary.detach().clone())
            calls.append(1)
        # step 25 explodes, five steps after the last good state
        return loss * 1e6 if torch.is_grad_enabled() and len(calls) == 26 else loss

    history = pu.fit(
        encoder, x, regime=treacherous, dictionary="statistics", steps=40, validation=False
    )
    assert history.rollbacks == [25]
    assert torch.equal(seen[26], seen[20])
    assert not torch.equal(seen[25], seen[20])
    # the solver of the dictionary starts from there as well, not from where it had exploded
    assert torch.equal(starts[25], seen[20].double())


def test_an_encoder_with_a_dead_atom_can_be_trained() -> None:
    model, x = signals("robust-nmf", 600)
    encoder = pu.ProximalEncoder(model, 3)
    with torch.no_grad():
        encoder.dictionary[1] = 0
    before = objective(encoder.model, x, encoder)
    pu.fit(encoder, x, steps=60)
    assert objective(encoder.model, x, encoder) < before


def test_a_hopeless_run_ends_with_the_state_it_had(caplog: pytest.LogCaptureFixture) -> None:
    model, x = signals("lasso", 1000)
    encoder = pu.ProximalEncoder(model, 3)
    start = parameters(encoder)

    def hopeless(encoder, batch):
        loss = model.objective(batch.x, encoder(batch.x)).mean()
        return loss * float("nan") if torch.is_grad_enabled() else loss

    with caplog.at_level(logging.WARNING):
        history = pu.fit(encoder, x, regime=hopeless, steps=150)
    assert len(history.rollbacks) >= training_loop.MOST_ROLLBACKS
    assert torch.equal(parameters(encoder), start)
    assert "keeps exploding" in caplog.text


def test_a_large_rate_does_not_ruin_an_encoder() -> None:
    model, x = signals("lasso", 1000)
    encoder = pu.ProximalEncoder(model, 4)
    before = objective(model, x, encoder)
    pu.fit(encoder, x, steps=100, rate=300.0)
    assert objective(model, x, encoder) <= before


def test_what_fit_refuses(tmp_path: Path) -> None:
    model, x = signals("lasso", 100)
    encoder = pu.ProximalEncoder(model, 2)
    start = parameters(encoder)
    for changes, error, message in (
        ({"x": x[:, 1:]}, ValueError, "x has 7 features, but the encoder's dictionary has 8"),
        ({"x": x[0]}, ValueError, r"x must have two dimensions \(rows, features\)"),
        ({"x": x[:0]}, ValueError, "x is empty"),
        ({"x": []}, ValueError, "x is an empty iterable"),
        ({"x": 3}, TypeError, "x must be an array, a tensor, a memory map, or an iterable"),
        ({"x": x / 0}, ValueError, "x contains NaN or infinite values"),
        ({"x": [x[:, 1:]]}, ValueError, r"a batch must have shape \(rows, 8\), got \(100, 7\)"),
        ({"x": [x], "targets": x}, ValueError, "an iterable must yield"),
        ({"targets": x[1:]}, ValueError, "targets has 99 rows, but x has 100"),
        ({"dictionary": "online"}, ValueError, "dictionary must be one of 'fixed', 'gradient'"),
        ({"steps": 0}, ValueError, "steps must be at least 1, got 0"),
        ({"rate": 0.0}, ValueError, "rate must be positive"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"x": [(x, x, x)]}, ValueError, r"a batch must be x or \(x, targets\), got a tuple of 3"),
        ({"layerwise": -1.0}, ValueError, "layerwise must not be negative"),
        ({"encoder": model}, TypeError, "Lasso has no model, prepare, kinds, project_"),
        ({"held": [3, 100]}, ValueError, "rows from 0 to 99, got numbers from 3 to 100"),
        ({"held": []}, ValueError, "held must be a list of row numbers, got float64"),
        ({"held": torch.zeros(0).long()}, ValueError, "held is empty"),
        ({"held": range(100)}, ValueError, "held names all rows of x"),
        ({"held": [0], "validation": False}, ValueError, "either as held or as validation"),
        ({"x": [x], "held": [0]}, ValueError, "held names rows of an array x"),
        ({"validation": x[:, 1:]}, ValueError, r"a batch must have shape \(rows, 8\)"),
        ({"x": iter([x]), "checkpoint": tmp_path / "c"}, ValueError, "one-time iterator"),
        ({"regime": lambda e, b: e(b.x).sum() / 0}, ValueError, "loss of the untrained encoder"),
    ):
        arguments = {"encoder": encoder, "x": x, "steps": 5, **changes}
        with pytest.raises(error, match=message):
            pu.fit(arguments.pop("encoder"), arguments.pop("x"), **arguments)
    assert torch.equal(parameters(encoder), start)
    assert encoder.regime is None
    assert not encoder.model.dictionary.requires_grad


# ---- options --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_result() -> None:
    model, x = signals("lasso", 1000)
    results = []
    for seed in (1, 1, 2):
        encoder = pu.ProximalEncoder(model, 3)
        torch.manual_seed(len(results))  # the global generator has no say
        pu.fit(encoder, x, steps=50, seed=seed)
        results.append(parameters(encoder))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_layerwise_losses_make_prefixes_usable() -> None:
    model, x = signals("lasso", 2000)
    plain, prefixes = pu.ProximalEncoder(model, 6), pu.ProximalEncoder(model, 6)
    pu.fit(plain, x, steps=300)
    pu.fit(prefixes, x, steps=300, layerwise=1.0)
    with torch.no_grad():
        values = [
            [float(model.objective(x, codes).mean()) for codes in encoder.iterates(x)]
            for encoder in (plain, prefixes)
        ]
    assert sum(values[1][:-1]) < sum(values[0][:-1])
    with pytest.raises(TypeError, match="no losses of single layers"):
        pu.fit(plain, x, regime=lambda e, b: e(b.x).sum(), layerwise=1.0, steps=3)


def test_a_bank_learns_to_discriminate() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(1500, FEATURES, generator=generator, dtype=torch.float64)
    labels = (x[:, 0] > x[:, 1]).long() + (x[:, 2] > x[:, 3]).long()
    bank = pu.EncoderBank([pu.ProximalEncoder(model, 3) for model in bank_models()])
    shared = bank[0].low_rank

    def accuracy() -> float:
        with torch.no_grad():
            return float((bank.errors(x).argmin(dim=1) == labels).double().mean())

    before = accuracy()
    pu.fit(bank, x, labels, regime=regimes.Discriminative(), dictionary="gradient", steps=300)
    assert accuracy() > before + 0.1
    assert all(encoder.low_rank is shared for encoder in bank)
    assert all(encoder.regime == "discriminative" for encoder in bank)


# ---- killed and resumed ---------------------------------------------------------------------

RUN = """
import sys, time, torch
sys.path.insert(0, {tests!r})
import pursuit as pu
from pursuit import regimes
from families import problem
torch.set_num_threads(1)
model, x = problem("lasso", 0, 1000)
encoder = pu.ProximalEncoder(model, 3)
print("ready", flush=True)
pu.fit(
    encoder, x, regime=regimes.Unsupervised() + 0.1 * regimes.Approximation(),
    dictionary={dictionary!r}, steps=120, checkpoint={checkpoint!r},
    callback=lambda progress: time.sleep({pause}),
)
pu.save(encoder, {result!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("dictionary", ["gradient", "statistics"])
def test_a_killed_run_goes_on_bit_by_bit(dictionary: str, tmp_path: Path) -> None:
    def script(name: str, pause: float) -> list[str]:
        code = RUN.format(
            tests=str(Path(__file__).parent),
            dictionary=dictionary,
            checkpoint=str(tmp_path / f"{name}.checkpoint"),
            result=str(tmp_path / f"{name}.safetensors"),
            pause=pause,
        )
        return [sys.executable, "-c", code]

    subprocess.run(script("unbroken", 0.0), check=True, capture_output=True)
    kill_some(script("broken", 0.1), seed=len(dictionary), shortest=0.1)
    subprocess.run(script("broken", 0.0), check=True, capture_output=True)
    unbroken, broken = (
        pu.load(tmp_path / f"{name}.safetensors") for name in ("unbroken", "broken")
    )
    for (key, a), b in zip(
        unbroken.state_dict().items(), broken.state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), key
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_a_resumed_run_approximates_the_same_codes(tmp_path: Path) -> None:
    """In single precision, where codes of a row depend a little on the rows beside it."""
    model, x = signals("lasso", 900, dtype=torch.float32)
    encoders = [pu.ProximalEncoder(model, 3) for _ in range(2)]
    for encoder, stop in zip(encoders, (None, 40), strict=True):
        path = tmp_path / f"{stop}.checkpoint"
        options = {"regime": regimes.Approximation(), "steps": 80, "checkpoint": path}
        pu.fit(encoder, x, callback=lambda p, s=stop: s is not None and p.done >= s, **options)
        if stop is not None:
            pu.fit(encoder, x, **(options | {"regime": regimes.Approximation()}))
    for (key, a), b in zip(
        encoders[0].state_dict().items(), encoders[1].state_dict().values(), strict=True
    ):
        assert torch.equal(a, b), key


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    model, x = signals("lasso", 600)
    path = tmp_path / "run.checkpoint"
    first, second = pu.ProximalEncoder(model, 3), pu.ProximalEncoder(model, 3)
    history = pu.fit(first, x, steps=40, checkpoint=path)
    again = pu.fit(second, x, steps=40, checkpoint=path)
    assert torch.equal(parameters(first), parameters(second))
    assert again.validation == history.validation
    with pytest.raises(ValueError, match="checkpoint of a run: give it to fit"):
        pu.load(path)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    model, x = signals("lasso", 600)
    path = tmp_path / "run.checkpoint"
    whole, parted = pu.ProximalEncoder(model, 3), pu.ProximalEncoder(model, 3)
    pu.fit(whole, x, steps=60)
    stopped = pu.fit(parted, x, steps=60, checkpoint=path, callback=lambda p: p.done >= 30)
    assert stopped.steps == 30
    assert pu.fit(parted, x, steps=60, checkpoint=path).steps == 60
    assert torch.equal(parameters(parted), parameters(whole))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    model, x = signals("lasso", 600)
    path = tmp_path / "run.checkpoint"
    pu.fit(pu.ProximalEncoder(model, 3), x, steps=40, checkpoint=path)
    with pytest.raises(ValueError, match="another run: steps, seed differ"):
        pu.fit(pu.ProximalEncoder(model, 3), x, steps=50, seed=1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: batch_size differ"):
        pu.fit(pu.ProximalEncoder(model, 3), x, steps=40, batch_size=100, checkpoint=path)
    with pytest.raises(ValueError, match="another encoder"):
        pu.fit(pu.ProximalEncoder(model, 4), x, steps=40, checkpoint=path)
    pu.save(model, path)
    with pytest.raises(ValueError, match="is not the checkpoint of a run, but 'model'"):
        pu.fit(pu.ProximalEncoder(model, 3), x, steps=40, checkpoint=path)


def test_lists_and_loaders_resume_too(tmp_path: Path) -> None:
    model, x = signals("lasso", 700)
    for data in (
        list(x.split(100)),
        DataLoader(TensorDataset(x), batch_size=64, shuffle=True),
    ):
        whole, parted = pu.ProximalEncoder(model, 3), pu.ProximalEncoder(model, 3)
        pu.fit(whole, data, steps=60)
        path = tmp_path / f"{type(data).__name__}.checkpoint"

        class KilledError(Exception):
            pass

        def kill(progress, at=30) -> None:
            if progress.done == at:
                raise KilledError

        with pytest.raises(KilledError):
            pu.fit(parted, data, steps=60, checkpoint=path, callback=kill)
        parted = pu.ProximalEncoder(model, 3)
        pu.fit(parted, data, steps=60, checkpoint=path)
        assert torch.equal(parameters(parted), parameters(whole))
