"""The demonstration and its report: they run, and what they show is what was computed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from pursuit.datasets import faces
from pursuit.report import Report


@pytest.mark.slow
def test_the_demo_writes_its_report(tmp_path: Path) -> None:
    """With hardly any training, so the claims are weak ones."""
    done = subprocess.run(
        [sys.executable, "-m", "pursuit", "demo", "--steps", "30", "--json", "-o", "report"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    said = json.loads(done.stdout)
    page = (tmp_path / said["report"]).read_text()
    for picture in ("atoms", "front", "denoised", "faces"):
        assert (tmp_path / "report" / f"{picture}.png").stat().st_size > 10_000
    assert page.count("data:image/png;base64") == 4
    coders = {row["coder"]: row for row in said["coders"]}
    assert len(coders) == 4
    for row in coders.values():
        assert row["us a patch"] in page
    exact = next(row for name, row in coders.items() if name.endswith("exact"))
    assert float(exact["gap %"]) < 1e-4
    assert said["psnr"]["encoder"] > said["psnr"]["noisy"] + 5
    assert said["psnr"]["exact codes"] > said["psnr"]["noisy"] + 5


def test_a_report_escapes_what_it_is_given(tmp_path: Path) -> None:
    report = Report("a < b")
    report.section("x & y")
    report.text("run `a < b`")
    report.table(["n|m", "value"], [["<b>", "1"]])
    figure = Figure()
    figure.add_subplot().plot([0, 1])
    report.figure(figure, "line", "a line")
    page = report.write(tmp_path / "out").read_text()
    assert "<b>" not in page
    assert "<code>a &lt; b</code>" in page
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| n\\|m | value |" in text
    assert "![a line](line.png)" in text
    assert (tmp_path / "out" / "line.png").is_file()
    with pytest.raises(ValueError, match="a row has 1 entries for 2 columns"):
        report.table(["a", "b"], [["1"]])


def test_faces_come_with_a_dependency() -> None:
    pictures = faces.orl(8)
    assert pictures.shape == (40, 10, 14, 11)
    assert 0 <= pictures.min() < pictures.max() <= 1
    # pictures of one person are nearer to each other than to other people
    flat = pictures.reshape(40, 10, -1)
    own = np.mean([np.std(person, axis=0).mean() for person in flat])
    assert own < 0.8 * flat.reshape(400, -1).std(axis=0).mean()
    with pytest.raises(ValueError, match="reduce must be from 1 to 92, got 0"):
        faces.orl(0)
