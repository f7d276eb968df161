"""Pictures of a folder: read as they are shown, aligned as they were moved, saved and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import pursuit as pu
from picturing import POSES, Array, Pose, covered, picture
from pursuit.alignment import align_together
from pursuit.datasets.pictures import as_grey, read, read_colours, read_header
from pursuit.progress import Progress
from pursuit.vision import AlignedPictures, AlignmentModel, ContactSheet, align_pictures, read_stack
from pursuit.vision.sheets import around_grey, as_bytes
from pursuit.vision.stack import LARGEST

TINT = np.array([1.0, 0.8, 0.6])


def save(path: Path, values: Array, **options: Any) -> None:
    Image.fromarray(as_bytes(values)).save(path, **options)


def fill(folder: Path, **options: Any) -> Path:
    """A folder with a picture for each pose; a part of each is covered."""
    folder.mkdir(exist_ok=True)
    for number, pose in enumerate(POSES):
        save(folder / f"{number}.png", covered(picture(pose, **options), number))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def aligned(folder: Path) -> AlignedPictures:
    return align_pictures(folder)


# ---- reading --------------------------------------------------------------------------------


def test_colours_are_read_as_they_are(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "a.png")
    Image.fromarray(colours[:, :, 0]).save(tmp_path / "b.png")
    np.testing.assert_array_equal(read_colours(tmp_path / "a.png"), colours / 255)
    np.testing.assert_array_equal(read_colours(tmp_path / "b.png"), colours[:, :, 0] / 255)
    np.testing.assert_allclose(
        as_grey(read_colours(tmp_path / "a.png")), read(tmp_path / "a.png"), atol=1 / 255
    )


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_sixteen_bits(tmp_path: Path, suffix: str) -> None:
    values = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1001
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(values).save(path)
    np.testing.assert_array_equal(read_colours(path), values / 65535)
    assert read_header(path) == (5, 7, True)


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    values = np.full((2, 2, 4), 51, np.uint8)
    values[:, :, 3] = [[0, 255], [255, 0]]
    Image.fromarray(values).save(tmp_path / "a.png")
    expected = np.array([[1.0, 0.2], [0.2, 1.0]])
    np.testing.assert_allclose(read_colours(tmp_path / "a.png")[:, :, 1], expected)
    Image.fromarray(values[:, :, 2:], "LA").save(tmp_path / "b.png")
    np.testing.assert_allclose(read_colours(tmp_path / "b.png"), expected)


def test_palettes_have_colours(tmp_path: Path) -> None:
    palette = Image.fromarray(np.zeros((4, 4), np.uint8), "P")
    palette.putpalette([255, 0, 51] * 256)
    palette.save(tmp_path / "a.gif")
    np.testing.assert_array_equal(read_colours(tmp_path / "a.gif")[0, 0], [1.0, 0.0, 0.2])


def test_pictures_are_turned_as_the_camera_says(tmp_path: Path) -> None:
    values = np.zeros((4, 6), np.uint8)
    values[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned clockwise by a quarter
    Image.fromarray(values).save(tmp_path / "a.png", exif=exif)
    upright = read_colours(tmp_path / "a.png")
    assert upright.shape == (6, 4) == read_header(tmp_path / "a.png")[:2]
    assert np.argwhere(upright).tolist() == [[0, 3]]


# ---- stacks ---------------------------------------------------------------------------------


def test_pictures_are_cut_around_their_middle(tmp_path: Path) -> None:
    whole = picture(Pose(), (50, 60))
    save(tmp_path / "a.png", whole)
    save(tmp_path / "b.png", whole[1:-1, 4:-4])
    save(tmp_path / "c.png", np.stack([whole[2:-2], whole[2:-2], whole[2:-2]], axis=-1))
    stack = read_stack(tmp_path)
    assert stack.size == (46, 52)
    expected = as_bytes(whole[2:-2, 4:-4]) / 255
    for number in range(3):
        np.testing.assert_allclose(stack.grey[number] * stack.white, expected, atol=1e-6)
    assert stack.picture(2).shape == (46, 52, 3)
    assert stack.white == pytest.approx(np.percentile(expected, 99.9))


def test_what_cannot_be_used_is_left_out_and_named(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no picture")
    content = (tmp_path / "0.png").read_bytes()
    (tmp_path / "half.png").write_bytes(content[: len(content) // 2])
    save(tmp_path / "large.png", picture(Pose(), (96, 112)))
    save(tmp_path / "flat.png", np.full((48, 56), 0.5))
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.png").write_text("x")
    with pytest.warns(UserWarning, match="left out: ") as caught:
        stack = read_stack(tmp_path)
    assert [path.name for path in stack.paths] == [f"{number}.png" for number in range(6)]
    messages = [str(warning.message) for warning in caught]
    for name in ("broken.jpg", "half.png", "large.png", "flat.png", "notes.txt"):
        assert sum(name in message for message in messages) == 1
    assert len(messages) == 5
    assert "large.png has 96 x 112 pixels, too different from 48 x 56" in " ".join(messages)


def test_pictures_of_quite_different_sizes_are_refused(tmp_path: Path) -> None:
    for number, side in enumerate([30, 30, 60, 90]):
        save(tmp_path / f"{number}.png", picture(Pose(), (side, 40)))
    with pytest.raises(ValueError, match=r"2\.png and 3\.png have sizes such as 60 x 40 pixels"):
        read_stack(tmp_path)


def test_large_pictures_are_averaged_over_squares(tmp_path: Path) -> None:
    values = as_bytes(picture(Pose(), (2 * LARGEST + 3, 30 * 3 + 10), enlarged=3)) / 255
    save(tmp_path / "a.png", values)
    stack = read_stack([tmp_path / "a.png"])
    assert (stack.factor, stack.size) == (3, (402, 99))
    kept = values[:402, :99]  # the odd pixel is cut off at the end
    means = kept.reshape(134, 3, 33, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(stack.grey[0] * stack.white, means, atol=1e-6)


def test_values_are_relative_to_the_brightest_pixels(tmp_path: Path) -> None:
    """Pictures of 12 bits in files of 16 are aligned as well as those of 8."""
    values = (picture(Pose()) * 4095).astype(np.uint16)
    for number in range(2):
        Image.fromarray(values + np.uint16(number)).save(tmp_path / f"{number}.tif")
    stack = read_stack(tmp_path)
    assert stack.white < 0.07
    assert 0.9 < stack.grey.max() < 1.1
    assert stack.deep == (True, True)


def test_the_smallest_pictures(tmp_path: Path) -> None:
    for number in range(2):
        save(tmp_path / f"{number}.png", picture(Pose(), (15, 40)))
    with pytest.raises(ValueError, match=r"15 x 40 pixels cannot be aligned; .* at least 16"):
        read_stack(tmp_path)


# ---- aligning -------------------------------------------------------------------------------


def assert_found(aligned: AlignedPictures, poses: tuple[Pose, ...], pixels: float) -> None:
    """The table has the poses, up to a movement of all pictures alike."""
    table = dict(zip(aligned.columns, aligned.table().T, strict=True))
    for name, tolerance in {"x": pixels, "y": pixels, "angle": 0.4, "scale": 0.005}.items():
        expected = np.array([getattr(pose, name) for pose in poses])
        found = table[name] - table[name].mean()
        np.testing.assert_allclose(found, expected - expected.mean(), atol=tolerance)
    assert (table["loss_after"] < table["loss_before"]).all()


def test_movements_are_found(aligned: AlignedPictures) -> None:
    assert_found(aligned, POSES, pixels=0.15)
    assert aligned.window == (34, 40)
    before, after = aligned.differences
    assert after < 0.6 * before


def test_it_is_the_alignment_of_the_library(aligned: AlignedPictures) -> None:
    together = align_together(aligned.stack.grey, aligned.alignment.transformation)
    np.testing.assert_array_equal(together.alignment.parameters, aligned.alignment.parameters)


def test_views_are_what_the_window_shows(aligned: AlignedPictures) -> None:
    """At full scale they are the signals of the model; before, they are the middle."""
    for number in range(len(aligned)):
        before, after = aligned.views(number)
        whole = aligned.stack.picture(number)
        np.testing.assert_allclose(before, whole[7:-7, 8:-8], atol=1e-5)
        shown = aligned.alignment.aligned[number].reshape(after.shape) * aligned.stack.white
        np.testing.assert_allclose(after, shown, atol=1e-5)


def test_parts_add_up(aligned: AlignedPictures) -> None:
    """What is neither low-rank nor an outlier is noise, at most lam."""
    shown = aligned.alignment.aligned.reshape(aligned.low_rank.shape).numpy()
    assert np.abs(shown - aligned.low_rank - aligned.outliers).max() <= 0.01 + 1e-5


def test_large_pictures_are_aligned_in_full_size(tmp_path: Path) -> None:
    """Lengths are in original pixels, and so is what is shown, in colours."""
    size, enlarged = (240, 280), 5
    for number, pose in enumerate(POSES):
        values = picture(pose, size, enlarged)
        save(tmp_path / f"{number}.png", values[:, :, None] * TINT)
    found = align_pictures(tmp_path)
    assert found.stack.factor == 2
    poses = tuple(Pose(5 * p.x, 5 * p.y, p.angle, p.scale) for p in POSES)
    assert_found(found, poses, pixels=0.5)
    views = [found.views(number) for number in range(len(POSES))]
    assert views[0][1].shape == (*found.window, 3) == (168, 196, 3)
    before, after = (np.stack(each).std(axis=0).mean() for each in zip(*views, strict=True))
    assert after < 0.1 * before


def test_translations(tmp_path: Path) -> None:
    moved = tuple(Pose(pose.x, pose.y) for pose in POSES)
    for number, pose in enumerate(moved):
        save(tmp_path / f"{number}.png", picture(pose))
    found = align_pictures(tmp_path, transformation="translation", margin=0.15)
    assert found.columns == ("x", "y", "loss_before", "loss_after")
    expected = [[pose.x, pose.y] for pose in moved]
    np.testing.assert_allclose(found.table()[:, :2], expected, atol=0.15)
    assert found.window == (34, 40)


def test_windows_that_have_reached_the_border(tmp_path: Path) -> None:
    """A movement that the margin does not allow is not found, and that is known."""
    moved = (*(Pose(pose.x / 4, pose.y / 4) for pose in POSES), Pose(8.0, 0.0))
    for number, pose in enumerate(moved):
        save(tmp_path / f"{number}.png", picture(pose))
    narrow = align_pictures(tmp_path, transformation="translation", margin=0.05)
    assert narrow.at_border.tolist() == [False] * 6 + [True]
    wide = align_pictures(tmp_path, transformation="translation", margin=0.2)
    assert not wide.at_border.any()
    found = wide.table()[:, 0]
    np.testing.assert_allclose(found[6] - found[:6].mean(), 8.0, atol=0.3)


@pytest.mark.data
def test_faces_become_more_alike(data_folder: Path) -> None:
    found = align_pictures(sorted((data_folder / "faces" / "rasl_gore").glob("*.png"))[::5])
    before, after = found.differences
    assert len(found) == 20
    assert after < 0.85 * before


def test_progress_is_reported(folder: Path) -> None:
    stages: list[Progress] = []
    align_pictures(folder, callback=stages.append)
    assert {now.stage for now in stages} == {"reading pictures", "aligning"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"transformation": "shear"}, "transformation must be one of 'translation', 'similarity'"),
        ({"margin": 0.5}, "margin must be above 0 and below 0.5, got 0.5"),
        ({"margin": 0.49}, "a margin of 0.49 leaves no window; choose a smaller one"),
        ({"lam": -1.0}, "lam must be non-negative"),
    ],
)
def test_wrong_options(folder: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        align_pictures(folder, **options)


def test_one_picture_needs_a_model(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing to align .*0\.png with; give several pictures"):
        align_pictures(folder / "0.png")


# ---- models ---------------------------------------------------------------------------------


def test_a_saved_model_aligns_a_new_picture(aligned: AlignedPictures, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    aligned.model.save(path)
    model = AlignmentModel.load(path)
    assert repr(model) == repr(aligned.model)
    assert torch.equal(model.model.dictionary, aligned.model.model.dictionary)
    # larger than those of the model, and with what they do not have
    pose = Pose(2.0, 1.0, -2.5, 1.01)
    save(tmp_path / "new.png", covered(picture(pose, (50, 60)), 9))
    known = align_pictures(tmp_path / "new.png", aligned.model)
    found = align_pictures(tmp_path / "new.png", model)
    np.testing.assert_array_equal(found.alignment.parameters, known.alignment.parameters)
    assert found.stack.size == (48, 56)
    # the middle of the six pictures is not exactly that of the scene
    offset = aligned.table()[:, :4].mean(axis=0) - np.mean(POSES, axis=0)
    errors = np.abs(found.table()[0, :4] - offset - pose)
    assert (errors < [0.2, 0.2, 0.5, 0.006]).all()
    assert found.table()[0, 5] < found.table()[0, 4]


def test_pictures_that_do_not_fit_a_model(aligned: AlignedPictures, tmp_path: Path) -> None:
    save(tmp_path / "new.png", picture(Pose(), (48, 41)))
    with pytest.raises(ValueError, match=r"48 x 41 pixels, too different from 48 x 56, which the"):
        align_pictures(tmp_path / "new.png", aligned.model)


def test_files_that_are_no_such_models(aligned: AlignedPictures, tmp_path: Path) -> None:
    pu.save(pu.models.Lasso(torch.eye(2), 1.0), tmp_path / "lasso.safetensors")
    with pytest.raises(ValueError, match=r"holds 'model', not a model of aligned pictures; make"):
        AlignmentModel.load(tmp_path / "lasso.safetensors")
    arrays = {"dictionary": aligned.model.model.dictionary.numpy()}
    aligned.model.save(tmp_path / "whole.safetensors")
    info = pu.files.open_saved(tmp_path / "whole.safetensors").info
    for name, value in {
        "size": [10, 10],
        "factor": 0,
        "white": 0,
        "transformation": {"kind": "shear", "size": [34, 40], "limit": None},
    }.items():
        pu.files.write(tmp_path / "bad.safetensors", arrays, {**info, name: value})
        with pytest.raises(ValueError, match=r"bad\.safetensors cannot be loaded"):
            AlignmentModel.load(tmp_path / "bad.safetensors")


# ---- contact sheets -------------------------------------------------------------------------


def test_outliers_are_drawn_around_grey() -> None:
    values = np.array([-1.0, -0.5, 0.0, 0.5, 2.0])
    assert as_bytes(around_grey(values, 0.5)).tolist() == [0, 0, 128, 255, 255]
    assert as_bytes(np.array([0.5]), deep=True).tolist() == [32768]


@pytest.mark.parametrize("count", [1, 3, 30])
def test_a_sheet_shows_pictures_and_their_mean(count: int) -> None:
    sheet = ContactSheet(count)
    for number in range(count):
        before = np.full((40, 30), number % 2, float)
        aligned = np.tile([1.0, 0.0, 0.0], (40, 30, 1))
        sheet.add(f"{number}.png", before, aligned, 0 * before, 0 * before + 0.5)
    drawn = np.asarray(sheet.draw("a title", ["a fact"]))

    def pixels(colour: tuple[int, int, int]) -> int:
        return int((drawn == colour).all(axis=2).sum())

    # 40 x 30 pixels are enlarged to 520 x 390 for the mean, and to 180 x 135 in the rows
    mean, cells = 520 * 390, min(count, 12) * 180 * 135
    assert pixels((255, 0, 0)) == mean + cells
    assert pixels((128, 128, 128)) >= cells + (mean if count == 30 else 0)
