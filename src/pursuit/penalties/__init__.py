"""Penalties: what a code may look like.

A penalty has a value, a shrinkage (the proximal operator as a function of explicit thresholds, so
that an encoder can learn them), and a dual description that certificates need.

Codes are rows: ``codes (n, q)``. A *step size* is the 1/alpha of a proximal step: a number, or one
value per coefficient. Where a penalty ties coefficients together, they must have the same step
size.

Every penalty is a sum ``psi(z) = 1/2 sum_i c_i z_i^2 + g(z)`` of a quadratic part with curvature
``c`` and a positively homogeneous part ``g``, e.g. a norm or the indicator of ``z >= 0``. The
quadratic part belongs to the smooth side of a problem (`curvature`); the rest is what is shrunk
(`nonsmooth`).
"""

from .base import Penalty
from .composite import Elastic, Ridge, Stacked
from .groups import GroupL2, TreeL2
from .separable import L1, NonNegative, Zero

__all__ = ["L1", "Elastic", "GroupL2", "NonNegative", "Penalty", "Ridge", "Stacked", "TreeL2"]
__all__ += ["Zero"]
