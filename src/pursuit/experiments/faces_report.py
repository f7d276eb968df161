"""The report of the experiment `faces`: text, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import plots
from ..report import Report
from .faces import ECC, OURS, RASL, Reproduction
from .frame import Description

PLACES = ("original", "shifted", "realigned")


class FacesDescription(Description):
    """Losses of faces that are shifted, errors of their alignment, a stack and a stream."""

    title = "Robust PCA of faces that are not aligned"

    def __init__(self, experiment: Reproduction) -> None:
        self.settings, self.pictures = experiment.settings, experiment.pictures
        self.embedded = experiment.data is None

    @property
    def source(self) -> str:
        pictures = self.pictures
        return (
            f"{pictures.source}: {len(pictures.train)} faces for training, "
            f"{len(pictures.validation)} for validation, {len(pictures.test)} of the role "
            f"{self.settings.role}, and a stack of {len(pictures.stack)} pictures"
        )

    @property
    def differences(self) -> Sequence[str]:
        return (
            "The paper has 800 pictures of one woman, which are not public; here are other faces, "
            "whose losses differ.",
            "The paper does not state the size of its shifts, nor how the loss is minimised over "
            "them. Here a robust Gauss-Newton method on smoothed pictures comes first, then a few "
            "Gauss-Newton steps on the loss itself.",
            "Covered faces, the stack and the stream are no experiments of the paper.",
        )

    def write(self, result: Mapping[str, Any], report: Report) -> None:
        report.text(
            "Robust PCA describes pictures of faces only if they are aligned. An encoder of "
            f"{self.settings.layers} layers is trained on faces in a window of "
            f"{self.settings.size[0]} x {self.settings.size[1]} pixels; new faces are aligned by "
            "minimising its loss over the position of the window."
        )
        self._write_losses(result, report)
        self._write_errors(result, report)
        self._write_covered(result, report)
        self._write_stack(result, report)
        self._write_stream(result, report)

    def _write_losses(self, result: Mapping[str, Any], report: Report) -> None:
        report.section(f"Faces that are shifted by up to {self.settings.shift:g} pixels")
        found = result["examples"]["faces"]
        rows = {
            name: np.concatenate([np.asarray(found[place][name]) for place in PLACES])
            for name in ("D s + o", "D s", "o")
        }
        captions = [f"{loss:.2f}" for place in PLACES for loss in found[place]["loss"]]
        figure = plots.gallery(rows, self.settings.size, groups=PLACES, captions=captions)
        report.figure(
            figure, "faces", "Reconstruction, low-rank part and outliers by the encoder, with the "
            "loss of each face; outliers are red where the face is brighter than its low-rank part."
        )  # fmt: skip
        table = []
        for name, states in result["losses"].items():
            for place in PLACES:
                state = states[place]
                table.append([name, place, f"{state['loss']:.3f}", f"{state['outliers']:.1%}"])
        report.table(["codes", "faces", "loss", "pixels with an outlier"], table)
        for name, states in result["losses"].items():
            original, realigned = (states[p]["loss"] for p in ("original", "realigned"))
            word = "not above" if realigned <= original else "ABOVE"
            report.text(
                f"{name.capitalize()}: the loss of {states['share below shifted']:.1%} of the "
                f"realigned faces is below that of the shifted ones. On average it is {word} that "
                f"of the original faces ({realigned:.3f} against {original:.3f}), which are only "
                "roughly aligned."
            )

    def _write_errors(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Errors of the position")
        rows = []
        for name, error in result["errors"].items():
            own, absolute = error["own"], error["absolute"]
            rows.append(
                [name, f"{own['mean']:.3f}", f"{own['median']:.3f}", f"{absolute['mean']:.2f}",
                 f"{absolute['median']:.2f}", f"{error['milliseconds']:.1f}"]
            )  # fmt: skip
        report.table(
            ["", "from own optimum, mean", "median", "from original, mean", "median",
             "ms a picture"], rows,
        )  # fmt: skip
        report.text(
            "Pixels. The own optimum is where the same method moves the window to if the face is "
            "not shifted: the original faces are only roughly aligned, so that their position is "
            "no better truth than that." + _missing(result)
        )

    def _write_covered(self, result: Mapping[str, Any], report: Report) -> None:
        share = self.settings.covered
        report.section(f"The same with {share:.0%} of each face covered by noise")
        rows = [
            [name, f"{e['own']['mean']:.2f}", f"{e['own']['below half a pixel']:.0%}",
             f"{e['uncovered']['mean']:.2f}", f"{e['uncovered']['median']:.2f}",
             f"{e['absolute']['mean']:.2f}"]
            for name, e in result["covered"].items()
        ]  # fmt: skip
        report.table(
            ["", "from own optimum, mean", "below 0.5", "from that of the uncovered face, mean",
             "median", "from original, mean"], rows,
        )  # fmt: skip
        panels = [
            plots.Panel(
                {name: _shares(error[key]["all"], most) for name, error in found.items()},
                "error in pixels, at most", "share of the faces", title=title, markers=False,
            )
            for found, key, most, title in (
                (result["errors"], "own", 1.0, "shifted: from own optimum"),
                (result["covered"], "own", 1.0, "covered: from own optimum"),
                (result["covered"], "uncovered", 5.0, "covered: from uncovered"),
            )
        ]  # fmt: skip
        report.figure(
            plots.panels(panels), "errors",
            "The share of the faces whose error is at most so many pixels.",
        )  # fmt: skip
        examples = {name: np.asarray(rows) for name, rows in result["examples"]["covered"].items()}
        report.figure(
            plots.gallery(examples, self.settings.size), "covered",
            "Covered and shifted faces, and what the window shows after alignment.",
        )  # fmt: skip
        report.text(
            "Pixels. The rectangle of noise moves with the face. What it hides is lost, so the "
            "optimum of a covered face is another one than that of the whole face."
        )

    def _write_stack(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("A stack of pictures without a model")
        rows = []
        for kind, found in result["stack"].items():
            for name in ("before", OURS, RASL):
                row = found[name]
                took = f"{row['milliseconds']:.1f}" if "milliseconds" in row else ""
                rows.append(
                    [kind, name, f"{row['objective']:.1f}", str(row["rank"]),
                     f"{row['effective']:.1f}", f"{row['outliers']:.1%}", took]
                )  # fmt: skip
        report.table(
            ["", "", "objective", "rank", "effective rank", "outliers", "ms a picture"], rows
        )
        report.text(
            "Objective, rank and outliers are those of the convex robust PCA of what the windows "
            "show, with the same weights for all. The effective rank is the exponential of the "
            "entropy of the squared singular values, after the mean picture is subtracted. Times "
            "are those of the processor."
        )
        for kind, found in result["stack"].items():
            ratio = found[OURS]["objective"] / found[RASL]["objective"]
            faster = found[RASL]["milliseconds"] / found[OURS]["milliseconds"]
            new = found["new"]
            again = found[RASL]["milliseconds"] * len(self.pictures.stack)
            report.text(
                f"{kind.capitalize()}: {ratio:.3f} times the objective of RASL, {faster:.1f} times "
                f"as fast. A new picture, aligned with the model of the others, takes "
                f"{new['milliseconds']:.1f} ms and its loss falls from {new['before']:.2f} to "
                f"{new['after']:.2f}; RASL has to align all pictures again, "
                f"{again / 1e3:.1f} s."
            )
        pictures = np.asarray(result["stack"]["similarity"]["means"])
        figure = plots.gallery(
            {"mean picture": pictures}, self.settings.window, captions=["before", "after"]
        )
        report.figure(figure, "mean", "The mean of the stack before and after its alignment.")

    def _write_stream(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("A stream")
        curves: dict[str, list[tuple[float, float]]] = {}
        times: dict[str, list[tuple[float, float]]] = {}
        for seed, points in result["stream"].items():
            for point in points:
                times.setdefault(f"seed {seed}", []).append(
                    (point["pictures"], point["milliseconds"])
                )
        first = next(iter(result["stream"].values()))
        for number, point in enumerate(first):
            for name in point:
                if name not in ("pictures", "milliseconds"):
                    values = [points[number][name] for points in result["stream"].values()]
                    curves.setdefault(name, []).append(
                        (point["pictures"], sum(values) / len(values))
                    )
        early = 3 * self.settings.chunk
        left = plots.Panel(curves, "pictures of the stream", f"loss of the first {early}")
        right = plots.Panel(times, "pictures of the stream", "ms a picture")
        report.figure(
            plots.panels([left, right]), "stream",
            "The loss of the first pictures as the model follows the stream, by exact codes and "
            "the current dictionary; and the processor time of each new picture.",
        )  # fmt: skip
        last = {name: values[-1][1] for name, values in curves.items()}
        report.text(
            "At the end: " + ", ".join(f"{name} {loss:.3f}" for name, loss in last.items()) + "."
        )


def _shares(errors: Sequence[float], most: float) -> list[tuple[float, float]]:
    """The share of the errors that are at most so large."""
    ordered = np.asarray(errors)
    return [(x, float((ordered <= x).mean())) for x in np.linspace(0, most, 101).tolist()]


def _missing(result: Mapping[str, Any]) -> str:
    if ECC in result["errors"]:
        return ""
    return " OpenCV is not installed; for its row, `pip install opencv-python-headless`."
