"""`Speakers`: known voices are recognised, unknown ones refused, and files hold everything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pursuit.audio import Identification, Recipe, Speakers
from pursuit.audio.envelope import Contrast
from pursuit.audio.likeness import Likeness, equal_error
from pursuit.audio.made_noise import babble, coloured, made_noise
from pursuit.audio.noisy_speakers import NoisySpeakers
from pursuit.audio.noisy_storage import compact, restored
from pursuit.audio.speaker_recipe import NoiseRecipe
from pursuit.audio.speaker_training import divided
from pursuit.audio.speech import prepared
from pursuit.files import open_saved
from pursuit.progress import Progress
from voicing import RATE, VOICES, speech

Array = np.ndarray[Any, Any]

QUICK = Recipe(atoms=10, passes=2, training=1500, approximation=80, discriminative=40, tol=1e-2)
QUICK_NOISE = NoiseRecipe(atoms=8, layers=4, supervised=10, discriminative=15)
#: the seeds of clips that no model is fitted to
NEW = range(100, 106)


def voices(count: int = 4, names: Sequence[str] = tuple(VOICES)) -> dict[str, list[Array]]:
    """Some clips of two seconds of each speaker."""
    return {v: [speech(v, 2 * RATE, 10 * k + n) for n in range(count)] for k, v in enumerate(names)}


@pytest.fixture(scope="module")
def speakers() -> Speakers:
    torch.set_num_threads(1)
    return Speakers.fit(voices(), RATE, recipe=QUICK, noise_recipe=QUICK_NOISE)


# ---- who speaks ------------------------------------------------------------------------------


def test_known_voices_are_recognised(speakers: Speakers) -> None:
    found = [(v, speakers.identify(speech(v, 2 * RATE, n), RATE)) for v in VOICES for n in NEW]
    right = [each.speaker == voice for voice, each in found]
    assert np.mean(right) > 0.9
    for _, each in found:
        ordered = sorted(each.scores.values(), reverse=True)
        assert sum(ordered) == pytest.approx(1)
        assert set(each.scores) == set(VOICES)
        assert each.margin == pytest.approx(ordered[0] - ordered[1])
        assert 0.5 < each.seconds <= 2.1


def test_an_unknown_voice_is_unknown(speakers: Speakers) -> None:
    found = [speakers.identify(speech("dora", 2 * RATE, n), RATE) for n in NEW]
    assert np.mean([each.speaker is None for each in found]) > 0.9
    assert all(each.speakers == () for each in found if each.speaker is None)
    accepted = speakers.identify(speech("dora", 2 * RATE, 100), RATE, threshold=-1.0)
    assert accepted.speaker == max(accepted.scores, key=lambda name: accepted.scores[name])
    refused = speakers.identify(speech("anna", 2 * RATE, 100), RATE, threshold=1.0)
    assert refused.speaker is None
    assert speakers.likeness.strict >= speakers.likeness.threshold


def test_scores_are_shares_of_energies(speakers: Speakers) -> None:
    """Counted again from the codes, group by group."""
    wave = speech("bert", RATE, 100)
    signals = speakers.contrast(speakers.envelope(prepared(wave, RATE, RATE)))
    codes = speakers._compiled(signals)
    size = codes.shape[1] // len(VOICES)
    sums = [
        np.linalg.norm(codes[:, k * size : (k + 1) * size], axis=1).sum()
        for k in range(len(VOICES))
    ]
    scores = speakers.identify(wave, RATE).scores
    np.testing.assert_allclose(list(scores.values()), np.array(sums) / np.sum(sums), rtol=1e-5)


def test_two_voices_at_once(speakers: Speakers) -> None:
    right = 0
    for pair in (("anna", "bert"), ("anna", "cleo"), ("bert", "cleo")):
        for seed in NEW:
            wave = sum(speech(v, 3 * RATE, seed + k) for k, v in enumerate(pair))
            found = speakers.identify(wave, RATE, speakers=2)
            assert len(found.speakers) == 2
            right += set(found.speakers) == set(pair)
    # by chance a third would be right
    assert right / 18 > 0.8
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"speakers must be from 1 to 3, .* got {count}"):
            speakers.identify(speech("anna", RATE, 0), RATE, speakers=count)


def test_the_timeline_says_who_speaks_when(speakers: Speakers) -> None:
    pause = np.zeros(2 * RATE)
    wave = np.concatenate([speech("bert", 3 * RATE, 100), pause, speech("anna", 3 * RATE, 100)])
    found = speakers.timeline(wave, RATE)
    assert found.scores.shape == (len(found.times), 3)
    who = dict(zip(np.round(found.times, 2), found.speakers, strict=True))

    def between(begin: float, end: float) -> set[str | None]:
        return {name for moment, name in who.items() if begin < moment < end}

    assert between(0.5, 2.5) == {"bert"}
    assert between(3.8, 4.2) == {None}
    assert between(5.5, 7.5) == {"anna"}
    sums = found.scores.sum(axis=1)
    assert np.all((np.abs(sums - 1) < 1e-6) | (sums == 0))
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        speakers.timeline(wave, RATE, seconds=0)


def test_a_stream_agrees_with_the_recording(speakers: Speakers) -> None:
    """The level so far is not that of the whole recording, so scores are only near."""
    for voice in VOICES:
        wave = speech(voice, 3 * RATE, 100)
        stream = speakers.stream(RATE)
        latest = None
        for block in np.array_split(wave, 37):
            latest = stream.push(block)
        assert latest is not None
        whole = speakers.identify(wave, RATE)
        assert latest.speaker == whole.speaker == voice
        assert latest.scores[voice] == pytest.approx(whole.scores[voice], abs=0.15)


def test_streams_of_silence_and_of_many_channels(speakers: Speakers) -> None:
    stream = speakers.stream(16_000, channels=2)
    assert stream.push(np.zeros((8000, 2))) is None
    wave = speech("cleo", 3 * 16_000, 100, 16_000)
    found = stream.push(np.stack([wave, wave], axis=1))
    assert found is not None
    assert found.speaker == "cleo"
    with pytest.raises(ValueError, match="NaN or infinite"):
        stream.push(np.full((8, 2), np.nan))


# ---- in noise --------------------------------------------------------------------------------


def test_noise(speakers: Speakers) -> None:
    """A few training steps do; by chance two thirds would be wrong."""
    rng = np.random.default_rng(0)
    right = []
    for voice in VOICES:
        for seed in NEW:
            wave = speech(voice, 2 * RATE, seed)
            noise = rng.standard_normal(len(wave)) * np.sqrt(np.mean(wave**2))
            found = speakers.identify(wave + noise, RATE, noisy=True)
            assert sum(found.scores.values()) == pytest.approx(1)
            assert (found.likeness, found.threshold) == (None, None)
            right.append(found.speaker == voice)
    assert np.mean(right) > 0.6


def test_denoised_speech_is_nearer_to_the_clean_one(speakers: Speakers) -> None:
    rng = np.random.default_rng(0)
    for rate in (RATE, 16_000):
        wave = speech("anna", 2 * rate, 100, rate)
        noise = rng.standard_normal(len(wave)) * np.sqrt(np.mean(wave**2))
        speech_alone = speakers.denoise(wave + noise, rate, "anna")
        assert speech_alone.shape == wave.shape
        assert np.sum((speech_alone - wave) ** 2) < 0.5 * np.sum(noise**2)
    with pytest.raises(ValueError, match="no speaker 'zoe'"):
        speakers.denoise(wave, rate, "zoe")


def test_without_the_model_for_noise() -> None:
    quick = Recipe(atoms=4, passes=1, training=300, approximation=5, discriminative=5, tol=1e-2)
    model = Speakers.fit(voices(3), RATE, noisy=False, recipe=quick)
    for use in (
        lambda: model.identify(speech("anna", RATE, 0), RATE, noisy=True),
        lambda: model.denoise(speech("anna", RATE, 0), RATE),
    ):
        with pytest.raises(ValueError, match="fitted without one for noise; fit with noisy=True"):
            use()


def test_made_noise_has_its_colour() -> None:
    rng = np.random.default_rng(0)
    for falling in (0.0, 1.0, 2.0):
        power = np.abs(np.fft.rfft(coloured(2**16, falling, rng))) ** 2
        frequency = np.arange(1, len(power))
        chosen = slice(10, 20_000)
        slope, _ = np.polyfit(np.log(frequency[chosen]), np.log(power[1:][chosen]), 1)
        assert slope == pytest.approx(-falling, abs=0.1)
    made = made_noise(voices()["anna"], RATE)
    assert [len(wave) for wave in made] == [10 * RATE] * 6
    assert all(np.isfinite(wave).all() and wave.any() for wave in made)
    np.testing.assert_array_equal(made[0], made_noise(voices()["anna"], RATE)[0])


def test_babble_is_a_sum_of_voices() -> None:
    tones = [np.sin(2 * np.pi * f * np.arange(800) / 800) for f in (50, 120)]
    found = np.abs(np.fft.rfft(babble(tones, 800, np.random.default_rng(3))))
    assert set(np.flatnonzero(found > 1e-2 * found.max())) == {50, 120}


def test_what_is_stored_of_the_model_for_noise_is_enough() -> None:
    clips = voices(2, ("anna", "bert"))
    noise = [np.random.default_rng(0).standard_normal(RATE).astype(np.float32)]
    model = NoisySpeakers.learn(clips, noise, atoms=5, layers=3)
    model.fit(clips, noise, regime="discriminative", steps=5)
    programs = model.bank.programs()
    arrays = compact(programs)
    assert not any("weights" in name and ".of" not in name for name in arrays)
    info = {"noise_atoms": 5, "program": programs[0].info["program"]}
    again = restored(arrays, model.speakers, info, Path())
    wave = clips["anna"][0] + 0.1 * np.random.default_rng(1).standard_normal(2 * RATE)
    np.testing.assert_allclose(again.errors(wave), model.errors(wave), rtol=1e-3)
    for one, other in zip(again.denoise(wave, "bert"), model.denoise(wave, "bert"), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


# ---- unknown voices --------------------------------------------------------------------------


def test_equal_errors_against_all_thresholds() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        known, unknown = rng.normal(1, 1, 30).tolist(), rng.normal(0, 1, 17).tolist()
        threshold, error = equal_error(known, unknown)
        refused, accepted = (
            np.mean(np.array(known) < threshold),
            np.mean(np.array(unknown) >= threshold),
        )
        assert error == pytest.approx(max(refused, accepted))
        for other in np.linspace(-3, 4, 500):
            worse = max(np.mean(np.array(known) < other), np.mean(np.array(unknown) >= other))
            assert error <= worse + 1e-12


def test_likeness_is_the_cosine_of_means() -> None:
    rng = np.random.default_rng(0)
    centres = 4 * rng.standard_normal((4, 6))
    features = [
        [[(c + 9 + rng.standard_normal((50, 6))).astype(np.float32)] for _ in range(3)]
        for c in centres
    ]
    joined = [np.concatenate([clip for fold in own for clip in fold]) for own in features]
    contrast = Contrast.of(joined, 0.1, 0.0)
    likeness = Likeness.of(features, contrast, 0.1, 0.0)
    clip = contrast(joined[2][:20])
    for number, own in enumerate(joined):
        mean, other = contrast(own).mean(0), clip.mean(0)
        cosine = mean @ other / np.linalg.norm(mean) / np.linalg.norm(other)
        assert likeness(clip)[number] == pytest.approx(cosine, abs=1e-5)
    assert likeness.error is not None
    # with two speakers nobody can be left out
    assert Likeness.of(features[:2], contrast, 0.1, 0.0).error is None


def test_hardly_any_known_voice_is_refused_by_default(speakers: Speakers) -> None:
    found = [speakers.identify(speech(v, 2 * RATE, n), RATE) for v in VOICES for n in NEW]
    assert np.mean([each.speaker is None for each in found]) <= 0.1


# ---- recordings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda wave: 0.01 * wave,
        lambda wave: wave + 0.2,
        lambda wave: np.clip(4 * wave, -1, 1),
        lambda wave: np.round(127 * wave / np.abs(wave).max()) / 128,
        lambda wave: np.concatenate([np.zeros(5 * RATE), wave, np.zeros(5 * RATE)]),
        lambda wave: np.stack([wave, 0.5 * wave], axis=1),
        lambda wave: wave.astype(np.float32),
    ],
    ids=["quiet", "offset", "clipped", "8 bits", "silence around it", "stereo", "float32"],
)
def test_recordings_in_any_condition(speakers: Speakers, change: Any) -> None:
    right = []
    for voice in VOICES:
        for seed in NEW:
            wave = change(speech(voice, 2 * RATE, seed))
            right.append(speakers.identify(wave, RATE).speaker == voice)
    assert np.mean(right) > 0.9


@pytest.mark.parametrize("rate", [6000, 8000, 22_050, 44_100])
def test_recordings_at_any_rate(speakers: Speakers, rate: int) -> None:
    """Even where a third of the band is missing, at 6 kHz, most are recognised."""
    right = [
        speakers.identify(speech(v, 2 * rate, n, rate), rate).speaker == v
        for v in VOICES
        for n in NEW
    ]
    assert np.mean(right) > (0.9 if rate >= RATE else 0.6)


@pytest.mark.parametrize(
    ("wave", "rate", "sentence"),
    [
        (np.zeros(0), 8000, "has 0.00 s, which is too short"),
        (np.ones(100), 8000, "has 0.01 s, which is too short; at least 0.25 s"),
        (np.zeros(8000), 8000, "is silent"),
        (np.full(8000, 0.5), 8000, "is silent"),
        (np.where(np.arange(8000) == 5, np.nan, 0.1), 8000, "sample 5 is NaN or infinite"),
        (np.ones((8000, 0)), 8000, r"shape \(samples,\) or \(samples, channels\)"),
        (np.ones((2, 2, 8000)), 8000, r"shape \(samples,\) or \(samples, channels\)"),
        (np.random.default_rng(0).standard_normal(8000), 500, "rate must be at least 1000"),
    ],
)
def test_recordings_that_cannot_be_used(
    speakers: Speakers, wave: Array, rate: int, sentence: str
) -> None:
    for use in (speakers.identify, speakers.timeline, speakers.denoise):
        with pytest.raises(ValueError, match=sentence):
            use(wave, rate)
    with pytest.raises(ValueError, match=f"recording 0 of bert cannot be used: .*{sentence}"):
        Speakers.fit({"bert": [wave], "anna": [speech("anna", RATE, 0)]}, rate)


def test_integers_are_refused(speakers: Speakers) -> None:
    with pytest.raises(TypeError, match="floating-point numbers, got int16"):
        speakers.identify(np.ones(8000, np.int16), RATE)


# ---- fitting ---------------------------------------------------------------------------------


def test_what_a_fit_reports(speakers: Speakers) -> None:
    training = speakers.info["training"]
    assert (training["speakers"], training["recordings"]) == (3, 12)
    assert training["duration"] == pytest.approx(24)
    assert training["held_out"] == 12
    assert training["held_out_seconds"] == pytest.approx(24)
    assert 0.5 < training["accuracy"] <= 1


def test_held_out_recordings_are_not_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first models of a fit have none of the recordings that they are tested on."""
    from pursuit.audio import speaker_training

    models = []
    enrolled = speaker_training._enrolled

    def spied(clips: Any, *rest: Any) -> Any:
        models.append({name: list(own) for name, own in clips.items()})
        return enrolled(clips, *rest)

    monkeypatch.setattr(speaker_training, "_enrolled", spied)
    tested: list[list[Array]] = [[], [], []]
    identify = Speakers.identify

    def heard(self: Speakers, wave: Array, *rest: Any, **options: Any) -> Identification:
        tested[len(models) - 1].append(wave)
        return identify(self, wave, *rest, **options)

    monkeypatch.setattr(Speakers, "identify", heard)
    quick = Recipe(atoms=4, passes=1, training=300, approximation=5, discriminative=5, tol=1e-2)
    Speakers.fit(voices(3), RATE, noisy=False, recipe=quick)
    *others, last = ([wave for own in model.values() for wave in own] for model in models)
    assert ([len(own) for own in others], len(last)) == ([6, 6, 6], 9)

    def among(wave: Array, waves: list[Array]) -> bool:
        return any(wave.shape == own.shape and np.array_equal(wave, own) for own in waves)

    for trained, heard_waves in zip(others, tested, strict=True):
        assert len(heard_waves) == 3
        for wave in heard_waves:
            assert not among(wave, trained)
            assert among(wave, last)


def test_recordings_are_divided() -> None:
    waves = [np.full(RATE, float(k)) for k in range(7)]
    parts = divided(waves, 3, RATE, 0)
    assert sorted(float(w[0]) for part in parts for w in part) == list(range(7))
    assert [len(part) for part in parts] == [3, 2, 2]
    # one recording is cut
    (whole,) = [np.arange(3 * RATE)]
    pieces = divided([whole], 3, RATE, 0)
    np.testing.assert_array_equal(np.concatenate([piece for (piece,) in pieces]), whole)
    # and a short one is not
    assert [len(part) for part in divided([whole[:3000]], 3, RATE, 0)] == [0, 0, 1]


def test_one_recording_is_enough_and_the_seed_decides() -> None:
    one = {voice: [speech(voice, 3 * RATE, 5)] for voice in ("anna", "bert")}
    quick = Recipe(atoms=6, passes=1, training=600, approximation=30, discriminative=20, tol=1e-2)
    told: list[Progress] = []
    models = [
        Speakers.fit(one, RATE, noisy=False, recipe=quick, seed=s, callback=told.append)
        for s in (0, 0, 1)
    ]
    wave = speech("bert", 2 * RATE, 100)
    found = [model.identify(wave, RATE) for model in models]
    assert found[0].speaker == "bert"
    assert found[0] == found[1]
    assert found[0].scores != found[2].scores
    stages = {now.stage.partition(":")[0] for now in told}
    assert stages == {
        *(f"estimating the accuracy, {k} of 3" for k in (1, 2, 3)),
        "learning",
    }


@pytest.mark.parametrize(
    ("recordings", "error", "sentence"),
    [
        ({}, ValueError, "at least two speakers are needed, got 0"),
        ({"anna": [speech("anna", RATE, 0)]}, ValueError, "at least two speakers"),
        ({"anna": [speech("anna", RATE, 0)], "bert": []}, ValueError, "bert has no recordings"),
        ({"anna": [speech("anna", RATE, 0)], "": []}, TypeError, "must be strings"),
    ],
)
def test_fits_that_cannot_be(recordings: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Speakers.fit(recordings, RATE)


# ---- files -----------------------------------------------------------------------------------


def test_a_file_holds_everything(speakers: Speakers, tmp_path: Path) -> None:
    path = tmp_path / "voices.safetensors"
    speakers.save(path)
    loaded = Speakers.load(path)
    assert loaded.names == speakers.names == tuple(VOICES)
    assert loaded.info == speakers.info
    wave = speech("cleo", 2 * RATE, 100) + 0.01
    for options in ({}, {"speakers": 2}, {"strict": True}, {"noisy": True}):
        assert loaded.identify(wave, RATE, **options) == speakers.identify(wave, RATE, **options)
    np.testing.assert_array_equal(loaded.denoise(wave, RATE), speakers.denoise(wave, RATE))
    np.testing.assert_array_equal(
        loaded.timeline(wave, RATE).scores, speakers.timeline(wave, RATE).scores
    )
    loaded.save(tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_ten_speakers_take_less_than_a_megabyte(tmp_path: Path) -> None:
    """With the sizes of the default recipes; steps do not change the size."""
    rng = np.random.default_rng(0)
    clips = {f"speaker {k}": [rng.standard_normal(3 * RATE)] for k in range(10)}
    recipe = Recipe(passes=1, training=200, approximation=1, discriminative=1, tol=1e-1)
    noise = NoiseRecipe(supervised=1, discriminative=1)
    model = Speakers.fit(clips, RATE, recipe=recipe, noise_recipe=noise)
    model.save(tmp_path / "ten.safetensors")
    assert (tmp_path / "ten.safetensors").stat().st_size < 1_000_000
    arrays = open_saved(tmp_path / "ten.safetensors").arrays
    assert {a.dtype for a in arrays.values() if a.ndim > 1 and a.size > 1000} == {
        np.dtype(np.float32)
    }


def test_files_of_other_models_are_refused(speakers: Speakers, tmp_path: Path) -> None:
    import pursuit as pu

    pu.save(pu.models.Lasso(torch.eye(2), lam=1.0), tmp_path / "lasso.safetensors")
    with pytest.raises(ValueError, match="holds 'model', not speakers; make one with"):
        Speakers.load(tmp_path / "lasso.safetensors")
