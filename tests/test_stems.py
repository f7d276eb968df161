"""Stems: pairs of accompaniment and voice from folders of songs and from MIR-1K."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import soundfile

from pursuit.audio.recordings import Recording
from pursuit.datasets import singing, stems

RATE = 16_000

Array = np.ndarray[Any, Any]


def write(
    path: Path, samples: int = 8000, channels: int = 1, rate: int = RATE, seed: int = 0, **more: Any
) -> Array:
    """Write noise of 16 bits; return it as it can be read again, of shape (samples, channels)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sound = np.random.default_rng(seed).uniform(-0.3, 0.3, (samples, channels))
    integers = np.rint(sound * 2**15).astype(np.int16)
    soundfile.write(path, integers, rate, **more)
    return integers / 2.0**15


def tone(path: Path, hertz: float, rate: int, seconds: float = 0.5) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    time = np.arange(round(rate * seconds)) / rate
    soundfile.write(path, 0.5 * np.sin(2 * np.pi * hertz * time), rate, "FLOAT")


@pytest.mark.parametrize("voice", ["vocals.wav", "voice.flac", "Vocals.WAV"])
@pytest.mark.parametrize("other", ["accompaniment.wav", "instrumental.flac"])
def test_a_song_is_a_folder(voice: str, other: str, tmp_path: Path) -> None:
    sung = write(tmp_path / "b song" / voice, seed=1)[:, 0]
    played = write(tmp_path / "b song" / other, seed=2)[:, 0]
    write(tmp_path / "a song" / voice)
    write(tmp_path / "a song" / other)
    # the accompaniment is complete, and these are no stems
    write(tmp_path / "b song" / "drums.wav", samples=100)
    write(tmp_path / "b song" / "mixture.wav", samples=100)
    (tmp_path / "b song" / "cover.jpg").write_text("no audio")
    (tmp_path / "b song" / "._vocals.wav").write_text("no audio")
    (tmp_path / ".hidden").mkdir()
    first, second = stems.read_folder(tmp_path)
    assert (first.name, second.name) == ("a song", "b song")
    assert (second.name, second.group, second.seconds) == ("b song", "b song", 0.5)
    accompaniment, voice_read = second.read(RATE)
    assert accompaniment.dtype == voice_read.dtype == np.float32
    assert np.array_equal(accompaniment, played)
    assert np.array_equal(voice_read, sung)


def test_other_stems_are_summed_without_the_mixture(tmp_path: Path) -> None:
    song = tmp_path / "song"
    write(song / "vocals.wav")
    parts = [write(song / f"{name}.wav", seed=n) for n, name in enumerate(("bass", "drums", "x"))]
    write(song / "Mixture.wav", seed=9)
    write(song / "mix.flac", seed=9)
    (stem,) = stems.read_folder(tmp_path)
    accompaniment, _ = stem.read(RATE)
    np.testing.assert_allclose(accompaniment, sum(parts)[:, 0], atol=1e-7)
    assert len(stem.accompaniment) == 3


@pytest.mark.parametrize(("role", "names"), [("train", ["one", "two"]), ("test", ["three"])])
def test_roles_are_folders(role: str, names: list[str], tmp_path: Path) -> None:
    for place in ("train/one", "train/two", "test/three"):
        write(tmp_path / place / "vocals.wav")
        write(tmp_path / place / "other.wav")
    assert [stem.name for stem in stems.read_folder(tmp_path, role)] == names
    assert [stem.name for stem in stems.read_folder(tmp_path / role)] == names


@pytest.mark.parametrize("suffix", ["ogg", "mp3", "aiff", "flac"])
def test_all_formats_are_read(suffix: str, tmp_path: Path) -> None:
    for name in ("vocals", "drums"):
        write(tmp_path / "song" / f"{name}.{suffix}", rate=44100)
    (stem,) = stems.read_folder(tmp_path)
    x, _ = soundfile.read(tmp_path / "song" / f"vocals.{suffix}", dtype="float32")
    assert np.array_equal(stem.read(44100)[1], x)


def test_channels_are_averaged(tmp_path: Path) -> None:
    sung = write(tmp_path / "song" / "vocals.wav", channels=2)
    write(tmp_path / "song" / "drums.wav", channels=6)
    (stem,) = stems.read_folder(tmp_path)
    np.testing.assert_allclose(stem.read(RATE)[1], sung.mean(axis=1), atol=1e-7)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_other_rates_are_resampled_in_place(rate: int, tmp_path: Path) -> None:
    tone(tmp_path / "song" / "vocals.wav", 440, rate)
    tone(tmp_path / "song" / "instrumental.wav", 700, RATE)
    (stem,) = stems.read_folder(tmp_path)
    accompaniment, voice = stem.read(RATE)
    assert len(accompaniment) == len(voice) == RATE // 2
    time = np.arange(RATE // 2) / RATE
    inner = slice(RATE // 20, -RATE // 20)
    for wave, hertz in ((voice, 440), (accompaniment, 700)):
        expected = 0.5 * np.sin(2 * np.pi * hertz * time)
        assert np.abs(wave - expected)[inner].max() < 1e-3
    # an independent resampler agrees, where it does not see the ends
    x, _ = soundfile.read(tmp_path / "song" / "vocals.wav")
    peer = scipy.signal.resample_poly(x, RATE, rate)
    assert np.abs(voice - peer[: len(voice)])[inner].max() < 5e-3


def test_a_shorter_file_is_padded(tmp_path: Path) -> None:
    sung = write(tmp_path / "song" / "vocals.wav", 16_000)[:, 0]
    played = write(tmp_path / "song" / "drums.wav", 14_401)[:, 0]
    (stem,) = stems.read_folder(tmp_path)
    accompaniment, voice = stem.read(RATE)
    assert np.array_equal(voice, sung)
    assert np.array_equal(accompaniment[:14_401], played)
    assert len(accompaniment) == 16_000
    assert not accompaniment[14_401:].any()


def test_lengths_that_differ_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "song" / "vocals.wav", 16_000)
    write(tmp_path / "song" / "drums.wav", 14_390)
    with pytest.raises(ValueError, match=r"drums.wav has 0.90 s, but .*vocals.wav has 1.00 s"):
        stems.read_folder(tmp_path)


def test_reading_is_lazy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for song in ("a", "b"):
        write(tmp_path / song / "vocals.wav")
        write(tmp_path / song / "drums.wav")
    reads: list[str] = []
    original = Recording.blocks

    def noted(self: Recording, *arguments: Any) -> Any:
        reads.append(self.path.parent.name)
        return original(self, *arguments)

    monkeypatch.setattr(Recording, "blocks", noted)
    pairs = stems.read_pairs(stems.read_folder(tmp_path), RATE)
    assert reads == []
    next(pairs)
    assert set(reads) == {"a"}


def test_silent_stems_are_left_out_with_a_warning(tmp_path: Path) -> None:
    for song in ("a", "b", "c"):
        write(tmp_path / song / "vocals.wav")
        write(tmp_path / song / "drums.wav")
    soundfile.write(tmp_path / "a" / "vocals.wav", np.zeros(8000), RATE)
    soundfile.write(tmp_path / "b" / "drums.wav", np.zeros(8000), RATE)
    with pytest.warns(UserWarning, match="is left out: no sound") as told:
        (pair,) = stems.read_pairs(stems.read_folder(tmp_path), RATE)
    assert [str(warning.message) for warning in told] == [
        "a is left out: no sound in its voice",
        "b is left out: no sound in its accompaniment",
    ]
    assert {Path(warning.filename).name for warning in told} == {Path(__file__).name}
    assert pair.group == "c"
    assert len(pair.voice) == len(pair.accompaniment) == 8000


@pytest.mark.parametrize("layout", ["splits.csv", "Wavfile"])
def test_mir_1k(layout: str, tmp_path: Path) -> None:
    names = ("abjones_1_01", "amy_2_03", "Ani_1_01")
    folder = tmp_path / "MIR-1K" / "Wavfile" if layout == "Wavfile" else tmp_path / "singing"
    sounds = {
        name: write(folder / f"{name}.wav", channels=2, seed=n) for n, name in enumerate(names)
    }
    if layout == "splits.csv":
        roles = ("train", "train", "test")
        rows = [
            f"{n}.wav,{n.split('_')[0]},{n[:-3]},{r}" for n, r in zip(names, roles, strict=True)
        ]
        (folder / "splits.csv").write_text("\n".join(["file,singer,song,role", *rows]))
    train = stems.read_folder(tmp_path)
    assert [(stem.name, stem.group) for stem in train] == [
        ("abjones_1_01", "abjones"),
        ("amy_2_03", "amy"),
    ]
    for stem in (*train, *stems.read_folder(tmp_path, "test")):
        accompaniment, voice = stem.read(RATE)
        assert np.array_equal(accompaniment, sounds[stem.name][:, 0])
        assert np.array_equal(voice, sounds[stem.name][:, 1])
        assert len(stem.read(8000)[0]) == 4000


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([], r"has no pairs .* a file vocals.\* or voice.\* and a file accompaniment.\* or instr"),
        (["vocals.wav", "drums.wav"], "has no pairs of voice and accompaniment"),
        (["a/vocals.wav", "a/Voice.flac", "a/x.wav"], "has Voice.flac and vocals.wav, which are"),
        (["a/vocals.wav", "a/x.flac", "a/x.wav"], "has x.flac and x.wav, which are the same stem"),
    ],
)
def test_folders_without_pairs_are_refused(files: list[str], sentence: str, tmp_path: Path) -> None:
    for name in files:
        write(tmp_path / name)
    with pytest.raises(ValueError, match=sentence) as error:
        stems.read_folder(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("vocals", "no accompaniment or other stems"), ("vocal", r"no vocals.\*")],
)
def test_incomplete_songs_are_left_out_with_a_warning(
    name: str, sentence: str, tmp_path: Path
) -> None:
    write(tmp_path / "a" / f"{name}.wav")
    write(tmp_path / "b" / "vocals.wav")
    write(tmp_path / "b" / "bass.wav")
    with pytest.warns(UserWarning, match=f"a is left out: it has {sentence}"):
        (stem,) = stems.read_folder(tmp_path)
    assert stem.name == "b"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        stems.read_folder(tmp_path / "nowhere")
    write(tmp_path / "song" / "vocals.wav")
    (tmp_path / "song" / "drums.wav").write_text("la la la")
    with pytest.raises(ValueError, match=r"drums.wav is not audio that can be read"):
        stems.read_folder(tmp_path)
    write(tmp_path / "song" / "drums.wav")
    (stem,) = stems.read_folder(tmp_path)
    with pytest.raises(ValueError, match="rate must be positive"):
        stem.read(0)
    write(tmp_path / "song" / "drums.wav", 7000)
    with pytest.raises(ValueError, match=r"drums.wav is incomplete: it has 7000 of 8000 samples"):
        stem.read(RATE)


def test_without_soundfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "song" / "vocals.wav")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ImportError, match=r"pip install 'pursuit\[audio\]'"):
        stems.read_folder(tmp_path)


@pytest.mark.data
def test_the_real_clips(data_folder: Path) -> None:
    train = stems.read_folder(data_folder)
    clips = singing.read_folder(data_folder, "train")
    assert [stem.name for stem in train] == [clip.path.stem for clip in clips]
    assert {stem.group for stem in train} == set(singing.TRAIN_SINGERS)
    for stem, clip in list(zip(train, clips, strict=True))[:3]:
        for found, expected in zip(stem.read(RATE), clip.read(), strict=True):
            assert np.array_equal(found, expected.astype(np.float32))
