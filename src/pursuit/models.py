"""Models: what is minimised.

Every model is one formula, ``1/2 ||x - z D||^2 + psi(z)`` for a row x, a dictionary D with
atoms as rows, and a penalty psi. In the paper's columns: ``1/2 ||x - D z||^2 + psi(z)``. The
named cases choose the penalty; robust PCA and robust NMF are the dictionary ``(D0, I)``, whose
identity is never stored nor multiplied.

A model is immutable: `replace` gives a new one. It stands between penalties, on which it is
built, and certificates, solvers and encoders, which ask it for the quadratic's matrix Q and
its largest eigenvalue (the step constant alpha).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from . import _checks
from ._checks import ArrayLike, as_float_matrix, as_number, as_weight, require_width
from .penalties import L1, Elastic, GroupL2, Groups, NonNegative, Penalty, Ridge, Stacked, TreeL2

__all__ = [
    "NMF",
    "Constraint",
    "GroupLasso",
    "HiLasso",
    "Lasso",
    "LowRankSparse",
    "Parts",
    "RobustNMF",
    "RobustPCA",
    "SparseModel",
]


@dataclass(frozen=True, eq=False)
class Parts:
    """What a code says about a signal; a part that the model does not have is None.

    Attributes
    ----------
    low_rank
        The part spanned by the low-rank dictionary, in the space of the signals.
    sparse
        The sparse part, in the space of the signals.
    scores
        The coefficients of the low-rank part.
    outliers
        The coefficients of the sparse part; for robust PCA and NMF the same as `sparse`.
    """

    low_rank: Tensor | None = None
    sparse: Tensor | None = None
    scores: Tensor | None = None
    outliers: Tensor | None = None


@dataclass(frozen=True)
class Constraint:
    """What keeps a dictionary in bounds while it is learned.

    Without it codes could shrink and atoms grow for ever. Either atoms stay in the unit ball, or
    the learning problem charges ``ridge/2 ||D||_F^2``, once for the whole data set.

    Attributes
    ----------
    ridge
        The weight; 0 stands for the unit ball.
    nonnegative
        Whether entries must not be negative.
    """

    ridge: float = 0.0
    nonnegative: bool = False

    def value(self, dictionary: Tensor) -> Tensor:
        """``phi(D) = ridge/2 ||D||_F^2``."""
        return self.ridge / 2 * dictionary.square().sum()

    def project(self, dictionary: Tensor) -> Tensor:
        """The nearest dictionary that is allowed: first ``max(D, 0)``, then the ball."""
        if self.nonnegative:
            dictionary = dictionary.clamp_min(0)
        if self.ridge > 0:
            return dictionary
        norms: Tensor = torch.linalg.vector_norm(dictionary, dim=1, keepdim=True)
        return dictionary / norms.clamp_min(1)


class SparseModel:
    """The general case: ``F(z) = 1/2 ||x - z D||^2 + psi(z)``.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m).
    penalty
        What the codes are charged for; its quadratic part enters Q.

    Examples
    --------
    >>> import torch
    >>> from pursuit.penalties import L1
    >>> model = SparseModel(torch.eye(2), L1(0.5))
    >>> model.objective(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.5, 0.0]]))
    tensor([0.8750])
    """

    def __init__(self, dictionary: ArrayLike, penalty: Penalty) -> None:
        self.dictionary = _as_dictionary(dictionary, "dictionary")
        if not isinstance(penalty, Penalty):
            raise TypeError(f"penalty must be a Penalty, got {type(penalty).__name__}")
        self.penalty = penalty
        penalty.check(self.code_size)

    #: whether the code ends in an identity block: one more coefficient for each feature
    identity = False
    #: which of `dictionaries` spans the low-rank part, if one does
    low_rank_name: str | None = None

    # ---- sizes and copies -------------------------------------------------------------

    @property
    def features(self) -> int:
        """m, the width of a signal."""
        return self.dictionary.shape[1]

    @property
    def code_size(self) -> int:
        """The number of coefficients of a code."""
        return self.dictionary.shape[0]

    @property
    def device(self) -> torch.device:
        return self.dictionary.device

    @property
    def dtype(self) -> torch.dtype:
        return self.dictionary.dtype

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments; ``type(model)(**model.config)`` is an equal model."""
        return {"dictionary": self.dictionary, "penalty": self.penalty}

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        """The dictionaries by the constructor's names; their rows are the atoms in code order."""
        return {"dictionary": self.dictionary}

    @property
    def constraints(self) -> dict[str, Constraint]:
        """What each of `dictionaries` must obey while it is learned."""
        return {"dictionary": Constraint()}

    def replace(self, **changes: Any) -> Self:
        """A new model with some of the constructor's arguments changed."""
        unknown = sorted(set(changes) - set(self.config))
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no argument {', '.join(unknown)}; "
                f"it takes {', '.join(self.config)}"
            )
        return type(self)(**{**self.config, **changes})

    def rebind(self, dictionaries: Mapping[str, Tensor], scale: float | None = None) -> Self:
        """The same model on other tensors of the same shapes, taken as they are.

        For whoever owns the dictionaries and changes them often: nothing is checked, nothing is
        computed, and gradients flow to the given tensors. `scale` stays unless it is given.
        """
        new = copy.copy(self)
        for name in [name for name in vars(new) if _is_cached(type(new), name)]:
            delattr(new, name)
        vars(new).update(dictionaries)
        if scale is not None:
            vars(new)["scale"] = scale
        new._assemble()
        return new

    def _assemble(self) -> None:
        """Put together what is made of several dictionaries."""
        return

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Self:
        """The model with its dictionary in another dtype or on another device."""
        moved = self.dictionary.to(dtype=dtype or self.dtype, device=device or self.device)
        return self if moved is self.dictionary else self.replace(dictionary=moved)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(features={self.features}, code_size={self.code_size}, "
            f"penalty={self.penalty!r})"
        )

    # ---- the linear map of the dictionary ---------------------------------------------

    def decode(self, codes: Tensor) -> Tensor:
        """``z D``, the signals that codes stand for, shape (n, m)."""
        self._check_codes(codes)
        return codes @ self.dictionary.to(codes.dtype)

    def correlate(self, signals: Tensor) -> Tensor:
        """``x D'``, the correlation of signals with every column of the code, shape (n, q)."""
        require_width(signals, self.features, "signals", "features", "the dictionary")
        return signals @ self.dictionary.to(signals.dtype).T

    def split(self, codes: Tensor) -> Parts:
        """The parts of the signal that codes stand for, as they apply to the model."""
        return Parts(sparse=self.decode(codes))

    def regression(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients and targets of the regression that a better dictionary solves."""
        return codes, x

    # ---- the objective ----------------------------------------------------------------

    def objective(self, x: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """``F(z) = 1/2 ||x - z D||^2 + psi(z)`` of each row, shape (n,).

        With a mask only the entries of x where it is True count in the data term.
        """
        residual = self.residual(x, codes, mask)
        return residual.square().sum(dim=-1) / 2 + self.penalty.value(codes)

    def residual(self, x: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """``x - z D``, zero where the mask is False."""
        require_width(x, self.features, "x", "features", "the dictionary")
        residual = x - self.decode(codes)
        return residual if mask is None else torch.where(mask, residual, 0.0)

    def gradient(self, x: Tensor, codes: Tensor, mask: Tensor | None = None) -> Tensor:
        """The gradient ``z Q - x P'`` of the smooth part: data term and quadratic penalty."""
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
        """What remains of the penalty without its quadratic part: what a solver shrinks by."""
        return self.penalty.nonsmooth

    # ---- the quadratic's constants ----------------------------------------------------

    @property
    def Q(self) -> Tensor:
        """The matrix of the smooth part, ``D D' + diag(curvature)``, shape (q, q)."""
        gram = self.dictionary @ self.dictionary.T
        return gram if self.curvature is None else gram + torch.diag(self.curvature.to(gram))

    @cached_property
    def step_constant(self) -> float:
        """alpha, the largest eigenvalue of Q; a proximal step of 1/alpha never ascends."""
        matrix = self.dictionary.detach().double()
        if self.curvature is None:
            return _squared_norm(matrix)
        if self.features < self.code_size and bool((self.curvature == self.curvature[0]).all()):
            return _squared_norm(matrix) + float(self.curvature[0])
        gram = matrix @ matrix.T + torch.diag(self.curvature.to(matrix))
        return float(torch.linalg.eigvalsh(gram)[-1])

    @cached_property
    def coordinate_constants(self) -> Tensor:
        """The diagonal of Q in float64: the curvature along each single coefficient."""
        norms = self.dictionary.detach().double().square().sum(dim=-1)
        return norms if self.curvature is None else norms + self.curvature.to(norms)

    @cached_property
    def block_constants(self) -> Tensor:
        """For each block of the penalty the largest eigenvalue of its part of Q, in float64."""
        atoms = self.dictionary.detach().double()
        constants = []
        for block in self.blocks:
            part = atoms[block] @ atoms[block].T
            if self.curvature is not None:
                part = part + torch.diag(self.curvature[block].to(part))
            constants.append(torch.linalg.eigvalsh(part)[-1])
        return torch.stack(constants)

    @cached_property
    def blocks(self) -> list[list[int]]:
        """The blocks of coefficients that the penalty ties together."""
        return self.penalty.blocks(self.code_size)

    @cached_property
    def block_labels(self) -> Tensor:
        """The number of the block of each coefficient, shape (q,)."""
        labels = torch.empty(self.code_size, dtype=torch.long)
        for number, block in enumerate(self.blocks):
            labels[block] = number
        return labels

    # ---- the coordinates that iterations run in ---------------------------------------

    @property
    def normalised(self) -> SparseModel:
        """The equivalent model in well-scaled coordinates, in which iterations run."""
        return self

    @property
    def units(self) -> Tensor | None:
        """How large a unit of each normalised coefficient is, shape (q,), float64, or None for 1.

        ``codes = units * normalised codes``, and the atoms of `normalised` are
        ``units * atoms``.
        """
        return None

    def to_normalised(self, codes: Tensor) -> Tensor:
        """Codes of this model as codes of `normalised`."""
        return codes if self.units is None else codes / self.units.to(codes)

    def from_normalised(self, codes: Tensor) -> Tensor:
        """Codes of `normalised` as codes of this model."""
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

    @property
    def config(self) -> dict[str, Any]:
        return {"dictionary": self.dictionary, "lam": self.lam, "nonnegative": self.nonnegative}


class GroupLasso(SparseModel):
    """``1/2 ||x - z D||^2 + sum_r lam_r ||z_r||_2`` over disjoint groups.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m).
    groups
        Disjoint lists of atom numbers; an atom in no group is not penalised.
    lam
        The weight, one number or one per group.
    nonnegative
        Whether codes must not be negative.
    """

    def __init__(
        self, dictionary: ArrayLike, groups: Groups, lam: ArrayLike, nonnegative: bool = False
    ) -> None:
        self.groups, self.lam, self.nonnegative = groups, lam, nonnegative
        super().__init__(dictionary, GroupL2(groups, lam, nonnegative))

    @property
    def config(self) -> dict[str, Any]:
        return {
            "dictionary": self.dictionary,
            "groups": self.groups,
            "lam": self.lam,
            "nonnegative": self.nonnegative,
        }


class HiLasso(SparseModel):
    """``1/2 ||x - z D||^2 + lam_group sum_r ||z_r||_2 + lam ||z||_1``: few groups, few atoms each.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m).
    groups
        Disjoint lists of atom numbers.
    lam_group
        The weight of the groups, one number or one per group.
    lam
        The weight of single coefficients, one number or one per atom.
    nonnegative
        Whether codes must not be negative.
    """

    def __init__(
        self,
        dictionary: ArrayLike,
        groups: Groups,
        lam_group: ArrayLike,
        lam: ArrayLike,
        nonnegative: bool = False,
    ) -> None:
        self.groups, self.lam_group, self.lam = groups, lam_group, lam
        self.nonnegative = nonnegative
        atoms = as_float_matrix(dictionary, "dictionary", "features")
        leaves = [[i] for i in range(len(atoms))]
        super().__init__(atoms, TreeL2([(leaves, lam), (groups, lam_group)], nonnegative))

    @property
    def config(self) -> dict[str, Any]:
        return {
            "dictionary": self.dictionary,
            "groups": self.groups,
            "lam_group": self.lam_group,
            "lam": self.lam,
            "nonnegative": self.nonnegative,
        }


class NMF(SparseModel):
    """``1/2 ||x - z D||^2 + ridge/2 ||z||^2`` with ``z >= 0``.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m); non-negative in NMF proper, which the codes do not need.
    ridge
        The weight of the quadratic penalty; with 0 the code may not be unique.
    """

    def __init__(self, dictionary: ArrayLike, ridge: ArrayLike = 0.0) -> None:
        self.ridge = as_weight(ridge, "ridge")
        penalty = Ridge(ridge, nonnegative=True) if bool(self.ridge.any()) else NonNegative()
        super().__init__(dictionary, penalty)

    @property
    def config(self) -> dict[str, Any]:
        return {"dictionary": self.dictionary, "ridge": self.ridge}

    @property
    def constraints(self) -> dict[str, Constraint]:
        return {"dictionary": Constraint(float(self.ridge.mean()), nonnegative=True)}

    def split(self, codes: Tensor) -> Parts:
        return Parts(low_rank=self.decode(codes), scores=codes)


class LowRankSparse(SparseModel):
    """``1/2 ||x - s D0 - o D1||^2 + lam_star/2 ||s||^2 + lam ||o||_1 + sparse_ridge/2 ||o||^2``.

    A low-rank part s D0 and a sparse part o D1; the code is (s, o). The iterations run in the
    coordinates ``s' = c s, D0' = D0 / c, lam_star' = lam_star / c^2``, an equivalent problem,
    with ``c = ||D0||_2 / ||D1||_2``: without it the larger dictionary would dictate the step
    of the smaller one.

    Parameters
    ----------
    low_rank
        D0, atoms as rows, shape (q0, m).
    sparse
        D1, atoms as rows, shape (q1, m).
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

    low_rank_name = "low_rank"

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
        self.low_rank = _as_dictionary(low_rank, "low_rank")
        self.sparse = _as_dictionary(sparse, "sparse")
        require_width(self.sparse, self.low_rank.shape[1], "sparse", "features", "low_rank")
        _checks.require_device(self.sparse, self.low_rank.device, "sparse", "low_rank")
        self.lam_star = as_number(lam_star, "lam_star")
        self.sparse_ridge = as_number(sparse_ridge, "sparse_ridge")
        self.lam, self.nonnegative = lam, nonnegative
        if scale is None:
            scale = _relative_scale(self.low_rank, self.sparse)
        self.scale = _as_scale(scale)
        outliers: Penalty = L1(lam, nonnegative)
        if self.sparse_ridge > 0:
            outliers = Elastic(outliers, self.sparse_ridge)
        penalty = _two_blocks(
            len(self.low_rank), self.lam_star, len(self.sparse), outliers, nonnegative
        )
        self._assemble()
        super().__init__(self.dictionary, penalty)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "low_rank": self.low_rank,
            "sparse": self.sparse,
            "lam_star": self.lam_star,
            "lam": self.lam,
            "sparse_ridge": self.sparse_ridge,
            "nonnegative": self.nonnegative,
            "scale": self.scale,
        }

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        return {"low_rank": self.low_rank, "sparse": self.sparse}

    @property
    def constraints(self) -> dict[str, Constraint]:
        return {
            "low_rank": Constraint(self.lam_star, self.nonnegative),
            "sparse": Constraint(self.sparse_ridge, self.nonnegative),
        }

    def _assemble(self) -> None:
        self.dictionary = torch.cat([self.low_rank, self.sparse.to(self.low_rank.dtype)])

    def replace(self, **changes: Any) -> Self:
        """A new model; its scale is computed anew if a dictionary changes and none is given."""
        if {"low_rank", "sparse"} & set(changes):
            changes = {"scale": None, **changes}
        return super().replace(**changes)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Self:
        dtype, device = dtype or self.dtype, device or self.device
        if (dtype, device) == (self.dtype, self.device):
            return self
        moved = {name: getattr(self, name).to(device, dtype) for name in ("low_rank", "sparse")}
        return self.replace(**moved, scale=self.scale)

    def split(self, codes: Tensor) -> Parts:
        scores, outliers = self._halves(codes)
        return Parts(
            low_rank=scores @ self.low_rank.to(codes.dtype),
            sparse=outliers @ self.sparse.to(codes.dtype),
            scores=scores,
            outliers=outliers,
        )

    @cached_property
    def normalised(self) -> SparseModel:
        if self.scale == 1.0:
            return self
        return self.replace(
            low_rank=self.low_rank / self.scale, lam_star=self.lam_star / self.scale**2, scale=1.0
        )

    @property
    def units(self) -> Tensor | None:
        return _units(len(self.low_rank), self.code_size, self.scale)

    def _halves(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        self._check_codes(codes)
        count = len(self.low_rank)
        return codes[..., :count], codes[..., count:]


class RobustPCA(SparseModel):
    """``1/2 ||x - s D0 - o||^2 + lam_star/2 ||s||^2 + lam ||o||_1``; the code is (s, o).

    The dictionary of this model is ``(D0, I)``; the identity is neither stored nor multiplied.
    With ``c = ||D0||_2^2 + 1 + lam_star`` the step constant is
    ``alpha = (c + sqrt(c^2 - 4 lam_star)) / 2``.

    The iterations run in the coordinates ``s' = c s, D0' = D0/c, lam_star' = lam_star/c^2``
    with ``c = ||D0||_2``, an equivalent problem whose step constant is about 2 whatever the
    size of D0; users see their own D0 and their own s.

    Parameters
    ----------
    dictionary
        D0, atoms as rows, shape (q, m).
    lam_star
        The weight of the quadratic penalty on s; half of what the nuclear norm charges.
    lam
        The weight of the outliers, one number or one per feature.
    scale
        The constant c; computed when not given, and fixed from then on.
    """

    identity = True
    low_rank_name = "dictionary"
    _nonnegative = False

    def __init__(
        self, dictionary: ArrayLike, lam_star: float, lam: ArrayLike, scale: float | None = None
    ) -> None:
        self.dictionary = _as_dictionary(dictionary, "dictionary")
        self.lam_star = as_number(lam_star, "lam_star")
        self.lam = lam
        if scale is None:
            scale = _squared_norm(self.dictionary.detach().double()) ** 0.5
        self.scale = _as_scale(scale)
        atoms, features = self.dictionary.shape
        outliers = L1(lam, self._nonnegative)
        self.penalty = _two_blocks(atoms, self.lam_star, features, outliers, self._nonnegative)

    @property
    def atoms(self) -> int:
        """The number of atoms of D0, which is the number of scores."""
        return self.dictionary.shape[0]

    @property
    def code_size(self) -> int:
        return self.atoms + self.features

    @property
    def outlier_weights(self) -> Tensor:
        """The weight of each outlier, shape (m,), float64."""
        return as_weight(self.lam, "lam").to(self.device).expand(self.features)

    @property
    def config(self) -> dict[str, Any]:
        return {
            "dictionary": self.dictionary,
            "lam_star": self.lam_star,
            "lam": self.lam,
            "scale": self.scale,
        }

    @property
    def constraints(self) -> dict[str, Constraint]:
        return {"dictionary": Constraint(self.lam_star, self._nonnegative)}

    def replace(self, **changes: Any) -> Self:
        """A new model; its scale is computed anew if the dictionary changes and none is given."""
        if "dictionary" in changes:
            changes = {"scale": None, **changes}
        return super().replace(**changes)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Self:
        moved = self.dictionary.to(dtype=dtype or self.dtype, device=device or self.device)
        return (
            self if moved is self.dictionary else self.replace(dictionary=moved, scale=self.scale)
        )

    def decode(self, codes: Tensor) -> Tensor:
        scores, outliers = self._halves(codes)
        return torch.addmm(outliers, scores, self.dictionary.to(codes.dtype))

    def correlate(self, signals: Tensor) -> Tensor:
        return torch.cat([super().correlate(signals), signals], dim=-1)

    def regression(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        scores, outliers = self._halves(codes)
        return scores, x - outliers

    def split(self, codes: Tensor) -> Parts:
        scores, outliers = self._halves(codes)
        low_rank = scores @ self.dictionary.to(codes.dtype)
        return Parts(low_rank=low_rank, sparse=outliers, scores=scores, outliers=outliers)

    @property
    def Q(self) -> Tensor:
        """``[[D0 D0' + lam_star I, D0], [D0', I]]`` in full, for a look at small problems.

        It has (q + m)^2 entries; no solver forms it.
        """
        d0 = self.dictionary
        ridge = self.lam_star * torch.eye(self.atoms, dtype=d0.dtype, device=d0.device)
        identity = torch.eye(self.features, dtype=d0.dtype, device=d0.device)
        upper = torch.cat([d0 @ d0.T + ridge, d0], dim=1)
        return torch.cat([upper, torch.cat([d0.T, identity], dim=1)])

    @cached_property
    def step_constant(self) -> float:
        c = _squared_norm(self.dictionary.detach().double()) + 1 + self.lam_star
        return float((c + max(c * c - 4 * self.lam_star, 0.0) ** 0.5) / 2)

    @cached_property
    def coordinate_constants(self) -> Tensor:
        norms = self.dictionary.detach().double().square().sum(dim=-1) + self.lam_star
        return torch.cat([norms, norms.new_ones(self.features)])

    @cached_property
    def block_constants(self) -> Tensor:
        return self.coordinate_constants

    @cached_property
    def normalised(self) -> SparseModel:
        if self.scale == 1.0:
            return self
        return self.replace(
            dictionary=self.dictionary / self.scale,
            lam_star=self.lam_star / self.scale**2,
            scale=1.0,
        )

    @property
    def units(self) -> Tensor | None:
        return _units(self.atoms, self.code_size, self.scale)

    def _halves(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        self._check_codes(codes)
        return codes[..., : self.atoms], codes[..., self.atoms :]


class RobustNMF(RobustPCA):
    """``1/2 ||x - s D0 - o||^2 + lam_star/2 ||s||^2 + lam ||o||_1`` with ``s >= 0, o >= 0``.

    As `RobustPCA`, with non-negative codes; in robust NMF proper D0 is non-negative too, which
    the codes do not need.
    """

    _nonnegative = True


def require_model(model: object) -> None:
    """Raise TypeError for what is not a model."""
    if not isinstance(model, SparseModel):
        raise TypeError(f"model must be a SparseModel, got {type(model).__name__}")


def _as_dictionary(values: ArrayLike, name: str) -> Tensor:
    dictionary = as_float_matrix(values, name, "features")
    if not _checks.is_meta(dictionary):
        dead = (dictionary.detach() == 0).all(dim=1).nonzero().flatten()
        if len(dead) > 0:
            raise ValueError(
                f"atom {int(dead[0])} of {name} is zero; remove it or replace it by a sample"
            )
    return dictionary


def without_zero_atoms(dictionary: Tensor, size: float = 1e-4) -> Tensor:
    """Replace atoms that are zero, which no model accepts, by constant ones.

    Parameters
    ----------
    dictionary
        Atoms as rows, shape (q, m).
    size
        The norm of the new atoms, relative to the median norm of the others. A small atom stays
        practically unused where codes are penalised; with 1 step constants are those of a typical
        atom.

    Returns
    -------
    Tensor
        The dictionary itself if none of its atoms is zero, otherwise a copy.
    """
    norms: Tensor = torch.linalg.vector_norm(dictionary, dim=1, keepdim=True)
    zero = norms < torch.finfo(torch.float32).tiny ** 0.5
    if not bool(zero.any()):
        return dictionary
    typical = 1.0 if bool(zero.all()) else float(norms[~zero].median())
    return torch.where(zero, size * typical / dictionary.shape[1] ** 0.5, dictionary)


def _is_cached(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name, None), cached_property)


def _as_scale(value: float) -> float:
    return float(as_weight(value, "scale", positive=True))


def _two_blocks(
    scores: int, lam_star: float, outliers: int, penalty: Penalty, nonnegative: bool
) -> Stacked:
    return Stacked([(Ridge(lam_star, nonnegative), scores), (penalty, outliers)])


def _squared_norm(matrix: Tensor) -> float:
    """``||matrix||_2^2`` through the smaller of its two Gram matrices."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return float(torch.linalg.eigvalsh(gram)[-1])


def _relative_scale(low_rank: Tensor, sparse: Tensor) -> float:
    norms = [_squared_norm(matrix.detach().double()) for matrix in (low_rank, sparse)]
    return float((norms[0] / norms[1]) ** 0.5)


def _units(scaled: int, size: int, scale: float) -> Tensor | None:
    """1/scale for the first coefficients, 1 for the others."""
    if scale == 1.0:
        return None
    return torch.cat(
        [
            torch.full((scaled,), 1 / scale, dtype=torch.float64),
            torch.ones(size - scaled, dtype=torch.float64),
        ]
    )
