"""Layers on a GPU beside F.conv2d with as many filters as are selected (= 1.0): times, peak memory, kernel chosen.

Run: smoe bench device [--dtype bf16] [NAME ...]. Prints the table that docs/gpu.md asks for and stores it in
paper/results/gpu. Times come from CUDA events after a warm-up, with the ways interleaved; the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from smoe.command_line import UsageError
from smoe.ops import Routing, routed_conv2d, top_experts
from smoe.ops._classification import train_routing
from smoe.ops._conv_kernels import dense_routed_conv
from smoe.ops._routing import ErrorSignal
from smoe.ops.triton._choice import RoutedShape, why_not_sparse
from smoe.rules import Damping, RoutingClassification
from smoe_paper.benchmarks.timing import circumstances, write_table

RESULTS = Path("paper/results/gpu")
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
COLUMNS = (
    *("layer", "kernels", "conv2d forward ms", "dense forward", "ours forward", "conv2d fwd+bwd ms", "dense fwd+bwd"),
    *("ours fwd+bwd", "with RC and damping", "peak MB conv2d", "peak MB dense", "peak MB ours"),
)

LAYERS = {
    "WeatherBench B=64, X=2E": RoutedShape(64, 128, 256, 128, 1, (3, 3), (32, 64), 2048),
    "WeatherBench B=32, X=2E": RoutedShape(32, 128, 256, 128, 1, (3, 3), (32, 64), 2048),
    "WeatherBench B=8, X=2E": RoutedShape(8, 128, 256, 128, 1, (3, 3), (32, 64), 2048),
    "WeatherBench B=64, X=8E": RoutedShape(64, 128, 1024, 128, 1, (3, 3), (32, 64), 2048),
    "WeatherBench B=8, X=8E": RoutedShape(8, 128, 1024, 128, 1, (3, 3), (32, 64), 2048),
    "ENS-10 B=8, X=4E": RoutedShape(8, 32, 128, 32, 1, (3, 3), (361, 720), 361 * 720),
    "ENS-10 B=32, X=4E": RoutedShape(32, 32, 128, 32, 1, (3, 3), (361, 720), 361 * 720),
    "CIFAR B=512, X=2E": RoutedShape(512, 64, 128, 64, 1, (3, 3), (32, 32), 1024),
    "ResNet-50 stage B=64, X=2E": RoutedShape(64, 128, 256, 128, 1, (3, 3), (28, 28), 784),
    "mesh (1 x 1) B=64, X=4E": RoutedShape(64, 64, 256, 64, 1, (1, 1), (1, 40962), 40962),
}


def event_medians(ways: Mapping[str, Callable[[], object]], *, rounds: int = 30, warm_up: int = 5) -> dict[str, float]:
    """Median milliseconds of each way, interleaved; kernels are compiled in the rounds of the warm-up."""
    for _ in range(warm_up):
        for call in ways.values():
            call()
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(start.elapsed_time(end) for start, end in pairs) for name, pairs in events.items()}


def peak_megabytes(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def measure(shape: RoutedShape, dtype: torch.dtype, device: torch.device, *, rounds: int = 30) -> dict[str, Any]:
    """One row of the table: times of conv2d in milliseconds, the others as ratios to it."""
    torch.manual_seed(0)
    selected = shape.num_selected * shape.expert_channels
    padding = (shape.kernel[0] // 2, shape.kernel[1] // 2)

    def normal(*size: int, is_grid: bool = True, dtype: torch.dtype = dtype) -> torch.Tensor:
        tensor = torch.randn(*size, device=device, dtype=dtype)
        return tensor.contiguous(memory_format=torch.channels_last) if is_grid else tensor

    input = normal(shape.batch, shape.channels, *shape.grid).requires_grad_()
    bank = normal(shape.num_experts * shape.expert_channels, shape.channels, *shape.kernel).requires_grad_()
    filters = normal(selected, shape.channels, *shape.kernel).requires_grad_()
    error = normal(shape.batch, selected, *shape.grid)
    scores = normal(1, shape.num_experts, shape.output_pixels, is_grid=False, dtype=torch.float32).requires_grad_()
    indices = top_experts(scores, shape.num_selected)
    signal = ErrorSignal(device)
    rule = RoutingClassification()
    damping = Damping(error_quantile=rule.error_quantile, tolerance_unit=rule.tolerance_unit)

    def conv() -> torch.Tensor:
        return F.conv2d(input, filters, padding=padding)

    def dense() -> torch.Tensor:
        return dense_routed_conv(input, bank, indices, shape.expert_channels)

    def ours() -> torch.Tensor:
        return routed_conv2d(input, bank, indices, expert_channels=shape.expert_channels, check_indices=False)

    def trained() -> torch.Tensor:
        routing = Routing(indices, scores)
        options: dict[str, Any] = {"expert_channels": shape.expert_channels, "signal": signal}
        return train_routing(ours(), routing, rule=rule, damping=damping, **options)

    def without_gradient(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def run() -> torch.Tensor:
            with torch.no_grad():
                return call()

        return run

    def with_gradient(call: Callable[[], torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            call().backward(error)
            input.grad = bank.grad = filters.grad = scores.grad = None

        return run

    ways = {"conv2d": conv, "dense": dense, "ours": ours}
    forward = event_medians({name: without_gradient(call) for name, call in ways.items()}, rounds=rounds)
    steps = {name: with_gradient(call) for name, call in {**ways, "trained": trained}.items()}
    both = event_medians(steps, rounds=rounds)
    reason = why_not_sparse(input, bank, indices, shape.expert_channels)
    return {
        "kernels": "sparse" if reason is None else f"dense ({reason})",
        "conv2d forward ms": f"{forward['conv2d']:.3f}",
        "dense forward": f"{forward['dense'] / forward['conv2d']:.2f}",
        "ours forward": f"{forward['ours'] / forward['conv2d']:.2f}",
        "conv2d fwd+bwd ms": f"{both['conv2d']:.3f}",
        "dense fwd+bwd": f"{both['dense'] / both['conv2d']:.2f}",
        "ours fwd+bwd": f"{both['ours'] / both['conv2d']:.2f}",
        "with RC and damping": f"{both['trained'] / both['conv2d']:.2f}",
        **{f"peak MB {name}": f"{peak_megabytes(steps[name]):.0f}" for name in ways},
    }


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("smoe bench device", description=__doc__)
    parser.add_argument("names", nargs="*", help="words that the names of the layers contain; all layers without")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path, default=None, help="Markdown file of the table")
    arguments = parser.parse_args(args)
    if not torch.cuda.is_available():
        raise UsageError(f"--device {arguments.device} needs a CUDA device, and PyTorch {torch.__version__} finds none")
    device = torch.device(arguments.device)
    torch.cuda.set_device(device)
    torch.backends.cudnn.allow_tf32 = arguments.dtype == "tf32"
    chosen = {
        name: shape
        for name, shape in LAYERS.items()
        if not arguments.names or any(word.lower() in name.lower() for word in arguments.names)
    }
    if not chosen:
        raise UsageError(f"no layer's name contains {' or '.join(arguments.names)}; there are {', '.join(LAYERS)}")
    rows = [
        {"layer": name, **measure(shape, DTYPES[arguments.dtype], device, rounds=arguments.rounds)}
        for name, shape in chosen.items()
    ]
    made = circumstances()
    gpu = torch.cuda.get_device_name(device)
    notes = (
        f"{gpu}, {arguments.dtype}, channels_last; medians of {arguments.rounds} rounds by CUDA events, ratios to "
        f"`F.conv2d` with E filters. torch {made['torch']}, CUDA {torch.version.cuda}, commit {made['commit']}, "
        f"{made['date']}."
    )
    path = arguments.output or RESULTS / f"layer-{gpu.replace(' ', '-')}-{arguments.dtype}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"smoe bench device --dtype {arguments.dtype}"
    sys.stdout.write(write_table(path, f"Layers on an {gpu}", command, COLUMNS, rows, notes))


if __name__ == "__main__":
    main()
