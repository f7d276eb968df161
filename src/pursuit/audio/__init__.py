"""Sounds: separating them, recognising speakers; spectra, sample rates, streams and metrics.

The public names are resolved when they are first used: streams run without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .features import Features
    from .metrics import Improvement, Sources, improvement, mean_improvement, sdr
    from .mixtures import Mixtures, Pair
    from .noisy_speakers import Denoised, Heard, NoisySpeakers
    from .resampling import Bands, BandSplit, Resampler
    from .separation import Separated, Separator, SeparatorStream
    from .speaker_recipe import Recipe
    from .speakers import Identification, Speakers, SpeakerStream, Timeline
    from .spectrogram import STFT, Analysis, Synthesis

#: the modules that public names come from
_NAMES_OF = {
    ".features": "Features",
    ".metrics": "Improvement Sources improvement mean_improvement sdr",
    ".mixtures": "Mixtures Pair",
    ".noisy_speakers": "Denoised Heard NoisySpeakers",
    ".resampling": "BandSplit Bands Resampler",
    ".separation": "Separated Separator SeparatorStream",
    ".speaker_recipe": "Recipe",
    ".speakers": "Identification SpeakerStream Speakers Timeline",
    ".spectrogram": "Analysis STFT Synthesis",
}
_NAMES = {name: module for module, names in _NAMES_OF.items() for name in names.split()}

__all__ = ["STFT", "Analysis", "BandSplit", "Bands", "Denoised", "Features", "Heard"]
__all__ += ["Identification", "Improvement", "Mixtures", "NoisySpeakers", "Pair", "Recipe"]
__all__ += ["Resampler", "Separated", "Separator", "SeparatorStream", "Sources", "SpeakerStream"]
__all__ += ["Speakers", "Synthesis", "Timeline", "improvement", "mean_improvement", "sdr"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
