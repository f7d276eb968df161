"""The linear part of a layer, in two forms, and the scalars that mix its terms.

Every layer of every encoder is, in the coordinates of the normalised model,

    v = a1 z + a2 z' + e x W' - (c1 z + c2 z') G',        z_new = shrink(v, t)

where z and z' are the codes after the last layer and after the one before it. `Gram` multiplies
by ``H' = I - G'``; `Residual` never forms G and uses the residual ``x - z V``, which the identity
of robust PCA needs and which is cheaper where there are many more atoms than features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

#: scalars below this are not divided by
SMALLEST = 1e-3
#: a learned scalar while gradients are recorded; a plain number otherwise, which costs no pass
Scalar = float | Tensor


class Mix(NamedTuple):
    """The scalars of one layer; without a2 and c2 the layer does not look at z'."""

    a1: Scalar = 1.0
    a2: Scalar | None = None
    c1: Scalar = 1.0
    c2: Scalar | None = None
    e: Scalar = 1.0


@dataclass(frozen=True, eq=False)
class Gram:
    """``v = e x W' + (a1 - c1) z + (a2 - c2) z' + (c1 z + c2 z') H'``, H as in the paper.

    `weight` is W, shape (q, m), and `coupling` is H, shape (q, q).
    """

    weight: Tensor
    coupling: Tensor

    def signal(self, x: Tensor) -> Tensor:
        """The part of v that depends on the signals alone; layers with the same W share it."""
        return x @ self.weight.T

    def first(self, signal: Tensor, mix: Mix) -> Tensor:
        """v of a layer that starts from ``z = 0``."""
        return _times(mix.e, signal)

    def value(self, signal: Tensor, mix: Mix, z: Tensor, previous: Tensor | None) -> Tensor:
        """v of any other layer."""
        v = combine(mix.c1, z, mix.c2, previous) @ self.coupling.T
        v = _plus(v, mix.e, signal)
        v = _plus(v, mix.a1 - mix.c1, z)
        if previous is not None and mix.a2 is not None and mix.c2 is not None:
            v = _plus(v, mix.a2 - mix.c2, previous)
        return v


@dataclass(frozen=True, eq=False)
class Residual:
    """``v = a1 z + a2 z' + (e x - p V) W' - decay p`` with ``p = c1 z + c2 z'``.

    `weight` is W and `atoms` is V, shape (rows, m). With `outlier_step` w, shape (m,), the code
    ends in an identity block: V and W continue as I and diag(w). `decay`, shape (q,), is what the
    quadratic penalty adds to the diagonal of G.
    """

    weight: Tensor
    atoms: Tensor
    outlier_step: Tensor | None
    decay: Tensor | None

    def signal(self, x: Tensor) -> Tensor:
        return x

    def first(self, signal: Tensor, mix: Mix) -> Tensor:
        return self._analyse(_times(mix.e, signal))

    def value(self, signal: Tensor, mix: Mix, z: Tensor, previous: Tensor | None) -> Tensor:
        point = combine(mix.c1, z, mix.c2, previous)
        v = self._analyse(_times(mix.e, signal) - self._decode(point))
        v = _plus(v, mix.a1, z)
        if previous is not None and mix.a2 is not None:
            v = _plus(v, mix.a2, previous)
        return v if self.decay is None else torch.addcmul(v, self.decay, point, value=-1)

    def _decode(self, point: Tensor) -> Tensor:
        if self.outlier_step is None:
            return point @ self.atoms
        rows = len(self.atoms)
        return torch.addmm(point[:, rows:], point[:, :rows], self.atoms)

    def _analyse(self, residual: Tensor) -> Tensor:
        scores = residual @ self.weight.T
        if self.outlier_step is None:
            return scores
        return torch.cat([scores, residual * self.outlier_step], dim=-1)


Form = Gram | Residual


class Layer(NamedTuple):
    """One layer, ready to run."""

    form: Form
    mix: Mix
    thresholds: tuple[Tensor, ...]

    def folded(self) -> Layer:
        """Return the same layer with its scalars multiplied into the coupling, to save passes.

        With ``r = c2/c1`` and ``d = a - c``, a layer in the gram form is
        ``v = e x W' + (z + r z') (c1 H' + d1 I) + (d2 - d1 r) z'``. This pays if many rows follow,
        and needs scalars that are numbers.
        """
        a1, a2, c1, c2, e = self.mix
        if not isinstance(self.form, Gram) or isinstance(c1, Tensor):
            return self
        if abs(c1) < SMALLEST or c1 == a1 == 1:
            return self
        coupling = c1 * self.form.coupling
        coupling.diagonal().add_(a1 - c1)
        mix = Mix(e=e)
        if a2 is not None and c2 is not None:
            ratio = c2 / c1
            mix = Mix(a2=a2 - c2 - (a1 - c1) * ratio + ratio, c2=ratio, e=e)
        return self._replace(form=Gram(self.form.weight, coupling), mix=mix)


@dataclass(frozen=True, eq=False)
class Stack:
    """All layers at once. What has one entry along its first dimension holds for all layers.

    Attributes
    ----------
    gram
        Whether the layers are in the form of `Gram`, else in that of `Residual`.
    coupled
        Whether H follows from W and the dictionary D: ``H = I - W D' - diag(decay)``.
    weight
        W, shape (1 or T, rows, m).
    matrix
        V, shape (k, rows, m), or in the gram form H, shape (k, q, q), or D, shape (1, q, m), if
        coupled. With ``k = T - 1`` the first layer, which has no product, has none.
    outlier_step, decay
        As for `Residual`, the first of them of shape (1 or T, m).
    mixing
        The scalars, shape (T, 5) in the order of `Mix`, or (T,) if ``c1 = e`` is the only one;
        None for the scalars of the algorithm.
    thresholds
        For each stage of the penalty a tensor whose first dimension is 1 or T; negative ones count
        as 0.
    depth
        T.
    """

    gram: bool
    coupled: bool
    weight: Tensor
    matrix: Tensor
    outlier_step: Tensor | None
    decay: Tensor | None
    mixing: Tensor | None
    thresholds: tuple[Tensor, ...]
    depth: int

    def layers(self, numbers: bool = False) -> list[Layer]:
        """Return the layers, ready to run; with `numbers` their scalars have no gradients."""
        rows = [_each(t.clamp_min(0), self.depth) for t in self.thresholds]
        thresholds = list(zip(*rows, strict=True)) if rows else [()] * self.depth
        parts = zip(self._forms(), self._mixes(numbers), thresholds, strict=True)
        return [Layer(*part) for part in parts]

    def _forms(self) -> list[Form]:
        matrices = _each(self._couplings() if self.gram else self.matrix, self.depth)
        weights = _each(self.weight, self.depth)
        if self.gram:
            return [Gram(*pair) for pair in zip(weights, matrices, strict=True)]
        steps: Sequence[Tensor | None] = [None] * self.depth
        if self.outlier_step is not None:
            steps = _each(self.outlier_step, self.depth)
        return [Residual(*t, self.decay) for t in zip(weights, matrices, steps, strict=True)]

    def _couplings(self) -> Tensor:
        if not self.coupled:
            return self.matrix
        return coupling(self.weight, self.matrix[0], self.decay)

    def _mixes(self, numbers: bool) -> list[Mix]:
        if self.mixing is None:
            return [Mix()] * self.depth
        rows = self.mixing.tolist() if numbers else self.mixing.unbind()
        if self.mixing.ndim == 2:
            return [Mix(*(row if numbers else row.unbind())) for row in rows]
        return [Mix(c1=rate, e=rate) for rate in rows]


def coupling(weight: Tensor, atoms: Tensor, decay: Tensor | None) -> Tensor:
    """Return ``H = I - W D' - diag(decay)``, for one W or a stack of them."""
    diagonal = torch.ones(len(atoms), dtype=atoms.dtype, device=atoms.device)
    return -weight @ atoms.T + torch.diag(diagonal if decay is None else diagonal - decay)


def _each(stacked: Tensor, depth: int) -> Sequence[Tensor]:
    """The entries of a stack for each layer; the first layer may share that of the second."""
    if len(stacked) == 1:
        return [stacked[0]] * depth
    entries = stacked.unbind()
    return entries if len(entries) == depth else [entries[0], *entries]


def combine(c1: Scalar, z: Tensor, c2: Scalar | None, previous: Tensor | None) -> Tensor:
    """``c1 z + c2 z'``."""
    point = _times(c1, z)
    if c2 is None or previous is None:
        return point
    if point is z and not isinstance(c2, Tensor):
        return torch.add(z, previous, alpha=c2)
    return _plus(point, c2, previous)


def _times(factor: Scalar, tensor: Tensor) -> Tensor:
    """``factor tensor``: the tensor itself if the factor is the number 1, else a new one."""
    return tensor if isinstance(factor, float) and factor == 1 else torch.mul(tensor, factor)


def _plus(total: Tensor, factor: Scalar, tensor: Tensor) -> Tensor:
    """``total + factor tensor`` in one pass; `total` may be overwritten."""
    if isinstance(factor, Tensor):
        return torch.addcmul(total, factor, tensor)
    return total if factor == 0 else total.add_(tensor, alpha=factor)
