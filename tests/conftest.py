"""What all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

# a background job ignores interrupts, and the commands that tests interrupt would do the same
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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
