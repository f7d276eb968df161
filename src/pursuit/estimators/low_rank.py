"""NMF, robust PCA and robust NMF with codes for new data."""

from __future__ import annotations

import math
import warnings
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..batch import Learned
from ..dictionary import OnlineDictionary
from ..progress import Callback
from ..sampling import Array, sample_rows
from ..solvers.low_rank import (
    OUTLIER,
    Factors,
    Residuals,
    RobustFit,
    Truncation,
    robust_deviation,
    robust_fit,
)
from .base import MEMORY, Transformer
from .noise import least_robust_noise, medians, require_number
from .start import Start, fitted_rank, start_nmf, start_robust

#: rows whose medians are the first mean of robust PCA, and those that measure the final noise
MEDIAN_ROWS, MEASURED_ROWS = 200, 50
#: entries beyond this many noise levels take no part in least squares
EXCLUDED = 4.0
#: the most iterations of these least squares for one choice of the excluded entries, and the change
#: of the fit, in noise levels, that ends them
LEAST_SQUARES_STEPS, SMALL_CHANGE = 10, 0.01
#: the fraction of other entries that are marked as outliers
FALSE_ALARMS = 0.001
#: atoms below this fraction of the longest are not used
UNUSED = 1e-3


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
    dictionaries ``D >= 0`` with atoms of unit norm, or with the same ridge.

    Parameters
    ----------
    n_components
        The number of atoms.
    ridge
        The weight of the quadratic penalty.
    tol
        `fit` stops when the objective has decreased by less than this fraction in ten iterations;
        None means 1e-3.
    transform_algorithm, max_iter, layers, regime, steps, threads, verbose, callback, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_
        The atoms, shape (n_components, m), in the dtype of X. They are sorted by the energy of
        their part ``||z_j||^2 ||d_j||^2``, the largest first.
    reconstruction_err_
        ``||X - Z D||_F`` over the observed entries.
    model_, encoder_, gap_, n_samples_seen_, n_iter_, objective_, history_, converged_
        As for `SparseCoding`.

    See Also
    --------
    RobustNMF : The same with outliers.

    Notes
    -----
    `fit` starts from singular vectors and uses accelerated HALS with extrapolation; see
    `pursuit.nonnegative_factors`.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import NMF
    >>> X = np.random.default_rng(0).random((200, 8))
    >>> NMF(3).fit_transform(X).min() >= 0
    np.True_
    """

    _nonnegative = True

    def __init__(
        self,
        n_components: int = 8,
        *,
        ridge: float = 0.0,
        transform_algorithm: str = "exact",
        tol: float | None = None,
        max_iter: int = 500,
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        threads: int | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, transform_algorithm, tol, max_iter, layers, regime, steps, threads,
            verbose, callback, random_state,
        )  # fmt: skip
        self.ridge = ridge

    def _start(self, x: Tensor, seed: int) -> Start:
        ridge = require_number(self.ridge, "ridge")
        return start_nmf(x, self.n_components, ridge, seed=seed)


class _Robust(Transformer):
    """What robust PCA and robust NMF have in common."""

    lam: float | str
    lam_star: float | str

    def split(self, X: Any) -> Split:
        """Split signals into a low-rank part and outliers.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m); NaN means not observed.

        Returns
        -------
        Split
            `low_rank` and `outliers`, shape (n, m), and `scores`, shape (n, n_components). What
            remains of X is noise. The low-rank part has no missing entries.
        """
        return self._parts(X)

    def fit_split(self, X: Any, y: Any = None) -> Split:
        """Fit to signals, and split them.

        Parameters
        ----------
        X, y
            Signals as rows, shape (n, m); NaN means not observed. y is ignored.

        Returns
        -------
        Split
            As for `split`.
        """
        return self.fit(X).split(X)

    def _parts(self, X: Any) -> Split:
        """What `split` returns; a warning about the encoder points to the caller of `split`."""
        check_is_fitted(self)
        codes = self._encode(self._checked(X), stacklevel=5)
        scores, outliers = np.split(codes, [self._n_features_out], axis=1)
        return Split(self._low_rank(scores), outliers, scores, outliers)

    def _low_rank(self, scores: Array) -> Array:
        return self._uncentred(scores @ self.components_.astype(scores.dtype))

    def outlier_mask(self, X: Any, false_alarms: float = FALSE_ALARMS) -> Array:
        """Mark the entries of signals that are outliers.

        An entry is marked if it differs from the low-rank part by more than Gaussian noise would
        with the probability `false_alarms`. Here the scores are least squares over the entries
        that are no outliers, without the penalty that makes the scores of `split` smaller. The
        noise level is that of the training data. The `outliers` of `split` differ from zero at
        more entries, since they also take up the tails of the noise.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m). Missing entries are not marked.
        false_alarms
            The fraction of other entries that may be marked, between 0 and 1.

        Returns
        -------
        ndarray of bool
            True where an entry is an outlier, shape (n, m).
        """
        if not 0 < false_alarms < 1:
            raise ValueError(f"false_alarms must lie between 0 and 1, got {false_alarms}")
        check_is_fitted(self)
        signals = self._checked(X)
        x = self._centred(signals)
        scores = self._unbiased(x, torch.from_numpy(self._visible(self._encode(signals))))
        residuals = x - scores @ self.model_.dictionary.to(x)
        return self._exceeding(residuals, false_alarms)

    def _exceeding(self, residuals: Tensor, false_alarms: float) -> Array:
        """Whether residuals are larger than noise is with the probability `false_alarms`."""
        sides = 1 if self._nonnegative else 2
        limit = NormalDist().inv_cdf(1 - false_alarms / sides) * self._residual_level
        marked: Array = (residuals if self._nonnegative else residuals.abs()).numpy() > limit
        return marked

    def _used(self) -> Tensor:
        """Which atoms are not practically zero."""
        norms = self.model_.dictionary.norm(dim=1)
        used: Tensor = norms > UNUSED * norms.max()
        return used

    def _unbiased(self, x: Tensor, scores: Tensor) -> Tensor:
        """Least-squares scores over the entries that are no outliers, from given scores."""
        used = self._used()
        atoms = self.model_.dictionary.to(x)[used]
        inverse, gram = torch.linalg.pinv(atoms), atoms @ atoms.T
        fitted = scores[:, used].contiguous()
        residuals = Residuals(x)
        for _ in range(2):
            factors = fitted, atoms.T
            level = max(robust_deviation(x, *factors), self._least_level)
            limits = (torch.full((size,), EXCLUDED * level, dtype=x.dtype) for size in x.shape)
            usual = Truncation(by_row=next(limits), by_column=next(limits))
            for _ in range(LEAST_SQUARES_STEPS):
                # entries that are excluded take their fitted values, and count no more
                change = residuals.products((fitted, atoms.T), usual, inverse).along_rows
                fitted += change
                square = float(((change @ gram) * change).sum()) / x.numel()
                if square <= (SMALL_CHANGE * level) ** 2:
                    break
        unbiased = torch.zeros_like(scores)
        unbiased[:, used] = fitted
        return unbiased

    def _visible(self, codes: Array) -> Array:
        return np.ascontiguousarray(codes[:, : self._n_features_out])

    def _start(self, x: Tensor, seed: int) -> Start:
        nonnegative, n = self._nonnegative, self.n_components
        atoms = n if nonnegative else min(n, x.shape[1])
        weights: Any = {"lam": self.lam, "lam_star": self.lam_star}
        fit = self._robust_fit(x, atoms, seed)
        if fit.is_doubtful and "auto" in (self.lam, self.lam_star):
            warnings.warn(
                f"the noise level {fit.sigma:.2g}, from which the weights follow, is uncertain: "
                f"{fit.outliers:.0%} of the entries look like outliers, or the noise of the "
                "features differs; scale the features alike, or set lam and lam_star",
                UserWarning,
                stacklevel=5,
            )
        start = start_robust(x, atoms, nonnegative=nonnegative, seed=seed, fit=fit, **weights)
        self.lam_, self.lam_star_ = start.model.lam, start.model.lam_star
        self.noise_ = float(start.sigma or 0.0)
        self._least_level = least_robust_noise(x)
        self._residual_level = max(self.noise_, self._least_level)
        return start

    def _robust_fit(self, x: Tensor, atoms: int, seed: int) -> RobustFit:
        return robust_fit(x, fitted_rank(x, atoms), seed, self._callback())

    def _adopt(self, x: Tensor, learned: Learned[Any]) -> None:
        super()._adopt(x, learned)
        rows = torch.from_numpy(sample_rows(len(x), MEASURED_ROWS))
        scores = self._unbiased(x[rows], learned.codes[rows])
        level = robust_deviation(x[rows], scores, learned.model.dictionary.T)
        # least squares make residuals smaller than the noise, by their degrees of freedom
        used = min(int(self._used().sum()), x.shape[1] - 1)
        level *= math.sqrt(x.shape[1] / (x.shape[1] - used))
        self._residual_level = max(level, self._least_level)

    def _remove_outliers(self, residuals: Tensor) -> None:
        residuals.clamp_(None if self._nonnegative else -self.lam_, self.lam_)


class RobustPCA(_Robust):
    """A few directions that explain the data, and outliers in single entries.

    Minimises ``1/2 ||x - s D - o||^2 + lam_star/2 ||s||^2 + lam ||o||_1`` over scores s and
    outliers o and, in `fit`, over D with ``lam_star/2 ||D||^2``, which is the nuclear norm of the
    low-rank part in factored form. `fit` solves that convex problem (principal component pursuit);
    unlike it, the estimator has codes for new data.

    Parameters
    ----------
    n_components
        The largest rank of the low-rank part, at most the number of features; too many do little
        harm.
    lam
        The weight of the outliers. "auto" is ``sqrt(2) sigma`` with the noise level sigma, see
        `noise_`.
    lam_star
        The weight of the scores and, once for all n rows of `fit`, of the directions. "auto" is
        ``sqrt(2 max(n, m)) sigma``; with 0 only `n_components` limits the rank.
    center
        Whether to subtract the mean of the data, computed without outliers.
    tol
        `fit` stops when the gap to the optimum of the convex problem is at most this fraction of
        the objective or, if the solution has more directions than `n_components`, when the
        objective has changed by less than this fraction in ten iterations; None means 1e-5.
    transform_algorithm, max_iter, layers, regime, steps, threads, verbose, callback, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_
        The directions, shape (n_components, m), in the dtype of X: right singular vectors of the
        low-rank part times the roots of the singular values, in decreasing order; practically zero
        beyond its rank.
    noise_
        The noise level: the standard deviation of the entries from a robust low-rank fit, without
        outliers. Weights use at least 1e-8 of the size of a typical entry (1e-5 in float32).
    lam_, lam_star_
        The weights.
    certificate_
        ``||X - L - O||_2 / lam_star``. At most 1, up to the tolerance, if `fit` has solved the
        convex problem; larger if `n_components` is smaller than the rank of its solution.
    reconstruction_err_
        ``||X - L - O||_F`` over the observed entries.
    mean_, model_, encoder_, gap_, n_samples_seen_, n_iter_, objective_, history_, converged_
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
    >>> X = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 40))
    >>> X += 0.01 * rng.standard_normal(X.shape)
    >>> X[3, 4] += 10
    >>> pca = RobustPCA(2).fit(X)
    >>> np.argwhere(pca.outlier_mask(X, false_alarms=1e-6)).tolist()
    [[3, 4]]
    """

    def __init__(
        self,
        n_components: int = 8,
        *,
        lam: float | str = "auto",
        lam_star: float | str = "auto",
        center: bool = True,
        transform_algorithm: str = "exact",
        tol: float | None = None,
        max_iter: int = 500,
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        threads: int | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, transform_algorithm, tol, max_iter, layers, regime, steps, threads,
            verbose, callback, random_state,
        )  # fmt: skip
        self.lam, self.lam_star, self.center = lam, lam_star, center

    def split(self, X: Any, debias: bool = False) -> Split:
        """Split signals into a low-rank part and outliers.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m); NaN means not observed.
        debias
            Whether to undo the shrinkage of both parts. By default the parts minimise the model's
            objective, whose penalties make the scores and the outliers smaller. With `debias` the
            scores are least squares over the entries that are no outliers, and outliers are the
            residuals of the entries that `outlier_mask` marks. That low-rank part is usually
            nearer to the truth.

        Returns
        -------
        Split
            `low_rank` and `outliers`, shape (n, m), and `scores`, shape (n, n_components). What
            remains of X is noise. The low-rank part has no missing entries.
        """
        parts = self._parts(X)
        if not debias:
            return parts
        return self._debiased(self._centred(self._checked(X)), torch.from_numpy(parts.scores))

    def fit_split(self, X: Any, y: Any = None, debias: bool = False) -> Split:
        """Fit to signals, and split them, without computing their codes again.

        Parameters
        ----------
        X, y
            Signals as rows, shape (n, m); NaN means not observed. y is ignored.
        debias
            As for `split`.

        Returns
        -------
        Split
            As for `split`, up to the tolerance of `fit`.
        """
        learned = self._fit(X)
        if learned is None or self._uses_encoder():
            return self.split(X, debias)
        x = self._centred(self._checked(X))
        if debias:
            return self._debiased(x, learned.codes)
        low_rank = learned.codes @ self.model_.dictionary
        outliers = x - low_rank
        outliers -= outliers.clamp(-self.lam_, self.lam_)
        parts = low_rank.numpy(), outliers.nan_to_num_(nan=0.0).numpy()
        return Split(self._uncentred(parts[0]), parts[1], learned.codes.numpy(), parts[1])

    def _debiased(self, x: Tensor, scores: Tensor) -> Split:
        scores = self._unbiased(x, scores)
        low_rank = scores @ self.model_.dictionary.to(x)
        residuals = x - low_rank
        marked = self._exceeding(residuals, FALSE_ALARMS)
        outliers = np.where(marked, residuals.numpy(), 0)
        return Split(self._uncentred(low_rank.numpy()), outliers, scores.numpy(), outliers)

    def _centre(self, X: Array) -> Tensor:
        self.mean_ = None
        if self.center:
            some = torch.from_numpy(X[sample_rows(len(X), MEDIAN_ROWS)])
            self.mean_ = medians(some).numpy()
        return self._centred(X)

    def _robust_fit(self, x: Tensor, atoms: int, seed: int) -> RobustFit:
        if not self.center:
            return super()._robust_fit(x, atoms, seed)
        # what the medians have left of the mean is one more direction
        fit = super()._robust_fit(x, atoms + 1, seed)
        left, right = fit.factors
        average = left.mean(dim=0)
        clip = Truncation.clip(OUTLIER * fit.sigma)
        weights = torch.full((len(x), 1), 1 / len(x), dtype=x.dtype)
        products = Residuals(x).products((left, right), clip, basis=weights)
        shift = right @ average + products.along_columns[0]
        x -= shift
        self.mean_ = self.mean_ + shift.numpy()
        left, right = Factors.of(left - average, right)
        return fit._replace(factors=Factors(left[:, :atoms], right[:, :atoms]))

    def _adopt(self, x: Tensor, learned: Learned[Any]) -> None:
        super()._adopt(x, learned)
        self.certificate_ = learned.certificate

    def _statistics(self, x: Tensor, learned: Learned[Any]) -> OnlineDictionary:
        # the optimal dictionary is (A + lam_star I)^-1 B
        online = OnlineDictionary.of(learned.model, total=len(x))
        atoms, scores = online.atoms, learned.codes.double()
        squares = scores.T @ scores
        products = squares @ atoms + self.lam_star_ * atoms
        weight = torch.tensor(float(len(x)), dtype=torch.float64)
        online.state = {"atoms": atoms, "A": squares, "B": products, "weight": weight}
        online.decay(min(1.0, MEMORY / online.weight))
        return online


class RobustNMF(_Robust):
    """Non-negative parts that explain the data, and outliers in single entries.

    As `RobustPCA`, with scores, outliers and atoms that must be non-negative, and without a mean.
    The problem is not convex.

    Parameters
    ----------
    n_components
        The number of atoms.
    lam, lam_star
        As for `RobustPCA`.
    tol
        `fit` stops when the objective has decreased by less than this fraction in ten iterations;
        None means 1e-4.
    transform_algorithm, max_iter, layers, regime, steps, threads, verbose, callback, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_
        The atoms, shape (n_components, m), in the dtype of X, sorted by the energy of their part,
        the largest first.
    model_, encoder_, gap_, n_samples_seen_, n_iter_, objective_, history_, converged_
        As for `SparseCoding`.
    noise_, lam_, lam_star_, reconstruction_err_
        As for `RobustPCA`.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import RobustNMF
    >>> X = np.random.default_rng(0).random((200, 8))
    >>> parts = RobustNMF(3).fit(X).split(X)
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
        transform_algorithm: str = "exact",
        tol: float | None = None,
        max_iter: int = 500,
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        threads: int | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_components, transform_algorithm, tol, max_iter, layers, regime, steps, threads,
            verbose, callback, random_state,
        )  # fmt: skip
        self.lam, self.lam_star = lam, lam_star

    def _statistics(self, x: Tensor, learned: Learned[Any]) -> OnlineDictionary:
        outliers = (x - learned.codes @ learned.model.dictionary - self.lam_).clamp_min_(0)
        return super()._statistics(x - outliers, learned)
