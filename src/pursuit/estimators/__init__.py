"""scikit-learn estimators on NumPy arrays.

`fit` learns a dictionary with exact codes, then trains an encoder that replaces the solver;
`transform` runs the encoder, or the solver with ``transform_algorithm="exact"``. How weights and
initial dictionaries are chosen is described in `noise` and `start`.
"""

from .classifier import PursuitClassifier
from .low_rank import NMF, RobustNMF, RobustPCA
from .sparse import SparseCoding

__all__ = ["NMF", "PursuitClassifier", "RobustNMF", "RobustPCA", "SparseCoding"]
