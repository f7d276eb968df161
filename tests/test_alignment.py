"""Transformations and alignment: geometry, gradients, bounds, known displacements, all regimes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

import pursuit as pu
from pursuit.alignment import (
    Affine,
    OnlineAlignment,
    Similarity,
    Transformation,
    Translation,
    align,
    align_together,
    fit_aligned,
)
from pursuit.alignment.new_data import Problem
from pursuit.alignment.robust import trust
from pursuit.alignment.transformations import with_slopes
from pursuit.regimes import Approximation, Batch, Supervised, Unsupervised
from pursuit.solvers.principal_component_pursuit import pursue

KINDS = [Translation, Similarity, Affine]


def scene(count: int = 1, size: tuple[int, int] = (40, 36), seed: int = 0) -> Tensor:
    """Smooth pictures: the same shapes under changing light."""
    rng = np.random.default_rng(seed)
    parts = [ndimage.gaussian_filter(rng.standard_normal(size), 2.5) for _ in range(3)]
    parts = [part / np.abs(part).max() for part in parts]
    light = rng.random((count, 2))
    pictures = [0.5 + 0.4 * parts[0] + 0.2 * (a * parts[1] + b * parts[2]) for a, b in light]
    return torch.from_numpy(np.stack(pictures)).float().clamp(0, 1)


def drawn(transformation: Transformation, count: int, most: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return most * (2 * torch.rand(count, transformation.parameters, generator=generator) - 1)


def displaced(pictures: Tensor, parameters: Tensor, kind: type[Transformation]) -> Tensor:
    """Pictures seen through a displaced window that is 8 pixels smaller."""
    window = kind([side - 8 for side in pictures.shape[1:]])
    return window.warp(pictures, parameters)


@pytest.fixture(scope="module")
def model() -> pu.models.RobustPCA:
    window = Translation((24, 20))
    x = window(scene(30), window.identity(30))
    _, values, atoms = torch.linalg.svd(x, full_matrices=False)
    return pu.models.RobustPCA(values[:5, None].sqrt() * atoms[:5], lam_star=0.05, lam=0.02)


@pytest.fixture(scope="module")
def encoder(model: pu.models.RobustPCA) -> pu.ProximalEncoder:
    window = Translation((24, 20))
    encoder = pu.ProximalEncoder(model, layers=5)
    pu.fit(encoder, window(scene(30), window.identity(30)), steps=200, batch_size=30)
    return encoder


# ---- transformations --------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "down"), [(0, 0), (3, -2), (-4, 5)])
def test_whole_pixels_are_exact(right: int, down: int) -> None:
    picture = scene(2)
    shown = Translation((20, 18)).warp(picture, torch.tensor([[right, down]] * 2).float())
    top, left = 10 + down, 9 + right
    assert torch.allclose(shown, picture[:, top : top + 20, left : left + 18], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_between_pixels_it_agrees_with_scipy(kind: type[Transformation]) -> None:
    picture, window = scene(1).double(), kind((20, 18))
    parameters = drawn(window, 1, 1.5).double()
    moved = (parameters @ window.fields.flatten(1)).reshape(2, 20, 18).numpy()
    rows, columns = np.meshgrid(np.arange(20.0), np.arange(18.0), indexing="ij")
    at = [rows + 10 + moved[0], columns + 9 + moved[1]]
    expected = ndimage.map_coordinates(picture[0].numpy(), at, order=1, mode="nearest")
    assert np.allclose(window.warp(picture, parameters)[0], expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_parameter_of_one_is_one_pixel(kind: type[Transformation]) -> None:
    fields = kind((20, 18)).fields
    assert torch.allclose(fields.square().sum(dim=1).mean(dim=1), torch.ones(len(fields)).double())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind: type[Transformation]) -> None:
    window = kind((10, 9))
    picture = scene(2, (20, 18)).double().requires_grad_()
    parameters = (0.3 + drawn(window, 2, 0.1).double()).requires_grad_()
    assert torch.autograd.gradcheck(window, (picture, parameters), eps=1e-7, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_linearised_is_the_derivative_of_a_smooth_picture(kind: type[Transformation]) -> None:
    window, step = kind((20, 18)), 1e-3
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(36.0), indexing="ij")
    pictures = (torch.sin(rows / 9) * torch.cos(columns / 11))[None].double()
    parameters = drawn(window, 1, 1.0).double()
    shown, derivatives = window.linearised(with_slopes(pictures), parameters)
    assert torch.allclose(shown, window(pictures, parameters))
    for number, derivative in enumerate(derivatives[0]):
        moved = parameters.clone()
        moved[0, number] += step
        difference = (window(pictures, moved) - shown)[0] / step
        assert (difference - derivative).norm() < 0.1 * derivative.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_the_window_never_leaves_the_picture(kind: type[Transformation]) -> None:
    window, size = kind((20, 18)), (30, 24)
    parameters = drawn(window, 500, 50.0).double()
    inside = window.bounded(parameters, size)
    moved = (inside @ window.fields.flatten(1)).reshape(-1, 2, 20, 18)
    assert moved[:, 0].abs().max() <= 5 + 1e-9
    assert moved[:, 1].abs().max() <= 3 + 1e-9
    small = 0.01 * parameters
    assert torch.equal(window.bounded(small, size), small)
    limited = kind((20, 18), limit=1.0).bounded(parameters, size)
    assert (limited @ window.fields.flatten(1)).abs().max() <= 1 + 1e-9


def test_nothing_is_gained_beside_the_picture(model: pu.models.RobustPCA) -> None:
    # a bright frame around a scene: the flat area outside would have the lowest loss
    picture = torch.nn.functional.pad(0.02 * scene(1), (6, 6, 6, 6))
    window = Translation((24, 20), limit=3.0)
    found = align(model, picture, window).parameters
    assert found.abs().max() <= 3 + 1e-5


@pytest.mark.parametrize("angle", [-8.0, 0.0, 5.0])
@pytest.mark.parametrize("scale", [0.95, 1.1])
def test_describe_has_angle_and_scale(angle: float, scale: float) -> None:
    turn, (height, width) = math.radians(angle), (20, 18)
    rows, columns = np.meshgrid(
        np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij"
    )
    # clockwise in a picture whose rows run downwards
    down = scale * (math.cos(turn) * rows + math.sin(turn) * columns) - rows + 1.5
    right = scale * (math.cos(turn) * columns - math.sin(turn) * rows) - columns - 2.5
    wanted = torch.from_numpy(np.stack([down, right]).reshape(1, -1))
    for kind in (Similarity, Affine):
        window = kind((height, width))
        parameters = torch.linalg.lstsq(window.fields.flatten(1).T, wanted.T).solution.T
        assert torch.allclose(parameters @ window.fields.flatten(1), wanted)
        values = dict(zip(window.columns, window.describe(parameters)[0].tolist(), strict=True))
        expected = {"x": -2.5, "y": 1.5, "angle": angle, "scale": scale}
        expected |= {"scale_x": scale, "scale_y": scale, "shear": 0.0}
        for name, value in values.items():
            assert value == pytest.approx(expected[name], abs=1e-9)


@pytest.mark.parametrize(
    ("size", "limit", "message"),
    [((3,), None, "size must be"), ((1, 5), None, "size must be"), ((5, 5), -1.0, "limit must be")],
)
def test_a_window_that_cannot_be(size: tuple[int, ...], limit: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Translation(size, limit)


# ---- the loss -----------------------------------------------------------------------------------


def test_the_gradient_has_both_paths(encoder: pu.ProximalEncoder) -> None:
    window = Translation((24, 20))
    pictures = scene(3).double()
    double = pu.ProximalEncoder(encoder.model.to(torch.float64), layers=5).double()
    double.load_state_dict(encoder.double().state_dict())
    encoder.float()
    problem = Problem.of(double, window)
    parameters = 0.3 + drawn(window, 3, 0.2).double()
    _, gradient, codes = problem.values(pictures, parameters)
    step = 1e-6
    for number in range(2):
        change = torch.zeros(2).double()
        change[number] = step
        above, below = (problem.values(pictures, parameters + s * change)[0] for s in (1, -1))
        assert torch.allclose((above - below) / (2 * step), gradient[:, number], atol=1e-5)
    # the path through the target alone is another vector
    free = parameters.clone().requires_grad_()
    loss = double.model.objective(window(pictures, free), codes)
    (target,) = torch.autograd.grad(loss.sum(), free)
    assert (target - gradient).norm() > 0.01 * gradient.norm()


def test_for_exact_codes_the_path_through_the_codes_vanishes(model: pu.models.RobustPCA) -> None:
    window = Translation((24, 20))
    exact = model.to(torch.float64)
    problem = Problem.of(exact, window, tol=1e-12)
    pictures, parameters = scene(3).double(), 0.3 + drawn(window, 3, 0.2).double()
    gradient, step = problem.values(pictures, parameters)[1], 1e-5
    for number in range(2):
        change = torch.zeros(2).double()
        change[number] = step
        above, below = (problem.values(pictures, parameters + s * change)[0] for s in (1, -1))
        assert torch.allclose((above - below) / (2 * step), gradient[:, number], atol=1e-5)


# ---- new pictures -------------------------------------------------------------------------------


@pytest.mark.parametrize("coder", ["encoder", "model"])
def test_known_shifts_are_found(coder: str, request: pytest.FixtureRequest) -> None:
    window = Translation((24, 20))
    new = scene(40)[30:]
    start = drawn(window, 10, 4.0)
    found = align(request.getfixturevalue(coder), new, window, start=start)
    assert found.parameters.norm(dim=1).max() < 0.15
    assert bool((found.loss <= found.loss_before).all())
    assert found.aligned.shape == (10, 480)
    model = request.getfixturevalue("model")
    assert torch.allclose(found.loss, model.objective(found.aligned, found.codes), rtol=1e-4)


@pytest.mark.parametrize("coder", ["encoder", "model"])
def test_steps_on_the_loss_alone(coder: str, request: pytest.FixtureRequest) -> None:
    window = Translation((24, 20))
    found = align(
        request.getfixturevalue(coder), scene(40)[30:], window, start=drawn(window, 10, 0.7),
        coarse=False, steps=10,
    )  # fmt: skip
    assert found.parameters.norm(dim=1).max() < 0.15
    assert bool((found.loss < found.loss_before).all())


@pytest.mark.parametrize("kind", [Similarity, Affine])
def test_other_transformations_are_found(
    kind: type[Transformation], model: pu.models.RobustPCA
) -> None:
    window = kind((24, 20))
    new = scene(36)[30:]
    start = drawn(window, 6, 1.5)
    found = align(model, new, window, start=start, steps=8)
    moved = (found.parameters @ window.fields.float().flatten(1)).reshape(6, 2, -1)
    before = (start @ window.fields.float().flatten(1)).reshape(6, 2, -1)
    assert moved.norm(dim=1).mean() < 0.2 * before.norm(dim=1).mean()


def test_a_third_of_noise_does_not_matter(model: pu.models.RobustPCA) -> None:
    window = Translation((24, 20))
    new = scene(38)[30:]
    noise = torch.rand(8, 14, 12, generator=torch.Generator().manual_seed(3))
    new[:, 10:24, 9:21] = noise
    assert trust(new)[:, 12:22, 11:19].max() == 0
    assert trust(scene(38)[30:]).mean() > 0.95
    found = align(model, new, window, start=drawn(window, 8, 2.0)).parameters
    assert found.norm(dim=1).mean() < 0.3


def test_a_model_without_low_rank_part() -> None:
    window = Translation((24, 20))
    x = window(scene(30), window.identity(30))
    atoms = torch.nn.functional.normalize(x[:8] - x.mean(dim=0))
    lasso = pu.models.Lasso(torch.cat([torch.nn.functional.normalize(x[:1]), atoms]), lam=0.02)
    found = align(lasso, scene(36)[30:], window, start=drawn(window, 6, 2.0), steps=8)
    assert found.parameters.norm(dim=1).mean() < 0.3


def test_batches_do_not_matter(model: pu.models.RobustPCA, monkeypatch: pytest.MonkeyPatch) -> None:
    window, pictures = Translation((24, 20)), scene(7)
    start = drawn(window, 7, 2.0)
    together = align(model, pictures, window, start=start)
    monkeypatch.setattr("pursuit.alignment.new_data.TOGETHER", 3)
    apart = align(model, pictures, window, start=start)
    assert torch.allclose(together.parameters, apart.parameters, atol=1e-3)


def test_a_callback_ends_the_work(
    model: pu.models.RobustPCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pursuit.alignment.new_data.TOGETHER", 3)
    window = Translation((24, 20))
    start = drawn(window, 7, 2.0)
    seen = []
    found = align(
        model, scene(7), window, start=start, callback=lambda now: seen.append(now.done) or True
    )
    assert seen == [3]
    assert torch.equal(found.parameters[3:], start[3:])
    assert not torch.equal(found.parameters[:3], start[:3])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x: x[0], ValueError, "x must be pictures"),
        (lambda x: x[:0], ValueError, "x must be pictures"),
        (lambda x: x > 0, TypeError, "real numbers"),
        (lambda x: torch.full_like(x, math.nan), ValueError, "NaN"),
        (lambda x: x[:, :24, :20], ValueError, "no room"),
    ],
)
def test_wrong_pictures(
    change: Callable[[Tensor], Tensor],
    error: type[Exception],
    message: str,
    model: pu.models.RobustPCA,
) -> None:
    with pytest.raises(error, match=message):
        align(model, change(scene(2)), Translation((24, 20)))


def test_wrong_windows_and_starts(model: pu.models.RobustPCA) -> None:
    with pytest.raises(ValueError, match="the model describes 480"):
        align(model, scene(2), Translation((24, 19)))
    with pytest.raises(ValueError, match="parameters must have shape"):
        align(model, scene(2), Translation((24, 20)), start=torch.zeros(2, 3))
    with pytest.raises(TypeError, match="align needs an encoder"):
        align(object(), scene(2), Translation((24, 20)))


# ---- pictures without a model -------------------------------------------------------------------


def undone(parameters: Tensor, fields: Tensor, window: Transformation) -> Tensor:
    """The parameters of a window that undo displacements by some fields, (k, 2 h w)."""
    height, width = window.size
    rows, columns = (torch.arange(n).double() - (n - 1) / 2 for n in (height, width))
    at = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).flatten(1)
    places = torch.cat([at, torch.ones(1, at.shape[1])])
    found = []
    for moved in (parameters @ fields).double().reshape(-1, 2, height * width):
        matrix = torch.linalg.lstsq(places.T, moved.T).solution.T  # the displacement is affine
        linear, shift = torch.eye(2) + matrix[:, :2], matrix[:, 2:]
        back = torch.linalg.solve(linear, at - shift) - at
        fitted = torch.linalg.lstsq(window.fields.flatten(1).T, back.reshape(-1, 1)).solution
        found.append(fitted[:, 0].float())
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stack_is_aligned_with_itself(kind: type[Transformation]) -> None:
    truth = drawn(kind((56, 52)), 24, 2.0 if kind is Translation else 1.0)
    pictures = displaced(scene(24, (64, 60)), truth, kind)
    window = kind((40, 36))
    (model, found) = align_together(pictures, window)
    wide = kind((56, 52)).fields.float().reshape(-1, 2, 56, 52)[:, :, 8:48, 8:44].flatten(1)
    total = found.parameters @ window.fields.float().flatten(1) + truth @ wide
    relative = (total - total.mean(dim=0)).reshape(24, 2, -1).norm(dim=1).mean()
    start = truth @ wide
    start = (start - start.mean(dim=0)).reshape(24, 2, -1).norm(dim=1).mean()
    # six parameters a picture leave flat directions, along which rounding decides where it stops
    assert relative < (0.5 if kind is Affine else 0.3) * start
    assert found.parameters.mean(dim=0).abs().max() < 0.2
    # judged by the convex problem: most of what the true alignment gains
    true = undone(truth, wide, window)
    shown = [window(pictures, p) for p in (window.identity(24), found.parameters, true)]
    before, after, best = (
        pursue(x, 0.4, 0.01, rank=23, tol=1e-3, max_iter=300).objective for x in shown
    )
    assert before - after > 0.7 * (before - best) > 0
    assert model.features == 40 * 36


def test_the_loss_of_a_stack_is_that_of_its_codes() -> None:
    pictures = displaced(scene(12), drawn(Translation((32, 28)), 12, 1.5), Translation)
    model, found = align_together(pictures, Translation((24, 20)), atoms=4)
    assert len(model.dictionary) <= 4
    assert torch.allclose(found.loss, model.objective(found.aligned, found.codes), rtol=1e-4)
    with pytest.raises(ValueError, match="no low-rank part"):
        align_together(pictures, Translation((24, 20)), lam_star=1e6)


# ---- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", [Unsupervised(), Approximation(tol=1e-3), Supervised()])
def test_training_aligns_its_data_in_any_regime(regime: pu.regimes.Regime) -> None:
    window = Translation((24, 20))
    clean = window(scene(24), window.identity(24))
    _, values, atoms = torch.linalg.svd(clean, full_matrices=False)
    # the scene has rank three: a fourth atom would be made of rounding
    model = pu.models.RobustPCA(values[:3, None].sqrt() * atoms[:3], lam_star=0.05, lam=0.02)
    encoder = pu.ProximalEncoder(model, layers=6)
    pu.fit(encoder, clean, steps=400, batch_size=24, validation=False)
    start = drawn(window, 24, 0.8)
    targets = clean if isinstance(regime, Supervised) else None
    history, found = fit_aligned(
        encoder, scene(24), window, targets=targets, regime=regime, start=start, steps=120,
        batch_size=24, validation=False, dictionary="gradient",
    )  # fmt: skip
    error = (found.parameters - found.parameters.mean(dim=0)).norm(dim=1).mean()
    assert error < 0.4 * (start - start.mean(dim=0)).norm(dim=1).mean()
    assert history.loss[-1] < history.loss[0]
    assert not torch.equal(encoder.model.dictionary, model.dictionary)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"targets": torch.zeros(3, 480)}, ValueError, "targets has 3 rows, but x has 4"),
        ({"targets": {"low_rank": torch.zeros(5, 480)}}, ValueError, "'low_rank'. has 5 rows"),
        ({"checkpoint": "run.safetensors"}, TypeError, "takes no checkpoint"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"rate": 2.0}, ValueError, "rate must be from 0 to 1"),
    ],
)
def test_wrong_training(
    options: dict[str, object], error: type[Exception], message: str, model: pu.models.RobustPCA
) -> None:
    encoder = pu.ProximalEncoder(model, layers=2)
    with pytest.raises(error, match=message):
        fit_aligned(encoder, scene(4), Translation((24, 20)), steps=2, **options)


def test_a_custom_regime_moves_pictures_by_its_own_loss() -> None:
    window = Translation((24, 20))
    clean = window(scene(12), window.identity(12))
    model = pu.models.RobustPCA(clean[:4], lam_star=0.05, lam=0.02)
    encoder = pu.ProximalEncoder(model, layers=2)

    def regime(encoder: torch.nn.Module, batch: Batch) -> Tensor:
        # the loss depends on the place alone: brightness at the left edge
        return batch.x.reshape(-1, 24, 20)[:, :, 0].square().mean() + 0 * encoder(batch.x).sum()

    before = window(scene(12), window.identity(12)).reshape(-1, 24, 20)[:, :, 0].square().mean()
    _, found = fit_aligned(
        encoder, scene(12), window, regime=regime, steps=30, batch_size=12, validation=False
    )
    after = found.aligned.reshape(-1, 24, 20)[:, :, 0].square().mean()
    assert after < before


# ---- streams ------------------------------------------------------------------------------------


def stream(again: float, seed: int = 0) -> tuple[OnlineAlignment, Tensor, list[Tensor]]:
    window = Translation((24, 20))
    pictures = displaced(scene(60, (48, 44)), drawn(Translation((40, 36)), 60, 2.0), Translation)
    first = window(pictures[:8], window.identity(8))
    model = pu.models.RobustPCA(first[:4], lam_star=0.05, lam=0.02)
    encoder = pu.ProximalEncoder(model, layers=3)
    pu.fit(encoder, first, steps=40, batch_size=8, validation=False)
    learner = pu.OnlineLearner(encoder, chunk=10, steps=3, window=60, batch_size=32)
    online = OnlineAlignment(learner, window, memory=40, again=again, seed=seed)
    arrived = [online.partial_fit(part).parameters for part in torch.split(pictures, 10)]
    return online, pictures, arrived


def test_earlier_pictures_of_a_stream_are_moved() -> None:
    online, pictures, arrived = stream(again=3.0)
    assert online.received == 60
    assert online.numbers.tolist() == list(range(20, 60))
    kept = torch.cat(arrived)[20:]
    moved = (online.parameters - kept).norm(dim=1)
    assert bool((moved[:30] > 0).any())
    encoder, window = online.learner.encoder, online.transformation
    losses = [
        float(pu.solve(encoder.model, window(pictures[20:40], p[:20]), tol=1e-4).objective.mean())
        for p in (kept, online.parameters)
    ]
    assert losses[1] < losses[0]


def test_a_stream_without_memory_of_the_past_and_the_same_seed() -> None:
    online, _, arrived = stream(again=0.0)
    assert torch.equal(online.parameters, torch.cat(arrived)[20:])
    first, second = stream(again=2.0, seed=1)[0], stream(again=2.0, seed=1)[0]
    assert torch.equal(first.parameters, second.parameters)


def test_pictures_of_a_stream_have_one_size() -> None:
    online, pictures, _ = stream(again=0.0)
    with pytest.raises(ValueError, match="those before had"):
        online.partial_fit(pictures[:2, :38])
