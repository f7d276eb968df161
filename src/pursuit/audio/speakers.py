"""Who speaks: structured sparse codes of spectral envelopes, and the energies of their groups.

Every speaker has a dictionary, learned from clips of this person alone. Together they are the
dictionary of a HiLasso with one group for each speaker; the groups with the most energy, summed
over some frames, are the speakers that are heard (`energies`, `pooled`, `decide`).
"""

from __future__ import annotations

import numpy as np

from .streams import Array


def energies(codes: Array, groups: Array) -> Array:
    """Return the norm ``||z_r||_2`` of each group of codes, shape (frames, speakers).

    Parameters
    ----------
    codes
        The codes, shape (frames, q).
    groups
        The number of the group of each coefficient, shape (q,).
    """
    members = np.eye(int(groups.max()) + 1, dtype=codes.dtype)[groups]
    norms: Array = np.sqrt(np.square(codes) @ members)
    return norms


def pooled(energies: Array, frames: int | None = None) -> Array:
    """Sum energies over consecutive windows of some frames, by default over all frames.

    Returns a matrix (windows, speakers); frames after the last complete window are left out.

    Examples
    --------
    >>> pooled(np.array([[1.0, 0.0], [2.0, 1.0], [0.0, 5.0]]), 2).tolist()
    [[3.0, 1.0]]
    """
    frames = len(energies) if frames is None else frames
    if not 1 <= frames <= len(energies):
        raise ValueError(
            f"frames must be from 1 to {len(energies)}, the frames there are, got {frames}"
        )
    count = len(energies) // frames
    windows: Array = energies[: count * frames].reshape(count, frames, -1).sum(1)
    return windows


def decide(pooled: Array, count: int) -> Array:
    """Return the numbers of the `count` speakers with the highest energies, in order of number.

    Examples
    --------
    >>> decide(np.array([[0.1, 2.0, 1.0]]), 2).tolist()
    [[1, 2]]
    """
    if not 1 <= count <= pooled.shape[-1]:
        raise ValueError(
            f"count must be from 1 to {pooled.shape[-1]}, the speakers there are, got {count}"
        )
    highest = np.argsort(-pooled, axis=-1, kind="stable")[..., :count]
    return np.sort(highest, axis=-1)
