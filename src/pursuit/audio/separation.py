"""Separators: a voice and its accompaniment, from a recording or live.

A separator is an encoder between a transform and its inverse. Its codes say how much of each band
of a frame is voice; that is a mask of the spectrum. Everything here runs without torch.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import files
from .._threads import one_blas_thread
from .._words import require_choice
from ..fields import arguments, entry, naming, real, shown
from ..files import below
from ..runtime.checks import require
from ..runtime.compiled import Compiled
from ..runtime.convolution import CompiledConvolution, ConvolutionProgram
from ..runtime.program import Program, from_arrays
from .features import Features
from .resampling import BandSplit
from .streams import Array, SampleStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..encoders.encoder import Encoder
    from ..progress import Callback
    from ..training_loop import History
    from .mixtures import Pair

#: added to both parts before they are compared: where both are small, the mask is neither 0 nor 1
FLOOR = 1e-3
#: the models that come with the package
PRETRAINED = {"normal": "voice.safetensors", "low": "voice_low_latency.safetensors"}
#: the training steps of these models
STEPS = 3000
#: samples that `separate` takes at a time, at the rate of the recording
BLOCK = 2**16


class Separated(NamedTuple):
    """The parts of a signal, at its sample rate; their sum is the signal."""

    voice: Array
    accompaniment: Array


class Separator:
    """A separator of voice and accompaniment around an encoder.

    The encoder explains features of the mixture, `Features`, by two parts, those of the
    accompaniment, l (``"low_rank"``), and of the voice, o (``"sparse"``). In each band::

        mask = 1 / (1 + exp(-(exponent (log(o + 1e-3) - log(l + 1e-3)) + bias)))

    With the exponent 2, magnitudes to the power 0.5 and no bias this is the ratio mask
    ``|V| / (|V| + |M|)``. The voice is the masked spectrum of the mixture, with its phase, and the
    accompaniment is what remains of the mixture. Channels are separated independently.

    Parameters
    ----------
    encoder
        An encoder of a model with these two parts: `RobustNMF`, `LowRankSparse`, or
        `ConvolutionalLowRankSparse` with a causal `ConvolutionalEncoder`.
    features : Features
        What the encoder sees of a frame.
    exponent, bias
        The mask; by default ``1 / power`` and zeros. `fit` learns them with the regime "masked".

    Examples
    --------
    >>> from pursuit.audio import Separator
    >>> separator = Separator.pretrained()
    >>> mixture = np.random.default_rng(0).standard_normal((44100, 2)).astype(np.float32)
    >>> voice, accompaniment = separator.separate(mixture, rate=44100)
    >>> bool(np.allclose(voice + accompaniment, mixture, atol=1e-5))
    True
    """

    def __init__(
        self,
        encoder: Encoder | None,
        features: Features,
        exponent: float | None = None,
        bias: Any = None,
        *,
        _saved: files.Saved | None = None,
    ) -> None:
        self.features = features
        self.exponent = 1 / features.power if exponent is None else float(exponent)
        zeros = np.zeros(features.count, np.float32)
        self.bias: Array = zeros if bias is None else np.asarray(bias, np.float32)
        if self.bias.shape != zeros.shape:
            raise ValueError(f"bias must have shape {zeros.shape}, got {self.bias.shape}")
        self.info: dict[str, Any] = {} if _saved is None else _saved.info
        self._saved = _saved
        self._encoder = encoder
        self._coder: _Coder | None = None
        if _saved is None:
            _check(encoder, features)

    @classmethod
    def convolutional(cls, latency: str = "normal", seed: int = 0) -> Separator:
        """Return an untrained separator of the architecture of the models in the package.

        Parameters
        ----------
        latency : {"normal", "low"}
            "normal" has windows of 128 milliseconds, "low" of 20.
        seed : int, default=0
            The seed of the random start.
        """
        require_choice(latency, tuple(PRETRAINED), "latency")
        from .networks import convolutional

        return convolutional(latency, seed)

    @classmethod
    def pretrained(cls, latency: str = "normal") -> Separator:
        """Return a model that comes with the package, trained on Chinese karaoke (MIR-1K).

        Parameters
        ----------
        latency : {"normal", "low"}
            "normal" is the better one; "low" has windows of 20 milliseconds, for live use.
        """
        require_choice(latency, tuple(PRETRAINED), "latency")
        folder = resources.files("pursuit.audio") / "pretrained"
        with resources.as_file(folder / PRETRAINED[latency]) as path:
            return cls.load(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Separator:
        """Read a separator that `save` has written, without torch."""
        saved = files.open_saved(path)
        if saved.info.get("kind") != "separator":
            kind = saved.info.get("kind")
            raise ValueError(f"{path} holds {shown(kind)}, not a separator; train one with fit")
        with naming(path):
            features = Features(**arguments(entry(saved.info, "features", dict), Features))
            bias = require(
                saved.arrays.get("mask.bias"), "mask.bias", np.float32, (features.count,)
            )
            exponent = real(saved.info, "exponent")
            separator = cls(None, features, exponent, bias, _saved=saved)
            separator._coder = separator._make_coder()
            if separator._coder.width != features.width:
                raise ValueError(
                    f"features must have the width {separator._coder.width} of the encoder, "
                    f"got {features.width}"
                )
        return separator

    @property
    def rate(self) -> int:
        """Samples per second of the model; other rates are resampled."""
        return self.features.rate

    @property
    def encoder(self) -> Encoder:
        """The encoder as a torch module; a separator from a file builds it when it is needed."""
        if self._encoder is None:
            assert self._saved is not None
            from ..persistence import build_encoder

            tensors = below(self._saved.arrays, "encoder.")
            self._encoder = build_encoder(self._saved.info["encoder"], tensors)
        return self._encoder

    @property
    def parameter_count(self) -> int:
        """The number of learned numbers, the dictionary and the mask included."""
        learned = sum(p.numel() for p in self.encoder.parameters())
        return learned + 1 + len(self.bias)

    def separate(self, wave: Any, rate: int, callback: Callback | None = None) -> Separated:
        """Return voice and accompaniment of a recording.

        Parameters
        ----------
        wave : array of shape (samples,) or (samples, channels)
            Floating-point samples.
        rate : int
            Samples per second, from 1 000 on.
        callback : callable or None
            Called with a `Progress` of stage "separating" after each block.
        """
        from ..progress import Progress

        samples = np.asarray(wave)
        channels = samples.shape[1] if samples.ndim == 2 else None
        stream = self.stream(rate, channels)
        parts = []
        for start in range(0, max(len(samples), 1), BLOCK):
            parts.append(stream.push(samples[start : start + BLOCK]))
            if callback is not None:
                done = min(start + BLOCK, len(samples))
                callback(Progress("separating", done, len(samples)))
        parts.append(stream.flush())
        voice, accompaniment = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Separated(voice, accompaniment)

    def stream(
        self, rate: int | None = None, channels: int | None = None, quality: str = "HQ"
    ) -> SeparatorStream:
        """Return a stream that separates samples as they arrive.

        Parameters
        ----------
        rate : int or None
            Samples per second; by default the rate of the model.
        channels : int or None
            The number of channels; None for blocks of one dimension.
        quality : {"LQ", "MQ", "HQ", "VHQ"}, default="HQ"
            The quality of the resampling; a lower one has a lower latency.
        """
        return SeparatorStream(self, self.rate if rate is None else rate, channels, quality)

    def fit(
        self,
        pairs: Sequence[Pair],
        *,
        regime: str = "masked",
        steps: int = STEPS,
        seed: int = 0,
        callback: Callback | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> History:
        """Train encoder and mask on recordings in two parts.

        Parameters
        ----------
        pairs : list of Pair
            Accompaniments and voices at the rate of the model.
        regime : {"masked", "supervised", "unsupervised"}
            "masked" minimises the negative signal-to-distortion ratio of the masked spectra, which
            is what counts in the end. The others are the paper's: the distance of both parts to
            the true ones, and the objective of the model on the mixtures.
        steps, seed, callback, checkpoint
            As for `pursuit.fit`.
        **options
            Arguments of `pursuit.audio.mixtures.Mixtures`, such as ``segments=8``, and ``rate``,
            a factor of the learning rates.
        """
        from .networks import train

        history = train(self, pairs, regime, steps, seed, callback, checkpoint, **options)
        self._coder = None
        return history

    def save(
        self,
        path: str | os.PathLike[str],
        provenance: str | None = None,
        training: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the separator to one file; see `pursuit.save` for the arguments."""
        encoder = self.encoder
        program = encoder.program()
        info = {
            "kind": "separator",
            "encoder": encoder.description,
            "program": program.info["program"],
            "parts": _part_sizes(encoder),
            "features": self.features.config,
            "exponent": self.exponent,
            "provenance": provenance,
            "training": None if training is None else dict(training),
        }
        tensors = encoder.state_dict()
        arrays = {f"encoder.{name}": t.detach().cpu().numpy() for name, t in tensors.items()}
        arrays |= {f"program.{name}": array for name, array in program.arrays().items()}
        files.write(Path(path), {**arrays, "mask.bias": self.bias}, info)

    @property
    def coder(self) -> _Coder:
        """The encoder and the decoder of its two parts, without torch."""
        if self._coder is None:
            self._coder = self._make_coder()
        return self._coder

    def _make_coder(self) -> _Coder:
        if self._encoder is not None:
            return _Coder(self._encoder.program(), _part_sizes(self._encoder))
        assert self._saved is not None
        saved = self._saved.info
        info = {**entry(saved, "encoder", dict), "program": entry(saved, "program", dict)}
        program = from_arrays(below(self._saved.arrays, "program."), info)
        return _Coder(program, entry(saved, "parts", tuple[int, int], least=1))

    def mask(self, low_rank: Array, sparse: Array) -> Array:
        """Return the mask of the bins, shape (..., bins), from both parts, (..., width)."""
        first, count = self.features.margin, self.features.count
        low, voice = (part[..., first : first + count] + FLOOR for part in (low_rank, sparse))
        score = np.log(np.maximum(voice, FLOOR)) - np.log(np.maximum(low, FLOOR))
        score *= np.float32(-self.exponent)
        score -= self.bias
        mask: Array = 1 / (1 + np.exp(score))
        if self.features.bands is None:
            return mask
        spread: Array = mask @ self.features.spread
        return spread


class SeparatorStream(SampleStream):
    """Separates samples as they arrive; see `Separator.stream`.

    What `push` and `flush` return, joined, is the result of `Separator.separate` to rounding, for
    any division into blocks.
    """

    def __init__(self, separator: Separator, rate: int, channels: int | None, quality: str) -> None:
        super().__init__(channels)
        if rate < 1000:
            raise ValueError(f"rate must be at least 1000 samples per second, got {rate}")
        voice = _VoiceStream(separator, channels)
        self._split = BandSplit(rate, separator.rate, channels, voice, quality)
        self.rate = rate

    @property
    def latency(self) -> int:
        """Samples, at the rate of the stream, by which the result is late; resampling included."""
        return self._split.latency

    def push(self, samples: Array) -> Separated:
        """Take the next samples and return those of both parts that are ready."""
        first = self.samples
        block = self._take(samples)
        # a finite sum proves in one pass that all entries are finite
        if not (np.isfinite(block.sum(dtype=np.float64)) or np.isfinite(block).all()):
            bad = np.flatnonzero(~np.isfinite(block.reshape(len(block), -1)).all(1))[0]
            raise ValueError(f"sample {first + bad} is NaN or infinite; check the recording")
        return Separated(*self._split.push(block))

    def flush(self) -> Separated:
        """End the signal and return the remaining samples of both parts."""
        self._end()
        return Separated(*self._split.flush())


class _VoiceStream(SampleStream):
    """The voice in a stream at the rate of the model; a `SampleProcess`."""

    def __init__(self, separator: Separator, channels: int | None) -> None:
        super().__init__(channels)
        self._separator = separator
        stft = separator.features.stft
        self._analysis, self._synthesis = (
            stft.analysis_stream(channels),
            stft.synthesis_stream(channels),
        )
        self._features = separator.features.stream()
        self._coder = separator.coder.stream(channels or 1)
        # what is computed once is computed now, not when the first frame arrives
        separator.mask(
            *separator.coder.stream(1)(np.zeros((1, 1, separator.features.width), np.float32))
        )

    @property
    def latency(self) -> int:
        return self._separator.features.stft.latency

    def push(self, samples: Array) -> Array:
        return self._synthesis.push(self._masked(self._analysis.push(self._take(samples))))

    def flush(self) -> Array:
        self._end()
        last = self._masked(self._analysis.flush())
        return self._synthesis.flush(last, self.samples)

    def _masked(self, spectra: Array) -> Array:
        if len(spectra) == 0:
            return spectra
        rows = spectra.reshape(len(spectra), -1, spectra.shape[-1])
        with one_blas_thread():  # products are too small for more
            mask = self._separator.mask(*self._coder(self._features.push(rows)))
        return (rows * mask).reshape(spectra.shape)


class _Coder:
    """An encoder's program, and the matrices that decode its two parts."""

    def __init__(self, program: Program | ConvolutionProgram, sizes: Sequence[int]) -> None:
        first = int(sizes[0])
        self.compiled: Compiled | CompiledConvolution
        self.matrices: tuple[Array, Array | None]
        if isinstance(program, ConvolutionProgram):
            self.compiled = CompiledConvolution(program, threads=1)
            self.width = program.channels * program.shape[1]
            frame = CompiledConvolution(replace(program, shape=(1, program.shape[1]), info={}))
            first *= program.positions[1]
            atoms = frame.decode(np.eye(frame.size, dtype=np.float32))
            self.matrices = atoms[:first], atoms[first:]
        else:
            self.compiled = Compiled(program, threads=1)
            self.width = program.features
            atoms = program.dictionary
            self.matrices = atoms[:first], None if len(atoms) < program.size else atoms[first:]
        self.first = first

    def stream(self, signals: int) -> Callable[[Array], tuple[Array, Array]]:
        """Return a function from the next frames (n, signals, width) to the features of parts."""
        encode = self._rows
        if isinstance(self.compiled, CompiledConvolution):
            encode = self.compiled.stream(signals).push
        low_rank, sparse = self.matrices

        def parts(frames: Array) -> tuple[Array, Array]:
            codes = encode(frames)
            scores, outliers = codes[..., : self.first], codes[..., self.first :]
            return scores @ low_rank, outliers if sparse is None else outliers @ sparse

        return parts

    def _rows(self, frames: Array) -> Array:
        codes: Array = self.compiled(frames.reshape(-1, frames.shape[-1]))
        return codes.reshape(*frames.shape[:-1], -1)


def _part_sizes(encoder: Encoder) -> list[int]:
    """The numbers of atoms of both parts; for an identity block the number of features."""
    operator = encoder.model.operator
    return list(getattr(operator, "parts", operator.block_sizes))


def _check(encoder: object, features: Features) -> None:
    from ..encoders.convolutional import ConvolutionalEncoder
    from ..encoders.encoder import Encoder

    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder must be an encoder, got {type(encoder).__name__}")
    model = encoder.model
    if tuple(model.part_names) != ("low_rank", "sparse"):
        raise TypeError(
            f"a separator needs a model with two parts, such as RobustNMF, LowRankSparse or "
            f"ConvolutionalLowRankSparse, got {type(model).__name__}"
        )
    width = model.features
    if isinstance(encoder, ConvolutionalEncoder):
        if not encoder.causal:
            raise ValueError("a separator needs a causal encoder; set causal=True")
        width = encoder.operator.shape[1]
    if width != features.width:
        raise ValueError(
            f"the encoder takes {width} features of a frame, but the features have {features.width}"
        )
