"""Regimes: the losses that encoders are trained with.

A regime maps (encoder, batch) to a loss, a mean over the batch. The four regimes of the paper are
defined here. Regimes can be added with weights, ``Supervised() + 0.1 * Unsupervised()``, and any
callable ``(encoder, batch) -> loss`` is a regime too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from ._checks import as_number, dtype_name
from ._words import listed
from .batches import Batch, Targets
from .encoders.bank import EncoderBank, squared_errors
from .encoders.trainable import Trainable, require_members
from .files import below, joined
from .models import SparseModel
from .solvers.solve import solve

__all__ = ["Approximation", "Batch", "Custom", "Discriminative", "Regime"]
__all__ += ["Supervised", "Unsupervised", "Weighted"]

Codes = Tensor | list[Tensor]


class Regime(ABC):
    """The interface of all regimes; a new regime implements `loss`."""

    #: the name that a trained encoder records as `Encoder.regime`
    name: str
    #: whether training aims at the lowest objective of the model, by which `Encoder.best` chooses
    minimises_objective: bool = False

    def __call__(self, encoder: nn.Module, batch: Batch) -> Tensor:
        return self.loss(encoder, batch, encoder(batch.x))

    @abstractmethod
    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        """Return the loss of a batch, a scalar tensor.

        The codes are those of the encoder, shape (n, q), or for a bank a list with those of each.
        """

    def begin(self, encoder: nn.Module, batch: Batch) -> None:
        """Set what is relative to the data, from the untrained encoder and the first batch."""
        return

    @property
    def state(self) -> dict[str, float]:
        """The numbers that `begin` has set, for resuming a run."""
        return {}

    @state.setter
    def state(self, values: Mapping[str, float]) -> None:
        return

    def __add__(self, other: Regime | Callable[..., Tensor]) -> Weighted:
        return Weighted([(1.0, self), (1.0, as_regime(other))])

    def __mul__(self, weight: float) -> Weighted:
        return Weighted([(weight, self)])

    __radd__ = __add__
    __rmul__ = __mul__


class Unsupervised(Regime):
    """``mean_i F(x_i, z_i) + phi(D)/n``: the objective of the model; needs no targets.

    ``F(x, z) = 1/2 ||x - z D||^2 + psi(z)``. The penalty phi of the dictionary counts only where
    the dictionary is learned (`Batch.learns_dictionary`), and once for the whole data set, so
    each sample has 1/n of it.

    Parameters
    ----------
    n
        The size of the data set; by default `Batch.total`. For a stream with forgetting factor
        beta it is ``1/(1 - beta)``.
    """

    name = "unsupervised"
    minimises_objective = True

    def __init__(self, n: float | None = None) -> None:
        self.n = n

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        single, codes = _single(encoder, codes, self.name)
        model = single.model
        loss = model.objective(single.prepare(batch.x), codes).mean()
        return loss + dictionary_penalty(model, batch, self.n)


class Approximation(Regime):
    """``mean_i ||z_i - z_i*||^2``, the distance to the codes of the exact solver.

    Codes are compared in the normalised coordinates of the model, in which robust PCA weighs
    scores and outliers alike. Each sample is solved when it is first drawn. The codes of samples
    with row numbers are kept, if those of the whole data set take at most `cache` bytes.

    Parameters
    ----------
    tol
        The relative gap of the exact codes.
    cache
        The memory limit for kept codes, in bytes.
    """

    name = "approximation"
    minimises_objective = True

    def __init__(self, tol: float = 1e-6, cache: int = 2**28) -> None:
        self.tol, self.cache = tol, cache
        self._known: Tensor | None = None
        self._codes: Tensor | None = None
        self._source: tuple[Tensor, ...] = ()

    def begin(self, encoder: nn.Module, batch: Batch) -> None:
        self._source = ()  # the run may be on other data or with other weights than the last one

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        single, codes = _single(encoder, codes, self.name)
        distance = single.model.to_normalised(codes) - self.exact(single, batch)
        return distance.square().sum(dim=-1).mean()

    @torch.no_grad()
    def exact(self, encoder: Trainable, batch: Batch) -> Tensor:
        """Return the exact codes of a batch in the normalised coordinates, shape (n, q)."""
        model, x = encoder.model, encoder.prepare(batch.x)
        # signals that are transformed may be transformed differently next time
        batch = batch if x is batch.x else Batch(x)
        return model.to_normalised(self._targets(model, batch))

    def _targets(self, model: SparseModel, batch: Batch) -> Tensor:
        if batch.rows is None or batch.total is None:
            return solve(model, batch.x, tol=self.tol).codes
        self._forget_unless(model, batch)
        if self._codes is None or self._known is None:
            return solve(model, batch.x, tol=self.tol).codes
        new = ~self._known[batch.rows]
        if bool(new.any()):
            rows = batch.rows[new]
            self._codes[rows] = solve(model, batch.x[new], tol=self.tol).codes
            self._known[rows] = True
        return self._codes[batch.rows]

    def _forget_unless(self, model: SparseModel, batch: Batch) -> None:
        """Drop the kept codes if the dictionary or the size of the data set has changed."""
        assert batch.total is not None
        dictionaries = tuple(tensor.detach() for tensor in model.dictionaries.values())
        same = len(self._source) == len(dictionaries) and all(
            torch.equal(a, b) for a, b in zip(self._source, dictionaries, strict=True)
        )
        if same and (self._known is None or len(self._known) == batch.total):
            return
        self._source = tuple(tensor.clone() for tensor in dictionaries)
        self._known = self._codes = None
        size = model.code_size * batch.x.element_size()
        if batch.total * size <= self.cache:
            self._known = torch.zeros(batch.total, dtype=torch.bool)
            self._codes = batch.x.new_empty(batch.total, model.code_size)


class Supervised(Regime):
    """The distance to known signals, or to known parts of the signals.

    With a matrix y as target, ``mean_i signal ||y_i - z_i D||^2``. With parts,
    ``mean_i low_rank ||s_i D0 - l_i||^2 + sparse ||o_i D1 - o_i*||^2``, for targets
    ``{"low_rank": l, "sparse": o}``, one of which may be missing. To both is added
    ``penalty (mean_i psi(z_i) + phi(D)/n)``, with phi(D) where the dictionary is learned. There is
    no factor 1/2 as in the objective.

    Parameters
    ----------
    signal, low_rank, sparse
        The weights of the distances.
    penalty
        The weight of the model's penalties.
    """

    name = "supervised"

    def __init__(
        self, signal: float = 1.0, low_rank: float = 1.0, sparse: float = 1.0, penalty: float = 0.0
    ) -> None:
        self.signal = as_number(signal, "signal")
        self.low_rank = as_number(low_rank, "low_rank")
        self.sparse = as_number(sparse, "sparse")
        self.penalty = as_number(penalty, "penalty")

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        single, codes = _single(encoder, codes, self.name)
        model = single.model
        if isinstance(batch.targets, Mapping):
            loss = self._parts(model, batch.targets, codes)
        else:
            decoded = model.decode(codes)
            targets = _matrix(batch.targets, decoded.shape, self.name)
            loss = self.signal * _distance(decoded, targets)
        if self.penalty > 0:
            loss = loss + self.penalty * (
                model.penalty.value(codes).mean() + dictionary_penalty(model, batch)
            )
        return loss

    def _parts(self, model: SparseModel, targets: Mapping[str, Tensor], codes: Tensor) -> Tensor:
        parts = model.split(codes)
        loss = codes.new_zeros(())
        for name, target in targets.items():
            if name not in model.part_names:
                known = listed([repr(n) for n in model.part_names])
                raise ValueError(f"targets name {name!r}, but {type(model).__name__} has {known}")
            weight, part = getattr(self, name), getattr(parts, name)
            loss = loss + weight * _distance(part, _matrix(target, part.shape, self.name))
        return loss


class Discriminative(Regime):
    """Codes that separate classes; the targets are labels.

    For an `EncoderBank`, with the reconstruction errors ``e_j = ||x - decode_j(z_j)||^2`` and
    the label l: ``mean_i e_l + sum_{j != l} max(0, margin - e_j)``.

    For one encoder with groups, with the energies ``e_r = ||z_r||^2`` of the penalty's blocks:
    ``mean_i sum_{r silent} e_r + sum_{r active} max(0, margin - e_r)``, where the active blocks
    are given by a label (one of them) or by a boolean matrix (n, groups).

    Parameters
    ----------
    margin
        The margin, relative to a median of the untrained encoder on the first batch: of the
        errors of the wrong classes, or of the energies of the active blocks.
    absolute
        Whether the margin is in the unit of ``||x||^2`` instead.
    """

    name = "discriminative"

    def __init__(self, margin: float = 0.5, absolute: bool = False) -> None:
        self.margin = as_number(margin, "margin")
        self.absolute = absolute
        self._unit = 1.0 if absolute else None

    def begin(self, encoder: nn.Module, batch: Batch) -> None:
        if self.absolute:
            return
        with torch.no_grad():
            measure, active = self._measure(encoder, batch, encoder(batch.x))
            chosen = measure[~active] if isinstance(encoder, EncoderBank) else measure[active]
            unit = float(chosen.median()) if len(chosen) > 0 else 0.0
        if unit <= 0:
            # nothing is active yet, so the energy of the signals is used
            unit = float(batch.x.square().sum(dim=-1).median())
        self._unit = unit

    @property
    def state(self) -> dict[str, float]:
        return {} if self._unit is None else {"unit": self._unit}

    @state.setter
    def state(self, values: Mapping[str, float]) -> None:
        self._unit = values.get("unit")

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        if self._unit is None:
            self.begin(encoder, batch)
        assert self._unit is not None
        measure, active = self._measure(encoder, batch, codes)
        hinge = (self.margin * self._unit - measure).clamp_min(0)
        small = active if isinstance(encoder, EncoderBank) else ~active
        return torch.where(small, measure, hinge).sum(dim=-1).mean()

    def _measure(self, encoder: nn.Module, batch: Batch, codes: Codes) -> tuple[Tensor, Tensor]:
        """Return errors or energies, and which of them belong to the label, both (n, classes)."""
        if isinstance(encoder, EncoderBank):
            assert isinstance(codes, list)
            measure = squared_errors(encoder, batch.x, codes)
        else:
            single, codes = _single(encoder, codes, self.name)
            measure = single.model.block_energies(codes)
        return measure, _one_hot(batch.targets, measure.shape)


class Custom(Regime):
    """Any callable ``(encoder, batch) -> loss`` as a regime."""

    name = "custom"

    def __init__(self, function: Callable[[nn.Module, Batch], Tensor]) -> None:
        self.function = function

    def __call__(self, encoder: nn.Module, batch: Batch) -> Tensor:
        return self.function(encoder, batch)

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        raise TypeError(
            "a callable as regime computes the codes itself, so it has no losses of single layers; "
            "derive from Regime for that"
        )


class Weighted(Regime):
    """``sum_k w_k loss_k``, which minimises the objective of the model if all regimes do.

    Parameters
    ----------
    terms
        Pairs of a weight and a regime.
    """

    def __init__(self, terms: list[tuple[float, Regime]]) -> None:
        self.terms: list[tuple[float, Regime]] = []
        for weight, regime in terms:
            inner = regime.terms if isinstance(regime, Weighted) else [(1.0, regime)]
            self.terms += [(weight * factor, part) for factor, part in inner]
        self.minimises_objective = all(part.minimises_objective for _, part in self.terms)
        self.name = " + ".join(
            regime.name if weight == 1 else f"{weight:g} {regime.name}"
            for weight, regime in self.terms
        )

    def __call__(self, encoder: nn.Module, batch: Batch) -> Tensor:
        if any(isinstance(regime, Custom) for _, regime in self.terms):
            return torch.stack([w * regime(encoder, batch) for w, regime in self.terms]).sum()
        return super().__call__(encoder, batch)

    def loss(self, encoder: nn.Module, batch: Batch, codes: Codes) -> Tensor:
        return torch.stack([w * r.loss(encoder, batch, codes) for w, r in self.terms]).sum()

    def begin(self, encoder: nn.Module, batch: Batch) -> None:
        for _, regime in self.terms:
            regime.begin(encoder, batch)

    @property
    def state(self) -> dict[str, float]:
        return joined({str(number): regime.state for number, (_, regime) in enumerate(self.terms)})

    @state.setter
    def state(self, values: Mapping[str, float]) -> None:
        for number, (_, regime) in enumerate(self.terms):
            regime.state = below(values, f"{number}.")


def as_regime(regime: Any) -> Regime:
    """Return the regime itself, or a callable as a `Custom` regime."""
    if isinstance(regime, Regime):
        return regime
    if isinstance(regime, type) or not callable(regime):
        raise TypeError(
            f"regime must be a Regime or a callable (encoder, batch) -> loss, got {regime!r}"
        )
    return Custom(regime)


def record_regime(regime: Regime, module: nn.Module) -> None:
    """Record in all encoders within a module what they were trained for."""
    parts: Iterator[Any] = module.modules()
    for part in parts:
        if hasattr(part, "regime"):
            part.regime = regime.name
            part.minimises_objective = regime.minimises_objective


def _single(encoder: nn.Module, codes: Codes, name: str) -> tuple[Trainable, Tensor]:
    """Return the arguments; raise a TypeError if they are a bank and its codes."""
    if isinstance(encoder, EncoderBank) or not isinstance(codes, Tensor):
        raise TypeError(f"the {name} regime is for one encoder, got {type(encoder).__name__}")
    require_members(encoder, f"the {name} regime", ("model", "prepare"))
    return cast(Trainable, encoder), codes


def dictionary_penalty(model: SparseModel, batch: Batch, n: float | None = None) -> Tensor:
    """Return ``phi(D)/n`` if the dictionary is learned, else 0; by default n is `batch.total`."""
    penalty = next(iter(model.dictionaries.values())).new_zeros(())
    if not batch.learns_dictionary:
        return penalty
    samples = n or batch.total
    for name, constraint in model.constraints.items():
        if constraint.ridge > 0:
            if samples is None:
                raise ValueError(
                    "the dictionary's penalty counts once for the whole data set, whose size is "
                    "not known here; give it as Unsupervised(n=...)"
                )
            penalty = penalty + constraint.value(model.dictionaries[name]) / samples
    return penalty


def _distance(decoded: Tensor, target: Tensor) -> Tensor:
    return (decoded - target).square().sum(dim=-1).mean()


def _matrix(target: Targets | None, shape: torch.Size, name: str) -> Tensor:
    if not isinstance(target, Tensor):
        raise ValueError(
            f"the {name} regime needs targets: signals of shape {tuple(shape)}, or "
            'parts as {"low_rank": ..., "sparse": ...}'
        )
    if target.shape != shape:
        raise ValueError(f"targets must have shape {tuple(shape)}, got {tuple(target.shape)}")
    return target


def _one_hot(labels: Targets | None, shape: torch.Size) -> Tensor:
    rows, classes = shape
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"the discriminative regime needs targets: a label from 0 to {classes - 1} for each "
            f"sample, or a boolean matrix with {classes} columns"
        )
    if labels.dtype == torch.bool and labels.shape == shape:
        return labels
    if labels.shape != (rows,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels must be integers of shape ({rows},) or booleans of shape {tuple(shape)}, got "
            f"{dtype_name(labels.dtype)} of shape {tuple(labels.shape)}"
        )
    low, high = (int(labels.min()), int(labels.max())) if rows > 0 else (0, 0)
    if not 0 <= low <= high < classes:
        raise ValueError(f"labels must lie between 0 and {classes - 1}, got {low} to {high}")
    return labels[:, None] == torch.arange(classes, device=labels.device)
