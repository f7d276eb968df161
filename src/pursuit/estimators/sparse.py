"""SparseCoding: sparse codes over a learned dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..models import SparseModel
from ..penalties import Penalty
from ..sampling import Array
from .base import Transformer
from .start import start_sparse


class SparseCoding(Transformer):
    """Sparse codes over a learned dictionary, from a trained encoder or from the exact solver.

    Minimises ``1/2 ||x - z D||^2 + psi(z)`` over codes z and, in `fit`, over dictionaries D with
    atoms of unit norm; psi is ``lam ||z||_1`` or another penalty.

    Parameters
    ----------
    n_components
        The number of atoms.
    lam
        The weight of the penalty: of single coefficients, or of groups if ``penalty="group"``.
        "auto" is ``sigma sqrt(2 log q)`` for q atoms, or ``sigma (sqrt(g) + sqrt(2 log R))`` for R
        groups of g atoms; for "hilasso" half of each. sigma is the noise level: 1.4826 times the
        median absolute residual of a principal component fit of rank q (at most half of the
        smaller side of X) to the centred data, corrected for the degrees of freedom, without
        entries above 3 sigma, and at least 1 % of the size of a typical entry.
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
        "encoder": codes of an encoder that `fit` trains; "exact": codes of the exact solver.
    layers
        The number of layers of the encoder.
    regime
        The training objective of the encoder: "unsupervised" (low objectives), "approximation"
        (codes near the exact ones), or an object of `pursuit.regimes`.
    steps
        The number of training steps of the encoder; None chooses it by the size of the encoder.
    passes
        The number of passes over the data to learn the dictionary; None makes 30 000 samples
        altogether, in at most 30 passes.
    threads
        The number of threads of the compiled encoder; None uses all cores.
    random_state
        Seeds all random numbers. None means 0: the same data give the same result.

    Attributes
    ----------
    components_
        The atoms, shape (n_components, m), float32.
    model_
        The model that is solved, see `pursuit.models`.
    encoder_
        The trained torch encoder, None with ``transform_algorithm="exact"``.
    lam_, lam_group_
        The weights of the penalty; None where it has none.
    mean_
        The mean that is subtracted from signals, or None.
    gap_
        The mean objective of the encoder's codes relative to the optimum, minus 1, on a sample of
        the data of the last `fit` or `partial_fit`; 0 without an encoder.
    n_samples_seen_
        The number of rows that the estimator has learned from.

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
        self.lam, self.lam_group = lam, lam_group
        self.penalty, self.groups = penalty, groups
        self.nonnegative, self.center = nonnegative, center

    def _choose_mean(self, X: Array) -> Array | None:
        mean: Array | None = X.mean(axis=0) if self.center else None
        return mean

    def _initial_model(self, x: Tensor, seed: int) -> SparseModel:
        names = ("penalty", "lam", "lam_group", "groups", "nonnegative")
        settings: Any = {name: getattr(self, name) for name in names}
        model = start_sparse(x, self.n_components, seed=seed, **settings)
        self.lam_: float | None = getattr(model, "lam", None)
        self.lam_group_: float | None = getattr(model, "lam_group", None)
        return model
