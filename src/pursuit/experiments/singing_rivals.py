"""A rival of the separator: a causal recurrent network that masks spectra.

It has at most 100 000 parameters and the features, the clips, the augmentation and the loss of the
separator of the library, so that the two differ in their architecture only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..audio.features import Features
from ..audio.metrics import Sources
from ..audio.mixtures import Mixtures, Pair
from ..audio.networks import ARCHITECTURES, masked_distortion
from .singing_scores import Example

FEATURES: Features = ARCHITECTURES["normal"]["features"]
FRAMES: int = ARCHITECTURES["normal"]["frames"]
#: steps of a rising learning rate, the highest rate, and the largest norm of a gradient
WARM_UP, RATE, CLIP = 50, 3e-3, 1.0


class MaskNetwork(nn.Module):
    """The mask of the voice from the features of a mixture: a GRU between two linear layers.

    ``x -> relu(W x) -> GRU -> sigmoid(V h)``, in bands; a mask depends on its frame and those
    before it only.

    Parameters
    ----------
    features : Features
        What the network sees of a frame.
    hidden : int, default=96
        The size of the hidden state; by default the network has 89 357 parameters.
    """

    spread: Tensor

    def __init__(self, features: Features = FEATURES, hidden: int = 96) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("spread", torch.from_numpy(features.spread), persistent=False)
        self.inside = nn.Linear(features.width, hidden)
        self.recurrent = nn.GRU(hidden, hidden, batch_first=True)
        self.outside = nn.Linear(hidden, features.count)

    def forward(self, x: Tensor) -> Tensor:
        """Return the masks (clips, frames, bins) of features (clips, frames, width)."""
        hidden, _ = self.recurrent(self.inside(x).relu())
        mask: Tensor = self.outside(hidden).sigmoid() @ self.spread
        return mask


def trained(pairs: Sequence[Pair], steps: int, seed: int) -> MaskNetwork:
    """Train a network: Adam with a warm-up, cosine decay and gradient clipping."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MaskNetwork()
    mixtures = Mixtures(pairs, network.features, FRAMES, seed=seed)
    optimiser = torch.optim.Adam(network.parameters())
    for step in range(steps):
        batch = mixtures.batch(step)
        assert isinstance(batch.targets, Mapping)
        mask = network(batch.x.reshape(len(batch.x), FRAMES, -1))
        loss = masked_distortion(mask, batch.targets).mean()
        cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = RATE * min((step + 1) / WARM_UP, 1) * cosine
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimiser.step()
    return network.eval()


def separate(network: MaskNetwork, example: Example) -> dict[str, Sources]:
    """Voice and music of a mixture, by the mask of a network."""
    stft = network.features.stft
    spectra = stft.analyse(example.mixture.float())
    seen = network.features.stream().push(spectra.numpy())
    with torch.no_grad():
        mask = network(torch.from_numpy(seen)[None])[0]
    voice = stft.synthesise(mask * spectra, len(example.mixture))
    return {"masked": Sources(voice, example.mixture - voice)}
