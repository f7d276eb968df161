"""The kind of encoder that suits a model."""

from __future__ import annotations

from ..models import SparseModel
from .block_coordinate import BlockCoordinateEncoder
from .coordinate import CoordinateEncoder
from .encoder import Encoder
from .proximal import ProximalEncoder


def choose_encoder(model: SparseModel, layers: int) -> Encoder:
    """Return the encoder that approximates the model best with the given number of layers.

    If the penalty couples coefficients, this is a `BlockCoordinateEncoder`. If there is a single
    dictionary with more than twice as many atoms as features, it is a `CoordinateEncoder`, which
    cannot overshoot on rare samples. Otherwise it is a `ProximalEncoder`.
    """
    if not model.separable:
        return BlockCoordinateEncoder(model, layers, final="prox")
    if len(model.operator.block_sizes) == 1 and model.code_size > 2 * model.features:
        widths = coordinate_schedule(model.code_size, layers)
        return CoordinateEncoder(
            model, layers, coordinates=widths, step="coupled", momentum=True, final="partial"
        )
    return ProximalEncoder(model, layers)


def coordinate_schedule(atoms: int, layers: int) -> list[int]:
    """Return the number of coefficients that each layer of a `CoordinateEncoder` changes.

    It is 4 in the first half of the layers, then 8, then 16, and in the last layer all of them.
    All but the last are doubled for more than 128 atoms and fewer than 10 layers.
    """
    widths = [4] * (layers // 2) + [8] * (layers - layers // 2 - 2) + [16]
    if atoms > 128 and layers < 10:
        widths = [2 * width for width in widths]
    return [min(width, atoms) for width in [*widths, atoms][-layers:]]
