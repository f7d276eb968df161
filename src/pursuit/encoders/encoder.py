"""The base of all encoders: T layers from signals to codes.

The layers run in the coordinates of the normalised model. The kinds of encoder differ in the step
constants they start from, and in the coefficients that a layer may change.
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
from .steps import STEPS, LayerParameters, Quadratic, Scalars, Setting
from .trainable import Kind

#: entries of a code matrix in one tile, so that the element-wise work between two products stays in
#: the second-level cache (and no power of two, whose tiles compete for the same cache lines)
TILE_NUMBERS = 3 * 2**15
#: the most rows of a tile
TILE_ROWS = 1024

FORMS = ("auto", "gram", "residual")


class Encoder(Registered, nn.Module):
    """The common base; see `ProximalEncoder`, `CoordinateEncoder`, `BlockCoordinateEncoder`.

    Calling an encoder on signals of shape (n, m) gives codes of shape (n, q). Without gradients,
    large batches are encoded in tiles, which limits the memory.

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
        layers: int,
        rates: Sequence[float],
        step: str,
        momentum: bool,
        tied: bool,
        form: str,
        accelerated: bool = False,
    ) -> None:
        super().__init__()
        require_choice(step, tuple(STEPS), "step")
        require_choice(form, FORMS, "form")
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
            if values is not None:
                values = values.to(model.device, model.dtype).detach().clone()
            self.register_buffer(name, values)
        self.register_buffer("depth", torch.tensor(len(rates)))
        gram = (_cheaper_form(model, step) if form == "auto" else form) == "gram"
        identity, rates = model.operator.identity_size > 0, tuple(rates)
        self._setting = Setting(
            model.nonsmooth, rates, momentum, accelerated, tied=tied, gram=gram, identity=identity
        )
        self.step: LayerParameters = STEPS[step](self._setting, self._quadratic())

    @staticmethod
    def check(model: object, layers: object) -> None:
        """Raise an error unless the arguments are a model and a number of layers."""
        require_model(model)
        if isinstance(layers, bool) or not isinstance(layers, int):
            raise TypeError(f"layers must be an integer, got {type(layers).__name__}")
        if layers < 1:
            raise ValueError(f"layers must be at least 1, got {layers}")

    @staticmethod
    @abstractmethod
    def _start_constants(inner: SparseModel) -> Tensor:
        """The step constant of each coefficient of a normalised model, shape (q,), float64."""

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
        """The model on the encoder's dictionary: no copy, and gradients flow to it.

        To keep it while the dictionary is trained, clone the tensors.
        """
        names = self._template.dictionaries
        return self._template.rebind({name: getattr(self, name) for name in names}, self.units)

    @property
    def features(self) -> int:
        """m, the width of the signals."""
        return self._template.features

    def _valid_model(self) -> SparseModel:
        """A copy of the model, zero atoms replaced so that its constants exist."""
        given = {name: getattr(self, name).detach() for name in self._template.dictionaries}
        return self._template.replace(**{n: without_zero_atoms(t) for n, t in given.items()})

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments except the model, as plain data."""
        config = {"layers": self._layers, "step": self._step_name}
        options = {"momentum": self._setting.momentum, "tied": self._setting.tied}
        return {**config, **options, "form": self.form}

    @property
    def form(self) -> str:
        """ "gram" if layers multiply by the matrix of the quadratic, else "residual"."""
        return "gram" if self._setting.gram else "residual"

    @property
    def parameter_count(self) -> int:
        """The number of learned numbers, without the dictionary."""
        return sum(parameter.numel() for parameter in self.step.parameters())

    @property
    def multiplications(self) -> int:
        """Multiplications by entries of matrices per sample, without element-wise work.

        For layers that change few coefficients only those count; see `eager_multiplications`.
        """
        return self._products([self._changed(n) for n in range(self._setting.depth - 1)])

    @property
    def eager_multiplications(self) -> int:
        """The same in torch, which multiplies all coefficients, changed or not."""
        return self._products([self._template.code_size] * (self._setting.depth - 1))

    def _products(self, changed: Sequence[int]) -> int:
        """The count, given how many coefficients each layer but the last changes."""
        depth, size, features = self._setting.depth, self._template.code_size, self.features
        if not self._setting.gram:
            return (2 * depth - 1) * (size - self._template.operator.identity_size) * features
        untied = not self._setting.tied and self._step_name == "coupled"
        return size * features * (depth if untied else 1) + size * sum(changed)

    def _changed(self, number: int) -> int:
        """The most coefficients that a layer changes."""
        return self._template.code_size

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
        """The description, or less of it if the classes have no names that a file can use."""
        try:
            return {**self.description, "program": FORM}
        except TypeError:
            return {"type": type(self).__name__, "regime": self.regime, "program": FORM}

    def _blocks(self) -> Tensor | None:
        """The block of each coefficient, for layers that take over one block."""
        return None

    def _width(self, number: int) -> int | None:
        """The number of coefficients that a layer takes over; None for one of the blocks."""
        return self._changed(number)

    def extra_repr(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in self.config.items())
        return ", ".join([repr(self._template), *arguments])

    def forward(self, x: Tensor) -> Tensor:
        """Return the codes of signals (..., m) after the last layer, shape (..., q)."""

        def last(layers: Sequence[Layer], rows: Tensor) -> Tensor:
            (z,) = deque(self._run(layers, rows), maxlen=1)
            return self._from_normalised(z)

        return self._by_tiles(last, x)

    def iterates(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the codes after each layer, each of shape (..., q)."""
        rows = self._as_rows(x)
        for z in self._run(self._ready(), rows):
            yield self._from_normalised(z).reshape(*x.shape[:-1], z.shape[-1])

    def best(self, x: Tensor) -> Tensor:
        """Return for each sample the iterate with the lowest objective, shape (..., q).

        The zero code is among the candidates. This is a safeguard against rare samples on which
        trained layers overshoot, for encoders that minimise the objective of the model. It costs
        one more product with the dictionary in each layer.
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
        """Return the signals that the model describes: x itself."""
        return x

    def kinds(self) -> dict[str, Kind]:
        """Return what each parameter is, the dictionaries included, by its name."""
        constants = self._valid_model().normalised.coordinate_constants
        steps = self.step.kinds(float(constants.mean().sqrt()))
        dictionaries = {name: Kind("dictionary") for name in self._template.dictionaries}
        return dictionaries | {f"step.{name}": kind for name, kind in steps.items()}

    def project_(self) -> None:
        """Restore the constraints on the parameters after an update: thresholds >= 0."""
        self.step.project_()

    def refresh_constants(self) -> None:
        """Recompute step constants and rescaling after a larger change of the dictionary.

        With learned matrices, which belong to the coordinates in which they were learned, nothing
        changes: this concerns ``step="model"`` only.
        """
        if not isinstance(self.step, Scalars):
            return
        with torch.no_grad():
            model = self._valid_model()
            inner = model.normalised
            for buffer, renewed in (
                (self.units, model.units),
                (self.constants, self._start_constants(inner)),
                (self.curvature, inner.curvature),
            ):
                if buffer is not None and renewed is not None:
                    buffer.copy_(renewed)

    def _run(self, layers: Sequence[Layer], x: Tensor) -> Iterator[Tensor]:
        """Yield the normalised codes after each layer."""
        z: Tensor | None = None
        previous = weight = z
        for number, (form, mix, thresholds) in enumerate(layers):
            if form.weight is not weight:
                weight, signal = form.weight, form.signal(x)
            v = form.first(signal, mix) if z is None else form.value(signal, mix, z, previous)
            candidate = self._setting.penalty.shrink(v, thresholds)
            previous, z = z, self._choose(number, z, candidate)
            yield z

    def _choose(self, number: int, z: Tensor | None, candidate: Tensor) -> Tensor:
        """The code after a layer; before the first one z is None."""
        return candidate

    def _quadratic(self) -> Quadratic:
        tensors = {name: getattr(self, name) for name in self._template.dictionaries}
        operator = self._template.operator.rebind(tensors)
        if self.units is not None:
            operator = operator.scaled(self.units)
        atoms = operator.dense() if self._setting.gram else operator.atoms
        return Quadratic(atoms, self.constants, self.curvature)

    def _ready(self) -> list[Layer]:
        return self.step.layers(self._quadratic(), not torch.is_grad_enabled() and is_eager())

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
        """Return the signals as a matrix, or raise an error that says what is wrong with them."""
        if not isinstance(x, Tensor):
            raise TypeError(
                f"x must be a tensor, got {type(x).__name__}; convert it with torch.as_tensor(x)"
            )
        if x.ndim == 0:
            raise ValueError("x must have at least one dimension (features), got a single number")
        require_width(x, self._template.features, "x", "features", "the encoder's dictionary")
        require_device(x, self.constants.device, "x", "the encoder")
        if x.dtype != self.constants.dtype:
            dtype = dtype_name(self.constants.dtype)
            raise TypeError(
                f"x is {dtype_name(x.dtype)}, but the encoder is {dtype}; convert one of them with "
                f".to(torch.{dtype})"
            )
        # a finite sum proves in one pass that all entries are finite
        if is_eager() and not (x.detach().sum().isfinite() or x.detach().isfinite().all()):
            raise ValueError("x contains NaN or infinite values; remove or replace them")
        return x.reshape(-1, x.shape[-1])

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        saved, depth = state_dict.get(prefix + "depth"), self._setting.depth
        if saved is not None and int(saved) != depth:
            # before any weight is overwritten
            raise RuntimeError(
                f"the weights were trained for a depth of {int(saved)}, the encoder has {depth}; "
                "a depth is part of what was learned, so build the encoder with that depth"
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _cheaper_form(model: SparseModel, step: str) -> str:
    """The residual form for two-block models, and where it takes fewer multiplications.

    Free steps on one dictionary keep the paper's form, because the form decides what is learned.
    """
    if len(model.operator.block_sizes) > 1:
        return "residual"
    return "residual" if step != "free" and 2 * model.features < model.code_size else "gram"
