"""The report of the demonstration: text, tables and figures."""

from __future__ import annotations

from .. import plots
from ..report import Report
from .demo import ATOMS, FACE_ATOMS, FEW, LAYERS, LEARNED, MANY, NOISE, PATCH, Demo

#: the smallest gap in the figure; below it is rounding
FLOOR = 1e-7


def describe(demo: Demo) -> Report:
    """The report of a demonstration whose stages have run."""
    report = Report("pursuit: sparse codes of textures, exact and learned")
    _learned(demo, report)
    _compared(demo, report)
    _denoised(demo, report)
    _faces(demo, report)
    return report


def _learned(demo: Demo, report: Report) -> None:
    report.section("What was learned")
    report.text(
        f"A dictionary of {ATOMS} atoms for {PATCH} x {PATCH} patches of three textures, and two "
        f"encoders of {LAYERS} layers: one trained for the objective itself, one for the exact "
        f"codes. All of it took {demo.training_seconds:.0f} seconds on {demo.on}."
    )
    report.figure(plots.atoms(demo.coding.components_), "atoms", "The atoms.")


def _compared(demo: Demo, report: Report) -> None:
    report.section("Exact and learned codes")
    report.text(
        f"{MANY} patches of the lower halves of the pictures, which were not used for learning "
        f"(scikit-learn: {FEW} of them), {demo.on}, median of three interleaved rounds. The gap is "
        "the distance of the mean objective from the optimum."
    )
    report.table(demo.columns, demo.rows)
    curves = {coder.name: [(coder.microseconds, coder.gap)] for coder in demo.coders}
    curves["FISTA, 5 to 80 steps"] = demo.fista
    caption = "Time against gap: the lower left corner is the best."
    report.figure(plots.front(curves, floor=FLOOR), "front", caption)


def _denoised(demo: Demo, report: Report) -> None:
    result = demo.denoised
    report.section("Denoising")
    report.text(
        f"Noise of standard deviation {NOISE} on a part of the brick picture that was not used for "
        "learning; every 8 x 8 patch is coded and the overlapping patches are averaged. Coding "
        f"{result.patches} patches took {result.seconds['encoder']:.3f} s with the encoder and "
        f"{result.seconds['exact codes']:.3f} s exactly."
    )
    rows = [[name, f"{value:.2f}"] for name, value in result.psnr.items()]
    report.table(["picture", "PSNR, dB"], rows)
    titles = [f"{name}, {value:.1f} dB" for name, value in result.psnr.items()]
    figure = plots.compare([*result.pictures.values(), result.truth], [*titles, "the picture"])
    report.figure(figure, "denoised", "")


def _faces(demo: Demo, report: Report) -> None:
    result = demo.faces
    report.section("Faces with something in front")
    report.text(
        f"Robust PCA with {FACE_ATOMS} atoms was learned from {result.known} pictures of {LEARNED} "
        "people. These are others, each covered by a square of noise. The encoder splits them into "
        f"a low-rank part and outliers; {100 * result.detected:.0f} % of the covered pixels and "
        f"{100 * result.false:.0f} % of the others are outliers. Behind the squares the distance "
        "from the true face is (root mean square):"
    )
    report.table(["", "distance"], [[name, f"{e:.3f}"] for name, e in result.errors.items()])
    figure = plots.decomposition(
        result.x[:6], result.low_rank[:6], result.outliers[:6], shape=result.shape, rows=6
    )
    caption = "Input, low rank and outliers of faces that were not used for learning."
    report.figure(figure, "faces", caption)
