"""What the documents show runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import pursuit as pu
from processes import script
from pursuit import penalties

ROOT = Path(__file__).parents[1]


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_readme_example(tmp_path: Path) -> None:
    (code,) = blocks("README.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    (tmp_path / "example.py").write_text(code)
    done = script(tmp_path / "example.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "converged=10000" in done.stdout


def test_encoder_example() -> None:
    first, second = blocks("docs/encoders.md")
    namespace: dict[str, object] = {}
    exec(first, namespace)
    assert namespace["exact"].converged.all()
    assert (namespace["gap"] >= 0).all()
    exec(second, namespace)
    assert namespace["maps"].shape == (1, 4, 996)
    model, encoder, x = (namespace[name] for name in ("model", "encoder", "x"))
    untrained = pu.ConvolutionalEncoder(model, layers=4)
    before, after = (model.objective(x, each(x)).mean() for each in (untrained, encoder))
    assert after < before


def test_training_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/training.md")
    namespace: dict[str, object] = {}
    exec(code, namespace)
    x, encoder, again = (namespace[name] for name in ("x", "encoder", "again"))
    assert torch.equal(encoder(x), again(x))
    assert encoder.regime == "unsupervised"


def test_stream_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("docs/online.md")
    namespace: dict[str, object] = {}
    exec(code, namespace)
    assert namespace["learner"].samples == 3000
    assert (tmp_path / "learner.safetensors").is_file()


def test_runtime_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for code in blocks("docs/runtime.md"):
        exec(code, namespace)
    x, codes = namespace["x"], namespace["codes"]
    with torch.no_grad():
        expected = namespace["encoder"](torch.from_numpy(x))
    torch.testing.assert_close(torch.from_numpy(codes), expected, rtol=1e-4, atol=1e-5)
    assert (namespace["again"](x) == codes).all()
    assert (tmp_path / "encoder.onnx").is_file()
    spectra, streamed = (torch.from_numpy(namespace[name]) for name in ("spectra", "streamed"))
    whole = namespace["causal"].resized(spectra.shape)
    with torch.no_grad():
        maps = whole.operator.maps(whole(spectra.reshape(1, -1)))[0]
    torch.testing.assert_close(streamed, maps.transpose(0, 1).flatten(1), rtol=1e-4, atol=1e-5)


def test_estimator_example() -> None:
    namespace: dict[str, object] = {}
    for code in blocks("docs/estimators.md"):
        exec(code, namespace)
    assert np.isfinite(namespace["filled"]).all()
    x, y, parts = (namespace[name] for name in ("X", "y", "parts"))
    assert namespace["classifier"].score(x, y) > 0.7
    assert parts.low_rank.shape == parts.outliers.shape == x.shape


def test_the_penalty_that_contributing_walks_through() -> None:
    namespace = {"torch": torch, "Tensor": torch.Tensor, "Penalty": penalties.Penalty}
    exec(blocks("CONTRIBUTING.md")[0], namespace)
    cost = namespace["Cost"](0.2)
    peer = penalties.L1(0.2, nonnegative=True)
    v = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    for step in (0.3, torch.linspace(0.1, 1.0, 12)):
        torch.testing.assert_close(cost.prox(v, step), peer.prox(v, step))
    torch.testing.assert_close(cost.value(v), peer.value(v))
    torch.testing.assert_close(cost.gauge(v), peer.gauge(v))
    model = pu.models.SparseModel(torch.randn(12, 8), cost)
    solution = pu.solve(model, torch.randn(20, 8))
    assert solution.method == "coordinate"
    assert solution.converged.all()


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
def test_links_lead_somewhere(document: str | Path) -> None:
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_separation_examples() -> None:
    run, paper = blocks("docs/separation.md")
    namespace: dict[str, object] = {}
    exec(run, namespace)
    mixture, parts = (namespace[name] for name in ("mixture", "parts"))
    voice, accompaniment = (np.concatenate(part) for part in zip(*parts, strict=True))
    np.testing.assert_allclose(voice + accompaniment, mixture, atol=1e-5)
    np.testing.assert_allclose(voice, namespace["voice"], atol=1e-4)
    exec(paper, namespace)
    assert namespace["paper"].separate(mixture, 44_100).voice.shape == mixture.shape


def test_speakers_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    (code,) = blocks("docs/speakers.md")
    exec(code, namespace)
    found, when, latest = (namespace[name] for name in ("found", "when", "latest"))
    assert set(found.scores) == set(latest.scores) == {"low", "high"}
    assert when.scores.shape == (len(when.times), 2)
    assert (tmp_path / "voices.safetensors").is_file()


def test_alignment_example() -> None:
    namespace: dict[str, object] = {}
    (code,) = blocks("docs/alignment.md")
    exec(code, namespace)
    places, found, new = (namespace[name] for name in ("places", "found", "new"))
    at = torch.cat([found.parameters, new.parameters]) + places.flip(1)
    assert (at - at.mean(dim=0)).norm(dim=1).max() < 0.2
    assert (new.loss < new.loss_before).all()
