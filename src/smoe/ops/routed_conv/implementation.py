"""An implementation of a routed convolution, as a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch


class Implementation(NamedTuple):
    """Both directions of a routed convolution, of planes or of volumes.

    Attributes:
        forward: As the operator `smoe::routed_conv2d` or `smoe::routed_conv3d`.
        backward: As the operator of its gradients.
    """

    forward: Callable[..., torch.Tensor]
    backward: Callable[..., tuple[torch.Tensor, torch.Tensor]]
