"""Files: what is read is what was written, damage is noticed, nothing is half written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import pursuit as pu
from families import MODELS, problem
from pursuit import files, models, operators, penalties, persistence
from test_encoders import KINDS, bank_models, build, shaken


@pytest.mark.parametrize("name", MODELS)
def test_models_come_back(name: str, tmp_path: Path) -> None:
    model, x = problem(name, 1, 20)
    pu.save(model, tmp_path / "m.safetensors")
    again = pu.load(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    codes = pu.solve(model, x, method="fista", tol=0, max_iter=9).codes
    assert torch.equal(pu.solve(again, x, method="fista", tol=0, max_iter=9).codes, codes)
    assert torch.equal(again.objective(x, codes), model.objective(x, codes))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_encoders_come_back_bit_by_bit(kind: str, name: str, tmp_path: Path) -> None:
    model, x = problem(name, 2, 20)
    for dtype in (torch.float64, torch.float32):
        encoder = shaken(build(kind, model.to(dtype)))
        encoder.regime = "unsupervised"
        path = tmp_path / f"{dtype}.safetensors"
        pu.save(encoder, path)
        again = pu.load(path)
        assert type(again) is type(encoder)
        assert again.config == encoder.config
        assert again.regime == "unsupervised"
        assert torch.equal(again(x.to(dtype)), encoder(x.to(dtype)))
        assert torch.equal(again.best(x.to(dtype)), encoder.best(x.to(dtype)))


def test_other_forms_come_back(tmp_path: Path) -> None:
    path = tmp_path / "e.safetensors"
    for name in ("lasso", "robust-pca", "low-rank-sparse"):
        model, x = problem(name, 3, 20)
        for encoder in (
            pu.ProximalEncoder(model, 3, tied=False),
            pu.ProximalEncoder(model, 3, "free", tied=False, form="gram"),
            pu.CoordinateEncoder(model, 3, coordinates=(1, 2, 4), momentum=True),
            pu.CoordinateEncoder(model, 3, final="partial", form="gram"),
            pu.BlockCoordinateEncoder(model, 3, final="partial"),
        ):
            pu.save(shaken(encoder), path)
            assert torch.equal(pu.load(path)(x), encoder(x))


def test_banks_come_back_and_still_share(tmp_path: Path) -> None:
    bank = pu.EncoderBank([shaken(pu.ProximalEncoder(model, 3)) for model in bank_models()])
    pu.save(bank, tmp_path / "b.safetensors")
    again = pu.load(tmp_path / "b.safetensors")
    x = torch.rand(9, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert torch.equal(again.errors(x), bank.errors(x))
    assert all(encoder.low_rank is again[0].low_rank for encoder in again)


def test_a_dead_atom_does_not_keep_an_encoder_from_loading(tmp_path: Path) -> None:
    model, x = problem("robust-nmf", 5, 10)
    encoder = pu.ProximalEncoder(model, 3)
    with torch.no_grad():
        encoder.dictionary[1] = 0
    pu.save(encoder, tmp_path / "e.safetensors")
    assert torch.equal(pu.load(tmp_path / "e.safetensors")(x), encoder(x))


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    model, _ = problem("hilasso", 6, 1)
    encoder = pu.BlockCoordinateEncoder(model, 5)
    encoder.regime = "approximation"
    path = tmp_path / "e.safetensors"
    pu.save(encoder, path, provenance="ten thousand patches of a brick wall")
    about = files.open_saved(path).describe()
    assert about["provenance"] == "ten thousand patches of a brick wall"
    assert about["type"] == "BlockCoordinateEncoder"
    assert about["model"]["type"] == "HiLasso"
    assert about["arguments"]["layers"] == 5
    assert about["regime"] == "approximation"
    assert about["shapes"]["dictionary"] == [12, 8]
    # any reader of safetensors finds the same, without us
    with safe_open(path, framework="np") as file:
        assert json.loads(file.metadata()["pursuit"])["version"] == 2


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    model, _ = problem("stacked", 7, 1)
    path = tmp_path_factory.mktemp("files") / "e.safetensors"
    pu.save(shaken(pu.CoordinateEncoder(model, 3, coordinates=(1, 2, 3))), path)
    return path.read_bytes()


@pytest.mark.parametrize("seed", range(200))
def test_damaged_files_are_refused(seed: int, whole: bytes, tmp_path: Path) -> None:
    """Flipped bits, cut ends, exchanged and inserted bytes, in the header and in the data."""
    rng = np.random.default_rng(seed)
    content = bytearray(whole)
    header = 8 + int.from_bytes(whole[:8], "little")
    end = header if seed % 2 else len(content)
    at = int(rng.integers(end))
    match seed % 5:
        case 0:
            content[at] ^= 1 << int(rng.integers(8))
        case 1:
            del content[at:]
        case 2:
            content[at : at + 8] = rng.bytes(8)
        case 3:
            content[at:at] = rng.bytes(int(rng.integers(1, 20)))
        case 4:
            del content[at : at + int(rng.integers(1, 20))]
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    assert bytes(content) != whole
    with pytest.raises(ValueError, match=r"damaged\.safetensors") as refusal:
        pu.load(path)
    assert "\n" not in str(refusal.value)


def tampered(path: Path, **changes: object) -> None:
    """Write the file anew with another description, and a checksum that fits it."""
    tensors, info = persistence.read(path)
    for key, value in changes.items():
        info[key] = value
    text = {key: value for key, value in info.items() if key not in ("format", "version")}
    persistence.write(path, tensors, text)


def forged(kind: str, **arguments: object) -> dict[str, object]:
    return {"type": kind, "arguments": arguments, "dictionaries": ["dictionary"]}


def test_forged_descriptions_are_refused(tmp_path: Path) -> None:
    """A valid checksum does not make a type, a shape or a number right."""
    model, _ = problem("lasso", 8, 1)
    encoder = pu.ProximalEncoder(model, 3)
    path = tmp_path / "e.safetensors"
    arguments = encoder.config
    for changes in (
        {"type": "Tensor"},
        {"type": "os.system"},
        {"kind": "recipe"},
        {"arguments": {**arguments, "layers": 10**9}},
        {"arguments": {**arguments, "layers": "3"}},
        {"arguments": {**arguments, "step": "eval"}},
        {"arguments": {}},
        {"arguments": None},
        {"model": forged("torch")},
        {"model": forged("Lasso", lam=-1.0)},
        {"model": forged("Lasso", lam="1")},
        {"model": {"type": "Lasso", "arguments": {"lam": 1.0}}},
        {"model": {**forged("Lasso", lam=1.0), "dictionaries": ["step.weight"]}},
        {"model": forged("SparseModel", penalty={"@penalty": "Penalty"})},
        {"model": forged("SparseModel", penalty={"@penalty": "Penalty", "arguments": {}})},
        {"model": forged("RobustPCA", lam=1.0, lam_star=1.0)},
        {"arguments": {**arguments, "layers": 4}},
    ):
        pu.save(encoder, path)
        tampered(path, **changes)
        with pytest.raises(ValueError, match=r"e\.safetensors cannot be loaded"):
            pu.load(path)
    pu.save(encoder, path)
    tensors, info = persistence.read(path)
    tensors["step.weight"][0, 0, 0] = float("nan")
    persistence.write(path, tensors, info)
    with pytest.raises(ValueError, match=r"step\.weight contains NaN"):
        pu.load(path)
    with torch.no_grad():
        encoder.step.weight[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="weights contains NaN"):
        pu.save(encoder, path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file"):
        pu.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        pu.load(tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        pu.load(tmp_path / "empty")
    save_file({"a": torch.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="but not one of pursuit"):
        pu.load(tmp_path / "foreign")
    with pytest.raises(TypeError, match="an EncoderBank is needed, got Tensor"):
        pu.save(torch.zeros(2), tmp_path / "t")


def test_equal_arrays_are_stored_once(tmp_path: Path) -> None:
    model, _ = problem("lasso", 9, 1, torch.float32)
    pu.save(pu.ProximalEncoder(model, 4), tmp_path / "e.safetensors")
    with safe_open(tmp_path / "e.safetensors", framework="np") as file:
        stored = set(file.keys())
    assert {"dictionary", "step.weight", "program.grams"} <= stored
    assert {"program.dictionary", "program.weights"}.isdisjoint(stored)


def test_models_on_any_operator_come_back(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.rand(3, 8, generator=generator), torch.rand(5, 8, generator=generator)
    for operator, size in (
        (operators.WithIdentity(first), 11),
        (operators.Joined(first, second), 8),
    ):
        model = models.SparseModel(operator, penalties.L1(0.1))
        assert model.code_size == size
        encoder = shaken(pu.ProximalEncoder(model, 3))
        x = torch.rand(6, 8, generator=generator)
        for obj in (model, encoder):
            pu.save(obj, tmp_path / "o.safetensors")
            again = pu.load(tmp_path / "o.safetensors")
            if obj is encoder:
                assert torch.equal(again(x), encoder(x))
                assert type(again.model.operator) is type(operator)
            else:
                assert torch.equal(again.decode(encoder(x)), model.decode(encoder(x)))


def test_what_a_file_could_not_describe_is_not_written(tmp_path: Path) -> None:
    class L1(penalties.L1):
        pass

    model = models.SparseModel(torch.eye(3), L1(0.1))
    with pytest.raises(TypeError, match=r"the name L1 refers to another class \(pursuit"):
        pu.save(model, tmp_path / "m")

    class Unkept(penalties.L1):
        def __init__(self, strength: float) -> None:
            super().__init__(strength)

    model = models.SparseModel(torch.eye(3), Unkept(0.1))
    with pytest.raises(TypeError, match="takes the argument 'strength' but has no attribute"):
        pu.save(model, tmp_path / "m")
    with pytest.raises(TypeError, match="the object first and then the path"):
        pu.save(tmp_path / "m", model)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = problem("lasso", 9, 1)
    path = tmp_path / "m.safetensors"
    pu.save(model, path)
    before = path.read_bytes()

    def fail(*args: object) -> None:
        raise OSError("no space left")

    for broken in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, fail)
            with pytest.raises(OSError, match="no space left"):
                pu.save(model.replace(lam=0.7), path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


# ---- files from strangers -------------------------------------------------------------------


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change the arrays and the description of a file, with a checksum that fits."""
    arrays, info = files.read(path)
    change(arrays, info)
    files.write(path, arrays, {k: v for k, v in info.items() if k not in ("format", "version")})


def set_at(place: str, value: object) -> Callable[[dict[str, Any], dict[str, Any]], object]:
    """Set a field of the description, such as "model.arguments.lam"."""

    def change(arrays: dict[str, Any], info: dict[str, Any]) -> None:
        *above, last = place.split(".")
        for key in above:
            info = info[key]
        info[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (set_at("model.arguments.groups", [[0, 1], [10**9]]), "refers to coefficient 1000000000"),
        (set_at("model.arguments.groups", [[0.5]]), "groups of HiLasso must be a list"),
        (set_at("model.arguments.groups", None), "groups of HiLasso must be a list"),
        (set_at("model.arguments.lam", {}), "lam of HiLasso must be .*, got a mapping"),
        (set_at("model.arguments.colour", 1), "HiLasso has no argument 'colour'; it takes"),
        (set_at("model.arguments", {"lam": 1.0}), "groups of HiLasso is missing"),
        (set_at("model.arguments", [1]), r"arguments must be a mapping, got \[1\]"),
        (set_at("model.arguments", {"@penalty": "L1", "arguments": {}}), "has no argument '@pen"),
        (set_at("model", None), "model must be a mapping, got null"),
        (set_at("model.dictionaries", ["none"]), "the array 'none' is missing"),
        (set_at("arguments.layers", 99_999), "layers must be from 1 to the depth"),
        (set_at("arguments.layers", -1), "layers must be from 1 to the depth"),
        (set_at("arguments.layers", True), "layers of .* must be a whole number, got True"),
        (set_at("arguments.layers", 2.5), "layers of .* must be a whole number, got 2.5"),
        (set_at("arguments.step", 3), "step of .* must be a text, got 3"),
        (set_at("regime", 7), "regime must be a text or null, got 7"),
        (lambda arrays, info: info.pop("regime"), "regime is missing"),
        (lambda arrays, info: arrays.pop("step.weight"), "the array step.weight is missing"),
        (lambda arrays, info: arrays.update(more=np.ones(3)), "the array 'more' is not part"),
        (lambda arrays, info: arrays.update(depth=np.ones(3)), "depth must be a whole number"),
        (
            lambda arrays, info: arrays.update(dictionary=arrays["dictionary"][:, :0]),
            "dictionary is empty",
        ),
        (
            lambda arrays, info: arrays.update(dictionary=1e200 * arrays["dictionary"]),
            "the numbers of dictionary are too large",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named(
    change: Callable[[dict[str, Any], dict[str, Any]], object], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "e.safetensors"
    pu.save(pu.BlockCoordinateEncoder(problem("hilasso", 10, 1)[0], 3), path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=rf"e\.safetensors cannot be loaded: .*{sentence}"):
        pu.load(path)


def test_encoders_of_convolutions_do_not_decide_how_much_memory_is_taken(tmp_path: Path) -> None:
    operator = operators.Convolution(torch.rand(3, 3), (9,), (3,))
    encoder = pu.ConvolutionalEncoder(models.SparseModel(operator, penalties.L1(0.1)), 3)
    path = tmp_path / "e.safetensors"
    for place, value, sentence in (
        ("arguments.reach", [0, 2**31], "reach must not lead far beyond 1 x 7 positions"),
        ("arguments.dilation", [[1, 2**31]] * 2, "dilation and reach must not lead far"),
        ("arguments.dilation", [[1, True]] * 2, "dilation must be positive whole numbers"),
        ("arguments.window", 2**40, "window"),
        ("model.arguments.dictionary.arguments.shape", [10**9], "at most 2097152 coefficients"),
    ):
        pu.save(encoder, path)
        rewritten(path, set_at(place, value))
        with pytest.raises(ValueError, match=rf"e\.safetensors cannot be loaded: .*{sentence}"):
            pu.load(path)
    pu.save(encoder, path)
    rewritten(path, set_at("program.couplings", [[1, 10**9]] * 2))
    with pytest.raises(ValueError, match="must not reach far beyond 1 x 7 positions"):
        pu.runtime.load(path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000 + "]" * 100_000, "cannot be read"),
        ("[" * 80 + "]" * 80, "nested more than 60 levels deep"),
        ("9" * 5000, "not a number of 64 bits"),
        ("-1" + "0" * 400, "not a number of 64 bits"),
        ("9223372036854775808", "not a number of 64 bits"),
    ],
)
def test_descriptions_have_a_depth_and_numbers_of_64_bits(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda *a, **k: dumps(*a, **k).replace('"HERE"', text))
    files.write(tmp_path / "m", {}, {"kind": "model", "model": "HERE"})
    monkeypatch.undo()
    with pytest.raises(ValueError, match=f"m has a description .*{sentence}"):
        pu.load(tmp_path / "m")
    files.write(tmp_path / "m", {}, {"kind": "other", "seed": 2**63 - 1})  # the largest seed
    assert files.read(tmp_path / "m")[1]["seed"] == 2**63 - 1


def test_equal_arrays_take_no_more_memory_than_one(tmp_path: Path) -> None:
    array = np.ones(1000)
    files.write(tmp_path / "m", {f"a{n}": array for n in range(100)}, {})
    arrays, _ = files.read(tmp_path / "m")
    assert len(arrays) == 100
    assert len({each.ctypes.data for each in arrays.values()}) == 1


def test_equal_objects_give_equal_bytes(tmp_path: Path) -> None:
    """The library of the format writes notes in an order that differs from call to call."""
    encoder = pu.ProximalEncoder(models.RobustPCA(torch.ones(2, 3), 0.3, 0.2), 2)
    for number in range(8):
        pu.save(encoder, tmp_path / str(number), "noise", {"steps": 1})
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
