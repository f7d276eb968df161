"""Denoising a picture: atoms that slide over all of it, beside atoms of single patches.

    python examples/convolutional_pictures.py

Overlapping patches are coded one by one, and the results averaged; atoms that slide explain the
whole picture at once. Both have exact codes, and encoders that are trained on another picture to
return clean pixels: with sliding atoms on crops, then resized. Decibels are those inside a margin,
seconds those of coding and decoding. With matplotlib the pictures are written to a file.
"""

import importlib.util
import time

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from skimage import color, data
from sklearn.feature_extraction.image import extract_patches_2d, reconstruct_from_patches_2d

import pursuit as pu

LAM, CROP, INNER, rng = 0.15, 40, np.s_[..., 8:-8, 8:-8], np.random.default_rng(0)


def noisy_and_clean(picture: np.ndarray) -> np.ndarray:
    """Both without the low frequencies of the noisy one, which are not coded."""
    noisy = picture + 0.1 * rng.standard_normal(picture.shape)
    return (np.stack([noisy, picture]) - gaussian_filter(noisy, 3)).astype(np.float32)


def crops(pair: np.ndarray, size: int, count: int | None = None) -> list[torch.Tensor]:
    options = {"patch_size": (size, size), "max_patches": count, "random_state": 0}
    return [torch.from_numpy(extract_patches_2d(each, **options)).flatten(1) for each in pair]


def report(name: str, model: pu.models.SparseModel, encode, x: torch.Tensor) -> None:
    start = time.perf_counter()
    with torch.no_grad():
        rows = model.decode(encode(x)).numpy()
    seconds = time.perf_counter() - start
    if len(rows) > 1:
        rows = reconstruct_from_patches_2d(rows.reshape(-1, 8, 8), test[1].shape)
    shown[name] = rows.reshape(test[1].shape)
    error = np.square(shown[name] - test[1])[INNER].mean()
    print(f"{name:24} {-10 * np.log10(error):6.2f} dB {seconds:8.3f} s")


def inner_error(encoder, batch: pu.regimes.Batch) -> torch.Tensor:
    error = (encoder.model.decode(encoder(batch.x)) - batch.targets).reshape(-1, CROP, CROP)
    return error[INNER].square().sum(dim=(1, 2)).mean()


train = noisy_and_clean(color.rgb2gray(data.astronaut()))
camera = data.camera()[64:224, 160:320] / 255
test = noisy_and_clean(camera)
patches, whole = crops(test, 8)[0], torch.from_numpy(test[0]).reshape(1, -1)
shown = {"clean": test[1], "noisy": test[0]}
print(f"{'noisy':24} {-10 * np.log10(np.square(test[0] - test[1])[INNER].mean()):6.2f} dB")
given, wanted = crops(train, 8, 20_000)
model = pu.models.Lasso(pu.learn(wanted, 64, LAM), LAM)
report("patches, exact", model, lambda x: pu.solve(model, x).codes, patches)
encoder = pu.ProximalEncoder(model, layers=4)
pu.fit(encoder, given, wanted, regime=pu.regimes.Supervised(), dictionary="gradient", steps=300)
report("patches, encoder", encoder.model, encoder, patches)

atoms = pu.learn(crops(train, 6, 20_000)[1], 24, LAM).reshape(24, 6, 6)
sliding = pu.operators.Convolution(atoms, test[0].shape, stride=2)
model = pu.models.SparseModel(sliding, pu.penalties.L1(LAM))
report("sliding, exact", model, lambda x: pu.solve(model, x, tol=1e-2).codes, whole)
encoder = pu.ConvolutionalEncoder(model, layers=4, tied=False)
report("sliding, untrained", model, encoder, whole)
encoder, options = encoder.resized((CROP, CROP)), {"dictionary": "gradient", "batch_size": 16}
pu.fit(encoder, *crops(train, CROP, 1000), regime=inner_error, steps=250, rate=2.0, **options)
encoder = encoder.resized(test[0].shape)
report("sliding, encoder", encoder.model, encoder, whole)

result = np.hstack([camera - test[1] + picture for picture in shown.values()])
if importlib.util.find_spec("matplotlib"):
    from matplotlib.image import imsave

    imsave("convolutional_pictures.png", result, 0, 1, "gray")
