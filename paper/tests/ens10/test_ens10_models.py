from __future__ import annotations

import torch

from memory_ensemble import make_ensemble
from smoe import SpatialMoE2d
from smoe.rules import Damping, RoutingClassification
from smoe_paper.ens10.model import build_model, trunk
from smoe_paper.ens10.recipes import (
    EmosModel,
    EnsembleModel,
    SpatialMoEUNetModel,
    UNetModel,
)
from smoe_paper.experiments.task import Learning, count_parameters
from smoe_paper.models import Emos

LEARNING = Learning(RoutingClassification.released(), None)
STORE = make_ensemble()


def build_small(model: EnsembleModel, learning: Learning = LEARNING) -> torch.nn.Module:
    return build_model(model, learning, STORE)


def moe_layers(model: torch.nn.Module) -> dict[str, SpatialMoE2d]:
    return {name: module for name, module in model.named_modules() if isinstance(module, SpatialMoE2d)}


def test_parameters_of_ens10() -> None:
    # Kernels of 14 channels: 633,698 less 578 of the head, 800 biases and twice as many numbers of the norms.
    kernels = 633_698 - 578 - 3 * 800
    # On 9 x 8, 4 x 4 and 2 x 2: encoder 128, 256 and 512 experts; decoder 128, 256 and 128, 512 and 256.
    gates = 128 * 72 + 256 * 16 + 512 * 4 + 128 * 72 + (256 + 128) * 16 + (512 + 256) * 4
    assert count_parameters(build_small(UNetModel())) == (633_698, 0)
    assert count_parameters(build_small(SpatialMoEUNetModel())) == (633_698 + 3 * kernels, gates)
    with_head = count_parameters(build_small(SpatialMoEUNetModel(converts_head=True)))
    assert with_head == (633_698 + 3 * (kernels + 576), gates + 8 * 72)
    assert count_parameters(build_small(EmosModel())) == (5 + 3, 0)


def test_gates_are_shared_by_grid_and_bank_but_not_across_the_trunks() -> None:
    layers = moe_layers(build_small(SpatialMoEUNetModel(filters=4)))
    assert len(layers) == 12
    assert {trunk(name) for name in layers} == {"encoder", "decoder"}
    assert all(layer.gate.num_experts == 4 * layer.gate.num_selected for layer in layers.values())
    assert all(layer.bias is not None for layer in layers.values())
    gates: dict[int, set[tuple[str, tuple[int, ...] | None, int]]] = {}
    for name, layer in layers.items():
        gates.setdefault(id(layer.gate), set()).add((trunk(name), layer.gate.spatial_shape, layer.gate.num_experts))
    # Each gate has one trunk, grid and bank, and each of these one gate: three in the encoder, five in the decoder.
    assert all(len(users) == 1 for users in gates.values())
    assert sorted(next(iter(users)) for users in gates.values()) == [
        ("decoder", (2, 2), 32),
        ("decoder", (2, 2), 64),
        ("decoder", (4, 4), 16),
        ("decoder", (4, 4), 32),
        ("decoder", (9, 8), 16),
        ("encoder", (2, 2), 64),
        ("encoder", (4, 4), 32),
        ("encoder", (9, 8), 16),
    ]
    unshared = moe_layers(build_small(SpatialMoEUNetModel(filters=4, share_gates=False)))
    assert len({id(layer.gate) for layer in unshared.values()}) == 12


def test_all_layers_hold_the_rule_of_the_recipe() -> None:
    learning = Learning(RoutingClassification(error_quantile=0.6, tolerance_unit="output"), Damping(factor=0.3))
    layers = moe_layers(build_small(SpatialMoEUNetModel(filters=4, converts_head=True, order="index"), learning))
    assert len(layers) == 13
    assert all((layer.rule, layer.damping) == learning and layer.gate.order == "index" for layer in layers.values())


def test_emos_scales_by_the_range_of_its_task() -> None:
    for task, low in {"z500": 48_200.0, "t850": 240.0, "t2m": 218.0}.items():
        model = build_model(EmosModel(), LEARNING, make_ensemble(task=task, num_members=10))
        assert isinstance(model, Emos) and (model.num_members, model.low) == (10, low)
