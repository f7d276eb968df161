"""A bank of encoders: one for each class, with a dictionary that all of them share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..runtime.program import Program
from .trainable import Kind, Trainable, require_members


class EncoderBank(nn.Module):
    """Several encoders of the same signals, for models that discriminate by reconstruction.

    Parameters
    ----------
    encoders
        One encoder for each class, or modules with the same members (see `Trainable`).
    shared
        "low_rank": the encoders' low-rank dictionaries, which must be equal, become one and the
        same parameter, the background that all classes have in common. None: nothing is shared.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> models = [pu.models.Lasso(torch.eye(2)[[i]], lam=0.1) for i in range(2)]
    >>> bank = pu.EncoderBank([pu.ProximalEncoder(model) for model in models], shared=None)
    >>> bank.errors(torch.tensor([[1.0, 0.0], [0.0, 2.0]])).argmin(dim=1).tolist()
    [0, 1]
    """

    def __init__(self, encoders: Sequence[Trainable], shared: str | None = "low_rank") -> None:
        super().__init__()
        if len(encoders) == 0:
            raise ValueError("encoders is empty; give one encoder for each class")
        for encoder in encoders:
            require_members(encoder, "EncoderBank")
        widths = [encoder.features for encoder in encoders]
        if len(set(widths)) > 1:
            raise ValueError(f"the encoders take signals of different widths: {widths}")
        if shared == "low_rank":
            _share_low_rank(encoders)
        elif shared is not None:
            raise ValueError(f"shared must be 'low_rank' or None, got {shared!r}")
        self.encoders = nn.ModuleList([cast(nn.Module, encoder) for encoder in encoders])
        self.shared = shared

    def __len__(self) -> int:
        return len(self.encoders)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.encoders)

    def __getitem__(self, number: int) -> Any:
        return self.encoders[number]

    def forward(self, x: Tensor) -> list[Tensor]:
        """The codes of each encoder, each of shape (n, q_j)."""
        return [encoder(x) for encoder in self]

    def errors(self, x: Tensor) -> Tensor:
        """``||x - decode(codes)||^2`` of each encoder, shape (n, classes)."""
        return squared_errors(self, x, self(x))

    def kinds(self) -> dict[str, Kind]:
        """What each parameter is; a shared one is named once for each encoder."""
        return {
            f"encoders.{number}.{name}": kind
            for number, encoder in enumerate(self)
            for name, kind in encoder.kinds().items()
        }

    def programs(self) -> list[Program]:
        """Return the program of each encoder."""
        return [encoder.program() for encoder in self]

    def project_(self) -> None:
        """Restore the constraints on the parameters after an update: thresholds >= 0."""
        for encoder in self:
            encoder.project_()


def squared_errors(bank: EncoderBank, x: Tensor, codes: Sequence[Tensor]) -> Tensor:
    """`EncoderBank.errors` for codes that are already known."""
    pairs = zip(bank, codes, strict=True)
    residuals = [encoder.model.residual(encoder.prepare(x), z) for encoder, z in pairs]
    return torch.stack([residual.square().sum(dim=-1) for residual in residuals], dim=-1)


def _share_low_rank(encoders: Sequence[Trainable]) -> None:
    common: Tensor | None = None
    for number, encoder in enumerate(encoders):
        name = encoder.model.dictionary_of("low_rank")
        if name is None:
            kind = type(encoder.model).__name__
            raise ValueError(
                f"encoder {number} is for {kind}, which has no low-rank dictionary to share; "
                "use LowRankSparse, RobustPCA or RobustNMF, or shared=None"
            )
        dictionary = encoder.model.dictionaries[name]
        if common is None:
            common = dictionary
        elif not torch.equal(dictionary, common):
            raise ValueError(
                f"the low-rank dictionary of encoder {number} differs from that of encoder 0; "
                "build all models with the same one"
            )
        _replace(cast(nn.Module, encoder), dictionary, common)


def _replace(module: nn.Module, old: Tensor, new: Tensor) -> None:
    """Put a parameter in the place of another, wherever it is in a module."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter is old:
                setattr(part, name, new)
