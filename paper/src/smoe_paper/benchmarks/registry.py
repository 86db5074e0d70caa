"""All benchmarks by name. A benchmark is one file and one line here. Imports nothing heavy."""

from __future__ import annotations

from typing import NamedTuple


class Benchmark(NamedTuple):
    """A benchmark."""

    module: str  # with a function `main(args)`, which measures, prints a table and stores it in paper/results/bench
    text: str  # one line for the help text


BENCHMARKS = {
    "layer": Benchmark("layer", "layers beside F.conv2d with as many filters as are selected (= 1.0)"),
    "device": Benchmark("device", "layers on a GPU beside F.conv2d: times, peak memory, the kernels chosen"),
    "learn": Benchmark("learn", "what layers learn where the answer is known, beside simple rivals"),
    "memory": Benchmark("memory", "peak memory of a training step on a 361 x 720 grid beside F.conv2d's"),
    "moving": Benchmark("moving", "gates that learn on one grid of the sphere and serve others without training"),
    "real": Benchmark("real", "fits of real data beside simple models, LightGBM and plain nets: errors, time, memory"),
}
