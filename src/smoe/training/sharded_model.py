"""A model of which each process of a run holds a shard (FSDP2, `--training.sharding full`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from smoe.nn._sharding import reshard, shard, unsharded
from smoe.training.checkpoints import (
    CheckpointError,
    Rows,
    State,
    open_checkpoint,
    part_names,
    save_checkpoint,
    save_part,
)
from smoe.training.distribution import Distribution, by_all, by_first


class ShardedModel(Distribution):
    """Each process holds a part of every parameter, of its gradient and of what the optimiser keeps for it.

    Args:
        accelerator: Accelerator of the run.
        model: Model to train, with equal parameters in all processes.
        optimizer: Its optimiser, which has made no step yet.
        reshard_after_forward: As for `smoe.nn.shard`.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        reshard_after_forward: bool = True,
    ) -> None:
        self._options: dict[str, Any] = {
            "mesh": init_device_mesh(accelerator.device.type, (accelerator.num_processes,)),
            "reshard_after_forward": reshard_after_forward,
        }
        super().__init__(accelerator, model, optimizer)

    def _prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        # Without DistributedDataParallel: places the model and casts in its forward pass.
        model = self._accelerator.prepare_model(model, evaluation_mode=True)
        names = {parameter: name for name, parameter in model.named_parameters()}
        sharded = self.add(model)
        _replace_parameters(optimizer, names, dict(model.named_parameters()))
        return sharded, self._accelerator.prepare_optimizer(optimizer)

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

    def save(self, path: Path, state: State) -> None:
        """Each process writes a part; when all are on the disk, process 0 names them in the file of the checkpoint."""
        accelerator = self._accelerator
        parts = by_first(accelerator, lambda: part_names(path, accelerator.num_processes))
        mine = parts[accelerator.process_index]
        try:
            by_all(accelerator, lambda: save_part(mine, state))
            by_first(accelerator, lambda: save_checkpoint(path, state, parts, make_folder=False))
        except CheckpointError:
            mine.unlink(missing_ok=True)
            raise

    def read(self, path: Path) -> State:
        """Each process reads its rows of a checkpoint in parts, whatever number of processes wrote it."""
        stored = by_first(self._accelerator, lambda: open_checkpoint(path))
        read: list[State] = []
        by_all(self._accelerator, lambda: read.append(stored.state(self._read_shard)))
        return read[0]

    def whole_state_of(self, model: nn.Module) -> State:
        """The whole state, on the CPU."""
        state = model.state_dict().items()
        return {name: (value.full_tensor() if isinstance(value, DTensor) else value).cpu() for name, value in state}

    def load(self, model: nn.Module, state: State) -> None:
        """Loads shards, or each process's part of a whole state; a model that is not sharded loads all of it."""
        own = model.state_dict()
        model.load_state_dict({name: _like(value, own.get(name)) for name, value in state.items()})

    def load_optimizer(self, state: State) -> None:
        """Loads shards, or each process's part of a whole state of the optimiser."""
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

    def _read_shard(self, rows: Rows) -> Tensor:
        """The rows of this process, as `torch.chunk` divides them."""
        rank, num_processes = self._accelerator.process_index, self._accelerator.num_processes
        num_rows = rows.shape[0]
        size = -(-num_rows // num_processes)
        mine = rows.read(min(num_rows, rank * size), min(num_rows, (rank + 1) * size))
        strides = torch.empty(rows.shape, device="meta").stride()
        return DTensor.from_local(
            mine.to(self._accelerator.device), self._options["mesh"], (Shard(0),), run_check=False,
            shape=torch.Size(rows.shape), stride=strides,
        )  # fmt: skip


def _like(values: Tensor, own: object) -> Tensor:
    """Values as this process holds its own: a part of them, or all."""
    if not isinstance(own, DTensor):
        return values.full_tensor() if isinstance(values, DTensor) else values
    if values.shape != own.shape:
        raise ValueError(f"a tensor has the shape {tuple(values.shape)}, but {tuple(own.shape)} is expected")
    if isinstance(values, DTensor):
        return values
    # Every process has the whole tensor: nothing is sent.
    values = values.to(own.device_mesh.device_type)
    return distribute_tensor(values, own.device_mesh, own.placements, src_data_rank=None)


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
