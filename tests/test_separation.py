"""Separators: features, mixtures, the loss of the mask, and streams that equal the whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pursuit as pu
from pursuit.audio import Features, Mixtures, Pair, Separator
from pursuit.audio.networks import MaskedSDR, Network, convolutional
from pursuit.datasets.singing import read_folder
from pursuit.files import write

RATE = 16_000
#: an architecture that is quick enough for tests
SMALL = {
    "features": Features(window=256, hop=64, bands=8),
    "frames": 24,
    "dilation": [(1, 1), (2, 2)],
    "memory": 2,
}


def noise(samples: int, channels: int | None = None, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = samples if channels is None else (samples, channels)
    return (0.1 * rng.standard_normal(shape)).astype(np.float32)


def shaken(separator: Separator, seed: int = 0) -> Separator:
    """The separator as some training might leave it."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in separator.encoder.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        separator.encoder.project_()
        separator.encoder.dictionary.clamp_(min=0)
    separator.bias = np.linspace(-1, 1, len(separator.bias), dtype=np.float32)
    return separator


def small(seed: int = 0) -> Separator:
    return shaken(convolutional(seed=seed, atoms=(3, 4), kernel=8, stride=2, **SMALL), seed)


def robust_nmf() -> Separator:
    """The paper's separator: robust NMF on all bins."""
    features = Features(window=128, hop=32)
    dictionary = torch.rand(4, features.width, generator=torch.Generator().manual_seed(0))
    model = pu.models.RobustNMF(dictionary, lam_star=2.0, lam=0.4)
    return Separator(pu.ProximalEncoder(model, 4, step="free", momentum=False), features)


def two_dictionaries() -> Separator:
    features = Features(window=128, hop=32, bands=6)
    generator = torch.Generator().manual_seed(0)
    atoms = [torch.rand(n, features.width, generator=generator) for n in (3, 5)]
    model = pu.models.LowRankSparse(*atoms, lam_star=1.0, lam=0.2)
    return Separator(pu.ProximalEncoder(model, 3), features)


KINDS = {"convolutional": small, "robust NMF": robust_nmf, "two dictionaries": two_dictionaries}


# ---- features -------------------------------------------------------------------------------


def test_levels_are_running_means_and_features_do_not_depend_on_the_volume() -> None:
    features = Features(window=256, hop=64, decay=0.9)
    spectra = features.stft.analysis_stream().push(noise(64 * 20))
    seen = features.stream().push(spectra)
    squares = np.abs(spectra).mean(-1)  # of A = |X|^0.5
    decay = 0.9 ** (64 / RATE / 0.016)
    for t in (0, 3, 19):
        weights = decay ** np.arange(t, -1, -1.0)
        level = (weights * squares[: t + 1]).sum() / weights.sum()
        expected = np.abs(spectra[t]) ** 0.5 / np.sqrt(level + 1e-8)
        np.testing.assert_allclose(seen[t], expected, rtol=1e-4, atol=1e-6)
    louder = features.stream().push(100 * spectra)
    np.testing.assert_allclose(louder, seen, rtol=1e-3)


def test_bands_are_means_of_bins_around_their_centres() -> None:
    features = Features(window=2048, hop=512, bands=24)
    np.testing.assert_allclose(features.filters.sum(1), 1, rtol=1e-5)
    hertz = np.arange(features.stft.bins) * RATE / 2048
    centres = 50 * 2 ** (np.arange(features.count) / 24)
    np.testing.assert_allclose(features.filters[60:] @ hertz, centres[60:], rtol=5e-3)
    # an octave higher is the same shape, 24 bands further up
    assert np.argmax(features.filters @ (hertz == hertz[64])) + 24 == np.argmax(
        features.filters @ (hertz == hertz[128])
    )


def test_a_constant_mask_of_the_bands_is_the_same_mask_of_the_bins() -> None:
    features = Features(window=2048, hop=512, bands=24)
    spread = np.ones(features.count) @ features.spread
    hertz = np.arange(features.stft.bins) * RATE / 2048
    inside = (hertz > 50) & (hertz < 7380)
    np.testing.assert_allclose(spread[inside], 1, rtol=1e-5)
    np.testing.assert_array_equal(spread[hertz < 40], 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bands": 0}, "bands must be at least 1"),
        ({"lowest": 9000.0}, "frequencies below 8000 Hz"),
        ({"width": 3}, "width must be at least"),
        ({"decay": 1.0}, "decay must be between 0 and 1"),
    ],
)
def test_features_refuse_what_makes_no_sense(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Features(**arguments)


# ---- mixtures and the loss ------------------------------------------------------------------


def pairs(count: int = 3, samples: int = 9000) -> list[Pair]:
    return [
        Pair(noise(samples, seed=n), noise(samples, seed=50 + n), f"{n % 2}") for n in range(count)
    ]


def test_the_batch_of_a_step_depends_on_the_seed_and_the_step_alone() -> None:
    features = Features(window=256, hop=64)
    first, second = (Mixtures(pairs(), features, frames=20, segments=3, seed=5) for _ in range(2))
    for step in (7, 0):
        torch.testing.assert_close(first.batch(step).x, second.batch(step).x, rtol=0, atol=0)
    assert not torch.equal(first.batch(0).x, first.batch(1).x)
    other = Mixtures(pairs(), features, frames=20, segments=3, seed=6)
    assert not torch.equal(first.batch(0).x, other.batch(0).x)


def test_targets_add_up() -> None:
    """|X|^2 = |V|^2 + |M|^2 + 2 Re V M*, and Re X* V = |V|^2 + Re V M*, summed over a segment."""
    batch = Mixtures(pairs(), Features(window=256, hop=64), frames=20, segments=3).batch(0)
    power, cross = (batch.targets[name].sum((1, 2)) for name in ("power", "cross"))
    expected = batch.targets["music"] - batch.targets["voice"] + 2 * cross
    torch.testing.assert_close(power, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("remix", [0.0, 1.0])
def test_remixed_voices_come_from_other_recordings(remix: float) -> None:
    """Each recording is a constant of its own, so segments tell where they come from."""
    made = [
        Pair(np.full(9000, n + 1, np.float32), np.full(9000, n + 1, np.float32)) for n in range(8)
    ]
    mixtures = Mixtures(made, Features(window=256, hop=64), 20, 1, remix=remix, speeds=(1.0,))
    rng = np.random.default_rng(0)
    drawn = [mixtures._segment(rng) for _ in range(60)]
    same = np.mean([music[9] == voice[9] for music, voice in drawn])
    assert same == 1 if remix == 0 else same < 0.4


def test_a_speed_changes_the_pitch() -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(40_000) / RATE).astype(np.float32)
    mixtures = Mixtures([Pair(tone, tone)], Features(), 40, 1, remix=0.0, speeds=(1.19,))
    music, _ = mixtures._segment(np.random.default_rng(0))
    spectrum = np.abs(np.fft.rfft(music * np.hanning(len(music))))
    assert np.argmax(spectrum) * RATE / len(music) == pytest.approx(1190, abs=5)


def test_masked_sdr_is_the_mean_ratio_of_both_estimates() -> None:
    """Against the definition on complex spectra, both parts alike."""
    separator = small()
    mixtures = Mixtures(pairs(), separator.features, frames=24, segments=3, seed=1)
    batch = mixtures.batch(0)
    network = Network(separator)
    with torch.no_grad():
        loss = MaskedSDR(24)(network, batch)
        mask = network.mask(network(batch.x)).reshape(3, 24, -1)
    rng = np.random.default_rng([1, 0])
    drawn = [mixtures._segment(rng) for _ in range(3)]
    stft = separator.features.stft
    music, voice = (stft.analyse(torch.from_numpy(np.stack(w))) for w in zip(*drawn, strict=True))
    mixture = music + voice
    ratios = [
        10 * ((true.abs().square().sum((1, 2))) / (true - found).abs().square().sum((1, 2))).log10()
        for true, found in ((voice, mask * mixture), (music, mixture - mask * mixture))
    ]
    torch.testing.assert_close(-loss, torch.stack(ratios).mean(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("regime", ["masked", "supervised", "unsupervised"])
def test_training_lowers_the_loss(kind: str, regime: str) -> None:
    separator = KINDS[kind]()
    tones = [np.sin(2 * np.pi * f * np.arange(16_000) / RATE) for f in (200, 300, 1500, 1900)]
    data = [
        Pair(*(w.astype(np.float32) for w in (low, high)))
        for low in tones[:2]
        for high in tones[2:]
    ]
    history = separator.fit(data, regime=regime, steps=60, segments=4, speeds=(1.0,))
    assert np.mean(history.loss[-2:]) < history.loss[0] - 0.02 * abs(history.loss[0])


def test_a_trained_separator_separates_what_it_was_trained_on() -> None:
    """Tones below and above 1 kHz, at new frequencies and levels."""

    def pair(low: float, high: float, size: float = 0.1) -> Pair:
        time = np.arange(24_000) / RATE
        return Pair(*(size * np.sin(2 * np.pi * f * time).astype(np.float32) for f in (low, high)))

    separator = convolutional(seed=0, atoms=(3, 4), kernel=8, stride=2, **SMALL)
    data = [pair(low, high) for low in (200, 300, 500) for high in (1500, 2000, 3000)]
    separator.fit(data, steps=150, segments=4, speeds=(1.0,))
    test = pair(400, 2500, size=0.01)
    voice, music = separator.separate(test.voice + test.accompaniment, RATE)
    reference = pu.audio.Sources(test.voice, test.accompaniment)
    estimate = pu.audio.Sources(voice, music)
    mixture = test.voice + test.accompaniment
    better = pu.audio.improvement(estimate, reference, mixture, "scale-invariant")
    assert min(better.voice, better.music) > 6


def test_an_interrupted_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole, part = small(), small()
    whole.fit(pairs(), steps=40, segments=2)
    path = tmp_path / "run.checkpoint"
    part.fit(pairs(), steps=40, segments=2, checkpoint=path, callback=lambda now: now.done >= 20)
    again = small()
    again.fit(pairs(), steps=40, segments=2, checkpoint=path)
    for name, tensor in whole.encoder.state_dict().items():
        assert torch.equal(tensor, again.encoder.state_dict()[name]), name
    assert whole.exponent == again.exponent
    np.testing.assert_array_equal(whole.bias, again.bias)


# ---- separating -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_equals_torch(kind: str) -> None:
    separator = KINDS[kind]()
    wave = noise(6400)
    found = separator.separate(wave, RATE).voice
    features = separator.features
    spectra = features.stft.analyse(torch.from_numpy(wave))
    rows = torch.from_numpy(features.stream().push(spectra.numpy()[:, None])[:, 0])
    network = Network(separator)
    if kind == "convolutional":
        network.encoder = separator.encoder.resized((len(rows), features.width))
        rows = rows.reshape(1, -1)
    with torch.no_grad():
        expected = features.stft.synthesise(spectra * network.mask(network(rows)), len(wave))
    assert np.abs(found).max() > 1e-3
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "channels"), [(16_000, None), (44_100, 2)])
def test_a_stream_in_random_blocks_equals_the_whole(kind: str, rate: int, channels) -> None:
    separator, wave = KINDS[kind](), noise(20_000, channels)
    expected = separator.separate(wave, rate)
    rng = np.random.default_rng(3)
    stream, parts, start = separator.stream(rate, channels), [], 0
    while start < len(wave):
        size = int(rng.choice([0, 1, 7, 160, 441, 3000]))
        parts.append(stream.push(wave[start : start + size]))
        start += size
        returned = sum(len(part.voice) for part in parts)
        assert returned >= min(start, len(wave)) - stream.latency
    parts.append(stream.flush())
    for found, whole in zip(map(np.concatenate, zip(*parts, strict=True)), expected, strict=True):
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 16_000, 22_050, 44_100, 96_000])
@pytest.mark.parametrize("channels", [None, 1, 2, 6])
def test_parts_add_up_and_keep_rate_length_and_channels(rate: int, channels) -> None:
    wave = noise(rate // 4 + 3, channels)
    parts = small().separate(wave, rate)
    assert parts.voice.shape == parts.accompaniment.shape == wave.shape
    np.testing.assert_allclose(parts.voice + parts.accompaniment, wave, rtol=0, atol=1e-6)


def test_channels_are_separated_independently() -> None:
    wave = noise(8000, 3)
    whole = small().separate(wave, RATE).voice
    for channel in range(3):
        alone = small().separate(wave[:, channel], RATE).voice
        np.testing.assert_allclose(whole[:, channel], alone, rtol=0, atol=1e-6)


def test_what_is_above_the_band_is_accompaniment() -> None:
    tone = np.sin(2 * np.pi * 12_000 * np.arange(48_000) / 48_000).astype(np.float32)
    voice, accompaniment = small().separate(tone, 48_000)
    assert np.abs(voice[2000:-2000]).max() < 1e-3
    np.testing.assert_allclose(accompaniment[2000:-2000], tone[2000:-2000], atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_silence_squares_and_short_signals(kind: str) -> None:
    separator = KINDS[kind]()
    for part in separator.separate(np.zeros(5000, np.float32), RATE):
        np.testing.assert_array_equal(part, 0)
    square = np.sign(np.sin(2 * np.pi * 220 * np.arange(16_000) / RATE)).astype(np.float32)
    for part in separator.separate(square, RATE):
        assert np.abs(part).max() < 3
    for samples in (0, 1, 2):
        assert separator.separate(np.zeros(samples, np.float32), RATE).voice.shape == (samples,)


def test_wrong_samples_are_named() -> None:
    wave = noise(3000)
    wave[1234] = np.nan
    with pytest.raises(ValueError, match="sample 1234 is NaN or infinite"):
        small().separate(wave, RATE)
    with pytest.raises(TypeError, match="floating-point"):
        small().separate(np.zeros(100, np.int16), RATE)
    with pytest.raises(ValueError, match="at least 1000 samples per second"):
        small().separate(noise(100), 10)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_separators_are_the_same_and_can_be_trained_on(kind: str, tmp_path: Path) -> None:
    separator, wave = KINDS[kind](), noise(8000)
    path = tmp_path / "voice.safetensors"
    separator.save(path, provenance="noise", training={"steps": 0})
    loaded = Separator.load(path)
    np.testing.assert_array_equal(
        loaded.separate(wave, RATE).voice, separator.separate(wave, RATE).voice
    )
    assert loaded.info["provenance"] == "noise"
    assert loaded.parameter_count == separator.parameter_count
    for name, tensor in separator.encoder.state_dict().items():
        assert torch.equal(tensor, loaded.encoder.state_dict()[name]), name
    loaded.fit(pairs(), steps=10, segments=2)


def test_a_file_of_another_kind_or_with_a_missing_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    pu.save(pu.models.Lasso(torch.eye(3), 0.1), path)
    with pytest.raises(ValueError, match="holds 'model', not a separator"):
        Separator.load(path)
    separator = small()
    separator.save(path)
    arrays, info = pu.files.read(path)
    del arrays["program.weight"]
    write(path, arrays, {k: v for k, v in info.items() if k not in ("format", "version", "same")})
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be loaded: weight is missing"):
        Separator.load(path)


def test_encoders_that_cannot_separate_are_refused() -> None:
    lasso = pu.ProximalEncoder(pu.models.Lasso(torch.eye(65), 0.1), 2)
    with pytest.raises(TypeError, match="two parts"):
        Separator(lasso, Features(window=128, hop=32))
    with pytest.raises(ValueError, match="takes 65 features of a frame, but the features have 129"):
        Separator(robust_nmf().encoder, Features(window=256, hop=64))


@pytest.mark.parametrize("latency", ["normal", "low"])
def test_pretrained_models_are_small_causal_and_run_without_torch(latency: str) -> None:
    separator = Separator.pretrained(latency)
    assert separator.parameter_count <= 100_000
    assert Path(separator._saved.path).stat().st_size < 300_000
    if latency == "low":
        assert separator.features.window <= 0.020 * separator.rate
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np\n"
        "from pursuit.audio import Separator\n"
        f"stream = Separator.pretrained({latency!r}).stream()\n"
        "stream.push(np.zeros(4000, np.float32))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    wave = noise(16_000)
    changed = wave.copy()
    changed[9000:] = 0
    first, second = (separator.separate(w, RATE).voice for w in (wave, changed))
    latest = 9000 - separator.features.window
    np.testing.assert_allclose(first[:latest], second[:latest], rtol=0, atol=1e-6)


def test_the_pretrained_model_separates_singers_it_has_not_heard(data_folder: Path) -> None:
    """A clip of each of the twelve test singers; the whole test set is part of `reproduce`."""
    separator, found = Separator.pretrained(), []
    for clip in read_folder(data_folder, "test")[::5]:
        music, voice = clip.read()
        mixture = music + voice
        estimate = pu.audio.Sources(*separator.separate(mixture, RATE))
        better = pu.audio.improvement(estimate, pu.audio.Sources(voice, music), mixture)
        found.append((better.voice, better.music))
    assert len(found) == 12
    voice, music = np.mean(found, axis=0)
    assert voice > 7.2
    assert music > 7.4
