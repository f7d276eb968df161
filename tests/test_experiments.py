"""Experiments: what is kept, what comes of it, and that it is what the library computes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pursuit as pu
from processes import ENVIRONMENT, assert_refused, pursuit, python
from pursuit.datasets import textures
from pursuit.experiments import (
    EXPERIMENTS,
    approximation,
    approximation_report,
    find,
    online,
    online_report,
)
from pursuit.experiments.frame import Description, Experiment, Part, Settings, run
from pursuit.progress import Progress
from pursuit.report import Report

SMALL = {
    "online": online.OnlineSettings(
        seeds=(0, 1), block=400, window=200, step=50, offline=600, atoms=16, training=40, updates=2
    ),
    "approximation": approximation.ApproximationSettings(
        train=200, test=40, bins=65, atoms=6, depths=(1, 3, 7), joint=200, training=30,
        supervised=30, batch=32,
        sizes=(20,), steps=(5,), iterations=60,
    ),
}  # fmt: skip


def told(now: Progress) -> tuple[int, int | None, str]:
    return now.done, now.total, now.stage


# ---- the frame -------------------------------------------------------------------------------


class ToyDescription(Description):
    title, source, differences = "Squares", "none", ("None at all.",)

    def write(self, result: Mapping[str, Any], report: Report) -> None:
        report.text(f"The sum is {result['sum']}.")


class Toy(Experiment):
    """Squares, each a part."""

    name, stamp, description = "toy", "1", ToyDescription()

    def __init__(self, settings: Settings, broken: int | None = None) -> None:
        super().__init__(settings)
        self.broken, self.computed = broken, []

    @classmethod
    def configure(cls, data: Path | None, quick: bool) -> Settings:
        return Settings()

    @classmethod
    def download(cls, progress: Any = None) -> Path:
        raise NotImplementedError

    def parts(self) -> Sequence[Part]:
        return [Part(f"part-{s}", f"square {s}", lambda s=s: self.square(s))
                for s in self.settings.seeds]  # fmt: skip

    def square(self, seed: int) -> int:
        if seed == self.broken:
            raise KeyboardInterrupt
        self.computed.append(seed)
        return seed**2

    def conclude(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"sum": sum(values.values())}


def test_a_run_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    settings = Settings(seeds=(1, 2, 3, 4))
    first = Toy(settings, broken=3)
    with pytest.raises(KeyboardInterrupt):
        run(first, tmp_path)
    assert first.computed == [1, 2]
    assert not (tmp_path / "result.json").exists()
    calls: list[Progress] = []
    second = Toy(settings)
    result, page = run(second, tmp_path, calls.append)
    assert second.computed == [3, 4]
    assert result["sum"] == 30
    assert list(map(told, calls)) == [(2, 4, "square 3"), (3, 4, "square 4"), (4, 4, "drawing")]
    assert json.loads((tmp_path / "result.json").read_text())["sum"] == 30
    text = page.with_suffix(".md").read_text()
    assert "The sum is 30." in text
    assert "| seeds | 1, 2, 3, 4 |" in text
    assert "None at all." in text


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"value": 1}'])
def test_a_part_that_cannot_be_read_is_computed_again(tmp_path: Path, content: bytes) -> None:
    settings = Settings(seeds=(1, 2))
    run(Toy(settings), tmp_path)
    (kept,) = tmp_path.glob("parts/*/part-2.json")
    kept.write_bytes(content)
    again = Toy(settings)
    assert run(again, tmp_path)[0]["sum"] == 5
    assert again.computed == [2]


def test_what_is_kept_belongs_to_its_settings_and_data(tmp_path: Path) -> None:
    run(Toy(Settings(seeds=(1, 2))), tmp_path)
    other = Toy(Settings(seeds=(1, 2, 3)))
    run(other, tmp_path)
    assert other.computed == [1, 2, 3]
    moved = Toy(Settings(seeds=(1, 2)))
    moved.stamp = "2"
    run(moved, tmp_path)
    assert moved.computed == [1, 2]
    same = Toy(Settings(seeds=(1, 2)))
    run(same, tmp_path)
    assert same.computed == []


def test_what_is_kept_does_not_depend_on_the_words_of_the_report(tmp_path: Path) -> None:
    class Reworded(ToyDescription):
        title, source, differences = "Sums", "other words", ("Other words.",)

    run(Toy(Settings(seeds=(1, 2))), tmp_path)
    reworded = Toy(Settings(seeds=(1, 2)))
    reworded.description = Reworded()
    result, page = run(reworded, tmp_path)
    assert reworded.computed == []
    assert result["data"] == "other words"
    assert "Other words." in page.with_suffix(".md").read_text()


@pytest.mark.parametrize("name", list(SMALL))
def test_the_cache_key_of_an_experiment_has_no_prose(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = find(name)(SMALL[name])
    key = experiment.fingerprint
    description = type(experiment.description)
    monkeypatch.setattr(description, "source", "other words")
    monkeypatch.setattr(description, "title", "other words")
    monkeypatch.setattr(description, "differences", ("other words",))
    assert experiment.description.source == "other words"
    assert experiment.fingerprint == key


def test_every_experiment_is_found() -> None:
    for name in EXPERIMENTS:
        experiment = find(name)
        assert experiment.name == name
        assert len(experiment.configure(None, quick=True).seeds) == 1
    with pytest.raises(ValueError, match="there is no experiment 'none'; there are 'appr"):
        find("none")


# ---- the experiments -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(SMALL))
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Experiment, dict[str, Any], Path]:
    torch.set_num_threads(1)
    experiment = find(request.param)(SMALL[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    result, _ = run(experiment, folder)
    return experiment, result, folder


def timeless(value: Any) -> Any:
    """A result without what was measured by the clock."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in ("seconds", "us")}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def test_the_same_seed_gives_the_same_result(
    ran: tuple[Experiment, dict[str, Any], Path], tmp_path: Path
) -> None:
    """Also where the second run finds half of the parts of the first."""
    experiment, result, folder = ran
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for number, kept in enumerate(sorted(tmp_path.glob("parts/*/*.json"))):
        if number % 2:
            kept.unlink()
    again = type(experiment)(experiment.settings)
    assert timeless(run(again, tmp_path)[0]) == timeless(result)


def test_the_report_shows_the_figures_and_states_everything(
    ran: tuple[Experiment, dict[str, Any], Path],
) -> None:
    experiment, _, folder = ran
    text = (folder / "report.md").read_text()
    page = (folder / "report.html").read_text()
    figures = sorted(folder.glob("*.png"))
    assert len(figures) == 2
    for figure in figures:
        assert f"]({figure.name})" in text
        assert figure.stat().st_size > 10_000
    assert page.count("data:image/png;base64") == 2
    for field in dataclasses.fields(experiment.settings):
        assert f"| {field.name} |" in text
    assert experiment.description.source.split(";")[0] in text
    for sentence in experiment.description.differences:
        assert sentence.split("`")[0] in text


def test_the_stream_and_the_offline_patches_have_no_position_in_common() -> None:
    experiment = online.Reproduction(SMALL["online"])
    stream, others = experiment._drawn(0)
    assert stream.shape == (1200, 64)
    assert others.shape == (600, 64)
    windows = {row.numpy().tobytes() for row in stream}
    # flat patches of different positions can be equal; these textures have hardly any
    assert sum(row.numpy().tobytes() in windows for row in others) <= 2
    assert not torch.equal(stream, experiment._drawn(1)[0])
    first, _ = textures.draw(experiment.pictures.pictures[0], 400)
    assert torch.equal(stream[:400], first)


def test_objectives_of_the_stream_are_those_of_the_library() -> None:
    experiment = online.Reproduction(SMALL["online"])
    settings = experiment.settings
    stream, others = experiment._drawn(0)
    found = experiment._follow(0)
    offline = experiment._offline(0)
    # the first chunk is met by an encoder that has learned nothing
    atoms = pu.learn(stream[: settings.window], settings.atoms, settings.lam, passes=3)
    encoder = pu.CoordinateEncoder(pu.models.Lasso(atoms, settings.lam), settings.layers)
    chunk = stream[: settings.step]
    with torch.no_grad():
        value = encoder.model.objective(chunk, encoder(chunk)).mean()
    assert found["objective"][0] == pytest.approx(float(value), rel=1e-6)
    assert all(a <= b + 1e-6 for a, b in zip(found["optimum"], found["objective"], strict=True))
    # offline: the exact codes in the dictionary of the other patches bound both encoders
    atoms = pu.learn(others, settings.atoms, settings.lam, passes=settings.passes)
    best = pu.solve(pu.models.Lasso(atoms, settings.lam), stream[-settings.step :]).objective
    assert offline["optimum"][-1] == pytest.approx(float(best.mean()), rel=1e-5)
    for name in (online.OFFLINE, online.COPIED):
        assert np.all(np.array(offline[name]) >= np.array(offline["optimum"]) - 1e-6)


@pytest.mark.parametrize("ran", ["online"], indirect=True)
def test_the_verdict_on_the_order_is_that_of_the_numbers(
    ran: tuple[Experiment, dict[str, Any], Path],
) -> None:
    experiment, result, folder = ran
    text = (folder / "report.md").read_text()
    chunks = experiment.settings.block // experiment.settings.step
    for number, block in enumerate(result["blocks"]):
        half = slice(number * chunks + chunks // 2, (number + 1) * chunks)
        means = {
            name: float(np.mean([np.mean(one[half]) for one in runs]))
            for name, runs in result["curves"].items()
        }
        for name, values in block["objective"].items():
            assert np.mean(values) == pytest.approx(means[name])
        order = [means[name] for name in online.ORDER]
        assert block["holds"] == [a < b for a, b in pairwise(order)]
        for (lower, higher), holds in zip(pairwise(online.ORDER), block["holds"], strict=True):
            (row,) = [line for line in text.splitlines() if f"| {higher} above {lower} |" in line]
            word, difference, _ = row.split("|")[2 + number].split(",")
            assert word.strip() == ("yes" if holds else "NO")
            assert float(difference) == pytest.approx(means[higher] - means[lower], abs=0.006)


def test_the_two_online_encoders_start_from_one_dictionary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned = []

    def noted(*arguments: Any, **options: Any) -> torch.Tensor:
        learned.append(options["seed"])
        return pu.learn(*arguments, **options)

    monkeypatch.setattr(online, "learn", noted)
    experiment = online.Reproduction(SMALL["online"])
    first = experiment._first_model(0)
    before = first.dictionary.clone()
    experiment._follow(0)
    experiment._follow(0, recommended=True)
    assert learned == [0]
    assert torch.equal(first.dictionary, before)


def test_curves_are_not_averaged_over_the_border_of_two_textures() -> None:
    run_of = np.array([1.0] * 6 + [5.0] * 6)
    np.testing.assert_array_equal(online_report._smoothed(run_of, 0, 6), run_of)
    ramp = np.arange(12.0)
    smooth = online_report._smoothed(ramp, 2, 6)
    np.testing.assert_allclose(smooth[:4], [2, 2.5, 3, 3.5])
    np.testing.assert_allclose(smooth[4:], [6, 6.5, 7, 7.5, 8, 9])


def test_gaps_and_equivalent_iterations_are_those_of_the_solvers() -> None:
    settings = SMALL["approximation"]
    experiment = approximation.Reproduction(settings)
    found = experiment._reference()
    model, test = experiment.model, experiment.frames[1]
    best = pu.solve(model.to(torch.float64), test.mixture.double(), tol=1e-9).objective
    assert found["optimum"] == pytest.approx(float(best.mean()), rel=1e-6)
    for name in ("ista", "fista"):
        codes = pu.solve(model, test.mixture, name, tol=0, max_iter=17).codes
        gap = model.objective(test.mixture.double(), codes.double()) - best
        assert found[name]["gaps"][16] == pytest.approx(float(gap.mean()), rel=1e-3)
    parts = model.split(pu.solve(model, test.mixture).codes)
    wrong = (parts.low_rank - test.low_rank).square() + (parts.sparse - test.sparse).square()
    assert found["exact"] == pytest.approx(float(wrong.sum(dim=1).mean()), rel=1e-3)
    # an untrained encoder of the paper is as many iterations
    encoder = approximation.FORMS[approximation.PAPER](model, 7)
    with torch.no_grad():
        gap = experiment._gap(encoder(test.mixture))
    assert approximation._equivalent(found["ista"]["gaps"], gap * (1 + 1e-4)) == 7
    assert approximation._equivalent([3.0, 2.0, 1.0], 2.0) == 2
    assert approximation._equivalent([3.0, 2.0, 1.0], 0.5) is None
    assert approximation_report._count(None, 60) == "more than 60"


def test_weights_follow_the_noise() -> None:
    experiment = approximation.Reproduction(SMALL["approximation"])
    assert experiment.weights == pytest.approx((2**0.5 * 0.1, (2 * 200) ** 0.5 * 0.1))


@pytest.mark.parametrize("ran", ["approximation"], indirect=True)
def test_training_helps_and_supervision_separates(
    ran: tuple[Experiment, dict[str, Any], Path],
) -> None:
    _, result, _ = ran
    for rows in result["depths"].values():
        untrained = result["iterations"]["ista"]["gaps"]
        for row in rows:
            assert np.mean(row["gap"]) < untrained[row["layers"] - 1]
        deepest = rows[-1]
        assert np.mean(deepest["error_supervised"]) < np.mean(deepest["error"])


@pytest.mark.data
@pytest.mark.parametrize("name", list(SMALL))
def test_they_run_on_the_real_data(name: str, data_folder: Path, tmp_path: Path) -> None:
    chosen = find(name).configure(data_folder, quick=True)
    smaller = {field.name: getattr(SMALL[name], field.name) for field in dataclasses.fields(chosen)
               if field.name not in ("sigma", "bins")}  # fmt: skip
    settings = dataclasses.replace(chosen, **{**smaller, "seeds": (0,)})
    experiment = find(name)(settings, data_folder)
    result, page = run(experiment, tmp_path)
    assert result["data"] == experiment.description.source
    if name == "online":
        assert [block["texture"] for block in result["blocks"]] == list(experiment.pictures.names)
        assert "scikit-image" not in page.with_suffix(".md").read_text()
    else:
        assert experiment.frames[0].mixture.shape == (200, 513)
        assert "MIR-1K" in result["data"]


# ---- the command -----------------------------------------------------------------------------

#: the command with a small experiment
TINY = (
    "from pursuit.experiments import online\n"
    "from pursuit.experiments.online import OnlineSettings, Reproduction\n"
    "Reproduction.configure = classmethod(lambda cls, data, quick: OnlineSettings(\n"
    "    seeds=(0,), block=400, window=200, step=50, offline=600, atoms=16, training=40,\n"
    "    updates=2))\n"
    "from pursuit.cli.main import main; main()"
)


def test_the_command_runs_goes_on_and_says_where_the_report_is(tmp_path: Path) -> None:
    out = tmp_path / "report"
    command = [sys.executable, "-c", TINY, "reproduce", "online", "-o", str(out), "--seeds", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stderr is not None
        while "seed 0: following the stream with" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGKILL)
    kept = {path.name for path in out.glob("parts/*/*.json")}
    assert {"offline-0.json", "online-0.json"} <= kept < {f"{part}-{seed}.json" for seed in (0, 1)
            for part in ("offline", "online", "recommended")}  # fmt: skip
    done = python(*command[1:])
    assert done.returncode == 0, done.stderr
    assert "training encoders offline" in done.stderr
    assert "seed 0: training" not in done.stderr
    assert done.stdout == f"the report: {(out / 'report.html').resolve()}\n"
    torch.set_num_threads(1)
    whole, _ = run(online.Reproduction(SMALL["online"]), tmp_path / "whole")
    assert timeless(json.loads(json.dumps(whole))) == timeless(
        json.loads((out / "result.json").read_text())
    )
    again = python(*command[1:], "--json")  # all is there, so it only says it once more
    said = json.loads(again.stdout)
    assert said.pop("report") == str(out / "report.html")
    assert timeless(said) == timeless(json.loads((out / "result.json").read_text()))


def test_the_command_lists_what_there_is() -> None:
    done = pursuit("reproduce", "list", options=("-X", "importtime"))
    assert done.returncode == 0
    for name, entry in EXPERIMENTS.items():
        assert f"{name}: {entry.shows}" in done.stdout
    assert "torch" not in {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    listed = json.loads(pursuit("reproduce", "list", "--json").stdout)
    assert listed == {name: entry._asdict() for name, entry in EXPERIMENTS.items()}


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "Missing argument 'NAME'"),
        (["nothing"], 2, "there is no experiment 'nothing'; there are approximation, online"),
        (["online", "--data", "x", "--download"], 2, "--data and --download exclude each other"),
        (["online", "--data", "no/such"], 1, "no/such is not a folder"),
        (["online", "--seeds", "0"], 2, "Input should be greater than or equal to 1"),
        (["online", "--data", "."], 1, "has no pictures"),
        (["approximation", "--data", "."], 1, "has neither splits.csv nor a folder Wavfile"),
    ],
)
def test_wrong_uses_of_the_command(
    arguments: list[str], code: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(pursuit("reproduce", *arguments), code, sentence)
