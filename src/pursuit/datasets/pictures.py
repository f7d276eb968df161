"""Pictures of a folder: listed by suffix, read as grey values or colours, cut into patches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._words import one_line

Array = np.ndarray[Any, Any]

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp", ".pgm")
#: the smallest standard deviation that patches are divided by, if black is 0 and white is 1
FLAT = 0.02
#: the weights of red, green and blue in a grey value (ITU-R 601), as Pillow has them
LUMINANCE = (0.299, 0.587, 0.114)
#: the tag of Exif that says how a picture is turned, and its values for a quarter turn
ORIENTATION, QUARTER = 0x0112, range(5, 9)


def find(folder: Path) -> list[Path]:
    """The pictures of a folder, sorted by name; hidden files are skipped."""
    paths = sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )
    if not paths:
        raise ValueError(f"{folder} has no pictures ({', '.join(SUFFIXES)})")
    return paths


def read(path: Path) -> Array:
    """The grey values of a picture, float64, 0 for black and 1 for white; colours become grey.

    Integers of 8 and 16 bits are divided by 255 and 65535. Floating-point values are taken as they
    are if none exceeds 1 in magnitude, and are divided by the largest magnitude otherwise.
    """
    with _opened(path) as picture:
        values = np.asarray(picture if _is_deep(picture) else picture.convert("L"))
    return _scaled(path, values)


class Header(NamedTuple):
    """Height and width of a picture as it is shown, and whether it has more than 8 bits."""

    height: int
    width: int
    deep: bool


def read_header(path: Path) -> Header:
    """The size of a picture, without its pixels."""
    with _opened(path) as picture:
        width, height = picture.size
        if picture.getexif().get(ORIENTATION) in QUARTER:
            height, width = width, height
        return Header(height, width, _is_deep(picture))


def read_colours(path: Path) -> Array:
    """The values of a picture: (height, width) if it is grey, otherwise (height, width, 3).

    Numbers are scaled as by `read`. The picture is turned as its camera has noted (Exif), and what
    is transparent becomes white. Of several pages or frames, the first is read.
    """
    with _opened(path) as picture:
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(picture)
        values = np.asarray(upright if _is_deep(upright) else _opaque(upright))
    return _scaled(path, values)


def as_grey(values: Array) -> Array:
    """The grey values of what `read_colours` returns."""
    return values if values.ndim == 2 else values @ np.asarray(LUMINANCE, values.dtype)


def _is_deep(picture: Any) -> bool:
    return picture.mode[0] in "IF"


def _opaque(picture: Any) -> Any:
    """A picture of 8 bits on white ground, grey or in colours."""
    from PIL import Image

    grey = picture.mode in ("1", "L", "LA", "La")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("L" if grey else "RGB")


def _scaled(path: Path, values: Array) -> Array:
    """Values from 0 for black to 1 for white."""
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise ValueError(f"{path} contains NaN or infinite values; repair or remove it")
        return values / max(float(np.abs(values).max()), 1.0)
    deep = values.dtype != np.uint8
    if deep and (values.min() < 0 or values.max() > 65535):
        raise ValueError(f"{path} has neither 8 nor 16 bits a pixel; convert it to one of them")
    scaled: Array = values / (65535.0 if deep else 255.0)
    return scaled


def windows(picture: Array, size: int) -> Array:
    """All patches of a picture as a view; the last two of its four axes are those of a patch."""
    return np.lib.stride_tricks.sliding_window_view(picture, (size, size))


def normalise(x: Array) -> Array:
    """Rows with mean zero, divided by ``max(std, 0.02)``, so that flat rows stay small."""
    x = x - x.mean(axis=1, keepdims=True)
    result: Array = x / np.maximum(x.std(axis=1, keepdims=True), FLAT)
    return result


def patches(folder: Path, size: int = 8, count: int = 20_000, seed: int = 0) -> Array:
    """Random patches of the pictures in a folder, normalised, as rows: (count, size^2), float32.

    Every position in every picture is equally likely. Pictures smaller than a patch are skipped.
    """
    if size < 2:
        raise ValueError(f"patch must be at least 2, got {size}")
    if count < 1:
        raise ValueError(f"patches must be at least 1, got {count}")
    paths = find(folder)
    positions = []
    for path in paths:
        with _opened(path) as picture:
            width, height = picture.size
        positions.append(max(height - size + 1, 0) * max(width - size + 1, 0))
    total = sum(positions)
    if total == 0:
        raise ValueError(f"no picture in {folder} is as large as a patch of {size} x {size}")
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(count, [number / total for number in positions])
    chosen = [
        random_patches(read(path), number, size, rng).astype(np.float32)
        for path, number in zip(paths, counts, strict=True)
        if number > 0
    ]
    x = normalise(np.concatenate(chosen))
    rng.shuffle(x)
    return x


def random_patches(picture: Array, count: int, size: int, rng: np.random.Generator) -> Array:
    """Patches at random positions of a picture, as rows."""
    view = windows(picture, size)
    top, left = (rng.integers(0, extent, count) for extent in view.shape[:2])
    patches: Array = view[top, left].reshape(count, -1)
    return patches


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Context manager: yields a picture as Pillow opens it; its errors become ValueErrors."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading pictures needs Pillow; install it with pip install 'pursuit[vision]'"
        ) from error
    try:
        with Image.open(path) as picture:
            yield picture
    except PermissionError:
        raise
    except Exception as error:  # of a type that depends on the format
        raise ValueError(f"{path} cannot be read as a picture: {one_line(error)}") from error
