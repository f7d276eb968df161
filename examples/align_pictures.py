"""Pictures of one face that are displaced and partly covered, aligned without a model.

    python examples/align_pictures.py [FOLDER]

The pictures are made from one of scikit-image: each is moved, turned and lit differently, and
something covers a part of it. `align_pictures` finds how they lie. With FOLDER they are kept
there, and ``pursuit align FOLDER -o out`` shows them in out/contact_sheet.png.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage
from skimage import data

from pursuit.vision import align_pictures

COUNT, SIDE = 24, 120
rng = np.random.default_rng(0)
photograph = data.astronaut().astype(np.float64)
middle = np.array([115.0, 222.0])  # of the face

angles = rng.uniform(-6, 6, COUNT)  # in degrees
shifts = rng.uniform(-5, 5, (COUNT, 2))  # down and to the right, in pixels


def picture(number: int) -> np.ndarray:
    """One of the pictures, with its displacement, its light, and something in front."""
    turn = np.deg2rad(angles[number])
    rows, columns = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    down = middle[0] + shifts[number, 0] + np.cos(turn) * rows + np.sin(turn) * columns
    right = middle[1] + shifts[number, 1] + np.cos(turn) * columns - np.sin(turn) * rows
    channels = [
        ndimage.map_coordinates(photograph[..., channel], [down, right], order=1)
        for channel in range(3)
    ]
    shown = np.stack(channels, axis=-1) * rng.uniform(0.75, 1.0)
    if number % 3 == 0:  # a coloured disc covers a part
        centre = rng.uniform(-30, 30, 2)
        disc = (rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < rng.uniform(10, 18) ** 2
        shown[disc] = rng.uniform(0, 255, 3)
    return shown.clip(0, 255).astype(np.uint8)


with tempfile.TemporaryDirectory() as temporary:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(COUNT):
        Image.fromarray(picture(number)).save(folder / f"{number:02}.png")
    found = align_pictures(folder, transformation="similarity")

right, down, angle, scale, before, after = found.table().T
turned = angles + angle
print(f"angles    {angles.std():5.2f} degrees apart, after alignment {turned.std():.2f}")
# where the middle of each window is in the photograph
sine, cosine = np.sin(np.deg2rad(angles)), np.cos(np.deg2rad(angles))
moved = shifts + np.column_stack([cosine * down + sine * right, cosine * right - sine * down])
spread = [np.linalg.norm(x - x.mean(axis=0), axis=1).mean() for x in (shifts, moved)]
print(f"positions {spread[0]:5.2f} pixels apart, after alignment {spread[1]:.2f}")
print(f"loss      {before.mean():5.2f} before, {after.mean():.2f} after")
