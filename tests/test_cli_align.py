"""`pursuit align`: from a folder of pictures to aligned ones, a table and a sheet."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pursuit as pu
from picturing import POSES, Array, Pose, covered, picture
from processes import assert_refused, errors_of, pursuit
from pursuit.cli.align_run import names
from pursuit.cli.main import app
from pursuit.vision import AlignmentModel, align_pictures
from pursuit.vision.sheets import as_bytes

Run = Callable[..., subprocess.CompletedProcess[str]]
PARTS = ("aligned", "low_rank", "outliers")


def save(path: Path, values: Array, **options: Any) -> None:
    Image.fromarray(as_bytes(values)).save(path, **options)


def fill(folder: Path, count: int = len(POSES)) -> Path:
    folder.mkdir(exist_ok=True)
    for number, pose in enumerate(POSES[:count]):
        save(folder / f"{number}.png", covered(picture(pose), number))
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`pursuit align` in this process."""

    def align(*arguments: object) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(["align", *map(str, arguments)], prog_name="pursuit")
        said = capsys.readouterr()
        return subprocess.CompletedProcess([], int(ended.value.code or 0), said.out, said.err)

    return align


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def table_of(folder: Path) -> list[dict[str, str]]:
    with open(folder / "transformations.csv", newline="") as file:
        return list(csv.DictReader(file))


def pixels(path: Path) -> Array:
    return np.asarray(Image.open(path))


# ---- what is written ------------------------------------------------------------------------


def test_a_folder_as_a_user_has_it(tmp_path: Path) -> None:
    """Colours, 16 bits, two files of one stem, other sizes, a broken file, and no picture."""
    source, out = fill(tmp_path / "photos"), tmp_path / "new" / "out"
    whole = picture(POSES[0], (50, 58))
    save(source / "0.jpg", whole[:, :, None] * np.array([1.0, 0.8, 0.6]), quality=95)
    Image.fromarray((picture(POSES[1]) * 65535).astype(np.uint16)).save(source / "ü, 16.tif")
    (source / "broken.png").write_text("no picture")
    (source / "notes.txt").write_text("x")
    done = pursuit("align", source, "-o", out, "--save-model", out / "m.safetensors", "--json")
    assert done.returncode == 0, done.stderr
    lines = errors_of(done)
    assert len(lines) == 2
    for line, name in zip(lines, ("notes.txt", "broken.png"), strict=True):
        assert line.startswith("warning: left out: ")
        assert name in line
    written = json.loads(done.stdout)
    sources = ["0.jpg", *(f"{number}.png" for number in range(6)), "ü, 16.tif"]
    results = {f"{part}/{name}.png" for part in PARTS for name in sources}
    assert files_of(out) == results | {"contact_sheet.png", "transformations.csv", "m.safetensors"}
    assert (written["pictures"], written["window"], written["factor"]) == (8, [34, 40], 1)
    assert written["loss_after"] < written["loss_before"]
    assert written["difference_after"] < 0.7 * written["difference_before"]
    assert [row["file"] for row in table_of(out)] == sources
    assert pixels(out / "aligned" / "0.jpg.png").shape == (34, 40, 3)
    assert pixels(out / "aligned" / "0.png.png").shape == (34, 40)
    assert pixels(out / "aligned" / "ü, 16.tif.png").dtype == np.uint16
    assert pixels(out / "low_rank" / "0.jpg.png").shape == (34, 40)
    assert pixels(out / "contact_sheet.png").ndim == 3
    assert AlignmentModel.load(out / "m.safetensors").size == (48, 56)


def test_the_files_agree_with_the_library(run: Run, tmp_path: Path) -> None:
    source, out = fill(tmp_path / "in"), tmp_path / "out"
    done = run(source, "-o", out, "--atoms", "2", "--lam", "0.02", "--margin", "15", "--json")
    assert done.returncode == 0, done.stderr
    found = align_pictures(source, margin=0.15, lam=0.02, atoms=2)
    written = json.loads(done.stdout)
    assert written["atoms"] == found.model.model.dictionary.shape[0] <= 2
    rows = table_of(out)
    assert tuple(rows[0]) == ("file", *found.columns)
    values = [[float(row[name]) for name in found.columns] for row in rows]
    np.testing.assert_allclose(values, found.table(), rtol=1e-5, atol=1e-5)
    for number in range(len(found)):
        name = f"{number}.png"
        after = found.views(number)[1]
        np.testing.assert_array_equal(pixels(out / "aligned" / name), as_bytes(after))
        low_rank = as_bytes(found.low_rank[number])
        np.testing.assert_array_equal(pixels(out / "low_rank" / name), low_rank)
        drawn = pixels(out / "outliers" / name) / 255 - 0.5
        outliers = found.outliers[number] / (2 * written["outlier_scale"])
        np.testing.assert_allclose(drawn, outliers.clip(-0.5, 0.5), atol=0.51 / 255)


def test_the_summary_is_for_readers(run: Run, tmp_path: Path) -> None:
    source, out = fill(tmp_path / "in", 3), tmp_path / "out"
    done = run(source, "-o", out, "--transformation", "translation")
    first, *rest = done.stdout.splitlines()
    assert first == f"{out / 'contact_sheet.png'}: 3 pictures aligned by translation"
    assert "the 34 x 40 pixels in the middle" in rest[0]
    assert rest[1].startswith("difference from the median picture ")
    assert tuple(table_of(out)[0]) == ("file", "x", "y", "loss_before", "loss_after")


def test_a_second_run_replaces_the_results_and_nothing_else(run: Run, tmp_path: Path) -> None:
    source, out = fill(tmp_path / "in", 3), tmp_path / "out"
    (out / "aligned").mkdir(parents=True)
    (out / "mine.txt").write_text("mine")
    (out / "aligned" / "0.png").write_text("old")
    for _ in range(2):
        assert run(source, "-o", out).returncode == 0
        results = {f"{part}/{number}.png" for part in PARTS for number in range(3)}
        assert files_of(out) == results | {"contact_sheet.png", "transformations.csv", "mine.txt"}
        assert pixels(out / "aligned" / "0.png").shape == (34, 40)
        assert (out / "mine.txt").read_text() == "mine"


def test_names_of_results() -> None:
    assert names([Path("a.png"), Path("b.jpg")]) == ["a", "b"]
    assert names([Path("a.png"), Path("A.jpg"), Path("b.jpg")]) == ["a.png", "A.jpg", "b.jpg"]


# ---- models ---------------------------------------------------------------------------------


def test_a_saved_model_aligns_a_new_picture(run: Run, tmp_path: Path) -> None:
    source, model = fill(tmp_path / "in"), tmp_path / "m.safetensors"
    done = run(source, "-o", tmp_path / "out", "--save-model", model)
    assert done.stdout.splitlines()[-1] == f"the model: {model}"
    save(tmp_path / "new.png", covered(picture(Pose(2.0, 1.0, -2.5)), 9))
    done = run(tmp_path / "new.png", "-o", tmp_path / "one", "--model", model, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pictures"] == 1
    (row,) = table_of(tmp_path / "one")
    found = align_pictures(tmp_path / "new.png", AlignmentModel.load(model))
    assert float(row["x"]) == pytest.approx(found.table()[0, 0], rel=1e-5)
    assert float(row["x"]) == pytest.approx(2.0, abs=0.3)
    assert pixels(tmp_path / "one" / "contact_sheet.png").ndim == 3


def test_inspect_shows_the_model_and_draws_its_atoms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plot = align_pictures(fill(tmp_path / "in", 3)).model, tmp_path / "atoms.png"
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(SystemExit):
        app(["inspect", str(tmp_path / "m.safetensors"), "--plot", str(plot), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["kind"] == "alignment"
    assert shown["transformation"] == {"kind": "similarity", "size": [34, 40], "limit": None}
    assert (shown["size"], shown["factor"]) == ([48, 56], 1)
    assert pixels(plot).ndim == 3


def test_a_window_at_the_border_is_a_warning(run: Run, tmp_path: Path) -> None:
    source = fill(tmp_path / "in")
    save(source / "far.png", picture(Pose(9.0, 0.0)))
    done = run(source, "-o", tmp_path / "out", "--margin", "5", "--json")
    count = json.loads(done.stdout)["at_border"]
    assert count >= 1
    (line,) = errors_of(done)
    assert line.startswith(f"warning: in {count} of 7 pictures the window has reached the border")
    assert line.endswith("take a larger --margin")


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nowhere", "-o", "out"], 1, "there is no folder or picture"),
        (["in/0.png", "-o", "out"], 1, "0.png with; give a folder of pictures, or a model by"),
        (["single", "-o", "out"], 1, "0.png with; give several pictures, or a model (--model)"),
        (["empty", "-o", "out"], 1, "has no pictures (.png, "),
        (["in", "-o", "in"], 1, "to which results would be written; give another -o"),
        (["out2/aligned", "-o", "out2"], 1, "to which results would be written"),
        (["in", "-o", "in/0.png"], 1, "0.png is a file; give the name of a folder"),
        (["in"], 2, "Missing option '--output' / '-o'"),
        (["in", "-o", "out", "--margin", "60"], 2, "'--margin'"),
        (["in", "-o", "out", "--lam", "0"], 2, "'--lam'"),
        (["in", "-o", "out", "--transformation", "shear"], 2, "'--transformation'"),
        (["in", "-o", "out", "--model", "lasso", "--lam", "1"], 2, "--lam does not go with --mod"),
        (["in", "-o", "out", "--model", "lasso"], 1, "holds 'model', not a model of aligned pict"),
        (["in", "-o", "out", "--model", "in/0.png"], 1, "is a PNG picture, not a model"),
        (["in", "-o", "out", "--model", "nowhere"], 1, "there is no file"),
        (["in", "-o", "out", "--save-model", "no/m"], 1, "there is no folder"),
        (["in", "-o", "out", "--save-model", "m.png"], 1, "will be a model; call it *.safetens"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_uses(
    run: Run, tmp_path: Path, arguments: list[str], code: int, sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for folder in ("in", "out2/aligned"):
        Path(folder).mkdir(parents=True)
        fill(Path(folder), 3)
    fill(Path("single"), 1)
    Path("empty").mkdir()
    pu.save(pu.models.Lasso(torch.eye(2), 1.0), "lasso")
    before = files_of(tmp_path)
    assert_refused(run(*arguments), code, sentence)
    assert files_of(tmp_path) == before
    assert not Path("out").exists()


def test_an_error_leaves_nothing_behind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = fill(tmp_path / "in", 3), tmp_path / "deep" / "out"

    def fail(*_: object) -> None:
        assert any(out.rglob("*.png"))  # pictures have been written somewhere
        raise OSError("the disk is full")

    monkeypatch.setattr("pursuit.vision.sheets.ContactSheet.draw", fail)
    assert_refused(
        run(source, "-o", out, "--save-model", tmp_path / "m.safetensors"), 1, "the disk is full"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_without_pillow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "in", 2)
    monkeypatch.setitem(sys.modules, "PIL", None)
    done = run(tmp_path / "in", "-o", tmp_path / "out")
    assert_refused(done, 1, "reading pictures needs Pillow; install it with pip install 'pursuit[")
