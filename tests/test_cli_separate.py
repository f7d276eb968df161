"""`pursuit separate`: parts that add up to the recording, in files and live, and clear refusals."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import separating
from processes import ENVIRONMENT, assert_refused, errors_of, pursuit, python
from pursuit.audio.parts import PartStream
from pursuit.audio.recordings import Recording
from pursuit.cli import separate_run
from pursuit.cli.live import decode, encode
from pursuit.files import whole_files
from pursuit.progress import Progress
from test_cli import imported

SCRIPT = Path(separating.__file__)
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
BITS = {"PCM_16": 16, "PCM_24": 24, "PCM_32": 32}

Array = np.ndarray[Any, Any]


def separate(*arguments: object, options: tuple[str, ...] = ()) -> Any:
    """Run the command with the known separator."""
    return python(*options, SCRIPT, "separate", *arguments)


def song(samples: int = 20_000, channels: int = 2, rate: int = 44100, seed: int = 0) -> Array:
    """A chord and noise, below full scale."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(samples)[:, None] / rate
    tones = np.sin(2 * np.pi * seconds * [220, 331, 3000] + rng.uniform(0, 6, 3))
    return 0.2 * tones.sum(axis=1, keepdims=True) + rng.uniform(-0.2, 0.2, (samples, channels))


def ran(
    path: Path, folder: Path, separator: Any = None, report: bool = False, told: Any = None
) -> dict[str, Any]:
    """Run the command in this process."""
    separator = separator or separating.Separator.pretrained()
    return separate_run.run(
        separator, Recording.open(path), folder, report, told or (lambda now: None)
    )


def read(folder: Path) -> tuple[Array, Array]:
    voice, accompaniment = (
        soundfile.read(folder / name, dtype="float64", always_2d=True)[0]
        for name in ("voice.wav", "accompaniment.wav")
    )
    return voice, accompaniment


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


# ---- parts add up ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "subtype", "written"),
    [
        ("song.wav", "PCM_U8", "PCM_16"),
        ("song.wav", "PCM_16", "PCM_16"),
        ("song.wav", "PCM_24", "PCM_24"),
        ("song.wav", "PCM_32", "PCM_32"),
        ("song.wav", "FLOAT", "FLOAT"),
        ("song.wav", "DOUBLE", "DOUBLE"),
        ("song.wav", "ULAW", "PCM_16"),
        ("song.flac", "PCM_S8", "PCM_16"),
        ("song.flac", "PCM_16", "PCM_16"),
        ("song.flac", "PCM_24", "PCM_24"),
        ("song.aiff", "PCM_24", "PCM_24"),
        ("song.caf", "ALAC_16", "PCM_16"),
        ("song.ogg", "VORBIS", "PCM_16"),
        ("song.mp3", "MPEG_LAYER_III", "PCM_16"),
    ],
)
def test_parts_have_the_format_of_the_song_and_add_up_to_it(
    name: str, subtype: str, written: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    soundfile.write(path, song(), 44100, subtype)
    described = ran(path, tmp_path / "out")
    x, rate = soundfile.read(path, dtype="float64", always_2d=True)
    for part in ("voice", "accompaniment"):
        info = soundfile.info(described[part])
        assert (info.samplerate, info.channels, info.frames) == (rate, 2, len(x))
        assert (info.format, info.subtype) == ("WAV", written)
    voice, accompaniment = read(tmp_path / "out")
    if written in BITS:
        scale = 2.0 ** (BITS[written] - 1)
        assert np.array_equal(voice + accompaniment, np.rint(scale * x) / scale)
        step = 1 / scale
    else:
        bound = {"FLOAT": 2.0**-24, "DOUBLE": 2.0**-53}[written]
        assert (np.abs(voice + accompaniment - x) <= bound * np.abs(accompaniment)).all()
        step = 0
    expected = separating.Separator.pretrained().separate(x.astype(np.float32), rate).voice
    # half a step, and the rounding of the expectation itself to float32
    assert np.abs(voice - expected).max() <= step / 2 + 2.0**-24
    assert np.abs(voice).max() > 0.1
    assert described["limited"] == 0


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("rate", [8000, 16000, 22050, 48000, 96000])
def test_any_rate_and_number_of_channels(rate: int, channels: int, tmp_path: Path) -> None:
    path = tmp_path / "song.wav"
    x = np.rint(2**15 * song(rate // 3, channels, rate)) / 2**15
    soundfile.write(path, x, rate, "PCM_16")
    described = ran(path, tmp_path / "out")
    voice, accompaniment = read(tmp_path / "out")
    assert voice.shape == x.shape
    assert np.array_equal(voice + accompaniment, x)
    assert (described["rate"], described["channels"]) == (rate, channels)
    expected = separating.Separator.pretrained().separate(x.astype(np.float32), rate).voice
    assert np.abs(voice - expected).max() <= 2.0**-16 + 2.0**-24


@pytest.mark.parametrize("name", ["song.wav", "song.ogg"])
@pytest.mark.parametrize("samples", [0, 1])
@pytest.mark.parametrize("report", [False, True])
def test_very_short_songs(
    samples: int, name: str, report: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    soundfile.write(path, np.full((samples, 2), 0.25), 44100)
    described = ran(path, tmp_path / "out", report=report)
    voice, accompaniment = read(tmp_path / "out")
    assert voice.shape == accompaniment.shape == (samples, 2)
    x, _ = soundfile.read(path, always_2d=True)
    assert np.array_equal(voice + accompaniment, np.rint(2**15 * x) / 2**15)
    assert described["samples"] == samples
    assert ("has no samples" in capsys.readouterr().err) == (samples == 0)
    if report:
        shown = Path(described["report"]).read_text()
        assert ("has no samples" in shown) == (samples == 0)


@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT"])
def test_silence_stays_silent(subtype: str, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "song.wav", np.zeros((50_000, 2)), 44100, subtype)
    ran(tmp_path / "song.wav", tmp_path / "out")
    for part in read(tmp_path / "out"):
        assert not part.any()


@pytest.mark.parametrize("subtype", BITS)
@pytest.mark.parametrize("gain", [-0.3, 1.2])
def test_a_square_wave_at_full_scale_is_not_clipped(
    subtype: str, gain: float, tmp_path: Path
) -> None:
    square = np.where(np.arange(40_000) // 50 % 2, 1.0, -1.0)[:, None]
    path = tmp_path / "song.wav"
    soundfile.write(path, square, 44100, subtype)
    described = ran(path, tmp_path / "out", separating.Separator(gain, 1024))
    voice, accompaniment = read(tmp_path / "out")
    x, _ = soundfile.read(path, dtype="float64", always_2d=True)
    assert np.array_equal(voice + accompaniment, x)
    assert described["limited"] > 10_000
    # without limits, one of them would be up to 1.3 or 1.2
    wanted = separating.Separator(gain, 1024).separate(x.astype(np.float32), 44100).voice
    excess = np.maximum(np.abs(wanted), np.abs(x - wanted)) - 1
    changed = np.abs(voice - wanted)
    assert (changed <= np.maximum(excess, 0) + 2.0 ** (1 - BITS[subtype]) + 2.0**-23).all()


class Fixed:
    """A stream that returns a given voice at once."""

    latency = 0

    def __init__(self, voice: Array) -> None:
        self.voice = voice

    def push(self, samples: Array) -> separating.Separated:
        return separating.Separated(self.voice, samples - self.voice)


def test_the_voice_is_changed_as_little_as_both_parts_allow() -> None:
    levels = np.arange(-8, 8)  # four bits
    x, wanted = (grid.reshape(-1, 1) for grid in np.meshgrid(levels, np.arange(-30, 30)))
    stream = PartStream(Fixed((wanted / 8).astype(np.float32)), 1, bits=4)
    voice, accompaniment = stream.push(x / 8)
    assert np.array_equal(voice + accompaniment, x)
    for given, target, v in zip(x[:, 0], wanted[:, 0], voice[:, 0], strict=True):
        allowed = [level for level in levels if given - level in levels]
        assert v in allowed
        assert abs(v - target) == min(abs(level - target) for level in allowed)
    assert stream.limited == np.count_nonzero(voice != wanted)


@pytest.mark.parametrize("name", ["song.ogg", "song.mp3"])
def test_lossy_songs_beyond_full_scale_become_float(name: str, tmp_path: Path) -> None:
    square = np.where(np.arange(40_000) // 50 % 2, 1.0, -1.0)
    soundfile.write(tmp_path / name, square, 44100)
    x, _ = soundfile.read(tmp_path / name, dtype="float64", always_2d=True)
    assert np.abs(x).max() > 1.1
    described = ran(tmp_path / name, tmp_path / "out")
    assert (described["format"], described["limited"]) == ("FLOAT", 0)
    voice, accompaniment = read(tmp_path / "out")
    assert (np.abs(voice + accompaniment - x) <= 2.0**-24 * np.abs(accompaniment)).all()


def test_blocks_leave_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "song.wav", song(50_000), 44100)
    ran(tmp_path / "song.wav", tmp_path / "one")
    blocks = Recording.blocks
    monkeypatch.setattr(Recording, "blocks", lambda self: blocks(self, 777))
    ran(tmp_path / "song.wav", tmp_path / "many")
    assert content(tmp_path / "one") == content(tmp_path / "many")


def test_large_songs_become_rf64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "song.wav", song(1000), 44100)
    monkeypatch.setattr(separate_run, "LARGEST_WAV", 4000)
    ran(tmp_path / "song.wav", tmp_path / "fits")
    monkeypatch.setattr(separate_run, "LARGEST_WAV", 3999)
    ran(tmp_path / "song.wav", tmp_path / "large")
    assert soundfile.info(tmp_path / "fits" / "voice.wav").format == "WAV"
    assert soundfile.info(tmp_path / "large" / "voice.wav").format == "RF64"
    for one, other in zip(read(tmp_path / "fits"), read(tmp_path / "large"), strict=True):
        assert np.array_equal(one, other)


def test_progress_counts_seconds(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "song.ogg", song(5 * 16_000, 1, 16_000), 16_000)
    told: list[Progress] = []
    ran(tmp_path / "song.ogg", tmp_path / "out", told=told.append)
    for stage in ("checking second", "separating second"):
        now = [progress.done for progress in told if progress.stage == stage]
        assert now == sorted(now)
        assert now[-1] == 5
    assert {progress.total for progress in told} == {5}


@POSIX
def test_the_memory_does_not_depend_on_the_length(tmp_path: Path) -> None:
    code = f"""
import resource, sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
from pathlib import Path
import separating
from pursuit.audio.recordings import Recording
from pursuit.cli.separate_run import run
recording = Recording.open(sys.argv[1])
run(separating.Separator.pretrained(), recording, Path(sys.argv[2]), False, lambda now: None)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    peaks = []
    for minutes in (2, 8):
        path = tmp_path / f"{minutes}.wav"
        with soundfile.SoundFile(path, "w", 16_000, 1, "FLOAT") as file:
            for seed in range(minutes):
                file.write(song(60 * 16_000, 1, 16_000, seed)[:, 0])
        done = python("-c", code, path, tmp_path / f"out{minutes}")
        peaks.append(int(done.stdout) / 1024)  # in MB
    # six minutes of float64 samples are 46 MB
    assert peaks[1] - peaks[0] < 8


# ---- the command ----------------------------------------------------------------------------


def test_the_command_writes_both_parts_without_torch(tmp_path: Path) -> None:
    path, out = tmp_path / "song.flac", tmp_path / "new" / "out"
    soundfile.write(path, song(44100), 44100)
    done = separate(path, "-o", out, options=("-X", "importtime"))
    assert done.returncode == 0
    assert "soundfile" in imported(done)
    assert "torch" not in imported(done)
    lines = done.stdout.splitlines()
    assert lines[0] == f"{out / 'voice.wav'} and {out / 'accompaniment.wav'}"
    assert lines[1].startswith("1.0 s at 44100 Hz, channels: 2, PCM_16; ")
    assert sorted(path.name for path in out.iterdir()) == ["accompaniment.wav", "voice.wav"]


def test_the_result_as_json_and_a_model_of_choice(tmp_path: Path) -> None:
    path, out, model = tmp_path / "song.wav", tmp_path / "out", tmp_path / "model"
    soundfile.write(path, song(16_000, 1, 16_000), 16_000)
    model.write_text("0.25")
    done = separate(path, "-o", out, "--model", model, "--json")
    result = json.loads(done.stdout)
    assert {key: result[key] for key in ("samples", "rate", "channels", "duration")} == {
        "samples": 16_000,
        "rate": 16_000,
        "channels": 1,
        "duration": 1.0,
    }
    assert (result["audio"], result["format"], result["limited"]) == (str(path), "PCM_16", 0)
    assert (result["voice"], result["accompaniment"]) == (
        str(out / "voice.wav"),
        str(out / "accompaniment.wav"),
    )
    assert "report" not in result
    assert result["latency"] == pytest.approx(1023 / 16_000)
    assert result["speed"] == pytest.approx(1 / result["seconds"], rel=1e-3)
    x, _ = soundfile.read(path, always_2d=True)
    # at the rate of the model there is nothing but the gain
    assert np.abs(read(out)[0] - 0.25 * x).max() <= 2.0**-16 + 1e-6


def test_files_that_exist_are_replaced(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "song.wav", song(), 44100)
    (tmp_path / "voice.wav").write_text("old")
    (tmp_path / "notes.txt").write_text("mine")
    assert separate(tmp_path / "song.wav", "-o", tmp_path).returncode == 0
    assert soundfile.info(tmp_path / "voice.wav").frames == 20_000
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 4


def test_help_begins_with_examples() -> None:
    shown = separate("--help").stdout
    example = shown.index("Example: pursuit separate song.mp3 -o parts")
    assert example < shown.index("--live") < shown.index("--output")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a separator as they are trained, but untrained."""
    from pursuit.audio.separation import Separator

    path = tmp_path_factory.mktemp("model") / "separator.safetensors"
    Separator.convolutional(latency="low", seed=0).save(path)
    return path


def test_a_real_separator_runs_without_torch_in_files_and_live(model: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "song.wav", tmp_path / "out"
    soundfile.write(path, song(), 44100)
    done = pursuit("separate", path, "-o", out, "--model", model, options=("-X", "importtime"))
    assert done.returncode == 0
    assert "torch" not in imported(done)
    x, _ = soundfile.read(path, dtype="float64")
    voice, accompaniment = read(out)
    assert np.array_equal(voice + accompaniment, x)
    assert np.abs(voice).max() > 0.01
    assert np.abs(accompaniment).max() > 0.01
    command = [sys.executable, "-m", "pursuit", "separate", "--live", "--model", model]
    stdin = encode(np.rint(2**15 * x).astype(np.int32), "s16le")
    raw = subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=True).stdout
    # matrix products of other sizes round in another way
    assert np.abs(decode(raw, "s16le", 2) - voice).max() <= 2.0**-15


def test_what_is_no_separator_is_refused(model: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "song.wav", song(), 44100)
    (tmp_path / "damaged.safetensors").write_bytes(model.read_bytes()[:5000])
    for name, sentence in (
        ("missing.safetensors", "there is no file"),
        ("song.wav", "song.wav is not a whole safetensors file"),
        ("damaged.safetensors", "is not a whole safetensors file"),
    ):
        options = ("-o", tmp_path / "out", "--model", tmp_path / name)
        assert_refused(pursuit("separate", tmp_path / "song.wav", *options), 1, sentence)
    assert not (tmp_path / "out").exists()


# ---- the report -----------------------------------------------------------------------------


def test_the_report_is_one_page_with_spectrograms_and_players(tmp_path: Path) -> None:
    path, out = tmp_path / "a <song>.wav", tmp_path / "out"
    soundfile.write(path, song(40 * 16_000, 1, 16_000), 16_000)
    done = separate(path, "-o", out, "--report", "--json", options=("-X", "importtime"))
    assert "torch" not in imported(done)
    result = json.loads(done.stdout)
    shown = Path(result["report"]).read_text()
    assert sorted(path.name for path in out.iterdir()) == [
        "accompaniment.wav",
        "report.html",
        "voice.wav",
    ]
    addresses = re.findall(r'(?:src|href)="([^"]*)"', shown)
    assert len(addresses) == 4
    assert all(address.startswith("data:") for address in addresses)
    players = [a.partition("base64,")[2] for a in addresses if a.startswith("data:audio/flac")]
    mixture, voice, accompaniment = (
        soundfile.read(io.BytesIO(base64.b64decode(player)), dtype="float64")[0]
        for player in players
    )
    assert len(mixture) == 30 * 16_000
    assert np.array_equal(mixture, voice + accompaniment)
    assert np.array_equal(voice, read(out)[0][: 30 * 16_000, 0])
    (picture,) = (a for a in addresses if a.startswith("data:image/png"))
    assert base64.b64decode(picture.partition("base64,")[2]).startswith(b"\x89PNG")
    for fact in ("40.00 s", "16000 Hz", "times real time", "64 ms", "the first 30 seconds"):
        assert fact in shown
    assert "a &lt;song&gt;.wav" in shown
    assert "<song>" not in shown


def test_many_channels_can_be_heard(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "song.wav", song(30_000, 6), 44100)
    shown = Path(ran(tmp_path / "song.wav", tmp_path / "out", report=True)["report"]).read_text()
    player = re.search(r"data:audio/flac;base64,([^\"]*)", shown)
    assert player is not None
    info = soundfile.info(io.BytesIO(base64.b64decode(player[1])))
    assert (info.channels, info.frames) == (1, 30_000)
    assert "the whole recording" in shown


# ---- live -----------------------------------------------------------------------------------


def live(data: bytes, *arguments: object) -> tuple[bytes, list[str]]:
    done = subprocess.run(
        [sys.executable, SCRIPT, "separate", "--live", *map(str, arguments)],
        input=data,
        capture_output=True,
        timeout=60,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0
    return done.stdout, done.stderr.decode().splitlines()


@pytest.mark.parametrize(
    ("encoding", "subtype"), [("s16le", "PCM_16"), ("s24le", "PCM_24"), ("f32le", "FLOAT")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_live_equals_the_file(encoding: str, subtype: str, channels: int, tmp_path: Path) -> None:
    rate = 22050
    path = tmp_path / "song.wav"
    soundfile.write(path, song(30_000, channels, rate), rate, subtype)
    ran(path, tmp_path / "out")
    raw = {"format": "RAW", "subtype": subtype, "endian": "LITTLE"}
    x, _ = soundfile.read(path, dtype="float64", always_2d=True)
    stdin = io.BytesIO()
    soundfile.write(stdin, x, rate, **raw)
    options = ("--rate", rate, "--channels", channels, "--encoding", encoding)
    stdout, errors = live(stdin.getvalue(), *options, "--output-part", "both")
    latency = separating.Separator.pretrained().stream(rate).latency
    assert errors == [f"latency {1000 * latency / rate:.0f} ms"]
    y, _ = soundfile.read(
        io.BytesIO(stdout), samplerate=rate, channels=2 * channels, dtype="float64", **raw
    )
    voice, accompaniment = read(tmp_path / "out")
    assert np.array_equal(y[:, :channels], voice)
    assert np.array_equal(y[:, channels:], accompaniment)


def test_a_part_of_choice_is_written_by_default_the_voice() -> None:
    data = encode(np.rint(2**15 * song()).astype(np.int32), "s16le")
    both = decode(live(data, "--output-part", "both")[0], "s16le", 4)
    for options, part in (
        ([], both[:, :2]),
        (["--output-part", "voice"], both[:, :2]),
        (["--output-part", "accompaniment"], both[:, 2:]),
    ):
        assert np.array_equal(decode(live(data, *options)[0], "s16le", 2), part)


@pytest.mark.parametrize("encoding", ["s16le", "s24le", "f32le"])
def test_raw_samples_return_to_the_same_bytes(encoding: str) -> None:
    size = {"s16le": 2, "s24le": 3, "f32le": 4}[encoding]
    data = np.random.default_rng(0).bytes(size * 6000)
    if encoding == "f32le":
        data = np.random.default_rng(0).standard_normal(6000).astype("<f4").tobytes()
    samples = decode(data, encoding, 3)
    assert samples.shape == (2000, 3)
    scale = 1.0 if encoding == "f32le" else 2.0 ** (8 * size - 1)
    assert np.abs(samples).max() <= 1 or encoding == "f32le"
    numbers = samples if scale == 1 else (samples * scale).astype(np.int32)
    assert encode(numbers, encoding) == data


def test_live_returns_samples_while_the_input_is_open() -> None:
    rate, seconds = 44100, 1.0
    data = encode(np.rint(2**15 * song(int(rate * seconds))).astype(np.int32), "s16le")
    command = [sys.executable, str(SCRIPT), "separate", "--live"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=ENVIRONMENT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        latency = float(process.stderr.readline().split()[1]) / 1000
        # blocks that are no multiple of a sample
        for start in range(0, len(data), 1001):
            process.stdin.write(data[start : start + 1001])
            process.stdin.flush()
        promised = 4 * int((seconds - latency - 0.001) * rate)
        early = process.stdout.read(promised)  # would wait for ever if less were written
        assert len(early) == promised
        process.stdin.close()
        late = process.stdout.read()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0
    assert early + late == live(data)[0]


def test_a_closed_pipe_ends_it_quietly() -> None:
    command = [sys.executable, str(SCRIPT), "separate", "--live"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=ENVIRONMENT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.readline()
        process.stdout.close()
        with suppress(BrokenPipeError):
            while process.poll() is None:
                os.write(process.stdin.fileno(), bytes(2**16))
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""


def test_low_latency_is_lower_and_true() -> None:
    said = {}
    for options in ((), ("--latency", "low"), ("--latency", "low", "--rate", "16000")):
        _, (line,) = live(b"", *options)
        said[options[2:] or options] = int(re.fullmatch(r"latency (\d+) ms", line)[1])
    low = separating.Separator.pretrained("low")
    expected = {
        (): separating.Separator.pretrained().stream(44100).latency / 44.1,
        ("--latency", "low"): low.stream(44100, quality="LQ").latency / 44.1,
        ("--rate", "16000"): 127 / 16,
    }
    assert said == {key: round(value) for key, value in expected.items()}
    assert low.stream(44100, quality="LQ").latency < 0.8 * low.stream(44100).latency


def test_live_without_samples_is_empty_and_half_samples_are_told() -> None:
    assert live(b"")[0] == b""
    stdout, errors = live(bytes(4003))
    assert stdout == bytes(4000)
    assert errors[1:] == ["warning: the last 3 bytes are no whole sample of 4 and are left out"]


def test_live_refuses_nan_and_says_where() -> None:
    x = np.zeros((30_000, 2), "<f4")
    x[22050, 1] = np.nan
    command = [sys.executable, SCRIPT, "separate", "--live", "--encoding", "f32le"]
    done = subprocess.run(command, input=x.tobytes(), capture_output=True, timeout=60)
    assert done.returncode == 1
    (_, line) = done.stderr.decode().splitlines()
    assert line.startswith("error: stdin has a value that is not finite at sample 22050 (0.500 s)")


# ---- whole or not at all --------------------------------------------------------------------


SLOW = f"""
import sys, time
sys.path.insert(0, {str(SCRIPT.parent)!r})
import separating
push = separating.SeparatorStream.push
def slowly(self, samples):
    time.sleep(0.2)
    return push(self, samples)
separating.SeparatorStream.push = slowly
sys.modules["pursuit.audio.separation"] = separating
from pursuit.cli.main import main; main()
"""


@POSIX
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing(
    number: int, code: int, exists: bool, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "song.wav", song(60 * 44100, 1), 44100)
    out = tmp_path / "new" / "out"
    if exists:
        out.mkdir(parents=True)
        (out / "voice.wav").write_text("old")
    before = content(tmp_path)
    command = [sys.executable, "-c", SLOW, "separate", tmp_path / "song.wav", "-o", out, "--report"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        deadline = time.monotonic() + 60
        while not list(out.glob(".*.*.part")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert ("interrupted\n" in errors) == (number == signal.SIGINT)
    assert "Traceback" not in errors
    assert content(tmp_path) == before


@POSIX
def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    import resource

    soundfile.write(tmp_path / "song.wav", song(10 * 44100), 44100)
    before = content(tmp_path)
    done = subprocess.run(
        [sys.executable, SCRIPT, "separate", tmp_path / "song.wav", "-o", tmp_path / "out"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)),
    )
    assert done.returncode == 1
    (line,) = errors_of(done)
    assert line.startswith("error: ")
    assert "cannot be written" in line
    assert content(tmp_path) == before


def write_two(folder: Path, fail: bool = False) -> None:
    with whole_files([folder / "a", folder / "b"]) as files:
        for file in files:
            file.write(b"new")
            if fail:
                raise ZeroDivisionError


@POSIX
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_between_two_files_waits_for_both(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(*names: Path) -> None:
        replace(*names)
        signal.raise_signal(number)

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    before = signal.signal(number, end)
    try:
        with pytest.raises(KeyboardInterrupt):
            write_two(tmp_path)
        assert signal.getsignal(number) is end
    finally:
        signal.signal(number, before)
    assert content(tmp_path) == {"a": b"new", "b": b"new"}


def test_an_error_leaves_no_file_of_several(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        write_two(tmp_path, fail=True)
    assert content(tmp_path) == {"a": b"old"}


# ---- refusals -------------------------------------------------------------------------------


def damaged(path: Path) -> None:
    soundfile.write(path, song(200_000), 44100)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4000] = bytes(4000)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("missing", "there is no file"),
        ("folder", "is a folder; give an audio file"),
        ("empty", "is empty (0 bytes); give an audio file"),
        ("text", "is not audio that can be read (Format not recognised); give a file in one of"),
        ("picture", "is a PNG picture, not audio"),
        ("header only", "(Error in WAV file. No 'data' chunk marker)"),
        ("damaged", "cannot be read after"),
        ("nan", "has the value nan at sample 44100 (1.000 s) of channel 2"),
        ("inf", "has the value -inf at sample 44100"),
        ("output is a file", "is a file; give the name of a folder"),
        ("output is below a file", "is a file; give the name of a folder"),
        ("part is a folder", "is a folder; give the name of a file"),
        ("itself", "is the input itself; give the output another name"),
        ("missing model", "no.model"),
        ("other model", "could not convert"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(mistake: str, sentence: str, tmp_path: Path) -> None:
    path, out, options = tmp_path / "song.wav", tmp_path / "out", []
    x = song(60_000)
    match mistake:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "text":
            path.write_text("la la la " * 20)
        case "picture":
            path.write_bytes(b"\x89PNG" + bytes(100))
        case "header only":
            path.write_bytes(b"RIFF1234WAVEfmt ")
        case "damaged":
            path = tmp_path / "song.flac"
            damaged(path)
        case "nan" | "inf":
            x[44100, 1] = np.nan if mistake == "nan" else -np.inf
            soundfile.write(path, x, 44100, "FLOAT")
        case "missing":
            pass
        case _:
            soundfile.write(path, x, 44100)
    match mistake:
        case "output is a file":
            out.touch()
        case "output is below a file":
            out.touch()
            out = out / "below"
        case "part is a folder":
            (out / "voice.wav").mkdir(parents=True)
        case "itself":
            path = path.rename(tmp_path / "voice.wav")
            out = tmp_path
        case "missing model":
            options = ["--model", tmp_path / "no.model"]
        case "other model":
            (tmp_path / "model").write_text("no number")
            options = ["--model", tmp_path / "model"]
    before = content(tmp_path)
    assert_refused(separate(path, "-o", out, *options), 1, sentence)
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Missing argument 'AUDIO', or --live"),
        (["a.wav"], "Missing option '--output' / '-o', the folder to write to"),
        (["--live", "a.wav"], "--live reads stdin and writes stdout; leave out AUDIO"),
        (["--live", "-o", "out"], "leave out -o"),
        (["--live", "--report"], "leave out --report"),
        (["a.wav", "-o", "out", "--rate", "44100"], "--rate goes with --live only"),
        (["a.wav", "-o", "out", "--encoding", "s16le"], "--encoding goes with --live only"),
        (["--live", "--encoding", "mp3"], "'--encoding'"),
        (["--live", "--channels", "0"], "'--channels'"),
        (["--live", "--rate", "16"], "'--rate'"),
        (["a.wav", "-o", "out", "--latency", "none"], "'--latency'"),
        (["a.wav", "-o", "out", "--latency", "low", "--model", "b"], "give it or --model"),
        (["a.wav", "b.wav", "-o", "out"], "unexpected extra argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_use_is_one_sentence(arguments: list[str], sentence: str) -> None:
    assert_refused(separate(*arguments), 2, sentence)


def test_live_and_json_exclude_each_other() -> None:
    done = separate("--live", "--json")
    assert done.returncode == 2
    assert "leave out --json" in json.loads(done.stdout)["error"]


@POSIX
def test_live_needs_pipes() -> None:
    import pty

    parent, child = pty.openpty()
    command = [sys.executable, SCRIPT, "separate", "--live"]
    for ends, name in (({"stdin": child}, "stdin"), ({"stdout": child}, "stdout")):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **ends}
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, **streams)
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: {name} of --live is a terminal; connect programs")
    os.close(parent)
    os.close(child)


@pytest.mark.parametrize(
    ("module", "options", "extra"),
    [
        ("soundfile", [], "audio"),
        ("soxr", [], "audio"),
        ("matplotlib.figure", ["--report"], "plots"),
    ],
)
def test_missing_packages_are_named(
    module: str, options: list[str], extra: str, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "song.wav", song(), 44100)
    before = content(tmp_path)
    code = f"import runpy, sys; sys.modules[{module!r}] = None; "
    code += f"sys.path.insert(0, {str(SCRIPT.parent)!r}); "
    code += f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = python("-c", code, "separate", tmp_path / "song.wav", "-o", tmp_path / "out", *options)
    assert_refused(done, 1, f"pip install 'pursuit[{extra}]'")
    assert content(tmp_path) == before


def test_the_formats_that_can_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "song.m4a").write_bytes(b"\0\0\0 ftypM4A " + bytes(100))
    with pytest.raises(
        ValueError, match=r"one of the formats WAV, FLAC, OGG, MP3, AIFF, .* or \w+"
    ):
        Recording.open(tmp_path / "song.m4a")


def test_the_name_of_a_file_says_nothing_about_its_format(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "song.raw", song(), 44100, format="FLAC")
    assert ran(tmp_path / "song.raw", tmp_path / "out")["samples"] == 20_000


def test_an_incomplete_mp3_is_separated_as_far_as_it_goes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "song.mp3"
    soundfile.write(path, song(200_000), 44100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    described = ran(path, tmp_path / "out")
    assert 0 < described["samples"] < 150_000
    assert len(read(tmp_path / "out")[0]) == described["samples"]
    assert "song.mp3 is incomplete: it has" in capfd.readouterr().err
