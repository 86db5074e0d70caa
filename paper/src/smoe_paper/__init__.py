"""The experiments of the paper: recipes, data, baselines, tables and benchmarks, on top of smoe.

`load` opens a trained run; it is imported on first use: `import smoe_paper` is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smoe_paper.experiments.runs import open_run as load

__all__ = ["load"]


def __getattr__(name: str) -> object:
    if name == "load":
        from smoe_paper.experiments.runs import open_run

        return open_run
    raise AttributeError(f"module 'smoe_paper' has no attribute {name!r}")
