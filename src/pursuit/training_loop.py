"""The loop of `fit`: steps, validation, rollbacks, checkpoints.

Randomness depends on the seed and the step alone, so a run resumes bit for bit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ._checks import is_finite, require_choice
from .batches import Batch, Source
from .dictionary import OnlineDictionary
from .encoders.bank import EncoderBank
from .encoders.encoder import Encoder
from .encoders.stepped import SteppedEncoder
from .encoders.trainable import Trainable, declared_kinds, require_members
from .fields import arguments, entry, naming, real, shown
from .files import below, joined
from .guard import HardRows, excess
from .optimisation import CLIP, Adam, default_steps, learning_rate, memory
from .persistence import read, require_like, write
from .progress import Callback, Progress
from .regimes import (
    Approximation,
    Regime,
    Unsupervised,
    Weighted,
    dictionary_penalty,
    record_regime,
)
from .resuming import check_groups, check_optimiser, check_regime

logger = logging.getLogger(__name__)

#: the weight of the guard against blow-ups, as a multiple of the loss at the start
GUARD = 0.005
#: the number of validations in a run, and the number without improvement after which it ends
LOOKS, PATIENCE = 40, 15
#: the smallest number of steps between two validations
SHORTEST = 10
#: a loss above this multiple of its running mean has exploded
EXPLODED = 10.0
#: a state may be rolled back to if its validation loss exceeds the lowest by at most this fraction
GOOD = 0.1
#: the number of rollbacks after which a run ends
MOST_ROLLBACKS = 8
#: the number of rows that validation encodes at a time
VALIDATION_ROWS = 2048
#: the number of samples over which dictionary="statistics" averages at most
MEMORY = 10_000
#: the attributes of a run that a checkpoint holds as plain numbers
NUMBERS = ("factor", "running", "scale", "lowest", "stale")


#: the value of a loss, and what adds its gradients
Learned = tuple[float, Callable[[], None]]


@dataclass
class History:
    """The record of a run.

    Attributes
    ----------
    loss
        The mean training loss between two validations.
    validation
        The loss on the held-out rows at each validation; empty without held-out rows.
    looked
        The step of each validation.
    best_step
        The step whose parameters were kept.
    rollbacks
        The steps at which an exploded loss was rolled back.
    steps, seconds
        The number of steps and the training time, over all parts of an interrupted run.
    """

    loss: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    best_step: int = 0
    rollbacks: list[int] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0


class Run:
    """One training run: the state that changes from step to step, and how it changes."""

    def __init__(
        self,
        encoder: Trainable | EncoderBank,
        regime: Regime,
        dictionary: str,
        steps: int | None,
        seed: int,
        rate: float,
        layerwise: float,
        batch_size: int,
        rows: int | None = None,
    ) -> None:
        require_choice(dictionary, ("fixed", "gradient", "statistics"), "dictionary")
        for name, count in (("steps", steps), ("batch_size", batch_size)):
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        if not 0 < rate < math.inf:
            raise ValueError(f"rate must be positive and finite, got {rate}")
        if layerwise < 0:
            raise ValueError(f"layerwise must not be negative, got {layerwise}")
        self.members = _members(encoder, steps is None, layerwise > 0)
        if dictionary == "statistics" and len(self.members) > 1:
            raise ValueError("dictionary='statistics' is for one encoder; a bank takes 'gradient'")
        if layerwise > 0 and len(self.members) > 1:
            raise ValueError("layerwise losses are for one encoder, not for a bank")
        self.encoder = cast(nn.Module, encoder)
        self.regime, self.dictionary, self.layerwise = regime, dictionary, layerwise
        if steps is None:
            steps = default_steps(self.members, self._settled, rows, batch_size)
        self.steps = steps
        model = self.members[0].model
        self.features = self.members[0].features
        self.dtype, self.device = model.dtype, model.device
        self.settings: dict[str, Any] = {"steps": self.steps, "seed": seed, "rate": rate}
        self.settings |= {"dictionary": dictionary, "regime": regime.name}
        self.settings |= {"layerwise": layerwise, "batch_size": batch_size}
        self.hard_rows = HardRows(seed)
        self.kinds = declared_kinds(encoder)
        #: everything that is learned, by the optimiser or from the statistics
        self.parameters = {
            name: parameter
            for name, parameter in self.encoder.named_parameters()
            if dictionary != "fixed" or self.kinds[name].role != "dictionary"
        }
        self.history = History()
        self.factor, self.running, self.scale = rate, math.nan, 1.0
        self.best: dict[str, Tensor] = {}
        self.lowest, self.stale = math.inf, 0
        self.online: OnlineDictionary | None = None

    @property
    def _settled(self) -> bool:
        """Whether the objective of a model that does not change is minimised."""
        return self.dictionary == "fixed" and self.regime.minimises_objective

    def train(
        self,
        source: Source,
        held_out: Batch | None,
        checkpoint: Path | None,
        callback: Callback | None,
    ) -> None:
        self.total = source.total
        if self.dictionary == "statistics":
            size = min(source.total or MEMORY, MEMORY)
            # if the size of the data is unknown, phi(D) counts once for the samples remembered
            self.total = source.total or size
            model = self.members[0].model
            self.online = OnlineDictionary.of(model, beta=1 - 1 / size, total=source.total)
        self.held_out = None if held_out is None else self._ready(held_out)
        with self._gradients() as by_gradient:
            rates = {n: learning_rate(self.kinds[n], p.detach()) for n, p in by_gradient.items()}
            decay = memory(self.members, self._settled)
            self.optimiser = Adam(by_gradient, rates, decay)
            self._loop(source, checkpoint, callback)
        record_regime(self.regime, self.encoder)

    @contextmanager
    def _gradients(self) -> Iterator[dict[str, nn.Parameter]]:
        """Switch gradients on for the parameters that the optimiser trains, and yield these."""
        everything = dict(self.encoder.named_parameters())
        flags = {name: parameter.requires_grad for name, parameter in everything.items()}
        by_gradient = {
            name: parameter
            for name, parameter in self.parameters.items()
            if self.dictionary == "gradient" or self.kinds[name].role != "dictionary"
        }
        for name, parameter in everything.items():
            parameter.requires_grad_(name in by_gradient)
        try:
            yield by_gradient
        finally:
            for name, parameter in everything.items():
                parameter.requires_grad_(flags[name])
                parameter.grad = None

    def _loop(self, source: Source, checkpoint: Path | None, callback: Callback | None) -> None:
        started = time.perf_counter()
        first = self._resume(checkpoint)
        if first == 0:
            self._begin(source.first())
        elif first < self.steps:
            source.seek(first)
        losses: list[float] = []
        every = max(SHORTEST, self.steps // LOOKS, self._shortest())
        earlier = self.history.seconds
        for step in range(first, self.steps):
            batch = source.batch(step)
            if batch is None:  # the end of a one-time iterator; the last losses count too
                if losses:
                    self._look(step, losses)
                break
            if checkpoint is not None:
                # what a regime keeps for a row would depend on where a run was resumed
                batch = replace(batch, rows=None)
            losses.append(self._step(step, self._ready(batch)))
            self.history.steps = step + 1
            if (step + 1) % every == 0 or step + 1 == self.steps:
                finished = self._look(step + 1, losses) or step + 1 == self.steps
                self.history.seconds = earlier + time.perf_counter() - started
                losses = []
                if checkpoint is not None:
                    self._write(checkpoint, finished)
                # a run that the callback ends is not finished, and its checkpoint resumes it
                if (callback is not None and callback(self._progress())) or finished:
                    break
        self.history.seconds = earlier + time.perf_counter() - started
        if self.best:
            self._restore(self.best)
        if not all(map(is_finite, self.parameters.values())):
            advice = "" if checkpoint is None else f", without the checkpoint {checkpoint}"
            raise ValueError(
                "training has led to parameters that are not finite; train again with a smaller "
                f"rate{advice}"
            )

    def _ready(self, batch: Batch) -> Batch:
        """Return the batch on the encoder's device, with what regimes must know about the run."""
        learns = self.dictionary != "fixed"
        return replace(batch, total=self.total, learns_dictionary=learns).to(self.device)

    def _begin(self, batch: Batch) -> None:
        """Set what depends on the first batch, and keep the first good state."""
        batch = self._ready(batch)
        self.regime.begin(self.encoder, batch)
        with torch.no_grad():
            start = float(self._loss(batch))
        if not math.isfinite(start):
            raise ValueError(
                f"the loss of the untrained encoder is {start}; check the data and the regime"
            )
        self.scale = max(abs(start), torch.finfo(torch.float32).tiny)
        if self.held_out is not None:
            self.lowest = self._validate(self.held_out)
            self.best = self._snapshot()
        self._keep()

    def _step(self, step: int, batch: Batch) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        self.optimiser.forget_gradients()
        value, backward = self._learn(batch, self._hard_rows(step, batch))
        if self._has_exploded(value):
            return self._roll_back(step, value)
        backward()
        norm = self.optimiser.step(CLIP * self.scale, self.factor * cosine)
        if not math.isfinite(norm):
            return self._roll_back(step, value)
        self._project(batch)
        self.running = value if math.isnan(self.running) else 0.95 * self.running + 0.05 * value
        return value

    def _learn(self, batch: Batch, hard: Tensor | None) -> Learned:
        """Return the loss, and what adds the gradients of it and of the guard on hard rows."""
        weight = GUARD * self.scale
        if self.layerwise == 0:
            learned = compiled_loss(self.encoder, self.regime, batch, hard, weight)
            if learned is not None:
                return learned
        if hard is None:
            return differentiable(self._loss(batch))
        (member,) = self.members
        # a regime that calls the encoder itself, as a callable does, gets the batch alone
        by_codes = type(self.regime).__call__ in (Regime.__call__, Weighted.__call__)
        if by_codes and isinstance(member, Encoder) and self.layerwise == 0:
            codes = member(torch.cat([batch.x, hard]))
            loss = self.regime.loss(self.encoder, batch, codes[: len(batch.x)])
            codes = codes[len(batch.x) :]
        else:
            loss, codes = self._loss(batch), member(hard)
        guard = excess(member.model, member.prepare(hard), codes)
        return loss.item(), differentiable(loss + weight * guard)[1]

    def _loss(self, batch: Batch) -> Tensor:
        if self.layerwise == 0:
            return self.regime(self.encoder, batch)
        *earlier, last = cast(Any, self.encoder).iterates(batch.x)
        loss = self.regime.loss(self.encoder, batch, last)
        if earlier:
            each = [self.regime.loss(self.encoder, batch, codes) for codes in earlier]
            loss = loss + self.layerwise * torch.stack(each).mean()
        return loss

    def _hard_rows(self, step: int, batch: Batch) -> Tensor | None:
        """Return the rows of the guard, for one encoder that is to minimise the objective."""
        if GUARD == 0 or len(self.members) > 1 or not self.regime.minimises_objective:
            return None
        return self.hard_rows(step, batch.x)

    def _shortest(self) -> int:
        """The number of steps between two validations that take a tenth of the time."""
        if self.held_out is None:
            return 0
        # a row that is trained on takes about three times as long as one that is encoded
        return math.ceil(10 * len(self.held_out.x) / (3 * int(self.settings["batch_size"])))

    def _project(self, batch: Batch) -> None:
        """Restore the constraints on the parameters; solve for a dictionary from statistics."""
        for member in self.members:
            member.project_()
        with torch.no_grad():
            if self.dictionary == "gradient":
                for model in (member.model for member in self.members):
                    for name, constraint in model.constraints.items():
                        tensor = model.dictionaries[name]
                        tensor.copy_(constraint.project(tensor))
            elif self.online is not None:
                (member,) = self.members
                model, signals = member.model, member.prepare(batch.x)
                coefficients, targets = model.regression(signals, member(batch.x))
                self.online.update(targets, coefficients)
                for name, tensor in self.online.dictionaries.items():
                    model.dictionaries[name].copy_(tensor)

    def _look(self, step: int, losses: list[float]) -> bool:
        """Validate, keep good states, and return whether the run should end."""
        history = self.history
        history.looked.append(step)
        history.loss.append(sum(losses) / max(len(losses), 1))
        if len(history.rollbacks) >= MOST_ROLLBACKS:
            logger.warning("the loss keeps exploding; training ends after step %d", step)
            return True
        if self.held_out is None:
            history.best_step = step
            self._keep()
            return False
        value = self._validate(self.held_out)
        history.validation.append(value)
        if value - self.lowest <= GOOD * abs(self.lowest):
            self._keep()  # a state that blows up on a few rows is not a good one
        if value < self.lowest:
            self.lowest, self.best, self.stale = value, self._snapshot(), 0
            history.best_step = step
        else:
            self.stale += 1
        return self.stale >= PATIENCE

    def _validate(self, held_out: Batch) -> float:
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(held_out.x), VALIDATION_ROWS):
                part = held_out.part(slice(start, start + VALIDATION_ROWS))
                total += self._validation_loss(part) * len(part.x)
        value = total / len(held_out.x)
        return value if math.isfinite(value) else math.inf

    def _validation_loss(self, batch: Batch) -> float:
        learned = compiled_loss(self.encoder, self.regime, batch)
        return float(self.regime(self.encoder, batch)) if learned is None else learned[0]

    def _has_exploded(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return True
        return loss > self.running + EXPLODED * max(abs(self.running), 0.01 * self.scale)

    def _keep(self) -> None:
        self.good = self._snapshot()
        self.good_optimiser = self.optimiser.state

    def _roll_back(self, step: int, loss: float) -> float:
        """Return to the last good state, and return the running mean of the loss."""
        self._restore(self.good)
        if self.online is not None:
            self.online.set_atoms(self.members[0].model.dictionaries)
        self.optimiser.state = self.good_optimiser
        self.factor /= 2
        self.history.rollbacks.append(step)
        message = "step %d is undone, its loss is %.3g; training continues at half the rate"
        logger.info(message, step, loss)
        return self.running

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.parameters.items()}

    def _restore(self, snapshot: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(snapshot[name])

    def _progress(self) -> Progress:
        history = self.history
        validation = history.validation[-1] if history.validation else None
        done, loss, seconds = history.steps, history.loss[-1], history.seconds
        return Progress("training", done, self.steps, loss, validation, seconds)

    def _write(self, path: Path, finished: bool) -> None:
        tensors = joined(
            {
                "now": self._snapshot(),
                "best": self.best,
                "good": self.good,
                "adam.now": self.optimiser.state,
                "adam.good": self.good_optimiser,
                "online": {} if self.online is None else self.online.state,
            }
        )
        info = {
            "kind": "checkpoint",
            "settings": self.settings,
            "history": asdict(self.history),
            "regime": self.regime.state,
            "rates": self.optimiser.rates,
            "finished": finished,
        }
        write(path, tensors, info | {name: getattr(self, name) for name in NUMBERS})

    def _resume(self, path: Path | None) -> int:
        """Restore the run from its checkpoint, if there is one, and return the next step."""
        if path is None or not path.exists():
            return 0
        tensors, info = read(path)
        if info.get("kind") != "checkpoint":
            raise ValueError(
                f"{path} is not the checkpoint of a run, but {shown(info.get('kind'))}"
            )
        settings = info.get("settings")
        if settings != self.settings:
            given = settings if isinstance(settings, dict) else {}
            changed = [
                k for k in {**given, **self.settings} if given.get(k) != self.settings.get(k)
            ]
            raise ValueError(
                f"{path} is the checkpoint of another run: {', '.join(changed)} differ; "
                "remove the file or give another one"
            )
        now, best, good = (below(tensors, f"{prefix}.") for prefix in ("now", "best", "good"))
        for name, parameter in self.parameters.items():
            if name not in now or now[name].shape != parameter.shape:
                raise ValueError(f"{path} is the checkpoint of another encoder: see {name}")
        with naming(path, "resumed"):
            history = self._checked(tensors, info)
        self._restore(now)
        self.best, self.good = best, good
        self.optimiser.rates = list(info["rates"])
        self.optimiser.state = below(tensors, "adam.now.")
        self.good_optimiser = below(tensors, "adam.good.")
        if self.online is not None:
            self.online.state = below(tensors, "online.")
        self.history = history
        self.regime.state = info["regime"]
        for name in NUMBERS:
            setattr(self, name, info[name])
        return self.steps if info["finished"] else self.history.steps

    def _checked(self, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> History:
        """Return the history of a checkpoint; raise a ValueError if any field of it is invalid."""
        check_groups(tensors, ("now", "best", "good", "adam", "online"))
        own = self._snapshot()
        for prefix in ("now", "best", "good"):
            given = below(tensors, f"{prefix}.")
            if given or prefix != "best":
                require_like(given, own)
        for prefix in ("adam.now.", "adam.good."):
            check_optimiser(below(tensors, prefix), self.optimiser)
        require_like(below(tensors, "online."), {} if self.online is None else self.online.state)
        if len(entry(info, "rates", list[float], least=0)) != len(self.optimiser.rates):
            raise ValueError(f"rates must be {len(self.optimiser.rates)} numbers")
        for name, least in (("factor", 0.0), ("scale", 0.0)):
            real(info, name, least=least)
        for name in ("running", "lowest"):
            real(info, name, finite=False)
        entry(info, "stale", int, least=0)
        entry(info, "finished", bool)
        check_regime(info)
        history = History(**arguments(entry(info, "history", dict), History))
        real(info["history"], "seconds", least=0)
        if not 0 <= history.steps <= self.steps:
            raise ValueError(f"steps must be from 0 to {self.steps}, got {history.steps}")
        return history


def differentiable(loss: Tensor) -> Learned:
    """Return the value of a loss, and what adds its gradients."""
    return loss.item(), lambda: torch.autograd.backward(loss)


def compiled_loss(
    encoder: Any, regime: Regime, batch: Batch, hard: Tensor | None = None, weight: float = 0.0
) -> Learned | None:
    """Return the loss, and what adds the gradients of ``loss + weight guard``, from one call.

    Returns None where this is not compiled; it is for the mean objective of a model, and for the
    distance to its exact codes.
    """
    if not isinstance(encoder, SteppedEncoder):
        return None
    if type(regime) is Approximation and encoder.compiles(batch.x):
        return encoder.compiled_loss(batch.x, regime.exact(encoder, batch), hard, weight)
    if type(regime) is not Unsupervised:
        return None
    learned = encoder.compiled_loss(batch.x, None, hard, weight)
    if learned is None or not batch.learns_dictionary:
        return learned
    loss, add_gradients = learned
    penalty = dictionary_penalty(encoder.model, batch, regime.n)

    def backward() -> None:
        add_gradients()
        if penalty.requires_grad:
            torch.autograd.backward(penalty)

    return loss + float(penalty.detach()), backward


def _members(encoder: Any, default_steps: bool, layerwise: bool) -> list[Trainable]:
    """Return the encoders to train; raise a TypeError if one of them lacks a member."""
    members = list(encoder) if isinstance(encoder, EncoderBank) else [encoder]
    for member in members:
        require_members(member, "fit")
        if default_steps:
            require_members(member, "fit without steps", ("layers", "eager_multiplications"))
        if layerwise:
            require_members(member, "fit with layerwise", ("iterates",))
    return members
