"""SparseCoding: sparse codes over a learned dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..penalties import Penalty
from ..progress import Callback
from ..sampling import Array
from .base import Transformer
from .start import Start, start_sparse


class SparseCoding(Transformer):
    """Sparse codes over a learned dictionary, from the exact solver or from a trained encoder.

    Minimises ``1/2 ||x - z D||^2 + psi(z)`` over codes z and, in `fit`, over dictionaries D with
    atoms of unit norm; psi is ``lam ||z||_1`` or another penalty.

    Parameters
    ----------
    n_components
        The number of atoms.
    lam
        The weight of the penalty: of single coefficients, or of groups if ``penalty="group"``.
        "auto" is ``sigma sqrt(2 log q)`` for q atoms, or ``sigma (sqrt(g) + sqrt(2 log R))`` for R
        groups of g atoms; for "hilasso" half of each. sigma is the noise level: the standard
        deviation of the entries from a robust low-rank fit of rank q (at most half of the smaller
        side of X), without outliers, and at least 1 % of the size of a typical entry.
    lam_group
        The weight of the groups if ``penalty="hilasso"``.
    penalty
        "l1", "group" (few groups of atoms), "hilasso" (few groups, few atoms in each), or an object
        of `pursuit.penalties`, which has its weights already.
    groups
        Disjoint lists of atom indices, for "group" and "hilasso".
    nonnegative
        Whether codes must be non-negative.
    center
        Whether to subtract the mean of the data.
    transform_algorithm
        "exact": codes of the exact solver; "encoder": codes of an encoder that `fit` trains, which
        takes longer to fit and has a small, constant cost for new data. `train_encoder` adds an
        encoder to a fitted estimator.
    tol
        `fit` stops when the objective decreases by less than this fraction in one iteration; None
        means 1e-3.
    max_iter
        The largest number of iterations of `fit`.
    layers
        The number of layers of the encoder.
    regime
        The training objective of the encoder: "unsupervised" (low objectives), "approximation"
        (codes near the exact ones), or an object of `pursuit.regimes`.
    steps
        The number of training steps of the encoder; None chooses it by the size of the encoder.
    threads
        The number of threads of the compiled encoder; None uses all cores.
    verbose
        Whether to print the progress of `fit`, about once a second.
    callback
        A function that is called with a `pursuit.progress.Progress` after each iteration; a true
        return value ends the learning.
    random_state
        Seeds all random numbers. None means 0: the same data give the same result.

    Attributes
    ----------
    components_
        The atoms, shape (n_components, m), in the dtype of X.
    model_
        The model that is solved, see `pursuit.models`.
    encoder_
        The trained torch encoder, None if there is none.
    lam_, lam_group_
        The weights of the penalty; None where it has none.
    mean_
        The mean that is subtracted from signals, or None.
    gap_
        The mean objective of the encoder's codes relative to the optimum, minus 1, on a sample of
        the data of the last `fit` or `partial_fit`; 0 without an encoder.
    n_samples_seen_
        The number of rows that the estimator has learned from.
    n_iter_, objective_, history_, converged_
        Of `fit`: the number of iterations, the objective at the end and during them, and whether
        they sufficed.
    reconstruction_err_
        ``||X - Z D||_F`` over the observed entries.

    See Also
    --------
    RobustPCA : A few directions, and outliers.

    Examples
    --------
    >>> import numpy as np
    >>> from pursuit.estimators import SparseCoding
    >>> X = np.random.default_rng(0).standard_normal((200, 8))
    >>> coder = SparseCoding(n_components=12, lam=0.5).fit(X)
    >>> coder.transform(X).shape
    (200, 12)
    >>> coder.train_encoder(X, layers=3, steps=20).transform(X).shape
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
        self.lam, self.lam_group = lam, lam_group
        self.penalty, self.groups = penalty, groups
        self.nonnegative, self.center = nonnegative, center

    def _centre(self, X: Array) -> Tensor:
        self.mean_ = np.nan_to_num(np.nanmean(X, axis=0)) if self.center else None
        return self._centred(X)

    def _start(self, x: Tensor, seed: int) -> Start:
        names = ("penalty", "lam", "lam_group", "groups", "nonnegative")
        settings: Any = {name: getattr(self, name) for name in names}
        start = start_sparse(x, self.n_components, seed=seed, **settings)
        self.lam_: float | None = getattr(start.model, "lam", None)
        self.lam_group_: float | None = getattr(start.model, "lam_group", None)
        return start
