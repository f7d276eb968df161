"""Classes that a user defines in a script can do all that the library's own can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from test_docs import blocks

#: a penalty, an operator and a model of a user, trained, saved and exported
SCRIPT = """
import sys, numpy as np, torch
import pursuit as pu
from torch import Tensor
from pursuit.penalties import Penalty
from pursuit.operators import Matrix

{penalty}

class Gathered(Matrix):
    def __init__(self, dictionary, index):
        super().__init__(dictionary)
        self.index = list(index)

    @property
    def atoms(self):
        return self.dictionary[self.index]

    def regression(self, x, codes):
        return codes.new_zeros(len(codes), len(self.dictionary)).index_add(
            1, torch.tensor(self.index), codes), x

class Priced(pu.models.SparseModel):
    def __init__(self, dictionary, index, lam):
        self.index, self.lam = index, lam
        super().__init__(Gathered(dictionary, index), Cost(lam))

def build():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 6, generator=generator)
    dictionary = torch.nn.functional.normalize(torch.randn(5, 6, generator=generator))
    return Priced(dictionary, [0, 1, 2, 3, 4, 0, 2], 0.2), x

if __name__ == "__main__":
    folder = sys.argv[1]
    model, x = build()
    assert pu.solve(model, x).converged.all()
    encoder = pu.ProximalEncoder(model, 3)
    before = model.objective(x, encoder(x)).mean()
    pu.fit(encoder, x, steps=60)
    assert model.objective(x, encoder(x)).mean() < before
    learned = pu.learn(x, model=model, passes=2)
    assert learned.objective(x, pu.solve(learned, x).codes).mean() < 0.9 * before
    pu.save(model, folder + "/model.safetensors")
    pu.save(encoder, folder + "/encoder.safetensors")
    pu.export_onnx(encoder, folder + "/encoder.onnx")
    codes = encoder(x).detach().numpy()
    assert np.abs(pu.compile(encoder)(x.numpy()) - codes).max() < 1e-5
    np.savez(folder + "/codes.npz", x=x.numpy(), codes=codes)
"""

LOAD = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, torch, pursuit as pu, mine
saved = np.load(sys.argv[1] + "/codes.npz")
encoder = pu.load(sys.argv[1] + "/encoder.safetensors")
assert isinstance(encoder.model, mine.Priced) and encoder.model.index == [0, 1, 2, 3, 4, 0, 2]
assert np.array_equal(encoder(torch.from_numpy(saved["x"])).detach().numpy(), saved["codes"])
assert isinstance(pu.load(sys.argv[1] + "/model.safetensors").penalty, mine.Cost)
"""

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
from pursuit.runtime import load
saved = np.load(sys.argv[1] + "/codes.npz")
codes = load(sys.argv[1] + "/encoder.safetensors")(saved["x"])
assert np.abs(codes - saved["codes"]).max() < 1e-5
"""

WITHOUT_THE_CLASS = """
import sys, pursuit as pu
try:
    pu.load(sys.argv[1] + "/encoder.safetensors")
except ValueError as error:
    print(error)
"""


def run(code: str, folder: Path) -> str:
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_a_script_to_every_place_where_an_encoder_runs(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.format(penalty=blocks("CONTRIBUTING.md")[0]))
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run(LOAD, tmp_path)
    run(WITHOUT_TORCH, tmp_path)
    sentence = run(WITHOUT_THE_CLASS, tmp_path)
    assert "encoder.safetensors cannot be loaded" in sentence
    assert "'Priced', which is not defined here; define or import the class" in sentence
    saved = np.load(tmp_path / "codes.npz")
    session = onnxruntime.InferenceSession(
        tmp_path / "encoder.onnx", providers=["CPUExecutionProvider"]
    )
    (codes,) = session.run(None, {"x": saved["x"]})
    np.testing.assert_allclose(codes, saved["codes"], atol=1e-5)
