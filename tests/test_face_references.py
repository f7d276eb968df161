"""References for the alignment of faces: known displacements are found, RASL is its problem."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from pursuit.alignment import Affine, Similarity, Transformation, Translation
from pursuit.experiments import face_references
from pursuit.experiments.face_references import (
    enhanced_correlation,
    phase_correlation,
    pursue_aligned,
    rasl,
)

SIZE, PICTURE = (40, 32), (60, 52)
#: bumps of the synthetic face: height, position down and right of the middle, width
BUMPS = ((1.0, 0, 0, 9), (-0.6, -5, -6, 2.5), (-0.6, -5, 6, 3), (-0.5, 8, 1, 3), (0.4, 2, 3, 2))


def face(y: Tensor, x: Tensor, mouth: float = 0.0) -> Tensor:
    """A smooth picture as a function of the position relative to the middle; its mouth may open."""
    bumps = (
        height * torch.exp(-((y - down) ** 2 + (x - right) ** 2) / (2 * width**2))
        for height, down, right, width in (*BUMPS, (-mouth, 11, 0, 2))
    )
    return 0.2 + sum(bumps)


def positions(size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    axes = [torch.arange(side, dtype=torch.float64) - (side - 1) / 2 for side in size]
    y, x = torch.meshgrid(*axes, indexing="ij")
    return y, x


def displaced(
    transformation: Transformation, parameters: Tensor, mouths: Sequence[float] | None = None
) -> Tensor:
    """Pictures in which the window with these parameters shows the face exactly.

    The face is evaluated at the solution u of ``u + sum_k p_k b_k(u) = v`` for every pixel v.
    """
    y, x = positions(PICTURE)
    inside_y, inside_x = positions(transformation.size)
    ones = torch.ones(transformation.features, dtype=torch.float64)
    inside = torch.stack([inside_y.flatten(), inside_x.flatten(), ones], dim=1)
    pictures = []
    for own, mouth in zip(parameters.double(), mouths or [0.0] * len(parameters), strict=True):
        moved = torch.einsum("k,kdm->md", own, transformation.fields)
        affine = torch.linalg.lstsq(inside, inside[:, :2] + moved).solution
        linear, offset = affine[:2].T, affine[2]
        target = torch.stack([y.flatten(), x.flatten()]) - offset[:, None]
        down, right = torch.linalg.solve(linear, target)
        pictures.append(face(down, right, mouth).reshape(PICTURE))
    return torch.stack(pictures).float()


def template(size: tuple[int, int] = SIZE) -> Tensor:
    return face(*positions(size)).float()


SHIFTS = torch.tensor([[0.0, 0.0], [3.3, 0.0], [0.0, -2.7], [-4.25, 3.5], [1.5, 4.6]])


# ---- correlations ----------------------------------------------------------------------------


@pytest.mark.parametrize("start", [(0.0, 0.0), (-1.5, 2.0)])
@pytest.mark.parametrize("align", [phase_correlation, enhanced_correlation])
def test_known_shifts_are_found(align, start: tuple[float, float]) -> None:
    window = Translation(SIZE)
    pictures = displaced(window, SHIFTS)
    found = align(pictures, template(), window, torch.tensor([start]).repeat(len(SHIFTS), 1))
    # phase correlation has a grid of 0.05 pixels
    torch.testing.assert_close(found, SHIFTS, atol=0.1, rtol=0)
    shown = window(pictures, found)
    assert float((shown - template().flatten()).abs().max()) < 0.05


def test_known_affine_transformations_are_found() -> None:
    window = Affine(SIZE)
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(6, 6, generator=generator) * 2 - 1
    found = enhanced_correlation(displaced(window, truth), template(), window, window.identity(6))
    torch.testing.assert_close(found, truth, atol=0.1, rtol=0)


def test_pictures_without_a_correlation_stay_where_they_are() -> None:
    window = Translation(SIZE)
    pictures = torch.stack([torch.full(PICTURE, 0.5), *displaced(window, SHIFTS[1:2])])
    start = torch.tensor([[1.0, -2.0], [0.0, 0.0]])
    found = enhanced_correlation(pictures, template(), window, start)
    torch.testing.assert_close(found, torch.stack([start[0], SHIFTS[1]]), atol=0.1, rtol=0)
    assert torch.equal(found[0], start[0])


def test_transformations_that_a_reference_cannot_find() -> None:
    pictures = displaced(Translation(SIZE), SHIFTS)
    for align, window in ((phase_correlation, Affine), (enhanced_correlation, Similarity)):
        with pytest.raises(ValueError, match=f"finds a Translation.*got {window.__name__}"):
            align(pictures, template(), window(SIZE), window(SIZE).identity(len(SHIFTS)))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    window = Translation(SIZE)
    with pytest.raises(ImportError, match="pip install opencv-python-headless"):
        enhanced_correlation(displaced(window, SHIFTS), template(), window, SHIFTS)


# ---- RASL ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("growth", "accuracy"), [(1.25, 1e-2), (1.01, 1e-4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_inner_problem_is_that_of_cvxpy(seed: int, growth: float, accuracy: float) -> None:
    rng = np.random.default_rng(seed)
    n, m, k = 6, 30, 2
    jacobian = rng.standard_normal((n, k, m))
    x = rng.standard_normal((n, 1)) @ rng.standard_normal((1, m))
    x += np.einsum("nk,nkm->nm", rng.standard_normal((n, k)), jacobian)
    x += 3 * (rng.random((n, m)) < 0.1) + 0.05 * rng.standard_normal((n, m))
    lam = 1 / np.sqrt(m)
    low_rank, sparse, step = cp.Variable((n, m)), cp.Variable((n, m)), cp.Variable((n, k))
    constraints = [x[i] + jacobian[i].T @ step[i] == low_rank[i] + sparse[i] for i in range(n)]
    objective = cp.Minimize(cp.normNuc(low_rank) + lam * cp.sum(cp.abs(sparse)))
    problem = cp.Problem(objective, constraints)
    problem.solve(solver="SCS", eps=1e-8, max_iters=100_000)

    found = pursue_aligned(x, jacobian, lam, tol=1e-9, max_iter=5000, growth=growth)
    moved = x + np.einsum("nk,nkm->nm", found.step, jacobian)
    assert np.linalg.norm(moved - found.low_rank - found.sparse) <= 2e-9 * np.linalg.norm(x)
    nuclear = np.linalg.svd(found.low_rank, compute_uv=False).sum()
    assert found.objective == pytest.approx(nuclear + lam * np.abs(found.sparse).sum(), rel=1e-6)
    assert found.objective == pytest.approx(problem.value, rel=accuracy)
    if accuracy < 1e-3:
        np.testing.assert_allclose(found.step, step.value, atol=0.01)


def test_the_derivatives_are_those_of_pictures_of_unit_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    shown, jacobian = (torch.randn(2, *s, 7, generator=generator).double() for s in ((), (3,)))
    unit, found = face_references._normalised(shown, jacobian)

    def moved(step: Tensor) -> Tensor:
        at = shown + torch.einsum("nkm,k->nm", jacobian, step)
        return at / at.norm(dim=1, keepdim=True)

    expected = torch.autograd.functional.jacobian(moved, torch.zeros(3).double())
    np.testing.assert_allclose(unit, moved(torch.zeros(3).double()), atol=1e-14)
    np.testing.assert_allclose(found, expected.transpose(1, 2), atol=1e-14)


@pytest.mark.parametrize("kind", [Translation, Similarity, Affine])
def test_rasl_aligns_a_corrupted_stack(kind: type[Transformation]) -> None:
    """Known displacements are found up to the one that all pictures have in common."""
    rng, count = np.random.default_rng(0), 20
    window = kind(SIZE)
    truth = torch.from_numpy(rng.uniform(-1.5, 1.5, (count, window.parameters))).float()
    # faces of rank 2, and 2 % of the pixels are wrong
    pictures = displaced(window, truth, list(rng.uniform(0, 0.6, count)))
    wrong = torch.from_numpy(rng.random(pictures.shape) < 0.02)
    pictures[wrong] = torch.from_numpy(rng.random(int(wrong.sum()))).float()

    aligned = rasl(pictures, window)
    before = rasl(pictures, window, max_iter=1)
    away = aligned.parameters - truth
    assert float((away - away.mean(dim=0)).abs().max()) < 0.1
    assert rank(aligned.low_rank) < rank(before.low_rank)
    assert nonzeros(aligned.sparse) < nonzeros(before.sparse)
    assert len(aligned.objectives) == len(aligned.iterations) < 25
    assert aligned.objectives[-1] < 0.95 * aligned.objectives[0]
    shown = aligned.low_rank + aligned.sparse
    torch.testing.assert_close(shown.norm(dim=1), torch.ones(count), atol=0.01, rtol=0)


def rank(matrix: Tensor) -> int:
    values = torch.linalg.svdvals(matrix.double())
    return int((values > 1e-2 * values[0]).sum())


def nonzeros(sparse: Tensor) -> float:
    return float((sparse.abs() > 1e-3).double().mean())


def test_rasl_starts_where_it_is_told_to() -> None:
    """From the aligned parameters nothing has to be moved."""
    window = Translation(SIZE)
    pictures = displaced(window, SHIFTS)
    found = rasl(pictures, window, start=SHIFTS)
    assert float((found.parameters - SHIFTS).abs().max()) < 0.1
    assert found.parameters.dtype == torch.float32


def test_arguments_that_rasl_cannot_use() -> None:
    window = Translation(SIZE)
    pictures = displaced(window, SHIFTS)
    with pytest.raises(ValueError, match="at least 1, got 0 and 1000"):
        rasl(pictures, window, max_iter=0)
    with pytest.raises(ValueError, match="growth must be above 1, got 1"):
        rasl(pictures, window, growth=1)
    with pytest.raises(ValueError, match="lam must be"):
        rasl(pictures, window, lam=-1)
    pictures[3] = 0
    with pytest.raises(ValueError, match="picture 3 is black in the window"):
        rasl(pictures, window)
