"""Operators: the dictionary as a linear map from codes to signals, ``z -> z D``.

A model needs more of its dictionary than a product: correlations, the Gram matrix, norms. An
operator provides them without forming what is not stored, such as the identity of robust PCA.
Rows are samples: ``codes (n, q)``, ``signals (n, m)``, atoms as rows of D. An operator is
immutable; `rebind` and `to` return new ones.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from ._checks import ArrayLike, as_float_matrix, is_meta, require_device, require_width
from ._registry import Registered, arguments_of

__all__ = ["Joined", "Matrix", "Operator", "WithIdentity", "without_zero_atoms"]

#: the norm of an atom that takes the place of a zero atom, relative to the median norm
ZERO_ATOM_SIZE = 1e-4


class Operator(Registered, ABC):
    """Base class: a new operator implements the abstract members.

    All arguments of its constructor, the dictionaries (the matrices that are learned) and others,
    must be kept as attributes of the same names.
    """

    @property
    @abstractmethod
    def dictionaries(self) -> dict[str, Tensor]:
        """The matrices that are learned, by the names of their attributes."""

    @property
    @abstractmethod
    def atoms(self) -> Tensor:
        """The atoms that are stored, in the order of the coefficients, shape (rows, m).

        Where the code is longer, the remaining coefficients belong to an identity block, whose
        atoms are the unit vectors of R^m.
        """

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """The number of coefficients of each part of the code."""
        return (self.code_size,)

    @property
    def features(self) -> int:
        """m, the width of a signal."""
        return self.atoms.shape[1]

    @property
    def code_size(self) -> int:
        """q, the number of coefficients of a code."""
        return len(self.atoms) + self.identity_size

    @property
    def identity_size(self) -> int:
        """The number of coefficients whose atoms are unit vectors and are not stored: 0 or m."""
        return 0

    @property
    def device(self) -> torch.device:
        return self.atoms.device

    @property
    def dtype(self) -> torch.dtype:
        return self.atoms.dtype

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments; ``type(operator)(**operator.config)`` is equal."""
        return arguments_of(self)

    def rebind(self, dictionaries: Mapping[str, Tensor]) -> Self:
        """Return the same operator on other tensors, unchecked; gradients flow to them."""
        new = copy.copy(self)
        vars(new).update(dictionaries)
        return new

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Self:
        """Return the operator in another dtype or on another device."""
        dtype, device = dtype or self.dtype, device or self.device
        given = self.dictionaries
        moved = {name: tensor.to(device, dtype) for name, tensor in given.items()}
        return self if all(moved[n] is given[n] for n in given) else self.rebind(moved)

    def scaled(self, units: Tensor) -> Operator:
        """Return the operator whose atoms are ``units * atoms``; an identity block has units 1."""
        atoms = self.atoms
        return Matrix.of(atoms * units[: len(atoms), None].to(atoms))

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={tuple(t.shape)}" for name, t in self.dictionaries.items())
        return f"{type(self).__name__}({shapes})"

    def decode(self, codes: Tensor) -> Tensor:
        """Return ``z D``, the signals that codes represent, shape (n, m)."""
        return codes @ self.atoms.to(codes.dtype)

    def correlate(self, signals: Tensor) -> Tensor:
        """Return ``x D'``, the correlation of signals with all atoms, shape (n, q)."""
        return signals @ self.atoms.to(signals.dtype).T

    def split(self, codes: Tensor) -> tuple[Tensor, ...]:
        """Return the coefficients of each part of the code."""
        return torch.split(codes, list(self.block_sizes), dim=-1)

    def decode_parts(self, codes: Tensor) -> tuple[Tensor, ...]:
        """Return the signals that the parts of the code represent; they add up to `decode`."""
        return (self.decode(codes),)

    def regression(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return coefficients and targets of the regression that a better dictionary solves.

        The best `dictionaries`, stacked, minimise ``||targets - coefficients D||^2``.
        """
        return codes, x

    def dense(self) -> Tensor:
        """Return D in full, shape (q, m)."""
        return self.atoms

    def rows(self, numbers: Sequence[int]) -> Tensor:
        """Return rows of D by their numbers, those of an identity block included, in float64."""
        atoms, chosen = self.atoms.detach(), torch.tensor(numbers, device=self.device)
        rows = atoms.new_zeros(len(chosen), self.features, dtype=torch.float64)
        stored = chosen < len(atoms)
        rows[stored] = atoms[chosen[stored]].double()
        rows[~stored, chosen[~stored] - len(atoms)] = 1.0
        return rows

    def gram(self) -> Tensor:
        """Return ``D D'`` in full, shape (q, q)."""
        dense = self.dense()
        return dense @ dense.T

    def squared_norms(self) -> Tensor:
        """Return the squared norm of each atom, shape (q,), float64."""
        norms = self.atoms.detach().double().square().sum(dim=-1)
        return torch.cat([norms, norms.new_ones(self.identity_size)])

    def largest_eigenvalue(self, curvature: Tensor | None = None) -> float:
        """Return the largest eigenvalue of ``D D' + diag(curvature)``."""
        atoms = self.atoms.detach().double()
        if curvature is None:
            return squared_norm(atoms)
        if self.features < self.code_size and bool((curvature == curvature[0]).all()):
            return squared_norm(atoms) + float(curvature[0])
        gram = atoms @ atoms.T + torch.diag(curvature.to(atoms))
        return float(torch.linalg.eigvalsh(gram)[-1])

    def block_constants(
        self, blocks: Sequence[Sequence[int]], curvature: Tensor | None = None
    ) -> Tensor:
        """Return for each block r the largest eigenvalue of ``D_r D_r' + diag(curvature_r)``."""
        diagonal = self.squared_norms()
        if curvature is not None:
            diagonal = diagonal + curvature.to(diagonal)
        constants = diagonal[[block[0] for block in blocks]]
        for number, block in enumerate(blocks):
            if len(block) > 1:
                atoms = self.rows(block)
                gram = atoms @ atoms.T
                if curvature is not None:
                    gram = gram + torch.diag(curvature[list(block)].to(gram))
                constants[number] = torch.linalg.eigvalsh(gram)[-1]
        return constants


class Matrix(Operator):
    """``z -> z D`` for one matrix of atoms.

    Parameters
    ----------
    dictionary
        D, atoms as rows, shape (q, m).
    """

    def __init__(self, dictionary: ArrayLike) -> None:
        self.dictionary = as_dictionary(dictionary, "dictionary")

    @classmethod
    def of(cls, dictionary: Tensor) -> Matrix:
        """Return the operator of a tensor that is known to be valid."""
        new = cls.__new__(cls)
        new.dictionary = dictionary
        return new

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        return {"dictionary": self.dictionary}

    @property
    def atoms(self) -> Tensor:
        return self.dictionary


class WithIdentity(Matrix):
    """``(s, o) -> s D0 + o``: a matrix beside the identity, which is neither stored nor multiplied.

    Parameters
    ----------
    dictionary
        D0, atoms as rows, shape (q0, m). The code has q0 + m coefficients.
    """

    @property
    def block_sizes(self) -> tuple[int, ...]:
        return len(self.dictionary), self.features

    @property
    def identity_size(self) -> int:
        return self.features

    def scaled(self, units: Tensor) -> Operator:
        return self.rebind(super().scaled(units).dictionaries)

    def decode(self, codes: Tensor) -> Tensor:
        scores, outliers = self.split(codes)
        return torch.addmm(outliers, scores, self.dictionary.to(codes.dtype))

    def correlate(self, signals: Tensor) -> Tensor:
        return torch.cat([super().correlate(signals), signals], dim=-1)

    def decode_parts(self, codes: Tensor) -> tuple[Tensor, ...]:
        scores, outliers = self.split(codes)
        return scores @ self.dictionary.to(codes.dtype), outliers

    def regression(self, x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        scores, outliers = self.split(codes)
        return scores, x - outliers

    def dense(self) -> Tensor:
        identity = torch.eye(self.features, dtype=self.dtype, device=self.device)
        return torch.cat([self.dictionary, identity])

    def largest_eigenvalue(self, curvature: Tensor | None = None) -> float:
        """Return the largest eigenvalue, where possible without forming the identity.

        With the same ridge r on all scores and none on the rest, and ``c = ||D0||^2 + 1 + r``, it
        is ``(c + sqrt(c^2 - 4 r)) / 2``.
        """
        r = 0.0
        if curvature is not None:
            ridge, rest = self.split(curvature)
            if bool((ridge != ridge[0]).any()) or bool((rest != 0).any()):
                gram = self.gram().detach().double() + torch.diag(curvature.to(self.device))
                return float(torch.linalg.eigvalsh(gram)[-1])
            r = float(ridge[0])
        c = squared_norm(self.dictionary.detach().double()) + 1 + r
        return float((c + max(c * c - 4 * r, 0.0) ** 0.5) / 2)


class Joined(Operator):
    """``(s, o) -> s D0 + o D1``: two matrices side by side.

    Parameters
    ----------
    low_rank, sparse
        D0 and D1, atoms as rows, shapes (q0, m) and (q1, m).
    """

    def __init__(self, low_rank: ArrayLike, sparse: ArrayLike) -> None:
        self.low_rank = as_dictionary(low_rank, "low_rank")
        self.sparse = as_dictionary(sparse, "sparse")
        require_width(self.sparse, self.low_rank.shape[1], "sparse", "features", "low_rank")
        require_device(self.sparse, self.low_rank.device, "sparse", "low_rank")
        self.sparse = self.sparse.to(self.low_rank.dtype)

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        return {"low_rank": self.low_rank, "sparse": self.sparse}

    @property
    def atoms(self) -> Tensor:
        return torch.cat([self.low_rank, self.sparse])

    @property
    def features(self) -> int:
        return self.low_rank.shape[1]

    @property
    def code_size(self) -> int:
        return len(self.low_rank) + len(self.sparse)

    @property
    def device(self) -> torch.device:
        return self.low_rank.device

    @property
    def dtype(self) -> torch.dtype:
        return self.low_rank.dtype

    @property
    def block_sizes(self) -> tuple[int, ...]:
        return len(self.low_rank), len(self.sparse)

    def decode(self, codes: Tensor) -> Tensor:
        low_rank, sparse = self.decode_parts(codes)
        return low_rank + sparse

    def decode_parts(self, codes: Tensor) -> tuple[Tensor, ...]:
        scores, outliers = self.split(codes)
        return scores @ self.low_rank.to(codes.dtype), outliers @ self.sparse.to(codes.dtype)


def as_dictionary(values: ArrayLike, name: str) -> Tensor:
    """Return a dictionary as a valid float matrix without zero atoms, or raise an error."""
    dictionary = as_float_matrix(values, name, "features")
    if not is_meta(dictionary):
        dead = (dictionary.detach() == 0).all(dim=1).nonzero().flatten()
        if len(dead) > 0:
            raise ValueError(
                f"atom {int(dead[0])} of {name} is zero; remove it or replace it by a sample"
            )
    return dictionary


def without_zero_atoms(dictionary: Tensor) -> Tensor:
    """Replace atoms that are zero, which no operator accepts, by small constant ones.

    Atoms that no sample needs vanish under a ridge while a dictionary is learned. The new atom has
    `ZERO_ATOM_SIZE` times the median norm of the others, so that it stays practically unused.
    """
    norms = dictionary.norm(dim=1, keepdim=True)
    zero = norms < torch.finfo(torch.float32).tiny ** 0.5
    if not bool(zero.any()):
        return dictionary
    size = float(norms[~zero].median()) if bool((~zero).any()) else 1.0
    return torch.where(zero, ZERO_ATOM_SIZE * size / dictionary.shape[1] ** 0.5, dictionary)


def squared_norm(matrix: Tensor) -> float:
    """Return ``||matrix||_2^2``, through the smaller of its two Gram matrices."""
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    return float(torch.linalg.eigvalsh(gram)[-1])
