"""The block-coordinate encoder: a layer changes the one block that gains most."""

from __future__ import annotations

from torch import Tensor

from ..models import SparseModel
from .coordinate import Greedy


class BlockCoordinateEncoder(Greedy):
    """T greedy block steps with learnable matrices, scalars and thresholds.

    The blocks are the penalty's outermost groups. A layer computes the candidate ``y`` of a
    proximal step with a constant for each block, ``L_r = ||Q_rr||_2``, and takes it over in the
    block with the largest ``sqrt(L_r) ||y_r - z_r||``. The choice is constant for the gradient.
    Untrained, with ``final="partial"``, it is `layers` steps of block_greedy.

    Parameters
    ----------
    layers
        T, the number of greedy layers.
    final
        "prox" adds one full proximal step at the end; "partial" does not, so the code has at
        most T active blocks.
    model, step, momentum, tied, form
        As for `ProximalEncoder`; the default is the paper's form.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> model = pu.models.GroupLasso(torch.eye(4), [[0, 1], [2, 3]], lam=1.0)
    >>> encoder = pu.BlockCoordinateEncoder(model, layers=1, final="partial")
    >>> encoder(torch.tensor([[2.0, 0.0, 3.0, 4.0]])).tolist()
    [[0.0, 0.0, 2.4000000953674316, 3.200000047683716]]
    """

    labels: Tensor

    def __init__(
        self,
        model: SparseModel,
        layers: int = 7,
        final: str = "prox",
        step: str = "free",
        momentum: bool = False,
        tied: bool = True,
        form: str = "auto",
    ) -> None:
        self.check(model, layers)
        super().__init__(model, layers, [1.0] * layers, final, step, momentum, tied, form)
        inner = model.normalised
        self._count = len(inner.blocks)
        self._largest = max(len(block) for block in inner.blocks)
        self.register_buffer("labels", inner.block_labels, persistent=False)

    @staticmethod
    def _start_constants(inner: SparseModel) -> Tensor:
        return inner.block_constants[inner.block_labels]

    def _blocks(self) -> Tensor:
        return self.labels.cpu()

    def _width(self, number: int) -> int | None:
        return None if number < self.layers else self._template.code_size

    def _changed(self, number: int) -> int:
        return self._largest if number < self.layers else self._template.code_size

    def _take_over(self, number: int, z: Tensor, candidate: Tensor) -> Tensor:
        gains = (candidate - z).detach().square() * self.constants
        blocks = gains.new_zeros(len(gains), self._count)
        chosen = blocks.index_add(-1, self.labels, gains).argmax(dim=-1, keepdim=True)
        return z.where(self.labels != chosen, candidate)
