"""Convolutional encoders: ista when untrained, the stated formula in any state, and streams."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import pursuit as pu
from pursuit import regimes
from pursuit.encoders.convolutional import ConvolutionalEncoder
from pursuit.models import ConvolutionalLowRankSparse, SparseModel
from pursuit.operators import Convolution
from pursuit.operators import convolution as module
from pursuit.operators.convolution import as_plane
from pursuit.penalties import L1, Elastic, GroupL2, NonNegative, Penalty, Ridge, Stacked, Zero
from test_convolution import CASES
from test_encoders import close, differentiable

ATOMS = 3
#: relative, in float32
CLOSE = 1e-5


def each(weights: list[float], places: int) -> Tensor:
    """One weight for each atom as one for each coefficient."""
    return torch.tensor(weights, dtype=torch.float64).repeat_interleave(places)


class Attenuation(Penalty):
    """A ridge that is not declared as a quadratic part; its shrinkage is no soft threshold."""

    def __init__(self, lam: float) -> None:
        self.lam = lam

    def value(self, codes: Tensor) -> Tensor:
        return self.lam / 2 * codes.square().sum(dim=-1)

    def thresholds(self, step: float | Tensor) -> tuple[Tensor, ...]:
        return (self.lam * torch.as_tensor(step, dtype=torch.float64),)

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return v / (1 + thresholds[0].to(v))


#: name -> a penalty of ATOMS maps with n coefficients each
PENALTIES = {
    "zero": lambda n: Zero(),
    "nonnegative": lambda n: NonNegative(),
    "l1": lambda n: L1(0.3),
    "l1-nonnegative": lambda n: L1(0.3, nonnegative=True),
    "l1-weighted": lambda n: L1(each([0.1, 0.5, 0.3], n)),
    "ridge": lambda n: Ridge(0.7),
    "ridge-nonnegative": lambda n: Ridge(each([0.2, 0.9, 0.4], n), nonnegative=True),
    "elastic": lambda n: Elastic(L1(each([0.1, 0.5, 0.3], n)), each([0.4, 0.0, 0.8], n)),
    "elastic-nonnegative": lambda n: Elastic(L1(0.2, nonnegative=True), 0.5),
    "stacked": lambda n: Stacked([(Ridge(0.5), n), (L1(each([0.2, 0.4], n)), 2 * n)]),
    "stacked-mixed": lambda n: Stacked(
        [(L1(0.2, nonnegative=True), n), (Elastic(L1(0.3), 0.4), n), (NonNegative(), n)]
    ),
    "attenuation": lambda n: Attenuation(0.8),
}


def convolution(kernel, shape, seed: int = 0, atoms: int = ATOMS, **options) -> Convolution:
    generator = torch.Generator().manual_seed(seed)
    size = options.get("channels", 1) * int(np.prod(kernel))
    rows = torch.randn(atoms, size, generator=generator, dtype=torch.float64)
    return Convolution(rows / rows.norm(dim=1, keepdim=True), shape, kernel, **options)


def signals(model: SparseModel, rows: int = 4, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, model.features, generator=generator, dtype=torch.float64)
    return 2 * x.to(model.dtype)


def shaken(encoder: ConvolutionalEncoder, seed: int = 0, size: float = 0.05):
    """The encoder as some training might leave it: every parameter moved at random.

    Thresholds stay positive, off the kink at zero.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            noise = size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if name.startswith("thresholds"):
                moved = torch.where(parameter > 0, parameter * noise.exp(), noise.abs())
                parameter.copy_(moved)
            elif name != "dictionary":
                parameter.add_(noise.to(parameter))
    return encoder


#: arguments of causal encoders of four layers, for signals of 6 frames
CAUSAL = {
    "plain": {},
    "past": {"reach": (2, 1), "dilation": 2, "tied": True},
    "window": {"window": 3},
    "averages": {"averages": (0.5, 0.9), "window": 2},
    "memory": {"memory": 1},
    "all": {
        "tied": False, "reach": (1, 1), "dilation": [1, (2, 1), (1, 2)], "window": 2,
        "averages": (0.8,), "memory": 2, "positional": True,
    },
}  # fmt: skip


def causal(name: str, frames: int = 6, dtype=torch.float64, **changes) -> ConvolutionalEncoder:
    """An encoder as training might leave it, on two channels, with a low-rank part."""
    operator = convolution((1, 3), (frames, 9), stride=(1, 2), channels=2, parts=(1, 2), **changes)
    model = ConvolutionalLowRankSparse(operator.to(dtype), 0.3, 0.1, nonnegative=False)
    return shaken(ConvolutionalEncoder(model, 4, causal=True, **CAUSAL[name]))


def plane(layers: int = 4, dtype=torch.float64, **options) -> ConvolutionalEncoder:
    """An encoder of pictures with two channels, as training might leave it."""
    operator = convolution((2, 3), (7, 8), stride=(1, 2), channels=2)
    model = SparseModel(operator.to(dtype), L1(each([0.1, 0.3, 0.2], 18)))
    return shaken(ConvolutionalEncoder(model, layers, **options))


# ---- untrained, an encoder is ista ----------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("case", CASES)
def test_untrained_it_is_ista(case: str, penalty: str) -> None:
    operator = convolution(**CASES[case])
    model = SparseModel(operator, PENALTIES[penalty](int(np.prod(operator.positions))))
    x = signals(model)
    for layers in (1, 4):
        expected = pu.solve(model, x, method="ista", tol=0, max_iter=layers).codes
        assert expected.count_nonzero() > 0
        for tied in (True, False):
            close(ConvolutionalEncoder(model, layers, tied)(x), expected)


@pytest.mark.parametrize("nonnegative", [True, False])
def test_untrained_it_is_ista_for_low_rank_and_sparse(nonnegative: bool) -> None:
    operator = convolution((2, 3), (5, 9), parts=(1, 2), channels=2)
    model = ConvolutionalLowRankSparse(operator, 0.4, 0.2, nonnegative)
    x = signals(model)
    expected = pu.solve(model, x, method="ista", tol=0, max_iter=5).codes
    close(ConvolutionalEncoder(model, 5)(x), expected)
    # the options that start at zero change nothing
    operator = convolution((1, 3), (5, 9), parts=(1, 2), channels=2)
    model = ConvolutionalLowRankSparse(operator, 0.4, 0.2, nonnegative)
    expected = pu.solve(model, x, method="ista", tol=0, max_iter=5).codes
    options = {"window": 3, "averages": (0.9, 0.5), "memory": 2, "positional": True}
    close(ConvolutionalEncoder(model, 5, causal=True, reach=(2, 2), **options)(x), expected)


@pytest.mark.parametrize("case", CASES)
def test_the_lags_are_the_gram_matrix(case: str) -> None:
    operator = convolution(**CASES[case])
    lags = operator.lags()
    assert all(side % 2 == 1 for side in lags.shape[2:])
    dense = (operator.atoms @ operator.atoms.T).reshape(
        ATOMS, *operator.positions, ATOMS, *operator.positions
    )
    centre = [side // 2 for side in lags.shape[2:]]
    for first in np.ndindex(*operator.positions):
        for second in np.ndindex(*operator.positions):
            # the tap that takes an entry at `second` to the product at `first`
            tap = [c + b - a for a, b, c in zip(first, second, centre, strict=True)]
            inside = all(0 <= t < side for t, side in zip(tap, lags.shape[2:], strict=True))
            coupled = lags[(slice(None), slice(None), *tap)] if inside else torch.zeros(3, 3)
            found = dense[(slice(None), *first, slice(None), *second)]
            torch.testing.assert_close(found, coupled.to(found), rtol=1e-12, atol=1e-12)


def test_parts_add_up() -> None:
    operator = convolution((2, 3), (6, 9), channels=2, stride=(1, 2), parts=(1, 2))
    model = ConvolutionalLowRankSparse(operator, 0.4, 0.2)
    codes = torch.randn(5, model.code_size, generator=torch.Generator().manual_seed(0)).double()
    parts = model.split(codes)
    close(parts.low_rank + parts.sparse, codes @ operator.atoms)
    first = operator.block_sizes[0]
    assert first == codes.shape[1] // 3
    close(parts.low_rank, codes[:, :first] @ operator.atoms[:first])
    close(torch.cat([parts.scores, parts.outliers], dim=1), codes)
    one, two = operator.decode_parts(codes)
    assert torch.equal(one, parts.low_rank)
    assert torch.equal(two, parts.sparse)


# ---- the formula, in any state --------------------------------------------------------------


def mean_by_hand(maps: np.ndarray, decays: np.ndarray) -> np.ndarray:
    """Running means along the second axis, each from its definition."""
    means = np.empty_like(maps)
    for channel, decay in enumerate(decays):
        for t in range(maps.shape[1]):
            weights = [decay ** (t - s) for s in range(t + 1)]
            total = sum(w * maps[channel, s] for s, w in enumerate(weights))
            means[channel, t] = total / sum(weights)
    return means


def by_hand(encoder: ConvolutionalEncoder, x: Tensor) -> Tensor:
    """The codes of one signal, one entry after the other."""
    operator = encoder.operator
    learned = {name: p.detach().numpy() for name, p in encoder.named_parameters()}
    weight, offset = learned["weight"], learned["offset"]
    places = as_plane(operator.positions)
    stride, spread = as_plane(operator.stride), as_plane(operator.dilation)
    signal = x.numpy().reshape(operator.channels, *as_plane(operator.shape))
    means = [mean_by_hand(signal, [d] * operator.channels) for d in encoder.averages]
    u = np.concatenate([signal, *means])
    b = np.zeros((ATOMS, *places))
    for c, p, q in np.ndindex(b.shape):
        b[c, p, q] = offset[c, 0, q if encoder.positional else 0]
        for channel, i, j in np.ndindex(weight.shape[1:]):
            row = p + i - (encoder.window - 1) if encoder.causal else p * stride[0] + i * spread[0]
            column = q * stride[1] + j * spread[1]
            if row >= 0:
                b[c, p, q] += weight[c, channel, i, j] * u[channel, row, column]
    sign = encoder.model.penalty.sign_constraint(encoder.model.code_size)
    one_sided = np.zeros(b.shape, bool) if sign is None else sign.numpy().reshape(b.shape)

    def shrink(v: np.ndarray, layer: int) -> np.ndarray:
        t = learned["thresholds.0"][0 if encoder.tied else layer][:, None, None]
        return np.where(one_sided, np.maximum(v - t, 0), np.sign(v) * np.maximum(abs(v) - t, 0))

    z = shrink(b, 0)
    for layer in range(1, encoder.layers):
        if encoder.memory == layer:
            decays = 1 / (1 + np.exp(-learned["logits"]))
            b = b + np.einsum("cj,jpq->cpq", learned["recall"], mean_by_hand(z, decays))
        matrix = learned["couplings.0" if encoder.tied else f"couplings.{layer - 1}"]
        steps, v = encoder.dilation[layer - 1], b.copy()
        last = matrix.shape[2] - 1 if encoder.causal else matrix.shape[2] // 2
        for c, p, q in np.ndindex(b.shape):
            for j, i, k in np.ndindex(matrix.shape[1:]):
                row = p + steps[0] * (i - last)
                column = q + steps[1] * (k - matrix.shape[3] // 2)
                if 0 <= row < places[0] and 0 <= column < places[1]:
                    v[c, p, q] += matrix[c, j, i, k] * z[j, row, column]
        z = shrink(v, layer)
    return torch.from_numpy(z.ravel())


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_encoder_is_its_formula(name: str) -> None:
    encoder = causal(name)
    x = signals(encoder.model, 2)
    codes = encoder(x)
    assert codes.count_nonzero() > 0
    for row, found in zip(x, codes, strict=True):
        close(found, by_hand(encoder, row))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tied": False, "reach": (0, 2), "dilation": [1, (2, 1), (1, 3)]},
        {"reach": 1, "dilation": 2, "positional": True},
    ],
)
def test_an_encoder_of_planes_is_its_formula(options) -> None:
    encoder = plane(**options)
    (x,) = signals(encoder.model, 1)
    close(encoder(x), by_hand(encoder, x))


def test_an_encoder_of_lines_is_its_formula() -> None:
    """With mixed signs, and one number as reach."""
    operator = convolution((4,), (25,), stride=2, dilation=2)
    model = SparseModel(operator, PENALTIES["stacked-mixed"](10))
    encoder = shaken(ConvolutionalEncoder(model, 4, False, reach=2, dilation=[1, 3, 2]))
    assert encoder.reach == (0, 2)
    (x,) = signals(model, 1)
    close(encoder(x), by_hand(encoder, x))


def test_spread_atoms_of_one_frame_are_causal() -> None:
    """The dilation of an atom along frames, of which it has one, means nothing."""
    wide = causal("all", dilation=2)
    x = signals(wide.model, 2)
    for row, found in zip(x, wide(x), strict=True):
        reference = causal("all", dilation=(1, 2))
        close(found, by_hand(reference, row))
    assert_same(pu.compile(wide.float())(x.float()), wide, x.float())


@pytest.mark.parametrize("name", CAUSAL)
def test_later_frames_change_nothing(name: str) -> None:
    encoder = causal(name)
    x = signals(encoder.model, 1)
    maps = encoder.operator.maps(encoder(x))
    for frame in range(6):
        changed = x.clone().reshape(2, 6, 9)
        changed[:, frame:] += 1
        after = encoder.operator.maps(encoder(changed.reshape(1, -1)))
        assert torch.equal(after[:, :, :frame], maps[:, :, :frame])
        assert not torch.equal(after[:, :, frame], maps[:, :, frame])


@pytest.mark.parametrize("name", sorted(set(CAUSAL) - {"plain"}))
def test_earlier_frames_count(name: str) -> None:
    encoder = causal(name)
    x = signals(encoder.model, 1)
    changed = x.clone().reshape(2, 6, 9)
    changed[:, 0] += 1
    maps, after = (encoder.operator.maps(encoder(s.reshape(1, -1))) for s in (x, changed))
    assert not torch.equal(after[:, :, 1:], maps[:, :, 1:])


# ---- signals of another shape ---------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_a_longer_stream_begins_with_the_same_codes(name: str) -> None:
    encoder = causal(name)
    encoder.regime, encoder.minimises_objective = "supervised", False
    longer = encoder.resized((11, 9))
    assert (longer.regime, longer.minimises_objective) == ("supervised", False)
    x = signals(longer.model, 2)
    start = x.reshape(2, 2, 11, 9)[:, :, :6].flatten(1)
    maps, found = encoder.operator.maps(encoder(start)), longer.operator.maps(longer(x))
    close(found[:, :, :6], maps)
    close(longer(x[0]), by_hand(longer, x[0]))


def test_a_larger_picture_has_the_same_codes_in_the_middle() -> None:
    encoder = plane(layers=2, tied=False)
    larger = encoder.resized((15, 20))
    assert larger.operator.positions == (14, 9)
    (x,) = signals(larger.model, 1)
    close(larger(x), by_hand(larger, x))
    crop = x.reshape(2, 15, 20)[:, 4:11, 4:12].reshape(1, -1)
    maps, found = encoder.operator.maps(encoder(crop))[0], larger.operator.maps(larger(x))
    # the crop begins at position (4, 2), and one product sees one position beyond its ends
    close(found[:, 5:9, 3], maps[:, 1:5, 1])
    assert not torch.allclose(found[:, 4, 3], maps[:, 0, 1])


@pytest.mark.parametrize("penalty", PENALTIES)
def test_weights_of_atoms_are_those_of_any_shape(penalty: str) -> None:
    operator = convolution((3,), (11,))
    model = SparseModel(operator, PENALTIES[penalty](9))
    longer = SparseModel(operator.resized((30,)), PENALTIES[penalty](28))
    encoder = ConvolutionalEncoder(model, 3)
    x = signals(longer)
    codes = longer.correlate(x)
    resized = encoder.resized((30,)).model
    close(resized.penalty.prox(codes, 0.7), longer.penalty.prox(codes, 0.7))


def test_a_positional_encoder_keeps_its_width() -> None:
    encoder = causal("all")
    with pytest.raises(ValueError, match="keeps the side 9 of the second axis, got 11"):
        encoder.resized((6, 11))


# ---- gradients and training -----------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    encoder = causal(name)
    encode, inputs = differentiable(encoder, signals(encoder.model, 2))
    assert torch.autograd.gradcheck(encode, inputs, fast_mode=True)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_gradients_with_every_penalty(penalty: str) -> None:
    model = SparseModel(convolution((2, 3), (5, 6)), PENALTIES[penalty](16))
    encoder = shaken(ConvolutionalEncoder(model, 3, tied=False))
    encode, inputs = differentiable(encoder, signals(model, 2))
    assert torch.autograd.gradcheck(encode, inputs, fast_mode=True)


@pytest.mark.parametrize("name", CAUSAL)
def test_gradients_reach_every_parameter(name: str) -> None:
    encoder = causal(name)
    encoder(signals(encoder.model, 10)).square().sum().backward()
    kinds = encoder.kinds()
    assert set(kinds) == {key for key, _ in encoder.named_parameters()}
    for key, parameter in encoder.named_parameters():
        assert (kinds[key].role == "dictionary") == (key == "dictionary")
        if key == "dictionary":
            assert parameter.grad is None
        else:
            assert parameter.grad.isfinite().all()
            assert parameter.grad.abs().sum() > 0


def test_thresholds_stay_non_negative() -> None:
    encoder = causal("all")
    x = signals(encoder.model)
    with torch.no_grad():
        encoder.thresholds[0].fill_(-1)
        codes = encoder(x)
        encoder.project_()
        assert bool((encoder.thresholds[0] == 0).all())
        close(encoder(x), codes)


@pytest.fixture(scope="module")
def made() -> tuple[ConvolutionalLowRankSparse, Tensor, dict[str, Tensor]]:
    """Streams of a constant part and rare events, with noise: the model, signals and parts."""
    generator = torch.Generator().manual_seed(0)
    operator = convolution((1, 3), (6, 9), parts=(1, 2))
    operator = operator.rebind({"dictionary": operator.dictionary.abs()})
    model = ConvolutionalLowRankSparse(operator, 0.3, 0.3, nonnegative=True)
    codes = torch.rand(700, 3, 6, 7, generator=generator, dtype=torch.float64)
    codes[:, 1:] *= 4 * (codes[:, 1:] > 0.9)
    codes[:, :1] = codes[:, :1, :1]
    parts = operator.decode_parts(codes.flatten(1))
    noise = 0.3 * torch.randn(700, 54, generator=generator, dtype=torch.float64)
    return model, sum(parts) + noise, {"low_rank": parts[0], "sparse": parts[1]}


@pytest.mark.parametrize("what", ["unsupervised", "approximation", "signal", "parts"])
@pytest.mark.parametrize("name", ["plain", "all"])
def test_training_lowers_the_loss_of_unseen_signals(name: str, what: str, made) -> None:
    model, x, parts = made
    clean = parts["low_rank"] + parts["sparse"]
    regime, targets = {
        "unsupervised": (regimes.Unsupervised(), None),
        "approximation": (regimes.Approximation(tol=1e-3), None),
        "signal": (regimes.Supervised(), clean),
        "parts": (regimes.Supervised(), parts),
    }[what]
    encoder = ConvolutionalEncoder(model, 4, causal=True, **CAUSAL[name])

    def rows(chosen: slice):
        return (
            {key: part[chosen] for key, part in targets.items()}
            if isinstance(targets, dict)
            else None if targets is None else targets[chosen]
        )  # fmt: skip

    unseen = regimes.Batch(x[600:], rows(slice(600, None)))
    with torch.no_grad():
        before = float(regime(encoder, unseen))
    pu.fit(encoder, x[:600], rows(slice(600)), regime=regime, steps=60, batch_size=64)
    with torch.no_grad():
        after = float(regime(encoder, unseen))
    # the objective has a floor, which is that of the exact codes
    floor = 0.0
    if what == "unsupervised":
        floor = float(pu.solve(model, x[600:]).objective.mean())
    assert after - floor < 0.9 * (before - floor)
    assert encoder.regime == regime.name


def test_the_matrix_of_all_positions_is_not_formed(monkeypatch, tmp_path: Path, made) -> None:
    """Neither to train, atoms included, nor to resize, save, load, compile or solve."""
    low_rank, x, _ = made
    monkeypatch.setattr(module, "LARGEST_MATRIX", 0)
    monkeypatch.setattr(Convolution, "atoms", property(lambda self: pytest.fail("formed")))
    operator = low_rank.operator.to(torch.float32)
    for model in (SparseModel(operator, L1(0.1)), low_rank.to(torch.float32)):
        encoder = ConvolutionalEncoder(model, 2, causal=True)
        pu.fit(encoder, x, dictionary="gradient", steps=5, validation=False)
        assert not torch.equal(encoder.dictionary, model.dictionaries["dictionary"])
        larger = encoder.resized((30, 20))
        pu.save(larger, tmp_path / "encoder.safetensors")
        signal = signals(larger.model, 1)
        codes = pu.compile(pu.load(tmp_path / "encoder.safetensors"))(signal)
        assert_same(codes, larger, signal)
        assert pu.solve(larger.model, signal, tol=1e-2).converged.all()
    assert bool((encoder.dictionary >= 0).all())


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, made) -> None:
    model, x, parts = made
    options = {"regime": regimes.Supervised(), "dictionary": "gradient", "steps": 40}
    whole, parted = (ConvolutionalEncoder(model, 4, causal=True, **CAUSAL["all"]) for _ in range(2))
    pu.fit(whole, x, parts, **options)
    path = tmp_path / "run.checkpoint"
    stopped = pu.fit(parted, x, parts, checkpoint=path, callback=lambda p: p.done >= 20, **options)
    assert stopped.steps < 40
    assert pu.fit(parted, x, parts, checkpoint=path, **options).steps == 40
    for (key, a), b in zip(whole.state_dict().items(), parted.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


# ---- files and the runtime ------------------------------------------------------------------


def any_encoder(name: str) -> ConvolutionalEncoder:
    """In single precision, as it is trained."""
    if name in CAUSAL:
        return causal(name, dtype=torch.float32)
    if name == "line":
        operator = convolution((4,), (25,), stride=2).to(torch.float32)
        model = SparseModel(operator, PENALTIES["stacked-mixed"](11))
        return shaken(ConvolutionalEncoder(model, 3, reach=1))
    return plane(dtype=torch.float32, tied=False, dilation=[1, (2, 1), 1])


ENCODERS = [*CAUSAL, "line", "plane"]


def assert_same(found: np.ndarray, encoder: ConvolutionalEncoder, x: Tensor) -> None:
    """To 1e-5 of a row's largest coefficient."""
    with torch.no_grad():
        expected = encoder(x).numpy()
    assert found.dtype == np.float32
    error = np.abs(found - expected).max(axis=1) / np.abs(expected).max(axis=1)
    assert error.max() < CLOSE


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_come_back_bit_by_bit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    for dtype in (torch.float32, torch.float64):
        encoder = any_encoder(name).to(dtype)
        encoder.regime, encoder.minimises_objective = "supervised", False
        pu.save(encoder, path)
        again = pu.load(path)
        assert type(again) is ConvolutionalEncoder
        assert again.config == encoder.config
        assert (again.regime, again.minimises_objective) == ("supervised", False)
        x = signals(encoder.model).to(encoder.model.dtype)
        assert torch.equal(again(x), encoder(x))


@pytest.mark.parametrize("name", ENCODERS)
def test_the_runtime_gives_the_codes_of_torch(name: str) -> None:
    encoder = any_encoder(name)
    x = signals(encoder.model, 9)
    compiled = pu.compile(encoder)
    codes = compiled(x)
    assert_same(codes, encoder, x)
    decoded = encoder.model.decode(torch.from_numpy(codes)).detach().numpy()
    np.testing.assert_allclose(compiled.decode(codes), decoded, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_stream_gives_the_codes_of_the_batch(name: str) -> None:
    """Two signals side by side, in blocks of several sizes, and longer than any plane."""
    encoder = any_encoder(name).resized((40, 9))
    x = signals(encoder.model, 2)
    frames = x.reshape(2, 2, 40, 9).permute(2, 0, 1, 3).reshape(40, 2, 18).numpy()
    stream = pu.compile(any_encoder(name)).stream(2)
    blocks = np.split(frames, [1, 2, 9, 10, 33])
    codes = np.concatenate([stream.push(block) for block in blocks])
    maps = codes.reshape(40, 2, ATOMS, -1).transpose(1, 2, 0, 3)
    assert_same(maps.reshape(2, -1), encoder, x)


@pytest.mark.parametrize("name", ENCODERS)
def test_onnx_gives_the_codes_of_torch(name: str, tmp_path: Path) -> None:
    import onnxruntime

    encoder = any_encoder(name)
    pu.export_onnx(encoder, tmp_path / "encoder.onnx")
    session = onnxruntime.InferenceSession(
        (tmp_path / "encoder.onnx").read_bytes(), providers=["CPUExecutionProvider"]
    )
    x = signals(encoder.model, 5)
    (codes,) = session.run(None, {"x": x.numpy()})
    assert_same(codes, encoder, x)


RUN = """
import sys
sys.modules["torch"] = None  # an import of it fails
import numpy as np
from pursuit.runtime import load
encode = load(sys.argv[1])
x = np.load(sys.argv[2])
np.save(sys.argv[3], encode(x))
print(encode.info["type"], encode.info["regime"])
"""


def test_a_saved_encoder_runs_without_torch(tmp_path: Path, made) -> None:
    model, x, parts = made
    model, x = model.to(torch.float32), x.float()
    encoder = ConvolutionalEncoder(model, 4, causal=True, **CAUSAL["all"])
    pu.fit(encoder, x, parts, regime=regimes.Supervised(), steps=5)
    files = [tmp_path / name for name in ("encoder.safetensors", "x.npy", "codes.npy")]
    pu.save(encoder, files[0])
    np.save(files[1], x[:7].numpy())
    done = subprocess.run([sys.executable, "-c", RUN, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ConvolutionalEncoder", "supervised"]
    assert_same(np.load(files[2]), encoder, x[:7])


def test_a_shrinkage_of_another_kind_runs_in_torch_only() -> None:
    model = SparseModel(convolution((3,), (11,)), Attenuation(0.5))
    with pytest.raises(TypeError, match=r"Attenuation is not a soft threshold.* in torch only"):
        pu.compile(ConvolutionalEncoder(model, 3))


# ---- what it costs --------------------------------------------------------------------------


def test_multiplications_are_counted() -> None:
    encoder = causal("all")
    # 4 positions of 6 frames, W on 4 channels of 2 frames, 3 couplings of 2 x 3 taps, one memory
    assert encoder.multiplications == 4 * 6 * (3 * 4 * 2 * 3 + 3 * 9 * 2 * 3 + 9)
    tied = plane()
    assert tied.multiplications == 6 * 3 * (3 * 2 * 2 * 3 + 3 * 9 * 3 * 3)


# ---- bad arguments --------------------------------------------------------------------------

LINE = SparseModel(convolution((3,), (11,)), L1(0.1))
STREAM = SparseModel(convolution((1, 3), (5, 9)), L1(0.1))
VARYING = torch.linspace(0.1, 0.2, LINE.code_size)


@pytest.mark.parametrize(
    ("model", "options", "error", "sentence"),
    [
        (pu.models.Lasso(torch.eye(3), 0.1), {}, TypeError,
         "needs a model on a pursuit.operators.Convolution, got Lasso on Matrix"),
        (LINE.operator, {}, TypeError, "model must be a SparseModel, got Convolution"),
        (LINE, {"layers": 0}, ValueError, "layers must be at least 1, got 0"),
        (LINE.replace(penalty=GroupL2([[0, 1], [2]], 0.1)), {}, TypeError,
         "needs a separable penalty, GroupL2 shrinks groups"),
        (LINE.replace(penalty=L1(VARYING)), {}, ValueError,
         "the weight of the penalty differs between the positions of an atom"),
        (LINE.replace(penalty=Ridge(VARYING)), {}, ValueError, "ridge differs between the pos"),
        (LINE.replace(penalty=Stacked([(L1(0.1), 5), (L1(0.1, True), 22)])), {}, ValueError,
         "the sign differs between the positions of an atom"),
        (LINE, {"causal": True}, ValueError, r"needs signals with two axes.*shape \(11,\)"),
        (SparseModel(convolution((2, 3), (5, 9)), L1(0.1)), {"causal": True}, ValueError,
         r"atoms of one frame.*kernel \(2, 3\)"),
        (SparseModel(convolution((1, 3), (5, 9), stride=2), L1(0.1)), {"causal": True}, ValueError,
         r"stride 1 along it.*stride \(2, 2\)"),
        (STREAM, {"causal": True, "memory": 0}, ValueError, "from 1 to layers - 1 = 4, got 0"),
        (STREAM, {"causal": True, "memory": 5}, ValueError, "from 1 to layers - 1 = 4, got 5"),
        (STREAM, {"causal": True, "memory": 1.5}, ValueError, "layers - 1 = 4, got 1.5"),
        (STREAM, {"causal": True, "window": 0}, ValueError, "window must be .*1.*, got 0"),
        (STREAM, {"causal": True, "window": 1.5}, ValueError, "window must be .*, got 1.5"),
        (STREAM, {"causal": True, "averages": (1.0,)}, ValueError,
         r"decays between 0 and 1, got \(1.0,\)"),
        (STREAM, {"causal": True, "averages": 0.9}, ValueError,
         "decays between 0 and 1, got 0.9"),
        (STREAM, {"averages": (0.9,)}, ValueError, "they need causal=True"),
        (STREAM, {"memory": 1}, ValueError, "they need causal=True"),
        (STREAM, {"window": 2}, ValueError, "they need causal=True"),
        (STREAM, {"reach": (1, 1, 1)}, ValueError, r"reach must be 2 .*got \(1, 1, 1\)"),
        (STREAM, {"reach": -1}, ValueError, "reach must be 2 .*got -1"),
        (STREAM, {"reach": 1.5}, ValueError, "reach must be 2 .*got 1.5"),
        (STREAM, {"reach": (1, 0.5)}, ValueError, r"reach must be 2 .*got \(1, 0.5\)"),
        (LINE, {"reach": (1, 1)}, ValueError, r"reach must be 1 .*got \(1, 1\)"),
        (STREAM, {"dilation": 0}, ValueError, "positive.*got 0"),
        (STREAM, {"dilation": 1.5}, ValueError, "dilation must be .*got 1.5"),
        (STREAM, {"dilation": [1, 2]}, ValueError, "for each of the 4 layers .*got 2"),
        (STREAM, {"dilation": [1, 2, 1, (1, 2, 3)]}, ValueError, r"positive.*got \(1, 2, 3\)"),
        (STREAM, {"dilation": [1, 2, 1, 0.5]}, ValueError, r"positive.*got 0.5"),
        (STREAM, {"dilation": [1, 2, 1, 2]}, ValueError, "different dilations need tied=False"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(model, options, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        ConvolutionalEncoder(model, **options)


@pytest.mark.parametrize("parts", [None, (1, 1, 1)])
def test_a_low_rank_model_has_two_parts(parts) -> None:
    with pytest.raises(TypeError, match=r"must be a Convolution with parts=\(q0, q1\)"):
        ConvolutionalLowRankSparse(convolution((3,), (11,), parts=parts), 0.1, 0.1)


def test_depth_cannot_be_changed() -> None:
    encoder, other = ConvolutionalEncoder(LINE, 4), ConvolutionalEncoder(LINE, 5)
    with pytest.raises(AttributeError, match="has 4 layers and keeps them"):
        encoder.layers = 5
    with pytest.raises(RuntimeError, match="trained for a depth of 4, the encoder has 5"):
        other.load_state_dict(encoder.state_dict())


def test_bad_signals_get_one_sentence() -> None:
    encoder = ConvolutionalEncoder(LINE)
    x = signals(LINE)
    with pytest.raises(ValueError, match="x has 10 features, but the encoder's dictionary has 11"):
        encoder(x[:, 1:])
    x[2, 3] = torch.nan
    with pytest.raises(ValueError, match="x contains NaN or infinite values"):
        encoder(x)
