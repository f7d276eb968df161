"""A rival of the separators: a causal recurrent network that masks spectra, trained on remixes.

It has at most 100 000 parameters and learns from the clips, the augmentation and the loss that the
separator of the library learns from, so that the two differ in their architecture only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.signal
import torch
from torch import Tensor, nn

from ..audio.metrics import Sources
from ..audio.spectrogram import STFT
from ..batches import Batch, Source
from ..datasets.singing import RATE, Clip
from .singing_scores import Array, Example, read

#: the exponent of the magnitudes, and the factor per frame of their running level (1.6 seconds)
POWER, DECAY = 0.5, 0.99
#: bins that are bands by themselves; those above are averaged over groups of this size
SINGLE, GROUP = 128, 6
#: playback speeds, and the part of the examples whose voice and music come from different places
SPEEDS, REMIXED = (0.84, 0.89, 0.94, 1.0, 1.06, 1.12, 1.19), 0.9
#: examples of a batch, and frames of an example
EXAMPLES, FRAMES = 8, 128
#: steps of a rising learning rate, the highest rate, and the largest norm of a gradient
WARM_UP, RATE_OF_STEPS, CLIP = 50, 3e-3, 1.0


class MaskNetwork(nn.Module):
    """The mask of the voice from the magnitudes of a mixture: a GRU between two linear layers.

    ``x -> relu(W x) -> GRU -> sigmoid(V h)`` on 192 bands: the lowest 128 bins, and means of six
    bins above. A mask depends on its frame and those before it only.

    Parameters
    ----------
    bins : int, default=513
        The frequencies of a spectrum, at least 134.
    hidden : int, default=96
        The size of the hidden state; by default the network has 93 024 parameters.
    """

    averages: Tensor
    bands: Tensor

    def __init__(self, bins: int = 513, hidden: int = 96) -> None:
        super().__init__()
        groups = (bins - SINGLE) // GROUP
        if groups < 1:
            raise ValueError(f"bins must be at least {SINGLE + GROUP}, got {bins}")
        numbers = torch.arange(bins)
        bands = torch.where(numbers < SINGLE, numbers, SINGLE + (numbers - SINGLE) // GROUP)
        bands = bands.clamp(max=SINGLE + groups - 1)  # the last band has the remaining bins
        members = nn.functional.one_hot(bands).T.float()
        self.register_buffer("bands", bands, persistent=False)
        self.register_buffer("averages", members / members.sum(1, keepdim=True), persistent=False)
        self.inside = nn.Linear(len(members), hidden)
        self.recurrent = nn.GRU(hidden, hidden, batch_first=True)
        self.outside = nn.Linear(hidden, len(members))

    def forward(self, magnitudes: Tensor) -> Tensor:
        """Return the masks of magnitudes, both of shape (clips, frames, bins)."""
        x = levelled(magnitudes**POWER) @ self.averages.T
        hidden, _ = self.recurrent(self.inside(x).relu())
        mask: Tensor = self.outside(hidden).sigmoid()[..., self.bands]
        return mask


def levelled(x: Tensor) -> Tensor:
    """Divide frames (..., frames, bins) by the root of the running mean of their energy.

    The weights of the running mean fall by the factor 0.99 per frame into the past, so the result
    does not depend on the gain, and a frame not on later ones.
    """
    energy = x.detach().double().square().mean(dim=-1)
    decay = ([1.0], [1.0, -DECAY])
    total = scipy.signal.lfilter(*decay, energy.numpy(), axis=-1)
    weight = scipy.signal.lfilter(*decay, np.ones(energy.shape[-1]))
    level = torch.from_numpy(total / weight).to(x.dtype)
    return x / level.sqrt().clamp_min(1e-6)[..., None]


def distortion(mask: Tensor, mixture: Tensor, voice: Tensor) -> Tensor:
    """The mean negative SDR of masked spectra ``m X`` over voice and music, in decibels.

    ``10 log10 sum |m X - V|^2 - 5 log10 (sum |V|^2 sum |X - V|^2)``, with sums over frames and
    bins: the music is the rest, so both estimates have the same error. Shapes are
    (clips, frames, bins); the result has the shape (clips,).
    """
    # |m X - V|^2 in real arithmetic, which takes half of the time
    power, cross = mixture.abs().square(), (mixture.conj() * voice).real
    energies = [part.abs().square().sum((-2, -1)) for part in (voice, mixture - voice)]
    error = (mask * (mask * power - 2 * cross)).sum((-2, -1)) + energies[0]
    floor = 1e-6 * (energies[0] + energies[1]) + 1e-12  # for silent voices, and rounding
    logs = [torch.log10(value + floor) for value in (error, *energies)]
    return 10 * logs[0] - 5 * (logs[1] + logs[2])


class Remixes(Source):
    """Random stretches of voice and music, most of them from different places.

    A batch has mixtures (examples, samples) as signals and the voices as targets. The singers of
    voice and music are drawn first, then their clips in proportion to the length, the offset and
    the playback speed.
    """

    def __init__(self, clips: Sequence[Clip], stft: STFT, seed: int = 0) -> None:
        self.samples, self.seed = FRAMES * stft.hop, seed
        longest = math.ceil(max(SPEEDS) * self.samples) + 1
        # short clips are continued by silence
        waves = [
            np.stack([np.pad(wave, (0, max(0, longest - len(wave)))) for wave in (voice, music)])
            for _, voice, music in map(read, clips)
        ]
        self.singers = [
            [wave.astype(np.float32) for wave, clip in zip(waves, clips, strict=True)
             if clip.singer == singer]
            for singer in sorted({clip.singer for clip in clips})
        ]  # fmt: skip

    def batch(self, step: int) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        voices, mixtures = [], []
        for _ in range(EXAMPLES):
            voice, music = self._stretch(rng)
            if rng.random() < REMIXED:
                music = self._stretch(rng)[1]
            voices.append(voice)
            mixtures.append(voice + music)
        mixed, alone = (torch.from_numpy(np.stack(waves)) for waves in (mixtures, voices))
        return Batch(mixed, {"voice": alone})

    def _stretch(self, rng: np.random.Generator) -> Array:
        """Voice and music of one place, shape (2, samples)."""
        import soxr

        waves = self.singers[rng.integers(len(self.singers))]
        lengths = np.array([wave.shape[1] for wave in waves], float)
        wave = waves[rng.choice(len(waves), p=lengths / lengths.sum())]
        speed = SPEEDS[rng.integers(len(SPEEDS))]
        count = math.ceil(speed * self.samples)
        begin = rng.integers(wave.shape[1] - count + 1)
        cut = wave[:, begin : begin + count]
        if speed != 1:
            cut = soxr.resample(cut.T, speed * RATE, RATE, "MQ").T
        missing = max(0, self.samples - cut.shape[1])
        return np.pad(cut, ((0, 0), (0, missing)))[:, : self.samples]


def train(network: MaskNetwork, source: Source, stft: STFT, steps: int) -> None:
    """Train a network, in place: Adam with a warm-up, cosine decay and gradient clipping."""
    optimiser = torch.optim.Adam(network.parameters())
    for step in range(steps):
        batch = source.batch(step)
        assert batch is not None
        assert isinstance(batch.targets, Mapping)
        mixture, voice = stft.analyse(batch.x), stft.analyse(batch.targets["voice"])
        loss = distortion(network(mixture.abs()), mixture, voice).mean()
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = RATE_OF_STEPS * min((step + 1) / WARM_UP, 1) * cosine
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimiser.step()


def trained(clips: Sequence[Clip], stft: STFT, steps: int, seed: int) -> MaskNetwork:
    """Train a network on remixes of some clips."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MaskNetwork(stft.bins)
    train(network, Remixes(clips, stft, seed), stft, steps)
    return network.eval()


def separate(network: MaskNetwork, stft: STFT, example: Example) -> dict[str, Sources]:
    """Voice and music of a mixture, by the mask of a network."""
    spectra = stft.analyse(example.mixture.float())
    with torch.no_grad():
        mask = network(spectra.abs()[None])[0]
    voice = stft.synthesise(mask * spectra, len(example.mixture))
    return {"masked": Sources(voice, example.mixture - voice)}
