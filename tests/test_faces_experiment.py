"""The experiment on faces: what is covered, how errors are measured, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pursuit as pu
from processes import assert_refused, pursuit
from pursuit.alignment import Translation
from pursuit.experiments.faces import (
    ENCODER,
    EXACT,
    KINDS,
    OURS,
    PHASE,
    RASL,
    FacesSettings,
    Reproduction,
    cover,
)
from pursuit.experiments.frame import run

SMALL = FacesSettings(
    seeds=(0,), steps=40, atoms=20, most=6, frames=20, window=(60, 46), first=6, chunk=5
)
Ran = tuple[Reproduction, dict[str, Any], Path]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("faces")
    experiment = Reproduction(SMALL)
    result, _ = run(experiment, folder)
    return experiment, result, folder


@pytest.mark.parametrize("share", [0.2, 1 / 3, 0.5])
def test_noise_covers_a_share_of_the_window(share: float) -> None:
    pictures = torch.full((20, 80, 66), 2.0)
    covered = cover(pictures, (66, 48), share, seed=1) != 2
    assert not covered[:, :7].any()
    assert not covered[:, :, :9].any()
    window = covered[:, 7:73, 9:57]
    assert covered.sum() == window.sum()
    assert window.double().mean(dim=(1, 2)).sub(share).abs().max() < 0.02
    assert not torch.equal(covered[0], covered[1])
    again = cover(pictures, (66, 48), share, seed=1)
    assert torch.equal(again, cover(pictures, (66, 48), share, seed=1))


def test_people_are_divided_and_the_stack_is_displaced() -> None:
    pictures = Reproduction(FacesSettings()).pictures
    assert [len(part) for part in pictures[:4]] == [280, 40, 80, 100]
    train = {picture.numpy().tobytes() for picture in pictures.train}
    assert not any(picture.numpy().tobytes() in train for picture in pictures.test)


def test_losses_are_those_of_the_library(ran: Ran) -> None:
    experiment, result, _ = ran
    window = Translation(SMALL.size)
    encoder = experiment._trained(0)
    shown = window(experiment.pictures.test, window.identity(6))
    loss = float(encoder.model.objective(shown, encoder(shown)).mean())
    assert result["losses"][ENCODER]["original"]["loss"] == pytest.approx(loss, rel=1e-5)
    solution = pu.solve(encoder.model, shown, tol=1e-6)
    exact = result["losses"][EXACT]
    assert exact["original"]["loss"] == pytest.approx(float(solution.objective.mean()), rel=2e-3)
    outliers = (solution.codes[:, SMALL.atoms :] != 0).double().mean()
    assert exact["original"]["outliers"] == pytest.approx(float(outliers), abs=0.01)
    assert exact["realigned"]["loss"] < exact["shifted"]["loss"]


def test_errors_are_distances_in_pixels(ran: Ran) -> None:
    _, result, _ = ran
    start = Reproduction(SMALL)._draw(0)
    assert start.abs().max() <= SMALL.shift
    for name in (EXACT, PHASE):
        own = result["errors"][name]["own"]
        assert 0 <= own["mean"] < 0.5 * float(start.norm(dim=1).mean())
        assert own["all"] == sorted(own["all"])
        assert np.mean(own["all"]) == pytest.approx(own["mean"], abs=1e-3)


def test_the_stack_is_better_after_than_before(ran: Ran) -> None:
    _, result, _ = ran
    for kind in KINDS:
        found = result["stack"][kind]
        for name in (OURS, RASL):
            assert found[name]["objective"] < found["before"]["objective"]
        assert found["new"]["after"] <= found["new"]["before"]


def test_the_report_has_everything(ran: Ran) -> None:
    _, _, folder = ran
    text = (folder / "report.md").read_text()
    for name in ("faces.png", "errors.png", "covered.png", "mean.png", "stream.png"):
        assert (folder / name).stat().st_size > 5000
        assert name in text
    for word in (ENCODER, EXACT, RASL, "moved again", "Differences from the paper"):
        assert word in text
    result = json.loads((folder / "result.json").read_text())
    points = result["stream"]["0"]
    assert [point["pictures"] for point in points] == [5, 10, 15, 20]
    assert np.isfinite(points[-1]["moved again"])


def test_wrong_folders(tmp_path: Path) -> None:
    done = pursuit("reproduce", "faces", "--data", tmp_path, "--output", tmp_path / "out")
    assert_refused(done, 1, "splits.csv")
    assert not (tmp_path / "out").exists()
