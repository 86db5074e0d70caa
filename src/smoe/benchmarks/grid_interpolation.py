"""Scores trained runs on MNIST at their own size and at larger ones, with their gates interpolated.

Run: smoe bench grid-interpolation --data FOLDER RUN [RUN ...]. FOLDER holds MNIST's files, each RUN is one of
`smoe train mnist/...`. Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.progress import track

import smoe
from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.experiments.open_run import OpenRun
from smoe.experiments.runs import open_run
from smoe.paper.images.data.image_files import LabelledImages, read_images
from smoe.paper.images.model_options import SpatialMoEClassifierModel
from smoe.paper.images.recipes import ImageRecipe

_SIZE = 28
_LARGER = (32, 36)


def enlarged(found: LabelledImages, number: int, size: int) -> torch.Tensor:
    """The first images at another size, from -1 to 1."""
    images = [Image.fromarray(np.array(image[0])) for image in found.images[:number]]
    resized = images if size == _SIZE else [image.resize((size, size), Image.Resampling.BILINEAR) for image in images]
    return torch.from_numpy(np.stack([np.array(image) for image in resized])).float()[:, None] / 127.5 - 1.0


def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> str:
    """Percentage of images that are classified right."""
    model.eval()
    with torch.no_grad():
        predicted = torch.cat([model(part).argmax(dim=1) for part in images.split(100)])
    return f"{100.0 * float((predicted == labels).float().mean()):.1f}"


def describe(run: OpenRun) -> str:
    """The network of a run, and for an SMoE its gate."""
    recipe = run.recipe
    assert isinstance(recipe, ImageRecipe)
    name = type(recipe.model).__name__.removesuffix("ClassifierModel")
    if not isinstance(recipe.model, SpatialMoEClassifierModel):
        return f"{name}, {recipe.model.filters} filters"
    start = {"kaiming": "white noise", "smooth": "smooth"}.get(recipe.model.gate_init, recipe.model.gate_init)
    learns = "frozen" if recipe.model.gate == "random" else "learned by RC"
    return f"SMoE, {recipe.model.filters} filters, {start}, {recipe.model.order} order, {learns}"


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench grid-interpolation", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True, help="folder of MNIST's files")
    parser.add_argument("--images", type=int, default=1000, help="test images to score")
    parser.add_argument("--output", type=Path, default=Path("results/bench") / "grid_interpolation.md")
    arguments = parser.parse_args(args)
    torch.set_num_threads(1)
    found = read_images("mnist", arguments.data, "test")
    labels = torch.from_numpy(found.labels[: arguments.images].astype(np.int64))
    images = {size: enlarged(found, arguments.images, size) for size in (_SIZE, *_LARGER)}
    rows: list[dict[str, Any]] = []
    # Before the first run: a later commit is not what runs.
    where = circumstances()
    for path in track(arguments.runs, description="scoring"):
        run = open_run(path, notify=lambda _: None)
        model = run.task.model
        row = {"network": describe(run), f"{_SIZE}": accuracy(model, images[_SIZE], labels)}
        for size in _LARGER:
            for mode in ("linear", "nearest"):
                larger = smoe.interpolate_grids(model, example_input=images[size][:1], mode=mode)
                row[f"{size}, {mode}"] = accuracy(larger, images[size], labels)
        rows.append({**row, **where})
    columns = ["network", f"{_SIZE}", *(f"{size}, {mode}" for size in _LARGER for mode in ("linear", "nearest"))]
    print(
        write_table(
            arguments.output,
            "Gates interpolated to larger images",
            f"smoe bench grid-interpolation --data FOLDER --images {arguments.images} RUN ...",
            [*columns, "processor", "torch", "commit", "date"],
            rows,
            f"Percentage of the first {arguments.images} test images of MNIST that are classified right, at the size "
            "of training (28 pixels) and enlarged (36 is to 28 as 224 is to 176), by nets of three layers after 300 "
            "batches of 32, one seed.",
        )
    )


if __name__ == "__main__":
    main()
