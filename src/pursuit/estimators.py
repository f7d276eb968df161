"""The scikit-learn faces: estimators on NumPy arrays that choose, train and run what is below them.

`fit` learns a dictionary with exact codes, then trains an encoder that replaces the solver;
`transform` runs it, or the solver itself (``transform="exact"``). What they choose for themselves
is stated in `estimator_rules`.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from . import estimator_rules as rules
from . import models
from ._checks import require_choice
from .dictionary import BATCH, OnlineDictionary, draw, learn
from .encoders.bank import EncoderBank
from .encoders.encoder import Encoder
from .encoders.proximal import ProximalEncoder
from .models import Parts, SparseModel
from .online import OnlineLearner
from .penalties import Penalty
from .regimes import Approximation, Discriminative, Regime, Unsupervised
from .runtime.compiled import Compiled, CompiledBank
from .runtime.compiled import compile as compile_encoder
from .training import fit as train

__all__ = ["NMF", "PursuitClassifier", "RobustNMF", "RobustPCA", "SparseCoding"]

Array = np.ndarray[Any, Any]

MODES = ("encoder", "exact")
#: rows on which a gap is measured, and the fewest rows that are looked at
GAP_ROWS, FEWEST_ROWS = 100, 20
#: new data whose gap is so many times that of the training data, and above this, cause a warning
FAR, NOTICEABLE = 5.0, 0.01
FLOATS = [np.float64, np.float32]


class _Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What all transformers share; a new one says what its model is and where it starts.

    There is a constructor argument `transform` beside the method of that name, so the
    argument is kept as a private attribute; `get_params` and `set_params` know it by its name.
    """

    #: whether data and dictionary must not be negative
    _nonnegative = False

    n_components: int
    layers: int
    regime: Any
    steps: int | None
    passes: int | None
    threads: int | None
    random_state: Any
    _transform: str

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments by name."""
        params: dict[str, Any] = super().get_params(deep)
        params["transform"] = self._transform
        return params

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor, by name."""
        others = {name: value for name, value in params.items() if name != "transform"}
        super().set_params(**others)
        if "transform" in params:
            self._transform = params["transform"]
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.positive_only = self._nonnegative
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_runners" in state:
            state["_runners"] = {}  # compiled anew where it is loaded
        return state

    # ---- learning ---------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the dictionary and train the encoder.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
        y
            Not used.

        Returns
        -------
        The estimator itself.
        """
        signals = self._checked(X, reset=True)
        x = self._begin(signals)
        self._learner: OnlineLearner | None = None
        self.encoder_: Encoder | None = None
        if self._mode == "encoder":
            self.encoder_ = self._build_encoder()
            regime, seed = self._own_regime(), self._seed()
            train(self.encoder_, x, regime=regime, steps=self.steps, seed=seed)
        self._measure(x)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from more data, starting from what there is; the dictionary follows.

        The first call on a new estimator chooses weights and a dictionary from its own rows, so
        they should be typical, and several times as many as components. The mean and the weights
        stay. In encoder mode data are worked off in chunks of 100 rows by an `OnlineLearner`; rows
        that do not fill a chunk wait for the next call.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
        y
            Not used.

        Returns
        -------
        The estimator itself.
        """
        first = not hasattr(self, "model_")
        signals = self._checked(X, reset=first)
        if first:
            x = self._begin(signals)
            self._learner, self.encoder_ = None, None
        else:
            x = self._centred(signals).float()
            self.n_samples_seen_ += len(x)
        if self._mode == "encoder":
            self._learn_with_encoder(x)
        elif not first:
            self._learn_with_exact_codes(x)
        self._measure(x)
        return self

    def _begin(self, X: Array) -> Tensor:
        """Everything up to the dictionary; the centred signals in float32."""
        self._check_settings()
        self.mean_: Any = self._choose_mean(X)
        x = self._centred(X).float()
        self.n_samples_seen_ = len(x)
        self._adopt(self._learn(x, self._seed()))
        self._online: OnlineDictionary | None = rules.statistics(self.model_, x, self._seed())
        return x

    def _learn_with_encoder(self, x: Tensor) -> None:
        if self._learner is None:
            if self.encoder_ is None:
                self.encoder_ = self._build_encoder()
            regime, seed = self._own_regime(), self._seed()
            self._learner = OnlineLearner(self.encoder_, regime, seed=seed)
            assert self._learner.dictionary is not None
            assert self._online is not None
            # the stream goes on from the data that made the dictionary, and the dictionary's
            # penalty keeps the weight that it has for them
            self._learner.dictionary.state = self._online.state
            self._learner.dictionary.total = self._online.total
            self._online = None
        learner = self._learner
        before = learner.samples
        learner.partial_fit(x)
        if learner.samples > before:
            encoder = learner.encoder
            with torch.no_grad():
                atoms = rules.alive(encoder.model.dictionary.detach().clone())
                encoder.get_parameter("dictionary").copy_(atoms)
            self._adopt(self.model_.replace(dictionary=atoms))

    def _learn_with_exact_codes(self, x: Tensor) -> None:
        if self._online is None:
            self._online = rules.statistics(self.model_, x, self._seed())
        model = self.model_
        for batch in torch.split(x, BATCH):
            self._online.beta = rules.memory(self._online, self.n_samples_seen_)
            model = rules.renew(model, self._online, batch)
        self._adopt(model)

    def _adopt(self, model: SparseModel) -> None:
        self.model_ = model
        self.components_ = model.dictionary.detach().cpu().numpy().copy()
        self._runners: dict[str, Any] = {}

    def _measure(self, x: Tensor) -> None:
        self.gap_ = 0.0
        if self.encoder_ is not None:
            rows = _drawn(len(x), GAP_ROWS)
            with torch.no_grad():
                self.gap_ = rules.relative_gap(self.model_, x[rows], self.encoder_(x[rows]))

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    # ---- using ------------------------------------------------------------------------

    def transform(self, X: Any) -> Array:
        """The codes of signals, shape (n, n_components), in the dtype of X.

        float32 data run through the compiled encoder, which is the quickest way; float64 data
        through the encoder in double precision; with ``transform="exact"`` the model is solved to
        a relative gap of 1e-6. A warning tells when the encoder fits these data far worse than
        those it was trained on.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
        """
        check_is_fitted(self)
        # the caller stands behind scikit-learn's wrapper of this method
        return self._visible(self._encode(self._checked(X), warn_at=5))

    def inverse_transform(self, X: Any) -> Array:
        """The signals that codes stand for, ``codes @ components_ + mean_``, shape (n, m).

        Parameters
        ----------
        X
            Codes, shape (n, n_components).
        """
        check_is_fitted(self)
        codes = check_array(X, dtype=FLOATS)
        if codes.shape[1] != self._n_features_out:
            raise ValueError(
                f"X has {codes.shape[1]} columns, but there are {self._n_features_out} "
                "components; give what transform returns"
            )
        return self._restored(codes @ self.components_.astype(codes.dtype))

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the mean objective of the codes of X; higher is better.

        It compares codes and dictionaries for the same model: with other weights the objective is
        another one, so weights cannot be chosen by it.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
        y
            Not used.
        """
        check_is_fitted(self)
        signals = self._checked(X)
        codes = torch.from_numpy(self._encode(signals)).double()
        model = self.model_.to(torch.float64)
        return -float(model.objective(self._centred(signals).double(), codes).mean())

    def _encode(self, X: Array, warn_at: int | None = None) -> Array:
        """All coefficients of checked signals, in their dtype; warnings point so many frames up."""
        x = self._centred(X)
        if self._mode == "exact":
            return _numpy(rules.exact(self.model_, x, rules.EXACT))
        if self.encoder_ is None:
            raise ValueError(
                'transform="encoder" needs a trained encoder, but the estimator was fitted with '
                'transform="exact"; fit it again'
            )
        codes = self._run(x)
        if warn_at is not None:
            self._warn_if_far(x, codes, warn_at)
        return codes

    def _run(self, x: Tensor) -> Array:
        runner = _runner(self._runners, self.encoder_, x.dtype, self.threads)
        if isinstance(runner, Compiled):
            return runner(x.numpy())
        with torch.no_grad():
            return _numpy(runner(x))

    def _warn_if_far(self, x: Tensor, codes: Array, level: int) -> None:
        if len(x) < FEWEST_ROWS:
            return
        rows = _drawn(len(x), GAP_ROWS)
        gap = rules.relative_gap(self.model_, x[rows], torch.from_numpy(codes)[rows])
        if gap > max(FAR * self.gap_, NOTICEABLE):
            warnings.warn(
                f"the encoder's objective is {gap:.1%} above the optimum on these data, but "
                f"{self.gap_:.2%} on those it was trained on; let it follow with partial_fit, or "
                'use transform="exact"',
                UserWarning,
                stacklevel=level,
            )

    # ---- what the kinds differ in -----------------------------------------------------

    @abstractmethod
    def _learn(self, x: Tensor, seed: int) -> SparseModel:
        """Choose weights for centred signals; the model on a dictionary that was learned."""

    def _choose_mean(self, X: Array) -> Array | None:
        """What is subtracted from signals."""
        return None

    def _visible(self, codes: Array) -> Array:
        """What `transform` shows of all coefficients."""
        return codes

    # ---- odds and ends ----------------------------------------------------------------

    @property
    def _mode(self) -> str:
        require_choice(self._transform, MODES, "transform")
        return self._transform

    def _seed(self) -> int:
        return _as_seed(self.random_state)

    def _check_settings(self) -> None:
        _require_count(self.n_components, "n_components")
        _require_count(self.layers, "layers")
        assert self._mode

    def _own_regime(self) -> Any:
        """The regime as an object of our own: training leaves traces in it."""
        named: dict[str, type[Regime]] = {
            "unsupervised": Unsupervised,
            "approximation": Approximation,
        }
        if isinstance(self.regime, str):
            require_choice(self.regime, tuple(named), "regime")
            return named[self.regime]()
        return copy.deepcopy(self.regime)

    def _build_encoder(self) -> Encoder:
        return rules.choose_encoder(self.model_, self.layers)

    def _checked(self, X: Any, reset: bool = False) -> Array:
        checked: Array = validate_data(
            self,
            X,
            reset=reset,
            dtype=FLOATS,
            order="C",
            ensure_non_negative=self._nonnegative,
        )
        return checked

    def _centred(self, X: Array) -> Tensor:
        if self.mean_ is not None:
            return torch.from_numpy(X - self.mean_.astype(X.dtype))
        return torch.from_numpy(np.require(X, requirements=["C", "W"]))

    def _restored(self, X: Array) -> Array:
        return X if self.mean_ is None else X + self.mean_.astype(X.dtype)


class SparseCoding(_Transformer):
    """Sparse codes over a learned dictionary, from a trained encoder or from the exact solver.

    Minimises ``1/2 ||x - z D||^2 + psi(z)`` over codes z and, in `fit`, over unit-norm atoms D; psi
    is ``lam ||z||_1`` unless another penalty is asked for.

    Parameters
    ----------
    n_components
        The number of atoms.
    lam
        The weight of the penalty: of single coefficients, or of groups for ``penalty="group"``.
        "auto" is ``sigma sqrt(2 log q)`` for q atoms, or ``sigma (sqrt(g) + sqrt(2 log R))`` for R
        groups of g atoms; for "hilasso" half of each. sigma is the noise: 1.4826 times the median
        absolute deviation of what a principal component fit of rank q (at most half of what
        the data allow) leaves of the centred data, corrected for the degrees of freedom, without
        what is above 3 sigma, and at least 1 % of the size of an entry.
    lam_group
        The weight of the groups for ``penalty="hilasso"``.
    penalty
        "l1", "group" (few groups of atoms), "hilasso" (few groups, few atoms in each), or an object
        of `pursuit.penalties`, which brings its own weights.
    groups
        Disjoint lists of atom numbers, for "group" and "hilasso".
    nonnegative
        Whether codes must not be negative.
    center
        Whether the mean of the data is subtracted.
    transform
        "encoder": codes from an encoder of `layers` layers, trained by `fit`; "exact": from
        the solver.
    layers
        The depth of the encoder.
    regime
        What the encoder is trained for: "unsupervised" (low objectives), "approximation" (codes
        near the exact ones), or an object of `pursuit.regimes`.
    steps
        Training steps of the encoder; None for what its size asks for.
    passes
        How often the data are gone through for the dictionary; None for as often as makes
        30 000 samples, 30 times at most.
    threads
        Threads of the compiled encoder, None for as many as there are cores.
    random_state
        Seeds everything that is drawn. None stands for 0: the same data give the same result.

    Attributes
    ----------
    components_
        The atoms, shape (n_components, m), float32.
    model_
        The model that is solved, see `pursuit.models`.
    encoder_
        The trained torch encoder, None with ``transform="exact"``.
    lam_, lam_group_
        The weights that were used; None where there is none.
    mean_
        What is subtracted from signals, or None.
    gap_
        How far the encoder is above the optimum on a sample of the data it was last
        trained on, as a part of it; 0 without an encoder.
    n_samples_seen_
        How many rows it has learned from.

    See Also
    --------
    RobustPCA : A few directions, and outliers.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import SparseCoding
    >>> X = np.random.default_rng(0).standard_normal((200, 8))
    >>> coder = SparseCoding(n_components=12, lam=0.5, layers=3, steps=20)
    >>> coder.fit_transform(X).shape
    (200, 12)
    """

    def __init__(
        self,
        n_components: int = 64,
        *,
        lam: float | str = "auto",
        lam_group: float | str = "auto",
        penalty: str | Penalty = "l1",
        groups: Sequence[Sequence[int]] | None = None,
        nonnegative: bool = False,
        center: bool = False,
        transform: str = "encoder",
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        passes: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.lam = lam
        self.lam_group = lam_group
        self.penalty = penalty
        self.groups = groups
        self.nonnegative = nonnegative
        self.center = center
        self._transform = transform
        self.layers = layers
        self.regime = regime
        self.steps = steps
        self.passes = passes
        self.threads = threads
        self.random_state = random_state

    def _choose_mean(self, X: Array) -> Array | None:
        mean: Array | None = X.mean(axis=0) if self.center else None
        return mean

    def _learn(self, x: Tensor, seed: int) -> SparseModel:
        self.lam_, self.lam_group_ = self._weights(x, seed)
        passes = rules.choose_passes(self.passes, len(x))
        q = self.n_components
        if self.penalty == "l1" and not self.nonnegative and self.lam_ is not None:
            atoms = learn(_nonzero(x), q, self.lam_, passes=passes, seed=seed)
            return models.Lasso(rules.alive(atoms), self.lam_)
        model = self._model(draw(_nonzero(x), q, seed))
        return rules.refine(model, x, passes, seed)

    def _model(self, atoms: Tensor) -> SparseModel:
        if isinstance(self.penalty, Penalty):
            return models.SparseModel(atoms, self.penalty)
        assert self.lam_ is not None
        if self.penalty == "l1":
            return models.Lasso(atoms, self.lam_, self.nonnegative)
        assert self.groups is not None
        if self.penalty == "group":
            return models.GroupLasso(atoms, self.groups, self.lam_, self.nonnegative)
        assert self.lam_group_ is not None
        return models.HiLasso(atoms, self.groups, self.lam_group_, self.lam_, self.nonnegative)

    def _weights(self, x: Tensor, seed: int) -> tuple[float | None, float | None]:
        lam, lam_group = _weight(self.lam, "lam"), _weight(self.lam_group, "lam_group")
        if isinstance(self.penalty, Penalty):
            return None, None
        q = self.n_components
        sigma = rules.noise_level(x.numpy(), q, seed) if None in (lam, lam_group) else 0.0
        single = rules.lasso_weight(sigma, q)
        if self.penalty == "l1":
            return single if lam is None else lam, None
        assert self.groups is not None
        size = float(np.mean([len(group) for group in self.groups]))
        several = rules.group_weight(sigma, len(self.groups), size)
        if self.penalty == "group":
            return several if lam is None else lam, None
        return single / 2 if lam is None else lam, several / 2 if lam_group is None else lam_group

    def _check_settings(self) -> None:
        super()._check_settings()
        if isinstance(self.penalty, Penalty):
            return
        if not isinstance(self.penalty, str):
            raise TypeError(
                f"penalty must be a name or a Penalty, got {type(self.penalty).__name__}"
            )
        require_choice(self.penalty, ("l1", "group", "hilasso"), "penalty")
        if self.penalty != "l1" and not self.groups:
            raise ValueError(
                f"penalty={self.penalty!r} needs groups, lists of atom numbers such as "
                "[[0, 1], [2, 3]]"
            )


class NMF(_Transformer):
    """Non-negative matrix factorisation with a code for new data.

    Minimises ``1/2 ||x - z D||^2 + ridge/2 ||z||^2`` over codes ``z >= 0`` and, in `fit`, over
    dictionaries ``D >= 0`` with atoms in the unit ball (or charged by the same ridge).

    Parameters
    ----------
    n_components
        The number of atoms.
    ridge
        The weight of the quadratic penalty.
    transform, layers, regime, steps, passes, threads, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_
        The atoms, shape (n_components, m), float32, not negative.
    model_, encoder_, gap_, n_samples_seen_
        As for `SparseCoding`.

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
        transform: str = "encoder",
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        passes: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.ridge = ridge
        self._transform = transform
        self.layers = layers
        self.regime = regime
        self.steps = steps
        self.passes = passes
        self.threads = threads
        self.random_state = random_state

    def _learn(self, x: Tensor, seed: int) -> SparseModel:
        start = rules.balanced_start(
            x.numpy(), self.n_components, self.ridge, nonnegative=True, seed=seed, wild=False
        )
        passes = rules.choose_passes(self.passes, len(x))
        return rules.refine(models.NMF(start, self.ridge), x, passes, seed)


class _Robust(_Transformer):
    """What robust PCA and robust NMF share."""

    lam: float | str
    lam_star: float | str

    def split(self, X: Any) -> Parts:
        """The parts of signals: `low_rank` and `sparse` (n, m), `scores` (n, q), `outliers` (n, m).

        All are NumPy arrays in the dtype of X. ``low_rank = scores @ components_ + mean_``, and
        `sparse` is the same as `outliers`: single entries that stand out. What X has beyond both
        is noise.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
        """
        check_is_fitted(self)
        codes = self._encode(self._checked(X), warn_at=4)
        scores, outliers = np.split(codes, [self._n_features_out], axis=1)
        parts: dict[str, Any] = {
            "low_rank": self._restored(scores @ self.components_.astype(codes.dtype)),
            "sparse": outliers,
            "scores": scores,
            "outliers": outliers,
        }
        return Parts(**parts)

    def _visible(self, codes: Array) -> Array:
        return np.ascontiguousarray(codes[:, : self._n_features_out])

    def _learn(self, x: Tensor, seed: int) -> SparseModel:
        n, m = x.shape
        q = self._atoms(m)
        lam, lam_star = _weight(self.lam, "lam"), _weight(self.lam_star, "lam_star")
        if lam is None or lam_star is None:
            sigma = rules.noise_level(x.numpy(), q, seed)
            own = rules.robust_weights(sigma, n, m)
            lam, lam_star = own[0] if lam is None else lam, own[1] if lam_star is None else lam_star
        self.lam_, self.lam_star_ = lam, lam_star
        start = rules.balanced_start(x.numpy(), q, lam_star, self._nonnegative, seed)
        kind = models.RobustNMF if self._nonnegative else models.RobustPCA
        passes = rules.choose_passes(self.passes, n)
        return rules.refine(kind(start, lam_star, lam), x, passes, seed)

    def _atoms(self, features: int) -> int:
        return self.n_components


class RobustPCA(_Robust):
    """A few directions that explain the data, and single entries that stand out.

    Minimises ``1/2 ||x - s D - o||^2 + lam_star/2 ||s||^2 + lam ||o||_1`` over scores s and
    outliers o and, in `fit`, over D with ``lam_star/2 ||D||^2``: the nuclear norm of the low-rank
    part in factored form. Unlike the convex problem it has a code for new data.

    Parameters
    ----------
    n_components
        The number of directions, at most that of the features; more than needed does little harm.
    lam
        The weight of the outliers. "auto" is ``sqrt(2) sigma``. sigma is the noise: 1.4826 times
        the median absolute deviation of what a principal component fit of rank n_components (at
        most half of what the data allow) leaves of the centred data, corrected for the degrees of
        freedom, without what is above 3 sigma, and at least 1 % of the size of an entry.
    lam_star
        The weight of the scores and, once for all n rows of `fit`, of the directions. "auto" is
        ``sqrt(2 max(n, m)) sigma``.
    center
        Whether the mean is subtracted, that of the data without the entries that stand out.
    transform, layers, regime, steps, passes, threads, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_
        The directions D, shape (n_components, m), float32; neither orthogonal nor of unit norm.
    model_, encoder_, gap_, n_samples_seen_
        As for `SparseCoding`.
    lam_, lam_star_
        The weights that were used.
    mean_
        What is subtracted from signals, or None.

    See Also
    --------
    RobustNMF : The same without negative numbers.
    pursuit.principal_component_pursuit : The convex problem, for one data set.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import RobustPCA
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 2)) @ rng.standard_normal((2, 12))
    >>> X[3, 4] += 10
    >>> parts = RobustPCA(2, transform="exact").fit(X).split(X)
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
        transform: str = "encoder",
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        passes: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.lam = lam
        self.lam_star = lam_star
        self.center = center
        self._transform = transform
        self.layers = layers
        self.regime = regime
        self.steps = steps
        self.passes = passes
        self.threads = threads
        self.random_state = random_state

    def _choose_mean(self, X: Array) -> Array | None:
        if not self.center:
            return None
        cleaned, _ = rules.clean(X, self._atoms(X.shape[1]), self._seed())
        mean: Array = cleaned.mean(axis=0).astype(X.dtype)
        return mean

    def _atoms(self, features: int) -> int:
        return min(self.n_components, features)


class RobustNMF(_Robust):
    """Non-negative parts that the data are made of, and single entries that stand out.

    As `RobustPCA`, with scores, outliers and atoms that must not be negative, and without a mean.

    Parameters
    ----------
    n_components
        The number of atoms.
    lam, lam_star
        As for `RobustPCA`.
    transform, layers, regime, steps, passes, threads, random_state
        As for `SparseCoding`.

    Attributes
    ----------
    components_
        The atoms, shape (n_components, m), float32, not negative.
    model_, encoder_, gap_, n_samples_seen_
        As for `SparseCoding`.
    lam_, lam_star_
        The weights that were used.

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
        transform: str = "encoder",
        layers: int = 10,
        regime: Any = "unsupervised",
        steps: int | None = None,
        passes: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.lam = lam
        self.lam_star = lam_star
        self._transform = transform
        self.layers = layers
        self.regime = regime
        self.steps = steps
        self.passes = passes
        self.threads = threads
        self.random_state = random_state


class PursuitClassifier(ClassifierMixin, BaseEstimator):
    """A dictionary and an encoder for each class; the class that reconstructs best is chosen.

    Signals are centred, get one more feature that is constant (the root mean square of their
    norms) and are scaled to unit norm: a map that loses nothing, under which classes that differ
    by their place become directions. Each class has a Lasso over atoms learned from its own rows;
    then all encoders and dictionaries are trained together, so that the own class reconstructs well
    and the others do not: ``e_l + sum_{j != l} max(0, margin - e_j)`` for errors e and label l.

    Parameters
    ----------
    n_components
        The atoms of each class, at most half as many as there are features: a class whose atoms
        span the space would reconstruct everything.
    lam
        The weight of the Lasso, for signals of unit norm. "auto" is the ``sigma sqrt(2 log q)`` of
        `SparseCoding`, but not more than 0.1.
    layers
        The depth of the encoders.
    margin
        In units of the median error of the wrong classes before training.
    steps
        Training steps; None for what the encoders' size asks for.
    threads
        Threads of the compiled encoders, None for as many as there are cores.
    random_state
        Seeds everything that is drawn. None stands for 0: the same data give the same result.

    Attributes
    ----------
    classes_
        The labels.
    bank_
        The encoders, an `EncoderBank`, in the order of `classes_`.
    lam_
        The weight that was used.
    mean_, offset_
        What is subtracted from signals, and the constant feature.

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
        n_components: int = 8,
        *,
        lam: float | str = "auto",
        layers: int = 3,
        margin: float = 0.5,
        steps: int | None = None,
        threads: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.lam = lam
        self.layers = layers
        self.margin = margin
        self.steps = steps
        self.threads = threads
        self.random_state = random_state

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_runners" in state:
            state["_runners"] = {}  # compiled anew where it is loaded
        return state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn a dictionary for each class, then train all of them to tell the classes apart.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
        y
            Labels of any kind, shape (n,).

        Returns
        -------
        The estimator itself.
        """
        signals, labels = validate_data(self, X, y, dtype=FLOATS, order="C")
        check_classification_targets(labels)
        _require_count(self.n_components, "n_components")
        _require_count(self.layers, "layers")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has one class only, {self.classes_[0]!r}; give samples of at least two classes"
            )
        seed = _as_seed(self.random_state)
        self.mean_ = signals.mean(axis=0)
        norms = np.linalg.norm(signals - self.mean_, axis=1)
        self.offset_ = float(np.sqrt(np.mean(np.square(norms)))) or 1.0
        x = self._prepared(signals).float()
        targets = torch.from_numpy(numbers.astype(np.int64))
        q = max(1, min(self.n_components, x.shape[1] // 2))
        lam = _weight(self.lam, "lam")
        if lam is None:
            sigma = rules.noise_level(x.numpy(), q, seed)
            lam = min(rules.lasso_weight(sigma, q), MOST_CLASS_LAM)
        self.lam_ = lam
        encoders = []
        for number in range(len(self.classes_)):
            own = x[targets == number]
            passes = rules.choose_passes(None, len(own))
            atoms = learn(own, q, lam, passes=passes, seed=seed)
            encoders.append(ProximalEncoder(models.Lasso(rules.alive(atoms), lam), self.layers))
        self.bank_ = EncoderBank(encoders, shared=None)
        regime = Discriminative(self.margin)
        options: dict[str, Any] = {"dictionary": "gradient", "steps": self.steps, "seed": seed}
        train(self.bank_, x, targets, regime=regime, **options)
        self._runners: dict[str, Any] = {}
        return self

    def decision_function(self, X: Any) -> Array:
        """Minus the reconstruction errors, shape (n, classes); of two classes the difference, (n,).

        The difference is positive where the second class reconstructs better.

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
        """
        check_is_fitted(self)
        signals = validate_data(self, X, reset=False, dtype=FLOATS, order="C")
        errors = self._errors(self._prepared(signals))
        return errors[:, 0] - errors[:, 1] if len(self.classes_) == 2 else -errors

    def predict(self, X: Any) -> Array:
        """The label of the class that reconstructs best, shape (n,).

        Parameters
        ----------
        X
            Signals as rows, shape (n, m).
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

    def _errors(self, x: Tensor) -> Array:
        runner = _runner(self._runners, self.bank_, x.dtype, self.threads)
        if isinstance(runner, CompiledBank):
            return runner.errors(x.numpy())
        with torch.no_grad():
            return _numpy(runner.errors(x))


#: the largest weight that a classifier chooses for signals of unit norm
MOST_CLASS_LAM = 0.1


def _runner(known: dict[str, Any], encoder: Any, dtype: torch.dtype, threads: int | None) -> Any:
    """What runs on signals of a dtype: compiled for float32, a copy in double precision otherwise.

    Made when it is first needed, and kept in `known`.
    """
    kind = "compiled" if dtype == torch.float32 else "double"
    if kind not in known:
        known[kind] = (
            compile_encoder(encoder, threads=threads)
            if kind == "compiled"
            else copy.deepcopy(encoder).double()
        )
    return known[kind]


def _weight(value: float | str, name: str) -> float | None:
    """A weight as a number, None for "auto"."""
    if isinstance(value, str):
        if value == "auto":
            return None
        raise ValueError(f"{name} must be 'auto' or a number, got {value!r}")
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be 'auto' or non-negative and finite, got {value}")
    return number


def _require_count(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def _as_seed(random_state: Any) -> int:
    if random_state is None:
        return 0
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _drawn(rows: int, most: int) -> Tensor:
    """The numbers of at most so many rows, always the same ones."""
    if rows <= most:
        return torch.arange(rows)
    return torch.from_numpy(np.sort(np.random.default_rng(0).choice(rows, most, replace=False)))


def _nonzero(x: Tensor) -> Tensor:
    """Signals that a dictionary can start from, also where all are zero."""
    return x if bool(x.any()) else torch.ones_like(x)


def _numpy(tensor: Tensor) -> Array:
    array: Array = tensor.detach().cpu().numpy()
    return array
