"""Makes the optimiser of a recipe: which parameters have which learning rate, and which an L2 penalty."""

from __future__ import annotations

from typing import Any

import torch

from smoe import nn
from smoe.experiments.optimizers import AdamL2

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
    gates = _identities(
        parameter
        for module in model.modules()
        if isinstance(module, nn.SpatialGate)
        for parameter in module.parameters()
    )
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


def _identities(parameters: Any) -> set[int]:
    return {id(parameter) for parameter in parameters}
