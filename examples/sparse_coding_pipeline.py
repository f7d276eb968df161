"""Sparse codes as a step of a scikit-learn pipeline: features that tell textures apart.

    python examples/sparse_coding_pipeline.py

Does a patch of 12 x 12 pixels show brick, grass or gravel? Patches have mean zero and unit
variance, so a linear classifier learns nothing from their pixels, but much from their sparse codes.
Codes come from an encoder of five layers and from the exact solver. Training patches are from the
upper halves of the pictures, test patches from the lower ones.
"""

import time

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import pursuit as pu
from pursuit.datasets import textures


def labelled(half: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    patches = [textures.patches(count, half, (name,), 12, seed) for name in textures.NAMES]
    return np.concatenate(patches), np.repeat(textures.NAMES, count)


train, train_labels = labelled("train", 1500, seed=0)
test, test_labels = labelled("test", 1000, seed=1)
classifier = LogisticRegression(C=0.1, max_iter=500)
accuracy = classifier.fit(train, train_labels).score(test, test_labels)
print(f"pixels: accuracy {accuracy:.3f}")

for kind in ("encoder", "exact"):
    coder = pu.SparseCoding(
        128, lam=1.0, nonnegative=True, transform_algorithm=kind, layers=5, steps=200
    )
    pipeline = make_pipeline(coder, classifier).fit(train, train_labels)
    accuracy = pipeline.score(test, test_labels)
    start = time.perf_counter()
    codes = pipeline[0].transform(test)
    microseconds = 1e6 * (time.perf_counter() - start) / len(test)
    used = (codes != 0).sum(axis=1).mean()
    print(f"{kind}: accuracy {accuracy:.3f}, {used:.0f} of 128 atoms a patch, ", end="")
    print(f"{microseconds:.0f} microseconds each, {100 * coder.gap_:.1f} % above the optimum")
