"""The base of all encoders: T layers from signals to codes, on the dictionary of a model.

The base has what does not depend on the layers: the dictionary, checks, tiles, the best iterate,
and what files say about an encoder.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import as_tensor, dtype_name, is_eager, is_finite, require_device, require_width
from .._registry import Registered, name_of
from ..descriptions import describe_model
from ..models import SparseModel, require_model
from ..operators import without_zero_atoms
from .trainable import Kind, as_parameter

#: entries of a code matrix in one tile, so that the element-wise work between two products stays in
#: the second-level cache (and no power of two, whose tiles compete for the same cache lines)
TILE_NUMBERS = 3 * 2**15
#: the most rows of a tile
TILE_ROWS = 1024


class Encoder(Registered, nn.Module):
    """The common base; see `ProximalEncoder`, `CoordinateEncoder`, `ConvolutionalEncoder`.

    Calling an encoder on signals of shape (n, m) gives codes of shape (n, q). Without gradients,
    large batches are encoded in tiles, which limits the memory.

    A kind of encoder implements the abstract members, most of all `_ready`, what is computed once
    for a call, and `_run`, the codes after each layer.

    Attributes
    ----------
    regime
        The name of the regime that it was trained with, None before training.
    minimises_objective
        Whether that regime aims at the lowest objective of the model, None before training.
    """

    units: Tensor | None
    depth: Tensor

    def __init__(self, model: SparseModel, layers: int, depth: int) -> None:
        super().__init__()
        self._template = model
        self._layers = layers
        self._depth = depth
        self.regime: str | None = None
        self.minimises_objective: bool | None = None
        for name, tensor in model.dictionaries.items():
            self.register_parameter(name, as_parameter(tensor, learned=False))
        self._register("units", model.units)
        self.register_buffer("depth", torch.tensor(depth))

    def _register(self, name: str, values: Tensor | None) -> None:
        """Keep constants as a buffer in the dtype and on the device of the model."""
        if values is not None:
            values = values.to(self._template.device, self._template.dtype).detach().clone()
        self.register_buffer(name, values)

    @staticmethod
    def check(model: object, layers: object) -> None:
        """Raise an error unless the arguments are a model and a number of layers."""
        require_model(model)
        if isinstance(layers, bool) or not isinstance(layers, int):
            raise TypeError(f"layers must be an integer, got {type(layers).__name__}")
        if layers < 1:
            raise ValueError(f"layers must be at least 1, got {layers}")

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
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The constructor's arguments except the model, as plain data."""

    @property
    def parameter_count(self) -> int:
        """The number of learned numbers, without the dictionary."""
        names = self._template.dictionaries
        return sum(p.numel() for name, p in self.named_parameters() if name not in names)

    @property
    @abstractmethod
    def multiplications(self) -> int:
        """Multiplications by entries of matrices per sample, without element-wise work."""

    @property
    def eager_multiplications(self) -> int:
        """The same in torch, where it may take more."""
        return self.multiplications

    @abstractmethod
    def program(self) -> Any:
        """Return the encoder as plain arrays, which run without torch."""

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

    def _program_info(self, form: dict[str, Any]) -> dict[str, Any]:
        """The description, or less of it if the classes have no names that a file can use."""
        try:
            return {**self.description, "program": form}
        except TypeError:
            return {"type": type(self).__name__, "regime": self.regime, "program": form}

    def extra_repr(self) -> str:
        arguments = (f"{name}={value!r}" for name, value in self.config.items())
        return ", ".join([repr(self._template), *arguments])

    def forward(self, x: Tensor) -> Tensor:
        """Return the codes of signals (..., m) after the last layer, shape (..., q)."""

        def last(layers: Any, rows: Tensor) -> Tensor:
            return self._from_normalised(self._last(layers, rows))

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

        def lowest(layers: Any, rows: Tensor) -> Tensor:
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

    @abstractmethod
    def kinds(self) -> dict[str, Kind]:
        """Return what each parameter is, the dictionaries included, by its name."""

    @abstractmethod
    def project_(self) -> None:
        """Restore the constraints on the parameters after an update: thresholds >= 0."""

    def refresh_constants(self) -> None:
        """Recompute what follows from the dictionary after a larger change of it.

        Learned matrices keep their values, so by default nothing changes.
        """
        return

    @abstractmethod
    def _ready(self) -> Any:
        """What `_run` needs of the parameters, computed once for all tiles of a call."""

    def _folded(self, layers: Any) -> Any:
        """The same, prepared further for many tiles without gradients."""
        return layers

    @abstractmethod
    def _run(self, layers: Any, x: Tensor) -> Iterator[Tensor]:
        """Yield the normalised codes of rows after each layer."""

    def _last(self, layers: Any, x: Tensor) -> Tensor:
        """The normalised codes of rows after the last layer."""
        (z,) = deque(self._run(layers, x), maxlen=1)
        return z

    def _from_normalised(self, z: Tensor) -> Tensor:
        return z if self.units is None else z * self.units

    def _by_tiles(self, encode: Callable[[Any, Tensor], Tensor], x: Tensor) -> Tensor:
        rows, layers = self._as_rows(x), self._ready()
        size = self._template.code_size
        length = min(TILE_ROWS, max(1, TILE_NUMBERS // size))
        if torch.is_grad_enabled() or not is_eager() or len(rows) <= length:
            codes = encode(layers, rows)
        else:
            layers = self._folded(layers)
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
        as_tensor(x, "x")  # not a sparse one
        if x.ndim == 0:
            raise ValueError("x must have at least one dimension (features), got a single number")
        require_width(x, self._template.features, "x", "features", "the encoder's dictionary")
        own = getattr(self, next(iter(self._template.dictionaries)))
        require_device(x, own.device, "x", "the encoder")
        if x.dtype != own.dtype:
            dtype = dtype_name(own.dtype)
            raise TypeError(
                f"x is {dtype_name(x.dtype)}, but the encoder is {dtype}; convert one of them with "
                f".to(torch.{dtype})"
            )
        # a finite sum proves in one pass that all entries are finite
        if is_eager() and not is_finite(x):
            raise ValueError("x contains NaN or infinite values; remove or replace them")
        return x.reshape(-1, x.shape[-1])

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        saved, depth = state_dict.get(prefix + "depth"), self._depth
        if saved is not None and int(saved) != depth:
            # before any weight is overwritten
            raise RuntimeError(
                f"the weights were trained for a depth of {int(saved)}, the encoder has {depth}; "
                "a depth is part of what was learned, so build the encoder with that depth"
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
