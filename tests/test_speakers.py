"""Speakers: the clips, their features and dictionaries, the decisions, and the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pursuit.datasets import speakers as corpus

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")

Array = np.ndarray[Any, Any]

#: what tells the synthetic speakers apart: resonances in hertz, and the pitch
VOICES = {"anna": ((500, 1500), 210), "bert": ((300, 2300), 110), "cleo": ((800, 3100), 160)}
#: clips of each speaker in each role
COUNTS = {"train": 3, "val": 1, "test": 2}


def speech(voice: str, samples: int, seed: int, rate: int = corpus.RATE) -> Array:
    """A buzz of changing pitch through two resonances, in syllables."""
    resonances, pitch = VOICES[voice]
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / rate
    steps = np.repeat(rng.uniform(0.8, 1.25, -(-samples * 10 // rate)), rate // 10)[:samples]
    phase = 2 * np.pi * np.cumsum(pitch * steps) / rate
    wave = np.zeros(samples)
    for k in range(1, int(0.45 * rate / (1.25 * pitch))):
        gain = sum(1 / (1 + ((k * pitch * steps - f) / 120) ** 2) for f in resonances)
        wave += gain * np.cos(k * phase + k * k)
    wave *= 0.2 + np.sin(2 * np.pi * 4 * time + rng.uniform(0, 6)) ** 2
    wave += 1e-3 * np.abs(wave).max() * rng.standard_normal(samples)
    return 0.3 * wave / np.abs(wave).max()


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
