"""Adam, the learning rates, and the default number of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ._native import kernels
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
#: the number of passes through few rows after which more steps gain little
PASSES = 300
#: the decay of Adam's means, and what is added to the root of the squares
MEAN_DECAY, EPSILON = 0.9, 1e-8
#: the decay of Adam's squares. Where the objective of a fixed model is minimised, whose gradients
#: have little noise, a short memory takes fewer steps; deep encoders then blow up on a few signals
LONG_MEMORY, SHORT_MEMORY = 0.999, 0.99
#: the largest depth with a short memory, and the fraction of the steps that matrices then take
SHALLOW, FEWER = 10, 0.8


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


def memory(encoders: Sequence[Any], settled: bool) -> float:
    """Return the decay of Adam's squares for a run.

    It is `settled` if it minimises the objective of a model that does not change.
    """
    depths = [getattr(encoder, "layers", math.inf) for encoder in encoders]
    return SHORT_MEMORY if settled and max(depths) <= SHALLOW else LONG_MEMORY


def default_steps(encoders: Sequence[Any], settled: bool, rows: int | None, batch_size: int) -> int:
    """Return 800 to 4000 training steps: more for small encoders, whose steps are quick.

    Encoders that learn scalars alone gain from every step and take all. Few rows, if their number
    is known, are passed through `PASSES` times, and in 200 steps at least.
    """
    layers = sum(encoder.layers for encoder in encoders)
    multiplications = sum(encoder.eager_multiplications for encoder in encoders)
    steps = max(1000, min(4000, 40_000 / layers, 2.4e8 / multiplications))
    matrices = any(kind.role == "matrix" for e in encoders for kind in e.kinds().values())
    if matrices and memory(encoders, settled) == SHORT_MEMORY:
        steps *= FEWER
    return int(steps if rows is None else min(steps, max(200, PASSES * rows / batch_size)))


class Adam:
    """Adam with a learning rate for each parameter, and gradients of bounded norm.

    With the gradient g, and t the number of steps of a parameter: ``m <- b1 m + (1 - b1) g``,
    ``v <- b2 v + (1 - b2) g^2``, ``w <- w - rate (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)``.

    Parameters
    ----------
    parameters
        What is optimised, by name.
    rates
        The learning rate of each parameter.
    decay
        b2, the decay of the squares; b1 is 0.9.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        rates: Mapping[str, float],
        decay: float = LONG_MEMORY,
    ) -> None:
        self.decay = decay
        self.parameters, self.rates = list(parameters.values()), [rates[n] for n in parameters]
        self.means = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.squares = [torch.zeros_like(mean) for mean in self.means]
        #: the moments as the kernel takes them, for parameters that it updates
        self._moments = [
            (_flat(mean), _flat(square)) if _is_native(p) else None
            for p, mean, square in zip(self.parameters, self.means, self.squares, strict=True)
        ]
        self.counts = [0] * len(self.parameters)

    def step(self, largest: float, factor: float = 1.0) -> float:
        """Update the parameters that have gradients, and return the norm of all gradients.

        Gradients are scaled down to the norm `largest`, and `factor` multiplies the learning rates.
        Nothing changes if the norm is not finite.
        """
        used = [n for n, p in enumerate(self.parameters) if p.grad is not None]
        counts = [self.counts[n] + 1 for n in used]
        rates = [self.rates[n] * factor for n in used]
        parameters = [self.parameters[n] for n in used]
        gradients = [cast(Tensor, p.grad) for p in parameters]
        moments = [pair for n in used if (pair := self._moments[n]) is not None]
        if len(moments) == len(used) and len({p.dtype for p in parameters}) == 1:
            flat = [_flat(p) for p in parameters], [_flat(g.contiguous()) for g in gradients]
            means, squares = zip(*moments, strict=True)
            norm = float(kernels.adam(*flat, means, squares, rates, counts, self.decay, largest))
        else:
            with torch.no_grad():
                state = [self.means[n] for n in used], [self.squares[n] for n in used]
                given = parameters, gradients, *state, rates, counts
                norm = _eager(*given, self.decay, largest)
        if math.isfinite(norm):
            for n, count in zip(used, counts, strict=True):
                self.counts[n] = count
        return norm

    def forget_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @property
    def state(self) -> dict[str, Tensor]:
        """A copy of the moments and step counts, as named tensors."""
        state = {}
        for n, count in enumerate(self.counts):
            state[f"{n}.step"] = torch.tensor(float(count))
            state[f"{n}.exp_avg"] = self.means[n].clone()
            state[f"{n}.exp_avg_sq"] = self.squares[n].clone()
        return state

    @state.setter
    def state(self, tensors: Mapping[str, Tensor]) -> None:
        for n, (mean, square) in enumerate(zip(self.means, self.squares, strict=True)):
            if f"{n}.step" not in tensors:  # a parameter that has not had a gradient yet
                self.counts[n] = 0
                mean.zero_()
                square.zero_()
                continue
            self.counts[n] = int(tensors[f"{n}.step"])
            mean.copy_(tensors[f"{n}.exp_avg"])
            square.copy_(tensors[f"{n}.exp_avg_sq"])


def _is_native(parameter: Tensor) -> bool:
    known = parameter.dtype in (torch.float32, torch.float64)
    return known and parameter.device.type == "cpu" and parameter.is_contiguous()


def _flat(tensor: Tensor) -> Any:
    return tensor.detach().view(-1).numpy()


def _eager(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    rates: Sequence[float],
    counts: Sequence[int],
    decay: float,
    largest: float,
) -> float:
    """The same in torch, on any device."""
    norms = [torch.linalg.vector_norm(g).double().cpu() for g in gradients]
    norm = float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
    if not math.isfinite(norm):
        return norm
    scale = largest / (norm + 1e-6) if norm > largest else 1.0
    for p, g, mean, square, rate, t in zip(
        parameters, gradients, means, squares, rates, counts, strict=True
    ):
        g = g * scale
        mean.lerp_(g, 1 - MEAN_DECAY)
        square.mul_(decay).addcmul_(g, g, value=1 - decay)
        root = (square / (1 - decay**t)).sqrt().add_(EPSILON)
        p.addcdiv_(mean, root, value=-rate / (1 - MEAN_DECAY**t))
    return norm
