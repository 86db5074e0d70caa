"""Times what it takes to read and augment one ImageNet-sized JPEG, step by step, on one thread.

Run: smoe bench imagenet-reading [--images 40]. Prints the table and stores it in results/bench.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from smoe.benchmarks.stored_table import circumstances, write_table
from smoe.paper.imagenet.data.augment.mixing import cutmix, mixup
from smoe.paper.imagenet.data.augment.options import Augmentation
from smoe.paper.imagenet.data.augment.trivial_augment import trivial_augment
from smoe.paper.imagenet.data.crops import evaluation_view, normalised, training_view
from smoe.paper.imagenet.data.read_image import read_image

# Width and height of most of ImageNet's images.
_SIZE = (500, 375)
_BATCH = 128


def write_photos(folder: Path, number: int) -> list[Path]:
    """Files of soft shapes with some noise, which are as large as photographs of that size: about 100 kB."""
    rng = np.random.default_rng(0)
    paths = []
    for index in range(number):
        coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3)).astype(np.uint8))
        soft = np.array(coarse.resize(_SIZE, Image.Resampling.BICUBIC)).astype(np.float64)
        pixels = np.clip(soft + rng.normal(0.0, 12.0, soft.shape), 0, 255).astype(np.uint8)
        paths.append(folder / f"{index}.JPEG")
        Image.fromarray(pixels).save(paths[-1], quality=90)
    return paths


def milliseconds(call: Callable[[int], object], numbers: Sequence[int]) -> float:
    """Median CPU milliseconds of a call."""
    times = []
    for number in numbers:
        started = time.process_time()
        call(number)
        times.append(1000.0 * (time.process_time() - started))
    return statistics.median(times)


def main(args: list[str] | None = None) -> None:
    """Measures and stores."""
    parser = argparse.ArgumentParser("smoe bench imagenet-reading", description=__doc__)
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--output", type=Path, default=Path("results/bench") / "imagenet_reading.md")
    arguments = parser.parse_args(args)
    torch.set_num_threads(1)
    numbers = range(arguments.images)
    options = Augmentation()
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), arguments.images)
        kilobytes = statistics.median(path.stat().st_size for path in paths) / 1000
        photos = [read_image(path) for path in paths]
        small = [photo.resize((176, 176), Image.Resampling.BILINEAR) for photo in photos]
        batch, shares = torch.rand(_BATCH, 3, 176, 176), torch.eye(_BATCH, 1000)

        def rng(number: int) -> np.random.Generator:
            return np.random.default_rng(number)

        steps: dict[str, tuple[Callable[[int], object], int]] = {
            "read a JPEG": (lambda number: read_image(paths[number]), 1),
            "TrivialAugment at 176": (lambda number: trivial_augment(rng(number), small[number]), 1),
            "to a normalised tensor at 176": (lambda number: normalised(small[number]), 1),
            "training view, all of it but reading": (
                lambda number: training_view(rng(number), photos[number], 176, options),
                1,
            ),
            "evaluation view, 232 and 224": (lambda number: evaluation_view(photos[number], 232, 224), 1),
            "mixup, of a batch of 128": (lambda number: mixup(rng(number), batch, shares, 0.2), _BATCH),
            "CutMix, of a batch of 128": (lambda number: cutmix(rng(number), batch, shares, 1.0), _BATCH),
        }
        rows = []
        for name, (call, share) in steps.items():
            call(0)
            rows.append({"step": name, "ms an image": f"{milliseconds(call, numbers) / share:.2f}", **circumstances()})
    print(
        write_table(
            arguments.output,
            "Reading and augmenting an image",
            f"smoe bench imagenet-reading --images {arguments.images}",
            ["step", "ms an image", "processor", "torch", "commit", "date"],
            rows,
            f"Made-up photographs of {_SIZE[0]} x {_SIZE[1]} pixels, JPEG of quality 90, {kilobytes:.0f} kB; median "
            f"CPU time of {arguments.images} images, one thread.",
        )
    )


if __name__ == "__main__":
    main()
