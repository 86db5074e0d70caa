"""Makes the optimiser of a recipe: learning rates and penalties of each kind of parameter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from smoe import nn
from smoe_paper.baselines.low_rank import LowRankLocal2d
from smoe_paper.experiments.optimizers import Adam, SgdMomentum

# As torchvision has them.
_NORMS = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.modules.instancenorm._InstanceNorm,
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
)
_WITH_KERNELS = (nn.GridConv2d, nn.SpatialMoE2d, LowRankLocal2d)


def build_optimizer(
    model: torch.nn.Module, options: Adam | SgdMomentum, *, is_fused: bool = False
) -> torch.optim.Optimizer:
    """The optimiser that the options describe.

    Args:
        model: Model whose parameters learn.
        options: Optimiser of a recipe.
        is_fused: Whether Adam makes one pass over all parameters; not with a loss scaler, whose skipped steps it would
            hide.
    """
    if isinstance(options, SgdMomentum):
        groups = sgd_groups(model, options)
        return torch.optim.SGD(groups, lr=options.lr, momentum=options.momentum, weight_decay=0.0)
    groups = adam_groups(model, options)
    return torch.optim.Adam(groups, lr=options.lr, betas=options.betas, eps=options.eps, fused=is_fused)


def adam_groups(model: torch.nn.Module, options: Adam) -> list[dict[str, Any]]:
    """Learning parameters of each kind, named `kernels`, `others` and `gates`; kinds without any are left out.

    The penalty `l2 * sum(w^2)` has the gradient `2 l2 w`, and Adam's weight decay adds exactly this to a gradient
    (AdamW's does not: it does not pass through Adam's averages). So the decay of the kernels is `2 l2`. Where all kinds
    have the same settings there is one group, `all`: several groups take a small model longer than its forward pass.
    """
    kernels = _identities(module.weight for module in model.modules() if isinstance(module, _WITH_KERNELS))
    settings: dict[str, dict[str, float]] = {
        "kernels": {"weight_decay": 2.0 * options.l2} if options.l2 else {},
        "others": {},
        "gates": {} if options.gate_lr is None else {"lr": options.gate_lr},
    }
    if not any(settings.values()):
        return [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad], "name": "all"}]
    return _groups(model, settings, {"gates": _identities_in(model, (nn.SpatialGate,)), "kernels": kernels}, "others")


def sgd_groups(model: torch.nn.Module, options: SgdMomentum) -> list[dict[str, Any]]:
    """Learning parameters of the kinds `weights`, `norms` and `gates`; only the first has a weight decay."""
    settings: dict[str, dict[str, float]] = {
        "weights": {"weight_decay": options.weight_decay},
        "norms": {},
        "gates": {} if options.gate_lr is None else {"lr": options.gate_lr},
    }
    members = {"gates": _identities_in(model, (nn.SpatialGate,)), "norms": _identities_in(model, _NORMS)}
    return _groups(model, settings, members, "weights")


def _groups(
    model: torch.nn.Module, settings: dict[str, dict[str, float]], members: dict[str, set[int]], rest: str
) -> list[dict[str, Any]]:
    of_kind: dict[str, list[torch.nn.Parameter]] = {kind: [] for kind in settings}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kind = next((kind for kind, identities in members.items() if id(parameter) in identities), rest)
            of_kind[kind].append(parameter)
    return [
        {"params": parameters, "name": kind, **settings[kind]} for kind, parameters in of_kind.items() if parameters
    ]


def _identities_in(model: torch.nn.Module, kinds: tuple[type[torch.nn.Module], ...]) -> set[int]:
    """Identities of the parameters of modules of these kinds."""
    modules = (module for module in model.modules() if isinstance(module, kinds))
    return _identities(parameter for module in modules for parameter in module.parameters())


def _identities(parameters: Iterable[Any]) -> set[int]:
    return {id(parameter) for parameter in parameters}
