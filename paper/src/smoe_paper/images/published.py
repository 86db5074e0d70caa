"""Results that the paper prints for small images, as data. Imports nothing heavy."""

from __future__ import annotations

from smoe_paper.experiments.published import PublishedResult


def accuracy_result(mean: float, spread: float, source: str) -> PublishedResult:
    """Returns a published accuracy in percent."""
    return PublishedResult("accuracy", mean, spread, None, source)


_MNIST, _CIFAR10 = "Table D.1", "Table D.2"

PUBLISHED = {
    "mnist/conv": accuracy_result(98.86, 0.02, _MNIST),
    "mnist/lcn": accuracy_result(99.09, 0.02, _MNIST),
    "mnist/coordconv": accuracy_result(99.40, 0.03, _MNIST),
    "mnist/wide": accuracy_result(99.15, 0.01, _MNIST),
    "mnist/lrlcn": accuracy_result(99.49, 0.01, _MNIST),
    "mnist/smoe": accuracy_result(99.54, 0.01, _MNIST),
    "cifar10/conv": accuracy_result(78.83, 0.07, _CIFAR10),
    "cifar10/lcn": accuracy_result(72.03, 0.10, _CIFAR10),
    "cifar10/coordconv": accuracy_result(80.98, 0.09, _CIFAR10),
    "cifar10/wide": accuracy_result(82.43, 0.13, _CIFAR10),
    "cifar10/lrlcn": accuracy_result(84.85, 0.08, _CIFAR10),
    "cifar10/smoe": accuracy_result(85.05, 0.07, _CIFAR10),
}
