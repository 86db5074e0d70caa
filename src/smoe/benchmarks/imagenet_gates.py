"""How fast gates move under SGD, and what their interpolation to larger images costs: a small ResNet on Fashion-MNIST.

Run: smoe bench imagenet-gates --data FOLDER [--images 4000] [--epochs 5]. FOLDER holds the files of
Fashion-MNIST, as `smoe data fetch fashion-mnist` gets them. Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import track

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.experiments.optimizers import SgdMomentum
from smoe.paper.imagenet.data.augment.options import Augmentation
from smoe.paper.imagenet.data.class_folders import find_class_folders
from smoe.paper.imagenet.data.folder_samples import FolderImages
from smoe.paper.imagenet.model_options import ImageNetModel, ResNet50Model, SpatialMoEResNet50Model
from smoe.paper.imagenet.recipes import IMAGENET_RECIPES, ImageNetData, ImageNetRecipe
from smoe.paper.images.data.image_files import read_images

SIZE, LARGER = 64, 82
_SMALL = {"num_blocks": (1, 1, 1, 1), "filters": 16}
# Start and order of each SMoE, and the learning rates of its gates; None: frozen.
KINDS: dict[tuple[str, str], tuple[ImageNetModel, tuple[float | None, ...]]] = {
    ("white noise", "score"): (
        SpatialMoEResNet50Model(gate_init="kaiming", order="score", **_SMALL),
        (None, 10, 100),
    ),
    ("smooth", "index"): (SpatialMoEResNet50Model(gate_init="smooth", order="index", **_SMALL), (None, 10, 100)),
}


def write_images(data: Path, root: Path, num_images: int) -> None:
    """The first images of each split as class folders of PNG files."""
    for split, part, number in (("train", "train", num_images), ("val", "test", 1000)):
        found = read_images("fashion-mnist", data, part)  # type: ignore[arg-type]
        for index in range(number):
            folder = root / split / f"{found.labels[index]:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.array(found.images[index, 0])).save(folder / f"{index:05d}.png")


def make_recipe(root: Path, model: ImageNetModel, gate_lr: float | None, num_epochs: int) -> ImageNetRecipe:
    """The recipe of the SMoE, smaller: images that are small need no strong augmentation."""
    base = IMAGENET_RECIPES["imagenet/smoe"]
    plan = replace(
        base.training,
        batch_size=64,
        part_size=None,
        max_epochs=num_epochs,
        warmup_epochs=1,
        warmup_start=0.1,
        average_every=None,
        early_stop_patience=num_epochs,
        num_workers=0,
        num_threads=1,
        device="cpu",
    )
    plain = Augmentation((0.5, 1.0), trivial_augment=False, erasing=0.0, mixup=0.0, cutmix=0.0, repetitions=1)
    return replace(
        base,
        data=ImageNetData(root, train_size=SIZE, resize=SIZE, crop=SIZE, held_out_per_class=20),
        augmentation=plain,
        model=replace(model, gate="random") if gate_lr is None and not isinstance(model, ResNet50Model) else model,
        optimizer=SgdMomentum(lr=0.1, gate_lr=0.0 if gate_lr is None else gate_lr),
        training=plan,
    )


def measure(recipe: ImageNetRecipe, run: Path) -> dict[str, str]:
    """Trains, and scores the best weights by the held-out images at the size of training and at the larger one."""
    from smoe import nn
    from smoe.experiments.runs import open_run, train
    from smoe.paper.imagenet.build import for_size
    from smoe.training.devices import make_accelerator
    from smoe.training.evaluation import evaluate
    from smoe.training.run_directory import RunDirectory

    train("imagenet/smoe", recipe, run, notify=lambda _: None)
    history = RunDirectory(run).read_history()
    opened = open_run(run, "best", notify=lambda _: None)
    assert recipe.data.root is not None
    images = find_class_folders(recipe.data.root / "val")
    model, task = opened.task.model, opened.task

    def accuracy(size: int, mode: str) -> str:
        import torch

        net = model
        if size != SIZE and mode == "nearest":
            net = nn.interpolate_grids(model, example_input=torch.zeros(1, 3, size, size), mode="nearest")
        elif size != SIZE:
            net = for_size(model, size)
        samples = FolderImages(images, size, size)
        accelerator = make_accelerator(recipe.training)
        values = evaluate(accelerator, net, samples, task.metrics, task.collate, 100)
        return f"{values['accuracy']:.1f}"

    last = history[-2]
    has_gate = "routing/changed_since_start" in last
    return {
        "routing changed": f"{100 * last['routing/changed_since_start']:.1f} %" if has_gate else "-",
        "reordered in the last epoch": f"{100 * last['routing/reordered']:.0f} %" if has_gate else "-",
        f"at {SIZE}": accuracy(SIZE, "linear"),
        f"at {LARGER}, linear": accuracy(LARGER, "linear"),
        f"at {LARGER}, nearest": accuracy(LARGER, "nearest"),
    }


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench imagenet-gates", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of Fashion-MNIST's files")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("results/bench") / "imagenet_gates.md")
    arguments = parser.parse_args(args)
    cases: list[tuple[dict[str, str], ImageNetModel, float | None]] = [
        ({"gate starts as": "no gate: ResNet", "order": "-", "gate lr": "-"}, ResNet50Model(**_SMALL), None)
    ]
    for (start, order), (model, rates) in KINDS.items():
        for rate in rates:
            text = "frozen" if rate is None else f"{rate:g}"
            cases.append(({"gate starts as": start, "order": order, "gate lr": text}, model, rate))
    rows = []
    # Before the first run: a later commit is not what runs.
    where = circumstances()
    with tempfile.TemporaryDirectory() as folder:
        write_images(arguments.data, Path(folder) / "images", arguments.images)
        for number, (labels, model, rate) in enumerate(track(cases, description="training")):
            recipe = make_recipe(Path(folder) / "images", model, rate, arguments.epochs)
            rows.append({**labels, **measure(recipe, Path(folder) / str(number)), **where})
    columns = ["gate starts as", "order", "gate lr", "routing changed", "reordered in the last epoch"]
    columns += [f"at {SIZE}", f"at {LARGER}, linear", f"at {LARGER}, nearest", "processor", "torch", "commit", "date"]
    flags = f"--images {arguments.images} --epochs {arguments.epochs}"
    print(
        write_table(
            arguments.output,
            "Gates under SGD, and taken to larger images",
            f"smoe bench imagenet-gates --data FOLDER {flags}",
            columns,
            rows,
            f"A ResNet of four blocks and 16 filters, SGD at 0.1 with momentum 0.9, batches of 64, cosine, "
            f"{arguments.epochs} epochs of {arguments.images} images of Fashion-MNIST enlarged to {SIZE} pixels: top-1 "
            "accuracy of one seed on 1000 test images, of the epoch that is best by 200 held-out ones, at the size of "
            f"training and at {LARGER} pixels with interpolated gates. "
            " RC with quantile 0.7, no damping. `routing changed`: choices that the start had not; "
            "`reordered`: places in the order of a pixel's experts where another stands than an epoch before.",
        )
    )


if __name__ == "__main__":
    main()
