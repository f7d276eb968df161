"""Random attacks on learners of streams and on estimators: bursts, levels, settings.

Each attack is one random trial, which raises an error if something is wrong.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pursuit as pu
from families import MODELS, problem
from pursuit.penalties import L1, GroupL2

Rng = np.random.Generator


def _pick(rng: Rng, values: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _build(rng: Rng) -> tuple[str, Callable[[], pu.OnlineLearner], Tensor]:
    """A kind of learner, and a stream for it."""
    name, seed = _pick(rng, list(MODELS)), int(rng.integers(2**31))
    dtype = _pick(rng, [torch.float32, torch.float64])
    model, x = problem(name, seed, 1500, dtype)
    x = x.abs() if "nmf" in name or "nonnegative" in name else x
    x = x * 10.0 ** rng.uniform(-2, 2)
    layers, step = int(rng.integers(1, 4)), _pick(rng, ["free", "coupled", "model"])
    options: Any = {"steps": int(rng.integers(1, 3)), "window": 150, "batch_size": 32}
    options |= {"chunk": _pick(rng, [50, 100]), "dictionary": _pick(rng, [None, None, "fixed"])}

    def build() -> pu.OnlineLearner:
        return pu.OnlineLearner(pu.ProximalEncoder(model, layers, step), **options)

    return f"{name} {seed} {dtype} {layers} {step} {options}", build, x


def _burst(rng: Rng, rows: int, like: Tensor) -> Tensor:
    """Rows that are 20 times larger than `like`, up to the largest number of the dtype."""
    largest = math.log10(0.9 * torch.finfo(like.dtype).max)
    smallest = math.log10(20 * float(like.norm(dim=1).max()))
    sizes = 10 ** rng.uniform(smallest, largest, (rows, 1))
    noise = torch.from_numpy(rng.standard_normal((rows, like.shape[1])))
    noise = noise if bool((like < 0).any()) else noise.abs()
    noise = noise / noise.abs().amax(dim=1, keepdim=True)
    return (noise * torch.from_numpy(sizes)).to(like)


def _state(learner: pu.OnlineLearner) -> Tensor:
    return torch.cat([t.double().flatten() for t in learner.encoder.state_dict().values()])


def _fed(learner: pu.OnlineLearner, rng: Rng, x: Tensor) -> pu.OnlineLearner:
    """The learner after a stream that is divided at random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        while len(x) > 0:
            size = int(rng.integers(1, 700))
            learner.partial_fit(x[:size])
            x = x[size:]
    return learner


def bursts(rng: Rng) -> None:
    """Bursts in a stream leave no trace, bit for bit."""
    drawn, build, x = _build(rng)
    first = int(rng.integers(1000, 1300))
    parts = [x[:first]]
    if rng.random() < 0.5:
        rows = int(rng.integers(1, 401))
        parts += [_burst(rng, rows, x), x[first:]]
    else:
        hit = torch.from_numpy(rng.random(len(x) - first) < 0.05)[:, None]
        parts += [torch.where(hit, _burst(rng, len(x) - first, x), x[first:])]
        x = torch.cat([x[:first], x[first:][~hit[:, 0]]])
    stream = torch.cat(parts)
    learner = _fed(build(), rng, stream)
    assert learner.received == len(stream), drawn
    chunk = learner.chunk
    left = len(learner._waiting) + len(learner._ordinary)
    assert left < 2 * chunk, f"{left} samples wait: {drawn}"
    reference = _fed(build(), rng, x[: learner.samples])
    assert torch.equal(_state(learner), _state(reference)), f"{first} {drawn}"


def first_bursts(rng: Rng) -> None:
    """A stream that begins with a burst is learned from as any other, a little later."""
    drawn, build, x = _build(rng)
    rows = int(rng.integers(1, 401))
    learner = _fed(build(), rng, torch.cat([_burst(rng, rows, x), x]))
    late = learner.left_out - rows
    assert 0 <= late <= rows + 200, f"{late} samples after {rows} are left out: {drawn}"
    reference = _fed(build(), rng, x[late : late + learner.samples])
    assert torch.equal(_state(learner), _state(reference)), f"{rows} {drawn}"


def levels(rng: Rng) -> None:
    """A level that lasts is followed, and every number stays finite."""
    drawn, build, x = _build(rng)
    first = int(rng.integers(0, 800))
    factor = 10.0 ** rng.uniform(-12, 12)
    learner = _fed(build(), rng, torch.cat([x[:first], factor * x[first : first + 700]]))
    before = learner.left_out
    _fed(learner, rng, factor * x[first + 700 :])
    assert learner.left_out == before, f"{first} {factor:g} {drawn}"
    assert bool(torch.isfinite(_state(learner)).all()), f"{first} {factor:g} {drawn}"


def any_numbers(rng: Rng) -> None:
    """Rows of all sizes, without any level: parameters and statistics stay finite."""
    drawn, build, x = _build(rng)
    largest = 0.99 * torch.finfo(x.dtype).max
    sizes = 10 ** rng.uniform(-35, 38, (len(x), 1))
    blocks = rng.random() < 0.5  # whole blocks of one size
    sizes = np.repeat(sizes[::300], 300, axis=0)[: len(x)] if blocks else sizes
    stream = (x.double() * torch.from_numpy(sizes)).clamp(-largest, largest).to(x)
    learner = _fed(build(), rng, stream)
    assert learner.received == len(x), drawn
    tensors = [_state(learner)]
    tensors += [] if learner.dictionary is None else learner.dictionary.state.values()
    assert all(bool(torch.isfinite(t).all()) for t in tensors), f"{blocks} {drawn}"


WRONG = [0, -1, 2.5, True, "auto", "x", None, [1], math.nan, math.inf, -0.5, {}, np.float32(0.5)]


def settings(rng: Rng) -> None:
    """An estimator with random settings works, or refuses one of them in one sentence."""
    n, m = int(rng.integers(2, 60)), int(rng.integers(1, 9))
    x = rng.standard_normal((n, m)) * 10.0 ** rng.uniform(-6, 6)
    x = np.abs(x) if rng.random() < 0.7 else x
    x = x.astype(_pick(rng, ["f4", "f8", ">f4", ">f8", np.longdouble]))
    kind = _pick(rng, [pu.SparseCoding, pu.NMF, pu.RobustPCA, pu.RobustNMF])
    chosen: dict[str, Any] = {"n_components": int(rng.integers(1, 12))}
    chosen |= {"max_iter": int(rng.integers(1, 20)), "steps": int(rng.integers(1, 5))}
    chosen |= {"layers": int(rng.integers(1, 4)), "random_state": int(rng.integers(2**32))}
    chosen["transform_algorithm"] = _pick(rng, ["exact", "encoder"])
    known = set(kind().get_params())
    if kind is pu.SparseCoding:
        chosen["lam"] = _pick(rng, ["auto", 10.0 ** rng.uniform(-9, 3)])
        chosen["penalty"] = _pick(rng, ["l1", "l1", "group", "hilasso", L1(0.1), GroupL2([[0]], 1)])
        chosen["groups"] = [list(range(chosen["n_components"]))]
        chosen["nonnegative"] = bool(rng.integers(2))
    for name in ("ridge", "lam_star"):
        if name in known and rng.random() < 0.5:
            chosen[name] = 10.0 ** rng.uniform(-9, 3)
    if rng.random() < 0.5:
        chosen[_pick(rng, sorted(known - {"verbose"}))] = _pick(rng, WRONG)
    drawn = f"{kind.__name__} {chosen} {x.shape} {x.dtype}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            estimator = kind(**chosen)
            estimator.fit(x) if rng.random() < 0.7 else estimator.partial_fit(x).partial_fit(x)
        except (ValueError, TypeError) as error:
            message = str(error)
            words = (*chosen, "X ", "x ", "data", "seed")
            assert any(word in message for word in words), f"{message!r}: {drawn}"
            assert "\n" not in message, f"{message!r}: {drawn}"
            return
        codes = estimator.transform(x)
        back = estimator.inverse_transform(codes)
    assert codes.shape == (n, len(estimator.components_)), drawn
    for array in (codes, back, estimator.components_):
        assert np.isfinite(array).all(), drawn


#: one random trial each; raises an error if something is wrong
ATTACKS: dict[str, Callable[[Rng], None]] = {
    "bursts": bursts,
    "first bursts": first_bursts,
    "levels": levels,
    "any numbers": any_numbers,
    "settings": settings,
}
