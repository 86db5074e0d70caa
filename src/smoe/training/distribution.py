"""How the processes of a run hold a model: each the whole of it, or each a shard of its parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

State = dict[str, Any]


class Distribution(ABC):
    """A model and its optimiser, distributed over the processes of a run.

    What leaves the processes or comes to them, such as a checkpoint, is whole in either case: a run can be resumed with
    another number of processes and another distribution.

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
    def state_of(self, model: nn.Module, *, everywhere: bool = False) -> State:
        """The whole state of a model. All processes must call it.

        Args:
            model: Model that is distributed.
            everywhere: Return it to all processes; otherwise it may be empty in all but the first.
        """

    @abstractmethod
    def load(self, model: nn.Module, state: State) -> None:
        """Loads a whole state, which every process has."""

    @abstractmethod
    def optimizer_state(self) -> State:
        """The whole state of the optimiser; in processes other than the first it may be empty."""

    @abstractmethod
    def load_optimizer(self, state: State) -> None:
        """Loads a whole state of the optimiser, which every process has."""

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

    def state_of(self, model: nn.Module, *, everywhere: bool = False) -> State:
        """The state of the model."""
        del everywhere
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
