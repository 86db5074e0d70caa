from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

import smoe
from smoe.nn.conversion_plan import plan_conversion
from smoe.rules import RoutingClassification

RC = RoutingClassification.released()

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0))


def conv() -> nn.Conv2d:
    return nn.Conv2d(4, 4, 3, padding=1)


def test_tied_convolutions_are_left() -> None:
    shared = nn.Conv2d(4, 4, 3, padding=1)
    twin = nn.Conv2d(4, 4, 3, padding=1)
    twin_of = nn.Conv2d(4, 4, 3, padding=1)
    twin_of.weight = twin.weight
    model = nn.Sequential(shared, nn.ReLU(), shared, twin, twin_of, nn.Conv2d(4, 4, 3, padding=1))
    plan = plan_conversion(model, example_input=torch.randn(1, 4, 6, 6))
    assert [change.name for change in plan.changes] == ["5"]
    assert plan.left == {
        "0": "it is tied to 2.weight, 2.bias",
        "3": "it is tied to 4.weight",
        "4": "it is tied to 3.weight",
    }


def test_a_convolution_on_several_grids_is_left() -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(2, 2, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x).sum() + self.head(F.avg_pool2d(x, 2)).sum()

    with pytest.raises(ValueError, match=r"head: left, it works on several grids, \(8, 8\), \(4, 4\)"):
        smoe.convert(Pyramid(), example_input=torch.randn(1, 2, 8, 8), rule=RC, order="score")


def test_a_class_of_its_own_is_left() -> None:
    class Standardized(nn.Conv2d):
        pass

    with pytest.raises(ValueError, match="Standardized may do more than a convolution"):
        smoe.convert(
            nn.Sequential(Standardized(2, 2, 3, padding=1)),
            example_input=torch.randn(1, 2, 5, 5),
            rule=RC,
            order="score",
        )


def test_tensors_that_share_memory_are_tied() -> None:
    first, second = conv(), conv()
    second.weight = nn.Parameter(first.weight.data)
    plan = plan_conversion(nn.Sequential(first, second), example_input=X)
    assert plan.left == {"0": "it is tied to 1.weight", "1": "it is tied to 0.weight"}

    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv()
            self.kernel = self.conv.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(self.conv(x), self.kernel, padding=1)

    assert plan_conversion(Reused(), example_input=X).left == {"conv": "it is tied to kernel"}


def test_tensors_without_memory_are_not_tied() -> None:
    with torch.device("meta"):
        plan = plan_conversion(nn.Sequential(conv(), conv()), example_input=torch.randn(1, 4, 6, 5))
    assert [change.name for change in plan.changes] == ["0", "1"]


class Doubled(smoe.nn.GridConv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(input)


def hooked() -> nn.Module:
    module = conv()
    module.register_forward_hook(lambda module, args, output: -output)  # type: ignore[operator]
    return module


def patched() -> nn.Module:
    module = conv()
    module.forward = lambda fields: 2.0 * fields  # type: ignore[method-assign]
    return module


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (hooked(), "it has hooks"),
        (prune.l1_unstructured(conv(), "weight", 0.5), "it has hooks"),
        (patched(), "its forward was replaced"),
        (parametrizations.weight_norm(conv()), "its parameters are parametrised"),
        (parametrizations.weight_norm(smoe.nn.GridConv2d(4, 4)), "its parameters are parametrised"),
        (Doubled(4, 4), "Doubled may do more than a convolution"),
    ],
)
def test_what_does_more_than_convolve_is_left(module: nn.Module, reason: str) -> None:
    plan = plan_conversion(nn.Sequential(module, conv()), example_input=X)
    assert plan.left == {"0": reason} and [change.name for change in plan.changes] == ["1"]


def test_convolutions_of_gates_are_left() -> None:
    layer = smoe.SpatialMoE2d(4, 8, 4, gate=smoe.nn.ConvGate(4, 8, 4), rule=RC)
    plan = plan_conversion(nn.Sequential(layer, conv()), example_input=X)
    assert [change.name for change in plan.changes] == ["1"]
    assert plan.left == {"0.gate.network": "it is part of 0, a SpatialMoE2d"}


def test_an_example_without_a_batch_reaches_nothing() -> None:
    plan = plan_conversion(conv(), example_input=X[0])
    assert str(plan) == "the model itself: left, no batch (B, C, *grid) of the example input reached it"


@pytest.mark.parametrize("example", [(X, X), {"x": X, "offset": X}])
def test_networks_of_several_inputs(example: Any) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv()

        def forward(self, x: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
            return self.conv(x) + offset

    model = Sum().eval()
    converted = smoe.convert(model, example_input=example, start="filters", rule=RC, order="index")
    torch.testing.assert_close(converted(X, X), model(X, X), rtol=1e-5, atol=1e-5)


def test_a_convolution_that_gives_more_than_a_tensor_does_not_hinder_the_others() -> None:
    class Pair(nn.Conv2d):
        def forward(self, input: torch.Tensor) -> Any:
            return super().forward(input), None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair(4, 4, 3, padding=1)
            self.conv = conv()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(self.pair(x)[0])

    assert [change.name for change in plan_conversion(Net(), example_input=X).changes] == ["conv"]


def test_numbers_of_experts() -> None:
    numbers: list[tuple[Any, int]] = [(8, 8), (np.int64(8), 8), (1.5, 6), (np.float32(1.5), 6)]
    for given, expected in numbers:
        assert plan_conversion(conv(), example_input=X, num_experts=given).changes[0].num_experts == expected
    for wrong in (0, -1.0, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="num_experts must be"):
            plan_conversion(conv(), example_input=X, num_experts=wrong)


def test_kernel_sizes() -> None:
    point = nn.Conv2d(4, 4, 1, padding="valid")
    model = nn.Sequential(conv(), point, nn.Conv2d(4, 4, (3, 1), padding="same"))
    for kernel_size, name in (([3, 3], "0"), (1, "1"), ((3, 1), "2")):
        plan = plan_conversion(model, example_input=X, kernel_size=kernel_size)  # type: ignore[arg-type]
        assert [change.name for change in plan.changes] == [name]
    with pytest.raises(ValueError, match="kernel_size must be odd"):
        plan_conversion(model, example_input=X, kernel_size=2)
