"""OnlineLearner: an encoder and its dictionary that follow a stream.

Each chunk of samples is encoded, its codes update the dictionary, and the encoder is trained for a
few steps on a sliding window, at constant cost per sample and constant memory. Chunks have a fixed
size, so the result does not depend on how the stream is divided into calls.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ._checks import is_finite
from .batches import Batch, Targets, as_tensors, require_shape, require_targets
from .bursts import LARGEST, BurstDetector, norms_of
from .changes import PAST, RECENT, YOUNG, ChangeDetector, running_mean
from .dictionary import OnlineDictionary
from .encoders.trainable import Trainable, declared_kinds, require_members
from .fields import entry, naming, real, shown
from .files import below, joined
from .optimisation import CLIP, Adam, learning_rate
from .persistence import read, require_finite, require_like, write
from .regimes import Regime, Unsupervised, as_regime, record_regime
from .resuming import check_groups, check_optimiser, check_regime, check_rows
from .training_loop import compiled_loss, differentiable

#: the number of chunks that the history keeps
REMEMBERED = 10_000
#: when the stream changes, earlier samples keep this fraction of their weight in the dictionary
KEPT = 0.01
#: chunks between two updates of the step constants, which cost an eigenvalue; in the first chunks
#: after a change, when the dictionary moves fast, they are updated every time
FOLLOW_EVERY = 10


#: the groups of tensors that learning from a chunk changes
STATE = ("encoder", "adam", "online", "seen", "moments")


class Point(NamedTuple):
    """The stream after a chunk; `objective` is the mean over the chunk before learning from it."""

    samples: int
    objective: float
    drift: float


class OnlineLearner:
    """Trains an encoder and its dictionary on a stream of samples.

    Parameters
    ----------
    encoder
        The encoder, or any module with the members of `pursuit.encoders.trainable.Trainable`. It
        is trained in place.
    regime
        What it is trained for; by default `regimes.Unsupervised`.
    dictionary
        What updates the dictionary: by default an `OnlineDictionary` whose memory adapts to the
        stream. One that you pass keeps its beta; "fixed" leaves the dictionary unchanged.
    window
        The encoder is trained on the last `window` samples.
    memory
        The largest number of samples that the dictionary remembers. It remembers a quarter of the
        samples since the last change of the stream, and at least five samples per atom.
    chunk
        The number of samples that are processed at a time.
    batch_size, steps
        The number of rows in a training step, and the number of training steps for each chunk.
    rate
        A factor for the learning rates.
    seed
        Seeds the choice of rows from the window.

    Attributes
    ----------
    samples
        The number of samples that were learned from.
    left_out
        The number of samples that nothing was learned from, see below.
    drift
        The mean objective of the last 5 chunks divided by that of the last 50: about 1 on
        stationary data, larger when the data move away from what was learned.
    changes
        The sample numbers at which the stream changed abruptly (see `pursuit.changes`); the last
        10 000 of them.
    history
        A `Point` for each of the last 10 000 chunks.

    Notes
    -----
    Nothing is learned from samples whose norm (with that of their targets, if they are numbers) is
    more than ten times the level of the stream, see `pursuit.bursts`: the learner is then the same,
    bit for bit, as if they had not come. This holds for up to 400 samples in succession and for up
    to 5 % of all samples, of any finite size. A level that lasts longer is followed: from the 700th
    sample of a new level at the latest, all samples are learned from. If the stream begins with a
    burst, the learner starts again as soon as the burst is recognised, when as many samples have
    come after it. A chunk that leaves the learner with numbers that are not finite is undone. A
    warning tells when a burst begins and what was undone.

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
        for name, value in (*numbers.items(), ("batch_size", batch_size)):
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
        self._detector = ChangeDetector(encoder.features)
        self._bursts = BurstDetector()
        self._seen = _Rows()
        self._waiting = _Rows()
        self._ordinary = _Rows()
        self.left_out = 0
        self._in_burst = False
        #: what a failure returns to: in a young stream its start, later the chunk before
        self._good: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        kinds = declared_kinds(encoder)
        self._trained = {
            name: parameter
            for name, parameter in encoder.named_parameters()
            if kinds[name].role != "dictionary"
        }
        rates = {n: rate * learning_rate(kinds[n], p.detach()) for n, p in self._trained.items()}
        self._optimiser = Adam(self._trained, rates)

    @property
    def drift(self) -> float:
        return self._recent / self._past if self._past else 1.0

    @property
    def received(self) -> int:
        """The number of samples received, including those that do not fill a chunk yet."""
        return self.samples + self.left_out + len(self._waiting) + len(self._ordinary)

    def partial_fit(self, x: Any, targets: Any = None) -> OnlineLearner:
        """Learn from new samples.

        Samples that do not fill a chunk yet are kept for the next call.

        Parameters
        ----------
        x
            Samples, shape (n, m).
        targets
            What the regime compares with, as for `fit`.

        Returns
        -------
        OnlineLearner
            The learner itself.
        """
        model = self.encoder.model
        batch = Batch(*as_tensors(x, targets, model.dtype)).to(model.device)
        require_shape(batch, self.encoder.features, "x")
        require_targets(batch.targets, len(batch.x))
        for name, values in {"x": batch.x, **_flat(batch.targets)}.items():
            if not is_finite(values):
                raise ValueError(
                    f"{name} contains NaN or infinite values; nothing was learned from it"
                )
        self._waiting.add(batch)
        while len(self._waiting) >= self.chunk:
            message = self._sift(self._waiting.pop(self.chunk))
            while len(self._ordinary) >= self.chunk:
                message = self._take_checked(self._ordinary.pop(self.chunk)) or message
            if message is not None:
                warnings.warn(message, UserWarning, stacklevel=2)
        record_regime(self.regime, self.encoder)
        return self

    def _sift(self, batch: Batch) -> str | None:
        """Add the ordinary samples of a chunk to those to be learned from, and return a warning."""
        first = self.received - len(self._waiting)
        norms, message = norms_of(batch), None
        if self._bursts.add(norms):
            self._undo()
            self.left_out += len(self._ordinary)
            self._ordinary = _Rows()
            message = (
                f"the first samples are more than {LARGEST:g} times larger than those that follow, "
                f"up to sample {first + len(norms)}; learning starts again"
            )
        ordinary = self._bursts.is_ordinary(norms)
        chunk = _Rows()
        chunk.add(batch)
        self._ordinary.add(chunk.rows(torch.from_numpy(np.flatnonzero(ordinary))))
        left_out = int((~ordinary).sum())
        if left_out > 0 and not self._in_burst:
            message = (
                f"{left_out} of the samples {first} to {first + len(norms) - 1} are more than "
                f"{LARGEST:g} times larger than the stream before; nothing is learned from such "
                "samples unless they continue"
            )
        self._in_burst = left_out > 0
        self.left_out += left_out
        return message

    def _take_checked(self, batch: Batch) -> str | None:
        """Learn from one chunk; undo it and return a warning if the result is not finite."""
        if self._good is None or not self._bursts.is_young:
            self._good = self._state()
        self._take(batch)
        if self._is_finite():
            return None
        self._undo()
        return (
            f"learning from the samples up to {self.received - len(self._waiting)} led to numbers "
            "that are too large or not finite; the learner is back at its state after "
            f"{self.samples} samples"
        )

    def _is_finite(self) -> bool:
        tensors = [*self.encoder.state_dict().values()]
        if self.dictionary is not None:
            tensors += self.dictionary.state.values()
        return all(map(is_finite, tensors)) and _has_norms(self.encoder.model.dictionaries)

    def _undo(self) -> None:
        """Return to the last good state; the samples since then count as left out."""
        if self._good is None:
            return
        undone = self.samples
        self._restore(*self._good)
        self.left_out += undone - self.samples
        while self.history and self.history[-1].samples > self.samples:
            self.history.pop()
        while self.changes and self.changes[-1] > self.samples:
            self.changes.pop()

    def _take(self, batch: Batch) -> None:
        """Learn from one chunk."""
        encoder = self.encoder
        with torch.no_grad():
            codes, signals, model = encoder(batch.x), encoder.prepare(batch.x), encoder.model
            self._record(batch.x, float(model.objective(signals, codes).mean()))
            if self.dictionary is not None:
                if self._adaptive:  # the longer the stream is stationary, the more is remembered
                    since = self._detector.chunks * self.chunk
                    if since == 0:
                        self.dictionary.decay(KEPT)
                    self.dictionary.remember(since, most=self.memory)
                learned = self.dictionary.learn_batch(model, signals, codes, under_ridge=True)
                for name, tensor in learned.items():
                    model.dictionaries[name].copy_(tensor)
                if not _has_norms(learned):
                    return  # to be undone
                chunks = self._detector.chunks
                if chunks < YOUNG or chunks % FOLLOW_EVERY == 0:
                    encoder.refresh_constants()
        self._seen.add(batch)
        self._seen.drop(len(self._seen) - self.window)
        for number in range(self.steps):
            self._step(number)

    def _step(self, number: int) -> None:
        rng = np.random.default_rng([self.seed, self.samples, number])
        size = min(self.batch_size, len(self._seen))
        rows = torch.from_numpy(rng.integers(len(self._seen), size=size))
        self._optimiser.forget_gradients()
        batch = self._seen.rows(rows)
        learned = compiled_loss(self.encoder, self.regime, batch)
        loss, backward = learned or differentiable(self.regime(self.encoder, batch))
        # nothing is learned from a sample that blows up, or before the first finite objective
        if math.isfinite(loss) and math.isfinite(self._past):
            backward()
            self._optimiser.step(CLIP * max(abs(self._past), 1e-30))
            self.encoder.project_()
            self._optimiser.forget_gradients()

    def _record(self, x: Tensor, objective: float) -> None:
        """Record a chunk in the history, and look for a change of the stream."""
        self.samples += len(x)
        chunks = self.samples // self.chunk
        if math.isfinite(objective):  # a chunk that blows up would spoil the means for good
            self._recent = running_mean(self._recent, objective, min(RECENT, chunks))
            self._past = running_mean(self._past, objective, min(PAST, chunks))
        self.history.append(Point(self.samples, objective, self.drift))
        if self._detector.has_changed(x, objective):
            self.changes.append(self.samples)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """A copy of what learning from a chunk changes, as tensors and plain data."""
        online = {} if self.dictionary is None else self.dictionary.state
        copied = {"encoder": self.encoder.state_dict(), "online": online}
        tensors = {name: tensor.clone() for name, tensor in joined(copied).items()}
        # these are replaced, never changed
        kept = {"seen": self._seen.parts, "moments": self._detector.moments.state}
        info = {
            "samples": self.samples,
            "levels": self._detector.levels,
            "recent": self._recent,
            "past": self._past,
            "regime": self.regime.state,
        }
        return tensors | joined({"adam": self._optimiser.state, **kept}), info

    def _restore(self, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> None:
        """Return to a state that `_state` returned."""
        self.encoder.load_state_dict(below(tensors, "encoder."))
        self._optimiser.state = below(tensors, "adam.")
        if self.dictionary is not None:
            self.dictionary.state = below(tensors, "online.")
        self._seen.parts = below(tensors, "seen.")
        self._detector.moments.state = below(tensors, "moments.")
        self._detector.levels = info["levels"]
        self.samples, self._recent, self._past = info["samples"], info["recent"], info["past"]
        self.regime.state = info["regime"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the complete state of the learner to one file."""
        tensors, info = self._state()
        young = self._good if self._bursts.is_young else None
        start = {} if young is None else young[0]
        waiting = {"waiting": self._waiting.parts, "ordinary": self._ordinary.parts}
        tensors |= joined({**waiting, "bursts": self._bursts.state, "start": start})
        tensors["history"] = torch.tensor(list(self.history), dtype=torch.float64).reshape(-1, 3)
        info |= {
            "kind": "learner",
            "settings": self._settings(),
            "changes": list(self.changes),
            "left_out": self.left_out,
            "start": None if young is None else young[1],
        }
        write(path, tensors, info)

    def resume(self, path: str | os.PathLike[str]) -> OnlineLearner:
        """Restore what `save` wrote into a learner with the same settings, and return it."""
        tensors, info = read(path)
        if info.get("kind") != "learner":
            raise ValueError(f"{path} does not hold a learner, but {shown(info.get('kind'))}")
        settings, given = self._settings(), info.get("settings")
        if given != settings:
            known = given if isinstance(given, dict) else {}
            changed = [key for key, value in settings.items() if known.get(key) != value]
            raise ValueError(f"{path} holds another learner: {', '.join(changed)} differ")
        with naming(path, "resumed"):
            state, start = self._checked(tensors, info)
            try:
                self._restore(tensors, state)
            except RuntimeError as error:  # the encoder refuses it before anything is overwritten
                raise ValueError(str(error)) from error
        self._waiting.parts = below(tensors, "waiting.")
        self._ordinary.parts = below(tensors, "ordinary.")
        self._bursts.state = below(tensors, "bursts.")
        self._good = None if start is None else (below(tensors, "start."), start)
        points = tensors["history"].tolist()
        self.history = deque((Point(int(n), f, d) for n, f, d in points), maxlen=REMEMBERED)
        self.changes = deque(info["changes"], maxlen=REMEMBERED)
        self.left_out = info["left_out"]
        record_regime(self.regime, self.encoder)
        return self

    def _checked(
        self, tensors: Mapping[str, Tensor], info: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the numbers of the state, and of the start of a young stream, of a file.

        Raises a ValueError if any field of the file is invalid.
        """
        groups = (*STATE, "waiting", "ordinary", "bursts", "start")
        check_groups({n: t for n, t in tensors.items() if n != "history"}, groups)
        history = tensors.get("history")
        if history is None or history.shape[1:] != (3,) or history.dtype != torch.float64:
            raise ValueError("history must be float64 of shape (n, 3)")
        require_finite(history[:, 0], "history")
        BurstDetector.check(below(tensors, "bursts."))
        given = {name: below(tensors, f"{name}.") for name in ("seen", "waiting", "ordinary")}
        for name, rows in given.items():
            check_rows(rows, self.encoder.features, self.encoder.model.dtype, name)
        if len({tuple(sorted(rows)) for rows in given.values() if rows}) > 1:
            raise ValueError("seen, waiting and ordinary must have the same arrays")
        entry(info, "changes", list[int], least=0)
        entry(info, "left_out", int, least=0)
        start = below(tensors, "start.")
        check_groups(start, STATE)
        described = entry(info, "start", dict[str, Any] | None)
        young = None if described is None else self._checked_state(start, described)
        return self._checked_state(tensors, info), young

    def _checked_state(
        self, tensors: Mapping[str, Tensor], info: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the numbers of what `_state` returned."""
        require_like(below(tensors, "encoder."), self.encoder.state_dict())
        check_optimiser(below(tensors, "adam."), self._optimiser)
        online = {} if self.dictionary is None else self.dictionary.state
        require_like(below(tensors, "online."), online)
        require_like(below(tensors, "moments."), self._detector.moments.state)
        if int(tensors["moments.chunks"]) < 0:
            raise ValueError("moments.chunks must not be negative")
        seen = below(tensors, "seen.")
        check_rows(seen, self.encoder.features, self.encoder.model.dtype, "seen")
        entry(info, "samples", int, least=0)
        for name in ("recent", "past"):
            if math.isinf(real(info, name, finite=False)):
                raise ValueError(f"{name} must not be infinite")
        check_regime(info)
        return {**info, "levels": self._detector.checked(entry(info, "levels", dict))}

    def _settings(self) -> dict[str, Any]:
        names = ("window", "memory", "chunk", "steps", "batch_size", "seed")
        settings = {name: getattr(self, name) for name in names}
        return settings | {"regime": self.regime.name, "dictionary": self.dictionary is not None}


class _Rows:
    """Samples in order of arrival, with their targets."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self.parts["x"]) if self.parts else 0

    def add(self, batch: Batch) -> None:
        new = {"x": batch.x, **_flat(batch.targets)}
        if self.parts and set(new) != set(self.parts):
            raise ValueError("targets must come with all samples of a stream or with none")
        old = self.parts or {key: t[:0] for key, t in new.items()}
        self.parts = {key: torch.cat([old[key], t]) for key, t in new.items()}

    def pop(self, count: int) -> Batch:
        """Remove the oldest samples and return them."""
        batch = self.rows(torch.arange(count))
        self.drop(count)
        return batch

    def drop(self, count: int) -> None:
        if count > 0:
            self.parts = {key: t[count:].clone() for key, t in self.parts.items()}

    def rows(self, rows: Tensor) -> Batch:
        """Return the samples in some of the rows."""
        chosen = {key: t[rows] for key, t in self.parts.items()}
        x = chosen.pop("x")
        return Batch(x, below(chosen, "targets.") or chosen.get("targets"))


def _has_norms(dictionaries: Mapping[str, Tensor]) -> bool:
    """Whether the norms of all atoms are finite, as models need them."""
    return all(is_finite(atoms.detach().square().sum()) for atoms in dictionaries.values())


def _flat(targets: Targets | None) -> dict[str, Tensor]:
    """Return targets as tensors by name; the inverse is in `_Rows.rows`."""
    if targets is None:
        return {}
    if isinstance(targets, Tensor):
        return {"targets": targets}
    return joined({"targets": targets})
