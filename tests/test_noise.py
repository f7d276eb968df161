"""Speakers in noise: the data, the mixtures, exact codes and errors, masks, losses, files."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from scipy.optimize import nnls

import pursuit as pu
from processes import python
from pursuit.audio.noisy_speakers import (
    FEATURES,
    NoisySpeakers,
    denoised,
    mixed,
    observed,
    stretch,
)
from pursuit.audio.noisy_training import NoisySpeech, PooledErrors, SpeechParts, dictionary
from pursuit.batches import Batch
from pursuit.datasets import noise as corpus
from pursuit.models import LowRankSparse

RATE = 8000
PITCHES = {"a": 110.0, "b": 160.0, "c": 230.0}


def voice(pitch: float, seed: int, samples: int = 8000) -> np.ndarray:
    """Harmonics of a pitch, louder and softer in turn."""
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / RATE
    wave = sum(np.sin(2 * np.pi * k * pitch * time + rng.uniform(0, 6)) / k for k in range(1, 12))
    return ((1.2 + np.sin(2 * np.pi * 3 * time)) * wave).astype(np.float32)


SPEECH = {name: [voice(p, k) for k in range(3)] for name, p in PITCHES.items()}
NOISE = [np.random.default_rng(9).standard_normal(12_000).astype(np.float32)]


@pytest.fixture(scope="module")
def learned() -> NoisySpeakers:
    return NoisySpeakers.learn(SPEECH, NOISE, atoms=5, layers=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two speakers with three takes of four digits, and one noise in two collections."""
    speech, noise = ["file,speaker,role,seconds"], ["file,noise,role,sample_begin,sample_end"]
    roles = ("train", "val", "test")
    (tmp_path / "noise" / "aurora10s").mkdir(parents=True)
    for speaker, (take, role), digit in itertools.product("xy", enumerate(roles), range(4)):
        name = f"{speaker}/{digit}_{speaker}_{take}.wav"
        (tmp_path / speaker).mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, np.full(4000, 0.01 * (digit + 1)), RATE)
        speech.append(f"{name},{speaker},{role},0.5")
    soundfile.write(tmp_path / "noise/aurora10s/hum.wav", np.arange(9000) / 10_000, RATE)
    for number, role in enumerate(roles):
        noise.append(f"noise/aurora10s/hum.wav,hum,{role},{3000 * number},{3000 * number + 3000}")
        noise.append(f"noise/others/hum.wav,hum,{role},0,3000")
    (tmp_path / corpus.SPEECH).write_text("\n".join(speech) + "\n")
    (tmp_path / corpus.NOISE).write_text("\n".join(noise) + "\n")
    return tmp_path


def test_clips_are_the_digits_of_a_take_once_each(folder: Path) -> None:
    clips = corpus.clips(folder, "train", seconds=1.0)
    assert [len(clip.paths) for clip in clips] == [2, 2, 2, 2]
    for speaker in "xy":
        own = [path for clip in clips if clip.speaker == speaker for path in clip.paths]
        assert sorted(path.name for path in own) == [f"{d}_{speaker}_0.wav" for d in range(4)]
    wave = clips[0].read()
    digits = [int(path.name[0]) for path in clips[0].paths]
    expected = np.repeat([0.01 * (digit + 1) for digit in digits], 4000)
    assert wave.dtype == np.float32
    np.testing.assert_allclose(wave, expected, atol=2**-15)
    assert corpus.clips(folder, "train", seed=0) == corpus.clips(folder, "train", seed=0)


def test_roles_have_no_take_and_no_sample_in_common(folder: Path) -> None:
    _assert_disjoint(folder)


@pytest.mark.data
def test_roles_of_the_real_data_are_disjoint(data_folder: Path) -> None:
    _assert_disjoint(data_folder)
    clips = corpus.clips(data_folder, "test")
    assert len({clip.speaker for clip in clips}) == 10
    assert 1.5 < np.mean([len(clip.read()) for clip in clips[:20]]) / corpus.RATE < 2.5


def _assert_disjoint(folder: Path) -> None:
    takes, samples = [], []
    for role in ("train", "val", "test"):
        takes.append({(clip.speaker, clip.take) for clip in corpus.clips(folder, role)})
        samples.append({(n.path, k) for n in corpus.noises(folder, role)
                        for k in range(n.begin, n.end, 100)})  # fmt: skip
        assert takes[-1]
        assert samples[-1]
    for sets in (takes, samples):
        for first, second in itertools.combinations(sets, 2):
            assert not first & second


def test_only_noises_that_are_disjoint_in_time_are_listed(folder: Path) -> None:
    (noise,) = corpus.noises(folder, "val")
    assert (noise.kind, noise.begin, noise.end) == ("hum", 3000, 6000)
    np.testing.assert_allclose(noise.read(), np.arange(3000, 6000) / 10_000, atol=2**-15)


def test_overlapping_roles_are_refused(folder: Path) -> None:
    table = folder / corpus.NOISE
    text = table.read_text()
    table.write_text(text.replace(",3000,6000", ",2999,6000"))
    with pytest.raises(ValueError, match=r"hum\.wav twice, from 2999 on"):
        corpus.noises(folder, "train")
    table = folder / corpus.SPEECH
    table.write_text(table.read_text().replace("0_x_0.wav,x,train", "0_x_0.wav,x,test"))
    with pytest.raises(ValueError, match="take 0 of x has two roles"):
        corpus.clips(folder, "train")
    with pytest.raises(ValueError, match="no role 'dev'"):
        corpus.noises(folder.rename(folder.parent / "other"), "dev")


@pytest.mark.parametrize("snr", [-5.0, 0.0, 7.5])
def test_mixtures_have_the_stated_ratio(snr: float) -> None:
    rng = np.random.default_rng(0)
    speech, noise = mixed(3 * rng.standard_normal(999), rng.uniform(0, 1, 999), snr)
    ratio = 10 * np.log10((speech**2).sum() / (noise**2).sum())
    assert ratio == pytest.approx(snr, abs=1e-4)
    assert (speech**2).mean() == pytest.approx(1, rel=1e-5)


def test_a_short_noise_is_repeated() -> None:
    rng = np.random.default_rng(0)
    found = stretch(np.arange(10.0), 25, rng)
    assert len(found) == 25
    assert set(np.diff(found)) == {1.0, -9.0}
    begins = {int(stretch(np.arange(10.0), 8, rng)[0]) for _ in range(50)}
    assert begins == {0, 1, 2}


def test_features_are_roots_of_magnitudes_of_unit_mean_square() -> None:
    wave = voice(150.0, 0, 2000)
    spectra, x = observed(wave)
    padded = np.concatenate([np.zeros(384), wave, np.zeros(512)])
    window = np.hanning(513)[:-1]
    frames = np.stack([padded[k * 128 : k * 128 + 512] * window for k in range(len(x))])
    magnitudes = np.sqrt(np.abs(np.fft.rfft(frames)))
    expected = magnitudes / np.sqrt((magnitudes**2).mean())
    # the root makes rounding of 1e-7 of a spectrum, where it is zero, 1e-3 at most
    np.testing.assert_allclose(x, expected, atol=1e-3)
    assert (x.astype(float) ** 2).mean() == pytest.approx(1, rel=1e-5)
    np.testing.assert_allclose(observed(128 * wave)[1], x, rtol=1e-6)
    assert spectra.shape == x.shape == (FEATURES.stft.frames(2000), 257)


def test_exact_codes_are_those_of_non_negative_least_squares() -> None:
    """With a ridge on both codes the problem is one of scipy's, on a matrix with more rows."""
    rng = np.random.default_rng(1)
    low, own, ridge = rng.random((4, 12)), rng.random((3, 12)), 0.3
    model = LowRankSparse(low, own, ridge, 0.0, sparse_ridge=ridge)
    x = rng.random((20, 12))
    codes = pu.solve(model, torch.from_numpy(x), tol=1e-9).codes.numpy()
    atoms = np.concatenate([low, own])
    stacked = np.concatenate([atoms.T, np.sqrt(ridge) * np.eye(7)])
    for row, code in zip(x, codes, strict=True):
        expected, _ = nnls(stacked, np.concatenate([row, np.zeros(7)]))
        np.testing.assert_allclose(code, expected, atol=1e-6)


def test_errors_of_deep_untrained_encoders_are_the_exact_ones() -> None:
    deep = NoisySpeakers.learn(SPEECH, NOISE, atoms=4, layers=400)
    wave = SPEECH["a"][0][:3000] + NOISE[0][:3000]
    _, x = observed(wave)
    found = deep.errors(wave)
    for number, encoder in enumerate(deep.bank):
        atoms = encoder.model.dictionary.detach().double().numpy()
        stacked = np.concatenate([atoms.T, np.sqrt(0.3) * np.eye(len(atoms))])
        for row in range(0, len(x), 7):
            code, _ = nnls(stacked, np.concatenate([x[row], np.zeros(len(atoms))]))
            expected = ((x[row] - code @ atoms) ** 2).sum()
            assert found[row, number] == pytest.approx(expected, rel=1e-3)


def test_compiled_errors_are_those_of_torch(learned: NoisySpeakers) -> None:
    wave = SPEECH["b"][0] + NOISE[0][:8000]
    with torch.no_grad():
        expected = learned.bank.errors(torch.from_numpy(observed(wave)[1])).numpy()
    np.testing.assert_allclose(learned.errors(wave), expected, rtol=1e-3)
    heard = learned.identify(wave)
    sums = expected.sum(0)
    assert heard.speaker == learned.speakers[int(sums.argmin())]
    assert list(heard.errors.values()) == pytest.approx(sums.tolist(), rel=1e-3)


def test_speech_and_noise_add_up_to_the_wave(learned: NoisySpeakers) -> None:
    wave = SPEECH["c"][1] + 0.5 * NOISE[0][:8000]
    speech, noise = learned.denoise(wave)
    assert np.abs(speech + noise - wave).max() <= 1e-6 * np.abs(wave).max()
    assert len(speech) == len(wave)
    chosen = learned.identify(wave).speaker
    np.testing.assert_array_equal(learned.denoise(wave, chosen).speech, speech)


def test_denoising_brings_speech_nearer(learned: NoisySpeakers) -> None:
    clean = SPEECH["a"][0]
    parts = mixed(clean, NOISE[0][:8000], 0.0)
    speech = learned.denoise(parts[0] + parts[1], "a").speech
    assert ((speech - parts[0]) ** 2).mean() < 0.3 * (parts[1] ** 2).mean()


def test_the_mask_is_a_wiener_filter() -> None:
    """Parts of one frequency each: the mask is the share of the power, |.|^4 of the features."""
    wave = voice(200.0, 1, 1500)
    spectra, x = observed(wave)
    atoms = np.ones((2, 257), np.float32)
    codes = np.tile(np.array([[1.0, 2.0]], np.float32), (len(x), 1))
    speech, _ = denoised(wave, spectra, codes, atoms, 1, FEATURES)
    np.testing.assert_allclose(speech, wave * 16 / 17, atol=1e-4)
    speech, noise = denoised(wave, spectra, 0 * codes, atoms, 1, FEATURES)
    np.testing.assert_allclose(speech, noise, atol=1e-4)


def test_dictionaries_have_non_negative_unit_atoms() -> None:
    found = dictionary(SPEECH["a"], 4)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.norm(dim=1), 1, rtol=1e-5)


def test_training_mixtures_have_parts_that_add_up() -> None:
    source = NoisySpeech(SPEECH, NOISE, segments=5, seconds=0.5, every=3, seed=2)
    batch = source.batch(7)
    targets = batch.targets
    assert len(batch.x) == 5 * source.frames
    torch.testing.assert_close(targets["low_rank"] + targets["sparse"], batch.x)
    assert (targets["sparse"] >= 0).all()
    squares = batch.x.reshape(5, -1).square().mean(1)
    torch.testing.assert_close(squares, torch.ones(5), rtol=1e-4, atol=0)
    labels = targets["labels"].reshape(5, -1)
    assert (labels == labels[:, :1]).all()
    assert set(labels[:3, 0].tolist()) == {0, 1, 2}  # everyone once before anyone again
    again = NoisySpeech(SPEECH, NOISE, segments=5, seconds=0.5, every=3, seed=2).batch(7)
    assert torch.equal(again.x, batch.x)
    assert not torch.equal(source.batch(8).x, batch.x)


def test_segments_have_ratios_in_the_range() -> None:
    speech = {name: [np.float32(5) * wave for wave in own] for name, own in SPEECH.items()}
    source = NoisySpeech(speech, NOISE, seconds=1.0, snr=(-3.0, -1.0))
    rng, ratios = np.random.default_rng(0), []
    for _ in range(40):
        own, rest = source._segment(0, rng)
        ratios.append(10 * np.log10((own**2).mean() / (rest**2).mean()))
    assert -3.01 < min(ratios) < -2.5
    assert -1.5 < max(ratios) < -0.99


@pytest.fixture(scope="module")
def small() -> tuple[pu.EncoderBank, Batch]:
    """A bank of two encoders in double precision, and two segments of three rows."""
    generator = torch.Generator().manual_seed(0)
    low = torch.rand(2, 6, generator=generator, dtype=torch.float64)
    owns = torch.rand(2, 2, 6, generator=generator, dtype=torch.float64)
    models = [LowRankSparse(low, own, 0.1, 0.0, sparse_ridge=0.1) for own in owns]
    bank = pu.EncoderBank([pu.ProximalEncoder(m, 3, step="model", form="gram") for m in models])
    x = torch.rand(6, 6, generator=generator, dtype=torch.float64)
    share = torch.rand(6, 6, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1, 1, 1, 0, 0, 0])
    parts = {"low_rank": x * share, "sparse": x * (1 - share), "labels": labels}
    return bank, Batch(x, parts)


def test_the_pooled_loss_is_that_of_its_formula(small: tuple[pu.EncoderBank, Batch]) -> None:
    bank, batch = small
    x = batch.x.numpy()
    errors = np.zeros((2, 2))
    for number, encoder in enumerate(bank):
        codes = encoder(batch.x).detach().numpy()
        atoms = encoder.model.dictionary.detach().numpy()
        errors[:, number] = ((x - codes @ atoms) ** 2).sum(1).reshape(2, 3).sum(1)
    scores = errors**-7.0  # exp(-sharpness log e)
    chances = scores / scores.sum(1, keepdims=True)
    expected = -np.log([chances[0, 1], chances[1, 0]]).mean()
    assert PooledErrors(3, sharpness=7.0)(bank, batch).item() == pytest.approx(expected)


def test_the_supervised_loss_is_that_of_its_formula(small: tuple[pu.EncoderBank, Batch]) -> None:
    bank, batch = small
    total = 0.0
    for row, label in enumerate(batch.targets["labels"].tolist()):
        code = bank[label](batch.x[row]).detach()
        model = bank[label].model
        noise, speech = code[:2] @ model.low_rank, code[2:] @ model.sparse
        total += float((noise - batch.targets["low_rank"][row]).square().sum())
        total += float((speech - batch.targets["sparse"][row]).square().sum())
    regime = SpeechParts()
    assert regime(bank, batch).item() == pytest.approx(total / 6)
    assert regime.loss(bank, batch, bank(batch.x)).item() == pytest.approx(total / 6)


@pytest.mark.parametrize("regime", [PooledErrors(3), SpeechParts()], ids=lambda r: r.name)
def test_gradients_of_the_losses_are_those_of_differences(
    small: tuple[pu.EncoderBank, Batch], regime: pu.regimes.Regime
) -> None:
    bank, batch = small
    atoms = bank[0].sparse
    atoms.requires_grad_(True)
    (gradient,) = torch.autograd.grad(regime(bank, batch), atoms)
    atoms.requires_grad_(False)
    step = 1e-6
    for place in ((0, 0), (1, 3)):
        values = []
        for sign in (1, -1):
            atoms[place] += sign * step
            values.append(regime(bank, batch).item())
            atoms[place] -= sign * step
        difference = (values[0] - values[1]) / (2 * step)
        assert float(gradient[place]) == pytest.approx(difference, rel=1e-4, abs=1e-7)


def _trained(regime: str, seed: int = 0) -> NoisySpeakers:
    speakers = NoisySpeakers.learn(SPEECH, NOISE, atoms=5, layers=5)
    options = {"segments": 6, "seconds": 0.5}
    speakers.fit(SPEECH, NOISE, regime=regime, steps=20, seed=seed, **options)
    return speakers


@pytest.mark.parametrize("regime", ["supervised", "discriminative"])
def test_training_lowers_the_loss_on_other_mixtures(regime: str) -> None:
    before = NoisySpeakers.learn(SPEECH, NOISE, atoms=5, layers=5)
    after = _trained(regime)
    batch = NoisySpeech(SPEECH, NOISE, segments=9, seconds=0.5, seed=99)
    loss = SpeechParts() if regime == "supervised" else PooledErrors(batch.frames)
    with torch.no_grad():
        values = [float(loss(own.bank, batch.batch(0))) for own in (before, after)]
    assert values[1] < 0.9 * values[0]
    assert (after.bank[0].regime or "").startswith(regime)


def test_the_same_seed_gives_the_same_bank() -> None:
    first, second, other = (_trained("discriminative", seed).bank for seed in (0, 0, 1))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert not torch.equal(first[0].low_rank, other[0].low_rank)


def test_all_speakers_share_the_trained_noise() -> None:
    bank = _trained("discriminative").bank
    assert all(encoder.low_rank is bank[0].low_rank for encoder in bank)
    assert all((tensor >= 0).all() for e in bank for tensor in e.model.dictionaries.values())


def test_a_file_gives_the_same_decisions_without_torch(
    learned: NoisySpeakers, tmp_path: Path
) -> None:
    wave = SPEECH["b"][0] + NOISE[0][:8000]
    learned.save(tmp_path / "speakers.safetensors", provenance="harmonics")
    np.save(tmp_path / "wave.npy", wave)
    again = NoisySpeakers.load(tmp_path / "speakers.safetensors")
    assert again.identify(wave) == learned.identify(wave)
    np.testing.assert_array_equal(again.denoise(wave).speech, learned.denoise(wave).speech)
    assert (again.info["provenance"], again.noise_atoms) == ("harmonics", 5)
    for name, tensor in again.bank.state_dict().items():
        assert torch.equal(tensor, learned.bank.state_dict()[name])
    script = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from pursuit.audio.noisy_speakers import NoisySpeakers
speakers = NoisySpeakers.load({str(tmp_path / "speakers.safetensors")!r})
wave = np.load({str(tmp_path / "wave.npy")!r})
print(speakers.identify(wave).speaker, len(speakers.denoise(wave).speech))
"""
    done = python("-c", script)
    assert done.stdout.split() == [learned.identify(wave).speaker, "8000"], done.stderr


def test_errors_say_what_to_do(learned: NoisySpeakers, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no speaker 'z'; there are a, b, c"):
        learned.denoise(SPEECH["a"][0], "z")
    with pytest.raises(ValueError, match="take the mean of the channels"):
        learned.identify(np.zeros((10, 2)))
    with pytest.raises(ValueError, match="NaN or infinite"):
        learned.identify(np.full(1000, np.nan))
    with pytest.raises(ValueError, match="is silent"):
        learned.identify(np.zeros(1000))
    with pytest.raises(ValueError, match="two speakers or more, got 1"):
        NoisySpeakers.learn({"a": SPEECH["a"]}, NOISE)
    with pytest.raises(ValueError, match="noise is empty"):
        NoisySpeakers.learn(SPEECH, [])
    with pytest.raises(ValueError, match="speech must be of the speakers a, b, c"):
        learned.fit({"a": SPEECH["a"], "d": SPEECH["b"]}, NOISE)
    with pytest.raises(ValueError, match="regime must be"):
        learned.fit(SPEECH, NOISE, regime="other")
    with pytest.raises(ValueError, match="3 encoders, but there are 1 names"):
        NoisySpeakers(learned.bank, ["a"])
    path = tmp_path / "model.safetensors"
    pu.save(learned.bank, path)
    with pytest.raises(ValueError, match="holds 'bank', not speakers in noise"):
        NoisySpeakers.load(path)
