"""ONNX: the graph gives the encoder's codes, and says what it is; nothing is half written."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

import pursuit as pu
from families import FEATURES, MODELS, PAIRS, PENALTIES, problem
from pursuit.encoders.encoder import Encoder
from pursuit.files import read, write
from pursuit.models import SparseModel
from pursuit.penalties import L1, GroupL2, Stacked
from pursuit.runtime import onnx as export
from test_encoders import CLASSES, FLAGS, LAYER_FORMS, STEPS, bank_models, shaken

#: relative, in float32
TOLERANCE = 1e-5
BATCHES = (50, 7, 1, 0)
#: model steps learn no matrices, so there is nothing to tie
FORMS = [
    (step, momentum, tied, structure)
    for step, momentum, tied, structure in product(STEPS, FLAGS, FLAGS, LAYER_FORMS)
    if tied or step != "model"
]


def session(model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    content = model if isinstance(model, bytes) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(model, x: Tensor) -> np.ndarray:
    return session(model).run(None, {"x": x.numpy()})[0]


def graph_of(encoder: Encoder, **options):
    return export.graph(encoder.program(), **options)


def signals(x: Tensor) -> Tensor:
    """Ordinary signals, larger ones, and silence."""
    return torch.cat([x, 3 * x, torch.zeros_like(x[:1])])


def difference(codes: np.ndarray, expected: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The largest difference of each row, relative to its size."""
    assert codes.dtype == np.float32
    assert codes.shape == expected.shape
    return np.abs(codes - expected).max(axis=1) / sizes


def row_sizes(encoder: Encoder, x: Tensor) -> np.ndarray:
    """The size of each row: the largest code that it has in any layer.

    The last codes may be small because larger ones cancelled, whose roundings are left in them.
    For the same reason one rounding of the largest signal is always within the tolerance.
    """
    with torch.no_grad():
        layers = torch.stack([codes.abs().amax(dim=1) for codes in encoder.iterates(x)])
    rounding = torch.finfo(torch.float32).eps * x.abs().amax(dim=1)
    return (layers.amax(dim=0) + rounding / TOLERANCE).clamp_min(1e-30).numpy()


def encode(encoder: Encoder, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The codes in torch, and for which rows a choice was decided by less than the tolerance.

    A choice is between the last coefficient or block that is taken over and the first that is
    not. Among changes smaller than the tolerance there is nothing to choose.
    """
    undecided = torch.zeros(len(x), dtype=torch.bool)
    choose = encoder._choose

    def watch(number: int, z: Tensor | None, candidate: Tensor) -> Tensor:
        change = candidate if z is None else candidate - z
        least = TOLERANCE * torch.maximum(candidate.abs(), (candidate - change).abs()).amax(dim=1)
        strengths, taken = _strengths(encoder, number, change)
        if taken < strengths.shape[1]:
            last, following = strengths.topk(taken + 1).values[:, -2:].unbind(dim=1)
            undecided.logical_or_((last > least) & (last - following < least))
        return choose(number, z, candidate)

    encoder._choose = watch
    with torch.no_grad():
        codes = encoder(x).numpy()
    del encoder._choose
    return codes, undecided.numpy()


def check(encoder: Encoder, x: Tensor, model=None) -> int:
    """The codes are those of torch, for any number of rows; gives how many rows are undecided."""
    expected, undecided = encode(encoder, x)
    sizes = row_sizes(encoder, x)
    runtime = session(model or graph_of(encoder))
    for rows in (len(x), *BATCHES):
        codes = runtime.run(None, {"x": x[:rows].float().numpy()})[0]
        within = difference(codes, expected[:rows], sizes[:rows]) < TOLERANCE
        assert within[~undecided[:rows]].all(), encoder
    return int(undecided.sum())


def _strengths(encoder: Encoder, number: int, change: Tensor) -> tuple[Tensor, int]:
    """By what a layer chooses, in units of the code, and how many it takes over."""
    width = encoder._width(number)
    if width is not None:
        return change.abs(), width
    relative = encoder.constants / encoder.constants.max()
    blocks = change.new_zeros(len(change), int(encoder.labels.max()) + 1)
    return blocks.index_add(1, encoder.labels, change.square() * relative).sqrt(), 1


def build(kind: str, model, layers: int = 4, **options) -> Encoder:
    if kind == "coordinate":
        options["coordinates"] = [1, 3, 2, model.code_size][-layers:]
    return CLASSES[kind](model, layers, **options)


# ---- the codes are the encoder's ------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", MODELS)
def test_codes_are_those_of_torch(name: str, kind: str) -> None:
    model, x = problem(name, 1, 100, torch.float32)
    x = signals(x)
    undecided = 0
    for number, (step, momentum, tied, structure) in enumerate(FORMS):
        form = {"step": step, "momentum": momentum, "tied": tied, "form": structure}
        encoder = shaken(build(kind, model, **form), seed=number)
        assert (encoder(x) != 0).any()
        undecided += check(encoder, x)
    # over all cases it is less than one in a thousand
    assert undecided < 2e-3 * len(x) * len(FORMS)


GROUPS_ASIDE = [(GroupL2(PAIRS[:2], 0.2), 6), (L1(0.1), 2), (GroupL2([[0, 2], [1]], 0.3), 4)]


@pytest.mark.parametrize("name", [*PENALTIES, "groups-aside"])
def test_every_penalty(name: str) -> None:
    """Also those that leave some coefficients to no group, or have groups side by side."""
    lasso, x = problem("lasso", 2, 50, torch.float32)
    penalty = PENALTIES[name]() if name in PENALTIES else Stacked(GROUPS_ASIDE)
    model = SparseModel(lasso.dictionary, penalty)
    for kind in CLASSES:
        assert check(shaken(build(kind, model)), signals(x)) <= 1


@pytest.mark.parametrize("structure", LAYER_FORMS)
@pytest.mark.parametrize("name", ["lasso", "robust-pca", "nmf-ridge"])
def test_scalars_may_be_zero(name: str, structure: str) -> None:
    """Terms that vanish are left out, in the first layer, in the second and in any other."""
    model, x = problem(name, 2, 50, torch.float32)
    for layer, zeros in product(range(4), ([0], [1], [2], [3], [4], [2, 3], [0, 1], range(5))):
        encoder = shaken(pu.ProximalEncoder(model, 4, form=structure))
        for value in (0.0, 1e-40):
            with torch.no_grad():
                encoder.step.mixing[layer, list(zeros)] = value
            check(encoder, x)


@pytest.mark.parametrize("name", ["lasso", "tree", "stacked", "robust-nmf"])
@pytest.mark.parametrize("kind", CLASSES)
def test_few_layers_and_thresholds_at_zero(kind: str, name: str) -> None:
    model, x = problem(name, 3, 50, torch.float32)
    for layers, step in product((1, 2), STEPS):
        encoder = shaken(build(kind, model, layers, step=step))
        with torch.no_grad():
            for threshold in encoder.step._threshold_parameters():
                threshold.flatten()[::2] = -0.1
        assert check(encoder, x) <= 1


@pytest.mark.parametrize("name", ["lasso", "robust-nmf"])
def test_trained_encoders(name: str, tmp_path: Path) -> None:
    model, x = problem(name, 4, 400, torch.float32)
    x = x.abs() if name == "robust-nmf" else x
    encoder = pu.ProximalEncoder(model, 5)
    pu.fit(encoder, x, steps=50)
    export.export_onnx(encoder, tmp_path / "e.onnx")
    check(encoder, x, (tmp_path / "e.onnx").read_bytes())
    assert 0.05 < (encoder(x) != 0).float().mean() < 1


def test_all_versions_of_the_operators_give_the_same() -> None:
    for kind, name in product(CLASSES, ("hilasso", "robust-pca")):
        model, x = problem(name, 5, 20, torch.float32)
        encoder = build(kind, model)
        first = run(graph_of(encoder, opset=13), x)
        for opset in (17, 18, 21):
            assert np.array_equal(run(graph_of(encoder, opset=opset), x), first)
    with pytest.raises(ValueError, match="opset must be 13 to"):
        graph_of(encoder, opset=12)


def test_double_precision_is_exported_in_single() -> None:
    model, x = problem("group", 6, 50)
    encoder = shaken(pu.ProximalEncoder(model, 4))
    check(encoder, x)


# ---- what the graph is ----------------------------------------------------------------------


def test_the_graph_describes_itself(tmp_path: Path) -> None:
    model, _ = problem("hilasso", 7, 1, torch.float32)
    encoder = pu.CoordinateEncoder(model, 3, coordinates=[1, 2, 3])
    encoder.regime = "unsupervised"
    pu.save(encoder, tmp_path / "e.safetensors", provenance="noise")
    export.export_onnx(tmp_path / "e.safetensors", tmp_path / "e.onnx")
    written = onnx.load(tmp_path / "e.onnx")
    assert written.producer_name == "pursuit"
    assert written.producer_version == pu.__version__
    assert written.graph.doc_string.startswith("CoordinateEncoder for HiLasso: signals (batch, 8)")

    runtime = session(written)
    described = json.loads(runtime.get_modelmeta().custom_metadata_map["pursuit"])
    _, info = read(tmp_path / "e.safetensors")
    same = ("format", "type", "arguments", "model", "regime", "provenance")
    assert described == {
        **{key: info[key] for key in same},
        "features": FEATURES,
        "size": model.code_size,
    }
    (given,), (result,) = runtime.get_inputs(), runtime.get_outputs()
    assert (given.name, given.type, given.shape) == ("x", "tensor(float)", ["batch", FEATURES])
    assert (result.name, result.type) == ("codes", "tensor(float)")
    assert result.shape == ["batch", model.code_size]

    export.export_onnx(encoder, tmp_path / "again.onnx")
    again = onnx.load(tmp_path / "again.onnx")
    assert again.graph == written.graph
    assert "provenance" not in json.loads(again.metadata_props[0].value)


def test_layers_share_their_matrices() -> None:
    for name, step in product(("lasso", "robust-nmf", "low-rank-sparse"), STEPS):
        model, _ = problem(name, 8, 1, torch.float32)
        for structure in LAYER_FORMS:
            encoder = shaken(pu.ProximalEncoder(model, 6, step, form=structure))
            matrices = [t.dims for t in graph_of(encoder).graph.initializer if len(t.dims) == 2]
            assert len(matrices) == 2
            if encoder.form == "residual":
                low = len(torch.cat([*model.dictionaries.values()]))
                assert all(list(dims) == [low, FEATURES] for dims in matrices)


def test_the_paper_form_is_one_product_and_one_shrinkage_a_layer() -> None:
    for name, shrinkage in (("lasso-nonnegative", 2), ("lasso", 3), ("nmf", 1)):
        model, _ = problem(name, 9, 1, torch.float32)
        encoder = pu.ProximalEncoder(model, 6, "free", momentum=False)
        # nmf gives its codes back in the model's own units
        assert len(graph_of(encoder).graph.node) == 6 * (1 + shrinkage) + (model.units is not None)


# ---- files ----------------------------------------------------------------------------------


def test_a_file_is_exported_without_torch(tmp_path: Path) -> None:
    """With the same bytes as from the encoder itself."""
    code = (
        "import sys\n"
        "from pursuit.runtime.onnx import export_onnx\n"
        "export_onnx(sys.argv[1], sys.argv[2])\n"
        "assert 'torch' not in sys.modules\n"
    )
    model, x = problem("robust-nmf", 10, 20, torch.float32)
    encoder = shaken(pu.ProximalEncoder(model, 4))
    pu.save(encoder, tmp_path / "e.safetensors")
    paths = [str(tmp_path / "e.safetensors"), str(tmp_path / "file.onnx")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    export.export_onnx(encoder, tmp_path / "encoder.onnx")
    written = (tmp_path / "file.onnx").read_bytes()
    assert written == (tmp_path / "encoder.onnx").read_bytes()
    check(encoder, x, written)


def test_what_is_no_encoder_is_refused(tmp_path: Path) -> None:
    target, source = tmp_path / "e.onnx", tmp_path / "e.safetensors"
    model, _ = problem("lasso", 11, 1, torch.float32)
    bank = pu.EncoderBank([pu.ProximalEncoder(model, 3) for model in bank_models()])
    with pytest.raises(TypeError, match="export its encoders one by one"):
        export.export_onnx(bank, target)
    for wrong in (model, 3, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=f"can be exported, got {type(wrong).__name__}"):
            export.export_onnx(wrong, target)
    pu.save(bank, source)
    with pytest.raises(TypeError, match="export its encoders one by one"):
        export.export_onnx(source, target)
    pu.save(model, source)
    with pytest.raises(ValueError, match=r"e\.safetensors cannot be run: only encoders and banks"):
        export.export_onnx(source, target)
    pu.save(pu.ProximalEncoder(model, 3), source)
    arrays, info = read(source)
    del arrays["program.mix"]
    write(source, arrays, info)
    with pytest.raises(ValueError, match=r"e\.safetensors cannot be run: mix is missing"):
        export.export_onnx(str(source), target)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        export.export_onnx(tmp_path / "nothing", target)
    encoder = pu.ProximalEncoder(model, 3)
    with torch.no_grad():
        encoder.step.weight[0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="weights contains NaN"):
        export.export_onnx(encoder, target)
    encoder = pu.ProximalEncoder(model, 3)
    with torch.no_grad():
        encoder.step.mixing[1, 2] = float("inf")
    with pytest.raises(ValueError, match="mix must be five finite numbers"):
        export.export_onnx(encoder, target)
    assert not target.exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = problem("lasso", 12, 1, torch.float32)
    encoder = pu.ProximalEncoder(model, 3)
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*missing to write e\.onnx"):
        export.export_onnx(encoder, tmp_path / "missing" / "e.onnx")
    with monkeypatch.context() as patch:

        def fail(*args: object) -> None:
            raise OSError("no space left")

        patch.setattr("os.replace", fail)
        with pytest.raises(OSError, match="no space left"):
            export.export_onnx(encoder, tmp_path / "e.onnx")
    assert list(tmp_path.iterdir()) == []
    export.export_onnx(encoder, tmp_path / "e.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["e.onnx"]


def test_without_onnx_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    encoder = pu.ProximalEncoder(problem("lasso", 13, 1)[0], 2)
    with pytest.raises(ImportError, match=r"pip install 'pursuit\[onnx\]'"):
        export.export_onnx(encoder, tmp_path / "e.onnx")
