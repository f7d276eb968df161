"""Figures show what they were given, in one look, and leave matplotlib's state alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pursuit as pu
from pursuit import plots
from pursuit.datasets import spectrogram, textures
from pursuit.online import Point

RNG = np.random.default_rng(0)
POINTS = [Point(100 * (k + 1), 5.0 + 0.1 * k, 1.0 + 0.01 * k) for k in range(20)]


def run(**changes: Any) -> pu.History:
    values: dict[str, Any] = {
        "loss": [3.0, 2.0, 1.5],
        "validation": [3.1, 1.9, 2.2],
        "looked": [50, 100, 150],
        "best_step": 100,
        "rollbacks": [70],
        "steps": 150,
    }
    return pu.History(**{**values, **changes})


def labelled(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.lines}


# ---- atoms -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_square_atoms_are_pictures_each_on_its_own_symmetrical_scale(kind: Any) -> None:
    dictionary = RNG.standard_normal((12, 64)).astype(np.float32)
    figure = plots.atoms(kind(dictionary), columns=4)
    (axes,) = figure.axes
    (image,) = axes.images
    sheet = np.ma.filled(image.get_array(), np.nan)
    assert sheet.shape == (3 * 9 + 1, 4 * 9 + 1)
    assert image.get_clim() == (-1, 1)
    for number, atom in enumerate(dictionary):
        row, column = divmod(number, 4)
        cell = sheet[9 * row + 1 : 9 * row + 9, 9 * column + 1 : 9 * column + 9]
        np.testing.assert_allclose(cell, atom.reshape(8, 8) / np.abs(atom).max(), rtol=1e-6)
    assert np.isnan(sheet[::9]).all()


def test_a_given_shape_is_height_and_width() -> None:
    dictionary = RNG.random((6, 15))
    (image,) = plots.atoms(dictionary, shape=(3, 5), columns=6).axes[0].images
    assert image.get_array().shape == (3 + 2, 6 * 6 + 1)
    assert image.get_clim() == (0, 1)  # nothing is negative
    diverging = plots.atoms(dictionary, shape=(3, 5), colours="diverging").axes[0].images[0]
    assert diverging.get_clim() == (-1, 1)


def test_a_parameter_that_is_being_trained_can_be_drawn() -> None:
    plots.atoms(torch.nn.Parameter(torch.eye(4)))


def test_by_norm_the_largest_atom_comes_first() -> None:
    dictionary = np.diag([1.0, 3.0, 2.0])
    first = plots.atoms(dictionary, order="norm").axes[0].lines[-1]
    np.testing.assert_array_equal(first.get_ydata(), dictionary[1])


@pytest.mark.parametrize("shape", [None, False])
def test_other_atoms_are_lines_on_one_scale(shape: Any) -> None:
    dictionary = RNG.standard_normal((5, 30 if shape is None else 36))
    figure = plots.atoms(dictionary, shape=shape, columns=2)
    lines = [line for axes in figure.axes for line in axes.lines if len(line.get_xdata()) > 2]
    assert len(figure.axes) == 6
    assert len(lines) == 5
    for line, atom in zip(lines, dictionary, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), atom)
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_many_spectra_become_an_image() -> None:
    dictionary = RNG.random((40, 33))
    axes, bar = plots.atoms(dictionary).axes
    np.testing.assert_array_equal(axes.images[0].get_array(), dictionary.T)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("atom", "feature")
    assert bar.get_ylabel() == "entry"


@pytest.mark.parametrize(
    ("count", "ratio", "columns"), [(64, 1, 8), (256, 1, 16), (1, 1, 1), (12, 1, 4), (7, 1, 4)]
)
def test_grids_are_full_where_they_can_be(count: int, ratio: float, columns: int) -> None:
    assert plots._columns(count, ratio) == columns


# ---- front -----------------------------------------------------------------------------


def test_a_front_is_logarithmic_and_names_its_curves() -> None:
    curves = {"encoder": [(0.5, 0.03), (1, 0.01)], "solver": [(3, 0.02), (9, -1e-9)]}
    figure = plots.front(curves)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("microseconds a signal", "relative gap")
    np.testing.assert_array_equal(labelled(axes)["encoder"].get_xydata(), curves["encoder"])
    np.testing.assert_array_equal(labelled(axes)["solver"].get_xydata(), [(3, 0.02), (9, 1e-7)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["encoder", "solver"]
    assert not axes.spines["top"].get_visible()
    assert not axes.spines["right"].get_visible()


def test_no_two_of_many_curves_look_the_same() -> None:
    figure = plots.front({f"{k}": [(k + 1, 0.1)] for k in range(30)})
    looks = {(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(looks) == 30


# ---- histories -------------------------------------------------------------------------


def test_a_run_shows_both_losses_what_was_kept_and_what_was_taken_back() -> None:
    history = run()
    (axes,) = plots.history(history).axes
    lines = labelled(axes)
    assert list(lines) == ["training", "validation", "kept: step 100", "rolled back"]
    for name, values in (("training", history.loss), ("validation", history.validation)):
        assert list(lines[name].get_xdata()) == history.looked
        assert list(lines[name].get_ydata()) == values
    np.testing.assert_array_equal(lines["kept: step 100"].get_xydata(), [(100, 1.9)])
    assert list(lines["rolled back"].get_xdata()) == [70]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")
    assert axes.get_yscale() == "linear"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"validation": [], "best_step": 150, "rollbacks": []}, ["training", "kept: step 150"]),
        ({"validation": [3.1], "best_step": 0, "rollbacks": []}, ["training", "validation"]),
    ],
    ids=["without validation", "nothing better than the start"],
)
def test_a_run_shows_only_what_it_has(changes: dict[str, Any], names: list[str]) -> None:
    assert list(labelled(plots.history(run(**changes)).axes[0])) == names


def test_a_loss_that_falls_far_is_drawn_on_a_logarithmic_scale() -> None:
    assert plots.history(run(loss=[300.0, 2.0, 1.0])).axes[0].get_yscale() == "log"


def test_a_real_run_can_be_drawn() -> None:
    encoder = pu.ProximalEncoder(pu.models.Lasso(torch.eye(4), 0.1), 2)
    history = pu.fit(encoder, torch.randn(600, 4), steps=30)
    assert list(labelled(plots.history(history).axes[0])["training"].get_ydata()) == history.loss


def test_a_stream_shows_objective_drift_and_changes() -> None:
    learner = pu.OnlineLearner(pu.ProximalEncoder(pu.models.Lasso(torch.eye(4), 0.1), 2))
    learner.history.extend(POINTS)
    learner.changes.extend([900, 1500])
    upper, lower = plots.history(learner).axes
    np.testing.assert_array_equal(labelled(upper)["each chunk"].get_ydata(), [p[1] for p in POINTS])
    np.testing.assert_allclose(labelled(upper)["mean of 5"].get_ydata()[0], 5.2)
    np.testing.assert_array_equal(
        labelled(lower)["drift"].get_xydata(), [(p[0], p[2]) for p in POINTS]
    )
    for axes in (upper, lower):
        marked = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
        assert marked == [900, 1500]
    assert (upper.get_ylabel(), lower.get_ylabel(), lower.get_xlabel()) == (
        "objective",
        "drift",
        "sample",
    )


def test_the_points_of_a_stream_are_enough() -> None:
    upper, _ = plots.history(POINTS).axes
    assert "change detected" not in labelled(upper)


# ---- decompositions and pictures -------------------------------------------------------


def test_pictures_stand_beside_their_parts() -> None:
    x = textures.patches(3, names=("brick",)).numpy()
    low_rank, outliers = 0.7 * x, 0.3 * x
    figure = plots.decomposition(x, torch.from_numpy(low_rank), outliers, rows=2)
    panels, bar = figure.axes[:6], figure.axes[6:]
    assert len(bar) == 1
    assert [axes.get_title() for axes in panels[:3]] == ["input", "low rank", "outliers"]
    for number, part in enumerate((x[0], low_rank[0], outliers[0], x[1], low_rank[1], outliers[1])):
        shown = panels[number].images[0].get_array()
        np.testing.assert_allclose(shown, part.reshape(8, 8), rtol=1e-6)
    assert panels[0].images[0].get_clim() == panels[1].images[0].get_clim()
    low, high = panels[2].images[0].get_clim()
    assert low == -high


def test_fewer_pictures_than_rows_are_all_drawn() -> None:
    x = RNG.random((2, 6))
    assert sum(bool(axes.images) for axes in plots.decomposition(x, x, x, (2, 3)).axes) == 6


@pytest.mark.parametrize("bins", [33, 64])
def test_spectrograms_have_time_across_and_one_scale(bins: int) -> None:
    music = spectrogram.synthetic(40, bins)
    shape = False if bins == 64 else None
    figure = plots.decomposition(*music, shape=shape)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_xlabel() for axes in panels] == ["frame"] * 3
    assert panels[0].get_ylabel() == "bin"
    for axes, part in zip(panels, music, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), part.numpy().T)
    assert len({axes.images[0].get_clim() for axes in panels}) == 1


@pytest.mark.parametrize(("rate", "bins"), [(16_000, 1025), (44_100, 2049), (8000, 65)])
def test_a_tone_is_drawn_at_its_time_and_frequency(rate: int, bins: int) -> None:
    frames, hop = 30, 400
    for number in (8, bins // 20, bins // 2, bins - 1):
        magnitudes = np.full((frames, bins), 1e-9)
        magnitudes[12, number] = 5.0
        figure = plots.spectrograms({"tone": magnitudes, "half": magnitudes / 2}, rate, hop)
        tone, half = (axes.get_images()[0] for axes in figure.axes[:2])
        rows = np.asarray(tone.get_array())
        left, right, bottom, top = tone.get_extent()
        assert (left, right) == (0, frames * hop / rate)
        assert rows.argmax() % frames == 12
        # the bands whose nearest bin it is, or the one that it lies in
        bands = np.flatnonzero(rows[:, 12] == 0)
        edges = 10 ** np.linspace(bottom, top, len(rows) + 1)
        low, high = edges[bands[0]], edges[bands[-1] + 1]
        spacing = rate / 2 / (bins - 1)
        assert low - spacing / 2 <= number * spacing <= high + spacing / 2
        assert high / low < max(1.1, (number + 0.6) / (number - 0.6))
        assert rows.min() == -plots.DECIBELS
        assert np.asarray(half.get_array()).max() == pytest.approx(-6.02, abs=0.01)
        assert np.asarray(half.get_array()).argmax() == rows.argmax()


def test_frequencies_are_labelled_in_hertz() -> None:
    figure = plots.spectrograms({"tone": np.ones((4, 1025))}, 44_100, 512)
    labels = figure.axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == [
        *("50", "100", "200", "500", "1000", "2000", "5000", "10000", "20000")
    ]
    assert [10 ** label.get_position()[1] for label in labels] == pytest.approx(
        [float(label.get_text()) for label in labels]
    )


def test_compared_pictures_share_one_grey_scale() -> None:
    images = [RNG.random((4, 6)), 2 * torch.ones(5, 5), np.zeros((3, 3), dtype=np.uint8)]
    figure = plots.compare(images, ["noisy", "clean", "black"])
    assert [axes.get_title() for axes in figure.axes] == ["noisy", "clean", "black"]
    assert {axes.images[0].get_clim() for axes in figure.axes} == {(0.0, 2.0)}
    for axes, image in zip(figure.axes, images, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), np.asarray(image))


# ---- panels ----------------------------------------------------------------------------


def test_a_name_has_one_look_in_all_panels_and_one_entry_in_the_legend() -> None:
    one = plots.Panel({"a": [(1, 5), (10, 2)], "b": [(1, 3), (2, 4)]}, "x", "y", levels={"c": 1})
    two = plots.Panel(
        {
            "b": [
                (1, 7),
                (
                    2,
                    6,
                ),
            ]
        },
        "u",
        "v",
        "right",
        levels={"c": 2, "d": 3},
    )
    figure = plots.panels([one, two])
    left, right = figure.axes
    assert left.lines[1].get_color() == right.lines[0].get_color() != left.lines[0].get_color()
    assert left.lines[1].get_marker() == right.lines[0].get_marker()
    assert left.lines[2].get_linestyle() == right.lines[1].get_linestyle()
    assert right.lines[1].get_linestyle() != right.lines[2].get_linestyle()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c", "d"]
    np.testing.assert_array_equal(left.lines[0].get_xydata(), [(1, 5), (10, 2)])
    assert (right.get_xlabel(), right.get_ylabel(), right.get_title()) == ("u", "v", "right")


def test_bands_and_stretches_are_drawn_where_they_are() -> None:
    curve = [(0.0, 2.0, 1.0, 3.0), (10.0, 4.0, 3.5, 5.0)]
    panel = plots.Panel({"a": curve}, "x", "y", stretches={"wood": (0, 4), "stone": (4, 10)},
                        markers=False)  # fmt: skip
    (axes,) = plots.panels([panel]).axes
    (band,) = axes.collections
    corners = band.get_paths()[0].vertices
    assert {(0.0, 1.0), (0.0, 3.0), (10.0, 3.5), (10.0, 5.0)} <= set(map(tuple, corners))
    assert axes.lines[0].get_marker() == "None"
    assert {text.get_text(): text.get_position()[0] for text in axes.texts} == {
        "wood": 2.0, "stone": 7.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("most", "shown"), [(20, {"1", "2", "5", "10", "20"}), (1000, {"1", "10", "100", "1000"})]
)
def test_logarithmic_axes_have_plain_numbers_and_enough_of_them(most: int, shown: set[str]) -> None:
    panel = plots.Panel({"a": [(1, 1), (most, 2)]}, "x", "y", log="x")
    figure = plots.panels([panel])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    low, high = axes.get_xlim()
    ticks = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert {label.get_text() for label in ticks} == shown


def test_strips_have_a_dot_for_every_value_and_a_bar_at_the_mean() -> None:
    values = np.array([[1.0, 5.0], [2.0, 7.0], [6.0, 6.0]])
    figure = plots.strips(
        {"first": values, "second": [[0.0, -1.0]]}, ["voice", "music"], "dB",
        intervals={"first": [[2, 4], [5, 7]]}, marks={"second": [3.0, 4.0]}, marked="theirs",
        each="one clip",
    )  # fmt: skip
    for number, axes in enumerate(figure.axes):
        lines = {(line.get_label(), round(float(np.mean(line.get_ydata())))): line.get_xdata()
                 for line in axes.lines}  # fmt: skip
        np.testing.assert_array_equal(lines["one clip", 0], values[:, number])
        np.testing.assert_allclose(lines["mean", 0], [values[:, number].mean()] * 2)
        np.testing.assert_array_equal(lines["its interval", 0], [[2, 4], [5, 7]][number])
        np.testing.assert_array_equal(lines["theirs", 1], [3.0 + number])
        assert ("its interval", 1) not in lines
        assert axes.get_title() == ["voice", "music"][number]
        low, high = axes.get_ylim()
        assert low > high  # the first row is at the top
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["one clip", "mean", "its interval", "theirs"]


def test_equal_values_of_a_strip_lie_apart() -> None:
    (axes,) = plots.strips({"one": np.zeros((40, 1))}, ["x"]).axes
    heights = np.sort(axes.lines[0].get_ydata())
    assert np.diff(heights).min() > 0.005
    assert -0.5 < heights[0] < heights[-1] < 0.5


# ---- what all share --------------------------------------------------------------------

ALL = {
    "atoms": lambda **more: plots.atoms(np.eye(4), **more),
    "lines": lambda **more: plots.atoms(np.eye(3), **more),
    "front": lambda **more: plots.front({"one": [(1, 0.1), (2, 0.01)]}, **more),
    "run": lambda **more: plots.history(run(), **more),
    "stream": lambda **more: plots.history(POINTS, **more),
    "decomposition": lambda **more: plots.decomposition(*[np.eye(4)] * 3, **more),
    "spectrograms": lambda **more: plots.decomposition(*[np.eye(5)] * 3, **more),
    "sounds": lambda **more: plots.spectrograms(
        {"one": np.eye(9), "two": np.eye(9)}, 16e3, 99, **more
    ),
    "compare": lambda **more: plots.compare([np.eye(4)], ["one"], **more),
    "panels": lambda **more: plots.panels(
        [plots.Panel({"one": [(1, 2), (20, 3)]}, "x", "y", "title", "xy")] * 2, **more
    ),
    "strips": lambda **more: plots.strips(
        {"a long name": [[1, 2], [3, 4]], "b": [[0, 0]]}, ["left", "right"], "dB",
        intervals={"b": [[-1, 1], [-2, 2]]}, marks={"b": [0.5, 3]}, **more
    ),
}  # fmt: skip
MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("suffix", MAGIC)
@pytest.mark.parametrize("name", ALL)
def test_files_are_of_the_kind_that_the_suffix_says(name: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"figure{suffix}"
    figure = ALL[name](path=path, title="what it shows")
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert figure.get_suptitle() == "what it shows"


@pytest.mark.parametrize("name", ALL)
def test_text_lies_inside_the_figure(name: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = ALL[name](title="what it shows")
    FigureCanvasAgg(figure).draw()
    whole, drawn = figure.bbox, figure.get_tightbbox().transformed(figure.dpi_scale_trans)
    assert drawn.x0 >= whole.x0 - 1
    assert drawn.x1 <= whole.x1 + 1
    assert drawn.y0 >= whole.y0 - 1
    assert drawn.y1 <= whole.y1 + 1


def test_arrays_are_drawn_without_torch() -> None:
    code = """
import sys
import numpy as np
from pursuit import plots
plots.atoms(np.eye(4))
plots.front({"one": [(1, 0.1)]})
plots.decomposition(*[np.eye(4)] * 3)
plots.compare([np.eye(4)], ["one"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_neither_pyplot_nor_the_settings_are_touched(tmp_path: Path) -> None:
    code = f"""
import sys
import matplotlib, numpy as np, pursuit as pu
from pursuit import plots
before = matplotlib.rcParams.copy()  # a dict would ask for the backend, which loads pyplot
one = np.eye(4)
plots.atoms(one, path={str(tmp_path / "a.png")!r})
plots.front({{"one": [(1, 0.1)]}}, path={str(tmp_path / "b.svg")!r})
plots.history(pu.History([1.0], [], [50]), path={str(tmp_path / "c.pdf")!r})
plots.history([(100, 1.0, 1.0)], path={str(tmp_path / "d.png")!r})
plots.decomposition(one, one, one, path={str(tmp_path / "e.png")!r})
plots.compare([one], ["one"], path={str(tmp_path / "f.png")!r})
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'pursuit\[plots\]'"):
        plots.atoms(np.eye(4))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plots.atoms(np.ones(4)), ValueError, "two dimensions"),
        (lambda: plots.atoms(np.ones((0, 4))), ValueError, "is empty"),
        (lambda: plots.atoms([["a"]]), TypeError, "real numbers"),
        (lambda: plots.atoms([[1, 2], [3]]), ValueError, "one length"),
        (lambda: plots.atoms(np.full((2, 4), np.nan)), ValueError, "NaN or infinite"),
        (lambda: plots.atoms(np.ones((2, 4)), shape=(2, 3)), ValueError, "does not fit"),
        (lambda: plots.atoms(np.ones((2, 4)), shape=4), ValueError, "height, width"),
        (lambda: plots.atoms(np.ones((2, 4)), order="size"), ValueError, "order must be one of"),
        (lambda: plots.atoms(np.ones((2, 4)), columns=0), ValueError, "columns must be at least 1"),
        (lambda: plots.atoms(np.ones((2, 4)), colours="jet"), ValueError, "colours must be one of"),
        (lambda: plots.front({}), ValueError, "non-empty mapping"),
        (lambda: plots.front([(1, 2)]), ValueError, "non-empty mapping"),
        (lambda: plots.front({"one": [(1, 2, 3)]}), ValueError, "pairs"),
        (lambda: plots.front({"one": [(0, 2)]}), ValueError, "not positive"),
        (lambda: plots.front({"one": [(1, 2)]}, floor=0), ValueError, "floor must be positive"),
        (lambda: plots.history(pu.History()), ValueError, "history is empty"),
        (lambda: plots.history([]), ValueError, "history is empty"),
        (lambda: plots.history(3), TypeError, "got int"),
        (lambda: plots.history([1.0, 2.0]), TypeError, "got list"),
        (lambda: plots.decomposition(*[np.eye(4)] * 2, np.eye(3)), ValueError, "outliers must"),
        (lambda: plots.decomposition(*[np.eye(4)] * 3, rows=0), ValueError, "rows must be"),
        (lambda: plots.spectrograms({}, 16e3, 99), ValueError, "parts is empty"),
        (
            lambda: plots.spectrograms({"a": np.eye(4), "b": np.eye(3)}, 16e3, 99),
            ValueError,
            r"b must have the shape \(4, 4\)",
        ),
        (lambda: plots.spectrograms({"a": np.ones((4, 1))}, 1, 1), ValueError, "at least two bins"),
        (lambda: plots.spectrograms({"a": np.eye(4)}, 0, 1), ValueError, "rate must be positive"),
        (lambda: plots.compare([], []), ValueError, "images is empty"),
        (lambda: plots.compare([np.eye(2)], []), ValueError, "1 images, but 0 titles"),
        (lambda: plots.panels([]), ValueError, "panels that have curves"),
        (lambda: plots.panels([plots.Panel({}, "x", "y")]), ValueError, "panels that have curves"),
        (
            lambda: plots.panels([plots.Panel({"a": [(1, 2, 3)]}, "x", "y")]),
            ValueError,
            "low, high",
        ),
        (
            lambda: plots.panels([plots.Panel({"a": [(1, 2)]}, "x", "y", log="z")]),
            ValueError,
            "log must be one of",
        ),
        (lambda: plots.strips({}, ["x"]), ValueError, "non-empty mapping"),
        (lambda: plots.strips({"a": [[1, 2]]}, ["x"]), ValueError, "each of 1 columns"),
        (lambda: plots.atoms(np.eye(4), path="atoms.bmp"), ValueError, "must end in .png"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
