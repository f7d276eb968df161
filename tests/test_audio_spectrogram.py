"""The short-time Fourier transform: exact inverse, known references, streams equal to batches."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import scipy.signal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pursuit.audio import STFT

SHAPES = [(1024, 256), (320, 160), (512, 128), (2, 1), (3, 1), (7, 3), (100, 30), (321, 100)]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def blocks_of(signal: np.ndarray, cuts: list[int]) -> list[np.ndarray]:
    """The signal cut at positions, which may repeat (empty blocks)."""
    edges = [0, *sorted(cut % (len(signal) + 1) for cut in cuts), len(signal)]
    return [signal[start:end] for start, end in pairwise(edges)]


def streamed(
    stft: STFT, blocks: list[np.ndarray], channels: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Spectra and reconstruction of a signal that comes in blocks."""
    analysis, synthesis = stft.analysis_stream(channels), stft.synthesis_stream(channels)
    spectra = [analysis.push(block) for block in blocks]
    waves = [synthesis.push(part) for part in spectra]
    spectra.append(analysis.flush())
    waves.append(synthesis.flush(spectra[-1], analysis.samples))
    return np.concatenate(spectra), np.concatenate(waves)


@pytest.mark.parametrize(("window", "hop"), SHAPES)
@pytest.mark.parametrize("samples", [1, 2, 159, 160, 1024, 3001])
def test_the_round_trip_is_exact_from_the_first_to_the_last_sample(
    window: int, hop: int, samples: int, dtype: torch.dtype
) -> None:
    stft = STFT(window, hop)
    wave = torch.from_numpy(noise(2, 3, samples)).to(dtype)
    spectra = stft.analyse(wave)
    assert spectra.shape == (2, 3, stft.frames(samples), stft.bins)
    error = (stft.synthesise(spectra, samples) - wave).abs().max() / wave.abs().max()
    assert error < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize(("window", "hop"), SHAPES)
def test_frames_are_those_of_scipy(window: int, hop: int) -> None:
    wave = noise(3000).astype(np.float64)
    spectra = STFT(window, hop).analyse(torch.from_numpy(wave)).numpy()
    hann = scipy.signal.get_window("hann", window)
    _, _, expected = scipy.signal.stft(
        np.pad(wave, (window - hop, 0)),
        window=hann,
        nperseg=window,
        noverlap=window - hop,
        boundary=None,
        padded=False,
    )
    # scipy divides by the sum of the window, and leaves out frames that end after the signal
    frames = expected.T * hann.sum()
    np.testing.assert_allclose(spectra[: len(frames)], frames, atol=1e-10)
    assert len(frames) == 3000 // hop


def test_parseval() -> None:
    stft = STFT(512, 128)
    wave = torch.from_numpy(noise(4000)).double()
    energy = stft.analyse(wave).abs().square()
    # the squared Hann window overlaps to 3/8 window / hop; bins but the first and last count twice
    total = (2 * energy.sum() - energy[:, 0].sum() - energy[:, -1].sum()) / 512
    assert total.item() == pytest.approx(3 / 8 * 512 / 128 * wave.square().sum().item())


def test_linearity_and_the_least_squares_inverse() -> None:
    stft = STFT(100, 30)
    a, b = torch.from_numpy(noise(2, 1000)).double()
    torch.testing.assert_close(
        stft.analyse(2 * a - 3 * b), 2 * stft.analyse(a) - 3 * stft.analyse(b)
    )
    # the transform of the inverse is an orthogonal projection in the norm of the whole spectrum
    frames = torch.fft.rfft(torch.from_numpy(noise(stft.frames(1000), 100)).double())
    projected = stft.analyse(stft.synthesise(frames, 1000))
    again = stft.analyse(stft.synthesise(projected, 1000))
    torch.testing.assert_close(again, projected)
    rest = torch.fft.irfft(frames - projected, n=100)
    assert (rest * torch.fft.irfft(stft.analyse(b), n=100)).sum().abs() < 1e-9


def test_gradients() -> None:
    stft = STFT(8, 3)
    wave = torch.from_numpy(noise(20)).double().requires_grad_()
    mask = torch.from_numpy(noise(stft.frames(20), stft.bins)).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda wave, mask: stft.synthesise(mask * stft.analyse(wave), 20), (wave, mask)
    )


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from([*SHAPES, (64, 16)]),
    samples=st.integers(0, 3000),
    cuts=st.lists(st.integers(0, 3000), max_size=12),
    channels=st.sampled_from([None, 1, 2]),
)
def test_streams_equal_the_batch_for_any_blocks(
    shape: tuple[int, int], samples: int, cuts: list[int], channels: int | None
) -> None:
    stft = STFT(*shape)
    wave = noise(samples, *([channels] if channels else []))
    spectra, back = streamed(stft, blocks_of(wave, cuts), channels)
    once, back_once = streamed(stft, [wave], channels)
    assert np.array_equal(spectra, once)
    assert np.array_equal(back, back_once)
    assert (spectra.dtype, back.dtype) == (np.complex64, np.float32)
    assert back.shape == wave.shape
    if samples:
        batch = stft.analyse(torch.from_numpy(wave).movedim(0, -1)).movedim(-2, 0).numpy()
        assert np.abs(spectra - batch).max() <= 1e-6 * np.abs(batch).max()
        assert np.abs(back - wave).max() <= 1e-6 * np.abs(wave).max()


@pytest.mark.parametrize(("window", "hop"), [(1024, 256), (7, 3)])
def test_one_sample_at_a_time_with_masked_spectra(window: int, hop: int) -> None:
    stft = STFT(window, hop)
    wave = noise(2000)
    gains = np.abs(noise(stft.frames(2000), stft.bins, seed=1))

    def masked(size: int) -> np.ndarray:
        analysis, synthesis = stft.analysis_stream(), stft.synthesis_stream()
        parts, done = [], 0
        for start in range(0, 2000, size):
            frames = analysis.push(wave[start : start + size])
            parts.append(synthesis.push(frames * gains[done : done + len(frames)]))
            done += len(frames)
        parts.append(synthesis.flush(analysis.flush() * gains[done:], analysis.samples))
        return np.concatenate(parts)

    single = masked(1)
    assert np.array_equal(single, masked(777))
    spectra = stft.analyse(torch.from_numpy(wave)) * torch.from_numpy(gains)
    batch = stft.synthesise(spectra, 2000).numpy()
    assert np.abs(single - batch).max() <= 1e-5 * np.abs(batch).max()


@pytest.mark.parametrize(("window", "hop"), SHAPES)
def test_latency_is_reached_and_never_exceeded(window: int, hop: int) -> None:
    stft = STFT(window, hop)
    analysis, synthesis = stft.analysis_stream(), stft.synthesis_stream()
    late, returned = [], 0
    for pushed in range(1, 3 * window + 10):
        returned += len(synthesis.push(analysis.push(noise(1))))
        late.append(pushed - returned)
    assert max(late) == stft.latency
    assert max(late[hop - 1 :: hop]) == window - hop


def test_the_state_of_a_stream_does_not_grow() -> None:
    stft = STFT(64, 16)
    analysis, synthesis = stft.analysis_stream(2), stft.synthesis_stream(2)
    for samples in (1, 10_000, 63, 0, 100_000):
        synthesis.push(analysis.push(noise(samples, 2)))
        assert len(analysis._waiting) < stft.window
        assert synthesis._unfinished.size < stft.window * 2
        assert analysis._waiting.base is None
        assert synthesis._unfinished.base is None


def test_streams_run_without_torch() -> None:
    code = (
        "import sys, numpy as np; from pursuit.audio import STFT, BandSplit; s = STFT(64, 16);"
        "a, b = s.analysis_stream(), s.synthesis_stream(); x = np.ones(100, np.float32);"
        "y = b.push(a.push(x)); y = np.append(y, b.flush(a.flush(), a.samples));"
        "split = BandSplit(44100, 16000); split.push(x); split.flush();"
        "print(abs(y - x).max() < 1e-6, [m for m in ('torch', 'scipy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "True []"


def test_errors_say_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"hop must be from 1 to window // 2 = 50, got 51"):
        STFT(100, 51)
    with pytest.raises(ValueError, match="window must be at least 2 samples, got 1"):
        STFT(1, 1)
    stft = STFT(64, 16)
    with pytest.raises(ValueError, match="wave has no samples"):
        stft.analyse(torch.zeros(2, 0))
    with pytest.raises(ValueError, match="with 33 bins for a window of 64 samples"):
        stft.synthesise(torch.zeros(10, 32), 100)
    with pytest.raises(ValueError, match="a signal of 100 samples has 10 frames"):
        stft.synthesise(torch.zeros(9, 33), 100)
    with pytest.raises(ValueError, match="a signal of 100 samples has 10 frames"):
        stft.synthesis_stream().flush(np.zeros((9, 33), np.complex64), 100)
    with pytest.raises(ValueError, match=r"shape \(frames, 2, 33\), got \(9, 33\)"):
        stft.synthesis_stream(2).push(np.zeros((9, 33), np.complex64))
    analysis = stft.analysis_stream()
    with pytest.raises(TypeError, match="got int16; read the file with dtype='float32'"):
        analysis.push(np.zeros(10, np.int16))
    with pytest.raises(ValueError, match=r"shape \(samples,\), got \(10, 2\)"):
        analysis.push(noise(10, 2))
    with pytest.raises(ValueError, match="channels must be at least 1"):
        stft.analysis_stream(0)
    analysis.flush()
    with pytest.raises(RuntimeError, match="has been flushed"):
        analysis.push(noise(10))
