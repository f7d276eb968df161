"""Penalties on the norms of groups of coefficients, disjoint or nested."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from operator import index
from typing import Any

import torch
from torch import Tensor

from .._checks import ArrayLike, as_weight
from .._words import one_line
from .base import Penalty, StepSize, as_step
from .shrinkage import group_norms, infinite_where_negative, largest_ratio, shrink_groups, soft

Groups = Sequence[Sequence[int]]


class TreeL2(Penalty):
    """``psi(z) = sum_levels sum_r lam_r ||z_r||_2`` over nested groups; ``z >= 0`` is an option.

    The shrinkage must proceed from the leaves to the root: first ``max(v, 0)`` if non-negative,
    then for each level
    ``v_r <- v_r max(0, 1 - t_r / ||v_r||)`` with ``t = step lam``.
    C is the (Minkowski) sum over the levels of {||u_r|| <= lam_r, 0 outside the groups}, plus
    the non-positive orthant if non-negative.

    Parameters
    ----------
    levels
        ``[(groups, lam), ...]``, leaves first. `groups` are lists of coefficient numbers,
        disjoint within a level; a group of a later level contains each earlier group or is
        disjoint from it. `lam` is one weight for all groups of the level or one for each.
        A level may leave coefficients out.
    nonnegative
        Whether codes must not be negative.

    Examples
    --------
    >>> import torch
    >>> tree = TreeL2([([[0], [1], [2], [3]], 0.1), ([[0, 1], [2, 3]], 1.0)])
    >>> tree.prox(torch.tensor([[3.1, 4.1, 0.3, 0.4]]), step=1.0)
    tensor([[2.4000, 3.2000, 0.0000, 0.0000]])
    """

    def __init__(
        self, levels: Sequence[tuple[Groups, ArrayLike]], nonnegative: bool = False
    ) -> None:
        if len(levels) == 0:
            raise ValueError("levels is empty; give at least one (groups, lam) pair")
        self.levels = tuple(_Level(groups, lam) for groups, lam in levels)
        self.nonnegative = nonnegative
        for finer, coarser in combinations(self.levels, 2):
            _require_nesting(finer, coarser)

    def check(self, size: int) -> None:
        for level in self.levels:
            level.check(size)

    def value(self, codes: Tensor) -> Tensor:
        value = torch.stack([level.value(codes) for level in self.levels]).sum(dim=0)
        return infinite_where_negative(value, codes) if self.nonnegative else value

    def thresholds(self, step: StepSize) -> tuple[Tensor, ...]:
        return tuple(level.thresholds(step) for level in self.levels)

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        if self.nonnegative:
            v = v.clamp_min(0)
        for level, threshold in zip(self.levels, thresholds, strict=True):
            v = level.shrink(v, threshold.to(v))
        return v

    def gauge(self, u: Tensor) -> Tensor:
        """As the default; one level has the closed form ``max_r ||u_r|| / lam_r``.

        The bisection starts from the upper bound that follows from writing u as a sum over the
        levels, where each coefficient belongs to the first level that penalises it.
        """
        u = u * self.penalised(u.shape[-1]).to(u)
        if self.nonnegative:
            u = u.clamp_min(0)
        upper, rest = u.new_zeros(u.shape[:-1]), u
        for level in self.levels:
            charged = level.penalised(u.shape[-1]).to(u)
            upper = torch.maximum(upper, level.gauge(rest * charged))
            rest = rest * (1 - charged)
        return upper if len(self.levels) == 1 else self._bisect_gauge(u, upper)

    def stages(self, size: int) -> list[Tensor]:
        stages = [(level.labels(size), len(level.groups)) for level in self.levels]
        return [torch.where(labels == none, -1, labels) for labels, none in stages]

    def blocks(self, size: int) -> list[list[int]]:
        covered: set[int] = set()
        blocks = []
        for level in reversed(self.levels):
            for group in level.groups:
                if covered.isdisjoint(group):
                    blocks.append(sorted(group))
                    covered.update(group)
        blocks += [[i] for i in range(size) if i not in covered]
        return sorted(blocks)

    @property
    def config(self) -> dict[str, Any]:
        levels = [([list(g) for g in level.groups], level.lam.tolist()) for level in self.levels]
        return {"levels": levels, "nonnegative": self.nonnegative}


class GroupL2(TreeL2):
    """``psi(z) = sum_r lam_r ||z_r||_2`` over disjoint groups: a tree of one level.

    Shrinkage ``v_r max(0, 1 - step lam_r / ||v_r||)``, zero at ``||v_r|| = 0``; coefficients
    outside all groups stay as they are.

    Parameters
    ----------
    groups
        Disjoint lists of coefficient numbers.
    lam
        One weight for all groups, or one for each.
    nonnegative
        Whether codes must not be negative.
    """

    def __init__(self, groups: Groups, lam: ArrayLike, nonnegative: bool = False) -> None:
        super().__init__([(groups, lam)], nonnegative)

    @property
    def config(self) -> dict[str, Any]:
        (level,) = self.levels
        groups = [list(group) for group in level.groups]
        return {"groups": groups, "lam": level.lam.tolist(), "nonnegative": self.nonnegative}


class _Level:
    """Disjoint groups with a weight each: one level of a tree.

    Norms are sums over segments of equal `labels`, the group numbers of the coefficients; one more
    number means "in no group". Singleton groups are treated element by element.
    """

    def __init__(self, groups: Groups, lam: ArrayLike) -> None:
        try:
            self.groups = tuple(tuple(index(i) for i in group) for group in groups)
        except TypeError:
            raise TypeError(
                "groups must be lists of coefficient numbers, such as [[0, 1], [2, 3]], got "
                f"{one_line(repr(groups), 60)}"
            ) from None
        if len(self.groups) == 0:
            raise ValueError("groups is empty; give at least one group of coefficient numbers")
        owner: dict[int, int] = {}
        for number, group in enumerate(self.groups):
            if len(group) == 0:
                raise ValueError(f"group {number} is empty")
            for i in group:
                if i < 0:
                    raise ValueError(
                        f"group {number} refers to coefficient {i}; coefficients count from 0"
                    )
                if i in owner:
                    raise ValueError(
                        f"coefficient {i} is in group {owner[i]} and in group {number}; the groups "
                        "of one level must not overlap (use levels of TreeL2 for nested groups)"
                    )
                owner[i] = number
        self.lam = as_weight(lam, "lam")
        if self.lam.ndim == 1 and len(self.lam) != len(self.groups):
            raise ValueError(
                f"lam has {len(self.lam)} entries, but there are {len(self.groups)} groups; "
                "give one weight for all groups or one for each"
            )
        self.reach = max(owner) + 1
        self.singletons = len(owner) == len(self.groups)
        self._owner = owner
        self._first = torch.tensor([group[0] for group in self.groups])

    def check(self, size: int) -> None:
        if self.reach > size:
            number = next(n for n, g in enumerate(self.groups) if max(g) == self.reach - 1)
            raise ValueError(
                f"group {number} refers to coefficient {self.reach - 1}, but there are only {size} "
                f"coefficients (0 to {size - 1})"
            )

    def labels(self, size: int, device: torch.device | None = None) -> Tensor:
        """Return the group of each coefficient, len(groups) for those in none."""
        self.check(size)  # before memory for so many coefficients is allocated
        labels = self._labels.to(device)
        if size > self.reach:
            labels = torch.cat([labels, labels.new_full((size - self.reach,), len(self.groups))])
        return labels

    @cached_property
    def _labels(self) -> Tensor:
        labels = torch.full((self.reach,), len(self.groups), dtype=torch.long)
        labels[list(self._owner)] = torch.tensor(list(self._owner.values()))
        return labels

    def norms(self, v: Tensor) -> Tensor:
        """Return ``||v_r||`` for each group, with gradient 0 where the norm is 0."""
        if self.singletons:
            self.check(v.shape[-1])
            return v[..., self._first.to(v.device)].abs()
        return group_norms(v, self.labels(v.shape[-1], v.device), len(self.groups) + 1)[..., :-1]

    def value(self, codes: Tensor) -> Tensor:
        return (self.norms(codes) * self.lam.to(codes)).sum(dim=-1)

    def thresholds(self, step: StepSize) -> Tensor:
        step = as_step(step, self.lam)
        if step.ndim == 1:
            step = step[self._first.to(step.device)]
        return (self.lam.to(step.device) * step).expand(len(self.groups))

    def shrink(self, v: Tensor, threshold: Tensor) -> Tensor:
        labels = self.labels(v.shape[-1], v.device)
        if self.singletons:
            none = threshold.new_zeros(1)
            return soft(v, torch.cat([threshold.expand(len(self.groups)), none])[labels])
        return shrink_groups(v, labels, self.norms(v), threshold)

    def penalised(self, size: int) -> Tensor:
        charged = (self.lam > 0).expand(len(self.groups)).cpu()
        return torch.cat([charged, torch.tensor([False])])[self.labels(size)]

    def gauge(self, u: Tensor) -> Tensor:
        return largest_ratio(self.norms(u), self.lam.to(u))


def _require_nesting(finer: _Level, coarser: _Level) -> None:
    owner = {i: number for number, group in enumerate(coarser.groups) for i in group}
    for number, group in enumerate(finer.groups):
        owners = {owner.get(i) for i in group}
        if len(owners) > 1:
            raise ValueError(
                f"levels do not nest: group {number} ({list(group)}) of one level lies partly "
                "inside a group of a later one; give leaves first, each group inside one group "
                "of every later level or disjoint from all of them"
            )
