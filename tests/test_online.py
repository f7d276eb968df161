"""Learning from a stream: it follows, costs the same each time, and can be taken up again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pursuit as pu
from families import problem
from pursuit import regimes
from pursuit.models import Lasso


def stream(seed: int, rows: int, atoms: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples that few atoms explain, and the atoms."""
    generator = torch.Generator().manual_seed(seed)
    true = torch.nn.functional.normalize(torch.randn(atoms, 16, generator=generator))
    codes = torch.randn(rows, atoms, generator=generator)
    codes = codes * (torch.rand(rows, atoms, generator=generator) < 0.1)
    return codes @ true + 0.02 * torch.randn(rows, 16, generator=generator), true


def learner(step: str = "coupled", **changes) -> pu.OnlineLearner:
    start = torch.nn.functional.normalize(
        torch.randn(24, 16, generator=torch.Generator().manual_seed(9))
    )
    return pu.OnlineLearner(pu.ProximalEncoder(Lasso(start, 0.1), 4, step), **changes)


def state(online: pu.OnlineLearner) -> torch.Tensor:
    return torch.cat([t.double().flatten() for t in online.encoder.state_dict().values()])


@pytest.mark.parametrize("step", ["free", "coupled", "model"])
def test_encoder_and_dictionary_learn_from_a_stream(step: str) -> None:
    x, _ = stream(0, 6000)
    test, _ = stream(0, 7000)
    test = test[6000:]
    online = learner(step)
    before = Lasso(online.encoder.dictionary.detach().clone(), 0.1)

    def value(encoder) -> float:
        with torch.no_grad():
            return float(encoder.model.objective(test, encoder(test)).mean())

    untrained = value(pu.ProximalEncoder(before, 4, step))
    online.partial_fit(x)
    assert online.samples == 6000
    assert value(online.encoder) < 0.9 * untrained
    # both have learned: the dictionary serves exact codes better, and the encoder its dictionary
    exact = [float(pu.solve(m, test).objective.mean()) for m in (before, online.encoder.model)]
    assert exact[1] < exact[0]
    fresh = pu.ProximalEncoder(online.encoder.model, 4, step)
    assert value(online.encoder) < value(fresh)
    assert online.encoder.regime == "unsupervised"


def test_how_the_stream_is_cut_does_not_matter() -> None:
    x, _ = stream(1, 1000)
    whole, parts = learner(), learner()
    whole.partial_fit(x)
    for size in (1, 37, 250, 99, 600, 13):
        parts.partial_fit(x[:size])
        x = x[size:]
    assert parts.samples == whole.samples == 1000
    assert torch.equal(state(parts), state(whole))
    assert list(parts.history) == list(whole.history)


def test_memory_is_bounded() -> None:
    x, _ = stream(2, 5000)
    online = learner(window=300)
    online.partial_fit(x)
    assert len(online._seen) == 300
    assert len(online._waiting) == 0
    assert len(online.history) == 50


@pytest.mark.parametrize("dictionary", [None, "fixed"])
def test_a_learner_is_taken_up_bit_by_bit(dictionary: str | None, tmp_path: Path) -> None:
    x, _ = stream(3, 2000)
    unbroken = learner(dictionary=dictionary).partial_fit(x)
    path = tmp_path / "learner.safetensors"
    first = learner(dictionary=dictionary).partial_fit(x[:777])
    first.save(path)
    second = learner(dictionary=dictionary).resume(path)
    second.partial_fit(x[777:])
    assert torch.equal(state(second), state(unbroken))
    assert list(second.history) == list(unbroken.history)
    with pytest.raises(ValueError, match="holds another learner: window differ"):
        learner(dictionary=dictionary, window=500).resume(path)
    pu.save(path, unbroken.encoder)
    with pytest.raises(ValueError, match="does not hold a learner, but 'encoder'"):
        learner().resume(path)


def test_drift_shows_when_the_data_change() -> None:
    first, second = stream(4, 6000)[0], 2 * stream(5, 1000)[0]
    online = learner(dictionary="fixed")
    online.partial_fit(first)
    assert 0.8 < online.drift < 1.2
    calm = max(point.drift for point in list(online.history)[-20:])
    online.partial_fit(second[:500])
    assert online.drift > 1.5 * calm
    online.partial_fit(torch.cat([second] * 12))
    assert 0.8 < online.drift < 1.2


def test_targets_travel_with_the_stream() -> None:
    model, x = problem("robust-nmf", 6, 900, torch.float32)
    online = pu.OnlineLearner(pu.ProximalEncoder(model, 3), regimes.Supervised(), "fixed", chunk=50)
    parts = {"low_rank": 0.5 * x, "sparse": 0.5 * x}

    def wrong() -> float:
        with torch.no_grad():
            split = model.split(online.encoder(x))
        return float((split.low_rank - parts["low_rank"]).square().mean())

    before = wrong()
    for rows in torch.arange(900).split(130):
        online.partial_fit(x[rows], {key: t[rows] for key, t in parts.items()})
    assert wrong() < before
    with pytest.raises(ValueError, match="with all samples of a stream or with none"):
        online.partial_fit(x)


def test_bad_samples_change_nothing() -> None:
    x, _ = stream(7, 1000)
    online = learner().partial_fit(x)
    before, seen = state(online), online.samples
    broken = x.clone()
    broken[3, 2] = float("nan")
    with pytest.raises(ValueError, match="nothing was learned from it"):
        online.partial_fit(broken)
    with pytest.raises(ValueError, match=r"x must have shape \(rows, 16\), got \(1000, 15\)"):
        online.partial_fit(x[:, 1:])
    assert torch.equal(state(online), before)
    assert online.samples == seen


def test_what_a_learner_refuses_to_be_built_from() -> None:
    encoder = learner().encoder
    with pytest.raises(TypeError, match="encoder must be an encoder, got Lasso"):
        pu.OnlineLearner(encoder.model)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        pu.OnlineLearner(encoder, window=0)
    with pytest.raises(ValueError, match="dictionary must be an OnlineDictionary"):
        pu.OnlineLearner(encoder, dictionary="gradient")
