"""`pursuit fit speakers` and `pursuit identify`: from a folder of voices to who speaks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from processes import ENVIRONMENT, assert_refused, errors_of, pursuit, python
from pursuit.audio import Speakers
from pursuit.datasets import voices
from test_cli import imported
from voicing import RATE, VOICES, speech

#: the folders of the speakers
NAMES = {"anna": "Anna Müller", "bert": "bert", "cleo": "クレオ"}
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings in several formats, rates and depths, and files that are none or broken."""
    place = tmp_path_factory.mktemp("voices")
    for number, (voice, name) in enumerate(NAMES.items()):
        (place / name / "more" / "below").mkdir(parents=True)
        for k, (file, rate, subtype) in enumerate(
            [("a.wav", 8000, "PCM_16"), ("more/b b.flac", 16_000, "PCM_16"),
             ("more/below/c.wav", 6000, "PCM_U8"), ("d.ogg", 44_100, "VORBIS")]
        ):  # fmt: skip
            wave = speech(voice, 2 * rate, 10 * number + k, rate)
            stereo = np.stack([wave, 0.5 * wave], axis=1)
            soundfile.write(place / name / file, stereo if k == 1 else wave, rate, subtype)
    bert = place / "bert"
    (bert / ".DS_Store").write_text("x")
    (bert / "notes.txt").write_text("x")
    (bert / ".hidden").mkdir()
    (bert / ".hidden" / "no.wav").write_text("x")
    (bert / "broken.wav").write_text("no audio at all")
    (bert / "empty.wav").touch()
    (bert / "phone.m4a").write_bytes(bytes(100))
    soundfile.write(bert / "silent.wav", np.zeros(8000), 8000)
    soundfile.write(bert / "short.wav", 0.1 * np.ones(200), 8000)
    bad = speech("bert", RATE, 0)
    bad[4000] = np.nan
    soundfile.write(bert / "nan.wav", bad, RATE, "FLOAT")
    return place


@pytest.fixture(scope="module")
def fitted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("model") / "voices.safetensors"
    done = pursuit(
        "fit", "speakers", folder, "-o", path, "--steps", "60", "--threads", "1", "--json"
    )
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout), done


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.wav"
    soundfile.write(path, speech("anna", 3 * 22_050, 100, 22_050), 22_050)
    return path


# ---- fitting ---------------------------------------------------------------------------------


def test_what_fit_writes_and_says(fitted: Any) -> None:
    path, written, _ = fitted
    assert written["names"] == sorted(NAMES.values())
    assert written["bytes"] == path.stat().st_size < 400_000
    assert (written["speakers"], written["recordings"], written["held_out"]) == (3, 12, 12)
    assert 0 <= written["accuracy"] <= 1
    assert written["duration"] == pytest.approx(24, abs=0.5)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    shown = pursuit("inspect", path)
    assert shown.returncode == 0
    assert "Anna Müller" in shown.stdout


def test_recordings_that_cannot_be_used_are_named(fitted: Any) -> None:
    lines = [line for line in errors_of(fitted[2]) if line.startswith("warning: ")]
    named = ("broken.wav", "empty.wav", "phone.m4a", "silent.wav", "short.wav", "nan.wav")
    assert len(lines) == len(named)
    for name in named:
        assert sum(name in line for line in lines) == 1
    assert not any(name in fitted[2].stderr for name in ("DS_Store", "notes.txt", "no.wav"))


def test_the_summary_is_for_readers(fitted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from pursuit.cli.fit_speakers import _summary

    path, written, _ = fitted
    text = _summary(written)
    assert f"{path}: 3 speakers, {written['bytes'] / 1000:.0f} kB; 12 recordings" in text
    assert f"accuracy {100 * written['accuracy']:.0f} % on 12 recordings held out" in text
    assert "too short to estimate" in _summary({**written, "accuracy": None})


@pytest.mark.parametrize(
    ("mistake", "code", "sentence"),
    [
        ("missing", 1, "is not a folder; speakers are learned from a folder"),
        ("file", 1, "is not a folder; speakers are learned from a folder"),
        ("no folders", 1, "has 0 folders; it must have one for each speaker"),
        ("one speaker", 1, "has 1 folders; it must have one for each speaker"),
        ("no audio", 1, "bert has no audio files; add some, or remove the folder"),
        ("no usable audio", 1, "bert has no recordings that can be used"),
        ("no noise", 1, "has no recordings that can be used; give another folder"),
        ("noise is a file", 1, "is not a folder; give --noise a folder"),
        ("output", 1, "there is no folder"),
        ("layers", 2, "--layers is not for speakers"),
        ("latency", 2, "--latency is not for speakers"),
    ],
)
def test_wrong_uses_of_fit(mistake: str, code: int, sentence: str, tmp_path: Path) -> None:
    place, out, options = tmp_path / "voices", tmp_path / "model.safetensors", []
    place.mkdir()
    for voice in ("anna", "bert"):
        (place / voice).mkdir()
        soundfile.write(place / voice / "a.wav", speech(voice, RATE, 0), RATE)
    match mistake:
        case "missing":
            place = tmp_path / "no"
        case "file":
            place = place / "anna" / "a.wav"
        case "no folders":
            place = place / "anna"
        case "one speaker":
            (place / "bert" / "a.wav").unlink()
            (place / "bert").rmdir()
        case "no audio":
            (place / "bert" / "a.wav").rename(place / "bert" / "a.txt")
        case "no usable audio":
            (place / "bert" / "a.wav").write_text("no audio")
        case "no noise":
            (tmp_path / "noise").mkdir()
            options = ["--noise", tmp_path / "noise"]
        case "noise is a file":
            options = ["--noise", place / "anna" / "a.wav"]
        case "output":
            out = tmp_path / "no" / "model.safetensors"
        case "layers":
            options = ["--layers", "3"]
        case "latency":
            options = ["--latency", "low"]
    before = sorted(tmp_path.rglob("*"))
    done = pursuit("fit", "speakers", place, "-o", out, *options)
    assert done.returncode == code
    assert done.stdout == ""
    errors = [line for line in errors_of(done) if not line.startswith("warning: ")]
    assert len(errors) == 1
    assert sentence in errors[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_noise_is_for_speakers(tmp_path: Path) -> None:
    done = pursuit("fit", "lasso", "x.npy", "-o", tmp_path / "m", "--noise", tmp_path)
    assert_refused(done, 2, "--noise is for speakers, not lasso")


@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fit_leaves_nothing(folder: Path, number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pursuit", "fit", "speakers", folder, "-o", tmp_path / "m"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "training" in line:
                break
        process.send_signal(number)
        rest = process.stderr.read()
        code = process.wait(timeout=60)
    assert code in (130, 128 + number, -number)
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []


# ---- folders of voices -----------------------------------------------------------------------


def test_folders_are_listed(folder: Path) -> None:
    listed = voices.list_folder(folder)
    assert list(listed) == sorted(NAMES.values())
    names = [path.relative_to(folder / "クレオ").as_posix() for path in listed["クレオ"]]
    assert names == ["a.wav", "d.ogg", "more/b b.flac", "more/below/c.wav"]


def test_accents_may_be_two_characters(tmp_path: Path) -> None:
    for name in ("Zoe\u0308", "anna"):
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "a.wav", speech("anna", RATE, 0), RATE)
    assert list(voices.list_folder(tmp_path)) == ["Zo\u00eb", "anna"]


def test_files_beside_the_folders_are_named(folder: Path, tmp_path: Path) -> None:
    for name in ("anna", "bert"):
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "a.wav", speech("anna", RATE, 0), RATE)
    soundfile.write(tmp_path / "loose.wav", speech("anna", RATE, 0), RATE)
    with pytest.warns(UserWarning, match=r"loose\.wav is left out: it is not in the folder of a"):
        voices.list_folder(tmp_path)


# ---- identification --------------------------------------------------------------------------


def test_who_speaks_without_torch(fitted: Any, clip: Path) -> None:
    done = pursuit("identify", fitted[0], clip, "--json", options=("-X", "importtime"))
    assert done.returncode == 0, done.stderr
    assert "soundfile" in imported(done)
    assert "torch" not in imported(done)
    found = json.loads(done.stdout)
    assert found["speaker"] == "Anna Müller"
    assert set(found["scores"]) == set(NAMES.values())
    assert sum(found["scores"].values()) == pytest.approx(1)
    wave, rate = soundfile.read(clip, dtype="float32")
    expected = Speakers.load(fitted[0]).identify(wave, rate)
    assert found["scores"] == pytest.approx(expected.scores, abs=1e-6)
    assert (found["likeness"], found["margin"]) == pytest.approx(
        (expected.likeness, expected.margin), abs=1e-6
    )


def test_text_for_readers_and_several_recordings(fitted: Any, clip: Path, tmp_path: Path) -> None:
    stranger, broken = tmp_path / "dora.flac", tmp_path / "broken.wav"
    soundfile.write(stranger, speech("dora", 3 * RATE, 100), RATE)
    broken.write_text("no audio")
    done = pursuit("identify", fitted[0], clip, stranger, broken)
    assert done.returncode == 1
    assert f"{clip}: Anna Müller\n" in done.stdout
    assert f"{stranger}: unknown\n" in done.stdout
    (line,) = errors_of(done)
    assert line.startswith(f"warning: {broken} is not audio")
    as_json = pursuit("identify", fitted[0], clip, stranger, broken, "--json")
    clips = json.loads(as_json.stdout)["clips"]
    assert [each.get("speaker") for each in clips] == ["Anna Müller", None, None]
    assert "not audio" in clips[2]["error"]


def test_two_speakers_noise_and_files(fitted: Any, tmp_path: Path) -> None:
    both = tmp_path / "both.wav"
    wave = speech("anna", 3 * RATE, 100) + speech("bert", 3 * RATE, 101)
    soundfile.write(both, wave, RATE)
    done = pursuit("identify", fitted[0], both, "--speakers", "2", "--json")
    assert sorted(json.loads(done.stdout)["speakers"]) == ["Anna Müller", "bert"]
    out, picture = tmp_path / "speech.wav", tmp_path / "when.png"
    done = pursuit(
        "identify", fitted[0], both, "--noisy", "--denoise", out, "--plot", picture, "--json"
    )
    found = json.loads(done.stdout)
    assert (found["denoised"], found["plot"]) == (str(out), str(picture))
    assert found["likeness"] is None
    speech_alone, rate = soundfile.read(out)
    assert (rate, speech_alone.shape) == (RATE, wave.shape)
    assert 0 < np.mean(speech_alone**2) < np.mean(wave**2)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["MODEL"], 2, "Missing argument 'CLIP...'"),
        (["MODEL", "missing.wav"], 1, "there is no file missing.wav"),
        (["CLIP", "CLIP"], 1, "give a file that `pursuit fit`"),
        (["MODEL", "TEXT"], 1, "is not audio that can be read"),
        (["MODEL", "EMPTY"], 1, "is empty (0 bytes)"),
        (["MODEL", "SILENT"], 1, "the recording is silent"),
        (["MODEL", "SHORT"], 1, "which is too short"),
        (["MODEL", "NAN"], 1, "has the value nan at sample 4000"),
        (["MODEL", "CLIP", "--speakers", "4"], 2, "--speakers must be at most 3, the speakers of"),
        (["MODEL", "CLIP", "--speakers", "0"], 2, "'--speakers'"),
        (["MODEL", "CLIP", "--strict", "--threshold", "0"], 2, "exclude each other; give one"),
        (["MODEL", "CLIP", "--noisy", "--strict"], 2, "with --noisy nobody is unknown"),
        (["MODEL", "CLIP", "--threshold", "2"], 2, "'--threshold'"),
        (["MODEL", "CLIP", "CLIP", "--plot", "a.png"], 2, "--plot is for one recording, got 2"),
        (["MODEL", "CLIP", "CLIP", "--denoise", "a.wav"], 2, "--denoise is for one recording"),
        (["MODEL", "CLIP", "--plot", "when.txt"], 1, "must end in .png, .svg or .pdf"),
        (["MODEL", "CLIP", "--denoise", "speech.mp3"], 1, "must end in .wav"),
        (["MODEL", "CLIP", "--denoise", "CLIP"], 1, "is the input itself"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_uses_of_identify(
    arguments: list[str], code: int, sentence: str, fitted: Any, folder: Path, clip: Path
) -> None:
    bert = folder / "bert"
    files = {
        "MODEL": fitted[0], "CLIP": clip, "TEXT": bert / "broken.wav", "EMPTY": bert / "empty.wav",
        "SILENT": bert / "silent.wav", "SHORT": bert / "short.wav", "NAN": bert / "nan.wav",
    }  # fmt: skip
    before = sorted(clip.parent.iterdir())
    done = pursuit("identify", *(files.get(each, each) for each in arguments))
    assert_refused(done, code, sentence)
    assert sorted(clip.parent.iterdir()) == before


@pytest.mark.parametrize("module", ["soundfile", "soxr"])
def test_missing_packages_are_named(module: str, fitted: Any, clip: Path) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from pursuit.cli.main import main; main()"
    done = python("-c", code, "identify", fitted[0], clip)
    assert_refused(done, 1, "pip install 'pursuit[audio]'")


def test_identification_is_quick(fitted: Any) -> None:
    """Much faster than real time, even on a busy machine."""
    model = Speakers.load(fitted[0])
    wave = speech("anna", 20 * RATE, 100)
    model.identify(wave, RATE)
    begin = time.perf_counter()
    model.identify(wave, RATE)
    assert time.perf_counter() - begin < 5
    assert set(VOICES) == set(NAMES)
