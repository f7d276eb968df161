"""Models: what is minimised.

Every model is one formula, ``1/2 ||x - z D||^2 + psi(z)`` for a row x, an operator D and a penalty
psi, which the named models choose. In the paper's columns: ``1/2 ||x - D z||^2 + psi(z)``. A model
is immutable; `replace` returns a new one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from ._checks import ArrayLike, as_float_matrix, as_number, as_weight, require_width
from ._registry import Registered, arguments_of
from .operators import Convolution, Joined, Matrix, Operator, WithIdentity
from .operators.base import squared_norm
from .penalties import L1, Elastic, GroupL2, NonNegative, Penalty, Ridge, Stacked, TreeL2
from .penalties.groups import Groups

__all__ = ["NMF", "Constraint", "ConvolutionalLowRankSparse", "GroupLasso", "HiLasso", "Lasso"]
__all__ += ["LowRankSparse", "Parts", "RobustNMF", "RobustPCA", "SparseModel"]


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of the signals that codes represent; None where the model has no such part.

    Attributes
    ----------
    low_rank, sparse
        The low-rank part and the sparse part, in the space of the signals.
    scores, outliers
        Their coefficients; for robust PCA and NMF `outliers` are the same as `sparse`.
    """

    low_rank: Tensor | None = None
    sparse: Tensor | None = None
    scores: Tensor | None = None
    outliers: Tensor | None = None


@dataclass(frozen=True)
class Constraint:
    """What a dictionary must satisfy while it is learned.

    Otherwise codes could shrink and atoms grow without limit. Either atoms stay in the unit ball,
    or the learning problem has a penalty ``ridge/2 ||D||_F^2``, once for the whole data set.

    Attributes
    ----------
    ridge
        The weight; 0 means the unit ball.
    nonnegative
        Whether entries must not be negative.
    """

    ridge: float = 0.0
    nonnegative: bool = False

    def value(self, dictionary: Tensor) -> Tensor:
        """Return ``phi(D) = ridge/2 ||D||_F^2``."""
        return self.ridge / 2 * dictionary.square().sum()

    def project(self, dictionary: Tensor) -> Tensor:
        """Return the nearest dictionary that is allowed: first ``max(D, 0)``, then the ball."""
        if self.nonnegative:
            dictionary = dictionary.clamp_min(0)
        if self.ridge > 0:
            return dictionary
        norms: Tensor = torch.linalg.vector_norm(dictionary, dim=1, keepdim=True)
        return dictionary / norms.clamp_min(1)


class SparseModel(Registered):
    """The general case: ``F(z) = 1/2 ||x - z D||^2 + psi(z)``.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m), or an operator (see `pursuit.operators`).
    penalty
        The penalty of the codes; its quadratic part enters Q.

    Attributes
    ----------
    operator
        The dictionary as a linear map.

    Examples
    --------
    >>> import torch
    >>> from pursuit.penalties import L1
    >>> model = SparseModel(torch.eye(2), L1(0.5))
    >>> model.objective(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.5, 0.0]]))
    tensor([0.8750])
    """

    #: the name of each part of the code in `Parts`, in order
    part_names: tuple[str, ...] = ("sparse",)

    def __init__(self, dictionary: ArrayLike | Operator, penalty: Penalty) -> None:
        self.operator = dictionary if isinstance(dictionary, Operator) else Matrix(dictionary)
        if not isinstance(penalty, Penalty):
            raise TypeError(f"penalty must be a Penalty, got {type(penalty).__name__}")
        self.penalty = penalty
        penalty.check(self.code_size)

    @property
    def features(self) -> int:
        """m, the width of a signal."""
        return self.operator.features

    @property
    def code_size(self) -> int:
        """The number of coefficients of a code."""
        return self.operator.code_size

    @property
    def stored_size(self) -> int:
        """The number of coefficients outside of an identity block."""
        return self.code_size - self.operator.identity_size

    @property
    def device(self) -> torch.device:
        return self.operator.device

    @property
    def dtype(self) -> torch.dtype:
        return self.operator.dtype

    @property
    def dictionary(self) -> Tensor:
        """The atoms that are stored, shape (rows, m); an identity block is not among them."""
        return self.operator.atoms

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        """The matrices that are learned, by name; their rows are the atoms in code order."""
        return self.operator.dictionaries

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments; ``type(model)(**model.config)`` is an equal model."""
        if type(self).__init__ is SparseModel.__init__:
            # without the atoms as a matrix, which may be large
            return {"dictionary": self.operator, "penalty": self.penalty}
        return arguments_of(self)

    @property
    def constraints(self) -> dict[str, Constraint]:
        """What each of `dictionaries` must obey while it is learned."""
        return {name: Constraint() for name in self.dictionaries}

    def replace(self, **changes: Any) -> Self:
        """Return a new model with some of the constructor's arguments or dictionaries changed."""
        config = self.config
        unknown = sorted(set(changes) - set(config) - set(self.dictionaries))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no argument {', '.join(unknown)}; "
                f"it takes {', '.join(config)}"
            )
        operator = config.get("dictionary")
        if isinstance(operator, Operator) and not isinstance(changes.get("dictionary"), Operator):
            given = {name: changes.pop(name) for name in self.dictionaries if name in changes}
            if given:
                changes["dictionary"] = type(operator)(**{**operator.config, **given})
        return type(self)(**{**config, **changes})

    def rebind(self, dictionaries: Mapping[str, Tensor], units: Tensor | None = None) -> Self:
        """Return the same model on other tensors of the same shapes, to which gradients flow.

        Nothing is checked or computed, so this is quick. `units` stay unless they are given.
        """
        return self._with_operator(self.operator.rebind(dictionaries))

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Self:
        """Return the model with its dictionary in another dtype or on another device."""
        moved = self.operator.to(dtype, device)
        return self if moved is self.operator else self._with_operator(moved)

    def _with_operator(self, operator: Operator) -> Self:
        new = copy.copy(self)
        for name in vars(self):
            if isinstance(getattr(type(self), name, None), cached_property):
                delattr(new, name)
        new.operator = operator
        return new

    def __repr__(self) -> str:
        sizes = f"features={self.features}, code_size={self.code_size}"
        return f"{type(self).__name__}({sizes}, penalty={self.penalty!r})"

    def decode(self, codes: Tensor) -> Tensor:
        """Return ``z D``, the signals that codes represent, shape (n, m)."""
        self._check_codes(codes)
        return self.operator.decode(codes)

    def correlate(self, signals: Tensor) -> Tensor:
        """Return ``x D'``, the correlation of signals with every atom, shape (n, q)."""
        require_width(signals, self.features, "signals", "features", "the dictionary")
        return self.operator.correlate(signals)

    def split(self, codes: Tensor) -> Parts:
        """Return the parts of the signals that codes represent, and their coefficients."""
        self._check_codes(codes)
        signals = self.operator.decode_parts(codes)
        coefficients = self.operator.split(codes)
        parts: dict[str, Tensor] = {}
        for name, signal, coefficient in zip(self.part_names, signals, coefficients, strict=True):
            parts[name] = signal
            if name == "low_rank":
                parts["scores"] = coefficient
            elif len(self.part_names) > 1:
                parts["outliers"] = coefficient
        return Parts(**parts)

    def dictionary_of(self, part: str) -> str | None:
        """Return the name of the dictionary that spans a part of the signal, None if none does."""
        return dict(zip(self.part_names, self.dictionaries, strict=False)).get(part)

    def regression(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return coefficients and targets of the regression that a better dictionary solves."""
        return self.operator.regression(x, codes)

    def objective(self, x: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return ``F(z) = 1/2 ||x - z D||^2 + psi(z)`` of each row, shape (n,).

        With a mask only the entries of x where it is True count in the data term.
        """
        residual = self.residual(x, codes, mask)
        return residual.square().sum(dim=-1) / 2 + self.penalty.value(codes)

    def residual(self, x: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return ``x - z D``, zero where the mask is False."""
        require_width(x, self.features, "x", "features", "the dictionary")
        residual = x - self.decode(codes)
        return residual if mask is None else torch.where(mask, residual, 0.0)

    def gradient(self, x: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the gradient of the smooth part, ``z Q - x D'`` without a mask."""
        gradient = -self.correlate(self.residual(x, codes, mask))
        if self.curvature is not None:
            gradient = gradient + codes * self.curvature.to(codes)
        return gradient

    @cached_property
    def curvature(self) -> Tensor | None:
        """The diagonal that the quadratic part of the penalty adds to Q, in float64, or None."""
        return self.penalty.curvature(self.code_size)

    @cached_property
    def nonsmooth(self) -> Penalty:
        """The penalty without its quadratic part, which is what proximal steps are taken with."""
        return self.penalty.nonsmooth

    @property
    def Q(self) -> Tensor:
        """The matrix of the smooth part, ``D D' + diag(curvature)``, in full, shape (q, q)."""
        gram = self.operator.gram()
        return gram if self.curvature is None else gram + torch.diag(self.curvature.to(gram))

    @cached_property
    def step_constant(self) -> float:
        """alpha, the largest eigenvalue of Q; a proximal step of 1/alpha never ascends."""
        return self.operator.largest_eigenvalue(self.curvature)

    @cached_property
    def coordinate_constants(self) -> Tensor:
        """The diagonal of Q in float64: the curvature along each single coefficient."""
        norms = self.operator.squared_norms()
        return norms if self.curvature is None else norms + self.curvature.to(norms)

    @cached_property
    def block_constants(self) -> Tensor:
        """For each block of the penalty the largest eigenvalue of its part of Q, in float64."""
        return self.operator.block_constants(self.blocks, self.curvature)

    @cached_property
    def blocks(self) -> list[list[int]]:
        """The blocks of coefficients that the penalty ties together."""
        return self.penalty.blocks(self.code_size)

    @cached_property
    def separable(self) -> bool:
        """Whether the penalty is a sum over single coefficients."""
        return len(self.blocks) == self.code_size

    @cached_property
    def block_labels(self) -> Tensor:
        """The number of the block of each coefficient, shape (q,)."""
        labels = torch.empty(self.code_size, dtype=torch.long)
        for number, block in enumerate(self.blocks):
            labels[block] = number
        return labels

    def block_energies(self, codes: Tensor) -> Tensor:
        """Return ``||z_r||_2^2`` of each block r of the penalty, shape (n, blocks)."""
        self._check_codes(codes)
        energies = codes.new_zeros(len(codes), len(self.blocks))
        return energies.index_add(-1, self.block_labels.to(codes.device), codes.square())

    @property
    def normalised(self) -> SparseModel:
        """The equivalent model in well-scaled coordinates, in which iterations run."""
        return self

    @property
    def units(self) -> Tensor | None:
        """The scale of each coefficient, shape (q,), float64; None if all are 1.

        ``codes = units * normalised codes``, and the atoms of `normalised` are ``units * atoms``.
        """
        return None

    def to_normalised(self, codes: Tensor) -> Tensor:
        """Return codes of this model as codes of `normalised`."""
        return codes if self.units is None else codes / self.units.to(codes)

    def from_normalised(self, codes: Tensor) -> Tensor:
        """Return codes of `normalised` as codes of this model."""
        return codes if self.units is None else codes * self.units.to(codes)

    def _check_codes(self, codes: Tensor) -> None:
        require_width(codes, self.code_size, "codes", "coefficients", "the model")


class Lasso(SparseModel):
    """``1/2 ||x - z D||^2 + lam ||z||_1``.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m).
    lam
        The weight, one number or one per atom.
    nonnegative
        Whether codes must not be negative.
    """

    def __init__(self, dictionary: ArrayLike, lam: ArrayLike, nonnegative: bool = False) -> None:
        self.lam, self.nonnegative = lam, nonnegative
        super().__init__(dictionary, L1(lam, nonnegative))


class GroupLasso(SparseModel):
    """``1/2 ||x - z D||^2 + sum_r lam_r ||z_r||_2`` over disjoint groups.

    Parameters
    ----------
    dictionary, nonnegative
        As for `Lasso`.
    groups
        Disjoint lists of atom numbers; an atom in no group is not penalised.
    lam
        The weight, one number or one per group.
    """

    def __init__(
        self, dictionary: ArrayLike, groups: Groups, lam: ArrayLike, nonnegative: bool = False
    ) -> None:
        self.groups, self.lam, self.nonnegative = groups, lam, nonnegative
        super().__init__(dictionary, GroupL2(groups, lam, nonnegative))


class HiLasso(SparseModel):
    """``1/2 ||x - z D||^2 + lam_group sum_r ||z_r||_2 + lam ||z||_1``: few groups, few atoms each.

    Parameters
    ----------
    dictionary, groups, nonnegative
        As for `GroupLasso`.
    lam_group, lam
        The weights of groups and single coefficients, one number or one per group or atom.
    """

    def __init__(
        self,
        dictionary: ArrayLike,
        groups: Groups,
        lam_group: ArrayLike,
        lam: ArrayLike,
        nonnegative: bool = False,
    ) -> None:
        self.groups, self.nonnegative = groups, nonnegative
        self.lam_group, self.lam = lam_group, lam
        atoms = as_float_matrix(dictionary, "dictionary", "features")
        leaves = [[i] for i in range(len(atoms))]
        super().__init__(atoms, TreeL2([(leaves, lam), (groups, lam_group)], nonnegative))


class NMF(SparseModel):
    """``1/2 ||x - z D||^2 + ridge/2 ||z||^2`` with ``z >= 0``.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m); usually non-negative, but this is not required.
    ridge
        The weight of the quadratic penalty; with 0 the code may not be unique.
    """

    part_names = ("low_rank",)

    def __init__(self, dictionary: ArrayLike, ridge: ArrayLike = 0.0) -> None:
        self.ridge = as_weight(ridge, "ridge")
        penalty = Ridge(ridge, nonnegative=True) if bool(self.ridge.any()) else NonNegative()
        super().__init__(dictionary, penalty)

    @property
    def constraints(self) -> dict[str, Constraint]:
        return {"dictionary": Constraint(float(self.ridge.mean()), nonnegative=True)}


class _LowRankAndSparse(SparseModel):
    """A low-rank part with a quadratic penalty and a sparse part; see `LowRankSparse`."""

    part_names = ("low_rank", "sparse")

    def __init__(
        self,
        operator: Operator,
        lam_star: float,
        outliers: Penalty,
        nonnegative: bool,
        scale: float | None,
    ) -> None:
        self.lam_star = as_number(lam_star, "lam_star")
        self.nonnegative = nonnegative
        self._outliers = outliers
        if scale is None:
            low_rank, *others = operator.dictionaries.values()
            scale = squared_norm(low_rank.detach().double()) ** 0.5
            for other in others:
                scale = scale / squared_norm(other.detach().double()) ** 0.5
        self.scale = float(as_weight(scale, "scale", positive=True))
        super().__init__(operator, self._penalty(operator, self.lam_star))

    def _penalty(self, operator: Operator, lam_star: float) -> Penalty:
        penalties = Ridge(lam_star, self.nonnegative), self._outliers
        return Stacked(list(zip(penalties, operator.block_sizes, strict=True)))

    @property
    def constraints(self) -> dict[str, Constraint]:
        first = next(iter(self.dictionaries))
        others = {name: Constraint(0.0, self.nonnegative) for name in self.dictionaries}
        return {**others, first: Constraint(self.lam_star, self.nonnegative)}

    def replace(self, **changes: Any) -> Self:
        """Return a new model; its scale is computed again if a dictionary changes."""
        if set(self.dictionaries) & set(changes):
            changes = {"scale": None, **changes}
        return super().replace(**changes)

    def rebind(self, dictionaries: Mapping[str, Tensor], units: Tensor | None = None) -> Self:
        new = super().rebind(dictionaries)
        if units is not None:
            new.scale = 1 / float(units[0])
        return new

    @cached_property
    def normalised(self) -> SparseModel:
        units = self.units
        if units is None:
            return self
        operator = self.operator.scaled(units)
        return SparseModel(operator, self._penalty(self.operator, self.lam_star / self.scale**2))

    @property
    def units(self) -> Tensor | None:
        if self.scale == 1.0:
            return None
        units = torch.ones(self.code_size, dtype=torch.float64)
        units[: self.operator.block_sizes[0]] = 1 / self.scale
        return units


class LowRankSparse(_LowRankAndSparse):
    """``1/2 ||x - s D0 - o D1||^2 + lam_star/2 ||s||^2 + lam ||o||_1 + sparse_ridge/2 ||o||^2``.

    A low-rank part s D0 and a sparse part o D1; the code is (s, o). The iterations run in the
    coordinates ``s' = c s, D0' = D0 / c, lam_star' = lam_star / c^2`` with
    ``c = ||D0||_2 / ||D1||_2``, an equivalent problem: without the scale c the larger dictionary
    would dictate the step size of the smaller one.

    Parameters
    ----------
    low_rank, sparse
        D0 and D1, atoms as rows, shapes (q0, m) and (q1, m).
    lam_star
        The weight of the quadratic penalty on s.
    lam
        The weight of the absolute values of o, one number or one per coefficient.
    sparse_ridge
        The weight of an additional quadratic penalty on o.
    nonnegative
        Whether s and o must not be negative.
    scale
        The constant c; computed when not given, and fixed from then on.
    """

    def __init__(
        self,
        low_rank: ArrayLike,
        sparse: ArrayLike,
        lam_star: float,
        lam: ArrayLike,
        sparse_ridge: float = 0.0,
        nonnegative: bool = True,
        scale: float | None = None,
    ) -> None:
        self.lam = lam
        self.sparse_ridge = as_number(sparse_ridge, "sparse_ridge")
        outliers: Penalty = L1(lam, nonnegative)
        if self.sparse_ridge > 0:
            outliers = Elastic(outliers, self.sparse_ridge)
        super().__init__(Joined(low_rank, sparse), lam_star, outliers, nonnegative, scale)

    @property
    def low_rank(self) -> Tensor:
        """D0, shape (q0, m)."""
        return self.dictionaries["low_rank"]

    @property
    def sparse(self) -> Tensor:
        """D1, shape (q1, m)."""
        return self.dictionaries["sparse"]

    @property
    def constraints(self) -> dict[str, Constraint]:
        return {**super().constraints, "sparse": Constraint(self.sparse_ridge, self.nonnegative)}


class ConvolutionalLowRankSparse(SparseModel):
    """`LowRankSparse` with atoms that slide: a `Convolution` with two parts.

    ``1/2 ||x - s * D0 - o * D1||^2 + lam_star/2 ||s||^2 + lam ||o||_1``; the first part of the
    operator's atoms is D0, the second D1.

    Parameters
    ----------
    dictionary
        A `pursuit.operators.Convolution` with ``parts=(q0, q1)``.
    lam_star, lam
        The weights of the quadratic penalty on s and of the absolute values of o.
    nonnegative
        Whether s, o and the atoms must not be negative.
    """

    part_names = ("low_rank", "sparse")

    def __init__(
        self, dictionary: Convolution, lam_star: float, lam: float, nonnegative: bool = True
    ) -> None:
        self.lam_star, self.lam = as_number(lam_star, "lam_star"), as_number(lam, "lam")
        self.nonnegative = nonnegative
        if not isinstance(dictionary, Convolution) or len(dictionary.parts) != 2:
            raise TypeError("dictionary must be a Convolution with parts=(q0, q1)")
        penalties = Ridge(lam_star, nonnegative), L1(lam, nonnegative)
        stacked = Stacked(list(zip(penalties, dictionary.block_sizes, strict=True)))
        super().__init__(dictionary, stacked)

    @property
    def config(self) -> dict[str, Any]:
        names = ("lam_star", "lam", "nonnegative")
        return {"dictionary": self.operator, **{name: getattr(self, name) for name in names}}

    @property
    def constraints(self) -> dict[str, Constraint]:
        return {"dictionary": Constraint(self.lam_star, self.nonnegative)}


class RobustPCA(_LowRankAndSparse):
    """``1/2 ||x - s D0 - o||^2 + lam_star/2 ||s||^2 + lam ||o||_1``; the code is (s, o).

    The operator of this model is ``(D0, I)``; the identity is neither stored nor multiplied.
    The iterations run in the coordinates of `LowRankSparse` with ``c = ||D0||_2``, in which the
    step constant is about 2 for any size of D0.

    Parameters
    ----------
    dictionary
        D0, atoms as rows, shape (q, m).
    lam_star
        The weight of the quadratic penalty on s; with one on D0 it amounts to a nuclear norm.
    lam
        The weight of the outliers, one number or one per feature.
    scale
        The constant c; computed when not given, and fixed from then on.
    """

    _nonnegative = False

    def __init__(
        self, dictionary: ArrayLike, lam_star: float, lam: ArrayLike, scale: float | None = None
    ) -> None:
        self.lam = float(lam) if isinstance(lam, Real) else lam
        outliers, operator = L1(lam, self._nonnegative), WithIdentity(dictionary)
        super().__init__(operator, lam_star, outliers, self._nonnegative, scale)


class RobustNMF(RobustPCA):
    """``1/2 ||x - s D0 - o||^2 + lam_star/2 ||s||^2 + lam ||o||_1`` with ``s >= 0, o >= 0``.

    As `RobustPCA`, with non-negative codes. D0 is usually non-negative too, which is not required.
    """

    _nonnegative = True


def require_model(model: object) -> None:
    """Raise a TypeError unless `model` is a model."""
    if not isinstance(model, SparseModel):
        raise TypeError(f"model must be a SparseModel, got {type(model).__name__}")
