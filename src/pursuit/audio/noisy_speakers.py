"""Who speaks in noise, and the speech without it: one encoder for each speaker.

The spectrum of a frame is explained by a dictionary of noise, which all speakers share, and the
dictionary of one speaker. The speaker whose encoder leaves the smallest error, summed over frames,
is the one that is heard, and the two parts of the explanation make a mask that removes the noise.
Everything here runs without torch; `noisy_training` learns dictionaries and encoders.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import files
from .._threads import one_blas_thread
from ..fields import arguments, entry, naming, shown
from ..files import below
from ..runtime.compiled import Compiled, CompiledBank
from ..runtime.program import Program, from_arrays
from .features import Features
from .streams import Array

if TYPE_CHECKING:
    from ..encoders.bank import EncoderBank
    from ..progress import Callback
    from ..training_loop import History

#: square roots of magnitudes in frames of 512 samples every 128, as in the paper but for the root
FEATURES = Features(window=512, hop=128, rate=8000, highest=4000.0, decay=None)
#: added to both parts before they are compared: where both are zero, the mask is one half
FLOOR = 1e-6


class Heard(NamedTuple):
    """The speaker that is recognised, and the pooled error of each speaker, by name."""

    speaker: str
    errors: dict[str, float]


class Denoised(NamedTuple):
    """The parts of a wave; their sum is the wave."""

    speech: Array
    noise: Array


class NoisySpeakers:
    """A closed set of speakers that are recognised in noise.

    For the features x of a frame (`observed`) and every speaker j, an encoder approximates the
    codes of::

        min 1/2 ||x - s D0 - o Dj||^2 + lam_star/2 (||s||^2 + ||o||^2)  over  s, o >= 0

    with the dictionary D0 of the noise and Dj of the speaker. The errors ``||x - s D0 - o Dj||^2``
    are summed over frames; the smallest sum decides.

    Parameters
    ----------
    bank
        An `EncoderBank` of `LowRankSparse` models, D0 in the place of the low-rank dictionary.
    speakers
        The names of the speakers, in the order of the bank.
    features : Features, optional
        The transform and the compression of magnitudes.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tone = np.sin(2 * np.pi * np.arange(4000) / 8000 * np.array([[300.0], [900.0]]))
    >>> speech = {"low": [tone[0]], "high": [tone[1]]}
    >>> speakers = NoisySpeakers.learn(speech, [rng.standard_normal(4000)], atoms=3)
    >>> speakers.identify(tone[1] + 0.1 * rng.standard_normal(4000)).speaker
    'high'
    """

    def __init__(
        self,
        bank: EncoderBank | None,
        speakers: Sequence[str],
        features: Features = FEATURES,
        *,
        _saved: files.Saved | None = None,
    ) -> None:
        self.speakers, self.features = tuple(speakers), features
        self.info: dict[str, Any] = {} if _saved is None else _saved.info
        self._bank, self._saved = bank, _saved
        if len(set(self.speakers)) < len(self.speakers):
            raise ValueError(f"speakers must have different names, got {', '.join(self.speakers)}")
        if bank is not None and len(bank) != len(self.speakers):
            raise ValueError(
                f"the bank has {len(bank)} encoders, but there are {len(self.speakers)} names; "
                "give one name for each encoder"
            )

    @classmethod
    def learn(
        cls,
        speech: Mapping[str, Sequence[Array]],
        noise: Sequence[Array],
        *,
        atoms: int = 50,
        lam_star: float = 0.3,
        layers: int = 10,
        step: str = "model",
        seed: int = 0,
    ) -> NoisySpeakers:
        """Learn the dictionaries by non-negative matrix factorisation; encoders are untrained.

        Parameters
        ----------
        speech
            Clean waves of every speaker, at 8 kHz.
        noise
            Waves of noise, at 8 kHz.
        atoms
            The number of atoms of each dictionary.
        lam_star
            The weight of the squares of the codes.
        layers, step
            The depth of the encoders, and what their layers learn besides the dictionaries; see
            `ProximalEncoder`.
        seed
            The seed of the factorisations.
        """
        from .noisy_training import learn

        return learn(speech, noise, atoms, lam_star, layers, step, seed)

    def fit(
        self,
        speech: Mapping[str, Sequence[Array]],
        noise: Sequence[Array],
        *,
        regime: str = "discriminative",
        steps: int | None = None,
        seed: int = 0,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> History:
        """Train encoders and dictionaries on random mixtures of speech and noise.

        Parameters
        ----------
        speech, noise
            As for `learn`.
        regime : {"supervised", "discriminative"}
            "supervised": each encoder learns to separate the speech of its speaker from noise.
            "discriminative": the pooled error of the right speaker is to be the smallest; it is
            best to train with "supervised" before.
        steps, seed, callback, checkpoint
            As for `pursuit.fit`; `steps` has a default for each regime.
        **options
            Arguments of `pursuit.audio.noisy_training.NoisySpeech`, such as ``snr=(-5.0, 5.0)``.
        """
        from .noisy_training import train

        history = train(self, speech, noise, regime, steps, seed, callback, checkpoint, **options)
        self.__dict__.pop("compiled", None)
        return history

    @property
    def bank(self) -> EncoderBank:
        """The encoders as torch modules; those of a file are built when they are needed."""
        if self._bank is None:
            assert self._saved is not None
            from ..persistence import build

            inner = {**self._saved.info["bank"], "kind": "bank"}
            arrays = below(self._saved.arrays, "bank.")
            self._bank = build(files.Saved(self._saved.path, arrays, inner))
        return self._bank

    @cached_property
    def compiled(self) -> CompiledBank:
        """The encoders without torch, on one thread."""
        return CompiledBank([Compiled(program, threads=1) for program in self._programs()])

    def _programs(self) -> list[Program]:
        if self._bank is not None:
            return self._bank.programs()
        assert self._saved is not None
        members = entry(self._saved.info.get("bank"), "encoders", list[dict[str, Any]])
        arrays = below(self._saved.arrays, "bank.program.")
        found = [from_arrays(below(arrays, f"{n}."), member) for n, member in enumerate(members)]
        programs = [program for program in found if isinstance(program, Program)]
        if len(programs) != len(self.speakers):
            raise ValueError(f"encoders must be one for each of {len(self.speakers)} speakers")
        for program in programs:
            if program.features != self.features.width:
                raise ValueError(
                    f"features must have the width {program.features} of the encoders, "
                    f"got {self.features.width}"
                )
        return programs

    def errors(self, wave: Any) -> Array:
        """Return the error of each speaker in each frame of a wave, shape (frames, speakers).

        ``||x - s D0 - o Dj||^2``, where x has unit mean square over the whole wave.
        """
        _, x = observed(wave, self.features)
        with one_blas_thread():
            return self.compiled.errors(x)

    def identify(self, wave: Any) -> Heard:
        """Return who speaks in a wave at 8 kHz, by the errors summed over all of its frames."""
        return self.decided(self.errors(wave))

    def decided(self, errors: Array) -> Heard:
        """Return the decision for given errors (frames, speakers)."""
        sums = errors.sum(0, dtype=np.float64)
        named = dict(zip(self.speakers, sums.tolist(), strict=True))
        return Heard(self.speakers[int(sums.argmin())], named)

    def denoise(self, wave: Any, speaker: str | None = None) -> Denoised:
        """Return speech and noise of a wave at 8 kHz, as explained by the encoder of one speaker.

        Parameters
        ----------
        wave : array of shape (samples,)
            Speech in noise.
        speaker : str or None
            Whose speech it is; by default the one that is recognised.
        """
        samples = as_wave(wave, "wave")
        spectra, x = observed(samples, self.features)
        with one_blas_thread():
            if speaker is None:
                speaker = self.decided(self.compiled.errors(x)).speaker
            if speaker not in self.speakers:
                known = ", ".join(self.speakers)
                raise ValueError(f"there is no speaker {speaker!r}; there are {known}")
            coder = self.compiled[self.speakers.index(speaker)]
            assert isinstance(coder, Compiled)
            codes, atoms = coder(x), coder.program.dictionary
        return denoised(samples, spectra, codes, atoms, self.noise_atoms, self.features)

    @property
    def noise_atoms(self) -> int:
        """The number of atoms of the dictionary of the noise, which come first."""
        if self._bank is not None:
            return len(self._bank[0].model.dictionaries["low_rank"])
        assert self._saved is not None
        return int(self._saved.info["noise_atoms"])

    def save(
        self,
        path: str | os.PathLike[str],
        provenance: str | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        """Write everything to one file; see `pursuit.save` for the arguments."""
        from ..persistence import contents

        inner, arrays = contents(self.bank)
        info = {
            "kind": "noisy speakers",
            "speakers": list(self.speakers),
            "noise_atoms": self.noise_atoms,
            "features": self.features.config,
            "bank": inner,
            "provenance": provenance,
            "training": None if training is None else dict(training),
        }
        files.write(path, {f"bank.{name}": array for name, array in arrays.items()}, info)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NoisySpeakers:
        """Read speakers that `save` has written, without torch."""
        saved = files.open_saved(path)
        if saved.info.get("kind") != "noisy speakers":
            kind = shown(saved.info.get("kind"))
            raise ValueError(f"{path} holds {kind}, not speakers in noise; train them with fit")
        with naming(path):
            features = Features(**arguments(entry(saved.info, "features", dict), Features))
            entry(saved.info, "noise_atoms", int, least=0)
            speakers = entry(saved.info, "speakers", list[str])
            found = cls(None, speakers, features, _saved=saved)
            _ = found.compiled
        return found


def as_wave(wave: Any, name: str) -> Array:
    """Return a wave as float32, shape (samples,), or raise a ValueError."""
    samples = np.asarray(wave, np.float32)
    if samples.ndim != 1 or len(samples) == 0:
        raise ValueError(
            f"{name} must have the shape (samples,) with one sample or more, got {samples.shape}; "
            "take the mean of the channels"
        )
    if not np.isfinite(samples).all():
        raise ValueError(f"{name} contains NaN or infinite values; check the recording")
    if not samples.any():
        raise ValueError(f"{name} is silent; give a wave with a sound")
    return samples


def observed(wave: Any, features: Features = FEATURES) -> tuple[Array, Array]:
    """Return the spectra X of a wave and its features x, both of shape (frames, bins).

    ``x = A / sqrt(mean A^2)`` with ``A = |X|^power`` and the mean over all frames and bins, which
    makes features independent of the volume.
    """
    stream = features.stft.analysis_stream()
    spectra = np.concatenate([stream.push(as_wave(wave, "wave")), stream.flush()])
    seen = features.stream().push(spectra)
    level = np.sqrt(np.square(seen, dtype=np.float64).mean())
    return spectra, (seen / level).astype(np.float32)


def mixed(speech: Array, noise: Array, snr: float) -> tuple[Array, Array]:
    """Return speech and noise scaled such that their energies have a ratio; the sum is the mixture.

    The speech has unit mean square, the noise ``10^(-snr / 10)``.

    Parameters
    ----------
    speech, noise
        Waves of the same length.
    snr
        The signal-to-noise ratio in decibels.
    """
    if speech.shape != noise.shape:
        raise ValueError(
            f"speech and noise must have the same length, got {len(speech)} and {len(noise)}"
        )
    voice, rest = as_wave(speech, "speech"), as_wave(noise, "noise")
    sizes = [float(np.sqrt(np.square(w, dtype=np.float64).mean())) for w in (voice, rest)]
    return voice / np.float32(sizes[0]), rest * np.float32(10 ** (-snr / 20) / sizes[1])


def stretch(noise: Array, samples: int, rng: np.random.Generator) -> Array:
    """Return a random stretch of a noise; a noise that is too short is repeated."""
    if len(noise) >= samples:
        begin = int(rng.integers(len(noise) - samples + 1))
        return noise[begin : begin + samples]
    begin = int(rng.integers(len(noise)))
    return np.take(noise, np.arange(begin, begin + samples), mode="wrap")


def denoised(
    wave: Array, spectra: Array, codes: Array, atoms: Array, noise_atoms: int, features: Features
) -> Denoised:
    """Return speech and noise of a wave, given the codes of its frames.

    The speech is the spectrum of the wave times the mask ``v^r / (v^r + n^r)`` with the parts
    ``v = o Dj`` and ``n = s D0`` of the features, and ``r = 2 / power``, which makes it the Wiener
    filter of the powers; the noise is the rest.

    Parameters
    ----------
    wave, spectra
        The wave (samples,) and its spectra (frames, bins).
    codes, atoms
        The codes (frames, q) and the atoms (q, bins), of which the first `noise_atoms` are D0.
    noise_atoms, features
        The number of atoms of noise, and the transform.
    """
    noise = np.maximum(codes[:, :noise_atoms] @ atoms[:noise_atoms], 0) + FLOOR
    voice = np.maximum(codes[:, noise_atoms:] @ atoms[noise_atoms:], 0) + FLOOR
    # the same as v^r / (v^r + n^r), without overflow
    exponent = 2 / features.power * (np.log(noise) - np.log(voice))
    mask = 1 / (1 + np.exp(np.minimum(exponent, 80.0)))
    stream = features.stft.synthesis_stream()
    speech = stream.flush((spectra * mask).astype(np.complex64), len(wave))
    return Denoised(speech, wave - speech)
