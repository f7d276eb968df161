"""Exact codes of robust PCA and robust NMF: the outliers eliminated, a Huber problem is left."""

from __future__ import annotations

from ..models import SparseModel
from .solution import Solver


def _no(model: SparseModel) -> str | None:
    return "x"


NEWTON = Solver("newton", lambda p: None, _no, 1)
HUBER_FISTA = Solver("huber_fista", lambda p: None, _no, 1)


def prefers_newton(model):
    return True
