"""Dictionary learning: sufficient statistics of codes, and the atoms that minimise them.

For coefficients s and targets y (the signals, or the signals minus their outliers) the dictionary
minimises ``1/2 sum_i w_i ||y_i - s_i D||^2 + phi(D)``, which depends on the samples only through
``A = sum_i w_i s_i's_i`` and ``B = sum_i w_i s_i'y_i``. Old samples lose weight by
``w_i = beta^(number of later samples)``, independently of the batch sizes.

`learn` learns the dictionary of any model from a data set, `OnlineDictionary` follows a stream.
Both use `OnlineDictionary.learn_batch`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypedDict, TypeVar, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from ._checks import ArrayLike, as_float_matrix, as_number
from ._native import kernels
from .models import Constraint, Lasso, SparseModel, require_model
from .operators import without_zero_atoms
from .progress import Callback, Progress
from .solvers.accuracy import ROUGH, exact_codes

AnyModel = TypeVar("AnyModel", bound=SparseModel)
Encode = Callable[[SparseModel, Tensor], Tensor]

#: an atom is dead if the energy of its coefficients is below this fraction of the average
DEAD = 1e-6
#: number of rows that `learn` codes at a time
BATCH = 512
#: fraction of the samples so far that the statistics remember, and the fewest samples per atom
SHARE, SAMPLES_PER_ATOM = 0.25, 5
#: number of samples that the default number of passes adds up to, and the most passes
PASSED_SAMPLES, MOST_PASSES = 30_000, 30


class OnlineDictionary:
    """A dictionary that is updated after every batch of codes, at constant cost.

    Parameters
    ----------
    dictionary
        The initial atoms as rows, shape (q, m). They must not be zero: such an atom is never used
        by a code and therefore never updated.
    ridge
        The weight of ``phi(D) = ridge/2 ||D||_F^2``; with 0 atoms stay in the unit ball instead.
    nonnegative
        Whether the dictionary must be non-negative.
    beta
        The factor by which the weight of a sample shrinks with each later sample: about
        ``1/(1 - beta)`` samples are remembered, all of them with 1.
    total
        The number of samples for which phi counts once; by default, the samples remembered.
    sweeps
        The number of sweeps over all atoms in an update.

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
        atoms = as_float_matrix(dictionary, "dictionary", "features")
        constraint = Constraint(as_number(ridge, "ridge"), nonnegative)
        self._begin({"dictionary": atoms}, {"dictionary": constraint}, beta, total, sweeps)

    @classmethod
    def of(
        cls, model: SparseModel, beta: float = 1.0, total: float | None = None, sweeps: int = 2
    ) -> OnlineDictionary:
        """Learn the dictionaries of a model, under its constraints."""
        new = cls.__new__(cls)
        new._begin(model.dictionaries, model.constraints, beta, total, sweeps)
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
        self._like = next(iter(dictionaries.values())).detach().new_empty(0)
        self.atoms = torch.cat([t.detach().double().cpu() for t in dictionaries.values()])
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
        """A copy of all atoms, in the dtype of the initial ones."""
        return self.atoms.to(self._like, copy=True)

    @property
    def dictionaries(self) -> dict[str, Tensor]:
        """A copy of the atoms of each dictionary of the model, by name."""
        parts = torch.split(self.dictionary, list(self.names.values()))
        return dict(zip(self.names, parts, strict=True))

    def learn_batch(
        self, model: SparseModel, x: Tensor, codes: Tensor, *, under_ridge: bool = False
    ) -> dict[str, Tensor]:
        """Learn from signals and their codes, and return the dictionaries of the model by name.

        The regression of the batch is accumulated, dead atoms are replaced as in `replace_dead`,
        and all atoms are updated. Atoms that become zero are returned as small ones.
        """
        coefficients, targets = model.regression(x, codes)
        self.accumulate(targets, coefficients)
        self.replace_dead(targets, coefficients, under_ridge=under_ridge)
        self.update_atoms()
        return {name: without_zero_atoms(atoms) for name, atoms in self.dictionaries.items()}

    def update(self, targets: Tensor, codes: Tensor) -> Tensor:
        """Accumulate a batch and update the atoms.

        Parameters
        ----------
        targets
            What ``codes @ dictionary`` approximates, shape (n, m).
        codes
            The coefficients, shape (n, q).

        Returns
        -------
        Tensor
            The updated dictionary, shape (q, m).
        """
        self.accumulate(targets, codes)
        self.update_atoms()
        return self.dictionary

    def accumulate(self, targets: Tensor, codes: Tensor) -> None:
        """Add a batch to the statistics; its samples get equal weights.

        Samples that are not finite, or whose squares are not, are skipped; the sums would never be
        finite again.
        """
        y, s = targets.detach(), codes.detach()
        if y.shape[-1] != self.atoms.shape[1] or s.shape[-1] != len(self.atoms) or len(y) != len(s):
            raise ValueError(
                f"targets {tuple(y.shape)} and codes {tuple(s.shape)} do not fit a dictionary of "
                f"shape {tuple(self.atoms.shape)}"
            )
        squares, products = s.T @ s, s.T @ y
        if not math.isfinite(float(squares.sum() + products.sum())):
            energy = s.square().sum(dim=1) + y.square().sum(dim=1)
            usable = energy < torch.finfo(energy.dtype).max / max(len(s), 1)
            y, s = y[usable], s[usable]
            squares, products = s.T @ s, s.T @ y
        factor = self.beta ** len(targets)
        self.A.mul_(factor).add_(squares.cpu())
        self.B.mul_(factor).add_(products.cpu())
        self.weight = factor * self.weight + len(y)

    def decay(self, factor: float = 0.0) -> None:
        """Multiply the weight of all samples so far by a factor; the atoms do not change."""
        self.A.mul_(factor)
        self.B.mul_(factor)
        self.weight *= factor

    def remember(self, seen: float, *, least: float | None = None, most: float = math.inf) -> None:
        """Set `beta` so that a quarter of the samples seen so far is remembered.

        The limits `least` (by default 5 per atom) and `most` are numbers of samples. Early codes
        belong to a poor dictionary, and a long memory suits only data that do not change.
        """
        least = SAMPLES_PER_ATOM * len(self.atoms) if least is None else least
        self.beta = 1 - 1 / max(min(max(SHARE * seen, least), most), 2)

    def update_atoms(self, sweeps: int | None = None) -> None:
        """Decrease the quadratic objective of the statistics.

        With a ridge and no constraint the solution is exact, ``D = (A + ridge I)^{-1} B``.
        Otherwise atoms are updated in turn, ``d_j <- P(d_j + (B_j - A_j D - ridge d_j)/(A_jj +
        ridge))``, where P is ``max(., 0)`` if non-negative, followed by the projection onto the
        unit ball if there is no ridge. Dead atoms do not change.
        """
        ridge = self._ridge if self.total is None else self._ridge * (self.weight / self.total)
        if not bool(self._ball.any() | self._nonnegative.any()):
            energy = self.A.diagonal()
            alive = energy > DEAD * energy.mean()
            if bool(alive.any()):
                squares = (self.A + torch.diag(ridge))[alive][:, alive]
                solved, failed = torch.linalg.solve_ex(squares, self.B[alive])
                # beside statistics of 1e16 times its size a ridge vanishes, and no solution is left
                if not bool(failed) and bool(torch.isfinite(solved).all()):
                    self.atoms[alive] = solved
            return
        arrays = self.atoms.numpy(), self.A.numpy(), self.B.numpy(), ridge.numpy()
        masks = self._ball.numpy(), self._nonnegative.numpy()
        dead = float(DEAD * self.A.diagonal().mean())
        kernels.dictionary_sweep(*arrays, *masks, dead, self.sweeps if sweeps is None else sweeps)

    def set_atoms(self, dictionaries: Mapping[str, Tensor]) -> None:
        """Replace the atoms by given ones; the statistics do not change."""
        self.atoms = torch.cat([dictionaries[name].detach().double().cpu() for name in self.names])

    @property
    def dead(self) -> Tensor:
        """Indices of the atoms that hardly any of the remembered samples use."""
        energy = self.A.diagonal()
        return (energy <= DEAD * energy.mean()).nonzero().flatten()

    def replace_dead(self, targets: Tensor, codes: Tensor, *, under_ridge: bool = False) -> int:
        """Replace dead atoms by the residuals of the worst coded samples, and return their number.

        New atoms have the median norm of the others. Atoms with a ridge are replaced only if
        `under_ridge` is true: a ridge removes atoms that the data do not need, so replacing them is
        useful only on a stream, whose later samples may need them.
        """
        dead = self.dead if under_ridge else self.dead[self._ball[self.dead]]
        if self.weight == 0 or len(dead) == 0:
            return 0
        residual = (targets - codes @ self.dictionary.to(codes)).detach().double().cpu()
        if bool(self._nonnegative[dead].any()):
            residual = residual.clamp_min(0)
        norms = residual.norm(dim=1)
        worst = norms.argsort(descending=True)[: len(dead)]
        worst = worst[norms[worst] > 0]
        dead = dead[: len(worst)]
        sizes = self.atoms.norm(dim=1)
        size = float(sizes[sizes > 0].median()) if bool((sizes > 0).any()) else 1.0
        self.atoms[dead] = size * residual[worst] / norms[worst, None]
        self.A[dead], self.A[:, dead], self.B[dead] = 0.0, 0.0, 0.0
        return len(dead)

    @property
    def state(self) -> dict[str, Tensor]:
        """The atoms and the statistics, as tensors."""
        weight = torch.tensor(self.weight, dtype=torch.float64)
        return {"atoms": self.atoms, "A": self.A, "B": self.B, "weight": weight}

    @state.setter
    def state(self, values: Mapping[str, Tensor]) -> None:
        self.atoms, self.A, self.B = (values[name].clone() for name in ("atoms", "A", "B"))
        self.weight = float(values["weight"])


def draw(x: Any, atoms: int, seed: int = 0, nonnegative: bool = False) -> Tensor:
    """Draw an initial dictionary: random samples that are not zero, scaled to unit norm.

    x is a tensor, an array or a memory map, of which only the rows drawn are read. No row is drawn
    twice; if there are too few, random directions are added. With `nonnegative`, negative entries
    become zero.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=generator)
    usable, count = [], 0
    for rows in torch.split(order, atoms):
        part = _take(x, rows)
        usable.append(part[part.norm(dim=1) > 0])
        count += len(usable[-1])
        if count >= atoms:
            break
    if count == 0:
        raise ValueError("x has no row that differs from zero to start a dictionary with")
    start = torch.cat(usable)[:atoms]
    start = torch.nn.functional.normalize(start.clamp_min(0) if nonnegative else start)
    if len(start) < atoms:
        shape = (atoms - len(start), start.shape[1])
        noise = torch.randn(shape, generator=generator, dtype=start.dtype).to(start.device)
        noise = noise.abs() if nonnegative else noise
        start = torch.cat([start, torch.nn.functional.normalize(noise)])
    return without_zero_atoms(start)


class _Options(TypedDict, total=False):
    passes: int
    encode: Encode | None
    seed: int
    callback: Callback | None


@overload
def learn(x: Any, atoms: int, lam: float, **options: Unpack[_Options]) -> Tensor: ...
@overload
def learn(x: Any, *, model: AnyModel, **options: Unpack[_Options]) -> AnyModel: ...


def learn(
    x: Any,
    atoms: int | None = None,
    lam: float | None = None,
    *,
    model: SparseModel | None = None,
    passes: int = 1,
    encode: Encode | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> Tensor | SparseModel:
    """Learn a dictionary, batch by batch.

    Minimises ``sum_i min_z F(x_i, z; D) + phi(D)`` over the dictionary D, where F is the objective
    of the model and phi its constraint on the dictionary: atoms in the unit ball, or a ridge that
    counts once for the data set. Given `atoms` and `lam` the model is the Lasso with atoms of unit
    norm; given `model` it is any model, and learning starts from its dictionary.

    Parameters
    ----------
    x
        Signals, shape (n, m): a tensor, an array, or a memory map, of which only one batch of 512
        rows at a time is read. Or an iterable of batches, such as a list or a DataLoader; if a
        batch is a tuple, its first element is used. ``[x]`` is one batch with all rows.
    atoms, lam
        The number of atoms, and the weight of the l1 norm of the codes.
    model
        The initial model, in place of `atoms` and `lam`.
    passes
        The number of passes over the data, 1 for an iterator.
    encode
        ``(model, batch) -> codes``, in place of the exact solver; for instance an encoder.
    seed
        Seeds the initial dictionary and the order of the rows.
    callback
        Called with a `Progress` after every batch: its stage is "dictionary", and it has the number
        of samples so far and the current dictionary. A true return value ends the learning.

    Returns
    -------
    Tensor or SparseModel
        The dictionary, atoms as rows, shape (atoms, m), if `atoms` and `lam` were given; otherwise
        the model with the learned dictionary.

    Notes
    -----
    Each batch is coded to a relative gap of 1e-3, its regression enters the statistics, atoms that
    no sample uses are replaced by badly coded samples (under a ridge they are kept), and all atoms
    are updated. The statistics remember a quarter of the samples so far, but not more than one
    pass; if the data set is a single batch, they are those of the last pass. If the size of the
    data set is unknown, the ridge counts once for the samples remembered.

    Examples
    --------
    >>> import torch, pursuit as pu
    >>> x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).abs()
    >>> pu.learn(x, atoms=8, lam=0.1).shape
    torch.Size([8, 5])
    >>> start = pu.models.NMF(torch.rand(3, 5, generator=torch.Generator().manual_seed(1)))
    >>> pu.learn(x, model=start, passes=5)
    NMF(features=5, code_size=3, penalty=NonNegative())
    """
    start = model
    if start is not None:
        if atoms is not None or lam is not None:
            raise TypeError("learn takes either atoms and lam, or model; got both")
    elif atoms is None or lam is None:
        raise TypeError("learn takes either atoms and lam, or model; give one of the two")
    elif atoms < 1:
        raise ValueError(f"atoms must be at least 1, got {atoms}")
    else:
        _size(x)
        rows, x = (x, x) if hasattr(x, "shape") else _first_rows(x, atoms)
        start = Lasso(draw(rows, atoms, seed), lam)
    learned, _ = learn_with_statistics(x, start, passes, encode, seed, callback)
    return learned.dictionary if model is None else learned


def learn_with_statistics(
    x: Any,
    model: AnyModel,
    passes: int,
    encode: Encode | None = None,
    seed: int = 0,
    callback: Callback | None = None,
) -> tuple[AnyModel, OnlineDictionary]:
    """Learn the dictionary of a model as `learn` does; also return the statistics, for a stream."""
    require_model(model)
    size = _size(x)
    online = OnlineDictionary.of(model, total=size)
    least = 2 * BATCH
    most = math.inf if size is None else max(size, least)
    started, seen = time.perf_counter(), 0
    for batch in _batches(x, passes, seed):
        signals = batch.to(model.dictionary)
        codes = exact_codes(model, signals, ROUGH) if encode is None else encode(model, signals)
        if len(batch) == size:
            online.decay()
        online.remember(seen, least=least, most=most)
        model = model.replace(**online.learn_batch(model, signals, codes))
        seen += len(batch)
        if callback is not None:
            total = None if size is None else passes * size
            seconds = time.perf_counter() - started
            now = Progress("dictionary", seen, total, seconds=seconds, dictionary=online.dictionary)
            if callback(now):
                break
    if seen == 0:
        raise ValueError("x is an empty iterable; it must yield at least one batch")
    return model, online


def default_passes(rows: int) -> int:
    """Choose the number of passes: 30 000 samples altogether, between 1 and 30 passes."""
    return max(1, min(MOST_PASSES, math.ceil(PASSED_SAMPLES / rows)))


def _batches(x: Any, passes: int, seed: int) -> Iterator[Tensor]:
    """Yield the batches of all passes; rows of an array come in random order."""
    if passes < 1:
        raise ValueError(f"passes must be at least 1, got {passes}")
    if not hasattr(x, "shape"):
        if passes > 1 and isinstance(x, Iterator):
            raise ValueError(
                f"x is an iterator, which can be read only once, but passes is {passes}; give a "
                "list, a DataLoader or an array, or passes=1"
            )
        for item in itertools.chain.from_iterable(itertools.repeat(x, passes)):
            yield _as_batch(_signals(item))
        return
    rng = np.random.default_rng(seed)
    for _ in range(passes):
        for rows in torch.split(torch.from_numpy(rng.permutation(len(x))), BATCH):
            yield _take(x, rows)


def _take(x: Any, rows: Tensor) -> Tensor:
    """Return rows of a tensor, or of an array that NumPy can index."""
    return _as_batch(x[rows] if isinstance(x, Tensor) else np.asarray(x[rows.numpy()]))


def _as_batch(x: Any) -> Tensor:
    return as_float_matrix(x, "x", "features").detach()


def _signals(item: Any) -> Any:
    """Return the signals of a batch, which may be a tuple (signals, targets)."""
    return item[0] if isinstance(item, tuple | list) else item


def _size(x: Any) -> int | None:
    """Return the number of samples, or None if it is unknown."""
    if hasattr(x, "shape"):
        if len(x.shape) != 2:
            raise ValueError(
                f"x must have two dimensions (rows, features), got shape {tuple(x.shape)}"
            )
        return len(x)
    if isinstance(x, str | bytes) or not isinstance(x, Iterable):
        raise TypeError(
            "x must be an array, a tensor, a memory map or an iterable of batches, "
            f"got {type(x).__name__}"
        )
    if isinstance(x, list | tuple):
        return sum(len(_signals(item)) for item in x)
    data = getattr(x, "dataset", None)
    return len(data) if isinstance(data, Sized) else None


def _first_rows(x: Iterable[Any], count: int) -> tuple[Tensor, Iterable[Any]]:
    """Return the first batches with at least `count` rows, and an iterable over all batches."""
    iterator = iter(x)
    first: list[Tensor] = []
    for item in iterator:
        first.append(_as_batch(_signals(item)))
        if sum(map(len, first)) >= count:
            break
    if not first:
        raise ValueError("x is an empty iterable; it must yield at least one batch")
    return torch.cat(first), itertools.chain(first, iterator) if iterator is x else x
