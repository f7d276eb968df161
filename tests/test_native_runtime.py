"""The compiled executors against the formula of a program, written in NumPy in double precision."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from pursuit._native import VARIABLE, instruction_set, kernels
from pursuit.runtime.executors import EXECUTORS
from pursuit.runtime.program import Layer, Program

#: around the sizes of tiles, panels and blocks of rows
SIZES = [1, 2, 3, 6, 7, 8, 9, 15, 16, 17, 33, 64, 65, 100, 256]


def random_program(rng, *, form="gram", momentum=True, tied=True, levels=0, partial=False):
    q0, m = (int(size) for size in rng.choice(SIZES, 2))
    q = q0 + m if form == "identity" else q0
    depth = int(rng.integers(1, 5))

    def draw(*shape, scale=1.0):
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    def matrices(*shape, scale):
        stack = [draw(*shape, scale=scale) for _ in range(1 if tied else depth)]
        return [stack[t % len(stack)] for t in range(depth)]

    weights, atoms = (matrices(q0, m, scale=0.5 / np.sqrt(max(q0, m))) for _ in range(2))
    grams, steps = matrices(q, q, scale=0.3 / np.sqrt(q)), matrices(m, scale=0.3)
    labels, groups = [], []
    for _ in range(levels):
        count = int(rng.integers(1, q + 1))
        labels.append(rng.integers(-1, count, q))
        groups.append(abs(draw(depth, count, scale=0.1)))
    layers = []
    for t in range(depth):
        a1, a2, c1, c2, e = rng.uniform(-1, 1, 5)
        layers.append(
            Layer(
                mix=(a1, a2, c1, c2, e) if momentum else (a1, 0.0, c1, 0.0, e),
                weight=weights[t],
                gram=grams[t] if form == "gram" else None,
                atoms=None if form == "gram" else atoms[t],
                outlier_step=steps[t] if form == "identity" else None,
                soft=abs(draw(q, scale=0.1)),
                groups=tuple(level[t] for level in groups),
                width=int(rng.integers(0, q + 1)) if partial else q,
            )
        )
    return Program(
        tuple(layers),
        dictionary=draw(q0, m),
        negative=rng.integers(0, 2, q).astype(np.float32),
        constants=abs(draw(q)) + np.float32(0.1),
        decay=None if form == "gram" else abs(draw(q, scale=0.1)),
        units=draw(q),
        labels=tuple(labels),
        blocks=rng.integers(0, q, q),
    )


def reference(program, x):
    """The codes by the formula, and by how much the closest choice in each row is decided."""
    z = previous = np.zeros((len(x), program.size))
    margins = np.full(len(x), np.inf)
    parts = zip(program.layers, program.weights(), program.grams(), strict=True)
    for layer, weight, gram in parts:
        a1, a2, c1, c2, e = layer.mix
        v = a1 * z + a2 * previous + e * x @ weight.T.astype(float)
        v -= (c1 * z + c2 * previous) @ gram.T.astype(float)
        y = np.maximum(v - layer.soft, 0) + program.negative * np.minimum(v + layer.soft, 0)
        for labels, thresholds in zip(program.labels, layer.groups, strict=True):
            for group, threshold in enumerate(thresholds):
                norm = np.linalg.norm(y[:, labels == group], axis=1, keepdims=True)
                y[:, labels == group] *= np.maximum(1 - threshold / np.maximum(norm, 1e-300), 0)
        change = abs(y - z)
        width = layer.width
        if width == 0:
            change = change**2 * program.constants
            change = change @ np.eye(program.size)[program.blocks]
            width = 1
        taken = np.ones(z.shape, bool)
        if width < program.size:
            order = np.sort(change, axis=1)[:, ::-1]
            last, following = order[:, width - 1], order[:, width]
            decided = np.where(last > 0, (last - following) / (order[:, 0] + 1e-9), np.inf)
            margins = np.minimum(margins, decided)
            taken = change >= order[:, [width - 1]]
            if layer.width == 0:
                taken = taken[:, program.blocks]
        z, previous = np.where(taken, y, z), z
    return z * program.units, margins


FORMS = {
    "gram": {},
    "gram, plain": {"momentum": False},
    "gram, not tied": {"tied": False},
    "gram, plain, not tied": {"momentum": False, "tied": False},
    "gram, groups": {"levels": 2},
    "gram, plain, groups": {"levels": 1, "momentum": False},
    "residual": {"form": "residual"},
    "residual, groups, not tied": {"form": "residual", "levels": 2, "tied": False},
    "identity": {"form": "identity"},
    "identity, not tied": {"form": "identity", "tied": False},
    "partial": {"partial": True},
    "partial, groups, not tied": {"partial": True, "levels": 2, "tied": False},
}


def encode(executor, x):
    """Encode in memory that holds NaN wherever it was not written."""
    codes = np.full((len(x), executor.program.size), np.nan, np.float32)
    scratch = executor.scratch(len(x))
    scratch.fill(np.nan)
    assert executor.run(x, codes, scratch)
    return codes


@pytest.mark.parametrize("form", FORMS)
def test_executors_compute_the_formula(form):
    rng = np.random.default_rng(0)
    decided = []
    for case in range(25):
        program = random_program(rng, **FORMS[form])
        n = int(rng.choice([0, 1, 2, 3, 4, 5, 6, 7, 13, 50, 110]))
        x = rng.standard_normal((n, program.features)).astype([np.float32, np.float64][case % 2])
        expected, margins = reference(program, x)
        decided.extend(margins > 1e-4)
        size = abs(expected).max(axis=1, initial=0.1, keepdims=True)
        for kind in EXECUTORS.values():
            if kind.misfit(program) is None:
                found = encode(kind(program), x)
                wrong = abs(found - expected) > 1e-5 * size
                assert not wrong[margins > 1e-4].any(), (case, kind.name)
    assert np.mean(decided) > 0.95


@pytest.mark.parametrize("form", ["gram", "residual", "identity"])
def test_a_code_does_not_depend_on_its_batch(form):
    rng = np.random.default_rng(1)
    for _ in range(10):
        program = random_program(rng, form=form)
        x = rng.standard_normal((60, program.features)).astype(np.float32)
        for kind in EXECUTORS.values():
            if kind.misfit(program) is None:
                executor = kind(program)
                whole = encode(executor, x)
                for count in (1, 2, 3, 4, 5, 9):
                    start = int(rng.integers(0, 50))
                    part = encode(executor, x[start : start + count])
                    assert (part == whole[start : start + count]).all()


@pytest.mark.parametrize("form", FORMS)
def test_signals_that_are_not_finite_are_reported(form):
    rng = np.random.default_rng(2)
    program = random_program(rng, **FORMS[form])
    for kind in EXECUTORS.values():
        if kind.misfit(program) is not None:
            continue
        executor = kind(program)
        for bad in (np.nan, np.inf, -np.inf, 1e300):
            x = rng.standard_normal((200, program.features))
            x[150, -1] = bad  # 1e300 is infinite in single precision
            assert not executor.run(
                x, np.empty((200, program.size), np.float32), executor.scratch(200)
            )
        # what overflows inside comes to an end too
        huge = np.full((3, program.features), 3e38, np.float32)
        assert executor.run(huge, np.empty((3, program.size), np.float32), executor.scratch(3))


def test_arrays_that_do_not_fit_are_refused():
    program = random_program(np.random.default_rng(3))
    executor = EXECUTORS["dense"](program)
    x, codes = np.zeros((5, program.features), np.float32), np.zeros((5, program.size), np.float32)
    scratch = executor.scratch(5)
    run = executor.native.encode
    with pytest.raises(ValueError, match="x of shape"):
        run(x[:, :0].copy(), 0.0, codes, scratch)
    with pytest.raises(ValueError, match="codes of shape"):
        run(x, 0.0, codes[:4], scratch)
    with pytest.raises(ValueError, match="scratch of the size"):
        run(x, 0.0, codes, scratch[:-1])
    with pytest.raises(TypeError):
        run(x, 0.0, codes.astype(float), scratch)
    with pytest.raises(TypeError):
        run(x.astype(int), 0.0, codes, scratch)


def test_numbers_that_do_not_fit_are_refused():
    """A program is checked again where a wrong number would be read outside an array."""
    program = random_program(np.random.default_rng(4), levels=1, partial=True)
    given = EXECUTORS["sparse"](program).arrays()
    assert kernels.Program(**given)
    outside = {"weight_of": 1, "gram_of": -1, "blocks": program.size, "widths": -1, "runs": 10**6}
    for name, number in outside.items():
        wrong = given[name].copy()
        wrong.flat[-1] = number
        with pytest.raises(ValueError, match="the kernel needs"):
            kernels.Program(**given | {name: wrong})
    for name in ("soft", "weights", "negative", "units", "thresholds", "constants"):
        with pytest.raises(ValueError, match="the kernel needs"):
            kernels.Program(**given | {name: given[name][:0]})


def test_instruction_sets_agree():
    """The same codes, up to rounding, from the module for old processors."""
    if instruction_set == "baseline":
        pytest.skip("this is the module for old processors already")
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import numpy as np\n"
        "from test_native_runtime import EXECUTORS, encode, random_program\n"
        "rng = np.random.default_rng(5)\n"
        "for form in ('gram', 'residual', 'identity'):\n"
        "    program = random_program(rng, form=form)\n"
        "    x = rng.standard_normal((20, program.features)).astype(np.float32)\n"
        "    for kind in EXECUTORS.values():\n"
        "        if kind.misfit(program) is None:\n"
        "            print(*encode(kind(program), x).ravel())\n"
    )
    found = []
    for name in ("baseline", instruction_set):
        environment = os.environ | {VARIABLE: name}
        run = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append([np.array(line.split(), float) for line in run.stdout.splitlines()])
    assert len(found[0]) == len(found[1]) > 3
    for a, b in zip(*found, strict=True):
        assert abs(a - b).max() <= 1e-5 * abs(a).max()
