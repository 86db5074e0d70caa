"""Parameters that may be sharded: whole during the passes of their module, and divided among processes in between.

`torch.distributed.fsdp.fully_shard` gathers the parameters of a module for its forward and backward passes, in which
layers and rules see whole tensors, and what is written to them is lost. Between passes a process holds a shard of each
parameter, which is what an optimiser changes, and what a rule changes by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP divides the parameters of a module among processes."""
    return getattr(module, "_is_fsdp_managed_module", False)


def local_part(values: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds; all of it, if it is not sharded."""
    # Only a sharded tensor has the method; its class takes long to import.
    to_local = getattr(values, "to_local", None)
    return values if to_local is None else to_local()


def refuse_shards(module: nn.Module) -> None:
    """Raises a RuntimeError if this process holds only shards of the parameters of a module at the moment."""
    if _holds_shards(module):
        raise RuntimeError(
            f"the parameters of {type(module).__name__} are sharded among processes; use it inside "
            "`with smoe.unsharded(model):`, in all processes"
        )


def refuse_gate_apart(layer: nn.Module, gate: nn.Module) -> None:
    """Raises a RuntimeError if a layer computes while its gate is sharded: FSDP gathers what is in the layer's unit."""
    if _holds_shards(gate, alone=True):
        raise RuntimeError(
            f"the parameters of {type(gate).__name__} are sharded while {type(layer).__name__} computes, because the "
            "gate is a unit of its own; do not call fully_shard on a gate, but on its layer, or use smoe.shard(model)"
        )


def _holds_shards(module: nn.Module, *, alone: bool = False) -> bool:
    """Whether this process holds shards of parameters of a module, or, `alone`, of all of them."""
    if not is_sharded(module):
        return False
    from torch.distributed.tensor import DTensor

    found = [isinstance(parameter, DTensor) for parameter in module.parameters()]
    return any(found) and (all(found) or not alone)


def gather(parameter: nn.Parameter) -> torch.Tensor:
    """The whole of a parameter, also where the unit of another layer has sharded it.

    Its gradient is then averaged over the processes, as FSDP does it, and added to that of the unit.
    """
    if type(parameter) is nn.Parameter:
        return parameter
    from torch.distributed.tensor import DTensor, Partial

    if not isinstance(parameter, DTensor):
        return parameter
    mesh = parameter.device_mesh
    return _Averaged.apply(parameter.full_tensor(grad_placements=[Partial()] * mesh.ndim), mesh.size())  # type: ignore[return-value]


class _Averaged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, num_processes):
        ctx.num_processes = num_processes
        return values.view_as(values)

    @staticmethod
    def backward(ctx, *grad_outputs):
        return grad_outputs[0] / ctx.num_processes, None


def is_freed(values: torch.Tensor) -> bool:
    """Whether FSDP has freed the memory of values that are a view of a parameter."""
    return values.untyped_storage().size() == 0 and values.numel() > 0


@torch.no_grad()
def change_parameter(module: nn.Module, name: str, change: Callable[[torch.Tensor], None]) -> None:
    """Changes a parameter between a backward pass and the next forward pass. Every process must make the same change.

    Args:
        module: Module that holds the parameter.
        name: Name of the parameter.
        change: Changes the whole parameter in place.

    Raises:
        RuntimeError: If FSDP was told to leave whole parameters after a backward pass: the change would be lost.
    """
    parameter = getattr(module, name)
    if not is_sharded(module):
        change(parameter)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        raise RuntimeError(
            f"the rule of a layer changes the parameter {name!r} of {type(module).__name__} after the backward pass, "
            "when FSDP must have sharded it again; leave set_reshard_after_backward at True, and use fully_shard, not "
            "FullyShardedDataParallel"
        )
    whole = parameter.full_tensor()
    change(whole)
    # Every process holds the same whole tensor: nothing is sent.
    mine = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    local_part(parameter).copy_(local_part(mine))
