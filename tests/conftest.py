"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real data sets, for tests marked `data`."""
    folder = os.environ.get("PURSUIT_DATA")
    if not folder:
        pytest.skip("PURSUIT_DATA is not set: this test needs the real data sets")
    return Path(folder)


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param
