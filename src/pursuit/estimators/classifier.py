"""PursuitClassifier: a dictionary and an encoder for each class."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..dictionary import default_passes, learn
from ..encoders.bank import EncoderBank
from ..encoders.proximal import ProximalEncoder
from ..models import Lasso
from ..progress import Callback
from ..regimes import Discriminative
from ..sampling import Array
from ..training import fit as train
from .base import FLOATS, as_callback, as_seed, require_common, require_count
from .noise import as_weight_or_auto, lasso_weight, noise_level
from .runner import Runner

#: the largest automatic weight for signals of unit norm
MOST_LAM = 0.1


class PursuitClassifier(ClassifierMixin, BaseEstimator):
    """Classification by reconstruction: a dictionary and an encoder for each class.

    Signals are centred, extended by a constant feature (the root mean square of their norms) and
    scaled to unit norm; this loses no information, and classes that differ by their position
    become directions. The atoms of each class are learned by a Lasso from the rows of the class.
    Then all encoders and dictionaries are trained together to minimise
    ``e_l + sum_{j != l} max(0, margin - e_j)`` for the reconstruction errors e and the label l, so
    that the right class reconstructs well and the others do not.

    Parameters
    ----------
    n_components
        The number of atoms of each class. At most half the number of features are used, since atoms
        that span the space would reconstruct everything.
    lam
        The weight of the Lasso, for signals of unit norm. "auto" is the ``sigma sqrt(2 log q)`` of
        `SparseCoding`, but not more than 0.1.
    layers
        The number of layers of the encoders.
    margin
        In units of the median error of the wrong classes before training.
    steps
        The number of training steps.
    threads
        The number of threads of the compiled encoders; None uses all cores.
    verbose
        Whether to print the progress of `fit`, about once a second.
    callback
        A function that is called with a `pursuit.progress.Progress` after each training step; a
        true return value ends the training.
    random_state
        Seeds all random numbers. None means 0: the same data give the same result.

    Attributes
    ----------
    classes_
        The labels.
    bank_
        The encoders, an `EncoderBank`, in the order of `classes_`.
    lam_
        The weight of the Lasso.
    mean_, offset_
        The mean that is subtracted from signals, and the constant feature.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import make_blobs
    >>> from pursuit.estimators import PursuitClassifier
    >>> X, y = make_blobs(200, 6, random_state=0)
    >>> PursuitClassifier(2, steps=20).fit(X, y).score(X, y) > 0.9
    True
    """

    def __init__(
        self,
        n_components: int = 16,
        *,
        lam: float | str = "auto",
        layers: int = 2,
        margin: float = 0.5,
        steps: int = 100,
        threads: int | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components, self.layers = n_components, layers
        self.lam, self.margin = lam, margin
        self.steps, self.threads, self.random_state = steps, threads, random_state
        self.verbose, self.callback = verbose, callback

    def fit(self, X: Any, y: Any) -> Self:
        """Learn a dictionary for each class, then train all of them to discriminate the classes.

        Parameters
        ----------
        X, y
            Signals as rows, shape (n, m), and labels of any type, shape (n,).

        Returns
        -------
        self
            The fitted estimator.
        """
        signals, labels = validate_data(self, X, y, dtype=FLOATS, order="C")
        check_classification_targets(labels)
        require_count(self.n_components, "n_components")
        require_count(self.layers, "layers")
        require_common(self)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]!r}; give samples of at least two classes"
            )
        seed = as_seed(self.random_state)
        self.mean_ = signals.mean(axis=0)
        norms = np.linalg.norm(signals - self.mean_, axis=1)
        self.offset_ = float(np.sqrt(np.mean(np.square(norms)))) or 1.0
        x = self._prepared(signals).float()
        targets = torch.from_numpy(numbers.astype(np.int64))
        q = max(1, min(self.n_components, x.shape[1] // 2))
        lam = as_weight_or_auto(self.lam, "lam")
        if lam is None:
            lam = min(lasso_weight(noise_level(x, q, seed), q), MOST_LAM)
        self.lam_ = lam
        encoders = []
        for number in range(len(self.classes_)):
            rows = x[targets == number]
            atoms = learn(rows, q, lam, passes=default_passes(len(rows)), seed=seed)
            encoders.append(ProximalEncoder(Lasso(atoms, lam), self.layers))
        self.bank_ = EncoderBank(encoders, shared=None)
        options: Any = {"dictionary": "gradient", "steps": self.steps, "seed": seed}
        options["callback"] = as_callback(self)
        train(self.bank_, x, targets, regime=Discriminative(self.margin), **options)
        self._runner = Runner(self.bank_, self.threads)
        return self

    def decision_function(self, X: Any) -> Array:
        """Compute minus the reconstruction error of each class.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).

        Returns
        -------
        ndarray
            Shape (n, classes). For two classes, the difference of the errors, shape (n,), which is
            positive where the second class reconstructs better.
        """
        check_is_fitted(self)
        signals = validate_data(self, X, reset=False, dtype=FLOATS, order="C")
        errors = self._runner.run(self._prepared(signals), "errors")
        return errors[:, 0] - errors[:, 1] if len(self.classes_) == 2 else -errors

    def predict(self, X: Any) -> Array:
        """Predict the class that reconstructs best.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).

        Returns
        -------
        ndarray
            Labels, shape (n,).
        """
        decision = self.decision_function(X)
        chosen = (decision > 0).astype(int) if decision.ndim == 1 else decision.argmax(axis=1)
        labels: Array = self.classes_[chosen]
        return labels

    def _prepared(self, X: Array) -> Tensor:
        extended = np.empty((len(X), X.shape[1] + 1), dtype=X.dtype)
        extended[:, :-1] = X - self.mean_.astype(X.dtype)
        extended[:, -1] = self.offset_
        extended /= np.linalg.norm(extended, axis=1, keepdims=True)
        return torch.from_numpy(extended)
