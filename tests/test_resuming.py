"""Checkpoints and learners from files: a wrong field is named, and nothing is changed by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pursuit as pu
from families import problem
from test_persistence import rewritten, set_at

Change = Callable[[dict[str, Any], dict[str, Any]], object]


def put(name: str, change: Callable[[Any], Any]) -> Change:
    """Change an array."""
    return lambda arrays, info: arrays.update({name: change(arrays[name])})


def fill(value: float) -> Callable[[Any], Any]:
    return lambda array: np.full_like(array, value)


# ---- checkpoints ----------------------------------------------------------------------------


def run(path: Path, stop: int | None = None) -> pu.ProximalEncoder:
    model, x = problem("nmf-ridge", 0, 60, torch.float32)
    encoder = pu.ProximalEncoder(model, 2)
    callback = None if stop is None else lambda now: now.done >= stop
    options: Any = {"dictionary": "statistics", "steps": 30, "batch_size": 16, "held": [1, 5]}
    pu.fit(encoder, x, checkpoint=path, callback=callback, **options)
    return encoder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("run") / "c"
    run(path, 10)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (set_at("history", 3), "history must be a mapping, got 3"),
        (set_at("history.loss", ["x"]), "loss of History must be a list of numbers"),
        (set_at("history.unknown", 1), "History has no argument 'unknown'"),
        (set_at("history.steps", 10**9), "steps must be from 0 to 30, got 1000000000"),
        (set_at("history.steps", -1), "steps must be from 0 to 30, got -1"),
        (set_at("history.seconds", float("inf")), "seconds must be a finite number from 0 on"),
        (set_at("rates", [1.0]), r"rates must be \d numbers"),
        (set_at("rates", {}), "rates must be a list of numbers, got a mapping"),
        (set_at("factor", float("nan")), "factor must be a finite number"),
        (set_at("stale", 0.5), "stale must be a whole number, got 0.5"),
        (set_at("finished", "yes"), "finished must be true or false, got 'yes'"),
        (set_at("regime", [1]), r"regime must be a mapping, got \[1\]"),
        (lambda arrays, info: info.pop("lowest"), "lowest is missing"),
        (lambda arrays, info: arrays.pop("good.step.mixing"), "the array step.mixing is missing"),
        (lambda arrays, info: arrays.pop("online.B"), "the array B is missing"),
        (lambda arrays, info: arrays.update(more=np.ones(2)), "the array 'more' is not part"),
        (put("online.atoms", lambda a: a.T.copy()), "atoms must be float64 of shape"),
        (put("adam.now.0.step", fill(np.inf)), "0.step contains NaN or infinite"),
        (put("adam.now.0.step", fill(0.5)), "0.step must be a number of steps, got 0.5"),
        (put("adam.now.0.exp_avg_sq", fill(-1)), "0.exp_avg_sq must not be negative"),
        (put("best.step.mixing", fill(np.nan)), "step.mixing contains NaN"),
        (put("now.step.mixing", lambda a: a.astype(np.float64)), "step.mixing must be float32"),
    ],
)
def test_a_wrong_field_of_a_checkpoint(
    change: Change, sentence: str, checkpoint: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    path.write_bytes(checkpoint)
    rewritten(path, change)
    with pytest.raises(ValueError, match=f"c cannot be resumed: {sentence}"):
        run(path)


def test_a_checkpoint_as_it_was_written_is_resumed(checkpoint: bytes, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(checkpoint)
    rewritten(tmp_path / "c", lambda arrays, info: None)
    parted, unbroken = run(tmp_path / "c").state_dict(), run(tmp_path / "d").state_dict()
    assert all(torch.equal(tensor, unbroken[name]) for name, tensor in parted.items())
    (tmp_path / "c").write_bytes(checkpoint)
    rewritten(tmp_path / "c", set_at("settings", None))
    with pytest.raises(ValueError, match="c is the checkpoint of another run"):
        run(tmp_path / "c")


# ---- learners -------------------------------------------------------------------------------


def learner() -> pu.OnlineLearner:
    model, _ = problem("lasso", 1, 1, torch.float32)
    encoder = pu.ProximalEncoder(model, 2)
    return pu.OnlineLearner(encoder, chunk=20, window=60, batch_size=20, steps=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("learner") / "l"
    learner().partial_fit(problem("lasso", 1, 50, torch.float32)[1]).save(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (set_at("samples", -20), "samples must be at least 0, got -20"),
        (set_at("samples", 2.5), "samples must be a whole number, got 2.5"),
        (set_at("changes", 7), "changes must be a list of whole numbers, got 7"),
        (set_at("recent", float("inf")), "recent must not be infinite"),
        (set_at("past", []), r"past must be a number, got \[\]"),
        (set_at("levels.objective.variance", -1.0), "variance must be at least 0, got -1"),
        (set_at("levels.objective.mean", float("nan")), "the numbers of objective must be finite"),
        (set_at("levels.deviation", None), "deviation must be a mapping, got null"),
        (set_at("levels", {}), "objective is missing"),
        (lambda arrays, info: info.pop("regime"), "regime is missing"),
        (lambda arrays, info: arrays.pop("history"), "history must be float64 of shape"),
        (lambda arrays, info: arrays.pop("adam.0.exp_avg"), "the array 0.exp_avg is missing"),
        (lambda arrays, info: arrays.pop("seen.x"), None),
        (put("seen.x", lambda a: a.reshape(1, -1)), "x must be float32 of shape"),
        (put("waiting.x", fill(np.nan)), "x contains NaN or infinite"),
        (put("history", fill(np.nan)), "history contains NaN"),
        (put("moments.chunks", fill(-1)), "moments.chunks must not be negative"),
        (put("encoder.depth", fill(7)), "the weights were trained for a depth of 7"),
        (put("encoder.step.weight", fill(np.inf)), "step.weight contains NaN or infinite"),
        (put("online.A", lambda a: a[:3]), r"A must be float64 of shape \(12, 12\)"),
    ],
)
def test_a_wrong_field_of_a_learner(
    change: Change, sentence: str | None, saved: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "l"
    path.write_bytes(saved)
    rewritten(path, change)
    x = problem("lasso", 1, 70, torch.float32)[1]
    if sentence is None:  # the window fills again
        assert learner().resume(path).partial_fit(x).samples == 120
        return
    fresh = learner()
    with pytest.raises(ValueError, match=f"l cannot be resumed: {sentence}"):
        fresh.resume(path)
    expected, found = learner().partial_fit(x), fresh.partial_fit(x)
    assert list(found.history) == list(expected.history)
    for name, tensor in found.encoder.state_dict().items():
        assert torch.equal(tensor, expected.encoder.state_dict()[name])
