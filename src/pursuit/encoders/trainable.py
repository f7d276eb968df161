"""What training needs of an encoder: its parameters declare what they are, and a few methods.

`fit`, `OnlineLearner`, `EncoderBank` and the regimes accept any module with the members of
`Trainable`, for example one that transforms the signals before it hands them to an encoder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ..models import SparseModel

Role = Literal["scalar", "diagonal", "threshold", "matrix", "dictionary"]


@dataclass(frozen=True)
class Kind:
    """What a parameter is, from which its learning rate follows.

    Attributes
    ----------
    role
        "scalar": numbers of order 1 that mix terms. "diagonal": one factor per coefficient.
        "threshold": non-negative, and changed in proportion to its size. "matrix": a weight matrix,
        or a stack of them. "dictionary": atoms as rows, trained only if the dictionary is learned.
    unit
        The size of a typical entry's natural unit; learning rates are multiplied by it.
    """

    role: Role
    unit: float = 1.0


def as_parameter(tensor: Tensor, learned: bool = True) -> nn.Parameter:
    """Return a copy of a tensor as a parameter, in row-major order as compiled kernels take it."""
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    return nn.Parameter(copied, requires_grad=learned)


class Trainable(Protocol):
    """The members that training uses; `Encoder` has them.

    Members that only some options use are not listed here: ``layers`` and
    ``eager_multiplications`` (`fit` without `steps`), ``iterates`` (`fit` with `layerwise`) and
    ``refresh_constants`` (`OnlineLearner`, unless the dictionary is fixed).
    """

    @property
    def model(self) -> SparseModel:
        """The model of the codes, on the dictionary parameters themselves, not on copies."""

    @property
    def features(self) -> int:
        """The number of columns of the signals x that the module takes."""

    def __call__(self, x: Tensor) -> Tensor:
        """The codes of signals, shape (n, q)."""

    def prepare(self, x: Tensor) -> Tensor:
        """The signals that the model describes, shape (n, m): x, or a transformation of x."""

    def kinds(self) -> Mapping[str, Kind]:
        """What each parameter is, by the names of `named_parameters`."""

    def project_(self) -> None:
        """Restore the constraints on the parameters after an update: thresholds >= 0."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As `torch.nn.Module.named_parameters`."""

    def state_dict(self) -> dict[str, Any]:
        """As `torch.nn.Module.state_dict`."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """As `torch.nn.Module.load_state_dict`."""


#: the members that distinguish a `Trainable` from any other module
MEMBERS = ("model", "features", "prepare", "kinds", "project_", "named_parameters")


def require_members(encoder: object, user: str, names: Iterable[str] = MEMBERS) -> None:
    """Raise a TypeError that names the members that an object lacks and `user` needs."""
    # the class first: a property that raises is there all the same
    missing = [n for n in names if not (hasattr(type(encoder), n) or hasattr(encoder, n))]
    if missing:
        raise TypeError(
            f"{user} needs an encoder, or a module with the members of one, but "
            f"{type(encoder).__name__} has no {', '.join(missing)}; see "
            "pursuit.encoders.trainable.Trainable"
        )


def declared_kinds(encoder: Any) -> Mapping[str, Kind]:
    """The kinds of all parameters, or a TypeError that names the parameters without one."""
    kinds: Mapping[str, Kind] = encoder.kinds()
    missing = [name for name, _ in encoder.named_parameters() if name not in kinds]
    if missing:
        raise TypeError(
            f"{type(encoder).__name__}.kinds() must name all parameters, but "
            f"{', '.join(missing)} is missing; add it with its Kind"
        )
    return kinds
