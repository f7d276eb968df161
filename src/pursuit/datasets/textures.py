"""Patches of the brick, grass and gravel pictures that come with scikit-image.

The upper halves of the pictures are for training, the lower halves for testing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import require_choice

__all__ = ["NAMES", "learn_dictionary", "load", "patches"]

NAMES = ("brick", "grass", "gravel")


def load(name: str) -> np.ndarray[Any, Any]:
    """A picture of 512 x 512 grey values in [0, 1]."""
    require_choice(name, NAMES, "name")
    try:
        from skimage import data
    except ImportError as error:
        raise ImportError(
            "the textures come with scikit-image; install it with pip install 'pursuit[demo]'"
        ) from error
    picture: np.ndarray[Any, Any] = getattr(data, name)()
    return picture / 255.0


def patches(
    count: int, half: str = "train", names: tuple[str, ...] = NAMES, size: int = 8, seed: int = 0
) -> Tensor:
    """Random patches as rows, `count` of each texture, shuffled, shape (n, size^2), float32.

    Each patch has mean zero and is divided by ``max(std, 0.02)``: unit variance, but what is
    flat stays small.

    Examples
    --------
    >>> x = patches(100, "test")
    >>> tuple(x.shape), bool(x.mean(dim=1).abs().max() < 1e-5)
    ((300, 64), True)
    """
    require_choice(half, ("train", "test"), "half")
    rng = np.random.default_rng(seed)
    rows = []
    for name in names:
        picture = load(name)
        middle = len(picture) // 2
        region = picture[:middle] if half == "train" else picture[middle:]
        windows = np.lib.stride_tricks.sliding_window_view(region, (size, size))
        top, left = (rng.integers(0, extent, count) for extent in windows.shape[:2])
        rows.append(windows[top, left].reshape(count, -1))
    x = np.concatenate(rows)
    x = x - x.mean(axis=1, keepdims=True)
    x = x / np.maximum(x.std(axis=1, keepdims=True), 0.02)
    rng.shuffle(x)
    return torch.from_numpy(x.astype(np.float32))


def learn_dictionary(x: Tensor, atoms: int, lam: float = 1.0, seed: int = 0) -> Tensor:
    """Unit-norm atoms by scikit-learn's MiniBatchDictionaryLearning, shape (atoms, m), float32."""
    import warnings

    from sklearn.decomposition import MiniBatchDictionaryLearning
    from sklearn.exceptions import ConvergenceWarning

    learner = MiniBatchDictionaryLearning(
        n_components=atoms,
        alpha=lam,
        batch_size=256,
        max_iter=12,
        fit_algorithm="cd",
        transform_algorithm="lasso_cd",
        random_state=seed,
    )
    with warnings.catch_warnings():
        # a rough code is enough for the learner's next step
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner.fit(x.double().numpy())
    components = torch.from_numpy(learner.components_)
    return torch.nn.functional.normalize(components).float()
