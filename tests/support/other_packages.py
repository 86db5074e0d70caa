"""Packages that `make zoo` installs.

torchvision's wheel is built for CUDA and, beside the CPU build of torch, misses operators that it describes when it is
imported: stubs stand for them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

_STUBS: list[torch.library.Library] = []


def load(package: str) -> Any:
    if not _STUBS:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _STUBS.append(library)
    return pytest.importorskip(package, reason="make zoo installs it", exc_type=ImportError)
