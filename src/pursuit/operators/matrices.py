"""Operators whose atoms are stored: one matrix, a matrix beside the identity, two matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from .._checks import ArrayLike, as_float_matrix, is_meta, require_device, require_width
from .base import Operator, squared_norm

#: the norm of an atom that takes the place of a zero atom, relative to the median norm
ZERO_ATOM_SIZE = 1e-4


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
        squares = dictionary.detach().square().sum(dim=1)
        if not bool(torch.isfinite(squares.sum())):
            raise ValueError(
                f"the numbers of {name} are too large, up to {float(dictionary.abs().max()):.1e}; "
                "divide them by a constant"
            )
        dead = (squares == 0).nonzero().flatten()
        if len(dead) > 0:
            small = bool(dictionary.detach()[dead[0]].any())
            raise ValueError(
                f"atom {int(dead[0])} of {name} is {'too small' if small else 'zero'}; remove it "
                "or replace it by a sample"
            )
    return dictionary


def without_zero_atoms(dictionary: Tensor) -> Tensor:
    """Replace atoms that are zero, which no operator accepts, by small constant ones.

    Atoms that no sample needs vanish under a ridge while a dictionary is learned. The new atom has
    `ZERO_ATOM_SIZE` times the median norm of the others, so that it stays practically unused.
    """
    norms, smallest = dictionary.norm(dim=1, keepdim=True), torch.finfo(torch.float32).tiny ** 0.5
    zero = norms < smallest
    if not bool(zero.any()):
        return dictionary
    size = float(norms[~zero].median()) if bool((~zero).any()) else 1.0
    # squares of the entries must not underflow
    entry = max(ZERO_ATOM_SIZE * size / dictionary.shape[1] ** 0.5, 2 * smallest)
    return torch.where(zero, entry, dictionary)
