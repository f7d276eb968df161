"""Encoders: the algorithm when untrained, right gradients, and what must hold in any state."""

from __future__ import annotations

import copy
from itertools import islice, product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import pursuit as pu
from families import FEATURES, MODELS, PAIRS, SIZE, problem
from pursuit import models
from pursuit.encoders.encoder import Encoder
from pursuit.models import SparseModel
from pursuit.solvers.plain import iterates

STEPS = ("free", "coupled", "model")
FLAGS = (False, True)
LAYER_FORMS = ("gram", "residual")
SEPARABLE = [name for name in MODELS if problem(name, 0, 1)[0].separable]
TWO_BLOCKS = ("robust-pca", "robust-nmf", "low-rank-sparse")

#: one encoder of each kind, in the forms that share no code
KINDS = {
    f"{kind}-{step}-{'momentum' if momentum else 'plain'}": (kind, step, momentum)
    for kind, step, momentum in product(("proximal", "coordinate", "block"), STEPS, FLAGS)
}
CLASSES = {
    "proximal": pu.ProximalEncoder,
    "coordinate": pu.CoordinateEncoder,
    "block": pu.BlockCoordinateEncoder,
}


def build(kind: str, model: SparseModel, layers: int = 4, **changes) -> Encoder:
    name, step, momentum = KINDS[kind]
    return CLASSES[name](model, layers=layers, step=step, momentum=momentum, **changes)


def shaken(encoder: Encoder, seed: int = 0, size: float = 0.05) -> Encoder:
    """The encoder as some training might leave it: every parameter moved at random.

    Thresholds are moved by a part of themselves, which keeps them off the kink at zero.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.step.parameters():
            noise = size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            noise = noise.to(parameter)
            if any(parameter is threshold for threshold in thresholds_of(encoder)):
                parameter.mul_(noise.exp())
            else:
                parameter.add_(noise)
    return encoder


def thresholds_of(encoder: Encoder) -> list[Tensor]:
    names = ("step.thresholds", "step.factors")
    return [tensor for key, tensor in encoder.named_parameters() if key.startswith(names)]


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# ---- untrained, an encoder is its algorithm -------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", MODELS)
def test_untrained_proximal_is_ista_and_fista(name: str, step: str) -> None:
    model, x = problem(name, 1, 20)
    for layers, momentum, tied, structure in product((1, 2, 9), FLAGS, FLAGS, LAYER_FORMS):
        encoder = pu.ProximalEncoder(model, layers, step, momentum, tied, structure)
        method = "fista" if momentum else "ista"
        expected = pu.solve(model, x, method=method, tol=0, max_iter=layers).codes
        with torch.no_grad():
            close(encoder(x), expected)
        close(encoder(x), expected)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("kind", "method", "name"),
    [
        *((pu.CoordinateEncoder, "greedy", name) for name in SEPARABLE),
        *((pu.BlockCoordinateEncoder, "block_greedy", name) for name in MODELS),
    ],
)
def test_untrained_greedy_encoders_are_greedy(kind, method: str, name: str, step: str) -> None:
    model, x = problem(name, 2, 20)
    for layers, momentum, tied, structure in product((1, 2, 9), FLAGS, FLAGS, LAYER_FORMS):
        form = {"step": step, "momentum": momentum, "tied": tied, "form": structure}
        encoder = kind(model, layers, final="partial", **form)
        close(encoder(x), pu.solve(model, x, method=method, tol=0, max_iter=layers).codes)


def candidate(model: SparseModel, x: Tensor, z: Tensor, steps: Tensor) -> Tensor:
    return model.nonsmooth.prox(z - steps * model.gradient(x, z), steps)


@pytest.mark.parametrize("final", ["prox", "partial"])
@pytest.mark.parametrize("name", MODELS)
def test_top_k_takes_over_the_largest_changes(name: str, final: str) -> None:
    """Against a loop over samples that shares nothing with the layers."""
    model, x = problem(name, 4, 6)
    inner = model.normalised
    constants = inner.coordinate_constants.clone()
    if not inner.separable:
        for block in inner.blocks:
            constants[block] = constants[block].max()
    schedule = (2, 1, 3, model.code_size)
    rates = [2**-0.5, 1.0, 3**-0.5, float(constants.min()) / inner.step_constant]
    rates = [max(rate, rates[-1]) for rate in rates]
    z = x.new_zeros(len(x), model.code_size)
    for k, rate in zip(schedule, rates, strict=True):
        y = candidate(inner, x, z, rate / constants)
        for row, (new, old) in enumerate(zip(y, z.clone(), strict=True)):
            for i in sorted(range(model.code_size), key=lambda i: -abs(new[i] - old[i]))[:k]:
                z[row, i] = new[i]
    if final == "prox":
        z = candidate(inner, x, z, 1 / constants)
    for step, momentum in product(STEPS, FLAGS):
        encoder = pu.CoordinateEncoder(
            model, 4, coordinates=schedule, step=step, momentum=momentum, final=final
        )
        close(encoder(x), model.from_normalised(z))


def test_final_prox_of_the_block_encoder_is_one_full_step() -> None:
    model, x = problem("hilasso", 5, 10)
    steps = 1 / model.block_constants[model.block_labels]
    z = pu.solve(model, x, method="block_greedy", tol=0, max_iter=3).codes
    close(pu.BlockCoordinateEncoder(model, 3)(x), candidate(model, x, z, steps))


def test_partial_codes_have_few_non_zeros() -> None:
    model, x = problem("lasso", 6, 50)
    few = shaken(pu.CoordinateEncoder(model, 3, coordinates=2, final="partial"))
    assert ((few(x) != 0).sum(dim=1) <= 6).all()
    model, x = problem("hilasso", 6, 50)
    codes = shaken(pu.BlockCoordinateEncoder(model, 2, final="partial"))(x)
    active = torch.stack([(codes[:, block] != 0).any(dim=1) for block in PAIRS])
    assert (active.sum(dim=0) <= 2).all()


@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-nmf"])
@pytest.mark.parametrize("method", ["ista", "fista"])
def test_iterates_are_those_of_the_solver(name: str, method: str) -> None:
    model, x = problem(name, 7, 5)
    encoder = pu.ProximalEncoder(model, 6, momentum=method == "fista")
    expected = list(islice(iterates(method, model, x), 6))
    for ours, theirs in zip(encoder.iterates(x), expected, strict=True):
        close(ours, theirs)


def learn_the_same_numbers(kind: str, name: str) -> bool:
    step = KINDS[kind][1]
    return step == "model" or (
        step == "coupled" and not problem(name, 0, 1)[0].operator.identity_size
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, name in product(KINDS, MODELS) if learn_the_same_numbers(kind, name)],
)
def test_both_forms_are_one_function(kind: str, name: str) -> None:
    """Trained or not, wherever both forms learn the same numbers."""
    model, x = problem(name, 8, 20)
    gram, residual = (shaken(build(kind, model, form=form)) for form in LAYER_FORMS)
    close(gram(x), residual(x))


def test_float32_agrees_with_float64() -> None:
    for name in MODELS:
        model, x = problem(name, 9, 20)
        exact = pu.ProximalEncoder(model, 5)(x)
        rough = pu.ProximalEncoder(model.to(torch.float32), 5)(x.float())
        assert rough.dtype == torch.float32
        torch.testing.assert_close(rough.double(), exact, rtol=1e-4, atol=1e-5)
        moved = pu.ProximalEncoder(model, 5).float()(x.float())
        torch.testing.assert_close(moved, rough, rtol=1e-4, atol=1e-5)


# ---- gradients ------------------------------------------------------------------------------


@pytest.mark.parametrize("nonnegative", FLAGS)
def test_autograd_is_the_corrected_algorithm_3(nonnegative: bool) -> None:
    """The paper's back-propagation, with its errata, in columns as printed."""
    model = models.Lasso(problem("lasso", 10, 1)[0].dictionary, 0.1, nonnegative)
    x = problem("lasso", 10, 1)[1][0]
    layers = 5
    encoder = shaken(pu.ProximalEncoder(model, layers, "free", momentum=False), 10)
    W, H, t = encoder.step.weight, encoder.step.coupling, encoder.step.thresholds[0]
    target = torch.randn(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signal = x.clone().requires_grad_()
    (encoder(signal[None])[0] - target).square().sum().div(2).backward()

    Wv, Hv, tv = W.detach(), H.detach()[0], t.detach()[0]
    z, b = [torch.zeros(SIZE, dtype=torch.float64)], []
    for k in range(layers):
        b.append(Wv @ x if k == 0 else b[-1] + Hv @ (z[k] - z[k - 1]))
        z.append((b[k] - tv).clamp_min(0) if nonnegative else b[k] - b[k].clamp(-tv, tv))
    passed = [(v > tv) if nonnegative else (v.abs() > tv) for v in b]
    J_b = [p.double() for p in passed]
    J_t = [-p.double() if nonnegative else -v.sign() * p for v, p in zip(b, passed, strict=True)]

    g = z[layers] - target
    db, dt = J_b[-1] * g, J_t[-1] * g
    dH, a = torch.zeros_like(Hv), torch.zeros(SIZE, dtype=torch.float64)
    for k in range(layers - 1, 0, -1):
        dH += torch.outer(db, z[k] - z[k - 1])
        u = Hv.T @ db + a
        a = -Hv.T @ db
        dt = dt + J_t[k - 1] * u
        db = db + J_b[k - 1] * u

    assert (z[layers] != 0).any()
    torch.testing.assert_close(W.grad, torch.outer(db, x), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(H.grad[0], dH, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(t.grad[0], dt, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(signal.grad, Wv.T @ db, rtol=1e-12, atol=1e-13)


def differentiable(encoder: Encoder, x: Tensor) -> tuple[callable, tuple[Tensor, ...]]:
    """The encoder as a function of the input, its parameters and its dictionary."""
    names, tensors = zip(*encoder.named_parameters(), strict=True)
    tensors = [t.detach().clone().requires_grad_() for t in tensors]

    def encode(x: Tensor, *tensors: Tensor) -> Tensor:
        return functional_call(encoder, dict(zip(names, tensors, strict=True)), (x,))

    return encode, (x.clone().requires_grad_(), *tensors)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_finite_differences(kind: str, name: str) -> None:
    model, x = problem(name, 11, 3)
    encoder = shaken(build(kind, model, layers=3), 11, size=0.02)
    assert encoder(x).count_nonzero() > 0
    encode, inputs = differentiable(encoder, x)
    assert torch.autograd.gradcheck(encode, inputs, fast_mode=True)


@pytest.mark.parametrize("structure", LAYER_FORMS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ["lasso", *TWO_BLOCKS])
def test_gradients_of_untied_and_of_both_forms(name: str, step: str, structure: str) -> None:
    model, x = problem(name, 12, 3)
    for tied in FLAGS:
        encoder = pu.ProximalEncoder(model, 3, step, True, tied, structure)
        encode, inputs = differentiable(shaken(encoder, 12, 0.02), x)
        assert torch.autograd.gradcheck(encode, inputs, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_every_parameter(kind: str) -> None:
    for name in ("lasso", "hilasso", "robust-nmf", "low-rank-sparse"):
        model, x = problem(name, 13, 30)
        encoder = build(kind, model)
        encoder(x).square().sum().backward()
        for parameter in encoder.step.parameters():
            assert parameter.grad is not None
            assert parameter.grad.isfinite().all()
            assert parameter.grad.abs().sum() > 0
        assert all(getattr(encoder, name).grad is None for name in model.dictionaries)


def test_the_choice_of_coordinates_is_constant_for_the_gradient() -> None:
    """Only the chosen coefficient of a one-layer encoder depends on its parameters."""
    model, x = problem("lasso", 14, 1)
    encoder = pu.CoordinateEncoder(model, 1, final="partial")
    chosen = int(encoder(x)[0].abs().argmax())
    encoder(x).sum().backward()
    assert encoder.step.weight.grad.count_nonzero(dim=1).nonzero().flatten().tolist() == [chosen]


# ---- sizes, dtypes, transforms --------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_trains(kind: str) -> None:
    model, x = problem("lasso", 15, 40)
    encoder = build(kind, model, layers=1)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = model.objective(x, encoder(x)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        encoder.project_()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-nmf", "low-rank-sparse"])
def test_batches_of_any_kind(kind: str, name: str) -> None:
    model, x = problem(name, 16, 12)
    encoder = shaken(build(kind, model))
    codes = encoder(x)
    assert codes.shape == (12, model.code_size)
    close(encoder(x[:1]), codes[:1])
    assert encoder(x[:0]).shape == (0, model.code_size)
    assert encoder.best(x[:0]).shape == (0, model.code_size)
    close(encoder(x.T.contiguous().T), codes)
    close(encoder(x.repeat_interleave(2, dim=0)[::2]), codes)
    close(encoder(x.reshape(3, 4, FEATURES)), codes.reshape(3, 4, -1))
    close(encoder(x[0]), codes[0])
    with torch.no_grad():
        close(encoder(x), codes)
        assert encoder(x[:0]).shape == (0, model.code_size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-nmf", "low-rank-sparse"])
def test_vmap_and_functional_call(kind: str, name: str) -> None:
    model, x = problem(name, 17, 5)
    encoders = [shaken(build(kind, model), seed) for seed in range(3)]
    close(vmap(encoders[0])(x), encoders[0](x))
    with torch.no_grad():
        close(vmap(encoders[0])(x), encoders[0](x))

    # an ensemble in one call
    parameters, buffers = stack_module_state(encoders)
    together = vmap(lambda p, b: functional_call(encoders[0], (p, b), (x,)))(parameters, buffers)
    close(together, torch.stack([encoder(x) for encoder in encoders]))

    # the gradient of every sample in one call
    own = {name: p.detach() for name, p in encoders[0].step.named_parameters(prefix="step")}

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        return functional_call(encoders[0], parameters, (row,)).square().sum()

    each = vmap(grad(loss), in_dims=(None, 0))(own, x)
    encoders[0](x).square().sum().backward()
    for key, parameter in encoders[0].step.named_parameters(prefix="step"):
        close(each[key].sum(dim=0), parameter.grad)


class Sizes(TorchDispatchMode):
    """Records the number of rows of every matrix that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if (
            isinstance(result, Tensor)
            and result.ndim == 2
            and func.overloadpacket.__name__
            not in (
                "view",
                "_unsafe_view",
                "detach",
                "slice",
                "t",
                "transpose",
                "copy_",
                "_reshape_alias",
            )
        ):
            self.rows.append(len(result))
        return result


@pytest.mark.parametrize("name", ["lasso", "robust-nmf"])
def test_large_batches_go_in_tiles(name: str) -> None:
    model, _ = problem(name, 18, 1)
    x = torch.randn(5000, FEATURES, generator=torch.Generator().manual_seed(18)).double()
    for kind in ("proximal-coupled-momentum", "coordinate-free-plain", "block-model-plain"):
        encoder = shaken(build(kind, model))
        expected = encoder(x)
        for encode, whole in ((encoder, expected), (encoder.best, encoder.best(x))):
            with torch.no_grad(), Sizes() as sizes:
                codes = encode(x)
            close(codes, whole)
            # of so many rows there is the result, and nothing else
            assert sum(rows > 1024 for rows in sizes.rows) == 1


# ---- what must hold in any state ------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_depth_cannot_be_changed(kind: str) -> None:
    model, x = problem("lasso", 19, 4)
    encoder = shaken(build(kind, model, layers=4))
    before = encoder(x)
    with pytest.raises(AttributeError, match="has 4 layers and keeps them"):
        encoder.layers = 5
    assert encoder.layers == 4
    other = build(kind, model, layers=5)
    untouched = other(x)
    for strict in (True, False):
        with pytest.raises(RuntimeError, match="trained for a depth of"):
            other.load_state_dict(encoder.state_dict(), strict=strict)
    assert torch.equal(other(x), untouched)
    again = build(kind, model, layers=4)
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(x), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-nmf"])
def test_thresholds_stay_non_negative(kind: str, name: str) -> None:
    """A negative threshold acts as zero, and `project_` makes it zero."""
    model, x = problem(name, 20, 20)
    encoder = build(kind, model)
    thresholds = thresholds_of(encoder)
    assert thresholds
    with torch.no_grad():
        for parameter in thresholds:
            parameter.fill_(-1)
        codes = encoder(x)
        encoder.project_()
        assert all((parameter == 0).all() for parameter in thresholds)
        close(encoder(x), codes)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_best_is_the_lowest_iterate(kind: str, name: str) -> None:
    model, x = problem(name, 21, 30)
    encoder = shaken(build(kind, model), size=0.3)
    zero = x.new_zeros(30, model.code_size)
    values = [model.objective(x, codes) for codes in [zero, *encoder.iterates(x)]]
    close(model.objective(x, encoder.best(x)), torch.stack(values).amin(dim=0))


def test_best_survives_layers_that_blow_up() -> None:
    model, x = problem("lasso", 22, 30)
    encoder = pu.ProximalEncoder(model, 30)
    with torch.no_grad():
        encoder.step.weight.mul_(1e30)
        assert not encoder(x).isfinite().all()
        best = encoder.best(x)
    assert (model.objective(x, best) <= model.objective(x, torch.zeros_like(best))).all()


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_an_encoder(name: str) -> None:
    """It is the given one, follows the encoder's dictionary, and hands gradients to it."""
    model, x = problem(name, 23, 10)
    encoder = pu.ProximalEncoder(model, 3)
    codes = encoder(x)
    close(encoder.model.objective(x, codes), model.objective(x, codes))
    assert encoder.model.step_constant == model.step_constant
    with torch.no_grad():
        for key in model.dictionaries:
            getattr(encoder, key).mul_(2)
    doubled = {key: 2 * tensor for key, tensor in model.dictionaries.items()}
    close(encoder.model.objective(x, codes), model.replace(**doubled).objective(x, codes))
    assert model.dictionary.equal(problem(name, 23, 10)[0].dictionary)
    for key in model.dictionaries:
        getattr(encoder, key).requires_grad_()
    encoder.model.objective(x, codes.detach()).sum().backward()
    assert all(getattr(encoder, key).grad.abs().sum() > 0 for key in model.dictionaries)


@pytest.mark.parametrize("name", ["lasso", "hilasso", "robust-pca", "low-rank-sparse-free"])
def test_steps_follow_a_new_dictionary(name: str) -> None:
    """A rotated dictionary has the same constants, so model steps are its algorithm at once."""
    model, x = problem(name, 24, 10)
    generator = torch.Generator().manual_seed(24)
    noise = torch.randn(FEATURES, FEATURES, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(noise).Q
    turned = {key: tensor @ rotation for key, tensor in model.dictionaries.items()}
    expected = pu.solve(model.replace(**turned), x, method="fista", tol=0, max_iter=5).codes
    for step, follows in (("model", True), ("coupled", False), ("free", False)):
        encoder = pu.ProximalEncoder(model, 5, step)
        before = encoder(x)
        with torch.no_grad():
            for key, tensor in turned.items():
                getattr(encoder, key).copy_(tensor)
        if follows:
            close(encoder(x), expected)
        elif step == "free":
            assert torch.equal(encoder(x), before)
        else:
            assert not torch.allclose(encoder(x), before)
            # with the W of the new dictionary it is the algorithm again
            with torch.no_grad():
                encoder.step.weight.copy_(pu.ProximalEncoder(encoder.model, 5).step.weight)
            close(encoder(x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_following_a_dictionary(name: str) -> None:
    """Model steps are the algorithm of any new dictionary; learned matrices stay as they are."""
    model, x = problem(name, 37, 10)
    other, _ = problem(name, 38, 1)
    changed = {key: 3 * tensor for key, tensor in other.dictionaries.items()}
    expected = pu.solve(model.replace(**changed), x, method="fista", tol=0, max_iter=5).codes
    for step in STEPS:
        encoder = pu.ProximalEncoder(model, 5, step)
        with torch.no_grad():
            for key, tensor in changed.items():
                getattr(encoder, key).copy_(tensor)
            before = encoder(x)
            encoder.refresh_constants()
        if step == "model":
            close(encoder(x), expected)
            close(
                encoder.model.objective(x, expected),
                model.replace(**changed).objective(x, expected),
            )
        else:
            assert torch.equal(encoder(x), before)
    with torch.no_grad():
        getattr(encoder, next(iter(changed)))[0] = 0
        encoder.refresh_constants()  # an atom that has died is no obstacle


# ---- beside the exact solvers ---------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_polishing_an_encoder(name: str, dtype: torch.dtype) -> None:
    """Its codes are a start, the result is certified, and no accuracy is claimed beyond that."""
    model, x = problem(name, 25, 60, dtype)
    encoder = shaken(pu.ProximalEncoder(model, 6), size=0.02)
    exact = pu.solve(model.to(torch.float64), x.double(), method="restart", tol=1e-10)
    for tol in (1e-2, 1e-6):
        polished = pu.solve(model, x, init=encoder, tol=tol)
        assert polished.converged.all()
        assert (polished.objective - exact.objective <= polished.gap).all()
        # a solver may have a better start than scores of zero, but then it has met tol
        started = model.objective(x, encoder(x)).double()
        bound = torch.maximum(started, exact.objective * (1 + tol))
        assert (polished.objective <= bound * (1 + 1e-5)).all()


def test_a_support_solve_finishes_the_lasso() -> None:
    """From codes with the right signs the first step of the solver is exact."""
    model, x = problem("lasso", 26, 200)
    encoder = pu.ProximalEncoder(model, 60)
    exact = pu.solve(model, x, tol=1e-10).codes
    found = (encoder(x).sign() == exact.sign()).all(dim=1)
    assert found.double().mean() > 0.5
    polished = pu.solve(model, x[found], init=encoder, tol=1e-9, max_iter=1)
    assert polished.converged.all()
    close(polished.codes, exact[found])


@pytest.mark.parametrize("name", MODELS)
def test_certificate_of_codes(name: str, dtype: torch.dtype) -> None:
    model, x = problem(name, 27, 60, dtype)
    exact = pu.solve(model.to(torch.float64), x.double(), method="restart", tol=1e-10)
    for codes in shaken(pu.ProximalEncoder(model, 10), size=0.01).iterates(x):
        excess = model.to(torch.float64).objective(x.double(), codes.double()) - exact.objective
        assert (pu.certify(model, x, codes.detach()) >= excess - exact.gap).all()


# ---- counts ---------------------------------------------------------------------------------


def test_counts_of_proximal_encoders() -> None:
    q, m, T = SIZE, FEATURES, 5
    lasso, _ = problem("lasso", 28, 1)

    def counts(model, step, momentum, tied=True, form="auto") -> tuple[int, int]:
        encoder = pu.ProximalEncoder(model, T, step, momentum, tied, form)
        return encoder.parameter_count, encoder.multiplications

    dense = q * m + (T - 1) * q * q
    assert counts(lasso, "free", False) == (q * m + q * q + q, dense)
    assert counts(lasso, "free", False, tied=False) == (q * m + (T - 1) * q * q + T * q, dense)
    assert counts(lasso, "free", True) == (q * m + q * q + T * q + 5 * T, dense)
    assert counts(lasso, "coupled", True) == (q * m + T * q + 5 * T, dense)
    assert counts(lasso, "coupled", False) == (q * m + T * q + T, dense)
    untied = T * q * m + (T - 1) * q * q
    assert counts(lasso, "coupled", True, tied=False) == (T * q * m + T * q + 5 * T, untied)
    assert counts(lasso, "model", True) == (6 * T, dense)
    assert counts(lasso, "model", False) == (2 * T, dense)
    residual = (2 * T - 1) * q * m
    assert counts(lasso, "coupled", True, form="residual")[1] == residual

    robust, _ = problem("robust-nmf", 28, 1)
    s = len(robust.dictionary)
    two_block = (2 * T - 1) * s * m
    assert counts(robust, "free", False) == (2 * s * m + m + m, two_block)
    assert counts(robust, "coupled", True) == (s * m + m + T * m + 5 * T, two_block)
    assert counts(robust, "model", True) == (6 * T, two_block)
    full = s + m
    assert counts(robust, "free", False, form="gram") == (
        full * m + full * full + m,
        full * m + (T - 1) * full * full,
    )
    wide = models.Lasso(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), 0.1)
    assert counts(wide, "coupled", True)[1] == (2 * T - 1) * 40 * 8
    assert counts(wide, "free", True)[1] == 40 * 8 + (T - 1) * 40 * 40


def test_counts_of_coordinate_encoders() -> None:
    q, m = SIZE, FEATURES
    lasso, _ = problem("lasso", 29, 1)
    encoder = pu.CoordinateEncoder(lasso, 4)
    assert encoder.parameter_count == q * m + q * q + q
    assert encoder.multiplications == q * m + 4 * q
    assert pu.CoordinateEncoder(lasso, 4, final="partial").multiplications == q * m + 3 * q
    encoder = pu.CoordinateEncoder(lasso, 3, coordinates=(2, 4, q), step="model", momentum=True)
    assert encoder.parameter_count == 4 * 6
    assert encoder.multiplications == q * m + (2 + 4 + q) * q
    hilasso, _ = problem("hilasso", 29, 1)
    encoder = pu.BlockCoordinateEncoder(hilasso, 4)
    assert encoder.parameter_count == q * m + q * q + q + len(PAIRS)
    assert encoder.multiplications == q * m + 4 * 4 * q


# ---- banks ----------------------------------------------------------------------------------


def bank_models(count: int = 3) -> list[models.LowRankSparse]:
    generator = torch.Generator().manual_seed(30)
    low_rank = torch.rand(3, FEATURES, generator=generator, dtype=torch.float64)
    return [
        models.LowRankSparse(
            low_rank,
            torch.rand(5 + j, FEATURES, generator=generator, dtype=torch.float64),
            0.2,
            0.1,
        )
        for j in range(count)
    ]


def test_a_bank_shares_its_low_rank_dictionary() -> None:
    bank = pu.EncoderBank([pu.ProximalEncoder(model, 3) for model in bank_models()])
    x = torch.rand(7, FEATURES, generator=torch.Generator().manual_seed(31), dtype=torch.float64)
    for again in (bank, copy.deepcopy(bank), copy.deepcopy(bank).float().double()):
        shared = again[0].low_rank
        assert all(encoder.low_rank is shared for encoder in again)
        with torch.no_grad():
            shared.mul_(1.5)
        for encoder, model in zip(again, bank_models(), strict=True):
            torch.testing.assert_close(encoder.model.low_rank, 1.5 * model.low_rank)
    bank[0].low_rank.requires_grad_()
    alone = []
    for encoder in bank:
        (gradient,) = torch.autograd.grad(encoder(x).sum(), bank[0].low_rank)
        alone.append(gradient)
    sum(codes.sum() for codes in bank(x)).backward()
    close(bank[0].low_rank.grad, sum(alone))


def test_errors_of_a_bank() -> None:
    encoders = [pu.ProximalEncoder(model, 3) for model in bank_models()]
    x = torch.rand(7, FEATURES, generator=torch.Generator().manual_seed(32), dtype=torch.float64)
    bank = pu.EncoderBank(encoders)
    assert len(bank) == 3
    assert [codes.shape[1] for codes in bank(x)] == [8, 9, 10]
    for j, (model, codes) in enumerate(zip(bank_models(), bank(x), strict=True)):
        s, o = codes[:, :3], codes[:, 3:]
        expected = (x - s @ model.low_rank - o @ model.sparse).square().sum(dim=1)
        close(bank.errors(x)[:, j], expected)


def test_banks_of_robust_models_share_too() -> None:
    model, x = problem("robust-nmf", 33, 4)
    bank = pu.EncoderBank([pu.ProximalEncoder(model, 3), pu.ProximalEncoder(model, 4)])
    assert bank[0].dictionary is bank[1].dictionary
    assert bank.errors(x).shape == (4, 2)


def test_what_a_bank_refuses() -> None:
    lasso, _ = problem("lasso", 34, 1)
    encoder = pu.ProximalEncoder(lasso)
    with pytest.raises(ValueError, match="no low-rank dictionary to share"):
        pu.EncoderBank([encoder])
    with pytest.raises(ValueError, match="encoders is empty"):
        pu.EncoderBank([])
    with pytest.raises(ValueError, match="shared must be 'low_rank' or None"):
        pu.EncoderBank([encoder], shared="sparse")
    with pytest.raises(TypeError, match=r"EncoderBank needs an encoder, .* Lasso has no model"):
        pu.EncoderBank([lasso], shared=None)
    first, second = bank_models(2)
    changed = second.replace(low_rank=2 * second.low_rank)
    with pytest.raises(ValueError, match="encoder 1 differs"):
        pu.EncoderBank([pu.ProximalEncoder(first), pu.ProximalEncoder(changed)])
    narrow = pu.ProximalEncoder(models.Lasso(torch.eye(3, dtype=torch.float64), 0.1))
    with pytest.raises(ValueError, match="different widths"):
        pu.EncoderBank([encoder, narrow], shared=None)


# ---- bad input ------------------------------------------------------------------------------


def test_what_an_encoder_refuses_to_be_built_from() -> None:
    model, _ = problem("lasso", 35, 1)
    for layers, error, message in (
        (0, ValueError, "layers must be at least 1, got 0"),
        (2.5, TypeError, "layers must be an integer, got float"),
        (True, TypeError, "layers must be an integer, got bool"),
    ):
        for kind in CLASSES.values():
            with pytest.raises(error, match=message):
                kind(model, layers=layers)
    with pytest.raises(TypeError, match="model must be a SparseModel, got Tensor"):
        pu.ProximalEncoder(model.dictionary)
    with pytest.raises(ValueError, match="step must be one of 'free', 'coupled', 'model'"):
        pu.ProximalEncoder(model, step="tied")
    with pytest.raises(ValueError, match="form must be one of 'auto', 'gram', 'residual'"):
        pu.ProximalEncoder(model, form="sparse")
    with pytest.raises(ValueError, match="final must be one of 'prox', 'partial'"):
        pu.CoordinateEncoder(model, final="full")
    with pytest.raises(ValueError, match="coordinates has 2 entries, but there are 3 layers"):
        pu.CoordinateEncoder(model, 3, coordinates=(1, 2))
    with pytest.raises(ValueError, match=r"a layer can change 1 to 12 coefficients .*, got 13"):
        pu.CoordinateEncoder(model, 3, coordinates=13)
    with pytest.raises(ValueError, match="got 0"):
        pu.CoordinateEncoder(model, 3, coordinates=0)
    with pytest.raises(TypeError, match="coordinates must be integers, got float"):
        pu.CoordinateEncoder(model, 1, coordinates=[1.5])


@pytest.mark.parametrize("kind", ["proximal", "coordinate", "block"])
def test_bad_signals_get_one_sentence(kind: str) -> None:
    model, x = problem("lasso", 36, 3)
    encoder = CLASSES[kind](model)
    for value in (float("nan"), float("inf")):
        broken = x.clone()
        broken[1, 2] = value
        with pytest.raises(ValueError, match="x contains NaN or infinite values"):
            encoder(broken)
    with pytest.raises(ValueError, match="x has 7 features, but the encoder's dictionary has 8"):
        encoder(x[:, 1:])
    with pytest.raises(TypeError, match=r"x is float32, but the encoder is float64; convert"):
        encoder(x.float())
    with pytest.raises(TypeError, match=r"x must be a tensor, got ndarray"):
        encoder(x.numpy())
    with pytest.raises(ValueError, match="at least one dimension"):
        encoder(torch.tensor(1.0))
    # a sum that overflows is no reason to refuse
    encoder.float()(torch.full((2, FEATURES), 3e38))
