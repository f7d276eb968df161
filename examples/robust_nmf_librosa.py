"""Robust NMF inside librosa: decompose a spectrogram and keep apart what does not fit.

    python examples/robust_nmf_librosa.py

`librosa.decompose.decompose` takes any scikit-learn transformer. Plain NMF has to explain the
gliding tone by its atoms, which spoils them; robust NMF assigns it to the outliers. Without librosa
the script defines `decompose`. The spectrogram is synthetic, so its true parts are known.
"""

import numpy as np
from sklearn.decomposition import NMF

import pursuit as pu
from pursuit.datasets import spectrogram

try:
    from librosa.decompose import decompose
except ImportError:
    print("librosa is not installed; using a replacement for its decompose")

    def decompose(S, transformer):
        """Factorise the transpose of S, whose rows are frames, and transpose the factors."""
        activations = transformer.fit_transform(S.T).T
        return transformer.components_.T, activations


music = spectrogram.synthetic(1000)
S, tones, glide = (part.numpy().T for part in music)  # as librosa has them: frequency, time


def error(estimate: np.ndarray, true: np.ndarray) -> float:
    return 100 * float(np.square(estimate - true).sum() / np.square(true).sum())


print("error, per cent of energy   tones   glide")
plain = NMF(25, init="nndsvda", max_iter=300, tol=1e-3, random_state=0)
components, activations = decompose(S, transformer=plain)
tonal = components @ activations
print(f"NMF                         {error(tonal, tones):5.1f}   {error(S - tonal, glide):5.0f}")

robust = pu.RobustNMF(25, transform_algorithm="encoder", layers=7, steps=100)
components, activations = decompose(S, transformer=robust)
tonal, outliers = components @ activations, robust.split(S.T).outliers.T
print(f"robust NMF                  {error(tonal, tones):5.1f}   {error(outliers, glide):5.0f}")
