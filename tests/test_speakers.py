"""Speakers: the clips, their features and dictionaries, the decisions, and the experiment."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import scipy.signal
import soundfile
import torch

import pursuit as pu
from processes import assert_refused, pursuit
from pursuit.audio.envelope import Contrast, Envelope, mix
from pursuit.audio.speaker_recipe import Recipe
from pursuit.audio.speaker_training import structured
from pursuit.audio.speakers import decide, energies, pooled
from pursuit.datasets import speakers as corpus
from pursuit.encoders.block_coordinate import BlockCoordinateEncoder
from pursuit.experiments import speakers, speakers_report
from pursuit.experiments.frame import run
from pursuit.experiments.speakers import BLOCK, COORDINATE, DISCRIMINATIVE, EXACT, MIXED, SINGLE
from pursuit.experiments.speakers_sounds import Collection
from pursuit.solvers.solve import solve
from voicing import VOICES, speech

Array = np.ndarray[Any, Any]

#: clips of each speaker in each role
COUNTS = {"train": 3, "val": 1, "test": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets of clips in the layout of the real ones; the second set is at 16 kHz."""
    place = tmp_path_factory.mktemp("corpus")
    rows, seed = ["file,speaker,role,seconds"], 0
    for name, rate in (("one", 8000), ("two", 16_000)):
        for voice in VOICES:
            (place / name / voice).mkdir(parents=True)
            for role, count in COUNTS.items():
                for number in range(count):
                    seed += 1
                    file = f"{name}/{voice}/{role}{number}.flac"
                    soundfile.write(place / file, speech(voice, 2 * rate, seed, rate), rate)
                    rows.append(f"{file},{voice},{role},2.0")
    (place / "splits.csv").write_text("\n".join(rows))
    return place


# ---- the clips -------------------------------------------------------------------------------


def test_clips_are_those_of_the_table(folder: Path) -> None:
    assert corpus.sets(folder) == ("one", "two")
    clips = corpus.read_folder(folder, "one", "test")
    assert [clip.speaker for clip in clips] == ["anna", "anna", "bert", "bert", "cleo", "cleo"]
    assert {clip.path.parent.parent.name for clip in clips} == {"one"}
    (val, *_) = corpus.read_folder(folder, "one", "val")
    expected, _ = soundfile.read(val.path, dtype="float32")
    found = val.read()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected)


def test_the_parent_may_be_given(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "speakers").symlink_to(folder, target_is_directory=True)
    assert corpus.sets(tmp_path) == ("one", "two")
    assert len(corpus.read_folder(tmp_path, "two", "train")) == 9


def test_clips_are_resampled(tmp_path: Path) -> None:
    """A tone keeps its frequency, and one above half of the new rate vanishes."""
    time = np.arange(16_000) / 16_000
    wave = 0.3 * np.sin(2 * np.pi * 1000 * time) + 0.3 * np.sin(2 * np.pi * 6000 * time)
    soundfile.write(tmp_path / "tone.wav", wave, 16_000, "FLOAT")
    found = corpus.Clip(tmp_path / "tone.wav", "nobody").read()
    assert found.shape == (8000,)
    expected = 0.3 * np.sin(2 * np.pi * 1000 * np.arange(8000) / 8000)
    np.testing.assert_allclose(found[200:-200], expected[200:-200], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "role", "sentence"),
    [
        ("three", "test", r"no set 'three'; its sets are one, two"),
        ("one", "dev", r"no clips of the role 'dev'; its roles are test, train, val"),
    ],
)
def test_unknown_sets_and_roles(folder: Path, name: str, role: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        corpus.read_folder(folder, name, role)


@pytest.mark.parametrize(
    ("table", "error", "sentence"),
    [
        (None, FileNotFoundError, r"there is no .*splits\.csv; give a folder"),
        ("file,speaker,role\n", ValueError, r"names no clips"),
        ("file,role\n", ValueError, r"has no column speaker"),
        ("file,speaker,role\na.flac,x,test\n", ValueError, r"set/file.*got 'a\.flac'"),
        ("file,speaker,role\n/a/b.flac,x,test\n", ValueError, r"set/file.*got '/a/b\.flac'"),
        ("file,speaker,role\n../b.flac,x,test\n", ValueError, r"set/file.*got '\.\./b\.flac'"),
        ("file,speaker,role\ns/b.flac,x,test\n", FileNotFoundError, r"no file .*b\.flac, but"),
    ],
)
def test_tables_that_cannot_be_used(
    tmp_path: Path, table: str | None, error: type[Exception], sentence: str
) -> None:
    if table is not None:
        (tmp_path / "splits.csv").write_text(table)
    with pytest.raises(error, match=sentence):
        corpus.read_folder(tmp_path, "s", "test")


def test_the_rate_must_be_positive(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"rate must be positive .* got 0"):
        corpus.read_folder(folder, "one", "val")[0].read(0)


def test_the_real_clips(data_folder: Path) -> None:
    assert corpus.sets(data_folder) == ("asterisk", "emodb")
    counts = {
        (name, role): len(corpus.read_folder(data_folder, name, role))
        for name in corpus.sets(data_folder)
        for role in ("train", "val", "test")
    }
    assert sum(counts.values()) == 593
    clips = corpus.read_folder(data_folder, "emodb", "test")
    assert len({clip.speaker for clip in clips}) == 5
    info = soundfile.info(clips[0].path)
    assert info.samplerate == 16_000
    assert len(clips[0].read()) == -(-info.frames // 2)


# ---- features --------------------------------------------------------------------------------


def test_the_envelope_is_the_formula() -> None:
    """Against frames and triangles that are computed one by one."""
    wave = speech("anna", 3000, 0)
    envelope = Envelope(width=60.0, power=0.3)
    found = envelope(wave)
    assert found.shape == (envelope.stft.frames(3000), 80)
    window = scipy.signal.get_window("hann", 512)
    centres = 700 * (np.exp(np.linspace(0, np.log(1 + 4000 / 700), 82)) - 1)
    for frame in (5, 11, 19):
        start = 128 * frame - 384
        power = np.abs(np.fft.rfft(wave[start : start + 512] * window)) ** 2
        for band in (0, 3, 40, 79):
            low, centre, high = centres[band : band + 3]
            low, high = min(low, centre - 60), max(high, centre + 60)
            weights = np.interp(np.arange(257) * 8000 / 512, [low, centre, high], [0, 1, 0])
            expected = (weights @ power / weights.sum()) ** 0.3
            assert float(found[frame, band]) == pytest.approx(expected, rel=1e-3)


def test_the_envelope_hardly_depends_on_the_pitch() -> None:
    """A higher pitch changes the envelope less than other resonances do."""
    time = np.arange(8000) / 8000
    shapes = {}
    for pitch in (100, 115):
        for resonance in (700, 1400):
            wave = sum(
                np.cos(2 * np.pi * k * pitch * time + k * k)
                / (1 + ((k * pitch - resonance) / 150) ** 2)
                for k in range(1, 30)
            )
            features = Envelope()(wave)[10:50].mean(0)
            shapes[pitch, resonance] = features / np.linalg.norm(features)
    same = np.linalg.norm(shapes[100, 700] - shapes[115, 700])
    other = np.linalg.norm(shapes[100, 700] - shapes[100, 1400])
    assert same < 0.5 * other


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"power": 0.0}, "power must be positive, got 0"),
        ({"width": 15.0}, "width must be at least 15.625 Hz, .* got 15"),
    ],
)
def test_envelopes_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Envelope(**options)


def test_contrast_whitens_what_varies_within_speakers() -> None:
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((6, 6))
    features = [
        (5 + k + rng.standard_normal((400 * (k + 1), 6)) @ spread).astype(np.float32)
        for k in range(3)
    ]
    contrast = Contrast.of(features, ridge=0.0, quiet=0.0)
    within = np.concatenate([(own - own.mean(0)) @ contrast.transform for own in features])
    np.testing.assert_allclose(within.T @ within / len(within), np.eye(6), atol=1e-3)
    np.testing.assert_allclose(contrast.mean, np.concatenate(features).mean(0), rtol=1e-5)
    signals = contrast(features[0])
    np.testing.assert_allclose(np.linalg.norm(signals, axis=1), 1, rtol=1e-5)
    expected = (features[0] - contrast.mean) @ contrast.transform
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(signals, expected, rtol=1e-5)
    # with a large ridge, only the scale is changed
    plain = Contrast.of(features, ridge=1e6, quiet=0.0).transform
    np.testing.assert_allclose(plain / plain[0, 0], np.eye(6), atol=1e-3)


def test_silence_becomes_zero() -> None:
    features = np.random.default_rng(0).uniform(1, 2, (50, 4)).astype(np.float32)
    features[10] *= 0.01
    contrast = Contrast.of([features], ridge=0.1, quiet=0.1)
    signals = contrast(features)
    assert np.flatnonzero(~signals.any(axis=1)).tolist() == [10]
    assert np.isfinite(contrast(contrast.mean[None])).all()


def test_mixtures_have_two_voices_of_one_level() -> None:
    first, second = np.array([1.0, -1.0, 1.0]), np.array([0.02, 0.02])
    np.testing.assert_allclose(mix(first, second), [2.0, 0.0])
    with pytest.raises(ValueError, match="silent"):
        mix(first, 0 * second)


# ---- the model and the decision --------------------------------------------------------------


def test_groups_are_the_dictionaries_of_the_speakers() -> None:
    generator = torch.Generator().manual_seed(0)
    signals = [torch.randn(300, 12, generator=generator) for _ in range(3)]
    signals[1][:20] = 0
    model = structured(signals, 0.3, 0.05, atoms=7, learning_lam=0.2, passes=2, seed=4)
    assert model.blocks == [list(range(0, 7)), list(range(7, 14)), list(range(14, 21))]
    assert (model.lam_group, model.lam) == (0.3, 0.05)
    expected = pu.learn(signals[1][20:], 7, 0.2, passes=2, seed=4)
    assert torch.equal(model.dictionary[7:14], expected)
    with pytest.raises(ValueError, match="speaker 1 has no signals that are not zero"):
        structured([signals[0], 0 * signals[1]], 0.3)


def test_energies_are_norms_of_groups_summed_over_frames() -> None:
    codes = np.random.default_rng(0).standard_normal((11, 6))
    found = energies(codes, np.array([0, 0, 1, 1, 1, 2]))
    blocks = codes[:, :2], codes[:, 2:5], codes[:, 5:]
    np.testing.assert_allclose(found.T, [np.linalg.norm(own, axis=1) for own in blocks])
    model = pu.models.HiLasso(torch.eye(6), [[0, 1], [2, 3, 4], [5]], 0.1, 0.1)
    np.testing.assert_allclose(found, energies(codes, model.block_labels.numpy()))
    np.testing.assert_allclose(pooled(found), found.sum(0, keepdims=True))
    windows = pooled(found, 4)
    np.testing.assert_allclose(windows, [found[:4].sum(0), found[4:8].sum(0)])
    assert decide(windows, 1).flatten().tolist() == windows.argmax(1).tolist()
    for chosen, row in zip(decide(windows, 2).tolist(), windows, strict=True):
        assert {0, 1, 2} - set(chosen) == {int(row.argmin())}
        assert chosen == sorted(chosen)


def test_windows_and_counts_that_cannot_be() -> None:
    values = np.ones((4, 3))
    for frames in (0, 5):
        with pytest.raises(ValueError, match=f"frames must be from 1 to 4, .* got {frames}"):
            pooled(values, frames)
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"count must be from 1 to 3, .* got {count}"):
            decide(values, count)


# ---- the sounds of the experiment ------------------------------------------------------------


@pytest.fixture(scope="module")
def collection(folder: Path) -> Collection:
    return Collection(folder, "one", Recipe(quiet=0.3))


def test_sounds_are_clips_one_after_another(collection: Collection, folder: Path) -> None:
    anna, *others = collection.sounds("test").single(0)
    assert anna.speakers == (0,)
    assert [other.speakers for other in others] == [(1,), (2,)]
    assert sum(anna.clips.values()) == len(anna.signals)
    start = 0
    for path, frames in anna.clips.items():
        wave, _ = soundfile.read(path, dtype="float32")
        wave /= np.sqrt(np.mean(wave**2))
        expected = collection.train.contrast(Envelope()(wave))
        np.testing.assert_allclose(anna.signals[start : start + frames], expected, atol=1e-5)
        start += frames
    orders = {tuple(collection.train.single(seed)[0].clips) for seed in range(8)}
    assert len(orders) > 1
    assert {frozenset(order) for order in orders} == {frozenset(next(iter(orders)))}


def test_mixtures_are_all_pairs(collection: Collection) -> None:
    sounds = collection.sounds("test").mixtures(3)
    assert [sound.speakers for sound in sounds] == [(0, 1), (0, 2), (1, 2)]
    # nothing is heard but the two: the frames are those of the sum of their waves
    waves = collection.sounds("test").ordered(3)
    total = mix(*(np.concatenate(list(waves[k].values())) for k in (0, 2)))
    expected = collection.train.contrast(Envelope()(total))
    np.testing.assert_allclose(sounds[1].signals, expected, atol=1e-6)


def test_training_signals_have_their_speakers(collection: Collection) -> None:
    signals, active = collection.train.training(0, 200)
    assert signals.shape == (200, 80)
    assert signals.any(dim=1).all()
    assert active[:100].sum(dim=1).tolist() == [1] * 100
    counts = active[100:].sum(dim=1)
    assert set(counts.tolist()) == {1, 2}
    alone = {sound.speakers[0]: sound.signals for sound in collection.train.single(0)}
    for row in (0, 50, 99):
        spoken = alone[int(active[row].nonzero())]
        assert float((spoken - signals[row]).norm(dim=1).min()) == 0


def test_speakers_that_were_never_heard_are_refused(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "one").iterdir():
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one" / path.name).symlink_to(path, target_is_directory=True)
    table = (folder / "splits.csv").read_text()
    (tmp_path / "splits.csv").write_text(table.replace("test1.flac,cleo", "test1.flac,dora"))
    with pytest.raises(ValueError, match="is of dora, who has no train clips"):
        Collection(tmp_path, "one", Recipe()).sounds("test")


# ---- the experiment --------------------------------------------------------------------------

SMALL = speakers.SpeakersSettings(
    seeds=(0, 1), atoms=8, passes=2, lengths=(30, 60), training=600, approximation=60,
    discriminative=30, tol=1e-3, draws=300,
)  # fmt: skip


@pytest.fixture(scope="module")
def ran(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[speakers.Reproduction, dict[str, Any], Path]:
    torch.set_num_threads(1)
    experiment = speakers.Reproduction(SMALL, folder)
    place = tmp_path_factory.mktemp("report")
    result, _ = run(experiment, place)
    return experiment, result, place


Ran = tuple[speakers.Reproduction, dict[str, Any], Path]


def test_rows_are_those_of_the_table(ran: Ran) -> None:
    _, result, _ = ran
    paper = {row: found["paper"] for row, found in result["rows"].items()}
    assert paper == {EXACT: 2.35, COORDINATE: 6.08, BLOCK: 3.53, DISCRIMINATIVE: 3.44}
    assert result["speakers"] == {"one": sorted(VOICES), "two": sorted(VOICES)}
    assert result["pooled"] == 60


def test_errors_are_counted_again(ran: Ran) -> None:
    _, result, folder = ran
    for row in (EXACT, COORDINATE):
        cells = []
        for name in ("one", "two"):
            found = result["rows"][row]["sets"][name]
            parts = []
            for seed in (0, 1):
                (kept,) = folder.glob(f"parts/*/{speakers._part(name, row, seed)}.json")
                parts.append(json.loads(kept.read_text())["value"])
            wrong = [[true != decided for true, decided, _ in part["clips"]] for part in parts]
            assert np.shape(wrong) == (2, 6)
            assert found["clips"]["mean"] == pytest.approx(100 * np.mean(wrong))
            assert np.sum(found["confusion"]) == 12
            assert np.trace(found["confusion"]) == 12 - np.sum(wrong)
            for kind in (SINGLE, MIXED):
                missed = [
                    [
                        np.mean([who not in decided for who in heard])
                        for heard, decided, _ in part["windows"]["60"][kind]
                    ]
                    for part in parts
                ]
                errors = found["lengths"]["60"][kind]
                assert errors["seeds"] == pytest.approx([100 * np.mean(own) for own in missed])
                assert errors["interval"][0] <= errors["mean"] <= errors["interval"][1]
                cells.append(errors["seeds"])
        assert result["rows"][row]["seeds"] == pytest.approx(np.mean(cells, axis=0))


def test_the_mean_of_kinds_does_not_depend_on_their_sizes() -> None:
    """Two sets with 1 and 3 windows of the first kind, and as many errors in the second one."""
    right, wrong, half = [[0], [0], 0], [[0], [1], 0], [[0, 1], [0, 2], 0]
    kinds = [[wrong], [half, half], [right, right, wrong], [half]]
    windows = speakers._Windows.of(kinds)
    assert windows.mean == pytest.approx(np.mean([100, 50, 100 / 3, 50]))
    low, high = windows.interval(500)
    assert low <= windows.mean <= high
    # one method compared with itself differs in no draw
    assert (windows - windows).interval(500) == [0, 0]


def test_synthetic_voices_are_recognised(ran: Ran) -> None:
    """Their resonances differ, so exact codes recognise whole clips; by chance 67 % would fail."""
    _, result, _ = ran
    for name in ("one", "two"):
        assert result["rows"][EXACT]["sets"][name]["clips"]["mean"] == 0
        assert result["rows"][DISCRIMINATIVE]["sets"][name]["clips"]["mean"] < 20


def test_the_exact_row_is_that_of_the_solver(ran: Ran) -> None:
    experiment, _, _ = ran
    model, x = experiment._model("one", 0), experiment._sounds("one", 0)[0][0].signals[:20]
    codes = experiment._exact("one", 0)(x)
    reference = solve(model, x, "fista", tol=1e-6).objective
    excess = model.objective(x, codes) - reference
    assert (excess <= 2e-3 * reference.clamp_min(1e-3)).all()


def test_the_distance_is_that_of_the_codes(ran: Ran) -> None:
    """Exact codes have none; those of the block encoder are computed again."""
    experiment, result, _ = ran
    assert result["rows"][EXACT]["sets"]["one"]["distance"] == 0
    each = []
    for seed in (0, 1):
        x = torch.cat([s.signals for kind in experiment._sounds("one", seed) for s in kind])
        exact = solve(experiment._model("one", seed), x, tol=SMALL.tol).codes
        with torch.no_grad():
            codes = experiment._approximate("one", seed)(x)
        each.append(float((codes - exact).square().sum() / exact.square().sum()))
    assert result["rows"][BLOCK]["sets"]["one"]["distance"] == pytest.approx(
        np.mean(each), rel=0.01
    )


def test_encoders_start_from_the_approximation(ran: Ran) -> None:
    """The discriminative encoder is another one, and leaves the first as it was."""
    experiment, _, _ = ran
    first = experiment._approximate("one", 0)
    before = {name: value.clone() for name, value in first.state_dict().items()}
    other = experiment._discriminative("one", 0)
    assert isinstance(other, BlockCoordinateEncoder)
    after = first.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert any(not torch.equal(before[name], value) for name, value in other.state_dict().items())
    assert (first.regime, other.regime) == ("approximation", "discriminative")


def test_the_report_states_everything(ran: Ran) -> None:
    experiment, result, folder = ran
    text = (folder / "report.md").read_text()
    assert "](lengths.png)" in text
    assert (folder / "lengths.png").stat().st_size > 10_000
    for row, found in result["rows"].items():
        assert f"| {row} | {found['paper']:.2f} | {found['mean']:.2f} [" in text
    for field in dataclasses.fields(experiment.settings):
        assert f"| {field.name} |" in text
    means = [result["rows"][row]["mean"] for row in speakers_report.ORDER]
    assert ("It is also the order here" in text) == (means == sorted(means))
    assert ("NOT so here" in text) == (means != sorted(means))


def test_a_second_run_computes_nothing(ran: Ran) -> None:
    experiment, result, folder = ran
    calls: list[str] = []
    again = speakers.Reproduction(experiment.settings, experiment.data)
    found, _ = run(again, folder, lambda now: calls.append(now.stage))
    assert calls == ["drawing"]
    assert found == result


def test_other_packages_decide_by_the_nearest_profile(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the spectrum as vector, the voices of the test are recognised; chance is a third."""
    experiment, _, folder = ran
    peer = mock.Mock(load=lambda: lambda wave: np.abs(np.fft.rfft(wave, 512)))
    monkeypatch.setitem(speakers.PEERS, "spectrum", peer)
    found = experiment._embedded("one", "spectrum")
    (kept,) = folder.glob(f"parts/*/{speakers._part('one', EXACT, 0)}.json")
    expected = json.loads(kept.read_text())["value"]["clips"]
    assert sorted((true, clip) for true, _, clip in found) == sorted(
        (true, clip) for true, _, clip in expected
    )
    assert np.mean([true == decided for true, decided, _ in found]) > 0.8


def test_windows_that_do_not_fit_are_left_out(ran: Ran, folder: Path) -> None:
    """Two test clips of 2 s have 258 frames in all."""
    experiment, _, _ = ran
    settings = dataclasses.replace(SMALL, lengths=(60, 100_000))
    other = speakers.Reproduction(settings, folder)
    other._model, other._sounds = experiment._model, experiment._sounds
    value = other._classified("one", 0, other._exact)
    assert list(value["windows"]) == ["60"]
    assert other._fits({"a": value}, "60")
    assert not other._fits({"a": value}, "100000")


def test_without_recordings_one_sentence_says_what_to_give(tmp_path: Path) -> None:
    done = pursuit("reproduce", "speakers", "-o", tmp_path / "report")
    assert_refused(done, 1, "needs recordings; give their folder as --data DIR")
    done = pursuit("reproduce", "speakers", "--download", "-o", tmp_path / "report")
    assert_refused(done, 1, "cannot be downloaded; give a folder as --data")
