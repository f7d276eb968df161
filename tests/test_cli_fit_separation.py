"""`pursuit fit separation`: from a folder of stems to a separator in one file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from processes import assert_refused, pursuit
from pursuit.audio import Separator
from pursuit.datasets.stems import read_folder, read_pairs


@pytest.fixture(scope="module")
def songs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two songs, one of them with several stems at another rate."""
    folder, rng = tmp_path_factory.mktemp("songs"), np.random.default_rng(0)
    stems = {"first": ("voice", "accompaniment"), "second": ("vocals", "drums", "bass")}
    for (song, names), rate in zip(stems.items(), (16_000, 22_050), strict=True):
        (folder / song).mkdir()
        for name in names:
            wave = 0.1 * rng.standard_normal(3 * rate)
            soundfile.write(folder / song / f"{name}.flac", wave, rate)
    return folder


def test_the_file_is_what_the_library_trains(songs: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    options = ("--latency", "low", "--steps", "2", "--seed", "3", "--threads", "1", "--json")
    done = pursuit("fit", "separation", songs, "-o", path, *options)
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    expected = Separator.convolutional("low", seed=3)
    expected.fit(list(read_pairs(read_folder(songs), 16_000)), steps=2, seed=3)
    found = Separator.load(path)
    assert written["parameters"] == found.parameter_count == expected.parameter_count
    assert written["bytes"] == path.stat().st_size
    assert found.info["training"]["data"].endswith("2 recordings, 0.1 minutes")
    wave = 0.1 * np.random.default_rng(1).standard_normal(8000)
    parts = (separator.separate(wave, 16_000).voice for separator in (found, expected))
    np.testing.assert_allclose(*parts, rtol=0, atol=1e-5)
    assert list(tmp_path.iterdir()) == [path]  # no checkpoint is left
    shown = pursuit("inspect", path)
    assert "ConvolutionalEncoder" in shown.stdout
    assert "separator" in shown.stdout


def test_what_it_cannot_use_is_refused(songs: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "mine.safetensors")
    refused = {
        "--layers is not for separation": (songs, *out, "--layers", "3"),
        "not a folder": (songs / "first" / "voice.flac", *out),
        "no pairs of voice and accompaniment": (songs / "first", *out),
    }
    for sentence, arguments in refused.items():
        done = pursuit("fit", "separation", *arguments)
        assert_refused(done, 2 if sentence.startswith("--") else 1, sentence)
    done = pursuit("fit", "lasso", songs, *out, "--latency", "low")
    assert_refused(done, 2, "--latency is for separation, not lasso")
    assert list(tmp_path.iterdir()) == []
