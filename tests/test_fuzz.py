"""A short version of the attacks; ``make fuzz`` runs them for ten minutes."""

from __future__ import annotations

import time

import pytest

import fuzz

ATTACKS = fuzz.attacks()
#: the number of trials of an attack, and the seconds after which there is no further one
TRIALS, SECONDS = 12, 2.0
#: seeds and numbers of trials that found something once
FOUND = [
    ("certificates.lasso", 77, 7),  # weights of different sizes: the objective's rounding
    ("certificates.lasso", 77, 108),
    ("certificates.group_lasso", 2026, 3084),  # dependent atoms, tiny weight: codes without end
    ("files.file-bank", 2, 1482),  # units of zero
    ("files.file-bank", 2, 1508),  # a message with the whole of a bank
    ("files.file-encoder", 983784, 695),  # a message with the whole of a program
    ("files.file-encoder", 955242, 836),  # a dilation of 2^31
    ("files.file-encoder", 79730, 163),  # a dilation of True
    ("files.file-speakers", 955242, 485),  # a window of no samples
    ("files.file-noisy", 2, 44),  # a message with the whole of a wrong version
    ("files.file-unfinished", 2, 159),  # a checkpoint from which training overflows
    ("learners.any numbers", 2, 174),  # a dictionary that is not finite before it is undone
    ("learners.any numbers", 983784, 420),  # a dictionary whose norms overflow
    ("learners.any numbers", 983784, 567),
    ("learners.any numbers", 983784, 620),
    ("learners.first bursts", 2, 37),  # the variance of objectives above 1e154
    ("learners.levels", 1, 147),  # atoms that vanish together
    ("learners.settings", 6, 1115),  # groups that are a word
    ("learners.settings", 1, 204),  # no weight on the scores
]


@pytest.mark.parametrize(("name", "seed", "number"), FOUND)
def test_what_was_found_is_repaired(name: str, seed: int, number: int) -> None:
    assert fuzz.trial(name, ATTACKS[name], seed, number) is None


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_finds_nothing(name: str) -> None:
    start = time.perf_counter()
    for number in range(TRIALS):
        found = fuzz.trial(name, ATTACKS[name], 0, number)
        assert found is None, f"--seed 0 {name} --trial {number}\n{found}"
        if time.perf_counter() - start > SECONDS:
            break
