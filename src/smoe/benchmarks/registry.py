"""All benchmarks by name. A benchmark is one file and one line here. Imports nothing heavy."""

from __future__ import annotations

from typing import NamedTuple


class Benchmark(NamedTuple):
    """A benchmark.

    Attributes:
        module: Module with a function `main(args)`, which measures, prints a table and stores it in results/bench.
        text: One line for the help text.
    """

    module: str
    text: str


BENCHMARKS = {
    "backends": Benchmark("backends", "which implementation of the operators is used here, which is not, and why"),
    "layer": Benchmark("layer", "layers beside F.conv2d with as many filters as are selected (= 1.0)"),
    "device": Benchmark("device", "layers on a GPU beside F.conv2d: times, peak memory, the kernels chosen"),
    "step": Benchmark("step", "a training step of recipes on a GPU: time, peak memory, the kernels chosen"),
    "gpu-model": Benchmark("gpu_model", "predicted times of layers on GPUs, from a roofline model"),
    "latency": Benchmark("latency", "one sample in inference: layers as trained, frozen, exported, compiled"),
    "learn": Benchmark("learn", "what layers learn on planted structure, where the answer is known"),
    "local": Benchmark("local", "the locally connected layer beside unfold, multiply, sum"),
    "memory": Benchmark("memory", "peak memory of a training step on a 361 x 720 grid beside F.conv2d's"),
    "plan-memory": Benchmark("plan_memory", "the memory that smoe plan predicts beside what training steps take"),
    "large-grid": Benchmark("large_grid", "a training step on 721 x 1440 pixels with each kind of gate: memory, time"),
    "mesh": Benchmark("mesh", "layers on graphs, volumes and spheres beside SAGEConv, F.conv3d and F.conv2d (= 1.0)"),
    "own-data": Benchmark("own_data", "preparing data of a user's own, and waiting for their batches"),
    "own-bias": Benchmark("own_bias", "bias correction of the simulated ensemble's mean by smoe fit"),
    "package": Benchmark("package", "time of an import and size of the wheel"),
    "probe-step": Benchmark("probe_step", "a training step of one layer by the rule that trains its gate"),
    "probe-estimates": Benchmark("probe_estimates", "estimates of probing beside what happens when a pixel changes"),
    "freed-memory": Benchmark("freed_memory", "training steps with freed memory kept and given back"),
    "region-information": Benchmark("region_information", "information of trained gates about known regions"),
    "learned-places": Benchmark("learned_places", "which layers of a weather network need their routing, and why"),
    "heat-headline": Benchmark("heat_headline", "heat/smoe at paper scale for several seeds"),
    "heat-models": Benchmark("heat_models", "a training step of every model of the heat tables"),
    "heat-step": Benchmark("heat_step", "a training step of heat/smoe beside that of a convolution"),
    "single-stencil": Benchmark("single_stencil", "what one stencil for all pixels reaches on heat diffusion"),
    "weather-samples": Benchmark("weather_samples", "samples per second of a weather store"),
    "weather-step": Benchmark("weather_step", "one training step of the full-size weather networks, and its memory"),
    "ens10-prepare": Benchmark("ens10_prepare", "memory of the preparation of an ENS-10 store at full size"),
    "ens10-step": Benchmark("ens10_step", "one training step of ENS-10's U-Nets, and its memory"),
    "image-routing": Benchmark("image_routing", "what trains the gate of a classifier of small images"),
    "grid-interpolation": Benchmark("grid_interpolation", "runs on MNIST at larger sizes, with gates interpolated"),
    "imagenet-gates": Benchmark("imagenet_gates", "how fast gates move under SGD, and gates interpolated"),
    "imagenet-reading": Benchmark("imagenet_reading", "reading and augmenting ImageNet-sized JPEGs, step by step"),
    "imagenet-step": Benchmark("imagenet_step", "one training step of ResNet-50 and its variants, and its memory"),
}
