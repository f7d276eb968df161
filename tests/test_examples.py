"""The examples run unchanged, are short, do not warn, and print what they promise."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import script

FOLDER = Path(__file__).parents[1] / "examples"
MOST_LINES = 81


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+\.?\d*(?:e-?\d+)?", line)]


def line(output: str, start: str) -> list[float]:
    """The numbers in the rest of the line that begins with `start`."""
    (found,) = [row for row in output.splitlines() if row.startswith(start)]
    return numbers(found.removeprefix(start))


def codes_tell_textures_apart(output: str) -> None:
    (pixels,) = line(output, "pixels:")
    encoder, exact = (line(output, f"{kind}:")[0] for kind in ("encoder", "exact"))
    assert encoder > pixels + 0.3
    assert encoder > exact - 0.02


def covered_faces_are_restored(output: str) -> None:
    (pca, _), (robust, _) = line(output, "PCA"), line(output, "robust")
    assert robust < 0.7 * pca


def glides_do_not_spoil_the_tones(output: str) -> None:
    plain, robust = line(output, "NMF"), line(output, "robust NMF")
    assert robust[0] < 0.85 * plain[0]
    assert robust[1] < 0.8 * plain[1]


def changes_are_followed(output: str) -> None:
    for name in ("grass", "gravel"):
        online, fixed, _ = line(output, name)
        assert online < 0.98 * fixed
    *detected, first, second = line(output, "changes detected")
    assert len(detected) == 2
    assert first < detected[0] <= first + 500
    assert second < detected[1] <= second + 500


def training_beats_the_exact_solution(output: str) -> None:
    exact, supervised = line(output, "exact codes"), line(output, "five layers, supervised")
    assert all(ours < 0.6 * theirs for ours, theirs in zip(supervised, exact, strict=True))


def the_new_penalty_is_proved_and_learned(output: str) -> None:
    gap, share = line(output, "largest gap:")
    untrained, trained = line(output, "six layers")
    assert gap <= 1e-6
    assert share > 50
    assert trained < untrained / 3


def sliding_atoms_are_learned_for_denoising(output: str) -> None:
    (noisy,) = line(output, "noisy")
    exact, untrained, encoder = (
        line(output, f"sliding, {kind}") for kind in ("exact", "untrained", "encoder")
    )
    assert exact[0] > noisy + 5
    assert encoder[0] > untrained[0] + 2
    assert encoder[0] > exact[0]
    assert encoder[1] < exact[1] / 10


def displaced_pictures_are_aligned(output: str) -> None:
    angles, positions, loss = (line(output, name) for name in ("angles", "positions", "loss"))
    assert angles[1] < 0.2
    assert positions[1] < 0.15
    assert loss[1] < loss[0]  # what covers the faces remains


EXAMPLES: dict[str, Callable[[str], None]] = {
    "sparse_coding_pipeline": codes_tell_textures_apart,
    "robust_pca_new_data": covered_faces_are_restored,
    "robust_nmf_librosa": glides_do_not_spoil_the_tones,
    "online_stream": changes_are_followed,
    "train_for_a_task": training_beats_the_exact_solution,
    "add_a_penalty": the_new_penalty_is_proved_and_learned,
    "align_pictures": displaced_pictures_are_aligned,
    "convolutional_pictures": sliding_atoms_are_learned_for_denoising,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_says_how_to_run_it(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert f"python examples/{name}.py" in text.split('"""')[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_makes_its_point(name: str, tmp_path: Path) -> None:
    result = script(FOLDER / f"{name}.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    EXAMPLES[name](result.stdout)
