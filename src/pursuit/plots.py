"""Figures in one style: atoms, fronts, histories, decompositions, spectrograms, pictures.

Every function returns a new `matplotlib.figure.Figure` and saves it if a `path` is given. Neither
matplotlib's settings nor pyplot are used; in a notebook, ``%matplotlib inline`` shows the returned
figure. The colours (Okabe and Ito) can be distinguished by colour-blind readers, and curves differ
in their markers too. Models and estimators do not depend on this module.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from ._words import require_choice
from .files import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .online import OnlineLearner, Point
    from .training import History

__all__ = ["Panel", "atoms", "compare", "decomposition", "front", "gallery", "history", "panels"]
__all__ += ["spectrograms", "strips", "timeline"]

Array = np.ndarray[Any, Any]
Shape = tuple[int, int] | Literal[False] | None
Where = str | os.PathLike[str] | None

#: the colours of Okabe and Ito without yellow, which is hard to see on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: one more than colours, so that pairs of both repeat after 56 curves only
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SUFFIXES = (".png", ".svg", ".pdf")
#: font sizes of labels, legends and titles of panels, and of the title of a figure
TEXT, TITLE = 9, 11
DPI = 150
#: more atoms than this are drawn as an image, if they are not pictures
MOST_LINES = 32
#: chunks over which the objective of a stream is averaged for the thick line
SMOOTH = 5
#: logarithmic axes of fewer decades have numbers between the powers of ten
FEW_DECADES = 2.5
#: the percentage of the values of a spectrogram that the colours resolve
RESOLVED = 99.8
#: the pieces of a wave whose extremes are drawn
OUTLINE = 2000
#: the decibels below the largest magnitude that spectrograms of sounds resolve
DECIBELS = 80
#: the lowest frequency, in Hz, of spectrograms of sounds, and the number of their bands
LOWEST, BANDS = 40, 240


def atoms(
    dictionary: Any, shape: Shape = None, order: str = "as they are", columns: int | None = None,
    *, colours: str = "grey", title: str | None = None, path: Where = None,
) -> Figure:  # fmt: skip
    """Draw the atoms of a dictionary: pictures on a grid, lines, or an image of spectra.

    Each picture has a separate scale: from ``-max|d|`` to ``max|d|``, or in grey from 0 to
    ``max d`` if the dictionary has no negative entry. Atoms that are not pictures are drawn as
    lines on a common scale if there are at most 32, and as the columns of an image otherwise.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m).
    shape
        Height and width of an atom as a picture; by default a square if m is a square number.
        False if atoms are not pictures.
    order
        "as they are", or "norm": the largest first.
    columns
        The number of atoms in a row of the figure.
    colours
        "grey", or "diverging": blue below zero, white at zero, red above; for pictures.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> import numpy as np
    >>> figure = atoms(np.random.default_rng(0).standard_normal((12, 64)))
    >>> figure.axes[0].images[0].get_array().shape
    (28, 37)
    """
    rows = _matrix(dictionary, "dictionary")
    require_choice(order, ("as they are", "norm"), "order")
    require_choice(colours, ("grey", "diverging"), "colours")
    if columns is not None and columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    size = _picture_shape(shape, rows.shape[1])
    if order == "norm":
        rows = rows[np.argsort(-np.linalg.norm(rows, axis=1), kind="stable")]
    if size is not None:
        figure = _sheet(rows, size, columns, colours)
    elif len(rows) <= MOST_LINES:
        figure = _small_lines(rows, columns)
    else:
        figure = _figure(7, 3.6)
        axes = figure.add_subplot()
        _spectrogram(figure, axes, rows, *_range(rows), label="entry")
        axes.set(xlabel="atom", ylabel="feature")
    return _finished(figure, title, path)


@dataclass(frozen=True)
class Panel:
    """One pair of axes with curves.

    Attributes
    ----------
    curves
        ``{name: [(x, y), ...]}``, or ``(x, y, low, high)`` for a curve with a shaded band.
    xlabel, ylabel, title
        Labels of the axes, and the title of the panel.
    log
        The logarithmic axes: "", "x", "y" or "xy".
    levels
        ``{name: y}``, horizontal dotted lines.
    stretches
        ``{name: (begin, end)}`` on the x axis, separated by lines, with their names above.
    markers
        Whether points have markers; False suits hundreds of points.
    """

    curves: Mapping[str, Sequence[tuple[float, ...]]]
    xlabel: str
    ylabel: str
    title: str | None = None
    log: str = ""
    levels: Mapping[str, float] = field(default_factory=dict)
    stretches: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    markers: bool = True


def panels(
    panels: Sequence[Panel], *, size: tuple[float, float] = (4.2, 3.6),
    title: str | None = None, path: Where = None,
) -> Figure:  # fmt: skip
    """Draw panels side by side with one legend; a name looks the same in every panel.

    Parameters
    ----------
    panels
        The panels from left to right.
    size
        Width and height of a panel in inches.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> left = Panel({"learned": [(1, 3.0), (2, 1.0)]}, "layers", "gap", levels={"exact": 0.5})
    >>> figure = panels([left])
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['learned', 'exact']
    """
    if not panels or any(not panel.curves for panel in panels):
        raise ValueError("panels must be a non-empty sequence of panels that have curves")
    figure = _panels(panels, size, loc="outside lower center", most=3 if len(panels) < 3 else 5)
    return _finished(figure, title, path)


def front(
    curves: Mapping[str, Sequence[tuple[float, float]]], xlabel: str = "microseconds a signal",
    ylabel: str = "relative gap", *, floor: float = 1e-7, title: str | None = None,
    path: Where = None,
) -> Figure:  # fmt: skip
    """Draw time against gap, both logarithmic: one curve per method, points joined in their order.

    Parameters
    ----------
    curves
        ``{name: [(time, gap), ...]}``.
    xlabel, ylabel
        Labels of the axes.
    floor
        Smaller gaps, which rounding may even make negative, are drawn at this value.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> figure = front({"encoder": [(0.5, 0.03), (1, 0.01)], "solver": [(3, 0.02), (9, 1e-6)]})
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['encoder', 'solver']
    """
    if not isinstance(curves, Mapping) or not curves:
        raise ValueError("curves must be a non-empty mapping {name: [(time, gap), ...]}")
    if not 0 < floor < math.inf:
        raise ValueError(f"floor must be positive and finite, got {floor}")
    raised = {}
    for name, values in curves.items():
        points = _matrix(values, f"the curve {name!r}")
        if points.shape[1] != 2:
            raise ValueError(f"the curve {name!r} must be pairs (time, gap), got {points.shape}")
        if not (points[:, 0] > 0).all():
            raise ValueError(f"the curve {name!r} has times that are not positive")
        raised[name] = [(float(x), max(float(y), floor)) for x, y in points]
    panel = Panel(raised, xlabel, ylabel, log="xy")
    figure = _panels([panel], (7.5, 4), loc="outside right upper")
    return _finished(figure, title, path)


def strips(
    rows: Mapping[str, Any], columns: Sequence[str], xlabel: str = "",
    *, intervals: Mapping[str, Any] | None = None, marks: Mapping[str, Any] | None = None,
    marked: str = "reference", each: str = "one value", size: tuple[float, float] = (4.2, 0.3),
    title: str | None = None, path: Where = None,
) -> Figure:  # fmt: skip
    """Draw one dot per value and a bar at the mean: a row for each name, a panel for each column.

    The dots of a row are spread vertically, so that equal values can be seen.

    Parameters
    ----------
    rows
        ``{name: values}``, with values of shape (n, columns); the first name is at the top.
    columns, xlabel
        Titles of the panels, and the label of their common axis.
    intervals
        ``{name: bounds}`` for some of the rows, bounds of shape (columns, 2): lines around means.
    marks, marked
        ``{name: numbers}`` for some of the rows, one number for each column, drawn as diamonds; and
        what they are, for the legend.
    each
        What a dot is, for the legend.
    size
        Width of a panel, and height of a row, in inches.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> figure = strips({"ours": [[6.0], [7.0]], "theirs": [[5.0], [5.5]]}, ["voice"], "dB")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['ours', 'theirs']
    """
    if not isinstance(rows, Mapping) or not rows:
        raise ValueError("rows must be a non-empty mapping {name: values}")
    values = {name: _matrix(dots, f"the row {name!r}") for name, dots in rows.items()}
    for name, dots in values.items():
        if dots.shape[1] != len(columns):
            raise ValueError(
                f"the row {name!r} must have a number for each of {len(columns)} columns, "
                f"got shape {dots.shape}"
            )
    names = list(values)
    figure = _figure(size[0] * len(columns) + 1.2, size[1] * len(names) + 1.3)
    every = figure.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for number, (axes, column) in enumerate(zip(every, columns, strict=True)):
        for row, name in enumerate(names):
            interval = None if intervals is None else intervals.get(name)
            bounds = None if interval is None else interval[number]
            _strip(axes, row, values[name][:, number], bounds, each)
        shown = [(row, marks[name]) for row, name in enumerate(names) if marks and name in marks]
        if marks and shown:
            axes.plot([mark[number] for _, mark in shown], [row for row, _ in shown], "D",
                      color=COLOURS[1], markersize=5.5, fillstyle="none", label=marked)  # fmt: skip
        axes.axvline(0, color="0.6", linewidth=0.8, zorder=0)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        _dress(axes, xlabel, "")
        axes.set_title(column, fontsize=TEXT + 1)
    handles, labels = every[0].get_legend_handles_labels()
    found = dict(zip(labels, handles, strict=True))
    figure.legend(
        found.values(), found, frameon=False, fontsize=TEXT, loc="outside lower center",
        ncols=len(found),
    )  # fmt: skip
    return _finished(figure, title, path)


def history(
    history: History | OnlineLearner | Iterable[Point], *, title: str | None = None,
    path: Where = None,
) -> Figure:  # fmt: skip
    """Draw the course of a training run or of online learning.

    Parameters
    ----------
    history
        The `History` returned by `fit`: losses against steps, with the step whose parameters were
        kept and the steps that were rolled back. Or an `OnlineLearner`: objective and drift against
        samples, with the detected changes; from its `history` alone, without them.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> import pursuit as pu
    >>> figure = history(pu.History([3.0, 2.0], [3.1, 2.2], [50, 100], best_step=100))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['training', 'validation', 'kept: step 100']
    """
    from .online import OnlineLearner, Point
    from .training import History

    if isinstance(history, History):
        return _finished(_run(history), title, path)
    if isinstance(history, OnlineLearner):
        points, changes = list(history.history), list(history.changes)
    else:
        try:
            points, changes = [Point(*point) for point in history], []
        except TypeError as error:
            raise TypeError(
                "history must be the History of `fit`, an OnlineLearner or its history, "
                f"got {type(history).__name__}"
            ) from error
    return _finished(_stream(points, changes), title, path)


def decomposition(
    x: Any, low_rank: Any, outliers: Any, shape: Shape = None, rows: int = 4,
    *, title: str | None = None, path: Where = None,
) -> Figure:  # fmt: skip
    """Draw input, low rank and outliers side by side, as pictures or as spectrograms.

    In each row of pictures, input and low rank have the grey scale of the input; outliers are blue
    below zero and red above, on a common scale. Spectrograms have the time on the horizontal axis
    and a common scale that the largest 0.2 % of the input's values exceed.

    Parameters
    ----------
    x, low_rank, outliers
        Signals as rows and their two parts, shape (n, m) each.
    shape
        Height and width of a picture; by default a square if m is a square number. False if rows
        are the frames of a spectrogram.
    rows
        The number of pictures; the first ones are drawn.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> import numpy as np
    >>> x = np.ones((5, 6))
    >>> figure = decomposition(x, x, 0 * x, shape=(2, 3), rows=2)
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['input', 'low rank', 'outliers']
    """
    parts = {"input": _matrix(x, "x")}
    for name, values in (("low rank", low_rank), ("outliers", outliers)):
        parts[name] = _matrix(values, name)
        if parts[name].shape != parts["input"].shape:
            raise ValueError(
                f"{name} must have the shape of x {parts['input'].shape}, got {parts[name].shape}"
            )
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    size = _picture_shape(shape, parts["input"].shape[1])
    figure = _three_spectrograms(parts) if size is None else _three_columns(parts, size, rows)
    return _finished(figure, title, path)


def gallery(
    rows: Mapping[str, Any], shape: tuple[int, int], *, groups: Sequence[str] = (),
    captions: Sequence[str] = (), title: str | None = None, path: Where = None,
) -> Figure:  # fmt: skip
    """Draw rows of pictures, each with a name on its left.

    Rows with negative entries are drawn on a scale of their own, with zero in white; the grey
    values of all others are 0 for black and 1 for white.

    Parameters
    ----------
    rows
        ``{name: pictures}``, pictures as rows of an array of shape (n, m), n the same for all.
    shape
        Height and width of a picture.
    groups
        Names of groups of columns of equal size, from left to right.
    captions
        A text below each column.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> import numpy as np
    >>> figure = gallery({"noise": np.random.default_rng(0).random((3, 12))}, (4, 3))
    >>> len(figure.axes)
    3
    """
    if not rows:
        raise ValueError("rows must be a non-empty mapping from names to pictures")
    matrices = {name: _matrix(values, f"rows[{name!r}]") for name, values in rows.items()}
    counts = {len(values) for values in matrices.values()}
    if len(counts) > 1:
        raise ValueError(f"all rows must have the same number of pictures, got {sorted(counts)}")
    (count,) = counts
    for values in matrices.values():
        size = _picture_shape(shape, values.shape[1])
    assert size is not None
    if groups and count % len(groups) != 0:
        raise ValueError(f"{count} columns cannot be divided into {len(groups)} groups")
    if captions and len(captions) != count:
        raise ValueError(f"there are {len(captions)} captions for {count} columns")
    return _finished(_gallery(matrices, size, groups, captions), title, path)


def spectrograms(
    parts: Mapping[str, Any], rate: float, hop: int,
    *, title: str | None = None, path: Where = None,
) -> Figure:  # fmt: skip
    """Draw spectrograms of sounds below each other, with a logarithmic frequency axis.

    The colours show decibels below the largest magnitude of all parts, 80 at most. Frequencies
    below 40 Hz are not drawn.

    Parameters
    ----------
    parts
        Magnitudes of spectra by title, of one shape (frames, bins); the last bin is half of `rate`.
    rate, hop
        Samples a second, and samples from one frame to the next.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> import numpy as np
    >>> figure = spectrograms({"voice": np.eye(20, 129)}, rate=16000, hop=128)
    >>> figure.axes[0].get_title()
    'voice'
    """
    rows = {name: np.abs(_matrix(values, name)) for name, values in parts.items()}
    if not rows:
        raise ValueError("parts is empty; give at least one spectrogram")
    first = next(iter(rows.values()))
    for name, values in rows.items():
        if values.shape != first.shape:
            raise ValueError(f"{name} must have the shape {first.shape}, got {values.shape}")
    if first.shape[1] < 2:
        raise ValueError(f"spectra must have at least two bins, got {first.shape[1]}")
    for name, value in (("rate", rate), ("hop", hop)):
        if value <= 0:
            raise ValueError(f"{name} must be positive, got {value}")
    return _finished(_sounds(rows, rate, hop), title, path)


def timeline(
    times: Any, scores: Mapping[str, Any], wave: Any, rate: float,
    *, title: str | None = None, path: Where = None,
) -> Figure:  # fmt: skip
    """Draw a wave, and below it the scores of some names over time and who has the highest.

    Parameters
    ----------
    times
        The times of the scores in seconds, equally spaced, shape (n,).
    scores
        ``{name: values}`` with values from 0 to 1, shape (n,); where all are zero, nobody has the
        highest.
    wave, rate
        Samples, shape (samples,), and samples a second.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> import numpy as np
    >>> figure = timeline([0.0, 0.5], {"a": [1, 0], "b": [0, 1]}, np.ones(100), rate=100)
    >>> [label.get_text() for label in figure.axes[1].get_yticklabels()]
    ['a', 'b']
    """
    if not isinstance(scores, Mapping) or not scores:
        raise ValueError("scores must be a non-empty mapping {name: values}")
    rows = _matrix(list(scores.values()), "scores")
    moments = _matrix([times], "times")[0]
    samples = _matrix([wave], "wave")[0]
    if len(moments) != rows.shape[1]:
        raise ValueError(f"there are {len(moments)} times, but {rows.shape[1]} scores of each name")
    if rate <= 0:
        raise ValueError(f"rate must be positive, got {rate}")
    return _finished(_timeline(moments, list(scores), rows, samples, rate), title, path)


def compare(
    images: Sequence[Any], titles: Sequence[str], *, title: str | None = None, path: Where = None
) -> Figure:
    """Draw pictures side by side, from black at the lowest value of all to white at the highest.

    Parameters
    ----------
    images
        Pictures, shape (height, width) each.
    titles
        The title of each picture.
    title, path
        The title, and the file to save the figure to (.png, .svg or .pdf).

    Examples
    --------
    >>> import numpy as np
    >>> figure = compare([np.eye(4), np.ones((4, 4))], ["noisy", "clean"])
    >>> [axes.get_title() for axes in figure.axes]
    ['noisy', 'clean']
    """
    pictures = [_matrix(image, f"images[{number}]") for number, image in enumerate(images)]
    if not pictures:
        raise ValueError("images is empty; give at least one picture")
    if len(pictures) != len(titles):
        raise ValueError(f"there are {len(pictures)} images, but {len(titles)} titles")
    low, high = min(p.min() for p in pictures), max(p.max() for p in pictures)
    widths = [picture.shape[1] / picture.shape[0] for picture in pictures]
    height = min(3.0, 12 / sum(widths))
    figure = _figure(height * sum(widths) + 0.1 * len(widths), height + 0.3)
    panels = figure.subplots(1, len(pictures), squeeze=False, width_ratios=widths)[0]
    for axes, picture, name in zip(panels, pictures, titles, strict=True):
        axes.imshow(picture, cmap="gray", vmin=low, vmax=high, interpolation="nearest")
        axes.set_title(name, fontsize=TEXT)
        axes.set_axis_off()
    return _finished(figure, title, path)


# ---- kinds of figures ------------------------------------------------------------------


def _panels(panels: Sequence[Panel], size: tuple[float, float], loc: Any, most: int = 1) -> Figure:
    """Panels side by side; the legend is at `loc` and has at most `most` columns."""
    figure = _figure(size[0] * len(panels), size[1])
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    levels = list(dict.fromkeys(name for panel in panels for name in panel.levels))
    handles: dict[str, Any] = {}
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(every, panels, strict=True):
        require_choice(panel.log, ("", "x", "y", "xy"), "log")
        for name, values in panel.curves.items():
            handles.setdefault(name, _curve(axes, panel, name, values, names.index(name)))
        for name, level in panel.levels.items():
            style = (":", "--", "-.")[levels.index(name) % 3]
            line = axes.axhline(level, color="0.25", linestyle=style, linewidth=1.4)
            handles.setdefault(name, line)
        for name, (begin, end) in panel.stretches.items():
            axes.axvline(begin, color="0.75", linewidth=0.8, zorder=0)
            axes.text((begin + end) / 2, 1.0, name, ha="center", va="bottom", fontsize=TEXT,
                      transform=axes.get_xaxis_transform())  # fmt: skip
            axes.margins(x=0.01)
        _dress(axes, panel.xlabel, panel.ylabel)
        for letter in panel.log:
            _logarithmic(axes, letter)
        if panel.title is not None:
            axes.set_title(panel.title, fontsize=TEXT + 1, pad=16 if panel.stretches else 6)
    ordered = [*names, *levels]
    figure.legend(
        [handles[name] for name in ordered], ordered, frameon=False, fontsize=TEXT, loc=loc,
        ncols=min(len(ordered), most),
    )  # fmt: skip
    return figure


def _curve(
    axes: Axes, panel: Panel, name: str, values: Sequence[tuple[float, ...]], number: int
) -> Any:
    """Draw the curve of a panel in the colour and with the marker of a number."""
    points = _matrix(values, f"the curve {name!r}")
    if points.shape[1] not in (2, 4):
        raise ValueError(
            f"the curve {name!r} must be (x, y) or (x, y, low, high), got {points.shape}"
        )
    colour = COLOURS[number % len(COLOURS)]
    marker = MARKERS[number % len(MARKERS)] if panel.markers else None
    (line,) = axes.plot(points[:, 0], points[:, 1], color=colour, marker=marker, markersize=4.5,
                        linewidth=1.4, label=name)  # fmt: skip
    if points.shape[1] == 4:
        axes.fill_between(points[:, 0], points[:, 2], points[:, 3], color=colour, alpha=0.2,
                          linewidth=0)  # fmt: skip
    return line


def _strip(axes: Axes, row: int, values: Array, interval: Any, each: str) -> None:
    """Draw a row of dots, their mean and the interval around it."""
    # multiples of the golden ratio spread neighbours in the order of size evenly
    spread = (np.argsort(np.argsort(values)) * 0.618034) % 1 - 0.5
    axes.plot(values, row + 0.6 * spread, "o", color=COLOURS[5], alpha=0.6, markersize=3.5,
              markeredgewidth=0, label=each)  # fmt: skip
    mean = float(values.mean())
    axes.plot([mean, mean], [row - 0.36, row + 0.36], color="0.1", linewidth=2, label="mean")
    if interval is not None:
        axes.plot(interval, [row, row], color="0.1", linewidth=1.2, label="its interval")


def _sheet(rows: Array, size: tuple[int, int], columns: int | None, colours: str) -> Figure:
    """All atoms in one image, with gaps of one pixel."""
    height, width = size
    wide = min(columns or _columns(len(rows), height / width), len(rows))
    high = math.ceil(len(rows) / wide)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    sheet = np.full((high * (height + 1) + 1, wide * (width + 1) + 1), np.nan)
    for number, atom in enumerate(rows / np.where(largest > 0, largest, 1)):
        row, column = divmod(number, wide)
        top, left = 1 + row * (height + 1), 1 + column * (width + 1)
        sheet[top : top + height, left : left + width] = atom.reshape(size)
    inches = 5.0 / max(sheet.shape)
    figure = _figure(sheet.shape[1] * inches, sheet.shape[0] * inches)
    axes = figure.add_subplot()
    bottom = 0 if colours == "grey" and rows.min() >= 0 else -1
    palette = {"grey": "gray", "diverging": "RdBu_r"}[colours]
    image = axes.imshow(sheet, cmap=palette, vmin=bottom, vmax=1, interpolation="nearest")
    # zero is white in diverging colours, so the gaps must not be
    image.set_cmap(image.get_cmap().with_extremes(bad="w" if colours == "grey" else "0.75"))
    axes.set_axis_off()
    return figure


def _columns(count: int, ratio: float) -> int:
    """The columns of a grid that is almost full and a little wider than high.

    `ratio` is the height of a cell divided by its width.
    """
    square = math.sqrt(count * ratio)

    def cost(wide: int) -> float:
        empty = -count % wide
        return 2 * empty / count + abs(math.log(wide / (1.15 * square))) / 2

    return min(range(max(1, round(0.9 * square)), max(1, round(1.9 * square)) + 1), key=cost)


def _small_lines(rows: Array, columns: int | None) -> Figure:
    """A small panel for each atom, all on the same scale."""
    wide = min(columns or math.ceil(math.sqrt(len(rows) / 2)), len(rows))
    high = math.ceil(len(rows) / wide)
    figure = _figure(max(2.2 * wide, 3), max(0.75 * high, 1.5) + 0.4)
    panels = figure.subplots(high, wide, squeeze=False, sharex=True, sharey=True).ravel()
    for number, axes in enumerate(panels):
        if number >= len(rows):
            axes.set_axis_off()
            continue
        if rows.min() < 0:
            axes.axhline(0, color="0.8", linewidth=0.7, zorder=0)
        axes.plot(rows[number], color=COLOURS[0], linewidth=1.1, label=f"atom {number}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=TEXT - 2, length=2)
        axes.margins(x=0)
        axes.text(0.99, 0.95, str(number), transform=axes.transAxes, ha="right", va="top",
                  fontsize=TEXT - 2, color="0.4")  # fmt: skip
    figure.supxlabel("feature", fontsize=TEXT)
    figure.supylabel("entry", fontsize=TEXT)
    return figure


def _run(run: History) -> Figure:
    if not run.looked:
        raise ValueError("the history is empty: the run has not recorded a loss yet")
    figure = _figure(6.5, 3.6)
    axes = figure.add_subplot()
    axes.plot(run.looked, run.loss, color=COLOURS[0], marker="o", markersize=3.5, linewidth=1.4,
              label="training")  # fmt: skip
    kept = run.loss
    if run.validation:
        # a run that ends because of its rollbacks has no last validation loss
        steps = run.looked[: len(run.validation)]
        kept = run.validation
        axes.plot(steps, kept, color=COLOURS[1], marker="s", markersize=3.5, linewidth=1.4,
                  label="validation")  # fmt: skip
    if run.best_step in run.looked[: len(kept)]:
        value = kept[run.looked.index(run.best_step)]
        axes.plot([run.best_step], [value], color=COLOURS[6], marker="o", markersize=11,
                  fillstyle="none", linestyle="none",
                  label=f"kept: step {run.best_step}")  # fmt: skip
    if run.rollbacks:
        axes.plot(run.rollbacks, [0.02] * len(run.rollbacks), color=COLOURS[3], marker="^",
                  linestyle="none", transform=axes.get_xaxis_transform(), clip_on=False,
                  label="rolled back")  # fmt: skip
    values = [v for v in [*run.loss, *run.validation] if math.isfinite(v)]
    if values and min(values) > 0 and max(values) > 10 * min(values):
        axes.set_yscale("log")
    _dress(axes, "step", "loss")
    axes.legend(frameon=False, fontsize=TEXT)
    return figure


def _stream(points: list[Point], changes: list[int]) -> Figure:
    if not points:
        raise ValueError("the history is empty: the learner has not processed a chunk yet")
    samples, objective, drift = (list(values) for values in zip(*points, strict=True))
    figure = _figure(7, 4.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    upper.plot(samples, objective, color=COLOURS[5], linewidth=0.8, alpha=0.7, label="each chunk")
    if len(samples) > SMOOTH:
        smooth = np.convolve(objective, np.full(SMOOTH, 1 / SMOOTH), mode="valid")
        upper.plot(samples[SMOOTH - 1 :], smooth, color=COLOURS[0], linewidth=1.6,
                   label=f"mean of {SMOOTH}")  # fmt: skip
    lower.axhline(1, color="0.7", linewidth=0.8, zorder=0)
    lower.plot(samples, drift, color=COLOURS[1], linewidth=1.4, label="drift")
    shown = [change for change in changes if change >= samples[0]]
    for axes in (upper, lower):
        for number, change in enumerate(shown):
            name = "change detected" if number == 0 else "_" + str(number)
            axes.axvline(change, color=COLOURS[6], linewidth=1, linestyle=":", label=name)
        axes.margins(x=0.01)
    _dress(upper, "", "objective")
    _dress(lower, "sample", "drift")
    figure.align_ylabels([upper, lower])
    upper.legend(frameon=False, fontsize=TEXT)
    return figure


def _three_columns(parts: dict[str, Array], size: tuple[int, int], rows: int) -> Figure:
    count = min(rows, len(parts["input"]))
    height = min(1.6, 9 / count)
    width = height * size[1] / size[0]
    figure = _figure(3 * (width + 0.05) + 0.8, count * (height + 0.05) + 0.4)
    panels = figure.subplots(count, len(parts), squeeze=False)
    largest = float(np.abs(parts["outliers"][:count]).max()) or 1.0
    for number, line in enumerate(panels):
        low, high = float(parts["input"][number].min()), float(parts["input"][number].max())
        for axes, (name, values) in zip(line, parts.items(), strict=True):
            signed = name == "outliers"
            limits = (-largest, largest) if signed else (low, high)
            image = axes.imshow(
                values[number].reshape(size), cmap="RdBu_r" if signed else "gray",
                vmin=limits[0], vmax=limits[1], interpolation="nearest",
            )  # fmt: skip
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(signed)
            axes.spines[:].set_color("0.8")
            if number == 0:
                axes.set_title(name, fontsize=TEXT)
    bar = figure.colorbar(image, ax=panels[:, -1], shrink=min(1.0, 2 / count), aspect=15)
    bar.ax.tick_params(labelsize=TEXT - 2)
    bar.outline.set_visible(False)
    return figure


def _gallery(
    rows: dict[str, Array], size: tuple[int, int], groups: Sequence[str], captions: Sequence[str]
) -> Figure:
    count = len(next(iter(rows.values())))
    ratio = size[0] / size[1]
    width = min(1.1, 11 / count)
    label = 0.3 + 0.085 * max(map(len, rows))
    figure = _figure(label + width * count, 0.5 + width * ratio * len(rows))
    panels = figure.subplots(len(rows), count, squeeze=False)
    each = count // max(len(groups), 1)
    for line, (name, values) in zip(panels, rows.items(), strict=True):
        signed = values.min() < 0
        low, high = _range(values) if signed else (0.0, 1.0)
        for axes, picture in zip(line, values, strict=True):
            axes.imshow(
                picture.reshape(size), cmap="RdBu_r" if signed else "gray", vmin=low, vmax=high
            )
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set_visible(False)
        line[0].set_ylabel(name, fontsize=TEXT, rotation=0, ha="right", va="center")
    for number, group in enumerate(groups):
        panels[0][number * each + (each - 1) // 2].set_title(
            group, fontsize=TEXT, x=0.5 if each % 2 else 1.05
        )
    for axes, caption in zip(panels[-1], captions, strict=False):
        axes.set_xlabel(caption, fontsize=TEXT - 1)
    return figure


def _three_spectrograms(parts: dict[str, Array]) -> Figure:
    figure = _figure(10, 3.2)
    panels = figure.subplots(1, len(parts), sharex=True, sharey=True)
    low, high = _range(parts["input"])
    for number, (axes, (name, values)) in enumerate(zip(panels, parts.items(), strict=True)):
        label = "magnitude" if number == len(parts) - 1 else None
        _spectrogram(figure, axes, values, low, high, label)
        axes.set_title(name, fontsize=TEXT)
        axes.set_xlabel("frame", fontsize=TEXT)
    panels[0].set_ylabel("bin", fontsize=TEXT)
    return figure


def _spectrogram(
    figure: Figure, axes: Axes, rows: Array, low: float, high: float, label: str | None
) -> None:
    """Draw rows as columns of an image, the first feature at the bottom; a label adds a bar."""
    image = axes.imshow(
        rows.T, origin="lower", aspect="auto", cmap="magma_r" if low == 0 else "RdBu_r",
        vmin=low, vmax=high, interpolation="nearest" if rows.size < 20_000 else "antialiased",
    )  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT - 1)
    if label is not None:
        bar = figure.colorbar(image, ax=axes, extend="max" if low == 0 else "both", pad=0.02)
        bar.set_label(label, fontsize=TEXT)
        bar.ax.tick_params(labelsize=TEXT - 2)
        bar.outline.set_visible(False)


def _sounds(rows: dict[str, Array], rate: float, hop: int) -> Figure:
    count, bins = next(iter(rows.values())).shape
    figure = _figure(10, 0.6 + 2.1 * len(rows))
    panels = figure.subplots(len(rows), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    top = max(values.max() for values in rows.values()) or 1.0
    highest = rate / 2
    lowest = max(LOWEST, highest / (bins - 1)) if highest > 2 * LOWEST else highest / 2
    edges = np.geomspace(lowest, highest, BANDS + 1)
    # a band has the largest of its bins, or the nearest one if it is narrower than a bin
    first = np.rint(edges[:-1] * (bins - 1) / highest).astype(int)
    extent = (0, count * hop / rate, math.log10(lowest), math.log10(highest))
    ticks = [d * 10.0**power for power in range(7) for d in (1, 2, 5)]
    ticks = [tick for tick in ticks if lowest <= tick <= highest]
    for axes, (name, values) in zip(panels, rows.items(), strict=True):
        bands = np.maximum.reduceat(values, first, axis=1) / top
        image = axes.imshow(
            20 * np.log10(np.maximum(bands, 10 ** (-DECIBELS / 20))).T, origin="lower",
            extent=extent, aspect="auto", cmap="magma", vmin=-DECIBELS, vmax=0,
        )  # fmt: skip
        axes.set_yticks(np.log10(ticks), [f"{tick:g}" for tick in ticks])
        axes.set_title(name, fontsize=TEXT)
        axes.set_ylabel("frequency, Hz", fontsize=TEXT)
        axes.tick_params(labelsize=TEXT - 1)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("time, s", fontsize=TEXT)
    bar = figure.colorbar(image, ax=list(panels), pad=0.01, aspect=15 * len(rows))
    bar.set_label("dB", fontsize=TEXT)
    bar.ax.tick_params(labelsize=TEXT - 2)
    bar.outline.set_visible(False)
    return figure


def _timeline(times: Array, names: list[str], rows: Array, wave: Array, rate: float) -> Figure:
    figure = _figure(10, 1.9 + 0.32 * len(names))
    heights = [1.0, 0.32 * len(names)]
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    step = max(1, len(wave) // OUTLINE)
    pieces = wave[: len(wave) // step * step].reshape(-1, step)
    seconds = np.arange(len(pieces)) * step / rate
    upper.fill_between(
        seconds, pieces.min(axis=1), pieces.max(axis=1), color="0.55", linewidth=0.4, label="wave"
    )
    upper.set_yticks([])
    half = (times[1] - times[0]) / 2 if len(times) > 1 else 0.5
    image = lower.imshow(
        rows, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest",
        extent=(times[0] - half, times[-1] + half, len(names) - 0.5, -0.5),
    )  # fmt: skip
    best = np.where(rows.any(axis=0), rows.argmax(axis=0), np.nan)
    for number in range(len(names)):
        line = np.where(best == number, number + 0.36, np.nan)
        lower.plot(times, line, color=COLOURS[1], linewidth=3, solid_capstyle="butt",
                   label="highest score" if number == 0 else f"_{number}")  # fmt: skip
    lower.set_yticks(range(len(names)), names)
    lower.set_xlim(0, len(wave) / rate)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=TEXT - 1)
    upper.spines["left"].set_visible(False)
    lower.set_xlabel("time, s", fontsize=TEXT)
    figure.legend(*lower.get_legend_handles_labels(), frameon=False, fontsize=TEXT,
                  loc="outside upper right")  # fmt: skip
    bar = figure.colorbar(image, ax=lower, pad=0.01, aspect=10)
    bar.set_label("score", fontsize=TEXT)
    bar.ax.tick_params(labelsize=TEXT - 2)
    bar.outline.set_visible(False)
    return figure


# ---- style, files and checks -----------------------------------------------------------


def require_matplotlib() -> type[Figure]:
    """Return the class of figures, or raise an error that says how it is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "the figures are drawn by matplotlib; install it with pip install 'pursuit[plots]'"
        ) from error
    return Figure


def _figure(width: float, height: float) -> Figure:
    return require_matplotlib()(figsize=(width, height), layout="constrained")


def _dress(axes: Axes, xlabel: str, ylabel: str) -> None:
    axes.set_xlabel(xlabel, fontsize=TEXT)
    axes.set_ylabel(ylabel, fontsize=TEXT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=TEXT - 1)
    axes.grid(which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)


def _logarithmic(axes: Axes, letter: str) -> None:
    """Make an axis logarithmic, with plain numbers and several of them even on two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axes, f"set_{letter}scale")("log")
    low, high = getattr(axes, f"get_{letter}lim")()
    axis = axes.xaxis if letter == "x" else axes.yaxis
    if high / low < 10**FEW_DECADES:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    if high < 1e5 and low > 1e-4:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _finished(figure: Figure, title: str | None, path: Where) -> Figure:
    if title is not None:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.35)
        figure.suptitle(title, fontsize=TITLE)
    if path is not None:
        target = Path(path)
        if target.suffix.lower() not in SUFFIXES:
            raise ValueError(f"path must end in {', '.join(SUFFIXES)}, got {str(path)!r}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole(target) as file:
            _write_figure(figure, file, target.suffix)
    return figure


def _write_figure(figure: Figure, file: BinaryIO, suffix: str) -> None:
    """Write a figure in the format of a suffix; equal figures give equal bytes."""
    from matplotlib import rc_context

    suffix = suffix.lower()
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "pursuit"}):
        figure.savefig(file, format=suffix[1:], dpi=DPI, metadata=dates.get(suffix))


def _matrix(values: Any, name: str) -> Array:
    """A non-empty matrix of finite numbers, from an array, a tensor or nested lists."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        matrix = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be rows of one length") from error
    if matrix.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be an array of real numbers, got {type(values).__name__}")
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, got shape {matrix.shape}")
    if matrix.size == 0:
        raise ValueError(f"{name} is empty, got shape {matrix.shape}")
    matrix = matrix.astype(np.float64)
    if not np.isfinite(matrix).all():
        raise ValueError(f"{name} contains NaN or infinite values; remove or replace them first")
    return matrix


def _picture_shape(shape: Shape, length: int) -> tuple[int, int] | None:
    """Height and width of a row as a picture, or None if it is not one."""
    if shape is False:
        return None
    if shape is None:
        side = math.isqrt(length)
        return (side, side) if side > 1 and side * side == length else None
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise ValueError(f"shape must be (height, width), None or False, got {shape!r}")
    height, width = int(shape[0]), int(shape[1])
    if height < 1 or width < 1 or height * width != length:
        raise ValueError(f"shape {tuple(shape)} does not fit rows of {length} entries")
    return height, width


def _range(values: Array) -> tuple[float, float]:
    """The limits of the colours: from zero, or symmetric about zero if entries are negative."""
    high = float(np.percentile(np.abs(values), RESOLVED)) or float(np.abs(values).max()) or 1.0
    return (-high if values.min() < 0 else 0.0), high
