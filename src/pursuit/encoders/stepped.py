"""Encoders whose layers are steps on a dictionary of atoms as rows: matrices, scalars, thresholds.

The layers run in the coordinates of the normalised model. The kinds of encoder differ in the step
constants they start from, and in the coefficients that a layer may change.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._checks import is_eager, require_choice
from ..models import SparseModel
from ..runtime.program import FORM, Program
from .encoder import Encoder
from .forms import Layer, Stack
from .fused import Objective, Shrinkage, fused, fused_loss, is_plain
from .lowering import lower
from .steps import STEPS, LayerParameters, Quadratic, Scalars, Setting
from .trainable import Kind

FORMS = ("auto", "gram", "residual")


class SteppedEncoder(Encoder):
    """The common base of `ProximalEncoder`, `CoordinateEncoder` and `BlockCoordinateEncoder`."""

    constants: Tensor
    curvature: Tensor | None

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
        require_choice(step, tuple(STEPS), "step")
        require_choice(form, FORMS, "form")
        super().__init__(model, layers, len(rates))
        self._step_name = step
        inner = model.normalised
        self._register("constants", self._start_constants(inner))
        self._register("curvature", inner.curvature)
        gram = (_cheaper_form(model, step) if form == "auto" else form) == "gram"
        identity, rates = model.operator.identity_size > 0, tuple(rates)
        self._setting = Setting(
            model.nonsmooth, rates, momentum, accelerated, tied=tied, gram=gram, identity=identity
        )
        self.step: LayerParameters = STEPS[step](self._setting, self._quadratic())

    @staticmethod
    @abstractmethod
    def _start_constants(inner: SparseModel) -> Tensor:
        """The step constant of each coefficient of a normalised model, shape (q,), float64."""

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
                exact._ready().layers(numbers=True),
                self._setting.penalty,
                dictionary=exact.model.dictionary,
                constants=exact.constants,
                units=exact.units,
                widths=[self._width(number) or 0 for number in range(self._setting.depth)],
                blocks=self._blocks(),
                info=self._program_info(FORM),
            )

    def _blocks(self) -> Tensor | None:
        """The block of each coefficient, for layers that take over one block."""
        return None

    def _width(self, number: int) -> int | None:
        """The number of coefficients that a layer takes over; None for one of the blocks."""
        return self._changed(number)

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

    def _run(self, layers: Stack | list[Layer], x: Tensor) -> Iterator[Tensor]:
        """Yield the normalised codes after each layer."""
        if isinstance(layers, Stack):
            layers = _split(layers)
        z: Tensor | None = None
        previous = weight = z
        for number, (form, mix, thresholds) in enumerate(layers):
            if form.weight is not weight:
                weight, signal = form.weight, form.signal(x)
            v = form.first(signal, mix) if z is None else form.value(signal, mix, z, previous)
            candidate = self._setting.penalty.shrink(v, thresholds)
            previous, z = z, self._choose(number, z, candidate)
            yield z

    def _last(self, layers: Stack | list[Layer], x: Tensor) -> Tensor:
        if isinstance(layers, Stack) and is_plain(x) and self._shrinkage is not None:
            codes = fused(layers, self._shrinkage, x, super()._last)
            if codes is not None:
                return codes
        return super()._last(layers, x)

    def compiled_loss(
        self,
        x: Tensor,
        targets: Tensor | None = None,
        hard: Tensor | None = None,
        weight: float = 0.0,
    ) -> tuple[float, Callable[[], None]] | None:
        """Return the loss, and a function that adds the gradients of ``loss + weight guard``.

        The loss is the mean objective of the codes of x, shape (n, m), or with `targets` the mean
        square distance of the normalised codes to these; the guard is that of `pursuit.guard` on
        `hard` rows. Returns None where this is not compiled. There are no gradients of gradients,
        nor of x or the targets.
        """
        if not self.compiles(x):
            return None
        assert self._shrinkage is not None
        assert self._objective is not None
        quadratic = self._quadratic()
        stack, rows = self.step.stack(quadratic), x if hard is None else torch.cat([x, hard])
        parts = self._shrinkage, self._objective, quadratic.atoms, self.units
        found = fused_loss(stack, *parts, rows, len(x), weight, targets)
        if found is None or not math.isfinite(found[0]):
            self._as_rows(x)  # raises an error if x is to blame
        return found

    def compiles(self, x: Tensor) -> bool:
        """Whether the kernel for losses has the layers of this encoder, and takes such signals."""
        return len(x) > 0 and not x.requires_grad and is_plain(x) and self._objective is not None

    @cached_property
    def _objective(self) -> Objective | None:
        """The objective of layers that can be fused, else None."""
        size = self._template.code_size
        if self._shrinkage is None:
            return None
        return Objective.of(self._template.penalty, size, self._shrinkage)

    @cached_property
    def _shrinkage(self) -> Shrinkage | None:
        """The shrinkage of layers that can be fused, else None."""
        if type(self)._choose is not SteppedEncoder._choose:
            return None
        return Shrinkage.of(self._setting.penalty, self._template.code_size)

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

    def _ready(self) -> Stack:
        return self.step.stack(self._quadratic())

    def _folded(self, stack: Stack) -> list[Layer]:
        return [layer.folded() for layer in _split(stack)]


def _split(stack: Stack) -> list[Layer]:
    """The layers one by one; where no gradients are recorded, their scalars are numbers."""
    return stack.layers(numbers=not torch.is_grad_enabled() and is_eager())


def _cheaper_form(model: SparseModel, step: str) -> str:
    """The residual form for two-block models, and where it takes fewer multiplications.

    Free steps on one dictionary keep the paper's form, because the form decides what is learned.
    """
    if len(model.operator.block_sizes) > 1:
        return "residual"
    return "residual" if step != "free" and 2 * model.features < model.code_size else "gram"
