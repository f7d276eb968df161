"""A dictionary learned by another library, so that no contender has made the problem itself."""

from __future__ import annotations

import warnings

import torch
from sklearn.decomposition import MiniBatchDictionaryLearning
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor


def learn_dictionary(x: Tensor, atoms: int, lam: float = 1.0, seed: int = 0) -> Tensor:
    """Unit-norm atoms by scikit-learn's MiniBatchDictionaryLearning, shape (atoms, m), float32."""
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
