"""fit: the offline training loop.

Adam with a rate for each kind of parameter, cosine decay and clipping; validation on rows that are
never trained on, and the best parameters kept; a loss that explodes is rolled back. All
randomness is drawn from the seed and the number of the step, so a run that was killed goes on
from its checkpoint as if nothing had happened.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ._checks import require_choice
from .batches import Source, as_source, as_tensors
from .dictionary import OnlineDictionary
from .encoders.bank import EncoderBank
from .encoders.encoder import Encoder
from .guard import guard
from .persistence import below, read, write
from .regimes import Approximation, Batch, Regime, Unsupervised, as_regime

__all__ = ["RATES", "History", "Progress", "fit"]

logger = logging.getLogger(__name__)

#: Adam's rate for each kind of parameter at the start of the cosine. A matrix of so many entries
#: gets "matrix" / entries^0.75: all of them move at once, so larger ones must move less. Thresholds
#: move by a part of themselves, dictionaries by a part of an atom.
RATES = {"matrix": 2.0, "scalar": 1e-2, "diagonal": 3e-3, "thresholds": 0.03, "dictionary": 1e-3}
#: ... but no matrix, however small, moves faster than this
LARGEST_RATE = 2e-2
#: the largest norm of the gradient, as a multiple of the loss at the start
CLIP = 0.4
#: the weight of the guard against blow-ups, as a multiple of the loss at the start
GUARD = 0.005
#: how often validation is looked at in a run, and how many looks without progress end it
LOOKS, PATIENCE = 40, 15
#: the fewest steps between two looks
SHORTEST = 10
#: a loss so many times above its running mean has exploded
EXPLODED = 10.0
#: a state may be returned to if its validation loss is within this part of the lowest
GOOD = 0.1
#: so many rollbacks end a run
MOST_ROLLBACKS = 8
#: rows that validation encodes at a time
VALIDATION_ROWS = 2048


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for a callback."""

    step: int
    steps: int
    loss: float
    validation: float | None
    seconds: float


@dataclass
class History:
    """What happened in a run.

    Attributes
    ----------
    loss
        The mean training loss between two looks at validation.
    validation
        The loss on the held-out rows at each look; empty without validation.
    looked
        The step of each look.
    best_step
        The step whose parameters were kept.
    rollbacks
        The steps at which an exploded loss was taken back.
    steps
        How many steps were made.
    seconds
        How long they took, over all parts of an interrupted run.
    """

    loss: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    best_step: int = 0
    rollbacks: list[int] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0


def fit(
    encoder: Encoder | EncoderBank,
    x: Any,
    targets: Any = None,
    *,
    regime: Regime | Callable[[nn.Module, Batch], Tensor] | None = None,
    dictionary: str = "fixed",
    steps: int | None = None,
    validation: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int = 0,
    callback: Callable[[Progress], object] | None = None,
    batch_size: int = 256,
    rate: float = 1.0,
    layerwise: float = 0.0,
) -> History:
    """Train an encoder, in place.

    Parameters
    ----------
    encoder
        What is trained: its steps, and its dictionary if asked.
    x
        Signals (n, m): an array, a tensor or a memory map, of which random rows are drawn; or an
        iterable of batches, also a DataLoader, of x or of (x, targets).
    targets
        What the regime compares with, row by row: an array, labels, or
        ``{"low_rank": L, "sparse": O}``.
    regime
        What it is trained for; by default `regimes.Unsupervised`. Any callable
        ``(encoder, batch) -> loss`` will do.
    dictionary
        "fixed"; "gradient": trained along, by the same optimiser; "statistics": solved for, from
        the statistics of the codes. The dictionary's constraints are kept.
    steps
        The number of mini-batches; by default what the size of the encoder asks for.
    validation
        Held-out x, or (x, targets). By default a tenth of the rows (2048 at most) of an array with
        500 rows or more; False for none. The parameters with the lowest validation loss are kept,
        and a run without progress is ended.
    checkpoint
        A file to which the run is written again and again; if it is there, the run goes on from
        it, bit by bit as if it had not been interrupted.
    seed
        The same seed gives the same result on the CPU.
    callback
        Called with a `Progress` at every look at validation; what it returns ends the run if true.
    batch_size
        Rows of a mini-batch, where x is an array.
    rate
        A factor of all learning rates.
    layerwise
        The weight of the mean loss of the earlier layers. It makes every prefix usable, and costs
        accuracy at full depth.

    Returns
    -------
    History

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> model = pu.models.Lasso(torch.eye(4)[:3], lam=0.1)
    >>> encoder = pu.ProximalEncoder(model, layers=2)
    >>> x = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
    >>> history = pu.fit(encoder, x, steps=20)
    >>> history.steps, encoder.regime
    (20, 'unsupervised')
    """
    run = _Run(
        encoder,
        as_regime(Unsupervised() if regime is None else regime),
        dictionary,
        steps=steps,
        seed=seed,
        rate=rate,
        layerwise=layerwise,
        batch_size=batch_size,
    )
    hold = validation is None
    source, held = as_source(
        x,
        targets,
        features=run.features,
        dtype=run.dtype,
        size=batch_size,
        seed=seed,
        hold=hold,
    )
    if not (validation is None or validation is False):
        signals, wanted = validation if isinstance(validation, tuple) else (validation, None)
        held = Batch(*as_tensors(signals, wanted, run.dtype), total=source.total)
    if held is not None:
        held = run.checked(held)
    if checkpoint is not None and not source.resumable:
        raise ValueError(
            "a run on a one-time iterator cannot be resumed, because its past cannot be read "
            "again; give an array, a list of batches or a DataLoader, or leave checkpoint out"
        )
    run.train(source, held, None if checkpoint is None else Path(checkpoint), callback)
    return run.history


class _Run:
    """One training run: what changes from step to step, and how it changes."""

    def __init__(
        self,
        encoder: Encoder | EncoderBank,
        regime: Regime,
        dictionary: str,
        *,
        steps: int | None,
        seed: int,
        rate: float,
        layerwise: float,
        batch_size: int,
    ) -> None:
        if not isinstance(encoder, Encoder | EncoderBank):
            raise TypeError(f"encoder must be an encoder, got {type(encoder).__name__}")
        require_choice(dictionary, ("fixed", "gradient", "statistics"), "dictionary")
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        if not 0 < rate < math.inf:
            raise ValueError(f"rate must be positive and finite, got {rate}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if layerwise < 0:
            raise ValueError(f"layerwise must not be negative, got {layerwise}")
        self.encoder, self.regime, self.dictionary = encoder, regime, dictionary
        self.members = list(encoder) if isinstance(encoder, EncoderBank) else [encoder]
        if dictionary == "statistics" and len(self.members) > 1:
            raise ValueError("dictionary='statistics' is for one encoder; a bank takes 'gradient'")
        if layerwise > 0 and len(self.members) > 1:
            raise ValueError("layerwise losses are for one encoder, not for a bank")
        self.steps = default_steps(self.members) if steps is None else steps
        self.seed, self.layerwise = seed, layerwise
        self.features = self.members[0].model.features
        self.dtype = self.members[0].model.dtype
        self.device = self.members[0].model.device
        self.settings = {
            "steps": self.steps,
            "seed": seed,
            "rate": rate,
            "dictionary": dictionary,
            "regime": regime.name,
            "layerwise": layerwise,
            "batch_size": batch_size,
        }
        self.parameters = {
            name: parameter
            for name, parameter in encoder.named_parameters()
            if ".step." in f".{name}" or dictionary != "fixed"
        }
        self.dictionaries = {
            name: parameter
            for name, parameter in self.parameters.items()
            if ".step." not in f".{name}"
        }
        self.history = History()
        self.factor = rate
        self.running = math.nan
        self.scale = 1.0
        self.best: dict[str, Tensor] = {}
        self.lowest = math.inf
        self.stale = 0
        self.online: OnlineDictionary | None = None

    # ---- the loop ---------------------------------------------------------------------

    def train(
        self,
        source: Source,
        held: Batch | None,
        checkpoint: Path | None,
        callback: Callable[[Progress], object] | None,
    ) -> None:
        with self._gradients():
            self._loop(source, held, checkpoint, callback)
        for member in self.members:
            member.regime = self.regime.name

    @contextmanager
    def _gradients(self) -> Iterator[None]:
        """Gradients for what the optimiser trains, and afterwards as the user had it."""
        everything = dict(self.encoder.named_parameters())
        wanted = {name: parameter.requires_grad for name, parameter in everything.items()}
        solved_for = self.dictionaries if self.dictionary == "statistics" else {}
        for name, parameter in everything.items():
            parameter.requires_grad_(name in self.parameters and name not in solved_for)
        try:
            yield
        finally:
            for name, parameter in everything.items():
                parameter.requires_grad_(wanted[name])
                parameter.grad = None

    def _loop(
        self,
        source: Source,
        held: Batch | None,
        checkpoint: Path | None,
        callback: Callable[[Progress], object] | None,
    ) -> None:
        started = time.perf_counter()
        self.optimiser = torch.optim.Adam(self._groups())
        if self.dictionary == "statistics":
            size = min(source.total or 10_000, 10_000)
            model = self.members[0].model
            self.online = OnlineDictionary.of(model, beta=1 - 1 / size, total=source.total)
        first = self._resume(checkpoint)
        if first == 0:
            self._begin(source, held)
        source.seek(first)
        losses: list[float] = []
        every = max(SHORTEST, self.steps // LOOKS)
        earlier = self.history.seconds
        for step in range(first, self.steps):
            batch = source.batch(step)
            if batch is None:  # a stream has ended; what came since the last look counts too
                if losses:
                    self._look(step, losses, held)
                break
            if checkpoint is not None:
                # what a regime keeps for a row would depend on where a run was resumed
                batch = replace(batch, rows=None)
            loss = self._step(step, self.checked(batch))
            losses.append(loss)
            self.history.steps = step + 1
            if (step + 1) % every == 0 or step + 1 == self.steps:
                finished = self._look(step + 1, losses, held) or step + 1 == self.steps
                self.history.seconds = earlier + time.perf_counter() - started
                losses = []
                if checkpoint is not None:
                    self._write(checkpoint, finished)
                # a run that the callback stops is not finished: its checkpoint goes on
                if (callback is not None and callback(self._progress())) or finished:
                    break
        self.history.seconds = earlier + time.perf_counter() - started
        if self.best:
            self._restore(self.best)

    def _begin(self, source: Source, held: Batch | None) -> None:
        """Before the first step: what is relative to the data, and a state to go back to."""
        batch = self.checked(source.first())
        self.regime.begin(self.encoder, batch)
        with torch.no_grad():
            start = float(self._loss(batch))
        if not math.isfinite(start):
            raise ValueError(
                f"the loss of the untrained encoder is {start}; check the data and the regime"
            )
        self.scale = max(abs(start), torch.finfo(torch.float32).tiny)
        if held is not None:
            self.lowest = self._validate(held)
            self.best = self._snapshot()
        self._keep()

    def _step(self, step: int, batch: Batch) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        for group in self.optimiser.param_groups:
            group["lr"] = group["base"] * self.factor * cosine
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss(batch)
        value = loss.item()
        if self._has_exploded(value):
            self._roll_back(step, value)
            return self.running
        torch.autograd.backward(loss + self._guard(step, batch))
        trained = [p for p in self.parameters.values() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(trained, CLIP * self.scale)
        if not bool(torch.isfinite(norm)):
            self._roll_back(step, value)
            return self.running
        self.optimiser.step()
        self._project(batch)
        self.running = value if math.isnan(self.running) else 0.95 * self.running + 0.05 * value
        return value

    def _loss(self, batch: Batch) -> Tensor:
        if self.layerwise == 0:
            return self.regime(self.encoder, batch)
        assert isinstance(self.encoder, Encoder)
        *earlier, last = self.encoder.iterates(batch.x)
        loss = self.regime.loss(self.encoder, batch, last)
        if earlier:
            each = [self.regime.loss(self.encoder, batch, codes) for codes in earlier]
            loss = loss + self.layerwise * torch.stack(each).mean()
        return loss

    def _guard(self, step: int, batch: Batch) -> Tensor | float:
        """What keeps an encoder that minimises the objective from blowing up on other signals."""
        if GUARD == 0 or not isinstance(self.encoder, Encoder):
            return 0.0
        if not isinstance(self.regime, Unsupervised | Approximation):
            return 0.0
        rng = np.random.default_rng([self.seed, step, len(batch.x)])
        return GUARD * self.scale * guard(self.encoder, batch.x, rng)

    def _project(self, batch: Batch) -> None:
        """Thresholds stay non-negative, dictionaries in their constraints."""
        self.encoder.project_()
        if self.dictionary == "gradient":
            with torch.no_grad():
                for member in self.members:
                    for name, constraint in member.model.constraints.items():
                        tensor = getattr(member, name)
                        tensor.copy_(constraint.project(tensor))
        elif self.online is not None:
            member = self.members[0]
            with torch.no_grad():
                coefficients, targets = member.model.regression(batch.x, member(batch.x))
                self.online.update(targets, coefficients)
                for name, tensor in self.online.dictionaries.items():
                    getattr(member, name).copy_(tensor)

    def checked(self, batch: Batch) -> Batch:
        """The batch on the encoder's device; it must be of the encoder's width."""
        if batch.x.ndim != 2 or batch.x.shape[1] != self.features:
            raise ValueError(
                f"a batch must have shape (rows, {self.features}), got {tuple(batch.x.shape)}"
            )
        return batch.to(self.device)

    # ---- looks, the best, and going back ----------------------------------------------

    def _look(self, step: int, losses: list[float], held: Batch | None) -> bool:
        """Record, keep the best, remember a good state; whether the run should end."""
        history = self.history
        history.looked.append(step)
        history.loss.append(sum(losses) / max(len(losses), 1))
        if len(history.rollbacks) >= MOST_ROLLBACKS:
            logger.warning("the loss keeps exploding; training ends after step %d", step)
            return True
        if held is None:
            history.best_step = step
            self._keep()
            return False
        value = self._validate(held)
        history.validation.append(value)
        if value - self.lowest <= GOOD * abs(self.lowest):
            self._keep()  # a state that blows up on a few rows is none to go back to
        if value < self.lowest:
            self.lowest, self.best, self.stale = value, self._snapshot(), 0
            history.best_step = step
        else:
            self.stale += 1
        return self.stale >= PATIENCE

    def _validate(self, held: Batch) -> float:
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(held.x), VALIDATION_ROWS):
                part = _part(held, slice(start, start + VALIDATION_ROWS))
                total += float(self.regime(self.encoder, part)) * len(part.x)
        value = total / len(held.x)
        return value if math.isfinite(value) else math.inf

    def _has_exploded(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        return loss > self.running + EXPLODED * max(abs(self.running), 0.01 * self.scale)

    def _keep(self) -> None:
        self.good = self._snapshot()
        self.good_optimiser = _copy(self.optimiser.state_dict())

    def _roll_back(self, step: int, loss: float) -> None:
        self._restore(self.good)
        if self.online is not None:
            self.online.restart(self.members[0].model.dictionaries)
        self.optimiser.load_state_dict(_copy(self.good_optimiser))
        self.factor /= 2
        self.history.rollbacks.append(step)
        logger.warning(
            "step %d: the loss went to %.3g; back to the last good state, with half the rate",
            step,
            loss,
        )

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    def _restore(self, snapshot: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(snapshot[name])

    def _groups(self) -> list[dict[str, Any]]:
        return [
            {"params": [parameter], "lr": base, "base": base}
            for member, prefix in zip(self.members, self._prefixes(), strict=True)
            for name, parameter in member.named_parameters()
            if parameter.requires_grad and prefix + name in self.parameters
            for base in [learning_rate(member, name, parameter.detach())]
        ]

    def _prefixes(self) -> list[str]:
        if isinstance(self.encoder, EncoderBank):
            return [f"encoders.{number}." for number in range(len(self.members))]
        return [""]

    def _progress(self) -> Progress:
        history = self.history
        return Progress(
            step=history.steps,
            steps=self.steps,
            loss=history.loss[-1],
            validation=history.validation[-1] if history.validation else None,
            seconds=history.seconds,
        )

    # ---- checkpoints ------------------------------------------------------------------

    def _write(self, path: Path, finished: bool) -> None:
        tensors = {f"now.{name}": tensor for name, tensor in self._snapshot().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"good.{name}": tensor for name, tensor in self.good.items()}
        for room, state in (("now", self.optimiser.state_dict()), ("good", self.good_optimiser)):
            tensors |= {f"adam.{room}.{name}": value for name, value in adam_tensors(state).items()}
        if self.online is not None:
            tensors |= {f"online.{key}": value for key, value in self.online.state.items()}
        info = {
            "kind": "checkpoint",
            "settings": self.settings,
            "history": asdict(self.history),
            "regime": self.regime.state,
            "rates": [group["base"] for group in self.optimiser.param_groups],
            "factor": self.factor,
            "running": self.running,
            "scale": self.scale,
            "lowest": self.lowest,
            "stale": self.stale,
            "finished": finished,
        }
        write(path, tensors, info)

    def _resume(self, path: Path | None) -> int:
        """Take up the run that the file holds; the step to go on with."""
        if path is None or not path.exists():
            return 0
        tensors, info = read(path)
        if info.get("kind") != "checkpoint":
            raise ValueError(f"{path} is not the checkpoint of a run, but {info.get('kind')!r}")
        if info["settings"] != self.settings:
            changed = [k for k, v in self.settings.items() if info["settings"].get(k) != v]
            raise ValueError(
                f"{path} is the checkpoint of another run: {', '.join(changed)} differ; "
                "remove the file or give another one"
            )
        now, best, good = (below(tensors, f"{room}.") for room in ("now", "best", "good"))
        for name, parameter in self.parameters.items():
            if name not in now or now[name].shape != parameter.shape:
                raise ValueError(f"{path} is the checkpoint of another encoder: see {name}")
        self._restore(now)
        self.best, self.good = best, good
        for group, base in zip(self.optimiser.param_groups, info["rates"], strict=True):
            group["base"] = base
        self.optimiser.load_state_dict(adam_state(self.optimiser, below(tensors, "adam.now.")))
        self.good_optimiser = adam_state(self.optimiser, below(tensors, "adam.good."))
        if self.online is not None:
            self.online.state = below(tensors, "online.")
        self.history = History(**info["history"])
        self.regime.state = info["regime"]
        self.factor, self.running = info["factor"], info["running"]
        self.scale, self.lowest, self.stale = info["scale"], info["lowest"], info["stale"]
        return self.steps if info["finished"] else self.history.steps


def adam_tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """What Adam remembers of each parameter, by name, for a file."""
    return {
        f"{number}.{key}": value
        for number, values in state["state"].items()
        for key, value in values.items()
    }


def adam_state(optimiser: torch.optim.Adam, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The inverse: the optimiser's state with what the file remembers."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = tensor
    return {**optimiser.state_dict(), "state": state}


def learning_rate(member: Encoder, name: str, parameter: Tensor) -> float:
    """The learning rate of a parameter, in the units in which its values are meaningful."""
    atom = float(member.living_model.normalised.coordinate_constants.mean().sqrt())
    entries = parameter.numel() / _copies(parameter)
    matrix = min(RATES["matrix"] / math.pow(entries, 0.75), LARGEST_RATE)
    match name.removeprefix("step.").split("."):
        case ["mixing"] | ["factors"]:
            return RATES["scalar"]
        case ["outlier_step"]:
            return RATES["diagonal"]
        case ["thresholds", *_]:
            return RATES["thresholds"] * max(float(parameter.mean()), 1e-12)
        case ["weight"]:
            return matrix / atom
        case ["coupling"]:
            return matrix if member.structure == "dense" else matrix * atom
        case _:
            norms = torch.linalg.vector_norm(parameter, dim=1)
            return RATES["dictionary"] * max(float(norms.mean()), 1e-12)


def _copies(parameter: Tensor) -> int:
    """How many layers' matrices are stacked in a parameter."""
    return len(parameter) if parameter.ndim == 3 else 1


def default_steps(members: Sequence[Encoder]) -> int:
    """More for small encoders, whose steps are quick, and fewer for deep and large ones."""
    layers = sum(member.layers for member in members)
    multiplications = sum(member.eager_multiplications for member in members)
    return int(max(800, min(4000, 40_000 / layers, 2.4e8 / multiplications)))


def _part(batch: Batch, rows: slice) -> Batch:
    targets = batch.targets
    if isinstance(targets, Tensor):
        targets = targets[rows]
    elif targets is not None:
        targets = {name: values[rows] for name, values in targets.items()}
    own = None if batch.rows is None else batch.rows[rows]
    return Batch(batch.x[rows], targets, own, batch.total)


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    copies = {
        number: {key: value.clone() for key, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": copies}
