"""How the processes of a run hold a model: each the whole of it, or each a shard of its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from smoe.training.checkpoint_parts import load_whole, remove_parts
from smoe.training.checkpoints import save_checkpoint
from smoe.training.first_process import by_first

State = dict[str, Any]


class Distribution(ABC):
    """A model and its optimiser, distributed over the processes of a run.

    States are as the processes hold them; what `read` returns fits, whatever processes have written it: a run can be
    resumed with another number of processes and another distribution.

    Attributes:
        model: Model to call in training.
        optimizer: Optimiser, wrapped by accelerate.
    """

    model: nn.Module
    optimizer: Any

    @abstractmethod
    def without_sum(self) -> AbstractContextManager[None]:
        """While active, gradients are not summed over processes: for all parts of a batch but the last."""

    @abstractmethod
    def whole(self, model: nn.Module) -> AbstractContextManager[None]:
        """While active, parameters are whole, so that parts of a model can be used without a pass through it."""

    @abstractmethod
    def add(self, model: nn.Module) -> nn.Module:
        """Distributes another model, with parameters like those of the first."""

    @abstractmethod
    def save(self, path: Path, state: State) -> None:
        """Writes a checkpoint, whole or not at all. All processes must call it.

        Args:
            path: File of the checkpoint.
            state: Plain values, and states of the model, of others like it and of the optimiser.

        Raises:
            CheckpointError: In all processes, if one of them cannot write.
        """

    @abstractmethod
    def read(self, path: Path) -> State:
        """Reads a checkpoint of any distribution. All processes must call it.

        Raises:
            CheckpointError: In all processes, if a file is missing, damaged or refused.
        """

    @abstractmethod
    def state_of(self, model: nn.Module) -> State:
        """The state of a model, as this process holds it."""

    @abstractmethod
    def whole_state_of(self, model: nn.Module) -> State:
        """The whole state of a model, in all processes. All processes must call it."""

    @abstractmethod
    def load(self, model: nn.Module, state: State) -> None:
        """Loads a state that was read."""

    @abstractmethod
    def optimizer_state(self) -> State:
        """The state of the optimiser, as this process holds it."""

    @abstractmethod
    def load_optimizer(self, state: State) -> None:
        """Loads a state of the optimiser that was read."""

    @abstractmethod
    def end_evaluation(self, model: nn.Module) -> None:
        """Frees what an evaluation leaves."""


class WholeModel(Distribution):
    """Each process holds the whole model, in `DistributedDataParallel` if there are several.

    Args:
        accelerator: Accelerator of the run.
        model: Model to train.
        optimizer: Its optimiser.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._accelerator = accelerator
        self.model, self.optimizer = accelerator.prepare(model, optimizer)

    def without_sum(self) -> AbstractContextManager[None]:
        """While active, `DistributedDataParallel` leaves gradients as they are."""
        return self._accelerator.no_sync(self.model)

    def whole(self, model: nn.Module) -> AbstractContextManager[None]:
        """Nothing is to be done."""
        del model
        return nullcontext()

    def add(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model

    def save(self, path: Path, state: State) -> None:
        """Process 0 writes one file."""

        def write() -> None:
            save_checkpoint(path, state, make_folder=False)
            remove_parts(path)

        by_first(self._accelerator, write)

    def read(self, path: Path) -> State:
        """What process 0 reads: the others need not see its file system, and never see an older file."""
        return by_first(self._accelerator, lambda: load_whole(path))

    def state_of(self, model: nn.Module) -> State:
        """The state of the model."""
        return model.state_dict()

    def whole_state_of(self, model: nn.Module) -> State:
        """The state of the model."""
        return model.state_dict()

    def load(self, model: nn.Module, state: State) -> None:
        """Loads a state."""
        model.load_state_dict(state)

    def optimizer_state(self) -> State:
        """The state of the optimiser."""
        return self.optimizer.state_dict()

    def load_optimizer(self, state: State) -> None:
        """Loads a state of the optimiser."""
        self.optimizer.load_state_dict(state)

    def end_evaluation(self, model: nn.Module) -> None:
        """Nothing is to be done."""
        del model
