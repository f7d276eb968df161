"""Penalties: what a code may look like.

A penalty knows its value, its shrinkage (the proximal operator as a function of explicit
thresholds, so that an encoder can learn them) and its duality (what a certificate needs).
It knows nothing of dictionaries or data; models, solvers and encoders are built on it.

Throughout, codes are rows: ``codes (n, q)``. A *step* is the 1/alpha of a proximal step: a
number, or one value per coefficient.

Every penalty here is a sum ``psi(z) = 1/2 sum_i c_i z_i^2 + g(z)`` of a quadratic part with
curvature ``c`` and a positively homogeneous part ``g``, e.g. a norm or the indicator of
``z >= 0``. The quadratic part belongs to the smooth side of a problem (`curvature`), the rest
is what remains to be shrunk (`nonsmooth`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._checks import ArrayLike, as_weight, is_eager

Step = float | Tensor
Groups = Sequence[Sequence[int]]

__all__ = [
    "L1",
    "Elastic",
    "GroupL2",
    "NonNegative",
    "Penalty",
    "Ridge",
    "Stacked",
    "TreeL2",
    "Zero",
]


class Stage(NamedTuple):
    """One stage of a shrinkage, as plain data: ``v_r <- v_r max(0, 1 - t_r/||v_r||)``.

    Attributes
    ----------
    labels
        The group r of each coefficient, -1 for those that the stage leaves alone.
    weights
        The weight of each group; the threshold of a step is ``step w_r``.
    """

    labels: list[int]
    weights: list[float]


class Penalty(ABC):
    """What every penalty can do. A new one implements the abstract methods.

    The duality of a penalty is the set ``C = {u : u'z <= g(z) for all z}``, whose support
    function is ``g``. `gauge` measures a vector against it.
    """

    #: whether g is a sum over single coefficients, so that coordinate methods apply
    separable: bool = True

    def value(self, codes: Tensor) -> Tensor:
        """``psi(z)`` of each row, shape (n,); inf where a sign constraint is broken."""
        value = self._value(codes)
        sign = self.nonnegative(codes.shape[-1], codes.device)
        if sign is None:
            return value
        broken = ((codes < 0) & sign).any(dim=-1)
        return torch.where(broken, torch.inf, value)

    @abstractmethod
    def _value(self, codes: Tensor) -> Tensor:
        """``psi(z)`` where the sign constraints hold."""

    @abstractmethod
    def thresholds(self, step: Step) -> tuple[Tensor, ...]:
        """The thresholds of ``prox_{step psi}``, one tensor for each stage of `shrink`."""

    @abstractmethod
    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        """The shrinkage of ``v`` by the given thresholds."""

    def prox(self, v: Tensor, step: Step) -> Tensor:
        """``argmin_u 1/2 ||u - v||^2 + step psi(u)``, row by row."""
        return self.shrink(v, self.thresholds(step))

    def check(self, size: int) -> None:
        """Raise ValueError if the penalty does not fit codes of that size."""
        return

    def curvature(self, size: int) -> Tensor | None:
        """The diagonal ``c`` of the quadratic part, shape (size,), or None if there is none."""
        return None

    @property
    def nonsmooth(self) -> Penalty:
        """The penalty without its quadratic part."""
        return self

    def nonnegative(self, size: int, device: torch.device | None = None) -> Tensor | None:
        """Which coefficients must not be negative, shape (size,), or None if none."""
        return None

    @abstractmethod
    def penalised(self, size: int) -> Tensor:
        """Which coefficients g charges for, shape (size,), boolean."""

    @abstractmethod
    def gauge(self, u: Tensor) -> Tensor:
        """``inf {t >= 0 : u in t C}`` of each row over the penalised coefficients, shape (n,).

        For a norm this is the dual norm; where z >= 0 only positive entries of u count.
        """

    def stages(self, size: int) -> list[Stage]:
        """The shrinkage as plain data, one stage for each of the `thresholds`, in their order.

        The sign constraint (`nonnegative`) comes before all of them. Needed to run encoders
        without torch; not defined for penalties whose shrinkage is of another kind.
        """
        raise TypeError(
            f"{type(self).__name__} does not say its shrinkage in stages, which compiling needs; "
            "define its method `stages`"
        )

    @abstractmethod
    def blocks(self, size: int) -> list[list[int]]:
        """The coefficients that the penalty ties together, as disjoint blocks covering all."""

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The constructor's arguments as plain data."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{key}={_short(value)}" for key, value in self.config.items())
        return f"{type(self).__name__}({arguments})"


class Zero(Penalty):
    """``psi(z) = 0``: nothing is charged, nothing is shrunk. C = {0}."""

    def _value(self, codes: Tensor) -> Tensor:
        return codes.new_zeros(codes.shape[:-1])

    def thresholds(self, step: Step) -> tuple[Tensor, ...]:
        return ()

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return v

    def penalised(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.bool)

    def gauge(self, u: Tensor) -> Tensor:
        return u.new_zeros(u.shape[:-1])

    def stages(self, size: int) -> list[Stage]:
        return []

    def blocks(self, size: int) -> list[list[int]]:
        return [[i] for i in range(size)]

    @property
    def config(self) -> dict[str, Any]:
        return {}


def plain_stages(penalty: Penalty, size: int) -> list[Stage]:
    """The stages of a penalty, or a TypeError if they may not be those of its shrinkage.

    A class that has a shrinkage of its own must say its stages too: those that it inherits belong
    to another shrinkage.
    """
    owners = [
        next(kind for kind in type(penalty).__mro__ if name in vars(kind))
        for name in ("shrink", "stages")
    ]
    if not issubclass(owners[1], owners[0]):
        raise TypeError(
            f"{owners[0].__name__} has a shrinkage of its own, but the stages of "
            f"{owners[1].__name__}; define its method `stages` to run encoders without torch"
        )
    stages = penalty.stages(size)
    if len(stages) != len(penalty.thresholds(1.0)):
        raise TypeError(
            f"{type(penalty).__name__} has {len(stages)} stages, but "
            f"{len(penalty.thresholds(1.0))} thresholds; its method `stages` must give one for each"
        )
    return stages


class NonNegative(Zero):
    """``psi(z) = 0 if z >= 0 else inf``; shrinkage ``max(v, 0)``; C = {u <= 0}."""

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return v.clamp_min(0)

    def stages(self, size: int) -> list[Stage]:
        return []

    def nonnegative(self, size: int, device: torch.device | None = None) -> Tensor | None:
        return torch.ones(size, dtype=torch.bool, device=device)


class L1(Penalty):
    """``psi(z) = sum_i lam_i |z_i|``, with ``z >= 0`` if `nonnegative`.

    Shrinkage ``sign(v) max(|v| - t, 0)``, or ``max(v - t, 0)``, with ``t = step lam``.
    C = {|u_i| <= lam_i}, or {u_i <= lam_i}.

    Parameters
    ----------
    lam
        One weight for all coefficients, or one for each.
    nonnegative
        Whether codes must not be negative.

    Examples
    --------
    >>> import torch
    >>> L1(1.0).prox(torch.tensor([[3.0, -0.5, -2.0]]), step=0.5)
    tensor([[ 2.5000,  0.0000, -1.5000]])
    """

    def __init__(self, lam: ArrayLike, nonnegative: bool = False) -> None:
        self.lam = as_weight(lam, "lam")
        self._nonnegative = nonnegative

    def check(self, size: int) -> None:
        if self.lam.ndim == 1 and len(self.lam) != size:
            raise ValueError(
                f"lam has {len(self.lam)} weights, but there are {size} coefficients; "
                "give one weight for all or one for each"
            )

    def _value(self, codes: Tensor) -> Tensor:
        return (codes.abs() * self.lam.to(codes)).sum(dim=-1)

    def thresholds(self, step: Step) -> tuple[Tensor, ...]:
        step = _step(step, self.lam)
        return (self.lam.to(step.device) * step,)

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return _soft(v, thresholds[0].to(v), self._nonnegative)

    def nonnegative(self, size: int, device: torch.device | None = None) -> Tensor | None:
        return torch.ones(size, dtype=torch.bool, device=device) if self._nonnegative else None

    def penalised(self, size: int) -> Tensor:
        return (self.lam > 0).cpu().expand(size)

    def gauge(self, u: Tensor) -> Tensor:
        magnitude = u.clamp_min(0) if self._nonnegative else u.abs()
        return _largest_ratio(magnitude, self.lam.to(u))

    def stages(self, size: int) -> list[Stage]:
        return [Stage(list(range(size)), self.lam.expand(size).tolist())]

    def blocks(self, size: int) -> list[list[int]]:
        return [[i] for i in range(size)]

    @property
    def config(self) -> dict[str, Any]:
        return {"lam": self.lam.tolist(), "nonnegative": self._nonnegative}


class TreeL2(Penalty):
    """``psi(z) = sum_levels sum_r w_r ||z_r||_2`` over nested groups, with ``z >= 0`` if asked.

    The shrinkage goes from the leaves to the root (any other order is wrong): first
    ``max(v, 0)`` if non-negative, then for each level
    ``v_r <- v_r max(0, 1 - t_r / ||v_r||)`` with ``t = step w``.
    C is the (Minkowski) sum over the levels of {||u_r|| <= w_r, 0 outside the groups}, plus
    the non-positive orthant if non-negative.

    Parameters
    ----------
    levels
        ``[(groups, weights), ...]``, leaves first. `groups` are lists of coefficient numbers,
        disjoint within a level; a group of a later level contains each earlier group or is
        disjoint from it. `weights` is one number for all groups of the level or one for each.
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
            raise ValueError("levels is empty; give at least one (groups, weights) pair")
        self.levels = tuple(_Level(groups, weights) for groups, weights in levels)
        self._nonnegative = nonnegative
        for finer, coarser in combinations(self.levels, 2):
            _require_nesting(finer, coarser)
        self.separable = all(level.singletons for level in self.levels)

    def check(self, size: int) -> None:
        for level in self.levels:
            level.check(size)

    def _value(self, codes: Tensor) -> Tensor:
        return torch.stack([level.value(codes) for level in self.levels]).sum(dim=0)

    def thresholds(self, step: Step) -> tuple[Tensor, ...]:
        return tuple(level.thresholds(step) for level in self.levels)

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        if self._nonnegative:
            v = v.clamp_min(0)
        for level, threshold in zip(self.levels, thresholds, strict=True):
            v = level.shrink(v, threshold.to(v))
        return v

    def nonnegative(self, size: int, device: torch.device | None = None) -> Tensor | None:
        return torch.ones(size, dtype=torch.bool, device=device) if self._nonnegative else None

    def penalised(self, size: int) -> Tensor:
        return torch.stack([level.penalised(size) for level in self.levels]).any(dim=0)

    def gauge(self, u: Tensor) -> Tensor:
        """By bisection on t: ``u in t C`` exactly if ``prox_{t g}(u) = 0`` (Moreau).

        The upper end is always feasible, so the returned value errs on the safe side. It
        starts from charging each coefficient to the first level that penalises it, which is
        one way of writing u as a sum over the levels.
        """
        u = u * self.penalised(u.shape[-1]).to(u)
        if self._nonnegative:
            u = u.clamp_min(0)
        upper = u.new_zeros(u.shape[:-1])
        rest = u
        for level in self.levels:
            charged = level.penalised(u.shape[-1]).to(u)
            upper = torch.maximum(upper, level.gauge(rest * charged))
            rest = rest * (1 - charged)
        if len(self.levels) == 1:
            return upper
        unit = self.thresholds(1.0)
        lower = torch.zeros_like(upper)
        for _ in range(60):
            middle = (lower + upper) / 2
            # shrinking u by t g and u/t by g vanish together
            scaled = u / middle.clamp_min(torch.finfo(u.dtype).tiny).unsqueeze(-1)
            feasible = (self.shrink(scaled, unit) == 0).all(dim=-1)
            upper = torch.where(feasible, middle, upper)
            lower = torch.where(feasible, lower, middle)
        return upper

    def stages(self, size: int) -> list[Stage]:
        return [level.stage(size) for level in self.levels]

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
        levels = [([list(g) for g in lv.groups], lv.weights.tolist()) for lv in self.levels]
        return {"levels": levels, "nonnegative": self._nonnegative}


class GroupL2(TreeL2):
    """``psi(z) = sum_r w_r ||z_r||_2`` over disjoint groups: a tree of one level.

    Shrinkage ``v_r max(0, 1 - step w_r / ||v_r||)``, zero at ``||v_r|| = 0``; coefficients
    outside all groups stay as they are.

    Parameters
    ----------
    groups
        Disjoint lists of coefficient numbers.
    weights
        One number for all groups, or one for each.
    nonnegative
        Whether codes must not be negative.
    """

    def __init__(self, groups: Groups, weights: ArrayLike, nonnegative: bool = False) -> None:
        super().__init__([(groups, weights)], nonnegative)

    @property
    def config(self) -> dict[str, Any]:
        (level,) = self.levels
        return {
            "groups": [list(g) for g in level.groups],
            "weights": level.weights.tolist(),
            "nonnegative": self._nonnegative,
        }


class Elastic(Penalty):
    """``psi(z) = penalty(z) + w/2 ||z||^2``: any penalty with a ridge on the same coefficients.

    ``prox_{step psi}(v) = prox_{k step penalty}(k v)`` with ``k = 1/(1 + step w)``.

    Parameters
    ----------
    penalty
        The penalty that the ridge is added to.
    w
        The weight of the ridge, one number or one per coefficient. It must be the same for all
        coefficients that the penalty ties together.
    """

    def __init__(self, penalty: Penalty, w: ArrayLike) -> None:
        self.penalty = penalty
        self.w = as_weight(w, "w")
        self.separable = penalty.separable

    def check(self, size: int) -> None:
        self.penalty.check(size)
        if self.w.ndim == 1:
            if len(self.w) != size:
                raise ValueError(f"w has {len(self.w)} weights, but there are {size} coefficients")
            for block in self.penalty.blocks(size):
                if not bool((self.w[block] == self.w[block[0]]).all()):
                    raise ValueError(
                        f"w differs within the block {block} that the penalty ties together; "
                        "give its coefficients one weight"
                    )

    def _value(self, codes: Tensor) -> Tensor:
        ridge = (codes.square() * self.w.to(codes)).sum(dim=-1) / 2
        return self.penalty._value(codes) + ridge

    def thresholds(self, step: Step) -> tuple[Tensor, ...]:
        step = _step(step, self.w)
        factor = 1 / (1 + step * self.w.to(step.device))
        return (factor, *self.penalty.thresholds(step * factor))

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        return self.penalty.shrink(v * thresholds[0].to(v), thresholds[1:])

    def curvature(self, size: int) -> Tensor | None:
        own = self.w.expand(size)
        inner = self.penalty.curvature(size)
        return own if inner is None else own + inner

    @property
    def nonsmooth(self) -> Penalty:
        return self.penalty.nonsmooth

    def nonnegative(self, size: int, device: torch.device | None = None) -> Tensor | None:
        return self.penalty.nonnegative(size, device)

    def penalised(self, size: int) -> Tensor:
        return self.penalty.penalised(size)

    def gauge(self, u: Tensor) -> Tensor:
        return self.penalty.gauge(u)

    def blocks(self, size: int) -> list[list[int]]:
        return self.penalty.blocks(size)

    @property
    def config(self) -> dict[str, Any]:
        return {"penalty": self.penalty, "w": self.w.tolist()}


class Ridge(Elastic):
    """``psi(z) = w/2 ||z||^2``, with ``z >= 0`` if `nonnegative`; shrinkage ``v / (1 + step w)``.

    Parameters
    ----------
    w
        The weight, one number or one per coefficient.
    nonnegative
        Whether codes must not be negative.
    """

    def __init__(self, w: ArrayLike, nonnegative: bool = False) -> None:
        super().__init__(NonNegative() if nonnegative else Zero(), w)

    @property
    def config(self) -> dict[str, Any]:
        return {"w": self.w.tolist(), "nonnegative": isinstance(self.penalty, NonNegative)}


class Stacked(Penalty):
    """``psi(z) = sum_k psi_k(z_k)``: consecutive stretches of the code with penalties of their own.

    Parameters
    ----------
    parts
        ``[(penalty, size), ...]``, in the order of the coefficients.

    Examples
    --------
    >>> import torch
    >>> Stacked([(NonNegative(), 1), (L1(1.0), 2)]).value(torch.tensor([[5.0, 1.0, -2.0]]))
    tensor([3.])
    """

    def __init__(self, parts: Sequence[tuple[Penalty, int]]) -> None:
        if len(parts) == 0:
            raise ValueError("parts is empty; give at least one (penalty, size) pair")
        for penalty, size in parts:
            if size < 1:
                raise ValueError(f"the size of a part must be at least 1, got {size}")
            penalty.check(size)
        self.penalties = tuple(penalty for penalty, _ in parts)
        self.sizes = tuple(int(size) for _, size in parts)
        self.separable = all(penalty.separable for penalty in self.penalties)

    def check(self, size: int) -> None:
        if size != sum(self.sizes):
            raise ValueError(
                f"the stacked penalties cover {sum(self.sizes)} coefficients, but there are {size}"
            )

    def _value(self, codes: Tensor) -> Tensor:
        self.check(codes.shape[-1])
        parts = [p._value(c) for p, c in zip(self.penalties, self._split(codes), strict=True)]
        return torch.stack(parts).sum(dim=0)

    def thresholds(self, step: Step) -> tuple[Tensor, ...]:
        steps: list[Step] = [step] * len(self.sizes)
        if isinstance(step, Tensor) and step.ndim > 0:
            steps = list(self._split(step))
        return tuple(
            threshold
            for penalty, own in zip(self.penalties, steps, strict=True)
            for threshold in penalty.thresholds(own)
        )

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        parts = []
        first = 0
        for penalty, part, count in zip(self.penalties, self._split(v), self._counts, strict=True):
            parts.append(penalty.shrink(part, thresholds[first : first + count]))
            first += count
        return torch.cat(parts, dim=-1)

    def curvature(self, size: int) -> Tensor | None:
        parts = [p.curvature(s) for p, s in zip(self.penalties, self.sizes, strict=True)]
        if all(part is None for part in parts):
            return None
        zeros = [torch.zeros(s, dtype=torch.float64) for s in self.sizes]
        return torch.cat([z if p is None else p for p, z in zip(parts, zeros, strict=True)])

    @property
    def nonsmooth(self) -> Penalty:
        if all(penalty.nonsmooth is penalty for penalty in self.penalties):
            return self
        return Stacked([(p.nonsmooth, s) for p, s in zip(self.penalties, self.sizes, strict=True)])

    def nonnegative(self, size: int, device: torch.device | None = None) -> Tensor | None:
        parts = [p.nonnegative(s, device) for p, s in zip(self.penalties, self.sizes, strict=True)]
        if all(part is None for part in parts):
            return None
        zeros = [torch.zeros(s, dtype=torch.bool, device=device) for s in self.sizes]
        return torch.cat([z if p is None else p for p, z in zip(parts, zeros, strict=True)])

    def penalised(self, size: int) -> Tensor:
        return torch.cat([p.penalised(s) for p, s in zip(self.penalties, self.sizes, strict=True)])

    def gauge(self, u: Tensor) -> Tensor:
        parts = [p.gauge(part) for p, part in zip(self.penalties, self._split(u), strict=True)]
        return torch.stack(parts).amax(dim=0)

    def stages(self, size: int) -> list[Stage]:
        stages = []
        first = 0
        for penalty, own in zip(self.penalties, self.sizes, strict=True):
            before, after = [-1] * first, [-1] * (size - first - own)
            stages += [
                Stage(before + labels + after, weights)
                for labels, weights in plain_stages(penalty, own)
            ]
            first += own
        return stages

    def blocks(self, size: int) -> list[list[int]]:
        blocks = []
        first = 0
        for penalty, own in zip(self.penalties, self.sizes, strict=True):
            blocks += [[first + i for i in block] for block in penalty.blocks(own)]
            first += own
        return blocks

    @property
    def config(self) -> dict[str, Any]:
        return {"parts": list(zip(self.penalties, self.sizes, strict=True))}

    @cached_property
    def _counts(self) -> tuple[int, ...]:
        return tuple(len(penalty.thresholds(1.0)) for penalty in self.penalties)

    def _split(self, codes: Tensor) -> tuple[Tensor, ...]:
        return torch.split(codes, list(self.sizes), dim=-1)


class _Level:
    """Disjoint groups with a weight each: one level of a tree.

    Norms are segment sums over `labels`, the number of each coefficient's group; the last
    number stands for "in no group". Singleton groups are treated element by element.
    """

    def __init__(self, groups: Groups, weights: ArrayLike) -> None:
        self.groups = tuple(tuple(int(i) for i in group) for group in groups)
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
        weights = as_weight(weights, "weights")
        if weights.ndim == 1 and len(weights) != len(self.groups):
            raise ValueError(
                f"weights has {len(weights)} entries, but there are {len(self.groups)} groups; "
                "give one weight for all groups or one for each"
            )
        self.weights = weights
        self.reach = max(owner) + 1
        self.singletons = len(owner) == len(self.groups)
        self._labels = torch.full((self.reach,), len(self.groups), dtype=torch.long)
        self._labels[list(owner)] = torch.tensor(list(owner.values()))
        self._first = torch.tensor([group[0] for group in self.groups])

    def check(self, size: int) -> None:
        if self.reach > size:
            number = next(n for n, g in enumerate(self.groups) if max(g) == self.reach - 1)
            raise ValueError(
                f"group {number} refers to coefficient {self.reach - 1}, but there are only {size} "
                f"coefficients (0 to {size - 1})"
            )

    def stage(self, size: int) -> Stage:
        labels = [-1] * size
        for number, group in enumerate(self.groups):
            for i in group:
                labels[i] = number
        return Stage(labels, self.weights.expand(len(self.groups)).tolist())

    def labels(self, like: Tensor) -> Tensor:
        """The group of each coefficient of `like`, len(groups) for those in none."""
        size = like.shape[-1]
        self.check(size)
        labels = self._labels.to(like.device)
        if size > self.reach:
            labels = torch.cat([labels, labels.new_full((size - self.reach,), len(self.groups))])
        return labels

    def norms(self, v: Tensor) -> Tensor:
        """``||v_r||`` for each group, with gradient 0 where the norm is 0."""
        if self.singletons:
            self.check(v.shape[-1])
            return v[..., self._first.to(v.device)].abs()
        squares = v.new_zeros((*v.shape[:-1], len(self.groups) + 1))
        squares = squares.index_add(-1, self.labels(v), v.square())[..., :-1]
        positive = squares > 0
        # sqrt has an infinite slope at 0, which would turn a zero gradient into NaN
        return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)

    def value(self, codes: Tensor) -> Tensor:
        return (self.norms(codes) * self.weights.to(codes)).sum(dim=-1)

    def thresholds(self, step: Step) -> Tensor:
        step = _step(step, self.weights)
        if step.ndim == 1:
            step = step[self._first.to(step.device)]
        return (self.weights.to(step.device) * step).expand(len(self.groups))

    def shrink(self, v: Tensor, threshold: Tensor) -> Tensor:
        labels = self.labels(v)
        if self.singletons:
            none = threshold.new_zeros(1)
            return _soft(v, torch.cat([threshold.expand(len(self.groups)), none])[labels])
        norms = self.norms(v).clamp_min(torch.finfo(v.dtype).tiny)
        factors = (1 - threshold / norms).clamp_min(0)
        factors = torch.cat([factors, torch.ones_like(factors[..., :1])], dim=-1)
        return v * factors[..., labels]

    def penalised(self, size: int) -> Tensor:
        charged = torch.cat(
            [(self.weights > 0).expand(len(self.groups)).cpu(), torch.tensor([False])]
        )
        return charged[self.labels(torch.empty(size))]

    def gauge(self, u: Tensor) -> Tensor:
        return _largest_ratio(self.norms(u), self.weights.to(u))


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


def _soft(v: Tensor, threshold: Tensor, nonnegative: bool = False) -> Tensor:
    if nonnegative:
        return (v - threshold).clamp_min(0)
    clipped = v.clamp(-threshold, threshold)
    if torch.is_grad_enabled() or not is_eager():
        return v - clipped
    return torch.sub(v, clipped, out=clipped)  # in memory that is still in the cache


def _step(step: Step, weights: Tensor) -> Tensor:
    """The step as a tensor; a plain number is taken in the weights' double precision."""
    if isinstance(step, Tensor):
        return step
    return torch.as_tensor(step, dtype=weights.dtype, device=weights.device)


def _largest_ratio(magnitude: Tensor, weights: Tensor) -> Tensor:
    """``max_i magnitude_i / w_i`` over the positive weights, 0 if there are none."""
    ratio = torch.where(weights > 0, magnitude / torch.where(weights > 0, weights, 1.0), 0.0)
    return ratio.amax(dim=-1)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
