"""The report of the experiment `speakers`: text, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .. import plots
from ..datasets import speakers as corpus
from ..report import Report
from .frame import Description
from .speaker_peers import PEERS
from .speakers import BLOCK, COORDINATE, DISCRIMINATIVE, EXACT, MIXED, SINGLE, Reproduction

#: from the fewest errors to the most, in the paper
ORDER = (EXACT, DISCRIMINATIVE, BLOCK, COORDINATE)


class SpeakersDescription(Description):
    """Misclassification of single speakers and of mixtures of two."""

    title = "Speakers by structured sparse codes"

    def __init__(self, experiment: Reproduction) -> None:
        self.settings, self.sets = experiment.settings, experiment.sets
        self.folder = experiment.data.name
        self.counts = {
            name: [
                len(corpus.read_folder(experiment.data, name, role))
                for role in ("train", experiment.settings.role)
            ]
            for name in experiment.sets
        }

    @property
    def source(self) -> str:
        clips = "; ".join(
            f"{name}, {train} clips for training and {used} of the role {self.settings.role}"
            for name, (train, used) in self.counts.items()
        )
        return f"closed sets of speakers (`{self.folder}`) at {corpus.RATE} Hz: {clips}"

    @property
    def differences(self) -> Sequence[str]:
        settings = self.settings
        return (
            "The paper has recordings of five radio speakers, which are not public, so its figures "
            "are not those of these speakers.",
            "The features are not stated in detail. Here: clips at the same level, frames of 512 "
            "samples with a Hann window and 75 % overlap, the power spectrum averaged in 80 "
            f"triangular bands on the mel scale, at least {settings.width:g} Hz wide on each side, "
            f"and raised to the power of {settings.power}; centred, whitened by the covariance "
            f"within speakers (with a ridge of {settings.ridge} of the mean variance), and of unit "
            f"norm. Frames whose norm is below {settings.quiet} of the mean are silence and do not "
            "count.",
            f"The weight of groups is not stated; here it is {settings.lam_group}, chosen on the "
            "validation clips, as is everything that the paper does not state.",
            "The clips of a speaker follow one another in an order that the seed draws, and are "
            "pooled in windows that do not overlap; a mixture has two speakers at the same level.",
            "Encoders end with a full proximal step after their two layers, and are trained on "
            "frames of single speakers and of mixtures. The discriminative loss is not printed: "
            "here the squared norms of the groups of silent speakers plus the hinge "
            f"max(0, margin - norm^2) of those that are active, with a margin of {settings.margin} "
            "times their median. Its encoder starts from the one that approximates.",
        )

    def write(self, result: Mapping[str, Any], report: Report) -> None:
        report.text(
            "Every speaker has a group of atoms in one structured dictionary. The groups with the "
            "highest norms, summed over some frames, are the speakers that are recognised. Errors "
            "are the share of speakers that are missed, in per cent: one of one, or of the two in "
            "a mixture."
        )
        self._write_table(result, report)
        self._write_order(result, report)
        self._write_distances(result, report)
        self._write_lengths(result, report)
        self._write_clips(result, report)

    def _write_table(self, result: Mapping[str, Any], report: Report) -> None:
        report.section(f"Errors, pooled over {result['pooled']} frames")
        kinds = [(name, kind) for name in self.sets for kind in (SINGLE, MIXED)]
        table = []
        for row, found in result["rows"].items():
            cells = [
                _interval(found["sets"][name]["lengths"][str(result["pooled"])][kind])
                for name, kind in kinds
            ]
            table.append([row, f"{found['paper']:.2f}", _interval(found), *cells])
        report.table(["", "paper", "mean", *(f"{name}, {kind}" for name, kind in kinds)], table)
        report.text(
            f"Mean: of all columns to the right. All are means of {len(self.settings.seeds)} seeds "
            "with 95 % intervals, the mean bounds of a bootstrap for each seed: "
            f"{self.settings.draws} draws of the stretches of time that windows are from, with all "
            "mixtures in them."
        )

    def _write_order(self, result: Mapping[str, Any], report: Report) -> None:
        means = {row: found["mean"] for row, found in result["rows"].items()}
        wrong = [
            f"{first} has {means[first]:.2f} % errors, {second} has {means[second]:.2f} %"
            for first, second in pairwise(ORDER)
            if means[first] > means[second]
        ]
        report.text(
            "The order of the paper, from the fewest errors to the most: "
            + "; ".join(ORDER)
            + (
                ". It is also the order here."
                if not wrong
                else f". NOT so here: {'; '.join(wrong)}."
            )
        )
        for row in (BLOCK, DISCRIMINATIVE, COORDINATE):
            low, high = result["rows"][row]["minus exact"]
            report.text(
                f"{row} minus exact: {means[row] - means[EXACT]:+.2f} percentage points "
                f"[{low:+.2f}, {high:+.2f}]."
            )

    def _write_distances(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Distance from the exact codes")
        rows = [
            [row, *(f"{result['rows'][row]['sets'][name]['distance']:.3f}" for name in self.sets)]
            for row in (COORDINATE, BLOCK)
        ]
        report.table(["", *self.sets], rows)
        report.text(
            "The sum of squared differences from the exact codes, relative to the sum of their "
            "squares, over all frames of the sounds above."
        )

    def _write_lengths(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Errors against the number of frames")
        panels = []
        for name in self.sets:
            for kind in (SINGLE, MIXED):
                curves = {}
                for row, found in result["rows"].items():
                    lengths = found["sets"][name]["lengths"]
                    curves[row] = [
                        (int(length), errors[kind]["mean"], *errors[kind]["interval"])
                        for length, errors in lengths.items()
                    ]
                panels.append(
                    plots.Panel(curves, "frames", "errors in %", f"{name}, {kind}", log="x")
                )
        report.figure(
            plots.panels(panels, size=(3.4, 3.2)),
            "lengths",
            "Speakers that are missed, against the frames that are pooled (62.5 frames are a "
            "second), with bootstrap intervals.",
        )
        rows = []
        for row, found in result["rows"].items():
            for name in self.sets:
                for kind in (SINGLE, MIXED):
                    lengths = found["sets"][name]["lengths"]
                    cells = [_interval(errors[kind]) for errors in lengths.values()]
                    rows.append([f"{row}, {name}, {kind}", *cells])
        first = next(iter(result["rows"].values()))["sets"][self.sets[0]]["lengths"]
        report.table(["frames", *first], rows)

    def _write_clips(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Whole clips of one speaker")
        report.table(
            ["", *self.sets],
            [
                [row, *(_interval(found["sets"][name]["clips"]) for name in self.sets)]
                for row, found in result["rows"].items()
            ],
        )
        report.text("Errors in per cent, with intervals by drawing clips.")
        self._write_peers(result, report)
        for name in self.sets:
            names = result["speakers"][name]
            for row in (EXACT, DISCRIMINATIVE):
                counts = result["rows"][row]["sets"][name]["confusion"]
                report.text(f"{row}, {name}: clips of each speaker, and who they were taken for.")
                report.table(
                    ["", *names],
                    [
                        [speaker, *map(str, line)]
                        for speaker, line in zip(names, counts, strict=True)
                    ],
                )

    def _write_peers(self, result: Mapping[str, Any], report: Report) -> None:
        """Networks that learned from thousands of other speakers, on the same clips."""
        rows = [
            [f"{peer}, {PEERS[peer].parameters / 1e6:.1f} million parameters",
             *(_interval(found[name]) for name in self.sets)]
            for peer, found in result["peers"].items()
        ]  # fmt: skip
        if rows:
            report.text(
                "Other packages on the same clips: a network that was trained on thousands of "
                "speakers embeds each clip, and the speaker with the nearest mean of the training "
                "clips is recognised."
            )
            report.table(["", *self.sets], rows)
        for peer in PEERS.values():
            if not peer.installed:
                report.text(f"{peer.sentence}.")


def _interval(errors: Mapping[str, Any]) -> str:
    low, high = errors["interval"]
    return f"{errors['mean']:.2f} [{low:.2f}, {high:.2f}]"
