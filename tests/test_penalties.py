"""Penalties: every shrinkage is the minimiser that it claims to be, and the duality holds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import pursuit as pu
from families import LEAVES, PAIRS, PENALTIES, SIZE, reference_prox
from pursuit.penalties import (
    L1,
    Elastic,
    GroupL2,
    NonNegative,
    Penalty,
    Ridge,
    Stacked,
    TreeL2,
)
from pursuit.penalties.base import checked_stages


@pytest.fixture(params=PENALTIES)
def penalty(request: pytest.FixtureRequest) -> Penalty:
    return PENALTIES[request.param]()


def draw(rows: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, SIZE, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("step", [0.1, 1.0, 5.0])
def test_prox_is_the_minimiser(penalty: Penalty, step: float, dtype: torch.dtype) -> None:
    v = draw(20, dtype=dtype)
    ours = penalty.prox(v, step)
    assert ours.dtype == dtype
    reference = torch.from_numpy(reference_prox(penalty, v.double(), step))

    def merit(u: Tensor) -> Tensor:
        return (u - v.double()).square().sum(dim=1) / 2 + step * penalty.value(u)

    feasible = reference if penalty.sign_constraint(SIZE) is None else reference.clamp_min(0)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-9
    assert (merit(ours.double()) <= merit(feasible) + tolerance).all()
    torch.testing.assert_close(ours.double(), reference, atol=1e-4, rtol=0)


def test_prox_is_firmly_nonexpansive(penalty: Penalty, dtype: torch.dtype) -> None:
    a, b = draw(2000, 1, dtype), draw(2000, 2, dtype)
    pa, pb = penalty.prox(a, 0.7), penalty.prox(b, 0.7)
    inner = ((pa - pb) * (a - b)).sum(dim=1)
    assert ((pa - pb).square().sum(dim=1) <= inner * (1 + 1e-5) + 1e-6).all()


def test_prox_passes_gradcheck_away_from_kinks(penalty: Penalty) -> None:
    v = (3 * draw(4, 3)).requires_grad_()
    thresholds = tuple(t.clone().requires_grad_() for t in penalty.thresholds(0.5))
    assert torch.autograd.gradcheck(lambda v, *t: penalty.shrink(v, t), (v, *thresholds))


def test_value_passes_gradcheck(penalty: Penalty) -> None:
    codes = draw(4, 4).abs() + 0.1
    assert torch.autograd.gradcheck(penalty.value, codes.requires_grad_())


def test_gradients_at_zero_are_finite(penalty: Penalty, dtype: torch.dtype) -> None:
    for function in (penalty.value, lambda v: penalty.prox(v, 0.5).sum()):
        v = torch.zeros(2, SIZE, dtype=dtype, requires_grad=True)
        (function(v).sum() + 0 * v.sum()).backward()
        assert v.grad is not None
        assert torch.isfinite(v.grad).all()


def test_gauge_is_that_of_the_set_whose_support_function_is_the_penalty(penalty: Penalty) -> None:
    """u in C exactly if u'z <= g(z) for all z; the prox of g at u is zero exactly there."""
    g = penalty.nonsmooth
    charged = g.penalised(SIZE)
    u = draw(200, 5) * charged
    gauge = g.gauge(u)
    if not charged.any():
        assert (gauge == 0).all()
        return
    assert (gauge > 0).all()
    inside = u / gauge[:, None] * (1 - 1e-9)
    outside = u / gauge[:, None] * (1 + 1e-6)
    assert (g.prox(inside, 1.0)[:, charged] == 0).all()
    assert (g.prox(outside, 1.0)[:, charged] != 0).any(dim=1).all()
    z = draw(200, 6) * charged
    z = z if g.sign_constraint(SIZE) is None else z.abs()
    assert ((inside[:, None] * z[None]).sum(dim=2) <= g.value(z)[None] + 1e-9).all()


def test_quadratic_and_nonsmooth_parts_add_up(penalty: Penalty) -> None:
    codes = draw(50, 7).abs()
    total = penalty.nonsmooth.value(codes)
    curvature = penalty.curvature(SIZE)
    if curvature is not None:
        total = total + (codes.square() * curvature).sum(dim=1) / 2
    torch.testing.assert_close(total, penalty.value(codes))
    assert penalty.nonsmooth.curvature(SIZE) is None
    torch.testing.assert_close(
        penalty.nonsmooth.value(3 * codes), 3 * penalty.nonsmooth.value(codes)
    )


def test_blocks_are_a_partition_on_which_the_penalty_adds_up(penalty: Penalty) -> None:
    blocks = penalty.blocks(SIZE)
    assert sorted(i for block in blocks for i in block) == list(range(SIZE))
    codes = draw(20, 8).abs()
    parts = torch.zeros(20, dtype=torch.float64)
    for block in blocks:
        alone = torch.zeros_like(codes)
        alone[:, block] = codes[:, block]
        parts = parts + penalty.value(alone)
    torch.testing.assert_close(parts, penalty.value(codes))


def test_config_makes_an_equal_penalty(penalty: Penalty) -> None:
    twin = type(penalty)(**penalty.config)
    v = draw(10, 9)
    assert torch.equal(twin.prox(v, 0.4), penalty.prox(v, 0.4))
    assert torch.equal(twin.value(v.abs()), penalty.value(v.abs()))
    assert type(penalty).__name__ in repr(penalty)


def test_negative_codes_of_a_nonnegative_penalty_cost_infinity() -> None:
    codes = torch.tensor([[1.0, 2.0], [1.0, -1e-9]])
    for penalty in (NonNegative(), L1(1.0, True), GroupL2([[0, 1]], 1.0, True), Ridge(1.0, True)):
        value = penalty.value(codes)
        assert torch.isfinite(value[0])
        assert torch.isinf(value[1])


def test_singleton_groups_are_l1() -> None:
    v = draw(100, 10)
    group, l1 = GroupL2(LEAVES, 0.3), L1(0.3)
    torch.testing.assert_close(group.prox(v, 0.9), l1.prox(v, 0.9))
    torch.testing.assert_close(group.value(v), l1.value(v))
    torch.testing.assert_close(group.gauge(v), l1.gauge(v))


def test_a_tree_of_one_level_is_the_group_penalty() -> None:
    v = draw(100, 11)
    tree, group = TreeL2([(PAIRS, 0.3)]), GroupL2(PAIRS, 0.3)
    assert torch.equal(tree.prox(v, 0.9), group.prox(v, 0.9))


def test_levels_without_weight_change_nothing() -> None:
    v = draw(100, 12)
    tree = TreeL2([(LEAVES, 0.0), (PAIRS, 0.3), ([list(range(SIZE))], 0.0)])
    torch.testing.assert_close(tree.prox(v, 0.9), GroupL2(PAIRS, 0.3).prox(v, 0.9))
    torch.testing.assert_close(tree.gauge(v), GroupL2(PAIRS, 0.3).gauge(v))


def test_per_coefficient_steps_are_those_of_a_weighted_prox() -> None:
    v, steps = draw(30, 13), torch.linspace(0.1, 2.0, SIZE, dtype=torch.float64)
    ours = L1(WEIGHT := 0.3).prox(v, steps)
    torch.testing.assert_close(ours, L1(WEIGHT * steps).prox(v, 1.0))
    stacked = Stacked([(L1(0.3), 5), (L1(0.3), SIZE - 5)])
    torch.testing.assert_close(stacked.prox(v, steps), ours)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: L1(-0.1), "lam must be non-negative and finite, got -0.1"),
        (lambda: L1(float("nan")), "lam must be non-negative and finite, got nan"),
        (lambda: L1([]), "lam is empty"),
        (lambda: L1([[1.0]]), r"lam must be a number or a vector, got shape \(1, 1\)"),
        (lambda: Ridge(-1.0), "ridge must be non-negative"),
        (lambda: GroupL2([], 1.0), "groups is empty"),
        (lambda: GroupL2([[0], []], 1.0), "group 1 is empty"),
        (lambda: GroupL2([[0, -1]], 1.0), "group 0 refers to coefficient -1"),
        (lambda: GroupL2([[0, 1], [1, 2]], 1.0), "coefficient 1 is in group 0 and in group 1"),
        (lambda: GroupL2([[0], [1]], [1.0, 2.0, 3.0]), "lam has 3 entries.*2 groups"),
        (lambda: TreeL2([]), "levels is empty"),
        (lambda: TreeL2([([[0, 1]], 1.0), ([[1, 2]], 1.0)]), "levels do not nest"),
        (lambda: TreeL2([([[0, 1]], 1.0), ([[5]], 1.0), ([[1, 2]], 1.0)]), "levels do not nest"),
        (lambda: TreeL2([([[0, 1]], 1.0), ([[0]], 1.0)]), "levels do not nest"),
        (lambda: GroupL2([[0, 7]], 1.0).check(4), "coefficient 7, but there are only 4"),
        (lambda: GroupL2([[0, 7]], 1.0).value(torch.ones(1, 4)), "only 4 coefficients"),
        (lambda: L1([1.0, 2.0]).check(3), "lam has 2 weights, but there are 3"),
        (lambda: Elastic(GroupL2([[0, 1]], 1.0), [1.0, 2.0]).check(2), "ridge differs within"),
        (lambda: Elastic(L1(1.0), [1.0, 2.0]).check(3), "ridge has 2 weights"),
        (lambda: Stacked([]), "parts is empty"),
        (lambda: Stacked([(L1(1.0), 0)]), "size of a part must be at least 1"),
        (lambda: Stacked([(L1([1.0]), 2)]), "lam has 1 weights"),
        (lambda: Stacked([(L1(1.0), 2)]).check(3), "cover 2 coefficients, but there are 3"),
    ],
)
def test_a_wrong_structure_is_named_in_one_sentence(make, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_weight_that_is_no_number_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="lam must be a number or a vector of numbers, got 'auto'"):
        L1("auto")


class ThreeMembers(Penalty):
    """Another penalty's value, thresholds and shrinkage, and nothing else."""

    def __init__(self, penalty: Penalty) -> None:
        self.penalty = penalty

    def value(self, codes):
        return self.penalty.value(codes)

    def thresholds(self, step):
        return self.penalty.thresholds(step)

    def shrink(self, v, thresholds):
        return self.penalty.shrink(v, thresholds)


def test_what_follows_from_the_three_members(penalty: Penalty) -> None:
    """The defaults agree with the closed forms that the penalties override them with."""
    g = penalty.nonsmooth
    derived = ThreeMembers(g)
    assert torch.equal(derived.penalised(SIZE), g.penalised(SIZE))
    expected, sign = g.sign_constraint(SIZE), derived.sign_constraint(SIZE)
    assert (expected is None) == (sign is None)
    if expected is not None and sign is not None:
        assert torch.equal(expected, sign)
    u = draw(50, 14) * torch.logspace(-9, 9, 50, dtype=torch.float64)[:, None]
    torch.testing.assert_close(derived.gauge(u), g.gauge(u), rtol=1e-12, atol=0)
    coarse, fine = derived.blocks(SIZE), g.blocks(SIZE)
    single = all(len(block) == 1 for block in fine)
    assert coarse == (fine if single else [list(range(SIZE))])


@pytest.mark.parametrize("name", ["l1", "l1-weighted", "l1-nonnegative", "zero", "nonnegative"])
def test_weights_follow_from_the_three_members(name: str) -> None:
    penalty = PENALTIES[name]()
    expected = penalty.value(torch.eye(SIZE, dtype=torch.float64))
    torch.testing.assert_close(ThreeMembers(penalty).weights(SIZE), expected)
    torch.testing.assert_close(penalty.weights(SIZE), expected)


def test_stages_describe_the_shrinkage(penalty: Penalty) -> None:
    """Applied by hand, as another program would read them."""
    g = penalty.nonsmooth
    v, thresholds = 3 * draw(20, 15), g.thresholds(0.7)
    sign = g.sign_constraint(SIZE)
    shrunk = v.clone() if sign is None else torch.where(sign, v.clamp_min(0), v)
    for labels, threshold in zip(checked_stages(g, SIZE), thresholds, strict=True):
        values = threshold.expand(int(labels.max()) + 1)
        for number, value in enumerate(values):
            group = labels == number
            norm = shrunk[:, group].norm(dim=1, keepdim=True)
            shrunk[:, group] = shrunk[:, group] * (1 - value / norm.clamp_min(1e-300)).clamp_min(0)
    torch.testing.assert_close(shrunk, g.prox(v, 0.7))


def test_stages_that_are_not_those_of_the_shrinkage_are_refused() -> None:
    """Nothing may run without torch as another penalty than it is in torch."""

    class Floor(NonNegative):
        def shrink(self, v, thresholds):
            return v.clamp_min(0.1)

    class Forgetful(L1):
        def stages(self, size):
            return []

    class Firm(L1):
        def shrink(self, v, thresholds):
            return torch.where(v.abs() > 4 * thresholds[0], v, super().shrink(v, thresholds))

    model = pu.models.SparseModel(torch.eye(3), Floor())
    with pytest.raises(TypeError, match="the shrinkage of Floor is not the one that its method"):
        pu.compile(pu.ProximalEncoder(model, 2))
    with pytest.raises(TypeError, match="Forgetful has 0 stages, but 1 thresholds"):
        checked_stages(Forgetful(0.1), 3)
    with pytest.raises(TypeError, match="the shrinkage of Firm is not"):
        checked_stages(Firm(0.1), 3)
    assert ThreeMembers(GroupL2(PAIRS, 0.3)).weights(SIZE) is None
