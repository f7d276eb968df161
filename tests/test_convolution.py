"""Convolutional dictionaries: the operator, its constants, and exact codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pursuit as pu
from pursuit.operators import Convolution, Operator
from pursuit.operators import convolution as module
from pursuit.penalties import L1, Elastic, NonNegative

#: operators with one and two axes, strides, dilations and channels
CASES = {
    "one axis": {"kernel": (3,), "shape": (11,)},
    "stride": {"kernel": (4,), "shape": (14,), "stride": 3},
    "dilation": {"kernel": (3,), "shape": (12,), "dilation": 2},
    "two axes": {"kernel": (2, 3), "shape": (5, 7)},
    "all": {"kernel": (2, 3), "shape": (8, 9), "stride": (1, 2), "dilation": (2, 1), "channels": 2},
}


@pytest.fixture(params=list(CASES))
def operator(request: pytest.FixtureRequest) -> Convolution:
    case = CASES[request.param]
    size = int(np.prod(case["kernel"])) * case.get("channels", 1)
    atoms = torch.randn(3, size, generator=torch.Generator().manual_seed(1)).double()
    return Convolution(atoms, **case)


def by_hand(operator: Convolution) -> torch.Tensor:
    """All atoms at all positions, written into their places one by one."""
    sides = (operator.channels, *operator.shape)
    rows = []
    for atom in operator.dictionary.reshape(-1, operator.channels, *operator.kernel):
        for place in np.ndindex(*operator.positions):
            signal = torch.zeros(sides, dtype=torch.float64)
            for entry in np.ndindex(operator.channels, *operator.kernel):
                where = [
                    p * s + e * d
                    for p, s, e, d in zip(
                        place, operator.stride, entry[1:], operator.dilation, strict=True
                    )
                ]
                signal[(entry[0], *where)] = atom[entry]
            rows.append(signal.flatten())
    return torch.stack(rows)


def test_atoms_slide_over_all_positions(operator: Convolution) -> None:
    torch.testing.assert_close(operator.atoms, by_hand(operator))
    assert operator.code_size == len(operator.atoms)


def test_products_are_those_of_the_matrix(operator: Convolution) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4, operator.code_size, generator=generator).double()
    x = torch.randn(4, operator.features, generator=generator).double()
    matrix = operator.atoms
    torch.testing.assert_close(operator.decode(z), z @ matrix)
    torch.testing.assert_close(operator.correlate(x), x @ matrix.T)
    torch.testing.assert_close(operator.squared_norms(), matrix.square().sum(dim=1))
    torch.testing.assert_close(operator.rows([0, 5, 2]), matrix[[0, 5, 2]])
    assert operator.maps(z).shape == (4, 3, *operator.positions)


def test_the_bound_of_large_operators_is_tight(
    operator: Convolution, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = operator.largest_eigenvalue()
    assert exact == pytest.approx(float(torch.linalg.matrix_norm(operator.atoms, 2)) ** 2)
    monkeypatch.setattr(module, "LARGEST_MATRIX", 0)
    bound = operator.largest_eigenvalue()
    assert exact <= bound
    # the bound is that of endless signals and of all positions
    longer = Convolution(
        operator.dictionary,
        shape=tuple(12 * side for side in operator.shape),
        kernel=operator.kernel,
        dilation=operator.dilation,
        channels=operator.channels,
    )
    z = torch.randn(1, longer.code_size, generator=torch.Generator().manual_seed(0)).double()
    for _ in range(300):
        z = longer.correlate(longer.decode(z / z.norm()))
    assert bound < 1.03 * float(z.norm())


@pytest.mark.parametrize("penalty", [L1(0.3), L1(0.3, nonnegative=True), Elastic(L1(0.2), 0.1)])
def test_large_operators_are_solved_as_small_ones(
    operator: Convolution, penalty: pu.penalties.Penalty, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(5, operator.features, generator=torch.Generator().manual_seed(0)).double()
    model = pu.models.SparseModel(operator, penalty)
    small = pu.solve(model, x, tol=1e-9)
    monkeypatch.setattr(module, "LARGEST_MATRIX", 0)
    large = pu.solve(pu.models.SparseModel(operator, penalty), x, tol=1e-9)
    assert large.method == "restart"
    assert bool(large.converged.all())
    torch.testing.assert_close(large.objective, small.objective, rtol=1e-8, atol=1e-8)
    matrix = pu.models.SparseModel(operator.atoms, penalty)
    torch.testing.assert_close(
        pu.solve(matrix, x, tol=1e-9).objective, large.objective, rtol=1e-8, atol=1e-8
    )


def test_a_large_picture_is_coded_without_its_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    atoms = torch.nn.functional.normalize(torch.randn(6, 25, generator=generator)).reshape(6, 5, 5)
    operator = Convolution(atoms, shape=(64, 48))
    assert not operator.is_small
    truth = torch.zeros(1, operator.code_size)
    truth[0, torch.randperm(operator.code_size, generator=generator)[:60]] = 3.0
    x = operator.decode(truth)
    model = pu.models.SparseModel(operator, L1(0.05))
    solution = pu.solve(model, x, tol=1e-4)
    assert bool(solution.converged.all())
    error = (operator.decode(solution.codes) - x).norm() / x.norm()
    assert float(error) < 0.1


def test_models_with_convolutions_are_saved(operator: Convolution, tmp_path) -> None:
    model = pu.models.SparseModel(operator, NonNegative())
    encoder = pu.ProximalEncoder(model, layers=2)
    pu.save(encoder, tmp_path / "encoder.safetensors")
    loaded = pu.load(tmp_path / "encoder.safetensors")
    assert isinstance(loaded.model.operator, Convolution)
    assert loaded.model.operator.positions == operator.positions
    x = torch.randn(3, operator.features).double()
    torch.testing.assert_close(loaded(x), encoder(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (3, 3, 3)}, "shape must have one or two numbers"),
        ({"shape": (2,)}, "do not fit into signals"),
        ({"shape": (9,), "stride": 0}, "stride must be positive"),
        ({"shape": (9,), "stride": (1, 2)}, "stride must have 1 number"),
        ({"shape": (9, 9)}, "dictionary must have shape"),
        ({"shape": (9,), "kernel": (2,)}, "an atom must have 2 entries"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Convolution(torch.ones(2, 3), **arguments)


def test_atoms_are_not_a_regression(operator: Operator) -> None:
    x = torch.randn(4, operator.features).double()
    with pytest.raises(TypeError, match="gradient"):
        operator.regression(x, operator.correlate(x))
