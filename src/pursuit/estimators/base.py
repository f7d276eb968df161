"""The base class of the transformers, and the encoders as they run inside estimators."""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state, check_scalar
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from .._checks import require_choice
from ..dictionary import BATCH, default_passes, learn_with_statistics
from ..encoders.choice import choose_encoder
from ..encoders.encoder import Encoder
from ..models import SparseModel
from ..online import OnlineLearner
from ..regimes import Approximation, Regime, Unsupervised
from ..runtime.compiled import compile as compile_encoder
from ..sampling import Array, sample_rows
from ..solvers.accuracy import ROUGH, exact_codes, mean_excess
from ..solvers.tiles import as_array
from ..training import fit as train

REGIMES: dict[str, type[Regime]] = {"unsupervised": Unsupervised, "approximation": Approximation}
FLOATS = [np.float64, np.float32]
#: number of rows on which the excess over the optimum is measured, at most and at least
GAP_ROWS, FEWEST_ROWS = 100, 20
#: rows encoded between two measurements in `transform`
CHECK_EVERY = 50 * GAP_ROWS
#: `transform` warns if the excess is this many times that of the training data, and noticeable
FAR, NOTICEABLE = 5.0, 0.01
#: the most samples that the statistics of a stream remember
MEMORY = 10_000


class Runner:
    """A trained encoder, or a bank of encoders, as it runs inside an estimator.

    float32 signals go through the compiled encoder, float64 signals through a copy of the encoder
    in double precision. Both are made when they are first needed, and anew after unpickling.
    """

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        self._built: dict[torch.dtype, Any] = {}
        self._unchecked = CHECK_EVERY

    def __getstate__(self) -> dict[str, Any]:
        return {"encoder": self.encoder, "_built": {}, "_unchecked": CHECK_EVERY}

    def check_is_due(self, rows: int) -> bool:
        """Whether to compare these rows with exact codes: at first and after `CHECK_EVERY` rows."""
        self._unchecked += rows
        if rows < FEWEST_ROWS or self._unchecked < CHECK_EVERY:
            return False
        self._unchecked = 0
        return True

    def run(self, x: Tensor, threads: int | None, method: str = "__call__") -> Array:
        """Compute codes, shape (n, q), or the "errors" of a bank, shape (n, classes)."""
        if x.dtype == torch.float32:
            if x.dtype not in self._built:
                self._built[x.dtype] = compile_encoder(self.encoder, threads=threads)
            result: Array = getattr(self._built[x.dtype], method)(x.numpy())
            return result
        if x.dtype not in self._built:
            self._built[x.dtype] = copy.deepcopy(self.encoder).to(x.dtype)
        with torch.no_grad():
            return as_array(getattr(self._built[x.dtype], method)(x))


class Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What all transformers have in common; a subclass builds the initial model."""

    #: whether data and dictionary must be non-negative
    _nonnegative = False

    encoder_: Encoder | None
    mean_: Any
    _learner: OnlineLearner | None
    _runner: Runner | None

    def __init__(
        self,
        n_components: int,
        transform_algorithm: str,
        layers: int,
        regime: Any,
        steps: int | None,
        passes: int | None,
        threads: int | None,
        random_state: Any,
    ) -> None:
        self.n_components, self.transform_algorithm = n_components, transform_algorithm
        self.layers, self.regime, self.steps, self.passes = layers, regime, steps, passes
        self.threads, self.random_state = threads, random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.positive_only = self._nonnegative
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the dictionary and train the encoder.

        Parameters
        ----------
        X, y
            Signals as rows, shape (n, m). y is ignored.

        Returns
        -------
        self
            The fitted estimator.
        """
        x = self._learn_dictionary(self._checked(X, reset=True))
        if self._uses_encoder():
            self.encoder_ = choose_encoder(self.model_, self.layers)
            train(self.encoder_, x, regime=self._new_regime(), steps=self.steps, seed=self._seed())
        self._finish(x)
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
            Signals as rows, shape (n, m). y is ignored.

        Returns
        -------
        self
            The fitted estimator.
        """
        first = not hasattr(self, "model_")
        signals = self._checked(X, reset=first)
        if first:
            x = self._learn_dictionary(signals)
        else:
            x = self._centred(signals).float()
            self.n_samples_seen_ += len(x)
        if self._uses_encoder():
            self._learn_with_encoder(x)
        elif not first:
            self._learn_with_exact_codes(x)
        self._finish(x)
        return self

    def _learn_dictionary(self, X: Array) -> Tensor:
        """Choose mean and weights, learn the dictionary, and return centred signals in float32."""
        self._uses_encoder()
        require_count(self.n_components, "n_components")
        require_count(self.layers, "layers")
        self.mean_ = self._choose_mean(X)
        x = self._centred(X).float()
        start = self._initial_model(x, self._seed())
        passes = default_passes(len(x)) if self.passes is None else self.passes
        model, self._online = learn_with_statistics(x, start, passes, seed=self._seed())
        self._online.decay(min(1.0, MEMORY / self._online.weight))
        self.n_samples_seen_ = len(x)
        self._learner = self.encoder_ = None
        self._set_model(model)
        return x

    def _learn_with_encoder(self, x: Tensor) -> None:
        if self._learner is None:
            if self.encoder_ is None:
                self.encoder_ = choose_encoder(self.model_, self.layers)
            self._learner = OnlineLearner(self.encoder_, self._new_regime(), seed=self._seed())
            # continue with the statistics of the data from which the dictionary was learned
            self._learner.dictionary = self._online
        before = self._learner.samples
        self._learner.partial_fit(x)
        if self._learner.samples > before:
            dictionary = self._learner.encoder.model.dictionary.detach().clone()
            self._set_model(self.model_.replace(dictionary=dictionary))

    def _learn_with_exact_codes(self, x: Tensor) -> None:
        model = self.model_
        for batch in torch.split(x, BATCH):
            self._online.remember(self.n_samples_seen_, most=MEMORY)
            codes = exact_codes(model, batch, ROUGH)
            model = model.replace(**self._online.learn_batch(model, batch, codes))
        self._set_model(model)

    def _set_model(self, model: SparseModel) -> None:
        self.model_ = model
        self.components_ = as_array(model.dictionary).copy()

    def _finish(self, x: Tensor) -> None:
        """Measure how well the encoder does, and make it ready to run."""
        self.gap_, self._runner = 0.0, None
        if self.encoder_ is not None:
            rows = x[_some_rows(x)]
            with torch.no_grad():
                self.gap_ = mean_excess(self.model_, rows, self.encoder_(rows))
            self._runner = Runner(self.encoder_)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> Array:
        """Compute the codes of signals.

        float32 data run through the compiled encoder, which is the quickest way, and float64 data
        through the encoder in double precision. With ``transform_algorithm="exact"`` the model is
        solved to a relative gap of 1e-6.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).

        Returns
        -------
        ndarray
            Codes, shape (n, n_components), in the dtype of X.

        Warns
        -----
        UserWarning
            If the encoder does far worse on X than on the training data. This is measured with
            exact codes of 100 rows, in the first call and after every 5000 rows.
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
        model = self.model_.to(torch.float64)
        return -float(model.objective(self._centred(signals).double(), codes).mean())

    def _encode(self, X: Array, stacklevel: int | None = None) -> Array:
        """Compute all coefficients; with a `stacklevel` for warnings, check the encoder if due."""
        x = self._centred(X)
        if not self._uses_encoder():
            return as_array(exact_codes(self.model_, x))
        if self._runner is None:
            raise ValueError(
                'transform_algorithm="encoder" needs a trained encoder, but the estimator was '
                'fitted with transform_algorithm="exact"; fit it again'
            )
        codes = self._runner.run(x, self.threads)
        if stacklevel is not None and self._runner.check_is_due(len(x)):
            self._warn_if_far(x, codes, stacklevel)
        return codes

    def _warn_if_far(self, x: Tensor, codes: Array, stacklevel: int) -> None:
        rows = _some_rows(x)
        gap = mean_excess(self.model_, x[rows], torch.from_numpy(codes)[rows])
        if gap > max(FAR * self.gap_, NOTICEABLE):
            warnings.warn(
                f"the encoder's objective is {gap:.1%} above the optimum on these data, but "
                f"{self.gap_:.2%} on the training data; call partial_fit with new data, or use "
                'transform_algorithm="exact"',
                UserWarning,
                stacklevel=stacklevel,
            )

    @abstractmethod
    def _initial_model(self, x: Tensor, seed: int) -> SparseModel:
        """Choose weights for centred signals and build the model from which learning starts."""

    def _choose_mean(self, X: Array) -> Array | None:
        """The mean to subtract from signals, or None."""
        return None

    def _visible(self, codes: Array) -> Array:
        """The coefficients that `transform` returns."""
        return codes

    def _uses_encoder(self) -> bool:
        require_choice(self.transform_algorithm, ("encoder", "exact"), "transform_algorithm")
        return self.transform_algorithm == "encoder"

    def _seed(self) -> int:
        return as_seed(self.random_state)

    def _new_regime(self) -> Any:
        """A new regime object, since training stores data in it."""
        if not isinstance(self.regime, str):
            return copy.deepcopy(self.regime)
        require_choice(self.regime, tuple(REGIMES), "regime")
        return REGIMES[self.regime]()

    def _checked(self, X: Any, reset: bool = False) -> Array:
        checked: Array = validate_data(
            self, X, reset=reset, dtype=FLOATS, order="C", ensure_non_negative=self._nonnegative
        )
        return checked

    def _centred(self, X: Array) -> Tensor:
        if self.mean_ is not None:
            return torch.from_numpy(X - self.mean_.astype(X.dtype))
        return torch.from_numpy(np.require(X, requirements=["C", "W"]))

    def _uncentred(self, X: Array) -> Array:
        return X if self.mean_ is None else X + self.mean_.astype(X.dtype)


def require_count(value: Any, name: str) -> None:
    """Raise an error unless the value is an integer of at least 1."""
    check_scalar(value, name, Integral, min_val=1)


def as_seed(random_state: Any) -> int:
    """Turn scikit-learn's `random_state` into a seed; None becomes 0."""
    if random_state is None:
        return 0
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _some_rows(x: Tensor) -> Tensor:
    """Indices of the rows on which an excess is measured."""
    return torch.from_numpy(sample_rows(len(x), GAP_ROWS))
