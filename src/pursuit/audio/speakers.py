"""Who speaks: structured sparse codes of spectral envelopes, and the energies of their groups.

Every speaker has a dictionary, learned from clips of this person alone. Together they are the
dictionary of a HiLasso with one group for each speaker; the groups with the most energy, summed
over some frames, are the speakers that are heard (`energies`, `pooled`, `decide`). `Speakers` is
such a model in use: with an encoder in place of the solver, and without torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import files
from ..fields import arguments, entry, naming, shown
from ..files import below
from ..runtime.checks import require
from ..runtime.compiled import Compiled
from ..runtime.program import Program, from_arrays
from .envelope import Contrast, Envelope, heard
from .likeness import Likeness
from .noisy_speakers import NoisySpeakers
from .noisy_storage import compact, restored
from .resampling import Resampler
from .speaker_recipe import NoiseRecipe, Recipe
from .speech import SILENT, one_channel, prepared
from .streams import Array, SampleStream

if TYPE_CHECKING:
    from ..progress import Callback

#: the fewest frames that are not silent
FEWEST = 8
#: the seconds over which a timeline and a stream pool energies, by default
WINDOW, MEMORY = 1.0, 4.0
#: what a file says of how the model was trained
NOTES: tuple[str, ...] = ("training", "recipe", "provenance")
#: how much a ratio of errors counts for the scores in noise, as in training
SHARPNESS = 30.0
#: the smallest share of frames of a window that must be heard
HEARD = 0.25


@dataclass(frozen=True)
class Identification:
    """Who speaks in a recording.

    Attributes
    ----------
    speaker : str or None
        The speaker with the highest score; None if the voice is unknown.
    speakers : tuple of str
        All who were asked for and are heard, the highest score first; empty if unknown.
    scores : dict
        For every speaker the share of this group in the energies of all, summed over the frames;
        in noise the softmax of ``-30 log(error)`` of the summed errors. They sum to 1.
    margin : float
        The difference between the lowest score of `speakers` and the highest one of the others.
    likeness : float or None
        How like the voice is to the speaker it is most like, at most 1; see `Likeness`. In noise
        it is not measured.
    threshold : float or None
        A voice with a lower likeness is unknown.
    seconds : float
        The duration of what is not silent.
    """

    speaker: str | None
    speakers: tuple[str, ...]
    scores: dict[str, float]
    margin: float
    likeness: float | None
    threshold: float | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """Who speaks when.

    Attributes
    ----------
    names : tuple of str
        The speakers.
    times : ndarray of shape (frames,)
        The centres of the frames, in seconds.
    scores : ndarray of shape (frames, speakers)
        The shares of the groups in the energies around each frame; zero in silence.
    """

    names: tuple[str, ...]
    times: Array
    scores: Array

    @property
    def speakers(self) -> list[str | None]:
        """The speaker of every frame, None in silence."""
        best = np.where(heard(self.scores), self.scores.argmax(axis=1), -1)
        return [self.names[k] if k >= 0 else None for k in best]


class Speakers:
    """Recognises the speakers that it was fitted to; everybody else is unknown.

    Use `fit` or `load` to make one.

    Parameters
    ----------
    names : sequence of str
        The speakers, in the order of the groups.
    envelope, contrast
        The features of a frame.
    program : Program
        The encoder.
    likeness : Likeness
        What tells unknown voices.
    noisy : NoisySpeakers or None
        The model for noise.
    info : dict
        How it was trained.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.audio import Recipe, Speakers
    >>> noise = np.random.default_rng(0).standard_normal((7, 8000))
    >>> voices = {"flat": list(noise[:3]), "rough": list(np.diff(noise[3:6]))}
    >>> quick = Recipe(atoms=5, training=200, approximation=10, discriminative=10)
    >>> speakers = Speakers.fit(voices, 8000, noisy=False, recipe=quick)
    >>> found = speakers.identify(noise[6], 8000)
    >>> sorted(found.scores), round(sum(found.scores.values()), 6)
    (['flat', 'rough'], 1.0)
    """

    def __init__(
        self,
        names: Sequence[str],
        envelope: Envelope,
        contrast: Contrast,
        program: Program,
        likeness: Likeness,
        noisy: NoisySpeakers | None,
        info: Mapping[str, Any],
    ) -> None:
        self.names = tuple(names)
        self.envelope, self.contrast, self.likeness = envelope, contrast, likeness
        self.noisy, self.info = noisy, dict(info)
        self._compiled = Compiled(program, threads=1)
        if program.blocks is None or int(program.blocks.max()) + 1 != len(self.names):
            raise ValueError(
                f"the encoder must have a group for each of {len(self.names)} speakers"
            )
        self._groups = program.blocks

    @classmethod
    def fit(
        cls,
        recordings: Mapping[str, Sequence[Any]],
        rate: int,
        *,
        noisy: bool = True,
        noise: Sequence[Any] | None = None,
        recipe: Recipe | None = None,
        noise_recipe: NoiseRecipe | None = None,
        seed: int = 0,
        callback: Callback | None = None,
    ) -> Speakers:
        """Learn to recognise speakers.

        Each third of the recordings is held out first, to estimate the accuracy of a model of the
        others: ``info["training"]`` has it. The model in use is then learned from all of them.

        Parameters
        ----------
        recordings : mapping from names to sequences of arrays
            Some recordings of each speaker alone, arrays of shape (samples,) or
            (samples, channels) with floating-point samples. Half a minute of each is enough.
        rate : int
            Samples per second.
        noisy : bool, default=True
            Whether a model for noise is learned too, for ``identify(..., noisy=True)`` and
            `denoise`.
        noise : sequence of arrays or None
            Recordings of noise to learn it with; by default noise is made: babble of the speakers,
            and white, pink and brown noise.
        recipe, noise_recipe
            The settings of both models, if not the default ones.
        seed : int, default=0
            The same seed gives the same result.
        callback : callable or None
            Called with a `Progress` from time to time.
        """
        from .speaker_training import enrol

        return enrol(
            recordings, rate, noisy=noisy, noise=noise, recipe=recipe or Recipe(),
            noise_recipe=noise_recipe or NoiseRecipe(), seed=seed, callback=callback,
        )  # fmt: skip

    @property
    def rate(self) -> int:
        """Samples per second of the model; other rates are resampled."""
        return self.envelope.rate

    def identify(
        self,
        wave: Any,
        rate: int,
        *,
        speakers: int = 1,
        noisy: bool = False,
        strict: bool = False,
        threshold: float | None = None,
    ) -> Identification:
        """Return who speaks in a recording.

        Parameters
        ----------
        wave : array of shape (samples,) or (samples, channels)
            Floating-point samples.
        rate : int
            Samples per second.
        speakers : int, default=1
            How many speak at once. If it is more than 1, nobody is unknown.
        noisy : bool, default=False
            Whether to use the model for noise, with which nobody is unknown.
        strict : bool, default=False
            Whether a voice must be as like to a speaker as the recordings of this speaker mostly
            are; see `Likeness`.
        threshold : float or None
            The smallest likeness of a known voice, in place of the learned one; -1 accepts all.
        """
        if noisy:
            return self._in_noise(prepared(wave, rate, self.rate), speakers)
        signals = self._signals(wave, rate)
        return self._identified(signals, self._energies(signals), speakers, strict, threshold)

    def denoise(self, wave: Any, rate: int, speaker: str | None = None) -> Array:
        """Return the speech of a recording without the noise, below 4 kHz.

        Parameters
        ----------
        wave, rate
            As for `identify`.
        speaker : str or None
            Whose speech it is; by default the one that is recognised.

        Returns
        -------
        ndarray of shape (samples,), float32
            At the rate of the recording; the mean of its channels.
        """
        samples = one_channel(wave)
        prepared(samples, rate, self.rate)  # refuses what is too short or silent
        narrow = _resampled(samples, rate, self.rate)
        speech = self._noisy.denoise(narrow, speaker).speech
        return _resampled(speech, self.rate, rate, len(samples))

    def timeline(self, wave: Any, rate: int, seconds: float = WINDOW) -> Timeline:
        """Return who speaks when.

        Parameters
        ----------
        wave, rate
            As for `identify`.
        seconds : float, default=1.0
            The duration of the window around each frame whose energies are summed.
        """
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds}")
        signals = self._signals(wave, rate)
        hop, window = self.envelope.hop, self.envelope.window
        size = max(1, round(seconds * self.rate / hop))
        spoken = _moving_sum(heard(signals)[:, None], size)
        sums = _moving_sum(self._energies(signals), size)
        sums[spoken[:, 0] < HEARD * size] = 0
        totals = sums.sum(axis=1, keepdims=True)
        scores = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
        times = ((np.arange(len(scores)) + 1) * hop - window / 2) / self.rate
        return Timeline(self.names, times, scores)

    def stream(
        self, rate: int | None = None, channels: int | None = None, seconds: float = MEMORY
    ) -> SpeakerStream:
        """Return a stream that says who speaks as samples arrive.

        Parameters
        ----------
        rate : int or None
            Samples per second; by default the rate of the model.
        channels : int or None
            The number of channels; None for blocks of one dimension.
        seconds : float, default=4.0
            How much of what was heard last counts.
        """
        return SpeakerStream(self, self.rate if rate is None else rate, channels, seconds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, and its `info`, to one file, usually ``*.safetensors``."""
        program, contrast, likeness = self._compiled.program, self.contrast, self.likeness
        arrays = {f"program.{name}": array for name, array in program.arrays().items()}
        del arrays["program.dictionary"]  # those of the layers
        arrays |= {"mean": contrast.mean, "transform": contrast.transform, "means": likeness.means}
        info = {
            "kind": "speakers",
            **self.info,
            "names": list(self.names),
            "envelope": asdict(self.envelope),
            "least": contrast.least,
            "thresholds": [likeness.threshold, likeness.strict, likeness.error],
            "program": program.info["program"],
        }
        if self.noisy is not None:
            encoders = self.noisy.compiled.encoders
            programs = [each.program for each in encoders if isinstance(each, Compiled)]
            arrays |= {f"noisy.{name}": array for name, array in compact(programs).items()}
            form = programs[0].info["program"]
            info["noisy"] = {"noise_atoms": self.noisy.noise_atoms, "program": form}
        files.write(Path(path), arrays, info)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Speakers:
        """Read a model that `save` has written, without torch."""
        saved = files.open_saved(path)
        info, arrays = saved.info, saved.arrays
        if info.get("kind") != "speakers":
            raise ValueError(
                f"{path} holds {shown(info.get('kind'))}, not speakers; make one with "
                "pursuit fit speakers"
            )
        with naming(path):
            names = entry(info, "names", list[str])
            envelope = Envelope(**arguments(entry(info, "envelope", dict), Envelope))
            m = envelope.size
            mean = require(arrays.get("mean"), "mean", np.float32, (m,))
            transform = require(arrays.get("transform"), "transform", np.float32, (m, m))
            contrast = Contrast(mean, transform, entry(info, "least", float, least=0))
            means = require(arrays.get("means"), "means", np.float32, (len(names), m))
            likeness = Likeness(
                means, *entry(info, "thresholds", tuple[float, float, float | None])
            )
            stored = below(arrays, "program.")
            atoms = require(stored.get("atoms"), "program.atoms", np.float32, (None, None, m))
            if len(atoms) == 0:
                raise ValueError("program.atoms is empty")
            stored["dictionary"] = atoms[0]
            program = from_arrays(stored, {"program": info.get("program")})
            if not isinstance(program, Program):
                raise ValueError("its encoder is convolutional")
            noisy = None
            if "noisy" in info:
                noisy = restored(below(arrays, "noisy."), names, info["noisy"], saved.path)
            kept = {name: info[name] for name in NOTES if name in info}
            return cls(names, envelope, contrast, program, likeness, noisy, kept)

    def _signals(self, wave: Any, rate: int) -> Array:
        return self.contrast(self.envelope(prepared(wave, rate, self.rate)))

    def _energies(self, signals: Array) -> Array:
        return energies(self._compiled(signals), self._groups)

    @property
    def _noisy(self) -> NoisySpeakers:
        if self.noisy is None:
            raise ValueError("this model was fitted without one for noise; fit with noisy=True")
        return self.noisy

    def _in_noise(self, wave: Array, count: int) -> Identification:
        self._require_count(count)
        errors = self._noisy.errors(wave)
        logits = -SHARPNESS * np.log(np.maximum(errors.sum(axis=0, dtype=np.float64), 1e-30))
        scores = np.exp(logits - logits.max())
        return self._decided(scores / scores.sum(), count, len(errors))

    def _require_count(self, count: int) -> None:
        if not 1 <= count <= len(self.names):
            raise ValueError(
                f"speakers must be from 1 to {len(self.names)}, the speakers there are, got {count}"
            )

    def _identified(
        self,
        signals: Array,
        loud: Array,
        count: int,
        strict: bool = False,
        threshold: float | None = None,
    ) -> Identification:
        spoken = signals[heard(signals)]
        if len(spoken) < FEWEST:
            raise ValueError("no speech is heard in the recording; give one with more speech")
        self._require_count(count)
        if threshold is None:
            threshold = self.likeness.strict if strict else self.likeness.threshold
        total = loud.sum(axis=0, dtype=np.float64)
        # codes can be zero, if nothing of a recording is like any speaker
        shares = total / total.sum() if total.any() else np.full(len(total), 1 / len(total))
        found = self._decided(shares, count, len(spoken))
        likeness = float(self.likeness(spoken).max())
        found = replace(found, likeness=likeness, threshold=threshold)
        if total.any() and (count > 1 or likeness >= threshold):
            return found
        return replace(found, speaker=None, speakers=())

    def _decided(self, scores: Array, count: int, frames: int) -> Identification:
        """The speakers with the highest scores."""
        order = np.argsort(-scores, kind="stable")
        chosen = tuple(self.names[k] for k in order[:count])
        rest = scores[order[count]] if count < len(order) else 0.0
        return Identification(
            speaker=chosen[0],
            speakers=chosen,
            scores=dict(zip(self.names, scores.tolist(), strict=True)),
            margin=float(scores[order[count - 1]] - rest),
            likeness=None,
            threshold=None,
            seconds=frames * self.envelope.hop / self.rate,
        )


class SpeakerStream(SampleStream):
    """Says who speaks as samples arrive; see `Speakers.stream`.

    The level and the offset of the recording are those of the samples so far.
    """

    def __init__(self, speakers: Speakers, rate: int, channels: int | None, seconds: float) -> None:
        super().__init__(channels)
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds}")
        self._speakers = speakers
        envelope = speakers.envelope
        self._resampler = Resampler(rate, envelope.rate)
        self._analysis = envelope.stft.analysis_stream()
        self._frames = max(FEWEST, round(seconds * envelope.rate / envelope.hop))
        self._sum = self._squares = 0.0
        self._signals = np.zeros((0, envelope.size), np.float32)
        self._energies = np.zeros((0, len(speakers.names)), np.float32)
        self._latest: Identification | None = None

    def push(self, samples: Array) -> Identification | None:
        """Take the next samples and return who speaks; None until speech is heard."""
        block = self._take(samples)
        if not np.isfinite(block).all():
            raise ValueError("a block contains NaN or infinite samples; check the recording")
        wave = self._resampler.push(block if self.channels is None else block.mean(axis=1))
        self._sum += float(wave.sum(dtype=np.float64))
        self._squares += float(np.square(wave, dtype=np.float64).sum())
        count = max(self._analysis.samples + len(wave), 1)
        mean = self._sum / count
        power = self._squares / count - mean**2
        spectra = self._analysis.push(wave - np.float32(mean))
        if not len(spectra) or power < SILENT**2:
            return self._latest
        speakers, envelope = self._speakers, self._speakers.envelope
        # dividing a wave by its level divides its powers by the square of it
        features = envelope.of_spectra(spectra) * np.float32(power**-envelope.power)
        signals = speakers.contrast(features)
        loud = speakers._energies(signals)
        self._signals = np.concatenate([self._signals, signals])[-self._frames :]
        self._energies = np.concatenate([self._energies, loud])[-self._frames :]
        if np.count_nonzero(heard(self._signals)) >= FEWEST:
            self._latest = speakers._identified(self._signals, self._energies, 1)
        return self._latest


def _resampled(wave: Array, rate: int, new: int, length: int | None = None) -> Array:
    if rate == new:
        return wave
    resampler = Resampler(rate, new)
    return np.concatenate([resampler.push(wave), resampler.flush(length)])


def _moving_sum(rows: Array, size: int) -> Array:
    """The sums of `size` rows around each row; beyond the ends rows are zero."""
    before = size // 2
    padded = np.pad(rows.astype(np.float64), ((before + 1, size - 1 - before), (0, 0)))
    sums = padded.cumsum(axis=0)
    moving: Array = np.maximum(sums[size:] - sums[:-size], 0)
    return moving


def energies(codes: Array, groups: Array) -> Array:
    """Return the norm ``||z_r||_2`` of each group of codes, shape (frames, speakers).

    Parameters
    ----------
    codes
        The codes, shape (frames, q).
    groups
        The number of the group of each coefficient, shape (q,).
    """
    members = np.eye(int(groups.max()) + 1, dtype=codes.dtype)[groups]
    norms: Array = np.sqrt(np.square(codes) @ members)
    return norms


def pooled(energies: Array, frames: int | None = None) -> Array:
    """Sum energies over consecutive windows of some frames, by default over all frames.

    Returns a matrix (windows, speakers); frames after the last complete window are left out.

    Examples
    --------
    >>> pooled(np.array([[1.0, 0.0], [2.0, 1.0], [0.0, 5.0]]), 2).tolist()
    [[3.0, 1.0]]
    """
    frames = len(energies) if frames is None else frames
    if not 1 <= frames <= len(energies):
        raise ValueError(
            f"frames must be from 1 to {len(energies)}, the frames there are, got {frames}"
        )
    count = len(energies) // frames
    windows: Array = energies[: count * frames].reshape(count, frames, -1).sum(1)
    return windows


def decide(pooled: Array, count: int) -> Array:
    """Return the numbers of the `count` speakers with the highest energies, in order of number.

    Examples
    --------
    >>> decide(np.array([[0.1, 2.0, 1.0]]), 2).tolist()
    [[1, 2]]
    """
    if not 1 <= count <= pooled.shape[-1]:
        raise ValueError(
            f"count must be from 1 to {pooled.shape[-1]}, the speakers there are, got {count}"
        )
    highest = np.argsort(-pooled, axis=-1, kind="stable")[..., :count]
    return np.sort(highest, axis=-1)
