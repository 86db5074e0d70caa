"""Predicted times of layers on GPUs, from a roofline model. These are predictions: nothing here was measured.

Run: smoe bench gpu-model [--gpu A100] [--dtype bf16]. Prints the table and stores it in paper/results/gpu.

The model. A kernel takes the longest of three times: its floating-point operations at a share of the tensor cores'
peak, its bytes from the device's memory (each tensor once), and its bytes from the L2 cache (each block of a matrix
product as often as a program loads it). Every kernel adds the time of a launch. Neither the latency of a program, nor
cache misses, nor bank conflicts, nor clocks that fall are in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smoe.ops.triton._choice import Direction, RoutedShape, Tile, tile_for, why_dense
from smoe_paper.benchmarks.timing import circumstances, write_table

RESULTS = Path("paper/results/gpu")


@dataclass(frozen=True)
class Gpu:
    """Figures of a GPU.

    Attributes:
        major: Major number of the compute capability.
        tensor_flops: Peak of the tensor cores by dtype, operations per second (data sheet, dense).
        memory_bandwidth: Bytes per second of the device's memory (data sheet).
        cache_bandwidth: Bytes per second of the L2 cache (published microbenchmarks; the least certain number).
    """

    major: int
    tensor_flops: Mapping[str, float]
    memory_bandwidth: float
    cache_bandwidth: float


GPUS = {
    "A100": Gpu(8, {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12}, 2.04e12, 4.6e12),
    "H100": Gpu(9, {"bf16": 989e12, "fp16": 989e12, "tf32": 494e12}, 3.35e12, 5.6e12),
}
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4}

# Shares of the peak that are reached by cuDNN's convolutions and by Triton's matrix products, and the time between the
# starts of two kernels. Assumptions, not measurements.
CUDNN_SHARE = 0.7
TRITON_SHARE = 0.6
LAUNCH_SECONDS = 4e-6

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


@dataclass(frozen=True)
class Work:
    """What a kernel does: operations, bytes of memory, bytes of cache."""

    flops: float = 0.0
    memory_bytes: float = 0.0
    cache_bytes: float = 0.0

    def seconds(self, gpu: Gpu, dtype: str, share: float) -> float:
        """The time by the model."""
        return LAUNCH_SECONDS + max(
            self.flops / (share * gpu.tensor_flops[dtype]),
            self.memory_bytes / gpu.memory_bandwidth,
            self.cache_bytes / gpu.cache_bandwidth,
        )


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of the forward pass, and of forward and backward together."""

    forward: float
    both: float


def predict_convolution(shape: RoutedShape, num_filters: int, gpu: Gpu, dtype: str) -> Prediction:
    """A convolution with as many filters at every pixel, by cuDNN in channels_last."""
    size = BYTES[dtype]
    flops = 2.0 * shape.batch * shape.output_pixels * num_filters * shape.channels * _taps(shape)
    inputs = shape.batch * shape.channels * shape.grid[0] * shape.grid[1] * size
    outputs = shape.batch * num_filters * shape.output_pixels * size
    bank = num_filters * shape.channels * _taps(shape) * size
    # Forward, input gradient and weight gradient each read two of the three tensors and write the third.
    direction = Work(flops, inputs + outputs + bank).seconds(gpu, dtype, CUDNN_SHARE)
    return Prediction(direction, 3.0 * direction)


def predict_dense(shape: RoutedShape, gpu: Gpu, dtype: str) -> Prediction:
    """The whole bank at every pixel, then a gather; a scatter before the gradients."""
    filters, selected = shape.num_experts * shape.expert_channels, shape.num_selected * shape.expert_channels
    convolution = predict_convolution(shape, filters, gpu, dtype)
    size = BYTES[dtype]
    # The gather reads sectors of 32 bytes, which hold the outputs of 16 experts: nearly all of them.
    everything = shape.batch * shape.output_pixels * (filters + selected) * size + shape.output_pixels * selected * 4
    gather = Work(memory_bytes=everything).seconds(gpu, dtype, 1.0)
    return Prediction(convolution.forward + gather, convolution.both + 2.0 * gather)


def predict_sparse(shape: RoutedShape, gpu: Gpu, dtype: str) -> Prediction:
    """The Triton kernels: one matrix product for each pixel, and the masked weight gradient."""
    size, taps, B, C = BYTES[dtype], _taps(shape), shape.batch, shape.channels
    filters, selected = shape.num_experts * shape.expert_channels, shape.num_selected * shape.expert_channels
    pixels, input_pixels = shape.output_pixels, shape.grid[0] * shape.grid[1]
    inputs, outputs, bank = B * C * input_pixels * size, B * selected * pixels * size, filters * C * taps * size

    def tile(direction: Direction, rows: int, columns: int, depth: int) -> Tile:
        return tile_for(direction, rows=rows, columns=columns, depth=depth, bytes_each=size, precision="tf32")

    def products(count: int, rows: int, columns: int, depth: int, steps: int, block: Tile) -> tuple[float, float]:
        """Operations and cache bytes of `count` products of `rows x columns` over `steps * depth`, blocks padded."""
        row_blocks, column_blocks = _blocks(rows, block.rows), _blocks(columns, block.columns)
        padded_depth = steps * _blocks(depth, block.depth) * block.depth
        flops = 2.0 * count * row_blocks * block.rows * column_blocks * block.columns * padded_depth
        sides = min(rows, block.rows) + min(columns, block.columns)
        loaded = count * row_blocks * column_blocks * steps * depth * sides
        return flops, float(loaded * size)

    flops, cache = products(pixels, selected, B, C, taps, tile("forward", selected, B, C))
    forward = Work(flops, inputs + outputs + bank, cache).seconds(gpu, dtype, TRITON_SHARE)
    flops, cache = products(input_pixels, C, B, selected, taps, tile("input_gradient", C, B, selected))
    by_input = Work(flops, inputs + outputs + bank, cache).seconds(gpu, dtype, TRITON_SHARE)
    # Rows of filters that are not selected at a pixel are multiplied, but not loaded.
    block = tile("weight_gradient", filters, C, B)
    flops, cache = products(taps, filters, C, B, pixels, block)
    row_blocks, column_blocks = _blocks(filters, block.rows), _blocks(C, block.columns)
    errors = taps * column_blocks * pixels * selected * B * size
    patches = taps * row_blocks * pixels * C * B * size
    cache = float(errors + patches)
    by_weight = Work(flops, inputs + outputs, cache).seconds(gpu, dtype, TRITON_SHARE)
    # The error with the samples innermost, and the slots of the filters, are prepared in two passes.
    packing = Work(memory_bytes=2.0 * outputs).seconds(gpu, dtype, 1.0)
    slots = Work(memory_bytes=4.0 * pixels * (filters + selected)).seconds(gpu, dtype, 1.0)
    return Prediction(forward, forward + by_input + by_weight + packing + slots)


def _taps(shape: RoutedShape) -> int:
    return shape.kernel[0] * shape.kernel[1]


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def predict_row(shape: RoutedShape, gpu: Gpu, dtype: str) -> dict[str, str]:
    """Ratios to a convolution with E filters, the choice of the rule, and empty columns for measurements."""
    convolution = predict_convolution(shape, shape.num_selected * shape.expert_channels, gpu, dtype)
    dense, sparse = predict_dense(shape, gpu, dtype), predict_sparse(shape, gpu, dtype)
    return {
        "conv2d forward, ms": f"{1e3 * convolution.forward:.3f}",
        "dense forward": f"{dense.forward / convolution.forward:.2f}",
        "sparse forward": f"{sparse.forward / convolution.forward:.2f}",
        "conv2d fwd+bwd, ms": f"{1e3 * convolution.both:.3f}",
        "dense fwd+bwd": f"{dense.both / convolution.both:.2f}",
        "sparse fwd+bwd": f"{sparse.both / convolution.both:.2f}",
        "rule chooses": "sparse" if why_dense(shape, gpu.major) is None else "dense",
        "measured dense": "",
        "measured sparse": "",
    }


def main(args: list[str] | None = None) -> None:
    """Prints the predictions and stores them."""
    parser = argparse.ArgumentParser("smoe bench gpu-model", description=__doc__)
    parser.add_argument("--gpu", choices=list(GPUS), default="A100")
    parser.add_argument("--dtype", choices=list(BYTES), default="bf16")
    parser.add_argument("--output", type=Path, default=None, help="Markdown file of the table")
    arguments = parser.parse_args(args)
    gpu = GPUS[arguments.gpu]
    rows = [{"layer": name, **predict_row(shape, gpu, arguments.dtype)} for name, shape in LAYERS.items()]
    made = circumstances()
    notes = (
        "Predicted, not measured: ratios to the predicted time of a convolution with E filters (= 1.0). Assumptions: "
        f"{gpu.tensor_flops[arguments.dtype] / 1e12:.0f} TFLOP/s peak, of which cuDNN reaches {CUDNN_SHARE:.0%} and "
        f"the Triton kernels {TRITON_SHARE:.0%}; {gpu.memory_bandwidth / 1e12:.2f} TB/s of memory and "
        f"{gpu.cache_bandwidth / 1e12:.1f} TB/s of L2 cache; {1e6 * LAUNCH_SECONDS:.0f} microseconds for each launch. "
        "The last columns are for the first measurements (`smoe bench layer --device cuda`). "
        f"Commit {made['commit']}, {made['date']}."
    )
    path = arguments.output or RESULTS / f"model-{arguments.gpu}-{arguments.dtype}.md"
    title = f"Predicted times on an {arguments.gpu}, {arguments.dtype}"
    path.parent.mkdir(parents=True, exist_ok=True)
    command = f"smoe bench gpu-model --gpu {arguments.gpu} --dtype {arguments.dtype}"
    sys.stdout.write(write_table(path, title, command, list(rows[0]), rows, notes))


if __name__ == "__main__":
    main()
