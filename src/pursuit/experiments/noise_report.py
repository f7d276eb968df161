"""The report of the experiment `noise`: text, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import plots
from ..audio.metrics import CONVENTIONS
from ..audio.noisy_training import PARTS
from ..datasets import noise as corpus
from ..report import Report
from .frame import Description
from .noise import (
    COLUMNS,
    DISCRIMINATIVE,
    EXACT,
    GAUSSIANS,
    MAIN,
    NETWORK,
    PAPER,
    Reproduction,
)
from .noise_times import ENCODERS, FISTA, SOLVER


class NoiseDescription(Description):
    """Speakers recognised in noise, and their speech without it."""

    title = "Speakers in noise by low-rank NMF"

    def __init__(self, experiment: Reproduction) -> None:
        self.settings, self.folder = experiment.settings, experiment.data.name
        self.train, self.clips = experiment.training_clips, experiment.clips
        self.kinds = list(experiment.noises)

    @property
    def source(self) -> str:
        speakers = len({clip.speaker for clip in self.train})
        return (
            f"spoken digits of {speakers} people (`{self.folder}`), joined to {len(self.train)} "
            f"clips of about two seconds for training and {len(self.clips)} of the role "
            f"{self.settings.role}, of other takes; six noises, of which other seconds are used in "
            f"each role; {corpus.RATE} Hz"
        )

    @property
    def differences(self) -> Sequence[str]:
        settings = self.settings
        return (
            "The paper has sentences of the GRID corpus; here they are digits of AudioMNIST, so "
            "its figures are not those of these clips. The noises are of the same recordings "
            "(AURORA), ten seconds of each: five for training, three and a half for the results.",
            "The features are the square roots of the magnitudes, in frames of 512 samples every "
            "128, divided by their root mean square over the clip. The paper does not say how "
            "spectra are compressed.",
            "Every dictionary is a non-negative factorisation with atoms of unit norm; the weight "
            f"of the squares of both codes is {settings.lam_star}, and there is no weight of "
            "absolute values: both parts are of low rank, as in the paper.",
            "Encoders are accelerated proximal steps that learn their dictionaries and scalars, "
            f"{settings.layers} layers. The supervised loss is the distance of both parts to the "
            "true ones, which are the features of the mixture, divided in proportion to those of "
            "speech and noise: compressed magnitudes do not add up.",
            "The discriminative loss of the paper, a hinge for each frame, is replaced by the "
            "cross-entropy of the decision: of errors that are summed over the frames of a "
            "segment of one second, which was better on the validation clips, plus "
            f"{PARTS} times the supervised loss. Training starts from the supervised encoders.",
            f"Training: {settings.supervised} and {settings.discriminative} steps of "
            f"{settings.segments} random mixtures from -5 to 5 dB; dictionaries and exact codes "
            "do not depend on the seed. All choices were made on the validation clips.",
        )

    def write(self, result: Mapping[str, Any], report: Report) -> None:
        count = len(self.settings.seeds)
        seeds = "one seed" if count == 1 else f"{count} seeds"
        report.text(
            "The spectrum of a mixture is explained by atoms of noise and atoms of one speaker. "
            "The speaker with the smallest error, summed over a clip, is the one that is "
            f"recognised. Figures are shares of clips; where training is random, means of {seeds}."
        )
        self._write_table(result, report)
        self._write_differences(result, report)
        self._write_ratios(result, report)
        self._write_lengths(result, report)
        self._write_speech(result, report)
        self._write_times(result, report)
        self._write_confusion(result, report)

    def _write_table(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Success rates at 0 dB")
        rows = result["rows"]
        found = {row: rows[row]["snr"][str(MAIN)] for row in rows}
        table = []
        for kind in self.kinds:
            cells = [f"{found[row]['kinds'][kind]:.3f}" for row in rows]
            table.append([kind, _paper(kind), *cells])
        cells = [_interval(found[row]["mean"], found[row]["interval"]) for row in rows]
        table.append(["average", _paper("average"), *cells])
        report.table(["noise", "paper (exact, supervised, discriminative)", *rows], table)
        ranges = [
            f"{row} {', '.join(f'{value:.3f}' for value in found[row]['seeds'])}"
            for row in rows
            if len(found[row]["seeds"]) > 1
        ]
        if ranges:
            report.text(f"The average of each seed: {'; '.join(ranges)}.")
        sizes = [
            f"{row} {result['rows'][row]['parameters']:,}".replace(",", " ")
            for row in rows
            if rows[row]["parameters"] is not None
        ]
        report.text(f"Parameters, dictionaries included: {'; '.join(sizes)}.")
        report.text(
            f"Exact codes have a relative gap of at most {rows[EXACT]['gap']:.1g}, certified on "
            "the mixtures of one clip. "
            f"{GAUSSIANS}: one with a full covariance for each speaker, of cepstra of the same "
            f"features. {NETWORK}: convolutions along time, for whole clips. Both learn from the "
            f"same mixtures. Intervals: 95 %, by a bootstrap of {self.settings.draws} draws of "
            "clips, each with all of its noises."
        )

    def _write_differences(self, result: Mapping[str, Any], report: Report) -> None:
        rows = []
        for each in result["differences"]:
            low, high = each["interval"]
            clear = "yes" if low > 0 or high < 0 else "NO"
            name = f"{each['row']} - {each['other']}"
            rows.append([name, _interval(each["mean"], each["interval"]), clear])
        report.table(["difference, clip by clip", "at 0 dB", "other than 0"], rows)

    def _write_ratios(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Other ratios and unseen noises")
        rows = result["rows"]
        every = sorted({snr for row in rows for snr in rows[row]["snr"]}, key=float)
        table = []
        for row in rows:
            found = rows[row]["snr"]
            cells = [
                _interval(found[snr]["mean"], found[snr]["interval"]) if snr in found else ""
                for snr in every
            ]
            other = result["unseen"].get(row)
            cells.append("" if other is None else _interval(other["mean"], other["interval"]))
            table.append([row, *cells])
        names = [f"{float(snr):g} dB" for snr in every]
        report.table(["", *names, "unseen noise, 0 dB"], table)
        report.text(
            f"Ratios other than 0 dB and unseen noises are those of one clip of "
            f"{self.settings.every}. Unseen: dictionary and encoders learned from five noises, in "
            f"{self.settings.unseen} steps, and met the sixth, each in turn."
        )
        own = result["unseen"][DISCRIMINATIVE]["kinds"]
        cells = [f"{own[kind]:.3f}" for kind in self.kinds]
        report.table(["unseen noise", *self.kinds], [[DISCRIMINATIVE, *cells]])

    def _write_lengths(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Success rates against the number of frames")
        every = {row: found["lengths"] for row, found in result["rows"].items()}
        rows = {row: found for row, found in every.items() if found}
        curves = {
            row: [(int(length), rate, rate, rate) for length, rate in found.items()]
            for row, found in rows.items()
        }
        panel = plots.Panel(curves, "frames", "success rate", "windows at 0 dB", log="x")
        report.figure(
            plots.panels([panel], size=(5.0, 3.2)),
            "lengths",
            "Windows whose speaker is recognised, against the frames that are pooled (62.5 frames "
            "are a second).",
        )
        first = next(iter(rows.values()))
        table = [[row, *(f"{rate:.3f}" for rate in found.values())] for row, found in rows.items()]
        report.table(["frames", *first], table)

    def _write_speech(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Denoised speech at 0 dB")
        table = []
        for row in COLUMNS:
            found = result["rows"][row]["denoised"]
            table.append(
                [row, *(_interval(found[c]["mean"], found[c]["interval"], 2) for c in CONVENTIONS)]
            )
        report.table(["improvement in dB", *(f"SDR, {name}" for name in CONVENTIONS)], table)
        report.text(
            "Mixtures are masked by the explanation of the speaker that is recognised, right or "
            f"wrong; one clip of {self.settings.every} with all noises, of the first seed."
        )

    def _write_times(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Time for each second of sound")
        times = result["times"]
        table = []
        for name in (ENCODERS, SOLVER, FISTA):
            ratio = times["ratios"].get(name, 1.0)
            table.append([name, f"{1000 * times['seconds'][name]:.1f}", f"{ratio:.1f}"])
        report.table(["all speakers, one thread", "milliseconds", "times the encoders"], table)
        report.text(
            f"Exact: a relative gap of {times['gap']:g}. FISTA makes {times['iterations']} "
            f"iterations, after which {100 * times['share']:.1f} % of the frames have it; its gaps "
            "are not computed while it is measured. All are measured in turn, features included."
        )

    def _write_confusion(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Who is taken for whom")
        report.text(
            f"{DISCRIMINATIVE}: mixtures of each speaker at 0 dB, all seeds, and who they were "
            "taken for."
        )
        counts, names = result["rows"][DISCRIMINATIVE]["confusion"], result["speakers"]
        report.table(
            ["", *names],
            [[name, *map(str, line)] for name, line in zip(names, counts, strict=True)],
        )


def _paper(kind: str) -> str:
    return " / ".join(f"{value:.2f}" for value in PAPER[kind]) if kind in PAPER else ""


def _interval(mean: float, bounds: Sequence[float], digits: int = 3) -> str:
    low, high = bounds
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
