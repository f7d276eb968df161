"""The base class of the transformers."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from .._checks import require_choice
from ..batch import Learned, filled_by_means, learn_in_batch
from ..dictionary import BATCH, OnlineDictionary, default_passes, learn_with_statistics
from ..encoders.choice import choose_encoder
from ..encoders.encoder import Encoder
from ..models import SparseModel
from ..online import OnlineLearner
from ..progress import Callback, combined, printed
from ..regimes import Approximation, Regime, Unsupervised, as_regime
from ..sampling import Array
from ..solvers.accuracy import EXACT, ROUGH, Coder, exact_codes
from ..solvers.low_rank import Residuals
from ..solvers.solve import solve
from ..solvers.tiles import as_array
from ..training import fit as train
from .noise import require_number
from .runner import Runner
from .start import Start

REGIMES: dict[str, type[Regime]] = {"unsupervised": Unsupervised, "approximation": Approximation}
FLOATS = [np.float64, np.float32]
#: what only learning from data in memory can tell
BATCH_ATTRIBUTES = (
    *("n_iter_", "history_", "objective_", "converged_"),
    *("reconstruction_err_", "certificate_"),
)
#: the most samples that the statistics of a stream remember
MEMORY = 10_000


class Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What all transformers have in common; a subclass chooses where learning starts."""

    #: whether data and dictionary must be non-negative
    _nonnegative = False

    encoder_: Encoder | None
    mean_: Any
    _learner: OnlineLearner | None
    _runner: Runner | None
    _coder: Coder

    def __init__(
        self,
        n_components: int,
        transform_algorithm: str,
        tol: float | None,
        max_iter: int,
        layers: int,
        regime: Any,
        steps: int | None,
        threads: int | None,
        verbose: int,
        callback: Callback | None,
        random_state: Any,
    ) -> None:
        self.n_components, self.transform_algorithm = n_components, transform_algorithm
        self.tol, self.max_iter = tol, max_iter
        self.layers, self.regime, self.steps = layers, regime, steps
        self.threads, self.verbose, self.callback = threads, verbose, callback
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.positive_only = self._nonnegative
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the dictionary and, with ``transform_algorithm="encoder"``, train the encoder.

        Data in memory are learned from as a whole, until the tolerance is reached. A memory map is
        read in batches, in a fixed number of passes.

        Parameters
        ----------
        X, y
            Signals as rows, shape (n, m); NaN means not observed. y is ignored.

        Returns
        -------
        self
            The fitted estimator.

        Warns
        -----
        ConvergenceWarning
            If `max_iter` iterations did not suffice.
        UserWarning
            If X has a single row, or all of its entries are equal.
        """
        self._fit(X)
        return self

    def _fit(self, X: Any) -> Learned[Any] | None:
        """Do what `fit` does, and return what was learned in batch, or None for a memory map."""
        self._check_settings()
        streamed = isinstance(X, np.memmap)
        signals = self._checked(X, reset=True)
        _warn_if_trivial(signals)
        learned = None
        if streamed:
            x = self._learn_stream(signals)
        else:
            x, learned = self._learn(signals)
        if self._uses_encoder():
            self._train(x, self.layers, self.regime, self.steps)
        return learned

    def train_encoder(
        self, X: Any, layers: int | None = None, regime: Any = None, steps: int | None = None
    ) -> Self:
        """Train an encoder for the learned dictionary, and use it in `transform` from then on.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m), usually those of `fit`.
        layers, regime, steps
            As for the constructor, whose values are the defaults.

        Returns
        -------
        self
            The estimator, whose `transform_algorithm` now is "encoder".
        """
        check_is_fitted(self)
        layers = self.layers if layers is None else layers
        require_count(layers, "layers")
        x = self._filled(self._centred(self._checked(X)))
        self._train(x, layers, self.regime if regime is None else regime, steps or self.steps)
        self.transform_algorithm = "encoder"
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from more data, starting from the present dictionary and encoder.

        The first call on a new estimator chooses the mean, the weights and the initial dictionary,
        so its rows should be typical and several times as many as components. Mean and weights do
        not change later. With ``transform_algorithm="encoder"`` an `OnlineLearner` learns from
        chunks of 100 rows; rows that do not fill a chunk wait for the next call.

        Parameters
        ----------
        X, y
            Signals as rows, shape (n, m); NaN means not observed. y is ignored.

        Returns
        -------
        self
            The fitted estimator.
        """
        self._check_settings()
        first = not hasattr(self, "model_")
        signals = self._checked(X, reset=first)
        if first:
            x = self._learn_stream(signals)
        else:
            x = self._filled(self._centred(signals))
            self.n_samples_seen_ += len(x)
        if self._uses_encoder():
            self._learn_with_encoder(x)
        elif not first:
            self._learn_with_exact_codes(x)
        return self

    def transform(self, X: Any) -> Array:
        """Compute the codes of signals.

        With ``transform_algorithm="exact"`` the model is solved to a relative gap of 1e-6. With
        "encoder" signals run through the compiled encoder, in single precision; rows with missing
        entries are solved exactly all the same.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m); NaN means not observed.

        Returns
        -------
        ndarray
            Codes, shape (n, n_components), in the dtype of X.

        Warns
        -----
        UserWarning
            If the encoder does far worse on X than on the training data. Some rows are compared
            with exact codes whenever that takes less than 5 % of the time spent in the encoder.
        """
        check_is_fitted(self)
        # scikit-learn wraps this method, which adds a frame below the caller's
        return self._visible(self._encode(self._checked(X), stacklevel=5))

    def inverse_transform(self, X: Any) -> Array:
        """Compute the signals of given codes, ``codes @ components_ + mean_``.

        Parameters
        ----------
        X
            Codes, shape (n, n_components).

        Returns
        -------
        ndarray
            Signals, shape (n, m).
        """
        check_is_fitted(self)
        codes = check_array(X, dtype=FLOATS)
        if codes.shape[1] != self._n_features_out:
            raise ValueError(
                f"X has {codes.shape[1]} columns, but there are {self._n_features_out} "
                "components; give what transform returns"
            )
        return self._uncentred(codes @ self.components_.astype(codes.dtype))

    def score(self, X: Any, y: Any = None) -> float:
        """Compute minus the mean objective of the codes of X; higher is better.

        It compares codes and dictionaries for the same weights. Weights cannot be chosen by it,
        because other weights are another objective.

        Parameters
        ----------
        X, y
            Signals as rows, shape (n, m). y is ignored.

        Returns
        -------
        float
            The score.
        """
        check_is_fitted(self)
        signals = self._checked(X)
        codes = torch.from_numpy(self._encode(signals)).double()
        x = self._centred(signals).double()
        mask = ~torch.isnan(x)
        model = self.model_.to(torch.float64)
        observed = None if bool(mask.all()) else mask
        return -float(model.objective(x.nan_to_num(nan=0.0), codes, observed).mean())

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    @abstractmethod
    def _start(self, x: Tensor, seed: int) -> Start:
        """Choose weights for centred signals, and where learning starts."""

    def _centre(self, X: Array) -> Tensor:
        """Choose the mean of new data, and return the centred signals."""
        self.mean_ = None
        return self._centred(X)

    def _visible(self, codes: Array) -> Array:
        """The coefficients that `transform` returns."""
        return codes

    def _learn(self, X: Array) -> tuple[Tensor, Learned[Any]]:
        """Learn from all samples; return them, centred and without gaps, and what was learned."""
        x = self._centre(X)
        start = self._start(x, self._seed())
        learned = learn_in_batch(
            x,
            start.model,
            start.init,
            tol=self.tol,
            max_iter=self.max_iter,
            seed=self._seed(),
            callback=self._callback(),
        )
        self._adopt(x, learned)
        filled = x
        if bool(torch.isnan(x.sum())):
            filled = torch.where(torch.isnan(x), learned.codes @ learned.model.dictionary, x)
        self._online = self._statistics(filled, learned)
        if not learned.converged:
            warnings.warn(
                f"{type(self).__name__} has not converged after {learned.iterations} iterations; "
                "raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return filled, learned

    def _adopt(self, x: Tensor, learned: Learned[Any]) -> None:
        """Set the attributes of `fit`."""
        self._learner = self.encoder_ = self._runner = None
        self.gap_ = 0.0
        self._set_model(learned.model)
        self.n_samples_seen_, self.n_iter_ = len(x), learned.iterations
        self.history_, self.converged_ = list(learned.history), learned.converged
        self.objective_ = self.history_[-1]
        square = 0.0
        for _, tile in Residuals(x).tiles(learned.codes, learned.model.dictionary.T):
            self._remove_outliers(tile)
            square += float(tile.double().square().nansum())
        self.reconstruction_err_ = square**0.5

    def _remove_outliers(self, residuals: Tensor) -> None:
        """Remove from residuals what the model calls outliers, in place."""

    def _statistics(self, x: Tensor, learned: Learned[Any]) -> OnlineDictionary:
        """What a stream needs to continue from the codes of all samples."""
        online = OnlineDictionary.of(learned.model, total=len(x))
        online.accumulate(x, learned.codes)
        online.decay(min(1.0, MEMORY / online.weight))
        return online

    def _learn_stream(self, X: Array) -> Tensor:
        """Learn in batches, and return centred signals with missing entries filled in."""
        x = self._centre(X)
        start = self._start(x, self._seed()).model
        x = filled_by_means(x)
        passes, callback = default_passes(len(x)), self._callback()
        options: Any = {"seed": self._seed(), "callback": callback}
        model, self._online = learn_with_statistics(x, start, passes, **options)
        self._online.decay(min(1.0, MEMORY / self._online.weight))
        self._learner = self.encoder_ = self._runner = None
        self.gap_, self.n_samples_seen_ = 0.0, len(x)
        for name in BATCH_ATTRIBUTES:  # of an earlier fit
            self.__dict__.pop(name, None)
        self._set_model(model)
        return x

    def _learn_with_encoder(self, x: Tensor) -> None:
        if self._learner is None:
            if self.encoder_ is None:
                self.encoder_ = choose_encoder(self.model_.to(torch.float32), self.layers)
            regime = self._new_regime(self.regime)
            self._learner = OnlineLearner(self.encoder_, regime, seed=self._seed())
            # continue with the statistics of the data from which the dictionary was learned
            self._learner.dictionary = self._online
        before = self._learner.samples
        self._learner.partial_fit(x.float())
        if self._learner.samples > before:
            dictionary = self._learner.encoder.model.dictionary.detach().clone()
            self._set_model(self.model_.replace(dictionary=dictionary.to(self.model_.dictionary)))
        self._set_runner(x)

    def _learn_with_exact_codes(self, x: Tensor) -> None:
        model = self.model_
        for batch in torch.split(x.to(model.dictionary), BATCH):
            self._online.remember(self.n_samples_seen_, most=MEMORY)
            codes = exact_codes(model, batch, ROUGH)
            updated = self._online.learn_batch(model, batch, codes, under_ridge=True)
            model = model.replace(**updated)
        self._set_model(model)

    def _train(self, x: Tensor, layers: int, regime: Any, steps: int | None) -> None:
        self.encoder_ = choose_encoder(self.model_.to(torch.float32), layers)
        options: Any = {"steps": steps, "seed": self._seed(), "callback": self._callback()}
        train(self.encoder_, x.float(), regime=self._new_regime(regime), **options)
        self._learner = None
        self._set_runner(x)

    def _set_runner(self, x: Tensor) -> None:
        self._runner = Runner(self.encoder_, self.threads)
        self.gap_ = self._runner.measure(self.model_, x)

    def _set_model(self, model: SparseModel) -> None:
        self.model_, self._coder = model, Coder(model)
        self.components_ = as_array(model.dictionary).copy()

    def _encode(self, X: Array, stacklevel: int | None = None) -> Array:
        """Compute all coefficients; with a `stacklevel` for warnings, check the encoder if due."""
        x = self._centred(X)
        missing = torch.isnan(x).any(dim=1)
        if not bool(missing.any()):
            return self._encode_complete(x, stacklevel)
        codes = np.empty((len(x), self.model_.code_size), X.dtype)
        complete = ~missing
        if bool(complete.any()):
            codes[complete.numpy()] = self._encode_complete(x[complete], stacklevel)
        codes[missing.numpy()] = as_array(_masked_codes(self.model_, x[missing]))
        return codes

    def _encode_complete(self, x: Tensor, stacklevel: int | None) -> Array:
        if not self._uses_encoder():
            return as_array(self._coder(x))
        if self._runner is None:
            raise ValueError(
                'transform_algorithm="encoder" needs a trained encoder, but the estimator was '
                'fitted with transform_algorithm="exact"; call train_encoder, or fit it again'
            )
        codes = self._runner.run(x)
        if stacklevel is not None and self._runner.check_is_due(len(x)):
            self._warn_if_far(x, codes, stacklevel + 1)
        return codes

    def _warn_if_far(self, x: Tensor, codes: Array, stacklevel: int) -> None:
        assert self._runner is not None
        gap = self._runner.excess(self.model_, x, codes)
        if self._runner.is_far(gap):
            warnings.warn(
                f"the encoder's objective is {gap:.1%} above the optimum on these data, but "
                f"{self.gap_:.2%} on the training data; call partial_fit with new data, or use "
                'transform_algorithm="exact"',
                UserWarning,
                stacklevel=stacklevel,
            )

    def _check_settings(self) -> None:
        self._uses_encoder()
        require_count(self.n_components, "n_components")
        require_count(self.layers, "layers")
        require_count(self.max_iter, "max_iter")
        if self.tol is not None:
            require_number(self.tol, "tol", "None")
        require_common(self)
        as_regime(self._new_regime(self.regime))

    def _uses_encoder(self) -> bool:
        require_choice(self.transform_algorithm, ("exact", "encoder"), "transform_algorithm")
        return self.transform_algorithm == "encoder"

    def _callback(self) -> Callback | None:
        return as_callback(self)

    def _seed(self) -> int:
        return as_seed(self.random_state)

    def _new_regime(self, regime: Any) -> Any:
        """A new regime object, since training stores data in it."""
        if not isinstance(regime, str):
            return copy.deepcopy(regime)
        require_choice(regime, tuple(REGIMES), "regime")
        return REGIMES[regime]()

    def _checked(self, X: Any, reset: bool = False) -> Array:
        checked: Array = validate_data(
            self, X, reset=reset, dtype=FLOATS, order="C", ensure_all_finite="allow-nan"
        )
        if self._nonnegative and np.nanmin(checked, initial=np.inf) < 0:
            # scikit-learn's own words, which its checks compare
            raise ValueError(f"Negative values in data passed to {type(self).__name__}")
        return checked

    def _filled(self, x: Tensor) -> Tensor:
        """Fill in missing entries from the codes of the others."""
        missing = torch.isnan(x)
        rows = missing.any(dim=1)
        if not bool(rows.any()):
            return x
        codes = _masked_codes(self.model_, x[rows])
        filled = x.clone()
        filled[rows] = torch.where(missing[rows], self.model_.decode(codes.to(x)), x[rows])
        return filled

    def _centred(self, X: Array) -> Tensor:
        if self.mean_ is not None:
            return torch.from_numpy(X - self.mean_.astype(X.dtype))
        return torch.from_numpy(np.require(X, requirements=["C", "W"]))

    def _uncentred(self, X: Array) -> Array:
        return X if self.mean_ is None else X + self.mean_.astype(X.dtype)


def require_count(value: Any, name: str) -> None:
    """Raise an error unless the value is an integer of at least 1."""
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be an instance of int, not bool.")
    check_scalar(value, name, Integral, min_val=1)


def require_common(estimator: Any) -> None:
    """Raise an error unless the settings of all estimators, those with a None among them, fit."""
    for name in ("steps", "threads"):
        value = getattr(estimator, name)
        if value is not None:
            require_count(value, name)
    if estimator.callback is not None and not callable(estimator.callback):
        given = type(estimator.callback).__name__
        raise TypeError(f"callback must be None or a function of a Progress, got {given}")


def as_seed(random_state: Any) -> int:
    """Turn scikit-learn's `random_state` into a seed; None becomes 0."""
    if random_state is None:
        return 0
    if isinstance(random_state, Integral):
        seed = int(random_state)
        if not 0 <= seed < 2**63:
            raise ValueError(f"random_state must lie between 0 and 2^63 - 1, got {seed}")
        return seed
    return int(check_random_state(random_state).randint(2**31 - 1))


def as_callback(estimator: Any) -> Callback | None:
    """The callback of an estimator, which prints as well if it is verbose."""
    lines = printed(type(estimator).__name__) if estimator.verbose else None
    return combined(lines, estimator.callback)


def _masked_codes(model: SparseModel, x: Tensor) -> Tensor:
    mask = ~torch.isnan(x)
    return solve(model, x.nan_to_num(nan=0.0), tol=EXACT, mask=mask).codes


def _warn_if_trivial(X: Array) -> None:
    first = X.flat[0]
    if len(X) == 1:
        message = "X has a single row; give several, since nothing can be learned from one"
    elif bool(np.equal(X, first).all()):
        message = f"all entries of X are {first:g}, so there is nothing to learn"
    else:
        return
    warnings.warn(message, UserWarning, stacklevel=4)
