"""`smoe bench`: which backend is in use, and how fast a layer is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from smoe.command_line import UsageError, parse

HELP = """usage: smoe bench backends
       smoe bench layer [NAME ...] [--output FILE] [--seconds S]
       smoe bench local
       smoe bench memory

backends  says which implementation of the routed convolution is used here, which is not, and why
layer     measures the routed convolution beside F.conv2d with as many filters as are selected (= 1.0)
local     measures the locally connected layer beside unfold, multiply, sum
memory    measures the peak memory of a training step on a 361 x 720 grid beside F.conv2d's

examples:
  smoe bench backends
  smoe bench layer                       # all configurations; takes some ten minutes
  smoe bench layer heat CIFAR            # those whose name contains a word
"""


@dataclass(frozen=True)
class Layer:
    """Measures layers side by side with F.conv2d, prints a table and stores it.

    Attributes:
        names: words that the names of configurations contain; all of them if none is given.
        output: Markdown file of the table; a .jsonl beside it holds the rows.
        seconds: spent on each forward comparison; twice that on each forward and backward.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    output: Path = Path("benchmarks/results/layer.md")
    seconds: float = 3.0


def run(args: list[str]) -> int:
    """Runs the benchmark that was named."""
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(HELP)
        return 0 if args else 2
    if args[0] == "backends" and len(args) == 1:
        return _backends()
    if args[0] == "layer":
        return _layer(parse(Layer, args[1:], prog="smoe bench layer"))
    if args == ["local"]:
        return _local()
    if args == ["memory"]:
        return _memory()
    raise UsageError(f"smoe bench does not know {' '.join(args)!r}; there are backends, layer, local and memory")


def _backends() -> int:
    from smoe.benchmarks.backends import describe_backends

    for name, state in describe_backends():
        sys.stdout.write(f"{name:<18}{state}\n")
    return 0


def _local() -> int:
    from rich.progress import track

    from smoe.benchmarks.local import COLUMNS, CONFIGURATIONS, measure
    from smoe.benchmarks.stored_table import write_table

    rows = [measure(name) for name in track(CONFIGURATIONS, description="measuring")]
    title = "The locally connected layer beside unfold, multiply, sum"
    notes = f"One thread, interleaved, medians. {_origin(rows[-1])}"
    sys.stdout.write(write_table(Path("benchmarks/results/local.md"), title, "smoe bench local", COLUMNS, rows, notes))
    return 0


def _memory() -> int:
    from smoe.benchmarks.memory import COLUMNS, measure
    from smoe.benchmarks.stored_table import write_table

    rows = measure()
    title = "Peak memory of a training step, B=1, C=32, X=128, E=32, 361 x 720"
    notes = (
        "Peak of the resident memory above what the process had before it made its tensors (the input, the bank, the "
        "routing), three steps, one thread. Large tensors have mappings of their own, so that memory which was freed "
        "does not count; the last columns are without that: the heap keeps holes, which differ from run to run. The "
        "gate is its scores and, once it exists, their gradient, which grow with the bank by nature. "
        f"{_origin(rows[-1])}"
    )
    path = Path("benchmarks/results/memory.md")
    sys.stdout.write(write_table(path, title, "smoe bench memory", COLUMNS, rows, notes))
    return 0


def _origin(row: Mapping[str, Any]) -> str:
    return f"{row['processor']}, torch {row['torch']}, commit {row['commit']}, {row['date']}."


def _layer(options: Layer) -> int:
    from rich.progress import track

    from smoe.benchmarks.layer import COLUMNS, cases, measure
    from smoe.benchmarks.stored_table import write_table

    chosen = cases(options.names)
    if not chosen:
        raise UsageError(f"no configuration's name contains {' or '.join(options.names)}")
    rows = []
    text = ""
    for name, configuration, routing, threads in track(chosen, description="measuring"):
        row = measure(configuration, routing, threads, seconds=options.seconds, with_dense="X =" not in name)
        rows.append({"configuration": name, **row})
        # Written after each row, so that a stop loses one measurement and not the table.
        text = write_table(
            options.output,
            "The routed convolution beside F.conv2d",
            "smoe bench layer",
            COLUMNS,
            rows,
            "Ratios to `F.conv2d` with E filters, interleaved in one process, medians; 3 x 3 kernels, zero padding. "
            "fwd+bwd: forward, input gradient and weight gradient. The last ratio adds the routing-classification "
            f"gradient and the damping. {_origin(rows[-1])}",
        )
    sys.stdout.write(text)
    return 0
