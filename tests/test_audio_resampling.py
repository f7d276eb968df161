"""Resampling in streams: known delay, exact length, and bands that add up to the signal."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.audio import STFT, BandSplit, Resampler

RATES = [8000, 11025, 16000, 22050, 32000, 44100, 48000, 88200, 96000]
MODEL_RATE = 16000


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def resampled(wave: np.ndarray, rate_in: int, rate_out: int, size: int = 1000) -> np.ndarray:
    stream = Resampler(rate_in, rate_out)
    parts = [stream.push(wave[start : start + size]) for start in range(0, len(wave), size)]
    return np.concatenate([*parts, stream.flush()])


def split(stream: BandSplit, wave: np.ndarray, edges: list[int]) -> tuple[np.ndarray, np.ndarray]:
    parts = [stream.push(wave[start:end]) for start, end in pairwise(edges)]
    low, rest = zip(*parts, stream.flush(), strict=True)
    return np.concatenate(low), np.concatenate(rest)


class Masked:
    """A process at the model's rate: all spectra are multiplied by a number."""

    def __init__(self, gain: float, channels: int | None = None) -> None:
        stft = STFT(320, 160)
        self.gain, self.latency = np.float32(gain), stft.latency
        self.analysis, self.synthesis = (
            stft.analysis_stream(channels),
            stft.synthesis_stream(channels),
        )

    def push(self, samples: np.ndarray) -> np.ndarray:
        return self.synthesis.push(self.gain * self.analysis.push(samples))

    def flush(self) -> np.ndarray:
        return self.synthesis.flush(self.gain * self.analysis.flush(), self.analysis.samples)


@pytest.mark.parametrize("rate", RATES)
def test_a_tone_keeps_its_phase(rate: int) -> None:
    def tone(at: int) -> np.ndarray:
        return np.sin(2 * np.pi * 1000 * np.arange(at // 2) / at).astype(np.float32)

    for rate_in, rate_out in ((rate, MODEL_RATE), (MODEL_RATE, rate)):
        found, expected = resampled(tone(rate_in), rate_in, rate_out), tone(rate_out)
        assert len(found) == -(-(rate_in // 2) * rate_out // rate_in)
        inner = slice(rate_out // 10, rate_out * 4 // 10)
        # a delay by a hundredth of a sample at the model's rate would make an error of 0.004
        assert np.abs(found[inner] - expected[inner]).max() < 1e-4


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("position", [3000, 4001])
def test_an_impulse_stays_where_it_is(rate: int, position: int) -> None:
    wave = np.zeros(8000, np.float32)
    wave[position] = 1
    low, rest = split(BandSplit(rate, MODEL_RATE), wave, [0, 1000, 8000])
    assert np.argmax(low) == position
    around = low[position - 200 : position + 201]
    assert np.abs(around - around[::-1]).max() < 1e-5
    assert np.abs(low + rest - wave).max() < 1e-6


@pytest.mark.parametrize("rate", RATES)
def test_the_cross_correlation_has_its_peak_at_zero(rate: int) -> None:
    wave = noise(6000)
    low, _ = split(BandSplit(rate, MODEL_RATE), wave, [0, 6000])
    correlation = scipy.signal.correlate(low, wave)
    assert np.argmax(correlation) == 5999


@settings(max_examples=60, deadline=None)
@given(
    rate=st.sampled_from([*RATES, 12345, 24000]),
    samples=st.integers(0, 12000),
    cuts=st.lists(st.integers(0, 12000), max_size=8),
    channels=st.sampled_from([None, 2]),
    gain=st.sampled_from([None, 0.5]),
)
def test_bands_add_up_to_the_signal_for_any_blocks(
    rate: int, samples: int, cuts: list[int], channels: int | None, gain: float | None
) -> None:
    wave = noise(samples, *([channels] if channels else []))

    def parts(edges: list[int]) -> tuple[np.ndarray, np.ndarray]:
        process = None if gain is None else Masked(gain, channels)
        return split(BandSplit(rate, MODEL_RATE, channels, process), wave, edges)

    low, rest = parts([0, *sorted(cut % (samples + 1) for cut in cuts), samples])
    assert low.shape == rest.shape == wave.shape
    assert low.dtype == rest.dtype == np.float32
    assert (np.abs(low + rest - wave) <= 2.0**-23 * (np.abs(low) + np.abs(rest))).all()
    low_once, rest_once = parts([0, samples])
    assert np.array_equal(low, low_once)
    assert np.array_equal(rest, rest_once)


def test_bands_of_a_recording_with_16_bits_add_up_exactly() -> None:
    integers = np.random.default_rng(0).integers(-(2**15), 2**15, 20_000)
    wave = (integers / 2**15).astype(np.float32)
    low, rest = split(BandSplit(44100, MODEL_RATE), wave, [0, 777, 20_000])
    assert np.array_equal(np.rint((low + rest) * 2**15), integers)


@pytest.mark.parametrize("rate", [22050, 44100, 48000, 96000])
def test_the_low_band_is_what_the_model_can_represent(rate: int) -> None:
    seconds = np.arange(rate) / rate
    inside = np.sin(2 * np.pi * 3000 * seconds).astype(np.float32)
    above = np.sin(2 * np.pi * 9000 * seconds).astype(np.float32)
    low, rest = split(BandSplit(rate, MODEL_RATE), inside + above, [0, rate])
    inner = slice(rate // 10, -rate // 10)
    assert np.abs(low - inside)[inner].max() < 1e-3
    assert np.abs(rest - above)[inner].max() < 1e-3


def test_a_process_is_aligned_with_the_signal() -> None:
    wave = noise(30_000)
    plain, _ = split(BandSplit(44100, MODEL_RATE), wave, [0, 30_000])
    halved, _ = split(BandSplit(44100, MODEL_RATE, process=Masked(0.5)), wave, [0, 999, 30_000])
    np.testing.assert_allclose(halved, 0.5 * plain, atol=1e-5)


@pytest.mark.parametrize("quality", ["LQ", "HQ"])
@pytest.mark.parametrize("rate", [8000, 11025, 16000, 44100, 96000])
def test_latency_is_never_exceeded(rate: int, quality: str) -> None:
    rng = np.random.default_rng(0)
    for stream in (
        Resampler(rate, MODEL_RATE, quality=quality),
        Resampler(MODEL_RATE, rate, quality=quality),
        BandSplit(rate, MODEL_RATE, process=Masked(1.0), quality=quality),
    ):
        rates = (stream.rate_in, stream.rate_out) if isinstance(stream, Resampler) else (1, 1)
        pushed = returned = 0
        latest = 0.0
        while pushed < 300_000:
            block = np.zeros(rng.integers(1, 400), np.float32)
            part = stream.push(block)
            pushed += len(block)
            returned += len(part if isinstance(stream, Resampler) else part.low)
            latest = max(latest, pushed - returned * rates[0] / rates[1])
        assert latest <= stream.latency
        # and it is no idle figure
        assert latest >= 0.7 * stream.latency - 400


def test_equal_rates_change_nothing() -> None:
    stream = Resampler(16000, 16000, channels=2)
    wave = noise(1000, 2)
    assert stream.latency == 0
    assert np.array_equal(stream.push(wave), wave)
    assert stream.flush().shape == (0, 2)


def test_a_given_length_is_met() -> None:
    for length in (36, 37, 200):
        stream = Resampler(44100, 16000)
        first = stream.push(noise(100))
        assert len(first) + len(stream.flush(length)) == length
    stream = Resampler(44100, 16000)
    stream.push(noise(44100))
    with pytest.raises(ValueError, match="length must be at least"):
        stream.flush(10)


def test_errors_say_what_is_allowed() -> None:
    with pytest.raises(ValueError, match="rate_in must be positive"):
        Resampler(0, 16000)
    with pytest.raises(ValueError, match="quality must be one of 'LQ'"):
        Resampler(44100, 16000, quality="best")
    stream = BandSplit(44100, 16000)
    stream.flush()
    with pytest.raises(RuntimeError, match="has been flushed"):
        stream.flush()
