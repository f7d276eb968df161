"""What all encoders share: T layers from signals to codes, and what can be asked of them.

An encoder owns its dictionary and its step; the layers run in the coordinates of the normalised
model. The kinds of encoder differ in two things only: the step constants they start from, and
which coefficients a layer may change.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import dtype_name, is_eager, require_choice, require_device, require_width
from .._registry import Registered, name_of
from ..descriptions import describe_model
from ..models import SparseModel, require_model
from ..operators import without_zero_atoms
from ..runtime.program import FORM, Program
from .forms import Layer
from .lowering import lower
from .steps import STEPS, Model, Quadratic, Setting, Step
from .trainable import Kind

__all__ = ["Encoder"]

#: numbers of a code matrix that one tile holds: the element-wise work between two products then
#: stays in the second-level cache (and no power of two, whose tiles compete for the same lines)
TILE_NUMBERS = 3 * 2**15
#: the most rows of a tile
TILE_ROWS = 1024

STRUCTURES = ("auto", "dense", "structured")


class Encoder(Registered, nn.Module):
    """The common base; see `ProximalEncoder`, `CoordinateEncoder`, `BlockCoordinateEncoder`.

    Calling an encoder on signals of shape (n, m) gives codes of shape (n, q). Without gradients,
    large batches are worked off in tiles, so that memory stays flat.

    Attributes
    ----------
    regime
        The name of the regime that it was trained with, None before training.
    minimises_objective
        Whether that regime aims at the lowest objective of the model, None before training.
    """

    constants: Tensor
    curvature: Tensor | None
    units: Tensor | None
    depth: Tensor

    def __init__(
        self,
        model: SparseModel,
        *,
        layers: int,
        rates: Sequence[float],
        step: str,
        momentum: bool,
        tied: bool,
        structure: str,
        accelerated: bool = False,
    ) -> None:
        super().__init__()
        require_choice(step, tuple(STEPS), "step")
        require_choice(structure, STRUCTURES, "structure")
        self._template = model
        self._layers = layers
        self._step_name = step
        self.regime: str | None = None
        self.minimises_objective: bool | None = None
        for name, tensor in model.dictionaries.items():
            frozen = nn.Parameter(tensor.detach().clone(), requires_grad=False)
            self.register_parameter(name, frozen)
        inner = model.normalised
        for name, values in (
            ("constants", self._start_constants(inner)),
            ("curvature", inner.curvature),
            ("units", model.units),
        ):
            own = None if values is None else values.to(model.device, model.dtype).detach().clone()
            self.register_buffer(name, own)
        self.register_buffer("depth", torch.tensor(len(rates)))
        if structure == "auto":
            structure = _cheaper_structure(model, step)
        self._setting = Setting(
            penalty=model.nonsmooth,
            rates=tuple(rates),
            momentum=momentum,
            accelerated=accelerated,
            tied=tied,
            dense=structure == "dense",
            identity=model.operator.identity_size > 0,
        )
        self.step: Step = STEPS[step](self._setting, self._quadratic())

    @staticmethod
    @abstractmethod
    def _start_constants(inner: SparseModel) -> Tensor:
        """The step constant of each coefficient of a normalised model, shape (q,), float64."""

    # ---- what it is -------------------------------------------------------------------

    @property
    def layers(self) -> int:
        """T. It is part of what is learned: weights trained for one depth fail at another."""
        return self._layers

    @layers.setter
    def layers(self, value: int) -> None:
        raise AttributeError(
            f"the encoder has {self._layers} layers and keeps them, because its weights belong to "
            f"that depth; build a new one with layers={value} and train it"
        )

    @property
    def model(self) -> SparseModel:
        """The model on the encoder's own dictionary: no copy, and gradients flow to it.

        Whoever wants to keep it while the dictionary is trained must clone the tensors.
        """
        names = self._template.dictionaries
        return self._template.rebind({name: getattr(self, name) for name in names}, self.units)

    @property
    def features(self) -> int:
        """m, the width of the signals."""
        return self._template.features

    @property
    def living_model(self) -> SparseModel:
        """A model of its own on the dictionary as it is, atoms that have died filled in."""
        return self._template.replace(
            **{
                name: without_zero_atoms(getattr(self, name).detach())
                for name in self._template.dictionaries
            }
        )

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments but for the model, as plain data."""
        return {
            "layers": self._layers,
            "step": self._step_name,
            "momentum": self._setting.momentum,
            "tied": self._setting.tied,
            "structure": self.structure,
        }

    @property
    def structure(self) -> str:
        """ "dense" if layers multiply by the matrix of the quadratic, else "structured"."""
        return "dense" if self._setting.dense else "structured"

    @property
    def parameter_count(self) -> int:
        """How many numbers are learned, the dictionary not counted."""
        return sum(parameter.numel() for parameter in self.step.parameters())

    @property
    def multiplications(self) -> int:
        """Products with entries of matrices for one sample; element-wise work is not counted.

        Layers that change few coefficients need only these; see `eager_multiplications`.
        """
        return self._products([self._changed(n) for n in range(self._setting.depth - 1)])

    @property
    def eager_multiplications(self) -> int:
        """What torch multiplies in fact: all coefficients, also those that do not change."""
        return self._products([self._template.code_size] * (self._setting.depth - 1))

    def _products(self, changed: Sequence[int]) -> int:
        """The count for layers that change so many coefficients, the last one left out."""
        depth = self._setting.depth
        rows, features = self._rows(), self._template.features
        if not self._setting.dense:
            return (2 * depth - 1) * rows * features
        untied = not self._setting.tied and self._step_name == "coupled"
        return rows * features * (depth if untied else 1) + rows * sum(changed)

    def _changed(self, number: int) -> int:
        """The most coefficients that a layer changes."""
        return self._template.code_size

    def _rows(self) -> int:
        """The number of atoms that layers multiply by; dense layers write the identity out."""
        size = self._template.code_size
        return size if self._setting.dense else size - self._template.operator.identity_size

    def program(self) -> Program:
        """Return the encoder as plain arrays, which run without torch."""
        exact = copy.deepcopy(self).to("cpu", torch.float64)
        with torch.no_grad():
            return lower(
                exact.step.layers(exact._quadratic(), numbers=True),
                self._setting.penalty,
                dictionary=exact.model.dictionary,
                constants=exact.constants,
                units=exact.units,
                widths=[self._width(number) or 0 for number in range(self._setting.depth)],
                blocks=self._blocks(),
                info=self._program_info(),
            )

    @property
    def description(self) -> dict[str, Any]:
        """What it is, as plain data for files."""
        return {
            "type": name_of(self),
            "arguments": self.config,
            "model": describe_model(self._template),
            "regime": self.regime,
            "minimises_objective": self.minimises_objective,
        }

    def _program_info(self) -> dict[str, Any]:
        """The description, or less of it where the classes have no names that a file could use."""
        try:
            return {**self.description, "program": FORM}
        except TypeError:
            return {"type": type(self).__name__, "regime": self.regime, "program": FORM}

    def _blocks(self) -> Tensor | None:
        """The block of each coefficient, for layers that take over one block."""
        return None

    def _width(self, number: int) -> int | None:
        """How many coefficients a layer takes over; None for one of the blocks."""
        return self._template.code_size

    def extra_repr(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in self.config.items())
        return ", ".join([repr(self._template), *arguments])

    # ---- what it does -----------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        """The codes of signals (..., m) after the last layer, shape (..., q)."""

        def last(layers: Sequence[Layer], rows: Tensor) -> Tensor:
            (z,) = deque(self._run(layers, rows), maxlen=1)
            return self._from_normalised(z)

        return self._by_tiles(last, x)

    def iterates(self, x: Tensor) -> Iterator[Tensor]:
        """The codes after each layer, each of shape (..., q); the last are the encoder's own."""
        rows = self._as_rows(x)
        for z in self._run(self._ready(), rows):
            yield self._from_normalised(z).reshape(*x.shape[:-1], z.shape[-1])

    def best(self, x: Tensor) -> Tensor:
        """Per sample the iterate with the lowest objective, zero included, shape (..., q).

        A safeguard against the rare sample on which trained layers overshoot. It makes sense
        for encoders that are meant to minimise the model's objective, and costs one more
        product with the dictionary in each layer.
        """
        if self.minimises_objective is False:
            raise ValueError(
                f"the encoder was trained for {self.regime!r}, not to minimise the objective by "
                "which best would choose; call the encoder itself"
            )
        model = self.model

        def lowest(layers: Sequence[Layer], rows: Tensor) -> Tensor:
            codes = rows.new_zeros(len(rows), model.code_size)
            objective = model.objective(rows, codes)
            for z in self._run(layers, rows):
                candidate = self._from_normalised(z)
                value = model.objective(rows, candidate)
                lower = value < objective
                codes = torch.where(lower[:, None], candidate, codes)
                objective = torch.where(lower, value, objective)
            return codes

        return self._by_tiles(lowest, x)

    def prepare(self, x: Tensor) -> Tensor:
        """The signals that the model describes: x itself."""
        return x

    def kinds(self) -> dict[str, Kind]:
        """What each parameter is, the dictionaries included, by the names of `named_parameters`."""
        constants = self.living_model.normalised.coordinate_constants
        steps = self.step.kinds(float(constants.mean().sqrt()))
        dictionaries = {name: Kind("dictionary") for name in self._template.dictionaries}
        return dictionaries | {f"step.{name}": kind for name, kind in steps.items()}

    def project_(self) -> None:
        """Restore what must hold after an update of the parameters: thresholds >= 0."""
        self.step.project_()

    def follow(self) -> None:
        """Renew what model steps compute from the dictionary: step constants and rescaling.

        For whoever changes the dictionary by more than a little. Learned matrices belong to the
        coordinates in which they were learned, so there nothing changes: they go on learning.
        """
        if not isinstance(self.step, Model):
            return
        with torch.no_grad():
            model = self.living_model
            inner = model.normalised
            for buffer, renewed in (
                (self.units, model.units),
                (self.constants, self._start_constants(inner)),
                (self.curvature, inner.curvature),
            ):
                if buffer is not None and renewed is not None:
                    buffer.copy_(renewed)

    def _run(self, layers: Sequence[Layer], x: Tensor) -> Iterator[Tensor]:
        """The normalised codes after each layer."""
        z: Tensor | None = None
        previous: Tensor | None = None
        weight: Tensor | None = None
        for number, (form, mix, thresholds) in enumerate(layers):
            if form.weight is not weight:
                weight, signal = form.weight, form.signal(x)
            v = form.first(signal, mix) if z is None else form.value(signal, mix, z, previous)
            candidate = self._setting.penalty.shrink(v, thresholds)
            previous, z = z, self._choose(number, z, candidate)
            yield z

    def _choose(self, number: int, z: Tensor | None, candidate: Tensor) -> Tensor:
        """The code after a layer; z is None where it is zero."""
        return candidate

    # ---- how it gets there ------------------------------------------------------------

    def _quadratic(self) -> Quadratic:
        operator = self.model.operator
        if self.units is not None:
            operator = operator.scaled(self.units)
        atoms = operator.dense() if self._setting.dense else operator.atoms
        return Quadratic(atoms, self.constants, self.curvature)

    def _ready(self) -> list[Layer]:
        numbers = not torch.is_grad_enabled() and is_eager()
        return self.step.layers(self._quadratic(), numbers)

    def _from_normalised(self, z: Tensor) -> Tensor:
        return z if self.units is None else z * self.units

    def _by_tiles(self, encode: Callable[[Sequence[Layer], Tensor], Tensor], x: Tensor) -> Tensor:
        rows, layers = self._as_rows(x), self._ready()
        size = self._template.code_size
        length = min(TILE_ROWS, max(1, TILE_NUMBERS // size))
        if torch.is_grad_enabled() or not is_eager() or len(rows) <= length:
            codes = encode(layers, rows)
        else:
            layers = [layer.folded() for layer in layers]
            codes = rows.new_empty(len(rows), size)
            for start in range(0, len(rows), length):
                codes[start : start + length] = encode(layers, rows[start : start + length])
        return codes.reshape(*x.shape[:-1], size)

    def _as_rows(self, x: Tensor) -> Tensor:
        """The signals as a matrix, or an error that says what is wrong with them."""
        if not isinstance(x, Tensor):
            raise TypeError(
                f"x must be a tensor, got {type(x).__name__}; convert it with torch.as_tensor(x)"
            )
        if x.ndim == 0:
            raise ValueError("x must have at least one dimension (features), got a single number")
        require_width(x, self._template.features, "x", "features", "the encoder's dictionary")
        require_device(x, self.constants.device, "x", "the encoder")
        if x.dtype != self.constants.dtype:
            own, given = dtype_name(self.constants.dtype), dtype_name(x.dtype)
            raise TypeError(
                f"x is {given}, but the encoder is {own}; convert one of them with .to(torch.{own})"
            )
        if is_eager() and not _is_finite(x.detach()):
            raise ValueError("x contains NaN or infinite values; remove or replace them")
        return x.reshape(-1, x.shape[-1])

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        given, own = state_dict.get(prefix + "depth"), self._setting.depth
        if given is not None and int(given) != own:
            # at once, before a single weight has been overwritten
            raise RuntimeError(
                f"the weights were trained for a depth of {int(given)}, the encoder has {own}; "
                "a depth is part of what was learned, so build the encoder with that depth"
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def check_layers(model: SparseModel, layers: int) -> None:
    """Raise for what is not a model or not a number of layers."""
    require_model(model)
    if isinstance(layers, bool) or not isinstance(layers, int):
        raise TypeError(f"layers must be an integer, got {type(layers).__name__}")
    if layers < 1:
        raise ValueError(f"layers must be at least 1, got {layers}")


def _cheaper_structure(model: SparseModel, step: str) -> str:
    """Two-block models go through the residual, others where that takes fewer products.

    Free layers of one dictionary stay as the paper has them: there the form decides what is
    learned, not only what it costs.
    """
    if len(model.operator.block_sizes) > 1:
        return "structured"
    return "structured" if step != "free" and 2 * model.features < model.code_size else "dense"


def _is_finite(x: Tensor) -> bool:
    """A finite sum proves it in one pass; an infinite one may only have overflowed."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())
