"""Networks whose parameters are divided among processes by `torch.distributed.fsdp.fully_shard` (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn

from smoe.nn._routed_layer import RoutedLayer
from smoe.nn._shared_parameters import has_process_group, is_sharded

Model = TypeVar("Model", bound=nn.Module)


def shard(model: Model, *, reshard_after_forward: bool = True, **options: Any) -> Model:
    """Divides the parameters of a network among all processes, by `torch.distributed.fsdp.fully_shard`.

    Each SMoE layer is a unit, whose parameters are whole while it computes. Layers that share parameters, such as a
    gate, form one unit together. All other parameters belong to the network itself, except those of modules that
    `fully_shard` has made units of before, such as large layers of other kinds. Calling `fully_shard(model)` instead
    makes one unit of everything. Make the optimiser afterwards.

    Args:
        model: Network on its device. It is changed in place.
        reshard_after_forward: Free the whole parameters of a layer between its forward and its backward pass. False if
            a loss is made of the scores of a routing in between.
        **options: Further arguments of `fully_shard`, such as `mesh`.

    Returns:
        The network.

    Raises:
        RuntimeError: If there is no group of processes, or some of the layers that share a gate are sharded already.
    """
    if not has_process_group():
        raise RuntimeError(
            "shard divides parameters among processes: start them with torchrun, and call "
            "torch.distributed.init_process_group first"
        )
    from torch.distributed.fsdp import FSDPModule, fully_shard

    for layers in _units(model):
        num_sharded = sum(isinstance(layer, FSDPModule) for layer in layers)
        if 0 < num_sharded < len(layers):
            raise RuntimeError(
                f"{num_sharded} of {len(layers)} layers that share a gate are sharded already; do not call fully_shard "
                "on them, smoe.nn.shard makes one unit of them"
            )
        if model not in layers and not num_sharded:
            fully_shard(layers, reshard_after_forward=reshard_after_forward, **options)
    fully_shard(model, **options)
    return model


def _units(model: nn.Module) -> list[list[nn.Module]]:
    """The SMoE layers, those that share parameters together."""
    units: list[tuple[list[nn.Module], set[nn.Parameter]]] = []
    for layer in model.modules():
        if not isinstance(layer, RoutedLayer):
            continue
        layers: list[nn.Module] = [layer]
        parameters = set(layer.parameters())
        apart: list[tuple[list[nn.Module], set[nn.Parameter]]] = []
        for unit in units:
            if unit[1].isdisjoint(parameters):
                apart.append(unit)
            else:
                layers, parameters = unit[0] + layers, unit[1] | parameters
        units = [*apart, (layers, parameters)]
    return [layers for layers, _ in units]


@contextmanager
def unsharded(model: nn.Module) -> Iterator[None]:
    """While active, the parameters of a sharded network are whole: for `smoe.describe`, `layer.routing()` and so on.

    Every process must enter it. A network that is not sharded stays as it is. Do not train in it: what is written to a
    whole parameter is lost.

    Args:
        model: Network.
    """
    units: list[Any] = [module for module in model.modules() if is_sharded(module) and hasattr(module, "unshard")]
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
