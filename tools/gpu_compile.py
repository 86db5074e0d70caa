"""Compiles every Triton kernel ahead of time, without a GPU, and checks the result: `make gpu-compile`.

The operators run on the meta device with the launches recorded, so that exactly the kernels, constants and argument
properties are compiled that a GPU would be given. The result is a table in paper/results/gpu; a run fails if a kernel
spills registers, exceeds the shared memory of an architecture, has lost its tensor-core instructions or its 16-byte
copies, or needs much more registers or shared memory than the stored table says.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from smoe.ops.triton._choice import Direction, Tile, tiles_of
from smoe.ops.triton._kernels import Launch, record_launches, triton_routed_conv2d, triton_routed_conv2d_backward
from smoe_paper.benchmarks.timing import circumstances, write_table

RESULTS = Path("paper/results/gpu")
# Shared memory that one program can have, in bytes.
SHARED_LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "ieee fp32": torch.float32}
# More than this times the stored number is a regression.
ALLOWED_GROWTH = 1.25
_CUDA_NAMES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True)
class Layer:
    """A layer that is compiled for: batch, channels, experts, selected experts, rows and columns."""

    batch: int
    channels: int
    num_experts: int
    num_selected: int
    grid: tuple[int, int]
    kernel: int = 3
    stride: int = 1
    padding_mode: str = "longitude"


LAYER = Layer(64, 128, 256, 128, (32, 64))
# Compiled with the tiles that their shapes choose; the first layer is compiled with every tile as well.
LAYERS = {
    "WeatherBench B=64": LAYER,
    "ENS-10 B=32": Layer(32, 32, 128, 32, (180, 360)),
    "5 x 5, stride 2": Layer(64, 128, 256, 128, (32, 64), kernel=5, stride=2, padding_mode="circular"),
    "mesh (1 x 1)": Layer(64, 128, 256, 128, (1, 2048), kernel=1, padding_mode="zeros"),
}


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a kernel.

    Attributes:
        kernel: Name of the kernel.
        tile: Block sizes, warps and stages.
        dtype: Dtype of the operands, with the precision of float32.
        layer: Layer whose launch was compiled.
        capability: Compute capability times 10.
        registers: Registers of a thread.
        stack_bytes: Stack of a thread, where spilled registers go.
        shared_bytes: Shared memory of a program.
        tensor_core: Kind of the tensor-core instructions, or an empty string.
        copies: Number of asynchronous 16-byte copies in the code.
    """

    kernel: str
    tile: str
    dtype: str
    layer: str
    capability: int
    registers: int
    stack_bytes: int
    shared_bytes: int
    tensor_core: str
    copies: int

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the row in the stored table."""
        return (self.kernel, self.tile, self.dtype, self.layer, str(self.capability))


def _empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _tensors(layer: Layer, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Error, input, weight and indices of a layer."""
    rows, columns = ((size - 1) // layer.stride + 1 for size in layer.grid)
    error = _empty(layer.batch, layer.num_selected, rows, columns, dtype=dtype)
    input = _empty(layer.batch, layer.channels, *layer.grid, dtype=dtype)
    weight = _empty(layer.num_experts, layer.channels, layer.kernel, layer.kernel, dtype=dtype)
    indices = _empty(1, layer.num_selected, rows * columns, dtype=torch.int32)
    last = torch.channels_last
    return error.contiguous(memory_format=last), input.contiguous(memory_format=last), weight, indices


def convolution_launches(layer: Layer, dtype: torch.dtype, tile: Tile | None = None) -> list[Launch]:
    """The launches of the routed convolution and its gradients."""
    error, input, weight, indices = _tensors(layer, dtype)
    options = (1, layer.stride, layer.padding_mode)
    with record_launches() as launches:
        triton_routed_conv2d(input, weight, indices, *options, tile=tile)
        triton_routed_conv2d_backward(error, input, weight, indices, *options, True, True, tile=tile)
    return launches


def launches_with_every_tile(layer: Layer, dtype: torch.dtype, precision: str) -> list[Launch]:
    """The launches of the routed convolution with each tile of each direction."""
    kernels: dict[Direction, str] = {
        "forward": "forward_kernel",
        "input_gradient": "input_gradient_kernel",
        "weight_gradient": "masked_kernel",
    }
    return [
        launch
        for direction, name in kernels.items()
        for tile in tiles_of(direction, bytes_each=dtype.itemsize, precision=precision)
        for launch in convolution_launches(layer, dtype, tile)
        if launch.kernel.__name__ == name
    ]


def specialise(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], Any]]:
    """Signature, constants and properties of the arguments, as Triton derives them at a launch."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    properties: dict[tuple[int, ...], Any] = {}
    names = launch.kernel.arg_names
    given = dict(zip(names, launch.arguments, strict=False))
    given |= {name: value for name, value in launch.options.items() if name in names}
    for position, name in enumerate(names):
        value = given[name]
        if name in launch.options or (isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        if isinstance(value, torch.Tensor):
            signature[name] = "*" + _CUDA_NAMES[value.dtype]
            is_aligned = True
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
            is_aligned = isinstance(value, int) and value % 16 == 0
        if is_aligned:
            properties[position,] = [["tt.divisibility", 16]]
    return signature, constants, properties


def compile_launch(launch: Launch, layer: str, dtype: str, capability: int) -> Compiled:
    """Compiles one launch for an architecture."""
    signature, constants, properties = specialise(launch)
    options = {name: value for name, value in launch.options.items() if name not in launch.kernel.arg_names}
    source = ASTSource(launch.kernel, signature, constants, properties)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack_bytes = resource_usage(compiled.asm["cubin"])
    ptx = compiled.asm["ptx"]
    kinds = [kind for kind in ("tcgen05.mma", "wgmma", "mma.sync") if kind in ptx]
    blocks = [str(value) for name, value in constants.items() if name in ("ROWS", "COLUMNS", "DEPTH")]
    return Compiled(
        kernel=launch.kernel.__name__,
        tile=f"{'x'.join(blocks)}, {compiled.metadata.num_warps} warps, {compiled.metadata.num_stages} stages",
        dtype=dtype,
        layer=layer,
        capability=capability,
        registers=registers,
        stack_bytes=stack_bytes,
        shared_bytes=compiled.metadata.shared,
        tensor_core=kinds[0] if kinds else "",
        copies=len(re.findall(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], (?:0x10|16)\b", ptx)),
    )


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, from the binary."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+)", run.stdout)
    if found is None:
        raise RuntimeError(f"{tool} printed no registers: {run.stdout!r}")
    return int(found[1]), int(found[2])


def all_launches() -> Iterator[tuple[Launch, str, str]]:
    """Every launch to compile, with the name of its layer and of its dtype."""
    for dtype_name, dtype in DTYPES.items():
        precision = "ieee" if dtype_name == "ieee fp32" else "tf32"
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        for launch in launches_with_every_tile(LAYER, dtype, precision):
            yield launch, "WeatherBench B=64", dtype_name
        for layer_name, layer in LAYERS.items():
            for launch in convolution_launches(layer, dtype):
                yield launch, layer_name, dtype_name


def compile_all(capabilities: list[int], only: str | None) -> Iterator[Compiled]:
    """Compiles every launch that differs from those before it."""
    seen: set[str] = set()
    for launch, layer_name, dtype_name in all_launches():
        if only is not None and only not in launch.kernel.__name__:
            continue
        key = repr((launch.kernel.__name__, *specialise(launch), launch.options))
        if key not in seen:
            seen.add(key)
            for capability in capabilities:
                yield compile_launch(launch, layer_name, dtype_name, capability)


def problems_of(row: Compiled, stored: dict[tuple[str, ...], dict[str, Any]]) -> list[str]:
    """What is wrong with a compiled kernel, on its own and beside the stored table."""
    problems: list[str] = []
    if row.stack_bytes:
        problems.append(f"spills registers: {row.stack_bytes} bytes of stack")
    if row.shared_bytes > SHARED_LIMITS[row.capability]:
        problems.append(f"shared memory {row.shared_bytes} exceeds {SHARED_LIMITS[row.capability]} bytes")
    if not row.tensor_core and row.dtype != "ieee fp32":
        problems.append("no tensor-core instruction")
    if not row.copies:
        problems.append("no asynchronous 16-byte copy")
    before = stored.get(row.key)
    if before is not None:
        problems += [
            f"{name} {getattr(row, name)}, stored {before[name]}"
            for name in ("registers", "shared_bytes")
            if getattr(row, name) > ALLOWED_GROWTH * before[name] + 16
        ]
        if row.copies < before["copies"] / ALLOWED_GROWTH:
            problems.append(f"{row.copies} copies of 16 bytes, stored {before['copies']}")
    return problems


def table_rows(rows: list[Compiled], capabilities: list[int]) -> list[dict[str, Any]]:
    """One row for each kernel, tile, dtype and layer, with a column for each architecture."""
    grouped: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        line = grouped.setdefault(row.key[:4], {"kernel": row.kernel, "tile": row.tile, "operands": row.dtype})
        line["layer"] = row.layer
        kind = f", {row.tensor_core}" if row.tensor_core else ""
        copies = f", {row.copies} copies" if row.copies else ""
        line[f"sm_{row.capability}"] = f"{row.registers} regs, {row.shared_bytes / 1024:.1f} KB{kind}{copies}"
    empty = {f"sm_{capability}": "-" for capability in capabilities}
    return [{**empty, **line} for line in grouped.values()]


def main() -> int:
    """Compiles, checks and stores."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--capabilities", type=int, nargs="+", default=list(SHARED_LIMITS), choices=list(SHARED_LIMITS))
    parser.add_argument("--kernel", help="compile only kernels whose name contains this; nothing is stored")
    parser.add_argument("--check", action="store_true", help="compare with the stored table and leave it as it is")
    arguments = parser.parse_args()
    version = ".".join(triton.__version__.split(".")[:2])
    path = RESULTS / f"compile-triton-{version}.md"
    records = path.with_suffix(".jsonl")
    stored: dict[tuple[str, ...], dict[str, Any]] = {}
    if records.exists():
        for line in records.read_text().splitlines():
            record = json.loads(line)
            stored[Compiled(**record).key] = record
    rows: list[Compiled] = []
    num_problems = 0
    for row in compile_all(arguments.capabilities, arguments.kernel):
        if any(row.key == other.key for other in rows):
            raise RuntimeError(f"two kernels of the table have the same key {row.key}")
        rows.append(row)
        for problem in problems_of(row, stored):
            num_problems += 1
            print(f"sm_{row.capability} {row.kernel} {row.tile} {row.dtype} ({row.layer}): {problem}", file=sys.stderr)
    num_new = sum(row.key not in stored for row in rows)
    print(
        f"Triton {triton.__version__}: {len(rows)} kernels compiled, {num_problems} problems; {num_new} are not in the "
        "stored table"
    )
    if num_problems or arguments.check or arguments.kernel:
        return 1 if num_problems else 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    made = circumstances()
    notes = (
        "Registers of a thread and shared memory of a program; the kind of the tensor-core instructions; the number of "
        "asynchronous 16-byte copies in the code. No kernel spills a register. Compiled without a GPU: this says "
        f"nothing about speed. Triton {triton.__version__}, torch {made['torch']}, commit {made['commit']}, "
        f"{made['date']}."
    )
    columns = ["kernel", "tile", "operands", "layer", *(f"sm_{capability}" for capability in arguments.capabilities)]
    lines = table_rows(rows, arguments.capabilities)
    write_table(path, "Triton kernels, compiled ahead of time", "make gpu-compile", columns, lines, notes)
    # All numbers of a kernel, with which the next run compares, in place of the rows of the table.
    records.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
