"""The proximal encoder: every layer is a full proximal step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import SparseModel
from .stepped import SteppedEncoder


class ProximalEncoder(SteppedEncoder):
    """T proximal steps with learnable matrices, scalars and thresholds.

    Untrained it is `layers` steps of fista (with momentum) or ista (without). A layer is
    ``z_new = shrink(a1 z + a2 z' + e x W' - (c1 z + c2 z') G', t)``; the paper's encoder,
    ``z_new = shrink(x W' + z H', t)``, is ``step="free", momentum=False``.

    Parameters
    ----------
    model
        The model whose codes are approximated.
    layers
        T, the number of layers.
    step
        "coupled" learns W, and G follows from W and the dictionary; "free" learns W and H;
        "model" learns scalars only and follows any change of the dictionary.
    momentum
        Whether a layer also uses the code before the last, with five learned scalars.
    tied
        Whether all layers share their matrices. Scalars are per layer in any case, and so are
        thresholds, except in the paper's form.
    form
        "gram" multiplies by the matrix G of the quadratic; "residual" uses the residual ``x - z D``
        and never forms G. "auto" is the residual form for the two-block models (robust PCA and
        NMF, LowRankSparse), and where coupled or model steps then take fewer multiplications.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> model = pu.models.Lasso(torch.eye(2), lam=1.0)
    >>> encoder = pu.ProximalEncoder(model, layers=3)
    >>> encoder(torch.tensor([[3.0, -0.5]])).tolist()
    [[2.0, 0.0]]
    """

    def __init__(
        self,
        model: SparseModel,
        layers: int = 7,
        step: str = "coupled",
        momentum: bool = True,
        tied: bool = True,
        form: str = "auto",
    ) -> None:
        self.check(model, layers)
        rates = [1.0] * layers
        super().__init__(model, layers, rates, step, momentum, tied, form, accelerated=True)

    @staticmethod
    def _start_constants(inner: SparseModel) -> Tensor:
        return torch.full((inner.code_size,), inner.step_constant, dtype=torch.float64)
