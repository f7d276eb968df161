"""Synthetic voices, which differ in resonances and pitch."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RATE = 8000
#: what tells the synthetic speakers apart: resonances in hertz, and the pitch
VOICES = {"anna": ((500, 1500), 210), "bert": ((300, 2300), 110), "cleo": ((800, 3100), 160)}
#: speakers that no model knows
STRANGERS = {"dora": ((1200, 2000), 180)}


def speech(voice: str, samples: int, seed: int, rate: int = RATE) -> Array:
    """A buzz of changing pitch through two resonances, with pauses."""
    resonances, pitch = (VOICES | STRANGERS)[voice]
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / rate
    steps = np.repeat(rng.uniform(0.8, 1.25, -(-samples * 10 // rate)), rate // 10)[:samples]
    phase = 2 * np.pi * np.cumsum(pitch * steps) / rate
    wave = np.zeros(samples)
    for k in range(1, int(0.45 * rate / (1.25 * pitch))):
        gain = sum(1 / (1 + ((k * pitch * steps - f) / 120) ** 2) for f in resonances)
        wave += gain * np.cos(k * phase + k * k)
    wave *= 0.01 + np.sin(2 * np.pi * 1.5 * time + rng.uniform(0, 6)) ** 4
    wave += 1e-3 * np.abs(wave).max() * rng.standard_normal(samples)
    return 0.3 * wave / np.abs(wave).max()
