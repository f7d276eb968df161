"""Models: objective, gradient, step constants, parts, and the coordinates iterations run in."""

from __future__ import annotations

import pytest
import torch

from families import FEATURES, MODELS, full_dictionary, problem
from pursuit import models
from pursuit.models import LowRankSparse, RobustPCA, SparseModel
from pursuit.operators import Joined
from pursuit.penalties import L1


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def feasible_codes(model: SparseModel, rows: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(rows, model.code_size, generator=generator, dtype=torch.float64)
    sign = model.penalty.sign_constraint(model.code_size)
    return codes if sign is None else torch.where(sign, codes.abs(), codes)


def test_objective_is_the_formula(name: str) -> None:
    model, x = problem(name, 0, 7)
    codes = feasible_codes(model, 7)
    expected = (x - codes @ full_dictionary(model)).square().sum(dim=1) / 2
    torch.testing.assert_close(model.decode(codes), codes @ full_dictionary(model))
    torch.testing.assert_close(model.objective(x, codes), expected + model.penalty.value(codes))


def test_block_energies_are_squared_norms(name: str) -> None:
    model, _ = problem(name, 0, 7)
    codes = feasible_codes(model, 7)
    expected = [torch.linalg.vector_norm(codes[:, block], dim=1) ** 2 for block in model.blocks]
    torch.testing.assert_close(model.block_energies(codes), torch.stack(expected, dim=1))
    with pytest.raises(ValueError, match="coefficients"):
        model.block_energies(codes[:, 1:])


def test_objective_with_a_mask_leaves_out_what_is_unobserved(name: str) -> None:
    model, x = problem(name, 0, 7)
    codes = feasible_codes(model, 7)
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) > 0.3
    residual = (x - codes @ full_dictionary(model))[mask.logical_not()].square().sum() / 2
    whole, masked = model.objective(x, codes).sum(), model.objective(x, codes, mask).sum()
    torch.testing.assert_close(whole - masked, residual)


def test_gradient_is_that_of_the_smooth_part(name: str) -> None:
    model, x = problem(name, 1, 5)
    codes = feasible_codes(model, 5).requires_grad_()
    smooth = model.objective(x, codes) - model.nonsmooth.value(codes)
    (expected,) = torch.autograd.grad(smooth.sum(), codes)
    torch.testing.assert_close(model.gradient(x, codes), expected)
    torch.testing.assert_close(model.gradient(x, codes), codes @ model.Q - model.correlate(x))


def test_constants_are_the_eigenvalues_of_q(name: str) -> None:
    for variant in (model := problem(name, 2, 1)[0], model.normalised):
        q = variant.Q
        assert variant.step_constant == pytest.approx(float(torch.linalg.eigvalsh(q)[-1]), 1e-12)
        torch.testing.assert_close(variant.coordinate_constants, q.diag())
        for block, constant in zip(variant.blocks, variant.block_constants, strict=True):
            largest = torch.linalg.eigvalsh(q[block][:, block])[-1]
            torch.testing.assert_close(constant, largest)


def test_normalised_coordinates_describe_the_same_problem(name: str) -> None:
    model, x = problem(name, 3, 6)
    codes = feasible_codes(model, 6)
    there = model.to_normalised(codes)
    torch.testing.assert_close(model.normalised.objective(x, there), model.objective(x, codes))
    torch.testing.assert_close(model.from_normalised(there), codes)
    assert model.normalised.normalised is model.normalised


def test_robust_models_are_rescaled_to_a_step_constant_of_about_two() -> None:
    dictionary = 30 * torch.rand(4, 50, dtype=torch.float64)
    model = models.RobustPCA(dictionary, lam_star=8.0, lam=0.1)
    assert model.step_constant > 1000
    assert model.normalised.step_constant == pytest.approx(2.0, abs=0.1)
    assert torch.equal(model.dictionary, dictionary)
    norm = float(torch.linalg.matrix_norm(model.normalised.dictionary, 2))
    assert norm == pytest.approx(1.0)


def test_the_scale_is_frozen_until_the_dictionary_is_replaced() -> None:
    dictionary = torch.rand(4, 10, dtype=torch.float64)
    model = models.RobustNMF(dictionary, 1.0, 0.1)
    assert model.replace(lam=0.2).scale == model.scale
    assert model.replace(dictionary=2 * dictionary).scale == pytest.approx(2 * model.scale)
    kept = model.replace(dictionary=2 * dictionary, scale=model.scale)
    assert kept.scale == model.scale
    assert model.to(torch.float32).scale == model.scale


def test_structured_models_form_nothing_of_the_size_of_the_identity() -> None:
    """An identity of this size would take 80 GB."""
    features = 100_000
    generator = torch.Generator().manual_seed(0)
    dictionary = torch.rand(3, features, generator=generator)
    model = models.RobustNMF(dictionary, 1.0, 0.5)
    x = torch.rand(2, features, generator=generator)
    solution = model_solution(model, x)
    assert solution.converged.all()


def model_solution(model: SparseModel, x: torch.Tensor):
    import pursuit as pu

    return pu.solve(model, x, tol=1e-4)


def test_parts_add_up_to_the_decoded_signal() -> None:
    for name in MODELS:
        model, _ = problem(name, 4, 1)
        codes = feasible_codes(model, 5)
        parts = model.split(codes)
        pieces = [part for part in (parts.low_rank, parts.sparse) if part is not None]
        torch.testing.assert_close(torch.stack(pieces).sum(dim=0), model.decode(codes))
        if isinstance(model, RobustPCA | LowRankSparse):
            assert parts.scores is not None
            assert parts.outliers is not None
            torch.testing.assert_close(torch.cat([parts.scores, parts.outliers], 1), codes)


def test_replace_and_to_give_new_models(name: str) -> None:
    model, x = problem(name, 5, 4)
    codes = feasible_codes(model, 4)
    twin = type(model)(**model.config)
    assert torch.equal(twin.objective(x, codes), model.objective(x, codes))
    assert model.to(torch.float64) is model
    single = model.to(torch.float32)
    assert single.dtype == torch.float32
    assert single.objective(x.float(), codes.float()).dtype == torch.float32
    with pytest.raises(TypeError, match="has no argument nonsense"):
        model.replace(nonsense=1)
    assert type(model).__name__ in repr(model)


def test_an_operator_is_replaced_as_a_whole_or_in_part() -> None:
    low_rank, sparse = torch.rand(2, 4), torch.rand(3, 4)
    model = SparseModel(Joined(low_rank, sparse), L1(0.1))
    for changed in (
        model.replace(dictionary=Joined(2 * low_rank, sparse)),
        model.replace(low_rank=2 * low_rank),
    ):
        assert torch.equal(changed.dictionary, torch.cat([2 * low_rank, sparse]))
    assert torch.equal(model.replace(dictionary=sparse).dictionary, sparse)


def test_dtype_follows_the_data() -> None:
    model, x = problem("lasso", 6, 3)
    codes = torch.ones(3, model.code_size)
    assert model.decode(codes).dtype == torch.float32
    assert model.objective(x.float(), codes).dtype == torch.float32


D = torch.eye(3, FEATURES)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: models.Lasso(torch.ones(2, 3, dtype=torch.int64), 1.0), TypeError, "int64"),
        (lambda: models.Lasso(torch.ones(3), 1.0), ValueError, "two dimensions"),
        (lambda: models.Lasso(torch.ones(0, 3), 1.0), ValueError, "dictionary is empty"),
        (lambda: models.Lasso(1e-40 * torch.ones(2, 3), 1.0), ValueError, "atom 0 .* too small"),
        (lambda: models.Lasso(1e30 * torch.ones(2, 3), 1.0), ValueError, "numbers .* too large"),
        (lambda: models.Lasso(torch.tensor([[1.0, torch.nan]]), 1.0), ValueError, "NaN"),
        (lambda: models.Lasso(torch.tensor([[1.0, torch.inf]]), 1.0), ValueError, "infinite"),
        (lambda: models.Lasso(torch.zeros(1, 3), 1.0), ValueError, "atom 0 of dictionary is zero"),
        (lambda: models.Lasso("D", 1.0), TypeError, "dictionary must be a tensor or an array"),
        (
            lambda: models.Lasso(D, -0.1),
            ValueError,
            "lam must be non-negative and finite, got -0.1",
        ),
        (lambda: models.Lasso(D, [1.0, 2.0]), ValueError, "lam has 2 weights, but there are 3"),
        (lambda: models.GroupLasso(D, [[0, 3]], 1.0), ValueError, "only 3 coefficients"),
        (lambda: models.HiLasso(D, [[0, 1], [1, 2]], 1.0, 1.0), ValueError, "must not overlap"),
        (lambda: models.NMF(D, ridge=-1.0), ValueError, "ridge must be non-negative"),
        (lambda: models.RobustPCA(D, -1.0, 1.0), ValueError, "lam_star must be non-negative"),
        (lambda: models.RobustPCA(D, 1.0, -1.0), ValueError, "lam must be non-negative"),
        (lambda: models.RobustPCA(D, [1.0, 2.0], 1.0), ValueError, "lam_star must be one number"),
        (lambda: models.RobustPCA(D, 1.0, 1.0, scale=0.0), ValueError, "scale must be positive"),
        (lambda: models.RobustNMF(torch.zeros(2, 3), 1.0, 1.0), ValueError, "is zero"),
        (lambda: models.LowRankSparse(D, D[:2, :2], 1.0, 1.0), ValueError, "sparse has 2 features"),
        (lambda: models.LowRankSparse(D, D, 1.0, 1.0, -1.0), ValueError, "sparse_ridge"),
        (lambda: models.LowRankSparse(D, D.to("meta"), 1.0, 1.0), ValueError, "sparse is on meta"),
        (lambda: models.SparseModel(D, "l1"), TypeError, "penalty must be a Penalty, got str"),
        (lambda: models.Lasso(D, 1.0).decode(torch.ones(2, 5)), ValueError, "codes has 5"),
        (lambda: models.RobustPCA(D, 1.0, 1.0).decode(torch.ones(2, 5)), ValueError, "codes has 5"),
        (lambda: models.RobustPCA(D, 1.0, 1.0).split(torch.ones(2, 5)), ValueError, "codes has 5"),
        (lambda: models.Lasso(D, 1.0).correlate(torch.ones(2, 5)), ValueError, "signals has 5"),
        (
            lambda: models.Lasso(D, 1.0).objective(torch.ones(2, 5), torch.ones(2, 3)),
            ValueError,
            "x has 5 features, but the dictionary has 8",
        ),
    ],
)
def test_bad_input_gets_one_sentence(make, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make()
