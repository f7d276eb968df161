"""How well a mixture was separated: signal-to-distortion ratios and their improvements.

Two conventions are in use, and their figures differ by decibels. So the convention is an argument
of every function and a field of every result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._words import require_choice

if TYPE_CHECKING:
    from torch import Tensor

#: what the reference may be changed by before it is compared with the estimate
CONVENTIONS = ("512 taps", "scale-invariant")

#: decibels; beyond them the float64 arithmetic does not tell a better estimate from a worse one
LIMIT = 120.0

Waves = Any  #: a tensor or an array of shape (..., samples)


class Sources(NamedTuple):
    """The waves of both sources, each of shape (samples,)."""

    voice: Waves
    music: Waves


class Improvement(NamedTuple):
    """How much closer to the sources the estimates are than the mixture, in decibels."""

    voice: float
    music: float
    #: the length of the clip, or of all clips of a mean
    samples: int
    convention: str

    def __str__(self) -> str:
        return f"voice {self.voice:.2f} dB, music {self.music:.2f} dB (SDR, {self.convention})"


def sdr(estimate: Waves, reference: Waves, convention: str = "512 taps") -> Any:
    """Return the signal-to-distortion ratio of estimates, in decibels.

    ::

        SDR = 10 log10(||t||^2 / ||estimate - t||^2)

    where t is the projection of the estimate onto the reference and

    - its delays by 1 to 511 samples, with the convention "512 taps". This is the SDR of BSS-EVAL
      version 3, as in ``mir_eval.separation.bss_eval_sources``: any filter of 512 taps is
      forgiven;
    - nothing else, with "scale-invariant" (SI-SDR): only the scale is forgiven. The mean is not
      subtracted.

    Parameters
    ----------
    estimate, reference : Tensor or ndarray of shape (..., samples)
        Computed in float64 whatever their dtype.
    convention : {"512 taps", "scale-invariant"}, default="512 taps"
        What t is.

    Returns
    -------
    ndarray of shape (...)
        NaN where the reference is silent (all samples are zero), since the ratio is not defined.
        Values are limited to 120 dB in both directions: an exact estimate has 120 dB, and a silent
        estimate -120 dB.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> voice, noise = rng.standard_normal((2, 16000))
    >>> print(sdr(voice + 0.1 * noise, voice, "scale-invariant").round(1))
    20.0
    """
    require_choice(convention, CONVENTIONS, "convention")
    import torch

    estimate, reference = _as_waves(estimate, "estimate"), _as_waves(reference, "reference")
    if estimate.shape != reference.shape:
        raise ValueError(
            f"estimate and reference must have the same shape, got {tuple(estimate.shape)} and "
            f"{tuple(reference.shape)}; cut or pad the estimate to the length of the reference"
        )
    silent = (reference == 0).all(-1)
    lost = (estimate == 0).all(-1)
    ratio = torch.full(silent.shape, -LIMIT, dtype=torch.float64)
    audible = ~(silent | lost)
    if audible.any():
        measure = _filtered if convention == "512 taps" else _scaled
        found = measure(_normalised(estimate[audible]), _normalised(reference[audible]))
        ratio[audible] = found.clamp(-LIMIT, LIMIT)
    ratio[silent] = torch.nan
    return ratio.numpy()[()]


def improvement(
    estimate: Sources, reference: Sources, mixture: Waves, convention: str = "512 taps"
) -> Improvement:
    """Return the improvement over the mixture (normalised SDR, NSDR) of both sources of a clip.

    ::

        NSDR = SDR(estimate, reference) - SDR(mixture, reference)

    Parameters
    ----------
    estimate, reference : Sources
        The separated and the true voice and music, waves of shape (samples,).
    mixture : Tensor or ndarray of shape (samples,)
        What was separated.
    convention : {"512 taps", "scale-invariant"}, default="512 taps"
        See `sdr`, which also says what is returned for silent waves.
    """
    true = np.stack([_as_clip(wave, "reference") for wave in reference])
    found = np.stack([_as_clip(wave, "estimate") for wave in estimate])
    mixed = np.broadcast_to(_as_clip(mixture, "mixture"), true.shape)
    voice, music = sdr(found, true, convention) - sdr(mixed, true, convention)
    return Improvement(float(voice), float(music), true.shape[-1], convention)


def mean_improvement(clips: Sequence[Improvement]) -> Improvement:
    """Return the mean over clips, weighted by their lengths (global NSDR, GNSDR).

    ::

        GNSDR = sum_i n_i NSDR_i / sum_i n_i

    Examples
    --------
    >>> clips = [Improvement(6.0, 7.0, 100, "512 taps"), Improvement(9.0, 7.0, 200, "512 taps")]
    >>> print(mean_improvement(clips))
    voice 8.00 dB, music 7.00 dB (SDR, 512 taps)
    """
    conventions = sorted({clip.convention for clip in clips})
    if len(conventions) != 1:
        raise ValueError(
            "clips must be one or more improvements of a single convention, got "
            + (" and ".join(map(repr, conventions)) or "none")
        )
    ratios = np.array([(clip.voice, clip.music) for clip in clips])
    undefined = np.flatnonzero(np.isnan(ratios).any(1))
    if len(undefined):
        raise ValueError(
            f"the improvement of clip {undefined[0]} is NaN ({len(undefined)} of {len(clips)} "
            "clips): its voice or its music is silent; leave such clips out"
        )
    samples = np.array([clip.samples for clip in clips])
    voice, music = samples @ ratios / samples.sum()
    return Improvement(float(voice), float(music), int(samples.sum()), conventions[0])


def _filtered(estimate: Tensor, reference: Tensor) -> Tensor:
    import torch
    from torch.nn.functional import pad
    from torchmetrics.functional.audio import signal_distortion_ratio

    taps = 512
    # torchmetrics correlates circularly, with too short a period for clips shorter than the filter
    missing = max(taps - estimate.shape[-1], 0)
    estimate, reference = pad(estimate, (0, missing)), pad(reference, (0, missing))
    ratio: Tensor = signal_distortion_ratio(estimate, reference, filter_length=taps)
    unclear = ratio.isnan()
    if not unclear.any():
        return ratio
    # The coherence is between 0 and 1 apart from rounding, which makes the ratio NaN. With a
    # loaded diagonal it is strictly inside, and tells which of the two ends it was.
    loaded: Tensor = signal_distortion_ratio(
        estimate, reference, filter_length=taps, load_diag=1e-10
    )
    return torch.where(unclear, LIMIT * loaded.sign(), ratio)


def _scaled(estimate: Tensor, reference: Tensor) -> Tensor:
    from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio

    ratio: Tensor = scale_invariant_signal_distortion_ratio(estimate, reference)
    return ratio


def _normalised(waves: Tensor) -> Tensor:
    """Return waves of unit norm: torchmetrics adds constants that count for quiet ones."""
    waves = waves / waves.abs().amax(-1, keepdim=True)
    return waves / waves.square().sum(-1, keepdim=True).sqrt()


def _as_waves(values: Waves, name: str) -> Tensor:
    import torch

    if not isinstance(values, torch.Tensor):
        values = torch.from_numpy(np.array(values, dtype=np.float64))
    waves: Tensor = values.detach().to("cpu", torch.float64)
    if waves.ndim == 0 or waves.shape[-1] == 0:
        raise ValueError(
            f"{name} must have the shape (..., samples) with one sample or more, "
            f"got {tuple(waves.shape)}"
        )
    if not waves.isfinite().all():
        raise ValueError(f"{name} contains NaN or infinite values; check what produced it")
    return waves


def _as_clip(values: Waves, name: str) -> np.ndarray[Any, Any]:
    wave = _as_waves(values, name)
    if wave.ndim != 1:
        raise ValueError(
            f"{name} must have the shape (samples,), got {tuple(wave.shape)}; "
            "measure each channel, or their mean"
        )
    return wave.numpy()
