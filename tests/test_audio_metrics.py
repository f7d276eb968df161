"""Ratios agree with mir_eval, which is the reference for BSS-EVAL, and with their formulas."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from scipy.signal import firwin, lfilter

from pursuit.audio import Improvement, Sources, improvement, mean_improvement, sdr

RNG = np.random.default_rng(0)
SAMPLES = 16000
WHITE = RNG.standard_normal(SAMPLES)
TIME = np.arange(SAMPLES) / 16000
VOICE = lfilter([1], [1, -1.8, 0.9], WHITE)

#: references from well to badly conditioned
REFERENCES = {
    "white": WHITE,
    "voice": VOICE,
    "offset": VOICE + 5,
    "constant": np.ones(SAMPLES),
    "tones": sum(np.sin(2 * np.pi * 220 * k * TIME) / k for k in range(1, 9)),
    "narrow": np.convolve(WHITE, firwin(801, 0.1), "same"),
    "impulse": np.eye(1, SAMPLES, 100)[0],
    "quiet": 1e-9 * VOICE,
    "faint": 1e-200 * VOICE,
    "600 samples": VOICE[:600],
    "300 samples": VOICE[:300],
    "10 samples": VOICE[:10],
}


def judge(estimate: np.ndarray, reference: np.ndarray) -> float:
    """The SDR of mir_eval."""
    from mir_eval.separation import bss_eval_sources

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return bss_eval_sources(reference[None], estimate[None], False)[0].item()


@pytest.mark.parametrize("name", REFERENCES)
def test_512_taps_is_the_sdr_of_mir_eval(name: str) -> None:
    reference = REFERENCES[name]
    noise = RNG.standard_normal(len(reference)) * np.abs(reference).max()
    scale = 1e200 if name == "faint" else 1.0  # mir_eval underflows
    for level in (1e-4, 0.1, 1.0, 10.0):
        estimate = reference + level * noise
        expected = judge(scale * estimate, scale * reference)
        assert sdr(estimate, reference) == pytest.approx(expected, abs=1e-3)
    delayed = np.pad(reference, (5, 0))[: len(reference)] + 0.1 * noise
    expected = judge(scale * delayed, scale * reference)
    assert sdr(delayed, reference) == pytest.approx(expected, abs=1e-3)


def test_the_other_source_does_not_matter() -> None:
    from mir_eval.separation import bss_eval_sources

    sources = np.stack([VOICE, lfilter([1], [1, -0.5], RNG.standard_normal(SAMPLES))])
    estimates = sources + 0.3 * sources[::-1] + 0.1 * RNG.standard_normal(sources.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        expected = bss_eval_sources(sources, estimates, False)[0]
    np.testing.assert_allclose(sdr(estimates, sources), expected, atol=1e-6)


@pytest.mark.parametrize("name", REFERENCES)
def test_scale_invariant_is_its_formula(name: str) -> None:
    loudness = np.abs(REFERENCES[name]).max()
    unit = REFERENCES[name] / loudness
    for level in (1e-4, 0.1, 10.0):
        wave = unit + level * RNG.standard_normal(len(unit))
        target = (wave @ unit) / (unit @ unit) * unit
        expected = 10 * np.log10((target @ target) / ((wave - target) @ (wave - target)))
        for gain in (1.0, -3.0):
            found = sdr(gain * loudness * wave, loudness * unit, "scale-invariant")
            assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("convention", ["512 taps", "scale-invariant"])
def test_exact_and_silent_estimates_have_the_limits(name: str, convention: str) -> None:
    reference = REFERENCES[name]
    assert sdr(reference, reference, convention) == 120
    assert sdr(0.5 * reference, reference, convention) == 120
    assert sdr(0 * reference, reference, convention) == -120


def test_a_filter_is_forgiven_by_512_taps_only() -> None:
    silence = np.zeros(1000)
    reference = np.concatenate([VOICE, silence])
    echo = lfilter(np.eye(1, 512, 511)[0], [1], reference)
    assert sdr(echo, reference) == 120
    assert sdr(echo, reference, "scale-invariant") < 0
    too_late = lfilter(np.eye(1, 700, 699)[0], [1], reference)
    assert sdr(too_late, reference) < 20


def test_an_estimate_that_has_nothing_of_the_reference() -> None:
    estimate, reference = np.zeros((2, SAMPLES))
    estimate[:5000], reference[8000:] = WHITE[:5000], VOICE[8000:]
    assert sdr(estimate, reference) < -100
    assert sdr(estimate, reference, "scale-invariant") < -100


@pytest.mark.parametrize("convention", ["512 taps", "scale-invariant"])
def test_silent_references_are_nan_and_leave_the_others_alone(convention: str) -> None:
    reference = np.stack([VOICE, np.zeros(SAMPLES), WHITE])
    estimate = reference + RNG.standard_normal(reference.shape)
    ratios = sdr(torch.from_numpy(estimate).float(), reference.astype(np.float32), convention)
    assert ratios.dtype == np.float64
    assert np.isnan(ratios[1])
    for row in (0, 2):
        alone = sdr(estimate[row], reference[row], convention)
        assert ratios[row] == pytest.approx(alone, abs=1e-4)
    assert np.isnan(sdr(np.zeros(100), np.zeros(100), convention))


@pytest.mark.parametrize("convention", ["512 taps", "scale-invariant"])
def test_improvement_is_a_difference(convention: str) -> None:
    music = lfilter([1], [1, -0.9], RNG.standard_normal(SAMPLES))
    reference = Sources(VOICE, music)
    mixture = VOICE + music
    estimate = Sources(VOICE + 0.1 * music, music + 0.1 * VOICE)
    found = improvement(estimate, reference, mixture, convention)
    assert (found.samples, found.convention) == (SAMPLES, convention)
    for wave, true, gain in zip(estimate, reference, found[:2], strict=True):
        expected = sdr(wave, true, convention) - sdr(mixture, true, convention)
        assert gain == pytest.approx(expected, abs=1e-9)
        assert gain == pytest.approx(20, abs=1.5)
    nothing = improvement(Sources(mixture, mixture), reference, mixture, convention)
    assert nothing[:2] == (0, 0)
    assert convention in str(found)


def test_the_mean_is_weighted_by_length() -> None:
    clips = [Improvement(1.0, 4.0, 100, "512 taps"), Improvement(4.0, -2.0, 200, "512 taps")]
    assert mean_improvement(clips) == Improvement(3.0, 0.0, 300, "512 taps")


def test_errors_say_what_is_allowed() -> None:
    clip = Improvement(1.0, 4.0, 100, "512 taps")
    with pytest.raises(ValueError, match="convention must be one of '512 taps', 'scale-invari"):
        sdr(VOICE, VOICE, "best")
    with pytest.raises(ValueError, match="must have the same shape"):
        sdr(VOICE[:-1], VOICE)
    with pytest.raises(ValueError, match="estimate contains NaN"):
        sdr(np.nan * VOICE, VOICE)
    with pytest.raises(ValueError, match="one sample or more"):
        sdr(VOICE[:0], VOICE[:0])
    with pytest.raises(ValueError, match=r"shape \(samples,\)"):
        improvement(Sources(VOICE, VOICE[None]), Sources(VOICE, VOICE), VOICE)
    with pytest.raises(ValueError, match="single convention, got '512 taps' and 'scale-inv"):
        mean_improvement([clip, clip._replace(convention="scale-invariant")])
    with pytest.raises(ValueError, match="got none"):
        mean_improvement([])
    with pytest.raises(ValueError, match="clip 1 is NaN"):
        mean_improvement([clip, clip._replace(voice=np.nan)])
