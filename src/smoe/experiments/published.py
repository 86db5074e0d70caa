"""The paper's numbers, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperResult:
    """A result the paper prints.

    Attributes:
        metric: its name here.
        mean: over the paper's runs.
        spread: standard deviation over the paper's runs.
        epochs: trained for; None if not printed.
        source: where it stands in the paper.
    """

    metric: str
    mean: float
    spread: float
    epochs: int | None
    source: str


def heat_result(mean: float, spread: float = 0.0, epochs: int | None = None, source: str = "") -> PaperResult:
    """A percentage within 1 %, of the heat-diffusion experiment."""
    return PaperResult("within_1_percent", mean, spread, epochs, source)


def image_result(mean: float, spread: float, source: str) -> PaperResult:
    """An accuracy in percent, of the classification of images."""
    return PaperResult("accuracy", mean, spread, None, source)


_MAIN = "Figure 3, left"
_MNIST, _CIFAR10 = "appendix D, MNIST", "appendix D, CIFAR10"
_IMAGENET = "section 3.4, ImageNet"

PAPER_RESULTS = {
    "heat/smoe": heat_result(100.0, 0.0, 8, _MAIN),
    "heat/conv": heat_result(91.3, 0.2, 102, _MAIN),
    "heat/coordconv": heat_result(91.1, 0.2, 50, _MAIN),
    "heat/condconv": heat_result(91.2, 0.3, 120, _MAIN),
    "heat/lrlcn": heat_result(91.8, 0.5, 27, _MAIN),
    "heat/lrlcn-nd": heat_result(91.5, 0.3, 35, _MAIN),
    "heat/lcn": heat_result(100.0, 0.0, 110, _MAIN),
    "heat/fc": heat_result(14.2, 1.2, 250, _MAIN),
    "heat/vit": heat_result(93.5, 0.1, 67, _MAIN),
    "heat/vmoe": heat_result(93.8, 0.3, 74, _MAIN),
    "mnist/conv": image_result(98.86, 0.02, _MNIST),
    "mnist/lcn": image_result(99.09, 0.02, _MNIST),
    "mnist/coordconv": image_result(99.40, 0.03, _MNIST),
    "mnist/wide": image_result(99.15, 0.01, _MNIST),
    "mnist/lrlcn": image_result(99.49, 0.01, _MNIST),
    "mnist/smoe": image_result(99.54, 0.01, _MNIST),
    "cifar10/conv": image_result(78.83, 0.07, _CIFAR10),
    "cifar10/lcn": image_result(72.03, 0.10, _CIFAR10),
    "cifar10/coordconv": image_result(80.98, 0.09, _CIFAR10),
    "cifar10/wide": image_result(82.43, 0.13, _CIFAR10),
    "cifar10/lrlcn": image_result(84.85, 0.08, _CIFAR10),
    "cifar10/smoe": image_result(85.05, 0.07, _CIFAR10),
    "imagenet/resnet50": image_result(80.83, 0.04, _IMAGENET),
    "imagenet/wide-resnet50": image_result(81.76, 0.03, _IMAGENET),
    "imagenet/lrlcn": image_result(80.90, 0.02, _IMAGENET),
    "imagenet/smoe-first": image_result(80.85, 0.05, _IMAGENET),
    "imagenet/smoe-last": image_result(80.91, 0.04, _IMAGENET),
    "imagenet/smoe": image_result(81.33, 0.03, _IMAGENET),
}
