"""The report of the experiment `singing`: text, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import plots
from ..audio.metrics import CONVENTIONS
from ..report import Report
from .frame import Description
from .singing import (
    DIRECT,
    EXACT,
    FAITHFUL,
    IDEAL,
    MASKED,
    RECOMMENDED,
    RIVAL,
    SUPERVISED,
    Reproduction,
)
from .singing_peers import PEERS

FILTERED, SCALED = CONVENTIONS
#: the largest distance of our ideal mask from the published one that is the same pipeline, in dB
CLOSE = 0.5


class SingingDescription(Description):
    """Improvements of voice and music, clip by clip, and whether supervision helps."""

    title = "Singing voice separation on MIR-1K"

    def __init__(self, experiment: Reproduction) -> None:
        self.settings, self.clips = experiment.settings, experiment.clips
        self.train, self.folder = experiment.training_clips, experiment.data.name

    @property
    def source(self) -> str:
        learned = sorted({clip.singer for clip in self.train})
        tested = sorted({clip.singer for clip in self.clips})
        return (
            f"MIR-1K (`{self.folder}`), {len(self.train)} clips of {', '.join(learned)} for "
            f"training and {len(self.clips)} of "
            f"{len(tested)} other singers for the results ({', '.join(tested)}); mixture = "
            "accompaniment + voice, 16 kHz, STFT with a Hann window of 1024 samples and a hop of "
            "256, square root of the magnitudes, divided by the standard deviation of the "
            "training mixtures; the phase is that of the mixture"
        )

    @property
    def differences(self) -> Sequence[str]:
        settings = self.settings
        return (
            "The paper's test clips and its way from parts to waves are not stated, so its figures "
            "are not those of these clips. Here both ways are shown: the parts as magnitudes "
            "(direct), and a mask made from them (masked).",
            "The weights follow lam = sqrt(2) sigma, lam_star = sqrt(2 N) sigma with "
            f"N = {settings.joint} and sigma = {settings.sigma} for spectra of unit standard "
            "deviation: in print the two are exchanged, which leaves no outliers at all. The "
            "pursuit is that of the stated objective, without the additional ridge on the "
            "outliers that its printed matrix has.",
            "The dictionary is learned from training mixtures and the same for all test clips, "
            "exact robust NMF included; learned from a single clip it absorbs the voice.",
            "Optimiser and number of training steps are not stated: Adam, "
            f"{settings.unsupervised} steps of {settings.batch} frames without targets and "
            f"{settings.supervised} with the true parts as targets. The supervised loss has the "
            "printed regularisers, that of the dictionary once for all frames, not once for each.",
            "Our separator, the GRU mask network and the separators of other packages are not in "
            "the paper.",
        )

    def write(self, result: Mapping[str, Any], report: Report) -> None:
        rows, count = result["rows"], len(self.settings.seeds)
        seeds = "one seed" if count == 1 else f"{count} seeds"
        report.text(
            "Robust NMF splits the spectrum of a mixture into a low-rank part (the accompaniment) "
            "and sparse outliers (the voice). All figures are improvements over the mixture, in "
            f"decibels, on {len(self.clips)} clips of singers that nothing was trained on; where "
            f"training is random, they are means over {seeds}."
        )
        self._write_table(rows, report)
        report.figure(
            _strips(rows),
            "clips",
            "Improvement of every clip, the mean, and its bootstrap interval; diamonds are the "
            "figures of the paper, which are of other clips.",
        )
        self._write_claims(result, report)
        self._write_singers(result, report)
        self._write_others(result, report)

    def _write_table(self, rows: Mapping[str, Any], report: Report) -> None:
        report.section("Improvement of voice and music")
        table = []
        for name, row in rows.items():
            filtered, scaled = row[FILTERED], row[SCALED]
            cells = [
                _interval(mean, *bounds)
                for mean, bounds in zip(filtered["mean"], filtered["interval"], strict=True)
            ]
            pairs = (row["paper"], filtered["global"], scaled["mean"])
            paper, weighted, invariant = ("" if pair is None else _pair(pair) for pair in pairs)
            count = "" if row["parameters"] is None else f"{row['parameters']:,}".replace(",", " ")
            table.append([name, paper, *cells, weighted, invariant, count])
        report.table(
            ["", "paper", "voice", "music", "GNSDR", "scale-invariant", "parameters"], table
        )
        report.text(
            "Voice and music: NSDR with 512 taps (BSS-EVAL), the mean over clips and its 95 % "
            f"interval, by a bootstrap of {self.settings.draws} draws of the clips. GNSDR: the "
            "same, weighted by the lengths of the clips. Scale-invariant: improvement of SI-SDR. "
            "Pairs are voice / music."
        )
        ideal, published = rows[IDEAL][FILTERED]["mean"], rows[IDEAL]["paper"]
        distance = max(abs(a - b) for a, b in zip(ideal, published, strict=True))
        report.text(
            f"The ideal mask has {_pair(ideal)} here and {_pair(published)} in the paper: "
            + (
                f"they differ by at most {CLOSE} dB, so analysis, synthesis and measure agree."
                if distance <= CLOSE
                else f"they differ by {distance:.2f} dB, since the clips are others."
            )
        )

    def _write_claims(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Does supervision help?")
        found = [each for each in result["differences"] if each["row"].startswith(SUPERVISED)]
        report.table(*_differences(found))
        for kind in (DIRECT, MASKED):
            voices = [each["voice"] for each in found if each["row"] == f"{SUPERVISED}, {kind}"]
            below = [each["other"] for each in found if each["row"] == f"{SUPERVISED}, {kind}"]
            unclear = [
                other
                for other, voice in zip(below, voices, strict=True)
                if not voice["clips"][0] > 0
            ]
            report.text(
                f"For the voice, {kind}, the supervised encoder is "
                + (
                    "better than exact robust NMF, the untrained and the unsupervised encoder: no "
                    "interval of a difference contains 0."
                    if not unclear
                    else f"NOT clearly better than {' and '.join(unclear)}."
                )
            )
        report.text(
            "Differences are paired, clip by clip. The first interval is that of drawing clips, "
            "the second that of drawing singers with all of their clips, since clips of a singer "
            "are alike."
        )

    def _write_singers(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Singers")
        rows, labels = result["rows"], [clip["singer"] for clip in result["clips"]]
        singers = sorted(set(labels))
        shown = [f"{name}, {MASKED}" for name in FAITHFUL]
        shown += [name for name in (RECOMMENDED, RIVAL, *PEERS) if name in rows]
        each = {name: np.array(rows[name][FILTERED]["clips"]) for name in shown}
        table = []
        for singer in singers:
            chosen = np.array([label == singer for label in labels])
            means = (values[chosen].mean(axis=0) for values in each.values())
            table.append([f"{singer} ({chosen.sum()})", *map(_pair, means)])
        report.table(["singer (clips)", *shown], table)
        gained = each[f"{SUPERVISED}, {MASKED}"] - each[f"{EXACT}, {MASKED}"]
        strips = {
            singer: gained[[label == singer for label in labels]].tolist() for singer in singers
        }
        report.figure(
            plots.strips(strips, ["voice", "music"], "dB above exact robust NMF", each="one clip"),
            "singers",
            "Supervised encoder against exact robust NMF, both masked, clip by clip.",
        )

    def _write_others(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Other separators")
        others = [each for each in result["differences"] if not each["row"].startswith(SUPERVISED)]
        if others:
            report.table(*_differences(others))
        report.text(
            f"The {RIVAL} is causal and learns from the same clips with the loss of a separated "
            "signal, from remixes of voices and accompaniments at other speeds."
        )
        for name, peer in PEERS.items():
            if name in result["rows"]:
                report.text(f"{name} ({peer.package} {peer.version}): {peer.what}.")
        for name, sentence in result["skipped"].items():
            report.text(f"There is no row of {name}: {sentence}.")


def _strips(rows: Mapping[str, Any]) -> Any:
    return plots.strips(
        {name: row[FILTERED]["clips"] for name, row in rows.items()},
        ["voice", "music"],
        "NSDR in dB (512 taps)",
        intervals={name: row[FILTERED]["interval"] for name, row in rows.items()},
        marks={name: row["paper"] for name, row in rows.items() if row["paper"] is not None},
        marked="paper",
        each="one clip",
    )


def _differences(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of a table of differences."""
    rows = []
    for each in found:
        cells = []
        for source in ("voice", "music"):
            values = each[source]
            low, high = values["singers"]
            cells.append(f"{_interval(values['mean'], *values['clips'])} [{low:.2f}, {high:.2f}]")
        rows.append([f"{each['row']} - {each['other']}", *cells])
    return ["difference", "voice", "music"], rows


def _interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.2f} [{low:.2f}, {high:.2f}]"


def _pair(values: Sequence[float]) -> str:
    return f"{values[0]:.2f} / {values[1]:.2f}"
