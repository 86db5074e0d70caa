"""Kernels run on a GPU if there is one, and otherwise in Triton's interpreter on the CPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    pytest.importorskip("triton", reason="Triton is not installed")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
