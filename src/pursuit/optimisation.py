"""Learning rates, the default number of steps, and the state of Adam as plain tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .encoders.trainable import Kind, Role

#: Adam's learning rate for each role of a parameter, in its unit, at the start of the cosine decay.
#: The rate of a matrix with N entries is RATES["matrix"] / N^0.75, since all entries move at once.
#: Thresholds move by a fraction of their mean, dictionaries by a fraction of an atom's mean norm.
RATES: dict[Role, float] = {"matrix": 2.0, "scalar": 1e-2, "diagonal": 3e-3}
RATES |= {"threshold": 0.03, "dictionary": 1e-3}
#: upper bound of the rate of a matrix, in its unit
LARGEST_RATE = 2e-2
#: the largest norm of the gradient, as a multiple of the loss of the untrained encoder
CLIP = 0.4


def learning_rate(kind: Kind, parameter: Tensor) -> float:
    """Return the learning rate of a parameter with the given initial values.

    A matrix with three dimensions is a stack; the size of one of its matrices counts.
    """
    rate = RATES[kind.role]
    match kind.role:
        case "matrix":
            copies = len(parameter) if parameter.ndim == 3 else 1
            rate = min(rate / math.pow(parameter.numel() / copies, 0.75), LARGEST_RATE)
        case "threshold":
            rate *= max(float(parameter.mean()), 1e-12)
        case "dictionary":
            rate *= max(float(torch.linalg.vector_norm(parameter, dim=1).mean()), 1e-12)
    return rate * kind.unit


def default_steps(encoders: Sequence[Any]) -> int:
    """Return 800 to 4000 training steps: more for small encoders, whose steps are quick."""
    layers = sum(encoder.layers for encoder in encoders)
    multiplications = sum(encoder.eager_multiplications for encoder in encoders)
    return int(max(800, min(4000, 40_000 / layers, 2.4e8 / multiplications)))


def adam_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the moments and step counts of an optimiser's `state_dict` as named tensors."""
    return {
        f"{number}.{key}": value
        for number, values in state["state"].items()
        for key, value in values.items()
    }


def adam_state(optimiser: torch.optim.Adam, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return a `state_dict` that the optimiser can load; the inverse of `adam_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = tensor
    return {**optimiser.state_dict(), "state": state}
