"""The experiment of speakers in noise, on synthetic voices: its parts, rivals, times, report."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
import torch
from scipy.stats import multivariate_normal

from processes import assert_refused, pursuit
from pursuit.audio.noisy_speakers import NoisySpeakers, observed
from pursuit.audio.noisy_training import NoisySpeech
from pursuit.datasets import noise as corpus
from pursuit.experiments import noise, noise_rivals, noise_times
from pursuit.experiments.frame import run
from pursuit.experiments.noise import (
    DISCRIMINATIVE,
    EXACT,
    GAUSSIANS,
    METHODS,
    NoiseSettings,
)

RATE = 8000
PITCHES = {"a": 110.0, "b": 160.0, "c": 230.0}
KINDS = ("hiss", "rumble")
SMALL = NoiseSettings(
    seeds=(0, 1), atoms=4, layers=5, supervised=5, discriminative=5, unseen=2, segments=6,
    batches=20, network=5, others=(5.0,), every=2, lengths=(16, 100_000), draws=200,
)  # fmt: skip

Ran = tuple[noise.Reproduction, dict[str, Any], Path]


def voice(pitch: float, seed: int, samples: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / RATE
    wave = sum(np.sin(2 * np.pi * k * pitch * time + rng.uniform(0, 6)) / k for k in range(1, 12))
    return 0.1 * (1 + 0.8 * np.sin(2 * np.pi * 6 * time)) * wave


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three voices with four takes of four digits, and two noises."""
    path = tmp_path_factory.mktemp("speech_noise")
    (path / "aurora10s").mkdir()
    speech, noises = ["file,speaker,role,seconds"], ["file,noise,role,sample_begin,sample_end"]
    takes = enumerate(("train", "train", "test", "test"))
    for (speaker, pitch), (take, role), digit in itertools.product(
        PITCHES.items(), takes, range(4)
    ):
        name = f"{digit}_{speaker}_{take}.wav"
        soundfile.write(path / name, voice(pitch, 10 * take + digit), RATE)
        speech.append(f"{name},{speaker},{role},0.5")
    rng = np.random.default_rng(0)
    for kind in KINDS:
        wave = 0.1 * rng.standard_normal(16_000)
        wave = wave if kind == "hiss" else np.convolve(wave, np.ones(8) / 8, "same")
        soundfile.write(path / "aurora10s" / f"{kind}.wav", wave, RATE)
        noises.append(f"aurora10s/{kind}.wav,{kind},train,0,8000")
        noises.append(f"aurora10s/{kind}.wav,{kind},test,8000,16000")
    (path / corpus.SPEECH).write_text("\n".join(speech) + "\n")
    (path / corpus.NOISE).write_text("\n".join(noises) + "\n")
    return path


@pytest.fixture(scope="module")
def ran(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    torch.set_num_threads(1)
    experiment = noise.Reproduction(SMALL, folder)
    output = tmp_path_factory.mktemp("report")
    result, _ = run(experiment, output)
    return experiment, result, output


def parts_of(ran: Ran) -> dict[str, Any]:
    experiment, _, output = ran
    folder = output / "parts" / experiment.fingerprint
    return {path.stem: json.loads(path.read_bytes())["value"] for path in folder.glob("*.json")}


def test_mixtures_are_of_the_test_role_at_the_stated_ratio(ran: Ran) -> None:
    experiment, _, _ = ran
    every = list(experiment.mixtures(-5.0))
    assert len(every) == len(experiment.clips) * len(KINDS) == 6 * 2
    for mixture, other in zip(every, experiment.mixtures(5.0), strict=True):
        ratio = 10 * np.log10((mixture.speech**2).sum() / (mixture.noise**2).sum())
        assert ratio == pytest.approx(-5, abs=1e-3)
        # the same stretch of noise at every ratio
        np.testing.assert_allclose(mixture.noise, other.noise * 10**0.5, rtol=1e-4)
    for kind, wave in experiment.noises.items():
        recorded, _ = soundfile.read(experiment.data / "aurora10s" / f"{kind}.wav")
        np.testing.assert_allclose(wave, recorded[8000:], atol=1e-6)
    takes = {(clip.speaker, clip.take) for clip in experiment.training_clips}
    assert not takes & {(clip.speaker, clip.take) for clip in experiment.clips}


def test_rates_are_the_shares_of_mixtures_that_are_right(ran: Ran) -> None:
    _, result, _ = ran
    values = parts_of(ran)
    for row in METHODS:
        runs = [value for name, value in values.items() if name.startswith(row.replace(" ", "-"))]
        assert len(runs) == (1 if row in (EXACT, GAUSSIANS) else 2)
        for snr in ("0.0", "5.0"):
            hits = [[true == found for true, found, _, _ in own["decisions"][snr]] for own in runs]
            found = result["rows"][row]["snr"][snr]
            assert found["mean"] == pytest.approx(np.mean(hits))
            assert sorted(found["seeds"]) == pytest.approx(sorted(np.mean(hits, axis=1)))
            assert found["interval"][0] <= found["mean"] <= found["interval"][1]
            kinds = [kind for _, _, kind, _ in runs[0]["decisions"][snr]]
            for kind in KINDS:
                own = np.array(hits)[:, np.array(kinds) == kind]
                assert found["kinds"][kind] == pytest.approx(np.mean(own))
        assert np.sum(result["rows"][row]["confusion"]) == 12 * len(runs)
    for each in result["differences"]:
        means = [result["rows"][each[key]]["snr"]["0.0"]["mean"] for key in ("row", "other")]
        assert each["mean"] == pytest.approx(means[0] - means[1])


def test_windows_that_do_not_fit_are_left_out(ran: Ran) -> None:
    experiment, result, _ = ran
    assert list(result["rows"][EXACT]["lengths"]) == ["16"]
    frames = [len(observed(m.wave)[1]) // 16 for m in experiment.mixtures()]
    assert parts_of(ran)["exact"]["windows"]["16"][1] == sum(frames)


def test_exact_codes_are_certified_and_recognise_synthetic_voices(ran: Ran) -> None:
    _, result, _ = ran
    assert 0 <= result["rows"][EXACT]["gap"] < 1e-3
    # by chance a third
    assert result["rows"][EXACT]["snr"]["0.0"]["mean"] > 0.9
    assert result["rows"][GAUSSIANS]["snr"]["0.0"]["mean"] > 0.9
    assert result["rows"][EXACT]["denoised"]["scale-invariant"]["mean"] > 3


def test_an_unseen_noise_is_not_trained_on(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, result, _ = ran
    given: list[Any] = []

    def fit(self: NoisySpeakers, speech: Any, waves: Any, **options: Any) -> None:
        given.append(waves)

    monkeypatch.setattr(NoisySpeakers, "fit", fit)
    decisions = noise.Reproduction(SMALL, experiment.data)._unseen("hiss")
    assert {kind for _, _, kind, _ in decisions} == {"hiss"}
    for waves in given:
        (wave,) = waves
        np.testing.assert_array_equal(wave, experiment.training_noises["rumble"])
    assert len(given) == 2
    assert set(result["unseen"][DISCRIMINATIVE]["kinds"]) == set(KINDS)


def test_training_leaves_the_start_as_it_was(ran: Ran) -> None:
    experiment, _, _ = ran
    start = experiment._learned()
    before = {name: tensor.clone() for name, tensor in start.bank.state_dict().items()}
    trained = experiment._fit(start, DISCRIMINATIVE, 0, 2)
    assert all(torch.equal(before[n], t) for n, t in start.bank.state_dict().items())
    assert not torch.equal(trained.bank[0].low_rank, start.bank[0].low_rank)
    assert trained.bank[1].low_rank is trained.bank[0].low_rank


def test_a_peer_has_a_row(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for which all voices are alike takes the first speaker: right for a third of clips."""
    experiment, _, output = ran
    peer = mock.Mock(load=lambda: lambda wave: np.ones(2), installed=True, parameters=2)
    monkeypatch.setitem(noise.PEERS, "alike", peer)
    again = noise.Reproduction(SMALL, experiment.data)
    result, _ = run(again, output)
    assert result["rows"]["alike"]["snr"]["0.0"]["mean"] == pytest.approx(1 / 3)
    assert result["rows"]["alike"]["parameters"] == 2
    assert result["differences"][-1]["other"] == "alike"


def test_the_report_states_everything(ran: Ran) -> None:
    experiment, result, output = ran
    text = (output / "report.md").read_text()
    for row in METHODS:
        assert f"{result['rows'][row]['snr']['0.0']['mean']:.3f} [" in text
    for field in dataclasses.fields(experiment.settings):
        assert f"| {field.name} |" in text
    for each in result["differences"]:
        clear = "yes" if each["interval"][0] > 0 or each["interval"][1] < 0 else "NO"
        line = f"| {each['row']} - {each['other']} | {each['mean']:.3f} ["
        assert any(own.startswith(line) and own.endswith(f"| {clear} |")
                   for own in text.splitlines())  # fmt: skip
    assert (output / "lengths.png").stat().st_size > 5_000


def test_a_second_run_computes_nothing(ran: Ran) -> None:
    experiment, result, output = ran
    calls: list[str] = []
    found, _ = run(
        noise.Reproduction(SMALL, experiment.data), output, lambda n: calls.append(n.stage)
    )
    assert calls == ["drawing"]
    assert found == result


def test_times_are_of_codes_that_are_exact(ran: Ran) -> None:
    times = parts_of(ran)["times"]
    assert times["share"] >= 0.99
    for name in (noise_times.SOLVER, noise_times.FISTA):
        ratio = times["seconds"][name] / times["seconds"][noise_times.ENCODERS]
        assert times["ratios"][name] == pytest.approx(ratio)


def test_gaussians_are_those_of_scipy() -> None:
    """Log-likelihoods of cepstra, but for a constant that all speakers share."""
    rng = np.random.default_rng(0)
    x = rng.gamma(2.0, 0.5, (400, 257)).astype(np.float32)
    labels = np.repeat([0, 1], 200)
    x[labels == 1, :40] *= 1.5
    found = noise_rivals.Gaussians(x, labels).errors(x[:50])
    seen, size = noise_rivals.cepstra(x), noise_rivals.CEPSTRA
    each = []
    for label in (0, 1):
        own = seen[labels == label].astype(float)
        covariance = np.cov(own.T)
        covariance += noise_rivals.RIDGE * np.trace(covariance) / size * np.eye(size)
        each.append(-multivariate_normal(own.mean(0), covariance).logpdf(seen[:50]))
    expected = np.stack(each, axis=1)
    np.testing.assert_allclose(
        found[:, 1] - found[:, 0], expected[:, 1] - expected[:, 0], rtol=1e-4, atol=1e-3
    )


def test_bands_have_weights_that_sum_to_one() -> None:
    filters = noise_rivals._filters()
    assert (filters >= 0).all()
    np.testing.assert_allclose(filters.sum(1), 1, rtol=1e-5)
    assert (np.diff(filters.argmax(1)) >= 0).all()
    # a flat spectrum has the same power in all bands
    logs = noise_rivals.log_mel(np.full((1, 257), 2.0, np.float32))
    np.testing.assert_allclose(logs, np.log(16 + noise_rivals.FLOOR), rtol=1e-4)


def test_the_network_learns_and_is_reproducible(ran: Ran) -> None:
    experiment, _, _ = ran
    source = NoisySpeech(experiment.speech, list(experiment.training_noises.values()), segments=6,
                         every=1, seconds=0.5)  # fmt: skip
    first, second = (noise_rivals.classifier(source, 3, 60, seed=3) for _ in range(2))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    found = [int(first.errors(observed(m.wave)[1]).argmin()) for m in experiment.mixtures()]
    true = [mixture.speaker for mixture in experiment.mixtures()]
    # by chance a third
    assert np.mean(np.array(found) == true) > 0.6


def test_without_recordings_one_sentence_says_what_to_give(tmp_path: Path) -> None:
    done = pursuit("reproduce", "noise", "-o", tmp_path / "report")
    assert_refused(done, 1, "needs recordings; give their folder as --data DIR")
    done = pursuit("reproduce", "noise", "--download", "-o", tmp_path / "report")
    assert_refused(done, 1, "cannot be downloaded; give a folder as --data")
