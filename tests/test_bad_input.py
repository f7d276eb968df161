"""Every public entry answers bad input with one clear sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pursuit as pu

MODEL = pu.models.Lasso(torch.eye(3, 4), lam=0.1)
ROBUST = pu.models.RobustPCA(torch.eye(3, 4), 1.0, 0.1)
X = torch.ones(2, 4)


def entries(model: pu.models.SparseModel):
    codes = torch.zeros(2, model.code_size)
    return {
        "solve": lambda x: pu.solve(model, x),
        "certify": lambda x: pu.certify(model, x, codes),
    }


ENTRIES = {
    **{f"lasso-{name}": entry for name, entry in entries(MODEL).items()},
    **{f"robust-{name}": entry for name, entry in entries(ROBUST).items()},
    "principal_component_pursuit": lambda x: pu.principal_component_pursuit(x, 1.0, 0.1),
    "certify_low_rank": lambda x: pu.certify_low_rank(x, x, x, 1.0, 0.1),
}


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    ("x", "error", "sentence"),
    [
        (torch.full((2, 4), torch.nan), ValueError, "x contains NaN or infinite values"),
        (torch.full((2, 4), torch.inf), ValueError, "x contains NaN or infinite values"),
        (torch.ones(2, 4).to_sparse(), TypeError, r"dense tensor, got a sparse one.*x\.to_dense"),
        (torch.ones(4), ValueError, r"two dimensions.*got shape \(4,\); for a single row pass x"),
        (torch.ones(1, 2, 4), ValueError, "two dimensions"),
        (torch.ones(2, 4, dtype=torch.int64), TypeError, "x must be float32 or float64, got int64"),
        (np.ones((2, 4), dtype=np.int32), TypeError, "got int32"),
        (torch.ones(2, 4, dtype=torch.complex64), TypeError, "got complex64"),
        (torch.ones(2, 4, dtype=torch.float16), TypeError, "got float16"),
        ("signals", TypeError, "x must be a tensor or an array of numbers, got str"),
        (None, TypeError, "x must be a tensor or an array of numbers, got NoneType"),
    ],
)
def test_signals(entry: str, x, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        ENTRIES[entry](x)


def test_a_batch_without_rows() -> None:
    """What maps rows to rows takes none; what learns from all rows needs some."""
    x, encoder = X[:0], pu.ProximalEncoder(MODEL, 2)
    for model in (MODEL, ROBUST):
        solution = pu.solve(model, x)
        assert solution.codes.shape == (0, model.code_size)
        assert solution.gap.shape == solution.objective.shape == solution.converged.shape == (0,)
        assert "rows=0" in repr(solution)
        assert pu.certify(model, x, solution.codes).shape == (0,)
    assert pu.solve(MODEL, x, mask=x > 0, init=encoder).codes.shape == (0, 3)
    assert pu.compile(encoder)(x).shape == encoder(x).shape == (0, 3)
    assert pu.OnlineLearner(encoder).partial_fit(x).samples == 0
    for entry in (
        lambda: pu.principal_component_pursuit(x, 1.0, 0.1),
        lambda: pu.certify_low_rank(x, x, x, 1.0, 0.1),
        lambda: pu.fit(encoder, x, steps=1),
    ):
        with pytest.raises(ValueError, match="x is empty"):
            entry()


@pytest.mark.parametrize("groups", [[0, 0, 1], 2, torch.arange(3), "auto", [[0.5], [1]]])
def test_groups_are_lists_of_numbers(groups) -> None:
    with pytest.raises(TypeError, match=r"groups must be lists of coefficient numbers, such as"):
        pu.penalties.GroupL2(groups, 0.1)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="needs longer floats")
def test_long_doubles_are_refused() -> None:
    with pytest.raises(TypeError, match=r"x must be float32 or float64.*x\.astype"):
        pu.solve(MODEL, np.ones((2, 4), np.longdouble))


def test_byte_order_makes_no_difference() -> None:
    x = np.random.default_rng(0).standard_normal((5, 4))
    swapped = x.astype(">f8")
    assert torch.equal(pu.solve(MODEL, x).codes, pu.solve(MODEL, swapped).codes)
    single = x.astype(np.float32)
    encoder = pu.ProximalEncoder(MODEL, 2)
    codes = pu.compile(encoder)(single)
    np.testing.assert_array_equal(pu.compile(encoder)(single.astype(">f4")), codes)
    pu.fit(encoder, swapped, steps=1)
    assert pu.OnlineLearner(encoder).partial_fit(swapped).received == 5
    assert pu.models.Lasso(np.eye(3, dtype=">f4"), 0.1).dtype == torch.float32


def test_other_entries_refuse_what_is_not_dense() -> None:
    encoder, x = pu.ProximalEncoder(MODEL, 2), X.to_sparse()
    for entry in (
        lambda: encoder(x),
        lambda: pu.compile(encoder)(x),
        lambda: pu.fit(encoder, x, steps=1),
        lambda: pu.OnlineLearner(encoder).partial_fit(x),
        lambda: pu.models.Lasso(x, 0.1),
        lambda: pu.models.Lasso(X, torch.ones(2).to_sparse()),
    ):
        with pytest.raises(TypeError, match="must be a dense tensor, got a sparse one"):
            entry()


def test_words_are_not_weights() -> None:
    with pytest.raises(TypeError, match=r"ridge must be a number or a vector.*, got 'auto'"):
        pu.models.NMF(torch.eye(3), ridge="auto")


@pytest.mark.parametrize("entry", [name for name in ENTRIES if "-" in name])
def test_signals_that_do_not_fit_the_model(entry: str) -> None:
    with pytest.raises(ValueError, match="x has 5 features, but the dictionary has 4"):
        ENTRIES[entry](torch.ones(2, 5))
    with pytest.raises(ValueError, match="x is on meta, but the model is on cpu"):
        ENTRIES[entry](torch.ones(2, 4, device="meta"))


@pytest.mark.parametrize(
    ("codes", "error", "sentence"),
    [
        (torch.zeros(2, 5), ValueError, "codes has 5 coefficients, but the model has 3"),
        (torch.zeros(3, 3), ValueError, r"one row per signal \(2\), got 3 rows"),
        (torch.full((2, 3), torch.nan), ValueError, "codes contains NaN"),
        (torch.zeros(2, 3, dtype=torch.int64), TypeError, "codes must be float32 or float64"),
        (torch.zeros(2, 3, device="meta"), ValueError, "codes is on meta, but x is on cpu"),
    ],
)
def test_codes(codes: torch.Tensor, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        pu.certify(MODEL, X, codes)
    with pytest.raises(error, match=sentence.replace("codes", "init")):
        pu.solve(MODEL, X, init=codes)


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"method": "lars"}, ValueError, "method must be one of 'auto', 'ista', .*got 'lars'"),
        ({"tol": -1.0}, ValueError, "tol must be non-negative and finite, got -1.0"),
        ({"tol": float("nan")}, ValueError, "tol must be non-negative and finite, got nan"),
        ({"max_iter": 0}, ValueError, "max_iter must be at least 1, got 0"),
        ({"max_iter": 2.5}, TypeError, "max_iter must be a whole number, got 2.5"),
        ({"mask": torch.ones(2, 4)}, TypeError, "mask must be boolean"),
        ({"mask": torch.ones(2, 3) > 0}, ValueError, r"mask must have the shape of x \(2, 4\)"),
        ({"mask": torch.ones(2, 4, device="meta") > 0}, ValueError, "mask is on meta"),
    ],
)
def test_arguments_of_solve(arguments, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        pu.solve(MODEL, X, **arguments)


def test_what_is_not_a_model() -> None:
    for entry in (pu.solve, lambda model, x: pu.certify(model, x, x)):
        with pytest.raises(TypeError, match="model must be a SparseModel, got str"):
            entry("lasso", X)


def test_weights_of_principal_component_pursuit() -> None:
    with pytest.raises(ValueError, match="lam_star must be non-negative"):
        pu.principal_component_pursuit(X, -1.0, 0.1)
    with pytest.raises(ValueError, match="lam must be non-negative"):
        pu.principal_component_pursuit(X, 1.0, -0.1)
    with pytest.raises(ValueError, match="low_rank must have one row per signal"):
        pu.certify_low_rank(X, X[:1], X, 1.0, 0.1)


def test_numpy_arrays_are_welcome() -> None:
    x = np.random.default_rng(0).standard_normal((5, 4))
    model = pu.models.Lasso(np.eye(3, 4), lam=0.1)
    solution = pu.solve(model, x[::-1])
    assert solution.codes.dtype == torch.float64
    assert solution.converged.all()
    mask = np.ones((5, 4), dtype=bool)
    assert pu.solve(model, x, mask=mask).converged.all()


def test_a_failed_call_leaves_the_input_alone() -> None:
    x = torch.full((2, 4), torch.nan)
    mask = torch.tensor([[True, False, True, True]] * 2)
    with pytest.raises(ValueError, match="NaN"):
        pu.solve(MODEL, x, mask=mask)
    assert torch.isnan(x).all()
