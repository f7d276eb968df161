"""Compiled training: codes, losses and gradients are those of eager torch."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pursuit as pu
from families import FEATURES, MODELS, problem
from pursuit import models, optimisation, penalties, regimes, training_loop
from pursuit._native import kernels
from pursuit.encoders import fused
from pursuit.encoders.encoder import Encoder
from pursuit.encoders.forms import Stack
from pursuit.guard import excess, hard_rows
from test_encoders import KINDS, build, close, differentiable, shaken

FORMS = ("gram", "residual")
PROXIMAL = [kind for kind in KINDS if kind.startswith("proximal")]


def encoders(name: str, kind: str, rows: int = 7) -> list[tuple[Encoder, Tensor]]:
    """An encoder of each form, tied and not, moved off its start, and signals."""
    found = []
    for form, (tied, layers) in product(FORMS, [(True, 3), (False, 3), (True, 1)]):
        model, x = problem(name, 3, rows)
        encoder = build(kind, model, layers=layers, tied=tied, form=form)
        found.append((shaken(encoder, 5), x))
    return found


def eager(encoder: Encoder) -> Encoder:
    """A copy that never runs compiled layers."""
    copied = copy.deepcopy(encoder)
    copied.__dict__["_shrinkage"] = None
    return copied


def gradients(encoder: Encoder, x: Tensor, slopes: Tensor) -> list[Tensor]:
    """Of all parameters and of x; zero for what the codes do not depend on."""
    inputs = [x, *encoder.parameters()]
    found = torch.autograd.grad(encoder(x), inputs, slopes, materialize_grads=True)
    return list(found)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[Stack]:
    """The stacks that the compiled layers were called with, from now on."""
    seen = []
    compiled = fused._layers

    def watched(stack, *others):
        seen.append(stack)
        return compiled(stack, *others)

    monkeypatch.setattr(fused, "_layers", watched)
    return seen


# ---- the layers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", PROXIMAL)
def test_codes_and_gradients_are_those_of_autograd(kind: str, name: str, monkeypatch) -> None:
    seen = calls(monkeypatch)
    for encoder, x in encoders(name, kind):
        for parameter in encoder.parameters():
            parameter.requires_grad_()
        x = x.requires_grad_()
        slopes = torch.randn(len(x), encoder.model.code_size, dtype=x.dtype)
        close(encoder(x), eager(encoder)(x))
        before = len(seen)
        compiled = gradients(encoder, x, slopes)
        assert len(seen) == before + 1
        judge = eager(encoder)
        for ours, theirs in zip(compiled, gradients(judge, x, slopes), strict=True):
            close(ours, theirs)
        assert len(seen) == before + 1


@pytest.mark.parametrize("name", ["lasso", "lasso-nonnegative", "robust-pca", "nmf-ridge"])
def test_gradients_of_gradients(name: str, monkeypatch) -> None:
    seen = calls(monkeypatch)
    model, x = problem(name, 4, 5)
    encoder = shaken(pu.ProximalEncoder(model, 3), 4)
    found = []
    for one in (encoder, eager(encoder)):
        signals = x.clone().requires_grad_()
        codes = one(signals)
        (slopes,) = torch.autograd.grad(codes.square().sum(), signals, create_graph=True)
        slopes.square().sum().backward()
        found.append([signals.grad, *(p.grad for p in one.step.parameters())])
    assert len(seen) == 1
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)
    encode, inputs = differentiable(encoder, x)
    assert torch.autograd.gradgradcheck(encode, inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-nmf"])
def test_only_what_is_asked_for_gets_a_gradient(name: str) -> None:
    model, x = problem(name, 6, 9)
    encoder = shaken(pu.ProximalEncoder(model, 3), 6)
    slopes = torch.randn(9, model.code_size, dtype=torch.float64)
    names, parameters = zip(*encoder.step.named_parameters(), strict=True)
    full = dict(zip(names, torch.autograd.grad(encoder(x), parameters, slopes), strict=True))
    for chosen in full:
        for other, parameter in encoder.step.named_parameters():
            parameter.requires_grad_(other == chosen)
            parameter.grad = None
        encoder(x).backward(slopes)
        for other, parameter in encoder.step.named_parameters():
            assert (parameter.grad is None) == (other != chosen)
        close(dict(encoder.step.named_parameters())[chosen].grad, full[chosen])


def test_signals_of_any_layout_and_number() -> None:
    for name in ("lasso", "hilasso", "robust-pca"):
        model, x = problem(name, 7, 300)
        encoder = shaken(pu.ProximalEncoder(model, 3), 7)
        judge = eager(encoder)
        for rows in (x[:0], x[:1], x[::2], x.T.contiguous().T, x, x[:, None]):
            slopes = torch.randn(*rows.shape[:-1], model.code_size, dtype=torch.float64)
            found = []
            for one in (encoder, judge):
                codes = one(rows)
                assert codes.shape == slopes.shape
                # slopes that are not contiguous
                wide = torch.stack([slopes, slopes], dim=-1)[..., 0]
                found.append([codes, *torch.autograd.grad(codes, [*one.step.parameters()], wide)])
            for ours, theirs in zip(*found, strict=True):
                close(ours, theirs)


def test_a_graph_can_be_used_twice_and_parameters_must_not_change_in_between() -> None:
    model, x = problem("lasso", 8, 6)
    encoder = pu.ProximalEncoder(model, 3)
    codes = encoder(x)
    first = torch.autograd.grad(codes.sum(), encoder.step.weight, retain_graph=True)[0]
    close(torch.autograd.grad(codes.sum(), encoder.step.weight)[0], first)
    codes = encoder(x)
    with torch.no_grad():
        encoder.step.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        codes.sum().backward()


def test_negative_thresholds_count_as_zero() -> None:
    for name in ("lasso", "hilasso", "lasso-nonnegative"):
        model, x = problem(name, 9, 6)
        encoder = pu.ProximalEncoder(model, 3)
        with torch.no_grad():
            for threshold in encoder.step.thresholds:
                threshold[:, ::2] *= -1
        slopes = torch.randn(6, model.code_size, dtype=torch.float64)
        inputs = [*encoder.step.parameters()]
        ours = torch.autograd.grad(encoder(x), inputs, slopes)
        judge = eager(encoder)
        theirs = torch.autograd.grad(judge(x), [*judge.step.parameters()], slopes)
        for a, b in zip(ours, theirs, strict=True):
            close(a, b)


def test_dead_atoms_still_learn() -> None:
    """Where nothing is shrunk, or only negative values are, the gradient passes at zero itself."""
    for penalty in (penalties.Zero(), penalties.NonNegative()):
        model = models.SparseModel(torch.eye(FEATURES, dtype=torch.float64), penalty)
        encoder = pu.ProximalEncoder(model, 2, "free")
        with torch.no_grad():
            encoder.step.weight[0] = 0
            encoder.step.coupling[:, 0] = 0
            encoder.step.coupling[:, :, 0] = 0
        x = torch.randn(5, FEATURES, dtype=torch.float64)
        slopes = torch.ones(5, FEATURES, dtype=torch.float64)
        (ours,) = torch.autograd.grad(encoder(x), encoder.step.weight, slopes)
        judge = eager(encoder)
        (theirs,) = torch.autograd.grad(judge(x), judge.step.weight, slopes)
        assert ours[0].abs().sum() > 0
        close(ours, theirs)


def test_not_a_number_stays_one() -> None:
    for name in ("lasso", "lasso-nonnegative", "group", "robust-pca"):
        model, x = problem(name, 10, 4)
        encoder = pu.ProximalEncoder(model, 3)
        with torch.no_grad():
            encoder.step.weight.fill_(torch.nan)
        assert encoder(x)[:, 0].isnan().all()
        loss, _ = encoder.compiled_loss(x)
        assert np.isnan(loss)


def test_threads_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "WORTH_A_THREAD", 1)
    model, x = problem("hilasso", 12, 500)
    encoder = shaken(pu.ProximalEncoder(model, 3), 12)
    slopes = torch.randn(500, model.code_size, dtype=torch.float64)
    hard = hard_rows(4 * x, np.random.default_rng(0))
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3, 3):
            torch.set_num_threads(threads)
            assert len(fused._parts(encoder._ready(), 500)) == threads
            codes = encoder(x)
            found = torch.autograd.grad(codes, [*encoder.step.parameters()], slopes)
            loss, backward = encoder.compiled_loss(x, None, hard, 0.5)
            backward()
            results.append([codes, *found, *(p.grad for p in encoder.step.parameters())])
            results[-1].append(torch.tensor(loss, dtype=torch.float64))
            encoder.zero_grad(set_to_none=True)
    finally:
        torch.set_num_threads(before)
    for one, three, again in zip(*results, strict=True):
        close(three, one)
        assert torch.equal(three, again)


def test_penalties_that_have_no_stages_run_in_eager_torch(monkeypatch) -> None:
    class Halved(penalties.L1):
        """Not a soft threshold: what is left is halved."""

        def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
            return super().shrink(v, thresholds) / 2

    seen = calls(monkeypatch)
    _, x = problem("lasso", 13, 5)
    model = models.SparseModel(torch.eye(FEATURES, dtype=torch.float64), Halved(0.1))
    encoder = pu.ProximalEncoder(model, 2)
    encoder(x).sum().backward()
    assert encoder.compiled_loss(x) is None
    assert not seen


def test_a_penalty_with_another_value_is_not_compiled() -> None:
    class Doubled(penalties.L1):
        def value(self, codes: Tensor) -> Tensor:
            return 2 * super().value(codes)

    model = models.SparseModel(torch.eye(FEATURES, dtype=torch.float64), Doubled(0.1))
    encoder = pu.ProximalEncoder(model, 2)
    assert encoder.compiled_loss(torch.randn(5, FEATURES, dtype=torch.float64)) is None


# ---- the loss -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", PROXIMAL)
def test_the_loss_and_its_gradients_are_those_of_autograd(kind: str, name: str) -> None:
    for encoder, x in encoders(name, kind, rows=40):
        shaken(encoder, 6, 0.3)  # so that the guard is not zero
        for parameter in encoder.parameters():
            parameter.requires_grad_()
        hard = hard_rows(5 * x, np.random.default_rng(0))
        loss, backward = encoder.compiled_loss(x, None, hard, 0.7)
        backward()
        found = [p.grad for p in encoder.parameters()]
        judge = eager(encoder)
        expected = judge.model.objective(x, judge(x)).mean()
        total = expected + 0.7 * excess(judge.model, hard, judge(hard))
        parameters = list(judge.parameters())
        theirs = torch.autograd.grad(total, parameters, materialize_grads=True)
        assert loss == pytest.approx(expected.item(), rel=1e-12)
        for ours, wanted in zip(found, theirs, strict=True):
            close(torch.zeros_like(wanted) if ours is None else ours, wanted)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", PROXIMAL)
def test_the_distance_and_its_gradients_are_those_of_autograd(kind: str, name: str) -> None:
    for encoder, x in encoders(name, kind, rows=120):  # more than a tile
        shaken(encoder, 7, 0.3)
        for parameter in encoder.parameters():
            parameter.requires_grad_()
        hard = hard_rows(5 * x, np.random.default_rng(0))
        targets = torch.randn(len(x), encoder.model.code_size, dtype=x.dtype)
        loss, backward = encoder.compiled_loss(x, targets, hard, 0.7)
        backward()
        found = [p.grad for p in encoder.parameters()]
        judge = eager(encoder)
        distance = judge.model.to_normalised(judge(x)) - targets
        expected = distance.square().sum(dim=1).mean()
        total = expected + 0.7 * excess(judge.model, hard, judge(hard))
        parameters = list(judge.parameters())
        theirs = torch.autograd.grad(total, parameters, materialize_grads=True)
        assert loss == pytest.approx(expected.item(), rel=1e-12)
        for ours, wanted in zip(found, theirs, strict=True):
            close(torch.zeros_like(wanted) if ours is None else ours, wanted)


def test_the_guard_counts_rows_that_get_worse() -> None:
    model, x = problem("lasso", 14, 40)
    encoder = shaken(pu.ProximalEncoder(model, 6), 14, 0.5)
    assert float(excess(model, x, encoder(x)).detach()) > 0.1


@pytest.mark.parametrize("regime", [regimes.Unsupervised, regimes.Approximation])
@pytest.mark.parametrize("dictionary", ["fixed", "gradient", "statistics"])
@pytest.mark.parametrize("name", ["lasso", "hilasso", "nmf-ridge", "robust-pca"])
def test_compiled_and_eager_runs_learn_the_same(name: str, dictionary: str, regime: Any) -> None:
    model, x = problem(name, 15, 700)
    results = []
    for compiled in (True, False):
        encoder = pu.ProximalEncoder(model, 3)
        if not compiled:
            encoder.__dict__["_shrinkage"] = None
        history = pu.fit(encoder, x, regime=regime(), steps=30, dictionary=dictionary)
        results.append((history.loss, history.validation, list(encoder.parameters())))
    ours, theirs = results
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)
    for a, b in zip(ours[2], theirs[2], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", PROXIMAL)
def test_a_dictionary_may_be_transposed(kind: str) -> None:
    model, x = problem("lasso", 3, 40)
    strided = models.Lasso(model.dictionary.T.contiguous().T, 0.1)
    same, other = (build(kind, m, layers=2) for m in (models.Lasso(model.dictionary, 0.1), strided))
    assert all(parameter.is_contiguous() for parameter in other.parameters())
    for encoder in (same, other):
        pu.fit(encoder, x, steps=12)
    for a, b in zip(same.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_one_call_for_each_step(monkeypatch) -> None:
    """A step, or a validation, makes one compiled call, the guard's rows included."""
    seen = calls(monkeypatch)
    model, x = problem("lasso", 16, 700)
    pu.fit(pu.ProximalEncoder(model, 3), x, steps=20)
    looks = 1 + 20 // training_loop.SHORTEST
    # the first loss of all is taken through the encoder itself
    assert len(seen) == 1 + 20 + looks


def test_other_regimes_encode_the_rows_of_the_guard_in_the_same_call(monkeypatch) -> None:
    seen = calls(monkeypatch)
    model, x = problem("lasso", 17, 400)
    regime = regimes.Unsupervised() + regimes.Approximation()
    pu.fit(pu.ProximalEncoder(model, 3), x, steps=20, regime=regime)
    assert len(seen) == 1 + 20


def test_few_rows_take_fewer_steps() -> None:
    model, _ = problem("lasso", 18, 1)
    encoder = [pu.ProximalEncoder(model, 7)]
    whole = optimisation.default_steps(encoder, True, None, 256)
    assert whole == optimisation.default_steps(encoder, True, 1_000_000, 256) == 3200
    steps = [optimisation.default_steps(encoder, True, rows, 256) for rows in (1, 300, 1000, 3000)]
    assert steps[0] == 200
    assert steps == sorted(steps)
    assert steps[2] == optimisation.PASSES * 1000 // 256 < whole


def test_the_memory_is_short_where_shallow_encoders_minimise_the_objective() -> None:
    model, _ = problem("lasso", 18, 1)
    shallow, deep = ([pu.ProximalEncoder(model, layers)] for layers in (7, 16))
    assert optimisation.memory(shallow, True) < optimisation.memory(deep, True)
    assert optimisation.memory(shallow, False) == optimisation.memory(deep, True)
    fewer, more = (optimisation.default_steps(shallow, aim, None, 256) for aim in (True, False))
    assert fewer < more
    scalars = [pu.ProximalEncoder(model, 7, step="model")]
    assert optimisation.default_steps(scalars, True, None, 256) == more


# ---- Adam -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [0.999, 0.9])
@pytest.mark.parametrize("compiled", [True, False])
def test_the_optimiser_is_torch_s_adam(
    compiled: bool, decay: float, dtype: torch.dtype, monkeypatch
) -> None:
    if not compiled:
        monkeypatch.setattr(optimisation, "_is_native", lambda parameter: False)
    generator = torch.Generator().manual_seed(0)
    shapes, rates = [(7, 5), (3,), (2, 2, 9)], {"0": 0.1, "1": 0.02, "2": 0.3}
    ours = {
        str(n): torch.nn.Parameter(torch.ones(shape, dtype=dtype)) for n, shape in enumerate(shapes)
    }
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours.values()]
    adam = optimisation.Adam(ours, rates, decay)
    groups = [{"params": [p], "lr": r} for p, r in zip(theirs, rates.values(), strict=True)]
    judge = torch.optim.Adam(groups, betas=(0.9, decay))
    for step in range(30):
        for n, (a, b) in enumerate(zip(ours.values(), theirs, strict=True)):
            a.grad = b.grad = None
            if (step + n) % 4 > 0:  # a parameter without a gradient waits
                gradient = 10 ** (step % 3) * torch.randn(a.shape, generator=generator, dtype=dtype)
                a.grad, b.grad = gradient, gradient.clone()
        norm = adam.step(largest=5.0)
        expected = torch.nn.utils.clip_grad_norm_(theirs, 5.0)
        judge.step()
        assert norm == pytest.approx(float(expected), rel=1e-5)
    eps = 1e-5 if dtype == torch.float32 else 1e-12
    for a, b in zip(ours.values(), theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=eps, atol=eps)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    adam = optimisation.Adam({"p": parameter}, {"p": 0.1})
    parameter.grad = torch.tensor([1.0, torch.inf, 0.0])
    assert adam.step(1.0) == np.inf
    assert parameter.tolist() == [1, 1, 1]
    assert adam.counts == [0]
    assert adam.means[0].count_nonzero() == 0


# ---- the kernel -----------------------------------------------------------------------------


def arguments(**changes) -> list:
    given = {
        "gram": True,
        "coupled": False,
        "weight": np.zeros((1, 3, 2), np.float32),
        "matrix": np.zeros((1, 3, 3), np.float32),
        "outlier_step": None,
        "decay": None,
        "mixing": np.ones((2, 5), np.float32),
        "thresholds": np.zeros((1, 3), np.float32),
        "labels": np.arange(3, dtype=np.int32)[None],
        "grouped": np.zeros(1, np.uint8),
        "nonnegative": np.zeros(3, np.uint8),
    }
    return list((given | changes).values())


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": np.zeros((3, 3, 2), np.float32)},
        {"matrix": np.zeros((1, 3, 2), np.float32)},
        {"matrix": np.zeros((5, 3, 3), np.float32)},
        {"mixing": np.ones((2, 4), np.float32)},
        {"mixing": np.ones((0, 5), np.float32)},
        {"thresholds": np.zeros((3, 3), np.float32)},
        {"thresholds": np.zeros((1, 2), np.float32)},
        {"labels": np.zeros((2, 3), np.int32)},
        {"nonnegative": np.zeros(4, np.uint8)},
        {"decay": np.zeros(3, np.float32)},
        {"coupled": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_arrays_that_do_not_fit_are_refused(changes: dict) -> None:
    kernels.LayersFloat32(*arguments())
    with pytest.raises(ValueError, match="the kernel needs"):
        kernels.LayersFloat32(*arguments(**changes))


def test_other_dtypes_are_refused_and_a_backward_needs_its_forward() -> None:
    with pytest.raises(TypeError):
        kernels.LayersFloat32(*arguments(weight=np.zeros((1, 3, 2))))
    layers = kernels.LayersFloat32(*arguments())
    x, codes = np.zeros((4, 2), np.float32), np.zeros((4, 3), np.float32)
    none = [None] * 6
    with pytest.raises(ValueError, match="the signals of the forward pass"):
        layers.backward(x, codes, codes, *none)
    layers.forward(x, codes, True)
    layers.backward(x, codes, codes, *none)
    with pytest.raises(ValueError, match="the signals of the forward pass"):
        layers.backward(x[:2], codes[:2], codes[:2], *none)
    with pytest.raises(ValueError, match="a gradient like weight"):
        layers.backward(x, codes, codes, None, np.zeros((1, 2, 2), np.float32), *none[:4])


def test_instruction_sets_agree() -> None:
    """The gradients of one step, computed in a process for each instruction set."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch, pursuit as pu\n"
        "from families import problem\n"
        "for name in ('lasso', 'hilasso', 'robust-pca'):\n"
        "    model, x = problem(name, 0, 50)\n"
        "    encoder = pu.ProximalEncoder(model, 3)\n"
        "    loss, backward = encoder.compiled_loss(x)\n"
        "    backward()\n"
        "    print(loss, *(float(p.grad.abs().sum()) for p in encoder.step.parameters()))\n"
    )
    results = []
    for name in ("baseline", kernels.__name__.rpartition(".")[2]):
        environment = {**os.environ, "PURSUIT_INSTRUCTION_SET": name}
        command = [sys.executable, "-c", script, os.path.dirname(__file__)]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        results.append([float(word) for word in run.stdout.split()])
    assert len(results[0]) > 9
    np.testing.assert_allclose(*results, rtol=1e-10)
