"""Whether the state of a run is finite, so that it may be stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from smoe.nn.sharded_parameters import local_part


class FiniteState:
    """Finds values that training has made infinite or NaN.

    Args:
        model: Model at the start. A parameter or buffer that is not finite then, such as a mask, is not looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {name for name, value in model.state_dict().items() if _all_finite([value])}

    def is_kept(self, models: Iterable[nn.Module], optimizer: torch.optim.Optimizer) -> bool:
        """Whether everything that was finite at the start, and the state of the optimiser, is finite.

        Args:
            models: The model that trains, and the average of its weights if there is one.
            optimizer: Its optimiser.
        """
        states = [model.state_dict() for model in models]
        kept = [value for state in states for name, value in state.items() if name in self._names]
        moments: Iterable[dict[str, Any]] = optimizer.state.values()
        kept += [value for state in moments for value in state.values() if isinstance(value, Tensor)]
        return _all_finite(kept)


def _all_finite(values: list[Tensor]) -> bool:
    numbers = [local_part(value.detach()) for value in values if value.is_floating_point() or value.is_complex()]
    # One value is read on the host, and not one for each tensor.
    flags = [value.isfinite().all() for value in numbers]
    return not flags or bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all())
