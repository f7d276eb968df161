"""Learning from a stream: it follows, costs the same each time, and can be taken up again."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import pursuit as pu
from families import problem
from processes import kill_some
from pursuit import changes, regimes
from pursuit.datasets import textures
from pursuit.models import Lasso, RobustPCA


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
    return pu.OnlineLearner(
        pu.ProximalEncoder(Lasso(start, 0.1), 4, step), **{"steps": 2} | changes
    )


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


def test_the_samples_that_wait_are_counted_as_received() -> None:
    x, _ = stream(1, 250)
    online = learner().partial_fit(x)
    assert (online.samples, online.received) == (200, 250)


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
    pu.save(unbroken.encoder, path)
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


@pytest.mark.parametrize("seed", range(3))
def test_a_change_of_the_stream_is_seen_and_what_came_before_is_forgotten(seed: int) -> None:
    """The dictionary of the default learner soon serves the new data as if it knew no others."""
    first, second = stream(seed, 6000)[0], 2 * stream(seed + 50, 4000)[0]
    adaptive = learner("model", memory=10_000)
    slow = learner("model")
    slow.dictionary.beta, slow._adaptive = 1 - 1e-4, False
    for online in (adaptive, slow):
        online.partial_fit(first)
        assert list(online.changes) == []
        online.partial_fit(second[:3000])
        assert len(online.changes) == 1
        assert 6000 < online.changes[0] <= 6500
    values = [
        float(pu.solve(online.encoder.model, second[3000:]).objective.mean())
        for online in (adaptive, slow)
    ]
    assert values[0] < values[1]


def test_a_stream_that_stays_the_same_does_not_change() -> None:
    x, _ = stream(11, 30_000)
    online = learner("model", dictionary="fixed", steps=1).partial_fit(x)
    assert list(online.changes) == []


def halves(rows: int, features: int, seed: int = 0) -> torch.Tensor:
    """Sparse samples, first in one half of the coordinates and then in the other."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, rows, features // 2)
    x = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.3)
    zero = torch.zeros(rows, features // 2)
    return torch.cat([torch.cat([x[0], zero], dim=1), torch.cat([zero, x[1]], dim=1)])


@pytest.mark.parametrize("features", [16, 200])
def test_a_change_at_the_same_objective_is_seen(features: int) -> None:
    """For a model that is the same in all coordinates both halves of the stream cost the same."""
    x = halves(4000, features)
    model = Lasso(torch.eye(features), 0.1)
    encoder = pu.ProximalEncoder(model, 3, "model")
    online = pu.OnlineLearner(encoder, dictionary="fixed", steps=1).partial_fit(x)
    values = [point.objective for point in online.history]
    before, after = sum(values[20:40]), sum(values[60:])
    assert abs(after - before) < 0.05 * before
    (change,) = online.changes
    assert 4000 < change <= 4600


def test_the_search_for_changes_resumes_bit_by_bit(tmp_path: Path) -> None:
    x = halves(3000, 16)

    def build() -> pu.OnlineLearner:
        return pu.OnlineLearner(pu.ProximalEncoder(Lasso(torch.eye(16), 0.1), 3), steps=1)

    unbroken = build().partial_fit(x)
    assert 3000 < unbroken.changes[0] <= 3600
    for stop in (1250, 3150):
        path = tmp_path / f"{stop}.safetensors"
        build().partial_fit(x[:stop]).save(path)
        resumed = build().resume(path).partial_fit(x[stop:])
        assert resumed.changes == unbroken.changes
        assert resumed._detector.levels == unbroken._detector.levels
        for key, tensor in resumed._detector.moments.state.items():
            assert torch.equal(tensor, unbroken._detector.moments.state[key])
        assert torch.equal(state(resumed), state(unbroken))


@pytest.mark.parametrize("features", [2, 16, 100])
@pytest.mark.parametrize("chunk", [20, 100])
def test_stationary_samples_raise_no_alarm(chunk: int, features: int) -> None:
    """Directions of samples alone: heavy-tailed, sparse and of very unequal energies."""
    generator = torch.Generator().manual_seed(chunk + features)
    scale = 1 / torch.arange(1.0, features + 1)
    detector = changes.ChangeDetector(features)
    for _ in range(1000):
        x = scale * torch.randn(chunk, features, generator=generator) ** 3
        x *= torch.rand(chunk, features, generator=generator) < 0.5
        assert not detector.has_changed(x, 1.0)


def test_a_slow_turn_is_not_a_change() -> None:
    """A quarter turn of two directions over 20 000 samples."""
    x, _ = turning(4, 20_000)
    detector = changes.ChangeDetector(20)
    assert not any(detector.has_changed(chunk, 1.0) for chunk in x.split(100))


@pytest.mark.data
@pytest.mark.parametrize("seed", range(2))
def test_textures_of_equal_objective_are_told_apart(seed: int, data_folder: Path) -> None:
    """Patches of straw and bark are coded equally well, but they are other patches."""
    pictures = textures.read_folder(data_folder / "textures", ["straw", "bark"])
    chosen = dict(zip(pictures.names, pictures.pictures, strict=True))
    x = torch.cat(
        [textures.draw(chosen[name], 4000, 8, seed=seed)[0] for name in ("straw", "bark")]
    )
    model = Lasso(pu.learn(x[:1000], 64, 1.0, passes=3, seed=seed), 1.0)
    encoder = pu.CoordinateEncoder(
        model, 4, [8, 8, 16, 64], step="model", momentum=True, final="partial"
    )
    online = pu.OnlineLearner(encoder, steps=2, seed=seed).partial_fit(x)
    (change,) = online.changes
    assert 4000 < change <= 4600


def turning(seed: int, n: int, turn: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Low rank and sparse; the two directions turn over the stream, by a quarter as 1."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(20, 4, generator=generator))[0].T
    angle = torch.linspace(0, turn * math.pi / 2, n)[:, None, None]
    directions = torch.cos(angle) * basis[:2] + torch.sin(angle) * basis[2:]
    scores = 3 * torch.randn(n, 2, generator=generator)
    outliers = 3 * torch.randn(n, 20, generator=generator)
    outliers *= torch.rand(n, 20, generator=generator) < 0.05
    noise = 0.1 * torch.randn(n, 20, generator=generator)
    return torch.einsum("nr,nrm->nm", scores, directions) + outliers + noise, directions


def off(matrix: torch.Tensor, directions: torch.Tensor) -> float:
    found = torch.linalg.svd(matrix, full_matrices=False)[2][:2]
    return float((directions - directions @ found.T @ found).norm())


@pytest.mark.parametrize("step", ["coupled", "model"])
def test_a_subspace_that_turns_is_tracked(step: str) -> None:
    x, directions = turning(0, 6000)
    lam_star, lam, window = (math.sqrt(20) + math.sqrt(300)) * 0.1, 0.3, 600
    once, _ = pu.principal_component_pursuit(x[:window], lam_star, lam)
    start = torch.randn(4, 20, generator=torch.Generator().manual_seed(1))
    encoder = pu.ProximalEncoder(RobustPCA(start, lam_star, lam), 5, step)
    online = pu.OnlineLearner(encoder, memory=300, window=window, steps=2)
    for number, part in enumerate(x.split(window)):
        online.partial_fit(part)
        now = (number + 1) * window
        if number > 2:  # it starts from a random subspace
            tracked = off(encoder.model.dictionary.detach(), directions[now - 1])
            renewed, _ = pu.principal_component_pursuit(part, lam_star, lam)
            assert tracked < off(once, directions[now - 1])
            assert tracked < 1.5 * off(renewed, directions[now - 1])


def test_the_factored_solution_of_a_stationary_stream_is_the_convex_one() -> None:
    """Codes and dictionary in turn, batch by batch, over the same samples again and again."""
    x, _ = turning(2, 1000, turn=0)
    x = x.double()
    lam_star, lam = 5.0, 0.3
    low_rank, outliers = pu.principal_component_pursuit(x, lam_star, lam)
    start = torch.randn(6, 20, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model = RobustPCA(start, lam_star, lam)
    online = pu.OnlineDictionary.of(model, beta=1 - 1 / len(x), total=len(x))
    for _ in range(30):
        for part in x.split(100):
            scores, left = model.regression(part, pu.solve(model, part).codes)
            online.update(left, scores)
            model = model.rebind(online.dictionaries)
    parts = model.split(pu.solve(model, x).codes)
    assert float((parts.low_rank - low_rank).norm()) < 0.01 * float(low_rank.norm())
    assert float((parts.outliers - outliers).norm()) < 0.02 * float(outliers.norm())
    convex = (x - low_rank - outliers).square().sum() / 2 + lam * outliers.abs().sum()
    convex = convex + lam_star * torch.linalg.matrix_norm(low_rank, "nuc")
    factored = pu.solve(model, x).objective.sum() + lam_star / 2 * model.dictionary.square().sum()
    assert float(convex) <= float(factored) < 1.001 * float(convex)


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


def test_a_module_around_an_encoder_learns_from_a_stream(tmp_path: Path) -> None:
    """A front end that transforms the signals is trained along, and resumes bit by bit."""
    from test_training import Scaled

    x = torch.cat([stream(12, 2000)[0], torch.zeros(2000, 2)], dim=1).double()

    def build() -> pu.OnlineLearner:
        start = torch.nn.functional.normalize(
            torch.randn(24, 16, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
        )
        wrapper = Scaled(pu.ProximalEncoder(Lasso(start, 0.1), 4, "model"), 18)
        return pu.OnlineLearner(wrapper, steps=2)

    unbroken = build().partial_fit(x)
    values = [point.objective for point in unbroken.history]
    assert sum(values[-5:]) < 0.9 * sum(values[:5])
    assert unbroken.encoder.encoder.regime == "unsupervised"
    assert not torch.equal(unbroken.encoder.front, torch.eye(18, 16, dtype=torch.float64))
    first = build().partial_fit(x[:777])
    first.save(tmp_path / "learner.safetensors")
    second = build().resume(tmp_path / "learner.safetensors").partial_fit(x[777:])
    assert torch.equal(state(second), state(unbroken))


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


BURSTS = [1e2, 1e6, 1e12, 1e19, 1e30, 3e38]


def burst(seed: int, rows: int, size: float, like: torch.Tensor) -> torch.Tensor:
    noise = torch.randn(rows, like.shape[1], generator=torch.Generator().manual_seed(seed))
    noise = noise if bool((like < 0).any()) else noise.abs()
    return (noise / noise.abs().max()).to(like) * size


def every_learner(name: str) -> tuple[pu.OnlineLearner, torch.Tensor]:
    model, x = problem(name, 3, 1500, torch.float32)
    x = x.abs() if name.startswith(("nmf", "robust-nmf")) else x
    return pu.OnlineLearner(pu.ProximalEncoder(model, 3), steps=1, window=200), x


@pytest.mark.parametrize("rows", [1, 100, 400])
@pytest.mark.parametrize(
    "name",
    ["lasso", "elastic-net", "group", "hilasso", "nmf", "nmf-ridge", "robust-pca", "robust-nmf"],
)
def test_a_learner_is_as_if_a_burst_had_not_come(name: str, rows: int) -> None:
    """Of any size, and several of them in one stream."""
    reference, x = every_learner(name)
    reference.partial_fit(x)
    size = BURSTS[(len(name) + rows) % len(BURSTS)]
    online, _ = every_learner(name)
    online.partial_fit(x[:1050])
    with pytest.warns(UserWarning, match="10 times larger than the stream before; nothing is"):
        online.partial_fit(torch.cat([burst(1, rows, size, x), x[1050:]]))
    assert online.left_out == rows
    assert online.received == len(x) + rows
    # what fills no chunk yet waits
    assert online.samples in (1400, 1500)
    reference, _ = every_learner(name)
    reference.partial_fit(x[: online.samples])
    assert torch.equal(state(online), state(reference))
    assert list(online.history) == list(reference.history)


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1e2), (1, 1e30), (7, 1e19), (100, 1e6), (100, 3e38), (300, 1e12)]
)
def test_a_stream_may_begin_with_a_burst(rows: int, size: float) -> None:
    x, _ = stream(7, 2000)
    reference, online = learner(window=200), learner(window=200)
    with pytest.warns(UserWarning, match="10 times larger than"):
        online.partial_fit(torch.cat([burst(1, rows, size, x), x]))
    late = online.left_out - rows  # ordinary samples that came before it was recognised
    assert late <= rows + 2 * online.chunk
    reference.partial_fit(x[late : late + online.samples])
    assert torch.equal(state(online), state(reference))
    assert all(math.isfinite(point.objective) for point in online.history)


def test_bursts_in_5_percent_of_the_samples_are_left_out() -> None:
    x, _ = stream(7, 3000)
    reference, online = learner(window=200), learner(window=200)
    hit = torch.rand(len(x), generator=torch.Generator().manual_seed(0)) < 0.05
    mixed = torch.where(hit[:, None], burst(0, len(x), 1e20, x), x)
    with pytest.warns(UserWarning, match="nothing is learned"):
        online.partial_fit(mixed)
    assert online.left_out == int(hit.sum())
    reference.partial_fit(x[~hit])
    assert torch.equal(state(online), state(reference))


@pytest.mark.parametrize(("factor", "offset"), [(10.0, 0), (1000.0, 93), (0.1, 55)])
def test_a_level_that_lasts_is_followed(factor: float, offset: int) -> None:
    """All samples are learned from after 600 of them and a chunk."""
    first, second = stream(4, 1500 + offset)[0], factor * stream(5, 4000)[0]
    online = learner("model").partial_fit(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        online.partial_fit(second[:700])
        left_out = online.left_out
        online.partial_fit(second[700:3700])
    assert online.left_out == left_out
    if factor != 10:  # ten times is where bursts begin
        assert (left_out > 0) == (factor > 10)
    fresh = learner("model").partial_fit(second[700:3700])
    test = second[3700:]
    with torch.no_grad():
        values = [
            float(o.encoder.model.objective(test, o.encoder(test)).mean()) for o in (online, fresh)
        ]
    assert values[0] < 1.1 * values[1]


def test_silence_is_no_level() -> None:
    """What comes after a long pause is learned from at once."""
    x, _ = stream(4, 2000)
    for pause in (torch.zeros(3000, 16), 1e-4 * stream(6, 3000)[0]):
        online = learner("model", steps=1).partial_fit(torch.cat([x, pause, x]))
        assert online.left_out == 0
    assert learner("model", steps=1).partial_fit(torch.cat([torch.zeros(500, 16), x])).left_out == 0


def test_a_learner_resumes_bit_by_bit_in_a_burst_at_its_start(tmp_path: Path) -> None:
    x, _ = stream(3, 1200)
    x = torch.cat([burst(0, 130, 1e6, x), x])
    with pytest.warns(UserWarning, match="learning starts again"):
        unbroken = learner().partial_fit(x)
    for stop in (120, 190, 330):
        path = tmp_path / f"{stop}.safetensors"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            learner().partial_fit(x[:stop]).save(path)
            second = learner().resume(path).partial_fit(x[stop:])
        assert (second.left_out, second.samples) == (unbroken.left_out, unbroken.samples)
        assert torch.equal(state(second), state(unbroken))


def test_bursts_in_the_targets_are_left_out() -> None:
    model, x = problem("robust-nmf", 6, 1500, torch.float32)

    def build() -> pu.OnlineLearner:
        return pu.OnlineLearner(pu.ProximalEncoder(model, 3), regimes.Supervised(), steps=1)

    def parts(x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"low_rank": 0.5 * x, "sparse": 0.5 * x}

    large = parts(x[:1300])
    large["low_rank"] = torch.cat([x[:1200], 1e30 * x[1200:1300]])
    online = build()
    with pytest.warns(UserWarning, match="100 of the samples 1200 to 1299"):
        online.partial_fit(x[:1300], large)
    online.partial_fit(x[1300:], parts(x[1300:]))
    kept = torch.cat([x[:1200], x[1300:]])
    named = parts(kept)
    named["low_rank"] = torch.cat([x[:1200], 0.5 * x[1300:]])
    assert torch.equal(state(online), state(build().partial_fit(kept, named)))
    large["low_rank"][0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"targets.low_rank contains NaN .*; nothing was learned"):
        online.partial_fit(x[:1300], large)


def test_numbers_that_overflow_for_long_are_not_learned_from() -> None:
    """A level of 1e30, whose squares float32 cannot hold, is a level all the same."""
    x, _ = stream(7, 3000)
    online = learner(window=200)
    with pytest.warns(UserWarning, match="10 times larger"):
        online.partial_fit(torch.cat([x[:1500], 1e30 * x[:1500], x[1500:]]))
    assert bool(torch.isfinite(state(online)).all())
    assert math.isfinite(online.drift)
    assert math.isfinite(online.history[-1].objective)


def test_a_chunk_that_leaves_no_finite_numbers_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = stream(7, 2100)
    online = learner().partial_fit(x[:1500])
    take = online._take

    def broken(batch: pu.batches.Batch) -> None:
        take(batch)
        online.encoder.step.weight.data[0, 0, 0] = math.nan

    monkeypatch.setattr(online, "_take", broken)
    with pytest.warns(UserWarning, match="back at its state after 1500 samples"):
        online.partial_fit(x[1500:1600])
    monkeypatch.undo()
    online.partial_fit(x[1600:])
    assert (online.left_out, online.samples, online.received) == (100, 2000, 2100)
    reference = learner().partial_fit(torch.cat([x[:1500], x[1600:]]))
    assert torch.equal(state(online), state(reference))
    assert list(online.history) == list(reference.history)


def test_what_a_learner_refuses_to_be_built_from() -> None:
    encoder = learner().encoder
    with pytest.raises(TypeError, match=r"OnlineLearner needs an encoder.* Lasso has no model"):
        pu.OnlineLearner(encoder.model)
    with pytest.raises(ValueError, match="window must be at least 1, got 0"):
        pu.OnlineLearner(encoder, window=0)
    with pytest.raises(ValueError, match="dictionary must be an OnlineDictionary"):
        pu.OnlineLearner(encoder, dictionary="gradient")


RUN = """
import sys, time, torch
sys.path.insert(0, {tests!r})
import pursuit as pu
from pathlib import Path
from test_online import learner, stream
torch.set_num_threads(1)
x, _ = stream(8, 3000)
online = learner({step!r})
path = Path({path!r})
if path.exists():
    online.resume(path)
print("ready", flush=True)
while online.received < len(x):
    online.partial_fit(x[online.received : online.received + 70])
    online.save(path)
    time.sleep({pause})
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["coupled"])
def test_a_killed_learner_goes_on_bit_by_bit(step: str, tmp_path: Path) -> None:
    def script(name: str, pause: float) -> list[str]:
        path = str(tmp_path / f"{name}.safetensors")
        code = RUN.format(tests=str(Path(__file__).parent), step=step, path=path, pause=pause)
        return [sys.executable, "-c", code]

    subprocess.run(script("unbroken", 0.0), check=True, capture_output=True)
    kill_some(script("broken", 0.1), seed=len(step), shortest=0.2)
    subprocess.run(script("broken", 0.0), check=True, capture_output=True)
    unbroken, broken = (
        learner(step).resume(tmp_path / f"{name}.safetensors") for name in ("unbroken", "broken")
    )
    assert unbroken.received == broken.received == 3000
    assert torch.equal(state(unbroken), state(broken))
    assert list(unbroken.history) == list(broken.history)
    assert torch.equal(unbroken.dictionary.A, broken.dictionary.A)
