"""A user-defined penalty: one class, and solvers, certificates and encoders work with it.

    python examples/add_a_penalty.py

``psi(z) = lam max_i |z_i|`` is the opposite of sparse: it spreads a code over all atoms, and most
entries are plus or minus the maximum. A duality gap of zero shows that the class is correct: it
closes only if value, shrinkage and duality are consistent.
"""

import torch
from torch import Tensor

import pursuit as pu
from pursuit.datasets import textures


class Spread(pu.penalties.Penalty):
    """``psi(z) = lam max_i |z_i|``; the shrinkage clips at the level c with
    ``sum_i max(|v_i| - c, 0) = step lam``."""

    def __init__(self, lam: float) -> None:
        self.lam = lam

    def value(self, codes: Tensor) -> Tensor:
        return self.lam * codes.abs().amax(dim=-1)

    def thresholds(self, step: float | Tensor) -> tuple[Tensor, ...]:
        return (self.lam * torch.as_tensor(step, dtype=torch.float64).reshape(-1)[0],)

    def shrink(self, v: Tensor, thresholds: tuple[Tensor, ...]) -> Tensor:
        sums = v.abs().sort(dim=-1, descending=True).values.cumsum(dim=-1)
        levels = (sums - thresholds[0].to(v)) / torch.arange(1, v.shape[-1] + 1).to(v)
        level = levels.amax(dim=-1, keepdim=True).clamp_min(0)  # c is the largest of them
        return v.clamp(-level, level)


x, new = textures.patches(1000), textures.patches(100, "test", seed=1)
model = pu.models.SparseModel(pu.learn(x, 96, 1.0), Spread(5.0))
exact, encoder = pu.solve(model, new), pu.ProximalEncoder(model, layers=6)
share = (exact.codes.abs() > 0.999 * exact.codes.abs().amax(dim=1, keepdim=True)).float().mean()
print(f"largest gap: {exact.relative_gap.max():.1e}; entries at the maximum: {100 * share:.0f} %")
before = model.objective(new, encoder(new)).mean() / exact.objective.mean() - 1
pu.fit(encoder, x, steps=150)
after = model.objective(new, encoder(new)).mean() / exact.objective.mean() - 1
print(f"six layers, above the optimum: {100 * before:.1f} %; trained: {100 * after:.1f} %")
