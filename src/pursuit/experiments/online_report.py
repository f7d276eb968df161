"""The report of the experiment `online`: text, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .. import plots
from ..report import Report
from .frame import Description
from .online import COPIED, EXACT, OFFLINE, ONLINE, ORDER, RECOMMENDED, Reproduction

#: chunks over which curves are averaged for the figure
SMOOTH = 5


class OnlineDescription(Description):
    """Objectives against sample number, and the order of the methods."""

    title = "Online sparse encoders on a stream of textures"

    def __init__(self, experiment: Reproduction) -> None:
        self.settings, self.pictures = experiment.settings, experiment.pictures
        self.real = experiment.data is not None

    @property
    def source(self) -> str:
        return (
            f"{self.pictures.source}; {self.settings.block} patches of each picture at random "
            "positions, in this order, and the offline encoders' patches at other positions of "
            "the same pictures; every patch has mean zero and unit variance (divided by at least "
            "0.02 of the range of grey values)"
        )

    @property
    def differences(self) -> Sequence[str]:
        first = (
            "Which three Brodatz plates the paper took is not known."
            if self.real
            else "The textures are those of scikit-image, not Brodatz plates; with --data or "
            "--download the experiment runs on those."
        )
        return (
            f"{first} It prints 30 x 10^4 patches in three blocks of 10^4; three times 10^4 are "
            "meant. How patches are scaled is not stated; lam = 1 suits unit variance.",
            "Coordinate layers use the step size of each atom (unit atoms: W = D, H = I - D D', "
            "t = lam) and end with a shrinkage of the whole code, as in Gregor and LeCun's "
            "networks: without it a code of four layers has at most four non-zeros, trained or "
            "not.",
            "Optimisers and numbers of steps are not stated; ours are Adam with the defaults of "
            "`fit` and of `OnlineLearner`. The learner's dictionary forgets the past when the "
            "objective leaves its level, which the paper's fixed forgetting does not.",
            "The exact codes use the current dictionary of the online encoder, so that the two "
            "curves differ by the encoder only. The recommended encoder (top-k layers that learn "
            "scalars only) is ours.",
        )

    def write(self, result: Mapping[str, Any], report: Report) -> None:
        settings = self.settings
        report.text(
            f"Patches of {len(self.pictures.names)} textures arrive one texture after the other. "
            f"Encoders of {settings.layers} coordinate layers and their dictionary of "
            f"{settings.atoms} atoms learn from windows of {settings.window} patches that advance "
            f"by {settings.step}; every patch is measured before it is used for learning. The "
            "references were trained offline on other patches of all textures together, for the "
            "objective itself or for the exact codes, and do not change."
        )
        self._write_curves(result, report)
        self._write_order(result, report)
        self._write_reasons(result, report)

    def _write_curves(self, result: Mapping[str, Any], report: Report) -> None:
        seeds = len(self.settings.seeds)
        kind = f"mean of {seeds} seeds, the band is their range" if seeds > 1 else "one seed"
        curves = {name: np.array(runs) for name, runs in result["curves"].items()}
        order = (COPIED, OFFLINE, ONLINE, RECOMMENDED, EXACT)
        report.figure(
            self._figure({name: curves[name] for name in order}, "Lasso objective"),
            "objective",
            f"Objective against sample number; {kind}. The first dictionary was learned from the "
            f"first {self.settings.window} samples.",
        )
        above = {name: 100 * (curves[name] / curves[EXACT] - 1) for name in order[:-1]}
        report.figure(
            self._figure(above, "per cent above exact codes"),
            "above",
            "The same, in per cent of the objective of exact codes with the online dictionary.",
        )

    def _write_order(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("The second half of each block")
        rows = []
        for name in (*ORDER, RECOMMENDED):
            cells = [_spread(block["objective"][name]) for block in result["blocks"]]
            rows.append([name, *cells])
        report.table(["mean objective", *self.pictures.names], rows)
        kept = sum(all(block["holds"]) for block in result["blocks"])
        report.text(
            "In the paper, exact codes have the lowest objective, then online unsupervised, "
            "offline unsupervised and offline approximation. This order holds in "
            f"{kept} of {len(result['blocks'])} blocks. Differences, and the number of seeds for "
            "which the order holds:"
        )
        rows = [
            [f"{higher} above {lower}"]
            + [_verdict(block, lower, higher) for block in result["blocks"]]
            for lower, higher in pairwise(ORDER)
        ]
        report.table(["does it hold?", *self.pictures.names], rows)

    def _write_reasons(self, result: Mapping[str, Any], report: Report) -> None:
        report.section("Reasons: the dictionary and the encoder")
        report.text(
            "An objective is the optimum for a dictionary plus the encoder's distance from it. The "
            "online dictionary is learned from the current texture, the offline one from all of "
            "them; the encoder's distance depends on its layers and its training."
        )
        rows = []
        for block in result["blocks"]:
            for name in (ONLINE, OFFLINE, COPIED, RECOMMENDED):
                value, best = (np.mean(block[key][name]) for key in ("objective", "optimum"))
                distance = value - best
                row = [f"{block['texture']}: {name}", f"{best:.2f}", f"{distance:.2f}"]
                rows.append([*row, f"{100 * distance / best:.1f}"])
        report.table(["", "optimum with its dictionary", "encoder above it", "per cent"], rows)
        for block in result["blocks"]:
            for (lower, higher), holds in zip(pairwise(ORDER), block["holds"], strict=True):
                if not holds:
                    report.text(f"{block['texture']}: {_explained(block, lower, higher)}.")

    def _figure(self, curves: Mapping[str, np.ndarray[Any, Any]], label: str) -> Any:
        """Curves against sample number, averaged over a few chunks of the same block."""
        settings = self.settings
        begin = settings.window // settings.step  # the first dictionary saw the chunks before
        chunks = settings.block // settings.step
        stretches = {
            name: (number * settings.block, (number + 1) * settings.block)
            for number, name in enumerate(self.pictures.names)
        }
        shown = {}
        for name, runs in curves.items():
            smooth = np.stack([_smoothed(run, begin, chunks) for run in runs])
            samples = settings.step * (np.arange(begin, runs.shape[1]) + 1)
            columns = [samples, smooth.mean(axis=0), smooth.min(axis=0), smooth.max(axis=0)]
            shown[name] = [tuple(map(float, point)) for point in zip(*columns, strict=True)]
        panel = plots.Panel(
            shown,
            "sample",
            f"{label}, mean of {SMOOTH * settings.step}",
            stretches=stretches,
            markers=False,
        )
        return plots.panels([panel], size=(8, 4.6))


def _smoothed(run: np.ndarray[Any, Any], begin: int, chunks: int) -> np.ndarray[Any, Any]:
    """The mean of each chunk and the few before it that belong to the same block."""
    firsts = [max(begin, k - k % chunks, k - SMOOTH + 1) for k in range(begin, len(run))]
    return np.array([run[first : begin + k + 1].mean() for k, first in enumerate(firsts)])


def _verdict(block: Mapping[str, Any], lower: str, higher: str) -> str:
    """Whether a pair of the paper's order holds, the difference, and for how many seeds."""
    pairs = list(zip(block["objective"][lower], block["objective"][higher], strict=True))
    difference = float(np.mean([b - a for a, b in pairs]))
    holds = "yes" if block["holds"][ORDER.index(lower)] else "NO"
    return f"{holds}, {difference:+.2f}, {sum(a <= b for a, b in pairs)} of {len(pairs)}"


def _explained(block: Mapping[str, Any], lower: str, higher: str) -> str:
    """Why a method that should have the lower objective does not."""
    best = [float(np.mean(block["optimum"][name])) for name in (lower, higher)]
    distance = [
        float(np.mean(block["objective"][name])) - optimum
        for name, optimum in zip((lower, higher), best, strict=True)
    ]
    return (
        f"{lower} is not below {higher}, because its dictionary changes the optimum by "
        f"{best[0] - best[1]:+.2f} and its encoder changes the distance from the optimum by "
        f"{distance[0] - distance[1]:+.2f}"
    )


def _spread(values: Sequence[float]) -> str:
    """The mean and, for several values, half their range."""
    mean = f"{np.mean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {(max(values) - min(values)) / 2:.2f}"
