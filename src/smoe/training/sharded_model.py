"""A model of which each process of a run holds a shard (FSDP2, `--training.sharding full`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from smoe.nn.sharding import reshard, shard, unsharded
from smoe.training.distribution import Distribution, State


class ShardedModel(Distribution):
    """Each process holds a part of every parameter, of its gradient and of what the optimiser keeps for it.

    Args:
        accelerator: Accelerator of the run.
        model: Model to train, with equal parameters in all processes.
        optimizer: Its optimiser, which has made no step yet.
        reshard_after_forward: As for `smoe.shard`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        reshard_after_forward: bool = True,
    ) -> None:
        self._accelerator = accelerator
        self._options: dict[str, Any] = {
            "mesh": init_device_mesh(accelerator.device.type, (accelerator.num_processes,)),
            "reshard_after_forward": reshard_after_forward,
        }
        # Without DistributedDataParallel: places the model and casts in its forward pass.
        model = accelerator.prepare_model(model, evaluation_mode=True)
        names = {parameter: name for name, parameter in model.named_parameters()}
        self.model: Any = self.add(model)
        _replace_parameters(optimizer, names, dict(model.named_parameters()))
        self.optimizer = accelerator.prepare_optimizer(optimizer)

    @contextmanager
    def without_sum(self) -> Iterator[None]:
        """While active, each process adds up its gradients, whole ones."""
        self.model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.model.set_requires_gradient_sync(True)

    def whole(self, model: nn.Module) -> AbstractContextManager[None]:
        """While active, every process has all parameters of the model."""
        return unsharded(model)

    def add(self, model: nn.Module) -> nn.Module:
        """Shards another model."""
        return shard(model, **self._options)

    def state_of(self, model: nn.Module, *, everywhere: bool = False) -> State:
        """The whole state, on the CPU."""
        return _gather(model.state_dict(), is_kept=everywhere or self._accelerator.is_main_process)

    def load(self, model: nn.Module, state: State) -> None:
        """Loads each process's part of a whole state; a model that is not sharded loads all of it."""
        own = model.state_dict()
        model.load_state_dict({name: _like(value, own.get(name)) for name, value in state.items()})

    def optimizer_state(self) -> State:
        """The whole state of the optimiser, on the CPU of process 0."""
        state = self.optimizer.state_dict()
        is_first = self._accelerator.is_main_process
        return {**state, "state": {number: _gather(kept, is_kept=is_first) for number, kept in state["state"].items()}}

    def load_optimizer(self, state: State) -> None:
        """Loads each process's part of a whole state of the optimiser."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        parts = {
            number: {
                name: _like(value, parameters[number]) if isinstance(value, Tensor) and value.ndim > 0 else value
                for name, value in kept.items()
            }
            for number, kept in state["state"].items()
        }
        self.optimizer.load_state_dict({**state, "state": parts})

    def end_evaluation(self, model: nn.Module) -> None:
        """Frees the whole parameters that a pass without gradients leaves."""
        reshard(model)


def _gather(values: State, *, is_kept: bool) -> State:
    """The values with whole tensors, one after the other; empty unless they are kept."""
    gathered: State = {}
    for name, value in values.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if is_kept:
            gathered[name] = whole.cpu() if isinstance(whole, Tensor) else whole
    return gathered


def _like(whole: Tensor, own: object) -> Tensor:
    """This process's part of a whole tensor, if its own tensor is a part."""
    if not isinstance(own, DTensor):
        return whole
    if whole.shape != own.shape:
        raise ValueError(f"a tensor has the shape {tuple(whole.shape)}, but {tuple(own.shape)} is expected")
    # Every process has the whole tensor: nothing is sent.
    whole = whole.to(own.device_mesh.device_type)
    return distribute_tensor(whole, own.device_mesh, own.placements, src_data_rank=None)


def _replace_parameters(
    optimizer: torch.optim.Optimizer, names: dict[nn.Parameter, str], sharded: dict[str, nn.Parameter]
) -> None:
    """Gives an optimiser the sharded parameters in place of the whole ones."""
    if optimizer.state:
        raise ValueError("the optimiser has made steps before its model was sharded; start with a new one")
    for group in optimizer.param_groups:
        unknown = [tuple(parameter.shape) for parameter in group["params"] if parameter not in names]
        if unknown:
            raise ValueError(f"the optimiser has parameters that are not in the model, of shapes {unknown}")
        group["params"] = [sharded[names[parameter]] for parameter in group["params"]]
