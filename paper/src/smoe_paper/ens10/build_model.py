"""Makes the model of a recipe that corrects ensembles."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from smoe.regression._nets import UNet, start_as_torch
from smoe_paper.ens10.model_options import EmosModel, EnsembleModel, SpatialMoEUNetModel, UNetModel
from smoe_paper.experiments.gated_layers import Learning, convert_net
from smoe_paper.models import Emos

# Ranges by which ENS-10 scales the members for EMOS, in m2 s-2 and K.
VALUE_RANGES = {"z500": (48_200.0, 58_000.0), "t850": (240.0, 299.0), "t2m": (218.0, 304.0)}


@dataclass(frozen=True)
class EnsembleShape:
    """Shape of a model's inputs.

    Attributes:
        task: `z500`, `t850` or `t2m`.
        num_members: Number of members of the ensemble.
        in_channels: Number of ensemble statistics in the input of a U-Net.
        grid: Rows and columns of the fields.
    """

    task: str
    num_members: int
    in_channels: int
    grid: tuple[int, int]


def build_model(model: EnsembleModel, learning: Learning, shape: EnsembleShape) -> torch.nn.Module:
    """Returns the model of a recipe, from `(B, C, H, W)`, or the members for EMOS, to `(B, 2, H, W)`.

    Args:
        model: Options of the model.
        learning: How the routing of SMoE layers learns.
        shape: Shape of the inputs.
    """
    match model:
        case EmosModel():
            if shape.task not in VALUE_RANGES:
                raise ValueError(f"EMOS knows the range of {', '.join(VALUE_RANGES)}, not of {shape.task!r}")
            return Emos(shape.num_members, VALUE_RANGES[shape.task])
        case UNetModel():
            return _make_unet(model, shape)
        case SpatialMoEUNetModel():
            return _convert(_make_unet(model, shape), model, learning, shape)


def trunk(name: str) -> str:
    """Returns the part of a U-Net that a layer belongs to: `encoder`, `decoder` or `head`."""
    return name.partition(".")[0]


def _make_unet(model: UNetModel | SpatialMoEUNetModel, shape: EnsembleShape) -> UNet:
    return UNet(shape.in_channels, filters=model.filters, padding_mode=model.padding_mode)


def _convert(net: UNet, model: SpatialMoEUNetModel, learning: Learning, shape: EnsembleShape) -> torch.nn.Module:
    """Replaces the 3x3 convolutions by SMoE layers with the same biases and initialisation."""
    return convert_net(
        net,
        model,
        learning,
        lambda layer: start_as_torch(layer.weight, layer.bias),
        example_input=torch.zeros(1, shape.in_channels, *shape.grid),
        share_gates=model.share_gates,
        predicate=lambda name, _: model.converts_head or trunk(name) != "head",
        gate_group=trunk,
    )
