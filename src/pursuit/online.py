"""OnlineLearner: an encoder and its dictionary that follow a stream.

No fixed distribution, no exact solver: each chunk of samples is encoded, its codes renew the
dictionary, and the encoder takes a training step on a sliding window. The cost for each sample and
the memory are constant. What comes in is worked off in chunks of one size, so the result does
not depend on how the stream was cut into calls.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .batches import Batch, Targets, as_tensors
from .dictionary import OnlineDictionary
from .encoders.trainable import Trainable, require_members
from .optimisation import CLIP, adam_state, adam_tensors, learning_rate
from .persistence import below, read, write
from .regimes import Regime, Unsupervised, as_regime, record_regime

__all__ = ["OnlineLearner", "Point"]

#: chunks over which the recent and the past objective are averaged
RECENT, PAST = 5, 50
#: how many chunks the history remembers
REMEMBERED = 10_000
#: the stream has changed if the recent objective is off by so many standard deviations and at
#: least by this part of itself; the first chunks, in which everything improves, do not count
CHANGED, CHANGED_PART, YOUNG = 5.0, 0.05, 10
#: when the stream changes, earlier samples keep this part of their weight in the dictionary
KEPT = 0.01
#: chunks between two looks at the step constants, which cost an eigenvalue; in the first chunks
#: after a change, when the dictionary moves fast, they are renewed each time
FOLLOW_EVERY = 10


class Point(NamedTuple):
    """The state of the stream at one chunk."""

    samples: int
    objective: float
    drift: float


class OnlineLearner:
    """Learns from whatever comes.

    Parameters
    ----------
    encoder
        What is trained, in place.
    regime
        What it is trained for; by default `regimes.Unsupervised`.
    dictionary
        What renews the dictionary: by default an `OnlineDictionary` for the encoder's model, whose
        memory follows the stream; one that is given keeps its own beta; "fixed" leaves the
        dictionary as it is.
    window
        How many of the last samples the encoder is trained on.
    memory
        How many samples the dictionary remembers at most. It remembers a quarter of what has
        come since the stream last changed, and at least five samples an atom.
    chunk
        How many samples are taken at a time.
    batch_size
        How many rows of the window make a training step.
    steps
        Training steps for each chunk.
    rate
        A factor of the learning rates.
    seed
        Seeds which rows of the window are drawn.

    Attributes
    ----------
    samples
        How many samples have been worked off.
    drift
        The mean objective of the last few chunks over that of the last fifty: about 1 on
        stationary data, above it when the data leave what was learned.
    changes
        The numbers of the samples at which the objective left its past, up or down, by far more
        than it varies; the last 10 000 of them.
    history
        A `Point` for each of the last 10 000 chunks; objectives are of new data, before
        anything was learned from them.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> generator = torch.Generator().manual_seed(0)
    >>> model = pu.models.Lasso(torch.eye(4), lam=0.1)
    >>> learner = pu.OnlineLearner(pu.ProximalEncoder(model, layers=3))
    >>> learner.partial_fit(torch.randn(250, 4, generator=generator)).samples
    200
    """

    def __init__(
        self,
        encoder: Trainable,
        regime: Any = None,
        dictionary: OnlineDictionary | str | None = None,
        *,
        window: int = 1000,
        memory: int = 10_000,
        chunk: int = 100,
        batch_size: int = 256,
        steps: int = 10,
        rate: float = 0.5,
        seed: int = 0,
    ) -> None:
        require_members(encoder, "OnlineLearner")
        if dictionary != "fixed":
            require_members(encoder, "OnlineLearner with a dictionary", ("refresh_constants",))
        numbers = {"window": window, "memory": memory, "chunk": chunk, "steps": steps}
        for name, value in numbers.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.encoder: Any = encoder
        self.regime: Regime = as_regime(Unsupervised() if regime is None else regime)
        self.dictionary: OnlineDictionary | None
        if dictionary is None:
            self.dictionary = OnlineDictionary.of(encoder.model)
        elif isinstance(dictionary, OnlineDictionary):
            self.dictionary = dictionary
        elif dictionary == "fixed":
            self.dictionary = None
        else:
            raise ValueError(
                f"dictionary must be an OnlineDictionary, 'fixed' or None, got {dictionary!r}"
            )
        self._adaptive = dictionary is None
        self.window, self.memory, self.chunk, self.steps = window, memory, chunk, steps
        self.batch_size, self.seed = min(batch_size, window), seed
        self.samples = 0
        self.history: deque[Point] = deque(maxlen=REMEMBERED)
        self.changes: deque[int] = deque(maxlen=REMEMBERED)
        self._recent = self._past = float("nan")
        self._level = _Level()
        self._seen = _Rows()
        self._waiting = _Rows()
        kinds = encoder.kinds()
        self._trained = {
            name: parameter
            for name, parameter in encoder.named_parameters()
            if kinds[name].role != "dictionary"
        }
        self._optimiser = torch.optim.Adam(
            [
                {"params": [p], "lr": rate * learning_rate(kinds[name], p.detach())}
                for name, p in self._trained.items()
            ]
        )

    @property
    def drift(self) -> float:
        return self._recent / self._past if self._past else 1.0

    @property
    def received(self) -> int:
        """How many samples have come in, those that wait for their chunk included.

        Whoever resumes a stream goes on behind them.
        """
        return self.samples + len(self._waiting)

    def partial_fit(self, x: Any, targets: Any = None) -> OnlineLearner:
        """Learn from new samples; what does not fill a chunk yet waits for the next call."""
        model, features = self.encoder.model, self.encoder.features
        batch = Batch(*as_tensors(x, targets, model.dtype)).to(model.device)
        if batch.x.ndim != 2 or batch.x.shape[1] != features:
            raise ValueError(f"x must have shape (rows, {features}), got {tuple(batch.x.shape)}")
        if not bool(torch.isfinite(batch.x).all()):
            raise ValueError("x contains NaN or infinite values; nothing was learned from it")
        self._waiting.add(batch)
        while len(self._waiting) >= self.chunk:
            self._take(self._waiting.pop(self.chunk))
        record_regime(self.regime, self.encoder)
        return self

    def _take(self, batch: Batch) -> None:
        encoder = self.encoder
        with torch.no_grad():
            codes, signals, model = encoder(batch.x), encoder.prepare(batch.x), encoder.model
            value = float(model.objective(signals, codes).mean())
            self._note(value, len(batch.x))
            if self.dictionary is not None:
                if self._adaptive:
                    self._remember(self.dictionary)
                learned = self.dictionary.learn_batch(model, signals, codes, under_ridge=True)
                for name, tensor in learned.items():
                    model.dictionaries[name].copy_(tensor)
                if self._level.chunks < YOUNG or self._level.chunks % FOLLOW_EVERY == 0:
                    encoder.refresh_constants()
        self._seen.add(batch)
        self._seen.drop(len(self._seen) - self.window)
        for number in range(self.steps):
            self._step(number)

    def _remember(self, dictionary: OnlineDictionary) -> None:
        """Set how much the dictionary forgets: long memories are for streams that stay the same."""
        since = self._level.chunks * self.chunk
        if since == 0:
            dictionary.decay(KEPT)
        dictionary.remember(since, most=self.memory)

    def _step(self, number: int) -> None:
        rng = np.random.default_rng([self.seed, self.samples, number])
        size = min(self.batch_size, len(self._seen))
        rows = torch.from_numpy(rng.integers(len(self._seen), size=size))
        self._optimiser.zero_grad(set_to_none=True)
        loss = self.regime(self.encoder, self._seen.rows(rows))
        torch.autograd.backward(loss)
        trained = [p for p in self._trained.values() if p.grad is not None]
        norm = nn.utils.clip_grad_norm_(trained, CLIP * max(abs(self._past), 1e-30))
        # a sample that blows up says nothing that could be learned from
        if bool(torch.isfinite(norm)) and bool(torch.isfinite(loss)):
            self._optimiser.step()
            self.encoder.project_()
        self._optimiser.zero_grad(set_to_none=True)

    def _note(self, value: float, count: int) -> None:
        self.samples += count
        chunks = self.samples // self.chunk
        self._recent = _average(self._recent, value, min(RECENT, chunks))
        self._past = _average(self._past, value, min(PAST, chunks))
        self.history.append(Point(self.samples, value, self.drift))
        if self._level.left(value):
            self.changes.append(self.samples)

    # ---- files ------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything that the learner has become, in one file, whole or not at all."""
        tensors = {f"encoder.{name}": t for name, t in self.encoder.state_dict().items()}
        remembered = adam_tensors(self._optimiser.state_dict())
        tensors |= {f"adam.{name}": value for name, value in remembered.items()}
        if self.dictionary is not None:
            tensors |= {f"online.{key}": t for key, t in self.dictionary.state.items()}
        for room, rows in (("seen", self._seen), ("waiting", self._waiting)):
            tensors |= {f"{room}.{key}": t for key, t in rows.state.items()}
        tensors["history"] = torch.tensor(list(self.history), dtype=torch.float64).reshape(-1, 3)
        info = {
            "kind": "learner",
            "settings": self._settings(),
            "samples": self.samples,
            "changes": list(self.changes),
            "level": asdict(self._level),
            "recent": self._recent,
            "past": self._past,
            "regime": self.regime.state,
        }
        write(path, tensors, info)

    def resume(self, path: str | os.PathLike[str]) -> OnlineLearner:
        """Take up what `save` wrote; the learner must have been built with the same settings."""
        tensors, info = read(path)
        if info.get("kind") != "learner":
            raise ValueError(f"{path} does not hold a learner, but {info.get('kind')!r}")
        if info["settings"] != self._settings():
            own = self._settings()
            changed = [key for key, value in own.items() if info["settings"].get(key) != value]
            raise ValueError(f"{path} holds another learner: {', '.join(changed)} differ")
        self.encoder.load_state_dict(below(tensors, "encoder."))
        self._optimiser.load_state_dict(adam_state(self._optimiser, below(tensors, "adam.")))
        if self.dictionary is not None:
            self.dictionary.state = below(tensors, "online.")
        self._seen.state = below(tensors, "seen.")
        self._waiting.state = below(tensors, "waiting.")
        points = tensors["history"].tolist()
        self.history = deque((Point(int(n), f, d) for n, f, d in points), maxlen=REMEMBERED)
        self.samples = info["samples"]
        self.changes = deque(info["changes"], maxlen=REMEMBERED)
        self._level = _Level(**info["level"])
        self._recent, self._past = info["recent"], info["past"]
        self.regime.state = info["regime"]
        record_regime(self.regime, self.encoder)
        return self

    def _settings(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "memory": self.memory,
            "chunk": self.chunk,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "regime": self.regime.name,
            "dictionary": self.dictionary is not None,
        }


@dataclass
class _Level:
    """What the objective has been since the stream last changed, and how much it varies."""

    chunks: int = 0
    last: float = 0.0
    recent: float = 0.0
    mean: float = 0.0
    variance: float = 0.0

    def left(self, value: float) -> bool:
        """Take in the objective of a chunk; whether the stream has changed."""
        if not math.isfinite(value):
            return False
        self.chunks += 1
        self.recent = _average(self.recent, value, min(RECENT, self.chunks))
        off, usual = abs(self.recent - self.mean), math.sqrt(self.variance / RECENT)
        if self.chunks > YOUNG and off > max(CHANGED * usual, CHANGED_PART * abs(self.mean)):
            self.chunks = 0
            return True
        self.mean = _average(self.mean, value, min(PAST, self.chunks))
        # from differences of neighbours, because a slow trend is no variation
        square = (value - self.last) ** 2 / 2
        if self.chunks > 1:
            self.variance = _average(self.variance, square, min(PAST, self.chunks - 1))
        self.last = value
        return False


class _Rows:
    """Samples in the order of their arrival, with their targets."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.parts["x"]) if self.parts else 0

    def add(self, batch: Batch) -> None:
        new = {"x": batch.x, **_flat(batch.targets)}
        if self.parts and set(new) != set(self.parts):
            raise ValueError("targets must come with all samples of a stream or with none")
        self.parts = {
            key: torch.cat([self.parts[key], t]) if self.parts else t.clone()
            for key, t in new.items()
        }

    def pop(self, count: int) -> Batch:
        """The oldest samples, which are then gone."""
        batch = self.rows(torch.arange(count))
        self.drop(count)
        return batch

    def drop(self, count: int) -> None:
        if count > 0:
            self.parts = {key: t[count:].clone() for key, t in self.parts.items()}

    def rows(self, rows: Tensor) -> Batch:
        chosen = {key: t[rows] for key, t in self.parts.items()}
        x = chosen.pop("x")
        if not chosen:
            return Batch(x)
        if "targets" in chosen:
            return Batch(x, chosen["targets"])
        return Batch(x, {key.removeprefix("targets."): t for key, t in chosen.items()})

    @property
    def state(self) -> dict[str, Tensor]:
        return self.parts

    @state.setter
    def state(self, values: Mapping[str, Tensor]) -> None:
        self.parts = dict(values)


def _flat(targets: Targets | None) -> dict[str, Tensor]:
    if targets is None:
        return {}
    if isinstance(targets, Tensor):
        return {"targets": targets}
    return {f"targets.{name}": t for name, t in targets.items()}


def _average(mean: float, value: float, count: int) -> float:
    """The mean over about so many values, the new one included."""
    return value if count <= 1 else mean + (value - mean) / count
