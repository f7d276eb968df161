r"""Certificates: how far a code can be from the optimum, proved by a dual point.

Derivation, for one row. Write the problem as

    F(z) = 1/2 ||x - z D||^2 + h(z),        h(z) = 1/2 sum_i c_i z_i^2 + g(z)

with curvature c >= 0 and g positively homogeneous. For every nu in R^m Fenchel's inequality
gives the lower bound ``F(z*) >= nu'x - 1/2 ||nu||^2 - h*(u)``, where ``u = D nu``. With the
residual ``r = x - z D`` the difference of F(z) to that bound can be written as

    gap = 1/2 ||r - nu||^2 + [ h(z) + h*(u) - z'u ],

a sum of non-negative terms (Fenchel-Young), so nothing cancels and the gap of an optimal code is
zero up to rounding, which `rounding` bounds. It remains to choose nu close to r with h*(u) finite:

* *penalised, no curvature* (Lasso, groups, trees): h*(u) is 0 on C = {u : u'z <= g(z)} and inf
  outside. Scaling ``nu = k r`` with ``k = 1 / max(1, gauge(u))`` suffices.
* *penalised, with curvature* (an elastic net): append ``-sqrt(c_i) z_i`` to the residual, which
  turns the ridge into data; then as before with u_i replaced by ``u_i - c_i z_i``.
* *not penalised, with curvature* (the scores of robust PCA): ``h*(u) = u_i^2 / (2 c_i)``, or
  ``max(u_i, 0)^2 / (2 c_i)`` if z_i >= 0: finite for every u.
* *not penalised, z_i >= 0* (NMF without ridge): u_i <= 0 is needed, which no scaling achieves.
  Shift ``nu = r + tau d`` along a direction with ``D_i d < 0`` for all those atoms; one exists
  unless zero is in the convex hull of the atoms, and is found by non-negative least squares.
* *not penalised, free* (least squares): u_i = 0 is needed. Project r onto the orthogonal
  complement of those atoms; this is exact up to the rounding of float64.

For an identity block of the dictionary (robust PCA), u is nu itself, and clipping nu to
[-lam, lam] is closer to r than scaling it. ``nu = 0`` is always feasible, since no penalty is
negative; so the gap is at most F, also where no better point is found.

Rounding. With ``a = ||x|| + sum_i |z_i| ||D_i||``, what is added up before it cancels, and
``e = (q + m + 16) eps``, eps of float64, every reported objective is that of the codes up to

    rho = e (a sqrt(2 F) + e a^2 + F),

because each entry of a residual is a sum of q + 1 numbers whose absolute values have a sum of norm
a at most. A gap includes rho, and the dual point is feasible in spite of the error ``e ||D_i||
||nu||`` of a correlation u_i: gauges are computed for correlations that are larger by it. So a gap
is an upper bound without exception, apart from free coefficients without curvature: their atoms
count as dependent if they are so up to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ._checks import ArrayLike, as_codes, as_float_matrix, as_signals, as_weight
from .models import SparseModel, require_model

#: the unit of rounding of float64
EPS = torch.finfo(torch.float64).eps
#: rows that are certified at a time, to avoid float64 copies of a large batch
TILE = 4096


def certify(
    model: SparseModel, x: ArrayLike, codes: ArrayLike, mask: ArrayLike | None = None
) -> Tensor:
    """Compute an upper bound of ``objective(codes) - optimum`` for each row.

    The bound is inf where codes violate a constraint, and the objective itself where no dual
    feasible point but zero is found.

    Parameters
    ----------
    model
        The model, which defines the objective.
    x
        Signals, shape (n, m).
    codes
        Codes, shape (n, q).
    mask
        Optional, True where x is observed.

    Returns
    -------
    Tensor
        The absolute gap of each row, shape (n,), float64.

    Examples
    --------
    >>> import torch
    >>> from pursuit.models import Lasso
    >>> model = Lasso(torch.eye(2), lam=1.0)
    >>> certify(model, torch.tensor([[3.0, 0.5]]), torch.tensor([[2.0, 0.0]])) < 1e-12
    tensor([True])
    """
    require_model(model)
    signals, observed = as_signals(x, model.features, model.device, mask)
    code = as_codes(codes, signals, model.code_size)
    if len(signals) == 0:
        return torch.zeros(0, dtype=torch.float64, device=signals.device)
    return Certificate(model).evaluate(signals, code, observed)[1]


def certify_low_rank(
    x: ArrayLike,
    low_rank: ArrayLike,
    outliers: ArrayLike,
    lam_star: float,
    lam: float,
    *,
    factors: tuple[ArrayLike, ArrayLike] | None = None,
) -> float:
    """Bound the suboptimality of a split of a matrix into low rank and outliers.

    For ``P(L, O) = 1/2 ||X - L - O||_F^2 + lam_star ||L||_* + lam ||O||_1`` and the residual
    ``R = X - L - O``, every ``N = k R`` with ``||N||_2 <= lam_star`` (spectral norm) and
    ``max |N_ij| <= lam`` is dual feasible, and

        gap = 1/2 ||R - N||_F^2 + (lam_star ||L||_* - <L, N>) + (lam ||O||_1 - <O, N>).

    With `factors` ``(S, D0)``, ``L = S D0``, the nuclear norm is replaced by the larger
    ``(||S||_F^2 + ||D0||_F^2) / 2``: a gap of zero then proves that the factored problem, which
    is not convex, has been solved globally. At a stationary point of full rank ``||R||_2`` is
    lam_star; a larger one means that there are too few atoms or that an atom is dead.

    Parameters
    ----------
    x, low_rank, outliers
        X, L and O, shape (n, m).
    lam_star, lam
        The weights of the nuclear norm and of the outliers.
    factors
        Optional, S and D0.

    Returns
    -------
    float
        The absolute gap of the whole matrix.
    """
    signals = as_float_matrix(x, "x", "features").double()
    low, out = (
        as_codes(part, signals, signals.shape[1], name)
        for part, name in ((low_rank, "low_rank"), (outliers, "outliers"))
    )
    star, weight = float(as_weight(lam_star, "lam_star")), float(as_weight(lam, "lam"))
    residual = signals - low - out
    spectral, largest = float(torch.linalg.matrix_norm(residual, 2)), float(residual.abs().max())
    dual = residual / max(1.0, _ratio(spectral, star), _ratio(largest, weight))
    if factors is None:
        charge = star * float(torch.linalg.matrix_norm(low, "nuc"))
    else:
        scores, atoms = (as_float_matrix(f, "factors", "columns").double() for f in factors)
        charge = star / 2 * float(scores.square().sum() + atoms.square().sum())
    gap = float((residual - dual).square().sum()) / 2
    gap += charge - float((low * dual).sum())
    gap += weight * float(out.abs().sum()) - float((out * dual).sum())
    return max(gap, 0.0)


def is_met(gap: Tensor, objective: Tensor, tol: float, dtype: torch.dtype) -> Tensor:
    """Return whether ``gap <= tol max(objective, eps)``, with the machine epsilon of the dtype.

    An infinite gap never is: codes that violate a constraint have an infinite objective as well.
    """
    return (gap <= tol * objective.clamp_min(torch.finfo(dtype).eps)) & gap.isfinite()


def rounding_unit(model: SparseModel) -> float:
    """Return ``e = (q + m + 16) eps``, the relative rounding of sums over atoms and features."""
    return (model.code_size + model.features + 16) * EPS


def _rounding(unit: float, norms: Tensor, x: Tensor, codes: Tensor, objective: Tensor) -> Tensor:
    """Bound the rounding of the objective of each row: rho in the notes of this module."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1) + codes.abs() @ norms
    return unit * (size * (2 * objective).sqrt() + unit * size.square() + objective)


def round_codes(
    model: SparseModel,
    x: Tensor,
    codes: Tensor,
    objective: Tensor,
    gap: Tensor,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Round codes from float64 to the dtype of x; return them with their objective and gap.

    The dual point of the exact codes also certifies the rounded ones, so the gap increases by as
    much as the objective. `certify` would find a much looser gap from the rounded codes alone.
    """
    if x.dtype == torch.float64:
        return codes, objective, gap
    rounded, model = codes.to(x.dtype), model.to(torch.float64)
    x, codes, norms = x.double(), rounded.double(), model.operator.squared_norms().sqrt()
    worse = model.objective(x, codes, mask)
    error = 2 * _rounding(rounding_unit(model), norms, x, codes, worse)
    return rounded, worse, gap + (worse - objective + error).clamp_min(0)


class Certificate:
    """Objectives and gaps of one model; what depends on the model alone is computed once."""

    def __init__(self, model: SparseModel) -> None:
        model = model.to(torch.float64)
        self.model = model
        size, device = model.code_size, model.device
        self.penalty = model.nonsmooth
        self.penalised = self.penalty.penalised(size).to(device)
        sign = self.penalty.sign_constraint(size, device)
        self.sign = torch.zeros_like(self.penalised) if sign is None else sign
        none = torch.zeros(size, dtype=torch.float64, device=device)
        self.curvature = none if model.curvature is None else model.curvature.to(device)
        curved = self.curvature > 0
        self.augmented = self.penalised & curved
        self.conjugate = ~self.penalised & curved
        self.free = ~self.penalised & ~curved & ~self.sign
        self.cone = ~self.penalised & ~curved & self.sign
        self.clip = self._outlier_bounds()
        if self.clip is not None:  # clipping handles all outliers, also free ones
            self.free[model.stored_size :] = False
            self.cone[model.stored_size :] = False
        self.unit = rounding_unit(model)
        self.norms = model.operator.squared_norms().sqrt()
        self.correlation_error = self.unit * self.norms
        # products with the unit vectors of an identity block have no error
        self.correlation_error[model.stored_size :] = 0
        self.projector = _orthonormal_rows(self._atoms(self.free)) if self.free.any() else None
        self.direction = self._strictly_feasible_direction() if self.cone.any() else None

    @torch.no_grad()
    def evaluate(
        self, x: Tensor, codes: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return objective and gap of each row, shape (n,) each, in float64."""
        tiles = []
        for start in range(0, len(x), TILE):
            rows = slice(start, start + TILE)
            observed = None if mask is None else mask[rows]
            tiles.append(self._evaluate(x[rows].double(), codes[rows].double(), observed))
        objectives, gaps = zip(*tiles, strict=True)
        return torch.cat(objectives), torch.cat(gaps)

    def _evaluate(self, x: Tensor, codes: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        model = self.model
        residual = model.residual(x, codes, mask)
        value = model.penalty.value(codes)
        objective = residual.square().sum(dim=-1) / 2 + value
        length = torch.linalg.vector_norm(residual, dim=-1)
        rounding = _rounding(self.unit, self.norms, x, codes, objective)
        nu = self._candidate(residual, mask)
        if nu is None:
            return objective, objective + rounding
        # the ridge of penalised coefficients as data: extra residuals -sqrt(c) z
        ridge = codes * (self.curvature * self.augmented)
        extra = (codes * ridge).sum(dim=-1)
        effective = model.correlate(nu) - ridge
        reach = torch.linalg.vector_norm(nu, dim=-1)
        error = self.correlation_error * reach.unsqueeze(-1) + self.unit * ridge.abs()
        outward = torch.where(self.sign | (effective > 0), error, -error)
        factor = 1 / self.penalty.gauge(effective + outward).clamp_min(1)
        u, nu, error = (part * factor.unsqueeze(-1) for part in (effective, nu, error))
        gap = (residual - nu).square().sum(dim=-1) / 2 + (1 - factor).square() * extra / 2
        gap = gap + self.penalty.value(codes) - (codes * u)[..., ~self.conjugate].sum(dim=-1)
        if self.conjugate.any():
            gap = gap + self._conjugate_terms(codes, u, error)
        # a shift can make nu longer than the residual, which rho allows for
        longer = torch.where(reach > length, reach / length.clamp_min(EPS * reach), 1.0)
        rounding = rounding * longer
        gap = gap.clamp_min(0)
        # the sign conditions that no scaling achieves; they do not hold for NaN
        feasible = ((u + error)[..., self.cone] <= 0).all(dim=-1)
        return objective, torch.where(feasible & (gap < objective), gap, objective) + rounding

    def _candidate(self, residual: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the residual, clipped, projected and shifted so that scaling suffices."""
        nu = residual
        if self.clip is not None:
            low, high = self.clip
            nu = nu.clamp(low, high)
            moved = self.projector is not None or bool(self.cone.any())
            if moved and not bool((high > 0).all()):
                return None  # the following steps would violate a bound of zero
        if self.projector is not None:
            if mask is not None:
                return None  # the projection would differ from row to row
            nu = nu - (nu @ self.projector.T) @ self.projector
        if self.cone.any():
            if self.direction is None:
                return None
            nu = self._shifted(nu, self.direction if mask is None else self.direction * mask)
        return nu

    def _shifted(self, nu: Tensor, direction: Tensor) -> Tensor:
        """Move nu along the direction until ``D_i nu <= 0`` for all atoms of `cone`.

        A margin for the rounding error of the correlation ensures the sign. Rows where the
        correlation of an atom does not decrease (a mask can cause that) become infinite.
        """
        atoms = self._atoms(self.cone)
        margin = 2 * self.unit * nu.norm(dim=-1, keepdim=True) * atoms.norm(dim=-1)
        correlation = nu @ atoms.T
        slope = direction.expand_as(nu) @ atoms.T
        excess = (correlation + margin).clamp_min(0)
        needed = (correlation != 0) | (slope != 0)
        length = torch.where(needed & (excess > 0), excess / (-slope).clamp_min(0), 0.0)
        return nu + length.amax(dim=-1, keepdim=True) * direction

    def _conjugate_terms(self, codes: Tensor, u: Tensor, error: Tensor) -> Tensor:
        """Return the sum of ``c/2 z^2 + h*(u) - z u`` over unpenalised coefficients with curvature.

        With v the part of u that counts, ``(v - c z)^2 / (2 c) + z (v - u)`` is the same, and
        nothing cancels; v is taken at the distance from c z that `error` allows.
        """
        c, z, v, e = (t[..., self.conjugate] for t in (self.curvature, codes, u, error))
        part = torch.where(self.sign[self.conjugate], v.clamp_min(0), v)
        miss = (part - c * z).abs() + e
        return (miss.square() / (2 * c) + z * (part - v)).sum(dim=-1)

    def _atoms(self, which: Tensor) -> Tensor:
        """Return the atoms of some coefficients, shape (k, m)."""
        count = self.model.stored_size
        if bool(which[count:].any()):
            return self.model.operator.dense()[which]
        return self.model.dictionary[which[:count]]

    def _strictly_feasible_direction(self) -> Tensor | None:
        """Return d, orthogonal to the atoms of `free`, with ``D_i d < 0`` for those of `cone`.

        Non-negative least squares of (0, 1) by the columns (D_i, 1): its residual (d, e) obeys
        ``D_i d + e <= 0``, and e > 0 unless zero is in the convex hull of the atoms.
        """
        from scipy.optimize import nnls

        atoms = self._atoms(self.cone)
        if self.projector is not None:
            atoms = atoms - (atoms @ self.projector.T) @ self.projector
        atoms = atoms / atoms.norm(dim=1, keepdim=True).clamp_min(1e-300)
        system = np.concatenate([atoms.cpu().numpy().T, np.ones((1, len(atoms)))])
        target = np.zeros(len(system))
        target[-1] = 1.0
        weights, _ = nnls(system, target)
        residual = target - system @ weights
        direction = torch.from_numpy(residual[:-1]).to(atoms)
        slope = atoms @ direction
        if float(slope.max()) >= -1e-9:
            return None
        return direction / -float(slope.max())

    def _outlier_bounds(self) -> tuple[Tensor, Tensor] | None:
        """Return the bounds of nu that an identity block implies, shape (m,) each, or None."""
        weights = self.penalty.weights(self.model.code_size)
        if self.model.operator.identity_size == 0 or weights is None:
            return None
        count = self.model.stored_size
        bounds = weights[count:].to(self.curvature)
        # a coefficient with curvature has a finite conjugate everywhere
        high = torch.where(self.curvature[count:] > 0, torch.inf, bounds)
        return torch.where(self.sign[count:], -torch.inf, -high), high


def _orthonormal_rows(matrix: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of the rows."""
    _, singular, rows = torch.linalg.svd(matrix, full_matrices=False)
    floor = torch.finfo(matrix.dtype).eps * max(matrix.shape) * singular[0]
    basis: Tensor = rows[singular > floor]
    return basis


def _ratio(value: float, limit: float) -> float:
    """Return ``value / limit``, where 0/0 is 0."""
    return value / limit if limit > 0 else float("inf") if value > 0 else 0.0
