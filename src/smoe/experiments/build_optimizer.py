"""Makes the optimiser of a recipe: which parameters have which learning rate, and which an L2 penalty."""

from __future__ import annotations

from typing import Any

import torch

from smoe import nn
from smoe.experiments.optimizers import AdamL2, SgdMomentum

# As torchvision has them.
_NORMS = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.modules.instancenorm._InstanceNorm,
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
)
_WITH_KERNELS = (nn.GridConv2d, nn.SpatialMoE2d, nn.LowRankLocal2d)


def build_optimizer(model: torch.nn.Module, options: AdamL2, *, is_fused: bool) -> torch.optim.Adam:
    """Adam with the groups of `parameter_groups`.

    Args:
        model: whose parameters to learn.
        options: of the recipe.
        is_fused: one pass over all parameters; not with a loss scaler, whose skipped steps it would hide.
    """
    return torch.optim.Adam(parameter_groups(model, options), lr=options.lr, betas=options.betas, fused=is_fused)


def parameter_groups(model: torch.nn.Module, options: AdamL2) -> list[dict[str, Any]]:
    """Learning parameters of each kind, named `kernels`, `others` and `gates`; kinds without any are left out.

    The penalty `l2 * sum(w^2)` has the gradient `2 l2 w`, and Adam's weight decay adds exactly this to a gradient
    (AdamW's does not: it passes Adam's averages by). So the decay of the kernels is `2 l2`.
    """
    kernels = _identities(module.weight for module in model.modules() if isinstance(module, _WITH_KERNELS))
    gates = _identities_in(model, (nn.SpatialGate,))
    of_kind: dict[str, list[torch.nn.Parameter]] = {"kernels": [], "others": [], "gates": []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_gate, is_kernel = id(parameter) in gates, id(parameter) in kernels
            of_kind["gates" if is_gate else "kernels" if is_kernel else "others"].append(parameter)
    settings: dict[str, dict[str, float]] = {
        "kernels": {"weight_decay": 2.0 * options.l2},
        "others": {},
        "gates": {} if options.gate_lr is None else {"lr": options.gate_lr},
    }
    return [
        {"params": parameters, "name": kind, **settings[kind]} for kind, parameters in of_kind.items() if parameters
    ]


def build_sgd(model: torch.nn.Module, options: SgdMomentum) -> torch.optim.SGD:
    """SGD with the groups `weights`, `norms` and `gates`; only the first has a weight decay."""
    norms, gates = _identities_in(model, _NORMS), _identities_in(model, (nn.SpatialGate,))
    of_kind: dict[str, list[torch.nn.Parameter]] = {"weights": [], "norms": [], "gates": []}
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_gate, is_norm = id(parameter) in gates, id(parameter) in norms
            of_kind["gates" if is_gate else "norms" if is_norm else "weights"].append(parameter)
    settings: dict[str, dict[str, float]] = {
        "weights": {"weight_decay": options.weight_decay},
        "norms": {},
        "gates": {"lr": options.gate_lr},
    }
    groups = [
        {"params": parameters, "name": kind, **settings[kind]} for kind, parameters in of_kind.items() if parameters
    ]
    return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, weight_decay=0.0)


def _identities_in(model: torch.nn.Module, kinds: tuple[type[torch.nn.Module], ...]) -> set[int]:
    """Of the parameters of modules of these kinds."""
    modules = (module for module in model.modules() if isinstance(module, kinds))
    return _identities(parameter for module in modules for parameter in module.parameters())


def _identities(parameters: Any) -> set[int]:
    return {id(parameter) for parameter in parameters}
