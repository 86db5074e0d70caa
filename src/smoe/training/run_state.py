"""How far a run is: what changes from step to step beside weights and optimiser."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from smoe.training.plan import Stopping
from smoe.training.run_directory import Record


@dataclass
class RunState:
    """How far a run is.

    Attributes:
        stopping: Best value so far, and the end of the run.
        loss_total: Sum of the losses of this process in the epoch so far, a scalar.
        epoch: Epoch that is trained or comes next, from 1.
        next_batch: Batch of this epoch that comes next.
        seconds: Time that was spent on this epoch.
        history: Records of the epochs that have ended, and of the end of the run.
        is_finished: Whether the run has ended.
    """

    stopping: Stopping
    loss_total: Tensor
    epoch: int = 1
    next_batch: int = 0
    seconds: float = 0.0
    history: list[Record] = field(default_factory=list)
    is_finished: bool = False

    def begin_next_epoch(self) -> None:
        """Starts the count of the next epoch."""
        self.epoch, self.next_batch, self.seconds = self.epoch + 1, 0, 0.0
        self.loss_total.zero_()

    def __str__(self) -> str:
        if self.next_batch == 0:
            return f"the state before epoch {self.epoch}"
        return f"the state after batch {self.next_batch} of epoch {self.epoch}"
