"""A short version of the attacks; ``make fuzz`` runs them for ten minutes."""

from __future__ import annotations

import time

import pytest

import fuzz

ATTACKS = fuzz.attacks()
#: the number of trials of an attack, and the seconds after which there is no further one
TRIALS, SECONDS = 12, 2.0


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_finds_nothing(name: str) -> None:
    start = time.perf_counter()
    for number in range(TRIALS):
        found = fuzz.trial(name, ATTACKS[name], 0, number)
        assert found is None, f"--seed 0 {name} --trial {number}\n{found}"
        if time.perf_counter() - start > SECONDS:
            break
