"""NMF, robust PCA and robust NMF with codes for new data."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..models import SparseModel
from ..sampling import Array
from .base import Transformer
from .noise import clean
from .start import start_nmf, start_robust


class Split(NamedTuple):
    """The parts of signals, in the dtype of the signals.

    `low_rank` is ``scores @ components_ + mean_``, shape (n, m), `scores` has shape
    (n, n_components), and `outliers` are single entries that differ from the low-rank part, shape
    (n, m). `sparse` is the same array as `outliers`.
    """

    low_rank: Array
    sparse: Array
    scores: Array
    outliers: Array


class NMF(Transformer):
    """Non-negative matrix factorisation with codes for new data.

    Minimises ``1/2 ||x - z D||^2 + ridge/2 ||z||^2`` over codes ``z >= 0`` and, in `fit`, over
    dictionaries ``D >= 0`` with atoms in the unit ball, or with the same ridge.

    Parameters
    ----------
    ridge
        The weight of the quadratic penalty.
    n_components, transform_algorithm, layers, regime, steps, passes, threads, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_, model_, encoder_, gap_, n_samples_seen_
        As for `SparseCoding`. `components_` is non-negative.

    See Also
    --------
    RobustNMF : The same with outliers.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import NMF
    >>> X = np.random.default_rng(0).random((200, 8))
    >>> NMF(3, layers=3, steps=20).fit_transform(X).min() >= 0
    np.True_
    """

    _nonnegative = True

    def __init__(
        self,
        n_components: int = 8,
        *,
        ridge: float = 0.0,
        transform_algorithm: str = "encoder",
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        passes: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, transform_algorithm, layers, regime, steps, passes, threads, random_state
        )
        self.ridge = ridge

    def _initial_model(self, x: Tensor, seed: int) -> SparseModel:
        return start_nmf(x, self.n_components, self.ridge, seed=seed)


class _Robust(Transformer):
    """What robust PCA and robust NMF have in common."""

    lam: float | str
    lam_star: float | str

    def split(self, X: Any) -> Split:
        """Split signals into a low-rank part and outliers.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).

        Returns
        -------
        Split
            `low_rank` and `outliers`, shape (n, m), and `scores`, shape (n, n_components). What
            remains of X is noise.
        """
        check_is_fitted(self)
        codes = self._encode(self._checked(X), stacklevel=4)
        scores, outliers = np.split(codes, [self._n_features_out], axis=1)
        low_rank = self._uncentred(scores @ self.components_.astype(codes.dtype))
        return Split(low_rank, outliers, scores, outliers)

    def _visible(self, codes: Array) -> Array:
        return np.ascontiguousarray(codes[:, : self._n_features_out])

    def _initial_model(self, x: Tensor, seed: int) -> SparseModel:
        nonnegative, n = self._nonnegative, self.n_components
        atoms = n if nonnegative else min(n, x.shape[1])
        weights: Any = {"lam": self.lam, "lam_star": self.lam_star}
        model = start_robust(x, atoms, nonnegative=nonnegative, seed=seed, **weights)
        self.lam_, self.lam_star_ = model.lam, model.lam_star
        return model


class RobustPCA(_Robust):
    """A few directions that explain the data, and outliers in single entries.

    Minimises ``1/2 ||x - s D - o||^2 + lam_star/2 ||s||^2 + lam ||o||_1`` over scores s and
    outliers o and, in `fit`, over D with ``lam_star/2 ||D||^2``, which is the nuclear norm of the
    low-rank part in factored form. Unlike the convex problem it has codes for new data.

    Parameters
    ----------
    n_components
        The number of directions, at most the number of features; too many do little harm.
    lam
        The weight of the outliers. "auto" is ``sqrt(2) sigma``, with the noise level sigma of
        `SparseCoding`.
    lam_star
        The weight of the scores and, once for all n rows of `fit`, of the directions. "auto" is
        ``sqrt(2 max(n, m)) sigma``.
    center
        Whether to subtract the mean of the data, computed without outliers.
    transform_algorithm, layers, regime, steps, passes, threads, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_
        The directions D, shape (n_components, m), float32; neither orthogonal nor of unit norm.
    lam_, lam_star_
        The weights.
    mean_, model_, encoder_, gap_, n_samples_seen_
        As for `SparseCoding`.

    See Also
    --------
    RobustNMF : The same with non-negative factors and outliers.
    pursuit.principal_component_pursuit : The convex problem, for one data set.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import RobustPCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 12))
    >>> X[3, 4] += 10
    >>> parts = RobustPCA(2, transform_algorithm="exact").fit(X).split(X)
    >>> divmod(int(parts.outliers.argmax()), 12)
    (3, 4)
    """

    def __init__(
        self,
        n_components: int = 8,
        *,
        lam: float | str = "auto",
        lam_star: float | str = "auto",
        center: bool = True,
        transform_algorithm: str = "encoder",
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        passes: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, transform_algorithm, layers, regime, steps, passes, threads, random_state
        )
        self.lam, self.lam_star, self.center = lam, lam_star, center

    def _choose_mean(self, X: Array) -> Array | None:
        if not self.center:
            return None
        cleaned, _ = clean(X, self.n_components, self._seed())
        mean: Array = cleaned.mean(axis=0).astype(X.dtype)
        return mean


class RobustNMF(_Robust):
    """Non-negative parts that explain the data, and outliers in single entries.

    As `RobustPCA`, with scores, outliers and atoms that must be non-negative, and without a mean.

    Parameters
    ----------
    lam, lam_star
        As for `RobustPCA`.
    n_components, transform_algorithm, layers, regime, steps, passes, threads, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_, model_, encoder_, gap_, n_samples_seen_, lam_, lam_star_
        As for `RobustPCA`. `components_` is non-negative.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import RobustNMF
    >>> X = np.random.default_rng(0).random((200, 8))
    >>> parts = RobustNMF(3, layers=3, steps=20).fit(X).split(X)
    >>> parts.scores.shape, parts.outliers.min() >= 0
    ((200, 3), np.True_)
    """

    _nonnegative = True

    def __init__(
        self,
        n_components: int = 8,
        *,
        lam: float | str = "auto",
        lam_star: float | str = "auto",
        transform_algorithm: str = "encoder",
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        passes: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, transform_algorithm, layers, regime, steps, passes, threads, random_state
        )
        self.lam, self.lam_star = lam, lam_star
