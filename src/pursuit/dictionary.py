"""Dictionaries that follow the data: sufficient statistics of codes, and the best atoms for them.

For coefficients s and targets y (the signals, or what outliers leave of them) the dictionary
minimises ``1/2 sum_i w_i ||y_i - s_i D||^2 + phi(D)``, which depends on the samples only through
``A = sum w s's`` and ``B = sum w s'y``. Old samples are forgotten by the weights
``w_i = beta^(samples since then)``, whatever the sizes of the batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from ._checks import ArrayLike, as_float_matrix, as_number
from .models import Constraint, Lasso, SparseModel
from .progress import Callback, Progress
from .solvers.solve import solve

__all__ = ["OnlineDictionary", "draw", "learn"]

#: an atom whose share of all coefficients' energy is below this part of the average is dead
DEAD = 1e-6
#: samples of a batch that `learn` codes at a time
BATCH = 512


class OnlineDictionary:
    """A dictionary that is renewed with every batch of codes, at a cost that does not grow.

    Parameters
    ----------
    dictionary
        The start, atoms as rows, shape (q, m). Never zero: an atom of zeros gets no code and
        so is never renewed.
    ridge
        The weight of ``phi(D) = ridge/2 ||D||_F^2``; with 0 atoms stay in the unit ball instead.
    nonnegative
        Whether entries must not be negative.
    beta
        How much the weight of a sample shrinks with each sample that comes after it; 1 forgets
        nothing, and ``1/(1 - beta)`` samples are remembered otherwise.
    total
        The number of samples for which phi counts once; by default those that are remembered.
    sweeps
        How often all atoms are renewed in turn after a batch.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> generator = torch.Generator().manual_seed(0)
    >>> true = torch.eye(3)
    >>> codes = torch.randn(500, 3, generator=generator)
    >>> online = pu.OnlineDictionary(torch.rand(3, 3, generator=generator), sweeps=50)
    >>> bool(torch.allclose(online.update(codes @ true, codes), true, atol=1e-4))
    True
    """

    def __init__(
        self,
        dictionary: ArrayLike,
        ridge: float = 0.0,
        nonnegative: bool = False,
        beta: float = 1.0,
        total: float | None = None,
        sweeps: int = 2,
    ) -> None:
        atoms = as_float_matrix(dictionary, "dictionary", "features").detach()
        constraint = Constraint(as_number(ridge, "ridge"), nonnegative)
        self._begin({"dictionary": atoms}, {"dictionary": constraint}, beta, total, sweeps)

    @classmethod
    def of(
        cls, model: SparseModel, beta: float = 1.0, total: float | None = None, sweeps: int = 2
    ) -> OnlineDictionary:
        """For the dictionaries of a model, with its constraints."""
        new = cls.__new__(cls)
        dictionaries = {name: t.detach() for name, t in model.dictionaries.items()}
        new._begin(dictionaries, model.constraints, beta, total, sweeps)
        return new

    def _begin(
        self,
        dictionaries: Mapping[str, Tensor],
        constraints: Mapping[str, Constraint],
        beta: float,
        total: float | None,
        sweeps: int,
    ) -> None:
        if not 0 < beta <= 1:
            raise ValueError(f"beta must be positive and at most 1, got {beta}")
        if sweeps < 1:
            raise ValueError(f"sweeps must be at least 1, got {sweeps}")
        self.beta, self.total, self.sweeps = beta, total, sweeps
        self.names = {name: len(tensor) for name, tensor in dictionaries.items()}
        first = next(iter(dictionaries.values()))
        self._like = first.new_empty(0)
        self.atoms = torch.cat([t.double().cpu() for t in dictionaries.values()])
        owners = [constraints[name] for name, size in self.names.items() for _ in range(size)]
        self._ridge = torch.tensor([c.ridge for c in owners], dtype=torch.float64)
        self._ball = torch.tensor([c.ridge == 0 for c in owners])
        self._nonnegative = torch.tensor([c.nonnegative for c in owners])
        q, m = self.atoms.shape
        self.A = torch.zeros(q, q, dtype=torch.float64)
        self.B = torch.zeros(q, m, dtype=torch.float64)
        self.weight = 0.0

    @property
    def dictionary(self) -> Tensor:
        """All atoms as they are now, in the dtype of the start."""
        return self.atoms.to(self._like)

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        """The same, by the names that the model gives them."""
        parts = torch.split(self.dictionary, list(self.names.values()))
        return dict(zip(self.names, parts, strict=True))

    def update(self, targets: Tensor, codes: Tensor) -> Tensor:
        """Count a batch in and renew the atoms; the dictionary that is then the best known.

        Parameters
        ----------
        targets
            What ``codes @ dictionary`` should give, shape (n, m).
        codes
            The coefficients, shape (n, q).
        """
        self.count(targets, codes)
        self.renew()
        return self.dictionary

    def count(self, targets: Tensor, codes: Tensor) -> None:
        """Count a batch in; the samples of a batch are of one age.

        A sample whose code is not finite is left out, since it would stay in the sums for ever.
        """
        y, s = targets.detach(), codes.detach()
        if y.shape[-1] != self.atoms.shape[1] or s.shape[-1] != len(self.atoms) or len(y) != len(s):
            raise ValueError(
                f"targets {tuple(y.shape)} and codes {tuple(s.shape)} do not fit a dictionary of "
                f"shape {tuple(self.atoms.shape)}"
            )
        squares, products = s.T @ s, s.T @ y
        if not math.isfinite(float(squares.sum() + products.sum())):
            usable = torch.isfinite(s).all(dim=1) & torch.isfinite(y).all(dim=1)
            y, s = y[usable], s[usable]
            squares, products = s.T @ s, s.T @ y
        kept = self.beta ** len(targets)
        self.A.mul_(kept).add_(squares.cpu())
        self.B.mul_(kept).add_(products.cpu())
        self.weight = kept * self.weight + len(y)

    def forget(self, kept: float = 0.0) -> None:
        """Leave all samples so far only a part of their weight; the atoms stay."""
        self.A.mul_(kept)
        self.B.mul_(kept)
        self.weight *= kept

    def renew(self, sweeps: int | None = None) -> None:
        """Lower the quadratic problem of the statistics.

        With a ridge alone the solution is exact, ``D = (A + ridge I)^{-1} B``. Otherwise atoms are
        renewed in turn, ``d_j <- P(d_j + (B_j - A_j D - ridge d_j)/(A_jj + ridge))``, where P is
        first ``max(., 0)`` if non-negative, then the projection to the unit ball if there is
        no ridge. Atoms that no sample uses stay as they are.
        """
        from .dictionary_kernels import sweep

        ridge = self._ridge if self.total is None else self._ridge * (self.weight / self.total)
        if not bool(self._ball.any() | self._nonnegative.any()):
            self.atoms = torch.linalg.solve(self.A + torch.diag(ridge), self.B)
            return
        sweep(
            self.atoms.numpy(),
            self.A.numpy(),
            self.B.numpy(),
            ridge.numpy(),
            self._ball.numpy(),
            self._nonnegative.numpy(),
            float(DEAD * self.A.diagonal().mean()),
            self.sweeps if sweeps is None else sweeps,
        )

    def restart(self, dictionaries: Mapping[str, Tensor]) -> None:
        """Put other atoms in the place of the present ones; the statistics stay."""
        self.atoms = torch.cat([dictionaries[name].detach().double().cpu() for name in self.names])

    @property
    def dead(self) -> Tensor:
        """The numbers of the atoms that hardly any of the remembered samples use."""
        energy = self.A.diagonal()
        return (energy <= DEAD * energy.mean()).nonzero().flatten()

    def revive(self, targets: Tensor, codes: Tensor) -> int:
        """Put the worst coded samples in the place of dead atoms; how many were replaced.

        A new atom is what a sample's code has left over, of the size of a living atom.
        """
        dead = self.dead
        if self.weight == 0 or len(dead) == 0:
            return 0
        left = (targets - codes @ self.dictionary.to(codes)).detach().double().cpu()
        if bool(self._nonnegative[dead].any()):
            left = left.clamp_min(0)
        norms = left.norm(dim=1)
        worst = norms.argsort(descending=True)[: len(dead)]
        worst = worst[norms[worst] > 0]
        dead = dead[: len(worst)]
        alive = self.atoms.norm(dim=1)
        size = float(alive[alive > 0].median()) if bool((alive > 0).any()) else 1.0
        self.atoms[dead] = size * left[worst] / norms[worst, None]
        self.A[dead], self.A[:, dead], self.B[dead] = 0.0, 0.0, 0.0
        return len(dead)

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that changes, as tensors."""
        weight = torch.tensor(self.weight, dtype=torch.float64)
        return {"atoms": self.atoms, "A": self.A, "B": self.B, "weight": weight}

    @state.setter
    def state(self, values: Mapping[str, Tensor]) -> None:
        self.atoms, self.A, self.B = (values[name].clone() for name in ("atoms", "A", "B"))
        self.weight = float(values["weight"])


def draw(x: Tensor, atoms: int, seed: int = 0, nonnegative: bool = False) -> Tensor:
    """A first dictionary: random samples of unit norm, no two rows the same."""
    generator = torch.Generator().manual_seed(seed)
    usable = (x.norm(dim=1) > 0).nonzero().flatten()
    if len(usable) == 0:
        raise ValueError("x has no row that differs from zero to start a dictionary with")
    rows = usable[torch.randperm(len(usable), generator=generator)[:atoms]]
    start = torch.nn.functional.normalize(x[rows].clamp_min(0) if nonnegative else x[rows])
    if len(start) < atoms:
        noise = torch.randn(atoms - len(start), x.shape[1], generator=generator, dtype=x.dtype)
        noise = noise.abs() if nonnegative else noise
        start = torch.cat([start, torch.nn.functional.normalize(noise)])
    return start


def learn(
    x: ArrayLike,
    atoms: int,
    lam: float,
    *,
    passes: int = 1,
    encode: Callable[[SparseModel, Tensor], Tensor] | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> Tensor:
    """Learn a dictionary of unit-norm atoms for the Lasso, online.

    Minimises ``mean_i min_z 1/2 ||x_i - z D||^2 + lam ||z||_1`` over D, batch by batch: code,
    count, renew.

    Parameters
    ----------
    x
        Signals, shape (n, m).
    atoms
        The number of atoms.
    lam
        The weight of the codes' absolute values.
    passes
        How often the data are gone through.
    encode
        ``(model, batch) -> codes`` in place of the exact solver, for instance an encoder's.
    seed
        Seeds the first dictionary and the order of the samples.
    callback
        Called with a `Progress` after every batch; what it returns ends the learning if true.

    Returns
    -------
    Tensor
        The dictionary, atoms as rows, shape (atoms, m).
    """
    signals = as_float_matrix(x, "x", "features")
    if atoms < 1:
        raise ValueError(f"atoms must be at least 1, got {atoms}")
    model = Lasso(draw(signals, atoms, seed), lam)
    online = OnlineDictionary.of(model)
    rng = np.random.default_rng(seed)
    seen = 0
    for _ in range(passes):
        order = torch.from_numpy(rng.permutation(len(signals)))
        for rows in torch.split(order, BATCH):
            batch = signals[rows]
            codes = solve(model, batch, tol=1e-3).codes if encode is None else encode(model, batch)
            # early codes belong to a poor dictionary, so only the last quarter is remembered
            online.beta = 1 - 1 / max(seen / 4, 2 * BATCH)
            online.count(batch, codes)
            online.revive(batch, codes)
            online.renew()
            model = model.rebind(online.dictionaries)
            seen += len(batch)
            progress = Progress(
                "dictionary", seen, passes * len(signals), dictionary=online.dictionary
            )
            if callback is not None and callback(progress):
                return online.dictionary
    return online.dictionary
