"""Measures on small nets what trains the gate of a classifier, and what its rule takes for wrong.

Run: smoe bench image-routing [--data data] [--steps 300] [--only WORD], after `smoe data fetch mnist`. Prints
the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.nn import RoutedLayer
from smoe.ops.routing_error import choice_errors, wrong_choices
from smoe.paper.images.build import make_splits, make_task
from smoe.paper.images.data.samples import ImageSamples
from smoe.paper.images.model_options import (
    ConvClassifierModel,
    CoordConvClassifierModel,
    ImageModel,
    LowRankLocalClassifierModel,
    SpatialMoEClassifierModel,
)
from smoe.paper.images.recipes import ImageData, ImageRecipe
from smoe.rules import Damping, EndToEnd, Frozen, Probing, RoutingClassification, Rule
from smoe.training.task import Task

_FILTERS = 16
_BATCH_SIZE = 32
_LR = {"adam": 5e-3, "sgd": 0.1}


@dataclass(frozen=True)
class Case:
    """A row: a network, how its routing learns, and the gate's learning rate."""

    label: str
    model: ImageModel
    rule: Rule = field(default_factory=Frozen)
    optimizer: str = "adam"
    gate_lr: float = 1e-3


def _smoe(order: str, **options: Any) -> SpatialMoEClassifierModel:
    return SpatialMoEClassifierModel(filters=_FILTERS, order=order, **options)  # type: ignore[arg-type]


def cases() -> list[Case]:
    """All rows."""
    undamped, probing = RoutingClassification(error_quantile=0.7), Probing()
    smooth: dict[str, Any] = {"gate_init": "smooth", "correlation_length": 7.0}
    best = _smoe("index", **smooth)
    found = [
        Case("convolution", ConvClassifierModel(filters=_FILTERS)),
        Case("CoordConv", CoordConvClassifierModel(filters=_FILTERS)),
        Case("LRLCN", LowRankLocalClassifierModel(filters=_FILTERS)),
        Case("SMoE, white noise, score order, frozen", _smoe("score")),
        Case("SMoE, white noise, score order, q 0.7, no damping", _smoe("score"), undamped),
        Case("SMoE, white noise, index order, frozen", _smoe("index")),
        Case("SMoE, white noise, index order, q 0.7, no damping", _smoe("index"), undamped),
        Case("SMoE, smooth 3.5 pixels, score order, frozen", _smoe("score", gate_init="smooth")),
        Case("SMoE, smooth 3.5 pixels, index order, frozen", _smoe("index", gate_init="smooth")),
        Case("SMoE, smooth 7 pixels, score order, frozen", _smoe("score", **smooth)),
        Case("SMoE, smooth 7 pixels, index order, frozen", best),
        Case(
            "SMoE, smooth 14 pixels, index order, frozen", _smoe("index", gate_init="smooth", correlation_length=14.0)
        ),
        Case("SMoE, smooth 7 pixels, index order, q 0.7, no damping", best, undamped),
        Case("SMoE, smooth 7 pixels, index order, q 0.95, no damping", best, replace(undamped, error_quantile=0.95)),
        Case("SMoE, smooth 7 pixels, index order, q 0.7, damping 0.1", best, replace(undamped, damping=Damping(0.1))),
        Case("SMoE, smooth 7 pixels, index order, q 0.3, damping 0", best, RoutingClassification.released()),
        Case("SMoE, smooth 7 pixels, index order, end to end", best, EndToEnd()),
        Case("SMoE, smooth 7 pixels, score order, probing", _smoe("score", **smooth), probing),
        Case("SMoE, white noise, score order, probing", _smoe("score"), probing),
    ]
    for gate_lr in (0.1, 10.0, 100.0, 1000.0):
        label = f"SMoE, smooth 7 pixels, index order, q 0.7, no damping, gate lr {gate_lr:g}"
        found.append(Case(label, best, undamped, "sgd", gate_lr))
    return found


def measure(case: Case, samples: dict[str, ImageSamples], num_steps: int) -> dict[str, str]:
    """Trains a case and returns its accuracy, the movement of its gate, and the share of wrong choices."""
    task = make_task(ImageRecipe(model=case.model, rule=case.rule))
    model = task.model
    layers = [module for module in model.modules() if isinstance(module, RoutedLayer)]
    optimizer = _make_optimizer(case, task, layers)
    start = layers[0].gate.scores.detach().clone() if layers else None  # type: ignore[operator, union-attr]
    chosen = _chosen(layers[0]) if layers else None
    order = torch.randperm(len(samples["train"]), generator=torch.Generator().manual_seed(0))
    recent: list[float] = []
    gradient = 0.0
    for step in range(num_steps):
        images, labels = samples["train"].__getitems__(order[step * _BATCH_SIZE : (step + 1) * _BATCH_SIZE].tolist())
        loss = task.loss(model(images), labels)
        loss.backward()
        if layers and step == 0:
            gradient = _gradient_size(layers[0])
        optimizer.step()
        optimizer.zero_grad()
        recent = [*recent[-49:], loss.item()]
    row = {
        "network": case.label,
        "optimiser": case.optimizer,
        "training loss": f"{sum(recent) / len(recent):.2f}",
        "accuracy %": f"{_accuracy(model, samples['validation']):.1f}",
        "gradient of a score": "",
        "scores moved by": "",
        "choices changed %": "",
        "wrong of active %": "",
        "wrong of inactive %": "",
    }
    if start is not None and chosen is not None:
        moved = (layers[0].gate.scores.detach() - start).abs().mean()  # type: ignore[operator, union-attr]
        changed = 100.0 * float((chosen & ~_chosen(layers[0])).sum() / chosen.sum())
        active, inactive = _wrong_shares(task, layers, samples["validation"])
        row |= {
            "gradient of a score": f"{gradient:.1e}",
            "scores moved by": f"{float(moved):.1e}",
            "choices changed %": f"{changed:.2f}",
            "wrong of active %": f"{active:.0f}",
            "wrong of inactive %": f"{inactive:.1f}",
        }
    return row


def _make_optimizer(case: Case, task: Task, layers: list[RoutedLayer]) -> torch.optim.Optimizer:
    gates = list(layers[0].gate.parameters()) if layers else []
    others = [parameter for parameter in task.model.parameters() if all(parameter is not gate for gate in gates)]
    groups: list[dict[str, Any]] = [{"params": others}, *([{"params": gates, "lr": case.gate_lr}] if gates else [])]
    lr = _LR[case.optimizer]
    return torch.optim.Adam(groups, lr=lr) if case.optimizer == "adam" else torch.optim.SGD(groups, lr=lr, momentum=0.9)


def _gradient_size(layer: RoutedLayer) -> float:
    """0 for a gate that learns without a gradient."""
    gradients = [parameter.grad for parameter in layer.gate.parameters() if parameter.grad is not None]
    return max((float(gradient.abs().mean()) for gradient in gradients), default=0.0)


def _chosen(layer: RoutedLayer) -> torch.Tensor:
    indices = layer.routing().indices.long()
    is_chosen = torch.zeros(layer.num_experts, *indices.shape[1:], dtype=torch.bool)
    return is_chosen.scatter_(0, indices, torch.ones_like(indices, dtype=torch.bool))


def _accuracy(model: torch.nn.Module, samples: ImageSamples, number: int = 2000) -> float:
    model.eval()
    with torch.no_grad():
        images, labels = samples.__getitems__(range(number))
        right = (model(images).argmax(dim=1) == labels).float().mean()
    model.train()
    return 100.0 * float(right)


def _wrong_shares(task: Task, layers: list[RoutedLayer], samples: ImageSamples) -> tuple[float, float]:
    """Of the outputs that the ReLU behind lets through, and of those it cuts: percent above the quantile of 0.7."""
    outputs: list[torch.Tensor] = []

    def keep(_: torch.nn.Module, __: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        outputs.append(output)

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    images, labels = samples.__getitems__(range(64))
    task.loss(task.model(images), labels).backward()
    for hook in hooks:
        hook.remove()
    counts = torch.zeros(2, 2)
    norms: Any = task.model.norms
    with torch.no_grad():
        for output, norm in zip(outputs, norms, strict=True):
            assert output.grad is not None
            (is_wrong,) = wrong_choices(choice_errors(output.grad.flatten(2), 1), 0.7, (1e-5,))
            is_active = norm(output).flatten(2) > 0
            for number, where in enumerate((is_active, ~is_active)):
                counts[number] += torch.tensor([is_wrong[where].sum(), where.sum()])
    active, inactive = (100.0 * counts[:, 0] / counts[:, 1]).tolist()
    return active, inactive


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench image-routing", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of `smoe data fetch`")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--output", type=Path, default=Path("results/bench") / "image_routing.md")
    arguments = parser.parse_args(args)
    torch.set_num_threads(1)
    samples = make_splits(ImageData(root=arguments.data), ("train", "validation"))
    chosen = [case for case in cases() if arguments.only in case.label]
    rows = [
        measure(case, samples, arguments.steps) | circumstances() for case in track(chosen, description="measuring")
    ]
    shown = [name for name in rows[0] if name not in ("processor", "cores", "torch", "commit", "date")]
    where = rows[-1]
    print(
        write_table(
            arguments.output,
            "What trains the gate of a classifier",
            f"smoe bench image-routing --steps {arguments.steps}",
            shown,
            rows,
            f"MNIST, nets of three layers of {_FILTERS} filters ({_FILTERS} of {2 * _FILTERS} experts, one gate), "
            f"{arguments.steps} batches of {_BATCH_SIZE}, Adam at {_LR['adam']:g} (gates at 1e-3) or SGD at "
            f"{_LR['sgd']:g} with momentum 0.9, one seed; accuracy on 2,000 validation images. The last two columns: "
            "of the SMoE layers' outputs that the ReLU behind lets through, and of those it cuts, the share "
            "that exceeds the 0.7 quantile of a sample's errors, and so counts as wrong. "
            f"{where['processor']}, torch {where['torch']}, commit {where['commit']}, {where['date']}.",
        )
    )


if __name__ == "__main__":
    main()
