"""The base of operators: what a model needs of its dictionary, with defaults for a stored matrix.

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

from .._native import kernels
from .._registry import Registered, arguments_of


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
    def is_small(self) -> bool:
        """Whether `atoms` may be formed and multiplied: False if they are not stored and large."""
        return True

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
        from .matrices import Matrix

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
        gram = gram_matrix(atoms) + torch.diag(curvature.to(atoms))
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
                gram = gram_matrix(self.rows(block))
                if curvature is not None:
                    gram = gram + torch.diag(curvature[list(block)].to(gram))
                constants[number] = torch.linalg.eigvalsh(gram)[-1]
        return constants


def gram_matrix(matrix: Tensor) -> Tensor:
    """Return ``matrix matrix'``, for float32 or float64 and without gradients.

    The compiled kernel computes it on this thread. Threads of BLAS take longer, and spin for
    milliseconds after any product, on the cores that a solver needs.
    """
    if matrix.device.type != "cpu":
        return matrix @ matrix.T
    gram = matrix.new_empty(len(matrix), len(matrix))
    array = matrix.detach().contiguous().numpy()
    kernels.gemm(array, array, gram.numpy(), transpose_b=True)
    return gram


def squared_norm(matrix: Tensor) -> float:
    """Return ``||matrix||_2^2``, through the smaller of its two Gram matrices."""
    gram = gram_matrix(matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T)
    return float(torch.linalg.eigvalsh(gram)[-1])
